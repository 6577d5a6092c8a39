//! Resolve: an operator says how a forward ended whose outcome nobody knows.
//!
//! Goes in rounds: the journals are settled, [`decide`] compares the books with what is wanted and names the next thing that
//! is missing, that is done. The round that misses nothing is the end. So a repeat changes nothing, and it finishes what a
//! crash left half done.
//!
//! - *accepted*: the unit counts, the sale is booked, a lead that nobody else has becomes sold. Where the publisher has been
//!   paid for the lead, the second buyer is charged and the publisher gets nothing more. A contested late yes is booked the
//!   same way.
//! - *declined*: the unit goes back to its own window, a lead that was in doubt because of this buyer becomes unsold. A yes
//!   that the buyer gave, however late, cannot be resolved away: its unit counts (P1).
//! - The answer that the publisher got stays as it is (P3); only the lead's row in the books moves on, and a publisher with a
//!   postback is told.
//!
//! Who pays is decided one call at a time for each lead, whichever gateways are asked.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::decision::{charges, parked};
use super::recovery::{RecoveryError, wait_for_books};
use super::returns::KNOWLEDGE_MAX;
use crate::app::Gateway;
use crate::domain::cap::{Cap, Limit};
use crate::domain::event::{Attempt, Closed, WindowAmount};
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::domain::lease::{Charge, EndMark, LeaseKey};
use crate::domain::money::Micros;
use crate::domain::outcome::{AttemptOutcome, LeadStatus, Sold, UnsoldReason, Verdict};
use crate::domain::routing::Publisher;
use crate::intake::reply;
use crate::ledger::{AttemptRow, LeadDetail, LedgerError};
use crate::store::{EndReply, LeaseEnd, StoreError};

/// The reason of an attempt that an operator ended.
pub const RESOLVED: &str = "resolved";

/// Rounds of one call: attempt, lead, the look that misses nothing, and some for late answers that come in between.
const ROUNDS_MAX: usize = 6;
/// How long a round waits for the books.
const BOOKS_PATIENCE: Duration = Duration::from_secs(5);
/// How long the verdict on a lead is awaited that is still open: late answers are, by default, read for ten seconds.
const VERDICT_PATIENCE: Duration = Duration::from_secs(13);
/// Between two looks at an open lead.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Open leases looked through for one whose attempt the books do not have.
const OPEN_LEASES_MAX: usize = 20_000;

/// What the operator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The buyer has the lead.
    Accepted,
    /// The buyer does not have it.
    Declined,
}

/// How things stand at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved {
    /// Of the attempt.
    pub outcome: AttemptOutcome,
    /// Of the lead, in the books.
    pub lead: LeadStatus,
}

/// Why a doubt was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// No such lead, or it was never offered to this buyer. Nothing happened.
    #[error("not found")]
    NotFound,
    /// It contradicts how things stand. Nothing happened.
    #[error("{0}")]
    Conflict(String),
    /// Store or ledger are away; a part may have happened, and a repeat goes on from there.
    #[error(transparent)]
    Away(#[from] RecoveryError),
}

impl From<StoreError> for ResolveError {
    fn from(error: StoreError) -> Self {
        Self::Away(error.into())
    }
}

impl From<LedgerError> for ResolveError {
    fn from(error: LedgerError) -> Self {
        Self::Away(error.into())
    }
}

/// How long a gateway has a lead to itself for one round; the round's waits are shorter.
const CLAIM_FOR: Duration = Duration::from_secs(20);

/// Resolves one attempt.
pub async fn resolve(gateway: &Arc<Gateway>, key: &LeaseKey, wish: Wish) -> Result<Resolved, ResolveError> {
    let give_up = Instant::now() + VERDICT_PATIENCE;
    let mut rounds = 0;
    let mut is_unknown = false;
    while rounds < ROUNDS_MAX {
        let turn = gateway.resolving.lock().await;
        let is_late = Instant::now() >= give_up;
        let after = if gateway.store.claim_resolution(key.lead, CLAIM_FOR).await? {
            let after = round(gateway, key, wish, is_late).await;
            // Left alone it ends by itself.
            if let Err(error) = gateway.store.end_resolution(key.lead).await {
                gateway.note_store_error(&error);
            }
            after?
        } else if is_late {
            return Err(ResolveError::Conflict("another gateway is resolving this lead: ask again".to_owned()));
        } else {
            AfterRound::Waits
        };
        drop(turn);
        match after {
            AfterRound::Done(resolved) => return Ok(resolved),
            AfterRound::Moved => rounds += 1,
            AfterRound::Unknown if is_unknown => return Err(ResolveError::NotFound),
            // It may have ended between the look into the books and the one at the leases: one more look.
            AfterRound::Unknown => is_unknown = true,
            AfterRound::Waits => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
    Err(LedgerError::NotDone("the attempt keeps changing".to_owned()).into())
}

/// What a round leads to.
enum AfterRound {
    Done(Resolved),
    /// Something was done; the next round sees what came of it.
    Moved,
    /// Neither the books nor the store know the attempt.
    Unknown,
    /// Nothing can be done yet.
    Waits,
}

/// One look at the books, and what follows from it. Of all gateways one at a time is between look and deed, or two buyers of a
/// lead could both be booked with a payout (P6).
async fn round(gateway: &Arc<Gateway>, key: &LeaseKey, wish: Wish, is_late: bool) -> Result<AfterRound, ResolveError> {
    let not_after = gateway.store.now() + KNOWLEDGE_MAX;
    wait_for_books(gateway, BOOKS_PATIENCE).await?;
    let Some(detail) = gateway.ledger.lead_detail(key.lead).await? else { return Err(ResolveError::NotFound) };
    let routing = gateway.routing();
    let publisher = routing.compiled.routing().publishers.get(&detail.lead.publisher).map(|publisher| &**publisher);
    let now = gateway.clock.now();
    let question = Question { detail: &detail, buyer: &key.buyer, wish, now, publisher };
    match decide(&question, |cap| is_money(gateway, &key.buyer, cap))? {
        Next::Done(resolved) => return Ok(AfterRound::Done(resolved)),
        Next::Contradicts(why) => return Err(ResolveError::Conflict(why)),
        Next::Unknown if is_under_way(gateway, key).await? => {
            return Err(ResolveError::Conflict("the forward is still under way".to_owned()));
        }
        Next::Unknown => return Ok(AfterRound::Unknown),
        Next::Attempt(_) if detail.lead.status == LeadStatus::Pending && !is_late => return Ok(AfterRound::Waits),
        Next::Attempt(_) if detail.lead.status == LeadStatus::Pending && wish == Wish::Accepted => {
            let why = "the lead is still open, and its verdict decides who is paid: ask again when it has one";
            return Err(ResolveError::Conflict(why.to_owned()));
        }
        Next::Attempt(step) => carry_out(gateway, step, not_after).await?,
        Next::Verdict(closed) => gateway.store.record_verdict(&closed).await?,
    }
    Ok(AfterRound::Moved)
}

/// Has it been offered and nothing been learned yet?
pub(super) async fn is_under_way(gateway: &Gateway, key: &LeaseKey) -> Result<bool, StoreError> {
    let partition = Partition::of(key.buyer.as_str(), gateway.store.partitions());
    Ok(gateway.store.open_leases(partition, OPEN_LEASES_MAX).await?.iter().any(|lease| lease.key == *key))
}

/// A cap that the routing no longer has keeps what was reserved: it errs towards closed.
pub(super) fn is_money(gateway: &Gateway, buyer: &BuyerId, cap: &CapId) -> bool {
    let routing = gateway.routing();
    let caps = routing.compiled.routing().buyers.get(buyer).map_or(&[][..], |buyer| &buyer.caps);
    caps.iter().any(|known| known.id == *cap && matches!(known.limit, Limit::Spend(_)))
}

/// The next round sees what came of it.
async fn carry_out(gateway: &Gateway, step: Step, not_after: Timestamp) -> Result<(), StoreError> {
    match step {
        Step::Commit(doubt) => {
            // Marks live for minutes and operators take hours: without one the counter could not follow the books (P2).
            if !gateway.store.remember(&doubt.end.key, doubt.was, &doubt.counts, not_after).await? {
                return Ok(());
            }
            // Only what had gone back when the books were read is charged again (P1): of two operators who say opposite things at
            // two gateways, the one whose call comes second finds how the doubt has ended, and the next round says so.
            let reply = match doubt.was {
                EndMark::Refunded => gateway.store.commit(&doubt.end).await?,
                EndMark::Doubt | EndMark::Committed => gateway.store.confirm(&doubt.end).await?,
            };
            if let EndReply::Late { counters, .. } = reply {
                gateway.telemetry.buyer(&doubt.end.key.buyer).late_accepted.increment(1);
                note_overshoot(gateway, &doubt.end, &counters);
            }
        }
        Step::GiveBack(doubt) => {
            if !gateway.store.remember(&doubt.end.key, doubt.was, &doubt.counts, not_after).await? {
                return Ok(());
            }
            let reply = gateway.store.refund(&doubt.end).await?;
            gateway.units_given_back(&doubt.end.key.buyer, &doubt.end.charges);
            if reply == EndReply::Already(EndMark::Refunded) {
                // The unit went back at the time-out; now the books learn that it was a "no".
                gateway.store.record(&doubt.end.event).await?;
            }
        }
        Step::Book(event) => gateway.store.record(&event).await?,
    }
    Ok(())
}

/// A unit that had gone back counts again, whatever others took meanwhile.
fn note_overshoot(gateway: &Gateway, end: &LeaseEnd, counters: &[u64]) {
    let routing = gateway.routing();
    let Some(buyer) = routing.compiled.routing().buyers.get(&end.key.buyer) else { return };
    // A cap that is gone limits nothing.
    let limit = |cap: &CapId| buyer.caps.iter().find(|known| known.id == *cap).map_or(u64::MAX, Cap::limit_units);
    let charges: Vec<Charge> = (end.charges.iter().zip(&end.late_event.windows))
        .map(|(charge, window)| Charge { amount: window.amount, ..charge.clone() })
        .collect();
    let limited = charges.iter().map(|charge| (charge, limit(&charge.cap)));
    gateway.note_overshoot(&buyer.id, limited.zip(counters.iter().copied()));
}

/// What has to be decided, and from what.
#[derive(Clone, Copy)]
struct Question<'a> {
    detail: &'a LeadDetail,
    buyer: &'a BuyerId,
    wish: Wish,
    now: Timestamp,
    /// Who sent the lead, unless the routing no longer has it.
    publisher: Option<&'a Publisher>,
}

/// What is missing between the books and what is wanted.
#[derive(Debug)]
enum Next {
    /// Nothing.
    Done(Resolved),
    /// It cannot be had; says why.
    Contradicts(String),
    /// The books know of no such attempt.
    Unknown,
    /// The attempt.
    Attempt(Step),
    /// The lead's row.
    Verdict(Box<Closed>),
}

/// What ends an attempt.
#[derive(Debug)]
enum Step {
    /// The unit counts and the sale is booked.
    Commit(Box<Doubt>),
    /// The unit goes back, if it has not.
    GiveBack(Box<Doubt>),
    /// The unit counts already; the sale is booked.
    Book(Box<Attempt>),
}

/// A doubt's end, and the end mark of its lease as the books know it.
#[derive(Debug)]
struct Doubt {
    end: LeaseEnd,
    was: EndMark,
    counts: Vec<WindowAmount>,
}

fn decide(question: &Question<'_>, is_money: impl Fn(&CapId) -> bool) -> Result<Next, LedgerError> {
    let Question { detail, buyer, wish, .. } = *question;
    let Some(row) = detail.attempts.iter().find(|attempt| attempt.buyer == *buyer) else { return Ok(Next::Unknown) };
    if let Some(parked) = parked(row) {
        let until = parked.until;
        return Ok(Next::Contradicts(format!(
            "it is not in doubt: the buyer answered \"pending\" and decides until {until}"
        )));
    }
    let account = format!("buyer:{buyer}");
    let is_booked = detail.entries.iter().any(|entry| entry.kind == "sale" && entry.account == account);
    let was_resolved = row.reason.as_deref() == Some(RESOLVED);
    let done = Next::Done(Resolved { outcome: row.outcome, lead: detail.lead.status });
    Ok(match (wish, row.outcome) {
        (Wish::Accepted, AttemptOutcome::InDoubt) => {
            // A money cap reserved the most that an answer could have asked for, and keeps what is booked.
            let price = u64::try_from(row.price.0).unwrap_or(0);
            let booked = |held: u64, cap: &CapId| if is_money(cap) { held.min(price) } else { held };
            Next::Attempt(Step::Commit(Box::new(doubt(question, row, AttemptOutcome::LateAccepted, booked)?)))
        }
        (Wish::Declined, AttemptOutcome::InDoubt) => {
            let doubt = doubt(question, row, AttemptOutcome::Declined, |held, _| held)?;
            Next::Attempt(Step::GiveBack(Box::new(doubt)))
        }
        (Wish::Accepted, AttemptOutcome::LateAccepted) if !is_booked => {
            let event = resolved(question, row, AttemptOutcome::LateAccepted, row.charged()?);
            Next::Attempt(Step::Book(Box::new(event)))
        }
        (Wish::Accepted, AttemptOutcome::LateAccepted) => match detail.lead.status {
            LeadStatus::InDoubt | LeadStatus::Unsold => Next::Verdict(Box::new(verdict(question, &sold(detail, row)))),
            LeadStatus::Pending | LeadStatus::Sold => done,
        },
        (Wish::Declined, AttemptOutcome::Declined) if was_resolved => {
            if detail.lead.status == LeadStatus::InDoubt && detail.lead.buyer.as_ref() == Some(buyer) {
                Next::Verdict(Box::new(verdict(question, &Verdict::Unsold(UnsoldReason::Declined))))
            } else {
                done
            }
        }
        (Wish::Accepted, AttemptOutcome::Declined) if was_resolved => {
            Next::Contradicts("it was resolved as declined, and its unit has gone back".to_owned())
        }
        (Wish::Declined, AttemptOutcome::LateAccepted) => {
            Next::Contradicts("the buyer has the lead: the attempt is late_accepted, and its unit counts".to_owned())
        }
        (_, outcome) => Next::Contradicts(format!("the attempt is not in doubt: it is {outcome}")),
    })
}

fn doubt(
    question: &Question<'_>,
    row: &AttemptRow,
    outcome: AttemptOutcome,
    amount: impl Fn(u64, &CapId) -> u64,
) -> Result<Doubt, LedgerError> {
    let held = row.charged()?;
    let charges = charges(&held)?;
    let windows = held.iter().map(|w| WindowAmount { amount: amount(w.amount, &w.cap), ..w.clone() }).collect();
    let event = resolved(question, row, outcome, windows);
    let key = LeaseKey { lead: row.lead, buyer: row.buyer.clone() };
    let end = LeaseEnd { key, charges, late_event: event.clone(), event };
    let (was, counts) = if row.counted { (EndMark::Doubt, held) } else { (EndMark::Refunded, Vec::new()) };
    Ok(Doubt { end, was, counts })
}

/// The attempt as it stands from now on. Its duration reaches to this verdict, so that the sale is booked today and not in
/// the past.
fn resolved(question: &Question<'_>, row: &AttemptRow, outcome: AttemptOutcome, windows: Vec<WindowAmount>) -> Attempt {
    let is_sale = outcome == AttemptOutcome::LateAccepted;
    let lead = &question.detail.lead;
    let until_now = Duration::try_from(question.now.duration_since(row.sent_at)).unwrap_or_default();
    Attempt {
        lead: row.lead,
        buyer: row.buyer.clone(),
        publisher: lead.publisher.clone(),
        campaign: lead.campaign.clone(),
        ordinal: row.ordinal,
        outcome,
        counted: is_sale,
        http_status: row.http_status,
        reason: Some(RESOLVED.to_owned()),
        sent_at_us: row.sent_at.as_microsecond(),
        duration_us: u64::try_from(until_now.as_micros()).unwrap_or(u64::MAX),
        windows,
        price: row.price,
        // The publisher is paid once for a lead.
        payout: if is_sale && paid_to_publisher(question.detail) > Micros::ZERO { Micros::ZERO } else { row.payout },
        currency: row.currency,
        books: is_sale,
        person: row.person,
        reference: row.reference.clone(),
    }
}

/// What the publisher is owed for the lead so far; a sale that was returned counts for nothing.
pub(super) fn paid_to_publisher(detail: &LeadDetail) -> Micros {
    let account = format!("publisher:{}", detail.lead.publisher);
    Micros(detail.entries.iter().filter(|entry| entry.account == account).map(|entry| entry.amount.0).sum())
}

fn sold(detail: &LeadDetail, row: &AttemptRow) -> Verdict {
    Verdict::Sold(Sold {
        buyer: row.buyer.clone(),
        price: row.price,
        payout: paid_to_publisher(detail),
        currency: row.currency,
        redirect_url: None,
    })
}

/// Answer and explanation stay what they were, and the attempt's event has booked the sale.
fn verdict(question: &Question<'_>, verdict: &Verdict) -> Closed {
    let lead = &question.detail.lead;
    let postback = question.publisher.and_then(|publisher| reply::postback_body(publisher, lead.lead, verdict));
    Closed {
        test: lead.is_test,
        closed_at_us: question.now.as_microsecond(),
        answer: lead.answer.clone().unwrap_or_default(),
        explanation: lead.explanation.clone().unwrap_or_default(),
        ..Closed::of(verdict, lead.lead, lead.publisher.clone(), lead.campaign.clone(), postback)
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
