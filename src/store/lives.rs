//! What a store says of the life of its data.

use crate::domain::event::{EntryId, Life};
use crate::ledger::LeadPlace;

/// How far leads that the store has forgotten have been read back from the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadBack {
    /// Nothing is missing.
    #[default]
    Done,
    /// Leads up to this place, in order of arrival.
    UpTo(Option<LeadPlace>),
}

/// What a partition's data says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The data's life; `None` for data that has never been used or is gone.
    pub life: Option<Life>,
    /// Is the server that answers the one that the life was begun on? Otherwise the data was copied, rolled back or loaded
    /// again, and proves nothing.
    pub is_here: bool,
    /// Does it grant?
    pub is_open: bool,
    /// The server that answers.
    pub server: String,
    /// The last entry ever appended to the life's journal, trimmed or not.
    pub tip: EntryId,
    /// The last entry that the journal still holds, `0-0` when everything in it is settled and trimmed.
    pub newest: EntryId,
    /// What the store has to be told again.
    pub read_back: ReadBack,
}

/// What [`Store::begin_life`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginReply {
    /// The life in force on this server.
    Life(Life),
    /// This is another server than the one named.
    Elsewhere,
}
