//! What the last looks at store and ledger found: the source of readiness (F91).

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::SharedClock;
use crate::domain::id::BuyerId;
use crate::ledger::LedgerError;
use crate::settle::lives::ClosedPartition;
use crate::settle::recovery::RecoveryError;
use crate::store::{SetupWarning, StoreError, StoreHealth};
use crate::telemetry::Telemetry;
use crate::telemetry::log::Throttled;

/// Store clock and ours may differ by this much before the gateway is not ready.
pub const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(1);

/// State of one seam.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Seam {
    /// Not looked at yet.
    #[default]
    Unknown,
    /// Answers.
    Up,
    /// Does not; a short text without data.
    Down(String),
}

#[derive(Debug, Default)]
struct Seen {
    store: Seam,
    ledger: Seam,
    health: StoreHealth,
    /// `None` before the first look.
    closed: Option<Vec<ClosedPartition>>,
    /// The newest routing that any buyer was used with when this gateway was refused for its older one.
    routing_newest: Option<u64>,
    /// The last look at the routing file found nothing that can be taken.
    is_routing_refused: bool,
    /// The same of certificate and key.
    is_tls_refused: bool,
}

/// Shared by the monitor that looks and the admin listener that tells.
#[derive(Debug)]
pub struct Status {
    seen: Mutex<Seen>,
    lines: Throttled,
}

/// One line of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `store`, `setup`, `life`, `clock`, `routing`, `tls`, `ledger`, `journal`, `draining`.
    pub name: &'static str,
    /// Is it as it should be?
    pub is_ok: bool,
    /// For people.
    pub detail: String,
    /// Does it decide over readiness? A ledger that is away does not: leads are taken as long as the journal has room.
    pub decides: bool,
}

impl Status {
    /// Nothing was looked at yet.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { seen: Mutex::default(), lines: Throttled::new(clock) }
    }

    /// At most one line per subject in five seconds (F92).
    fn warn(&self, subject: &'static str, error: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.lines.check(subject) {
            tracing::warn!(suppressed, "{subject}: {error}");
        }
    }

    /// A call to the store failed.
    pub fn store_failed(&self, telemetry: &Telemetry, error: &StoreError) {
        self.warn("store", error);
        if let StoreError::NotDone(text) | StoreError::Bug(text) = error {
            telemetry.store.up.set(0.0);
            self.seen.lock().store = Seam::Down(text.clone());
        }
    }

    /// Recovery could not go on; it looks again.
    pub fn recovery_failed(&self, error: &RecoveryError) {
        self.warn("recovery waits", error);
    }

    /// A look at the store.
    pub fn store_looked_at(&self, telemetry: &Telemetry, result: Result<StoreHealth, StoreError>) {
        match result {
            Ok(health) => {
                telemetry.store.up.set(1.0);
                telemetry.store.journal_entries.set(shown(health.journal_entries));
                let offset = Duration::from_millis(health.clock_offset_ms.unsigned_abs()).as_secs_f64();
                telemetry.store.clock_offset.set(if health.clock_offset_ms < 0 { -offset } else { offset });
                telemetry.store.setup.show(|kind| health.warnings.iter().any(|warning| warning.kind == kind));
                self.setup_looked_at(&health.warnings);
                let mut seen = self.seen.lock();
                if let Seam::Down(_) = seen.store {
                    tracing::info!("store answers again");
                }
                seen.store = Seam::Up;
                seen.health = health;
            }
            Err(error) => {
                self.warn("store", &error);
                telemetry.store.up.set(0.0);
                self.seen.lock().store = Seam::Down(error.to_string());
            }
        }
    }

    /// How the store is set up can change under a running gateway. One line per change.
    fn setup_looked_at(&self, warnings: &[SetupWarning]) {
        let before = self.seen.lock().health.warnings.clone();
        for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
            if warning.kind.is_grave() {
                tracing::error!("store set-up: {}", warning.text);
            } else {
                tracing::warn!("store set-up: {}", warning.text);
            }
        }
        if warnings.is_empty() && !before.is_empty() {
            tracing::info!("the store is set up as it should be again");
        }
    }

    /// A look at the ledger.
    pub fn ledger_looked_at(&self, telemetry: &Telemetry, result: Result<(), LedgerError>) {
        telemetry.ledger.up.set(f64::from(u8::from(result.is_ok())));
        let mut seen = self.seen.lock();
        match result {
            Ok(()) => {
                if let Seam::Down(_) = seen.ledger {
                    tracing::info!("ledger answers again");
                }
                seen.ledger = Seam::Up;
            }
            Err(error) => {
                self.warn("ledger", &error);
                seen.ledger = Seam::Down(error.to_string());
            }
        }
    }

    /// Partitions could not be looked after; it is tried again.
    pub fn lives_failed(&self, error: &LedgerError) {
        self.warn("lives wait", error);
    }

    /// Which partitions grant nothing. One line per change.
    pub fn lives_looked_at(&self, closed: &[ClosedPartition]) {
        let mut seen = self.seen.lock();
        let before = seen.closed.replace(closed.to_vec()).unwrap_or_default();
        if before.is_empty() && !closed.is_empty() {
            let why = lives_detail(closed);
            tracing::warn!(partitions = closed.len(), %why, "closed until counts are rebuilt");
        }
    }

    /// The store grants nothing for this buyer by our routing, because another gateway has used a newer one (F86), and our file
    /// does not have it.
    pub fn routing_is_old(&self, buyer: &BuyerId, ours: u64, newest: u64) {
        self.warn("routing", &format_args!("{}; first seen at buyer {buyer}", old_routing(ours, newest)));
        let mut seen = self.seen.lock();
        seen.routing_newest = seen.routing_newest.max(Some(newest));
    }

    /// The routing file was read again: is what it holds in force?
    pub fn routing_read(&self, is_in_force: bool) {
        self.seen.lock().is_routing_refused = !is_in_force;
    }

    /// The same for certificate and key of the intake listener.
    pub fn tls_read(&self, is_in_force: bool) {
        self.seen.lock().is_tls_refused = !is_in_force;
    }

    /// What `/readyz` lists; `routing` is the version in force.
    #[must_use]
    pub fn findings(&self, routing: u64, journal_entries_max: u64, is_draining: bool) -> Vec<Finding> {
        let seen = self.seen.lock();
        let seam = |name, seam: &Seam, decides| {
            let (is_ok, detail) = match seam {
                Seam::Up => (true, "up".to_owned()),
                Seam::Unknown => (false, "not looked at yet".to_owned()),
                Seam::Down(text) => (false, text.clone()),
            };
            Finding { name, is_ok, detail, decides }
        };
        let offset = seen.health.clock_offset_ms;
        let journal = seen.health.journal_entries;
        let offset_max = u64::try_from(CLOCK_OFFSET_MAX.as_millis()).unwrap_or(u64::MAX);
        vec![
            seam("store", &seen.store, true),
            setup(&seen.health.warnings),
            Finding {
                name: "life",
                is_ok: seen.closed.as_ref().is_some_and(Vec::is_empty),
                detail: seen.closed.as_deref().map_or_else(|| "not looked at yet".to_owned(), lives_detail),
                decides: true,
            },
            Finding {
                name: "clock",
                is_ok: offset.unsigned_abs() <= offset_max,
                detail: format!("store clock is {offset} ms ahead"),
                decides: true,
            },
            routing_finding(routing, seen.routing_newest, seen.is_routing_refused),
            tls_finding(seen.is_tls_refused),
            seam("ledger", &seen.ledger, false),
            Finding {
                name: "journal",
                is_ok: journal < journal_entries_max,
                detail: format!("{journal} of {journal_entries_max} entries wait for settlement"),
                decides: true,
            },
            Finding {
                name: "draining",
                is_ok: !is_draining,
                detail: if is_draining { "draining" } else { "no" }.to_owned(),
                decides: true,
            },
        ]
    }
}

/// It decides where another gateway uses a newer one: a gateway that may not sell would answer its publishers `unavailable`, for
/// good. A file that was refused changes nothing about what is in force; nothing of it is quoted, for anybody may ask this.
fn routing_finding(ours: u64, newest: Option<u64>, is_refused: bool) -> Finding {
    let newer = newest.filter(|newest| *newest > ours);
    let mut detail = newer.map_or_else(|| format!("version {ours} is in force"), |newest| old_routing(ours, newest));
    if is_refused {
        detail += "; the file as it stands now was refused, the log and `capgate check` say why";
    }
    Finding { name: "routing", is_ok: newer.is_none() && !is_refused, detail, decides: newer.is_some() }
}

/// Never decides: the pair in force goes on.
fn tls_finding(is_refused: bool) -> Finding {
    let detail = if is_refused {
        "certificate and key as they stand now were refused, the pair before stays in force; the log and `capgate check` say why"
    } else {
        "as in the files, or not used"
    };
    Finding { name: "tls", is_ok: !is_refused, detail: detail.to_owned(), decides: false }
}

fn old_routing(ours: u64, newest: u64) -> String {
    format!(
        "version {ours} is in force here, another gateway uses {newest}: the store grants nothing by the older one, and the file \
         here does not have the newer one"
    )
}

/// What is wrong with how the store is set up. It decides only where it is grave.
fn setup(warnings: &[SetupWarning]) -> Finding {
    let texts: Vec<&str> = warnings.iter().map(|warning| warning.text.as_str()).collect();
    Finding {
        name: "setup",
        is_ok: warnings.is_empty(),
        detail: if warnings.is_empty() { "as it should be".to_owned() } else { texts.join("; ") },
        decides: warnings.iter().any(|warning| warning.kind.is_grave()),
    }
}

/// Which partitions are closed and why, those of one reason together.
fn lives_detail(closed: &[ClosedPartition]) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for closed in closed {
        let number = closed.partition.0.to_string();
        match reasons.iter_mut().find(|(reason, _)| *reason == closed.reason) {
            Some((_, numbers)) => numbers.push(number),
            None => reasons.push((&closed.reason, vec![number])),
        }
    }
    let texts =
        reasons.into_iter().map(|(reason, numbers)| format!("partition {} closed: {reason}", numbers.join(", ")));
    let text = texts.collect::<Vec<_>>().join("; ");
    if text.is_empty() { "open".to_owned() } else { text }
}

/// Gauges are floats; what they lose above 2^53 nobody can see on a chart.
#[allow(clippy::cast_precision_loss, reason = "only for display")]
pub(crate) fn shown(count: u64) -> f64 {
    count as f64
}
