//! Caps and leases: take, the three ends, seed, and recovery of leases. Part of the state machine.

use jiff::Timestamp;

use super::change::{Change, CounterRecord, Held, Lease};
use super::partition::PartitionState;
use super::state::{State, span_ms, span_us};
use crate::domain::event::{Event, Life, Mark, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition};
use crate::domain::lease::{Charge, Demand, EndMark, LeaseKey, OpenLease};
use crate::domain::window::Window;
use crate::store::ends::End;
use crate::store::{CounterKey, EndReply, LeaseEnd, Refusal, SeedReply, StoreError, Take, TakeCandidate, TakeReply};

impl State {
    pub(super) fn take(&mut self, now: Timestamp, call: &Take) -> TakeReply {
        // A repeat finds its own lease, whoever has room by now (F20). A lease of another walk is not its own (P4).
        let open = call.candidates.iter().position(|candidate| {
            let state = self.partition_of(candidate.buyer.as_str());
            let lease = state.leases.get(&key_of(call.lead, candidate)).filter(|_| state.is_current());
            lease.is_some_and(|lease| lease.about.walk == candidate.about.walk)
        });
        let mut reply = TakeReply { taken: None, refused: Vec::new(), too_late: false };
        for (index, candidate) in call.candidates.iter().enumerate() {
            if open == Some(index) {
                reply.taken = open;
                break;
            }
            if open.is_none() && now > call.not_after {
                reply.too_late = true;
                break;
            }
            let state = self.partition_of(candidate.buyer.as_str());
            state.purge(now.as_millisecond());
            match refusal(state, now, call.lead, candidate) {
                Some(refusal) => {
                    let ends_call = open.is_none() && refusal.is_curable();
                    reply.refused.push((index, refusal));
                    if ends_call {
                        break;
                    }
                }
                None if open.is_none() => {
                    let version = candidate.routing_version;
                    let lease = lease_of(now, call.lead, candidate);
                    self.change_of(candidate.buyer.as_str(), Change::Take { lease, version }, None);
                    reply.taken = Some(index);
                    break;
                }
                // The lease of this call is further on; the room is for others.
                None => {}
            }
        }
        reply
    }

    /// Ends a lease, if its state lets this verb do it.
    pub(super) fn end(&mut self, now: Timestamp, how: End, end: &LeaseEnd) -> EndReply {
        let (mark, end_mark_ttl_ms) = (how.mark(), span_ms(self.end_mark_ttl));
        let state = self.partition_of(end.key.buyer.as_str());
        state.purge(now.as_millisecond());
        let was = state.ended.get(&end.key).map(|ended| ended.mark);
        let (mut reply, event) = match (state.leases.contains_key(&end.key), was) {
            (true, _) => (EndReply::Done, &end.event),
            (false, None) => return EndReply::Missing,
            (false, Some(was)) if how.changes_from().contains(&was) => {
                (EndReply::Late { was, counters: Vec::new() }, &end.late_event)
            }
            (false, Some(was)) => return EndReply::Already(was),
        };
        let change = Change::End {
            key: end.key.clone(),
            mark,
            counts: counts_of(&event.windows, mark),
            expires_ms: now.as_millisecond().saturating_add(end_mark_ttl_ms),
            entry: state.next_entry(now.as_millisecond()),
        };
        let bytes = Event::Attempt(event.clone()).to_bytes();
        self.change_of(end.key.buyer.as_str(), change, Some(bytes.into()));
        self.partition_of(end.key.buyer.as_str()).note_attempt(event, now.as_millisecond());
        if let EndReply::Late { was: EndMark::Refunded, counters } = &mut reply {
            let state = self.partition_of(end.key.buyer.as_str());
            let after =
                |charge: &Charge| counter(state, &end.key.buyer, &charge.cap, charge.window.start.as_millisecond());
            *counters = end.charges.iter().map(|charge| after(charge).unwrap_or(0)).collect();
        }
        reply
    }

    /// Appends an event that changes no unit, in the partition of `owner`.
    pub(super) fn record(&mut self, now: Timestamp, owner: &str, event: &Event) {
        let state = self.partition_of(owner);
        let (life, id) = (state.life.unwrap_or(Life(0)), state.next_entry(now.as_millisecond()));
        self.change_of(owner, Change::Entry { life, id, effects: Vec::new() }, Some(event.to_bytes().into()));
        if let Event::Attempt(attempt) = event {
            self.partition_of(owner).note_attempt(attempt, now.as_millisecond());
        }
    }

    /// Sets an end mark that has expired; false when it is too late for that.
    pub(super) fn remember(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        mark: EndMark,
        windows: &[WindowAmount],
        not_after: Timestamp,
    ) -> bool {
        let expires_ms = now.as_millisecond().saturating_add(span_ms(self.end_mark_ttl));
        let state = self.partition_of(key.buyer.as_str());
        state.purge(now.as_millisecond());
        if state.leases.contains_key(key) || state.ended.contains_key(key) {
            return true;
        }
        if now > not_after {
            return false;
        }
        let change = Change::Mark { key: key.clone(), mark, counts: counts_of(windows, mark), expires_ms };
        self.change_of(key.buyer.as_str(), change, None);
        true
    }

    pub(super) fn give_back_at_deadline(&mut self, key: &LeaseKey) {
        let state = self.partition_of(key.buyer.as_str());
        if state.leases.get(key).is_some_and(|lease| !lease.gives_back) {
            self.change_of(key.buyer.as_str(), Change::GivesBack { key: key.clone() }, None);
        }
    }

    /// Reads tail and leases in the same step as it sets the counters, so the result is exact (P2).
    pub(super) fn seed(&mut self, buyer: &BuyerId, mark: &Mark, counters: &[(CapId, Window, u64)]) -> SeedReply {
        let state = self.partition_of(buyer.as_str());
        if !state.is_current() || state.life != Some(mark.life) {
            return SeedReply::NewLife;
        }
        if state.journals.get(&mark.life).is_some_and(|journal| journal.trimmed > mark.entry) {
            return SeedReply::Stale;
        }
        let mut missing = Vec::new();
        for (cap, window, settled) in counters {
            let start_ms = window.start.as_millisecond();
            if counter(state, buyer, cap, start_ms).is_none() {
                let mut sum = i128::from(*settled);
                unsettled(state, Some(mark), |of, in_cap, start, units| {
                    sum += if of == buyer && in_cap == cap && start == start_ms { units } else { 0 };
                });
                let used = u64::try_from(sum.max(0)).unwrap_or(u64::MAX);
                let end_ms = window.end.map(Timestamp::as_millisecond);
                missing.push(CounterRecord { buyer: buyer.clone(), cap: cap.clone(), start_ms, end_ms, used });
            }
        }
        for counter in missing {
            self.change_of(buyer.as_str(), Change::Counter(counter), None);
        }
        SeedReply::Seeded
    }

    pub(super) fn counters(&mut self, keys: &[CounterKey]) -> Vec<Option<u64>> {
        keys.iter()
            .map(|key| {
                let state = self.partition_of(key.buyer.as_str());
                counter(state, &key.buyer, &key.cap, key.window.start.as_millisecond())
            })
            .collect()
    }

    pub(super) fn newest_windows(&mut self, buyer: &BuyerId, caps: &[CapId]) -> Vec<Option<Window>> {
        let known = self.partition_of(buyer.as_str()).buyers.get(buyer);
        caps.iter().map(|cap| known?.caps.get(cap)?.newest()).collect()
    }

    pub(super) fn overdue_leases(
        &mut self,
        now: Timestamp,
        partition: Partition,
        count_max: usize,
    ) -> Result<Vec<OpenLease>, StoreError> {
        let state = self.partition(partition)?;
        let due = state.due.iter().take_while(|(deadline_us, _)| *deadline_us <= now.as_microsecond());
        Ok(due.take(count_max).filter_map(|(_, key)| state.leases.get(key)).map(as_open).collect())
    }

    pub(super) fn open_leases(&mut self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError> {
        let state = self.partition(partition)?;
        Ok(state.due.iter().take(count_max).filter_map(|(_, key)| state.leases.get(key)).map(as_open).collect())
    }
}

/// Calls `visit` with every signed move that stands between the ledger's usage at `mark` and the counters: effects of
/// journal entries after the mark, and what open leases hold (P2). Journals of other lives count whole: what of them is
/// settled is not known here, and too many closes a cap where too few would oversell it.
pub(super) fn unsettled<'a>(
    state: &'a PartitionState,
    mark: Option<&Mark>,
    mut visit: impl FnMut(&'a BuyerId, &'a CapId, i64, i128),
) {
    for (life, journal) in &state.journals {
        let after = mark.filter(|mark| mark.life == *life).map_or(journal.trimmed, |mark| mark.entry);
        for effect in journal.after(after).flat_map(|entry| &entry.effects) {
            visit(&effect.buyer, &effect.cap, effect.start_ms, i128::from(effect.units));
        }
    }
    for lease in state.leases.values() {
        for held in &lease.held {
            visit(&lease.key.buyer, &held.cap, held.start_ms, i128::from(held.amount));
        }
    }
}

fn key_of(lead: LeadId, candidate: &TakeCandidate) -> LeaseKey {
    LeaseKey { lead, buyer: candidate.buyer.clone() }
}

fn counter(state: &PartitionState, buyer: &BuyerId, cap: &CapId, start_ms: i64) -> Option<u64> {
    let known = state.buyers.get(buyer)?.caps.get(cap)?;
    known.windows.get(&start_ms).map(|counter| counter.used)
}

/// Why this candidate cannot have a lease now; checks only, nothing is charged (F06).
fn refusal(state: &mut PartitionState, now: Timestamp, lead: LeadId, candidate: &TakeCandidate) -> Option<Refusal> {
    if !state.is_current() {
        return Some(Refusal::NewLife);
    }
    if state.leases.contains_key(&key_of(lead, candidate)) {
        return Some(Refusal::Underway);
    }
    if let Some(ended) = state.ended.get(&key_of(lead, candidate)) {
        return Some(Refusal::Ended(ended.mark));
    }
    let buyer = state.buyer_mut(&candidate.buyer);
    if buyer.version > candidate.routing_version {
        return Some(Refusal::Stale { newest: buyer.version });
    }
    buyer.version = candidate.routing_version;
    let person = candidate.about.person.as_ref();
    if let Some(refusal) = state.refuses_person(&candidate.buyer, lead, person, now.as_millisecond()) {
        return Some(refusal);
    }
    let buyer = state.buyer_mut(&candidate.buyer);
    if candidate.demands.iter().any(|demand| !demand.charge.window.contains(now)) {
        return Some(Refusal::WrongWindow { store_now: now });
    }
    // A zone that was changed in mid-window adds no capacity: what has counted until now counts on to its end (F33).
    let other = candidate.demands.iter().find_map(|Demand { charge, .. }| {
        let newest = buyer.caps.get(&charge.cap)?.newest()?;
        (newest != charge.window && newest.overlaps(&charge.window)).then(|| (charge.cap.clone(), newest))
    });
    if let Some((cap, window)) = other {
        return Some(Refusal::OtherWindow { cap, window });
    }
    candidate.demands.iter().find_map(|Demand { charge, limit }| {
        let start_ms = charge.window.start.as_millisecond();
        let known = buyer.caps.get(&charge.cap);
        let used = match known.and_then(|cap| cap.windows.get(&start_ms)) {
            Some(counter) => counter.used,
            // A new window of a cap that was counted before starts at 0; anything else may have been lost (P8).
            None if known.and_then(|cap| cap.newest_ms).is_some_and(|newest_ms| newest_ms < start_ms) => 0,
            None => return Some(Refusal::Unseeded { cap: charge.cap.clone() }),
        };
        // Zero is closed, even for a lead that costs nothing (F14).
        let has_room = *limit > 0 && used.checked_add(charge.amount).is_some_and(|after| after <= *limit);
        (!has_room).then(|| Refusal::Full { cap: charge.cap.clone(), used })
    })
}

fn lease_of(now: Timestamp, lead: LeadId, candidate: &TakeCandidate) -> Lease {
    let held = |demand: &Demand| Held {
        cap: demand.charge.cap.clone(),
        start_ms: demand.charge.window.start.as_millisecond(),
        end_ms: demand.charge.window.end.map(Timestamp::as_millisecond),
        amount: demand.charge.amount,
    };
    Lease {
        key: key_of(lead, candidate),
        held: candidate.demands.iter().map(held).collect(),
        about: candidate.about.clone(),
        taken_at_us: now.as_microsecond(),
        deadline_us: now.as_microsecond().saturating_add(span_us(candidate.lease_for)),
        gives_back: false,
    }
}

/// What counts after an end.
fn counts_of(windows: &[WindowAmount], mark: EndMark) -> Vec<WindowAmount> {
    match mark {
        EndMark::Committed | EndMark::Doubt => windows.to_vec(),
        EndMark::Refunded => Vec::new(),
    }
}

fn as_open(lease: &Lease) -> OpenLease {
    // Cannot fail because every instant here was made from a timestamp, or is held within their range.
    let by_us = |us: i64| Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX);
    let instant = |ms: i64| Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
    let charge = |held: &Held| Charge {
        cap: held.cap.clone(),
        window: Window { start: instant(held.start_ms), end: held.end_ms.map(instant) },
        amount: held.amount,
    };
    OpenLease {
        key: lease.key.clone(),
        charges: lease.held.iter().map(charge).collect(),
        about: lease.about.clone(),
        taken_at: by_us(lease.taken_at_us),
        deadline: by_us(lease.deadline_us),
        gives_back: lease.gives_back,
    }
}
