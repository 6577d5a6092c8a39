//! A publisher's side: admit, close, what is known of a lead, and taking over the leads of a dead gateway.

use std::time::Duration;

use super::ends::both;
use super::keys::{escape, life_text, unescape};
use super::reply::{Call, Plain};
use super::scripts::Verb;
use super::take::read_reply;
use super::{Bytes, RedisStore, Reply, first_word, millis, nth, unknown_reply};
use crate::domain::event::{ClaimKey, Event, Life};
use crate::domain::id::{LeadId, Partition, PublisherId};
use crate::store::{
    Admission, Admit, Close, CloseReply, LeadState, OpenCounts, OverdueLead, StoreError, Take, TakeReply,
};

impl RedisStore {
    pub(super) async fn run_admit(&self, admit: &Admit) -> Result<Admission, StoreError> {
        match self.admit_call(admit).await? {
            Ok(call) => self.read_admission(&self.client.run(Verb::Admit, &call).await?.reply),
            Err(refused) => Ok(refused),
        }
    }

    pub(super) async fn run_admit_take(
        &self,
        admit: &Admit,
        take: &Take,
    ) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let call = match self.admit_call(admit).await? {
            Ok(call) => both(call, self.whole_take_call(take)?),
            Err(refused) => return Ok((refused, None)),
        };
        let answer = self.client.run(Verb::AdmitTake, &call).await?;
        let items = answer.reply.list()?;
        let admission = self.read_admission(nth(items, 0)?)?;
        let taken = match items.get(1) {
            Some(reply) => Some(read_reply(reply)?.0),
            None => None,
        };
        Ok((admission, taken))
    }

    /// Keys and arguments of admit.lua, or the refusal that needs no call.
    async fn admit_call(&self, admit: &Admit) -> Result<Result<Call, Admission>, StoreError> {
        let event = &admit.event;
        let partition = self.partition(event.publisher.as_str());
        let Some(life) = self.known_life(partition) else { return Ok(Err(Admission::NewLife)) };
        if self.is_journal_full().await? {
            return Ok(Err(Admission::JournalFull));
        }
        let claim = event.claim.as_ref();
        let mut call = self.record_call(partition, life, &event.publisher, event.lead, claim);
        call.number(admit.deadline.as_millisecond()).number(admit.not_after.as_millisecond());
        call.number(admit.deadline.as_millisecond().saturating_add(millis(admit.retention)));
        call.number(self.journal_entries_max).arg(info_text(&event.publisher, claim));
        call.arg(Event::Received(event.clone()).to_bytes());
        Ok(Ok(call))
    }

    /// What admit and close have in common: all keys, life, lead, claim.
    fn record_call(
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

    fn read_admission(&self, reply: &Reply) -> Result<Admission, StoreError> {
        let (word, rest) = first_word(reply)?;
        let lead = || parse_lead(nth(rest, 0)?);
        Ok(match word {
            "new" => {
                self.appended.notify_one();
                Admission::New
            }
            "running" => Admission::Running(lead()?),
            "finished" => Admission::Finished(lead()?, nth(rest, 1)?.bytes()?),
            "reused" => Admission::KeyReused,
            "full" => Admission::JournalFull,
            "late" => Admission::TooLate,
            "life" => Admission::NewLife,
            word => return Err(unknown_reply("admit", word)),
        })
    }

    pub(super) async fn run_close(&self, close: &Close) -> Result<CloseReply, StoreError> {
        if self.known_life(self.partition(close.event.publisher.as_str())).is_none() {
            return Ok(CloseReply::NewLife);
        }
        let answer = self.client.run(Verb::Close, &self.close_call(close)?).await?;
        self.read_own_close(&answer.reply, close, answer.was_repeated)
    }

    /// Keys and arguments of close.lua; the caller has made sure that the life is known.
    pub(super) fn close_call(&self, close: &Close) -> Result<Call, StoreError> {
        let event = &close.event;
        let partition = self.partition(event.publisher.as_str());
        let life = self
            .known_life(partition)
            .ok_or_else(|| StoreError::NotDone("the partition's life is not known".to_owned()))?;
        let mut call = self.record_call(partition, life, &event.publisher, event.lead, close.claim.as_ref());
        call.number(millis(close.retention).max(1)).arg(event.answer.clone());
        call.arg(Event::Closed(event.clone()).to_bytes());
        Ok(call)
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
        let mut call = Call::new(vec![self.keys.open(partition), self.keys.open_info(partition)]);
        call.number(millis(grace)).number(millis(extend)).number(count_max);
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

/// Reads close's reply.
pub(super) fn read_close(reply: &Reply) -> Result<CloseReply, StoreError> {
    let (word, rest) = first_word(reply)?;
    Ok(match word {
        "closed" => CloseReply::Closed,
        "already" => CloseReply::Already(nth(rest, 0)?.bytes()?),
        "life" => CloseReply::NewLife,
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
fn info_text(publisher: &PublisherId, claim: Option<&ClaimKey>) -> String {
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
