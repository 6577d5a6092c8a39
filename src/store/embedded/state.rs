//! The state machine behind the store: every verb as one synchronous step over all partitions. Pure: no I/O; time is
//! handed in. What a step changed is left in [`State::take_records`] for the journal file.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::change::{Change, Record};
use super::partition::PartitionState;
use crate::domain::event::{EntryId, JournalEntry, Mark};
use crate::domain::id::Partition;
use crate::store::StoreError;

/// All partitions.
#[derive(Debug)]
pub(super) struct State {
    pub(super) partitions: Vec<PartitionState>,
    pub(super) journal_entries_max: u64,
    pub(super) end_mark_ttl: Duration,
    records: Vec<Record>,
}

/// Whole milliseconds of a span; the longest there are when it is longer.
pub(super) fn span_ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Whole microseconds of a span; the longest there are when it is longer.
pub(super) fn span_us(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl State {
    pub(super) fn new(partitions: u16, journal_entries_max: u64, end_mark_ttl: Duration) -> Self {
        let partitions = (0..partitions).map(PartitionState::new).collect();
        Self { partitions, journal_entries_max, end_mark_ttl, records: Vec::new() }
    }

    /// What was changed since the last call, in order.
    pub(super) fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    pub(super) fn partition_count(&self) -> u16 {
        // Cannot fail because `new` was given a u16.
        u16::try_from(self.partitions.len()).unwrap_or(u16::MAX)
    }

    /// The partition of a publisher's or buyer's id.
    pub(super) fn partition_of(&mut self, id: &str) -> &mut PartitionState {
        let index = usize::from(Partition::of(id, self.partition_count()).0);
        // Cannot fail because `Partition::of` answers less than the count.
        &mut self.partitions[index]
    }

    pub(super) fn partition(&mut self, partition: Partition) -> Result<&mut PartitionState, StoreError> {
        let count = self.partitions.len();
        let missing = || StoreError::Bug(format!("there is no partition {} of {count}", partition.0));
        self.partitions.get_mut(usize::from(partition.0)).ok_or_else(missing)
    }

    /// Makes a change in the partition of `id` and keeps its record.
    pub(super) fn change_of(&mut self, id: &str, change: Change, event: Option<Bytes>) {
        let record = self.partition_of(id).change(change, event);
        self.records.push(record);
    }

    /// Makes a change in a partition and keeps its record.
    pub(super) fn change(&mut self, partition: Partition, change: Change) -> Result<(), StoreError> {
        let record = self.partition(partition)?.change(change, None);
        self.records.push(record);
        Ok(())
    }

    /// Entries that wait for settlement, all partitions.
    pub(super) fn journal_entries(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.entry_count).sum()
    }

    /// What the whole state takes in a snapshot, roughly.
    pub(super) fn live_bytes(&self) -> u64 {
        self.partitions.iter().map(PartitionState::live_bytes).sum()
    }

    pub(super) fn journal_tip(&mut self, partition: Partition) -> Result<EntryId, StoreError> {
        let state = self.partition(partition)?;
        let journal = state.life.and_then(|life| state.journals.get(&life));
        Ok(journal.map_or_else(EntryId::default, |journal| journal.tip))
    }

    pub(super) fn read_journal(&mut self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        let state = self.partition(mark.partition)?;
        let Some(journal) = state.journals.get(&mark.life) else { return Ok(Vec::new()) };
        let entries = journal.after(mark.entry).take(count_max);
        Ok(entries.map(|entry| JournalEntry { id: entry.id, bytes: entry.event.to_vec() }).collect())
    }

    pub(super) fn trim_journal(&mut self, mark: &Mark) -> Result<(), StoreError> {
        let state = self.partition(mark.partition)?;
        match state.journals.get(&mark.life) {
            Some(journal) if journal.trimmed < mark.entry => {
                self.change(mark.partition, Change::Trim { life: mark.life, entry: mark.entry })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Removes what has expired, in every partition.
    pub(super) fn purge_all(&mut self, now: Timestamp) {
        for partition in &mut self.partitions {
            partition.purge_all(now.as_millisecond());
        }
    }
}
