//! Persons: by which fields a buyer tells one from another, and the digest under which it is remembered that a buyer has one.
//!
//! What is kept is never a field's value (P9): a digest of the values in their comparable form, of the buyer's own, so that no
//! two buyers' marks can be laid side by side.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::id::{BuyerId, LeadId};
use super::lead::Fields;
use super::outcome::AttemptOutcome;
use super::{phone, place};

/// A day, for marks: 24 hours, whatever the buyer's calendar says.
pub const DAY_MS: i64 = 86_400_000;

/// `[buyer.duplicates]`: the buyer wants nobody whom it has had within so many days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuplicateRule {
    /// Canonical names; persons are the same when all of these are. A lead that lacks one of them is nobody's duplicate.
    pub fields: Vec<Arc<str>>,
    /// From the forward on.
    pub days: u32,
}

impl DuplicateRule {
    /// The person of a lead, as this buyer tells persons apart; `None` when a field is missing.
    #[must_use]
    pub fn person(&self, buyer: &BuyerId, fields: &Fields, country: &str) -> Option<Person> {
        let mut parts = vec![b"person".to_vec(), buyer.as_str().into()];
        for name in &self.fields {
            parts.push(name.to_lowercase().into_bytes());
            parts.push(comparable(name, fields.text(name)?, country)?.into_bytes());
        }
        let hash = hash_parts(parts.iter().map(Vec::as_slice));
        let mut digest = [0; 16];
        for (to, from) in digest.iter_mut().zip(hash) {
            *to = from;
        }
        Some(Person { digest: PersonDigest(digest), days: self.days })
    }
}

/// The first half of a SHA-256: names a person at a buyer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PersonDigest(pub [u8; 16]);

impl fmt::Display for PersonDigest {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PersonDigest {
    /// Nothing of it: short as phones are, somebody could try them all (P9).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PersonDigest(..)")
    }
}

impl From<PersonDigest> for String {
    fn from(digest: PersonDigest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for PersonDigest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WRONG: &str = "a person's digest is 32 hex digits";
        let mut digest = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return Err(WRONG);
        }
        for (index, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| WRONG)?;
        }
        Ok(Self(digest))
    }
}

/// Whom an attempt offers a buyer, and for how long the buyer then has the person. Goes wherever the attempt goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Who.
    #[serde(rename = "d")]
    pub digest: PersonDigest,
    /// From the forward on.
    #[serde(rename = "n")]
    pub days: u32,
}

impl Person {
    /// How long a mark is kept, milliseconds.
    #[must_use]
    pub fn kept_ms(&self) -> i64 {
        i64::from(self.days) * DAY_MS
    }
}

/// What is known of a person at a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PersonMark {
    /// Who.
    pub digest: PersonDigest,
    /// The lead by which the buyer has the person; `None`: the books know of none.
    pub lead: Option<LeadId>,
    /// Since when, unix milliseconds.
    pub since_ms: i64,
}

/// Does a buyer have the person of an attempt with this outcome? A sale and a doubt block the next one, a refusal does not.
#[must_use]
pub fn has_person(outcome: AttemptOutcome) -> bool {
    match outcome {
        AttemptOutcome::Accepted | AttemptOutcome::LateAccepted | AttemptOutcome::InDoubt => true,
        AttemptOutcome::Declined | AttemptOutcome::Duplicate | AttemptOutcome::Unsent => false,
    }
}

/// A value in the form in which repeats of it are equal; `None` when nothing is left of it.
#[must_use]
pub fn comparable(name: &str, value: &str, country: &str) -> Option<String> {
    let is_of = |field: &str| name.eq_ignore_ascii_case(field);
    let text = if is_of(phone::PHONE) {
        phone::comparable(value, country)
    } else if is_of(place::STATE) {
        place::state(value).into_owned()
    } else if is_of(place::COUNTRY) {
        place::country(value).into_owned()
    } else if is_of(place::ZIP) {
        place::Zip::new(value).as_str().to_owned()
    } else {
        value.trim().to_lowercase()
    };
    (!text.is_empty()).then_some(text)
}

/// SHA-256 of parts, each with its length in front, so that no two lists of parts are the same bytes.
#[must_use]
pub fn hash_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lead::FieldValue;

    fn person(buyer: &str, names: &[&str], fields: &[(&str, &str)], country: &str) -> Option<Person> {
        let rule = DuplicateRule { fields: names.iter().map(|name| Arc::from(*name)).collect(), days: 30 };
        let fields = fields.iter().map(|(name, value)| (Arc::from(*name), FieldValue::Text((*value).into())));
        rule.person(&BuyerId::new(buyer).unwrap(), &Fields::new(fields.collect()), country)
    }

    #[test]
    fn persons_compare_by_digits_and_without_case_and_a_missing_field_is_nobody() {
        let of = |fields: &[(&str, &str)]| person("sunco", &["phone", "email"], fields, "US");
        let one = of(&[("phone", "(555) 010-2030"), ("email", "Ann@Example.org")]);
        assert!(one.is_some());
        assert_eq!(of(&[("email", " ann@example.ORG"), ("phone", "+1 555 010 2030")]), one);
        assert_ne!(of(&[("phone", "555 010 2031"), ("email", "ann@example.org")]), one);
        assert_ne!(of(&[("phone", "555 010 2030"), ("email", "bob@example.org")]), one);
        for missing in
            [&[("phone", "5550102030")][..], &[("phone", "none"), ("email", "a@b")], &[("email", "a@b")], &[]]
        {
            assert_eq!(of(missing), None, "{missing:?}");
        }
        let phone = [("phone", "020 7946 0958")];
        assert_ne!(person("sunco", &["phone"], &phone, "GB"), person("sunco", &["phone"], &phone, "US"));
    }

    #[test]
    fn p9_a_digest_is_the_buyers_own_and_shows_no_value() {
        let phone = [("phone", "5550102030")];
        let one = person("sunco", &["phone"], &phone, "US").unwrap();
        assert_ne!(Some(one), person("helios", &["phone"], &phone, "US"));
        let json = serde_json::to_string(&one).unwrap();
        assert!(!json.contains("555"), "{json}");
        assert!(!format!("{one:?}").contains(&one.digest.to_string()));
        assert_eq!(serde_json::from_str::<Person>(&json).unwrap(), one);
        for bad in ["\"\"", "\"00\"", "\"zz00000000000000000000000000000000\"", "\"éé00000000000000000000000000000\""]
        {
            assert!(serde_json::from_str::<PersonDigest>(bad).is_err(), "{bad}");
        }
        // Parts carry their lengths: what moves from one field to the next is another person.
        let names = ["first_name", "last_name"];
        let joined = |first, last| person("sunco", &names, &[("first_name", first), ("last_name", last)], "US");
        assert_ne!(joined("ab", "c"), joined("a", "bc"));
    }
}
