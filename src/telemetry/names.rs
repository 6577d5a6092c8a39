//! Every metric in one list: its name, its help and, for histograms, its buckets. Names never change once released.

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts durations in seconds, in buckets with these upper bounds.
    Seconds(&'static [f64]),
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name on the page.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// For the reader of the page.
    pub help: &'static str,
}

/// Work in this process: microseconds to a second.
const FAST: &[f64] = &[0.000_005, 0.000_02, 0.000_1, 0.000_5, 0.002, 0.01, 0.05, 0.25, 1.0];
/// A call to the store.
const CALL: &[f64] = &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
/// What people and buyers wait for.
const WAIT: &[f64] = &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric { name: $name, kind: $kind, help: $help };
        )*
        /// All of them.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    LEADS_RECEIVED = "capgate_leads_received_total", Kind::Counter,
        "Leads admitted, by campaign and publisher.";
    LEADS_CLOSED = "capgate_leads_closed_total", Kind::Counter,
        "Leads that got their verdict, by campaign, publisher, status and reason.";
    LEADS_IN_FLIGHT = "capgate_leads_in_flight", Kind::Gauge,
        "Leads on their walk in this gateway.";
    REPLAYS = "capgate_replays_total", Kind::Counter,
        "Requests answered with the answer of an earlier one.";
    KEY_CLASHES = "capgate_key_clashes_total", Kind::Counter,
        "Second leads stored under a used key: an alarm.";
    INTAKE_REFUSED = "capgate_intake_refused_total", Kind::Counter,
        "Requests refused at intake, by error code.";
    ANSWER_DURATION = "capgate_answer_duration_seconds", Kind::Seconds(WAIT),
        "From the head of a POST to its answer, for leads that were taken.";
    FILTER_SKIPPED = "capgate_filter_skipped_total", Kind::Counter,
        "Buyers that a lead was not offered to, by the first check that failed.";
    FILTER_DURATION = "capgate_filter_duration_seconds", Kind::Seconds(FAST),
        "Time to find the candidates of a lead.";
    LEASE_TOTAL = "capgate_lease_total", Kind::Counter,
        "Tries to take a lease, by buyer and result.";
    LEASE_DURATION = "capgate_lease_duration_seconds", Kind::Seconds(CALL),
        "Time of a take in the store.";
    LEASES_OPEN = "capgate_leases_open", Kind::Gauge,
        "Leases held by this gateway.";
    CAP_USED = "capgate_cap_used", Kind::Gauge,
        "Counter of the running window, by buyer and cap: leads, or money in currency units.";
    CAP_LIMIT = "capgate_cap_limit", Kind::Gauge,
        "Limit in force, by buyer and cap: leads, or money in currency units.";
    CAP_OVERSHOOT = "capgate_cap_overshoot_total", Kind::Counter,
        "Units counted above their limit, by buyer: an alarm, stays 0.";
    FORWARD_TOTAL = "capgate_forward_total", Kind::Counter,
        "Forwards, by buyer and outcome.";
    FORWARD_DURATION = "capgate_forward_duration_seconds", Kind::Seconds(WAIT),
        "From the start of a forward to its verdict or time-out, by buyer.";
    LATE_ACCEPTED = "capgate_late_accepted_total", Kind::Counter,
        "Acceptances that came after the time-out, by buyer.";
    DECIDED = "capgate_decisions_total", Kind::Counter,
        "Pending answers that were decided, or whose time passed (expired), by buyer and decision.";
    CONTESTED = "capgate_contested_total", Kind::Counter,
        "Late acceptances of leads that another buyer has, by buyer: an alarm.";
    BREAKER_OPEN = "capgate_breaker_open", Kind::Gauge,
        "1 while a buyer rests after failures or by its own wish.";
    BUYER_PAUSED = "capgate_buyer_paused", Kind::Gauge,
        "1 while a buyer is paused by file or by the admin API.";
    JOURNAL_ENTRIES = "capgate_journal_entries", Kind::Gauge,
        "Events waiting for settlement.";
    SETTLE_ROWS = "capgate_settle_rows_total", Kind::Counter,
        "Rows written by settlement, by table.";
    SETTLE_LAG = "capgate_settle_lag_seconds", Kind::Gauge,
        "Age of the oldest event that waits for settlement.";
    DEAD_LETTERS = "capgate_dead_letters_total", Kind::Counter,
        "Events that can never be stored: an alarm.";
    POSTBACKS = "capgate_postbacks_total", Kind::Counter,
        "Posts of verdicts to publishers, by publisher and result; dead and dropped ones are an alarm.";
    POSTBACK_DURATION = "capgate_postback_duration_seconds", Kind::Seconds(WAIT),
        "From the start of a post to a publisher to its answer or time-out.";
    POSTBACKS_WAITING = "capgate_postbacks_waiting", Kind::Gauge,
        "Verdicts that their publishers have not been told yet, of all gateways.";
    POSTBACK_LAG = "capgate_postback_lag_seconds", Kind::Gauge,
        "Age of the oldest verdict that waits to be told.";
    RECOVERED = "capgate_recovered_total", Kind::Counter,
        "Leases and leads of dead gateways that were finished, by kind.";
    RECOVERY_FAILED = "capgate_recovery_failed_total", Kind::Counter,
        "Partitions, leases and leads that recovery could not finish at one look; it tries again.";
    RECONCILE_DIFFERENCE = "capgate_reconcile_difference_units", Kind::Gauge,
        "Counter minus books at the last comparison, by buyer and cap: leads or micros.";
    STORE_UP = "capgate_store_up", Kind::Gauge,
        "1 while the store answers.";
    LEDGER_UP = "capgate_ledger_up", Kind::Gauge,
        "1 while the ledger answers.";
    NEW_LIFE = "capgate_new_life_total", Kind::Counter,
        "Partitions that this gateway found empty, rolled back or on another server, and closed until they were rebuilt.";
    PARTITIONS_CLOSED = "capgate_partitions_closed", Kind::Gauge,
        "Partitions that grant nothing until their counts are rebuilt.";
    HELD_BYTES = "capgate_held_bytes", Kind::Gauge,
        "Open leases and unsettled events that this gateway holds because only the store has them besides, in bytes.";
    STORE_CLOCK_OFFSET = "capgate_store_clock_offset_seconds", Kind::Gauge,
        "Clock of the store minus clock of this gateway.";
    STORE_SETUP = "capgate_store_setup_warning", Kind::Gauge,
        "1 while something is wrong with how the store is set up, by kind; version and eviction make the gateway not ready.";
    CONFIG_RELOAD = "capgate_config_reload_total", Kind::Counter,
        "Reloads of the routing, by result.";
    ROUTING_VERSION = "capgate_routing_version", Kind::Gauge,
        "Version of the routing in force.";
    BUILD_INFO = "capgate_build_info", Kind::Gauge,
        "Always 1; the label says which version runs.";
    ZONE_DATA_INFO = "capgate_zone_data_info", Kind::Gauge,
        "Always 1; the label says which version of the IANA time zone data is compiled in: the same in every gateway.";
}
