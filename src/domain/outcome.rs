//! What was learned from one forward, and the verdict on a lead.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::id::BuyerId;
use super::money::{Currency, Micros};

/// What a buyer's answer means. "In doubt" is an answer of its own: a time-out is not a "no".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The buyer has the lead.
    Accepted(Acceptance),
    /// The buyer answered in full and does not want it.
    Declined {
        /// HTTP status of the answer.
        http_status: u16,
        /// The buyer's words (at most 200 characters), or ours: `unreadable_answer`, `http_500`.
        reason: String,
        /// The buyer says that it has this person already.
        is_duplicate: bool,
        /// `Retry-After` of a 429 or 503: rest the buyer that long.
        rest_s: Option<u32>,
    },
    /// The buyer answered in full that it decides later, and may.
    Pending {
        /// HTTP status of the answer.
        http_status: u16,
        /// The buyer's own name for the lead.
        reference: Option<String>,
    },
    /// Certainly never reached the buyer: refused, TLS or DNS failed, or no connection in time.
    Unsent {
        /// A fixed word: `connect`, `dns`, `tls`, `connect_timeout`, `address_refused`, `illegal_header`,
        /// `illegal_body`, `body_too_large`, `url_too_long`.
        reason: &'static str,
    },
    /// May have reached the buyer; its answer is unknown.
    InDoubt {
        /// A fixed word: `timeout`, `broken`, `truncated`, `too_large`, `http_5xx`.
        reason: &'static str,
        /// HTTP status, if one came.
        http_status: Option<u16>,
    },
}

impl Outcome {
    /// The state it gives its attempt in the books.
    #[must_use]
    pub fn as_attempt(&self) -> AttemptOutcome {
        match self {
            Self::Accepted(_) => AttemptOutcome::Accepted,
            Self::Declined { is_duplicate: true, .. } => AttemptOutcome::Duplicate,
            Self::Declined { .. } => AttemptOutcome::Declined,
            Self::Unsent { .. } => AttemptOutcome::Unsent,
            Self::Pending { .. } | Self::InDoubt { .. } => AttemptOutcome::InDoubt,
        }
    }
}

/// The terms of a yes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acceptance {
    /// HTTP status of the answer.
    pub http_status: u16,
    /// The price in the answer, when it is possible; at most the offer's `price_max`.
    pub price: Option<Micros>,
    /// Where to send the consumer.
    pub redirect_url: Option<String>,
    /// The buyer's own name for the lead, at most 128 characters.
    pub reference: Option<String>,
}

/// The state of an attempt in the books. Later states win by [`AttemptOutcome::rank`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// Sold in time.
    Accepted,
    /// A full "no".
    Declined,
    /// A "no" because the buyer has this person.
    Duplicate,
    /// Never reached the buyer.
    Unsent,
    /// Unknown yet.
    InDoubt,
    /// A yes after the time-out, or by `resolve`.
    LateAccepted,
}

impl AttemptOutcome {
    /// All, in the order of their stored codes.
    pub const ALL: [Self; 6] =
        [Self::Accepted, Self::Declined, Self::Duplicate, Self::Unsent, Self::InDoubt, Self::LateAccepted];

    /// The word in `v_attempts.outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Declined => "declined",
            Self::Duplicate => "duplicate",
            Self::Unsent => "unsent",
            Self::InDoubt => "in_doubt",
            Self::LateAccepted => "late_accepted",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    /// A later event about the same attempt replaces an earlier one only if it ranks higher (F78).
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Self::InDoubt => 1,
            Self::Declined | Self::Duplicate | Self::Unsent | Self::Accepted => 2,
            Self::LateAccepted => 3,
        }
    }
}

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a lead was not sold: the furthest that any candidate came. Declared nearest first, so that `max` picks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnsoldReason {
    /// No buyer passed the static rules.
    NoBuyer,
    /// A buyer has this person already.
    Duplicate,
    /// Every buyer left was full.
    Capped,
    /// Buyers failing, resting or in doubt.
    Unavailable,
    /// A buyer said no.
    Declined,
    /// Time or attempts ended the walk.
    Deadline,
}

impl UnsoldReason {
    /// All of them, for metric series that start at 0.
    pub const ALL: [Self; 6] =
        [Self::NoBuyer, Self::Duplicate, Self::Capped, Self::Unavailable, Self::Declined, Self::Deadline];

    /// The word in answers, metrics and `v_leads.reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoBuyer => "no_buyer",
            Self::Duplicate => "duplicate",
            Self::Capped => "capped",
            Self::Unavailable => "unavailable",
            Self::Declined => "declined",
            Self::Deadline => "deadline",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }
}

/// The final word on a lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// One buyer has it.
    Sold(Sold),
    /// Nobody took it.
    Unsold(UnsoldReason),
    /// A `hold` buyer never answered: it may have it.
    InDoubt(BuyerId),
}

/// The terms of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sold {
    /// Who has it.
    pub buyer: BuyerId,
    /// What the buyer pays.
    pub price: Micros,
    /// What the publisher earns.
    pub payout: Micros,
    /// The campaign's.
    pub currency: Currency,
    /// Where to send the consumer, when the buyer said so.
    pub redirect_url: Option<String>,
}

impl Verdict {
    /// The word in answers, metrics and `v_leads.status`.
    #[must_use]
    pub fn status(&self) -> LeadStatus {
        match self {
            Self::Sold(_) => LeadStatus::Sold,
            Self::Unsold(_) => LeadStatus::Unsold,
            Self::InDoubt(_) => LeadStatus::InDoubt,
        }
    }
}

/// The state of a lead in the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeadStatus {
    /// Not decided yet.
    Pending,
    /// One buyer has it.
    Sold,
    /// Nobody took it.
    Unsold,
    /// A `hold` buyer may have it.
    InDoubt,
}

impl LeadStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Sold, Self::Unsold, Self::InDoubt];

    /// The word in answers and `v_leads.status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sold => "sold",
            Self::Unsold => "unsold",
            Self::InDoubt => "in_doubt",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == word)
    }
}
