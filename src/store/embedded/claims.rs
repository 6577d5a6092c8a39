//! Claims and leads: admit, close, and recovery of leads. Part of the state machine.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::change::Change;
use super::partition::PartitionState;
use super::state::{State, span_ms, span_us};
use crate::domain::event::{Closed, Event, Received};
use crate::domain::id::{LeadId, Partition, PublisherId};
use crate::store::{
    Admission, Admit, Close, CloseReply, LeadState, MoveDeadline, OpenCounts, OverdueLead, ReadBack, StoreError,
};

impl State {
    /// A running lead is kept until it is closed, whatever its retention; from then on the close's counts.
    pub(super) fn admit(&mut self, now: Timestamp, admit: &Admit) -> Admission {
        let event = &admit.event;
        let is_full = self.journal_entries() >= self.journal_entries_max;
        let state = self.partition_of(event.publisher.as_str());
        state.purge(now.as_millisecond());
        if !state.is_current() {
            return Admission::NewLife;
        }
        if let Some(found) = find(state, event) {
            return found;
        }
        if now > admit.not_after {
            return Admission::TooLate;
        }
        if let (Some(claim), ReadBack::UpTo(_)) = (&event.claim, state.read_back) {
            let key = (event.publisher.clone(), Box::from(claim.hash.as_str()));
            if state.new_keys.get(&key).is_none_or(|until_ms| *until_ms < now.as_millisecond()) {
                return Admission::AskBooks;
            }
        }
        if is_full {
            return Admission::JournalFull;
        }
        let change = Change::Admit {
            lead: event.lead,
            publisher: event.publisher.clone(),
            claim: event.claim.clone(),
            deadline_us: admit.deadline.as_microsecond(),
            entry: state.next_entry(now.as_millisecond()),
        };
        let bytes = Event::Received(event.clone()).to_bytes();
        self.change_of(event.publisher.as_str(), change, Some(bytes.into()));
        Admission::New
    }

    pub(super) fn close(&mut self, now: Timestamp, close: &Close) -> CloseReply {
        let event = &close.event;
        let state = self.partition_of(event.publisher.as_str());
        state.purge(now.as_millisecond());
        if !state.is_current() {
            return CloseReply::NewLife;
        }
        if let Some(answer) = state.leads.get(&event.lead).and_then(|known| known.answer.clone()) {
            return CloseReply::Already(answer);
        }
        let change = Change::Close {
            lead: event.lead,
            publisher: event.publisher.clone(),
            claim: close.claim.clone(),
            answer: event.answer.clone(),
            expires_ms: now.as_millisecond().saturating_add(span_ms(close.retention)),
            entry: state.next_entry(now.as_millisecond()),
        };
        let bytes = Event::Closed(event.clone()).to_bytes();
        self.change_of(event.publisher.as_str(), change, Some(bytes.into()));
        CloseReply::Closed
    }

    pub(super) fn is_answered(&mut self, event: &Closed) -> bool {
        let known = self.partition_of(event.publisher.as_str()).leads.get(&event.lead);
        known.is_some_and(|known| known.answer.is_some())
    }

    pub(super) fn lead_state(&mut self, publisher: &PublisherId, lead: LeadId) -> Option<LeadState> {
        let known = self.partition_of(publisher.as_str()).leads.get(&lead)?;
        if known.publisher != *publisher {
            return None;
        }
        Some(match &known.answer {
            Some(answer) => LeadState::Finished(answer.clone()),
            None => LeadState::Running,
        })
    }

    pub(super) fn open_counts(&self) -> OpenCounts {
        let sum = |count: fn(&PartitionState) -> usize| self.partitions.iter().map(|p| count(p) as u64).sum();
        OpenCounts {
            leads: sum(|partition| partition.open_leads.len()),
            leases: sum(|partition| partition.leases.len()),
        }
    }

    pub(super) fn move_deadline(&mut self, now: Timestamp, moved: &MoveDeadline) -> Result<bool, StoreError> {
        let owner = moved.publisher.as_str();
        let state = self.partition_of(owner);
        if !state.is_current() {
            return Err(StoreError::NotDone("the partition is closed until its counts are rebuilt".to_owned()));
        }
        let to_ms = moved.to.as_millisecond();
        let is_it = |deadline_us: i64| {
            let deadline_ms = deadline_us.div_euclid(1000);
            moved.from.is_none_or(|from| [from.as_millisecond(), to_ms].contains(&deadline_ms))
        };
        let open = state.leads.get(&moved.lead).filter(|known| known.answer.is_none());
        if !open.is_some_and(|known| is_it(known.deadline_us)) {
            return Ok(false);
        }
        let change = Change::Deadline { lead: moved.lead, deadline_us: to_ms.saturating_mul(1000) };
        self.change_of(owner, change, None);
        if let Some(parked) = &moved.event {
            self.record(now, owner, &Event::Parked(parked.clone()));
        }
        Ok(true)
    }

    /// Moving the deadline is the claim: the next caller no longer finds the lead overdue.
    pub(super) fn claim_overdue_leads(
        &mut self,
        now: Timestamp,
        partition: Partition,
        grace: Duration,
        extend: Duration,
        count_max: usize,
    ) -> Result<Vec<OverdueLead>, StoreError> {
        let state = self.partition(partition)?;
        let latest_us = now.as_microsecond().saturating_sub(span_us(grace));
        let overdue: Vec<LeadId> = state
            .open_leads
            .iter()
            .take_while(|(deadline_us, _)| *deadline_us <= latest_us)
            .take(count_max)
            .map(|(_, lead)| *lead)
            .collect();
        let found: Vec<OverdueLead> = overdue
            .into_iter()
            .filter_map(|lead| {
                let known = state.leads.get(&lead)?;
                Some(OverdueLead { lead, publisher: known.publisher.clone(), claim: known.claim.clone() })
            })
            .collect();
        let deadline_us = now.as_microsecond().saturating_add(span_us(extend));
        for claimed in &found {
            self.change(partition, Change::Deadline { lead: claimed.lead, deadline_us })?;
        }
        Ok(found)
    }
}

/// What is known of a lead's key, or of the lead itself when it came without one.
fn find(state: &PartitionState, event: &Received) -> Option<Admission> {
    let claimed = event.claim.as_ref().and_then(|claim| {
        let claimed = state.claims.get(&event.publisher)?.get(claim.hash.as_str())?;
        Some((claim, claimed))
    });
    let lead = match claimed {
        Some((claim, claimed)) => {
            if let (Some(ours), Some(theirs)) = (&claim.fingerprint, &claimed.fingerprint)
                && **ours != **theirs
            {
                return Some(Admission::KeyReused);
            }
            claimed.lead
        }
        None => event.lead,
    };
    let known = state.leads.get(&lead)?;
    Some(match &known.answer {
        Some(answer) => Admission::Finished(lead, Bytes::clone(answer)),
        None if lead == event.lead => Admission::New,
        None => Admission::Running(lead),
    })
}
