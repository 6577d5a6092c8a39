//! Two TOML files, read raw, then checked: `capgate.toml` (the process) and `routing.toml` (the business). All problems are
//! reported at once, each with file, key, value and what would be right.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::domain::routing::{Routing, Secret};

mod address;
mod answer;
mod buyer;
mod campaign;
mod caps;
mod env;
mod item;
mod matching;
mod problem;
mod process;
mod publisher;
mod reload;
mod request;
mod routing;
mod secret;
mod tls;
mod tree;

pub use env::{Environment, ProcessEnvironment};
pub use problem::{Problem, Problems, Severity};
pub use process::DEFAULTS;
pub use reload::{FileWatch, Reload, RoutingFile};
pub use tls::Tls;

/// `capgate.toml`, or the built-in defaults, with the environment's overrides.
///
/// # Errors
/// Every problem at once.
pub fn load(path: Option<&Path>, env: &dyn Environment) -> Result<Config, Problems> {
    let (config, problems) = process::read(path, env);
    match config {
        Some(config) if problems.errors() == 0 => Ok(config),
        _ => Err(problems),
    }
}

/// The routing file, checked, and warnings about it. `version` absent: the file's modification time in milliseconds.
///
/// # Errors
/// Every problem at once, warnings included; a file that is missing is one.
pub fn load_routing(
    path: &Path,
    forward: &ForwardConfig,
    env: &dyn Environment,
) -> Result<(Routing, Vec<Problem>), Problems> {
    routing::load(path, forward, env).map(|loaded| (loaded.routing, loaded.warnings))
}

/// Everything that is wrong with both files, warnings included: what `capgate check` prints. The routing file is checked even
/// when `capgate.toml` has errors, as long as it can be parsed.
pub fn check(path: Option<&Path>, env: &dyn Environment) -> Problems {
    let (config, mut problems) = process::read(path, env);
    if let Some(config) = config {
        match RoutingFile::open(&config, env) {
            Ok((_, _, warnings)) => problems.0.extend(warnings),
            Err(found) => problems.0.extend(found.0),
        }
    }
    problems
}

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
    /// May the routing file be missing? Only when nobody named it: then the gateway starts with an empty routing.
    pub is_routing_optional: bool,
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
    /// Absent: plain HTTP.
    pub tls: Option<Tls>,
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

impl StoreUrl {
    /// Where the store is, without credentials: a path, or hosts and ports.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Embedded(path) => path.display().to_string(),
            Self::Redis(url) => {
                let url = url.expose();
                let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
                let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
                authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts).to_owned()
            }
        }
    }
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
