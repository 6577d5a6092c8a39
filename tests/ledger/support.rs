//! Books to test, and a second way into them.

use std::future::Future;
use std::sync::Arc;

use capgate::ledger::{Ledger, Settled};
use sqlx::{MySqlPool, Row as _, SqlitePool};

use crate::journal::{Journal, PARTITIONS};

/// A database of its own for one test.
pub struct Books {
    pub ledger: Arc<dyn Ledger>,
    pub raw: Raw,
    /// Where it is, for opening it again: a path or a URL.
    pub place: String,
    /// Removed with the books.
    pub folder: Option<tempfile::TempDir>,
}

/// Direct access, past the code under test.
#[derive(Clone)]
pub enum Raw {
    Sqlite(SqlitePool),
    #[cfg_attr(not(feature = "server-tests"), allow(dead_code, reason = "made only where there is a server"))]
    Mysql(MySqlPool),
}

impl Raw {
    /// Runs a statement.
    pub async fn run(&self, sql: &str) {
        match self {
            Self::Sqlite(pool) => drop(sqlx::raw_sql(sql).execute(pool).await.unwrap()),
            Self::Mysql(pool) => drop(sqlx::raw_sql(sql).execute(pool).await.unwrap()),
        }
    }

    /// The one number of a query.
    pub async fn number(&self, sql: &str) -> i64 {
        match self {
            Self::Sqlite(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
            Self::Mysql(pool) => sqlx::query_scalar(sql).fetch_one(pool).await.unwrap(),
        }
    }

    /// The first column of a query, as text.
    pub async fn texts(&self, sql: &str) -> Vec<Option<String>> {
        match self {
            Self::Sqlite(pool) => sqlx::query_scalar(sql).fetch_all(pool).await.unwrap(),
            // The driver takes texts that are compared byte for byte for bytes.
            Self::Mysql(pool) => {
                let rows = sqlx::query(sql).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| row.try_get_unchecked(0).unwrap()).collect()
            }
        }
    }

    /// How the database carries out a query: table and way of access, step by step.
    pub async fn plan(&self, sql: &str) -> Vec<(String, String)> {
        match self {
            Self::Sqlite(pool) => {
                let rows = sqlx::raw_sql(&format!("EXPLAIN QUERY PLAN {sql}")).fetch_all(pool).await.unwrap();
                rows.iter().map(|row| (String::new(), row.get("detail"))).collect()
            }
            Self::Mysql(pool) => {
                let rows = sqlx::raw_sql(&format!("EXPLAIN FORMAT=TRADITIONAL {sql}")).fetch_all(pool).await.unwrap();
                let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
                let cell = |row: &sqlx::mysql::MySqlRow, name| text(row.try_get_unchecked(name).unwrap());
                rows.iter().map(|row| (cell(row, "table"), cell(row, "type"))).collect()
            }
        }
    }

    pub fn is_mysql(&self) -> bool {
        matches!(self, Self::Mysql(_))
    }
}

impl Books {
    /// A second gateway's ledger over the same database.
    pub async fn open_again(&self) -> Arc<dyn Ledger> {
        match &self.raw {
            Raw::Sqlite(_) => crate::sqlite::open_ledger(&self.place).await,
            #[cfg(feature = "server-tests")]
            Raw::Mysql(_) => crate::mysql::open_ledger(&self.place).await,
            #[cfg(not(feature = "server-tests"))]
            Raw::Mysql(_) => unreachable!("books in MySQL exist only with the feature server-tests"),
        }
    }

    /// Settles in batches of `rows_max` until nothing is left.
    pub async fn settle_all(&self, journal: &Journal, rows_max: usize) -> Vec<Settled> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let settled = self.ledger.settle(journal, rows_max).await.unwrap();
            if settled.marks.is_empty() {
                return all;
            }
            all.push(settled);
        }
        panic!("settlement never ends");
    }

    /// Forgets that anything was settled; the rows stay.
    pub async fn put_marks_back(&self) {
        self.raw.run("UPDATE settlement_marks SET entry_ms = 0, entry_seq = 0").await;
    }

    /// Everything that settlement writes, in an order of its own. Numbers that the database counts up are left out.
    pub async fn dump(&self) -> Vec<Option<String>> {
        let text = |columns: &[&str]| {
            let columns: Vec<_> =
                columns.iter().map(|column| format!("COALESCE(CAST({column} AS CHAR), '-')")).collect();
            if self.raw.is_mysql() {
                format!("CONCAT_WS('|', {})", columns.join(", "))
            } else {
                columns.join(" || '|' || ")
            }
        };
        let tables: [(&str, &[&str]); 5] = [
            (
                "leads",
                &[
                    "HEX(lead_id)",
                    "publisher_id",
                    "campaign_id",
                    "status",
                    "reason",
                    "buyer_id",
                    "price_micros",
                    "payout_micros",
                    "currency",
                    "test",
                    "received_at",
                    "closed_at",
                    "has_received",
                    "has_payload",
                    "payload",
                    "explanation",
                    "answer",
                    "HEX(key_hash)",
                    "HEX(fingerprint)",
                ],
            ),
            (
                "attempts",
                &[
                    "HEX(lead_id)",
                    "buyer_id",
                    "publisher_id",
                    "ordinal",
                    "outcome",
                    "counted",
                    "http_status",
                    "reason",
                    "sent_at",
                    "duration_us",
                    "windows",
                    "price_micros",
                    "payout_micros",
                    "currency",
                ],
            ),
            ("entries", &["HEX(lead_id)", "buyer_id", "account", "amount_micros", "currency", "kind", "booked_at"]),
            ("balances", &["account", "currency", "balance_micros"]),
            // A window that everything was given back to is as good as none.
            ("cap_usage WHERE used <> 0", &["buyer_id", "HEX(cap_id)", "window_start", "used"]),
        ];
        let mut dump = Vec::new();
        for (table, columns) in tables {
            dump.push(Some(table.to_owned()));
            dump.extend(self.raw.texts(&format!("SELECT {} AS line FROM {table} ORDER BY line", text(columns))).await);
        }
        dump
    }
}

/// Migrates, makes marks, runs the test, removes what it made, and only then reports how it went.
pub async fn run<F: Future<Output = ()> + Send + 'static>(books: Books, test: impl FnOnce(Arc<Books>) -> F) {
    let books = Arc::new(books);
    books.ledger.migrate().await.unwrap();
    books.ledger.marks(PARTITIONS).await.unwrap();
    let result = tokio::spawn(test(books.clone())).await;
    books.ledger.shut_down().await;
    #[cfg(feature = "server-tests")]
    crate::mysql::remove(&books).await;
    if let Some(folder) = Arc::into_inner(books).and_then(|books| books.folder) {
        folder.close().unwrap();
    }
    if let Err(error) = result {
        std::panic::resume_unwind(error.into_panic());
    }
}
