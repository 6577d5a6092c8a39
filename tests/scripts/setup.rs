//! What is said about how a server is set up, and about its clock.

use std::sync::Arc;
use std::time::Duration;

use capgate::clock::{Clock, ManualClock, SystemClock};
use capgate::domain::id::LeadId;
use capgate::domain::routing::Secret;
use capgate::domain::window::{Window, WindowKind};
use capgate::store::redis::RedisStore;
use capgate::store::{SetupKind, SetupWarning, Store, StoreError};
use jiff::SignedDuration;

use crate::cluster_support::Cluster;
use crate::redis_support::{COMMAND_TIMEOUT, Raw, connect, connect_by, fresh_prefix};
use crate::server::Server;
use crate::support::{begin_lives, buyer, candidate, demand, seed, take, take_one};

#[tokio::test]
async fn f24_eviction_and_missing_persistence_are_reported() {
    let server = Server::start(&["--maxmemory-policy", "volatile-ttl"]).await;
    let store = connect(&server.url(), &fresh_prefix(), 1000).await;
    let warnings = store.health().await.unwrap().warnings;
    assert_eq!(kinds(&warnings), [SetupKind::Eviction, SetupKind::Persistence], "{warnings:?}");
    assert!(warnings[0].text.contains("volatile-ttl") && warnings[0].text.contains("noeviction"));
    assert!(warnings[1].text.contains("appendonly"));

    let mut raw = server.connection().await;
    let set = async |raw: &mut crate::redis_support::Connection, name: &str, value: &str| {
        assert_eq!(raw.run(&["CONFIG", "SET", name, value]).await, Raw::Text("OK".into()));
    };
    set(&mut raw, "maxmemory-policy", "noeviction").await;
    set(&mut raw, "save", "3600 1").await;
    assert_eq!(store.health().await.unwrap().warnings, []);

    // Who may not ask is told so, and goes on.
    set(&mut raw, "save", "").await;
    raw.run(&["ACL", "SETUSER", "default", "-config"]).await;
    let warnings = store.health().await.unwrap().warnings;
    assert_eq!(kinds(&warnings), [SetupKind::Unknown], "{warnings:?}");
    assert!(warnings[0].text.contains("could not be checked"));
    store.shut_down().await;
}

fn kinds(warnings: &[SetupWarning]) -> Vec<SetupKind> {
    warnings.iter().map(|warning| warning.kind).collect()
}

#[tokio::test]
async fn f24_every_node_of_a_cluster_is_looked_at() {
    let cluster = Cluster::start(3).await;
    let store = connect(&cluster.url(), &fresh_prefix(), 1000).await;
    assert_eq!(kinds(&store.health().await.unwrap().warnings), [SetupKind::Persistence], "of three nodes, told once");
    for node in 0..cluster.nodes() {
        let mut raw = cluster.connection(node).await;
        for (policy, expected) in [
            ("allkeys-random", &[SetupKind::Persistence, SetupKind::Eviction][..]),
            ("noeviction", &[SetupKind::Persistence]),
        ] {
            assert_eq!(raw.run(&["CONFIG", "SET", "maxmemory-policy", policy]).await, Raw::Text("OK".into()));
            let mut found = Vec::new();
            // Each in its turn.
            for _ in 0..cluster.nodes() {
                found = kinds(&store.health().await.unwrap().warnings);
            }
            found.sort_by_key(|kind| kind.is_grave());
            assert_eq!(found, expected, "node {node}");
        }
    }
    store.shut_down().await;
}

/// F31: this gateway's clock is set back by two hours, or ahead. The first take by it is refused, because its window is not now or
/// its time is over; the next one is by the store's clock again.
#[tokio::test]
async fn f31_a_clock_that_jumps_is_measured_again_at_the_first_refusal() {
    let server = Server::start(&[]).await;
    let clock = ManualClock::new(SystemClock.now());
    let store = connect_by(clock.clone(), &server.url(), &fresh_prefix(), 1000, COMMAND_TIMEOUT).await;
    begin_lives(&store).await;
    let who = buyer("sunco");
    let minute = |now| Window::containing(WindowKind::Minute, &jiff::tz::TimeZone::UTC, now);
    for jump in [-2, 3] {
        // The border of a minute may pass in between.
        for _ in 0..3 {
            clock.set(SystemClock.now());
            store.health().await.unwrap();
            clock.advance(SignedDuration::from_hours(jump));
            let wrong = candidate(&who, vec![demand("minute", minute(store.now()), 9)]);
            let refused = store.take(&take(&store, LeadId::generate(), vec![wrong])).await.unwrap();
            assert!(refused.taken.is_none() && (refused.too_late || refused.refused.len() == 1), "{refused:?}");
            let window = minute(store.now());
            seed(&store, &who, &[("minute", window, 0)]).await;
            let right = candidate(&who, vec![demand("minute", window, 9)]);
            if take_one(&store, LeadId::generate(), &right).await.is_ok() {
                let off = (store.now() - SystemClock.now()).as_secs_f64().abs();
                assert!(off < 5.0, "{off}");
                break;
            }
            assert_ne!(minute(store.now()), window, "no border has passed");
        }
    }
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
