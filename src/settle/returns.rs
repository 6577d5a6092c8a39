//! Returns: a buyer gives a lead back that was sold to it.
//!
//! Goes in rounds, like [`super::resolve`]: the journals are settled, [`decide`] looks at what the books know and says what is
//! missing, that is done. The answer is given from the books, so a return that was answered is booked, and every repeat gets
//! the same answer.
//!
//! - The sale is booked the other way round, line by line, beside the old lines. The attempt stays accepted and the lead sold:
//!   it was.
//! - The answer that the publisher got stays as it is (P3).
//! - With `returns_free_cap` the units go back to the windows that the sale was charged to, and to no other. Where such a
//!   window is over, nobody gets more room by it.
//! - The buyer is never offered the lead again: the attempt and its end mark stay (P4).

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::recovery::{RecoveryError, wait_for_books};
use super::resolve::is_under_way;
use crate::app::Gateway;
use crate::domain::event::{Returned, SaleMoney};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::lease::{Charge, LeaseKey};
use crate::domain::money::Micros;
use crate::domain::outcome::AttemptOutcome;
use crate::domain::routing::{Buyer, ReturnTerms};
use crate::domain::window::Window;
use crate::domain::words::without_values;
use crate::intake::parse::{BodyType, parse};
use crate::intake::{ReturnAnswer, ReturnReceipt};
use crate::ledger::{LeadDetail, LedgerError};
use crate::store::{ReturnReply, SaleReturn};

/// Rounds of one call: one for a sale that is just being made, the return, the look that finds it booked, and one for a return by
/// somebody else in between.
const ROUNDS_MAX: usize = 4;
/// How long a round waits for the books.
const BOOKS_PATIENCE: Duration = Duration::from_secs(5);
/// How old what was read in the books may be when the store is told to give back: less than it remembers a return.
pub(super) const KNOWLEDGE_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Takes a lead back.
pub async fn return_sale(
    gateway: &Arc<Gateway>,
    buyer: &Buyer,
    lead: LeadId,
    reason: &str,
) -> Result<ReturnAnswer, RecoveryError> {
    let mut is_unknown = false;
    for _ in 0..ROUNDS_MAX {
        let not_after = gateway.store.now() + KNOWLEDGE_MAX;
        wait_for_books(gateway, BOOKS_PATIENCE).await?;
        let detail = gateway.ledger.lead_detail(lead).await?;
        let next = match &detail {
            Some(detail) => {
                let (buyer, terms) = (&buyer.id, buyer.returns);
                decide(&Question { detail, buyer, terms, now: gateway.clock.now() }, reason)?
            }
            None => Next::Unknown,
        };
        match next {
            Next::Answer(answer) => return Ok(answer),
            Next::Unknown if is_unknown => return Ok(ReturnAnswer::NotFound),
            Next::Unknown => {
                let key = LeaseKey { lead, buyer: buyer.id.clone() };
                if is_under_way(gateway, &key).await? {
                    return Ok(ReturnAnswer::Undecided);
                }
                // The sale may have been made between the look into the books and the one at the leases: one more look.
                is_unknown = true;
            }
            Next::Return(event) => give_back(gateway, SaleReturn { event: *event, not_after }).await?,
        }
    }
    Err(LedgerError::NotDone("the return is not in the books yet".to_owned()).into())
}

async fn give_back(gateway: &Gateway, sale: SaleReturn) -> Result<(), RecoveryError> {
    let reply = gateway.store.return_sale(&sale).await?;
    let Returned { lead, buyer, windows, frees_cap, .. } = &sale.event;
    if reply == ReturnReply::Done {
        tracing::info!(%lead, %buyer, frees_cap, "a lead was returned");
        let charge = |window: &crate::domain::event::WindowAmount| {
            let start = Timestamp::from_millisecond(window.start_ms).ok()?;
            let window_of = Window { start, end: None };
            Some(Charge { cap: window.cap.clone(), window: window_of, amount: window.amount })
        };
        let charges: Vec<Charge> = windows.iter().filter_map(charge).collect();
        gateway.units_given_back(buyer, &charges);
    }
    Ok(())
}

/// What has to be decided, and from what.
#[derive(Clone, Copy)]
struct Question<'a> {
    detail: &'a LeadDetail,
    buyer: &'a BuyerId,
    terms: ReturnTerms,
    now: Timestamp,
}

#[derive(Debug)]
enum Next {
    Answer(ReturnAnswer),
    /// The books know of no attempt at this buyer.
    Unknown,
    Return(Box<Returned>),
}

/// A sale as it was booked, and when.
struct Booked {
    sale: SaleMoney,
    at: Timestamp,
}

fn decide(question: &Question<'_>, reason: &str) -> Result<Next, LedgerError> {
    let Question { detail, buyer, terms, now } = *question;
    let Some(row) = detail.attempts.iter().find(|attempt| attempt.buyer == *buyer) else { return Ok(Next::Unknown) };
    let Some(Booked { sale, at }) = booked(detail, buyer) else {
        return Ok(Next::Answer(match row.outcome {
            AttemptOutcome::Declined | AttemptOutcome::Duplicate | AttemptOutcome::Unsent => ReturnAnswer::NotSold,
            // A late answer, the closing event or an operator books it, or ends the doubt.
            AttemptOutcome::InDoubt | AttemptOutcome::LateAccepted | AttemptOutcome::Accepted => {
                ReturnAnswer::Undecided
            }
        }));
    };
    if let Some(returned) = detail.returns.iter().find(|returned| returned.buyer == *buyer) {
        let receipt = ReturnReceipt { price: sale.price, currency: sale.currency, frees_cap: returned.frees_cap };
        return Ok(Next::Answer(ReturnAnswer::Returned(receipt)));
    }
    let days = i64::from(terms.within_days);
    let is_in_time = days > 0 && now.duration_since(at) <= SignedDuration::from_hours(24 * days);
    if !is_in_time {
        return Ok(Next::Answer(ReturnAnswer::TooLate));
    }
    Ok(Next::Return(Box::new(Returned {
        lead: row.lead,
        buyer: buyer.clone(),
        publisher: detail.lead.publisher.clone(),
        reason: words(detail, reason),
        returned_at_us: now.as_microsecond(),
        sale,
        frees_cap: terms.frees_cap,
        windows: if terms.frees_cap && row.counted { row.charged()? } else { Vec::new() },
    })))
}

/// Without what they repeat of the lead, as far as the books still have it.
pub(super) fn words(detail: &LeadDetail, reason: &str) -> String {
    let payload = detail.lead.payload.as_deref().unwrap_or_default();
    match parse(BodyType::Json, payload.as_bytes(), &[]) {
        Ok(parsed) => without_values(reason, &parsed.fields),
        Err(_) => reason.to_owned(),
    }
}

/// What stands in the books is what is reversed, whatever the attempt or the offer says.
fn booked(detail: &LeadDetail, buyer: &BuyerId) -> Option<Booked> {
    let lines = || detail.entries.iter().filter(|entry| entry.buyer == *buyer && entry.kind == "sale");
    let owed = lines().find(|entry| entry.account.starts_with("buyer:"))?;
    let earned = lines().find(|entry| entry.account.starts_with("publisher:"))?;
    let sale = SaleMoney { price: Micros(-owed.amount.0), payout: earned.amount, currency: owed.currency };
    Some(Booked { sale, at: owed.booked_at })
}

#[cfg(test)]
#[path = "returns_tests.rs"]
mod tests;
