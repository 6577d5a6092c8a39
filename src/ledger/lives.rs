//! What the books know of the store's lives and of the gateways that use it, and what they give back to a store that has lost
//! its memory.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::domain::event::{ClaimKey, Life, Mark};
use crate::domain::id::{LeadId, Partition, PublisherId};

/// Names one process of a gateway, for as long as it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayId(Uuid);

impl GatewayId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as it is stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// Reads the stored form.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl std::fmt::Display for GatewayId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// How far a life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Decided in the books; the store has still to be told. Nobody may restate anything under it yet.
    Raised,
    /// Written down in the store: gateways restate what they hold.
    Begun,
    /// Everything is restated and settled: leads are taken.
    Open,
}

impl Stage {
    /// The word in the ledger.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::Begun => "begun",
            Self::Open => "open",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Raised, Self::Begun, Self::Open].into_iter().find(|stage| stage.as_str() == word)
    }
}

/// A partition's life as the books have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifeRow {
    /// The life, and how far its journal is settled.
    pub mark: Mark,
    /// The server that the life was raised for; empty for a partition that has never had one.
    pub server: String,
    /// How far it has come.
    pub stage: Stage,
}

/// A partition's way from one life to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raise {
    /// Whose.
    pub partition: Partition,
    /// The life that must still be in force.
    pub from: Life,
    /// The next one.
    pub to: Life,
    /// The server that it is raised for.
    pub server: String,
}

/// A gateway's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Which process.
    pub gateway: GatewayId,
    /// How long ago it was last written, by the ledger's clock.
    pub age: Duration,
    /// By partition: the life that it has restated what it holds under.
    pub restated: Vec<Life>,
}

/// A lead's place in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeadPlace {
    /// When it came.
    pub received_at: Timestamp,
    /// The lead.
    pub lead: LeadId,
}

/// What the store must know of a lead again: its claim and its answer, or that it is still on its walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookedLead {
    /// Which, and where it stands in the order of arrival.
    pub place: LeadPlace,
    /// Who sent it.
    pub publisher: PublisherId,
    /// The key it came under, if it came under one and holds it.
    pub claim: Option<ClaimKey>,
    /// Byte for byte; absent while the lead is pending.
    pub answer: Option<String>,
}
