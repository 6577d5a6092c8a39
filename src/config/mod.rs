//! Two TOML files, read raw, then checked: `capgate.toml` (the process) and `routing.toml` (the business). All problems are
//! reported at once, each with file, key, value and what would be right.

use std::path::PathBuf;
use std::time::Duration;

use crate::domain::routing::Secret;

/// `capgate.toml`, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Publishers' side.
    pub intake: IntakeConfig,
    /// Operators' side.
    pub admin: AdminConfig,
    /// Hot state.
    pub store: StoreConfig,
    /// The books.
    pub ledger: LedgerConfig,
    /// Buyers' side.
    pub forward: ForwardConfig,
    /// Comparison of counters and books.
    pub reconcile: ReconcileConfig,
    /// Path of the routing file, absolute or relative to the working directory.
    pub routing_file: PathBuf,
}

/// `[intake]`
#[derive(Debug, Clone)]
pub struct IntakeConfig {
    /// Where publishers post.
    pub listen: std::net::SocketAddr,
    /// A POST waits this long for its verdict, then gets "pending".
    pub answer_within: Duration,
    /// Largest body.
    pub body_bytes_max: usize,
    /// From first byte to the end of the headers, and from accept to the first byte.
    pub header_timeout: Duration,
    /// From the end of the headers to the end of the body.
    pub body_timeout: Duration,
    /// Keep-alive without a request.
    pub idle_timeout: Duration,
    /// Above it, new connections wait in the kernel.
    pub connections_max: usize,
    /// Above it: 503.
    pub leads_in_flight_max: usize,
}

/// `[admin]`
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// Where operators ask.
    pub listen: std::net::SocketAddr,
    /// Unset: `listen` must be a loopback address.
    pub token: Option<Secret>,
}

/// `[store]`
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Which store.
    pub url: StoreUrl,
    /// First part of every key.
    pub prefix: String,
    /// Written down at the first start and checked after.
    pub partitions: u16,
    /// Of one call; a call is asked twice at most.
    pub command_timeout: Duration,
    /// Of all partitions; above it: 503.
    pub journal_entries_max: u64,
    /// How long keys and answers are kept.
    pub idempotency: Duration,
}

/// Which store.
#[derive(Debug, Clone)]
pub enum StoreUrl {
    /// `embedded:PATH`
    Embedded(PathBuf),
    /// `redis://`, `rediss://` or `redis-cluster://h:p,h:p`; may hold a password.
    Redis(Secret),
}

/// `[ledger]`
#[derive(Debug, Clone)]
pub struct LedgerConfig {
    /// Which ledger.
    pub url: LedgerUrl,
    /// Most connections.
    pub connections_max: u32,
    /// Most journal entries in one transaction.
    pub batch_rows_max: usize,
    /// How long settlement waits for more when the journal is short.
    pub batch_delay: Duration,
    /// Payloads of leads older than this are removed.
    pub payload_days: u32,
    /// Does `serve` bring the schema up to date?
    pub migrate: bool,
}

/// Which ledger.
#[derive(Debug, Clone)]
pub enum LedgerUrl {
    /// `sqlite:PATH`
    Sqlite(PathBuf),
    /// `mysql://user:password@host:port/database`
    Mysql(Secret),
}

/// `[forward]`
#[derive(Debug, Clone)]
pub struct ForwardConfig {
    /// Default of a buyer's `timeout_ms`.
    pub timeout: Duration,
    /// How long the answer of a forward is awaited after its time-out.
    pub late_answer: Duration,
    /// Largest answer read.
    pub answer_bytes_max: usize,
    /// May buyers be on loopback, private, link-local or metadata addresses?
    pub allow_private_addresses: bool,
    /// From receipt; no attempt starts after it.
    pub lead_deadline: Duration,
    /// Most buyers tried for one lead.
    pub attempts_max: u16,
}

/// `[reconcile]`
#[derive(Debug, Clone)]
pub struct ReconcileConfig {
    /// How often.
    pub every: Duration,
    /// One run lowers a counter by at most this part of it (5 units are always allowed).
    pub lower_percent_max: u8,
}
