//! `capgate ledger check`, `dead-letters` and `replay`: the books, without a gateway.

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
use crate::config::{self, LedgerUrl, ProcessEnvironment};
use crate::ledger::audit::{Audit, Period};
use crate::ledger::{DeadLetterRow, Ledger, LedgerError, Replayed};

/// Dead letters of one read.
const LETTERS: usize = 100;

/// What happened so short a time ago may be settled only in part.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug, Subcommand)]
pub(super) enum LedgerCommand {
    /// Compare the books with themselves: entries with attempts and verdicts, balances with entries, cap usage with attempts
    Check(CheckArgs),
    /// List events that could not be stored, and why
    DeadLetters {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Try once more to store events that could not be stored; exit 1 when any of them still cannot be
    Replay {
        /// Ids of dead letters; without any, all of them
        ids: Vec<i64>,
        #[command(flatten)]
        config: ConfigArgs,
    },
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
    // The parser of dates takes what stands behind them too, and forgets it.
    let is_date = text.len() == "2026-03-08".len();
    let midnight = |date: Date| TimeZone::UTC.to_timestamp(date.to_datetime(Time::midnight()));
    let date = || if is_date { text.parse().and_then(midnight).ok() } else { None };
    text.parse()
        .ok()
        .or_else(date)
        .ok_or_else(|| "use a UTC date like 2026-03-08 or an instant like 2026-03-08T05:00:00Z".to_owned())
}

pub(super) fn run(command: &LedgerCommand) -> ExitCode {
    match command {
        LedgerCommand::Check(args) => with_ledger(&args.config, async |ledger| check(args, ledger).await),
        LedgerCommand::DeadLetters { config } => with_ledger(config, dead_letters),
        LedgerCommand::Replay { ids, config } => with_ledger(config, async |ledger| replay(ids, ledger).await),
    }
}

/// Runs work on the books that the configuration names.
pub(super) fn with_ledger(
    config: &ConfigArgs,
    work: impl AsyncFnOnce(&dyn Ledger) -> Result<ExitCode, LedgerError>,
) -> ExitCode {
    let config = match config::load(config.config.as_deref(), &ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let place = match &config.ledger.url {
        LedgerUrl::Sqlite(path) if !path.exists() => {
            return fail(&format!("there is no ledger at {}: name the gateway's configuration", path.display()));
        }
        LedgerUrl::Sqlite(path) => path.display().to_string(),
        LedgerUrl::Mysql(_) => "the MySQL ledger".to_owned(),
    };
    block_on(async {
        let ledger = match open_ledger(&config).await {
            Ok(ledger) => ledger,
            Err(error) => return fail(&error.to_string()),
        };
        let result = match ledger.check_schema().await {
            Ok(()) => work(&*ledger).await,
            Err(error) => Err(error),
        };
        ledger.shut_down().await;
        result.unwrap_or_else(|error| fail(&format!("{place}: {error}")))
    })
}

async fn dead_letters(ledger: &dyn Ledger) -> Result<ExitCode, LedgerError> {
    let mut after = 0;
    loop {
        let letters = ledger.dead_letters(after, LETTERS).await?;
        for letter in &letters {
            let DeadLetterRow { id, partition, at, reason, has_event } = letter;
            let lost = if *has_event { "" } else { " (the event itself was not kept)" };
            println!("{id}  {at}  partition {}  {reason}{lost}", partition.0);
        }
        match letters.last() {
            Some(last) if letters.len() == LETTERS => after = last.id,
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn replay(ids: &[i64], ledger: &dyn Ledger) -> Result<ExitCode, LedgerError> {
    let mut is_all_stored = true;
    if ids.is_empty() {
        let mut after = 0;
        loop {
            let letters = ledger.dead_letters(after, LETTERS).await?;
            for letter in &letters {
                is_all_stored &= replay_one(letter.id, ledger).await?;
            }
            match letters.last() {
                Some(last) if letters.len() == LETTERS => after = last.id,
                _ => break,
            }
        }
    }
    for id in ids {
        is_all_stored &= replay_one(*id, ledger).await?;
    }
    Ok(if is_all_stored { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

async fn replay_one(id: i64, ledger: &dyn Ledger) -> Result<bool, LedgerError> {
    let (is_stored, word) = match ledger.replay(id).await? {
        Replayed::Stored => (true, "stored".to_owned()),
        Replayed::Refused(reason) => (false, reason),
        Replayed::WithoutEvent => (false, "the event itself was not kept".to_owned()),
        Replayed::Gone => (false, "there is no such dead letter".to_owned()),
    };
    println!("{id}  {word}");
    Ok(is_stored)
}

async fn check(args: &CheckArgs, ledger: &dyn Ledger) -> Result<ExitCode, LedgerError> {
    let until = args.until.unwrap_or_else(|| SystemClock.now() - SETTLES_WITHIN);
    let is_watched = std::io::stderr().is_terminal() && !args.json;
    let progress = |rows| {
        if is_watched {
            eprint!("\r{rows} rows");
        }
    };
    let audit = ledger.audit(Period { since: args.since, until }, &progress).await?;
    if is_watched {
        eprintln!();
    }
    if args.json {
        println!("{:#}", json!(audit));
    } else {
        print!("{}", as_text(&audit, until));
    }
    Ok(if audit.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn as_text(audit: &Audit, until: Timestamp) -> String {
    let mut text: String = audit.findings.iter().flat_map(|finding| [finding.to_string(), "\n".to_owned()]).collect();
    let told = u64::try_from(audit.findings.len()).unwrap_or(u64::MAX);
    if audit.found > told {
        text.push_str(&["and ", &(audit.found - told).to_string(), " more\n"].concat());
    }
    let Audit { leads, attempts, entries, windows, accounts, found, .. } = audit;
    text + &format!(
        "until {until}: {leads} leads, {attempts} attempts, {entries} entries, {windows} cap windows, {accounts} accounts: \
         {found} differences\n"
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
