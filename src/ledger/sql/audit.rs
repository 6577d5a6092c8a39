//! Reads the books from end to end, in pages, as of one instant.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::SqlLedger;
use super::read::buyer;
use super::session::{Database, DbError, Kind, Row, Session, Value};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::{AttemptOutcome, LeadStatus};
use crate::ledger::audit::{
    AttemptSide, Audit, EntrySide, LeadBooks, LeadSide, Period, Progress, UsageSide, check_balances, check_lead,
    check_usage,
};
use crate::ledger::windows::{StoredPlace, stored_windows};

/// Rows of one read.
const PAGE: usize = 4000;
/// Entry ids that are summed in one statement.
const SUM_RANGE: i64 = 100_000;
/// A lease's window is the store's word, the time of its forward the gateway's.
const CLOCKS_APART: SignedDuration = SignedDuration::from_hours(1);
/// The longest window that ends.
const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(32 * 24);

const LEAD_KINDS: [Kind; 8] =
    [Kind::Bytes, Kind::Text, Kind::Text, Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Text];
const ATTEMPT_KINDS: [Kind; 6] = [Kind::Bytes, Kind::Text, Kind::Text, Kind::Int, Kind::Int, Kind::Text];
const ENTRY_KINDS: [Kind; 7] = [Kind::Bytes, Kind::Text, Kind::Text, Kind::Int, Kind::Text, Kind::Text, Kind::Text];

impl<D: Database> SqlLedger<D> {
    pub(super) async fn read_audit(&self, period: Period, progress: Progress<'_>) -> Result<Audit, DbError> {
        let mut session = self.snapshot().await?;
        let mut audit = Audit::default();
        audit_leads(session.as_mut(), period, &mut audit, progress).await?;
        audit_usage(session.as_mut(), period, &mut audit).await?;
        audit_balances(session.as_mut(), &mut audit).await?;
        Self::end(session).await?;
        Ok(audit)
    }
}

/// One pass over leads, attempts and entries together, all in the order of their leads, which is the order of time.
async fn audit_leads(
    session: &mut dyn Session,
    period: Period,
    audit: &mut Audit,
    progress: Progress<'_>,
) -> Result<(), DbError> {
    let mut from = LeadId::first_at(period.since.unwrap_or(Timestamp::UNIX_EPOCH));
    let end = LeadId::first_at(period.until);
    loop {
        let mut page = Page { books: BTreeMap::new(), bound: None };
        let rows = read_page(session, LEADS, from, end, &LEAD_KINDS).await?;
        page.add(rows, |row, books| {
            books.lead = Some(lead_side(row)?);
            Ok(())
        })?;
        let rows = read_page(session, ATTEMPTS, from, end, &ATTEMPT_KINDS).await?;
        page.add(rows, |row, books| {
            books.attempts.push(attempt_side(row)?);
            Ok(())
        })?;
        let rows = read_page(session, ENTRIES, from, end, &ENTRY_KINDS).await?;
        page.add(rows, |row, books| {
            books.entries.push(entry_side(row)?);
            Ok(())
        })?;
        // The last lead of a full page may go on in the next one.
        let whole = page.books.iter().filter(|(lead, _)| page.bound.is_none_or(|bound| **lead < bound));
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        for (lead, books) in whole {
            audit.leads += u64::from(books.lead.is_some());
            audit.attempts += count(books.attempts.len());
            audit.entries += count(books.entries.len());
            check_lead(*lead, books, period.until, audit);
        }
        progress(audit.leads + audit.attempts + audit.entries);
        match page.bound {
            None => return Ok(()),
            Some(bound) if bound == from => {
                return Err(DbError::Bug("a lead has more rows than can be looked at".to_owned()));
            }
            Some(bound) => from = bound,
        }
    }
}

/// What was read of some leads.
struct Page {
    books: BTreeMap<LeadId, LeadBooks>,
    /// Leads below it are whole.
    bound: Option<LeadId>,
}

impl Page {
    fn add(&mut self, rows: Vec<Row>, put: impl Fn(Row, &mut LeadBooks) -> Result<(), DbError>) -> Result<(), DbError> {
        let is_full = rows.len() == PAGE;
        let mut last = None;
        for mut row in rows {
            let lead = row.lead()?;
            put(row, self.books.entry(lead).or_default())?;
            last = Some(lead);
        }
        if let (true, Some(last)) = (is_full, last) {
            self.bound = Some(self.bound.map_or(last, |bound| bound.min(last)));
        }
        Ok(())
    }
}

const LEADS: &str = "SELECT lead_id, status, buyer_id, price_micros, payout_micros, test, has_received, \
                     CAST(closed_at AS CHAR) FROM leads";
const ATTEMPTS: &str =
    "SELECT lead_id, buyer_id, outcome, price_micros, payout_micros, CAST(sent_at AS CHAR) FROM attempts";
const ENTRIES: &str =
    "SELECT lead_id, buyer_id, account, amount_micros, currency, kind, CAST(booked_at AS CHAR) FROM entries";

async fn read_page(
    session: &mut dyn Session,
    select: &str,
    from: LeadId,
    end: LeadId,
    kinds: &[Kind],
) -> Result<Vec<Row>, DbError> {
    let sql = format!("{select} WHERE lead_id >= ? AND lead_id < ? ORDER BY lead_id LIMIT ?");
    session.fetch(sql.into(), vec![from.into(), end.into(), page()], kinds).await
}

fn page() -> Value {
    i64::try_from(PAGE).unwrap_or(i64::MAX).into()
}

fn lead_side(mut row: Row) -> Result<LeadSide, DbError> {
    Ok(LeadSide {
        status: row.parsed(LeadStatus::parse)?,
        buyer: row.opt_parsed(buyer)?,
        price: row.opt_int()?.map(Micros),
        payout: row.opt_int()?.map(Micros),
        is_test: row.int()? != 0,
        has_received: row.int()? != 0,
        closed_at: row.opt_time()?,
    })
}

fn attempt_side(mut row: Row) -> Result<AttemptSide, DbError> {
    Ok(AttemptSide {
        buyer: row.parsed(buyer)?,
        outcome: row.parsed(AttemptOutcome::parse)?,
        price: Micros(row.int()?),
        payout: Micros(row.int()?),
        sent_at: row.time()?,
    })
}

fn entry_side(mut row: Row) -> Result<EntrySide, DbError> {
    Ok(EntrySide {
        buyer: row.parsed(buyer)?,
        account: row.text()?,
        amount: Micros(row.int()?),
        currency: row.parsed(Currency::new)?,
        is_sale: row.text()? == "sale",
        booked_at: row.time()?,
    })
}

async fn audit_usage(session: &mut dyn Session, period: Period, audit: &mut Audit) -> Result<(), DbError> {
    let sql = "SELECT DISTINCT buyer_id FROM cap_usage UNION SELECT DISTINCT buyer_id FROM attempts";
    for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Text]).await? {
        let buyer = row.parsed(buyer)?;
        let usage = read_usage(session, &buyer, period).await?;
        let counted = read_counted(session, &buyer, period).await?;
        check_usage(&buyer, &usage, &counted, audit);
    }
    Ok(())
}

impl Period {
    fn has_window(self, start: Timestamp) -> bool {
        // A `total` cap's window is all time.
        if start == Timestamp::UNIX_EPOCH {
            self.since.is_none()
        } else {
            self.since <= Some(start) && start < self.until
        }
    }
}

async fn read_usage(
    session: &mut dyn Session,
    buyer: &BuyerId,
    period: Period,
) -> Result<HashMap<StoredPlace, UsageSide>, DbError> {
    let sql = "SELECT u.cap_id, CAST(u.window_start AS CHAR), u.used, COALESCE(b.begun, 0) FROM cap_usage u \
               LEFT JOIN cap_usage_begun b ON b.buyer_id = u.buyer_id AND b.cap_id = u.cap_id \
               AND b.window_start = u.window_start WHERE u.buyer_id = ?";
    let rows = session.fetch(sql.into(), vec![buyer.as_str().into()], &[Kind::Text, Kind::Text, Kind::Int, Kind::Int]);
    let mut usage = HashMap::new();
    for mut row in rows.await? {
        let (cap, start) = (row.text()?, row.time()?);
        if period.has_window(start) {
            usage.insert((cap, start), UsageSide { used: row.int()?, begun: row.int()? });
        }
    }
    Ok(usage)
}

async fn read_counted(
    session: &mut dyn Session,
    buyer: &BuyerId,
    period: Period,
) -> Result<HashMap<StoredPlace, i128>, DbError> {
    let far = |result: Result<Timestamp, jiff::Error>, else_at| result.unwrap_or(else_at);
    let mut after =
        (far(period.since.unwrap_or(Timestamp::UNIX_EPOCH).checked_sub(CLOCKS_APART), Timestamp::MIN), None);
    after.0 = after.0.max(Timestamp::UNIX_EPOCH);
    let end = Value::time(far(period.until.checked_add(WINDOW_MAX), period.until));
    let mut counted: HashMap<StoredPlace, i128> = HashMap::new();
    loop {
        let place = "sent_at >= ? AND (sent_at > ? OR lead_id > ?)";
        let sql = format!(
            "SELECT CAST(sent_at AS CHAR), lead_id, windows FROM attempts WHERE buyer_id = ? AND counted = 1 AND \
             {place} AND sent_at < ? ORDER BY sent_at, lead_id LIMIT ?"
        );
        let (sent_at, lead) = (Value::time(after.0), after.1.unwrap_or_else(|| LeadId::from_bytes([0; 16])));
        let args = vec![buyer.as_str().into(), sent_at.clone(), sent_at, lead.into(), end.clone(), page()];
        let rows = session.fetch(sql.into(), args, &[Kind::Text, Kind::Bytes, Kind::Text]).await?;
        let is_full = rows.len() == PAGE;
        for mut row in rows {
            after = (row.time()?, Some(row.lead()?));
            let windows = stored_windows(&row.text()?).map_err(|text| DbError::Bug(text.to_owned()))?;
            for (place, amount) in windows.into_iter().filter(|((_, start), _)| period.has_window(*start)) {
                *counted.entry(place).or_default() += i128::from(amount);
            }
        }
        if !is_full {
            return Ok(counted);
        }
    }
}

async fn audit_balances(session: &mut dyn Session, audit: &mut Audit) -> Result<(), DbError> {
    let account_kinds = [Kind::Text, Kind::Text, Kind::Int];
    let sql = "SELECT account, currency, balance_micros FROM balances";
    let mut balances = HashMap::new();
    for mut row in session.fetch(sql.into(), Vec::new(), &account_kinds).await? {
        balances.insert((row.text()?, row.parsed(Currency::new)?), row.int()?);
    }
    let rows = session.fetch("SELECT COALESCE(MAX(entry_id), 0) FROM entries".into(), Vec::new(), &[Kind::Int]).await?;
    let last = rows.into_iter().next().map_or(Ok(0), |mut row| row.int())?;
    let mut sums: HashMap<_, i128> = HashMap::new();
    let sql = "SELECT account, currency, CAST(SUM(amount_micros) AS SIGNED) FROM entries \
               WHERE entry_id > ? AND entry_id <= ? GROUP BY account, currency";
    let mut from = 0;
    while from < last {
        let to = from + SUM_RANGE;
        for mut row in session.fetch(sql.into(), vec![from.into(), to.into()], &account_kinds).await? {
            let account = (row.text()?, row.parsed(Currency::new)?);
            *sums.entry(account).or_default() += i128::from(row.int()?);
        }
        from = to;
    }
    check_balances(&balances, &sums, audit);
    Ok(())
}
