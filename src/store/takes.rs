//! What a take is asked and answered.

use std::time::Duration;

use jiff::Timestamp;

use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::lease::{AttemptInfo, Demand, EndMark};
use crate::domain::window::Window;

/// One buyer that may get the lead, with all caps that guard it.
#[derive(Debug, Clone)]
pub struct TakeCandidate {
    /// Who.
    pub buyer: BuyerId,
    /// Every cap that counts this lead; empty for an uncapped buyer.
    pub demands: Vec<Demand>,
    /// From now to the lease's deadline, by the store's clock.
    pub lease_for: Duration,
    /// Kept with the lease for recovery.
    pub about: AttemptInfo,
    /// Routing version; an older one than the store has seen for the buyer is refused.
    pub routing_version: u64,
}

/// Tries candidates in order and takes the first with room.
#[derive(Debug, Clone)]
pub struct Take {
    /// The lead.
    pub lead: LeadId,
    /// In the order they are to be tried.
    pub candidates: Vec<TakeCandidate>,
    /// Past this, by the store's clock, nothing may be started.
    pub not_after: Timestamp,
}

/// Why a candidate got no lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A cap has no room.
    Full {
        /// Which.
        cap: CapId,
        /// Its counter.
        used: u64,
    },
    /// The store's clock is outside the window that was given; ask again with the right one.
    WrongWindow {
        /// The store's clock.
        store_now: Timestamp,
    },
    /// Another window of this cap is running, or reaches into the one that was given: the buyer's zone was changed. It counts on
    /// to its end (F33); ask again with it.
    OtherWindow {
        /// Which.
        cap: CapId,
        /// The newest window that has counted for it.
        window: Window,
    },
    /// The counter is missing and no older window is known for the cap: closed until [`Store::seed`].
    Unseeded {
        /// Which.
        cap: CapId,
    },
    /// A newer routing has been used for this buyer.
    Stale {
        /// The newest version seen.
        newest: u64,
    },
    /// The lease has ended already: this lead was offered to this buyer before (P4).
    Ended(EndMark),
    /// Another walk of this lead holds a lease of this buyer (P4).
    Underway,
    /// The buyer has the person by another lead, and wants nobody twice within some days.
    Duplicate {
        /// That lead.
        lead: LeadId,
        /// Since when.
        since: Timestamp,
    },
    /// Not everybody has been marked whom the buyer has had, and nothing is known of this person: closed until
    /// [`super::Store::bring_persons`] has told what the books know.
    AskBooks,
    /// The buyer's partition is closed: its data is not of the life this gateway knows.
    NewLife,
}

impl Refusal {
    /// Can the caller cure it and ask again? The order of candidates is a promise, so such a refusal ends the call: nobody
    /// further on is asked while this candidate may yet turn out to have room.
    #[must_use]
    pub fn is_curable(&self) -> bool {
        match self {
            Self::WrongWindow { .. }
            | Self::OtherWindow { .. }
            | Self::Unseeded { .. }
            | Self::Stale { .. }
            | Self::AskBooks
            | Self::NewLife => true,
            Self::Full { .. } | Self::Ended(_) | Self::Underway | Self::Duplicate { .. } => false,
        }
    }
}

/// What is known of a person at a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersonReply {
    /// The buyer has the person.
    Had {
        /// By this lead.
        lead: LeadId,
        /// Since when.
        since: Timestamp,
    },
    /// It has not.
    Free,
    /// The books have to be asked.
    AskBooks,
}

/// What take found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeReply {
    /// Index of the candidate whose lease is now open; a repeat of the call by the same walk finds the same one.
    pub taken: Option<usize>,
    /// Every candidate tried before it, by index, with the reason. One that can be cured is the last.
    pub refused: Vec<(usize, Refusal)>,
    /// `not_after` had passed: nothing was tried further.
    pub too_late: bool,
}
