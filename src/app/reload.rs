//! A new routing file comes into force whole or not at all (F87); leads in flight keep the one they started with. The certificate
//! of the intake listener is looked at on the same occasions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Gateway, RoutingInForce};
use crate::config::{FileWatch, Problem, ProcessEnvironment, Reload, Tls};
use crate::domain::routing::Routing;
use crate::settle::seed::warm_up;
use crate::telemetry::ReloadResult;

/// How often the file is looked at. A change is in force two looks after it: within the five seconds of the contract.
const EVERY: Duration = Duration::from_secs(1);

/// How often the file is read because the store knows a newer routing. A file that does not have it yet, on another machine
/// for example, is not read once per lead.
const CATCH_UP_EVERY: Duration = Duration::from_millis(500);
/// How long a lead waits for that.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(1);

/// What became of a reload of the routing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// A new routing is in force.
    InForce {
        /// Its version.
        version: u64,
    },
    /// The file is the one in force.
    Unchanged,
    /// The routing in force stays; every problem on a line of its own.
    Refused(Vec<String>),
}

/// What became of a reload of everything that can be reloaded; each part is taken or refused on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadedAll {
    /// The routing file.
    pub routing: Reloaded,
    /// What is wrong with the new certificate or its key; the pair in force stays.
    pub tls: Option<String>,
}

impl Gateway {
    /// Reads the files of certificate and key again, where there are such. Blocks on the files.
    ///
    /// # Errors
    /// What is wrong with them; the pair in force stays, and so do connections.
    pub fn reload_tls(&self) -> Result<(), String> {
        let Some(tls) = &self.config.intake.tls else { return Ok(()) };
        let read = tls.reload();
        self.status.tls_read(read.is_ok());
        match read {
            Ok(is_new) => {
                if is_new {
                    self.telemetry.routing.reload.count(ReloadResult::Ok);
                    tracing::info!("a new certificate is in force");
                }
                Ok(())
            }
            Err(problem) => {
                self.telemetry.routing.reload.count(ReloadResult::Refused);
                tracing::error!("certificate refused; the one in force stays: {problem}");
                Err(problem.to_string())
            }
        }
    }

    /// Reads the routing file again and puts it in force if it is good and its version rises. Blocks on the file.
    pub fn reload(&self) -> Reloaded {
        let reloaded = self.reload_routing();
        self.status.routing_read(!matches!(reloaded, Reloaded::Refused(_)));
        reloaded
    }

    fn reload_routing(&self) -> Reloaded {
        // Held until the routing is in force: two reloads at once must not swap their order.
        let mut file = self.routing_file.lock();
        match file.reload(&ProcessEnvironment) {
            Ok(Reload::Unchanged) => Reloaded::Unchanged,
            Ok(Reload::Changed { routing, warnings }) => {
                log_warnings(&warnings);
                self.telemetry.routing.reload.count(ReloadResult::Ok);
                let version = self.put_in_force(routing);
                self.warm_up_wanted.notify_one();
                Reloaded::InForce { version }
            }
            Err(problems) => {
                self.telemetry.routing.reload.count(ReloadResult::Refused);
                let lines: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
                tracing::error!(
                    problems = problems.errors(),
                    first = lines.first(),
                    "routing refused; the one in force stays"
                );
                Reloaded::Refused(lines)
            }
        }
    }

    fn put_in_force(&self, routing: Routing) -> u64 {
        let old = self.routing();
        let new = RoutingInForce::new(routing);
        let version = new.version();
        self.telemetry.know(new.compiled.routing());
        // The admin API's pauses outlive reloads; the file's change with it.
        let by_old_file = old.paused();
        let kept = self.paused.load().iter().filter(|buyer| !by_old_file.contains(*buyer)).cloned().collect();
        self.full.keep_only(new.compiled.routing());
        self.routing.store(Arc::new(new));
        self.set_paused(kept);
        tracing::info!(version, "routing is in force");
        version
    }
}

/// The routing of this version or a newer one. When it is not in force here yet, though the store has seen it used (F86), the
/// file is read at once; by one task at a time, while the others wait for what it finds. `None` when the file does not have
/// it.
pub async fn catch_up(gateway: &Arc<Gateway>, version: u64) -> Option<Arc<RoutingInForce>> {
    let in_force = || Some(gateway.routing()).filter(|routing| routing.version() >= version);
    if let Some(routing) = in_force() {
        return Some(routing);
    }
    let look = async {
        let mut last = gateway.caught_up.lock().await;
        let is_due = last.is_none_or(|(at, wanted)| wanted < version || at.elapsed() >= CATCH_UP_EVERY);
        if in_force().is_none() && is_due {
            let blocking = gateway.clone();
            // A panic has found nothing, and the next lead asks again.
            let _ = tokio::task::spawn_blocking(move || blocking.reload()).await;
            *last = Some((Instant::now(), version));
        }
    };
    // Out of patience: what is in force by then decides.
    let _ = tokio::time::timeout(CATCH_UP_PATIENCE, look).await;
    in_force()
}

/// One line for each.
pub fn log_warnings(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Reads all files again without holding up a worker that serves leads.
pub async fn reload_now(gateway: &Arc<Gateway>) -> ReloadedAll {
    let blocking = gateway.clone();
    let all = move || ReloadedAll { tls: blocking.reload_tls().err(), routing: blocking.reload() };
    match tokio::task::spawn_blocking(all).await {
        Ok(reloaded) => reloaded,
        Err(_) => ReloadedAll { routing: Reloaded::Refused(vec!["the reload was cut short".to_owned()]), tls: None },
    }
}

/// Watches the files until the process drains.
pub async fn run(gateway: Arc<Gateway>) {
    let mut watches = vec![FileWatch::new(gateway.routing_file.lock().path())];
    // A pair of files is never replaced at one instant: what is refused between the two is looked at again with the second.
    watches.extend(gateway.config.intake.tls.iter().flat_map(Tls::files).map(FileWatch::new));
    loop {
        let is_wanted = tokio::select! {
            () = gateway.shutdown.draining.cancelled() => return,
            // A buyer or cap that is new in this version.
            () = gateway.warm_up_wanted.notified() => {
                gateway.tasks.spawn(warm_up(gateway.clone()));
                false
            }
            () = tokio::time::sleep(EVERY) => {
                // Each is asked: a change of one must not hide that of another.
                watches.iter_mut().map(FileWatch::has_settled_change).filter(|has_changed| *has_changed).count() > 0
            }
        };
        if is_wanted {
            reload_now(&gateway).await;
        }
    }
}
