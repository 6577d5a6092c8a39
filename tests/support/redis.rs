//! A Redis for tests: a raw connection beside the store, and a key prefix of its own for each test.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use capgate::clock::{SharedClock, SystemClock};
use capgate::domain::id::LeadId;
use capgate::domain::routing::Secret;
use capgate::store::redis::RedisStore;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longer than in production: what is tested is not how fast a busy machine is.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the server for tests is.
pub fn url() -> String {
    std::env::var("CAPGATE_TEST_REDIS_URL")
        .expect("set CAPGATE_TEST_REDIS_URL to a Redis for tests, for example redis://127.0.0.1:7000")
}

/// A prefix that nobody has used.
pub fn fresh_prefix() -> String {
    format!("cgtest-{}", LeadId::generate())
}

/// A store on a server, with 16 partitions.
pub async fn connect(url: &str, prefix: &str, journal_entries_max: u64) -> RedisStore {
    connect_within(url, prefix, journal_entries_max, COMMAND_TIMEOUT).await
}

/// [`connect`] with a time-out of its own for each try of a call.
pub async fn connect_within(url: &str, prefix: &str, journal_entries_max: u64, timeout: Duration) -> RedisStore {
    connect_by(Arc::new(SystemClock), url, prefix, journal_entries_max, timeout).await
}

/// The same by a clock of its own.
pub async fn connect_by(
    clock: SharedClock,
    url: &str,
    prefix: &str,
    journal_entries_max: u64,
    timeout: Duration,
) -> RedisStore {
    let end_mark_ttl = Duration::from_mins(10);
    RedisStore::connect(&Secret::new(url), prefix, 16, timeout, journal_entries_max, end_mark_ttl, clock).await.unwrap()
}

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Raw {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    List(Vec<Raw>),
}

impl Raw {
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }

    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }

    pub fn list(&self) -> &[Raw] {
        match self {
            Self::List(items) => items,
            other => panic!("{other:?} is no list"),
        }
    }
}

/// A connection that sends what it is told, as it is told.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub async fn open(url: &str) -> Self {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        Self(BufReader::new(TcpStream::connect(address).await.expect("the Redis for tests does not answer")))
    }

    /// Runs a command given as words.
    pub async fn run(&mut self, words: &[&str]) -> Raw {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).unwrap();
        }
        self.0.get_mut().write_all(request.as_bytes()).await.unwrap();
        self.read().await
    }

    async fn read(&mut self) -> Raw {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "+" => Raw::Text(rest.to_owned()),
            "-" => Raw::Error(rest.to_owned()),
            ":" => Raw::Int(rest.parse().unwrap()),
            "$" => match rest.parse::<i64>().unwrap() {
                -1 => Raw::Nil,
                length => {
                    let mut bytes = vec![0; usize::try_from(length).unwrap() + 2];
                    self.0.read_exact(&mut bytes).await.unwrap();
                    bytes.truncate(bytes.len() - 2);
                    Raw::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match rest.parse::<i64>().unwrap() {
                -1 => Raw::Nil,
                length => {
                    let mut items = Vec::new();
                    for _ in 0..length {
                        items.push(Box::pin(self.read()).await);
                    }
                    Raw::List(items)
                }
            },
            other => panic!("unknown reply {other:?}"),
        }
    }

    /// All keys that start with a prefix.
    pub async fn keys_of(&mut self, prefix: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = self.run(&["SCAN", &cursor, "MATCH", &format!("{prefix}:*"), "COUNT", "1000"]).await;
            keys.extend(reply.list()[1].list().iter().map(|key| key.text().to_owned()));
            reply.list()[0].text().clone_into(&mut cursor);
            if cursor == "0" {
                keys.sort();
                keys.dedup();
                return keys;
            }
        }
    }

    /// Deletes a test's keys, and nobody else's.
    pub async fn delete_all_of(&mut self, prefix: &str) {
        for key in self.keys_of(prefix).await {
            self.run(&["DEL", &key]).await;
        }
    }
}
