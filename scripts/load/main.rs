//! How fast the gateway is, beside the floor: a proxy that does nothing but pass the lead on. `scripts/bench` starts the
//! servers and runs this; `docs/performance.md` says how to read it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people"
)]

mod buyer;
mod drive;
mod floor;
mod machine;
mod measure;
mod report;
mod world;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// What went wrong, for people.
pub type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about = "Measure the gateway beside a bare proxy")]
struct Bench {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Measure, and print one table
    Run(RunArgs),
    /// The bare proxy
    Floor {
        #[arg(long)]
        listen: String,
        #[arg(long)]
        buyer: String,
    },
    /// The stub buyer
    Buyer {
        #[arg(long)]
        listen: String,
        #[arg(long)]
        delay_ms: u64,
        #[arg(long)]
        rough: bool,
    },
    /// The load generator
    Drive {
        #[arg(long)]
        target: String,
        #[arg(long)]
        path: String,
        #[arg(long)]
        key: String,
        #[arg(long)]
        connections: usize,
        #[arg(long)]
        rate: Option<u64>,
        #[arg(long)]
        warm_up_ms: u64,
        #[arg(long)]
        duration_ms: u64,
    },
}

/// What to measure and with what.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// redis://HOST:PORT
    #[arg(long, value_name = "URL")]
    redis: String,
    /// mysql://USER:PASSWORD@HOST:PORT, whose server runs on this machine
    #[arg(long, value_name = "URL")]
    mysql: String,
    /// One short round; below three minutes
    #[arg(long)]
    quick: bool,
    /// Rounds; each figure is the median
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only scenes whose name holds this
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Write the figures to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show beside the figures of an earlier file
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// The gateway's program; without it the one beside this
    #[arg(long, value_name = "FILE")]
    capgate: Option<PathBuf>,
}

fn main() -> ExitCode {
    let bench = Bench::parse();
    // The load generator has one thread, so that its own wake-ups take no processor from what is measured.
    let mut builder = match bench.role {
        Role::Drive { .. } | Role::Buyer { .. } => tokio::runtime::Builder::new_current_thread(),
        Role::Run(_) | Role::Floor { .. } => tokio::runtime::Builder::new_multi_thread(),
    };
    let result =
        builder.enable_all().build().map_err(Failure::from).and_then(|runtime| runtime.block_on(play(bench.role)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn play(role: Role) -> Result<(), Failure> {
    // Fails when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match role {
        Role::Run(args) => report::run(args).await,
        Role::Floor { listen, buyer } => floor::serve(&listen, &buyer).await,
        Role::Buyer { listen, delay_ms, rough } => {
            let manners = buyer::Manners { delay: Duration::from_millis(delay_ms), is_rough: rough };
            buyer::serve(&listen, manners).await
        }
        Role::Drive { target, path, key, connections, rate, warm_up_ms, duration_ms } => {
            let load = drive::Load {
                target,
                path,
                key,
                connections,
                rate,
                warm_up: Duration::from_millis(warm_up_ms),
                duration: Duration::from_millis(duration_ms),
            };
            drive::run(load).await
        }
    }
}
