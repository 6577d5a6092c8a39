//! The whole gateway: from the POST to the books, embedded and on real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "helpers of tests are tests")]

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/proxy.rs"]
mod replies;

mod bad_input;
mod breaker;
mod caps;
#[cfg(feature = "server-tests")]
mod clocks;
#[cfg(feature = "server-tests")]
mod cluster;
#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/cluster.rs"]
mod cluster_support;
mod crash;
mod decisions;
mod duplicates;
mod elsewhere;
mod headline;
mod inputs;
mod ledger_away;
#[cfg(feature = "server-tests")]
mod lives;
mod openapi;
mod operations;
mod outcomes;
mod postbacks;
mod privacy;
mod reconcile;
#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "only the raw connection is used here")]
#[path = "../support/redis.rs"]
mod redis_support;
mod resolve;
mod returns;
#[cfg(feature = "server-tests")]
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "../support/server.rs"]
mod server;
mod settling;
#[cfg(feature = "server-tests")]
mod soak;
mod sockets;
#[cfg(feature = "server-tests")]
mod store_setup;
#[cfg(feature = "server-tests")]
mod strained;
mod timeouts;
mod tls;
mod twins;
mod upkeep;
mod zones;
