//! One list of behaviours, run on every store and every ledger.

mod behaviours;
mod store;
mod support;
