//! The Redis store's scripts on a real server, beyond what every store does: broken and deleted keys, expiries, lost replies,
//! a full, stalled, restarted or clustered server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

#[allow(dead_code, reason = "the contract uses the rest")]
#[path = "../support/cluster.rs"]
mod cluster_support;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/redis.rs"]
mod redis_support;
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/server.rs"]
mod server;
#[path = "../contract/support.rs"]
#[allow(dead_code, reason = "the contract uses the rest")]
mod support;
mod world;

mod cluster;
mod counters;
mod faults;
mod leads;
mod leases;
mod lives;
mod reconcile;
mod returns;
mod setup;
