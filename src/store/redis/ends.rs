//! Ending leases: commit, refund, doubt. All sums are made here, exactly; the scripts only pick the ones of the state they find.

use std::fmt::Write;

use super::keys::{escape, life_text};
use super::leads::read_close;
use super::record::charges_text;
use super::reply::{Answer, Call};
use super::scripts::Verb;
use super::{RedisStore, Reply, first_word, millis, nth, unknown_reply};
use crate::domain::event::{Attempt, Event, Life};
use crate::domain::id::{BuyerId, Partition};
use crate::domain::lease::{Charge, EndMark, LeaseKey};
use crate::store::{Close, CloseReply, EndReply, LeaseEnd, StoreError};

/// A verb that ends leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Refund,
    Expire,
    Doubt,
}

impl End {
    fn verb(self) -> Verb {
        match self {
            Self::Commit => Verb::Commit,
            Self::Refund => Verb::Refund,
            Self::Expire => Verb::Expire,
            Self::Doubt => Verb::Doubt,
        }
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
        let partition = self.partition(end.key.buyer.as_str());
        let name = call_name();
        let mut life = self.known_life(partition);
        // A life that began elsewhere is met at most once in a while; more often something is wrong.
        for _ in 0..3 {
            let answer = self.client.run(how.verb(), &self.end_call(how, end, life, &name)?).await?;
            match self.read_end(&answer.reply)? {
                Ended::Reply(reply) => return Ok(reply),
                Ended::OtherLife(other) => life = Some(other),
            }
        }
        Err(StoreError::NotDone("the partition's life keeps changing".to_owned()))
    }

    pub(super) async fn run_commit_close(
        &self,
        end: &LeaseEnd,
        close: &Close,
    ) -> Result<(EndReply, Option<CloseReply>), StoreError> {
        let buyers = self.partition(end.key.buyer.as_str());
        let publishers = self.partition(close.event.publisher.as_str());
        if !self.client.is_cluster() && self.known_life(publishers).is_some() {
            let commit = self.end_call(End::Commit, end, self.known_life(buyers), &call_name())?;
            let Answer { reply, was_repeated } =
                self.client.run(Verb::CommitClose, &both(commit, self.close_call(close)?)).await?;
            let items = reply.list()?;
            if let Ended::Reply(committed) = self.read_end(nth(items, 0)?)? {
                let closed = match items.get(1) {
                    Some(closed) => Some(self.read_own_close(closed, close, was_repeated)?),
                    None => None,
                };
                return Ok((committed, closed));
            }
        }
        match self.run_end(End::Commit, end).await? {
            EndReply::Done => Ok((EndReply::Done, Some(self.run_close(close).await?))),
            other => Ok((other, None)),
        }
    }

    /// [`read_close`], and settlement is told; an answer that our own first try has stored is not somebody else's.
    pub(super) fn read_own_close(
        &self,
        reply: &Reply,
        close: &Close,
        was_repeated: bool,
    ) -> Result<CloseReply, StoreError> {
        let reply = match read_close(reply)? {
            CloseReply::Already(answer) if was_repeated && answer == close.event.answer.as_bytes() => {
                CloseReply::Closed
            }
            reply => reply,
        };
        if reply == CloseReply::Closed {
            self.appended.notify_one();
        }
        Ok(reply)
    }

    /// Keys and arguments of ending.lua.
    fn end_call(&self, how: End, end: &LeaseEnd, life: Option<Life>, name: &str) -> Result<Call, StoreError> {
        let LeaseKey { lead, buyer } = &end.key;
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.end_mark(partition, *lead, buyer),
            self.keys.leases(partition, buyer),
            self.keys.due(partition),
            self.keys.journal(partition, life),
        ]);
        for charge in &end.charges {
            let start = charge.window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, buyer, &charge.cap, start));
        }
        call.arg(life_text(life)).arg(lead.to_string()).arg(buyer.as_str().to_owned()).arg(name.to_owned());
        call.number(millis(self.end_mark_ttl).max(1)).arg(charges_text(&end.charges));
        call.arg(Event::Attempt(end.event.clone()).to_bytes());
        call.arg(Event::Attempt(end.late_event.clone()).to_bytes());
        for change in changes(how, end)? {
            call.arg(effects_text(buyer, &end.charges, &change.effects));
            for counter in change.counters {
                call.number(counter);
            }
        }
        Ok(call)
    }

    fn read_end(&self, reply: &Reply) -> Result<Ended, StoreError> {
        let (word, rest) = first_word(reply)?;
        let mark = || {
            let word = nth(rest, 0)?.text()?;
            EndMark::parse(word).ok_or_else(|| unknown_reply("an end", word))
        };
        let reply = match word {
            "done" => EndReply::Done,
            "late" => EndReply::Late { was: mark()?, counters: read_counters(nth(rest, 1)?.text()?)? },
            "already" => EndReply::Already(mark()?),
            "missing" => EndReply::Missing,
            "life" => {
                return match nth(rest, 0)?.text()? {
                    "" => Err(StoreError::NotDone("the partition has no life".to_owned())),
                    text => {
                        text.parse().map(|life| Ended::OtherLife(Life(life))).map_err(|_| unknown_reply("an end", text))
                    }
                };
            }
            word => return Err(unknown_reply("an end", word)),
        };
        if matches!(reply, EndReply::Done | EndReply::Late { .. }) {
            self.appended.notify_one();
        }
        Ok(Ended::Reply(reply))
    }

    pub(super) async fn run_record(&self, partition: Partition, event: &Event) -> Result<(), StoreError> {
        let mut life = self.known_life(partition);
        for _ in 0..3 {
            let mut call = Call::new(vec![self.keys.life(partition), self.keys.journal(partition, life)]);
            call.arg(life_text(life)).arg(event.to_bytes());
            let answer = self.client.run(Verb::Record, &call).await?;
            match first_word(&answer.reply)? {
                ("done", _) => {
                    self.appended.notify_one();
                    return Ok(());
                }
                ("life", rest) => life = nth(rest, 0)?.text()?.parse().ok().map(Life),
                (word, _) => return Err(unknown_reply("record", word)),
            }
        }
        Err(StoreError::NotDone("the partition's life keeps changing".to_owned()))
    }

    pub(super) async fn run_remember(&self, key: &LeaseKey, mark: EndMark) -> Result<(), StoreError> {
        let LeaseKey { lead, buyer } = key;
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![self.keys.end_mark(partition, *lead, buyer), self.keys.leases(partition, buyer)]);
        call.arg(lead.to_string()).arg(mark.as_str().to_owned()).number(millis(self.end_mark_ttl).max(1));
        self.client.run(Verb::Remember, &call).await?;
        Ok(())
    }

    pub(super) async fn run_give_back(&self, key: &LeaseKey) -> Result<(), StoreError> {
        let mut call = Call::new(vec![self.keys.leases(self.partition(key.buyer.as_str()), &key.buyer)]);
        call.arg(key.lead.to_string());
        self.client.run(Verb::GiveBack, &call).await?;
        Ok(())
    }
}

enum Ended {
    Reply(EndReply),
    OtherLife(Life),
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
fn effects_text(buyer: &BuyerId, charges: &[Charge], effects: &[i128]) -> String {
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
