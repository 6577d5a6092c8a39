//! `capgate postbacks list` and `replay`: what publishers were not told, from the books and without a gateway.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::ledger::with_ledger;
use super::table::table;
use super::{ConfigArgs, FAILED};
use crate::clock::{Clock as _, SystemClock};
use crate::domain::id::PublisherId;
use crate::ledger::postbacks::{PostbackReplay, PostbackRow, message_id};
use crate::ledger::{Ledger, LedgerError, PostbackState};

/// Rows of one read.
const ROWS: usize = 500;

#[derive(Debug, Subcommand)]
pub(super) enum PostbacksCommand {
    /// List postbacks: those that were tried for a day in vain, or those in another state
    List {
        #[command(flatten)]
        which: Which,
        /// One JSON object a line instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Make postbacks that have ended due again, with their old ids; exit 1 when any of those named cannot be
    Replay {
        /// Ids from the list; without any, all of the list
        ids: Vec<i64>,
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        config: ConfigArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// Only those in this state
    #[arg(long, value_enum, default_value = "dead")]
    state: State,
    /// Only those of this publisher
    #[arg(long, value_name = "ID")]
    publisher: Option<PublisherId>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    /// For its first or next try
    Waiting,
    /// The publisher has it
    Delivered,
    /// The publisher answered 410
    Gone,
    /// Tried for a day in vain
    Dead,
    /// The publisher had no postback any more
    Dropped,
}

impl From<State> for PostbackState {
    fn from(state: State) -> Self {
        match state {
            State::Waiting => Self::Waiting,
            State::Delivered => Self::Delivered,
            State::Gone => Self::Gone,
            State::Dead => Self::Dead,
            State::Dropped => Self::Dropped,
        }
    }
}

pub(super) fn run(command: &PostbacksCommand) -> ExitCode {
    match command {
        PostbacksCommand::List { which, json, config } => {
            with_ledger(config, async |ledger| list(which, *json, ledger).await)
        }
        PostbacksCommand::Replay { ids, which, config } => {
            with_ledger(config, async |ledger| replay(ids, which, ledger).await)
        }
    }
}

/// Hands every page of the list on.
async fn pages(
    which: &Which,
    ledger: &dyn Ledger,
    mut page: impl AsyncFnMut(Vec<PostbackRow>) -> Result<(), LedgerError>,
) -> Result<(), LedgerError> {
    let mut after = 0;
    loop {
        let rows = ledger.postbacks(which.state.into(), which.publisher.as_ref(), after, ROWS).await?;
        let Some(last) = rows.last().map(|row| row.id) else { return Ok(()) };
        after = last;
        page(rows).await?;
    }
}

async fn list(which: &Which, json: bool, ledger: &dyn Ledger) -> Result<ExitCode, LedgerError> {
    let mut is_empty = true;
    pages(which, ledger, async |rows| {
        is_empty = false;
        if json {
            for row in &rows {
                println!("{}", as_json(row));
            }
        } else {
            let header = ["id", "publisher", "lead", "verdict", "since", "tries", "next try", "last answer"];
            print!("{}", table(&header, rows.iter().map(as_cells).collect(), &(0..1)));
        }
        Ok(())
    })
    .await?;
    if is_empty && !json {
        // For people; a script that reads the list finds it empty.
        eprintln!("no postbacks in this state");
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(row: &PostbackRow) -> serde_json::Value {
    let PostbackRow { id, lead, status, publisher, state, tries, created_at, next_at, http_status, error } = row;
    json!({
        "id": id,
        "webhook_id": message_id(*lead, *status),
        "lead_id": lead,
        "verdict": status.as_str(),
        "publisher": publisher,
        "state": state.as_str(),
        "tries": tries,
        "since": created_at.to_string(),
        "next_try_at": next_at.map(|at| at.to_string()),
        "http_status": http_status,
        "error": error,
    })
}

fn as_cells(row: &PostbackRow) -> Vec<String> {
    let answer = match (row.http_status, &row.error) {
        (Some(status), _) => status.to_string(),
        (None, Some(error)) => error.clone(),
        (None, None) => "-".to_owned(),
    };
    vec![
        row.id.to_string(),
        row.publisher.to_string(),
        row.lead.to_string(),
        row.status.as_str().to_owned(),
        row.created_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        row.tries.to_string(),
        row.next_at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        answer,
    ]
}

async fn replay(ids: &[i64], which: &Which, ledger: &dyn Ledger) -> Result<ExitCode, LedgerError> {
    if ids.is_empty() {
        pages(which, ledger, async |rows| {
            for row in rows {
                replay_one(row.id, ledger).await?;
            }
            Ok(())
        })
        .await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_all_due = true;
    for id in ids {
        is_all_due &= replay_one(*id, ledger).await?;
    }
    Ok(if is_all_due { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

async fn replay_one(id: i64, ledger: &dyn Ledger) -> Result<bool, LedgerError> {
    let replay = ledger.replay_postback(id, SystemClock.now()).await?;
    let word = match replay {
        PostbackReplay::Waiting => "due now",
        PostbackReplay::WaitsAlready => "waits already",
        PostbackReplay::Superseded => "the lead has a later verdict, and this one must not come after it",
        PostbackReplay::Unknown => "there is no such postback",
    };
    println!("{id}  {word}");
    Ok(replay == PostbackReplay::Waiting)
}
