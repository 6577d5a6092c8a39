//! `[[campaign]]` and its offers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::item::{Item, Reader, nearest, warn_of_misspelling};
use super::publisher::PRICE_MAX;
use super::routing::canonical_country;
use crate::domain::field;
use crate::domain::id::{BuyerId, CampaignId};
use crate::domain::money::Currency;
use crate::domain::routing::{Buyer, Campaign, CandidateOrder, Offer};

const PRIORITY_MAX: u32 = 1_000_000;

/// The buyers of the file; `None` for those with problems of their own.
type Buyers = HashMap<BuyerId, Option<Arc<Buyer>>>;

pub(super) fn read(id: &CampaignId, reader: &Reader<'_>, buyers: &Buyers) -> Option<Arc<Campaign>> {
    let currency = reader.required("currency", "\"USD\"").and_then(|item| {
        let currency = Currency::new(item.text()?);
        if currency.is_none() {
            item.fail("is not a currency", "three capital letters, such as \"USD\"");
        }
        currency
    });
    let country = reader.item("country").map_or(Some("US".to_owned()), |item| country(&item));
    let order = reader.item("order").map_or(Some(CandidateOrder::Priority), |item| order(&item));
    if let Some(item) = reader.item("sell_to")
        && item.integer_in::<u32>((1, 100)).is_some_and(|count| count != 1)
    {
        item.fail("not available yet", "1");
    }
    let required = fields(reader, "required");
    let idempotency_fields = fields(reader, "idempotency_fields");
    let offers = offers(reader, buyers);
    Some(Arc::new(Campaign {
        id: id.clone(),
        currency: currency?,
        country: country?,
        order: order?,
        required,
        idempotency_fields,
        offers,
    }))
}

/// The numbering plan of phones needs a country's code.
fn country(item: &Item<'_>) -> Option<String> {
    let country = canonical_country(item.text()?);
    let is_code = country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_code {
        item.fail("is not a country code", "two letters, such as \"US\"");
    }
    is_code.then_some(country)
}

fn order(item: &Item<'_>) -> Option<CandidateOrder> {
    item.choice(&[
        ("priority", CandidateOrder::Priority),
        ("weighted", CandidateOrder::Weighted),
        ("price", CandidateOrder::Price),
    ])
}

pub(super) fn fields(reader: &Reader<'_>, key: &'static str) -> Vec<Arc<str>> {
    let Some(item) = reader.item(key) else { return Vec::new() };
    let mut names: Vec<Arc<str>> = Vec::new();
    for item in item.list("a list of field names") {
        let Some(name) = item.word() else { continue };
        warn_of_misspelling(&item, name.trim());
        let name = field::canonical(name.trim());
        if names.iter().any(|known| known.eq_ignore_ascii_case(&name)) {
            item.fail(format!("names {name} a second time"), "each field once");
        }
        names.push(name);
    }
    names
}

fn offers(campaign: &Reader<'_>, buyers: &Buyers) -> Vec<Offer> {
    let readers = campaign.tables("offer");
    if readers.is_empty() {
        campaign.warn("offer", "there is none, so every lead stays unsold", "at least one [[campaign.offer]]");
    }
    let mut seen = HashSet::new();
    readers.into_iter().filter_map(|reader| offer(reader, buyers, &mut seen)).collect()
}

fn offer(reader: Reader<'_>, buyers: &Buyers, seen: &mut HashSet<BuyerId>) -> Option<Offer> {
    let buyer = reader.required("buyer", "the id of a buyer").and_then(|item| {
        let text = item.text()?;
        let Some((id, buyer)) = buyers.get_key_value(text) else {
            let near = nearest(text, buyers.keys().map(BuyerId::as_str));
            item.fail("there is no such buyer", near.unwrap_or("the id of a buyer in this file"));
            return None;
        };
        if !seen.insert(id.clone()) {
            item.fail("this buyer is offered twice in this campaign", "one offer per buyer (it gets a lead once)");
        }
        buyer.clone()
    });
    let price = reader.required("price", "\"25.00\"").and_then(|item| item.money(PRICE_MAX));
    let price_max = reader.item("price_max").map(|item| (item.money(PRICE_MAX), item));
    let price_max = match (price, price_max) {
        (Some(price), Some((Some(most), item))) => {
            if most < price {
                item.fail(format!("is below price, {price}"), "at least the price");
            }
            Some(most)
        }
        (price, None) => price,
        _ => None,
    };
    let priority = reader.integer("priority", (0, PRIORITY_MAX), 1);
    let weight = reader.integer("weight", (1, 1_000_000), 1);
    reader.finish();
    Some(Offer { buyer: buyer?, price: price?, price_max: price_max?, priority, weight })
}
