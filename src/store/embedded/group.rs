//! Group commit: calls change the state in memory and wait; one thread writes what has gathered and syncs it once for all
//! of them.
//!
//! A failed write or sync leaves the state ahead of the file. Then nothing more is taken (P8) until a whole new file,
//! written from the state, has taken the old one's place: retrying a sync proves nothing.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, watch};

use super::file::{Faults, JournalFile, Replacement};
use super::partition::PartitionState;
use super::state::State;
use crate::store::StoreError;

/// Most bytes that wait for the writer; more is refused (P7).
pub(super) const PENDING_BYTES_MAX: usize = 64 << 20;
/// Most bytes that gather while a new file is written beside the old one; more ends the attempt.
const CATCH_UP_BYTES_MAX: usize = 64 << 20;
/// A file smaller than this is never rewritten.
const COMPACT_BYTES_MIN: u64 = 8 << 20;
/// Pause between attempts to recover from a failed write.
const HEAL_PAUSE: Duration = Duration::from_millis(500);
/// Longest that a call waits for its batch.
const SYNC_WAIT_MAX: Duration = Duration::from_secs(5);

/// How far the file has come.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Number of the last change that is durable.
    durable: u64,
    is_broken: bool,
    has_stopped: bool,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Framed records that the writer has not taken yet.
    pending: Vec<u8>,
    /// Number of the last change in `pending`, or before it.
    last: u64,
    broken: Option<String>,
    is_stopping: bool,
    /// Set by the thread that writes a new file, when it has come as far as it can alone.
    is_rewrite_ready: bool,
}

/// What callers and writer share.
#[derive(Debug)]
pub(super) struct Group {
    inner: Mutex<Inner>,
    work: Condvar,
    progress: watch::Sender<Progress>,
    appended: Notify,
    path: PathBuf,
    pub(super) faults: Faults,
}

impl Group {
    pub(super) fn new(state: State, path: PathBuf, faults: Faults) -> Arc<Self> {
        let inner =
            Inner { state, pending: Vec::new(), last: 0, broken: None, is_stopping: false, is_rewrite_ready: false };
        let (progress, _) = watch::channel(Progress::default());
        let (inner, work, appended) = (Mutex::new(inner), Condvar::new(), Notify::new());
        Arc::new(Self { inner, work, progress, appended, path, faults })
    }

    /// Looks at the state; what is seen may not be durable yet.
    pub(super) fn look<R>(&self, step: impl FnOnce(&mut State) -> R) -> R {
        step(&mut self.inner.lock().state)
    }

    /// Why nothing is taken at the moment.
    pub(super) fn trouble(&self) -> Option<String> {
        self.inner.lock().refusal()
    }

    /// Runs a step and queues what it changed. Answers the number to wait for with [`Group::durable`] before the result is
    /// told to anybody: it covers this step's changes and everything that the step may have seen.
    pub(super) fn run<R>(&self, step: impl FnOnce(&mut State) -> R) -> Result<(R, u64), StoreError> {
        let mut inner = self.inner.lock();
        if let Some(reason) = inner.refusal() {
            return Err(StoreError::NotDone(reason));
        }
        let result = step(&mut inner.state);
        let records = inner.state.take_records();
        if records.is_empty() {
            return Ok((result, inner.last));
        }
        let has_event = records.iter().any(|record| record.event.is_some());
        for record in &records {
            if let Err(error) = record.encode(&mut inner.pending) {
                // Cannot happen, because callers are refused before the step when what they bring is too long. If it did, the
                // state would be ahead of the file for good.
                inner.broken = Some(format!("a journal record cannot be written: {}", error.kind()));
                self.progress.send_modify(|progress| progress.is_broken = true);
                return Err(StoreError::Bug("a journal record cannot be written".to_owned()));
            }
        }
        inner.last += 1;
        let number = inner.last;
        drop(inner);
        self.work.notify_one();
        if has_event {
            self.appended.notify_one();
        }
        Ok((result, number))
    }

    /// Waits until everything up to this number is in the file.
    pub(super) async fn durable(&self, number: u64) -> Result<(), StoreError> {
        let mut progress = self.progress.subscribe();
        let done = progress.wait_for(|now| now.durable >= number || now.is_broken || now.has_stopped);
        match tokio::time::timeout(SYNC_WAIT_MAX, done).await {
            Ok(Ok(now)) if now.durable >= number => Ok(()),
            Ok(_) => Err(StoreError::MaybeDone("the journal file could not be written".to_owned())),
            Err(_) => Err(StoreError::MaybeDone("the journal file is slow".to_owned())),
        }
    }

    /// Waits until an event was appended, or until the time is over.
    pub(super) async fn appended(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.appended.notified()).await;
    }

    /// Tells the writer to write what is left and to end.
    pub(super) fn stop(&self) {
        self.inner.lock().is_stopping = true;
        self.work.notify_all();
    }

    /// Starts the writer. It holds the lock on the file until it ends.
    pub(super) fn start_writer(self: &Arc<Self>, file: JournalFile, lock: File) -> io::Result<JoinHandle<()>> {
        let group = Arc::clone(self);
        let writer = Writer { compact_at: compact_at(file.bytes()), group, file, rewrite: None };
        thread::Builder::new().name("capgate-journal".to_owned()).spawn(move || {
            writer.run();
            drop(lock);
        })
    }
}

impl Inner {
    fn refusal(&self) -> Option<String> {
        if self.is_stopping {
            return Some("shutting down".to_owned());
        }
        if self.pending.len() > PENDING_BYTES_MAX {
            return Some("too much waits for the journal file".to_owned());
        }
        self.broken.clone()
    }
}

/// A file is rewritten when it has doubled since the last time.
fn compact_at(bytes: u64) -> u64 {
    bytes.saturating_mul(2).max(COMPACT_BYTES_MIN)
}

/// A new file that another thread fills with the state, while this one goes on with the old file.
#[derive(Debug)]
struct Rewrite {
    thread: JoinHandle<io::Result<Replacement>>,
    is_unwanted: Arc<AtomicBool>,
    /// What was written to the old file meanwhile. Snapshots say what they cover, so a record too many does no harm.
    catch_up: VecDeque<Vec<u8>>,
    catch_up_bytes: usize,
}

#[derive(Debug)]
struct Writer {
    group: Arc<Group>,
    file: JournalFile,
    compact_at: u64,
    rewrite: Option<Rewrite>,
}

enum Work {
    Batch(Vec<u8>, u64),
    RewriteReady,
    Heal,
    Stop,
}

impl Writer {
    fn run(mut self) {
        loop {
            match self.next() {
                Work::Batch(batch, number) => match self.file.append(&batch) {
                    Ok(()) => {
                        self.group.progress.send_modify(|progress| progress.durable = number);
                        self.remember(batch);
                        self.compact();
                    }
                    Err(error) => self.fail(&error),
                },
                Work::RewriteReady => self.finish_rewrite(),
                Work::Heal => self.heal(),
                Work::Stop => break,
            }
        }
        self.drop_rewrite();
        self.group.progress.send_modify(|progress| progress.has_stopped = true);
    }

    fn next(&self) -> Work {
        let mut inner = self.group.inner.lock();
        loop {
            if inner.broken.is_some() {
                if !inner.is_stopping {
                    self.group.work.wait_for(&mut inner, HEAL_PAUSE);
                }
                return if inner.is_stopping { Work::Stop } else { Work::Heal };
            }
            // Before the batches: under load there is always another one, and what gathers meanwhile is bounded.
            if std::mem::take(&mut inner.is_rewrite_ready) {
                return Work::RewriteReady;
            }
            if !inner.pending.is_empty() {
                return Work::Batch(std::mem::take(&mut inner.pending), inner.last);
            }
            if inner.is_stopping {
                return Work::Stop;
            }
            self.group.work.wait(&mut inner);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::error!(error = %error.kind(), "journal file cannot be written; refusing calls until it can");
        self.drop_rewrite();
        self.group.inner.lock().broken = Some(format!("journal file cannot be written: {}", error.kind()));
        self.group.progress.send_modify(|progress| progress.is_broken = true);
    }

    /// Writes a whole new file from the state. Nothing changes meanwhile, because every call is refused.
    fn heal(&mut self) {
        let (snapshots, number) = {
            let mut inner = self.group.inner.lock();
            inner.pending.clear();
            let snapshots: Vec<_> = inner.state.partitions.iter().map(PartitionState::snapshot).collect();
            (snapshots, inner.last)
        };
        let partitions = u16::try_from(snapshots.len()).unwrap_or(u16::MAX);
        let written = Replacement::begin(&self.group.path, partitions, &self.group.faults).and_then(|mut new| {
            let filled = snapshots.iter().try_for_each(|records| new.write_records(records));
            match filled.and_then(|()| new.sync()) {
                Ok(()) => new.swap(),
                Err(error) => {
                    new.abandon();
                    Err(error)
                }
            }
        });
        match written {
            Ok(file) => {
                tracing::info!("journal file is written again");
                self.compact_at = compact_at(file.bytes());
                self.file = file;
                self.group.inner.lock().broken = None;
                self.group.progress.send_modify(|progress| (progress.durable, progress.is_broken) = (number, false));
            }
            Err(error) => tracing::debug!(error = %error.kind(), "journal file still cannot be written"),
        }
    }

    fn remember(&mut self, batch: Vec<u8>) {
        let Some(rewrite) = &mut self.rewrite else { return };
        rewrite.catch_up_bytes += batch.len();
        rewrite.catch_up.push_back(batch);
        if rewrite.catch_up_bytes > CATCH_UP_BYTES_MAX {
            tracing::warn!("journal grows faster than it can be rewritten; trying again later");
            self.drop_rewrite();
            self.compact_at = compact_at(self.file.bytes());
        }
    }

    /// Starts a rewrite when the file is large and mostly dead.
    fn compact(&mut self) {
        if self.rewrite.is_some() || self.file.bytes() < self.compact_at {
            return;
        }
        let live = self.group.look(|state| state.live_bytes());
        if live > self.file.bytes() / 2 {
            self.compact_at = self.file.bytes() + COMPACT_BYTES_MIN;
            return;
        }
        let (group, is_unwanted) = (Arc::clone(&self.group), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&is_unwanted);
        let spawned = thread::Builder::new().name("capgate-rewrite".to_owned()).spawn(move || rewrite(&group, &asked));
        match spawned {
            Ok(thread) => {
                self.rewrite = Some(Rewrite { thread, is_unwanted, catch_up: VecDeque::new(), catch_up_bytes: 0 });
            }
            Err(error) => {
                tracing::warn!(error = %error.kind(), "journal cannot be rewritten");
                self.compact_at = compact_at(self.file.bytes());
            }
        }
    }

    fn finish_rewrite(&mut self) {
        let Some(rewrite) = self.rewrite.take() else { return };
        let old_bytes = self.file.bytes();
        // The thread has told that it is done, so this does not wait.
        let written = rewrite.thread.join().unwrap_or_else(|_| Err(io::Error::other("rewriting panicked")));
        let caught_up = written.and_then(|mut new| {
            match rewrite.catch_up.iter().try_for_each(|batch| new.write(batch)).and_then(|()| new.sync()) {
                Ok(()) => Ok(new),
                Err(error) => {
                    new.abandon();
                    Err(error)
                }
            }
        });
        match caught_up.map(Replacement::swap) {
            Ok(Ok(file)) => {
                tracing::info!(from_bytes = old_bytes, to_bytes = file.bytes(), "rewrote the journal file");
                self.compact_at = compact_at(file.bytes());
                self.file = file;
            }
            // The old file may have lost its name: what it is given from now on could be gone at the next start.
            Ok(Err(error)) => self.fail(&error),
            Err(error) => {
                tracing::warn!(error = %error.kind(), "journal was not rewritten; trying again later");
                self.compact_at = compact_at(old_bytes);
            }
        }
    }

    fn drop_rewrite(&mut self) {
        if let Some(rewrite) = self.rewrite.take() {
            rewrite.is_unwanted.store(true, Ordering::Relaxed);
            if let Ok(Ok(new)) = rewrite.thread.join() {
                new.abandon();
            }
        }
        self.group.inner.lock().is_rewrite_ready = false;
    }
}

/// Fills a new file, one partition at a time, so that calls are held up for one partition's copy at most.
fn rewrite(group: &Group, is_unwanted: &AtomicBool) -> io::Result<Replacement> {
    let partitions = group.look(|state| state.partition_count());
    let written = Replacement::begin(&group.path, partitions, &group.faults).and_then(|mut new| {
        let filled = (0..partitions).try_for_each(|index| {
            if is_unwanted.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let records = group.look(|state| state.partitions[usize::from(index)].snapshot());
            new.write_records(&records)
        });
        match filled.and_then(|()| new.sync()) {
            Ok(()) => Ok(new),
            Err(error) => {
                new.abandon();
                Err(error)
            }
        }
    });
    group.inner.lock().is_rewrite_ready = true;
    group.work.notify_one();
    written
}
