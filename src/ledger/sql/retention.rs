//! Personal data leaves the books when its time is over; rows and money stay.
//!
//! In small steps of one statement each, found first and then changed by key, so that nobody waits long for a lock. Several
//! gateways may do it at once: they find the same rows, and the second change of a row changes nothing.

use jiff::Timestamp;

use super::SqlLedger;
use super::session::{Database, DbError, Kind, Value};

/// Rows changed in one statement.
const STEP_ROWS_MAX: usize = 500;

/// What is looked for, and what is done to it.
struct Kept {
    find: &'static str,
    kind: Kind,
    forget: &'static str,
}

const PAYLOADS: Kept = Kept {
    find: "SELECT lead_id FROM leads WHERE has_payload = 1 AND received_at < ? ORDER BY received_at LIMIT ?",
    kind: Kind::Bytes,
    forget: "UPDATE leads SET payload = NULL, has_payload = 0 WHERE lead_id IN",
};

/// They hold whole events, payloads among them.
const LETTERS: Kept = Kept {
    find: "SELECT dead_letter_id FROM dead_letters WHERE at < ? AND event IS NOT NULL ORDER BY at LIMIT ?",
    kind: Kind::Int,
    forget: "UPDATE dead_letters SET event = NULL WHERE dead_letter_id IN",
};

/// They hold what was told of a lead, its redirect among it.
const POSTBACKS: Kept = Kept {
    find: "SELECT postback_id FROM postbacks WHERE state IN ('delivered', 'gone', 'dead', 'dropped') AND created_at < ? LIMIT ?",
    kind: Kind::Int,
    forget: "DELETE FROM postbacks WHERE state IN ('delivered', 'gone', 'dead', 'dropped') AND postback_id IN",
};

impl<D: Database> SqlLedger<D> {
    /// See [`crate::ledger::Ledger::remove_payloads`].
    pub(super) async fn forget_old(&self, before: Timestamp, count_max: usize) -> Result<usize, DbError> {
        let mut removed = 0;
        for kept in [&PAYLOADS, &LETTERS, &POSTBACKS] {
            removed += self.forget_some(kept, before, count_max - removed).await?;
        }
        Ok(removed + self.forget_persons(count_max - removed).await?)
    }

    /// Answers how many were found, which is fewer than `count_max` when none is left.
    async fn forget_some(&self, kept: &Kept, before: Timestamp, count_max: usize) -> Result<usize, DbError> {
        let mut removed = 0;
        while removed < count_max {
            let most = (count_max - removed).min(STEP_ROWS_MAX);
            let mut session = self.database.writer().await?;
            let args = vec![Value::time(before), i64::try_from(most).unwrap_or(i64::MAX).into()];
            let rows = session.fetch(kept.find.into(), args, &[kept.kind]).await?;
            let read = |mut row: super::session::Row| match kept.kind {
                Kind::Int => row.int().map(Value::from),
                Kind::Bytes | Kind::Text => row.lead().map(Value::from),
            };
            let keys = rows.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let found = keys.len();
            if found > 0 {
                let sql = format!("{} ({})", kept.forget, vec!["?"; found].join(","));
                session.execute(sql.into(), keys).await?;
            }
            session.release();
            removed += found;
            if found < most {
                break;
            }
        }
        Ok(removed)
    }
}
