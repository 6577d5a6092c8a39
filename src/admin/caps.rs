//! The caps table: every cap's present window with limit, counter, open leases and units in doubt.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{AdminError, Missing, write_place};
use crate::app::Gateway;
use crate::domain::cap::Limit;
use crate::domain::id::{BuyerId, CapId, LeadId, Partition};
use crate::domain::money::Micros;
use crate::domain::window::Window;
use crate::ledger::AttemptPlace;
use crate::settle::recovery::wait_for_books;
use crate::store::StoreError;

/// Open leases read per partition.
const OPEN_LEASES_MAX: usize = 20_000;

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

type WindowKey = (BuyerId, CapId, i64);

/// `{"caps":[...]}`, by buyer and cap in the order of the file.
pub(super) async fn table(gateway: &Gateway, only: Option<&BuyerId>) -> Result<Value, AdminError> {
    let routing = gateway.routing();
    let mut buyers: Vec<_> = routing.compiled.routing().buyers.values().collect();
    buyers.sort_by(|a, b| a.id.cmp(&b.id));
    if let Some(only) = only {
        buyers.retain(|buyer| buyer.id == *only);
        if buyers.is_empty() {
            return Err(AdminError::NotFound(Missing::Buyer));
        }
    }
    let open = open_units(gateway).await?;
    let (now, paused) = (gateway.store.now(), gateway.paused.load_full());
    let mut rows = Vec::new();
    for buyer in buyers {
        let keys = gateway.windows.counters(buyer, now);
        if keys.is_empty() {
            continue;
        }
        let counters = gateway.store.counters(&keys).await?;
        let doubts = gateway.ledger.units_in_doubt(&keys).await?;
        for (((cap, key), used), in_doubt) in buyer.caps.iter().zip(&keys).zip(counters).zip(doubts) {
            let window = key.window;
            let used = used.unwrap_or(0);
            let lookup = (buyer.id.clone(), cap.id.clone(), window.start.as_millisecond());
            let held = open.get(&lookup).copied().unwrap_or(0);
            let limit = cap.limit_units();
            let show = |units: u64| shown(cap.limit, units);
            rows.push(json!({
                "buyer": buyer.id.as_str(),
                "paused": paused.contains(&buyer.id),
                "cap": cap.id.as_str(),
                "limit": show(limit),
                "used": show(used),
                "open": show(held),
                "in_doubt": show(in_doubt),
                "free": show(limit.saturating_sub(used)),
                "window_start": window.start.to_string(),
                "resets_at": window.end.map(|end| end.to_string()),
                "resets_at_local": window.resets_at_local(&buyer.timezone),
            }));
        }
    }
    Ok(json!({ "caps": rows }))
}

async fn open_units(gateway: &Gateway) -> Result<HashMap<WindowKey, u64>, AdminError> {
    let mut units = HashMap::new();
    for partition in (0..gateway.store.partitions()).map(Partition) {
        for lease in gateway.store.open_leases(partition, OPEN_LEASES_MAX).await? {
            for charge in lease.charges {
                let key = (lease.key.buyer.clone(), charge.cap, charge.window.start.as_millisecond());
                *units.entry(key).or_insert(0) += charge.amount;
            }
        }
    }
    Ok(units)
}

/// Attempts looked at for one page of leads.
const LEADS_PAGE: usize = 200;

/// How long the list waits for what is still in the journals.
const BOOKS_PATIENCE: Duration = Duration::from_secs(3);

/// An attempt is sent after its lease was taken and by another clock than the one that chose its window: looked for this far
/// around the window.
const SENT_SLACK: SignedDuration = SignedDuration::from_hours(1);

/// The leads that make up a cap's count in its present window; see [`super::AdminDesk::cap_leads`].
pub(super) async fn leads(
    gateway: &Gateway,
    buyer: &BuyerId,
    cap: &CapId,
    after: Option<&AttemptPlace>,
) -> Result<Value, AdminError> {
    let routing = gateway.routing();
    let known = routing.compiled.routing().buyers.get(buyer).ok_or(AdminError::NotFound(Missing::Buyer))?;
    let limit = known.caps.iter().find(|known| known.id == *cap).ok_or(AdminError::NotFound(Missing::Cap))?;
    let window = gateway.windows.window(known, limit, gateway.store.now());
    let row = |lead: LeadId, state: &str, units: u64, at: Timestamp| json!({ "lead_id": lead.to_string(), "state": state, "amount": shown(limit.limit, units), "at": at.to_string() });
    let mut rows = Vec::new();
    if after.is_none() {
        // Leases are read before the books: one that ends between the two is seen at least once.
        let partition = Partition::of(buyer.as_str(), gateway.store.partitions());
        for lease in gateway.store.open_leases(partition, OPEN_LEASES_MAX).await? {
            let mut charges = lease.charges.iter().filter(|_| lease.key.buyer == *buyer);
            if let Some(charge) = charges.find(|charge| charge.cap == *cap && charge.window.start == window.start) {
                rows.push(row(lease.key.lead, "open", charge.amount, lease.taken_at));
            }
        }
        wait_for_books(gateway, BOOKS_PATIENCE).await.map_err(|error| AdminError::Unavailable(error.to_string()))?;
    }
    let span = Window {
        start: window.start.checked_sub(SENT_SLACK).unwrap_or(Timestamp::UNIX_EPOCH),
        end: window.end.and_then(|end| end.checked_add(SENT_SLACK).ok()),
    };
    let page = gateway.ledger.counted_attempts(buyer, &span, after, LEADS_PAGE, false).await?;
    for attempt in &page {
        let start_ms = window.start.as_millisecond();
        if let Some(charge) = attempt.windows.iter().find(|charge| charge.cap == *cap && charge.start_ms == start_ms) {
            rows.push(row(attempt.place.lead, attempt.outcome.as_str(), charge.amount, attempt.place.sent_at));
        }
    }
    let next = page.last().filter(|_| page.len() == LEADS_PAGE).map(|last| write_place(&last.place));
    Ok(json!({
        "buyer": buyer.as_str(),
        "cap": cap.as_str(),
        "window_start": window.start.to_string(),
        "leads": rows,
        "next": next,
    }))
}

fn shown(limit: Limit, units: u64) -> String {
    match limit {
        Limit::Leads(_) => units.to_string(),
        Limit::Spend(_) => Micros(i64::try_from(units).unwrap_or(i64::MAX)).to_string(),
    }
}
