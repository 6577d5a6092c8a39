//! What both databases look like from above: a connection that takes statements with arguments and gives rows. Statements
//! are written once, against this; `mysql` and `sqlite` differ only in [`Dialect`], in how errors are read, and in how
//! connections are made.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::domain::id::LeadId;
use crate::domain::person::PersonDigest;
use crate::ledger::{GatewayId, LedgerError, MigrationStep};

/// Longest wait for one statement. A database that hangs must not hold a settler for ever (P7).
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

const HEX: &[u8; 16] = b"0123456789abcdef";
/// Longest wait for a connection.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a statement failed. Texts hold codes and words of our own: a database's message may quote values (P9, F90).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DbError {
    /// No connection, or the server refused the statement for reasons of its own: nothing happened.
    Away(String),
    /// The connection broke or the answer did not come in time: it may have happened.
    Broken(String),
    /// Deadlock or lock wait: the transaction must start over (F68, F69).
    Conflict(String),
    /// A unique key is taken. Another settler was faster, or the data is wrong.
    Duplicate,
    /// The data can never be stored.
    Refused(String),
    /// Tables or columns are missing.
    Schema(String),
    /// We are wrong.
    Bug(String),
}

impl From<DbError> for LedgerError {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Away(text) | DbError::Conflict(text) => Self::NotDone(text),
            DbError::Broken(text) => Self::MaybeDone(text),
            DbError::Duplicate => Self::Bug("a unique key is taken".to_owned()),
            DbError::Refused(text) => Self::Bug(format!("data refused: {text}")),
            DbError::Schema(text) => Self::Schema(text),
            DbError::Bug(text) => Self::Bug(text),
        }
    }
}

/// An argument of a statement, or a value in a row.
#[derive(Clone)]
pub enum Value {
    /// NULL.
    Null,
    /// Any integer.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Value {
    /// Bytes on the wire, near enough for limits.
    pub fn size(&self) -> usize {
        match self {
            Self::Null | Self::Int(_) => 9,
            Self::Text(text) => text.len() + 9,
            Self::Bytes(bytes) => bytes.len() + 9,
        }
    }

    /// A UTC time as both databases keep it.
    pub fn time(at: Timestamp) -> Self {
        Self::Text(at.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string())
    }

    /// The same, from unix microseconds that were checked before.
    pub fn time_of_us(unix_us: i64) -> Self {
        // Cannot fail because the planner refuses times beyond the year 9999.
        Self::time(Timestamp::from_microsecond(unix_us).unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// NULL for `None`.
    pub fn optional<T: Into<Self>>(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<LeadId> for Value {
    fn from(value: LeadId) -> Self {
        Self::Bytes(value.as_bytes().to_vec())
    }
}

impl From<GatewayId> for Value {
    fn from(value: GatewayId) -> Self {
        Self::Bytes(value.as_bytes().to_vec())
    }
}

impl From<PersonDigest> for Value {
    fn from(digest: PersonDigest) -> Self {
        Self::Bytes(digest.0.to_vec())
    }
}

impl From<[u8; 32]> for Value {
    fn from(value: [u8; 32]) -> Self {
        Self::Bytes(value.to_vec())
    }
}

/// How a column is read. Drivers type columns differently (text with a byte collation, counts, flags); we know ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Integer.
    Int,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

/// A row, read from left to right.
pub struct Row(std::vec::IntoIter<Value>);

impl Row {
    /// Starts at the first column.
    pub fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    /// The next column, not null, as an integer.
    pub fn int(&mut self) -> Result<i64, DbError> {
        self.opt_int()?.ok_or_else(unreadable)
    }

    /// The next column as an integer.
    pub fn opt_int(&mut self) -> Result<Option<i64>, DbError> {
        match self.0.next() {
            Some(Value::Int(value)) => Ok(Some(value)),
            Some(Value::Null) => Ok(None),
            _ => Err(unreadable()),
        }
    }

    /// The next column, not null, as text.
    pub fn text(&mut self) -> Result<String, DbError> {
        self.opt_text()?.ok_or_else(unreadable)
    }

    /// The next column as text.
    pub fn opt_text(&mut self) -> Result<Option<String>, DbError> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(None),
            _ => Err(unreadable()),
        }
    }

    /// The next column, not null, as text that `read` understands: an id, a word.
    pub fn parsed<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Result<T, DbError> {
        read(&self.text()?).ok_or_else(unreadable)
    }

    /// The same for a column that may be null.
    pub fn opt_parsed<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, DbError> {
        self.opt_text()?.map(|text| read(&text).ok_or_else(unreadable)).transpose()
    }

    /// The next column as a number that must fit.
    pub fn number<T: TryFrom<i64>>(&mut self) -> Result<T, DbError> {
        T::try_from(self.int()?).map_err(|_| unreadable())
    }

    /// The next column, not null, as a time.
    pub fn time(&mut self) -> Result<Timestamp, DbError> {
        self.opt_time()?.ok_or_else(unreadable)
    }

    /// The next column as a time.
    pub fn opt_time(&mut self) -> Result<Option<Timestamp>, DbError> {
        self.opt_parsed(|text| format!("{text}Z").parse().ok())
    }

    /// The next column, not null, as bytes of a known length.
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], DbError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => bytes.try_into().map_err(|_| unreadable()),
            _ => Err(unreadable()),
        }
    }

    /// The next column as bytes of any length.
    pub fn opt_bytes(&mut self) -> Result<Option<Vec<u8>>, DbError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Value::Null) => Ok(None),
            _ => Err(unreadable()),
        }
    }

    /// The next column, if not null, as hex digits of its bytes.
    pub fn opt_hex(&mut self) -> Result<Option<String>, DbError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => {
                let digit = |digit: u8| char::from(HEX[usize::from(digit)]);
                Ok(Some(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()))
            }
            Some(Value::Null) => Ok(None),
            _ => Err(unreadable()),
        }
    }

    /// The next column as a lead's id.
    pub fn lead(&mut self) -> Result<LeadId, DbError> {
        Ok(LeadId::from_bytes(self.bytes()?))
    }
}

fn unreadable() -> DbError {
    DbError::Bug("a row of the ledger holds what this version cannot read".to_owned())
}

/// One connection. Dropped without [`Session::release`] it is closed and never goes back into the pool, so that no
/// transaction can be left open there, whatever error, time-out or cancellation came between (F71).
#[async_trait]
pub trait Session: Send {
    /// A statement without arguments, outside the prepared protocol: BEGIN, COMMIT, savepoints.
    async fn run(&mut self, sql: &'static str) -> Result<(), DbError>;

    /// Answers how many rows were touched. A borrowed statement is kept prepared, a built one is not.
    async fn execute(&mut self, sql: Cow<'static, str>, args: Vec<Value>) -> Result<u64, DbError>;

    /// The same for a built statement that will come again in these very words, and is kept prepared.
    async fn execute_block(&mut self, sql: Cow<'static, str>, args: Vec<Value>) -> Result<u64, DbError>;

    /// All rows.
    async fn fetch(&mut self, sql: Cow<'static, str>, args: Vec<Value>, kinds: &[Kind]) -> Result<Vec<Row>, DbError>;

    /// Gives a connection without an open transaction back to the pool.
    fn release(self: Box<Self>);
}

/// How the two databases' SQL differs, and what one statement may be.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Starts a transaction that writes.
    pub begin: &'static str,
    /// Start a transaction whose reads see one instant.
    pub begin_snapshot: &'static [&'static str],
    /// The clock, in the form of the columns that hold times.
    pub now: &'static str,
    /// Behind a SELECT: locks what is free and leaves out the rest.
    pub skip_locked: &'static str,
    /// ON CONFLICT or ON DUPLICATE KEY.
    pub is_mysql: bool,
    /// Most arguments of one statement.
    pub placeholders_max: usize,
    /// A statement is sent when its arguments have reached this (F74).
    pub statement_bytes_max: usize,
    /// A row that is larger can never be sent.
    pub row_bytes_max: usize,
}

/// What an upsert does to a column of a row that is there.
#[derive(Debug, Clone, Copy)]
pub enum Set {
    /// Takes the new value.
    New(&'static str),
    /// Adds the new value.
    Add(&'static str),
}

impl Dialect {
    /// The end of an INSERT that changes the row where `keys` is taken.
    pub fn upsert(&self, keys: &str, sets: &[Set]) -> String {
        let new = |column: &str| if self.is_mysql { format!("VALUES({column})") } else { format!("excluded.{column}") };
        let set = |set: &Set| match set {
            Set::New(column) => format!("{column} = {}", new(column)),
            Set::Add(column) => format!("{column} = {column} + {}", new(column)),
        };
        let sets = sets.iter().map(set).collect::<Vec<_>>().join(", ");
        if self.is_mysql {
            format!(" ON DUPLICATE KEY UPDATE {sets}")
        } else {
            format!(" ON CONFLICT ({keys}) DO UPDATE SET {sets}")
        }
    }
}

/// A database behind a [`super::SqlLedger`].
#[async_trait]
pub trait Database: Send + Sync + Debug + 'static {
    /// Its SQL.
    fn dialect(&self) -> Dialect;

    /// A connection for reads.
    async fn reader(&self) -> Result<Box<dyn Session>, DbError>;

    /// A connection for writes.
    async fn writer(&self) -> Result<Box<dyn Session>, DbError>;

    /// The migrations this version was built with.
    fn migrations(&self) -> Vec<sqlx::migrate::Migration>;

    /// Applies what is missing.
    async fn migrate(&self) -> Result<Vec<MigrationStep>, LedgerError>;

    /// Closes all connections.
    async fn close(&self);
}

/// Awaits a call of the driver for at most [`STATEMENT_TIMEOUT`].
pub async fn bounded<T>(
    call: impl Future<Output = Result<T, sqlx::Error>> + Send,
    classify: fn(&sqlx::Error) -> DbError,
) -> Result<T, DbError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, call).await {
        Ok(result) => result.map_err(|error| classify(&error)),
        Err(_) => Err(DbError::Broken(format!("no answer within {} s", STATEMENT_TIMEOUT.as_secs()))),
    }
}

/// Reads every error that is not the database's own word. `None` for those.
pub fn classify_driver(error: &sqlx::Error) -> Option<DbError> {
    Some(match error {
        sqlx::Error::Database(_) => return None,
        sqlx::Error::Io(error) => DbError::Broken(format!("connection: {}", error.kind())),
        sqlx::Error::Tls(_) => DbError::Away("TLS failed".to_owned()),
        sqlx::Error::Protocol(_) => DbError::Broken("the connection is out of step".to_owned()),
        sqlx::Error::WorkerCrashed => DbError::Broken("the database thread ended".to_owned()),
        sqlx::Error::PoolTimedOut => DbError::Away(format!("no connection within {} s", ACQUIRE_TIMEOUT.as_secs())),
        sqlx::Error::PoolClosed => DbError::Away("the ledger is closed".to_owned()),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => unreadable(),
        sqlx::Error::Configuration(_) => DbError::Bug("the ledger's options were refused".to_owned()),
        _ => DbError::Bug("the driver refused the call".to_owned()),
    })
}

/// A pooled connection of one driver as a [`Session`].
pub struct Pooled<DB: sqlx::Database>(pub Option<sqlx::pool::PoolConnection<DB>>);

impl<DB: sqlx::Database> Drop for Pooled<DB> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// The drivers' traits are typed by database all the way down, so the same lines are written for each.
macro_rules! session {
    ($database:ty, $classify:path) => {
        #[async_trait::async_trait]
        impl $crate::ledger::sql::session::Session for Pooled<$database> {
            async fn run(&mut self, sql: &'static str) -> Result<(), DbError> {
                let connection = self.0.as_mut().ok_or_else(released)?;
                bounded(sqlx::Executor::execute(&mut **connection, sql), $classify).await.map(drop)
            }

            async fn execute(&mut self, sql: Cow<'static, str>, args: Vec<Value>) -> Result<u64, DbError> {
                let connection = self.0.as_mut().ok_or_else(released)?;
                let query = bind!($database, sql, args);
                Ok(bounded(query.execute(&mut **connection), $classify).await?.rows_affected())
            }

            async fn execute_block(&mut self, sql: Cow<'static, str>, args: Vec<Value>) -> Result<u64, DbError> {
                let connection = self.0.as_mut().ok_or_else(released)?;
                let query = bind!($database, sql, args).persistent(true);
                Ok(bounded(query.execute(&mut **connection), $classify).await?.rows_affected())
            }

            async fn fetch(
                &mut self,
                sql: Cow<'static, str>,
                args: Vec<Value>,
                kinds: &[Kind],
            ) -> Result<Vec<Row>, DbError> {
                let connection = self.0.as_mut().ok_or_else(released)?;
                let query = bind!($database, sql, args);
                let rows = bounded(query.fetch_all(&mut **connection), $classify).await?;
                let read = |row: &<$database as sqlx::Database>::Row, (index, kind): (usize, &Kind)| match kind {
                    Kind::Int => row.try_get_unchecked::<Option<i64>, _>(index).map(Value::optional),
                    Kind::Text => row.try_get_unchecked::<Option<String>, _>(index).map(Value::optional),
                    Kind::Bytes => row
                        .try_get_unchecked::<Option<Vec<u8>>, _>(index)
                        .map(|bytes| bytes.map_or(Value::Null, Value::Bytes)),
                };
                rows.iter()
                    .map(|row| kinds.iter().enumerate().map(|column| read(row, column)).collect::<Result<_, _>>())
                    .map(|values| values.map(Row::new).map_err(|error| $classify(&error)))
                    .collect()
            }

            fn release(mut self: Box<Self>) {
                // Dropping the pool's own handle is what gives the connection back.
                drop(self.0.take());
            }
        }
    };
}

/// A query with its arguments.
macro_rules! bind {
    ($database:ty, $sql:expr, $args:expr) => {{
        let is_fixed = matches!($sql, Cow::Borrowed(_));
        // Statements are made of texts in this module alone; every value is an argument.
        let mut query = sqlx::query::<$database>(&$sql).persistent(is_fixed);
        for value in $args {
            query = match value {
                Value::Null => query.bind(None::<String>),
                Value::Int(value) => query.bind(value),
                Value::Text(value) => query.bind(value),
                Value::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

/// A session that was released is not used again.
pub fn released() -> DbError {
    DbError::Bug("the connection was given back".to_owned())
}

pub(in crate::ledger) use {bind, session};
