//! Names of things. An id that exists is valid: the only way in is [`BuyerId::new`] and its siblings.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest id of a publisher, buyer or campaign, in bytes.
pub const ID_BYTES_MAX: usize = 64;

/// An id that breaks the rule "1 to 64 of `A-Z a-z 0-9 . _ -`".
///
/// The rule keeps ids safe inside Redis keys (no braces, which would move a key to another slot, and no colons, which
/// would let two ids join into one key), file names and metric labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id: use 1 to 64 of A-Z a-z 0-9 . _ -")]
pub struct InvalidId(pub String);

fn check(text: &str) -> Result<(), InvalidId> {
    let good = !text.is_empty()
        && text.len() <= ID_BYTES_MAX
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if good { Ok(()) } else { Err(InvalidId(text.to_owned())) }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and keeps an id.
            ///
            /// # Errors
            /// [`InvalidId`] when the text is not 1 to 64 of `A-Z a-z 0-9 . _ -`.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                check(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(&text)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

id!(
    /// Who sends leads.
    PublisherId
);
id!(
    /// Who takes leads.
    BuyerId
);
id!(
    /// The product that a lead belongs to.
    CampaignId
);

/// Names a cap within its buyer: `day`, `month:spend`, `day:publisher=acme`, or what the operator chose.
///
/// Free text where the configuration made it from field values, so stores escape it before it becomes part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CapId(Arc<str>);

impl CapId {
    /// Keeps the id of a cap; the configuration has checked it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one lead for ever: a UUID of version 7, so that ids sort by time of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeadId(Uuid);

impl LeadId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as it is stored: 16 bytes, big-endian.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The least id that a lead of this instant can have; ids are in the order of time, to the millisecond.
    #[must_use]
    pub fn first_at(at: Timestamp) -> Self {
        // Cannot fail because the number is not negative; beyond 48 bits there is no id.
        let ms = u64::try_from(at.as_millisecond().max(0)).unwrap_or(0).min((1 << 48) - 1);
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        Self(Uuid::from_bytes(bytes))
    }

    /// Reads the stored form.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl FromStr for LeadId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(text).map(Self)
    }
}

impl fmt::Display for LeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for LeadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// One of the store's fixed number of partitions: the unit in which things change in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Partition(pub u16);

impl Partition {
    /// The partition of a publisher's or buyer's id among `count`; the same on every gateway and for ever.
    ///
    /// # Panics
    /// When `count` is 0, which the configuration refuses.
    #[must_use]
    pub fn of(id: &str, count: u16) -> Self {
        let hash = crc32fast::hash(id.as_bytes());
        // The remainder is below `count`, so it fits.
        Self(u16::try_from(hash % u32::from(count)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_what_could_break_a_key() {
        for bad in ["", "a b", "a:b", "{a}", "é", "a/b", &"x".repeat(65)] {
            assert!(BuyerId::new(bad).is_err(), "{bad:?} was taken");
        }
        assert!(BuyerId::new(&"x".repeat(64)).is_ok());
        assert!(BuyerId::new("Sun.co_1-b").is_ok());
    }

    #[test]
    fn lead_ids_are_in_the_order_of_time() {
        let lead = LeadId(Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 1_772_973_296, 789_000_000)));
        let at = |ms| LeadId::first_at(Timestamp::from_millisecond(ms).unwrap());
        assert!(at(1_772_973_296_789) <= lead && lead < at(1_772_973_296_790));
        assert_eq!(at(-5), at(0));
        assert!(LeadId::first_at(Timestamp::MAX) > lead);
    }

    #[test]
    fn partition_of_an_id_never_changes() {
        // Pinned: moving an id to another partition would lose sight of its counters.
        assert_eq!(Partition::of("sunco", 16), Partition(11));
        assert_eq!(Partition::of("sunco", 1), Partition(0));
    }
}
