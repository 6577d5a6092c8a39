//! ledger/mysql
