//! Do the books agree with themselves (P5, P6)? Pure: what the books hold of a lead, an account or a buyer's windows goes
//! in, what is wrong with it comes out. `sql` reads the rows page by page.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::Serialize;

use super::windows::StoredPlace;
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::{AttemptOutcome, LeadStatus};

/// Findings that are told one by one; more are only counted.
pub const FINDINGS_MAX: usize = 1000;

/// Which part of the books is looked at. Balances are always compared as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Leads received, and cap windows that started, at or after it. `None`: from the beginning, and only then the windows of
    /// `total` caps are compared too.
    pub since: Option<Timestamp>,
    /// And before it. Events of one lead come from several partitions, so what is younger than the settlement's delay may
    /// still look unfinished.
    pub until: Timestamp,
}

/// Told now and then how many rows have been looked at.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// What an audit looked at and what it found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// Leads of the period.
    pub leads: u64,
    /// Their attempts.
    pub attempts: u64,
    /// Their lines in the books.
    pub entries: u64,
    /// Cap windows.
    pub windows: u64,
    /// Accounts.
    pub accounts: u64,
    /// The first [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// Findings in all.
    pub found: u64,
}

impl Audit {
    /// Is there nothing to be found?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.found += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }
}

/// Something that does not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "the fields are the values that each variant's sentence speaks of; micros end their names"
)]
pub enum Finding {
    /// A lead's lines do not sum to zero.
    Unbalanced { lead: Text<LeadId>, currency: Currency, sum_micros: i128 },
    /// An acceptance, or a lead that counts as sold, has no lines.
    MissingSale { lead: Text<LeadId>, buyer: BuyerId },
    /// Lines without an acceptance.
    UnearnedSale { lead: Text<LeadId>, buyer: BuyerId },
    /// A line is not what the sale says.
    WrongLine { lead: Text<LeadId>, buyer: BuyerId, account: String, booked_micros: Option<i64>, expected_micros: i64 },
    /// The publisher is paid for one lead by more than one sale.
    PaidTwice { lead: Text<LeadId>, buyers: Vec<BuyerId> },
    /// A line of a return is not the line of its sale the other way round, or is missing.
    WrongReturn { lead: Text<LeadId>, buyer: BuyerId, account: String, booked_micros: i64, expected_micros: i64 },
    /// A buyer accepted, and the lead is closed as something else than sold.
    WrongVerdict { lead: Text<LeadId>, buyer: BuyerId, status: &'static str },
    /// Attempts or a verdict of a lead whose arrival is not in the books.
    NeverReceived { lead: Text<LeadId> },
    /// A test lead touched a buyer or money.
    TestLeadCounted { lead: Text<LeadId> },
    /// A balance is not the sum of its account's lines.
    WrongBalance { account: String, currency: Currency, balance_micros: i64, entries_micros: i128 },
    /// A cap's usage is not what its counted attempts and its past before the first of them add up to.
    WrongUsage { buyer: BuyerId, cap: String, window_start: Text<Timestamp>, used: i64, expected: i128 },
}

/// Shown, and written to JSON, as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: std::fmt::Display> Serialize for Text<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unbalanced { lead, currency, sum_micros } => {
                write!(f, "lead {}: its entries sum to {sum_micros} micros of {currency}, not to 0", lead.0)
            }
            Self::MissingSale { lead, buyer } => write!(f, "lead {}: sold to {buyer}, but nothing is booked", lead.0),
            Self::UnearnedSale { lead, buyer } => {
                write!(f, "lead {}: a sale to {buyer} is booked, but no attempt was accepted", lead.0)
            }
            Self::WrongLine { lead, buyer, account, booked_micros, expected_micros } => {
                let booked = booked_micros.map_or_else(|| "nothing".to_owned(), |micros| Micros(micros).to_string());
                let expected = Micros(*expected_micros);
                write!(f, "lead {}: sale to {buyer}: {account} has {booked} booked, not {expected}", lead.0)
            }
            Self::PaidTwice { lead, buyers } => {
                let buyers: Vec<&str> = buyers.iter().map(BuyerId::as_str).collect();
                write!(
                    f,
                    "lead {}: the publisher is paid for the sales to {}, not for one of them",
                    lead.0,
                    buyers.join(" and ")
                )
            }
            Self::WrongReturn { lead, buyer, account, booked_micros, expected_micros } => {
                let (booked, expected) = (Micros(*booked_micros), Micros(*expected_micros));
                write!(f, "lead {}: return by {buyer}: {account} has {booked} booked, not {expected}", lead.0)
            }
            Self::WrongVerdict { lead, buyer, status } => {
                write!(f, "lead {}: {buyer} accepted it, but it is closed as {status}", lead.0)
            }
            Self::NeverReceived { lead } => write!(f, "lead {}: its arrival is not in the books", lead.0),
            Self::TestLeadCounted { lead } => write!(f, "lead {}: a test lead with attempts or entries", lead.0),
            Self::WrongBalance { account, currency, balance_micros, entries_micros } => {
                write!(
                    f,
                    "account {account}: its balance is {} {currency}, its entries sum to {entries_micros} micros",
                    Micros(*balance_micros)
                )
            }
            Self::WrongUsage { buyer, cap, window_start, used, expected } => {
                let start = window_start.0;
                write!(f, "buyer {buyer}, cap {cap}, window {start}: usage is {used}, counted attempts make {expected}")
            }
        }
    }
}

/// A lead's row, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeadSide {
    pub status: LeadStatus,
    pub buyer: Option<BuyerId>,
    pub price: Option<Micros>,
    pub payout: Option<Micros>,
    pub is_test: bool,
    pub has_received: bool,
    pub closed_at: Option<Timestamp>,
}

/// An attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttemptSide {
    pub buyer: BuyerId,
    pub outcome: AttemptOutcome,
    pub price: Micros,
    pub payout: Micros,
    pub sent_at: Timestamp,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntrySide {
    pub buyer: BuyerId,
    pub account: String,
    pub amount: Micros,
    pub currency: Currency,
    pub is_sale: bool,
    pub booked_at: Timestamp,
}

/// Everything that the books hold of one lead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LeadBooks {
    pub lead: Option<LeadSide>,
    pub attempts: Vec<AttemptSide>,
    pub entries: Vec<EntrySide>,
}

/// Looks at one lead. What happened at `until` or later may be settled only in part.
pub(super) fn check_lead(lead: LeadId, books: &LeadBooks, until: Timestamp, audit: &mut Audit) {
    let id = Text(lead);
    let mut sums: BTreeMap<Currency, i128> = BTreeMap::new();
    for entry in &books.entries {
        *sums.entry(entry.currency).or_default() += i128::from(entry.amount.0);
    }
    for (currency, sum_micros) in sums.into_iter().filter(|(_, sum)| *sum != 0) {
        audit.add(Finding::Unbalanced { lead: id, currency, sum_micros });
    }
    let is_old = |at: Timestamp| at < until;
    let row = books.lead.as_ref();
    let is_closed = row.and_then(|row| row.closed_at).is_some_and(is_old);
    let has_old_attempt = books.attempts.iter().any(|attempt| is_old(attempt.sent_at));
    if !row.is_some_and(|row| row.has_received) && (is_closed || has_old_attempt) {
        audit.add(Finding::NeverReceived { lead: id });
    }
    if row.is_some_and(|row| row.is_test) && !(books.attempts.is_empty() && books.entries.is_empty()) {
        audit.add(Finding::TestLeadCounted { lead: id });
        return;
    }
    check_returns(id, &books.entries, audit);
    check_paid_once(id, &books.entries, audit);
    let sold_to = row.filter(|row| row.status == LeadStatus::Sold && !row.is_test).and_then(|row| row.buyer.as_ref());
    let mut buyers: BTreeMap<&BuyerId, Vec<&EntrySide>> = BTreeMap::new();
    for entry in books.entries.iter().filter(|entry| entry.is_sale) {
        buyers.entry(&entry.buyer).or_default().push(entry);
    }
    let accepted = books.attempts.iter().filter(|attempt| attempt.outcome == AttemptOutcome::Accepted);
    for buyer in accepted.clone().map(|attempt| &attempt.buyer).chain(sold_to.filter(|_| is_closed)) {
        buyers.entry(buyer).or_default();
    }
    for (buyer, lines) in buyers {
        if lines.is_empty() {
            audit.add(Finding::MissingSale { lead: id, buyer: buyer.clone() });
            continue;
        }
        let attempt = books.attempts.iter().find(|attempt| attempt.buyer == *buyer);
        let is_earned =
            attempt.is_some_and(|one| matches!(one.outcome, AttemptOutcome::Accepted | AttemptOutcome::LateAccepted));
        if !is_earned {
            if lines.iter().all(|line| is_old(line.booked_at)) {
                audit.add(Finding::UnearnedSale { lead: id, buyer: buyer.clone() });
            }
            continue;
        }
        // The verdict's terms are those that were booked; without them the attempt's are.
        let verdict = row.filter(|_| sold_to == Some(buyer)).and_then(|row| row.price.zip(row.payout));
        if let Some((price, payout)) = verdict.or_else(|| attempt.map(|attempt| (attempt.price, attempt.payout))) {
            check_lines(id, buyer, &lines, price, payout, audit);
        }
    }
    if let Some(row) = row.filter(|row| is_closed && row.status != LeadStatus::Sold) {
        for attempt in accepted {
            let (buyer, status) = (attempt.buyer.clone(), row.status.as_str());
            audit.add(Finding::WrongVerdict { lead: id, buyer, status });
        }
    }
}

/// Three lines: what the buyer owes, what the publisher earns, and the rest. Where another buyer has the sale, a second one
/// is charged and the publisher, who is paid once, gets nothing.
fn check_lines(
    lead: Text<LeadId>,
    buyer: &BuyerId,
    lines: &[&EntrySide],
    price: Micros,
    payout: Micros,
    audit: &mut Audit,
) {
    let owed = format!("buyer:{buyer}");
    let line = |is_it: &dyn Fn(&str) -> bool| lines.iter().find(|line| is_it(&line.account)).map(|line| line.amount.0);
    let earned = line(&|account| account.starts_with("publisher:"));
    let paid = if earned == Some(0) { 0 } else { payout.0 };
    for (account, booked_micros, expected_micros) in [
        (owed.as_str(), line(&|account| account == owed), -price.0),
        ("publisher", earned, paid),
        ("margin", line(&|account| account == "margin"), price.0 - paid),
    ] {
        if booked_micros != Some(expected_micros) {
            let (buyer, account) = (buyer.clone(), account.to_owned());
            audit.add(Finding::WrongLine { lead, buyer, account, booked_micros, expected_micros });
        }
    }
}

/// A publisher sells a lead once, however many buyers are charged for it.
fn check_paid_once(lead: Text<LeadId>, entries: &[EntrySide], audit: &mut Audit) {
    let mut paid: BTreeMap<&BuyerId, i64> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.account.starts_with("publisher:")) {
        let sum = paid.entry(&entry.buyer).or_default();
        *sum = sum.saturating_add(entry.amount.0);
    }
    let buyers: Vec<BuyerId> = paid.into_iter().filter(|(_, sum)| *sum > 0).map(|(buyer, _)| buyer.clone()).collect();
    if buyers.len() > 1 {
        audit.add(Finding::PaidTwice { lead, buyers });
    }
}

/// A return is its sale the other way round, whole; a line without its sale reverses nothing.
fn check_returns(lead: Text<LeadId>, entries: &[EntrySide], audit: &mut Audit) {
    let mut lines: BTreeMap<(&BuyerId, &str), (i64, i64)> = BTreeMap::new();
    let returned: Vec<&BuyerId> = entries.iter().filter(|entry| !entry.is_sale).map(|entry| &entry.buyer).collect();
    for entry in entries.iter().filter(|entry| returned.contains(&&entry.buyer)) {
        let (expected, booked) = lines.entry((&entry.buyer, &entry.account)).or_default();
        if entry.is_sale {
            *expected = expected.saturating_sub(entry.amount.0);
        } else {
            *booked = booked.saturating_add(entry.amount.0);
        }
    }
    for ((buyer, account), (expected_micros, booked_micros)) in lines {
        if booked_micros != expected_micros {
            let (buyer, account) = (buyer.clone(), account.to_owned());
            audit.add(Finding::WrongReturn { lead, buyer, account, booked_micros, expected_micros });
        }
    }
}

/// A row of `cap_usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct UsageSide {
    pub used: i64,
    /// What it held before the first attempt that names the window.
    pub begun: i64,
}

/// Compares a buyer's usage with what its counted attempts add up to.
pub(super) fn check_usage(
    buyer: &BuyerId,
    usage: &HashMap<StoredPlace, UsageSide>,
    counted: &HashMap<StoredPlace, i128>,
    audit: &mut Audit,
) {
    let mut places: Vec<&StoredPlace> = usage.keys().chain(counted.keys()).collect();
    places.sort();
    places.dedup();
    audit.windows += u64::try_from(places.len()).unwrap_or(u64::MAX);
    for place in places {
        let row = usage.get(place).copied().unwrap_or_default();
        let expected = i128::from(row.begun) + counted.get(place).copied().unwrap_or(0);
        if i128::from(row.used) != expected {
            let (cap, window_start) = (place.0.clone(), Text(place.1));
            audit.add(Finding::WrongUsage { buyer: buyer.clone(), cap, window_start, used: row.used, expected });
        }
    }
}

/// Compares balances with the sums of their accounts' lines.
pub(super) fn check_balances(
    balances: &HashMap<(String, Currency), i64>,
    sums: &HashMap<(String, Currency), i128>,
    audit: &mut Audit,
) {
    let mut accounts: Vec<&(String, Currency)> = balances.keys().chain(sums.keys()).collect();
    accounts.sort();
    accounts.dedup();
    audit.accounts += u64::try_from(accounts.len()).unwrap_or(u64::MAX);
    for key in accounts {
        let balance_micros = balances.get(key).copied().unwrap_or(0);
        let entries_micros = sums.get(key).copied().unwrap_or(0);
        if i128::from(balance_micros) != entries_micros {
            let (account, currency) = key.clone();
            audit.add(Finding::WrongBalance { account, currency, balance_micros, entries_micros });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_a_publisher_who_is_paid_for_two_sales_of_a_lead_is_found() {
        let line = |buyer: &str, micros: i64, is_sale| EntrySide {
            buyer: BuyerId::new(buyer).unwrap(),
            account: "publisher:acme".to_owned(),
            amount: Micros(micros),
            currency: Currency::new("USD").unwrap(),
            is_sale,
            booked_at: Timestamp::UNIX_EPOCH,
        };
        for (lines, is_found) in [
            (vec![line("a", 7, true), line("b", 7, true)], true),
            (vec![line("a", 7, true), line("b", 0, true)], false),
            (vec![line("a", 7, true), line("a", -7, false), line("b", 7, true)], false),
            (vec![line("a", 7, true)], false),
        ] {
            let mut audit = Audit::default();
            check_paid_once(Text(LeadId::generate()), &lines, &mut audit);
            assert_eq!(audit.found > 0, is_found, "{lines:?}");
        }
    }
}
