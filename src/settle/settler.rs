//! The settler: moves the journal into the books behind the gateway's back, for as long as the process runs.
//!
//! Any number of gateways may run one; the ledger's mark locks share the partitions between them. A journal is trimmed
//! only after the ledger has committed the mark (P5, F76).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::RngExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::SharedClock;
use crate::domain::event::{JournalEntry, Mark};
use crate::domain::id::Partition;
use crate::ledger::{JournalSource, Ledger, LedgerError, SettleError, Settled};
use crate::store::{Store, StoreError};

/// How long an idle settler waits for its own process to append something, before it looks for what dead gateways left.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// First and longest pause after an error.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a settler that was told to stop goes on settling what is there.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// A store's journals, as the ledger reads them.
#[derive(Debug, Clone)]
pub struct StoreJournal(pub Arc<dyn Store>);

#[async_trait]
impl JournalSource for StoreJournal {
    async fn read(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        self.0.read_journal(mark, count_max).await
    }
}

/// What stops settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The ledger is away.
    LedgerAway,
    /// The ledger's schema is not the one needed.
    Schema,
    /// The store is away.
    StoreAway,
    /// A bug, ours or the data's.
    Bug,
}

impl From<&SettleError> for Trouble {
    fn from(error: &SettleError) -> Self {
        match error {
            SettleError::Ledger(LedgerError::NotDone(_) | LedgerError::MaybeDone(_)) => Self::LedgerAway,
            SettleError::Ledger(LedgerError::Schema(_)) => Self::Schema,
            SettleError::Store(StoreError::NotDone(_) | StoreError::MaybeDone(_)) => Self::StoreAway,
            SettleError::Ledger(LedgerError::Bug(_)) | SettleError::Store(StoreError::Bug(_)) => Self::Bug,
        }
    }
}

/// How settlement is doing, for metrics and readiness. Numbers count from the start of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettlerStatus {
    /// What stops it now; `None` when the last round went well.
    pub trouble: Option<Trouble>,
    /// Everything appended before this instant, by this gateway's clock, is in the books; `None` before the first round.
    pub settled_to: Option<Timestamp>,
    /// Rounds that moved a mark.
    pub rounds: u64,
    /// Journal entries settled.
    pub entries: u64,
    /// Rows written, by table.
    pub rows: BTreeMap<&'static str, u64>,
    /// Entries that can never be stored.
    pub dead_letters: u64,
    /// Second leads under a used key.
    pub key_clashes: u64,
    /// Partitions that wait for a newer gateway.
    pub stopped: Vec<Partition>,
}

impl SettlerStatus {
    /// Did the ledger answer the last time it was asked?
    #[must_use]
    pub fn is_ledger_up(&self) -> bool {
        !matches!(self.trouble, Some(Trouble::LedgerAway | Trouble::Schema))
    }

    /// How far the books are behind.
    #[must_use]
    pub fn lag(&self, now: Timestamp) -> Duration {
        self.settled_to.and_then(|at| Duration::try_from(now.duration_since(at)).ok()).unwrap_or_default()
    }

    fn add(&mut self, settled: &Settled) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.rounds += u64::from(!settled.marks.is_empty());
        self.entries += number(settled.entries);
        self.dead_letters += number(settled.dead_letters);
        self.key_clashes += number(settled.key_clashes);
        self.stopped.clone_from(&settled.stopped);
        for (table, rows) in &settled.rows {
            *self.rows.entry(table).or_default() += rows;
        }
    }
}

/// What a settler works with.
#[derive(Debug, Clone)]
pub struct SettlerParts {
    /// Whose journals.
    pub store: Arc<dyn Store>,
    /// Whose books.
    pub ledger: Arc<dyn Ledger>,
    /// The time.
    pub clock: SharedClock,
    /// Most journal entries in one transaction.
    pub rows_max: usize,
    /// How long a round waits for more when the journal is short.
    pub delay: Duration,
}

/// See the module's text. Clones are the same settler.
#[derive(Debug, Clone)]
pub struct Settler {
    parts: SettlerParts,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    status: watch::Sender<SettlerStatus>,
    /// Marks that are committed and that the store has not forgotten up to yet. `None`: not known since the start.
    untrimmed: Mutex<Option<BTreeMap<Partition, Mark>>>,
}

impl Settler {
    /// A settler that has not begun.
    #[must_use]
    pub fn new(parts: SettlerParts) -> Self {
        let shared = Shared { status: watch::Sender::default(), untrimmed: Mutex::new(None) };
        Self { parts, shared: Arc::new(shared) }
    }

    /// How it is doing, now and from now on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SettlerStatus> {
        self.shared.status.subscribe()
    }

    /// One round: settles at most `rows_max` entries, then lets the store forget what was settled. A caller that gives up
    /// waiting does not end the round: it runs in a task of its own, so that no transaction is cut in two (F71).
    pub async fn settle_once(&self) -> Result<Settled, SettleError> {
        let settler = self.clone();
        let round = tokio::spawn(async move { settler.told_round().await });
        round.await.unwrap_or_else(|_| Err(LedgerError::Bug("the settling task ended early".to_owned()).into()))
    }

    /// A round, told to whoever watches.
    async fn told_round(&self) -> Result<Settled, SettleError> {
        let started = self.parts.clock.now();
        let result = self.round().await;
        self.shared.status.send_modify(|status| match &result {
            Ok(settled) => {
                status.trouble = settled.unread.as_ref().map(|_| Trouble::StoreAway);
                status.add(settled);
                if settled.has_more || settled.unread.is_some() || !settled.stopped.is_empty() {
                    status.settled_to = status.settled_to.or(Some(started));
                } else {
                    status.settled_to = Some(started);
                }
            }
            Err(error) => status.trouble = Some(error.into()),
        });
        result
    }

    async fn round(&self) -> Result<Settled, SettleError> {
        self.learn_untrimmed().await?;
        let source = StoreJournal(self.parts.store.clone());
        let settled = self.parts.ledger.settle(&source, self.parts.rows_max).await?;
        if let Some(untrimmed) = self.shared.untrimmed.lock().as_mut() {
            untrimmed.extend(settled.marks.iter().map(|mark| (mark.partition, *mark)));
        }
        self.trim().await;
        Ok(settled)
    }

    /// A gateway may have died between commit and trim: the first round trims what is settled already.
    async fn learn_untrimmed(&self) -> Result<(), LedgerError> {
        if self.shared.untrimmed.lock().is_some() {
            return Ok(());
        }
        let marks = self.parts.ledger.marks(self.parts.store.partitions()).await?;
        let marks = marks.into_iter().map(|mark| (mark.partition, mark)).collect();
        self.shared.untrimmed.lock().get_or_insert(marks);
        Ok(())
    }

    /// What cannot be trimmed now is trimmed in a later round; entries that are settled twice change nothing.
    async fn trim(&self) {
        let marks: Vec<Mark> = self.shared.untrimmed.lock().iter().flat_map(BTreeMap::values).copied().collect();
        for mark in marks {
            if let Err(error) = self.parts.store.trim_journal(&mark).await {
                tracing::debug!(partition = mark.partition.0, %error, "journal not trimmed yet");
                return;
            }
            if let Some(untrimmed) = self.shared.untrimmed.lock().as_mut()
                && untrimmed.get(&mark.partition) == Some(&mark)
            {
                untrimmed.remove(&mark.partition);
            }
        }
    }

    /// Settles until `stop`, then what is left, for at most ten seconds.
    pub async fn run(self, stop: CancellationToken) {
        let mut reporter = Reporter::default();
        let mut has_more = false;
        let mut failures = 0;
        while !stop.is_cancelled() {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.wait(has_more, failures) => {}
            }
            let result = self.settle_once().await;
            reporter.report(&result, self.parts.clock.now());
            match result {
                Ok(settled) => {
                    has_more = settled.has_more;
                    failures = u32::from(settled.unread.is_some());
                }
                Err(_) => failures += 1,
            }
        }
        self.drain().await;
    }

    async fn wait(&self, has_more: bool, failures: u32) {
        if failures > 0 {
            tokio::time::sleep(back_off(failures)).await;
        } else if !has_more {
            self.parts.store.appended(IDLE_WAIT).await;
            // One row alone costs as much as many: let a few come together.
            tokio::time::sleep(self.parts.delay).await;
        }
    }

    async fn drain(&self) {
        let drained = tokio::time::timeout(DRAIN_TIME, async {
            loop {
                match self.settle_once().await {
                    Ok(settled) if settled.entries == 0 => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "settlement stopped early; the journal keeps the rest");
                        break;
                    }
                }
            }
        });
        if drained.await.is_err() {
            tracing::warn!("settlement ran out of time; the journal keeps the rest");
        }
    }
}

/// Doubles with each failure, with jitter, so that gateways do not come back all at once.
fn back_off(failures: u32) -> Duration {
    let longest = BACK_OFF.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACK_OFF.1);
    longest.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// One line when settlement stops, one when it goes on, however long it takes (F92).
#[derive(Debug, Default)]
struct Reporter {
    since: Option<(Trouble, Timestamp)>,
}

impl Reporter {
    fn report(&mut self, result: &Result<Settled, SettleError>, now: Timestamp) {
        match result {
            Ok(settled) => {
                if let Some(error) = &settled.unread {
                    self.stopped(Trouble::StoreAway, error, now);
                } else if let Some((trouble, since)) = self.since.take() {
                    let seconds = now.duration_since(since).as_secs();
                    tracing::info!(?trouble, seconds, "settlement goes on");
                }
                let (dead_letters, key_clashes) = (settled.dead_letters, settled.key_clashes);
                if dead_letters > 0 || key_clashes > 0 {
                    tracing::error!(dead_letters, key_clashes, "events that the books do not take as they are");
                }
            }
            Err(error) => self.stopped(error.into(), error, now),
        }
    }

    fn stopped(&mut self, trouble: Trouble, error: &dyn std::error::Error, now: Timestamp) {
        let is_news = self.since.is_none_or(|(known, _)| known != trouble);
        let since = self.since.map_or(now, |(_, since)| since);
        self.since = Some((trouble, since));
        if is_news {
            tracing::error!(?trouble, %error, "settlement is stopped and is tried again; the journal keeps everything");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f92_back_off_grows_to_its_bound() {
        for failures in 1..100 {
            let pause = back_off(failures);
            assert!(pause >= BACK_OFF.0 / 2 && pause <= BACK_OFF.1, "{failures}: {pause:?}");
        }
        assert!(back_off(20) >= BACK_OFF.1 / 2);
    }

    #[test]
    fn f92_an_outage_is_told_once() {
        let mut reporter = Reporter::default();
        let away = || Err(SettleError::Ledger(LedgerError::NotDone("refused".into())));
        let start = Timestamp::UNIX_EPOCH;
        reporter.report(&away(), start);
        let told = reporter.since;
        assert_eq!(told, Some((Trouble::LedgerAway, start)));
        reporter.report(&away(), start + jiff::SignedDuration::from_secs(600));
        assert_eq!(reporter.since, told, "the same outage began again");
        reporter.report(&Ok(Settled::default()), start);
        assert_eq!(reporter.since, None);
    }
}
