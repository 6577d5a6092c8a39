//! Who sent this? An API key is known by its SHA-256 only.

use std::collections::HashMap;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::refusal::Refusal;
use crate::domain::id::{BuyerId, PublisherId};
use crate::domain::routing::{KeyHash, Routing};

/// Longest API key that is looked at.
const KEY_BYTES_MAX: usize = 1024;

/// Whose key is it? Owners by the hashes of their keys.
#[derive(Debug)]
struct KeyIndex<Id>(HashMap<[u8; 8], Vec<(KeyHash, Id)>>);

impl<Id: Clone> KeyIndex<Id> {
    fn new<'a>(owners: impl Iterator<Item = (&'a Id, &'a [KeyHash])>) -> Self
    where
        Id: 'a,
    {
        let mut index = HashMap::<_, Vec<_>>::new();
        for (owner, keys) in owners {
            for key in keys {
                index.entry(first_bytes(key)).or_default().push((*key, owner.clone()));
            }
        }
        Self(index)
    }

    /// The first bytes of a key's hash find the candidates; the rest is compared in constant time.
    fn find(&self, key: &[u8]) -> Option<&Id> {
        let hash = KeyHash(Sha256::digest(key).into());
        let candidates = self.0.get(&first_bytes(&hash))?;
        candidates.iter().find(|(known, _)| bool::from(known.0.ct_eq(&hash.0))).map(|(_, owner)| owner)
    }

    /// Who sent a request: `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
    fn caller(&self, headers: &HeaderMap) -> Result<&Id, Refusal> {
        let mut key: Option<&[u8]> = None;
        for sent in keys_in(headers) {
            let sent = sent.ok_or(Refusal::Unauthorized)?;
            if key.is_some_and(|first| first != sent) {
                return Err(Refusal::Unauthorized);
            }
            key = Some(sent);
        }
        let key = key.filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX).ok_or(Refusal::Unauthorized)?;
        self.find(key).ok_or(Refusal::Unauthorized)
    }
}

/// Every key in force, built once for a routing. A publisher's key opens no call of buyers, and a buyer's none of publishers.
#[derive(Debug)]
pub struct Keys {
    publishers: KeyIndex<PublisherId>,
    buyers: KeyIndex<BuyerId>,
}

impl Keys {
    /// Indexes every key in force.
    #[must_use]
    pub fn new(routing: &Routing) -> Self {
        Self {
            publishers: KeyIndex::new(routing.publishers.values().map(|one| (&one.id, &*one.keys))),
            buyers: KeyIndex::new(routing.buyers.values().map(|one| (&one.id, &*one.keys))),
        }
    }

    /// The publisher behind a request.
    ///
    /// # Errors
    /// [`Refusal::Unauthorized`] without a key, with an unknown one, or with two that differ.
    pub fn publisher(&self, headers: &HeaderMap) -> Result<&PublisherId, Refusal> {
        self.publishers.caller(headers)
    }

    /// The buyer behind a request.
    ///
    /// # Errors
    /// As [`Keys::publisher`].
    pub fn buyer(&self, headers: &HeaderMap) -> Result<&BuyerId, Refusal> {
        self.buyers.caller(headers)
    }
}

fn first_bytes(hash: &KeyHash) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.0[..8]);
    first
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
        let keys = Keys::new(&routing());
        let who = |pairs: &[(&'static str, &'static str)]| {
            keys.publisher(&headers(pairs)).ok().map(|id| id.as_str().to_owned())
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
        let buyer = |key| keys.buyer(&headers(&[("x-api-key", key)])).ok().map(|id| id.as_str().to_owned());
        for good in ["sunco-key", "sunco-second-key"] {
            assert_eq!(buyer(good).as_deref(), Some("sunco"), "keys are changed one after the other");
            assert_eq!(who(&[("x-api-key", good)]), None, "a buyer sends no leads");
        }
        assert_eq!((buyer("volt-key").as_deref(), buyer("acme-key")), (Some("volt"), None));
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
