//! `capgate serve`

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use super::{BAD_CONFIG, block_on, fail};
use crate::app::App;
use crate::app::reload::{log_warnings, reload_now};
use crate::clock::SystemClock;
use crate::config::{self, Config, Problems, ProcessEnvironment, RoutingFile};
use crate::domain::routing::Routing;
use crate::telemetry::log::init_logging;

pub(super) fn run(path: Option<&Path>, log_json: bool) -> ExitCode {
    // An error means that the caller has set up logging already.
    let _ = init_logging(log_json);
    let (config, routing, file) = match read(path) {
        Ok(read) => read,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    block_on(serve(config, routing, file))
}

/// Reads and checks both files.
fn read(path: Option<&Path>) -> Result<(Config, Routing, RoutingFile), Problems> {
    let config = config::load(path, &ProcessEnvironment)?;
    let (file, routing, warnings) = RoutingFile::open(&config, &ProcessEnvironment)?;
    log_warnings(&warnings);
    Ok((config, routing, file))
}

async fn serve(config: Config, routing: Routing, file: RoutingFile) -> ExitCode {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = signals else {
        return fail("cannot listen for signals");
    };
    let app = match App::start(config, routing, file, Arc::new(SystemClock)).await {
        Ok(app) => app,
        Err(error) => return fail(&error.to_string()),
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // Its outcome is logged and counted by the reload itself.
            _ = hangup.recv() => drop(reload_now(&app.gateway).await),
        }
    }
    tracing::info!("draining");
    app.shut_down().await;
    tracing::info!("ended");
    ExitCode::SUCCESS
}
