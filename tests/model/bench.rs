//! The stores that are walked, and what a test can do to each behind its back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capgate::clock::ManualClock;
use capgate::domain::event::Mark;
use capgate::ledger::UsageRow;
use capgate::store::Store;
use capgate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use jiff::{SignedDuration, Timestamp};

use crate::pure::Place;
use crate::support::Dice;

/// How long end marks live.
pub const END_MARK_TTL: Duration = Duration::from_mins(10);

/// One store with its gateways.
#[async_trait]
pub trait Bench: Send + Sync {
    /// How many gateways share it.
    fn gateways(&self) -> usize;

    /// One gateway's view.
    fn gateway(&self, number: usize) -> Arc<dyn Store>;

    /// Lengths of the short and of the long window.
    fn windows_ms(&self) -> [i64; 2];

    /// How far this process's idea of the store's time may be from the store's.
    fn tolerance(&self) -> SignedDuration;

    /// Lets time pass, or jump.
    async fn pass_time(&mut self, dice: &mut Dice);

    /// Leases of a millisecond are overdue after this.
    async fn wait_until_due(&self);

    /// Deletes a counter, if this store has such a way to lose one.
    async fn lose_counter(&mut self, place: &Place) -> bool;

    /// Ends all gateways' process without a word and starts it again from file and books, if this store has a file of its own.
    async fn restart(&mut self, marks: &[Mark], usage: &[UsageRow]) -> bool;

    /// Removes what the walk made.
    async fn end(self);
}

/// In one process, under a manual clock.
pub struct Embedded {
    clock: Arc<ManualClock>,
    store: Option<Arc<EmbeddedStore>>,
    folder: tempfile::TempDir,
}

impl Embedded {
    pub fn start() -> Self {
        let clock = ManualClock::new("2026-03-07T22:59:30Z".parse::<Timestamp>().unwrap());
        let mut bench = Self { clock, store: None, folder: tempfile::tempdir().unwrap() };
        bench.open(&[], &[]);
        bench
    }

    fn open(&mut self, marks: &[Mark], usage: &[UsageRow]) {
        let options = EmbeddedOptions { partitions: 4, journal_entries_max: 1_000_000, end_mark_ttl: END_MARK_TTL };
        let path = self.folder.path().join("journal.db");
        self.store = Some(Arc::new(EmbeddedStore::open(&path, options, self.clock.clone(), marks, usage).unwrap()));
    }
}

#[async_trait]
impl Bench for Embedded {
    fn gateways(&self) -> usize {
        1
    }

    fn gateway(&self, _number: usize) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    fn windows_ms(&self) -> [i64; 2] {
        [60_000, 600_000]
    }

    fn tolerance(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    async fn pass_time(&mut self, dice: &mut Dice) {
        let ms = i64::try_from(match dice.roll(20) {
            0 => 3_600_000 + dice.roll(3_600_000),
            1 => 60_000 + dice.roll(60_000),
            2..5 => dice.roll(30_000),
            _ => dice.roll(1_000),
        });
        // A machine's clock is set back now and then.
        let sign = if dice.roll(12) == 0 { -1 } else { 1 };
        self.clock.advance(SignedDuration::from_millis(sign * ms.unwrap()));
    }

    async fn wait_until_due(&self) {
        self.clock.advance(SignedDuration::from_millis(2));
    }

    async fn lose_counter(&mut self, _place: &Place) -> bool {
        false
    }

    async fn restart(&mut self, marks: &[Mark], usage: &[UsageRow]) -> bool {
        self.store = None;
        self.open(marks, usage);
        true
    }

    async fn end(self) {
        self.store.unwrap().shut_down().await;
    }
}

/// A machine's clock that is off by so much.
#[cfg(feature = "server-tests")]
#[derive(Debug)]
struct OffClock(SignedDuration);

#[cfg(feature = "server-tests")]
impl capgate::clock::Clock for OffClock {
    fn now(&self) -> Timestamp {
        capgate::clock::SystemClock.now() + self.0
    }
}

/// Three gateways on one server or cluster, under its own clock; their own clocks differ.
#[cfg(feature = "server-tests")]
pub struct OnRedis {
    stores: Vec<Arc<dyn Store>>,
    url: String,
    prefix: String,
}

#[cfg(feature = "server-tests")]
impl OnRedis {
    pub async fn start(url: &str) -> Self {
        use crate::redis_support::{COMMAND_TIMEOUT, connect_by};
        let prefix = crate::redis_support::fresh_prefix();
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        // Of three gateways' clocks one is right: windows go by the store's (F31).
        for ahead in [0, 7_200, -90] {
            let clock = Arc::new(OffClock(SignedDuration::from_secs(ahead)));
            stores.push(Arc::new(connect_by(clock, url, &prefix, 1_000_000, COMMAND_TIMEOUT).await));
        }
        Self { stores, url: url.to_owned(), prefix }
    }
}

#[cfg(feature = "server-tests")]
#[async_trait]
impl Bench for OnRedis {
    fn gateways(&self) -> usize {
        self.stores.len()
    }

    fn gateway(&self, number: usize) -> Arc<dyn Store> {
        self.stores[number].clone()
    }

    fn windows_ms(&self) -> [i64; 2] {
        [1_000, 4_000]
    }

    fn tolerance(&self) -> SignedDuration {
        // A busy machine may let seconds pass between a look at the clock and the call.
        SignedDuration::from_secs(5)
    }

    async fn pass_time(&mut self, dice: &mut Dice) {
        tokio::time::sleep(Duration::from_millis(u64::try_from(dice.roll(20)).unwrap())).await;
    }

    async fn wait_until_due(&self) {
        // The server counts in milliseconds: two of them later, whatever the last one began with, all are due.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    async fn lose_counter(&mut self, place: &Place) -> bool {
        let partition = capgate::domain::id::Partition::of(place.buyer.as_str(), self.stores[0].partitions()).0;
        let Place { buyer, cap, start_ms } = place;
        let key = format!("{}:{{p{partition:02}}}:cap:{buyer}:{}:{start_ms}", self.prefix, cap.as_str());
        crate::cluster::run_on_owner(&self.url, &["DEL", &key]).await.int() == 1
    }

    async fn restart(&mut self, _marks: &[Mark], _usage: &[UsageRow]) -> bool {
        false
    }

    async fn end(self) {
        for store in &self.stores {
            store.shut_down().await;
        }
        crate::cluster::delete_everywhere(&self.url, &self.prefix).await;
    }
}
