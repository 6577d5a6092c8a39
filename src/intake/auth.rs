//! Who sent this? An API key is known by its SHA-256 only.

use std::collections::HashMap;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::refusal::Refusal;
use crate::domain::id::PublisherId;
use crate::domain::routing::{KeyHash, Routing};

/// Longest API key that is looked at.
const KEY_BYTES_MAX: usize = 1024;

/// Publishers by the hashes of their keys; built once for a routing.
#[derive(Debug, Default)]
pub struct KeyIndex(HashMap<[u8; 8], Vec<(KeyHash, PublisherId)>>);

impl KeyIndex {
    /// Indexes every key in force.
    #[must_use]
    pub fn new(routing: &Routing) -> Self {
        let mut index = HashMap::<_, Vec<_>>::new();
        for publisher in routing.publishers.values() {
            for key in &publisher.keys {
                index.entry(first_bytes(key)).or_default().push((*key, publisher.id.clone()));
            }
        }
        Self(index)
    }

    /// Whose key is this? The first bytes of its hash find the candidates; the rest is compared in constant time.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<&PublisherId> {
        let hash = KeyHash(Sha256::digest(key).into());
        let candidates = self.0.get(&first_bytes(&hash))?;
        candidates.iter().find(|(known, _)| bool::from(known.0.ct_eq(&hash.0))).map(|(_, publisher)| publisher)
    }
}

fn first_bytes(hash: &KeyHash) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.0[..8]);
    first
}

/// The publisher behind a request: `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
///
/// # Errors
/// [`Refusal::Unauthorized`] without a key, with an unknown one, or with two that differ.
pub fn publisher<'a>(headers: &HeaderMap, keys: &'a KeyIndex) -> Result<&'a PublisherId, Refusal> {
    let mut key: Option<&[u8]> = None;
    for sent in keys_in(headers) {
        let sent = sent.ok_or(Refusal::Unauthorized)?;
        if key.is_some_and(|first| first != sent) {
            return Err(Refusal::Unauthorized);
        }
        key = Some(sent);
    }
    let key = key.filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX).ok_or(Refusal::Unauthorized)?;
    keys.find(key).ok_or(Refusal::Unauthorized)
}

/// Every key sent; `None` for an `Authorization` of another scheme.
fn keys_in(headers: &HeaderMap) -> impl Iterator<Item = Option<&[u8]>> {
    let bearer = headers.get_all(AUTHORIZATION).iter().map(|value| bearer_token(value.as_bytes()));
    let plain = headers.get_all("x-api-key").iter().map(|value| Some(value.as_bytes()));
    bearer.chain(plain)
}

/// The token of an `Authorization: Bearer` header.
pub(crate) fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::tests::support::routing;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_key_names_its_publisher_and_nothing_else_does() {
        let keys = KeyIndex::new(&routing());
        let who = |pairs: &[(&'static str, &'static str)]| {
            publisher(&headers(pairs), &keys).ok().map(|id| id.as_str().to_owned())
        };
        for good in [
            &[("authorization", "Bearer acme-key")][..],
            &[("authorization", "bearer  acme-key")],
            &[("x-api-key", "acme-key")],
            &[("x-api-key", "acme-second-key")],
            &[("authorization", "Bearer acme-key"), ("x-api-key", "acme-key")],
        ] {
            assert_eq!(who(good).as_deref(), Some("acme"), "{good:?}");
        }
        assert_eq!(who(&[("x-api-key", "other-key")]).as_deref(), Some("other"));
        for bad in [
            &[][..],
            &[("x-api-key", "")],
            &[("x-api-key", "acme-kez")],
            &[("authorization", "Basic acme-key")],
            &[("authorization", "acme-key")],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer acme-key"), ("x-api-key", "other-key")],
            &[("x-api-key", "acme-key"), ("x-api-key", "other-key")],
            &[("authorization", "Basic eA=="), ("x-api-key", "acme-key")],
        ] {
            assert_eq!(who(bad), None, "{bad:?}");
        }
    }
}
