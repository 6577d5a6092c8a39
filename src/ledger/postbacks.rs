//! What publishers are told: rows that settlement makes with the verdicts and that any gateway may send.
//!
//! - A row is claimed by one sender at a time: the claim stands in the row and ends by itself, so that what a dead gateway
//!   had claimed is sent by another. Whoever has lost its claim changes nothing any more.
//! - Of one lead, a postback is claimed only when no earlier one waits.
//! - Instants are handed in: all gateways use one clock, the store's.

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::LedgerError;
use crate::domain::id::{LeadId, PublisherId};
use crate::domain::outcome::LeadStatus;

/// How far a postback is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostbackState {
    /// For its first or next try.
    Waiting,
    /// The publisher has it.
    Delivered,
    /// The publisher answered 410: it wants it no more.
    Gone,
    /// Tried for a day in vain.
    Dead,
    /// Its publisher had no postback any more.
    Dropped,
}

impl PostbackState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Delivered, Self::Gone, Self::Dead, Self::Dropped];

    /// The word in the books.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delivered => "delivered",
            Self::Gone => "gone",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Names one sender's hold of one batch of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimId(Uuid);

impl ClaimId {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// As the books keep it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

/// What a sender asks for.
#[derive(Debug, Clone)]
pub struct ClaimOrder {
    /// Whose, and how many of each at most.
    pub wanted: Vec<(PublisherId, usize)>,
    /// How many at most in all. Where that is less, each publisher gets one before any gets a second.
    pub count_max: usize,
    /// Now: what is due by then.
    pub now: Timestamp,
    /// When the claim ends by itself.
    pub until: Timestamp,
}

/// A postback that this sender alone may send, until its claim ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedPostback {
    /// Its row.
    pub id: i64,
    /// Its hold.
    pub claim: ClaimId,
    /// Of which lead.
    pub lead: LeadId,
    /// Which verdict.
    pub status: LeadStatus,
    /// Who is told.
    pub publisher: PublisherId,
    /// The bytes to post.
    pub body: String,
    /// Tries so far.
    pub tries: u32,
    /// When the first of them began.
    pub first_try_at: Option<Timestamp>,
}

impl ClaimedPostback {
    /// The message's id: the same on each try, and another one for each verdict of a lead.
    #[must_use]
    pub fn message_id(&self) -> String {
        message_id(self.lead, self.status)
    }
}

/// See [`ClaimedPostback::message_id`].
#[must_use]
pub fn message_id(lead: LeadId, status: LeadStatus) -> String {
    format!("{lead}_{}", status.as_str())
}

/// How a try ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Which row.
    pub id: i64,
    /// Under which claim.
    pub claim: ClaimId,
    /// When it began.
    pub at: Timestamp,
    /// Of the answer, if one came.
    pub http_status: Option<u16>,
    /// Why there was none: a word of ours.
    pub error: Option<&'static str>,
    /// What becomes of the row.
    pub next: NextStep,
}

/// What becomes of a postback after a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Another try, not before.
    TryAt(Timestamp),
    /// The end, in one of the states that are one.
    End(PostbackState),
    /// It was not tried: free for others at once.
    Release,
}

/// A row as people look at it. Its body is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostbackRow {
    /// Its id.
    pub id: i64,
    /// Of which lead.
    pub lead: LeadId,
    /// Which verdict.
    pub status: LeadStatus,
    /// Who is told.
    pub publisher: PublisherId,
    /// How far it is.
    pub state: PostbackState,
    /// Tries so far.
    pub tries: u32,
    /// When the lead got the verdict.
    pub created_at: Timestamp,
    /// When it is tried next; `None` when it has ended.
    pub next_at: Option<Timestamp>,
    /// Of the last try.
    pub http_status: Option<u16>,
    /// Of the last try.
    pub error: Option<String>,
}

/// What a replay found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostbackReplay {
    /// It is due now, and starts over.
    Waiting,
    /// It waits already.
    WaitsAlready,
    /// The lead has a later verdict, whose postback it must not come after.
    Superseded,
    /// There is no such postback (any more).
    Unknown,
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PostbackBacklog {
    /// How many.
    pub waiting: u64,
    /// The oldest one's verdict.
    pub oldest: Option<Timestamp>,
}

/// The part of the books that publishers are told from. See the module's text for the contract.
#[async_trait]
pub trait PostbackBooks: Send + Sync {
    /// Claims due postbacks. What another sender is just claiming is left out.
    async fn claim_postbacks(&self, order: &ClaimOrder) -> Result<Vec<ClaimedPostback>, LedgerError>;

    /// Writes down how tries ended, in one transaction; of rows whose claim is another's by now, nothing. Answers for how many
    /// rows it did. Repeating is harmless.
    async fn finish_postbacks(&self, tried: &[Tried]) -> Result<u64, LedgerError>;

    /// Ends what waits since before `before` of publishers other than `known`, as [`PostbackState::Dropped`], at most
    /// `count_max`; answers how many.
    async fn drop_postbacks(
        &self,
        known: &[PublisherId],
        before: Timestamp,
        now: Timestamp,
        count_max: usize,
    ) -> Result<u64, LedgerError>;

    /// What waits.
    async fn postback_backlog(&self) -> Result<PostbackBacklog, LedgerError>;

    /// Postbacks in a state, of one publisher or of all, from the oldest row on; those after the id `after`, at most
    /// `count_max`.
    async fn postbacks(
        &self,
        state: PostbackState,
        publisher: Option<&PublisherId>,
        after: i64,
        count_max: usize,
    ) -> Result<Vec<PostbackRow>, LedgerError>;

    /// Makes a postback that has ended due again, with its old id.
    async fn replay_postback(&self, id: i64, now: Timestamp) -> Result<PostbackReplay, LedgerError>;
}
