//! Typed recorders: one struct per part of the gateway, with its handles made once.

use std::time::Duration;

use jiff::SignedDuration;
use metrics::{Counter, Gauge, Histogram};

use super::names::{self, Metric};
use super::{Registry, check_words, lossy};
use crate::domain::explanation::Check;
use crate::domain::id::CapId;
use crate::domain::outcome::{AttemptOutcome, UnsoldReason, Verdict};
use crate::intake::refusal::Refusal;
use crate::store::SetupKind;

/// Tables that settlement writes to, as labels.
pub const SETTLED_TABLES: [&str; 8] =
    ["leads", "attempts", "entries", "returns", "balances", "cap_usage", "dead_letters", "postbacks"];

/// Counters of one metric, one for each of a fixed list of keys.
#[derive(Debug)]
pub struct CounterOf<K>(Vec<(K, Counter)>);

impl<K: Copy + PartialEq> CounterOf<K> {
    fn new(
        registry: &Registry,
        metric: &Metric,
        fixed: &[(&'static str, &str)],
        label: &'static str,
        words: impl IntoIterator<Item = (K, &'static str)>,
    ) -> Self {
        let counter = |word| {
            let mut labels = fixed.to_vec();
            labels.push((label, word));
            registry.counter(metric, &labels)
        };
        Self(words.into_iter().map(|(key, word)| (key, counter(word))).collect())
    }

    /// Counts `by`. A key outside of the list is not counted: the list is the bound (F88).
    pub fn add(&self, key: K, by: u64) {
        if let Some((_, counter)) = self.0.iter().find(|(known, _)| *known == key) {
            counter.increment(by);
        }
    }

    /// Counts one.
    pub fn count(&self, key: K) {
        self.add(key, 1);
    }
}

/// Gauges of one metric that are 1 or 0, one for each of a fixed list of keys.
#[derive(Debug)]
pub struct GaugeOf<K>(Vec<(K, Gauge)>);

impl<K: Copy> GaugeOf<K> {
    fn new(
        registry: &Registry,
        metric: &Metric,
        label: &'static str,
        words: impl IntoIterator<Item = (K, &'static str)>,
    ) -> Self {
        let gauge = |word| registry.gauge(metric, &[(label, word)]);
        Self(words.into_iter().map(|(key, word)| (key, gauge(word))).collect())
    }

    /// Sets each to whether it holds for its key.
    pub fn show(&self, holds: impl Fn(K) -> bool) {
        for (key, gauge) in &self.0 {
            gauge.set(f64::from(u8::from(holds(*key))));
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            fn words() -> impl Iterator<Item = (Self, &'static str)> {
                [$((Self::$variant, $word)),*].into_iter()
            }
        }
    };
}

words! {
    /// How a try to take a lease ended for one buyer.
    LeaseResult {
        /// The lease is open.
        Taken = "taken",
        /// A cap had no room.
        Full = "full",
        /// A cap had no room a moment ago: the store was not asked again.
        RememberedFull = "remembered_full",
        /// Another walk of the lead holds the lease.
        Underway = "underway",
        /// The count is not known: closed until it is read from the ledger.
        Unseeded = "unseeded",
        /// A newer routing is in force elsewhere.
        Stale = "stale",
        /// Offered before.
        Ended = "ended",
        /// The buyer has the person.
        Duplicate = "duplicate",
        /// The books have to be asked whether the buyer has the person.
        AskBooks = "ask_books",
        /// The partition is closed until its counts are rebuilt.
        NewLife = "new_life",
        /// The store gave no answer, or none in time.
        Unavailable = "unavailable",
    }
}

words! {
    /// What was finished for a dead gateway.
    Recovered {
        /// A lease became a doubt.
        Doubt = "doubt",
        /// A lease was given back.
        Refund = "refund",
        /// A lead was closed as sold.
        Sold = "lead_sold",
        /// A lead was closed in doubt.
        InDoubt = "lead_in_doubt",
        /// A lead was routed on.
        Routed = "lead_routed",
    }
}

words! {
    /// How an attempt ended whose buyer had answered "pending".
    Decided {
        /// The buyer takes the lead.
        Accepted = "accepted",
        /// The buyer does not.
        Declined = "declined",
        /// Its time passed without a decision.
        Expired = "expired",
    }
}

words! {
    /// What a reload did.
    ReloadResult {
        /// The new routing is in force.
        Ok = "ok",
        /// It was refused; the old one stays.
        Refused = "refused",
    }
}

words! {
    /// How a post to a publisher ended.
    PostbackResult {
        /// The publisher has it.
        Delivered = "delivered",
        /// It is tried again.
        Failed = "failed",
        /// The publisher wants it no more.
        Gone = "gone",
        /// It was tried for a day.
        Dead = "dead",
        /// The routing no longer says where to.
        Dropped = "dropped",
    }
}

impl CounterOf<PostbackResult> {
    pub(super) fn of_publisher(registry: &Registry, publisher: &str) -> Self {
        Self::new(registry, &names::POSTBACKS, &[("publisher", publisher)], "result", PostbackResult::words())
    }
}

/// Publishers' requests.
#[derive(Debug)]
pub struct IntakeMetrics {
    refused: CounterOf<&'static str>,
    answer_duration: Histogram,
    /// Requests answered with an earlier answer.
    pub replays: Counter,
    /// Leads on their walk in this gateway.
    pub leads_in_flight: Gauge,
}

impl IntakeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let codes = Refusal::CODES.into_iter().map(|code| (code, code));
        Self {
            refused: CounterOf::new(registry, &names::INTAKE_REFUSED, &[], "code", codes),
            answer_duration: registry.histogram(&names::ANSWER_DURATION, &[]),
            replays: registry.counter(&names::REPLAYS, &[]),
            leads_in_flight: registry.gauge(&names::LEADS_IN_FLIGHT, &[]),
        }
    }

    /// A request was refused with this code.
    pub fn refused(&self, code: &'static str) {
        self.refused.count(code);
    }

    /// A POST was answered after so long.
    pub fn answered(&self, after: Duration) {
        self.answer_duration.record(after);
    }
}

/// A publisher's leads in a campaign.
#[derive(Debug)]
pub struct LeadMetrics {
    /// Leads admitted.
    pub received: Counter,
    closed: CounterOf<Closed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closed {
    Sold,
    Unsold(UnsoldReason),
    InDoubt,
}

impl LeadMetrics {
    pub(super) fn new(registry: &Registry, campaign: &str, publisher: &str) -> Self {
        let both = [("campaign", campaign), ("publisher", publisher)];
        let unsold = UnsoldReason::ALL.into_iter().map(|reason| (Closed::Unsold(reason), "unsold", reason.as_str()));
        let verdicts = unsold.chain([(Closed::Sold, "sold", ""), (Closed::InDoubt, "in_doubt", "")]);
        let closed = verdicts.map(|(closed, status, reason)| {
            let labels = [both[0], both[1], ("status", status), ("reason", reason)];
            (closed, registry.counter(&names::LEADS_CLOSED, &labels))
        });
        Self { received: registry.counter(&names::LEADS_RECEIVED, &both), closed: CounterOf(closed.collect()) }
    }

    /// A lead got its verdict.
    pub fn closed(&self, verdict: &Verdict) {
        self.closed.count(match verdict {
            Verdict::Sold(_) => Closed::Sold,
            Verdict::Unsold(reason) => Closed::Unsold(*reason),
            Verdict::InDoubt(_) => Closed::InDoubt,
        });
    }
}

/// Static rules.
#[derive(Debug)]
pub struct FilterMetrics {
    /// Buyers skipped, by the first check that failed.
    pub skipped: CounterOf<Check>,
    /// Time to find the candidates.
    pub duration: Histogram,
}

impl FilterMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            skipped: CounterOf::new(registry, &names::FILTER_SKIPPED, &[], "check", check_words()),
            duration: registry.histogram(&names::FILTER_DURATION, &[]),
        }
    }
}

/// One cap of a buyer; values as [`super::cap_value`] makes them.
#[derive(Debug)]
pub struct CapMetrics {
    /// Counter of the running window.
    pub used: Gauge,
    /// Limit in force.
    pub limit: Gauge,
    /// Counter minus books at the last comparison: leads or micros.
    pub reconcile_difference: Gauge,
}

/// One buyer.
#[derive(Debug)]
pub struct BuyerMetrics {
    /// Tries to take a lease.
    pub lease: CounterOf<LeaseResult>,
    /// Forwards by what was learned.
    pub forward: CounterOf<AttemptOutcome>,
    /// From start to verdict or time-out.
    pub forward_duration: Histogram,
    /// Acceptances after the time-out.
    pub late_accepted: Counter,
    /// Late acceptances of leads that another buyer has.
    pub contested: Counter,
    /// Ends of attempts whose buyer had answered "pending", by this gateway.
    pub decided: CounterOf<Decided>,
    /// Units counted above their limit.
    pub cap_overshoot: Counter,
    /// 1 while it rests.
    pub breaker_open: Gauge,
    /// 1 while it is paused.
    pub paused: Gauge,
    caps: Vec<(CapId, CapMetrics)>,
}

impl BuyerMetrics {
    pub(super) fn new(registry: &Registry, buyer: &str, caps: impl IntoIterator<Item = CapId>) -> Self {
        let label = [("buyer", buyer)];
        let outcomes = AttemptOutcome::ALL.into_iter().map(|outcome| (outcome, outcome.as_str()));
        let caps = caps.into_iter().map(|cap| {
            let labels = [("buyer", buyer), ("cap", cap.as_str())];
            let gauges = CapMetrics {
                used: registry.gauge(&names::CAP_USED, &labels),
                limit: registry.gauge(&names::CAP_LIMIT, &labels),
                reconcile_difference: registry.gauge(&names::RECONCILE_DIFFERENCE, &labels),
            };
            (cap, gauges)
        });
        Self {
            caps: caps.collect(),
            lease: CounterOf::new(registry, &names::LEASE_TOTAL, &label, "result", LeaseResult::words()),
            forward: CounterOf::new(registry, &names::FORWARD_TOTAL, &label, "outcome", outcomes),
            forward_duration: registry.histogram(&names::FORWARD_DURATION, &label),
            late_accepted: registry.counter(&names::LATE_ACCEPTED, &label),
            contested: registry.counter(&names::CONTESTED, &label),
            decided: CounterOf::new(registry, &names::DECIDED, &label, "decision", Decided::words()),
            cap_overshoot: registry.counter(&names::CAP_OVERSHOOT, &label),
            breaker_open: registry.gauge(&names::BREAKER_OPEN, &label),
            paused: registry.gauge(&names::BUYER_PAUSED, &label),
        }
    }

    /// The gauges of one of its caps; none for a cap that is not in the routing.
    #[must_use]
    pub fn cap(&self, cap: &CapId) -> Option<&CapMetrics> {
        self.caps.iter().find(|(known, _)| known == cap).map(|(_, gauges)| gauges)
    }

    /// Sets the gauges of what is not in `after` to 0: an old value on the page would look like a present one.
    pub(super) fn reset_gauges_except(&self, after: Option<&Self>) {
        for (cap, gauges) in &self.caps {
            if after.is_none_or(|after| after.cap(cap).is_none()) {
                gauges.used.set(0.0);
                gauges.limit.set(0.0);
                gauges.reconcile_difference.set(0.0);
            }
        }
        if after.is_none() {
            self.breaker_open.set(0.0);
            self.paused.set(0.0);
        }
    }
}

/// Hot state.
#[derive(Debug)]
pub struct StoreMetrics {
    /// 1 while it answers.
    pub up: Gauge,
    /// Its clock minus ours, in seconds.
    pub clock_offset: Gauge,
    /// What is wrong with how it is set up.
    pub setup: GaugeOf<SetupKind>,
    /// Events waiting for settlement.
    pub journal_entries: Gauge,
    /// Leases held by this gateway.
    pub leases_open: Gauge,
    /// Time of a take.
    pub lease_duration: Histogram,
    /// What was finished for dead gateways.
    pub recovered: CounterOf<Recovered>,
    /// What recovery could not finish at one look.
    pub recovery_failed: Counter,
    /// Partitions that got a new life because their data proved nothing.
    pub new_lives: Counter,
    /// Partitions that grant nothing.
    pub partitions_closed: Gauge,
    /// What this process holds until it is settled.
    pub held_bytes: Gauge,
}

impl StoreMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            up: registry.gauge(&names::STORE_UP, &[]),
            clock_offset: registry.gauge(&names::STORE_CLOCK_OFFSET, &[]),
            setup: GaugeOf::new(registry, &names::STORE_SETUP, "kind", SetupKind::words()),
            journal_entries: registry.gauge(&names::JOURNAL_ENTRIES, &[]),
            leases_open: registry.gauge(&names::LEASES_OPEN, &[]),
            lease_duration: registry.histogram(&names::LEASE_DURATION, &[]),
            recovered: CounterOf::new(registry, &names::RECOVERED, &[], "kind", Recovered::words()),
            recovery_failed: registry.counter(&names::RECOVERY_FAILED, &[]),
            new_lives: registry.counter(&names::NEW_LIFE, &[]),
            partitions_closed: registry.gauge(&names::PARTITIONS_CLOSED, &[]),
            held_bytes: registry.gauge(&names::HELD_BYTES, &[]),
        }
    }
}

/// The books.
#[derive(Debug)]
pub struct LedgerMetrics {
    /// 1 while it answers.
    pub up: Gauge,
    /// Rows written, by table; see [`SETTLED_TABLES`].
    pub rows: CounterOf<&'static str>,
    /// Age of the oldest waiting event, in seconds.
    pub lag: Gauge,
    /// Events that can never be stored.
    pub dead_letters: Counter,
    /// Second leads under a used key.
    pub key_clashes: Counter,
    /// Of a post to a publisher.
    pub postback_duration: Histogram,
    postbacks_waiting: Gauge,
    postback_lag: Gauge,
}

impl LedgerMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let tables = SETTLED_TABLES.into_iter().map(|table| (table, table));
        Self {
            up: registry.gauge(&names::LEDGER_UP, &[]),
            rows: CounterOf::new(registry, &names::SETTLE_ROWS, &[], "table", tables),
            lag: registry.gauge(&names::SETTLE_LAG, &[]),
            dead_letters: registry.counter(&names::DEAD_LETTERS, &[]),
            key_clashes: registry.counter(&names::KEY_CLASHES, &[]),
            postback_duration: registry.histogram(&names::POSTBACK_DURATION, &[]),
            postbacks_waiting: registry.gauge(&names::POSTBACKS_WAITING, &[]),
            postback_lag: registry.gauge(&names::POSTBACK_LAG, &[]),
        }
    }

    /// So many verdicts wait to be told, the oldest for so long.
    pub fn postbacks_wait(&self, count: u64, oldest: Option<SignedDuration>) {
        self.postbacks_waiting.set(lossy(count));
        self.postback_lag.set(oldest.map_or(0.0, |age| age.as_secs_f64().max(0.0)));
    }
}

/// Routing file.
#[derive(Debug)]
pub struct RoutingMetrics {
    /// Reloads by result.
    pub reload: CounterOf<ReloadResult>,
    /// Version in force.
    pub version: Gauge,
}

impl RoutingMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            reload: CounterOf::new(registry, &names::CONFIG_RELOAD, &[], "result", ReloadResult::words()),
            version: registry.gauge(&names::ROUTING_VERSION, &[]),
        }
    }
}
