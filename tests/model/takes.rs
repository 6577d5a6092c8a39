//! Takes, their repeats, and seeds.

use std::sync::Arc;

use capgate::domain::id::LeadId;
use capgate::store::{Refusal, SeedReply, Store, Take, TakeCandidate, TakeReply};
use jiff::{SignedDuration, Timestamp};

use crate::bench::Bench;
use crate::pure::{Place, State};
use crate::support;
use crate::walk::Walk;

impl<B: Bench> Walk<B> {
    /// A take of one to three buyers; now and then under an old routing or for windows that are not now.
    pub async fn take(&mut self) {
        let (owner, store) = self.gateway();
        let at = match self.dice.roll(25) {
            0 => store.now() + SignedDuration::from_millis(self.bench.windows_ms()[0]),
            1 => store.now() - SignedDuration::from_millis(self.bench.windows_ms()[0]),
            _ => store.now(),
        };
        let version = if self.dice.roll(15) == 0 { self.version.saturating_sub(1).max(1) } else { self.version };
        let first = self.dice.roll(self.buyers.len());
        let count = 1 + self.dice.roll(3);
        let candidates = (first..first + count).map(|n| self.candidate(n % self.buyers.len(), at, version)).collect();
        let call =
            Take { lead: LeadId::generate(), candidates, not_after: store.now() + SignedDuration::from_secs(60) };
        let reply = store.take(&call).await.unwrap();
        self.compare(&store, &call, &reply, at, owner).await;
        if self.dice.roll(4) == 0 && !is_at_a_border(&reply) {
            self.count("lost reply of a take");
            let repeat = store.take(&call).await.unwrap();
            if reply.taken.is_some() {
                assert_eq!(repeat, reply, "F20");
            } else {
                self.compare(&store, &call, &repeat, at, owner).await;
            }
        }
        if let Some((index, Refusal::Unseeded { .. })) = reply.refused.last() {
            self.seed(&store, &call.candidates[*index]).await;
        }
    }

    async fn compare(&mut self, store: &Arc<dyn Store>, call: &Take, reply: &TakeReply, at: Timestamp, owner: usize) {
        // Where the store says that it is another time, it decides; it must be about right, and outside the windows.
        let now = match reply.refused.last() {
            Some((index, Refusal::WrongWindow { store_now })) => {
                let off = store_now.duration_since(store.now()).abs();
                assert!(off <= self.bench.tolerance(), "{off}");
                let demands = &call.candidates[*index].demands;
                assert!(demands.iter().any(|demand| !demand.charge.window.contains(*store_now)));
                *store_now
            }
            _ => at,
        };
        // On a cluster each candidate may be asked at a time of its own.
        let last = reply.refused.len().saturating_sub(1);
        let must = self.model.take(call, |index| if index == last { now } else { at }, owner);
        assert_eq!(*reply, must);
        for (_, refusal) in &reply.refused {
            self.count(match refusal {
                Refusal::Full { .. } => "full",
                Refusal::WrongWindow { .. } => "wrong window",
                Refusal::Unseeded { .. } => "unseeded",
                Refusal::Stale { .. } => "stale",
                Refusal::Ended(_) => "ended",
                Refusal::NewLife => panic!("no life has ended"),
                Refusal::OtherWindow { .. } => panic!("no zone has changed"),
                Refusal::Underway => panic!("each lead has one walk"),
                Refusal::Duplicate { .. } | Refusal::AskBooks => panic!("no buyer asks who the person is"),
            });
        }
        if let Some(index) = reply.taken {
            self.count("granted");
            let deadline = store.now() + call.candidates[index].lease_for;
            let unit = self.model.units.last_mut().unwrap();
            unit.taken_until = deadline;
            unit.state = State::Open { deadline, gives_back: false };
            // P1, by the store's own counters: at most the limit this unit was taken under.
            let TakeCandidate { buyer, demands, .. } = &call.candidates[index];
            for demand in demands {
                let charge = &demand.charge;
                let used = support::used(&**store, buyer, charge.cap.as_str(), charge.window).await;
                assert!(used.unwrap() <= demand.limit, "P1: {used:?} of {}", demand.limit);
            }
        }
    }

    pub async fn seed(&mut self, store: &Arc<dyn Store>, candidate: &TakeCandidate) {
        let usage = &self.books.used;
        let mark = self.books.mark(self.partition(&candidate.buyer));
        let counters: Vec<_> = candidate
            .demands
            .iter()
            .map(|demand| {
                let used = usage.get(&Place::of(&candidate.buyer, &demand.charge)).copied().unwrap_or(0);
                (demand.charge.cap.clone(), demand.charge.window, used)
            })
            .collect();
        assert_eq!(store.seed(&candidate.buyer, &mark, &counters).await, Ok(SeedReply::Seeded));
        for demand in &candidate.demands {
            self.model.appears(Place::of(&candidate.buyer, &demand.charge));
        }
        self.count("seeded");
    }

    /// The same lead is offered to the same buyer again: its open lease, or how it ended (P4).
    pub async fn take_again(&mut self) {
        let Some(index) = self.recent() else { return };
        let (owner, store) = self.gateway();
        let unit = self.model.units[index].clone();
        if self.may_be_forgotten(&unit) {
            return;
        }
        let number = self.buyers.iter().position(|buyer| buyer.id == unit.key.buyer).unwrap();
        let candidate = self.candidate(number, store.now(), self.version);
        let not_after = store.now() + SignedDuration::from_secs(60);
        let call = Take { lead: unit.key.lead, candidates: vec![candidate], not_after };
        let reply = store.take(&call).await.unwrap();
        if let State::Open { .. } = unit.state {
            assert_eq!(reply.taken, Some(0));
        } else {
            self.compare(&store, &call, &reply, store.now(), owner).await;
        }
    }
}

/// The window may have changed between two calls.
fn is_at_a_border(reply: &TakeReply) -> bool {
    reply.refused.iter().any(|(_, refusal)| matches!(refusal, Refusal::WrongWindow { .. }))
}
