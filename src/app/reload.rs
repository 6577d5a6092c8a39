//! A new routing file comes into force whole or not at all (F87); leads in flight keep the one they started with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Gateway, RoutingInForce};
use crate::config;

/// How often the file is looked at: a change is picked up within 5 s (contract).
const EVERY: Duration = Duration::from_secs(1);

/// What became of a reload.
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

/// Reads and checks the routing file.
pub fn read(path: &Path, config: &config::Config) -> Result<RoutingInForce, Vec<String>> {
    let digest = config::digest(path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    match config::load_routing(path, &config.forward, &config::environment) {
        Ok((routing, warnings)) => {
            for warning in &warnings {
                tracing::warn!("{warning}");
            }
            Ok(RoutingInForce::new(routing, digest))
        }
        Err(problems) => Err(problems.lines()),
    }
}

impl Gateway {
    /// Reads the routing file again and puts it in force if it is good and its version rises.
    pub fn reload(&self, path: &Path) -> Reloaded {
        let outcome = match read(path, &self.config) {
            Err(problems) => Reloaded::Refused(problems),
            Ok(new) => self.put_in_force(new),
        };
        match &outcome {
            Reloaded::InForce { version } => {
                self.telemetry.reloaded(true);
                tracing::info!(version, "routing is in force");
            }
            Reloaded::Unchanged => {}
            Reloaded::Refused(problems) => {
                self.telemetry.reloaded(false);
                tracing::error!(problems = problems.len(), first = problems.first(), "routing refused; the one in force stays");
            }
        }
        outcome
    }

    fn put_in_force(&self, new: RoutingInForce) -> Reloaded {
        let old = self.routing();
        if new.digest == old.digest {
            return Reloaded::Unchanged;
        }
        if new.version() <= old.version() {
            let text = format!("version {} does not rise above {}, which is in force", new.version(), old.version());
            return Reloaded::Refused(vec![text]);
        }
        let version = new.version();
        self.telemetry.know(new.compiled.routing());
        let by_file = new.paused();
        let by_old_file = old.paused();
        self.routing.store(Arc::new(new));
        // The admin API's pauses stay; the file's change with it.
        let kept = self.paused.load().iter().filter(|buyer| !by_old_file.contains(*buyer)).cloned();
        let paused = by_file.into_iter().chain(kept).collect();
        self.paused.store(Arc::new(paused));
        Reloaded::InForce { version }
    }
}

/// Watches the file until the process drains.
pub async fn run(gateway: Arc<Gateway>, path: Option<PathBuf>) {
    let Some(path) = path else { return };
    let mut refused: Option<[u8; 32]> = None;
    loop {
        tokio::select! {
            () = gateway.shutdown.draining.cancelled() => return,
            () = gateway.reload_wanted.notified() => refused = None,
            () = tokio::time::sleep(EVERY) => {}
        }
        let (gateway, path) = (gateway.clone(), path.clone());
        let last_refused = refused;
        // Reading and checking a large file must not hold up a worker that serves leads.
        let looked = tokio::task::spawn_blocking(move || {
            let digest = config::digest(&path).ok()?;
            if digest == gateway.routing().digest || Some(digest) == last_refused {
                return None;
            }
            matches!(gateway.reload(&path), Reloaded::Refused(_)).then_some(digest)
        });
        if let Ok(Some(digest)) = looked.await {
            refused = Some(digest);
        }
    }
}
