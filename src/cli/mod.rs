//! The commands. Exit codes: 0 fine, 1 failed, 64 bad arguments, 78 bad configuration.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "commands talk to people on the terminal")]

mod admin_client;
mod caps;
pub mod check;
pub mod demo;
mod explain;
pub mod key;
mod ledger;
mod migrate;
mod postbacks;
mod reconcile;
mod resolve;
mod serve;
pub mod stress;
pub mod stub_buyer;
mod switch;
mod table;
mod try_buyer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Failed.
pub const FAILED: u8 = 1;
/// Bad arguments (`EX_USAGE`).
pub const BAD_ARGUMENTS: u8 = 64;
/// Bad configuration (`EX_CONFIG`).
pub const BAD_CONFIG: u8 = 78;

#[derive(Debug, Parser)]
#[command(
    name = "capgate",
    version,
    about = "Lead-routing cap gateway: hard buyer caps under bursts, with books that prove them"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args, Clone)]
struct ConfigArgs {
    /// capgate.toml; without it the compiled-in defaults are used (embedded store, SQLite ledger)
    #[arg(long, value_name = "FILE", env = "CAPGATE_CONFIG")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway
    Serve {
        #[command(flatten)]
        config: ConfigArgs,
        /// Log lines as JSON
        #[arg(long)]
        log_json: bool,
    },
    /// Run the whole thing in one process: embedded store, SQLite, three stub buyers, and the headline test
    Demo(demo::DemoArgs),
    /// Validate configuration and routing, and print every problem
    Check {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Bring the ledger's schema up to date
    Migrate {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Show every cap's present window: limit, used, open, in doubt, free, next reset
    Caps(caps::CapsArgs),
    /// Compare counters and books, and repair the counters that differ
    Reconcile(reconcile::ReconcileArgs),
    /// Ask the books themselves, without a gateway
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    /// What publishers were not told: list it, or have it tried again
    #[command(subcommand)]
    Postbacks(postbacks::PostbacksCommand),
    /// Show everything about one lead: candidates, attempts, verdict, entries
    Explain(explain::ExplainArgs),
    /// End attempts that are in doubt: the unit is kept and the sale booked, or given back
    Resolve(resolve::ResolveArgs),
    /// Offer a buyer nothing more, at every gateway, until it is resumed
    Pause(switch::PauseArgs),
    /// Offer a paused buyer leads again
    Resume(switch::PauseArgs),
    /// Put the routing file in force now, whole or not at all
    Reload(switch::ReloadArgs),
    /// Send one test lead to one buyer and show what was sent, what came back and how it was read
    TryBuyer(try_buyer::TryBuyerArgs),
    /// Generate load against a running gateway
    Stress(stress::StressArgs),
    /// Make an API key: prints it once, and its SHA-256 for the routing file
    Key,
    /// Run a scriptable buyer
    StubBuyer(stub_buyer::StubBuyerArgs),
}

/// Parses the arguments and runs the command.
#[must_use]
pub fn run() -> ExitCode {
    end_with_the_reader();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own texts; `--help` and `--version` come this way too and are fine.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(BAD_ARGUMENTS) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Serve { config, log_json } => serve::run(config.config.as_deref(), log_json),
        Command::Demo(args) => demo::run(&args),
        Command::Check { config } => check::run(config.config.as_deref()),
        Command::Migrate { config } => migrate::run(config.config.as_deref()),
        Command::Caps(args) => caps::run(&args),
        Command::Reconcile(args) => reconcile::run(&args),
        Command::Ledger(command) => ledger::run(&command),
        Command::Postbacks(command) => postbacks::run(&command),
        Command::Explain(args) => explain::run(&args),
        Command::Resolve(args) => resolve::run(&args),
        Command::Pause(args) => switch::pause(&args),
        Command::Resume(args) => switch::resume(&args),
        Command::Reload(args) => switch::reload(&args),
        Command::TryBuyer(args) => try_buyer::run(&args),
        Command::Stress(args) => run_stress(args),
        Command::Key => key::run(),
        Command::StubBuyer(args) => run_stub_buyer(args),
    }
}

/// `capgate caps | head` ends when nobody reads on, and is no failure of ours. Printing has no other way to say so than a panic.
fn end_with_the_reader() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_closed_pipe = panic
            .payload_as_str()
            .is_some_and(|text| text.starts_with("failed printing to stdout") && text.contains("Broken pipe"));
        if is_closed_pipe {
            std::process::exit(0);
        }
        told(panic);
    }));
}

fn run_stress(args: stress::StressArgs) -> ExitCode {
    block_on(async {
        match stress::command(args).await {
            Ok(report) if report.failed() > 0 => fail(&format!("{} leads got no answer", report.failed())),
            Ok(report) if report.is_all_refused() => fail("every lead was refused"),
            Ok(_) => ExitCode::SUCCESS,
            Err(stress::StressError::Plan(error)) => {
                eprintln!("capgate: {error}");
                ExitCode::from(BAD_ARGUMENTS)
            }
            Err(error @ stress::StressError::Print(_)) => fail(&error.to_string()),
        }
    })
}

fn run_stub_buyer(args: stub_buyer::StubBuyerArgs) -> ExitCode {
    block_on(async {
        match stub_buyer::run(args).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        }
    })
}

/// A runtime for one command.
fn block_on(work: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => fail(&format!("cannot start: {error}")),
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("capgate: {text}");
    ExitCode::from(FAILED)
}
