//! The caps table: every cap's present window with limit, counter, open leases and units in doubt.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::AdminError;
use crate::app::Gateway;
use crate::domain::cap::Limit;
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::domain::money::Micros;
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
            return Err(AdminError::NotFound);
        }
    }
    let open = open_units(gateway).await?;
    let now = gateway.store.now();
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
            let show = |units: u64| match cap.limit {
                Limit::Leads(_) => units.to_string(),
                Limit::Spend(_) => Micros(i64::try_from(units).unwrap_or(i64::MAX)).to_string(),
            };
            rows.push(json!({
                "buyer": buyer.id.as_str(),
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
