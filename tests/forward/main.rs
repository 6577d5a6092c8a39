//! Talking to buyers over real sockets: what they do to us, and what we learn from it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod answers;
mod deadline;
mod privacy;
mod shapes;
mod stress;
mod support;
mod try_buyer;
mod unsent;
