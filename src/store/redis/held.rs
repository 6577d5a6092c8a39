//! What this process holds because only Redis has it besides: the leases it took, the leads it admitted, and every event it
//! appended that the books have not settled. Should Redis lose them, they are restated from here (P1, P5, F21-F23).
//!
//! An event is let go when the ledger's mark has passed its entry. The mark counts the entries of one journal on one server
//! (scripts/redis/read.lua), so passing means settled. Ends and events are kept in memory alone: a loss of Redis and of this
//! process at once loses what neither the books nor Redis had.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::persons::PersonNote;
use crate::domain::event::{ClaimKey, EntryId, Life, Mark};
use crate::domain::id::{BuyerId, LeadId, Partition, PublisherId};
use crate::domain::lease::{Charge, EndMark, LeaseKey};
use crate::domain::person::Person;

/// Most bytes held; above it no lead is admitted (503): dropping what only Redis has besides would break P5 in silence, and a
/// publisher that is told "no" sends the lead again. Reached only when the ledger has been away for long.
pub(super) const HELD_BYTES_MAX: u64 = 256 << 20;

/// What an item takes beside its texts, roughly.
const ITEM_BYTES: usize = 320;

/// A lead that was closed elsewhere is forgotten this long after its deadline, and so is a lease: recovery has them by then.
const FORGOTTEN_AFTER_MS: i64 = 60 * 60 * 1000;

/// A lead that this process admitted.
#[derive(Debug)]
pub(super) struct HeldLead {
    pub lead: LeadId,
    pub publisher: PublisherId,
    pub claim: Option<ClaimKey>,
    pub deadline_ms: i64,
    pub expires_ms: i64,
    /// Its "received".
    pub event: Vec<u8>,
}

/// An answer that this process gave.
#[derive(Debug)]
pub(super) struct HeldClose {
    pub lead: LeadId,
    pub publisher: PublisherId,
    pub claim: Option<ClaimKey>,
    pub retention_ms: i64,
    pub answer: String,
    /// Its "closed".
    pub event: Vec<u8>,
}

/// An end of a lease.
#[derive(Debug)]
pub(super) struct HeldEnd {
    pub key: LeaseKey,
    pub charges: Vec<Charge>,
    pub mark: EndMark,
    /// On usage, in the order of the charges.
    pub effects: Vec<i128>,
    pub event: Vec<u8>,
    pub note: Option<PersonNote>,
}

/// An event that waits for settlement.
#[derive(Debug, Clone)]
pub(super) enum HeldEvent {
    Received(Arc<HeldLead>),
    Closed(Arc<HeldClose>),
    Ended(Arc<HeldEnd>),
    /// Changes nothing but the books, or nothing that has to be told again.
    Recorded(Arc<Vec<u8>>),
}

impl HeldEvent {
    fn bytes(&self) -> u64 {
        let texts = match self {
            Self::Received(lead) => lead.event.len(),
            Self::Closed(close) => close.event.len() + close.answer.len(),
            Self::Ended(end) => end.event.len() + end.charges.len() * 64,
            Self::Recorded(event) => event.len(),
        };
        size(texts)
    }
}

/// An open lease that this process took.
#[derive(Debug, Clone)]
pub(super) struct HeldLease {
    pub charges: Vec<Charge>,
    /// JSON, as it stands in the record.
    pub about: String,
    pub taken_at_ms: i64,
    pub deadline_ms: i64,
    pub gives_back: bool,
    /// As it stands in `about`.
    pub person: Option<Person>,
}

/// Where an event stands: its life's journal, its entry, and a number that tells two of the same entry apart.
pub(super) type Place = (Life, EntryId, u64);

/// What has to be restated in a partition.
#[derive(Debug, Default)]
pub(super) struct Unrestated {
    pub leases: Vec<(LeaseKey, HeldLease)>,
    /// Leads on their walk, whose "received" may be settled.
    pub leads: Vec<Arc<HeldLead>>,
    pub events: Vec<(Place, HeldEvent)>,
}

#[derive(Debug)]
struct State {
    leases: HashMap<LeaseKey, HeldLease>,
    /// Leads without an answer.
    running: HashMap<LeadId, Arc<HeldLead>>,
    events: Vec<BTreeMap<Place, HeldEvent>>,
    count: u64,
    bytes: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Held {
    partitions: u16,
    state: Mutex<State>,
}

fn size(texts: usize) -> u64 {
    (texts + ITEM_BYTES) as u64
}

fn lease_bytes(lease: &HeldLease) -> u64 {
    size(lease.about.len() + lease.charges.len() * 64)
}

impl Held {
    pub(super) fn new(partitions: u16) -> Self {
        let events = (0..partitions).map(|_| BTreeMap::new()).collect();
        let state = State { leases: HashMap::new(), running: HashMap::new(), events, count: 0, bytes: 0 };
        Self { partitions, state: Mutex::new(state) }
    }

    fn home_of_buyer(&self, buyer: &BuyerId) -> Partition {
        Partition::of(buyer.as_str(), self.partitions)
    }

    fn home_of_publisher(&self, publisher: &PublisherId) -> Partition {
        Partition::of(publisher.as_str(), self.partitions)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Everything new fits; what ends something is held even above the bound.
    pub(super) fn has_room(&self) -> bool {
        self.bytes() < HELD_BYTES_MAX
    }

    /// A lead was admitted.
    pub(super) fn admitted(&self, life: Life, id: EntryId, lead: HeldLead) {
        let (partition, lead) = (self.home_of_publisher(&lead.publisher), Arc::new(lead));
        let mut state = self.state.lock();
        if state.running.insert(lead.lead, lead.clone()).is_none() {
            state.bytes += size(0);
        }
        state.hold(partition, life, id, HeldEvent::Received(lead));
    }

    /// A lead has its answer, whoever gave it.
    pub(super) fn answered(&self, lead: LeadId) {
        self.state.lock().stop_running(lead);
    }

    /// A lead got its answer from this process.
    pub(super) fn closed(&self, life: Life, id: EntryId, close: HeldClose) {
        let partition = self.home_of_publisher(&close.publisher);
        let mut state = self.state.lock();
        state.stop_running(close.lead);
        state.hold(partition, life, id, HeldEvent::Closed(Arc::new(close)));
    }

    /// A lease was taken.
    pub(super) fn taken(&self, key: LeaseKey, lease: HeldLease) {
        let mut state = self.state.lock();
        state.bytes += lease_bytes(&lease);
        if let Some(before) = state.leases.insert(key, lease) {
            state.bytes -= lease_bytes(&before);
        }
    }

    /// A lease is to be given back at its deadline.
    pub(super) fn gives_back(&self, key: &LeaseKey) {
        if let Some(lease) = self.state.lock().leases.get_mut(key) {
            lease.gives_back = true;
        }
    }

    /// A lease has ended, whoever ended it.
    pub(super) fn ended(&self, key: &LeaseKey) {
        self.state.lock().drop_lease(key);
    }

    /// Open leases of these partitions.
    pub(super) fn leases_of(&self, partitions: &[Partition]) -> Vec<LeaseKey> {
        let state = self.state.lock();
        let here = state.leases.keys().filter(|key| partitions.contains(&self.home_of_buyer(&key.buyer)));
        here.cloned().collect()
    }

    /// A lease was ended by this process.
    pub(super) fn end_appended(&self, life: Life, id: EntryId, end: HeldEnd) {
        let partition = self.home_of_buyer(&end.key.buyer);
        let mut state = self.state.lock();
        state.drop_lease(&end.key);
        state.hold(partition, life, id, HeldEvent::Ended(Arc::new(end)));
    }

    /// An event was appended that is restated without any effect on counters.
    pub(super) fn recorded(&self, partition: Partition, life: Life, id: EntryId, event: Vec<u8>) {
        self.state.lock().hold(partition, life, id, HeldEvent::Recorded(Arc::new(event)));
    }

    /// Lets go of what is settled, and of what recovery has taken over long ago.
    pub(super) fn let_go(&self, marks: &[Mark], now_ms: i64) {
        let mut state = self.state.lock();
        for mark in marks {
            state.settled(mark);
        }
        let is_forgotten = |deadline_ms: i64| deadline_ms.saturating_add(FORGOTTEN_AFTER_MS) < now_ms;
        let leads: Vec<LeadId> =
            state.running.values().filter(|lead| is_forgotten(lead.deadline_ms)).map(|lead| lead.lead).collect();
        let leases: Vec<LeaseKey> = state
            .leases
            .iter()
            .filter(|(_, lease)| is_forgotten(lease.deadline_ms))
            .map(|(key, _)| key.clone())
            .collect();
        for lead in leads {
            state.stop_running(lead);
        }
        for key in &leases {
            state.drop_lease(key);
        }
    }

    /// What this process holds of a partition, without events that stand in the journal of `life`. Leads past their deadline are left out:
    /// recovery may be finishing them by now.
    pub(super) fn unrestated(&self, partition: Partition, life: Life, now_ms: i64) -> Unrestated {
        let state = self.state.lock();
        let leases = state.leases.iter();
        let leases = leases.filter(|(key, _)| self.home_of_buyer(&key.buyer) == partition);
        let leads = state.running.values();
        let leads =
            leads.filter(|lead| lead.deadline_ms > now_ms && self.home_of_publisher(&lead.publisher) == partition);
        let events = state.events.get(usize::from(partition.0)).into_iter().flatten();
        Unrestated {
            leases: leases.map(|(key, lease)| (key.clone(), lease.clone())).collect(),
            leads: leads.cloned().collect(),
            events: events.filter(|((of, ..), _)| *of != life).map(|(place, event)| (*place, event.clone())).collect(),
        }
    }

    /// An event stands in the journal of `life` again.
    pub(super) fn event_restated(&self, partition: Partition, place: Place, life: Life, id: EntryId) {
        let mut state = self.state.lock();
        let event = state.events.get_mut(usize::from(partition.0)).and_then(|events| events.remove(&place));
        if let Some(event) = event {
            state.bytes -= event.bytes();
            state.hold(partition, life, id, event);
        }
    }
}

impl State {
    fn hold(&mut self, partition: Partition, life: Life, id: EntryId, event: HeldEvent) {
        if id == EntryId::default() {
            // The journal is empty: a repeat found everything settled.
            return;
        }
        self.count += 1;
        let place = (life, id, self.count);
        if let Some(events) = self.events.get_mut(usize::from(partition.0)) {
            self.bytes += event.bytes();
            events.insert(place, event);
        }
    }

    fn stop_running(&mut self, lead: LeadId) {
        if self.running.remove(&lead).is_some() {
            self.bytes -= size(0);
        }
    }

    fn drop_lease(&mut self, key: &LeaseKey) {
        if let Some(lease) = self.leases.remove(key) {
            self.bytes -= lease_bytes(&lease);
        }
    }

    fn settled(&mut self, mark: &Mark) {
        let Some(events) = self.events.get_mut(usize::from(mark.partition.0)) else { return };
        let first = (mark.life, EntryId::default(), 0);
        let last = (mark.life, mark.entry, u64::MAX);
        let places: Vec<Place> = events.range(first..=last).map(|(place, _)| *place).collect();
        for place in places {
            if let Some(event) = events.remove(&place) {
                self.bytes -= event.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_lead(lead: LeadId) -> HeldLead {
        let publisher = PublisherId::new("acme").unwrap();
        HeldLead { lead, publisher, claim: None, deadline_ms: 1000, expires_ms: 2000, event: vec![0; 100] }
    }

    fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    #[test]
    fn p5_an_event_is_held_until_the_mark_of_its_own_life_has_passed_it() {
        let held = Held::new(16);
        let partition = Partition::of("acme", 16);
        let lead = LeadId::generate();
        held.admitted(Life(2), id(50), held_lead(lead));
        let full = held.bytes();
        assert!(full > 100);
        let mark = |life, ms| Mark { partition, life: Life(life), entry: id(ms) };
        for early in [mark(2, 49), mark(1, 90), mark(3, 90)] {
            held.let_go(&[early], 0);
            assert_eq!(held.bytes(), full, "{early:?}");
        }
        assert_eq!(held.unrestated(partition, Life(3), 0).events.len(), 1);
        assert_eq!(held.unrestated(partition, Life(2), 0).events.len(), 0);
        held.let_go(&[mark(2, 50)], 0);
        assert_eq!(held.unrestated(partition, Life(3), 0).events.len(), 0);
        assert_eq!(held.unrestated(partition, Life(3), 0).leads.len(), 1, "settled, but still on its walk");
        assert_eq!(held.unrestated(partition, Life(3), 1000).leads.len(), 0, "recovery has it now");
        held.answered(lead);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn a_restated_event_waits_for_its_new_place() {
        let held = Held::new(16);
        let partition = Partition::of("acme", 16);
        held.admitted(Life(2), id(50), held_lead(LeadId::generate()));
        let full = held.bytes();
        let [(place, _)] = held.unrestated(partition, Life(3), 0).events.try_into().unwrap();
        held.event_restated(partition, place, Life(3), id(70));
        assert_eq!(held.bytes(), full);
        held.let_go(&[Mark { partition, life: Life(2), entry: id(99) }], 0);
        assert_eq!(held.bytes(), full);
        held.let_go(&[Mark { partition, life: Life(3), entry: id(70) }], 0);
        assert!(held.bytes() < full);
    }

    #[test]
    fn p7_a_lease_counts_until_it_has_ended() {
        let held = Held::new(16);
        let key = LeaseKey { lead: LeadId::generate(), buyer: BuyerId::new("sunco").unwrap() };
        let lease = HeldLease {
            charges: vec![],
            about: "{}".into(),
            taken_at_ms: 0,
            deadline_ms: 10,
            gives_back: false,
            person: None,
        };
        held.taken(key.clone(), lease.clone());
        held.taken(key.clone(), lease);
        held.gives_back(&key);
        let found = held.unrestated(Partition::of("sunco", 16), Life(2), 0).leases;
        assert!(found.len() == 1 && found[0].1.gives_back);
        held.ended(&key);
        assert_eq!(held.bytes(), 0);
    }
}
