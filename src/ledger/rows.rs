//! What questions to the books are answered with, and what is written down besides settlement.

use jiff::Timestamp;

use crate::domain::event::WindowAmount;
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::money::Micros;
use crate::domain::outcome::AttemptOutcome;
use crate::store::CounterKey;

/// A row of `cap_usage`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Whose cap.
    pub buyer: BuyerId,
    /// Which cap.
    pub cap: CapId,
    /// Start of the window.
    pub window_start: Timestamp,
    /// Leads or micros.
    pub used: u64,
}

/// An event that could not be stored. Never its content, which may hold personal data (P9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterRow {
    /// Its id.
    pub id: i64,
    /// Whose journal it stood in.
    pub partition: Partition,
    /// When it was put aside, by the ledger's clock.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
    /// False when the event itself was too large, or was removed after `payload_days`.
    pub has_event: bool,
}

/// What replaying a dead letter found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replayed {
    /// It is in the books now.
    Stored,
    /// Still not; says why.
    Refused(String),
    /// There is nothing to replay: the event itself was not kept.
    WithoutEvent,
    /// There is no such letter (any more).
    Gone,
}

/// What was decided about a difference between a counter and the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceAction {
    /// The counter is too low and is raised.
    Raise,
    /// The counter is too high and is lowered.
    Lower,
    /// The counter is too high by more than one run may lower it: kept as it is.
    KeepBeyondLimit,
    /// The counter is too high, but there are dead letters that the books may lack units of: kept as it is.
    KeepUnproven,
}

impl DifferenceAction {
    /// The word in `reconcile_differences`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raise => "raise",
            Self::Lower => "lower",
            Self::KeepBeyondLimit => "keep_limit",
            Self::KeepUnproven => "keep_unproven",
        }
    }
}

/// A row of `reconcile_differences`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DifferenceRow {
    /// Which counter.
    pub key: CounterKey,
    /// The counter as it was found.
    pub used: i128,
    /// What it should have been.
    pub expected: u64,
    /// What was decided.
    pub action: DifferenceAction,
}

/// Attempts that count, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CountedSum {
    /// How many.
    pub leads: u64,
    /// What they cost, in micros.
    pub price: u64,
}

/// One attempt that counts, as [`Ledger::counted_attempts`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedAttempt {
    /// Which.
    pub place: AttemptPlace,
    /// `accepted`, `late_accepted` or `in_doubt`.
    pub outcome: AttemptOutcome,
    /// What it counts.
    pub windows: Vec<WindowAmount>,
    /// Who sent the lead.
    pub publisher: PublisherId,
    /// JSON text of the lead; `None` when it was removed, or was not wanted.
    pub payload: Option<String>,
    /// What it costs.
    pub price: Micros,
}

/// Where an attempt stands among a buyer's: by the time it was sent, then by lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptPlace {
    /// When the forward started.
    pub sent_at: Timestamp,
    /// The lead.
    pub lead: LeadId,
}

/// An attempt that waits for a late answer or for `resolve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtRow {
    /// Which.
    pub place: AttemptPlace,
    /// Do its units count?
    pub counted: bool,
    /// Why it is in doubt: `timeout`, `gateway_lost`, ...
    pub reason: Option<String>,
}

/// A lead that its buyer gave back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnRow {
    /// Who had it.
    pub buyer: BuyerId,
    /// The buyer's words.
    pub reason: String,
    /// Does the sale no longer count in its cap windows?
    pub frees_cap: bool,
    /// When.
    pub returned_at: Timestamp,
}
