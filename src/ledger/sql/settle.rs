//! The settlement transaction: lock marks, read journals, carry out the plan, move marks, commit.

use std::time::Duration;

use rand::RngExt as _;

use super::SqlLedger;
use super::known;
use super::session::{Database, DbError, Dialect, Kind, Session};
use super::write::{self, DeadLetter, Written};
use crate::domain::event::{EntryId, Event, JournalEntry, Life, Mark, UnreadableEvent};
use crate::domain::id::Partition;
use crate::ledger::check;
use crate::ledger::plan::{self, Incoming, Place};
use crate::ledger::{JournalSource, LedgerError, SettleError, Settled};
use crate::store::StoreError;

/// How often a transaction is started before deadlocks and lock waits are reported to the caller.
const TRIES_MAX: u32 = 5;

/// A taken unique key is another settler that was faster, and the next try sees its row. From this try on it is the row's
/// own fault, so that it cannot stop a partition for ever.
const TRIES_BEFORE_BLAME: u32 = 3;

/// Bytes of events in one transaction; the rest waits for the next (P7).
const BATCH_BYTES_MAX: usize = 64 << 20;

/// Why a transaction stopped.
enum Stop {
    /// Before or without COMMIT.
    Db(DbError),
    /// While COMMIT was under way.
    AtCommit(DbError),
    /// The journal's side.
    Store(StoreError),
    /// The journal gave what it must not give.
    Bug(&'static str),
}

impl From<DbError> for Stop {
    fn from(error: DbError) -> Self {
        Self::Db(error)
    }
}

impl<D: Database> SqlLedger<D> {
    /// See [`crate::ledger::Ledger::settle`].
    pub(super) async fn settle_batch(
        &self,
        source: &dyn JournalSource,
        rows_max: usize,
    ) -> Result<Settled, SettleError> {
        let mut last = String::new();
        for attempt in 1..=TRIES_MAX {
            match self.transaction(source, rows_max, attempt > TRIES_BEFORE_BLAME).await {
                Ok(settled) => return Ok(settled),
                Err(Stop::Db(DbError::Conflict(text)) | Stop::AtCommit(DbError::Conflict(text))) => last = text,
                Err(Stop::Db(DbError::Duplicate)) => "another settler wrote the same lead".clone_into(&mut last),
                Err(Stop::Db(DbError::Broken(text))) => return Err(LedgerError::NotDone(text).into()),
                Err(Stop::AtCommit(DbError::Away(text))) => return Err(LedgerError::MaybeDone(text).into()),
                Err(Stop::Db(error) | Stop::AtCommit(error)) => return Err(LedgerError::from(error).into()),
                Err(Stop::Store(error)) => return Err(error.into()),
                Err(Stop::Bug(text)) => return Err(LedgerError::Bug(text.to_owned()).into()),
            }
            // Jitter keeps two settlers from meeting again in the same order.
            let pause_ms = rand::rng().random_range(5..=20) * u64::from(attempt);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        Err(LedgerError::NotDone(format!("gave up after {TRIES_MAX} tries: {last}")).into())
    }

    async fn transaction(
        &self,
        source: &dyn JournalSource,
        rows_max: usize,
        blames_duplicates: bool,
    ) -> Result<Settled, Stop> {
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        match fill(session.as_mut(), &dialect, source, rows_max, blames_duplicates).await {
            Ok(settled) => {
                session.run("COMMIT").await.map_err(Stop::AtCommit)?;
                session.release();
                Ok(settled)
            }
            Err(stop) => {
                // After a lock wait the transaction is still open with half its rows (F69), after a deadlock it is gone
                // (F68): only an explicit end makes both the same. Without it the session closes its connection.
                if session.run("ROLLBACK").await.is_ok() {
                    session.release();
                }
                Err(stop)
            }
        }
    }
}

/// Everything between BEGIN and COMMIT.
async fn fill(
    session: &mut dyn Session,
    dialect: &Dialect,
    source: &dyn JournalSource,
    rows_max: usize,
    blames_duplicates: bool,
) -> Result<Settled, Stop> {
    let marks = lock_marks(session, dialect).await?;
    let mut batch = Batch::default();
    batch.read(source, &marks, rows_max).await?;
    let mut settled = Settled {
        entries: batch.entries,
        has_more: batch.has_more,
        stopped: batch.stopped,
        unread: batch.unread,
        marks: batch.marks,
        ..Settled::default()
    };
    if settled.marks.is_empty() {
        return Ok(settled);
    }
    let mut letters = batch.letters;
    let mut written = Written::default();
    // Halves of what was refused, next one last.
    let mut chunks = vec![batch.events];
    while let Some(mut chunk) = chunks.pop() {
        if chunk.is_empty() {
            continue;
        }
        session.run("SAVEPOINT chunk").await?;
        let result = write_chunk(session, dialect, &chunk).await;
        let refusal = match result {
            Ok((rows, clashes)) => {
                written.add(&rows);
                settled.key_clashes += clashes;
                None
            }
            Err(DbError::Refused(reason)) => Some(reason),
            Err(DbError::Duplicate) if blames_duplicates => Some("a unique key is taken".to_owned()),
            Err(error) => return Err(error.into()),
        };
        if let Some(reason) = refusal {
            session.run("ROLLBACK TO SAVEPOINT chunk").await?;
            let rest = chunk.split_off(chunk.len() / 2);
            if chunk.is_empty() {
                // It was alone: the culprit.
                letters.extend(rest.into_iter().map(|event| DeadLetter {
                    place: event.place,
                    bytes: event.bytes,
                    reason: reason.clone(),
                }));
            } else {
                chunks.push(rest);
                chunks.push(chunk);
            }
        }
        session.run("RELEASE SAVEPOINT chunk").await?;
    }
    write::bury(session, dialect, &letters).await?;
    write::move_marks(session, dialect, &settled.marks).await?;
    settled.dead_letters = letters.len();
    settled.rows = written.by_table();
    Ok(settled)
}

pub(super) async fn write_chunk(
    session: &mut dyn Session,
    dialect: &Dialect,
    chunk: &[Incoming],
) -> Result<(Written, usize), DbError> {
    let known = known::read(session, chunk).await?;
    let plan = plan::plan(chunk.iter().map(|incoming| &incoming.event), &known)
        .map_err(|reason| DbError::Refused(reason.to_owned()))?;
    let written = write::carry_out(session, dialect, &plan).await?;
    Ok((written, plan.key_clashes))
}

/// The marks of all partitions that nobody else is settling, held until the transaction ends.
async fn lock_marks(session: &mut dyn Session, dialect: &Dialect) -> Result<Vec<Mark>, DbError> {
    let sql = format!("{SELECT_MARKS} ORDER BY partition_id{}", dialect.skip_locked);
    let rows = session.fetch(sql.into(), Vec::new(), &MARK_KINDS).await?;
    rows.into_iter().map(|mut row| read_mark(&mut row)).collect()
}

pub(super) const SELECT_MARKS: &str = "SELECT partition_id, life, entry_ms, entry_seq FROM settlement_marks";
pub(super) const MARK_KINDS: [Kind; 4] = [Kind::Int; 4];

pub(super) fn read_mark(row: &mut super::session::Row) -> Result<Mark, DbError> {
    Ok(Mark {
        partition: Partition(row.number()?),
        life: Life(row.number()?),
        entry: EntryId { ms: row.number()?, seq: row.number()? },
    })
}

/// What the journals held.
#[derive(Default)]
struct Batch {
    events: Vec<Incoming>,
    letters: Vec<DeadLetter>,
    /// Of partitions that moved.
    marks: Vec<Mark>,
    entries: usize,
    bytes: usize,
    has_more: bool,
    stopped: Vec<Partition>,
    unread: Option<StoreError>,
}

impl Batch {
    /// Reads every partition's share, then more of those that have more, so that no partition starves behind a busy one.
    async fn read(&mut self, source: &dyn JournalSource, marks: &[Mark], rows_max: usize) -> Result<(), Stop> {
        let rows_max = rows_max.max(marks.len());
        let share = rows_max.checked_div(marks.len()).unwrap_or(0).max(1);
        let mut moved = marks.to_vec();
        let mut unfinished = Vec::new();
        for mark in &mut moved {
            if self.bytes >= BATCH_BYTES_MAX {
                self.has_more = true;
            } else if self.read_one(source, mark, share).await? {
                unfinished.push(mark);
            }
        }
        for mark in unfinished {
            let count_max = rows_max - self.entries.min(rows_max);
            if count_max == 0 || self.bytes >= BATCH_BYTES_MAX || self.read_one(source, mark, count_max).await? {
                self.has_more = true;
            }
        }
        self.marks =
            moved.into_iter().zip(marks).filter(|(new, old)| new.entry != old.entry).map(|(new, _)| new).collect();
        match self.unread.take() {
            Some(error) if self.marks.is_empty() => Err(Stop::Store(error)),
            unread => {
                self.unread = unread;
                Ok(())
            }
        }
    }

    /// Answers whether the partition may have more than was asked for.
    async fn read_one(&mut self, source: &dyn JournalSource, mark: &mut Mark, count_max: usize) -> Result<bool, Stop> {
        let entries = match source.read(mark, count_max).await {
            Ok(entries) => entries,
            // Other partitions may be on servers that answer: they are settled, and the error is handed on.
            Err(error) => {
                self.unread.get_or_insert(error);
                return Ok(false);
            }
        };
        let is_full = entries.len() >= count_max;
        for JournalEntry { id, bytes } in entries {
            if id <= mark.entry {
                return Err(Stop::Bug("the journal gave an entry that is settled already"));
            }
            let place = Place { partition: mark.partition, life: mark.life, id };
            self.bytes += bytes.len();
            match Event::from_bytes(&bytes) {
                Ok(event) => match check::check(&event) {
                    Ok(()) => self.events.push(Incoming { place, bytes, event }),
                    Err(reason) => self.letters.push(DeadLetter { place, bytes, reason: reason.to_owned() }),
                },
                Err(UnreadableEvent::Malformed) => {
                    self.letters.push(DeadLetter { place, bytes, reason: "malformed".to_owned() });
                }
                // A newer gateway wrote it and a newer gateway will settle it (F80).
                Err(UnreadableEvent::Version(_)) => {
                    self.stopped.push(mark.partition);
                    return Ok(false);
                }
            }
            self.entries += 1;
            mark.entry = id;
        }
        Ok(is_full)
    }
}
