//! Lives: which one the data is of, and bringing back what a lost or older file does not know. Part of the state machine.
//!
//! The file belongs to one process at a time, so what it holds is never behind what somebody else holds: a life is open as
//! soon as it has begun, and joining it restates nothing.

use std::time::Duration;

use jiff::Timestamp;

use super::change::Change;
use super::state::{State, span_ms};
use crate::domain::event::Life;
use crate::domain::id::{Partition, PublisherId};
use crate::ledger::BookedLead;
use crate::store::{ReadBack, Standing, StoreError};

/// How long an admit need not ask the books again about a key that they do not know: the time of its repeats.
const NEW_KEY_FOR_MS: i64 = 10_000;

/// Keys of that kind that are remembered at once, per partition; above it the books are asked again.
const NEW_KEYS_MAX: usize = 10_000;

impl State {
    pub(super) fn standing(&mut self, partition: Partition) -> Result<Standing, StoreError> {
        let state = self.partition(partition)?;
        let journal = state.life.and_then(|life| state.journals.get(&life));
        Ok(Standing {
            life: state.life,
            is_here: state.life.is_some(),
            is_open: state.life.is_some(),
            server: "this process".to_owned(),
            tip: journal.map(|journal| journal.tip).unwrap_or_default(),
            newest: journal.and_then(|journal| journal.entries.back()).map(|entry| entry.id).unwrap_or_default(),
            read_back: state.read_back,
        })
    }

    pub(super) fn joined(&self, partition: Partition) -> Option<Life> {
        self.partitions.get(usize::from(partition.0)).and_then(|state| state.known_life)
    }

    pub(super) fn begin_life(&mut self, partition: Partition, life: Life) -> Result<Life, StoreError> {
        let state = self.partition(partition)?;
        match state.life {
            Some(present) if present >= life => Ok(present),
            Some(_) | None => {
                self.change(partition, Change::Life { life: Some(life) })?;
                Ok(life)
            }
        }
    }

    pub(super) fn join(&mut self, lives: &[(Partition, Life)]) -> Result<(), StoreError> {
        for (partition, life) in lives {
            self.partition(*partition)?.known_life = Some(*life);
        }
        Ok(())
    }

    /// What is known of lead and key stays.
    pub(super) fn bring_back(&mut self, now: Timestamp, lead: &BookedLead, retention: Duration) {
        let id = lead.place.lead;
        let expires_ms = lead.place.received_at.as_millisecond().saturating_add(span_ms(retention));
        let state = self.partition_of(lead.publisher.as_str());
        let is_over = lead.answer.is_some() && expires_ms <= now.as_millisecond();
        if state.leads.contains_key(&id) || is_over {
            return;
        }
        let change = Change::Lead {
            lead: id,
            publisher: lead.publisher.clone(),
            claim: lead.claim.clone(),
            deadline_us: now.as_microsecond(),
            answer: lead.answer.clone(),
            expires_ms,
        };
        self.change_of(lead.publisher.as_str(), change, None);
    }

    pub(super) fn new_key(&mut self, now: Timestamp, publisher: &PublisherId, hash: &str) {
        let (now_ms, state) = (now.as_millisecond(), self.partition_of(publisher.as_str()));
        if state.new_keys.len() >= NEW_KEYS_MAX {
            state.new_keys.retain(|_, until_ms| *until_ms > now_ms);
        }
        if state.new_keys.len() < NEW_KEYS_MAX {
            state.new_keys.insert((publisher.clone(), hash.into()), now_ms + NEW_KEY_FOR_MS);
        }
    }

    pub(super) fn set_read_back(
        &mut self,
        partition: Partition,
        life: Life,
        read: &ReadBack,
    ) -> Result<(), StoreError> {
        let state = self.partition(partition)?;
        if state.life != Some(life) || state.read_back == ReadBack::Done {
            return Ok(());
        }
        if *read == ReadBack::Done {
            state.new_keys.clear();
        }
        self.change(partition, Change::ReadBack(read.into()))
    }
}
