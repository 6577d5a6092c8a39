//! The table that publishers are told from.

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use jiff::Timestamp;

use super::SqlLedger;
use super::known::fetch_in;
use super::session::{Database, DbError, Dialect, Kind, Row, Session, Value};
use crate::domain::id::PublisherId;
use crate::domain::outcome::LeadStatus;
use crate::ledger::LedgerError;
use crate::ledger::postbacks::{
    ClaimId, ClaimOrder, ClaimedPostback, NextStep, PostbackBacklog, PostbackBooks, PostbackReplay, PostbackRow,
    PostbackState, Tried,
};

/// Publishers looked through in one statement.
const PUBLISHERS_MAX: usize = 50;

/// Due rows of one publisher whose lead has no earlier one that waits. A branch for each publisher, because then each finds its
/// oldest rows at the front of its part of the index, however many rows another one has.
const DUE: &str = "SELECT * FROM (SELECT p.publisher_id, p.postback_id FROM postbacks p WHERE p.publisher_id = ? AND p.next_at <= ? AND \
     NOT EXISTS (SELECT 1 FROM postbacks e WHERE e.lead_id = p.lead_id AND e.ordinal < p.ordinal AND e.state = 'waiting') \
     ORDER BY p.next_at LIMIT ?) AS t";

const CLAIMED_KINDS: [Kind; 7] = [Kind::Int, Kind::Bytes, Kind::Text, Kind::Text, Kind::Text, Kind::Int, Kind::Text];

const ROW_KINDS: [Kind; 10] = [
    Kind::Int,
    Kind::Bytes,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Int,
    Kind::Text,
    Kind::Text,
    Kind::Int,
    Kind::Text,
];

fn count(rows: usize) -> Value {
    i64::try_from(rows).unwrap_or(i64::MAX).into()
}

fn list(length: usize) -> String {
    vec!["?"; length].join(",")
}

fn claim_value(claim: ClaimId) -> Value {
    Value::Bytes(claim.as_bytes().to_vec())
}

fn publisher(text: &str) -> Option<PublisherId> {
    PublisherId::new(text).ok()
}

impl<D: Database> SqlLedger<D> {
    async fn due(&self, order: &ClaimOrder) -> Result<Vec<i64>, DbError> {
        let mut session = self.database.reader().await?;
        let mut due: BTreeMap<String, VecDeque<i64>> = BTreeMap::new();
        for publishers in order.wanted.chunks(PUBLISHERS_MAX) {
            let branches: Vec<String> = (0..publishers.len()).map(|index| format!("{DUE}{index}")).collect();
            let args = publishers
                .iter()
                .flat_map(|(publisher, most)| [publisher.as_str().into(), Value::time(order.now), count(*most)]);
            let sql = branches.join(" UNION ALL ");
            for mut row in session.fetch(sql.into(), args.collect(), &[Kind::Text, Kind::Int]).await? {
                due.entry(row.text()?).or_default().push_back(row.int()?);
            }
        }
        session.release();
        Ok(in_turns(due.into_values().collect(), order.count_max))
    }

    async fn claim(&self, order: &ClaimOrder) -> Result<Vec<ClaimedPostback>, DbError> {
        if order.wanted.is_empty() {
            return Ok(Vec::new());
        }
        let due = self.due(order).await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        let claimed = take(session.as_mut(), &dialect, order, &due).await?;
        session.run("COMMIT").await?;
        session.release();
        Ok(claimed)
    }

    async fn finish(&self, tried: &[Tried]) -> Result<u64, DbError> {
        let mut session = self.database.writer().await?;
        session.run(self.database.dialect().begin).await?;
        let mut done = 0;
        for tried in tried {
            done += write(session.as_mut(), tried).await?;
        }
        session.run("COMMIT").await?;
        session.release();
        Ok(done)
    }

    async fn drop_waiting(
        &self,
        known: &[PublisherId],
        before: Timestamp,
        now: Timestamp,
        count_max: usize,
    ) -> Result<u64, DbError> {
        let mut session = self.database.writer().await?;
        let mut sql = "SELECT postback_id FROM postbacks WHERE state = 'waiting' AND created_at < ?".to_owned();
        let mut args = vec![Value::time(before)];
        if !known.is_empty() {
            sql = format!("{sql} AND publisher_id NOT IN ({})", list(known.len()));
            args.extend(known.iter().map(|publisher| publisher.as_str().into()));
        }
        sql.push_str(" ORDER BY created_at LIMIT ?");
        args.push(count(count_max));
        let rows = session.fetch(sql.into(), args, &[Kind::Int]).await?;
        let ids = rows.into_iter().map(|mut row| row.int().map(Value::from)).collect::<Result<Vec<_>, _>>()?;
        let mut dropped = 0;
        if !ids.is_empty() {
            let sql = format!(
                "UPDATE postbacks SET state = 'dropped', next_at = NULL, claim = NULL, ended_at = ? \
                 WHERE state = 'waiting' AND postback_id IN ({})",
                list(ids.len())
            );
            dropped = session.execute(sql.into(), [vec![Value::time(now)], ids].concat()).await?;
        }
        session.release();
        Ok(dropped)
    }

    async fn backlog(&self) -> Result<PostbackBacklog, DbError> {
        let mut session = self.database.reader().await?;
        let sql = "SELECT COUNT(*), CAST(MIN(created_at) AS CHAR) FROM postbacks WHERE state = 'waiting'";
        let rows = session.fetch(sql.into(), Vec::new(), &[Kind::Int, Kind::Text]).await?;
        session.release();
        let Some(mut row) = rows.into_iter().next() else { return Ok(PostbackBacklog::default()) };
        Ok(PostbackBacklog { waiting: row.number()?, oldest: row.opt_time()? })
    }

    async fn list(
        &self,
        state: PostbackState,
        of: Option<&PublisherId>,
        after: i64,
        count_max: usize,
    ) -> Result<Vec<PostbackRow>, DbError> {
        let mut sql = "SELECT postback_id, lead_id, status, publisher_id, state, tries, CAST(created_at AS CHAR), \
                       CAST(next_at AS CHAR), http_status, error FROM postbacks WHERE state = ? AND postback_id > ?"
            .to_owned();
        let mut args = vec![state.as_str().into(), after.into()];
        if let Some(of) = of {
            sql.push_str(" AND publisher_id = ?");
            args.push(of.as_str().into());
        }
        sql.push_str(" ORDER BY postback_id LIMIT ?");
        args.push(count(count_max));
        let mut session = self.database.reader().await?;
        let rows = session.fetch(sql.into(), args, &ROW_KINDS).await?;
        session.release();
        rows.into_iter().map(row).collect()
    }

    async fn start_over(&self, id: i64, now: Timestamp) -> Result<PostbackReplay, DbError> {
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        let replay = make_due(session.as_mut(), dialect.is_mysql, id, now).await?;
        session.run("COMMIT").await?;
        session.release();
        Ok(replay)
    }
}

/// One of each, then the second of each, and so on.
fn in_turns(mut queues: Vec<VecDeque<i64>>, count_max: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    while ids.len() < count_max && !queues.is_empty() {
        ids.extend(queues.iter_mut().filter_map(VecDeque::pop_front));
        queues.retain(|queue| !queue.is_empty());
    }
    ids.truncate(count_max);
    ids
}

/// Of the rows found, those that nobody has claimed since or is claiming now.
async fn take(
    session: &mut dyn Session,
    dialect: &Dialect,
    order: &ClaimOrder,
    due: &[i64],
) -> Result<Vec<ClaimedPostback>, DbError> {
    let claim = ClaimId::generate();
    let sql = format!(
        "SELECT postback_id, lead_id, status, publisher_id, body, tries, CAST(first_try_at AS CHAR) FROM postbacks \
         WHERE next_at <= ? AND postback_id IN ({}) ORDER BY next_at{}",
        list(due.len()),
        dialect.skip_locked
    );
    let args = [vec![Value::time(order.now)], due.iter().copied().map(Value::from).collect()].concat();
    let rows = session.fetch(sql.into(), args, &CLAIMED_KINDS).await?;
    let claimed = rows.into_iter().map(|row| claimed(row, claim)).collect::<Result<Vec<_>, _>>()?;
    if !claimed.is_empty() {
        let sql = format!("UPDATE postbacks SET next_at = ?, claim = ? WHERE postback_id IN ({})", list(claimed.len()));
        let mut args = vec![Value::time(order.until), claim_value(claim)];
        args.extend(claimed.iter().map(|postback| postback.id.into()));
        session.execute(sql.into(), args).await?;
    }
    Ok(claimed)
}

fn claimed(mut row: Row, claim: ClaimId) -> Result<ClaimedPostback, DbError> {
    Ok(ClaimedPostback {
        id: row.int()?,
        claim,
        lead: row.lead()?,
        status: row.parsed(LeadStatus::parse)?,
        publisher: row.parsed(publisher)?,
        body: row.text()?,
        tries: row.number()?,
        first_try_at: row.opt_time()?,
    })
}

fn row(mut row: Row) -> Result<PostbackRow, DbError> {
    Ok(PostbackRow {
        id: row.int()?,
        lead: row.lead()?,
        status: row.parsed(LeadStatus::parse)?,
        publisher: row.parsed(publisher)?,
        state: row.parsed(PostbackState::parse)?,
        tries: row.number()?,
        created_at: row.time()?,
        next_at: row.opt_time()?,
        http_status: row.opt_int()?.and_then(|status| u16::try_from(status).ok()),
        error: row.opt_text()?,
    })
}

/// Changes the row only while the claim is the one it was tried under.
async fn write(session: &mut dyn Session, tried: &Tried) -> Result<u64, DbError> {
    let whose = [Value::from(tried.id), claim_value(tried.claim)];
    let (state, next_at, ended_at) = match tried.next {
        NextStep::Release => {
            let sql = "UPDATE postbacks SET next_at = ?, claim = NULL WHERE postback_id = ? AND claim = ?";
            return session.execute(sql.into(), [vec![Value::time(tried.at)], whose.to_vec()].concat()).await;
        }
        NextStep::TryAt(at) => (PostbackState::Waiting, Value::time(at), Value::Null),
        NextStep::End(state) => (state, Value::Null, Value::time(tried.at)),
    };
    let sql = "UPDATE postbacks SET state = ?, tries = tries + 1, first_try_at = COALESCE(first_try_at, ?), next_at = ?, \
               claim = NULL, ended_at = ?, http_status = ?, error = ? WHERE postback_id = ? AND claim = ?";
    let mut args = vec![
        state.as_str().into(),
        Value::time(tried.at),
        next_at,
        ended_at,
        Value::optional(tried.http_status.map(i64::from)),
        Value::optional(tried.error),
    ];
    args.extend(whose);
    session.execute(sql.into(), args).await
}

async fn make_due(
    session: &mut dyn Session,
    is_mysql: bool,
    id: i64,
    now: Timestamp,
) -> Result<PostbackReplay, DbError> {
    let lock = if is_mysql { " FOR UPDATE" } else { "" };
    let sql = format!("SELECT lead_id, ordinal, state FROM postbacks WHERE postback_id = ?{lock}");
    let rows = session.fetch(sql.into(), vec![id.into()], &[Kind::Bytes, Kind::Int, Kind::Text]).await?;
    let Some(mut row) = rows.into_iter().next() else { return Ok(PostbackReplay::Unknown) };
    let (lead, ordinal) = (row.lead()?, row.int()?);
    if row.parsed(PostbackState::parse)? == PostbackState::Waiting {
        return Ok(PostbackReplay::WaitsAlready);
    }
    let later = fetch_in(session, "SELECT ordinal FROM postbacks WHERE lead_id", &[], [lead], &[Kind::Int]).await?;
    for mut row in later {
        if row.int()? > ordinal {
            return Ok(PostbackReplay::Superseded);
        }
    }
    let sql = "UPDATE postbacks SET state = 'waiting', tries = 0, first_try_at = NULL, next_at = ?, ended_at = NULL \
               WHERE postback_id = ?";
    session.execute(sql.into(), vec![Value::time(now), id.into()]).await?;
    Ok(PostbackReplay::Waiting)
}

#[async_trait]
impl<D: Database> PostbackBooks for SqlLedger<D> {
    async fn claim_postbacks(&self, order: &ClaimOrder) -> Result<Vec<ClaimedPostback>, LedgerError> {
        Ok(self.claim(order).await?)
    }

    async fn finish_postbacks(&self, tried: &[Tried]) -> Result<u64, LedgerError> {
        Ok(self.finish(tried).await?)
    }

    async fn drop_postbacks(
        &self,
        known: &[PublisherId],
        before: Timestamp,
        now: Timestamp,
        count_max: usize,
    ) -> Result<u64, LedgerError> {
        Ok(self.drop_waiting(known, before, now, count_max).await?)
    }

    async fn postback_backlog(&self) -> Result<PostbackBacklog, LedgerError> {
        Ok(self.backlog().await?)
    }

    async fn postbacks(
        &self,
        state: PostbackState,
        publisher: Option<&PublisherId>,
        after: i64,
        count_max: usize,
    ) -> Result<Vec<PostbackRow>, LedgerError> {
        Ok(self.list(state, publisher, after, count_max).await?)
    }

    async fn replay_postback(&self, id: i64, now: Timestamp) -> Result<PostbackReplay, LedgerError> {
        Ok(self.start_over(id, now).await?)
    }
}
