//! Marks of persons whom a buyer has: they stand in the buyer's partition, beside its counters and leases, so that the take
//! checks and sets them in its one step.

use std::time::Duration;

use jiff::Timestamp;

use super::ends::of_another_life;
use super::keys::life_text;
use super::reply::Call;
use super::scripts::Verb;
use super::{RedisStore, first_word, nth, unknown_reply};
use crate::domain::event::{Attempt, Event};
use crate::domain::id::{BuyerId, LeadId, Partition};
use crate::domain::lease::LeaseKey;
use crate::domain::person::{DAY_MS, Person, PersonMark, has_person};
use crate::store::{PersonReply, StoreError};

/// Persons in one script call.
const PERSONS_PER_CALL: usize = 100;

/// How long the books need not be asked again about a person whom they do not know: the time of a take's repeats.
const NOBODY_FOR: Duration = Duration::from_secs(10);

/// What becomes of a person's mark.
#[derive(Debug, Clone, Copy)]
pub(super) struct PersonNote {
    person: Person,
    keeps: bool,
    since_ms: i64,
}

impl PersonNote {
    /// By an attempt's new state.
    pub(super) fn of(event: &Attempt) -> Option<Self> {
        let (person, keeps) = (event.person?, has_person(event.outcome));
        Some(Self { person, keeps, since_ms: event.sent_at_us / 1000 })
    }

    /// By an open lease.
    pub(super) fn of_lease(person: Option<Person>, taken_at_ms: i64) -> Option<Self> {
        Some(Self { person: person?, keeps: true, since_ms: taken_at_ms })
    }

    fn verb(&self) -> &'static str {
        if self.keeps { "keep" } else { "free" }
    }

    fn expires_ms(&self) -> i64 {
        self.since_ms.saturating_add(self.person.kept_ms())
    }
}

/// The three arguments of a note; all scripts that take one have them in this order. The key follows as the last one.
pub(super) fn push_note(call: &mut Call, note: Option<&PersonNote>) {
    match note {
        Some(note) => {
            call.arg(note.verb().to_owned());
            call.number(note.since_ms).number(note.expires_ms());
        }
        None => {
            call.arg(String::new()).arg(String::new()).arg(String::new());
        }
    }
}

impl RedisStore {
    pub(super) fn push_person_key(&self, call: &mut Call, key: &LeaseKey, note: Option<&PersonNote>) {
        if let Some(note) = note {
            let partition = self.partition(key.buyer.as_str());
            call.keys.push(self.keys.person(partition, &key.buyer, note.person.digest));
        }
    }

    /// For an event that is recorded beside the ends of leases: only attempts are about a person.
    pub(super) fn push_recorded_person(&self, call: &mut Call, partition: Partition, event: &Event) {
        let noted = match event {
            Event::Attempt(attempt) => PersonNote::of(attempt).map(|note| (attempt, note)),
            Event::Received(_) | Event::Closed(_) | Event::Returned(_) | Event::Parked(_) => None,
        };
        let Some((attempt, note)) = noted else {
            call.arg(String::new());
            return;
        };
        call.arg(note.verb().to_owned()).arg(attempt.lead.to_string());
        call.number(note.since_ms).number(note.expires_ms());
        call.keys.push(self.keys.person(partition, &attempt.buyer, note.person.digest));
    }

    pub(super) async fn run_bring_persons(
        &self,
        buyer: &BuyerId,
        days: u32,
        marks: &[PersonMark],
    ) -> Result<(), StoreError> {
        let partition = self.partition(buyer.as_str());
        for marks in marks.chunks(PERSONS_PER_CALL) {
            let mut call = Call::new(vec![self.keys.life(partition)]);
            call.arg(life_text(self.joined_life(partition)));
            for mark in marks {
                call.keys.push(self.keys.person(partition, buyer, mark.digest));
                let kept_ms = match mark.lead {
                    Some(_) => i64::from(days) * DAY_MS,
                    None => super::millis(NOBODY_FOR),
                };
                call.arg(mark.lead.map(|lead| lead.to_string()).unwrap_or_default());
                call.number(mark.since_ms).number(mark.since_ms.saturating_add(kept_ms));
            }
            self.persons_told(Verb::BringPersons, &call).await?;
        }
        Ok(())
    }

    pub(super) async fn run_marked(&self, buyer: &BuyerId, days: u32) -> Result<(), StoreError> {
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![self.keys.life(partition), self.keys.marked(partition, buyer)]);
        call.arg(life_text(self.joined_life(partition))).number(days);
        self.persons_told(Verb::Marked, &call).await
    }

    pub(super) async fn run_person(&self, buyer: &BuyerId, person: &Person) -> Result<PersonReply, StoreError> {
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.person(partition, buyer, person.digest),
            self.keys.marked(partition, buyer),
        ]);
        call.arg(life_text(self.joined_life(partition))).number(person.days);
        let answer = self.client.run(Verb::Person, &call).await?;
        match first_word(&answer.reply)? {
            ("had", rest) => {
                let had = parse_had(nth(rest, 0)?.text()?, nth(rest, 1)?.text()?);
                had.ok_or_else(|| StoreError::Bug("a person's mark is unreadable".to_owned()))
            }
            ("free", _) => Ok(PersonReply::Free),
            ("unknown", _) => Ok(PersonReply::AskBooks),
            ("life", _) => Err(of_another_life()),
            (word, _) => Err(unknown_reply("person", word)),
        }
    }

    async fn persons_told(&self, verb: Verb, call: &Call) -> Result<(), StoreError> {
        let answer = self.client.run(verb, call).await?;
        match first_word(&answer.reply)?.0 {
            "done" => Ok(()),
            "life" => Err(of_another_life()),
            word => Err(unknown_reply("a script about persons", word)),
        }
    }
}

fn parse_had(lead: &str, since: &str) -> Option<PersonReply> {
    let lead: LeadId = lead.parse().ok()?;
    Some(PersonReply::Had { lead, since: Timestamp::from_millisecond(since.parse().ok()?).ok()? })
}
