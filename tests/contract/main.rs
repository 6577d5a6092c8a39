//! One list of behaviours, run on every store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod behaviours;
#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "only the shared cluster is used here")]
#[path = "../support/cluster.rs"]
mod cluster;
mod embedded;
mod embedded_file;
#[cfg(feature = "server-tests")]
mod redis;
#[cfg(feature = "server-tests")]
#[path = "../support/redis.rs"]
mod redis_support;
#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "only the shared cluster is used here")]
#[path = "../support/server.rs"]
mod server;
mod store;
mod support;
