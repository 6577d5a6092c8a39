//! The state of one partition, and how a change moves it. Pure: no I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;

use super::change::{Change, Effect, Lease, Record};
use super::counters::{Buyer, CapCounters, Moves};
use super::persons::Had;
use crate::domain::event::{ClaimKey, EntryId, Life, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId, PublisherId};
use crate::domain::lease::{EndMark, LeaseKey};
use crate::domain::person::PersonDigest;
use crate::store::ReadBack;

/// How many expired things one call removes at most. Above one, so that nothing piles up: a call adds at most two.
const PURGE_COUNT_MAX: usize = 8;
/// What a small record takes in the file, roughly.
const SMALL_RECORD_BYTES: u64 = 320;

/// A used idempotency key.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) lead: LeadId,
    pub(super) fingerprint: Option<Box<str>>,
}

/// A lead that is remembered.
#[derive(Debug)]
pub(super) struct LeadRecord {
    pub(super) publisher: PublisherId,
    pub(super) claim: Option<ClaimKey>,
    pub(super) deadline_us: i64,
    /// Absent while the lead is on its walk; a running lead never expires.
    pub(super) answer: Option<Bytes>,
    pub(super) expires_ms: i64,
}

/// How a lease ended, and what it left counted.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) mark: EndMark,
    pub(super) counts: Vec<WindowAmount>,
    pub(super) expires_ms: i64,
}

/// An event that waits for settlement.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    pub(super) event: Bytes,
    pub(super) effects: Vec<Effect>,
}

/// One life's journal.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub(super) entries: VecDeque<Entry>,
    pub(super) tip: EntryId,
    pub(super) trimmed: EntryId,
}

impl Journal {
    /// Entries after `id`, in order.
    pub(super) fn after(&self, id: EntryId) -> impl Iterator<Item = &Entry> {
        self.entries.range(self.entries.partition_point(|entry| entry.id <= id)..)
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expiring {
    Lead(LeadId),
    Mark(LeaseKey),
    Return(LeaseKey),
    Person(BuyerId, PersonDigest),
}

/// Everything in one partition.
#[derive(Debug, Default)]
pub(super) struct PartitionState {
    pub(super) index: u16,
    /// Number of the last change.
    pub(super) number: u64,
    /// The life of the data.
    pub(super) life: Option<Life>,
    /// The life that this process works under; not in the file.
    pub(super) known_life: Option<Life>,
    /// What the books still have to tell about leads that this file does not know.
    pub(super) read_back: ReadBack,
    /// Keys that the books do not know, and until when that is believed; not in the file.
    pub(super) new_keys: HashMap<(PublisherId, Box<str>), i64>,
    pub(super) journals: BTreeMap<Life, Journal>,
    pub(super) claims: HashMap<PublisherId, HashMap<Box<str>, Claim>>,
    pub(super) leads: HashMap<LeadId, LeadRecord>,
    /// Open leads by deadline in microseconds.
    pub(super) open_leads: BTreeSet<(i64, LeadId)>,
    pub(super) buyers: HashMap<BuyerId, Buyer>,
    pub(super) leases: HashMap<LeaseKey, Lease>,
    /// Open leases by deadline in microseconds.
    pub(super) due: BTreeSet<(i64, LeaseKey)>,
    pub(super) ended: HashMap<LeaseKey, Ended>,
    /// Leads given back a short while ago, and until when that is remembered; not in the file, because no caller outlives the
    /// process and the books know the rest.
    pub(super) returned: HashMap<LeaseKey, i64>,
    /// Whom buyers have. Not in the file: open leases, the journal's entries and the books tell it again.
    pub(super) persons: HashMap<(BuyerId, PersonDigest), Had>,
    /// Buyers of whom everybody has been brought back from the books, and within how many days.
    pub(super) marked: HashMap<BuyerId, u32>,
    expiries: BTreeSet<(i64, Expiring)>,
    pub(super) entry_count: u64,
    text_bytes: u64,
}

impl PartitionState {
    pub(super) fn new(index: u16) -> Self {
        Self { index, ..Self::default() }
    }

    /// Is the data of the life that this gateway works under? Nothing is granted otherwise (P8).
    pub(super) fn is_current(&self) -> bool {
        self.life.is_some() && self.life == self.known_life
    }

    /// Makes a change and answers the record of it.
    pub(super) fn change(&mut self, change: Change, event: Option<Bytes>) -> Record {
        self.number += 1;
        self.apply(&change, event.clone());
        Record { partition: self.index, number: self.number, change, event }
    }

    /// Makes a change that was read from the file. Changes that a snapshot has covered already are skipped.
    pub(super) fn replay(&mut self, record: Record) {
        match record.change {
            Change::Reset => *self = Self { number: record.number, ..Self::new(self.index) },
            change if record.number == 0 => self.apply(&change, record.event),
            change if record.number > self.number => {
                self.number = record.number;
                self.apply(&change, record.event);
            }
            _ => {}
        }
    }

    /// The place of the next entry in the present life's journal: never below the last one, whatever the clock does.
    pub(super) fn next_entry(&self, now_ms: i64) -> EntryId {
        let tip = self.life.and_then(|life| self.journals.get(&life)).map_or_else(EntryId::default, |j| j.tip);
        let now = EntryId { ms: u64::try_from(now_ms).unwrap_or(0).max(1), seq: 0 };
        if now > tip { now } else { EntryId { ms: tip.ms, seq: tip.seq + 1 } }
    }

    /// Removes a few things whose time is over.
    pub(super) fn purge(&mut self, now_ms: i64) {
        for _ in 0..PURGE_COUNT_MAX {
            if !self.purge_one(now_ms) {
                break;
            }
        }
    }

    /// Removes everything whose time is over.
    pub(super) fn purge_all(&mut self, now_ms: i64) {
        while self.purge_one(now_ms) {}
    }

    fn purge_one(&mut self, now_ms: i64) -> bool {
        if self.expiries.first().is_none_or(|(at_ms, _)| *at_ms > now_ms) {
            return false;
        }
        let Some((at_ms, expiring)) = self.expiries.pop_first() else { return false };
        // What was given a later time meanwhile has another entry for that.
        match expiring {
            Expiring::Mark(key) if self.ended.get(&key).is_some_and(|ended| ended.expires_ms == at_ms) => {
                self.ended.remove(&key);
            }
            Expiring::Lead(lead) if self.leads.get(&lead).is_some_and(|known| known.expires_ms == at_ms) => {
                self.forget_lead(lead);
            }
            Expiring::Return(key) => {
                self.returned.remove(&key);
            }
            Expiring::Person(buyer, person) => {
                let key = (buyer, person);
                if self.persons.get(&key).is_some_and(|had| had.expires_ms == at_ms) {
                    self.persons.remove(&key);
                }
            }
            Expiring::Mark(_) | Expiring::Lead(_) => {}
        }
        true
    }

    fn forget_lead(&mut self, lead: LeadId) {
        let Some(known) = self.leads.remove(&lead) else { return };
        self.text_bytes -= known.answer.map_or(0, |answer| answer.len() as u64);
        if let Some(claim) = known.claim
            && let Some(claims) = self.claims.get_mut(&known.publisher)
            && claims.get(claim.hash.as_str()).is_some_and(|claimed| claimed.lead == lead)
        {
            claims.remove(claim.hash.as_str());
        }
    }

    /// What the state takes in a snapshot, roughly.
    pub(super) fn live_bytes(&self) -> u64 {
        let records = self.leads.len() + self.leases.len() + self.ended.len() + self.buyers.len();
        self.text_bytes + SMALL_RECORD_BYTES * (records as u64 + self.entry_count)
    }

    fn apply(&mut self, change: &Change, event: Option<Bytes>) {
        match change {
            Change::Life { life } => {
                if self.life.is_none() {
                    // Nothing, or older data: the books may know leads that it has never met.
                    self.read_back = ReadBack::UpTo(None);
                }
                self.life = *life;
                if let Some(life) = life {
                    self.carry_over(*life);
                }
                self.tell_persons_again();
            }
            Change::Admit { lead, publisher, claim, deadline_us, entry } => {
                self.put_lead(*lead, publisher, claim.clone(), *deadline_us, None, 0);
                self.append(*entry, event, vec![]);
            }
            Change::Close { lead, publisher, claim, answer, expires_ms, entry } => {
                let claim = match self.leads.get(lead) {
                    Some(known) => known.claim.clone(),
                    None => claim.clone(),
                };
                let answer = Bytes::copy_from_slice(answer.as_bytes());
                self.put_lead(*lead, publisher, claim, 0, Some(answer), *expires_ms);
                self.append(*entry, event, vec![]);
            }
            Change::Lead { lead, publisher, claim, deadline_us, answer, expires_ms } => {
                let answer = answer.as_ref().map(|answer| Bytes::copy_from_slice(answer.as_bytes()));
                self.put_lead(*lead, publisher, claim.clone(), *deadline_us, answer, *expires_ms);
            }
            Change::ReadBack(read) => self.read_back = ReadBack::from(read),
            Change::Deadline { lead, deadline_us } => self.move_deadline(*lead, *deadline_us),
            Change::Take { lease, version } => self.open_lease(lease, *version),
            Change::End { key, mark, counts, expires_ms, entry } => {
                let effects = self.end_lease(key, *mark, counts, *expires_ms);
                self.append(*entry, event, effects);
            }
            Change::GivesBack { key } => {
                if let Some(lease) = self.leases.get_mut(key) {
                    lease.gives_back = true;
                }
            }
            Change::Counter(counter) => {
                let cap = self.cap_mut(&counter.buyer, &counter.cap);
                cap.set(counter.start_ms, counter.end_ms, counter.used);
            }
            Change::Trim { life, entry } => self.trim(*life, *entry),
            Change::Reset => {}
            Change::Journal { life, tip, trimmed } => {
                let journal = self.journals.entry(*life).or_default();
                (journal.tip, journal.trimmed) = (*tip, *trimmed);
            }
            Change::Entry { life, id, effects } => self.append_to(*life, *id, event, effects.clone()),
            Change::Buyer { buyer, version, caps } => {
                for (cap, newest_ms) in caps {
                    self.cap_mut(buyer, cap).newest_ms = Some(*newest_ms);
                }
                self.buyer_mut(buyer).version = *version;
            }
            Change::Lease(lease) => self.put_lease(lease.clone()),
            Change::Mark { key, mark, counts, expires_ms } => {
                self.put_mark(key, *mark, counts.clone(), *expires_ms);
            }
        }
    }

    /// What is left of older journals goes on in the new life's, to be settled from its beginning (P5).
    fn carry_over(&mut self, life: Life) {
        let older: Vec<Life> = self.journals.range(..life).map(|(older, _)| *older).collect();
        let mut entries = VecDeque::new();
        for journal in older.iter().filter_map(|older| self.journals.remove(older)) {
            entries.extend(journal.entries);
        }
        let journal = self.journals.entry(life).or_default();
        journal.tip = entries.back().map_or(journal.tip, |last: &Entry| journal.tip.max(last.id));
        entries.append(&mut journal.entries);
        journal.entries = entries;
    }

    fn put_lead(
        &mut self,
        lead: LeadId,
        publisher: &PublisherId,
        claim: Option<ClaimKey>,
        deadline_us: i64,
        answer: Option<Bytes>,
        expires_ms: i64,
    ) {
        if let Some(known) = self.leads.get(&lead) {
            self.open_leads.remove(&(known.deadline_us, lead));
        }
        if let Some(claim) = &claim {
            let claims = self.claims.entry(publisher.clone()).or_default();
            if !claims.contains_key(claim.hash.as_str()) {
                let fingerprint = claim.fingerprint.as_deref().map(Box::from);
                claims.insert(claim.hash.as_str().into(), Claim { lead, fingerprint });
            }
        }
        if let Some(answer) = &answer {
            self.text_bytes += answer.len() as u64;
            self.expiries.insert((expires_ms, Expiring::Lead(lead)));
        } else {
            self.open_leads.insert((deadline_us, lead));
        }
        let record = LeadRecord { publisher: publisher.clone(), claim, deadline_us, answer, expires_ms };
        self.leads.insert(lead, record);
    }

    fn move_deadline(&mut self, lead: LeadId, deadline_us: i64) {
        if let Some(known) = self.leads.get_mut(&lead)
            && self.open_leads.remove(&(known.deadline_us, lead))
        {
            known.deadline_us = deadline_us;
            self.open_leads.insert((deadline_us, lead));
        }
    }

    pub(super) fn buyer_mut(&mut self, buyer: &BuyerId) -> &mut Buyer {
        if !self.buyers.contains_key(buyer) {
            self.buyers.insert(buyer.clone(), Buyer::default());
        }
        self.buyers.entry(buyer.clone()).or_default()
    }

    fn cap_mut(&mut self, buyer: &BuyerId, cap: &CapId) -> &mut CapCounters {
        self.buyer_mut(buyer).caps.entry(cap.clone()).or_default()
    }

    fn open_lease(&mut self, lease: &Lease, version: u64) {
        let now_ms = lease.taken_at_us / 1000;
        let buyer = self.buyer_mut(&lease.key.buyer);
        buyer.version = buyer.version.max(version);
        for held in &lease.held {
            buyer.caps.entry(held.cap.clone()).or_default().charge(held, now_ms);
        }
        self.put_lease(lease.clone());
    }

    /// Makes a lease known without charging anything: its charges stand in the counters already.
    fn put_lease(&mut self, lease: Lease) {
        self.note_lease(&lease);
        self.due.insert((lease.deadline_us, lease.key.clone()));
        self.leases.insert(lease.key.clone(), lease);
    }

    /// Sets the deadline of an open lease to `at_us` if it is later.
    pub(super) fn make_due(&mut self, key: &LeaseKey, at_us: i64) {
        if let Some(lease) = self.leases.get_mut(key)
            && lease.deadline_us > at_us
        {
            self.due.remove(&(lease.deadline_us, key.clone()));
            lease.deadline_us = at_us;
            self.due.insert((at_us, key.clone()));
        }
    }

    /// A lead was given back.
    pub(super) fn remember_return(&mut self, key: LeaseKey, expires_ms: i64) {
        self.expiries.insert((expires_ms, Expiring::Return(key.clone())));
        self.returned.insert(key, expires_ms);
    }

    pub(super) fn expire_person(&mut self, buyer: &BuyerId, person: PersonDigest, expires_ms: i64) {
        self.expiries.insert((expires_ms, Expiring::Person(buyer.clone(), person)));
    }

    fn put_mark(&mut self, key: &LeaseKey, mark: EndMark, counts: Vec<WindowAmount>, expires_ms: i64) {
        self.expiries.insert((expires_ms, Expiring::Mark(key.clone())));
        self.ended.insert(key.clone(), Ended { mark, counts, expires_ms });
    }

    /// Moves counters from what the lease counted to what it counts now, and answers the effects on the ledger's usage:
    /// there an open lease had counted nothing yet.
    fn end_lease(&mut self, key: &LeaseKey, mark: EndMark, counts: &[WindowAmount], expires_ms: i64) -> Vec<Effect> {
        let mut counter_moves = Moves::default();
        let mut ledger_moves = Moves::default();
        for now in counts {
            counter_moves.add(&now.cap, now.start_ms, i128::from(now.amount));
            ledger_moves.add(&now.cap, now.start_ms, i128::from(now.amount));
        }
        if let Some(lease) = self.leases.remove(key) {
            self.due.remove(&(lease.deadline_us, key.clone()));
            for held in &lease.held {
                counter_moves.add(&held.cap, held.start_ms, -i128::from(held.amount));
            }
        } else if let Some(ended) = self.ended.get(key) {
            for before in &ended.counts {
                counter_moves.add(&before.cap, before.start_ms, -i128::from(before.amount));
                ledger_moves.add(&before.cap, before.start_ms, -i128::from(before.amount));
            }
        }
        let buyer = self.buyer_mut(&key.buyer);
        for (cap, start_ms, units) in counter_moves.0 {
            // A counter that is gone stays gone, and none falls below zero (F01).
            if let Some(counter) = buyer.caps.get_mut(&cap).and_then(|cap| cap.windows.get_mut(&start_ms)) {
                counter.used = u64::try_from((i128::from(counter.used) + units).max(0)).unwrap_or(u64::MAX);
            }
        }
        self.put_mark(key, mark, counts.to_vec(), expires_ms);
        let effect = |(cap, start_ms, units): (CapId, i64, i128)| {
            let units = i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX });
            (units != 0).then(|| Effect { buyer: key.buyer.clone(), cap, start_ms, units })
        };
        ledger_moves.0.into_iter().filter_map(effect).collect()
    }

    fn append(&mut self, id: EntryId, event: Option<Bytes>, effects: Vec<Effect>) {
        // Nothing is appended before the partition has a life: leads and leases are refused until then.
        let life = self.life.unwrap_or(Life(0));
        self.append_to(life, id, event, effects);
    }

    fn append_to(&mut self, life: Life, id: EntryId, event: Option<Bytes>, effects: Vec<Effect>) {
        let event = event.unwrap_or_default();
        self.text_bytes += event.len() as u64;
        self.entry_count += 1;
        let journal = self.journals.entry(life).or_default();
        journal.tip = journal.tip.max(id);
        journal.entries.push_back(Entry { id, event, effects });
    }

    fn trim(&mut self, life: Life, to: EntryId) {
        let journal = self.journals.entry(life).or_default();
        while journal.entries.front().is_some_and(|entry| entry.id <= to)
            && let Some(entry) = journal.entries.pop_front()
        {
            self.entry_count -= 1;
            self.text_bytes -= entry.event.len() as u64;
        }
        journal.trimmed = journal.trimmed.max(to);
        // A mark is proof that the entry was there once, whatever this file remembers.
        journal.tip = journal.tip.max(to);
        if journal.entries.is_empty() && self.life.is_some_and(|present| life < present) {
            self.journals.remove(&life);
        }
    }
}
