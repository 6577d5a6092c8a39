//! Hot state: caps, leases, idempotency, journal. The trait is the contract; `redis` and `embedded` keep it and pass the
//! same list of tests.
//!
//! # The contract
//!
//! - **Partitions.** State is split by [`Partition::of`] the buyer's id (counters, leases, attempt events) or the
//!   publisher's id (claims, open leads, received and closed events). Everything a call changes in one partition changes in
//!   one step or not at all.
//! - **Time.** The store's clock decides. [`Store::now`] is this gateway's estimate of it; a call whose `not_after` has
//!   passed by the store's own clock changes nothing.
//! - **Walks.** An open lease belongs to the walk named in its [`AttemptInfo`]; to every other walk of the lead it is
//!   [`Refusal::Underway`] (P4).
//! - **Persons.** Where a candidate names a person, a take checks and sets the buyer's mark of it in its one step, before any
//!   cap. The mark goes with the attempt's outcome: a lease, a sale and a doubt keep it, a refusal frees it, and a return
//!   changes nothing.
//! - **Repeats.** Every call may be asked again with the same ids and then answers what happened, changing nothing (F20).
//! - **Counters** never go below zero, are never created by a refund, and expire a while after their window (F01, F07).
//! - **Counter = settled usage + effects of journal entries after the mark + open leases**, at every instant (P2). Only the
//!   call that changes a lease's state touches counters and appends the event, in the same step.
//! - **Lives.** A partition whose data is not of the life this gateway has joined, or is closed, grants nothing and answers
//!   `NewLife` (P8); ends wait. How a life begins is told in `settle::lives`.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;

use crate::domain::event::{
    Attempt, ClaimKey, Closed, EntryId, JournalEntry, Life, Mark, ParkedLead, Received, WindowAmount,
};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::{Charge, EndMark, LeaseKey, OpenLease};
use crate::domain::person::{Person, PersonMark};
use crate::domain::window::Window;
use crate::ledger::BookedLead;

pub mod embedded;
mod ends;
mod health;
mod lives;
mod reconcile;
pub mod redis;
mod returns;
mod takes;

pub use health::{SetupKind, SetupWarning, StoreHealth};
pub use lives::{BeginReply, ReadBack, Standing};
pub use reconcile::{Compared, Comparison, CounterKey, ReconcileReply, SeedReply, TAIL_ENTRIES_MAX};
pub use returns::{ReturnReply, SaleReturn};
pub use takes::{PersonReply, Refusal, Take, TakeCandidate, TakeReply};

/// Why a store call gave no answer. A full cap is not an error, it is a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing happened: not connected, refused, loading, read-only, out of memory, queue full.
    #[error("store did not take the call: {0}")]
    NotDone(String),
    /// It may have happened: timed out, or broken before the reply. Ask again with the same ids.
    #[error("store did not answer: {0}")]
    MaybeDone(String),
    /// We or the data are wrong; asking again will not help.
    #[error("store bug: {0}")]
    Bug(String),
}

/// Admits a lead: claim of its key, open-lead record and "received" event in one step.
#[derive(Debug, Clone)]
pub struct Admit {
    /// What goes into the journal; names lead, publisher and claim.
    pub event: Received,
    /// When recovery may take the lead over, by the store's clock.
    pub deadline: Timestamp,
    /// Past this, by the store's clock, nothing may be started.
    pub not_after: Timestamp,
    /// How long claim and answer are kept.
    pub retention: Duration,
}

/// What admit found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The lead is ours to route. A repeat of the very same call (same lead id) answers this too.
    New,
    /// Another try of the key is on its walk.
    Running(LeadId),
    /// The key is finished; the answer byte for byte.
    Finished(LeadId, Bytes),
    /// The key was used with another body.
    KeyReused,
    /// The key is not known here, but the books may know it: they have to be asked first ([`Store::bring_back`],
    /// [`Store::new_key`]).
    AskBooks,
    /// The journal, or what this process holds of it, is at its limit: nothing is admitted until settlement catches up.
    JournalFull,
    /// `not_after` has passed.
    TooLate,
    /// The data is not of the life this gateway knows.
    NewLife,
}

/// Ends a lease.
#[derive(Debug, Clone)]
pub struct LeaseEnd {
    /// Its name.
    pub key: LeaseKey,
    /// As they were taken.
    pub charges: Vec<Charge>,
    /// Appended when the lease was open. Its `windows` stand in the order of `charges` and hold the final amounts (a money
    /// cap reserves the most and keeps what was booked).
    pub event: Attempt,
    /// Appended instead when the lease had ended otherwise: a yes that came after a refund or a doubt, or the end of a
    /// doubt.
    pub late_event: Attempt,
}

impl LeaseEnd {
    /// The same for a lead that has its answer already: the yes counts and books nothing.
    #[must_use]
    pub fn as_late(self) -> Self {
        Self { event: self.late_event.clone(), ..self }
    }
}

/// What ending a lease found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReply {
    /// The lease was open; `event` was appended.
    Done,
    /// The lease was in another state and this call changed it; `late_event` was appended.
    Late {
        /// The state before.
        was: EndMark,
        /// Where a yes after a refund charged its units again: every counter right after that charge, in the order of the
        /// charges, 0 for one that is gone. Empty when nothing was charged.
        counters: Vec<u64>,
    },
    /// It had ended this way, or in a way that this call does not change; nothing was touched.
    Already(EndMark),
    /// Neither record nor mark is left; nothing was touched and the ledger decides.
    Missing,
}

/// Closes a lead: the first call wins.
#[derive(Debug, Clone)]
pub struct Close {
    /// What goes into the journal; holds the answer.
    pub event: Closed,
    /// The claim it was admitted under.
    pub claim: Option<ClaimKey>,
    /// How long the answer is kept.
    pub retention: Duration,
}

/// What close found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReply {
    /// This answer is now the lead's.
    Closed,
    /// The lead had this answer.
    Already(Bytes),
    /// The data is not of the life this gateway knows.
    NewLife,
}

/// State of a lead that the store still remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadState {
    /// On its walk.
    Running,
    /// Closed with this answer.
    Finished(Bytes),
}

/// A lead whose gateway let its deadline pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverdueLead {
    /// The lead.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// The claim it was admitted under.
    pub claim: Option<ClaimKey>,
}

/// Moves the deadline of an open lead, which is when recovery takes it over. All instants count in whole milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveDeadline {
    /// The lead.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// Only if the deadline is this one; without it whatever it is, which only the lead's own walk or whoever has claimed it may
    /// ask for.
    pub from: Option<Timestamp>,
    /// The new one, by the store's clock.
    pub to: Timestamp,
    /// Appended when the deadline is moved.
    pub event: Option<ParkedLead>,
}

/// What is under way, over all partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenCounts {
    /// Leads without an answer.
    pub leads: u64,
    /// Leases without an end.
    pub leases: u64,
}

/// Hot state. See the module's text for the contract.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// How many partitions there are.
    fn partitions(&self) -> u16;

    /// This gateway's estimate of the store's clock.
    fn now(&self) -> Timestamp;

    /// The store's clock, by the same estimate, at an instant of this gateway's.
    fn time_at(&self, ours: Timestamp) -> Timestamp {
        ours
    }

    /// Do several gateways use this store? Then each of them has to be alive in the books.
    fn is_shared(&self) -> bool {
        false
    }

    /// What a partition's data says of itself.
    async fn standing(&self, partition: Partition) -> Result<Standing, StoreError>;

    /// The life that this gateway works under in a partition, once everything it holds is restated under it.
    fn joined(&self, partition: Partition) -> Option<Life>;

    /// Makes `life` the partition's life, closed, if the store has none, an older one, or data of another server; only on the
    /// server named. What waits for settlement goes on in the new life's journal, from its beginning; counters are forgotten.
    async fn begin_life(&self, partition: Partition, life: Life, server: &str) -> Result<BeginReply, StoreError>;

    /// Works under these lives from now on and never again under another one; waits for calls that are under way, then
    /// restates everything this gateway holds of these partitions. Safe to repeat after an error.
    async fn join(&self, lives: &[(Partition, Life)]) -> Result<(), StoreError>;

    /// Opens a life that was begun: it grants from here on. False when the data is of another life.
    async fn open_life(&self, _partition: Partition, _life: Life) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Drops an open lease from the data of a partition that is closed: the books know how it ended.
    async fn forget_lease(&self, _life: Life, _key: &LeaseKey) -> Result<(), StoreError> {
        Ok(())
    }

    /// Tells a closed or open partition what the books know of a lead: its claim and answer, or that it is open. What the
    /// store knows itself stays.
    async fn bring_back(&self, lead: &BookedLead, retention: Duration) -> Result<(), StoreError>;

    /// The books do not know this key: an admit that follows within some seconds need not ask them.
    async fn new_key(&self, publisher: &PublisherId, hash: &str) -> Result<(), StoreError>;

    /// Tells a buyer's partition what the books know of persons: by which lead the buyer has each of them, since when, or that
    /// they know of none. `days` is the buyer's rule. What the store knows itself stays.
    async fn bring_persons(&self, buyer: &BuyerId, days: u32, marks: &[PersonMark]) -> Result<(), StoreError>;

    /// Everybody whom the buyer has had within so many days, as the books know it, has been brought back: a take need not ask
    /// them any more, in this life and for a rule of at most so many days.
    async fn set_marked(&self, buyer: &BuyerId, days: u32) -> Result<(), StoreError>;

    /// What is known of a person at a buyer. Changes nothing.
    async fn person(&self, buyer: &BuyerId, person: &Person) -> Result<PersonReply, StoreError>;

    /// Writes down how far leads have been brought back.
    async fn set_read_back(&self, partition: Partition, life: Life, read: &ReadBack) -> Result<(), StoreError>;

    /// Open leases of these partitions that this process took and knows no end of.
    fn held_leases(&self, _partitions: &[Partition]) -> Vec<LeaseKey> {
        Vec::new()
    }

    /// The books know how this lease ended, though this process does not yet: it is not restated.
    fn let_lease_go(&self, _key: &LeaseKey) {}

    /// Lets go of what is settled.
    fn let_go(&self, _marks: &[Mark]) {}

    /// Bytes of what this process holds because only the store has it besides: open leases and events that are not settled.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// The server that answers is no longer the one that the books know: looks for it again, by the configured address.
    async fn reconnect(&self) {}

    /// Measures clock and journal, and looks at how the store is set up.
    async fn health(&self) -> Result<StoreHealth, StoreError>;

    /// Claims a lead's key and records it as received.
    async fn admit(&self, admit: &Admit) -> Result<Admission, StoreError>;

    /// Takes a lease of the first candidate with room.
    async fn take(&self, take: &Take) -> Result<TakeReply, StoreError>;

    /// [`Store::admit`], and if the lead is new [`Store::take`], in as few round trips as the store allows. A take never
    /// happens before its admit said new.
    async fn admit_and_take(&self, admit: &Admit, take: &Take) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let admission = self.admit(admit).await?;
        match admission {
            Admission::New => Ok((admission, Some(self.take(take).await?))),
            other => Ok((other, None)),
        }
    }

    /// The buyer has the lead: the unit counts. Open: counts what `event` booked. After a refund: charges again, even above
    /// the limit. After a doubt: the doubt is over.
    async fn commit(&self, end: &LeaseEnd) -> Result<EndReply, StoreError>;

    /// An operator says that the buyer has the lead, and by the books its unit still counts. Open, or after a doubt: like
    /// [`Store::commit`]. After a refund: nothing, because somebody else said "declined" meanwhile and others may have the unit
    /// by now (P1).
    async fn confirm(&self, end: &LeaseEnd) -> Result<EndReply, StoreError>;

    /// The buyer does not have the lead: the unit goes back. After a doubt: the doubt is over and the unit goes back. After a
    /// commit: nothing.
    async fn refund(&self, end: &LeaseEnd) -> Result<EndReply, StoreError>;

    /// The outcome is unknown, and the unit goes back by the operator's choice (`refund`, `reserve`, `on_crash`). Only an open
    /// lease can expire: what recovery has made a doubt, because this caller seemed dead, stays counted until an answer or an
    /// operator ends it.
    async fn expire(&self, end: &LeaseEnd) -> Result<EndReply, StoreError>;

    /// The buyer may have the lead: the unit stays counted. Only an open lease can become a doubt.
    async fn doubt(&self, end: &LeaseEnd) -> Result<EndReply, StoreError>;

    /// A buyer gives a sold lead back: appends the event, and its windows get their units back (a counter that is gone stays
    /// gone). A repeat is recognised for as long as an end mark lives; after that the books know it. The end mark stays
    /// committed, so that the lead is not offered to the buyer again. Waits for a partition that is closed.
    async fn return_sale(&self, sale: &SaleReturn) -> Result<ReturnReply, StoreError>;

    /// Appends an attempt event that changes no unit: a "no" that came after the unit had gone back.
    async fn record(&self, event: &Attempt) -> Result<(), StoreError>;

    /// Appends a closed event of a lead that has its answer already, which stays as it is: a doubt that is resolved moves the
    /// lead's row in the books and never the answer that its publisher got (P3).
    async fn record_verdict(&self, event: &Closed) -> Result<(), StoreError>;

    /// Sets the end mark of a lease whose mark has expired, from what the books know: `mark`, and in `windows` what the
    /// attempt counts (nothing after a refund). From then on the lease ends as if the mark had never gone. Changes nothing
    /// while there is a lease or a mark. False, and nothing is changed, when there is neither and `not_after` has passed by the
    /// store's clock: what the books said may be older than a mark that has come and gone since (P1).
    async fn remember(
        &self,
        key: &LeaseKey,
        mark: EndMark,
        windows: &[WindowAmount],
        not_after: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Gives one gateway at a time a lead whose attempts are resolved; false while another one has it. Ends by itself after
    /// `claim_for`. A store of one process has nobody to keep away.
    async fn claim_resolution(&self, _lead: LeadId, _claim_for: Duration) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Ends [`Store::claim_resolution`].
    async fn end_resolution(&self, _lead: LeadId) -> Result<(), StoreError> {
        Ok(())
    }

    /// The owner of an open lease saw the time-out and wants recovery to give the unit back when the deadline passes.
    async fn give_back_at_deadline(&self, key: &LeaseKey) -> Result<(), StoreError>;

    /// Gives a lead its answer, once.
    async fn close(&self, close: &Close) -> Result<CloseReply, StoreError>;

    /// [`Store::commit`], then [`Store::close`], in as few round trips as the store allows. A close never happens before
    /// its commit answered; it happens only when the commit answered [`EndReply::Done`]. Where both are one step, the commit
    /// of a lead that has its answer already writes `late_event` in place of `event`: it is not sold a second time (P6).
    async fn commit_and_close(
        &self,
        end: &LeaseEnd,
        close: &Close,
    ) -> Result<(EndReply, Option<CloseReply>), StoreError> {
        let reply = self.commit(end).await?;
        match reply {
            EndReply::Done => Ok((reply, Some(self.close(close).await?))),
            other => Ok((other, None)),
        }
    }

    /// Sets counters that are missing to their settled usage as of `mark`, plus the effects of journal entries after the
    /// mark, plus what open leases hold of them. Never touches one that is there. Exact under full load, because all of it
    /// is read in one step.
    async fn seed(
        &self,
        buyer: &BuyerId,
        mark: &Mark,
        counters: &[(CapId, Window, u64)],
    ) -> Result<SeedReply, StoreError>;

    /// Compares counters of the mark's partition with their settled usage as of the mark, plus the effects of journal
    /// entries after it, plus what open leases hold. All of it is read in one step, so that the difference is exact under
    /// full load. Where a difference is the very one that the caller names, it is taken out of the counter in the same step,
    /// by difference and never by an absolute value (F82): a unit taken or given back meanwhile stays so, and of two callers
    /// that name the same difference one repairs and the other finds none. Never creates a counter, never changes an expiry;
    /// without a difference named it changes nothing at all.
    async fn reconcile(&self, mark: &Mark, comparisons: &[Comparison]) -> Result<ReconcileReply, StoreError>;

    /// The newest window of each of a buyer's caps that a lease was charged to; `None` where there is none, or none with an
    /// end.
    async fn newest_windows(&self, buyer: &BuyerId, caps: &[CapId]) -> Result<Vec<Option<Window>>, StoreError>;

    /// What the store remembers of a lead.
    async fn lead_state(&self, publisher: &PublisherId, lead: LeadId) -> Result<Option<LeadState>, StoreError>;

    /// Counters as they stand; `None` where there is none.
    async fn counters(&self, keys: &[CounterKey]) -> Result<Vec<Option<u64>>, StoreError>;

    /// Leases past their deadline, oldest first, at most `count_max`.
    async fn overdue_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError>;

    /// All open leases, at most `count_max`.
    async fn open_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError>;

    /// Claims open leads that are past their deadline by `grace`, by moving their deadline to `extend` from now; at most
    /// `count_max`. Two callers never get the same lead.
    async fn claim_overdue_leads(
        &self,
        partition: Partition,
        grace: Duration,
        extend: Duration,
        count_max: usize,
    ) -> Result<Vec<OverdueLead>, StoreError>;

    /// Moves an open lead's deadline. False, and nothing is changed, when it is not open or its deadline is another one; a lead
    /// whose deadline is the new one already is moved. Waits for a partition that is closed.
    async fn move_deadline(&self, moved: &MoveDeadline) -> Result<bool, StoreError>;

    /// How many leads and leases are open in all partitions.
    async fn open_counts(&self) -> Result<OpenCounts, StoreError>;

    /// The last entry ever appended to the journal of the partition's present life (`0-0` for none), settled or not.
    async fn journal_tip(&self, partition: Partition) -> Result<EntryId, StoreError>;

    /// Entries after the mark, in order, at most `count_max`; none when the data is of another life than the mark.
    async fn read_journal(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError>;

    /// Forgets entries up to and including the mark's. Called only after the ledger has committed the mark.
    async fn trim_journal(&self, mark: &Mark) -> Result<(), StoreError>;

    /// Waits until something was appended by this process, or until the time is over; settlement's alarm clock.
    async fn appended(&self, wait: Duration);

    /// Ends background work and makes everything durable.
    async fn shut_down(&self);
}
