//! Journals in memory, as a store would keep them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use capgate::domain::event::{EntryId, Event, JournalEntry, Life, Mark};
use capgate::domain::id::Partition;
use capgate::ledger::JournalSource;
use capgate::store::StoreError;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Enough for events of one lead to meet in different ones.
pub const PARTITIONS: u16 = 4;

/// Where each publisher and buyer of the tests belongs.
pub fn partition_of(event: &Event) -> Partition {
    let id = match event {
        Event::Received(received) => received.publisher.as_str(),
        Event::Attempt(attempt) => attempt.buyer.as_str(),
        Event::Closed(closed) => closed.publisher.as_str(),
        Event::Parked(parked) => parked.publisher.as_str(),
        Event::Returned(returned) => returned.buyer.as_str(),
    };
    Partition::of(id, PARTITIONS)
}

#[derive(Default)]
struct State {
    entries: BTreeMap<(Partition, Life), Vec<JournalEntry>>,
    unreadable: HashSet<Partition>,
    reads: usize,
}

#[derive(Default, Clone)]
pub struct Journal {
    state: Arc<Mutex<State>>,
    /// Set: reads wait for it and say so by the other.
    gate: Option<(Arc<Notify>, Arc<Notify>)>,
}

impl Journal {
    /// A journal whose reads never end; the handle is notified when one has begun.
    pub fn stalled() -> (Self, Arc<Notify>) {
        let begun = Arc::new(Notify::new());
        (Self { gate: Some((Arc::new(Notify::new()), begun.clone())), ..Self::default() }, begun)
    }

    pub fn append(&self, event: &Event) {
        self.append_bytes(partition_of(event), Life(0), event.to_bytes());
    }

    pub fn append_all(&self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.append(&event));
    }

    pub fn append_bytes(&self, partition: Partition, life: Life, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        let entries = state.entries.entry((partition, life)).or_default();
        let seq = u64::try_from(entries.len()).unwrap();
        entries.push(JournalEntry { id: EntryId { ms: 1_000 + seq / 3, seq: seq % 3 }, bytes });
    }

    /// Replaces the bytes of every entry that has these, as if a reader that knows them had come.
    pub fn replace(&self, old: &[u8], new: &[u8]) {
        for entry in self.state.lock().entries.values_mut().flatten().filter(|entry| entry.bytes == old) {
            entry.bytes = new.to_vec();
        }
    }

    pub fn set_readable(&self, partition: Partition, is_readable: bool) {
        let unreadable = &mut self.state.lock().unreadable;
        if is_readable {
            unreadable.remove(&partition)
        } else {
            unreadable.insert(partition)
        };
    }

    pub fn trim(&self, mark: &Mark) {
        if let Some(entries) = self.state.lock().entries.get_mut(&(mark.partition, mark.life)) {
            entries.retain(|entry| entry.id > mark.entry);
        }
    }

    /// How often it was asked, by all settlers.
    #[cfg(feature = "server-tests")]
    pub fn reads(&self) -> usize {
        self.state.lock().reads
    }

    pub fn len(&self) -> usize {
        self.state.lock().entries.values().map(Vec::len).sum()
    }

    pub fn read_now(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        let mut state = self.state.lock();
        state.reads += 1;
        if state.unreadable.contains(&mark.partition) {
            return Err(StoreError::NotDone("away".into()));
        }
        let entries = state.entries.get(&(mark.partition, mark.life)).map_or(&[][..], Vec::as_slice);
        Ok(entries.iter().filter(|entry| entry.id > mark.entry).take(count_max).cloned().collect())
    }
}

#[async_trait]
impl JournalSource for Journal {
    async fn read(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        if let Some((gate, begun)) = &self.gate {
            begun.notify_one();
            gate.notified().await;
        }
        self.read_now(mark, count_max)
    }
}
