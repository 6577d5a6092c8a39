//! The whole gateway: from the POST to the books, embedded and on real servers.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod crash;
mod headline;
mod operations;
mod outcomes;
