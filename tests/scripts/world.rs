//! One test's store on the shared server, under a prefix of its own.

use std::sync::Arc;

use capgate::domain::id::{BuyerId, Partition};
use capgate::domain::window::Window;
use capgate::store::Store;
use capgate::store::redis::RedisStore;

use crate::redis_support::{Connection, Raw, connect, fresh_prefix, url};
use crate::support::begin_lives;

pub struct World {
    pub store: Arc<RedisStore>,
    pub raw: Connection,
    pub prefix: String,
}

impl World {
    /// On the shared server, with its lives begun.
    pub async fn start() -> Self {
        Self::start_on(&url()).await
    }

    /// On a server of the test's own.
    pub async fn start_on(url: &str) -> Self {
        let prefix = fresh_prefix();
        let world =
            Self { store: Arc::new(connect(url, &prefix, 1_000_000).await), raw: Connection::open(url).await, prefix };
        begin_lives(&*world.store).await;
        world
    }

    /// A key of the partition that an id lies in.
    pub fn key(&self, id: &str, tail: &str) -> String {
        let partition = Partition::of(id, self.store.partitions()).0;
        format!("{}:{{p{partition:02}}}:{tail}", self.prefix)
    }

    pub fn counter(&self, buyer: &BuyerId, cap: &str, window: Window) -> String {
        self.key(buyer.as_str(), &format!("cap:{buyer}:{cap}:{}", window.start.as_millisecond()))
    }

    /// How many journal entries a partition has.
    pub async fn journal_length(&mut self, id: &str, life: u64) -> i64 {
        let key = self.key(id, &format!("journal:{life}"));
        self.raw.run(&["XLEN", &key]).await.int()
    }

    /// All keys but those that only say what was seen, as text, for "nothing was changed".
    pub async fn dump(&mut self) -> Vec<(String, String)> {
        let mut dump = Vec::new();
        for key in self.raw.keys_of(&self.prefix).await {
            let kind = self.raw.run(&["TYPE", &key]).await.text().to_owned();
            let read: &[&str] = match kind.as_str() {
                "string" => &["GET", &key],
                "hash" => &["HGETALL", &key],
                "zset" => &["ZRANGE", &key, "0", "-1", "WITHSCORES"],
                "stream" => &["XRANGE", &key, "-", "+"],
                "list" => &["LRANGE", &key, "0", "-1"],
                other => panic!("a key of kind {other}"),
            };
            let value = self.raw.run(read).await;
            assert!(!matches!(value, Raw::Error(_)), "{value:?}");
            dump.push((key, format!("{value:?}")));
        }
        dump
    }

    /// Removes what the test made.
    pub async fn stop(mut self) {
        self.store.shut_down().await;
        self.raw.delete_all_of(&self.prefix).await;
    }
}
