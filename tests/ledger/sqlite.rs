//! The list on SQLite, and what only SQLite does.

use std::path::Path;
use std::sync::Arc;

use capgate::ledger::sqlite::SqliteLedger;
use capgate::ledger::{Ledger, LedgerError};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use crate::support::{Books, Raw};

pub async fn open_ledger(path: &str) -> Arc<dyn Ledger> {
    Arc::new(SqliteLedger::open(Path::new(path), 4).await.unwrap())
}

pub async fn open() -> Books {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    let place = path.to_str().unwrap().to_owned();
    let ledger = open_ledger(&place).await;
    let raw = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&path)).await.unwrap();
    Books { ledger, raw: Raw::Sqlite(raw), place, folder: Some(folder) }
}

crate::all_behaviours!(crate::sqlite::open);

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_named() {
    let error = SqliteLedger::open(Path::new("/nonexistent/books.db"), 4).await.unwrap_err();
    let LedgerError::NotDone(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("/nonexistent/books.db") && text.contains("cannot be opened"), "{text}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    std::fs::write(&path, "this is not a database, whatever its name says".repeat(100)).unwrap();
    let error = SqliteLedger::open(&path, 4).await.unwrap_err();
    assert!(matches!(&error, LedgerError::Schema(text) if text.contains("not a SQLite database")), "{error:?}");
}
