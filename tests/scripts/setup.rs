//! What is said about how a server is set up, and about its clock.

use std::sync::Arc;
use std::time::Duration;

use capgate::clock::{Clock, ManualClock, SystemClock};
use capgate::domain::routing::Secret;
use capgate::store::redis::RedisStore;
use capgate::store::{Store, StoreError};
use jiff::SignedDuration;

use crate::redis_support::{Raw, connect, fresh_prefix};
use crate::server::Server;

#[tokio::test]
async fn f24_eviction_and_missing_persistence_are_reported() {
    let server = Server::start(&["--maxmemory-policy", "volatile-ttl"]).await;
    let store = connect(&server.url(), &fresh_prefix(), 1000).await;
    let warnings = store.health().await.unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("volatile-ttl") && warnings[0].contains("noeviction"));
    assert!(warnings[1].contains("appendonly"));

    let mut raw = server.connection().await;
    let set = async |raw: &mut crate::redis_support::Connection, name: &str, value: &str| {
        assert_eq!(raw.run(&["CONFIG", "SET", name, value]).await, Raw::Text("OK".into()));
    };
    set(&mut raw, "maxmemory-policy", "noeviction").await;
    set(&mut raw, "save", "3600 1").await;
    assert_eq!(store.health().await.unwrap().warnings, Vec::<String>::new());

    // Who may not ask is told so, and goes on.
    set(&mut raw, "save", "").await;
    raw.run(&["ACL", "SETUSER", "default", "-config"]).await;
    let warnings = store.health().await.unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("could not be checked"));
    store.shut_down().await;
}

#[tokio::test]
async fn the_stores_clock_is_told_from_the_gateways() {
    let server = Server::start(&[]).await;
    let slow = ManualClock::new(SystemClock.now() - SignedDuration::from_hours(2));
    let secret = Secret::new(&server.url());
    let timeout = Duration::from_secs(5);
    let store = RedisStore::connect(&secret, "cg1", 2, timeout, 1000, timeout, slow.clone()).await.unwrap();
    let off = |store: &RedisStore| (store.now() - SystemClock.now()).as_secs_f64().abs();
    assert!(off(&store) < 5.0, "{}", off(&store));
    let offset = store.health().await.unwrap().clock_offset_ms;
    assert!((7_195_000..7_215_000).contains(&offset), "{offset}");
    slow.set(SystemClock.now() + SignedDuration::from_hours(3));
    let offset = store.health().await.unwrap().clock_offset_ms;
    assert!((-10_815_000..-10_780_000).contains(&offset), "{offset}");
    assert!(off(&store) < 5.0, "{}", off(&store));
    store.shut_down().await;
}

#[tokio::test]
async fn nobody_there_is_said_at_once() {
    let timeout = Duration::from_millis(200);
    let connect = async |url: &str| {
        RedisStore::connect(&Secret::new(url), "cg1", 2, timeout, 1000, timeout, Arc::new(SystemClock))
            .await
            .unwrap_err()
    };
    for nobody in ["redis://127.0.0.1:1", "rediss://127.0.0.1:1", "redis-cluster://127.0.0.1:1,127.0.0.1:2"] {
        assert!(matches!(connect(nobody).await, StoreError::NotDone(_)), "{nobody}");
    }
    let unreadable = connect("redis://user:hunter2@[").await;
    assert!(matches!(unreadable, StoreError::Bug(_)));
    assert!(!unreadable.to_string().contains("hunter2"));
}
