//! Starting and stopping a gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Gateway, RoutingInForce, monitor, reload};
use crate::admin;
use crate::clock::SharedClock;
use crate::config::RoutingFile;
use crate::config::{Config, LedgerUrl, StoreUrl};
use crate::desk::Desk;
use crate::domain::routing::Routing;
use crate::forward::Forwarder;
use crate::intake;
use crate::lease::{FullMemory, WindowsInForce};
use crate::ledger::mysql::MysqlLedger;
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::{LedgerError, SharedLedger};
use crate::postback;
use crate::settle::lives::Lives;
use crate::settle::seed::{Seeder, warm_up};
use crate::settle::settler::{Settler, SettlerParts};
use crate::settle::{lives, reconcile, recovery};
use crate::shutdown::Shutdown;
use crate::status::Status;
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::redis::RedisStore;
use crate::store::{Store, StoreError};
use crate::telemetry::Telemetry;

/// An end mark outlives every possible caller by this much.
const END_MARK_SLACK: Duration = Duration::from_mins(10);

/// Usage rows older than this belong to windows that have ended in every zone, `total` apart.
const USAGE_KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(24 * 40);

/// After the drain has begun, idle time that settlement gets to empty the journal.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);

/// For the last words to the ledger.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(3);

/// After the longest wait of a publisher, a drain lets connections live this much longer.
const DRAIN_SLACK: Duration = Duration::from_secs(1);

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The ledger is not there, or not as this version needs it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The store is not there, or used by another process.
    #[error("store at {at}: {error}")]
    Store {
        /// Where, without credentials.
        at: String,
        /// Why.
        error: StoreError,
    },
    /// The way to the buyers.
    #[error("forwarding cannot be set up: {0}")]
    Forward(String),
    /// A port is taken.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// Partitions could not be opened.
    #[error("counts cannot be read: {0}")]
    Lives(String),
}

/// A gateway with its listeners and background tasks.
#[derive(Debug)]
pub struct App {
    /// What the steps use.
    pub gateway: Arc<Gateway>,
    /// Where publishers post.
    pub intake_addr: SocketAddr,
    /// Where operators ask.
    pub admin_addr: SocketAddr,
    servers: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

/// Opens the ledger and brings its schema up to date if the configuration says so.
pub async fn open_ledger(config: &Config) -> Result<SharedLedger, LedgerError> {
    let ledger: SharedLedger = match &config.ledger.url {
        LedgerUrl::Sqlite(path) => Arc::new(SqliteLedger::open(path, config.ledger.connections_max).await?),
        LedgerUrl::Mysql(url) => Arc::new(MysqlLedger::connect(url, config.ledger.connections_max).await?),
    };
    Ok(ledger)
}

async fn open_store(config: &Config, ledger: &SharedLedger, clock: &SharedClock) -> Result<Arc<dyn Store>, StartError> {
    let end_mark_ttl = config.forward.late_answer + END_MARK_SLACK;
    let store = &config.store;
    let failed = |error| StartError::Store { at: store.url.place(), error };
    Ok(match &store.url {
        StoreUrl::Embedded(path) => {
            let options = EmbeddedOptions {
                partitions: store.partitions,
                journal_entries_max: store.journal_entries_max,
                end_mark_ttl,
            };
            ledger.marks(store.partitions).await?;
            let (marks, usage) = ledger.usage_all(clock.now() - USAGE_KEPT).await?;
            Arc::new(EmbeddedStore::open(path, options, clock.clone(), &marks, &usage).map_err(failed)?)
        }
        StoreUrl::Redis(url) => Arc::new(
            RedisStore::connect(
                url,
                &store.prefix,
                store.partitions,
                store.command_timeout,
                store.journal_entries_max,
                end_mark_ttl,
                clock.clone(),
            )
            .await
            .map_err(failed)?,
        ),
    })
}

impl App {
    /// Starts everything; answers when leads can be posted. The routing file is watched and reloaded.
    pub async fn start(
        config: Config,
        routing: Routing,
        routing_file: RoutingFile,
        clock: SharedClock,
    ) -> Result<Self, StartError> {
        let listen =
            async |addr: SocketAddr| TcpListener::bind(addr).await.map_err(|error| StartError::Listen { addr, error });
        let intake_listener = listen(config.intake.listen).await?;
        let admin_listener = listen(config.admin.listen).await?;
        let ledger = open_ledger(&config).await?;
        if config.ledger.migrate {
            ledger.migrate().await?;
        }
        ledger.check_schema().await?;
        let store = open_store(&config, &ledger, &clock).await?;
        let gateway = Arc::new(assemble(config, routing, routing_file, clock, store, ledger)?);
        gateway.lives.start(&gateway).await.map_err(|error| StartError::Lives(error.to_string()))?;
        monitor::look_once(&gateway).await;
        gateway.tasks.spawn(warm_up(gateway.clone()));

        let halted = gateway.shutdown.halted.clone();
        let workers = vec![
            tokio::spawn(gateway.settler.clone().run(halted.clone())),
            tokio::spawn(monitor::run(gateway.clone())),
            tokio::spawn(lives::run(gateway.clone())),
            tokio::spawn(recovery::run(gateway.clone())),
            tokio::spawn(reload::run(gateway.clone())),
            tokio::spawn(reconcile::run(gateway.clone())),
            tokio::spawn(postback::run(gateway.clone())),
            tokio::spawn({
                let (telemetry, halted) = (gateway.telemetry.clone(), halted.clone());
                async move { telemetry.keep_up(halted).await }
            }),
            tokio::spawn(monitor::keep_house(gateway.clone())),
        ];
        let desk = Arc::new(Desk::new(gateway.clone()));
        let address = |listener: &TcpListener, wanted| listener.local_addr().unwrap_or(wanted);
        let intake_addr = address(&intake_listener, gateway.config.intake.listen);
        let admin_addr = address(&admin_listener, gateway.config.admin.listen);
        let servers = vec![
            tokio::spawn({
                let (gateway, desk) = (gateway.clone(), desk.clone());
                async move {
                    let stop = gateway.shutdown.draining.clone();
                    let within = gateway.answer_max() + DRAIN_SLACK;
                    let telemetry = gateway.telemetry.clone();
                    intake::serve(intake_listener, desk, &gateway.config.intake, telemetry, stop, within).await;
                }
            }),
            tokio::spawn(admin::serve(admin_listener, desk, gateway.config.admin.token.clone(), halted)),
        ];
        tracing::info!(%intake_addr, %admin_addr, "ready for leads");
        Ok(Self { gateway, intake_addr, admin_addr, servers, workers })
    }

    /// Drains: not ready, no new leads, what is in flight ends, the journal is settled. Bounded by the longest walk.
    pub async fn shut_down(self) {
        let gateway = &self.gateway;
        gateway.shutdown.draining.cancel();
        let mut servers = self.servers.into_iter();
        let intake = servers.next();
        let longest = gateway.lead_open_for();
        let drained = async {
            if let Some(intake) = intake {
                // A panic in the server has nothing left to drain.
                let _ = intake.await;
            }
            gateway.tasks.close();
            gateway.tasks.wait().await;
        };
        if tokio::time::timeout(longest, drained).await.is_err() {
            tracing::warn!("walks are still under way; another gateway's recovery will finish their leads");
        }
        gateway.shutdown.halted.cancel();
        // One deadline for all, and none of the ends below waits for long: a ledger that hangs must not hold the process (F71).
        let deadline = tokio::time::Instant::now() + SETTLE_PATIENCE + Duration::from_secs(1);
        for task in self.workers.into_iter().chain(servers) {
            if tokio::time::timeout_at(deadline, task).await.is_err() {
                tracing::warn!("a background task did not end in time");
            }
        }
        let farewell = async {
            gateway.lives.leave(gateway).await;
            gateway.ledger.shut_down().await;
        };
        if tokio::time::timeout(FAREWELL_PATIENCE, farewell).await.is_err() {
            tracing::warn!(
                "the ledger did not answer at the end; its server finds out that the connections are closed"
            );
        }
        gateway.store.shut_down().await;
    }
}

fn assemble(
    config: Config,
    routing: Routing,
    routing_file: RoutingFile,
    clock: SharedClock,
    store: Arc<dyn Store>,
    ledger: SharedLedger,
) -> Result<Gateway, StartError> {
    let telemetry = Arc::new(Telemetry::new());
    telemetry.know(&routing);
    let routing = RoutingInForce::new(routing);
    let forwarder = Forwarder::new(&config.forward, clock.clone()).map_err(|e| StartError::Forward(e.to_string()))?;
    let settler = Settler::new(SettlerParts {
        store: store.clone(),
        ledger: ledger.clone(),
        clock: clock.clone(),
        rows_max: config.ledger.batch_rows_max,
        delay: config.ledger.batch_delay,
    });
    let paused = routing.paused();
    let in_flight = Arc::new(tokio::sync::Semaphore::new(config.intake.leads_in_flight_max));
    Ok(Gateway {
        status: Status::new(clock.clone()),
        routing_file: parking_lot::Mutex::new(routing_file),
        config,
        clock,
        store,
        ledger,
        forwarder,
        telemetry,
        paused: arc_swap::ArcSwap::from_pointee(paused),
        tasks: tokio_util::task::TaskTracker::new(),
        shutdown: Shutdown::default(),
        settler,
        lives: Lives::default(),
        seeder: Seeder::default(),
        full: FullMemory::default(),
        windows: WindowsInForce::default(),
        caught_up: tokio::sync::Mutex::default(),
        routing: arc_swap::ArcSwap::from_pointee(routing),
        warm_up_wanted: tokio::sync::Notify::new(),
        reconcile_wanted: tokio::sync::Notify::new(),
        running: parking_lot::Mutex::default(),
        resolving: tokio::sync::Mutex::default(),
        in_flight,
    })
}
