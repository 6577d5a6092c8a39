//! Seeding: a counter that the store does not have is read from the books before anything is granted on it (P8).

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::app::Gateway;
use crate::domain::cap::{Cap, Limit};
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::domain::routing::Buyer;
use crate::domain::window::Window;
use crate::intake::parse::{BodyType, parse};
use crate::lease::unfinished;
use crate::ledger::{CountedAttempt, CountedSum, LedgerError, SettleError};
use crate::store::{CounterKey, SeedReply};

/// A seed that meets a journal on the move is tried this often before the candidate counts as not ready.
const ROUNDS_MAX: usize = 5;

/// Seeds buyers, each by one task at a time: a burst that meets an unseeded counter costs one read of the books.
#[derive(Debug, Default)]
pub struct Seeder {
    turns: Mutex<HashMap<BuyerId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Seeder {
    /// Sets the missing counters of a buyer's present windows. Failure leaves them closed, which the next take notices.
    pub async fn seed(&self, gateway: &Gateway, buyer: &Arc<Buyer>) {
        // Bounded by the buyers of the routing.
        let turn = self.turns.lock().entry(buyer.id.clone()).or_default().clone();
        let _turn = turn.lock().await;
        if let Err(error) = seed_buyer(gateway, buyer).await {
            tracing::warn!(buyer = %buyer.id, %error, "counters stay closed: they could not be read from the books");
        }
    }
}

/// Seeds every buyer of the routing in force, one after the other, so that no lead has to wait for it.
pub async fn warm_up(gateway: Arc<Gateway>) {
    let routing = gateway.routing();
    for buyer in routing.compiled.routing().buyers.values().filter(|buyer| !buyer.caps.is_empty()) {
        if gateway.shutdown.is_draining() {
            return;
        }
        gateway.seed(buyer).await;
    }
}

async fn seed_buyer(gateway: &Gateway, buyer: &Buyer) -> Result<(), SettleError> {
    let partition = Partition::of(buyer.id.as_str(), gateway.store.partitions());
    for _ in 0..ROUNDS_MAX {
        let missing = missing_counters(gateway, buyer).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let keys: Vec<CounterKey> = missing.iter().map(|(_, key)| key.clone()).collect();
        let (mut mark, mut usage) = gateway.ledger.usage_snapshot(partition, &keys).await?;
        if usage.iter().any(Option::is_none) {
            begin_usage(gateway, buyer, &missing, &usage).await?;
            (mark, usage) = gateway.ledger.usage_snapshot(partition, &keys).await?;
        }
        // A row that is gone again leaves nothing to seed from.
        let Some(usage) = usage.into_iter().collect::<Option<Vec<u64>>>() else { continue };
        let counters: Vec<_> = keys.into_iter().zip(usage).map(|(key, used)| (key.cap, key.window, used)).collect();
        match gateway.store.seed(&buyer.id, &mark, &counters).await? {
            SeedReply::Seeded => return Ok(()),
            SeedReply::Stale => {
                gateway.settler.settle_once().await?;
            }
            SeedReply::NewLife => gateway.open_partitions().await,
        }
    }
    Ok(())
}

/// A cap without a row is new, or has never counted anything: what the books hold of its window counts. It is written into
/// `cap_usage` before the counter exists, so that the row holds everything from then on (P2): a counter that is lost later
/// comes back with its past, and reconciliation finds it there.
async fn begin_usage(
    gateway: &Gateway,
    buyer: &Buyer,
    missing: &[(&Cap, CounterKey)],
    usage: &[Option<u64>],
) -> Result<(), SettleError> {
    // The journal is settled first, because its entries do not name a cap that is newer than they are.
    gateway.settler.settle_once().await?;
    let mut rows = Vec::new();
    for ((cap, key), used) in missing.iter().zip(usage) {
        if used.is_none() {
            rows.push((key.clone(), past_of(gateway, buyer, cap, key.window).await?));
        }
    }
    Ok(gateway.ledger.begin_usage(&rows).await?)
}

async fn missing_counters<'a>(gateway: &Gateway, buyer: &'a Buyer) -> Result<Vec<(&'a Cap, CounterKey)>, SettleError> {
    let now = gateway.store.now();
    learn_windows(gateway, buyer, now).await?;
    let keys = gateway.windows.counters(buyer, now);
    let counters = gateway.store.counters(&keys).await?;
    let missing = buyer.caps.iter().zip(keys).zip(counters).filter(|(_, counter)| counter.is_none());
    Ok(missing.map(|(pair, _)| pair).collect())
}

/// A counter must not be made for a window that overlaps the one that counts (F33): a gateway that has just started, or read a
/// changed zone, does not know that one yet. A store that has lost its memory does not, either: then the books have the start of
/// the newest window that something counts in.
async fn learn_windows(gateway: &Gateway, buyer: &Buyer, now: Timestamp) -> Result<(), SettleError> {
    let caps: Vec<CapId> = buyer.caps.iter().map(|cap| cap.id.clone()).collect();
    let newest = gateway.store.newest_windows(&buyer.id, &caps).await?;
    for (cap, newest) in buyer.caps.iter().zip(newest) {
        let newest = match newest {
            Some(newest) => Some(newest),
            // What this gateway has learnt before is more than the books know.
            None if gateway.windows.window(buyer, cap, now) != by_calendar(buyer, cap, now) => None,
            None => unfinished_in_books(gateway, buyer, cap, now).await?,
        };
        let Some(newest) = newest else { continue };
        let by_calendar = by_calendar(buyer, cap, now);
        if newest != by_calendar && newest.overlaps(&by_calendar) {
            gateway.windows.learn(&buyer.id, &cap.id, newest);
        }
    }
    Ok(())
}

fn by_calendar(buyer: &Buyer, cap: &Cap, now: Timestamp) -> Window {
    Window::containing(cap.window, &buyer.timezone, now)
}

async fn unfinished_in_books(
    gateway: &Gateway,
    buyer: &Buyer,
    cap: &Cap,
    now: Timestamp,
) -> Result<Option<Window>, LedgerError> {
    let Some(start) = cap.window.longest().and_then(|longest| now.checked_sub(longest).ok()) else { return Ok(None) };
    let newest = gateway.ledger.newest_usage(&buyer.id, &cap.id, &Window { start, end: Some(now) }).await?;
    Ok(newest.and_then(|newest| unfinished(cap.window, &buyer.timezone, newest, now)))
}

/// Attempts read in one step where a cap's conditions need their leads' fields.
const PAGE: usize = 200;

/// What a new cap starts from in the middle of its window.
async fn past_of(gateway: &Gateway, buyer: &Buyer, cap: &Cap, window: Window) -> Result<u64, SettleError> {
    let ledger = &gateway.ledger;
    if cap.conditions.is_empty() {
        let sum = ledger.counted_sum(&buyer.id, &window, cap.publisher.as_ref()).await?;
        return Ok(units(cap, sum));
    }
    let (mut sum, mut after) = (CountedSum::default(), None);
    loop {
        let page = ledger.counted_attempts(&buyer.id, &window, after.as_ref(), PAGE, true).await?;
        for attempt in page.iter().filter(|attempt| counts(cap, attempt)) {
            sum.leads += 1;
            sum.price = sum.price.saturating_add(u64::try_from(attempt.price.0).unwrap_or(0));
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.place),
            Some(_) | None => return Ok(units(cap, sum)),
        }
    }
}

fn units(cap: &Cap, sum: CountedSum) -> u64 {
    match cap.limit {
        Limit::Leads(_) => sum.leads,
        Limit::Spend(_) => sum.price,
    }
}

fn counts(cap: &Cap, attempt: &CountedAttempt) -> bool {
    // A payload that was removed, or that cannot be read, counts: a cap errs towards closed.
    let read = |payload: &str| parse(BodyType::Json, payload.as_bytes(), &[]).ok();
    let Some(parsed) = attempt.payload.as_deref().and_then(read) else { return true };
    cap.counts(&attempt.publisher, &parsed.fields)
}
