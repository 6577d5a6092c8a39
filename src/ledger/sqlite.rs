//! ledger/sqlite
