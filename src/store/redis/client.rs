//! The one module that names the Redis library: connections, time-outs, script calls; in `meaning`, what an error means.
//!
//! The library replays nothing: a command is written at most once, and a script call that got no answer is asked once more by
//! us, with the same ids (F20). Every wait and every queue is bounded (F27).
//!
//! It follows no redirection of a cluster either: an `ASK` ends its task and every call in flight with it. A redirected call
//! was not run. After a `MOVED` the library has the new map and the call is asked again; after an `ASK` the slot is on its
//! way, a script would find half its keys (`TRYAGAIN`), and the call is refused until the slot has arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fred::error::Error;
use fred::interfaces::{ClientLike, ClusterInterface, LuaInterface};
use fred::types::config::{
    Config, ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, Server, TcpConfig, UnresponsiveConfig,
};
use fred::types::{Builder, ClusterHash, ConnectHandle, CustomCommand, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::meaning::{is_redirected, meaning, words};
use super::address::library_url;
use super::reply::{Answer, Call, Plain, Reply, unexpected};
use super::scripts::{Lane, Verb};
use crate::store::StoreError;

mod meaning;

/// Calls that may be waiting for the server at once on one connection; above it a call is refused.
const CALLS_MAX: usize = 4096;
/// The library's own queue. Larger than `CALLS_MAX`, so that its reconnect command always finds room in it.
const QUEUE_MAX: usize = 2 * CALLS_MAX;
/// Commands in one pipeline.
const PIPELINE_MAX: usize = 256;

/// One connection (or one per node of a cluster) with its bounds.
#[derive(Debug)]
struct Link {
    client: fred::clients::Client,
    calls: Semaphore,
    timeout: Duration,
    is_reconnecting: Arc<AtomicBool>,
}

/// The one server there is, or a primary of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node(Option<Server>);

/// The connections of one store.
#[derive(Debug)]
pub(super) struct Client {
    hot: Link,
    bulk: Link,
    /// Digest and text by verb.
    scripts: Vec<(String, String)>,
    closing: CancellationToken,
}

impl Client {
    /// Connects and makes every script known to the server.
    pub(super) async fn connect(url: &str, command_timeout: Duration) -> Result<Self, StoreError> {
        let closing = CancellationToken::new();
        let bulk_timeout = (command_timeout * 10).max(Duration::from_secs(1));
        let hot = Link::connect(url, command_timeout, &closing).await?;
        let bulk = match Link::connect(url, bulk_timeout, &closing).await {
            Ok(bulk) => bulk,
            Err(error) => {
                closing.cancel();
                hot.quit().await;
                return Err(error);
            }
        };
        let mut client = Self { hot, bulk, scripts: Vec::with_capacity(Verb::ALL.len()), closing };
        for verb in Verb::ALL {
            let text = verb.source();
            let loaded = client.bulk.client.script_load::<String, _>(text.clone()).await;
            match loaded {
                Ok(digest) => client.scripts.push((digest, text)),
                Err(error) => {
                    client.close().await;
                    return Err(meaning(&error));
                }
            }
        }
        Ok(client)
    }

    /// Is the server a cluster? Then a step must stay within one partition.
    pub(super) fn is_cluster(&self) -> bool {
        self.hot.client.is_clustered()
    }

    /// Runs a script; asks once more when no answer came.
    pub(super) async fn run(&self, verb: Verb, call: &Call) -> Result<Answer, StoreError> {
        let link = self.link(verb.lane());
        let first = match link.run(self.script(verb), call).await {
            Err(StoreError::MaybeDone(why)) => why,
            result => return result.map(|reply| Answer { reply, was_repeated: false }),
        };
        link.wait_until_connected().await;
        match link.run(self.script(verb), call).await {
            Ok(reply) => Ok(Answer { reply, was_repeated: true }),
            Err(StoreError::Bug(why)) => Err(StoreError::Bug(why)),
            // The second try may be known not to have happened; the first one is not.
            Err(StoreError::NotDone(why) | StoreError::MaybeDone(why)) => {
                Err(StoreError::MaybeDone(format!("{first}; then {why}")))
            }
        }
    }

    /// Runs plain commands in one go; their replies in order.
    pub(super) async fn plain(&self, commands: Vec<Plain>) -> Result<Vec<Reply>, StoreError> {
        let mut replies = Vec::with_capacity(commands.len());
        for part in commands.chunks(PIPELINE_MAX) {
            replies.extend(self.bulk.plain(part).await?);
        }
        Ok(replies)
    }

    /// Runs one plain command.
    pub(super) async fn one(&self, name: &'static str, args: Vec<Bytes>) -> Result<Reply, StoreError> {
        let mut replies = self.plain(vec![Plain::new(name, args)]).await?;
        replies.pop().ok_or_else(|| unexpected("nothing"))
    }

    /// Every server that has a part of the data.
    pub(super) fn nodes(&self) -> Vec<Node> {
        match self.bulk.client.cached_cluster_state().filter(|_| self.is_cluster()) {
            Some(map) => map.unique_primary_nodes().into_iter().map(|server| Node(Some(server))).collect(),
            None => vec![Node(None)],
        }
    }

    /// Runs one plain command, about no key, on one of them.
    pub(super) async fn one_of(
        &self,
        Node(server): &Node,
        name: &'static str,
        words: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let link = &self.bulk;
        let _permit = link.admit_call()?;
        let command = CustomCommand::new_static(name, ClusterHash::Random, false);
        let options = Options { cluster_node: server.clone(), ..Options::default() };
        let client = link.client.with_options(&options);
        let value = client.custom::<Value, Value>(command, args(&words)).await;
        value.map(reply).map_err(|error| link.failed(&error))
    }

    /// Looks for the server again, by the configured address; at most one look at a time.
    pub(super) fn reconnect(&self) {
        self.hot.reconnect();
        self.bulk.reconnect();
    }

    /// Ends the connections.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.hot.quit().await;
        self.bulk.quit().await;
    }

    fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Hot => &self.hot,
            Lane::Bulk => &self.bulk,
        }
    }

    fn script(&self, verb: Verb) -> (&str, &str) {
        // Cannot fail because `connect` loaded every verb in this order.
        self.scripts.get(verb as usize).map_or(("", ""), |(digest, text)| (digest, text))
    }
}

impl Link {
    async fn connect(url: &str, command_timeout: Duration, closing: &CancellationToken) -> Result<Self, StoreError> {
        let config = config(url)?;
        let mut policy = ReconnectPolicy::new_exponential(0, 10, 1000, 2);
        policy.set_jitter(20);
        let client = Builder::from_config(config)
            .set_policy(policy)
            .set_performance_config(PerformanceConfig {
                default_command_timeout: command_timeout,
                ..PerformanceConfig::default()
            })
            .set_connection_config(ConnectionConfig {
                connection_timeout: Duration::from_secs(2),
                internal_command_timeout: Duration::from_secs(2),
                max_command_attempts: 1,
                max_redirections: 0,
                max_command_buffer_len: QUEUE_MAX,
                // A peer that is gone without a word is noticed by its silence.
                unresponsive: UnresponsiveConfig {
                    max_timeout: Some((command_timeout * 10).max(Duration::from_secs(2))),
                    interval: Duration::from_millis(500),
                },
                tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
                ..ConnectionConfig::default()
            })
            .build()
            .map_err(|error| meaning(&error))?;
        let task = client.init().await.map_err(|error| StoreError::NotDone(words(&error)))?;
        tokio::spawn(keep_connected(client.clone(), task, closing.clone()));
        Ok(Self {
            client,
            calls: Semaphore::new(CALLS_MAX),
            timeout: command_timeout,
            is_reconnecting: Arc::new(AtomicBool::new(false)),
        })
    }

    async fn run(&self, script: (&str, &str), call: &Call) -> Result<Reply, StoreError> {
        let _permit = self.admit_call()?;
        match self.run_once(script, call).await {
            Err(redirected) if is_redirected(&redirected) => self.run_once(script, call).await,
            result => result,
        }
    }

    async fn run_once(&self, (digest, text): (&str, &str), call: &Call) -> Result<Reply, StoreError> {
        match self.client.evalsha::<Value, _, _, _>(digest, call.keys.clone(), args(&call.args)).await {
            Ok(value) => Ok(reply(value)),
            // Certainly not run: run it by its text, which makes it known in the same step (F25).
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                let run = self.client.eval::<Value, _, _, _>(text, call.keys.clone(), args(&call.args)).await;
                run.map(reply).map_err(|error| self.failed(&error))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    async fn plain(&self, commands: &[Plain]) -> Result<Vec<Reply>, StoreError> {
        let _permit = self.admit_call()?;
        match self.plain_once(commands).await {
            Err(redirected) if is_redirected(&redirected) => self.plain_once(commands).await,
            result => result,
        }
    }

    async fn plain_once(&self, commands: &[Plain]) -> Result<Vec<Reply>, StoreError> {
        let pipeline = self.client.pipeline();
        for command in commands {
            let hash = if command.args.is_empty() { ClusterHash::Random } else { ClusterHash::FirstKey };
            let custom = CustomCommand::new_static(command.name, hash, false);
            pipeline.custom::<Value, Value>(custom, args(&command.args)).await.map_err(|error| self.failed(&error))?;
        }
        let mut replies = Vec::with_capacity(commands.len());
        for result in pipeline.try_all::<Value>().await {
            replies.push(reply(result.map_err(|error| self.failed(&error))?));
        }
        if replies.len() == commands.len() { Ok(replies) } else { Err(unexpected("a short pipeline")) }
    }

    fn admit_call(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        if !self.client.is_connected() {
            return Err(StoreError::NotDone("not connected".to_owned()));
        }
        self.calls.try_acquire().map_err(|_| StoreError::NotDone("too many calls are waiting".to_owned()))
    }

    async fn wait_until_connected(&self) {
        // The outcome shows in the next call.
        let _ = timeout(self.timeout, self.client.wait_for_connect()).await;
    }

    fn failed(&self, error: &Error) -> StoreError {
        // A primary that became a copy stays one on this connection: find the new one (F23).
        if error.details().starts_with("READONLY") {
            self.reconnect();
        }
        meaning(error)
    }

    fn reconnect(&self) {
        if self.is_reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (client, is_reconnecting) = (self.client.clone(), self.is_reconnecting.clone());
        tokio::spawn(async move {
            let _ = client.force_reconnection().await;
            is_reconnecting.store(false, Ordering::Release);
        });
    }

    async fn quit(&self) {
        // Nothing is lost when the server does not answer: the process is ending.
        let _ = timeout(self.timeout, self.client.quit()).await;
    }
}

/// The reply without the library's types.
fn reply(value: Value) -> Reply {
    match value {
        Value::Null => Reply::Nil,
        Value::Boolean(flag) => Reply::Int(i64::from(flag)),
        Value::Integer(number) => Reply::Int(number),
        Value::Double(number) => Reply::Bytes(number.to_string().into()),
        Value::String(text) => Reply::Bytes(text.into_inner()),
        Value::Bytes(bytes) => Reply::Bytes(bytes),
        Value::Queued => Reply::Bytes(Bytes::from_static(b"QUEUED")),
        Value::Array(items) => Reply::List(items.into_iter().map(reply).collect()),
        Value::Map(map) => Reply::List(
            map.inner().into_iter().flat_map(|(key, value)| [Reply::Bytes(key.into_bytes()), reply(value)]).collect(),
        ),
    }
}

fn args(args: &[Bytes]) -> Vec<Value> {
    args.iter().cloned().map(Value::Bytes).collect()
}

/// The library's task reconnects by itself, for ever, except when it ends over an error of its own; then it is started again.
async fn keep_connected(client: fred::clients::Client, mut task: ConnectHandle, closing: CancellationToken) {
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            _ = &mut task => {}
        }
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        tracing::warn!("the connection to Redis ended, starting it again");
        task = client.connect();
    }
}

/// Reads `redis://`, `rediss://`, `redis-cluster://h:p,h:p` and `rediss-cluster://h:p,h:p`.
fn config(url: &str) -> Result<Config, StoreError> {
    Config::from_url(&library_url(url)).map_err(|_| {
        // Never the text of the address: it may hold a password (P9).
        StoreError::Bug("the address of Redis cannot be read".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_an_address_that_cannot_be_read_is_not_printed() {
        let error = config("redis://user:hunter2@[bad:1").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }

    #[test]
    fn addresses_of_clusters_name_all_nodes() {
        assert!(config("redis-cluster://a:1,b:2").unwrap().server.is_clustered());
        assert_eq!(config("redis-cluster://a:1,b:2").unwrap().server.hosts().len(), 2);
        assert!(!config("redis://a:1").unwrap().server.is_clustered());
    }
}
