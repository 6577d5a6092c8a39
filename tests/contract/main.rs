//! One list of behaviours, run on every store and every ledger.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod behaviours;
mod embedded;
mod embedded_file;
#[cfg(feature = "server-tests")]
mod redis;
#[cfg(feature = "server-tests")]
#[path = "../support/redis.rs"]
mod redis_support;
mod store;
mod support;
