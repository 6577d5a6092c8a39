//! A lease: the right to offer one lead to one buyer, paid for with one unit of every cap that guards it.
//!
//! Life: *take* opens it; exactly one of *commit*, *refund* or *doubt* ends it; recovery ends what its owner left open.
//! The name of a lease is lead and buyer, which P4 makes unique for ever.

use std::fmt;
use std::num::ParseIntError;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::id::{BuyerId, CampaignId, CapId, LeadId, PublisherId};
use super::money::{Currency, Micros, Payout};
use super::person::Person;
use super::window::Window;

/// Names a lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseKey {
    /// The lead offered.
    pub lead: LeadId,
    /// The buyer it is offered to.
    pub buyer: BuyerId,
}

/// What a lease holds of one cap window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The cap.
    pub cap: CapId,
    /// The window it was charged to; a refund goes to this one, whatever the time is then.
    pub window: Window,
    /// Leads or micros.
    pub amount: u64,
}

/// A charge asked for, with the limit it must stay within.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// What to charge.
    pub charge: Charge,
    /// Most that the counter may be after it: leads or micros.
    pub limit: u64,
}

/// Names one walk of a lead. Two gateways can walk the same lead for a while, when one of them only seemed dead; each finds
/// the leases it opened itself and no others (P4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WalkName(u64);

impl WalkName {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for WalkName {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<WalkName> for String {
    fn from(name: WalkName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for WalkName {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

/// What recovery must know of an attempt whose gateway died. Stored with the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptInfo {
    /// The walk that makes the attempt; goes wherever the lease goes.
    #[serde(default)]
    pub walk: WalkName,
    /// Who sent the lead.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// 1 for the first buyer tried.
    pub ordinal: u16,
    /// Terms, so that a doubt can be booked later without the routing that made it.
    pub terms: Terms,
    /// Whom the lead is about, where the buyer wants nobody twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<Person>,
}

/// Money terms of an attempt, fixed at the take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// What the buyer pays unless its answer names a price.
    pub price: Micros,
    /// Most it may pay.
    pub price_max: Micros,
    /// The publisher's payout for `price`.
    pub payout: Micros,
    /// The campaign's.
    pub currency: Currency,
}

impl Terms {
    /// The terms of an offer under a publisher's payout rule.
    #[must_use]
    pub fn new(price: Micros, price_max: Micros, payout: Payout, currency: Currency) -> Self {
        Self { price, price_max, payout: payout.of(price), currency }
    }
}

/// How a lease ended. An end mark outlives every possible caller, so that a repeat learns what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndMark {
    /// Sold; the unit counts.
    Committed,
    /// The unit was given back.
    Refunded,
    /// The unit stays counted, the outcome is unknown.
    Doubt,
}

impl EndMark {
    /// The word in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Refunded => "refunded",
            Self::Doubt => "doubt",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Committed, Self::Refunded, Self::Doubt].into_iter().find(|mark| mark.as_str() == word)
    }
}

/// A lease that has not ended, as recovery and the `caps` table see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLease {
    /// Its name.
    pub key: LeaseKey,
    /// What it holds.
    pub charges: Vec<Charge>,
    /// What its owner knew.
    pub about: AttemptInfo,
    /// When it was taken, by the store's clock.
    pub taken_at: Timestamp,
    /// When recovery may end it, by the store's clock.
    pub deadline: Timestamp,
    /// Its owner saw the time-out and wants the unit back when the deadline passes (`reserve`).
    pub gives_back: bool,
}
