//! A publisher's side: admit, close, what is known of a lead, and taking over the leads of a dead gateway.

use std::time::Duration;

use super::ends::{both, of_another_life};
use super::held::HeldLead;
use super::keys::{escape, life_text, unescape};
use super::reply::{Call, Plain};
use super::restate::entry_id;
use super::scripts::Verb;
use super::{Bytes, RedisStore, Reply, first_word, millis, nth, unknown_reply};
use crate::domain::event::{ClaimKey, EntryId, Event, Life};
use crate::domain::id::{LeadId, Partition, PublisherId};
use crate::store::{
    Admission, Admit, Close, CloseReply, LeadState, MoveDeadline, OpenCounts, OverdueLead, StoreError, Take, TakeReply,
};

impl RedisStore {
    pub(super) async fn run_admit(&self, admit: &Admit) -> Result<Admission, StoreError> {
        match self.admit_call(admit).await? {
            Ok((call, life)) => self.read_admission(admit, life, &self.client.run(Verb::Admit, &call).await?.reply),
            Err(refused) => Ok(refused),
        }
    }

    pub(super) async fn run_admit_take(
        &self,
        admit: &Admit,
        take: &Take,
    ) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let (call, life) = match self.admit_call(admit).await? {
            Ok((call, life)) => (both(call, self.whole_take_call(take)?), life),
            Err(refused) => return Ok((refused, None)),
        };
        let answer = self.client.run(Verb::AdmitTake, &call).await?;
        let items = answer.reply.list()?;
        let admission = self.read_admission(admit, life, nth(items, 0)?)?;
        let taken = match items.get(1) {
            Some(reply) => Some(self.read_taken(take, reply)?.0),
            None => None,
        };
        match &taken {
            Some(taken) => self.measure_clock_after(taken).await,
            None if admission == Admission::TooLate => drop(self.measure_clock().await),
            None => {}
        }
        Ok((admission, taken))
    }

    /// Keys and arguments of admit.lua and the life they are for, or the refusal that needs no call.
    async fn admit_call(&self, admit: &Admit) -> Result<Result<(Call, Life), Admission>, StoreError> {
        let event = &admit.event;
        let partition = self.partition(event.publisher.as_str());
        let Some(life) = self.joined_life(partition) else { return Ok(Err(Admission::NewLife)) };
        if !self.held.has_room() || self.is_journal_full().await? {
            return Ok(Err(Admission::JournalFull));
        }
        let claim = event.claim.as_ref();
        let mut call = self.record_call(partition, life, &event.publisher, event.lead, claim);
        call.keys.push(self.keys.unread(partition));
        call.number(admit.deadline.as_millisecond()).number(admit.not_after.as_millisecond());
        call.number(admit.deadline.as_millisecond().saturating_add(millis(admit.retention)));
        call.number(self.journal_entries_max).arg(info_text(&event.publisher, claim));
        call.arg(Event::Received(event.clone()).to_bytes());
        Ok(Ok((call, life)))
    }

    /// What all scripts about a lead have in common: all keys, life, lead, claim.
    pub(super) fn record_call(
        &self,
        partition: Partition,
        life: Life,
        publisher: &PublisherId,
        lead: LeadId,
        claim: Option<&ClaimKey>,
    ) -> Call {
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.record(partition, publisher, lead, claim),
            self.keys.lead(partition, publisher, lead),
            self.keys.open(partition),
            self.keys.open_info(partition),
            self.keys.journal(partition, Some(life)),
        ]);
        call.arg(life_text(Some(life))).arg(lead.to_string());
        call.arg(claim.map(|claim| escape(&claim.hash)).unwrap_or_default());
        call.arg(claim.and_then(|claim| claim.fingerprint.clone()).unwrap_or_default());
        call
    }

    /// Reads admit.lua's reply; a lead that was admitted is held.
    fn read_admission(&self, admit: &Admit, life: Life, reply: &Reply) -> Result<Admission, StoreError> {
        let (word, rest) = first_word(reply)?;
        let lead = || parse_lead(nth(rest, 0)?);
        Ok(match word {
            "new" => {
                let event = &admit.event;
                let lead = HeldLead {
                    lead: event.lead,
                    publisher: event.publisher.clone(),
                    claim: event.claim.clone(),
                    deadline_ms: admit.deadline.as_millisecond(),
                    expires_ms: admit.deadline.as_millisecond().saturating_add(millis(admit.retention)),
                    event: Event::Received(event.clone()).to_bytes(),
                };
                self.held.admitted(life, entry_id(nth(rest, 0)?)?, lead);
                self.appended.notify_one();
                Admission::New
            }
            "running" => Admission::Running(lead()?),
            "finished" => Admission::Finished(lead()?, nth(rest, 1)?.bytes()?),
            "reused" => Admission::KeyReused,
            "unread" => Admission::AskBooks,
            "full" => Admission::JournalFull,
            "late" => Admission::TooLate,
            "life" => Admission::NewLife,
            word => return Err(unknown_reply("admit", word)),
        })
    }

    pub(super) async fn run_close(&self, close: &Close) -> Result<CloseReply, StoreError> {
        let partition = self.partition(close.event.publisher.as_str());
        let Some(life) = self.joined_life(partition) else { return Ok(CloseReply::NewLife) };
        let answer = self.client.run(Verb::Close, &self.close_call(close, life)).await?;
        self.read_own_close(&answer.reply, close, life, answer.was_repeated)
    }

    /// Keys and arguments of close.lua.
    pub(super) fn close_call(&self, close: &Close, life: Life) -> Call {
        let event = &close.event;
        let partition = self.partition(event.publisher.as_str());
        let mut call = self.record_call(partition, life, &event.publisher, event.lead, close.claim.as_ref());
        call.number(millis(close.retention).max(1)).arg(event.answer.clone());
        call.arg(Event::Closed(event.clone()).to_bytes());
        call
    }

    pub(super) async fn read_lead_state(
        &self,
        publisher: &PublisherId,
        lead: LeadId,
    ) -> Result<Option<LeadState>, StoreError> {
        let partition = self.partition(publisher.as_str());
        let own = self.keys.lead(partition, publisher, lead);
        let fields = ["c", "l", "a"].map(text_arg);
        let record = self.client.one("HMGET", std::iter::once(own.into()).chain(fields).collect()).await?;
        let record = record.list()?;
        if let Some(state) = state_of(lead, nth(record, 1)?, nth(record, 2)?)? {
            return Ok(Some(state));
        }
        let Some(hash) = nth(record, 0)?.optional_text()?.and_then(unescape) else { return Ok(None) };
        let claim = self.keys.claim(partition, publisher, &hash);
        let fields = ["l", "a"].map(text_arg);
        let record = self.client.one("HMGET", std::iter::once(claim.into()).chain(fields).collect()).await?;
        let record = record.list()?;
        state_of(lead, nth(record, 0)?, nth(record, 1)?)
    }

    pub(super) async fn run_claim_leads(
        &self,
        partition: Partition,
        grace: Duration,
        extend: Duration,
        count_max: usize,
    ) -> Result<Vec<OverdueLead>, StoreError> {
        let mut call =
            Call::new(vec![self.keys.life(partition), self.keys.open(partition), self.keys.open_info(partition)]);
        call.arg(life_text(self.joined_life(partition))).number(millis(grace)).number(millis(extend)).number(count_max);
        let answer = self.client.run(Verb::ClaimLeads, &call).await?;
        let mut leads = Vec::new();
        for pair in answer.reply.list()?.chunks_exact(2) {
            let lead = parse_lead(nth(pair, 0)?)?;
            if let Some((publisher, claim)) = parse_info(nth(pair, 1)?.text()?) {
                leads.push(OverdueLead { lead, publisher, claim });
            } else {
                // Nobody can finish it without knowing whose it is; its row in the ledger stays open and shows it.
                tracing::warn!(%lead, "an open lead has lost its publisher");
            }
        }
        Ok(leads)
    }

    pub(super) async fn run_park(&self, moved: &MoveDeadline) -> Result<bool, StoreError> {
        let partition = self.partition(moved.publisher.as_str());
        let life = self.joined_life(partition).ok_or_else(of_another_life)?;
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.open(partition),
            self.keys.journal(partition, Some(life)),
        ]);
        let event = moved.event.as_ref().map(|event| Event::Parked(event.clone()).to_bytes());
        call.number(life.0).arg(moved.lead.to_string()).number(moved.to.as_millisecond());
        call.arg(moved.from.map(|from| from.as_millisecond().to_string()).unwrap_or_default());
        call.arg(event.clone().unwrap_or_default());
        let answer = self.client.run(Verb::Park, &call).await?;
        match first_word(&answer.reply)? {
            ("moved", rest) => {
                if let Some(event) = event {
                    // It is on no walk here any more: should it be lost, the books bring it back.
                    self.held.answered(moved.lead);
                    self.held.recorded(partition, life, entry_id(nth(rest, 0)?)?, event);
                    self.appended.notify_one();
                }
                Ok(true)
            }
            ("other", _) => Ok(false),
            ("life", _) => Err(of_another_life()),
            (word, _) => Err(unknown_reply("park", word)),
        }
    }

    pub(super) async fn count_open(&self) -> Result<OpenCounts, StoreError> {
        let count = |key: String| Plain::new("ZCARD", vec![key.into()]);
        let counts = self.all_partitions().flat_map(|p| [count(self.keys.open(p)), count(self.keys.due(p))]);
        let mut open = OpenCounts::default();
        for (index, reply) in self.client.plain(counts.collect()).await?.into_iter().enumerate() {
            let count = u64::try_from(reply.int()?).unwrap_or(0);
            if index % 2 == 0 { open.leads += count } else { open.leases += count }
        }
        Ok(open)
    }
}

/// Reads close's reply, and the entry: its own, or the newest.
pub(super) fn read_close(reply: &Reply) -> Result<(CloseReply, EntryId), StoreError> {
    let (word, rest) = first_word(reply)?;
    Ok(match word {
        "closed" => (CloseReply::Closed, entry_id(nth(rest, 0)?)?),
        "already" => (CloseReply::Already(nth(rest, 0)?.bytes()?), entry_id(nth(rest, 1)?)?),
        "life" => (CloseReply::NewLife, EntryId::default()),
        word => return Err(unknown_reply("close", word)),
    })
}

fn parse_lead(reply: &Reply) -> Result<LeadId, StoreError> {
    reply.text()?.parse().map_err(|_| StoreError::Bug("a stored lead id is unreadable".to_owned()))
}

/// The state in a record, if the record is that lead's.
fn state_of(lead: LeadId, owner: &Reply, answer: &Reply) -> Result<Option<LeadState>, StoreError> {
    if *owner == Reply::Nil || parse_lead(owner)? != lead {
        return Ok(None);
    }
    Ok(Some(if *answer == Reply::Nil { LeadState::Running } else { LeadState::Finished(answer.bytes()?) }))
}

/// `<publisher>|<claim hash>|<fingerprint>`; without a claim the rest is empty.
pub(super) fn info_text(publisher: &PublisherId, claim: Option<&ClaimKey>) -> String {
    let hash = claim.map(|claim| escape(&claim.hash)).unwrap_or_default();
    let fingerprint = claim.and_then(|claim| claim.fingerprint.as_deref()).map(escape).unwrap_or_default();
    format!("{publisher}|{hash}|{fingerprint}")
}

fn parse_info(text: &str) -> Option<(PublisherId, Option<ClaimKey>)> {
    let mut parts = text.split('|');
    let publisher = PublisherId::new(parts.next()?).ok()?;
    let hash = unescape(parts.next()?)?;
    let fingerprint = Some(unescape(parts.next()?)?).filter(|text| !text.is_empty());
    let claim = (!hash.is_empty()).then_some(ClaimKey { hash, fingerprint });
    Some((publisher, claim))
}

fn text_arg(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}
