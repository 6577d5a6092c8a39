//! A Redis Cluster: of a test's own, whose slots can be moved, or the shared one.

use std::time::{Duration, Instant};

use crate::redis_support::{Connection, Raw};
use crate::server::Server;

const SLOTS: usize = 16_384;

/// Where the shared cluster for tests is.
pub fn cluster_url() -> String {
    std::env::var("CAPGATE_TEST_REDIS_CLUSTER_URL").expect(
        "set CAPGATE_TEST_REDIS_CLUSTER_URL to a Redis Cluster for tests, for example redis-cluster://h:7000,h:7001,h:7002",
    )
}

/// The nodes of a `redis-cluster://` or `redis://` URL, each as a URL of its own.
pub fn nodes_of(url: &str) -> Vec<String> {
    let hosts = url.split_once("://").expect("a URL").1;
    hosts.split(',').map(|host| format!("redis://{host}")).collect()
}

/// Deletes a test's keys on every node.
pub async fn delete_everywhere(url: &str, prefix: &str) {
    for node in nodes_of(url) {
        Connection::open(&node).await.delete_all_of(prefix).await;
    }
}

/// Runs a command about one key on the node that has it.
pub async fn run_on_owner(url: &str, words: &[&str]) -> Raw {
    let mut reply = Raw::Nil;
    for node in nodes_of(url) {
        reply = Connection::open(&node).await.run(words).await;
        if !matches!(&reply, Raw::Error(text) if text.starts_with("MOVED")) {
            break;
        }
    }
    reply
}

/// Masters without copies, each with an equal share of the slots.
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    pub async fn start(count: usize) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..count {
            let flags = ["--cluster-enabled", "yes", "--maxmemory-policy", "noeviction"];
            nodes.push(Server::start(&flags).await);
        }
        for (index, node) in nodes.iter().enumerate() {
            let (first, last) = (index * SLOTS / count, (index + 1) * SLOTS / count - 1);
            let mut raw = node.connection().await;
            ok(&raw.run(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).await);
            // Each its own, or two nodes may claim a slot by the same right.
            ok(&raw.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await);
        }
        let mut raw = nodes[0].connection().await;
        for node in &nodes[1..] {
            ok(&raw.run(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]).await);
        }
        let started = Instant::now();
        for node in &nodes {
            let mut raw = node.connection().await;
            while !raw.run(&["CLUSTER", "INFO"]).await.text().contains("cluster_state:ok") {
                assert!(started.elapsed() < Duration::from_mins(1), "the cluster never was ready");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Self { nodes }
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    async fn id(&self, node: usize) -> String {
        self.nodes[node].connection().await.run(&["CLUSTER", "MYID"]).await.text().to_owned()
    }

    /// Which node has the slot of a key.
    pub async fn owner(&self, key: &str) -> usize {
        for (index, node) in self.nodes.iter().enumerate() {
            if !matches!(node.connection().await.run(&["GET", key]).await, Raw::Error(text) if text.starts_with("MOVED"))
            {
                return index;
            }
        }
        panic!("nobody has the slot of {key}");
    }

    /// Moves the slot of a key to another node as an operator does: key by key, with `pause` after every few, while clients
    /// go on. Answers how many keys it moved.
    pub async fn move_slot_of(&self, key: &str, to: usize, pause: Duration) -> usize {
        let from = self.owner(key).await;
        assert_ne!(from, to, "it is there already");
        let (mut source, mut target) = (self.nodes[from].connection().await, self.nodes[to].connection().await);
        let (source_id, target_id) = (self.id(from).await, self.id(to).await);
        let slot = source.run(&["CLUSTER", "KEYSLOT", key]).await.int().to_string();
        ok(&target.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await);
        ok(&source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await);
        let port = self.nodes[to].port().to_string();
        let mut moved = 0;
        loop {
            let keys = source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "5"]).await;
            if keys.list().is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            words.extend(keys.list().iter().map(Raw::text));
            let reply = source.run(&words).await;
            // A key may have expired meanwhile.
            assert!(matches!(reply.text(), "OK" | "NOKEY"), "{reply:?}");
            moved += keys.list().len();
            tokio::time::sleep(pause).await;
        }
        ok(&target.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await);
        for node in &self.nodes {
            ok(&node.connection().await.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await);
        }
        moved
    }

    /// A connection to one node.
    pub async fn connection(&self, node: usize) -> Connection {
        self.nodes[node].connection().await
    }

    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

fn ok(reply: &Raw) {
    assert_eq!(*reply, Raw::Text("OK".into()));
}
