//! Counters: what seeding and reconciliation ask of a store, and what they are told.

use crate::domain::id::{BuyerId, CapId};
use crate::domain::window::Window;

/// Most journal entries after the mark that a seed or a comparison reads in its one step (P7).
pub const TAIL_ENTRIES_MAX: usize = 5_000;

/// One counter to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Which.
    pub key: CounterKey,
    /// Its settled usage as of the mark; 0 where the ledger has no row.
    pub usage: u64,
    /// The difference (counter minus books) that may be taken out of the counter; `None` only compares.
    pub repair: Option<i128>,
}

/// One counter beside what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// The counter as it was found; `None` where there is none.
    pub used: Option<i128>,
    /// Settled usage + effects of journal entries after the mark + open leases, never below zero (P2).
    pub expected: u64,
    /// The difference was the one that may be taken out, and it was: the counter is `expected` now.
    pub is_repaired: bool,
}

impl Compared {
    /// Counter minus books, as it was found. `None` for a counter that is missing: it grants nothing, so it is not wrong.
    #[must_use]
    pub fn difference(&self) -> Option<i128> {
        self.used.map(|used| used - i128::from(self.expected))
    }
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReconcileReply {
    /// One per counter, in the order they were asked for.
    Compared(Vec<Compared>),
    /// The journal was trimmed beyond the mark since the usage was read: read it again. Nothing was touched.
    Stale,
    /// More than [`TAIL_ENTRIES_MAX`] entries wait after the mark: settle first. Nothing was touched.
    TailTooLong,
    /// The data is not of the life this gateway knows. Nothing was touched.
    NewLife,
}

/// What seed found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeedReply {
    /// Every counter asked for is there now.
    Seeded,
    /// The journal was trimmed beyond the mark since the usage was read, or the tail is too long to be read in one step:
    /// settle, read the usage again, ask again.
    Stale,
    /// The data is not of the life this gateway knows.
    NewLife,
}

/// A counter's place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// Whose cap.
    pub buyer: BuyerId,
    /// Which cap.
    pub cap: CapId,
    /// Which window.
    pub window: Window,
}
