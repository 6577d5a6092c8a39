//! capgate: a lead-routing cap gateway.
//!
//! The walk is the architecture: intake, filter, admit, lease, forward, settle, close, reply. Steps decide, seams (`store`,
//! `ledger`, `forward`) do I/O.

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod desk;
pub mod domain;
pub mod explain;
pub mod filter;
pub mod forward;
pub mod intake;
pub mod lease;
pub mod ledger;
pub mod openapi;
pub mod pipeline;
pub mod postback;
pub mod settle;
pub mod shutdown;
pub mod status;
pub mod store;
pub mod telemetry;
