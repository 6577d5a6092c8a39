//! From a body to fields. One strict pass: what is taken here means the same to every reader behind us (F59 to F62).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::refusal::{FieldProblem, Refusal};
use crate::domain::field::known;
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::pointer::Document;

/// Deepest nesting of a JSON body; the outer object is 1.
pub const DEPTH_MAX: usize = 32;
/// Most fields of a lead.
pub const FIELDS_MAX: usize = 500;

/// The field that makes a lead a test. It is for us and is not forwarded.
const TEST_FIELD: &str = "test";

/// Types of body that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyType {
    /// `application/json`
    Json,
    /// `application/x-www-form-urlencoded`
    Form,
}

/// What a body holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// Canonical names where they are known, in the order they came.
    pub fields: Fields,
    /// The body says that it is a test.
    pub is_test: bool,
}

/// Reads a body. A `mapping` names fields of the lead and where the body has them: what it finds replaces the members of the
/// outer object (or the fields of the form) that it looked into, and those of the same name. A form may have JSON in a field.
///
/// # Errors
/// [`Refusal::Malformed`] when it cannot be read without guessing; [`Refusal::InvalidLead`] when two names that mean the
/// same field have different values, or the test field is neither yes nor no. Neither quotes a value (P9).
pub fn parse(body_type: BodyType, body: &[u8], mapping: &[(Arc<str>, String)]) -> Result<Parsed, Refusal> {
    let text = std::str::from_utf8(body).map_err(|_| malformed("the body is not UTF-8"))?;
    if text.starts_with('\u{feff}') {
        return Err(malformed("the body starts with a byte order mark"));
    }
    let sent = match body_type {
        BodyType::Json => mapped_json(text, json(text)?, mapping)?,
        BodyType::Form => mapped_form(form(text)?, mapping)?,
    };
    if sent.len() > FIELDS_MAX {
        return Err(malformed(&format!("there are more than {FIELDS_MAX} fields")));
    }
    canonical(sent)
}

fn malformed(detail: &str) -> Refusal {
    Refusal::Malformed(detail.to_owned())
}

type Sent = Vec<(String, FieldValue)>;

/// The members of an object, in order, with names unescaped and values unread.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl<'a> Members<'a> {
    /// Reads an object and refuses names that stand twice, also when one of them is written with escapes (F60).
    fn read(text: &'a str) -> Result<Self, Refusal> {
        let members: Self = read(text)?;
        let mut names = HashSet::with_capacity(members.0.len());
        for (name, _) in &members.0 {
            refuse_nul(name)?;
            if !names.insert(name.as_str()) {
                return Err(malformed("a name stands twice in one object"));
            }
        }
        drop(names);
        Ok(members)
    }
}

fn json(text: &str) -> Result<Sent, Refusal> {
    refuse_deep(text.as_bytes())?;
    if !text.trim_ascii_start().starts_with('{') {
        return Err(malformed("the body is not a JSON object"));
    }
    Members::read(text)?.0.into_iter().map(|(name, raw)| Ok((name, value(raw)?))).collect()
}

/// Where a mapping looks: the first step of a pointer, which names a member of the body, and the rest.
fn steps(pointer: &str) -> Option<(String, &str)> {
    let path = pointer.strip_prefix('/')?;
    let end = path.find('/').unwrap_or(path.len());
    let (first, rest) = path.split_at(end);
    Some((first.replace("~1", "/").replace("~0", "~"), rest))
}

/// Puts what the mapping finds in the place of what it looked into, and of what has the same name.
fn mapped(
    sent: Sent,
    mapping: &[(Arc<str>, String)],
    find: impl Fn(&str) -> Result<Option<FieldValue>, Refusal>,
) -> Result<Sent, Refusal> {
    let roots: HashSet<String> = mapping.iter().filter_map(|(_, pointer)| Some(steps(pointer)?.0)).collect();
    let is_mapped = |name: &str| {
        let name = known(name).unwrap_or(name);
        mapping.iter().any(|(mapped, _)| mapped.eq_ignore_ascii_case(name))
    };
    let mut kept: Sent =
        sent.into_iter().filter(|(name, _)| !roots.contains(name.as_str()) && !is_mapped(name)).collect();
    for (name, pointer) in mapping {
        if let Some(found) = find(pointer)? {
            kept.push((name.to_string(), found));
        }
    }
    Ok(kept)
}

fn mapped_json(text: &str, sent: Sent, mapping: &[(Arc<str>, String)]) -> Result<Sent, Refusal> {
    if mapping.is_empty() {
        return Ok(sent);
    }
    let Some(document) = Document::read(text.as_bytes()) else { return Ok(sent) };
    mapped(sent, mapping, |pointer| document.raw(pointer).map(value).transpose())
}

/// A form can have JSON in a field: what a pointer's first step names is then read as strictly as a body of JSON.
fn mapped_form(sent: Sent, mapping: &[(Arc<str>, String)]) -> Result<Sent, Refusal> {
    let text_of = |sent: &Sent, root: &str| {
        let (_, value) = sent.iter().find(|(name, _)| name == root)?;
        value.as_text().map(str::to_owned)
    };
    let mut texts = HashMap::new();
    let mut used = Vec::new();
    for (name, pointer) in mapping {
        let Some((root, rest)) = steps(pointer) else { continue };
        let Some(text) = text_of(&sent, &root) else { continue };
        if !rest.is_empty() && text.trim_start().starts_with(['{', '[']) && !texts.contains_key(&root) {
            refuse_deep(text.as_bytes())?;
            check_nested(text.trim())?;
        }
        texts.insert(root, text);
        used.push((Arc::clone(name), pointer.clone()));
    }
    mapped(sent, &used, |pointer| {
        let Some((text, rest)) = steps(pointer).and_then(|(root, rest)| Some((texts.get(&root)?, rest))) else {
            return Ok(None);
        };
        if rest.is_empty() {
            return Ok(Some(FieldValue::Text(text.as_str().into())));
        }
        let document = Document::read(text.as_bytes());
        document.and_then(|document| document.raw(rest)).map(value).transpose()
    })
}

/// Reads one piece of JSON. The parser's own words can quote the body, so only the place is told.
fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|error| {
        malformed(&format!("the body is not valid JSON (line {}, column {})", error.line(), error.column()))
    })
}

fn value(raw: &RawValue) -> Result<FieldValue, Refusal> {
    let text = raw.get();
    Ok(match text.as_bytes().first() {
        Some(b'"') => FieldValue::Text(string(text)?.into()),
        Some(b'{' | b'[') => {
            check_nested(text)?;
            FieldValue::Nested(text.into())
        }
        Some(b't') => FieldValue::Bool(true),
        Some(b'f') => FieldValue::Bool(false),
        Some(b'n') => FieldValue::Null,
        _ => FieldValue::Number(text.into()),
    })
}

/// Unescapes a string; the parser refuses lone surrogates, MySQL would refuse a NUL later (F61).
fn string(text: &str) -> Result<String, Refusal> {
    let unescaped: String = read(text)?;
    refuse_nul(&unescaped)?;
    Ok(unescaped)
}

fn refuse_nul(text: &str) -> Result<(), Refusal> {
    if text.contains('\0') { Err(malformed("the body has a NUL character")) } else { Ok(()) }
}

/// Values that we only pass on are held to the same rules: somebody behind us will read them. Recursion is bounded
/// because [`refuse_deep`] has seen the text.
fn check_nested(text: &str) -> Result<(), Refusal> {
    match text.as_bytes().first() {
        Some(b'{') => Members::read(text)?.0.into_iter().try_for_each(|(_, raw)| check_nested(raw.get())),
        Some(b'[') => read::<Vec<&RawValue>>(text)?.into_iter().try_for_each(|raw| check_nested(raw.get())),
        Some(b'"') => string(text).map(drop),
        _ => Ok(()),
    }
}

/// Counts brackets outside of strings, before anything recursive sees the body (F59).
fn refuse_deep(bytes: &[u8]) -> Result<(), Refusal> {
    let mut depth = 0_usize;
    let mut is_in_string = false;
    let mut is_escaped = false;
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_string => is_escaped = true,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(malformed(&format!("the body is nested deeper than {DEPTH_MAX} levels")));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

fn form(text: &str) -> Result<Sent, Refusal> {
    // What curl and many a script send when nobody named the type. As a form it would be one long name, and every required
    // field "missing".
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok_and(|_| text.trim_start().starts_with('{')) {
        return Err(malformed("the body is JSON, its content type says form: send Content-Type: application/json"));
    }
    let mut sent = Sent::new();
    let mut names = HashSet::new();
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        for part in [&name, &value] {
            refuse_nul(part)?;
            // What stands in for bytes that were not UTF-8; sent as such it would be no text either.
            if part.contains(char::REPLACEMENT_CHARACTER) {
                return Err(malformed("a name or value is not UTF-8 when decoded"));
            }
        }
        if !names.insert(name.clone().into_owned()) {
            return Err(malformed("a name stands twice"));
        }
        sent.push((name.into_owned(), FieldValue::Text(value.into())));
    }
    Ok(sent)
}

/// Gives fields their canonical names. Names are compared without case by every rule, so names that differ in case only
/// meet too: no reader may see another value than the others (F60).
fn canonical(sent: Sent) -> Result<Parsed, Refusal> {
    let mut fields: Vec<(Arc<str>, FieldValue)> = Vec::with_capacity(sent.len());
    let mut places = HashMap::<String, usize>::with_capacity(sent.len());
    let mut problems = Vec::new();
    for (name, value) in sent {
        let name: Arc<str> = known(&name).map_or_else(|| Arc::from(name), Arc::from);
        match places.get(&name.to_ascii_lowercase()) {
            None => {
                places.insert(name.to_ascii_lowercase(), fields.len());
                fields.push((name, value));
            }
            Some(place) if fields[*place].1 == value => {}
            Some(place) => {
                problems.push(FieldProblem::new(&fields[*place].0, "sent under two names with different values"));
            }
        }
    }
    let mut is_test = false;
    if let Some(place) = places.get(TEST_FIELD) {
        match yes_or_no(&fields.remove(*place).1) {
            Some(answer) => is_test = answer,
            None => problems.push(FieldProblem::new(TEST_FIELD, "must be true or false")),
        }
    }
    if problems.is_empty() {
        Ok(Parsed { fields: Fields::new(fields), is_test })
    } else {
        Err(Refusal::InvalidLead(problems))
    }
}

/// Reads a switch; `None` when it is neither on nor off: a test must never be sold because of how it was written.
fn yes_or_no(value: &FieldValue) -> Option<bool> {
    match value {
        FieldValue::Null => Some(false),
        FieldValue::Nested(_) => None,
        other => switch(other.as_text().unwrap_or_default()),
    }
}

/// `true` or `1`, `false`, `0` or nothing.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/parse.rs"]
mod tests;
