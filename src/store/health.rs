//! How a store is, as readiness and metrics tell it.

/// How the store is, for readiness and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreHealth {
    /// Store clock minus this gateway's clock.
    pub clock_offset_ms: i64,
    /// Entries waiting for settlement, all partitions.
    pub journal_entries: u64,
    /// What is wrong with how the store is set up; empty when nothing is.
    pub warnings: Vec<SetupWarning>,
}

/// One thing that is wrong with how the store is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupWarning {
    /// Which kind of thing.
    pub kind: SetupKind,
    /// What is wrong and what would be right, for people.
    pub text: String,
}

/// What about a store's set-up is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupKind {
    /// The server is too old.
    Version,
    /// The server may drop counters and journal entries when its memory is full.
    Eviction,
    /// Little memory is left.
    Memory,
    /// The server keeps nothing on disk.
    Persistence,
    /// It does not tell.
    Unknown,
}

impl SetupKind {
    /// All kinds, as the words of a label.
    pub fn words() -> impl Iterator<Item = (Self, &'static str)> {
        [
            (Self::Version, "version"),
            (Self::Eviction, "eviction"),
            (Self::Memory, "memory"),
            (Self::Persistence, "persistence"),
            (Self::Unknown, "unknown"),
        ]
        .into_iter()
    }

    /// Must a gateway not be ready with it? A server that may drop what counts, or does not know the scripts, is no store; the
    /// rest an operator has to hear of, and can live with (F24).
    #[must_use]
    pub fn is_grave(self) -> bool {
        match self {
            Self::Version | Self::Eviction => true,
            Self::Memory | Self::Persistence | Self::Unknown => false,
        }
    }
}
