//! The `capgate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    capgate::cli::run()
}
