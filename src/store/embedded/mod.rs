//! The store of a single process with nothing installed: state in memory, a journal file beside it.
//!
//! Every call that changes something is a record in the file, synced before the call answers; calls that come together share
//! one sync. What was acknowledged survives `kill -9` (P5): at the next start the file is replayed, what the ledger has
//! settled already is dropped, counters are rebuilt from the ledger's usage, and leases without an end are overdue.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;

use self::file::{Faults, Replacement};
use self::group::Group;
use self::state::State;
use super::ends::End;
use super::{
    Admission, Admit, BeginReply, Close, CloseReply, Comparison, CounterKey, EndReply, LeadState, LeaseEnd,
    MoveDeadline, OpenCounts, OverdueLead, PersonReply, ReadBack, ReconcileReply, ReturnReply, SaleReturn, SeedReply,
    Standing, Store, StoreError, StoreHealth, Take, TakeReply,
};
use crate::clock::SharedClock;
use crate::domain::event::{Attempt, Closed, EntryId, Event, JournalEntry, Life, Mark, Received, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::{EndMark, LeaseKey, OpenLease};
use crate::domain::person::{Person, PersonMark};
use crate::domain::window::Window;
use crate::ledger::{BookedLead, UsageRow};

mod change;
mod claims;
mod counters;
mod file;
mod group;
mod leases;
mod lives;
mod partition;
mod persons;
mod reconcile;
mod returns;
mod snapshot;
mod start;
mod state;
#[cfg(test)]
mod tests;

/// Longest text of one event: its JSON form, which may be six times as long, still fits into a record.
const EVENT_TEXT_BYTES_MAX: usize = change::RECORD_BYTES_MAX / 16;

/// How the store is set up.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedOptions {
    /// Written into a new file and checked ever after.
    pub partitions: u16,
    /// Most entries that may wait for settlement, all partitions; beyond it nothing is admitted.
    pub journal_entries_max: u64,
    /// How long the end of a lease is remembered; longer than any caller may ask.
    pub end_mark_ttl: Duration,
}

/// State in memory, journal in a file of its own.
#[derive(Debug)]
pub struct EmbeddedStore {
    group: Arc<Group>,
    clock: SharedClock,
    partitions: u16,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the journal file, or makes it. Blocks while it reads the file: call it where blocking is allowed.
    ///
    /// `marks` and `usage` are the ledger's, read in one snapshot.
    ///
    /// # Errors
    /// [`StoreError::NotDone`] when the file is locked by another process, or cannot be read or written.
    /// [`StoreError::Bug`] when it was made with another number of partitions, is damaged other than by a torn end, or is
    /// no journal at all.
    pub fn open(
        path: &Path,
        options: EmbeddedOptions,
        clock: SharedClock,
        marks: &[Mark],
        usage: &[UsageRow],
    ) -> Result<Self, StoreError> {
        Self::open_with(path, options, clock, marks, usage, Faults::default())
    }

    fn open_with(
        path: &Path,
        options: EmbeddedOptions,
        clock: SharedClock,
        marks: &[Mark],
        usage: &[UsageRow],
        faults: Faults,
    ) -> Result<Self, StoreError> {
        let EmbeddedOptions { partitions, journal_entries_max, end_mark_ttl } = options;
        if partitions == 0 {
            return Err(StoreError::Bug("a store needs at least one partition".to_owned()));
        }
        let failed =
            |error: std::io::Error| StoreError::NotDone(format!("cannot write {}: {}", path.display(), error.kind()));
        let lock = file::lock(path)?;
        let mut state = State::new(partitions, journal_entries_max, end_mark_ttl);
        let existing = file::open(path, partitions, &faults, |record| {
            state.partition(Partition(record.partition))?.replay(record);
            Ok(())
        })?;
        start::catch_up(&mut state, clock.now(), marks, usage)?;
        let records = state.take_records();
        let file = if let Some(mut file) = existing {
            let mut batch = Vec::new();
            records.iter().try_for_each(|record| record.encode(&mut batch)).map_err(failed)?;
            file.append(&batch).map_err(failed)?;
            file
        } else {
            let mut new = Replacement::begin(path, partitions, &faults).map_err(failed)?;
            new.write_records(&records).and_then(|()| new.sync()).map_err(failed)?;
            new.swap().map_err(failed)?
        };
        let group = Group::new(state, path.to_owned(), faults);
        let writer = group.start_writer(file, lock).map_err(failed)?;
        Ok(Self { group, clock, partitions, writer: Mutex::new(Some(writer)) })
    }

    /// Runs a step whose result may be told only when everything it rests on is durable.
    async fn step<R: Send>(&self, step: impl FnOnce(&mut State, Timestamp) -> R + Send) -> Result<R, StoreError> {
        let (result, number) = self.group.run(|state| step(state, self.clock.now()))?;
        self.group.durable(number).await?;
        Ok(result)
    }

    async fn end(&self, how: End, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        check_end(end)?;
        self.step(|state, now| state.end(now, how, end)).await
    }
}

/// Ends the writer, so that another store can open the file.
impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.group.stop();
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

fn check_text(bytes: usize) -> Result<(), StoreError> {
    if bytes > EVENT_TEXT_BYTES_MAX {
        return Err(StoreError::Bug(format!("an event with {bytes} bytes of text is too long for the journal")));
    }
    Ok(())
}

fn check_received(event: &Received) -> Result<(), StoreError> {
    check_text(event.payload.len())
}

fn check_closed(event: &Closed) -> Result<(), StoreError> {
    check_text(event.answer.len() + event.explanation.len())
}

fn check_end(end: &LeaseEnd) -> Result<(), StoreError> {
    check_attempt(&end.event)?;
    check_attempt(&end.late_event)
}

fn check_attempt(event: &Attempt) -> Result<(), StoreError> {
    check_text(windows_bytes(&event.windows) + event.reason.as_ref().map_or(0, String::len))
}

fn windows_bytes(windows: &[WindowAmount]) -> usize {
    windows.iter().map(|window| window.cap.as_str().len()).sum()
}

#[async_trait]
impl Store for EmbeddedStore {
    fn partitions(&self) -> u16 {
        self.partitions
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn standing(&self, partition: Partition) -> Result<Standing, StoreError> {
        self.step(|state, _| state.standing(partition)).await?
    }

    fn joined(&self, partition: Partition) -> Option<Life> {
        self.group.look(|state| state.joined(partition))
    }

    async fn begin_life(&self, partition: Partition, life: Life, _: &str) -> Result<BeginReply, StoreError> {
        self.step(|state, _| state.begin_life(partition, life)).await?.map(BeginReply::Life)
    }

    async fn join(&self, lives: &[(Partition, Life)]) -> Result<(), StoreError> {
        self.step(|state, _| state.join(lives)).await?
    }

    async fn bring_back(&self, lead: &BookedLead, retention: Duration) -> Result<(), StoreError> {
        self.step(|state, now| state.bring_back(now, lead, retention)).await
    }

    async fn new_key(&self, publisher: &PublisherId, hash: &str) -> Result<(), StoreError> {
        self.step(|state, now| state.new_key(now, publisher, hash)).await
    }

    async fn bring_persons(&self, buyer: &BuyerId, days: u32, marks: &[PersonMark]) -> Result<(), StoreError> {
        self.step(|state, now| state.bring_persons(now, buyer, days, marks)).await
    }

    async fn set_marked(&self, buyer: &BuyerId, days: u32) -> Result<(), StoreError> {
        self.step(|state, _| state.set_marked(buyer, days)).await
    }

    async fn person(&self, buyer: &BuyerId, person: &Person) -> Result<PersonReply, StoreError> {
        self.step(|state, now| state.person(now, buyer, person)).await
    }

    async fn set_read_back(&self, partition: Partition, life: Life, read: &ReadBack) -> Result<(), StoreError> {
        self.step(|state, _| state.set_read_back(partition, life, read)).await?
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        if let Some(reason) = self.group.trouble() {
            return Err(StoreError::NotDone(reason));
        }
        let journal_entries = self.group.look(|state| state.journal_entries());
        Ok(StoreHealth { clock_offset_ms: 0, journal_entries, warnings: Vec::new() })
    }

    async fn admit(&self, admit: &Admit) -> Result<Admission, StoreError> {
        check_received(&admit.event)?;
        self.step(|state, now| state.admit(now, admit)).await
    }

    async fn take(&self, take: &Take) -> Result<TakeReply, StoreError> {
        self.step(|state, now| state.take(now, take)).await
    }

    async fn admit_and_take(&self, admit: &Admit, take: &Take) -> Result<(Admission, Option<TakeReply>), StoreError> {
        check_received(&admit.event)?;
        self.step(|state, now| {
            let admission = state.admit(now, admit);
            let reply = (admission == Admission::New).then(|| state.take(now, take));
            (admission, reply)
        })
        .await
    }

    async fn commit(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        self.end(End::Commit, end).await
    }

    async fn confirm(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        self.end(End::Confirm, end).await
    }

    async fn refund(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        self.end(End::Refund, end).await
    }

    async fn expire(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        self.end(End::Expire, end).await
    }

    async fn doubt(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        self.end(End::Doubt, end).await
    }

    async fn return_sale(&self, sale: &SaleReturn) -> Result<ReturnReply, StoreError> {
        check_text(sale.event.reason.len() + windows_bytes(&sale.event.windows))?;
        self.step(|state, now| state.return_sale(now, sale)).await?
    }

    async fn record(&self, event: &Attempt) -> Result<(), StoreError> {
        check_attempt(event)?;
        let (owner, event) = (event.buyer.as_str(), Event::Attempt(event.clone()));
        self.step(|state, now| state.record(now, owner, &event)).await
    }

    async fn record_verdict(&self, event: &Closed) -> Result<(), StoreError> {
        check_closed(event)?;
        let (owner, event) = (event.publisher.as_str(), Event::Closed(event.clone()));
        self.step(|state, now| state.record(now, owner, &event)).await
    }

    async fn remember(
        &self,
        key: &LeaseKey,
        mark: EndMark,
        windows: &[WindowAmount],
        not_after: Timestamp,
    ) -> Result<bool, StoreError> {
        self.step(|state, now| state.remember(now, key, mark, windows, not_after)).await
    }

    async fn give_back_at_deadline(&self, key: &LeaseKey) -> Result<(), StoreError> {
        self.step(|state, _| state.give_back_at_deadline(key)).await
    }

    async fn close(&self, close: &Close) -> Result<CloseReply, StoreError> {
        check_closed(&close.event)?;
        self.step(|state, now| state.close(now, close)).await
    }

    async fn commit_and_close(
        &self,
        end: &LeaseEnd,
        close: &Close,
    ) -> Result<(EndReply, Option<CloseReply>), StoreError> {
        check_end(end)?;
        check_closed(&close.event)?;
        self.step(|state, now| {
            let is_answered = state.is_answered(&close.event);
            let reply = if is_answered {
                state.end(now, End::Commit, &end.clone().as_late())
            } else {
                state.end(now, End::Commit, end)
            };
            let closed = (reply == EndReply::Done).then(|| state.close(now, close));
            (reply, closed)
        })
        .await
    }

    async fn seed(
        &self,
        buyer: &BuyerId,
        mark: &Mark,
        counters: &[(CapId, Window, u64)],
    ) -> Result<SeedReply, StoreError> {
        self.step(|state, _| state.seed(buyer, mark, counters)).await
    }

    async fn reconcile(&self, mark: &Mark, comparisons: &[Comparison]) -> Result<ReconcileReply, StoreError> {
        self.step(|state, _| state.reconcile(mark, comparisons)).await?
    }

    async fn lead_state(&self, publisher: &PublisherId, lead: LeadId) -> Result<Option<LeadState>, StoreError> {
        self.step(|state, _| state.lead_state(publisher, lead)).await
    }

    async fn counters(&self, keys: &[CounterKey]) -> Result<Vec<Option<u64>>, StoreError> {
        Ok(self.group.look(|state| state.counters(keys)))
    }

    async fn newest_windows(&self, buyer: &BuyerId, caps: &[CapId]) -> Result<Vec<Option<Window>>, StoreError> {
        Ok(self.group.look(|state| state.newest_windows(buyer, caps)))
    }

    async fn overdue_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError> {
        self.group.look(|state| state.overdue_leases(self.clock.now(), partition, count_max))
    }

    async fn open_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError> {
        self.group.look(|state| state.open_leases(partition, count_max))
    }

    async fn claim_overdue_leads(
        &self,
        partition: Partition,
        grace: Duration,
        extend: Duration,
        count_max: usize,
    ) -> Result<Vec<OverdueLead>, StoreError> {
        self.step(|state, now| state.claim_overdue_leads(now, partition, grace, extend, count_max)).await?
    }

    async fn move_deadline(&self, moved: &MoveDeadline) -> Result<bool, StoreError> {
        check_text(moved.event.as_ref().map_or(0, |event| event.explanation.len()))?;
        self.step(|state, now| state.move_deadline(now, moved)).await?
    }

    async fn open_counts(&self) -> Result<OpenCounts, StoreError> {
        Ok(self.group.look(|state| state.open_counts()))
    }

    async fn journal_tip(&self, partition: Partition) -> Result<EntryId, StoreError> {
        self.step(|state, _| state.journal_tip(partition)).await?
    }

    async fn read_journal(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        // The ledger must never know more than the file.
        self.step(|state, _| state.read_journal(mark, count_max)).await?
    }

    async fn trim_journal(&self, mark: &Mark) -> Result<(), StoreError> {
        self.step(|state, _| state.trim_journal(mark)).await?
    }

    async fn appended(&self, wait: Duration) {
        self.group.appended(wait).await;
    }

    async fn shut_down(&self) {
        self.group.stop();
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }
}
