//! The whole gateway: from the POST to the books, embedded and on real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod crash;
mod headline;
mod operations;
mod outcomes;
