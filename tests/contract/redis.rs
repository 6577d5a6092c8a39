//! The list on Redis.

use std::sync::Arc;

use async_trait::async_trait;
use capgate::domain::id::{BuyerId, Partition};
use capgate::domain::window::Window;
use capgate::store::Store;
use capgate::store::redis::RedisStore;

use crate::redis_support::{Connection, connect, fresh_prefix, url};
use crate::store::{Harness, LosesCounters};

/// A prefix of its own on the server for tests.
pub struct OnRedis {
    store: Arc<RedisStore>,
    prefix: String,
}

#[async_trait]
impl Harness for OnRedis {
    async fn start_with(journal_entries_max: u64) -> Self {
        let prefix = fresh_prefix();
        Self { store: Arc::new(connect(&url(), &prefix, journal_entries_max).await), prefix }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn stop(self) {
        self.store.shut_down().await;
        Connection::open(&url()).await.delete_all_of(&self.prefix).await;
    }
}

#[async_trait]
impl LosesCounters for OnRedis {
    async fn lose_counter(&self, buyer: &BuyerId, cap: &str, window: Window) {
        let partition = Partition::of(buyer.as_str(), self.store.partitions()).0;
        let start = window.start.as_millisecond();
        let key = format!("{}:{{p{partition:02}}}:cap:{buyer}:{cap}:{start}", self.prefix);
        assert_eq!(Connection::open(&url()).await.run(&["DEL", &key]).await.int(), 1, "{key} was not there");
    }
}

crate::store_contract!(OnRedis);
crate::store_contract!(OnRedis: seed_counts_the_tail_and_open_leases);
