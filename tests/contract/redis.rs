//! The list on Redis: on one server, and on a cluster.

use std::sync::Arc;

use async_trait::async_trait;
use capgate::domain::id::{BuyerId, Partition};
use capgate::domain::window::Window;
use capgate::store::Store;
use capgate::store::redis::RedisStore;

use crate::cluster::{cluster_url, delete_everywhere, run_on_owner};
use crate::redis_support::{connect, fresh_prefix, url};
use crate::store::{Harness, LosesCounters};

/// A prefix of its own on a server, or cluster, for tests.
pub struct OnRedis<const IS_CLUSTER: bool> {
    store: Arc<RedisStore>,
    prefix: String,
}

fn address(is_cluster: bool) -> String {
    if is_cluster { cluster_url() } else { url() }
}

#[async_trait]
impl<const IS_CLUSTER: bool> Harness for OnRedis<IS_CLUSTER> {
    async fn start_with(journal_entries_max: u64) -> Self {
        let prefix = fresh_prefix();
        Self { store: Arc::new(connect(&address(IS_CLUSTER), &prefix, journal_entries_max).await), prefix }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn stop(self) {
        self.store.shut_down().await;
        delete_everywhere(&address(IS_CLUSTER), &self.prefix).await;
    }
}

#[async_trait]
impl<const IS_CLUSTER: bool> LosesCounters for OnRedis<IS_CLUSTER> {
    async fn lose_counter(&self, buyer: &BuyerId, cap: &str, window: Window) {
        let partition = Partition::of(buyer.as_str(), self.store.partitions()).0;
        let start = window.start.as_millisecond();
        let key = format!("{}:{{p{partition:02}}}:cap:{buyer}:{cap}:{start}", self.prefix);
        assert_eq!(run_on_owner(&address(IS_CLUSTER), &["DEL", &key]).await.int(), 1, "{key} was not there");
    }
}

mod server {
    type OneServer = super::OnRedis<false>;
    crate::store_contract!(OneServer);
    crate::store_contract!(OneServer: seed_counts_the_tail_and_open_leases);
}

mod three_masters {
    type Cluster = super::OnRedis<true>;
    crate::store_contract!(Cluster);
    crate::store_contract!(Cluster: seed_counts_the_tail_and_open_leases);
}
