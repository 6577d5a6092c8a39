//! What a batch of journal events does to the books: rows, entries, and what is added to balances and cap usage. Pure:
//! the events of a batch and the rows they meet go in, a [`Plan`] comes out, and nobody else decides.
//!
//! Everything here may be asked again with events that were settled before and then comes out empty, because every change
//! hangs on a row that moves forward (P5, F72, F78): a lead by [`rank_of_status`], an attempt by
//! [`AttemptOutcome::rank`], a sale and its return by their lines in the books.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use super::check::{booked_at_us, hash_of_hex};
use super::windows::{StoredWindow, windows_of};
use crate::domain::event::{Attempt, Closed, EntryId, Event, Life, ParkedLead, Received, Returned, SaleMoney};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::{AttemptOutcome, LeadStatus};
use crate::domain::parked::is_too_late;

/// Where an event stood in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub partition: Partition,
    pub life: Life,
    pub id: EntryId,
}

/// An event on its way into the books, with its bytes for the case that they do not take it.
#[derive(Debug)]
pub(super) struct Incoming {
    pub place: Place,
    pub bytes: Vec<u8>,
    pub event: Event,
}

/// What the books know of a lead.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownLead {
    pub status: LeadStatus,
    pub has_received: bool,
}

/// What the books know of an attempt.
#[derive(Debug, Clone)]
pub(super) struct KnownAttempt {
    pub outcome: AttemptOutcome,
    pub counted: bool,
    /// JSON, as [`windows_json`] wrote it.
    pub windows: String,
}

/// Rows that the events of a batch meet.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub leads: HashMap<LeadId, KnownLead>,
    /// Who holds an idempotency key.
    pub keys: HashMap<(PublisherId, [u8; 32]), LeadId>,
    pub attempts: HashMap<LeaseKey, KnownAttempt>,
    /// Sales in the books.
    pub sales: HashSet<LeaseKey>,
    /// Returns in the books.
    pub returns: HashSet<LeaseKey>,
}

/// The "received" part of a lead row.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    pub event: &'a Received,
    /// Empty when another lead holds the key.
    pub key_hash: Option<[u8; 32]>,
    pub fingerprint: Option<[u8; 32]>,
}

/// A lead that the books do not have yet; at least one part is there.
#[derive(Debug)]
pub(super) struct NewLead<'a> {
    pub arrival: Option<Arrival<'a>>,
    pub verdict: Option<&'a Closed>,
}

/// A new or changed attempt row.
#[derive(Debug)]
pub(super) struct AttemptWrite<'a> {
    pub event: &'a Attempt,
    pub windows: String,
}

/// Why a line stands in the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryKind {
    Sale,
    Return,
}

impl EntryKind {
    /// The word in `entries.kind`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Sale => "sale",
            Self::Return => "return",
        }
    }
}

/// A line of the books.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryWrite {
    pub lead: LeadId,
    pub buyer: BuyerId,
    pub account: String,
    pub amount: Micros,
    pub currency: Currency,
    pub kind: EntryKind,
    pub booked_at_us: i64,
}

/// A cap window, named as the books name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UsageKey {
    pub buyer: BuyerId,
    pub cap: CapId,
    pub start: Timestamp,
}

/// What a publisher is to be told.
#[derive(Debug)]
pub(super) struct PostbackWrite<'a> {
    pub event: &'a Closed,
    pub body: &'a str,
    /// By verdict: a lead's postbacks are sent in this order.
    pub ordinal: u8,
}

/// Everything that one batch changes. Sorted by key where other settlers may touch the same rows, so that two of them
/// wait for each other instead of locking each other out (F68).
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    pub new_leads: Vec<NewLead<'a>>,
    /// For rows that their verdict made.
    pub arrivals: Vec<Arrival<'a>>,
    /// For rows that are there.
    pub verdicts: Vec<&'a Closed>,
    /// What is told so far of leads that wait for a buyer; a verdict tells the whole story.
    pub stories: Vec<&'a ParkedLead>,
    pub attempts: Vec<AttemptWrite<'a>>,
    pub entries: Vec<EntryWrite>,
    pub returns: Vec<&'a Returned>,
    /// Attempts whose units count no more, since their leads were returned.
    pub uncounted: Vec<LeaseKey>,
    pub balances: BTreeMap<(String, Currency), i64>,
    pub usage: BTreeMap<UsageKey, i64>,
    pub postbacks: Vec<PostbackWrite<'a>>,
    pub key_clashes: usize,
}

/// A verdict replaces one that ranks lower. Sold is last: a doubt that is resolved later may still sell a lead.
pub(super) fn rank_of_status(status: LeadStatus) -> u8 {
    match status {
        LeadStatus::Pending => 0,
        LeadStatus::InDoubt => 1,
        LeadStatus::Unsold => 2,
        LeadStatus::Sold => 3,
    }
}

/// Decides what the events change.
///
/// # Errors
/// Why the batch as a whole has no place in the books: sums beyond 64 bits, or a stored row that cannot be read. Smaller
/// batches find the culprit.
pub(super) fn plan<'a>(events: impl Iterator<Item = &'a Event>, known: &Known) -> Result<Plan<'a>, &'static str> {
    let mut planner = Planner {
        known,
        leads: BTreeMap::new(),
        attempts: BTreeMap::new(),
        sales: HashSet::new(),
        returns: HashSet::new(),
        plan: Plan::default(),
    };
    for event in events {
        match event {
            Event::Received(received) => planner.received(received),
            Event::Attempt(attempt) => planner.attempt(attempt)?,
            Event::Closed(closed) => planner.closed(closed)?,
            Event::Returned(returned) => planner.returned(returned)?,
            Event::Parked(parked) => planner.parked(parked),
        }
    }
    planner.finish()
}

struct LeadFold<'a> {
    status: LeadStatus,
    has_received: bool,
    received: Option<&'a Received>,
    verdict: Option<&'a Closed>,
}

struct AttemptFold<'a> {
    outcome: Option<AttemptOutcome>,
    /// What the attempt adds to cap usage now.
    counts: Vec<StoredWindow>,
    write: Option<&'a Attempt>,
}

struct Planner<'a, 'k> {
    known: &'k Known,
    leads: BTreeMap<LeadId, LeadFold<'a>>,
    attempts: BTreeMap<LeaseKey, AttemptFold<'a>>,
    sales: HashSet<LeaseKey>,
    returns: HashSet<LeaseKey>,
    plan: Plan<'a>,
}

impl<'a> Planner<'a, '_> {
    fn lead(&mut self, lead: LeadId) -> &mut LeadFold<'a> {
        let known = self.known.leads.get(&lead);
        self.leads.entry(lead).or_insert_with(|| LeadFold {
            status: known.map_or(LeadStatus::Pending, |known| known.status),
            has_received: known.is_some_and(|known| known.has_received),
            received: None,
            verdict: None,
        })
    }

    fn received(&mut self, received: &'a Received) {
        let fold = self.lead(received.lead);
        if !fold.has_received {
            fold.has_received = true;
            fold.received = Some(received);
        }
    }

    /// A lead's "received" stands before it in the same journal.
    fn parked(&mut self, parked: &'a ParkedLead) {
        if self.known.leads.contains_key(&parked.lead) || self.leads.contains_key(&parked.lead) {
            self.plan.stories.push(parked);
        }
    }

    fn closed(&mut self, closed: &'a Closed) -> Result<(), &'static str> {
        let fold = self.lead(closed.lead);
        let ordinal = rank_of_status(closed.status);
        if ordinal > rank_of_status(fold.status) {
            fold.status = closed.status;
            fold.verdict = Some(closed);
            // Hangs on the row that moves forward: an event that comes again tells nobody twice (F72). Each verdict is told,
            // also one that another in the same batch replaces.
            if let (Some(body), false) = (&closed.postback, closed.test) {
                self.plan.postbacks.push(PostbackWrite { event: closed, body, ordinal });
            }
        }
        if let (true, false, Some(buyer), Some(sale)) = (closed.books, closed.test, &closed.buyer, &closed.sale) {
            let key = LeaseKey { lead: closed.lead, buyer: buyer.clone() };
            self.book(&key, &closed.publisher, *sale, closed.closed_at_us)?;
        }
        Ok(())
    }

    fn attempt(&mut self, attempt: &'a Attempt) -> Result<(), &'static str> {
        let key = LeaseKey { lead: attempt.lead, buyer: attempt.buyer.clone() };
        let fold = self.attempt_fold(&key)?;
        if fold.outcome.is_none_or(|outcome| attempt.outcome.rank() > outcome.rank()) {
            let counts = if attempt.counted { windows_of(attempt)? } else { Vec::new() };
            let before = std::mem::replace(&mut fold.counts, counts);
            fold.outcome = Some(attempt.outcome);
            fold.write = Some(attempt);
            let after = fold.counts.clone();
            self.count(&attempt.buyer, &before, -1)?;
            self.count(&attempt.buyer, &after, 1)?;
        } else if fold.outcome == Some(attempt.outcome) && !attempt.counted && is_too_late(attempt.reason.as_deref()) {
            // Only a note: its buyer has decided after the end of its time, which moves nothing.
            fold.write = Some(attempt);
        }
        // Not tied to the change of the row: a late yes that is contested counts at once and is booked only when it is
        // resolved, by an event of the same rank.
        if attempt.books {
            let sale = SaleMoney { price: attempt.price, payout: attempt.payout, currency: attempt.currency };
            self.book(&key, &attempt.publisher, sale, booked_at_us(attempt))?;
        }
        Ok(())
    }

    fn attempt_fold(&mut self, key: &LeaseKey) -> Result<&mut AttemptFold<'a>, &'static str> {
        Ok(match self.attempts.entry(key.clone()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(fold_of(self.known.attempts.get(key))?),
        })
    }

    /// The sale reversed, once per lead and buyer. The attempt stays what it was; only its units may count no more.
    fn returned(&mut self, returned: &'a Returned) -> Result<(), &'static str> {
        let key = LeaseKey { lead: returned.lead, buyer: returned.buyer.clone() };
        if self.known.returns.contains(&key) || !self.returns.insert(key.clone()) {
            return Ok(());
        }
        if !self.known.sales.contains(&key) && !self.sales.contains(&key) {
            return Err("it returns a sale that is not in the books");
        }
        self.lines(&key, &returned.publisher, returned.sale, EntryKind::Return, returned.returned_at_us)?;
        if returned.frees_cap {
            let before = std::mem::take(&mut self.attempt_fold(&key)?.counts);
            self.count(&key.buyer, &before, -1)?;
            self.plan.uncounted.push(key);
        }
        self.plan.returns.push(returned);
        Ok(())
    }

    fn count(&mut self, buyer: &BuyerId, windows: &[StoredWindow], sign: i64) -> Result<(), &'static str> {
        for window in windows {
            let key = UsageKey { buyer: buyer.clone(), cap: window.cap.clone(), start: window.window_start };
            add(self.plan.usage.entry(key).or_default(), sign * window.amount)?;
        }
        Ok(())
    }

    /// A sale, once per lead and buyer.
    fn book(
        &mut self,
        key: &LeaseKey,
        publisher: &PublisherId,
        sale: SaleMoney,
        booked_at_us: i64,
    ) -> Result<(), &'static str> {
        if self.known.sales.contains(key) || !self.sales.insert(key.clone()) {
            return Ok(());
        }
        self.lines(key, publisher, sale, EntryKind::Sale, booked_at_us)
    }

    /// Three lines that sum to zero (P6).
    fn lines(
        &mut self,
        key: &LeaseKey,
        publisher: &PublisherId,
        sale: SaleMoney,
        kind: EntryKind,
        booked_at_us: i64,
    ) -> Result<(), &'static str> {
        let SaleMoney { price, payout, currency } = sale;
        // Neither is negative, so neither negation nor difference leaves 64 bits.
        let sale = [
            (format!("buyer:{}", key.buyer), -price.0),
            (format!("publisher:{publisher}"), payout.0),
            ("margin".to_owned(), price.0 - payout.0),
        ];
        for (account, micros) in sale {
            let amount = Micros(if kind == EntryKind::Return { -micros } else { micros });
            add(self.plan.balances.entry((account.clone(), currency)).or_default(), amount.0)?;
            let buyer = key.buyer.clone();
            self.plan.entries.push(EntryWrite { lead: key.lead, buyer, account, amount, currency, kind, booked_at_us });
        }
        Ok(())
    }

    fn finish(self) -> Result<Plan<'a>, &'static str> {
        let Planner { known, leads, attempts, mut plan, .. } = self;
        let mut keys_here = HashSet::new();
        for (lead, fold) in leads {
            let arrival = fold.received.map(|received| arrival(received, known, &mut keys_here, &mut plan.key_clashes));
            if known.leads.contains_key(&lead) {
                plan.arrivals.extend(arrival);
                plan.verdicts.extend(fold.verdict);
            } else {
                plan.new_leads.push(NewLead { arrival, verdict: fold.verdict });
            }
        }
        for event in attempts.into_values().filter_map(|fold| fold.write) {
            let windows = serde_json::to_string(&windows_of(event)?).map_err(|_| "its windows cannot be written")?;
            plan.attempts.push(AttemptWrite { event, windows });
        }
        plan.entries.sort();
        plan.uncounted.sort();
        plan.postbacks.sort_by_key(|postback| (postback.event.lead, postback.ordinal));
        plan.usage.retain(|_, change| *change != 0);
        Ok(plan)
    }
}

fn fold_of<'a>(known: Option<&KnownAttempt>) -> Result<AttemptFold<'a>, &'static str> {
    let counts = match known {
        Some(known) if known.counted => {
            serde_json::from_str(&known.windows).map_err(|_| "the windows of its attempt row cannot be read")?
        }
        _ => Vec::new(),
    };
    Ok(AttemptFold { outcome: known.map(|known| known.outcome), counts, write: None })
}

/// A second lead under a used key is possible only after the store was lost. It is stored with its sale, without the key.
fn arrival<'a>(
    received: &'a Received,
    known: &Known,
    keys_here: &mut HashSet<(PublisherId, [u8; 32])>,
    clashes: &mut usize,
) -> Arrival<'a> {
    let claim = received.claim.as_ref();
    let fingerprint = claim.and_then(|claim| claim.fingerprint.as_deref()).and_then(hash_of_hex);
    let mut key_hash = claim.and_then(|claim| hash_of_hex(&claim.hash));
    if let Some(hash) = key_hash {
        let key = (received.publisher.clone(), hash);
        if known.keys.get(&key).is_some_and(|holder| *holder != received.lead) || !keys_here.insert(key) {
            key_hash = None;
            *clashes += 1;
        }
    }
    Arrival { event: received, key_hash, fingerprint }
}

fn add(sum: &mut i64, amount: i64) -> Result<(), &'static str> {
    *sum = sum.checked_add(amount).ok_or("a sum is out of range")?;
    Ok(())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
