//! What must be: counters, leases and marks as plain values, and what every call has to answer. No I/O, no clock.

use std::collections::{HashMap, HashSet};

use capgate::domain::id::{BuyerId, CapId, LeadId};
use capgate::domain::lease::{Charge, EndMark, LeaseKey};
use capgate::store::{EndReply, Refusal, Take, TakeCandidate, TakeReply};
use jiff::Timestamp;

/// Where a counter stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub buyer: BuyerId,
    pub cap: CapId,
    pub start_ms: i64,
}

impl Place {
    pub fn of(buyer: &BuyerId, charge: &Charge) -> Self {
        Self { buyer: buyer.clone(), cap: charge.cap.clone(), start_ms: charge.window.start.as_millisecond() }
    }
}

/// The ways a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Commit,
    /// By an operator.
    Confirm,
    Refund,
    Doubt,
    Expire,
}

/// A lease that was granted, from then on.
#[derive(Debug, Clone)]
pub struct Unit {
    pub key: LeaseKey,
    pub candidate: TakeCandidate,
    pub state: State,
    /// The deadline it was taken with.
    pub taken_until: Timestamp,
    /// What counts now, in the order of the demands.
    pub counts: Vec<u64>,
    /// The gateway that knows of it; none after that gateway's crash.
    pub owner: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open { deadline: Timestamp, gives_back: bool },
    Ended { mark: EndMark, at: Timestamp },
}

/// All that must be.
#[derive(Debug, Default)]
pub struct Model {
    pub units: Vec<Unit>,
    by_key: HashMap<LeaseKey, usize>,
    pub counters: HashMap<Place, u64>,
    /// Counters that the store has to have; one that is counted and not there grants nothing.
    pub present: HashSet<Place>,
    pub newest: HashMap<(BuyerId, CapId), i64>,
    pub versions: HashMap<BuyerId, u64>,
    /// Highest limit that a unit was taken under.
    pub limits: HashMap<Place, u64>,
    /// Counted above a limit by a yes that came after its unit had been given back: the exception of P1.
    pub late: HashMap<Place, u64>,
}

impl Model {
    pub fn unit(&self, key: &LeaseKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub fn counter(&self, place: &Place) -> u64 {
        self.counters.get(place).copied().unwrap_or(0)
    }

    /// What a take has to answer, and does; `asked_at` is the store's time at which each candidate was looked at, by index.
    pub fn take(&mut self, call: &Take, asked_at: impl Fn(usize) -> Timestamp, owner: usize) -> TakeReply {
        let mut reply = TakeReply { taken: None, refused: Vec::new(), too_late: false };
        for (index, candidate) in call.candidates.iter().enumerate() {
            if let Some(refusal) = self.refusal(asked_at(index), call.lead, candidate) {
                let ends_call = refusal.is_curable();
                reply.refused.push((index, refusal));
                if ends_call {
                    break;
                }
            } else {
                self.grant(call.lead, candidate, owner);
                reply.taken = Some(index);
                break;
            }
        }
        reply
    }

    fn refusal(&mut self, now: Timestamp, lead: LeadId, candidate: &TakeCandidate) -> Option<Refusal> {
        let key = LeaseKey { lead, buyer: candidate.buyer.clone() };
        if let Some(unit) = self.unit(&key)
            && let State::Ended { mark, .. } = self.units[unit].state
        {
            return Some(Refusal::Ended(mark));
        }
        let newest = self.versions.entry(candidate.buyer.clone()).or_default();
        if *newest > candidate.routing_version {
            return Some(Refusal::Stale { newest: *newest });
        }
        *newest = candidate.routing_version;
        if candidate.demands.iter().any(|demand| !demand.charge.window.contains(now)) {
            return Some(Refusal::WrongWindow { store_now: now });
        }
        candidate.demands.iter().find_map(|demand| {
            let (place, cap) = (Place::of(&candidate.buyer, &demand.charge), demand.charge.cap.clone());
            let used = self.counter(&place);
            if !self.present.contains(&place) {
                let newest = self.newest.get(&(place.buyer.clone(), cap.clone()));
                if newest.is_none_or(|newest| *newest >= place.start_ms) {
                    return Some(Refusal::Unseeded { cap });
                }
                assert_eq!(used, 0, "a new window starts at nothing: {place:?}");
            }
            let has_room = demand.limit > 0 && used + demand.charge.amount <= demand.limit;
            (!has_room).then_some(Refusal::Full { cap, used })
        })
    }

    fn grant(&mut self, lead: LeadId, candidate: &TakeCandidate, owner: usize) {
        let key = LeaseKey { lead, buyer: candidate.buyer.clone() };
        for demand in &candidate.demands {
            let place = Place::of(&candidate.buyer, &demand.charge);
            self.appears(place.clone());
            *self.counters.entry(place.clone()).or_default() += demand.charge.amount;
            let limit = self.limits.entry(place).or_default();
            *limit = demand.limit.max(*limit);
        }
        self.by_key.insert(key.clone(), self.units.len());
        self.units.push(Unit {
            key,
            candidate: candidate.clone(),
            taken_until: Timestamp::MAX,
            // Its deadline is set by whoever knows when it was taken.
            state: State::Open { deadline: Timestamp::MAX, gives_back: false },
            counts: candidate.demands.iter().map(|demand| demand.charge.amount).collect(),
            owner: Some(owner),
        });
    }

    /// The store has a counter here now.
    pub fn appears(&mut self, place: Place) {
        let newest = self.newest.entry((place.buyer.clone(), place.cap.clone())).or_insert(place.start_ms);
        *newest = place.start_ms.max(*newest);
        self.present.insert(place);
    }

    /// What an end has to answer, and does; `amounts` is what its event says.
    pub fn end(&mut self, now: Timestamp, unit: usize, verb: Verb, amounts: &[u64]) -> EndReply {
        let state = self.units[unit].state;
        let (mark, counts) = match verb {
            Verb::Commit | Verb::Confirm => (EndMark::Committed, amounts.to_vec()),
            Verb::Doubt => (EndMark::Doubt, amounts.to_vec()),
            Verb::Refund | Verb::Expire => (EndMark::Refunded, vec![0; amounts.len()]),
        };
        let mut reply = match (state, verb) {
            (State::Open { .. }, _) => EndReply::Done,
            (State::Ended { mark: was @ (EndMark::Doubt | EndMark::Refunded), .. }, Verb::Commit)
            | (State::Ended { mark: was @ EndMark::Doubt, .. }, Verb::Confirm | Verb::Refund) => {
                EndReply::Late { was, counters: Vec::new() }
            }
            (State::Ended { mark, .. }, _) => return EndReply::Already(mark),
        };
        self.units[unit].state = State::Ended { mark, at: now };
        let before = std::mem::replace(&mut self.units[unit].counts, counts.clone());
        let is_exception = matches!(reply, EndReply::Late { was: EndMark::Refunded, .. });
        let mut charged = Vec::new();
        for (index, demand) in self.units[unit].candidate.demands.iter().enumerate() {
            let place = Place::of(&self.units[unit].key.buyer, &demand.charge);
            let counter = self.counters.entry(place.clone()).or_default();
            *counter = (*counter + counts[index]).checked_sub(before[index]).expect("P2: never negative");
            if is_exception {
                // One that is gone is told as 0.
                charged.push(if self.present.contains(&place) { *counter } else { 0 });
                *self.late.entry(place).or_default() += counts[index];
            }
        }
        if let EndReply::Late { counters, .. } = &mut reply {
            *counters = charged;
        }
        reply
    }

    /// P1: for each window, what is counted is within the highest limit that a unit was taken under, the exception apart.
    pub fn assert_p1(&self) {
        for (place, used) in &self.counters {
            let limit = self.limits.get(place).copied().unwrap_or(0);
            let late = self.late.get(place).copied().unwrap_or(0);
            assert!(*used <= limit + late, "P1: {place:?} {used} of {limit}, {late} late");
        }
    }
}
