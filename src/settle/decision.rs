//! Decisions: a buyer that answered "pending" says what it decided, or lets its time pass.
//!
//! Meanwhile the attempt is a doubt with a date ([`Parked`]): its unit is counted, in store and books, whatever becomes of
//! gateways and data. Whoever ends it, the buyer's decision or the end of its time, ends that doubt in the store, where exactly
//! one of them can: the other finds how it has ended. The lead is then taken over by recovery like that of a gateway that died:
//! sold by what the books know, or routed on, never to this buyer again (P4).
//!
//! A decision goes in rounds, like [`super::resolve`]: the journals are settled, [`decide`] looks at what the books know and says
//! what is missing, that is done. The answer is given from the books, so every repeat gets the same one.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::recovery::{GRACE, RecoveryError, wait_for_books};
use super::resolve::{is_money, is_under_way, paid_to_publisher};
use super::returns::{KNOWLEDGE_MAX, words};
use crate::app::Gateway;
use crate::domain::event::{Attempt, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::lease::{Charge, EndMark, LeaseKey};
use crate::domain::money::{Micros, Payout};
use crate::domain::outcome::AttemptOutcome;
use crate::domain::parked::{EXPIRED, Parked, is_too_late, too_late};
use crate::domain::routing::Buyer;
use crate::domain::window::Window;
use crate::intake::{Decision, DecisionAnswer, DecisionReceipt};
use crate::ledger::{AttemptRow, LeadDetail, LedgerError};
use crate::store::{EndReply, LeaseEnd, MoveDeadline};
use crate::telemetry::Decided;

/// Rounds of one call: the end, the look that finds it booked, and some for ends by somebody else in between.
const ROUNDS_MAX: usize = 6;
/// How long a round waits for the books.
const BOOKS_PATIENCE: Duration = Duration::from_secs(5);
/// A buyer may decide before this gateway has read its answer.
const UNDER_WAY_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// When recovery looks at a lead whose attempt is just being ended, should this gateway die in the middle.
const SOON: SignedDuration = SignedDuration::from_secs(5);

/// Takes a buyer's decision.
pub async fn take(
    gateway: &Arc<Gateway>,
    buyer: &Buyer,
    lead: LeadId,
    decision: &Decision,
) -> Result<DecisionAnswer, RecoveryError> {
    let key = LeaseKey { lead, buyer: buyer.id.clone() };
    let give_up = Instant::now() + UNDER_WAY_PATIENCE;
    let (mut rounds, mut is_unknown) = (0, false);
    while rounds < ROUNDS_MAX {
        let not_after = gateway.store.now() + KNOWLEDGE_MAX;
        wait_for_books(gateway, BOOKS_PATIENCE).await?;
        let detail = gateway.ledger.lead_detail(lead).await?;
        let next = match &detail {
            Some(detail) => {
                decide(&question(gateway, detail, &key, decision), |cap| is_money(gateway, &key.buyer, cap))?
            }
            None => Next::Unknown,
        };
        match (next, &detail) {
            (Next::Answer(answer), _) => return Ok(answer),
            (Next::End(end), Some(detail)) => carry_out(gateway, detail, &end, not_after).await?,
            (Next::Note(event), _) => gateway.store.record(&event).await?,
            (Next::Unknown | Next::End(_), _) if is_under_way(gateway, &key).await? => {
                if Instant::now() >= give_up {
                    return Ok(DecisionAnswer::Undecided);
                }
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
            (Next::Unknown | Next::End(_), _) if is_unknown => return Ok(DecisionAnswer::NotFound),
            // It may have ended between the look into the books and the one at the leases: one more look.
            (Next::Unknown | Next::End(_), _) => is_unknown = true,
        }
        rounds += 1;
    }
    Err(LedgerError::NotDone("the decision is not in the books yet".to_owned()).into())
}

/// A lead that waits for a buyer and was taken over by recovery: goes on waiting, or the buyer's time is over. True when there
/// is nothing more to do now; false when the next look finds the attempt ended.
pub(super) async fn wait_on(
    gateway: &Gateway,
    detail: &LeadDetail,
    row: &AttemptRow,
    parked: Parked,
) -> Result<bool, RecoveryError> {
    let now = gateway.store.now();
    if now < parked.until {
        // Whoever claimed the lead owns it, so the deadline may be moved whatever it is.
        gateway.store.move_deadline(&moved(detail, None, parked.until)).await?;
        return Ok(true);
    }
    let end = expired(detail, row, parked, now)?;
    carry_out(gateway, detail, &end, now + KNOWLEDGE_MAX).await?;
    Ok(false)
}

/// The attempt whose buyer has still to decide.
pub(super) fn waiting(detail: &LeadDetail) -> Option<(&AttemptRow, Parked)> {
    detail.attempts.iter().find_map(|row| Some((row, parked(row)?)))
}

/// Does this attempt's buyer decide later, and has not yet?
pub(super) fn parked(row: &AttemptRow) -> Option<Parked> {
    if row.outcome != AttemptOutcome::InDoubt || !row.counted {
        return None;
    }
    Parked::read(row.reason.as_deref()?)
}

fn moved(detail: &LeadDetail, from: Option<Timestamp>, to: Timestamp) -> MoveDeadline {
    MoveDeadline { lead: detail.lead.lead, publisher: detail.lead.publisher.clone(), from, to, event: None }
}

/// Ends the doubt, unless somebody else has; the next round sees what came of it. The lead's deadline is moved only from where
/// the buyer's time put it: a lead that has gone on is let alone.
async fn carry_out(
    gateway: &Gateway,
    detail: &LeadDetail,
    end: &End,
    not_after: Timestamp,
) -> Result<(), RecoveryError> {
    let store = &gateway.store;
    let soon = Timestamp::from_millisecond((store.now() + SOON).as_millisecond()).unwrap_or(end.until);
    store.move_deadline(&moved(detail, Some(end.until), soon)).await?;
    // Marks live for minutes, and a buyer may have longer than that.
    if !store.remember(&end.lease.key, EndMark::Doubt, &end.held, not_after).await? {
        return Ok(());
    }
    let reply = match end.decided {
        Decided::Accepted => store.confirm(&end.lease).await?,
        Decided::Declined | Decided::Expired => store.refund(&end.lease).await?,
    };
    if matches!(reply, EndReply::Done | EndReply::Late { .. }) {
        let (lead, buyer) = (&end.lease.key.lead, &end.lease.key.buyer);
        tracing::info!(%lead, %buyer, decided = ?end.decided, "a pending attempt has ended");
        gateway.telemetry.buyer(buyer).decided.count(end.decided);
        gateway.units_given_back(buyer, &end.lease.charges);
    }
    let now = store.now() - SignedDuration::try_from(GRACE).unwrap_or_default();
    for from in [soon, end.until] {
        if store.move_deadline(&moved(detail, Some(from), now)).await? {
            break;
        }
    }
    Ok(())
}

fn question<'a>(gateway: &Gateway, detail: &'a LeadDetail, key: &'a LeaseKey, decision: &'a Decision) -> Question<'a> {
    let routing = gateway.routing();
    let publisher = routing.compiled.routing().publishers.get(&detail.lead.publisher);
    let payout = publisher.map(|publisher| publisher.payout);
    Question { detail, buyer: &key.buyer, decision, now: gateway.store.now(), payout }
}

/// What has to be decided, and from what.
#[derive(Clone, Copy)]
struct Question<'a> {
    detail: &'a LeadDetail,
    buyer: &'a BuyerId,
    decision: &'a Decision,
    /// By the store's clock.
    now: Timestamp,
    /// The publisher's rule, unless the routing no longer has it.
    payout: Option<Payout>,
}

#[derive(Debug)]
enum Next {
    Answer(DecisionAnswer),
    /// The books know of no attempt at this buyer.
    Unknown,
    /// The doubt has to be ended.
    End(Box<End>),
    /// It came too late, and the attempt has still to say so.
    Note(Box<Attempt>),
}

/// The end of a doubt with a date.
#[derive(Debug)]
struct End {
    decided: Decided,
    lease: LeaseEnd,
    /// What it counts until then.
    held: Vec<WindowAmount>,
    /// Where the lead's deadline stands.
    until: Timestamp,
}

fn decide(question: &Question<'_>, is_money: impl Fn(&CapId) -> bool) -> Result<Next, LedgerError> {
    let Question { detail, buyer, decision, now, .. } = *question;
    let Some(row) = detail.attempts.iter().find(|attempt| attempt.buyer == *buyer) else { return Ok(Next::Unknown) };
    let reason = row.reason.as_deref();
    Ok(match (row.outcome, decision) {
        (AttemptOutcome::InDoubt, _) => match (parked(row), decision) {
            (None, _) => Next::Answer(DecisionAnswer::NotPending),
            (Some(parked), _) if now >= parked.until => Next::End(Box::new(expired(detail, row, parked, now)?)),
            (Some(parked), Decision::Accepted { price }) => {
                Next::End(Box::new(accepted(question, row, parked, *price, is_money)?))
            }
            (Some(parked), Decision::Declined { reason }) => {
                let reason = reason.as_deref().map_or_else(|| "declined".to_owned(), |reason| words(detail, reason));
                Next::End(Box::new(declined(detail, row, parked, reason, Decided::Declined, now)?))
            }
        },
        (AttemptOutcome::Declined, _) if is_too_late(reason) => Next::Answer(DecisionAnswer::TooLate),
        (AttemptOutcome::Declined, _) if reason == Some(EXPIRED) => {
            let reason = too_late(decision.word());
            Next::Note(Box::new(Attempt { reason: Some(reason), ..attempt(detail, row, AttemptOutcome::Declined)? }))
        }
        (AttemptOutcome::Accepted | AttemptOutcome::LateAccepted, Decision::Accepted { .. }) => {
            let receipt = DecisionReceipt::Accepted { price: row.price, currency: row.currency };
            Next::Answer(DecisionAnswer::Taken(receipt))
        }
        (AttemptOutcome::Declined | AttemptOutcome::Duplicate, Decision::Declined { .. }) => {
            Next::Answer(DecisionAnswer::Taken(DecisionReceipt::Declined))
        }
        (AttemptOutcome::Unsent, _) => Next::Answer(DecisionAnswer::NotPending),
        (AttemptOutcome::Accepted | AttemptOutcome::LateAccepted, Decision::Declined { .. })
        | (AttemptOutcome::Declined | AttemptOutcome::Duplicate, Decision::Accepted { .. }) => {
            Next::Answer(DecisionAnswer::Opposite)
        }
    })
}

fn accepted(
    question: &Question<'_>,
    row: &AttemptRow,
    parked: Parked,
    named: Option<Micros>,
    is_money: impl Fn(&CapId) -> bool,
) -> Result<End, LedgerError> {
    let (detail, held) = (question.detail, row.charged()?);
    // Without the publisher's rule there is no payout for another price than the one that it was computed for.
    let price = named.filter(|_| question.payout.is_some()).map_or(row.price, |named| named.min(parked.price_max));
    let payout = question.payout.filter(|_| price != row.price).map_or(row.payout, |rule| rule.of(price));
    let booked = u64::try_from(price.0).unwrap_or(0);
    // A money cap reserved the most that the buyer may pay, and keeps what is booked.
    let keep = |window: &WindowAmount| WindowAmount {
        amount: if is_money(&window.cap) { window.amount.min(booked) } else { window.amount },
        ..window.clone()
    };
    let event = Attempt {
        counted: true,
        reason: None,
        // To the decision, so that the sale is booked when it was made.
        duration_us: since(row, question.now),
        windows: held.iter().map(keep).collect(),
        price,
        // The publisher is paid once for a lead.
        payout: if paid_to_publisher(detail) > Micros::ZERO { Micros::ZERO } else { payout },
        books: true,
        ..attempt(detail, row, AttemptOutcome::Accepted)?
    };
    end(row, parked, event, held, Decided::Accepted)
}

/// The buyer's time is over: its unit goes back to its own window.
fn expired(detail: &LeadDetail, row: &AttemptRow, parked: Parked, now: Timestamp) -> Result<End, LedgerError> {
    declined(detail, row, parked, EXPIRED.to_owned(), Decided::Expired, now)
}

fn declined(
    detail: &LeadDetail,
    row: &AttemptRow,
    parked: Parked,
    reason: String,
    decided: Decided,
    now: Timestamp,
) -> Result<End, LedgerError> {
    let event = Attempt {
        reason: Some(reason),
        duration_us: since(row, now),
        ..attempt(detail, row, AttemptOutcome::Declined)?
    };
    end(row, parked, event, row.charged()?, decided)
}

fn end(
    row: &AttemptRow,
    parked: Parked,
    event: Attempt,
    held: Vec<WindowAmount>,
    decided: Decided,
) -> Result<End, LedgerError> {
    let key = LeaseKey { lead: row.lead, buyer: row.buyer.clone() };
    let charges = charges(&held)?;
    let lease = LeaseEnd { key, charges, late_event: event.clone(), event };
    Ok(End { decided, lease, held, until: parked.until })
}

/// What an attempt row holds, as the store wants it.
pub(super) fn charges(held: &[WindowAmount]) -> Result<Vec<Charge>, LedgerError> {
    let charge = |window: &WindowAmount| {
        let start = Timestamp::from_millisecond(window.start_ms)
            .map_err(|_| LedgerError::Bug("a window of an attempt row is out of range".to_owned()))?;
        // Ends are kept with open leases only, and a doubt is none.
        let window_of = Window { start, end: None };
        Ok(Charge { cap: window.cap.clone(), window: window_of, amount: window.amount })
    };
    held.iter().map(charge).collect()
}

fn since(row: &AttemptRow, now: Timestamp) -> u64 {
    let duration = Duration::try_from(now.duration_since(row.sent_at)).unwrap_or_default();
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The attempt as it stands, with another outcome and nothing counted or booked.
fn attempt(detail: &LeadDetail, row: &AttemptRow, outcome: AttemptOutcome) -> Result<Attempt, LedgerError> {
    Ok(Attempt {
        lead: row.lead,
        buyer: row.buyer.clone(),
        publisher: detail.lead.publisher.clone(),
        campaign: detail.lead.campaign.clone(),
        ordinal: row.ordinal,
        outcome,
        counted: false,
        http_status: row.http_status,
        reason: None,
        sent_at_us: row.sent_at.as_microsecond(),
        duration_us: row.duration_us,
        windows: row.charged()?,
        price: row.price,
        payout: row.payout,
        currency: row.currency,
        books: false,
        person: row.person,
        reference: row.reference.clone(),
    })
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
