//! `capgate serve`

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use super::{BAD_CONFIG, block_on, fail};
use crate::app::{App, Gateway, RoutingInForce, reload};
use crate::clock::SystemClock;
use crate::config::{self, Config, Problems};
use crate::telemetry::log::init_logging;

pub(super) fn run(path: Option<&Path>, log_json: bool) -> ExitCode {
    init_logging(log_json);
    let (config, routing) = match read(path) {
        Ok(read) => read,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    block_on(serve(config, routing))
}

/// Reads and checks both files.
pub(super) fn read(path: Option<&Path>) -> Result<(Config, RoutingInForce), Problems> {
    let config = config::load(path, &config::environment)?;
    let routing_file = config.routing_file.clone();
    let (routing, warnings) = if path.is_none() && !routing_file.exists() {
        // The compiled-in defaults run on a machine with nothing set up: without a routing file nobody may post yet.
        (config::empty_routing(), Vec::new())
    } else {
        config::load_routing(&routing_file, &config.forward, &config::environment)?
    };
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let digest = config::digest(&routing_file).unwrap_or_default();
    Ok((config, RoutingInForce::new(routing, digest)))
}

async fn serve(config: Config, routing: RoutingInForce) -> ExitCode {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = signals else {
        return fail("cannot listen for signals");
    };
    let routing_file = config.routing_file.clone();
    let app = match App::start(config, routing, Some(routing_file.clone()), Arc::new(SystemClock)).await {
        Ok(app) => app,
        Err(error) => return fail(&error.to_string()),
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload_now(&app.gateway, &routing_file).await,
        }
    }
    tracing::info!("draining");
    app.shut_down().await;
    tracing::info!("ended");
    ExitCode::SUCCESS
}

async fn reload_now(gateway: &Arc<Gateway>, path: &Path) {
    let (gateway, path) = (gateway.clone(), path.to_owned());
    // The outcome is logged and counted by the reload itself.
    let _: Result<reload::Reloaded, _> = tokio::task::spawn_blocking(move || gateway.reload(&path)).await;
}
