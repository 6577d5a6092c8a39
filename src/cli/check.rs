//! `capgate check`: every problem of both files.

use std::path::Path;
use std::process::ExitCode;

use crate::config::{self, ProcessEnvironment};
use crate::domain::window::zone_data_version;

/// Exit code for a configuration that the gateway would refuse.
const BAD_CONFIGURATION: u8 = 78;

/// Prints every problem and the count, and which time zone data caps go by; exits 0 when none of them is an error, else 78.
#[allow(clippy::print_stdout, reason = "the list of problems is this command's output")]
pub fn run(config: Option<&Path>) -> ExitCode {
    let problems = config::check(config, &ProcessEnvironment);
    println!("{problems}");
    println!("time zone data {}, compiled in", zone_data_version());
    if problems.errors() == 0 { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIGURATION) }
}
