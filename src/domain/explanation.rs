//! Why a lead went where it went: every candidate buyer once, with the first check that failed and the values (P10).

use serde::{Deserialize, Serialize};

use super::id::BuyerId;

/// The first check that failed for a candidate, or how its attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The operator paused the buyer.
    Paused,
    /// Publisher denied, or not among those allowed.
    Publisher,
    /// Country not taken.
    Country,
    /// State not taken.
    State,
    /// Zip not taken.
    Zip,
    /// A field rule.
    Where,
    /// Outside opening hours.
    Hours,
    /// Breaker open, or resting after `Retry-After`.
    Breaker,
    /// Too many forwards under way.
    InFlight,
    /// The buyer has this person.
    Duplicate,
    /// A cap is full.
    Cap,
    /// Offered, said no.
    Declined,
    /// Offered, never reached.
    Unsent,
    /// Offered, unknown.
    InDoubt,
    /// Offered, said yes.
    Accepted,
    /// The walk ended before it.
    NotReached,
}

impl Check {
    /// All of them, in the order they are made.
    pub const ALL: [Self; 16] = [
        Self::Paused,
        Self::Publisher,
        Self::Country,
        Self::State,
        Self::Zip,
        Self::Where,
        Self::Hours,
        Self::Breaker,
        Self::InFlight,
        Self::Duplicate,
        Self::Cap,
        Self::Declined,
        Self::Unsent,
        Self::InDoubt,
        Self::Accepted,
        Self::NotReached,
    ];

    /// The word in explanations and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Publisher => "publisher",
            Self::Country => "country",
            Self::State => "state",
            Self::Zip => "zip",
            Self::Where => "where",
            Self::Hours => "hours",
            Self::Breaker => "breaker",
            Self::InFlight => "in_flight",
            Self::Duplicate => "duplicate",
            Self::Cap => "cap",
            Self::Declined => "declined",
            Self::Unsent => "unsent",
            Self::InDoubt => "in_doubt",
            Self::Accepted => "accepted",
            Self::NotReached => "not_reached",
        }
    }
}

/// One candidate and what happened to it. Values are rule values and the lead's matched field, never free payload text
/// beyond the field that the rule names; they are stored with the lead, not logged (P9).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateNote {
    /// The candidate.
    pub buyer: BuyerId,
    /// First failing check or the end of its attempt.
    pub check: Check,
    /// The values compared, as JSON strings or lists.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub values: serde_json::Map<String, serde_json::Value>,
}

/// The whole story, in the order of the campaign's offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The routing that the lead was decided by.
    pub routing_version: String,
    /// Every candidate once.
    pub candidates: Vec<CandidateNote>,
}
