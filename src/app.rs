//! The assembled gateway: what every step of the walk is handed, and how it starts and stops.

pub mod monitor;
pub mod reload;
mod start;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::clock::SharedClock;
use crate::config::{Config, RoutingFile};
use crate::domain::event::Attempt;
use crate::domain::id::{BuyerId, LeadId, PublisherId};
use crate::domain::lease::Charge;
use crate::domain::outcome::Verdict;
use crate::domain::routing::{Buyer, Routing};
use crate::filter::CompiledRouting;
use crate::forward::Forwarder;
use crate::intake::auth::Keys;
use crate::intake::reply;
use crate::lease::{FullMemory, Held, WindowsInForce};
use crate::ledger::SharedLedger;
use crate::pipeline::Progress;
use crate::settle::lives::Lives;
use crate::settle::seed::Seeder;
use crate::settle::settler::Settler;
use crate::shutdown::{Backoff, Shutdown};
use crate::status::Status;
use crate::store::{EndReply, Store, StoreError};
use crate::telemetry::Telemetry;

pub use start::{App, StartError, open_ledger};

/// A routing file in force: compiled rules and keys, swapped whole.
#[derive(Debug)]
pub struct RoutingInForce {
    /// The rules.
    pub compiled: CompiledRouting,
    /// Whose API key is which.
    pub keys: Arc<Keys>,
}

impl RoutingInForce {
    /// Compiles a checked routing.
    #[must_use]
    pub fn new(routing: Routing) -> Self {
        let keys = Arc::new(Keys::new(&routing));
        Self { compiled: CompiledRouting::new(routing), keys }
    }

    /// Buyers that the file pauses.
    #[must_use]
    pub fn paused(&self) -> HashSet<BuyerId> {
        let buyers = self.compiled.routing().buyers.values();
        buyers.filter(|buyer| buyer.is_paused).map(|buyer| buyer.id.clone()).collect()
    }

    /// Goes with every take.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.compiled.routing().version
    }
}

/// Everything that a step may use. One per process; tests start several.
#[derive(Debug)]
pub struct Gateway {
    /// As checked.
    pub config: Config,
    /// The only source of time.
    pub clock: SharedClock,
    /// Hot state.
    pub store: Arc<dyn Store>,
    /// The books.
    pub ledger: SharedLedger,
    /// The way to the buyers.
    pub forwarder: Forwarder,
    /// All metrics.
    pub telemetry: Arc<Telemetry>,
    /// Buyers paused by the admin API or the routing file.
    pub paused: ArcSwap<HashSet<BuyerId>>,
    /// Walks and late listeners: what a drain waits for.
    pub tasks: TaskTracker,
    /// How far the end of the process is.
    pub shutdown: Shutdown,
    /// What the last looks at store and ledger found.
    pub status: Status,
    /// Moves journals into the books.
    pub settler: Settler,
    pub(crate) lives: Lives,
    pub(crate) seeder: Seeder,
    /// Which caps were full a moment ago.
    pub(crate) full: FullMemory,
    /// Which windows are not the calendar's.
    pub(crate) windows: WindowsInForce,
    /// When the routing file was last read because the store knew a newer one, and which.
    pub(crate) caught_up: tokio::sync::Mutex<Option<(Instant, u64)>>,
    /// One doubt is resolved at a time: who pays the publisher depends on what is booked already.
    pub(crate) resolving: tokio::sync::Mutex<()>,
    pub(crate) routing: ArcSwap<RoutingInForce>,
    pub(crate) routing_file: Mutex<RoutingFile>,
    pub(crate) warm_up_wanted: Notify,
    pub(crate) reconcile_wanted: Notify,
    /// Walks of this gateway, for twins that wait and for nobody else; bounded by `in_flight`.
    pub(crate) running: Mutex<HashMap<LeadId, watch::Receiver<Progress>>>,
    pub(crate) in_flight: Arc<Semaphore>,
}

impl Gateway {
    /// The routing in force now; a lead keeps the one it started with.
    #[must_use]
    pub fn routing(&self) -> Arc<RoutingInForce> {
        self.routing.load_full()
    }

    /// How long a call to the store may take with its one repeat; nothing may be started later than this after it was
    /// asked for.
    #[must_use]
    pub fn call_patience(&self) -> Duration {
        self.config.store.command_timeout * 2
    }

    /// How long a lead may stay open before recovery takes it over: the whole waterfall, the last forward, its late answer,
    /// and a margin for settling.
    #[must_use]
    pub fn lead_open_for(&self) -> Duration {
        let forward = &self.config.forward;
        let slowest = self.routing.load().compiled.routing().buyers.values().map(|buyer| buyer.timeout).max();
        forward.lead_deadline
            + slowest.unwrap_or(forward.timeout).max(forward.timeout)
            + forward.late_answer
            + Duration::from_secs(5)
    }

    /// The longest that any publisher may wait for an answer.
    #[must_use]
    pub fn answer_max(&self) -> Duration {
        let routing = self.routing.load();
        let asked = routing.compiled.routing().publishers.values().filter_map(|publisher| publisher.wait_max).max();
        asked.unwrap_or_default().max(self.config.intake.answer_within)
    }

    /// What a publisher is told about a verdict, if it has a postback by the routing in force.
    #[must_use]
    pub fn postback(&self, publisher: &PublisherId, lead: LeadId, verdict: &Verdict) -> Option<String> {
        let routing = self.routing();
        let publisher = routing.compiled.routing().publishers.get(publisher)?;
        reply::postback_body(publisher, lead, verdict)
    }

    /// A pause between repeats that ends early when the process has to end.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        self.shutdown.backoff()
    }

    /// Waits a moment for partitions to open whose data proved nothing (P8). Bounded, so that a lead that waits for it still
    /// gets its answer in time.
    pub async fn open_partitions(&self) {
        self.lives.open().await;
    }

    /// The same for a lead that is admitted and can wait longer for its buyers.
    pub async fn open_partitions_for_take(&self) {
        self.lives.open_for_take().await;
    }

    /// Sets a buyer's missing counters from the books.
    pub async fn seed(&self, buyer: &Arc<Buyer>) {
        self.seeder.seed(self, buyer).await;
    }

    /// Units of these charges have come back, or may have: whoever was full may have room (F16).
    pub fn units_given_back(&self, buyer: &BuyerId, charges: &[Charge]) {
        self.full.given_back(buyer, charges, Instant::now());
    }

    /// One place where store trouble becomes a log line (at most one in five seconds per kind, F92) and a gauge.
    pub fn note_store_error(&self, error: &StoreError) {
        self.status.store_failed(&self.telemetry, error);
    }

    /// An instant of this gateway's clock, by the store's: an attempt is booked at the time that its windows go by, or a cap that
    /// is new in mid-window would count the wrong attempts of a gateway whose clock is off (F31).
    #[must_use]
    pub fn store_time(&self, at: jiff::Timestamp) -> jiff::Timestamp {
        self.store.time_at(at)
    }

    /// The store refused a window: its clock differs from our estimate.
    pub fn note_store_clock(&self, store_now: jiff::Timestamp) {
        tracing::debug!(%store_now, ours = %self.store.now(), "store clock is in another window");
    }

    /// Puts an attempt into the journal whose lease the store no longer knows: it belongs in the books all the same (P5).
    /// False when the process has to end first.
    pub async fn record(&self, event: &Attempt) -> bool {
        let mut pause = self.backoff();
        while let Err(error) = self.store.record(event).await {
            self.note_store_error(&error);
            if matches!(error, StoreError::Bug(_)) || !pause.wait().await {
                return false;
            }
        }
        true
    }

    /// Counts a yes that came late, and every unit that it put above a limit.
    pub fn late_accepted(&self, held: &Held, reply: &EndReply) {
        self.telemetry.buyer(&held.key.buyer).late_accepted.increment(1);
        if let EndReply::Late { counters, .. } = reply {
            let charged = held.charges.iter().zip(held.limits.iter().copied());
            self.note_overshoot(&held.key.buyer, charged.zip(counters.iter().copied()));
        }
    }

    /// Counts every unit of these charges that stands above the limit beside it, by its counter right after the charge: each
    /// unit is counted once, however many late yeses come at once.
    pub fn note_overshoot<'a>(&self, buyer: &BuyerId, charged: impl Iterator<Item = ((&'a Charge, u64), u64)>) {
        for ((charge, limit), used) in charged.filter(|((_, limit), used)| used > limit) {
            self.telemetry.buyer(buyer).cap_overshoot.increment((used - limit).min(charge.amount));
            tracing::error!(%buyer, cap = %charge.cap, used, limit, "a late yes was counted above the limit");
        }
    }
}
