//! What operators, crashes and settlement do meanwhile.

use capgate::store::{Comparison, CounterKey, ReconcileReply};

use crate::bench::Bench;
use crate::pure::{Place, State};
use crate::support::begin_lives;
use crate::walk::{PRICE, Walk};

impl<B: Bench> Walk<B> {
    /// The operator writes other limits; every gateway has them from the next take on, but for those under an old routing.
    pub fn change_limits(&mut self) {
        let number = self.dice.roll(self.buyers.len());
        for limit in self.buyers[number].limits.iter_mut().filter(|limit| **limit > 0) {
            let unit = if *limit >= 100 { PRICE } else { 1 };
            let step = unit * u64::try_from(1 + self.dice.roll(4)).unwrap();
            *limit = if self.dice.roll(5) < 3 { *limit + step } else { limit.saturating_sub(step).max(unit) };
        }
        self.version += 1;
        self.count("limits changed");
    }

    /// A gateway dies: nobody knows of its leases any more.
    pub fn crash(&mut self) {
        let dead = self.dice.roll(self.bench.gateways());
        for unit in self.model.units.iter_mut().filter(|unit| unit.owner == Some(dead)) {
            unit.owner = None;
        }
        self.count("crashed");
    }

    pub async fn lose_counter(&mut self) {
        let mut places: Vec<_> = self.model.present.iter().cloned().collect();
        places.sort_by_key(|place| (place.start_ms, place.buyer.clone(), place.cap.as_str().to_owned()));
        let newest = places.len().min(6);
        if newest == 0 {
            return;
        }
        let place = places[places.len() - 1 - self.dice.roll(newest)].clone();
        if self.bench.lose_counter(&place).await {
            self.model.present.remove(&place);
            self.count("counter lost");
        }
    }

    pub async fn restart(&mut self) {
        let (marks, usage) = self.books.read(self.bench.gateway(0).partitions());
        if !self.bench.restart(&marks, &usage).await {
            return;
        }
        self.count("restarted");
        let store = self.bench.gateway(0);
        begin_lives(&*store).await;
        let now = store.now();
        for unit in &mut self.model.units {
            unit.owner = None;
            if let State::Open { deadline, .. } = &mut unit.state {
                // Of each process anew: the file holds the deadline as it was taken.
                *deadline = now.min(unit.taken_until);
            }
        }
        // What the books name has a counter now.
        for place in usage.iter().map(|row| Place {
            buyer: row.buyer.clone(),
            cap: row.cap.clone(),
            start_ms: row.window_start.as_millisecond(),
        }) {
            self.model.appears(place);
        }
        // A routing that was seen but never sold under is forgotten with the process: the new one is asked first.
        self.version += 1;
    }

    pub async fn reconcile(&mut self) {
        let id = self.buyers[self.dice.roll(self.buyers.len())].id.clone();
        let (_, store) = self.gateway();
        let (usage, now) = (&self.books.used, store.now());
        let wanted: Vec<_> = self
            .recent_windows(&id, now)
            .into_iter()
            .map(|(place, window)| Comparison {
                usage: usage.get(&place).copied().unwrap_or(0),
                key: CounterKey { buyer: place.buyer, cap: place.cap, window },
                // A difference that is not there cannot be taken out.
                repair: Some(1),
            })
            .collect();
        match store.reconcile(&self.books.mark(self.partition(&id)), &wanted).await.unwrap() {
            ReconcileReply::Compared(found) => {
                for found in found {
                    assert!(matches!(found.difference(), None | Some(0)) && !found.is_repaired, "{found:?}");
                }
                self.count("reconciled");
            }
            other => panic!("{other:?}"),
        }
    }
}
