//! A lead as intake understood it: canonical field names beside the untouched original.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use super::id::{CampaignId, LeadId, PublisherId};

/// A field's value, kept as it was written: numbers never become floats (F55, F62).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// A JSON string, unescaped.
    Text(Box<str>),
    /// A JSON number, digit for digit.
    Number(Box<str>),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
    /// An object or array: its JSON text, checked and untouched.
    Nested(Box<str>),
}

impl FieldValue {
    /// The value as rules compare it: text, digits, `true`/`false`; `None` for null and for nested values.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
            Self::Null | Self::Nested(_) => None,
        }
    }

    /// Writes the value as JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => write_json_string(text, out),
            Self::Number(digits) => out.extend_from_slice(digits.as_bytes()),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Null => out.extend_from_slice(b"null"),
            Self::Nested(json) => out.extend_from_slice(json.as_bytes()),
        }
    }
}

/// Writes `text` as a JSON string with its quotes.
pub fn write_json_string(text: &str, out: &mut Vec<u8>) {
    // Cannot fail because writing a str into a Vec has no error path in serde_json.
    let _ = serde_json::to_writer(out, text);
}

/// The fields of a lead, in the order they came. Names are canonical where an alias is known, else as sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(Arc<str>, FieldValue)>);

impl Fields {
    /// Keeps fields in order; the caller has made sure that no name stands twice.
    #[must_use]
    pub fn new(fields: Vec<(Arc<str>, FieldValue)>) -> Self {
        Self(fields)
    }

    /// The value of a canonical name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The text of a field, by canonical name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(FieldValue::as_text)
    }

    /// All fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FieldValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One JSON object with canonical names: what the ledger keeps as `payload`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = Vec::with_capacity(64 * self.0.len() + 2);
        out.push(b'{');
        for (index, (name, value)) in self.0.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_json_string(name, &mut out);
            out.push(b':');
            value.write_json(&mut out);
        }
        out.push(b'}');
        // Cannot fail because every part written above is UTF-8.
        String::from_utf8(out).unwrap_or_default()
    }
}

/// One lead on its walk.
#[derive(Debug, Clone)]
pub struct Lead {
    /// Ours, for ever.
    pub id: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// By the gateway's clock, when the request was read.
    pub received_at: Timestamp,
    /// Runs every decision and touches nothing.
    pub is_test: bool,
    /// Canonical names.
    pub fields: Fields,
    /// The body as it came: empty when the lead was read back from the ledger.
    pub body: Bytes,
}

impl Lead {
    /// The text of a field, by canonical name.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.text(field)
    }
}
