//! `[[buyer.cap]]`: absent is unlimited, 0 is closed, and anything that is not plainly a limit is refused (F14).

use std::collections::HashSet;
use std::sync::Arc;

use super::item::{Item, Reader};
use super::matching;
use super::routing::{Known, canonical_country, canonical_state};
use crate::domain::cap::{Cap, Limit};
use crate::domain::field;
use crate::domain::id::{CapId, PublisherId};
use crate::domain::money::Micros;
use crate::domain::window::WindowKind;

/// Most leads in a limit. Counters of this size are exact in every store.
const LEADS_MAX: u64 = 1_000_000_000_000_000;
/// Most money in a limit: a thousand billion units. A counter at the limit and one more price still fit 64 bits.
const SPEND_MAX: Micros = Micros(1_000_000_000_000_000_000);
/// Longest id of a cap, in bytes: stores and books use it in keys.
const CAP_ID_BYTES_MAX: usize = 190;

/// All caps of one buyer; two of one id would share a counter.
pub(super) fn read_all(buyer: &Reader<'_>, known: &Known) -> Vec<Cap> {
    let mut seen = HashSet::new();
    let mut caps = Vec::new();
    for reader in buyer.tables("cap") {
        let cap = read(&reader, known);
        if let Some(cap) = &cap
            && !seen.insert(cap.id.clone())
        {
            reader.fail(
                "id",
                format!("there is another cap {:?} of this buyer", cap.id.as_str()),
                "another id, window or condition",
            );
        }
        reader.finish();
        caps.extend(cap);
    }
    caps
}

fn read(reader: &Reader<'_>, known: &Known) -> Option<Cap> {
    let windows: Vec<(&str, WindowKind)> = WindowKind::ALL.iter().map(|kind| (kind.as_str(), *kind)).collect();
    let words = "minute | hour | day | week | month | total";
    let window = reader.required("window", words).and_then(|item| item.choice(&windows));
    let limit = limit(reader);
    let publisher = reader.item("publisher").and_then(|item| matching::publisher(item.text()?, &item, known));
    let conditions = reader.table("where").map(|table| conditions(&table)).unwrap_or_default();
    let chosen = reader.item("id").map(|item| item.word());
    let (window, limit) = (window?, limit?);
    let chosen = chosen.map_or(Some(None), |id| id.map(Some))?;

    let id = chosen.map_or_else(|| default_id(window, limit, publisher.as_ref(), &conditions), str::to_owned);
    if id.len() > CAP_ID_BYTES_MAX || id.chars().any(char::is_control) {
        let right = format!("an id of at most {CAP_ID_BYTES_MAX} bytes without control characters");
        reader.fail("id", format!("the id of this cap has {} bytes", id.len()), right);
    }
    Some(Cap { id: CapId::new(&id), window, limit, publisher, conditions })
}

/// The window, `:spend` for money, then the conditions.
fn default_id(
    window: WindowKind,
    limit: Limit,
    publisher: Option<&PublisherId>,
    conditions: &[(Arc<str>, Vec<String>)],
) -> String {
    let mut id = window.as_str().to_owned();
    if matches!(limit, Limit::Spend(_)) {
        id.push_str(":spend");
    }
    if let Some(publisher) = publisher {
        id = format!("{id}:publisher={publisher}");
    }
    for (field, values) in conditions {
        id = format!("{id}:{field}={}", values.join(","));
    }
    id
}

fn limit(reader: &Reader<'_>) -> Option<Limit> {
    const RIGHT: &str = "leads = 500, or spend = \"10000.00\"";
    match (reader.item("leads"), reader.item("spend")) {
        (Some(leads), None) => leads_limit(&leads),
        (None, Some(spend)) => spend.money(SPEND_MAX).map(Limit::Spend),
        (Some(_), Some(_)) => {
            reader.fail("", "has both leads and spend", RIGHT);
            None
        }
        (None, None) => {
            reader.fail("", "has neither leads nor spend", RIGHT);
            None
        }
    }
}

fn leads_limit(item: &Item<'_>) -> Option<Limit> {
    let right = format!("a whole number from 0 (closed) to {LEADS_MAX}; for no limit leave the cap out");
    let leads = item.integer(&right)?;
    match u64::try_from(leads) {
        Ok(leads) if leads <= LEADS_MAX => Some(Limit::Leads(leads)),
        Ok(_) => {
            item.fail("is too much", right);
            None
        }
        Err(_) => {
            item.fail(if leads < 0 { "is negative" } else { "is too much" }, right);
            None
        }
    }
}

/// Sorted, so that the default id, and with it the counter, outlives a change of order in the file.
fn conditions(reader: &Reader<'_>) -> Vec<(Arc<str>, Vec<String>)> {
    let mut conditions: Vec<(Arc<str>, Vec<String>)> = Vec::new();
    for (name, item) in reader.all() {
        let field = field::canonical(name.trim());
        let mut values = item.values();
        match &*field {
            "state" => values = values.iter().map(|value| canonical_state(value)).collect(),
            "country" => values = values.iter().map(|value| canonical_country(value)).collect(),
            _ => {}
        }
        values.sort();
        values.dedup();
        if conditions.iter().any(|(known, _)| *known == field) {
            item.fail(format!("is another name of {field}, which has a condition"), "one condition per field");
        }
        conditions.push((field, values));
    }
    if conditions.is_empty() {
        reader.fail("", "holds no condition", "{ state = [\"TX\"] }, or leave it out");
    }
    conditions.sort();
    conditions
}
