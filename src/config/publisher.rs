//! `[[publisher]]`

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::ForwardConfig;
use super::address;
use super::answer::pointer;
use super::item::{Item, Reader};
use super::matching::percent_millionths;
use super::routing::Known;
use crate::domain::address::AddressRange;
use crate::domain::field;
use crate::domain::id::{CampaignId, PublisherId};
use crate::domain::money::{Micros, Payout};
use crate::domain::routing::{KeyHash, Postback, Publisher, Throttle};
use crate::domain::signature::SigningKey;

/// Largest price and payout: a billion units. Sums of them stay far inside the books' 64 bits.
pub(super) const PRICE_MAX: Micros = Micros(1_000_000_000_000_000);
/// Longest wait that a publisher may be allowed to ask for.
const WAIT_MS_MAX: u64 = 120_000;

pub(super) fn read(
    id: &PublisherId,
    reader: &Reader<'_>,
    forward: &ForwardConfig,
    known: &Known,
) -> Option<Arc<Publisher>> {
    let keys = keys(reader);
    if keys.is_empty() {
        reader.warn("keys_sha256", "names no key, so this publisher cannot send", "the hash that `capgate key` prints");
    }
    let addresses = reader.item("addresses_allowed").map(|item| addresses(&item));
    let throttle = reader.table("throttle").and_then(throttle);
    let payout = reader.required("payout", PAYOUT).and_then(|item| item.table()).and_then(payout);
    let campaigns = reader.item("campaigns").map(|item| campaigns(&item, known));
    let wait_max = reader.item("wait_max_ms").and_then(|item| item.integer_in((1, WAIT_MS_MAX)));
    let signing = reader.item("signing_secret").map(signing_key);
    let mapping = reader.table("mapping").map(|table| mapping(&table)).unwrap_or_default();
    let postback = reader.table("postback").map(|table| postback(table, forward));
    Some(Arc::new(Publisher {
        id: id.clone(),
        keys,
        addresses,
        throttle,
        payout: payout?,
        campaigns,
        wait_max: wait_max.map(Duration::from_millis),
        // A secret that is wrong must never mean that none is needed.
        signing: signing.map_or(Some(None), |key| key.map(Some))?,
        mapping,
        postback: postback.map_or(Some(None), |postback| postback.map(Some))?,
    }))
}

fn postback(reader: Reader<'_>, forward: &ForwardConfig) -> Option<Postback> {
    let url = reader
        .required("url", address::RIGHT)
        .and_then(|item| address::url(item, forward, "postback", "a URL without them: each post is signed"));
    let signing = reader.required("signing_secret", "a secret of at least 16 bytes").and_then(signing_key);
    reader.finish();
    Some(Postback { url: url?, signing: signing? })
}

pub(super) fn signing_key(item: Item<'_>) -> Option<SigningKey> {
    let item = item.secret();
    let secret = item.secret_text()?;
    match SigningKey::new(secret.expose()) {
        Ok(key) => Some(key),
        Err(error) => {
            item.fail(error, "a secret of at least 16 bytes, as text or as whsec_ and base64");
            None
        }
    }
}

fn mapping(reader: &Reader<'_>) -> Vec<(Arc<str>, String)> {
    let mut seen = HashSet::new();
    let pair = |(name, item): (&str, Item<'_>)| {
        let name = field::canonical(name);
        if name.trim().is_empty() {
            item.fail("names no field", "the name of a field of the lead");
            return None;
        }
        if !seen.insert(name.to_ascii_lowercase()) {
            item.fail("maps a field twice", "each field once, under one of its names");
            return None;
        }
        Some((name, pointer(&item)?))
    };
    reader.all().into_iter().filter_map(pair).collect()
}

const PAYOUT: &str = "{ percent = \"70\" } or { flat = \"8.00\" }";

/// The hashes of API keys, for publishers and buyers alike.
pub(super) fn keys(reader: &Reader<'_>) -> Vec<KeyHash> {
    reader
        .item("keys_sha256")
        // Somebody may have written the key itself.
        .map(|item| item.secret().list("a list of SHA-256 hashes"))
        .unwrap_or_default()
        .into_iter()
        .filter_map(|item| key_hash(&item))
        .collect()
}

fn key_hash(item: &Item<'_>) -> Option<KeyHash> {
    let text = item.text()?.as_bytes();
    let mut hash = [0_u8; 32];
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let is_good = text.len() == 64
        && text.chunks_exact(2).zip(&mut hash).all(|(pair, byte)| match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        });
    if !is_good {
        item.fail(
            "is not a SHA-256 hash",
            "64 hex digits: the hash of the key and not the key; `capgate key` makes both",
        );
    }
    is_good.then_some(KeyHash(hash))
}

/// A range that is wrong is an error of the file, so that an odd list never means that there is none.
fn addresses(item: &Item<'_>) -> Vec<AddressRange> {
    let range = |(text, item): (&str, Item<'_>)| match text.trim().parse() {
        Ok(range) => Some(range),
        Err(error) => {
            item.fail(error, "an address or a range, such as \"203.0.113.7\", \"203.0.113.0/24\", \"2001:db8::/32\"");
            None
        }
    };
    item.texts().into_iter().filter_map(range).collect()
}

fn throttle(reader: Reader<'_>) -> Option<Throttle> {
    let rate = |item: Item<'_>| item.integer_in::<u32>((1, 1_000_000));
    let per_second = reader.required("per_second", "requests per second").and_then(rate);
    let burst = reader.item("burst").map(rate);
    reader.finish();
    let per_second = per_second?;
    Some(Throttle { per_second, burst: burst.unwrap_or(Some(per_second))? })
}

fn payout(reader: Reader<'_>) -> Option<Payout> {
    let percent = reader.item("percent");
    let flat = reader.item("flat");
    let payout = match (&percent, &flat) {
        (Some(item), None) => percent_millionths(item).map(|millionths| Payout::Share { millionths }),
        (None, Some(item)) => item.money(PRICE_MAX).map(Payout::Flat),
        (Some(_), Some(_)) => {
            reader.fail("", "has both percent and flat", PAYOUT);
            None
        }
        (None, None) => {
            reader.fail("", "has neither percent nor flat", PAYOUT);
            None
        }
    };
    reader.finish();
    payout
}

fn campaigns(item: &Item<'_>, known: &Known) -> Vec<CampaignId> {
    let campaign = |(text, item): (&str, Item<'_>)| match CampaignId::new(text) {
        Ok(id) if known.campaigns.contains(&id) => Some(id),
        _ => {
            let near = super::item::nearest(text, known.campaigns.iter().map(CampaignId::as_str));
            item.fail("there is no such campaign", near.unwrap_or("the id of a campaign in this file"));
            None
        }
    };
    item.texts().into_iter().filter_map(campaign).collect()
}
