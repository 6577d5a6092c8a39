//! `capgate migrate`

use std::path::Path;
use std::process::ExitCode;

use super::{BAD_CONFIG, block_on, fail};
use crate::app::open_ledger;
use crate::config::{self, ProcessEnvironment};

pub(super) fn run(path: Option<&Path>) -> ExitCode {
    let config = match config::load(path, &ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    block_on(async {
        let ledger = match open_ledger(&config).await {
            Ok(ledger) => ledger,
            Err(error) => return fail(&error.to_string()),
        };
        let result = ledger.migrate().await;
        ledger.shut_down().await;
        match result {
            Ok(steps) => {
                for step in &steps {
                    let state = if step.was_applied_now { "applied" } else { "in force" };
                    println!("{:>4}  {:<10} {}", step.version, state, step.description);
                }
                let applied = steps.iter().filter(|step| step.was_applied_now).count();
                let last = steps.last().map_or(0, |step| step.version);
                println!("the ledger is at migration {last}; {applied} applied now");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error.to_string()),
        }
    })
}
