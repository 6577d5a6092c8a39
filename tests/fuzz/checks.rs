//! What must hold for every byte that a stranger can send. The fuzz targets and the test `mutations` share these checks; each
//! panics when something does not hold.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "a check that fails panics")]

use std::sync::{Arc, LazyLock};

use capgate::domain::lead::{FieldValue, Fields};
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
        if let FieldValue::Nested(json) = value {
            serde_json::from_str::<serde_json::Value>(json).expect("what is passed on is JSON");
        }
    }
    // What the ledger keeps reads as the same lead, by every reader.
    let kept = fields.to_json();
    let other: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(other.as_object().expect("an object").len(), fields.len());
    assert!(!has_nul(&other), "a NUL that the ledger refuses");
    assert!(depth(&other) <= DEPTH_MAX);
    assert_eq!(&again(&kept), fields, "{text:?}");
}

fn again(kept: &str) -> Fields {
    parse(BodyType::Json, kept.as_bytes(), &[]).expect("what is kept can be read").fields
}

fn has_nul(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(items) => items.iter().any(has_nul),
        serde_json::Value::Object(members) => members.iter().any(|(name, value)| name.contains('\0') || has_nul(value)),
        _ => false,
    }
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
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
        if is_near && is_plain && !id.is_empty() && id.len() <= 255 && !id.contains(' ') {
            assert!(key.is_signed(id, timestamp, &format!("v1,AAAA {expected}"), body, now));
        }
    }
}
