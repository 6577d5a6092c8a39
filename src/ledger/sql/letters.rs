//! Dead letters: what they are, and another try for one whose cause was mended.

use super::SqlLedger;
use super::session::{Database, DbError, Kind, Session, Value};
use super::settle::write_chunk;
use crate::domain::event::{EntryId, Event, Life, UnreadableEvent};
use crate::domain::id::Partition;
use crate::ledger::check;
use crate::ledger::plan::{Incoming, Place};
use crate::ledger::{DeadLetterRow, Replayed};

const SELECT: &str = "SELECT dead_letter_id, partition_id, CAST(at AS CHAR), reason, event IS NOT NULL FROM dead_letters \
                      WHERE dead_letter_id > ? ORDER BY dead_letter_id LIMIT ?";

impl<D: Database> SqlLedger<D> {
    pub(super) async fn read_dead_letters(&self, after: i64, count_max: usize) -> Result<Vec<DeadLetterRow>, DbError> {
        let mut session = self.database.reader().await?;
        let args = vec![after.into(), i64::try_from(count_max).unwrap_or(i64::MAX).into()];
        let kinds = [Kind::Int, Kind::Int, Kind::Text, Kind::Text, Kind::Int];
        let rows = session.fetch(SELECT.into(), args, &kinds).await?;
        session.release();
        let read = |mut row: super::session::Row| {
            Ok(DeadLetterRow {
                id: row.int()?,
                partition: Partition(row.number()?),
                at: row.time()?,
                reason: row.text()?,
                has_event: row.int()? != 0,
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// One try, in a transaction of its own.
    pub(super) async fn replay_once(&self, id: i64, is_duplicate_final: bool) -> Result<Replayed, DbError> {
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        let replayed = match take(session.as_mut(), dialect.is_mysql, id).await? {
            Taken::Gone => Replayed::Gone,
            Taken::WithoutEvent => Replayed::WithoutEvent,
            Taken::Unreadable(reason) => Replayed::Refused(reason.to_owned()),
            Taken::Event(incoming) => {
                session.run("SAVEPOINT letter").await?;
                match write_chunk(session.as_mut(), &dialect, &[*incoming]).await {
                    Ok(_) => {
                        let sql = "DELETE FROM dead_letters WHERE dead_letter_id = ?";
                        session.execute(sql.into(), vec![id.into()]).await?;
                        Replayed::Stored
                    }
                    Err(DbError::Refused(reason)) => {
                        session.run("ROLLBACK TO SAVEPOINT letter").await?;
                        Replayed::Refused(reason)
                    }
                    Err(DbError::Duplicate) if is_duplicate_final => {
                        session.run("ROLLBACK TO SAVEPOINT letter").await?;
                        Replayed::Refused("a unique key is taken".to_owned())
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        session.run("COMMIT").await?;
        session.release();
        Ok(replayed)
    }
}

enum Taken {
    Gone,
    WithoutEvent,
    Unreadable(&'static str),
    Event(Box<Incoming>),
}

/// The letter, held until the transaction ends, so that two operators cannot replay it at once.
async fn take(session: &mut dyn Session, is_mysql: bool, id: i64) -> Result<Taken, DbError> {
    let lock = if is_mysql { " FOR UPDATE" } else { "" };
    let sql = format!(
        "SELECT partition_id, life, entry_ms, entry_seq, event FROM dead_letters WHERE dead_letter_id = ?{lock}"
    );
    let kinds = [Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Bytes];
    let Some(mut row) = session.fetch(sql.into(), vec![Value::from(id)], &kinds).await?.into_iter().next() else {
        return Ok(Taken::Gone);
    };
    let place = Place {
        partition: Partition(row.number()?),
        life: Life(row.number()?),
        id: EntryId { ms: row.number()?, seq: row.number()? },
    };
    let Some(bytes) = row.opt_bytes()? else { return Ok(Taken::WithoutEvent) };
    let event = match Event::from_bytes(&bytes) {
        Ok(event) => event,
        Err(UnreadableEvent::Malformed) => return Ok(Taken::Unreadable("malformed")),
        Err(UnreadableEvent::Version(_)) => return Ok(Taken::Unreadable("written by a newer version")),
    };
    Ok(match check::check(&event) {
        Ok(()) => Taken::Event(Box::new(Incoming { place, bytes, event })),
        Err(reason) => Taken::Unreadable(reason),
    })
}
