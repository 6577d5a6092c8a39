//! Reconciliation: counters are compared with the books, and what differs is written down and repaired (F81-F84).
//!
//! A counter should be its usage in the ledger + effects of journal entries after the mark + open leases (P2). The store
//! reads its side in one step, so the comparison is exact under full load and a run without faults changes nothing.
//!
//! - A difference counts when two looks agree on it. In between lies only the first usage row of a new cap, which is written
//!   beside the mark.
//! - It is written to the ledger first, then the store is asked to take out exactly that difference, and does so only if it
//!   still finds it. So two reconcilers at once, in one gateway or in two, are harmless and need no lease between them.
//! - A counter that is too low is raised. One that is too high is lowered wholly or, beyond the limit of one run, not at all;
//!   nor is it lowered while there are dead letters of its partition since its window began, because the books may lack their
//!   units.
//! - A counter that is missing grants nothing, so it is no difference. Those of running windows are seeded.

use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use rand::RngExt as _;

use crate::app::Gateway;
use crate::domain::cap::Limit;
use crate::domain::id::Partition;
use crate::domain::routing::Buyer;
use crate::ledger::{DifferenceAction, DifferenceRow, SettleError};
use crate::store::{Compared, Comparison, CounterKey, ReconcileReply, StoreError};

/// Counters compared in one step: bounds how long the store is busy with it.
const COUNTERS_MAX: usize = 500;

/// A comparison that meets a journal on the move is tried this often before its counters are skipped.
const ROUNDS_MAX: usize = 10;

/// One run may always lower a counter by this many units.
const LOWER_ALWAYS: i128 = 5;

/// Clocks of ledger and store may differ by this much when dead letters are looked for.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_hours(1);

/// Differences of one run that are told one by one in the log (F92).
const TOLD_MAX: usize = 20;

/// A counter that is not what the books say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which counter.
    pub key: CounterKey,
    /// How it is shown: whole leads or money.
    pub limit: Limit,
    /// The counter as it was found.
    pub used: i128,
    /// What it should be.
    pub expected: u64,
    /// What was decided.
    pub action: DifferenceAction,
    /// Is the counter in order now? False in a dry run, for what is kept, and for what had changed again.
    pub is_repaired: bool,
}

/// Counters that could not be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Where.
    pub partition: Partition,
    /// Why, for people.
    pub reason: String,
}

/// What a run found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Nothing was written.
    pub is_dry_run: bool,
    /// Counters that were there and were compared.
    pub compared: usize,
    /// Counters of running windows that were missing although something counts; a dry run leaves them so.
    pub unseeded: usize,
    /// In the order they were found.
    pub differences: Vec<Difference>,
    /// What could not be compared.
    pub skipped: Vec<Skipped>,
}

impl Report {
    /// Was every counter compared and found right?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.differences.is_empty() && self.skipped.is_empty()
    }
}

/// Why some counters were not compared.
enum Stop {
    Skip(String),
    Failed(SettleError),
}

impl<E: Into<SettleError>> From<E> for Stop {
    fn from(error: E) -> Self {
        match error.into() {
            // One counter that holds nonsense must not keep the others from being compared.
            SettleError::Store(StoreError::Bug(text)) => Self::Skip(text),
            error => Self::Failed(error),
        }
    }
}

/// A counter of the routing in force.
#[derive(Debug, Clone)]
struct Place {
    buyer: Arc<Buyer>,
    key: CounterKey,
    limit: Limit,
    /// Its window runs now.
    is_running: bool,
}

/// Compares now and then until the process drains: as often as configured, and when asked for.
pub async fn run(gateway: Arc<Gateway>) {
    loop {
        // Jitter keeps gateways that were started together from comparing together.
        let pause = gateway.config.reconcile.every.mul_f64(rand::rng().random_range(0.9..1.1));
        tokio::select! {
            () = gateway.shutdown.draining.cancelled() => return,
            () = gateway.reconcile_wanted.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        if let Err(error) = reconcile(&gateway, false).await {
            tracing::warn!(%error, "counters and books could not be compared");
        }
    }
}

/// One run over all caps of the routing in force: their present windows, and those before them, whose last leads may have
/// ended since.
///
/// # Errors
/// Store or ledger are away. What was repaired until then is repaired.
pub async fn reconcile(gateway: &Gateway, is_dry_run: bool) -> Result<Report, SettleError> {
    let mut report = Report { is_dry_run, ..Report::default() };
    let places = places(gateway);
    for partition in (0..gateway.store.partitions()).map(Partition) {
        let here: Vec<Place> =
            places.iter().filter(|place| partition_of(gateway, place) == partition).cloned().collect();
        for chunk in here.chunks(COUNTERS_MAX) {
            match reconcile_some(gateway, partition, chunk, &mut report).await {
                Ok(()) => {}
                Err(Stop::Skip(reason)) => report.skipped.push(Skipped { partition, reason }),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }
    tell(&report);
    Ok(report)
}

fn partition_of(gateway: &Gateway, place: &Place) -> Partition {
    Partition::of(place.buyer.id.as_str(), gateway.store.partitions())
}

fn places(gateway: &Gateway) -> Vec<Place> {
    let routing = gateway.routing();
    let now = gateway.store.now();
    let mut places = Vec::new();
    let mut buyers: Vec<_> = routing.compiled.routing().buyers.values().collect();
    buyers.sort_by(|a, b| a.id.cmp(&b.id));
    for buyer in buyers {
        for cap in &buyer.caps {
            let at = |instant| gateway.windows.window(buyer, cap, instant);
            let present = at(now);
            let before = present.end.and(present.start.checked_sub(SignedDuration::from_millis(1)).ok()).map(at);
            for window in [Some(present), before].into_iter().flatten() {
                let key = CounterKey { buyer: buyer.id.clone(), cap: cap.id.clone(), window };
                let is_running = window == present;
                places.push(Place { buyer: buyer.clone(), key, limit: cap.limit, is_running });
            }
        }
    }
    places
}

async fn reconcile_some(
    gateway: &Gateway,
    partition: Partition,
    places: &[Place],
    report: &mut Report,
) -> Result<(), Stop> {
    let is_dry_run = report.is_dry_run;
    let wanted: Vec<(Place, Option<i128>)> = places.iter().map(|place| (place.clone(), None)).collect();
    let first = compare(gateway, partition, &wanted, is_dry_run).await?;
    report.compared += first.iter().filter(|found| found.used.is_some()).count();
    seed_missing(gateway, places, &first, report).await;
    let suspects: Vec<(Place, Option<i128>)> = places
        .iter()
        .zip(&first)
        .filter(|(_, found)| found.difference().is_some_and(|difference| difference != 0))
        .map(|(place, _)| (place.clone(), None))
        .collect();
    let second =
        if suspects.is_empty() { Vec::new() } else { compare(gateway, partition, &suspects, is_dry_run).await? };
    let mut differences = Vec::new();
    for ((place, _), again) in suspects.iter().zip(&second) {
        let looked = places.iter().zip(&first).find(|(known, _)| known.key == place.key);
        let Some(difference) = again.difference().filter(|difference| *difference != 0) else { continue };
        if looked.and_then(|(_, found)| found.difference()) == Some(difference) {
            let action = decide(gateway, partition, place, again).await?;
            differences.push((place.clone(), *again, action));
        }
    }
    show(gateway, places, &differences);
    let repaired = if is_dry_run || differences.is_empty() {
        Vec::new()
    } else {
        let repaired = repair(gateway, partition, &differences).await;
        // A counter that was lowered has room.
        gateway.full.forget(Instant::now());
        match repaired {
            Ok(repaired) => repaired,
            Err(Stop::Skip(reason)) => {
                report.skipped.push(Skipped { partition, reason });
                Vec::new()
            }
            Err(failed) => return Err(failed),
        }
    };
    for (place, found, action) in differences {
        report.differences.push(Difference {
            is_repaired: repaired.contains(&place.key),
            limit: place.limit,
            used: found.used.unwrap_or_default(),
            expected: found.expected,
            key: place.key,
            action,
        });
    }
    Ok(())
}

/// Compares, with usage and mark read anew whenever settlement was faster.
async fn compare(
    gateway: &Gateway,
    partition: Partition,
    wanted: &[(Place, Option<i128>)],
    is_dry_run: bool,
) -> Result<Vec<Compared>, Stop> {
    let keys: Vec<CounterKey> = wanted.iter().map(|(place, _)| place.key.clone()).collect();
    for _ in 0..ROUNDS_MAX {
        let (mark, usage) = gateway.ledger.usage_snapshot(partition, &keys).await?;
        let comparisons: Vec<Comparison> = keys
            .iter()
            .zip(usage)
            .zip(wanted)
            .map(|((key, usage), (_, repair))| Comparison {
                key: key.clone(),
                usage: usage.unwrap_or(0),
                repair: *repair,
            })
            .collect();
        match gateway.store.reconcile(&mark, &comparisons).await? {
            ReconcileReply::Compared(found) => return Ok(found),
            ReconcileReply::Stale => {}
            ReconcileReply::TailTooLong if is_dry_run => {
                return Err(Stop::Skip("too much waits for settlement, and a dry run settles nothing".to_owned()));
            }
            ReconcileReply::TailTooLong => {
                gateway.settler.settle_once().await?;
            }
            ReconcileReply::NewLife => {
                return Err(Stop::Skip("the partition's data is not of the life this gateway knows".to_owned()));
            }
        }
    }
    Err(Stop::Skip("settlement did not come to rest".to_owned()))
}

async fn seed_missing(gateway: &Gateway, places: &[Place], found: &[Compared], report: &mut Report) {
    let mut buyers: Vec<&Arc<Buyer>> = Vec::new();
    for (place, found) in places.iter().zip(found) {
        if place.is_running && found.used.is_none() && found.expected > 0 {
            report.unseeded += 1;
            if !buyers.iter().any(|buyer| buyer.id == place.buyer.id) {
                buyers.push(&place.buyer);
            }
        }
    }
    if !report.is_dry_run {
        for buyer in buyers {
            gateway.seed(buyer).await;
        }
    }
}

async fn decide(
    gateway: &Gateway,
    partition: Partition,
    place: &Place,
    found: &Compared,
) -> Result<DifferenceAction, Stop> {
    let (used, difference) = (found.used.unwrap_or_default(), found.difference().unwrap_or_default());
    if difference < 0 {
        return Ok(DifferenceAction::Raise);
    }
    if difference > lower_max(used, gateway.config.reconcile.lower_percent_max) {
        return Ok(DifferenceAction::KeepBeyondLimit);
    }
    let since = place.key.window.start.checked_sub(CLOCK_SLACK).unwrap_or(Timestamp::UNIX_EPOCH);
    let unproven = gateway.ledger.dead_letters_since(partition, since.max(Timestamp::UNIX_EPOCH)).await? > 0;
    Ok(if unproven { DifferenceAction::KeepUnproven } else { DifferenceAction::Lower })
}

/// Most that one run may lower a counter by.
fn lower_max(used: i128, percent: u8) -> i128 {
    (used * i128::from(percent) / 100).max(LOWER_ALWAYS)
}

/// Writes differences down, then takes out those that may be; answers which counters are in order now.
async fn repair(
    gateway: &Gateway,
    partition: Partition,
    differences: &[(Place, Compared, DifferenceAction)],
) -> Result<Vec<CounterKey>, Stop> {
    let rows: Vec<DifferenceRow> = differences
        .iter()
        .map(|(place, found, action)| DifferenceRow {
            key: place.key.clone(),
            used: found.used.unwrap_or_default(),
            expected: found.expected,
            action: *action,
        })
        .collect();
    gateway.ledger.record_differences(&rows).await?;
    let wanted: Vec<(Place, Option<i128>)> = differences
        .iter()
        .filter(|(.., action)| matches!(action, DifferenceAction::Raise | DifferenceAction::Lower))
        .map(|(place, found, _)| (place.clone(), found.difference()))
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let after = compare(gateway, partition, &wanted, false).await?;
    // Without a difference somebody else has repaired it, or this call has and its first reply was lost.
    let in_order = after.iter().map(|found| found.is_repaired || found.difference() == Some(0));
    Ok(wanted.into_iter().zip(in_order).filter(|(_, is)| *is).map(|((place, _), _)| place.key).collect())
}

/// Sets the gauges of running windows, also back to nothing.
fn show(gateway: &Gateway, places: &[Place], differences: &[(Place, Compared, DifferenceAction)]) {
    for place in places.iter().filter(|place| place.is_running) {
        let found = differences.iter().find(|(other, ..)| other.key == place.key);
        let difference = found.and_then(|(_, found, _)| found.difference()).unwrap_or(0);
        if let Some(gauges) = gateway.telemetry.buyer(&place.buyer.id).cap(&place.key.cap) {
            gauges.reconcile_difference.set(approximate(difference));
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "gauges are floats; what they lose above 2^53 nobody can see on a chart")]
fn approximate(units: i128) -> f64 {
    units as f64
}

fn tell(report: &Report) {
    for Difference { key, used, expected, action, is_repaired, .. } in report.differences.iter().take(TOLD_MAX) {
        tracing::error!(buyer = %key.buyer, cap = %key.cap, window_start = %key.window.start, used, expected,
            action = action.as_str(), is_repaired, is_dry_run = report.is_dry_run, "a counter is not what the books say");
    }
    if report.differences.len() > TOLD_MAX {
        let more = report.differences.len() - TOLD_MAX;
        tracing::error!(more, "more counters are not what the books say");
    }
    for Skipped { partition, reason } in &report.skipped {
        tracing::warn!(partition = partition.0, reason, "counters were not compared");
    }
}

impl Gateway {
    /// Asks for a run: counters were rebuilt under a new life.
    pub(crate) fn reconcile_soon(&self) {
        self.reconcile_wanted.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f84_one_run_lowers_by_its_part_or_by_five_units() {
        assert_eq!(lower_max(1_000, 20), 200);
        assert_eq!(lower_max(1_000, 0), 5);
        assert_eq!(lower_max(10, 20), 5);
        assert_eq!(lower_max(0, 100), 5);
        assert_eq!(lower_max(-3, 100), 5);
        assert_eq!(lower_max(i128::from(i64::MAX), 100), i128::from(i64::MAX));
    }
}
