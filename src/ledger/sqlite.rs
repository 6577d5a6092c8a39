//! The books in one SQLite file: a ledger with nothing to install.
//!
//! One connection writes, the others read beside it (WAL). A second process may use the same file (the command line
//! beside a running gateway); writers then wait for each other.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::Migration;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Row as _};

use super::sql::SqlLedger;
use super::sql::schema;
use super::sql::session::{
    ACQUIRE_TIMEOUT, Database, DbError, Dialect, Kind, Pooled, Row, Session, Value, bind, bounded, classify_driver,
    released, session,
};
use super::{LedgerError, MigrationStep};

/// How long a writer waits for a writer of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two tries to open a file that another process is opening for the first time.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

const MIGRATIONS: &[schema::Source] = &[
    schema::Source { version: 1, description: "books", sql: include_str!("../../migrations/sqlite/0001_books.sql") },
    schema::Source { version: 2, description: "lives", sql: include_str!("../../migrations/sqlite/0002_lives.sql") },
    schema::Source {
        version: 3,
        description: "usage begun",
        sql: include_str!("../../migrations/sqlite/0003_usage_begun.sql"),
    },
    schema::Source {
        version: 4,
        description: "returns",
        sql: include_str!("../../migrations/sqlite/0004_returns.sql"),
    },
    schema::Source {
        version: 5,
        description: "lead keys",
        sql: include_str!("../../migrations/sqlite/0005_lead_keys.sql"),
    },
    schema::Source {
        version: 6,
        description: "postbacks",
        sql: include_str!("../../migrations/sqlite/0006_postbacks.sql"),
    },
    schema::Source {
        version: 7,
        description: "attempt details",
        sql: include_str!("../../migrations/sqlite/0007_attempt_details.sql"),
    },
];

const DIALECT: Dialect = Dialect {
    // A deferred transaction that read before it writes cannot wait for another writer; this one waits at its start.
    begin: "BEGIN IMMEDIATE",
    begin_snapshot: &["BEGIN"],
    now: "(STRFTIME('%Y-%m-%d %H:%M:%f', 'now') || '000')",
    skip_locked: "",
    is_mysql: false,
    placeholders_max: 32_766,
    statement_bytes_max: 4 << 20,
    row_bytes_max: 256 << 20,
};

/// The connections of a SQLite file.
#[derive(Debug)]
pub struct SqliteDatabase {
    writer: SqlitePool,
    readers: SqlitePool,
}

/// The books in a SQLite file.
pub type SqliteLedger = SqlLedger<SqliteDatabase>;

impl SqlLedger<SqliteDatabase> {
    /// Opens the file, or makes it. The schema is brought up to date by [`super::Ledger::migrate`].
    pub async fn open(path: &Path, connections_max: u32) -> Result<Self, LedgerError> {
        make_private(path).map_err(|error| {
            LedgerError::NotDone(format!("{}: the file cannot be opened: {}", path.display(), error.kind()))
        })?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // The journal is trimmed once a mark is committed, so a commit must survive a power cut (P5).
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        let pool = |connections: u32| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(ACQUIRE_TIMEOUT + BUSY_TIMEOUT)
                .idle_timeout(None)
                .max_lifetime(None)
        };
        // The first connection makes the file and turns WAL on, before readers that may do neither. Of two processes that turn
        // it on at once, SQLite refuses one at once, whatever `busy_timeout` says.
        let deadline = tokio::time::Instant::now() + BUSY_TIMEOUT;
        let opened = loop {
            match pool(1).connect_with(options.clone()).await {
                Err(error) if is_busy(&error) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                opened => break opened,
            }
        };
        let writer = opened.map_err(|error| {
            let name = path.display();
            match classify(&error) {
                DbError::Schema(text) => LedgerError::Schema(format!("{name}: {text}")),
                DbError::Away(text) | DbError::Broken(text) | DbError::Conflict(text) | DbError::Bug(text) => {
                    LedgerError::NotDone(format!("{name}: {text}"))
                }
                other => other.into(),
            }
        })?;
        let readers =
            pool(connections_max.max(2) - 1).connect_lazy_with(options.create_if_missing(false).read_only(true));
        Ok(Self::new(SqliteDatabase { writer, readers }))
    }
}

/// Makes the file, if there is none, for nobody else to read: it holds personal data (P9). The database gives its side files
/// the same rights. One that is there is not opened: closing it again would drop the locks that other connections of this process
/// hold on it, and the next process to end would take itself for the last one and remove the log that is still in use.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[async_trait]
impl Database for SqliteDatabase {
    fn dialect(&self) -> Dialect {
        DIALECT
    }

    async fn reader(&self) -> Result<Box<dyn Session>, DbError> {
        let connection = self.readers.acquire().await.map_err(|error| classify(&error))?;
        Ok(Box::new(Pooled(Some(connection))))
    }

    async fn writer(&self) -> Result<Box<dyn Session>, DbError> {
        let connection = self.writer.acquire().await.map_err(|error| classify(&error))?;
        Ok(Box::new(Pooled(Some(connection))))
    }

    fn migrations(&self) -> Vec<Migration> {
        schema::migrations(MIGRATIONS)
    }

    async fn migrate(&self) -> Result<Vec<MigrationStep>, LedgerError> {
        let away = |error| LedgerError::from(classify(&error));
        let mut connection = self.writer.acquire().await.map_err(away)?.detach();
        // All migrations in one transaction: whoever comes second waits at its start and finds them applied.
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(away)?;
        let steps = schema::apply(&mut *transaction, self.migrations(), classify).await?;
        transaction.commit().await.map_err(away)?;
        Ok(steps)
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

session!(sqlx::Sqlite, classify);

fn is_busy(error: &sqlx::Error) -> bool {
    matches!(classify(error), DbError::Conflict(_))
}

/// Reads an error by its result code; messages may quote values.
fn classify(error: &sqlx::Error) -> DbError {
    if let Some(error) = classify_driver(error) {
        return error;
    }
    let sqlx::Error::Database(error) = error else {
        return DbError::Bug("not an error of the database".to_owned());
    };
    let code: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(0);
    let text = |what: &str| format!("{what} (SQLite {code})");
    match (code, code & 0xff) {
        (2067 | 1555, _) => DbError::Duplicate,
        (_, 5 | 6) => DbError::Conflict(text("another writer is busy")),
        // Constraints, too big, wrong type: the row's own fault.
        (_, 18..=20) => DbError::Refused(text("the database refused the row")),
        (_, 8) => DbError::Away(text("the file is read-only")),
        (_, 10) => DbError::Away(text("the disk failed")),
        (_, 13) => DbError::Away(text("the disk is full")),
        (_, 14) => DbError::Away(text("the file cannot be opened")),
        (_, 11 | 26) => DbError::Schema(text("the file is damaged or not a SQLite database")),
        (_, 1) if error.message().starts_with("no such") => {
            DbError::Schema(text("tables are missing, run `capgate migrate`"))
        }
        _ => DbError::Bug(text("the database refused the statement")),
    }
}
