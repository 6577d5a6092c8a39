//! Lives, gateways, and what a store that has lost its memory is told again.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;

use super::SqlLedger;
use super::known::fetch_in;
use super::session::{Database, DbError, Kind, Row, Set, Value};
use super::settle::read_mark;
use crate::domain::event::{ClaimKey, EntryId, Life, Mark};
use crate::domain::id::{BuyerId, Partition, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::outcome::LeadStatus;
use crate::ledger::{BookedLead, GatewayId, LeadPlace, LifeRow, Peer, Raise, Stage};

/// A row that nobody has written for so long belongs to a process that is gone.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

fn number(life: Life) -> Result<Value, DbError> {
    i64::try_from(life.0).map(Value::Int).map_err(|_| DbError::Bug("a life is out of range".to_owned()))
}

impl<D: Database> SqlLedger<D> {
    pub(super) async fn read_lives(&self) -> Result<Vec<LifeRow>, DbError> {
        let mut session = self.database.reader().await?;
        // A row of another life than the mark's says nothing about it.
        let sql = "SELECT m.partition_id, m.life, m.entry_ms, m.entry_seq, l.server, l.stage FROM settlement_marks m \
                   LEFT JOIN lives l ON l.partition_id = m.partition_id AND l.life = m.life ORDER BY m.partition_id";
        let kinds = [Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Text, Kind::Text];
        let rows = session.fetch(sql.into(), Vec::new(), &kinds).await?;
        session.release();
        let read = |mut row: Row| {
            let mark: Mark = read_mark(&mut row)?;
            let server = row.opt_text()?.unwrap_or_default();
            Ok(LifeRow { mark, server, stage: row.opt_parsed(Stage::parse)?.unwrap_or(Stage::Begun) })
        };
        rows.into_iter().map(read).collect()
    }

    pub(super) async fn raise(&self, raises: &[Raise]) -> Result<Vec<Partition>, DbError> {
        let dialect = self.database.dialect();
        let end = dialect.upsert("partition_id", &[Set::New("life"), Set::New("server"), Set::New("stage")]);
        let insert = format!("INSERT INTO lives (partition_id, life, server, stage) VALUES (?, ?, ?, ?){end}");
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        let mut done = Vec::new();
        for Raise { partition, from, to, server } in raises {
            let (id, to) = (Value::from(i64::from(partition.0)), number(*to)?);
            let sql =
                "UPDATE settlement_marks SET life = ?, entry_ms = 0, entry_seq = 0 WHERE partition_id = ? AND life = ?";
            if session.execute(sql.into(), vec![to.clone(), id.clone(), number(*from)?]).await? == 1 {
                let args = vec![id, to, server.as_str().into(), Stage::Raised.as_str().into()];
                session.execute(insert.clone().into(), args).await?;
                done.push(*partition);
            }
        }
        session.run("COMMIT").await?;
        session.release();
        Ok(done)
    }

    pub(super) async fn write_stages(&self, lives: &[(Partition, Life)], stage: Stage) -> Result<(), DbError> {
        let mut session = self.database.writer().await?;
        session.run(self.database.dialect().begin).await?;
        for (partition, life) in lives {
            let sql = "UPDATE lives SET stage = ? WHERE partition_id = ? AND life = ?";
            let args = vec![stage.as_str().into(), i64::from(partition.0).into(), number(*life)?];
            session.execute(sql.into(), args).await?;
        }
        session.run("COMMIT").await?;
        session.release();
        Ok(())
    }

    pub(super) async fn write_beat(&self, gateway: GatewayId, restated: &[Life]) -> Result<Vec<Peer>, DbError> {
        let dialect = self.database.dialect();
        let restated: Vec<String> = restated.iter().map(|life| life.0.to_string()).collect();
        let end = dialect.upsert("gateway_id", &[Set::New("beat_at"), Set::New("restated")]);
        let sql = format!("INSERT INTO gateways (gateway_id, beat_at, restated) VALUES (?, {}, ?){end}", dialect.now);
        let mut session = self.database.writer().await?;
        session.execute(sql.into(), vec![gateway.into(), restated.join(",").into()]).await?;
        let sql =
            format!("SELECT gateway_id, CAST(beat_at AS CHAR), CAST({} AS CHAR), restated FROM gateways", dialect.now);
        let rows = session.fetch(sql.into(), Vec::new(), &[Kind::Bytes, Kind::Text, Kind::Text, Kind::Text]).await?;
        let peers = rows.into_iter().map(peer).collect::<Result<Vec<_>, _>>()?;
        for forgotten in peers.iter().filter(|peer| peer.age > FORGOTTEN_AFTER) {
            session.execute("DELETE FROM gateways WHERE gateway_id = ?".into(), vec![forgotten.gateway.into()]).await?;
        }
        session.release();
        Ok(peers.into_iter().filter(|peer| peer.age <= FORGOTTEN_AFTER).collect())
    }

    pub(super) async fn read_attempted(&self, keys: &[LeaseKey]) -> Result<Vec<LeaseKey>, DbError> {
        let wanted: HashSet<&LeaseKey> = keys.iter().collect();
        let leads: HashSet<_> = keys.iter().map(|key| key.lead).collect();
        let mut session = self.database.reader().await?;
        let sql = "SELECT lead_id, buyer_id FROM attempts WHERE lead_id";
        let rows = fetch_in(session.as_mut(), sql, &[], leads, &[Kind::Bytes, Kind::Text]).await?;
        session.release();
        let mut found = Vec::new();
        for mut row in rows {
            let key = LeaseKey { lead: row.lead()?, buyer: row.parsed(|text| BuyerId::new(text).ok())? };
            if wanted.contains(&key) {
                found.push(key);
            }
        }
        Ok(found)
    }

    pub(super) async fn read_booked(
        &self,
        since: Timestamp,
        after: Option<&LeadPlace>,
        count_max: usize,
    ) -> Result<Vec<BookedLead>, DbError> {
        let mut sql = format!("{SELECT_BOOKED} WHERE has_received = 1 AND received_at >= ?");
        let mut args = vec![Value::time(after.map_or(since, |after| after.received_at.max(since)))];
        if let Some(after) = after {
            sql.push_str(" AND (received_at > ? OR lead_id > ?)");
            args.extend([Value::time(after.received_at), after.lead.into()]);
        }
        sql.push_str(" ORDER BY received_at, lead_id LIMIT ?");
        args.push(i64::try_from(count_max).unwrap_or(i64::MAX).into());
        let mut session = self.database.reader().await?;
        let rows = session.fetch(sql.into(), args, &BOOKED_KINDS).await?;
        session.release();
        rows.into_iter().map(booked).collect()
    }

    pub(super) async fn read_booked_by_key(
        &self,
        publisher: &PublisherId,
        hash: [u8; 32],
    ) -> Result<Option<BookedLead>, DbError> {
        let mut session = self.database.reader().await?;
        let sql = format!("{SELECT_BOOKED} WHERE key_hash = ? AND publisher_id = ?");
        let rows = session.fetch(sql.into(), vec![hash.into(), publisher.as_str().into()], &BOOKED_KINDS).await?;
        session.release();
        rows.into_iter().next().map(booked).transpose()
    }
}

const SELECT_BOOKED: &str =
    "SELECT CAST(received_at AS CHAR), lead_id, publisher_id, status, answer, key_hash, fingerprint FROM leads";
const BOOKED_KINDS: [Kind; 7] = [Kind::Text, Kind::Bytes, Kind::Text, Kind::Text, Kind::Text, Kind::Bytes, Kind::Bytes];

fn booked(mut row: Row) -> Result<BookedLead, DbError> {
    let place = LeadPlace { received_at: row.time()?, lead: row.lead()? };
    let publisher = row.parsed(|text| PublisherId::new(text).ok())?;
    let status = row.parsed(LeadStatus::parse)?;
    let answer = row.opt_text()?.filter(|_| status != LeadStatus::Pending);
    let (hash, fingerprint) = (row.opt_hex()?, row.opt_hex()?);
    let claim = hash.map(|hash| ClaimKey { hash, fingerprint });
    Ok(BookedLead { place, publisher, claim, answer })
}

fn peer(mut row: Row) -> Result<Peer, DbError> {
    let gateway = GatewayId::from_bytes(row.bytes()?);
    let (beat_at, now) = (row.time()?, row.time()?);
    let restated = row.parsed(|text| {
        text.split(',').filter(|life| !life.is_empty()).map(|life| life.parse().map(Life).ok()).collect()
    })?;
    // Two reads of one clock; one that was set back makes the row fresh.
    let age = Duration::try_from(now.duration_since(beat_at)).unwrap_or_default();
    Ok(Peer { gateway, age, restated })
}

/// The mark before the first entry of a life's journal.
pub(super) fn fresh_mark(partition: Partition) -> Mark {
    Mark { partition, life: Life(0), entry: EntryId::default() }
}
