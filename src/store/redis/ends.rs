//! Ending leases: commit, confirm, refund, expire, doubt. All sums are made here, exactly; the scripts only pick the ones of the state they find.

use std::fmt::Write;

use jiff::Timestamp;

use super::held::{HeldClose, HeldEnd};
use super::keys::escape;
use super::leads::read_close;
use super::persons::{PersonNote, push_note};
use super::record::charges_text;
use super::reply::{Answer, Call};
use super::restate::entry_id;
use super::scripts::Verb;
use super::{RedisStore, Reply, first_word, millis, nth, unknown_reply};
use crate::domain::event::{Attempt, EntryId, Event, Life};
use crate::domain::id::{BuyerId, Partition};
use crate::domain::lease::{Charge, EndMark, LeaseKey};
use crate::store::ends::End;
use crate::store::{Close, CloseReply, EndReply, LeaseEnd, StoreError};

/// Its script.
fn verb_of(how: End) -> Verb {
    match how {
        End::Commit => Verb::Commit,
        End::Confirm => Verb::Confirm,
        End::Refund => Verb::Refund,
        End::Expire => Verb::Expire,
        End::Doubt => Verb::Doubt,
    }
}

/// What a change of state does to the windows, in the order of the charges.
struct Change {
    /// For the journal: what settled usage will be raised or lowered by.
    effects: Vec<i128>,
    /// For the counters.
    counters: Vec<i128>,
}

impl RedisStore {
    pub(super) async fn run_end(&self, how: End, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let life = self.life_of_ends(self.partition(end.key.buyer.as_str()))?;
        let answer = self.client.run(verb_of(how), &self.end_call(how, end, life, &call_name())?).await?;
        self.read_end(how, end, life, &answer.reply)
    }

    /// Ends wait for a partition whose life this gateway has not joined: what its data says of a lease proves nothing before
    /// everything is restated.
    fn life_of_ends(&self, partition: Partition) -> Result<Life, StoreError> {
        self.joined_life(partition).ok_or_else(of_another_life)
    }

    pub(super) async fn run_commit_close(
        &self,
        end: &LeaseEnd,
        close: &Close,
    ) -> Result<(EndReply, Option<CloseReply>), StoreError> {
        let buyers = self.partition(end.key.buyer.as_str());
        let publishers = self.partition(close.event.publisher.as_str());
        let life = self.life_of_ends(buyers)?;
        if let (false, Some(of_close)) = (self.client.is_cluster(), self.joined_life(publishers)) {
            let commit = self.end_call(End::Commit, end, life, &call_name())?;
            let Answer { reply, was_repeated } =
                self.client.run(Verb::CommitClose, &both(commit, self.close_call(close, of_close))).await?;
            let items = reply.list()?;
            // What was written is what is held, and restated should it be lost.
            let committed = if items.len() > 2 {
                self.read_end(End::Commit, &end.clone().as_late(), life, nth(items, 0)?)?
            } else {
                self.read_end(End::Commit, end, life, nth(items, 0)?)?
            };
            let closed = match items.get(1) {
                Some(closed) => Some(self.read_own_close(closed, close, of_close, was_repeated)?),
                None => None,
            };
            return Ok((committed, closed));
        }
        match self.run_end(End::Commit, end).await? {
            EndReply::Done => Ok((EndReply::Done, Some(self.run_close(close).await?))),
            other => Ok((other, None)),
        }
    }

    /// [`read_close`]: what was appended is held and settlement is told; an answer that our own first try has stored is not
    /// somebody else's.
    pub(super) fn read_own_close(
        &self,
        reply: &Reply,
        close: &Close,
        life: Life,
        was_repeated: bool,
    ) -> Result<CloseReply, StoreError> {
        let (read, id) = read_close(reply)?;
        let event = &close.event;
        let is_ours = match &read {
            CloseReply::Closed => true,
            CloseReply::Already(answer) => {
                self.held.answered(event.lead);
                *answer == event.answer.as_bytes()
            }
            CloseReply::NewLife => false,
        };
        if !is_ours {
            return Ok(read);
        }
        self.held.closed(
            life,
            id,
            HeldClose {
                lead: event.lead,
                publisher: event.publisher.clone(),
                claim: close.claim.clone(),
                retention_ms: millis(close.retention),
                answer: event.answer.clone(),
                event: Event::Closed(event.clone()).to_bytes(),
            },
        );
        self.appended.notify_one();
        Ok(if was_repeated { CloseReply::Closed } else { read })
    }

    /// Keys and arguments of ending.lua.
    fn end_call(&self, how: End, end: &LeaseEnd, life: Life, name: &str) -> Result<Call, StoreError> {
        let LeaseKey { lead, buyer } = &end.key;
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.end_mark(partition, *lead, buyer),
            self.keys.leases(partition, buyer),
            self.keys.due(partition),
            self.keys.journal(partition, Some(life)),
        ]);
        for charge in &end.charges {
            let start = charge.window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, buyer, &charge.cap, start));
        }
        call.number(life.0).arg(lead.to_string()).arg(buyer.as_str().to_owned()).arg(name.to_owned());
        call.number(millis(self.end_mark_ttl).max(1)).arg(charges_text(&end.charges));
        call.arg(Event::Attempt(end.event.clone()).to_bytes());
        call.arg(Event::Attempt(end.late_event.clone()).to_bytes());
        // Of both events: they tell one outcome, in time or late.
        let note = PersonNote::of(&end.event);
        push_note(&mut call, note.as_ref());
        for change in changes(how, end)? {
            call.arg(effects_text(buyer, &end.charges, &change.effects));
            for counter in change.counters {
                call.number(counter);
            }
        }
        self.push_person_key(&mut call, &end.key, note.as_ref());
        Ok(call)
    }

    /// Reads ending.lua's reply; what was appended is held.
    fn read_end(&self, how: End, end: &LeaseEnd, life: Life, reply: &Reply) -> Result<EndReply, StoreError> {
        let (word, rest) = first_word(reply)?;
        let mark = || {
            let word = nth(rest, 0)?.text()?;
            EndMark::parse(word).ok_or_else(|| unknown_reply("an end", word))
        };
        let (reply, id) = match word {
            "done" => (EndReply::Done, entry_id(nth(rest, 0)?)?),
            "late" => {
                let counters = read_counters(nth(rest, 2)?.text()?)?;
                (EndReply::Late { was: mark()?, counters }, entry_id(nth(rest, 1)?)?)
            }
            "already" => (EndReply::Already(mark()?), entry_id(nth(rest, 1)?)?),
            "missing" => (EndReply::Missing, EntryId::default()),
            "life" => return Err(of_another_life()),
            word => return Err(unknown_reply("an end", word)),
        };
        // A lease that has ended as this call wanted it may have been ended by an earlier try whose reply was lost.
        let from = match reply {
            EndReply::Done => Some(None),
            EndReply::Late { was, .. } => Some(Some(was)),
            EndReply::Already(mark) if mark == how.mark() => Some(None),
            EndReply::Already(_) | EndReply::Missing => None,
        };
        let Some(from) = from else {
            self.held.ended(&end.key);
            return Ok(reply);
        };
        // Changes stand in the script's order: of an open lease, then of the ends that it changes.
        let ended = from.and_then(|from| how.changes_from().iter().position(|state| *state == from));
        let change = ended.map_or(0, |place| place + 1);
        let effects = changes(how, end)?.into_iter().nth(change).map(|change| change.effects).unwrap_or_default();
        let event = if from.is_none() { &end.event } else { &end.late_event };
        let note = PersonNote::of(event);
        let event = Event::Attempt(event.clone()).to_bytes();
        let (key, charges) = (end.key.clone(), end.charges.clone());
        self.held.end_appended(life, id, HeldEnd { key, charges, mark: how.mark(), effects, event, note });
        self.appended.notify_one();
        Ok(reply)
    }

    pub(super) async fn run_record(&self, partition: Partition, event: &Event) -> Result<(), StoreError> {
        let life = self.life_of_ends(partition)?;
        let mut call = Call::new(vec![self.keys.life(partition), self.keys.journal(partition, Some(life))]);
        call.number(life.0).arg(event.to_bytes());
        self.push_recorded_person(&mut call, partition, event);
        let event = event.to_bytes();
        let answer = self.client.run(Verb::Record, &call).await?;
        match first_word(&answer.reply)? {
            ("done", rest) => {
                self.held.recorded(partition, life, entry_id(nth(rest, 0)?)?, event);
                self.appended.notify_one();
                Ok(())
            }
            ("life", _) => Err(of_another_life()),
            (word, _) => Err(unknown_reply("record", word)),
        }
    }

    pub(super) async fn run_remember(
        &self,
        key: &LeaseKey,
        mark: EndMark,
        not_after: Timestamp,
    ) -> Result<bool, StoreError> {
        let LeaseKey { lead, buyer } = key;
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![self.keys.end_mark(partition, *lead, buyer), self.keys.leases(partition, buyer)]);
        call.arg(lead.to_string()).arg(mark.as_str().to_owned()).number(millis(self.end_mark_ttl).max(1));
        call.number(not_after.as_millisecond());
        Ok(self.client.run(Verb::Remember, &call).await?.reply.int()? >= 0)
    }

    pub(super) async fn run_give_back(&self, key: &LeaseKey) -> Result<(), StoreError> {
        let mut call = Call::new(vec![self.keys.leases(self.partition(key.buyer.as_str()), &key.buyer)]);
        call.arg(key.lead.to_string());
        self.client.run(Verb::GiveBack, &call).await?;
        self.held.gives_back(key);
        Ok(())
    }
}

pub(super) fn of_another_life() -> StoreError {
    StoreError::NotDone("the partition is closed until its counts are rebuilt".to_owned())
}

/// Counters joined by `,`.
fn read_counters(text: &str) -> Result<Vec<u64>, StoreError> {
    let numbers = text.split(',').filter(|number| !number.is_empty());
    // One that an operator's hand made negative is above no limit.
    numbers
        .map(|number| {
            number.parse().or(if number.starts_with('-') { Ok(0) } else { Err(unknown_reply("an end", text)) })
        })
        .collect()
}

/// Two verbs in one step: counts of the first one's keys and arguments, then everything.
pub(super) fn both(first: Call, second: Call) -> Call {
    let mut call = Call::default();
    call.number(first.keys.len()).number(first.args.len());
    call.keys.extend(first.keys.into_iter().chain(second.keys));
    call.args.extend(first.args.into_iter().chain(second.args));
    call
}

/// Names one call, so that its repeat recognises what it has done (F20).
fn call_name() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// What the verb does, by the state it may find; in the order of the states in its script.
fn changes(how: End, end: &LeaseEnd) -> Result<Vec<Change>, StoreError> {
    let reserved: Vec<i128> = end.charges.iter().map(|charge| i128::from(charge.amount)).collect();
    let minus = |from: &[i128]| -> Vec<i128> { from.iter().zip(&reserved).map(|(a, b)| a - b).collect() };
    let zero = vec![0; reserved.len()];
    Ok(match how {
        End::Commit => {
            let booked = amounts(&end.event, &end.charges)?;
            let late = amounts(&end.late_event, &end.charges)?;
            vec![
                Change { counters: minus(&booked), effects: booked },
                Change { counters: late.clone(), effects: late.clone() },
                Change { counters: minus(&late), effects: minus(&late) },
            ]
        }
        End::Confirm => {
            let booked = amounts(&end.event, &end.charges)?;
            let late = amounts(&end.late_event, &end.charges)?;
            vec![
                Change { counters: minus(&booked), effects: booked },
                Change { counters: minus(&late), effects: minus(&late) },
            ]
        }
        End::Refund => {
            let back = minus(&zero);
            vec![Change { counters: back.clone(), effects: zero }, Change { counters: back.clone(), effects: back }]
        }
        End::Expire => vec![Change { counters: minus(&zero), effects: zero }],
        End::Doubt => {
            // Kept at what was reserved: the sum is known only when the doubt ends.
            if amounts(&end.event, &end.charges)? != reserved {
                return Err(StoreError::Bug("a doubt must keep the amounts that were reserved".to_owned()));
            }
            vec![Change { counters: zero, effects: reserved }]
        }
    })
}

/// Final amounts of an event, which must be about the charges.
fn amounts(event: &Attempt, charges: &[Charge]) -> Result<Vec<i128>, StoreError> {
    let fits = event.windows.len() == charges.len()
        && event.windows.iter().zip(charges).all(|(window, charge)| {
            window.cap == charge.cap && window.start_ms == charge.window.start.as_millisecond()
        });
    if !fits {
        return Err(StoreError::Bug("the windows of an attempt are not those of its lease".to_owned()));
    }
    Ok(event.windows.iter().map(|window| i128::from(window.amount)).collect())
}

/// `<buyer>|<cap>|<window start ms>|<signed amount>`, joined by `;`.
pub(super) fn effects_text(buyer: &BuyerId, charges: &[Charge], effects: &[i128]) -> String {
    let mut out = String::new();
    for (charge, effect) in charges.iter().zip(effects).filter(|(_, effect)| **effect != 0) {
        if !out.is_empty() {
            out.push(';');
        }
        let (cap, start) = (escape(charge.cap.as_str()), charge.window.start.as_millisecond());
        // Cannot fail because writing to a String never does.
        let _ = write!(out, "{buyer}|{cap}|{start}|{effect}");
    }
    out
}
