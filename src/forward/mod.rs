//! The seam to the buyers: one HTTP call, classified into an [`Outcome`].

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;

use crate::domain::lead::Lead;
use crate::domain::outcome::Outcome;
use crate::domain::routing::Buyer;

/// One lead for one buyer.
#[derive(Debug, Clone)]
pub struct ForwardOrder {
    /// Who gets it.
    pub buyer: Arc<Buyer>,
    /// What.
    pub lead: Arc<Lead>,
}

/// What one forward taught us within the buyer's time-out.
#[derive(Debug)]
pub struct Forwarded {
    /// The outcome so far.
    pub outcome: Outcome,
    /// When the forward started.
    pub sent_at: Timestamp,
    /// From start to verdict or time-out.
    pub duration: Duration,
    /// Present after a time-out: the answer is still being read in the background (for at most `late_answer_ms`) and
    /// arrives here; `Outcome::InDoubt` when none came.
    pub late: Option<oneshot::Receiver<Outcome>>,
}
