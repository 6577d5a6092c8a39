//! Is this a lead that the campaign takes, and have we seen it before?

use sha2::{Digest as _, Sha256};

use super::refusal::{FieldProblem, Refusal};
use crate::domain::event::ClaimKey;
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::person::{comparable, hash_parts};
use crate::domain::routing::Campaign;

/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 255;

/// Refuses a lead without all that its campaign requires.
///
/// # Errors
/// [`Refusal::InvalidLead`] with every field at fault.
pub fn required(campaign: &Campaign, fields: &Fields) -> Result<(), Refusal> {
    let problem = |name: &str| match fields.get(name) {
        None | Some(FieldValue::Null) => Some("is missing"),
        Some(FieldValue::Text(text)) if text.trim().is_empty() => Some("is empty"),
        Some(FieldValue::Nested(_)) => Some("is not a single value"),
        Some(_) => None,
    };
    let problems: Vec<_> = campaign
        .required
        .iter()
        .filter_map(|name| problem(name).map(|problem| FieldProblem::new(name, problem)))
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(Refusal::InvalidLead(problems)) }
}

/// The publisher's own key, if it sent one.
///
/// # Errors
/// [`Refusal::Malformed`] for a key that is empty, too long, not visible ASCII, or sent twice (F43): guessing which one
/// was meant would sell a lead twice.
pub fn idempotency_key(headers: &http::HeaderMap) -> Result<Option<&[u8]>, Refusal> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let key = key.as_bytes();
    let is_good = !key.is_empty() && key.len() <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic);
    if !is_good || keys.next().is_some() {
        return Err(Refusal::Malformed("Idempotency-Key must be sent once, 1 to 255 visible ASCII characters".into()));
    }
    Ok(Some(key))
}

/// The claim of a lead: by its key, else by the campaign's idempotency fields, if all of them are there.
///
/// The store scopes it by publisher. A key alone names a lead, whatever the campaign; the fields of one campaign say
/// nothing about another one (F39).
#[must_use]
pub fn claim(key: Option<&[u8]>, body: &[u8], campaign: &Campaign, fields: &Fields) -> Option<ClaimKey> {
    if let Some(key) = key {
        let hash = hex(&hash_parts([&b"key"[..], key]));
        return Some(ClaimKey { hash, fingerprint: Some(hex(&Sha256::digest(body))) });
    }
    if campaign.idempotency_fields.is_empty() {
        return None;
    }
    let mut parts = vec![b"fields".to_vec(), campaign.id.as_str().into()];
    for name in &campaign.idempotency_fields {
        parts.push(name.as_bytes().to_vec());
        parts.push(comparable(name, fields.get(name)?.as_text()?, &campaign.country)?.into_bytes());
    }
    Some(ClaimKey { hash: hex(&hash_parts(parts.iter().map(Vec::as_slice))), fingerprint: None })
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|half| char::from(DIGITS[usize::from(half)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::tests::support::{campaign, text_fields};
    use http::{HeaderMap, HeaderValue};

    #[test]
    fn f43_odd_keys() {
        let key = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("idempotency-key", HeaderValue::from_bytes(value).unwrap());
            }
            idempotency_key(&headers).map(|key| key.map(<[u8]>::to_vec))
        };
        assert_eq!(key(&[]), Ok(None));
        assert_eq!(key(&[b"a"]), Ok(Some(b"a".to_vec())));
        assert_eq!(key(&[&[b'~'; 255]]), Ok(Some(vec![b'~'; 255])));
        for bad in
            [&[&b""[..]][..], &[&[b'x'; 256]], &[b"a b"], &[b"a\tb"], &[b"\xc3\xa9"], &[b"a", b"a"], &[b"a", b"b"]]
        {
            assert!(matches!(key(bad), Err(Refusal::Malformed(_))), "{bad:?}");
        }
    }

    #[test]
    fn f39_scope_and_fingerprint_of_a_key() {
        let (solar, roof) = (campaign("solar"), campaign("roof"));
        let fields = text_fields(&[("phone", "555 010 2030"), ("email", "A@x.example")]);
        let by_key = |key: &[u8], body: &[u8], campaign| claim(Some(key), body, campaign, &fields).unwrap();
        let first = by_key(b"k", b"{}", &solar);
        assert_eq!(first.hash.len(), 64);
        assert_eq!(first, by_key(b"k", b"{}", &roof), "a key alone names a lead");
        assert_ne!(first.hash, by_key(b"K", b"{}", &solar).hash);
        assert_eq!(first.hash, by_key(b"k", b"{} ", &solar).hash);
        assert_ne!(first.fingerprint, by_key(b"k", b"{} ", &solar).fingerprint);
        // SHA-256 of "{}": the fingerprint is over the raw body.
        assert_eq!(
            first.fingerprint.as_deref(),
            Some("44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a")
        );
    }

    #[test]
    fn one_place_is_one_key_however_it_is_written() {
        let names = ["state", "country", "zip"].map(Into::into).to_vec();
        let solar = Campaign { idempotency_fields: names, ..campaign("solar") };
        let key = |state, country, zip| {
            claim(None, b"{}", &solar, &text_fields(&[("state", state), ("country", country), ("zip", zip)]))
        };
        let first = key("NJ", "US", "07030-1234").unwrap();
        assert_eq!(key(" new jersey", "usa", "07030 1234"), Some(first.clone()));
        for other in [key("NY", "US", "07030-1234"), key("NJ", "CA", "07030-1234"), key("NJ", "US", "07030")] {
            assert_ne!(other.unwrap(), first);
        }
    }

    #[test]
    fn fields_make_a_key_when_all_are_there() {
        let (solar, roof) = (campaign("solar"), campaign("roof"));
        let by_fields = |pairs: &[(&str, &str)], campaign| claim(None, b"{}", campaign, &text_fields(pairs));
        let first = by_fields(&[("phone", "(555) 010-2030"), ("email", "A@x.example")], &solar).unwrap();
        assert_eq!(first.fingerprint, None);
        for same in ["5550102030", "+1 555 010 2030", "1-555-010-2030"] {
            let again = by_fields(&[("email", " a@X.example "), ("phone", same)], &solar).unwrap();
            assert_eq!(first, again, "{same}");
        }
        let german = Campaign { country: "DE".into(), ..campaign("solar") };
        let there = |phone| by_fields(&[("phone", phone), ("email", "a@x.example")], &german);
        assert_eq!(
            there("030 123456"),
            there("+49 30 123456"),
            "phones are read as the campaign's country writes them"
        );
        assert_ne!(there("5550102030").unwrap(), first);
        let other = by_fields(&[("phone", "5550102030"), ("email", "a@x.example")], &roof).unwrap();
        assert_ne!(first, other, "another campaign is another lead");
        let other = by_fields(&[("phone", "5550102031"), ("email", "a@x.example")], &solar).unwrap();
        assert_ne!(first, other);
        for missing in [&[("phone", "5550102030")][..], &[("phone", "x"), ("email", "a@x.example")], &[]] {
            assert_eq!(by_fields(missing, &solar), None, "{missing:?}");
        }
        // A key can never be made to look like fields.
        assert_ne!(hash_parts([&b"ab"[..], b"c"]), hash_parts([&b"a"[..], b"bc"]));
    }
}
