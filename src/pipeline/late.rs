//! Late answers: a time-out is not a "no", so every forward that passed its deadline is still listened to (F46).
//!
//! A late yes sells the lead if it has no verdict by then; otherwise it is contested: counted, alarmed, listed, and not booked
//! until it is resolved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::attempt::sold;
use crate::app::Gateway;
use crate::domain::id::BuyerId;
use crate::domain::lease::LeaseKey;
use crate::domain::outcome::{AttemptOutcome, LeadStatus, Outcome, Sold};
use crate::domain::routing::OnTimeout;
use crate::lease::{Held, Known};
use crate::settle::recovery::wait_for_books;
use crate::store::{EndReply, StoreError};

/// How long the books are asked what became of a lead that another gateway finishes: within 30 s of its deadline, and some.
const BOOKS_PATIENCE: Duration = Duration::from_mins(1);
/// How long one look waits for the books, and how long it is until the next one.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An attempt whose answer may still come.
pub(super) struct LateAttempt {
    pub held: Held,
    pub policy: OnTimeout,
    pub known: Known,
}

/// What late answers have done to the lead so far.
#[derive(Debug, Default)]
enum Sale {
    /// The lead is for sale.
    #[default]
    Open,
    /// A late yes has it.
    Late(Sold),
    /// The lead has its verdict: any yes from here on is contested.
    Over,
    /// The lead gets its verdict from another walk, by what the books know then: whether a yes from here on sells it is theirs
    /// to say.
    Elsewhere,
}

/// What a late yes means for its lead.
enum Meaning {
    Sells,
    Contested,
    AskTheBooks,
}

#[derive(Debug, Default)]
struct Board {
    sale: Sale,
    waiting: usize,
}

/// Shared by a walk and the listeners it left behind.
#[derive(Debug, Default)]
pub(super) struct LateBoard {
    board: Arc<Mutex<Board>>,
    changed: Arc<Notify>,
}

impl LateBoard {
    /// The sale made by a late yes, if any.
    pub fn sold(&self) -> Option<Sold> {
        match &self.board.lock().sale {
            Sale::Late(sold) => Some(sold.clone()),
            Sale::Open | Sale::Over | Sale::Elsewhere => None,
        }
    }

    /// Notes a late yes. True when it sells the lead, false when the lead has a buyer already: contested.
    pub fn record_yes(&self, sold: Sold) -> bool {
        matches!(record_yes(&self.board, sold), Meaning::Sells)
    }

    /// The lead has its verdict. Answers the late sale that lost: its yes came between the verdict and now.
    pub fn end(&self, winner: Option<&BuyerId>) -> Option<Sold> {
        match std::mem::replace(&mut self.board.lock().sale, Sale::Over) {
            Sale::Late(sold) => Some(sold).filter(|sold| winner != Some(&sold.buyer)),
            Sale::Open | Sale::Over | Sale::Elsewhere => None,
        }
    }

    /// The lead gets its verdict from another walk, or has it. Answers the late sale of this one, if there was one.
    pub fn leave(&self) -> Option<Sold> {
        match std::mem::replace(&mut self.board.lock().sale, Sale::Elsewhere) {
            Sale::Late(sold) => Some(sold),
            Sale::Open | Sale::Over | Sale::Elsewhere => None,
        }
    }

    /// Waits until a late yes sold the lead (that sale), or until no late answer can come any more (`None`).
    pub async fn first_yes(&self) -> Option<Sold> {
        loop {
            let changed = self.changed.notified();
            {
                let board = self.board.lock();
                match (&board.sale, board.waiting) {
                    (Sale::Late(sold), _) => return Some(sold.clone()),
                    (_, 0) => return None,
                    (Sale::Open | Sale::Over | Sale::Elsewhere, _) => {}
                }
            }
            // Bounded: every listener ends within `late_answer_ms` and then says so here.
            changed.await;
        }
    }

    /// Listens in the background. The returned receiver learns the outcome after it was settled.
    pub fn watch(
        &self,
        gateway: Arc<Gateway>,
        attempt: LateAttempt,
        answer: oneshot::Receiver<Outcome>,
    ) -> oneshot::Receiver<Outcome> {
        let (tell, told) = oneshot::channel();
        let (board, changed) = (self.board.clone(), self.changed.clone());
        board.lock().waiting += 1;
        gateway.clone().tasks.spawn(async move {
            // The forwarder always sends; if its task was cut with the process, nothing is known.
            let outcome = answer.await.unwrap_or(Outcome::InDoubt { reason: "timeout", http_status: None });
            settle_late(&gateway, &board, &attempt, &outcome).await;
            board.lock().waiting -= 1;
            changed.notify_waiters();
            // The walk has gone on without waiting where the policy lets it.
            let _ = tell.send(outcome);
        });
        told
    }
}

fn record_yes(board: &Mutex<Board>, sold: Sold) -> Meaning {
    let mut board = board.lock();
    match board.sale {
        Sale::Open => {
            board.sale = Sale::Late(sold);
            Meaning::Sells
        }
        Sale::Late(_) | Sale::Over => Meaning::Contested,
        Sale::Elsewhere => Meaning::AskTheBooks,
    }
}

/// The lead went to somebody else, or to nobody: counted, alarmed, listed, not booked until it is resolved.
pub(super) fn contested(gateway: &Gateway, key: &LeaseKey) {
    gateway.telemetry.buyer(&key.buyer).contested.increment(1);
    tracing::error!(lead = %key.lead, buyer = %key.buyer,
        "contested: accepted late when the lead was another's or had been answered unsold; counted, not booked");
}

/// A yes whose lead got its verdict from another walk: that one may have sold it by this very yes. The books know, once they
/// have the verdict; as long as they do not say that the sale is booked, it is contested.
pub(super) fn contested_unless_booked(gateway: &Arc<Gateway>, key: LeaseKey) {
    let asking = gateway.clone();
    gateway.tasks.spawn(async move {
        if !is_booked(&asking, &key).await {
            contested(&asking, &key);
        }
    });
}

async fn is_booked(gateway: &Gateway, key: &LeaseKey) -> bool {
    let account = format!("buyer:{}", key.buyer);
    let give_up = Instant::now() + BOOKS_PATIENCE;
    loop {
        // Without the books the next round asks again.
        let is_read = wait_for_books(gateway, LOOK_PATIENCE).await.is_ok();
        if let Ok(Some(detail)) = gateway.ledger.lead_detail(key.lead).await {
            if detail.entries.iter().any(|entry| entry.account == account) {
                return true;
            }
            if is_read && detail.lead.status != LeadStatus::Pending {
                return false;
            }
        }
        // Who drains cannot wait, and one alarm too many is better than one too few.
        let is_draining = tokio::select! {
            () = gateway.shutdown.draining.cancelled() => true,
            () = tokio::time::sleep(LOOK_EVERY) => false,
        };
        if is_draining || Instant::now() >= give_up {
            return false;
        }
    }
}

async fn settle_late(gateway: &Arc<Gateway>, board: &Mutex<Board>, attempt: &LateAttempt, outcome: &Outcome) {
    let held = &attempt.held;
    let mut pause = gateway.backoff();
    loop {
        let result = match outcome {
            Outcome::Accepted(acceptance) => {
                let known = Known::of(outcome, attempt.known.sent_at, attempt.known.duration);
                let end = held.accepted_late(acceptance, &known);
                match gateway.store.commit(&end).await {
                    Ok(EndReply::Missing) => gateway.store.record(&end.late_event).await.map(|()| EndReply::Missing),
                    other => other,
                }
            }
            Outcome::Declined { is_duplicate, .. } => {
                let known = Known::of(outcome, attempt.known.sent_at, attempt.known.duration);
                let word = if *is_duplicate { AttemptOutcome::Duplicate } else { AttemptOutcome::Declined };
                let end = held.not_taken(word, &known);
                match gateway.store.refund(&end).await {
                    // The unit went back at the time-out; now the books learn that it was a "no".
                    Ok(EndReply::Already(_)) => gateway.store.record(&end.event).await.map(|()| EndReply::Done),
                    other => other,
                }
            }
            Outcome::Unsent { .. } | Outcome::InDoubt { .. } | Outcome::Pending { .. } => match attempt.policy {
                OnTimeout::Reserve => gateway.store.expire(&held.in_doubt(false, &attempt.known)).await,
                OnTimeout::Refund | OnTimeout::Hold => return,
            },
        };
        match result {
            Ok(reply) => {
                gateway.units_given_back(&held.key.buyer, &held.charges);
                if let Outcome::Accepted(acceptance) = outcome {
                    tracing::warn!(lead = %held.key.lead, buyer = %held.key.buyer, ?reply, "accepted after the time-out");
                    gateway.late_accepted(held, &reply);
                    match record_yes(board, sold(held, acceptance)) {
                        Meaning::Sells => {}
                        Meaning::Contested => contested(gateway, &held.key),
                        Meaning::AskTheBooks => contested_unless_booked(gateway, held.key.clone()),
                    }
                }
                return;
            }
            Err(error @ StoreError::Bug(_)) => return gateway.note_store_error(&error),
            Err(error) => gateway.note_store_error(&error),
        }
        if !pause.wait().await {
            return;
        }
    }
}
