//! Talking to buyers over real sockets: what they do to us, and what we learn from it.

mod answers;
mod deadline;
mod stress;
mod support;
mod unsent;
