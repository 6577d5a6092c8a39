//! `capgate ledger check`: exit 0 when the books agree with themselves, 1 when they do not.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{BAD_CONFIG, ConfigArgs, FAILED, block_on, fail};
use crate::app::open_ledger;
use crate::clock::{Clock as _, SystemClock};
use crate::config::{self, ProcessEnvironment};
use crate::ledger::audit::{Audit, Period};

/// What happened so short a time ago may be settled only in part.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(super) enum LedgerCommand {
    /// Compare the books with themselves: entries with attempts and verdicts, balances with entries, cap usage with attempts
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Leads received and cap windows started at or after it: 2026-03-08 (UTC) or 2026-03-08T05:00:00Z; without it, all
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// And before it; without it, until a minute ago, because what is younger may be settled only in part
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// A UTC date, which means its midnight, or an instant.
fn parse_time(text: &str) -> Result<Timestamp, String> {
    let midnight = |date: Date| TimeZone::UTC.to_timestamp(date.to_datetime(Time::midnight()));
    text.parse()
        .or_else(|_| text.parse().and_then(midnight))
        .map_err(|_| "use a UTC date like 2026-03-08 or an instant like 2026-03-08T05:00:00Z".to_owned())
}

pub(super) fn run(command: &LedgerCommand) -> ExitCode {
    match command {
        LedgerCommand::Check(args) => check(args),
    }
}

fn check(args: &CheckArgs) -> ExitCode {
    let config = match config::load(args.config.config.as_deref(), &ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let until = args.until.unwrap_or_else(|| SystemClock.now() - SETTLES_WITHIN);
    let is_watched = std::io::stderr().is_terminal() && !args.json;
    block_on(async {
        let ledger = match open_ledger(&config).await {
            Ok(ledger) => ledger,
            Err(error) => return fail(&error.to_string()),
        };
        let progress = |rows| {
            if is_watched {
                eprint!("\r{rows} rows");
            }
        };
        let result = match ledger.check_schema().await {
            Ok(()) => ledger.audit(Period { since: args.since, until }, &progress).await,
            Err(error) => Err(error),
        };
        ledger.shut_down().await;
        if is_watched {
            eprintln!();
        }
        let audit = match result {
            Ok(audit) => audit,
            Err(error) => return fail(&error.to_string()),
        };
        if args.json {
            println!("{:#}", json!(audit));
        } else {
            print!("{}", as_text(&audit));
        }
        if audit.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
    })
}

fn as_text(audit: &Audit) -> String {
    let mut text: String = audit.findings.iter().flat_map(|finding| [finding.to_string(), "\n".to_owned()]).collect();
    let told = u64::try_from(audit.findings.len()).unwrap_or(u64::MAX);
    if audit.found > told {
        text.push_str(&["and ", &(audit.found - told).to_string(), " more\n"].concat());
    }
    let Audit { leads, attempts, entries, windows, accounts, found, .. } = audit;
    text + &format!(
        "{leads} leads, {attempts} attempts, {entries} entries, {windows} cap windows, {accounts} accounts: {found} \
         differences\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_date_or_an_instant() {
        let at = |text: &str| parse_time(text).map(|at| at.to_string());
        assert_eq!(at("2026-03-08"), Ok("2026-03-08T00:00:00Z".to_owned()));
        assert_eq!(at("2026-03-08T05:00:00-05:00"), Ok("2026-03-08T10:00:00Z".to_owned()));
        for bad in ["", "yesterday", "2026-13-01", "08.03.2026", "2026-03-08 05:00"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
