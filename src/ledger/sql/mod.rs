//! The ledger over any database that speaks our SQL: [`SqlLedger`] keeps the contract, written once.
//!
//! `session` is what a database looks like from here, `settle` the settlement transaction, `known` and `write` its reads
//! and writes, `read` the questions of everybody else, `persons` whom buyers have had, `retention` what is forgotten, `schema`
//! the migrations.

use async_trait::async_trait;
use jiff::Timestamp;

use super::audit::{Audit, Period, Progress};
use super::{
    AttemptPlace, BookedLead, CountedAttempt, CountedSum, DeadLetterRow, DifferenceRow, DoubtRow, GatewayId,
    JournalSource, LeadDetail, LeadPlace, LeadRow, Ledger, LedgerError, LifeRow, MigrationStep, Peer, Raise, Replayed,
    SettleError, Settled, Stage, Totals, UsageRow,
};
use crate::domain::event::{Life, Mark};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::person::{PersonDigest, PersonMark};
use crate::domain::window::Window;
use crate::store::CounterKey;
use session::{Database, DbError, Session, Value};

mod audit;
mod known;
mod letters;
mod lives;
mod persons;
mod postbacks;
mod read;
mod retention;
pub(super) mod schema;
pub(super) mod session;
mod settle;
mod write;

/// Tries of a statement that another transaction is in the way of.
const CONFLICTS_MAX: u32 = 5;

/// The books in a database.
#[derive(Debug)]
pub struct SqlLedger<D> {
    database: D,
}

impl<D: Database> SqlLedger<D> {
    pub(super) fn new(database: D) -> Self {
        Self { database }
    }

    /// A transaction whose reads see one instant.
    async fn snapshot(&self) -> Result<Box<dyn Session>, DbError> {
        let mut session = self.database.reader().await?;
        for statement in self.database.dialect().begin_snapshot {
            session.run(statement).await?;
        }
        Ok(session)
    }

    /// Ends a transaction that only read.
    async fn end(mut session: Box<dyn Session>) -> Result<(), DbError> {
        session.run("COMMIT").await?;
        session.release();
        Ok(())
    }

    /// One statement that commits by itself.
    async fn execute(&self, sql: &'static str, args: Vec<Value>) -> Result<u64, DbError> {
        let mut session = self.database.writer().await?;
        let rows = session.execute(sql.into(), args).await?;
        session.release();
        Ok(rows)
    }

    async fn begin_usage_once(&self, rows: &[(CounterKey, u64)]) -> Result<(), DbError> {
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        write::begin_usage(session.as_mut(), &dialect, rows).await?;
        session.run("COMMIT").await?;
        session.release();
        Ok(())
    }

    async fn make_marks(&self, partitions: u16) -> Result<(), DbError> {
        let marks: Vec<_> = (0..partitions).map(Partition).map(lives::fresh_mark).collect();
        let dialect = self.database.dialect();
        let mut session = self.database.writer().await?;
        session.run(dialect.begin).await?;
        // All rows or none, and the first row decides between two gateways that start at once, even with different numbers.
        match write::insert_marks(session.as_mut(), &dialect, &marks).await {
            Ok(()) => session.run("COMMIT").await?,
            Err(DbError::Duplicate) => session.run("ROLLBACK").await?,
            Err(error) => return Err(error),
        }
        session.release();
        Ok(())
    }
}

#[async_trait]
impl<D: Database> Ledger for SqlLedger<D> {
    async fn migrate(&self) -> Result<Vec<MigrationStep>, LedgerError> {
        self.database.migrate().await
    }

    async fn check_schema(&self) -> Result<(), LedgerError> {
        schema::check(&self.database).await
    }

    async fn ping(&self) -> Result<(), LedgerError> {
        let mut session = self.database.reader().await?;
        session.fetch("SELECT 1".into(), Vec::new(), &[session::Kind::Int]).await?;
        session.release();
        Ok(())
    }

    async fn marks(&self, partitions: u16) -> Result<Vec<Mark>, LedgerError> {
        let mut marks = self.read_marks().await?;
        if marks.is_empty() {
            self.make_marks(partitions).await?;
            marks = self.read_marks().await?;
        }
        let is_whole = marks.iter().enumerate().all(|(index, mark)| usize::from(mark.partition.0) == index);
        if !is_whole || marks.len() != usize::from(partitions) {
            return Err(LedgerError::Schema(format!(
                "it was set up for {} partitions and the configuration says {partitions}: the number cannot be changed, \
                 because counters would move to other partitions",
                marks.len()
            )));
        }
        Ok(marks)
    }

    async fn lives(&self) -> Result<Vec<LifeRow>, LedgerError> {
        Ok(self.read_lives().await?)
    }

    async fn raise_lives(&self, raises: &[Raise]) -> Result<Vec<Partition>, LedgerError> {
        Ok(self.raise(raises).await?)
    }

    async fn set_stage(&self, lives: &[(Partition, Life)], stage: Stage) -> Result<(), LedgerError> {
        Ok(self.write_stages(lives, stage).await?)
    }

    async fn beat(&self, gateway: GatewayId, restated: &[Life]) -> Result<Vec<Peer>, LedgerError> {
        Ok(self.write_beat(gateway, restated).await?)
    }

    async fn leave(&self, gateway: GatewayId) -> Result<(), LedgerError> {
        self.execute("DELETE FROM gateways WHERE gateway_id = ?", vec![gateway.into()]).await?;
        Ok(())
    }

    async fn attempted(&self, keys: &[LeaseKey]) -> Result<Vec<LeaseKey>, LedgerError> {
        Ok(self.read_attempted(keys).await?)
    }

    async fn booked_leads(
        &self,
        since: Timestamp,
        after: Option<&LeadPlace>,
        count_max: usize,
    ) -> Result<Vec<BookedLead>, LedgerError> {
        Ok(self.read_booked(since, after, count_max).await?)
    }

    async fn person(
        &self,
        buyer: &BuyerId,
        person: PersonDigest,
        since: Timestamp,
    ) -> Result<Option<PersonMark>, LedgerError> {
        Ok(self.read_person(buyer, person, since).await?)
    }

    async fn persons(
        &self,
        buyer: &BuyerId,
        since: Timestamp,
        after: Option<(PersonDigest, LeadId)>,
        count_max: usize,
    ) -> Result<Vec<PersonMark>, LedgerError> {
        Ok(self.read_persons(buyer, since, after, count_max).await?)
    }

    async fn settle(&self, source: &dyn JournalSource, rows_max: usize) -> Result<Settled, SettleError> {
        self.settle_batch(source, rows_max).await
    }

    async fn usage_snapshot(
        &self,
        partition: Partition,
        keys: &[CounterKey],
    ) -> Result<(Mark, Vec<Option<u64>>), LedgerError> {
        Ok(self.read_usage(partition, keys).await?)
    }

    async fn usage_all(&self, since: Timestamp) -> Result<(Vec<Mark>, Vec<UsageRow>), LedgerError> {
        Ok(self.read_all_usage(since).await?)
    }

    async fn newest_usage(
        &self,
        buyer: &BuyerId,
        cap: &CapId,
        span: &Window,
    ) -> Result<Option<Timestamp>, LedgerError> {
        Ok(self.read_newest_usage(buyer, cap, span).await?)
    }

    async fn counted_sum(
        &self,
        buyer: &BuyerId,
        span: &Window,
        publisher: Option<&PublisherId>,
    ) -> Result<CountedSum, LedgerError> {
        Ok(self.read_counted_sum(buyer, span, publisher).await?)
    }

    async fn counted_attempts(
        &self,
        buyer: &BuyerId,
        span: &Window,
        after: Option<&AttemptPlace>,
        count_max: usize,
        wants_payload: bool,
    ) -> Result<Vec<CountedAttempt>, LedgerError> {
        self.read_counted_attempts(buyer, span, after, count_max, wants_payload).await
    }

    async fn begin_usage(&self, rows: &[(CounterKey, u64)]) -> Result<(), LedgerError> {
        let mut tries = 1;
        loop {
            match self.begin_usage_once(rows).await {
                Ok(()) => return Ok(()),
                // A settler was in the way; rows that are there by now stay.
                Err(DbError::Conflict(_)) if tries < CONFLICTS_MAX => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn record_differences(&self, differences: &[DifferenceRow]) -> Result<(), LedgerError> {
        let mut session = self.database.writer().await?;
        write::record_differences(session.as_mut(), &self.database.dialect(), differences).await?;
        session.release();
        Ok(())
    }

    async fn dead_letters_since(&self, partition: Partition, since: Timestamp) -> Result<u64, LedgerError> {
        Ok(self.count_dead_letters(partition, since).await?)
    }

    async fn dead_letters(&self, after: i64, count_max: usize) -> Result<Vec<DeadLetterRow>, LedgerError> {
        Ok(self.read_dead_letters(after, count_max).await?)
    }

    async fn replay(&self, id: i64) -> Result<Replayed, LedgerError> {
        let mut tries = 1;
        loop {
            match self.replay_once(id, tries == CONFLICTS_MAX).await {
                Ok(replayed) => return Ok(replayed),
                // A settler was in the way, or wrote the same lead meanwhile.
                Err(DbError::Conflict(_) | DbError::Duplicate) if tries < CONFLICTS_MAX => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn units_in_doubt(&self, keys: &[CounterKey]) -> Result<Vec<u64>, LedgerError> {
        Ok(self.read_units_in_doubt(keys).await?)
    }

    async fn doubts(
        &self,
        buyer: &BuyerId,
        after: Option<&AttemptPlace>,
        count_max: usize,
    ) -> Result<Vec<DoubtRow>, LedgerError> {
        Ok(self.read_doubts(buyer, after, count_max).await?)
    }

    async fn lead(&self, lead: LeadId) -> Result<Option<LeadRow>, LedgerError> {
        Ok(self.read_lead("WHERE lead_id = ?", vec![lead.into()]).await?)
    }

    async fn lead_detail(&self, lead: LeadId) -> Result<Option<LeadDetail>, LedgerError> {
        Ok(self.read_detail(lead).await?)
    }

    async fn lead_by_key(&self, publisher: &PublisherId, key_hash: &str) -> Result<Option<BookedLead>, LedgerError> {
        let hash = super::check::hash_of_hex(key_hash)
            .ok_or_else(|| LedgerError::Bug("a key's hash is not 64 hex digits".to_owned()))?;
        Ok(self.read_booked_by_key(publisher, hash).await?)
    }

    async fn audit(&self, period: Period, progress: Progress<'_>) -> Result<Audit, LedgerError> {
        Ok(self.read_audit(period, progress).await?)
    }

    async fn totals(&self) -> Result<Totals, LedgerError> {
        Ok(self.read_totals().await?)
    }

    async fn paused_buyers(&self) -> Result<Vec<BuyerId>, LedgerError> {
        Ok(self.read_paused().await?)
    }

    async fn set_paused(&self, buyer: &BuyerId, is_paused: bool) -> Result<(), LedgerError> {
        let sql = if is_paused {
            "INSERT INTO paused_buyers (buyer_id) VALUES (?)"
        } else {
            "DELETE FROM paused_buyers WHERE buyer_id = ?"
        };
        match self.execute(sql, vec![buyer.as_str().into()]).await {
            // Paused already.
            Ok(_) | Err(DbError::Duplicate) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn remove_payloads(&self, before: Timestamp, count_max: usize) -> Result<u64, LedgerError> {
        let removed = self.forget_old(before, count_max).await?;
        Ok(u64::try_from(removed).unwrap_or(u64::MAX))
    }

    async fn shut_down(&self) {
        self.database.close().await;
    }
}
