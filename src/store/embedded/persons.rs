//! Whom buyers have: marks of persons, in memory alone. Part of the state machine.
//!
//! What a new process must know again stands elsewhere: in open leases, in the journal's entries, and for the rest in the
//! books, which are asked until everybody of a buyer has been brought back.

use jiff::Timestamp;

use super::change::Lease;
use super::partition::PartitionState;
use super::state::State;
use crate::domain::event::{Attempt, Event};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::person::{DAY_MS, Person, PersonDigest, PersonMark, has_person};
use crate::store::{PersonReply, Refusal};

/// How long the books need not be asked again about a person whom they do not know: the time of a take's repeats.
const NOBODY_FOR_MS: i64 = 10_000;

/// How long it is remembered that a buyer does not have a person, because the books may still say otherwise.
const FREED_FOR_MS: i64 = 600_000;

/// What is known of a person at a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Had {
    /// `None`: the buyer does not have it.
    pub(super) lead: Option<LeadId>,
    pub(super) since_ms: i64,
    pub(super) expires_ms: i64,
}

impl PartitionState {
    fn put_person(&mut self, buyer: &BuyerId, person: PersonDigest, had: Had) {
        self.expire_person(buyer, person, had.expires_ms);
        self.persons.insert((buyer.clone(), person), had);
    }

    /// The person of an open lease is its buyer's until the lease ends otherwise.
    pub(super) fn note_lease(&mut self, lease: &Lease) {
        if let Some(person) = lease.about.person {
            let since_ms = lease.taken_at_us / 1000;
            let expires_ms = since_ms.saturating_add(person.kept_ms());
            let had = Had { lead: Some(lease.key.lead), since_ms, expires_ms };
            self.put_person(&lease.key.buyer, person.digest, had);
        }
    }

    /// What an attempt's new state does to its person's mark; a mark of another lead stays.
    pub(super) fn note_attempt(&mut self, event: &Attempt, now_ms: i64) {
        let Some(person) = event.person else { return };
        let known = self.persons.get(&(event.buyer.clone(), person.digest));
        let owner = known.and_then(|had| had.lead);
        let had = if has_person(event.outcome) {
            let since_ms = event.sent_at_us / 1000;
            let expires_ms = since_ms.saturating_add(person.kept_ms());
            Had { lead: Some(event.lead), since_ms, expires_ms }
        } else {
            Had { lead: None, since_ms: now_ms, expires_ms: now_ms.saturating_add(FREED_FOR_MS) }
        };
        let may_change = match (had.lead, known) {
            (_, None) => true,
            (Some(_), Some(_)) => owner.is_none(),
            (None, Some(_)) => owner == Some(event.lead),
        };
        if may_change {
            self.put_person(&event.buyer, person.digest, had);
        }
    }

    /// Forgets all marks but those of open leases and of what waits for settlement: of the rest the books tell.
    pub(super) fn tell_persons_again(&mut self) {
        self.persons.clear();
        self.marked.clear();
        let mut attempts: Vec<Attempt> = Vec::new();
        for entry in self.journals.values().flat_map(|journal| &journal.entries) {
            if let Ok(Event::Attempt(attempt)) = Event::from_bytes(&entry.event)
                && attempt.person.is_some()
            {
                attempts.push(attempt);
            }
        }
        for attempt in &attempts {
            // The clock is not known here: what was freed is from the time of its forward, and soon over.
            self.note_attempt(attempt, attempt.sent_at_us / 1000);
        }
        let leases: Vec<Lease> = self.leases.values().filter(|lease| lease.about.person.is_some()).cloned().collect();
        for lease in &leases {
            self.note_lease(lease);
        }
    }

    /// What is known of a person, by the rule in force now: a mark may have been made under a longer one.
    pub(super) fn find_person(&self, buyer: &BuyerId, person: &Person, now_ms: i64) -> PersonReply {
        let known = self.persons.get(&(buyer.clone(), person.digest)).filter(|had| had.expires_ms > now_ms);
        match known {
            Some(Had { lead: Some(lead), since_ms, .. }) if now_ms - since_ms < i64::from(person.days) * DAY_MS => {
                // Cannot fail because it was made from a timestamp.
                let since = Timestamp::from_millisecond(*since_ms).unwrap_or(Timestamp::MIN);
                PersonReply::Had { lead: *lead, since }
            }
            Some(_) => PersonReply::Free,
            None if self.marked.get(buyer).is_some_and(|days| *days >= person.days) => PersonReply::Free,
            None => PersonReply::AskBooks,
        }
    }

    /// Why the buyer cannot have the lead's person.
    pub(super) fn refuses_person(
        &self,
        buyer: &BuyerId,
        lead: LeadId,
        person: Option<&Person>,
        now_ms: i64,
    ) -> Option<Refusal> {
        match self.find_person(buyer, person?, now_ms) {
            PersonReply::Had { lead: owner, since } if owner != lead => Some(Refusal::Duplicate { lead: owner, since }),
            PersonReply::Had { .. } | PersonReply::Free => None,
            PersonReply::AskBooks => Some(Refusal::AskBooks),
        }
    }
}

impl State {
    pub(super) fn bring_persons(&mut self, now: Timestamp, buyer: &BuyerId, days: u32, marks: &[PersonMark]) {
        let now_ms = now.as_millisecond();
        let state = self.partition_of(buyer.as_str());
        for mark in marks {
            let kept_ms = mark.lead.map_or(NOBODY_FOR_MS, |_| i64::from(days) * DAY_MS);
            let expires_ms = mark.since_ms.saturating_add(kept_ms);
            let had = Had { lead: mark.lead, since_ms: mark.since_ms, expires_ms };
            let is_news = match state.persons.get(&(buyer.clone(), mark.digest)).filter(|had| had.expires_ms > now_ms) {
                None => true,
                Some(known) => {
                    known.lead.is_some()
                        && mark.lead.is_some()
                        && (known.lead == mark.lead || known.since_ms < mark.since_ms)
                }
            };
            if is_news && expires_ms > now_ms {
                state.put_person(buyer, mark.digest, had);
            }
        }
    }

    pub(super) fn set_marked(&mut self, buyer: &BuyerId, days: u32) {
        let marked = self.partition_of(buyer.as_str()).marked.entry(buyer.clone()).or_default();
        *marked = (*marked).max(days);
    }

    pub(super) fn person(&mut self, now: Timestamp, buyer: &BuyerId, person: &Person) -> PersonReply {
        self.partition_of(buyer.as_str()).find_person(buyer, person, now.as_millisecond())
    }
}
