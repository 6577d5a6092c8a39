//! Looks at store and ledger once a second, and keeps house: what readiness and the gauges tell is at most that old (F91).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::Gateway;
use crate::domain::id::BuyerId;
use crate::ledger::LedgerError;
use crate::settle::settler::SettlerStatus;
use crate::status::shown;
use crate::telemetry::cap_value;

/// A look that takes longer counts as "does not answer".
const PATIENCE: Duration = Duration::from_millis(1500);
/// Pauses made by other gateways are seen within a second (contract).
const PAUSES_EVERY: Duration = Duration::from_millis(500);
const HOUSE_EVERY: Duration = Duration::from_mins(10);
/// A gateway that is often started anew removes payloads, too.
const FIRST_HOUSE: Duration = Duration::from_secs(30);
const BETWEEN_STEPS: Duration = Duration::from_millis(50);
/// Payloads removed in one step: small, so that settlement is never held up.
const PAYLOADS_MAX: usize = 500;

/// Looks until the process halts.
pub async fn run(gateway: Arc<Gateway>) {
    let mut rounds = 0_u32;
    let mut counted = SettlerStatus::default();
    loop {
        tokio::select! {
            () = gateway.shutdown.halted.cancelled() => return,
            () = tokio::time::sleep(PAUSES_EVERY) => {}
        }
        rounds = rounds.wrapping_add(1);
        count_settled(&gateway, &mut counted);
        read_pauses(&gateway).await;
        show_rests(&gateway);
        if rounds.is_multiple_of(2) {
            look_once(&gateway).await;
        }
        if rounds.is_multiple_of(10) {
            show_caps(&gateway).await;
        }
    }
}

/// Moves what settlement has done since the last look onto the counters.
fn count_settled(gateway: &Gateway, counted: &mut SettlerStatus) {
    let now = gateway.settler.status().borrow().clone();
    let ledger = &gateway.telemetry.ledger;
    for (table, rows) in &now.rows {
        ledger.rows.add(table, rows - counted.rows.get(table).copied().unwrap_or(0));
    }
    ledger.dead_letters.increment(now.dead_letters - counted.dead_letters);
    ledger.key_clashes.increment(now.key_clashes - counted.key_clashes);
    *counted = now;
}

/// One look.
pub async fn look_once(gateway: &Arc<Gateway>) {
    let (store, ledger) = tokio::join!(
        tokio::time::timeout(PATIENCE, gateway.store.health()),
        tokio::time::timeout(PATIENCE, gateway.ledger.ping()),
    );
    let store = store.unwrap_or_else(|_| Err(crate::store::StoreError::MaybeDone("health check timed out".into())));
    let is_store_up = store.is_ok();
    gateway.status.store_looked_at(&gateway.telemetry, store);
    let ledger = ledger.unwrap_or_else(|_| Err(LedgerError::NotDone("did not answer in time".into())));
    gateway.status.ledger_looked_at(&gateway.telemetry, ledger);
    if is_store_up {
        count_open(gateway).await;
    }
    let lag = gateway.settler.status().borrow().lag(gateway.clock.now());
    gateway.telemetry.ledger.lag.set(lag.as_secs_f64());
}

async fn count_open(gateway: &Arc<Gateway>) {
    if let Ok(open) = gateway.store.open_counts().await {
        gateway.telemetry.store.leases_open.set(shown(open.leases));
        gateway.telemetry.intake.leads_in_flight.set(shown(open.leads));
    }
}

async fn read_pauses(gateway: &Arc<Gateway>) {
    if let Ok(Ok(paused)) = tokio::time::timeout(PATIENCE, gateway.ledger.paused_buyers()).await {
        gateway.set_paused(paused);
    }
}

fn show_rests(gateway: &Gateway) {
    for buyer in gateway.routing().compiled.routing().buyers.keys() {
        let rests = gateway.forwarder.resting(buyer).is_some();
        gateway.telemetry.buyer(buyer).breaker_open.set(f64::from(u8::from(rests)));
    }
}

/// Counters and limits of the caps' present windows, as gauges.
async fn show_caps(gateway: &Arc<Gateway>) {
    let routing = gateway.routing();
    let now = gateway.store.now();
    for buyer in routing.compiled.routing().buyers.values() {
        let keys = gateway.windows.counters(buyer, now);
        if keys.is_empty() {
            continue;
        }
        let Ok(counters) = gateway.store.counters(&keys).await else { return };
        let metrics = gateway.telemetry.buyer(&buyer.id);
        for (cap, used) in buyer.caps.iter().zip(counters) {
            if let Some(gauges) = metrics.cap(&cap.id) {
                gauges.used.set(cap_value(cap.limit, used.unwrap_or(0)));
                gauges.limit.set(cap_value(cap.limit, cap.limit_units()));
            }
        }
    }
}

/// Removes old payloads now and then.
pub async fn keep_house(gateway: Arc<Gateway>) {
    let mut pause = FIRST_HOUSE;
    loop {
        tokio::select! {
            () = gateway.shutdown.draining.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = HOUSE_EVERY;
        if let Err(error) = remove_old_payloads(&gateway).await {
            tracing::warn!(%error, "old payloads are not removed yet");
        }
    }
}

/// Removes the payloads of leads that are older than `payload_days`, in small steps; answers how many.
///
/// # Errors
/// The ledger is away, or others were in the way; what was removed until then stays removed.
pub async fn remove_old_payloads(gateway: &Gateway) -> Result<u64, LedgerError> {
    let days = i64::from(gateway.config.ledger.payload_days);
    let before = gateway.clock.now() - SignedDuration::from_hours(24 * days);
    let mut all = 0;
    loop {
        let removed = gateway.ledger.remove_payloads(before, PAYLOADS_MAX).await?;
        all += removed;
        if removed < PAYLOADS_MAX as u64 || gateway.shutdown.is_draining() {
            return Ok(all);
        }
        // A backlog of years must not keep settlement waiting.
        tokio::time::sleep(BETWEEN_STEPS).await;
    }
}

impl Gateway {
    /// Puts the admin API's pauses on top of the routing file's.
    pub(crate) fn set_paused(&self, by_admin: Vec<BuyerId>) {
        let mut paused: HashSet<BuyerId> = self.routing.load().paused();
        paused.extend(by_admin);
        if **self.paused.load() != paused {
            for buyer in self.routing.load().compiled.routing().buyers.keys() {
                self.telemetry.buyer(buyer).paused.set(f64::from(u8::from(paused.contains(buyer))));
            }
            self.paused.store(Arc::new(paused));
        }
    }
}
