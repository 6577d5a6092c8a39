//! One list of behaviours, run on every store and every ledger.
