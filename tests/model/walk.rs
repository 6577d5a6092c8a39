//! The walk: one random step after another, each answer compared with the model's, P1 and P2 checked after each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capgate::domain::id::{BuyerId, Partition};
use capgate::domain::window::Window;
use capgate::store::{CounterKey, Store, TakeCandidate};
use jiff::{SignedDuration, Timestamp};

use crate::bench::Bench;
use crate::books::Books;
use crate::ends::end_call;
use crate::pure::{Model, Place, State, Verb};
use crate::support::{Dice, begin_lives, buyer, candidate, cap, demand, money_demand, total_window};

/// Counters outlive their window by two days; what is older may be there or not.
const COUNTER_SLACK: SignedDuration = SignedDuration::from_hours(48);

/// Windows of each cap whose counters are looked at after every step.
const WINDOWS_WATCHED: usize = 4;

/// How many of each thing have happened: a walk that never meets a case proves nothing about it.
type Tally = BTreeMap<&'static str, u32>;

pub struct Walk<B> {
    pub bench: B,
    pub dice: Dice,
    pub model: Model,
    pub books: Books,
    pub buyers: Vec<Buyer>,
    pub version: u64,
    pub windows: BTreeMap<(BuyerId, String, i64), Window>,
    pub tally: Tally,
    /// The highest time seen: what has expired then is gone, also when the clock is set back.
    pub latest: Timestamp,
}

pub struct Buyer {
    pub id: BuyerId,
    /// Limits of the caps `short`, `total` and `spend`; a buyer has those that are not zero at the start.
    pub limits: [u64; 3],
}

const CAPS: [&str; 3] = ["short", "total", "spend"];
/// What a lead costs a money cap.
pub const PRICE: u64 = 40;

impl<B: Bench> Walk<B> {
    pub async fn start(bench: B, mut dice: Dice) -> Self {
        for gateway in 0..bench.gateways() {
            begin_lives(&*bench.gateway(gateway)).await;
        }
        let buyers = vec![
            Buyer { id: buyer("alpha"), limits: [6, 20, 0] },
            Buyer { id: buyer("beta"), limits: [9, 0, 500] },
            Buyer { id: buyer("gamma"), limits: [0, 0, 1_000] },
            Buyer { id: buyer("open"), limits: [0, 0, 0] },
        ];
        let mut walk = Self {
            bench,
            model: Model::default(),
            books: Books::default(),
            buyers,
            version: 1,
            windows: BTreeMap::new(),
            tally: Tally::new(),
            latest: Timestamp::UNIX_EPOCH,
            dice: dice.split(),
        };
        // What was sold before the walk.
        let now = walk.bench.gateway(0).now();
        for number in 0..walk.buyers.len() {
            for demand in walk.candidate(number, now, 1).demands {
                let place = Place::of(&walk.buyers[number].id, &demand.charge);
                let used = u64::try_from(dice.roll(4)).unwrap() * demand.charge.amount;
                walk.books.used.insert(place.clone(), used);
                // What was sold before the walk was within the limit of its time.
                walk.model.limits.insert(place.clone(), used);
                walk.model.counters.insert(place, used);
            }
        }
        walk
    }

    pub fn candidate(&mut self, number: usize, at: Timestamp, version: u64) -> TakeCandidate {
        let [short, long] = self.bench.windows_ms().map(|length| window_at(at, length));
        let limits = self.buyers[number].limits;
        let mut demands = Vec::new();
        if limits[0] > 0 {
            demands.push(demand(CAPS[0], short, limits[0]));
        }
        if limits[1] > 0 {
            demands.push(demand(CAPS[1], total_window(), limits[1]));
        }
        if limits[2] > 0 {
            demands.push(money_demand(CAPS[2], long, PRICE, limits[2]));
        }
        let id = self.buyers[number].id.clone();
        for demand in &demands {
            let charge = &demand.charge;
            let key = (id.clone(), charge.cap.as_str().to_owned(), charge.window.start.as_millisecond());
            self.windows.insert(key, charge.window);
            let of_cap = (id.clone(), charge.cap.as_str().to_owned(), i64::MIN)
                ..=(id.clone(), charge.cap.as_str().to_owned(), i64::MAX);
            let older: Vec<_> =
                self.windows.range(of_cap).rev().skip(WINDOWS_WATCHED).map(|(key, _)| key.clone()).collect();
            for key in older {
                self.windows.remove(&key);
            }
        }
        let lease_for = Duration::from_millis([20, 200, 60_000][self.dice.roll(3)]);
        TakeCandidate { lease_for, routing_version: version, ..candidate(&id, demands) }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub fn gateway(&mut self) -> (usize, Arc<dyn Store>) {
        let number = self.dice.roll(self.bench.gateways());
        (number, self.bench.gateway(number))
    }

    pub fn partition(&self, id: &BuyerId) -> Partition {
        Partition::of(id.as_str(), self.bench.gateway(0).partitions())
    }

    pub async fn step(&mut self, number: u32) {
        self.latest = self.latest.max(self.bench.gateway(0).now());
        match self.dice.roll(100) {
            0..34 => self.take().await,
            34..66 => self.end_one().await,
            66..69 => self.take_again().await,
            69..73 => self.recover().await,
            73..76 => self.give_back_at_deadline().await,
            76..82 => {
                let (partition, count) = (self.any_partition(), 1 + self.dice.roll(12));
                let (_, store) = self.gateway();
                self.books.settle(&*store, partition, count).await;
                self.count("settled");
            }
            82..85 => self.reconcile().await,
            85..88 => self.change_limits(),
            88..90 => self.crash(),
            90..92 => self.lose_counter().await,
            92..94 => self.restart().await,
            _ => self.bench.pass_time(&mut self.dice).await,
        }
        self.check(number).await;
    }

    pub fn any_partition(&mut self) -> Partition {
        let id = self.buyers[self.dice.roll(self.buyers.len())].id.clone();
        self.partition(&id)
    }

    /// Windows of a buyer whose counters have to be there still.
    pub fn recent_windows(&self, id: &BuyerId, now: Timestamp) -> Vec<(Place, Window)> {
        let of_buyer = self.windows.iter().filter(|((buyer, ..), _)| buyer == id);
        of_buyer
            .filter(|(_, window)| window.end.is_none_or(|end| now < end + COUNTER_SLACK))
            .map(|((buyer, id, start_ms), window)| {
                (Place { buyer: buyer.clone(), cap: cap(id), start_ms: *start_ms }, *window)
            })
            .collect()
    }

    /// P1 and P2 as they stand: the store's counters beside the model's, and beside books + journal + open leases.
    async fn check(&mut self, step: u32) {
        self.model.assert_p1();
        let (_, store) = self.gateway();
        let now = store.now();
        let mut places = Vec::new();
        for buyer in &self.buyers {
            places.extend(self.recent_windows(&buyer.id, now));
        }
        let keys: Vec<_> = places
            .iter()
            .map(|(place, window)| CounterKey { buyer: place.buyer.clone(), cap: place.cap.clone(), window: *window })
            .collect();
        let counters = store.counters(&keys).await.unwrap();
        for ((place, _), counter) in places.iter().zip(&counters) {
            let must = self.model.present.contains(place).then(|| self.model.counter(place));
            assert_eq!(*counter, must, "P2 in step {step}: {place:?}");
        }
        let partition = self.any_partition();
        let must = self.books.must_be(&*store, partition).await;
        for ((place, _), counter) in places.iter().zip(&counters) {
            if self.partition(&place.buyer) == partition && counter.is_some() {
                assert_eq!(*counter, Some(must.get(place).copied().unwrap_or(0)), "P2 in step {step}: {place:?}");
            }
        }
    }

    pub fn told(&self) -> String {
        self.tally.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// A long walk has met every case, or it proves less than it says.
    pub fn assert_was_thorough(&self, steps: u32) {
        if steps < 1_000 {
            return;
        }
        for what in [
            "granted",
            "full",
            "wrong window",
            "unseeded",
            "seeded",
            "stale",
            "ended",
            "committed",
            "refunded",
            "doubted",
            "expired",
            "late yes after a refund",
            "doubt ended by a yes",
            "doubt ended by a no",
            "doubt confirmed",
            "not confirmed after a refund",
            "already",
            "recovered",
            "to be given back",
            "settled",
            "reconciled",
            "limits changed",
            "crashed",
            "lost reply of a take",
            "lost reply of an end",
        ] {
            assert!(self.tally.contains_key(what), "never met: {what}");
        }
    }

    /// The rest is recovered and settled: then counters and books say the same.
    pub async fn end(mut self) {
        let store = self.bench.gateway(0);
        for index in 0..self.model.units.len() {
            let State::Open { .. } = self.model.units[index].state else { continue };
            let unit = &self.model.units[index];
            let amounts = unit.counts.clone();
            let call = end_call(Verb::Doubt, unit, &amounts);
            self.call_end(index, Verb::Doubt, &call, &amounts).await;
        }
        for number in 0..store.partitions() {
            self.books.settle(&*store, Partition(number), 1_000_000).await;
        }
        self.check(u32::MAX).await;
        let usage = &self.books.used;
        for (place, used) in &self.model.counters {
            assert_eq!(usage.get(place).copied().unwrap_or(0), *used, "the books: {place:?}");
        }
        drop(store);
        self.bench.end().await;
    }
}

fn window_at(at: Timestamp, length_ms: i64) -> Window {
    let start = at.as_millisecond().div_euclid(length_ms) * length_ms;
    let instant = |ms| Timestamp::from_millisecond(ms).unwrap();
    Window { start: instant(start), end: Some(instant(start + length_ms)) }
}
