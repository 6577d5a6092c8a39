//! What must hold for every byte that a stranger can send. The fuzz targets and the test `mutations` share these checks; each
//! panics when something does not hold.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "a check that fails panics")]

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use capgate::domain::lead::Fields;
use capgate::domain::pointer::{Document, is_pointer};
use capgate::domain::signature::SigningKey;
use capgate::domain::{matching, phone, place};
use capgate::intake::check::idempotency_key;
use capgate::intake::endpoint::{body_type, preferred_wait};
use capgate::intake::parse::{BodyType, DEPTH_MAX, FIELDS_MAX, Parsed, parse};
use capgate::intake::refusal::Refusal;
use capgate::intake::wire::has_one_reading;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The shapes of the shipped mappings.
static MAPPING: LazyLock<Vec<(Arc<str>, String)>> = LazyLock::new(|| {
    let pairs = [
        ("first_name", "/user_column_data/[column_id=FIRST_NAME]/string_value"),
        ("phone", "/form_response/answers/[field.ref=phone]/phone_number"),
        ("email", "/data.json/email/0"),
        ("state", "/field_data/[name=state]/values/0"),
        ("test", "/is_test"),
        ("whole", "/deep"),
    ];
    pairs.iter().map(|(name, pointer)| (Arc::from(*name), (*pointer).to_owned())).collect()
});

/// A body of JSON.
pub fn body(data: &[u8]) {
    for mapping in [&[][..], &MAPPING] {
        read(BodyType::Json, data, mapping);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        values(text);
        if is_pointer(text) {
            let json = br#"{"a":[{"n":"v","b":{"c":1}},2],"":{"~/":true}}"#;
            let _ = Document::read(json).expect("JSON").text(text);
        }
    }
}

/// A body of a form.
pub fn form(data: &[u8]) {
    for mapping in [&[][..], &MAPPING] {
        read(BodyType::Form, data, mapping);
    }
}

fn read(body_type: BodyType, data: &[u8], mapping: &[(Arc<str>, String)]) {
    let parsed = match parse(body_type, data, mapping) {
        Ok(parsed) => parsed,
        Err(Refusal::Malformed(_) | Refusal::InvalidLead(_)) => return,
        Err(other) => panic!("a body cannot be {other:?}"),
    };
    let text = std::str::from_utf8(data).expect("what is no UTF-8 was taken");
    let Parsed { fields, .. } = &parsed;
    assert!(fields.len() <= FIELDS_MAX);
    let mut names: Vec<String> = fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), fields.len(), "two readers would find two values: {text:?}");
    assert!(fields.get("test").is_none(), "the switch would be forwarded");
    for (name, value) in fields.iter() {
        assert!(!name.contains('\0'));
        values(value.as_text().unwrap_or_default());
    }
    match body_type {
        BodyType::Json => drop(walk(text)),
        BodyType::Form => inside(data, mapping),
    }
    // What the ledger keeps reads as the same lead, by every reader.
    let kept = fields.to_json();
    assert!(walk(&kept) <= DEPTH_MAX);
    assert_eq!(&again(&kept), fields, "{text:?}");
}

/// JSON in the fields of a form that the mapping looks into.
fn inside(data: &[u8], mapping: &[(Arc<str>, String)]) {
    for (name, text) in form_urlencoded::parse(data) {
        let is_looked_into = mapping.iter().any(|(_, pointer)| pointer.starts_with(&format!("/{name}/")));
        if is_looked_into && text.trim_start().starts_with(['{', '[']) {
            assert!(walk(text.trim()) <= DEPTH_MAX);
        }
    }
}

fn again(kept: &str) -> Fields {
    parse(BodyType::Json, kept.as_bytes(), &[]).expect("what is kept can be read").fields
}

/// The members of an object, all of them.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// How deep is it? Every name stands once in its object, and no text has a NUL, which the ledger refuses. Numbers are not looked
/// at: they are passed on as they were written, however large.
fn walk(json: &str) -> usize {
    let json = json.trim_start();
    match json.as_bytes().first() {
        Some(b'{') => {
            let Members(members) = serde_json::from_str(json).expect("an object");
            let names: HashSet<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.len(), members.len(), "two readers would find two values: {json:?}");
            assert!(!names.iter().any(|name| name.contains('\0')));
            1 + members.iter().map(|(_, value)| walk(value.get())).max().unwrap_or(0)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(json).expect("a list");
            1 + items.iter().map(|item| walk(item.get())).max().unwrap_or(0)
        }
        Some(b'"') => {
            let text: String = serde_json::from_str(json).expect("a text");
            assert!(!text.contains('\0'), "a NUL that the ledger refuses");
            0
        }
        _ => 0,
    }
}

/// A value as rules read it.
fn values(text: &str) {
    for country in ["US", "GB", "IT", "XX"] {
        if let Some(number) = phone::e164(text, country) {
            let digits = number.strip_prefix('+').expect("a plus");
            assert!((4..=17).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()), "{number}");
            assert_eq!(phone::comparable(text, country), number);
        }
    }
    for field in ["phone", "state", "country", "zip", "other"] {
        let is_blank = text.trim().is_empty();
        assert!(is_blank || matching::is_value(field, text, text), "{field} {text:?} is not itself");
        let _ = matching::is_value(field, "07030", text);
    }
    let _ = (place::state(text), place::country(text), place::Zip::new(text).five(), matching::number(text));
}

/// A request head: its bytes, and what is read of its headers.
pub fn header(data: &[u8]) {
    if has_one_reading(data) {
        let text: Vec<u8> = data.to_ascii_lowercase();
        let count = |name: &[u8]| text.windows(name.len()).filter(|window| *window == name).count();
        assert!(count(b"\r\ncontent-length:") + count(b"\r\ntransfer-encoding:") <= 1, "two ways to find the end");
        let bare = |(at, byte): (usize, &u8)| match byte {
            b'\n' => at == 0 || data[at - 1] != b'\r',
            b'\r' => data.get(at + 1) != Some(&b'\n'),
            byte => *byte == 0,
        };
        assert!(!data.iter().enumerate().any(bare), "a line that ends in two ways");
    }
    let headers = headers(data);
    if let Ok(Some(key)) = idempotency_key(&headers) {
        assert!((1..=255).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic));
        assert_eq!(headers.get_all("idempotency-key").iter().count(), 1);
    }
    if body_type(&headers).is_ok() {
        assert_eq!(headers.get_all("content-type").iter().count(), 1);
        assert!(headers.get_all("content-encoding").iter().count() <= 1);
    }
    let _ = preferred_wait(&headers);
}

/// Lines of `name: value`, as far as they are headers.
fn headers(data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(64) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii())) {
            headers.append(name, value);
        }
    }
    headers
}

/// A signature: four lines are id, timestamp, signatures and a secret, the rest is the body.
pub fn signature(data: &[u8]) {
    let mut parts = data.splitn(5, |byte| *byte == b'\n');
    let mut text = || std::str::from_utf8(parts.next().unwrap_or_default()).unwrap_or_default();
    let (id, timestamp, signatures, secret) = (text(), text(), text(), text());
    let body = parts.next().unwrap_or_default();
    let now = Timestamp::from_second(1_614_265_330).expect("a time");
    let ours = SigningKey::new("a secret of both sides").expect("a key");
    let theirs = SigningKey::new(secret).ok();
    for key in theirs.iter().chain([&ours]) {
        let is_signed = key.is_signed(id, timestamp, signatures, body, now);
        let unix_s: Option<i64> = timestamp.parse().ok();
        let is_near = unix_s.is_some_and(|unix_s| (unix_s - now.as_second()).abs() <= 300);
        // Written as a number is written: what was signed is the text.
        let is_plain = unix_s.is_some_and(|unix_s| unix_s.to_string() == timestamp);
        let expected = key.sign(id, unix_s.unwrap_or(0), body);
        let is_there = signatures.split(' ').take(8).any(|given| given == expected);
        if is_plain {
            assert_eq!(is_signed, is_there && is_near && !id.is_empty() && id.len() <= 255);
        } else if is_signed {
            assert!(is_near, "an old signature");
        }
        for unix_s in [now.as_second() - 301, now.as_second() + 301] {
            let late = key.sign(id, unix_s, body);
            assert!(!key.is_signed(id, &unix_s.to_string(), &late, body, now), "a signature of another time");
        }
        if is_near && is_plain && !id.is_empty() && id.len() <= 255 && !id.contains(' ') {
            assert!(key.is_signed(id, timestamp, &format!("v1,AAAA {expected}"), body, now));
        }
    }
}
