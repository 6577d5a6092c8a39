//! Restating: what this process holds goes into the data of a new life, under the names it always had.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use super::ends::effects_text;
use super::held::{HeldEvent, HeldLead, HeldLease, Place};
use super::leads::info_text;
use super::persons::{PersonNote, push_note};
use super::record::{charges_text, lease_text};
use super::reply::{Call, Reply};
use super::scripts::Verb;
use super::{RedisStore, first_word, millis, nth, unknown_reply};
use crate::domain::event::{EntryId, Life};
use crate::domain::id::Partition;
use crate::domain::lease::LeaseKey;
use crate::store::StoreError;

/// A restated lease or lead is not overdue at once: its owner was as helpless as everybody else while the store was away.
const GRACE: Duration = Duration::from_secs(5);

/// One thing to restate.
enum Item {
    Lease(LeaseKey, HeldLease),
    Lead(std::sync::Arc<HeldLead>),
    Event(Place, HeldEvent),
}

impl RedisStore {
    /// Works under these lives from now on; see [`crate::store::Store::join`].
    pub(super) async fn join_lives(&self, lives: &[(Partition, Life)]) -> Result<(), StoreError> {
        {
            let mut known = self.lives.lock();
            for (partition, life) in lives {
                if let Some(known) = known.get_mut(usize::from(partition.0))
                    && known.life != Some(*life)
                {
                    known.life = Some(*life);
                    known.is_restated = false;
                }
            }
        }
        // A call that began under an older life may still be told "yes" by it: what it brings must be held before it is
        // restated (P1, P5). Bounded by the time-outs of calls.
        drop(self.under_way.write().await);
        let mut result = Ok(());
        for (partition, life) in lives {
            let is_restated = self.joined_life(*partition) == Some(*life);
            if is_restated {
                continue;
            }
            match Box::pin(self.restate(*partition, *life)).await {
                Ok(()) => {
                    if let Some(known) = self.lives.lock().get_mut(usize::from(partition.0))
                        && known.life == Some(*life)
                    {
                        known.is_restated = true;
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    async fn restate(&self, partition: Partition, life: Life) -> Result<(), StoreError> {
        // Before anything opens: what was granted by an older routing meanwhile could not be taken back.
        self.restate_versions(partition, life).await?;
        let found = self.held.unrestated(partition, life, self.store_now_ms());
        // Leases before events: an event ends a lease, and the other way round a lease would be open again.
        let standing = found.leases.into_iter().map(|(key, lease)| Item::Lease(key, lease));
        let standing = standing.chain(found.leads.into_iter().map(Item::Lead));
        Box::pin(self.restate_all(partition, life, standing.collect())).await?;
        let events = found.events.into_iter().map(|(place, event)| Item::Event(place, event));
        Box::pin(self.restate_all(partition, life, events.collect())).await
    }

    async fn restate_all(&self, partition: Partition, life: Life, items: VecDeque<Item>) -> Result<(), StoreError> {
        let queue = Mutex::new(items);
        let worker = async || {
            loop {
                let Some(item) = queue.lock().pop_front() else { return Ok(()) };
                if let Err(error) = self.restate_one(partition, life, item).await {
                    queue.lock().clear();
                    return Err(error);
                }
            }
        };
        // A few calls at once: every gateway asks the server at the same time.
        let (one, two) = (Box::pin(worker()), Box::pin(worker()));
        let (three, four) = (Box::pin(worker()), Box::pin(worker()));
        let results = tokio::join!(one, two, three, four);
        results.0.and(results.1).and(results.2).and(results.3)
    }

    async fn restate_one(&self, partition: Partition, life: Life, item: Item) -> Result<(), StoreError> {
        match item {
            Item::Lease(key, lease) => {
                let call = self.restate_lease_call(life, &key, &lease);
                let reply = self.client.run(Verb::RestateLease, &call).await?.reply;
                match first_word(&reply)?.0 {
                    // "ended": by recovery, or by a call of ours whose reply was lost; our own end learns it.
                    "done" | "ended" => {}
                    word => return Err(refused(word)),
                }
            }
            Item::Lead(lead) => {
                self.restated_entry(Verb::RestateLead, &self.restate_lead_call(life, &lead, false)).await?;
            }
            Item::Event(place, event) => {
                let id = match &event {
                    HeldEvent::Received(lead) => {
                        self.restated_entry(Verb::RestateLead, &self.restate_lead_call(life, lead, true)).await?
                    }
                    HeldEvent::Closed(close) => {
                        let mut call =
                            self.record_call(partition, life, &close.publisher, close.lead, close.claim.as_ref());
                        call.number(close.retention_ms.max(1)).arg(close.answer.clone()).arg(close.event.clone());
                        self.restated_entry(Verb::RestateClose, &call).await?
                    }
                    HeldEvent::Ended(end) => {
                        let LeaseKey { lead, buyer } = &end.key;
                        let mut call = self.lease_call(life, &end.key);
                        call.keys.push(self.keys.journal(partition, Some(life)));
                        call.arg(end.mark.as_str()).number(millis(self.end_mark_ttl).max(1)).arg(end.event.clone());
                        call.arg(effects_text(buyer, &end.charges, &end.effects));
                        push_note(&mut call, end.note.as_ref());
                        for (charge, effect) in end.charges.iter().zip(&end.effects) {
                            let start = charge.window.start.as_millisecond();
                            call.keys.push(self.keys.counter(partition, buyer, &charge.cap, start));
                            call.number(charge.amount).number(*effect);
                        }
                        self.push_person_key(&mut call, &end.key, end.note.as_ref());
                        tracing::debug!(%lead, %buyer, life = life.0, "restating how a lease ended");
                        self.restated_entry(Verb::RestateEnd, &call).await?
                    }
                    HeldEvent::Recorded(event) => {
                        let mut call =
                            Call::new(vec![self.keys.life(partition), self.keys.journal(partition, Some(life))]);
                        call.number(life.0).arg(event.to_vec()).arg(String::new());
                        self.restated_entry(Verb::Record, &call).await?
                    }
                };
                self.held.event_restated(partition, place, life, id);
            }
        }
        Ok(())
    }

    async fn restated_entry(&self, verb: Verb, call: &Call) -> Result<EntryId, StoreError> {
        let reply = self.client.run(verb, call).await?.reply;
        match first_word(&reply)? {
            ("done", rest) => match nth(rest, 0)?.text()? {
                "" => Ok(EntryId::default()),
                id => {
                    self.appended.notify_one();
                    id.parse().map_err(StoreError::Bug)
                }
            },
            (word, _) => Err(refused(word)),
        }
    }

    fn restate_lease_call(&self, life: Life, key: &LeaseKey, lease: &HeldLease) -> Call {
        let partition = self.partition(key.buyer.as_str());
        let mut call = self.lease_call(life, key);
        let charges = charges_text(&lease.charges);
        call.arg(lease_text(lease.gives_back, lease.taken_at_ms, lease.deadline_ms, &charges, &lease.about));
        call.number(lease.deadline_ms).number(millis(GRACE));
        let note = PersonNote::of_lease(lease.person, lease.taken_at_ms);
        push_note(&mut call, note.as_ref());
        for charge in &lease.charges {
            let start = charge.window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, &key.buyer, &charge.cap, start));
            call.number(charge.amount);
        }
        self.push_person_key(&mut call, key, note.as_ref());
        call
    }

    /// What both scripts about leases have in common.
    fn lease_call(&self, life: Life, key: &LeaseKey) -> Call {
        let LeaseKey { lead, buyer } = key;
        let partition = self.partition(buyer.as_str());
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.end_mark(partition, *lead, buyer),
            self.keys.leases(partition, buyer),
            self.keys.due(partition),
        ]);
        call.number(life.0).arg(lead.to_string()).arg(buyer.as_str().to_owned());
        call
    }

    fn restate_lead_call(&self, life: Life, lead: &HeldLead, with_event: bool) -> Call {
        let partition = self.partition(lead.publisher.as_str());
        let claim = lead.claim.as_ref();
        let mut call = self.record_call(partition, life, &lead.publisher, lead.lead, claim);
        call.number(lead.deadline_ms).number(millis(GRACE)).number(lead.expires_ms);
        call.arg(info_text(&lead.publisher, claim));
        call.arg(if with_event { lead.event.clone() } else { Vec::new() });
        call
    }
}

fn refused(word: &str) -> StoreError {
    match word {
        // It has changed again: whoever asked looks at the lives anew.
        "life" => StoreError::NotDone("the partition is of another life".to_owned()),
        word => unknown_reply("restating", word),
    }
}

/// A reply's entry id; the id of an empty journal when a repeat found nothing.
pub(super) fn entry_id(reply: &Reply) -> Result<EntryId, StoreError> {
    reply.text()?.parse().map_err(StoreError::Bug)
}
