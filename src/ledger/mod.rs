//! The books: leads, attempts, entries, balances, cap usage. The trait is the contract; `mysql` and `sqlite` keep it with
//! twin migrations and one set of statements, and pass the same list of tests.
//!
//! `plan` decides what a batch of events changes, without any database; `sql` carries it out and answers questions; `mysql`
//! and `sqlite` make connections and read errors.
//!
//! # The contract
//!
//! - [`Ledger::settle`] moves journal entries and marks in one transaction: rows, entries, balances, `cap_usage` and marks
//!   change together or not at all. Settling an entry again changes nothing (P5).
//! - A return books every line of a sale the other way round, once per lead and buyer, in the transaction that changes the
//!   balances and, where it frees the cap, `counted` and `cap_usage`; a return of a sale that is not in the books is refused.
//! - Rows move forward only: an attempt by [`crate::domain::outcome::AttemptOutcome::rank`], a lead from pending to its
//!   verdict. Events may come in any order across partitions.
//! - `cap_usage` counts `amount` of an attempt's windows exactly while its `counted` is true; balances change only together
//!   with the entries that cause them; a sale is booked once per lead and buyer; the entries of a lead sum to zero (P6).
//! - An event that can never be stored goes to `dead_letters` with its reason; the rest goes on. An event of an unknown
//!   version stops its partition until a gateway that knows it comes.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::event::{JournalEntry, Life, Mark, WindowAmount};
use crate::domain::id::{BuyerId, CampaignId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::{AttemptOutcome, LeadStatus};
use crate::domain::person::{Person, PersonDigest, PersonMark};
use crate::domain::window::Window;
use crate::store::{CounterKey, StoreError};
use audit::{Audit, Period, Progress};

pub mod audit;
mod check;
mod lives;
pub mod mysql;
mod plan;
pub mod postbacks;
mod rows;
mod sql;
pub mod sqlite;
mod windows;

pub use lives::{BookedLead, GatewayId, LeadPlace, LifeRow, Peer, Raise, Stage};

pub use postbacks::{PostbackBooks, PostbackState};

pub use rows::{
    AttemptPlace, CountedAttempt, CountedSum, DeadLetterRow, DifferenceAction, DifferenceRow, DoubtRow, Replayed,
    ReturnRow, UsageRow,
};

/// Why a ledger call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Nothing happened: not connected, refused, rolled back (deadlock, lock wait), read-only.
    #[error("ledger did not take the call: {0}")]
    NotDone(String),
    /// It may have happened: the connection broke around COMMIT. Repeating is harmless.
    #[error("ledger did not answer: {0}")]
    MaybeDone(String),
    /// The schema is missing, older, newer or changed by hand; `capgate migrate` or an operator must act.
    #[error("ledger schema: {0}")]
    Schema(String),
    /// We are wrong.
    #[error("ledger bug: {0}")]
    Bug(String),
}

/// Where settlement reads from while it holds the marks.
#[async_trait]
pub trait JournalSource: Send + Sync {
    /// Entries after the mark, in order, at most `count_max`.
    async fn read(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError>;
}

/// What one settlement did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// New marks, to trim the journals by.
    pub marks: Vec<Mark>,
    /// Journal entries read.
    pub entries: usize,
    /// Entries that can never be stored.
    pub dead_letters: usize,
    /// Rows written, by table.
    pub rows: Vec<(&'static str, u64)>,
    /// Was a batch limit reached, so that more is waiting?
    pub has_more: bool,
    /// Second leads under a used key, stored with their key column empty: an alarm.
    pub key_clashes: usize,
    /// Partitions whose next entry has a version that is not known here: they wait for a newer gateway.
    pub stopped: Vec<Partition>,
    /// The first journal that could not be read while others could; it is read again next time.
    pub unread: Option<StoreError>,
}

/// Why settlement stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// The ledger's side.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The journal's side.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A lead as the books have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadRow {
    /// Its id.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// The verdict, or pending.
    pub status: LeadStatus,
    /// Of an unsold lead.
    pub reason: Option<String>,
    /// Who has it.
    pub buyer: Option<BuyerId>,
    /// Of a sale.
    pub price: Option<Micros>,
    /// Of a sale.
    pub payout: Option<Micros>,
    /// Of a sale.
    pub currency: Option<Currency>,
    /// A test lead.
    pub is_test: bool,
    /// When it came.
    pub received_at: Timestamp,
    /// When it got its verdict.
    pub closed_at: Option<Timestamp>,
    /// JSON text; `None` when it was removed after `payload_days`.
    pub payload: Option<String>,
    /// JSON text.
    pub explanation: Option<String>,
    /// The answer, byte for byte.
    pub answer: Option<String>,
}

/// An attempt as the books have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// The lead.
    pub lead: LeadId,
    /// Who was offered it.
    pub buyer: BuyerId,
    /// 1 for the first.
    pub ordinal: u16,
    /// Its state.
    pub outcome: AttemptOutcome,
    /// Do its units count?
    pub counted: bool,
    /// Of the answer.
    pub http_status: Option<u16>,
    /// Of a refusal or doubt.
    pub reason: Option<String>,
    /// When the forward started.
    pub sent_at: Timestamp,
    /// How long it took.
    pub duration_us: u64,
    /// JSON list of `{"cap","window_start","amount"}`.
    pub windows: String,
    /// Terms.
    pub price: Micros,
    /// The publisher's part.
    pub payout: Micros,
    /// Of both.
    pub currency: Currency,
    /// Whom it was about, where the buyer wants nobody twice; removed when its days are over.
    pub person: Option<Person>,
    /// The buyer's own name for the lead.
    pub reference: Option<String>,
}

impl AttemptRow {
    /// [`Self::windows`], read, in the order they were charged.
    ///
    /// # Errors
    /// [`LedgerError::Bug`] when the row cannot be read.
    pub fn charged(&self) -> Result<Vec<WindowAmount>, LedgerError> {
        charged(&self.windows)
    }
}

/// Reads the `windows` column.
fn charged(windows: &str) -> Result<Vec<WindowAmount>, LedgerError> {
    let stored = windows::stored_windows(windows).map_err(|text| LedgerError::Bug(text.to_owned()))?;
    let window = |((cap, start), amount): (windows::StoredPlace, u64)| WindowAmount {
        cap: CapId::new(&cap),
        start_ms: start.as_millisecond(),
        amount,
    };
    Ok(stored.into_iter().map(window).collect())
}

/// A line of the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRow {
    /// Whose sale, or return, it belongs to.
    pub buyer: BuyerId,
    /// `buyer:<id>`, `publisher:<id>` or `margin`.
    pub account: String,
    /// Negative: the account owes.
    pub amount: Micros,
    /// Of the amount.
    pub currency: Currency,
    /// `sale` or `return`.
    pub kind: String,
    /// When it was booked.
    pub booked_at: Timestamp,
}

/// Everything about one lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeadDetail {
    /// The lead.
    pub lead: LeadRow,
    /// In order of their ordinals.
    pub attempts: Vec<AttemptRow>,
    /// In order of booking.
    pub entries: Vec<EntryRow>,
    /// In order of time.
    pub returns: Vec<ReturnRow>,
}

/// Sums for `demo` and for checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Leads by status word.
    pub leads: Vec<(String, u64)>,
    /// Attempts by buyer and outcome word.
    pub attempts: Vec<(String, String, u64)>,
    /// Account, currency, micros: from `balances`.
    pub balances: Vec<(String, String, i64)>,
    /// Leads whose entries do not sum to zero per currency.
    pub unbalanced_leads: u64,
    /// Accounts whose balance is not the sum of their entries.
    pub unbalanced_accounts: u64,
}

/// How a migration went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStep {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub description: String,
    /// False when it was in force already.
    pub was_applied_now: bool,
}

/// The books. See the module's text for the contract.
#[async_trait]
pub trait Ledger: PostbackBooks + Send + Sync + std::fmt::Debug {
    /// Brings the schema up to date; safe to run from several gateways at once.
    async fn migrate(&self) -> Result<Vec<MigrationStep>, LedgerError>;

    /// Is the schema the one this version needs?
    async fn check_schema(&self) -> Result<(), LedgerError>;

    /// Is the ledger there?
    async fn ping(&self) -> Result<(), LedgerError>;

    /// Makes sure of one mark row per partition and reads them, in order. The number of partitions is written down at the
    /// first start and checked after: a different number is [`LedgerError::Schema`].
    async fn marks(&self, partitions: u16) -> Result<Vec<Mark>, LedgerError>;

    /// Every partition's life, in order; [`Ledger::marks`] has made sure of the rows.
    async fn lives(&self) -> Result<Vec<LifeRow>, LedgerError>;

    /// Moves partitions to new lives with empty marks, those that are still in the life named: on the server named, and only
    /// [`Stage::Raised`] yet. Answers which: for the others someone else was first.
    async fn raise_lives(&self, raises: &[Raise]) -> Result<Vec<Partition>, LedgerError>;

    /// Writes down how far these lives have come; a life that is no longer its partition's is left alone.
    async fn set_stage(&self, lives: &[(Partition, Life)], stage: Stage) -> Result<(), LedgerError>;

    /// Says that a gateway is alive, and by partition under which life it has restated what it holds. Answers all gateways'
    /// rows but those that nobody has written for an hour, which are removed.
    async fn beat(&self, gateway: GatewayId, restated: &[Life]) -> Result<Vec<Peer>, LedgerError>;

    /// Removes a gateway's row: it has ended and holds nothing.
    async fn leave(&self, gateway: GatewayId) -> Result<(), LedgerError>;

    /// Which of these the books have an attempt row for.
    async fn attempted(&self, keys: &[LeaseKey]) -> Result<Vec<LeaseKey>, LedgerError>;

    /// Leads received at or after `since`, in order of arrival, those after `after`, at most `count_max`: what a store that
    /// has lost its memory is told again.
    async fn booked_leads(
        &self,
        since: Timestamp,
        after: Option<&LeadPlace>,
        count_max: usize,
    ) -> Result<Vec<BookedLead>, LedgerError>;

    /// The newest sale or doubt by which a buyer has had a person since `since`, as far as it is settled.
    async fn person(
        &self,
        buyer: &BuyerId,
        person: PersonDigest,
        since: Timestamp,
    ) -> Result<Option<PersonMark>, LedgerError>;

    /// Everybody whom a buyer has had since `since`, in the order of digest and lead; those after `after`, at most `count_max`:
    /// what a store that has lost its memory is told again.
    async fn persons(
        &self,
        buyer: &BuyerId,
        since: Timestamp,
        after: Option<(PersonDigest, LeadId)>,
        count_max: usize,
    ) -> Result<Vec<PersonMark>, LedgerError>;

    /// Locks the marks of all partitions that nobody else is settling, reads their journals and settles at most `rows_max`
    /// entries in one transaction. Deadlocks and lock waits restart it from the first statement, a bounded number of times.
    /// Must not be cancelled half way: run it in a task of its own.
    async fn settle(&self, source: &dyn JournalSource, rows_max: usize) -> Result<Settled, SettleError>;

    /// `cap_usage` of these windows of one partition's buyers, and the mark they were settled to, in one snapshot. `None`
    /// where there is no row.
    async fn usage_snapshot(
        &self,
        partition: Partition,
        keys: &[CounterKey],
    ) -> Result<(Mark, Vec<Option<u64>>), LedgerError>;

    /// Every row of `cap_usage` whose window started at or after `since` (or at the epoch, for `total` caps), and all
    /// marks, in one snapshot: what a store that keeps its counters in this process starts from.
    async fn usage_all(&self, since: Timestamp) -> Result<(Vec<Mark>, Vec<UsageRow>), LedgerError>;

    /// Start of the newest window of a cap that something counts in, of those that started within `span`.
    async fn newest_usage(&self, buyer: &BuyerId, cap: &CapId, span: &Window)
    -> Result<Option<Timestamp>, LedgerError>;

    /// How many attempts of a buyer that were sent within `span` count, and what they cost: what a cap that is new in
    /// mid-window starts from. Of one publisher, or of all.
    async fn counted_sum(
        &self,
        buyer: &BuyerId,
        span: &Window,
        publisher: Option<&PublisherId>,
    ) -> Result<CountedSum, LedgerError>;

    /// Counted attempts of a buyer sent within `span`, from the oldest on, at most `count_max`, after `after`; with the
    /// payload of their leads where it is wanted.
    async fn counted_attempts(
        &self,
        buyer: &BuyerId,
        span: &Window,
        after: Option<&AttemptPlace>,
        count_max: usize,
        wants_payload: bool,
    ) -> Result<Vec<CountedAttempt>, LedgerError>;

    /// Makes rows of `cap_usage` for windows that have none, with this much used; rows that are there stay as they are. Called
    /// with a new cap's past before the store has its counter: no lease can have named the window by then, so the row is
    /// complete, and settlement adds to it whatever the mark is (P2).
    async fn begin_usage(&self, rows: &[(CounterKey, u64)]) -> Result<(), LedgerError>;

    /// Writes down differences that reconciliation found, before anything is done about them (F84).
    async fn record_differences(&self, differences: &[DifferenceRow]) -> Result<(), LedgerError>;

    /// Events of a partition that became dead letters at or after `since`, by the ledger's clock: units that `cap_usage` may
    /// lack.
    async fn dead_letters_since(&self, partition: Partition, since: Timestamp) -> Result<u64, LedgerError>;

    /// Dead letters from the oldest on; those after the id `after`, at most `count_max`.
    async fn dead_letters(&self, after: i64, count_max: usize) -> Result<Vec<DeadLetterRow>, LedgerError>;

    /// Tries once more to settle a dead letter, whose cause may be gone by now; a letter that is stored is removed in the
    /// same transaction. What other events have settled meanwhile stays (P5).
    async fn replay(&self, id: i64) -> Result<Replayed, LedgerError>;

    /// Units of these windows that unresolved doubts hold.
    async fn units_in_doubt(&self, keys: &[CounterKey]) -> Result<Vec<u64>, LedgerError>;

    /// Attempts of a buyer whose outcome is unknown, whether their units count or not, from the oldest on; those after
    /// `after`, at most `count_max`.
    async fn doubts(
        &self,
        buyer: &BuyerId,
        after: Option<&AttemptPlace>,
        count_max: usize,
    ) -> Result<Vec<DoubtRow>, LedgerError>;

    /// A lead's row.
    async fn lead(&self, lead: LeadId) -> Result<Option<LeadRow>, LedgerError>;

    /// A lead with attempts and entries.
    async fn lead_detail(&self, lead: LeadId) -> Result<Option<LeadDetail>, LedgerError>;

    /// The lead that used this key before: what replays are answered from when the store was lost. Hash in hex.
    async fn lead_by_key(&self, publisher: &PublisherId, key_hash: &str) -> Result<Option<BookedLead>, LedgerError>;

    /// Compares the books with themselves, as of one instant: entries with attempts and verdicts, balances with entries,
    /// `cap_usage` with attempts. Reads page by page and may take minutes; tells `progress` how far it has come.
    async fn audit(&self, period: Period, progress: Progress<'_>) -> Result<Audit, LedgerError>;

    /// Sums.
    async fn totals(&self) -> Result<Totals, LedgerError>;

    /// Buyers that the admin API has paused.
    async fn paused_buyers(&self) -> Result<Vec<BuyerId>, LedgerError>;

    /// Pauses or resumes a buyer.
    async fn set_paused(&self, buyer: &BuyerId, is_paused: bool) -> Result<(), LedgerError>;

    /// Removes payloads of leads received before `before`, events of dead letters and postbacks that ended from before it, at most
    /// `count_max` in all; answers how many, fewer than `count_max` when none is left.
    async fn remove_payloads(&self, before: Timestamp, count_max: usize) -> Result<u64, LedgerError>;

    /// Closes connections.
    async fn shut_down(&self);
}

/// A shared ledger.
pub type SharedLedger = Arc<dyn Ledger>;
