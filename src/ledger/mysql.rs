//! The books in MySQL 8 and 9 or MariaDB 10.11 and later: the SQL that all of them understand.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::migrate::{Migrate, Migration};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlPool, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, Row as _};

use super::sql::SqlLedger;
use super::sql::schema;
use super::sql::session::{
    ACQUIRE_TIMEOUT, Database, DbError, Dialect, Kind, Pooled, Row, STATEMENT_TIMEOUT, Session, Value, bind, bounded,
    classify_driver, released, session,
};
use super::{LedgerError, MigrationStep};
use crate::domain::routing::Secret;

const MIGRATIONS: &[schema::Source] = &[
    schema::Source { version: 1, description: "books", sql: include_str!("../../migrations/mysql/0001_books.sql") },
    schema::Source { version: 2, description: "lives", sql: include_str!("../../migrations/mysql/0002_lives.sql") },
    schema::Source {
        version: 3,
        description: "usage begun",
        sql: include_str!("../../migrations/mysql/0003_usage_begun.sql"),
    },
    schema::Source { version: 4, description: "returns", sql: include_str!("../../migrations/mysql/0004_returns.sql") },
    schema::Source {
        version: 5,
        description: "lead keys",
        sql: include_str!("../../migrations/mysql/0005_lead_keys.sql"),
    },
    schema::Source {
        version: 6,
        description: "postbacks",
        sql: include_str!("../../migrations/mysql/0006_postbacks.sql"),
    },
    schema::Source {
        version: 7,
        description: "attempt details",
        sql: include_str!("../../migrations/mysql/0007_attempt_details.sql"),
    },
];

/// Strict mode refuses what it would otherwise bend (F73). READ COMMITTED, because under the default the first read of a
/// transaction fixes what all its reads see, and a settler must see rows that another one committed while it waited. A
/// lock wait shorter than the statement's time-out, so that the server says who was in the way. A gateway that is stopped in
/// the middle of settling keeps the marks locked; its server ends such a session after [`SESSION_IDLE_MAX`], and the others
/// settle on.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
    ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', SESSION time_zone = '+00:00', \
    SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 20, SESSION wait_timeout = 10";
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// `wait_timeout` above: how long a session may be silent.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(10);

/// Most bytes of arguments in one statement, whatever the server would take.
const STATEMENT_BYTES_MAX: usize = 4 << 20;

/// Room for the statement's text and the protocol inside one packet.
const PACKET_OVERHEAD: usize = 64 << 10;

/// The connections of a MySQL or MariaDB server.
#[derive(Debug)]
pub struct MysqlDatabase {
    pool: MySqlPool,
    packet_bytes_max: usize,
}

/// The books in MySQL or MariaDB.
pub type MysqlLedger = SqlLedger<MysqlDatabase>;

impl SqlLedger<MysqlDatabase> {
    /// Connects once, to say clearly what is wrong if something is, and keeps a pool. Neither errors nor logs hold the
    /// URL (P9).
    pub async fn connect(url: &Secret, connections_max: u32) -> Result<Self, LedgerError> {
        let options = MySqlConnectOptions::from_str(url.expose())
            .map_err(|_| {
                LedgerError::Schema(
                    "the URL cannot be read: it should be mysql://user:password@host:3306/database".to_owned(),
                )
            })?
            .charset("utf8mb4")
            .timezone(None)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .disable_statement_logging();
        if options.get_database().is_none_or(str::is_empty) {
            return Err(LedgerError::Schema(
                "the URL names no database: mysql://user:password@host:3306/database".into(),
            ));
        }
        let place = format!("{}:{}", options.get_host(), options.get_port());
        let first = tokio::time::timeout(ACQUIRE_TIMEOUT, first_contact(&options));
        let Ok(contact) = first.await else {
            let seconds = ACQUIRE_TIMEOUT.as_secs();
            return Err(LedgerError::NotDone(format!("{place}: no connection within {seconds} s")));
        };
        let packet_bytes_max = contact.map_err(|error| match classify(&error) {
            DbError::Away(text) | DbError::Broken(text) => LedgerError::NotDone(format!("{place}: {text}")),
            other => other.into(),
        })?;
        let pool = MySqlPoolOptions::new()
            .max_connections(connections_max.max(2))
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // Closed here before the server does it.
            .idle_timeout(Some(SESSION_IDLE_MAX / 2))
            .after_connect(|connection, _| Box::pin(set_up(connection)))
            .connect_lazy_with(options);
        Ok(Self::new(MysqlDatabase { pool, packet_bytes_max }))
    }
}

/// The largest packet that the server takes.
async fn first_contact(options: &MySqlConnectOptions) -> Result<usize, sqlx::Error> {
    let mut connection = options.connect().await?;
    set_up(&mut connection).await?;
    let bytes: u64 = sqlx::query_scalar("SELECT @@max_allowed_packet").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

async fn set_up(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    connection.execute(SESSION).await?;
    connection.execute(ISOLATION).await?;
    Ok(())
}

impl MysqlDatabase {
    async fn acquire(&self) -> Result<Box<dyn Session>, DbError> {
        let connection = self.pool.acquire().await.map_err(|error| classify(&error))?;
        Ok(Box::new(Pooled(Some(connection))))
    }
}

#[async_trait]
impl Database for MysqlDatabase {
    fn dialect(&self) -> Dialect {
        Dialect {
            begin: "START TRANSACTION",
            begin_snapshot: &[
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
            ],
            now: "UTC_TIMESTAMP(6)",
            skip_locked: " FOR UPDATE SKIP LOCKED",
            is_mysql: true,
            placeholders_max: 65_535,
            statement_bytes_max: STATEMENT_BYTES_MAX.min(self.packet_bytes_max / 2),
            row_bytes_max: self.packet_bytes_max.saturating_sub(PACKET_OVERHEAD),
        }
    }

    async fn reader(&self) -> Result<Box<dyn Session>, DbError> {
        self.acquire().await
    }

    async fn writer(&self) -> Result<Box<dyn Session>, DbError> {
        self.acquire().await
    }

    fn migrations(&self) -> Vec<Migration> {
        schema::migrations(MIGRATIONS)
    }

    async fn migrate(&self) -> Result<Vec<MigrationStep>, LedgerError> {
        let away = |error| LedgerError::from(classify(&error));
        // Detached, so that the lock below ends with it whatever happens.
        let mut connection = self.pool.acquire().await.map_err(away)?.detach();
        let locked: Option<i64> =
            sqlx::query_scalar("SELECT GET_LOCK(CONCAT('capgate:', LEFT(SHA2(DATABASE(), 256), 48)), ?)")
                .bind(i64::try_from(STATEMENT_TIMEOUT.as_secs()).unwrap_or(i64::MAX))
                .fetch_one(&mut connection)
                .await
                .map_err(away)?;
        if locked != Some(1) {
            return Err(LedgerError::NotDone("another gateway is still migrating the ledger".to_owned()));
        }
        connection.ensure_migrations_table().await.map_err(|error| schema::explain(&error, classify))?;
        // Under the lock, a migration without success is one that was interrupted. Each can run again.
        sqlx::query("DELETE FROM _sqlx_migrations WHERE success = FALSE")
            .execute(&mut connection)
            .await
            .map_err(away)?;
        let steps = schema::apply(&mut connection, self.migrations(), classify).await?;
        connection.close().await.map_err(away)?;
        Ok(steps)
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

session!(sqlx::MySql, classify);

/// Reads an error by its number; messages may quote values and names.
fn classify(error: &sqlx::Error) -> DbError {
    if let Some(error) = classify_driver(error) {
        return error;
    }
    let sqlx::Error::Database(error) = error else {
        return DbError::Bug("not an error of the database".to_owned());
    };
    let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() else {
        return DbError::Bug("not an error of this database".to_owned());
    };
    let number = error.number();
    let text = |what: &str| format!("{what} ({number})");
    match number {
        1213 => DbError::Conflict(text("deadlock")),
        1205 => DbError::Conflict(text("lock wait")),
        1020 => DbError::Conflict(text("a row changed meanwhile")),
        1062 | 1586 => DbError::Duplicate,
        1044 | 1045 | 1698 => DbError::Away(text("access denied: check user, password and grants")),
        1049 => DbError::Away(text("the database does not exist: create it first")),
        1040 | 1203 => DbError::Away(text("too many connections")),
        1290 | 1792 | 1836 => DbError::Away(text("the server is read-only")),
        1021 | 1114 => DbError::Away(text("the server's disk is full")),
        1053 | 1927 | 1317 | 3024 | 1969 => DbError::Broken(text("the server ended the statement")),
        1146 | 1054 => DbError::Schema(text("tables or columns are missing, run `capgate migrate`")),
        1153 => DbError::Refused(text("larger than the server's max_allowed_packet")),
        1064 => DbError::Bug(text("the server cannot read the statement")),
        _ => match error.code().map_or("", |state| state.get(..2).unwrap_or("")) {
            // Data, integrity, and what a trigger says.
            "22" | "23" | "45" => DbError::Refused(text("the database refused the row")),
            _ => DbError::Away(text("the server refused the statement")),
        },
    }
}
