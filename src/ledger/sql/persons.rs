//! Whom buyers have had: what marks of duplicates are read back from.

use jiff::Timestamp;

use super::SqlLedger;
use super::session::{Database, DbError, Kind, Row, Value};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::person::{PersonDigest, PersonMark};

/// Outcomes are those of [`crate::domain::person::has_person`].
const SELECT: &str = "SELECT d.person, d.lead_id, CAST(a.sent_at AS CHAR) FROM attempt_details d \
     JOIN attempts a ON a.lead_id = d.lead_id AND a.buyer_id = d.buyer_id \
     WHERE d.buyer_id = ? AND a.outcome IN ('accepted', 'late_accepted', 'in_doubt') AND a.sent_at >= ?";
const KINDS: [Kind; 3] = [Kind::Bytes, Kind::Bytes, Kind::Text];

impl<D: Database> SqlLedger<D> {
    pub(super) async fn read_person(
        &self,
        buyer: &BuyerId,
        person: PersonDigest,
        since: Timestamp,
    ) -> Result<Option<PersonMark>, DbError> {
        let sql = format!("{SELECT} AND d.person = ? ORDER BY a.sent_at DESC LIMIT 1");
        let args = vec![buyer.as_str().into(), Value::time(since), person.into()];
        Ok(self.fetch_persons(sql, args).await?.pop())
    }

    pub(super) async fn read_persons(
        &self,
        buyer: &BuyerId,
        since: Timestamp,
        after: Option<(PersonDigest, LeadId)>,
        count_max: usize,
    ) -> Result<Vec<PersonMark>, DbError> {
        let mut sql = format!("{SELECT} AND d.person IS NOT NULL");
        let mut args = vec![buyer.as_str().into(), Value::time(since)];
        if let Some((person, lead)) = after {
            sql.push_str(" AND d.person >= ? AND (d.person > ? OR d.lead_id > ?)");
            args.extend([person.into(), person.into(), lead.into()]);
        }
        sql.push_str(" ORDER BY d.person, d.lead_id LIMIT ?");
        args.push(i64::try_from(count_max).unwrap_or(i64::MAX).into());
        self.fetch_persons(sql, args).await
    }

    async fn fetch_persons(&self, sql: String, args: Vec<Value>) -> Result<Vec<PersonMark>, DbError> {
        let mut session = self.database.reader().await?;
        let rows = session.fetch(sql.into(), args, &KINDS).await?;
        session.release();
        let read = |mut row: Row| {
            let digest = PersonDigest(row.bytes()?);
            Ok(PersonMark { digest, lead: Some(row.lead()?), since_ms: row.time()?.as_millisecond() })
        };
        rows.into_iter().map(read).collect()
    }

    /// Digests go when the days are over in which their buyers want nobody twice, by the ledger's clock; the rest of the row
    /// stays. Answers how many, fewer than `count_max` when none is left.
    pub(super) async fn forget_persons(&self, count_max: usize) -> Result<usize, DbError> {
        let mut session = self.database.writer().await?;
        let now = self.database.dialect().now;
        let sql = format!(
            "SELECT lead_id, buyer_id FROM attempt_details WHERE person_until < {now} ORDER BY person_until LIMIT ?"
        );
        let most = i64::try_from(count_max).unwrap_or(i64::MAX).into();
        let rows = session.fetch(sql.into(), vec![most], &[Kind::Bytes, Kind::Text]).await?;
        let found = rows.len();
        for mut row in rows {
            let sql =
                "UPDATE attempt_details SET person = NULL, person_until = NULL WHERE lead_id = ? AND buyer_id = ?";
            session.execute(sql.into(), vec![row.lead()?.into(), row.text()?.into()]).await?;
        }
        session.release();
        Ok(found)
    }
}
