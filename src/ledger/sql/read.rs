//! What others ask of the books.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::SqlLedger;
use super::known::fetch_in;
use super::session::{Database, DbError, Kind, Row, Value};
use super::settle::{MARK_KINDS, SELECT_MARKS, read_mark};
use crate::domain::event::Mark;
use crate::domain::id::{BuyerId, CampaignId, CapId, LeadId, Partition, PublisherId};
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::{AttemptOutcome, LeadStatus};
use crate::domain::person::{DAY_MS, Person, PersonDigest};
use crate::domain::window::Window;
use crate::ledger::windows::{StoredPlace, stored_windows};
use crate::ledger::{
    AttemptPlace, AttemptRow, CountedAttempt, CountedSum, DoubtRow, EntryRow, LeadDetail, LeadRow, LedgerError,
    ReturnRow, Totals, UsageRow, charged,
};
use crate::store::CounterKey;

/// The last instant that a DATETIME holds.
const LAST_TIME: &str = "9999-12-31 23:59:59.999999";

/// DATETIME columns come as text, which SQLite has anyway.
const SELECT_LEAD: &str = "SELECT lead_id, publisher_id, campaign_id, status, reason, buyer_id, price_micros, \
     payout_micros, currency, test, CAST(received_at AS CHAR), CAST(closed_at AS CHAR), payload, explanation, answer \
     FROM leads";
const LEAD_KINDS: [Kind; 15] = [
    Kind::Bytes,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Int,
    Kind::Int,
    Kind::Text,
    Kind::Int,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
    Kind::Text,
];
const SELECT_ATTEMPTS: &str = "SELECT a.lead_id, a.buyer_id, a.ordinal, a.outcome, a.counted, a.http_status, a.reason, \
     CAST(a.sent_at AS CHAR), a.duration_us, a.windows, a.price_micros, a.payout_micros, a.currency, d.person, \
     CAST(d.person_until AS CHAR), d.reference FROM attempts a \
     LEFT JOIN attempt_details d ON d.lead_id = a.lead_id AND d.buyer_id = a.buyer_id \
     WHERE a.lead_id = ? ORDER BY a.ordinal, a.attempt_id";
const ATTEMPT_KINDS: [Kind; 16] = [
    Kind::Bytes,
    Kind::Text,
    Kind::Int,
    Kind::Text,
    Kind::Int,
    Kind::Int,
    Kind::Text,
    Kind::Text,
    Kind::Int,
    Kind::Text,
    Kind::Int,
    Kind::Int,
    Kind::Text,
    Kind::Bytes,
    Kind::Text,
    Kind::Text,
];
const SELECT_ENTRIES: &str = "SELECT buyer_id, account, amount_micros, currency, kind, CAST(booked_at AS CHAR) FROM entries \
     WHERE lead_id = ? ORDER BY entry_id";
const ENTRY_KINDS: [Kind; 6] = [Kind::Text, Kind::Text, Kind::Int, Kind::Text, Kind::Text, Kind::Text];
const SELECT_RETURNS: &str = "SELECT buyer_id, reason, frees_cap, CAST(returned_at AS CHAR) FROM returns \
     WHERE lead_id = ? ORDER BY returned_at, buyer_id";
const RETURN_KINDS: [Kind; 4] = [Kind::Text, Kind::Text, Kind::Int, Kind::Text];

/// Counted attempts of a buyer within a span.
const COUNTED: &str = "WHERE a.buyer_id = ? AND a.counted = 1 AND a.sent_at >= ? AND a.sent_at < ?";
const COUNTED_KINDS: [Kind; 7] = [Kind::Bytes, Kind::Text, Kind::Text, Kind::Text, Kind::Text, Kind::Int, Kind::Text];

fn counted_args(buyer: &BuyerId, span: &Window) -> Vec<Value> {
    let end = span.end.map_or_else(|| LAST_TIME.into(), Value::time);
    vec![buyer.as_str().into(), Value::time(span.start), end]
}

pub(super) fn buyer(text: &str) -> Option<BuyerId> {
    BuyerId::new(text).ok()
}

fn lead_row(mut row: Row) -> Result<LeadRow, DbError> {
    Ok(LeadRow {
        lead: row.lead()?,
        publisher: row.parsed(|text| PublisherId::new(text).ok())?,
        campaign: row.parsed(|text| CampaignId::new(text).ok())?,
        status: row.parsed(LeadStatus::parse)?,
        reason: row.opt_text()?,
        buyer: row.opt_parsed(buyer)?,
        price: row.opt_int()?.map(Micros),
        payout: row.opt_int()?.map(Micros),
        currency: row.opt_parsed(Currency::new)?,
        is_test: row.int()? != 0,
        received_at: row.time()?,
        closed_at: row.opt_time()?,
        payload: row.opt_text()?,
        explanation: row.opt_text()?,
        answer: row.opt_text()?,
    })
}

fn attempt_row(mut row: Row) -> Result<AttemptRow, DbError> {
    let mut attempt = AttemptRow {
        lead: row.lead()?,
        buyer: row.parsed(buyer)?,
        ordinal: row.number()?,
        outcome: row.parsed(AttemptOutcome::parse)?,
        counted: row.int()? != 0,
        http_status: row.opt_int()?.and_then(|status| u16::try_from(status).ok()),
        reason: row.opt_text()?,
        sent_at: row.time()?,
        duration_us: row.number()?,
        windows: row.text()?,
        price: Micros(row.int()?),
        payout: Micros(row.int()?),
        currency: row.parsed(Currency::new)?,
        person: None,
        reference: None,
    };
    attempt.person = person(row.opt_bytes()?, attempt.sent_at, row.opt_time()?);
    attempt.reference = row.opt_text()?;
    Ok(attempt)
}

/// Its days are the span that it was written down for.
fn person(digest: Option<Vec<u8>>, sent_at: Timestamp, until: Option<Timestamp>) -> Option<Person> {
    let digest = PersonDigest(digest?.try_into().ok()?);
    let kept_ms = until?.as_millisecond() - sent_at.as_millisecond();
    Some(Person { digest, days: u32::try_from((kept_ms + DAY_MS / 2) / DAY_MS).ok()? })
}

fn entry_row(mut row: Row) -> Result<EntryRow, DbError> {
    Ok(EntryRow {
        buyer: row.parsed(buyer)?,
        account: row.text()?,
        amount: Micros(row.int()?),
        currency: row.parsed(Currency::new)?,
        kind: row.text()?,
        booked_at: row.time()?,
    })
}

fn return_row(mut row: Row) -> Result<ReturnRow, DbError> {
    Ok(ReturnRow {
        buyer: row.parsed(buyer)?,
        reason: row.text()?,
        frees_cap: row.int()? != 0,
        returned_at: row.time()?,
    })
}

impl<D: Database> SqlLedger<D> {
    pub(super) async fn read_marks(&self) -> Result<Vec<Mark>, DbError> {
        let mut session = self.database.reader().await?;
        let sql = format!("{SELECT_MARKS} ORDER BY partition_id");
        let rows = session.fetch(sql.into(), Vec::new(), &MARK_KINDS).await?;
        session.release();
        rows.into_iter().map(|mut row| read_mark(&mut row)).collect()
    }

    pub(super) async fn read_usage(
        &self,
        partition: Partition,
        keys: &[CounterKey],
    ) -> Result<(Mark, Vec<Option<u64>>), DbError> {
        let mut session = self.snapshot().await?;
        let sql = format!("{SELECT_MARKS} WHERE partition_id = ?");
        let rows = session.fetch(sql.into(), vec![i64::from(partition.0).into()], &MARK_KINDS).await?;
        let mut row = rows.into_iter().next().ok_or_else(|| {
            DbError::Schema(format!("it has no mark for partition {}: it was set up for fewer", partition.0))
        })?;
        let mark = read_mark(&mut row)?;
        // All windows of these buyers from the oldest one asked for, and those of all time: few rows, found by the key's first
        // column.
        let buyers: BTreeSet<&str> = keys.iter().map(|key| key.buyer.as_str()).collect();
        let mut used = HashMap::new();
        let starts = keys.iter().map(|key| key.window.start);
        let oldest =
            starts.filter(|start| *start != Timestamp::UNIX_EPOCH).min().map_or_else(|| LAST_TIME.into(), Value::time);
        let sql = format!("{SELECT_USAGE} WHERE (window_start >= ? OR window_start = ?) AND buyer_id");
        let before = [oldest, Value::time(Timestamp::UNIX_EPOCH)];
        for row in fetch_in(session.as_mut(), &sql, &before, buyers, &USAGE_KINDS).await? {
            let row = usage_row(row)?;
            used.insert((row.buyer, row.cap, row.window_start), row.used);
        }
        Self::end(session).await?;
        let find = |key: &CounterKey| used.get(&(key.buyer.clone(), key.cap.clone(), key.window.start)).copied();
        Ok((mark, keys.iter().map(find).collect()))
    }

    pub(super) async fn read_all_usage(&self, since: Timestamp) -> Result<(Vec<Mark>, Vec<UsageRow>), DbError> {
        let mut session = self.snapshot().await?;
        let sql = format!("{SELECT_MARKS} ORDER BY partition_id");
        let marks = session.fetch(sql.into(), Vec::new(), &MARK_KINDS).await?;
        let sql = format!("{SELECT_USAGE} WHERE window_start >= ? OR window_start = ?");
        let args = vec![Value::time(since), Value::time(Timestamp::UNIX_EPOCH)];
        let rows = session.fetch(sql.into(), args, &USAGE_KINDS).await?;
        Self::end(session).await?;
        let marks = marks.into_iter().map(|mut row| read_mark(&mut row)).collect::<Result<_, _>>()?;
        Ok((marks, rows.into_iter().map(usage_row).collect::<Result<_, _>>()?))
    }

    pub(super) async fn read_newest_usage(
        &self,
        buyer: &BuyerId,
        cap: &CapId,
        span: &Window,
    ) -> Result<Option<Timestamp>, DbError> {
        let mut session = self.database.reader().await?;
        let sql = "SELECT CAST(window_start AS CHAR) FROM cap_usage WHERE buyer_id = ? AND cap_id = ? AND \
                   window_start >= ? AND window_start < ? AND used > 0 ORDER BY window_start DESC LIMIT 1";
        let end = span.end.map_or_else(|| LAST_TIME.into(), Value::time);
        let args = vec![buyer.as_str().into(), cap.as_str().into(), Value::time(span.start), end];
        let rows = session.fetch(sql.into(), args, &[Kind::Text]).await?;
        session.release();
        rows.into_iter().next().map(|mut row| row.time()).transpose()
    }

    pub(super) async fn read_counted_sum(
        &self,
        buyer: &BuyerId,
        span: &Window,
        publisher: Option<&PublisherId>,
    ) -> Result<CountedSum, DbError> {
        let mut session = self.database.reader().await?;
        let mut sql =
            format!("SELECT COUNT(*), CAST(COALESCE(SUM(a.price_micros), 0) AS CHAR) FROM attempts a {COUNTED}");
        let mut args = counted_args(buyer, span);
        if let Some(publisher) = publisher {
            sql.push_str(" AND a.publisher_id = ?");
            args.push(publisher.as_str().into());
        }
        let rows = session.fetch(sql.into(), args, &[Kind::Int, Kind::Text]).await?;
        session.release();
        let Some(mut row) = rows.into_iter().next() else { return Ok(CountedSum::default()) };
        Ok(CountedSum { leads: row.number()?, price: row.parsed(|text| text.parse().ok())? })
    }

    pub(super) async fn read_counted_attempts(
        &self,
        buyer: &BuyerId,
        span: &Window,
        after: Option<&AttemptPlace>,
        count_max: usize,
        wants_payload: bool,
    ) -> Result<Vec<CountedAttempt>, LedgerError> {
        let mut session = self.database.reader().await?;
        let (payload, join) =
            if wants_payload { ("l.payload", "LEFT JOIN leads l ON l.lead_id = a.lead_id") } else { ("NULL", "") };
        let mut sql = format!(
            "SELECT a.lead_id, CAST(a.sent_at AS CHAR), a.outcome, a.windows, a.publisher_id, a.price_micros, {payload} \
             FROM attempts a {join} {COUNTED}"
        );
        let mut args = counted_args(buyer, span);
        if let Some(after) = after {
            sql.push_str(" AND a.sent_at >= ? AND (a.sent_at > ? OR a.lead_id > ?)");
            args.extend([Value::time(after.sent_at), Value::time(after.sent_at), after.lead.into()]);
        }
        sql.push_str(" ORDER BY a.sent_at, a.lead_id LIMIT ?");
        args.push(i64::try_from(count_max).unwrap_or(i64::MAX).into());
        let rows = session.fetch(sql.into(), args, &COUNTED_KINDS).await?;
        session.release();
        let read = |mut row: Row| {
            let (lead, sent_at) = (row.lead()?, row.time()?);
            Ok(CountedAttempt {
                place: AttemptPlace { sent_at, lead },
                outcome: row.parsed(AttemptOutcome::parse)?,
                windows: charged(&row.text()?)?,
                publisher: row.parsed(|text| PublisherId::new(text).ok())?,
                price: Micros(row.int()?),
                payload: row.opt_text()?,
            })
        };
        rows.into_iter().map(read).collect()
    }

    pub(super) async fn count_dead_letters(&self, partition: Partition, since: Timestamp) -> Result<u64, DbError> {
        let mut session = self.database.reader().await?;
        let sql = "SELECT COUNT(*) FROM dead_letters WHERE partition_id = ? AND at >= ?";
        let args = vec![i64::from(partition.0).into(), Value::time(since)];
        let rows = session.fetch(sql.into(), args, &[Kind::Int]).await?;
        session.release();
        rows.into_iter().next().map_or(Ok(0), |mut row| row.number())
    }

    pub(super) async fn read_units_in_doubt(&self, keys: &[CounterKey]) -> Result<Vec<u64>, DbError> {
        let buyers: BTreeSet<&str> = keys.iter().map(|key| key.buyer.as_str()).collect();
        let mut session = self.database.reader().await?;
        let sql = "SELECT buyer_id, windows FROM attempts WHERE outcome = 'in_doubt' AND counted = 1 AND buyer_id";
        let mut units: HashMap<(String, StoredPlace), u64> = HashMap::new();
        for mut row in fetch_in(session.as_mut(), sql, &[], buyers, &[Kind::Text, Kind::Text]).await? {
            let buyer = row.text()?;
            for (place, amount) in stored_windows(&row.text()?).map_err(|text| DbError::Bug(text.to_owned()))? {
                *units.entry((buyer.clone(), place)).or_default() += amount;
            }
        }
        session.release();
        let of = |key: &CounterKey| {
            let place = (key.cap.as_str().to_owned(), key.window.start);
            units.get(&(key.buyer.as_str().to_owned(), place)).copied().unwrap_or(0)
        };
        Ok(keys.iter().map(of).collect())
    }

    pub(super) async fn read_doubts(
        &self,
        buyer: &BuyerId,
        after: Option<&AttemptPlace>,
        count_max: usize,
    ) -> Result<Vec<DoubtRow>, DbError> {
        let mut session = self.database.reader().await?;
        let mut sql = "SELECT lead_id, CAST(sent_at AS CHAR), counted, reason FROM attempts \
                       WHERE buyer_id = ? AND outcome = 'in_doubt' \
                       AND (reason IS NULL OR reason NOT LIKE 'pending until %')"
            .to_owned();
        let mut args: Vec<Value> = vec![buyer.as_str().into()];
        if let Some(after) = after {
            sql.push_str(" AND sent_at >= ? AND (sent_at > ? OR lead_id > ?)");
            args.extend([Value::time(after.sent_at), Value::time(after.sent_at), after.lead.into()]);
        }
        sql.push_str(" ORDER BY sent_at, lead_id LIMIT ?");
        args.push(i64::try_from(count_max).unwrap_or(i64::MAX).into());
        let rows = session.fetch(sql.into(), args, &[Kind::Bytes, Kind::Text, Kind::Int, Kind::Text]).await?;
        session.release();
        let read = |mut row: Row| {
            let (lead, sent_at) = (row.lead()?, row.time()?);
            let place = AttemptPlace { sent_at, lead };
            Ok(DoubtRow { place, counted: row.int()? != 0, reason: row.opt_text()? })
        };
        rows.into_iter().map(read).collect()
    }

    pub(super) async fn read_lead(&self, filter: &'static str, args: Vec<Value>) -> Result<Option<LeadRow>, DbError> {
        let mut session = self.database.reader().await?;
        let rows = session.fetch(format!("{SELECT_LEAD} {filter}").into(), args, &LEAD_KINDS).await?;
        session.release();
        rows.into_iter().next().map(lead_row).transpose()
    }

    pub(super) async fn read_detail(&self, lead: LeadId) -> Result<Option<LeadDetail>, DbError> {
        let mut session = self.snapshot().await?;
        let args = || vec![Value::from(lead)];
        let sql = format!("{SELECT_LEAD} WHERE lead_id = ?");
        let leads = session.fetch(sql.into(), args(), &LEAD_KINDS).await?;
        let attempts = session.fetch(SELECT_ATTEMPTS.into(), args(), &ATTEMPT_KINDS).await?;
        let entries = session.fetch(SELECT_ENTRIES.into(), args(), &ENTRY_KINDS).await?;
        let returns = session.fetch(SELECT_RETURNS.into(), args(), &RETURN_KINDS).await?;
        Self::end(session).await?;
        let Some(lead) = leads.into_iter().next() else { return Ok(None) };
        Ok(Some(LeadDetail {
            lead: lead_row(lead)?,
            attempts: attempts.into_iter().map(attempt_row).collect::<Result<_, _>>()?,
            entries: entries.into_iter().map(entry_row).collect::<Result<_, _>>()?,
            returns: returns.into_iter().map(return_row).collect::<Result<_, _>>()?,
        }))
    }

    pub(super) async fn read_totals(&self) -> Result<Totals, DbError> {
        let mut session = self.snapshot().await?;
        let mut totals = Totals::default();
        let sql = "SELECT status, COUNT(*) FROM leads GROUP BY status ORDER BY status";
        for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Text, Kind::Int]).await? {
            totals.leads.push((row.text()?, row.number()?));
        }
        let sql =
            "SELECT buyer_id, outcome, COUNT(*) FROM attempts GROUP BY buyer_id, outcome ORDER BY buyer_id, outcome";
        for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Text, Kind::Text, Kind::Int]).await? {
            totals.attempts.push((row.text()?, row.text()?, row.number()?));
        }
        let sql = "SELECT account, currency, balance_micros FROM balances ORDER BY account, currency";
        for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Text, Kind::Text, Kind::Int]).await? {
            totals.balances.push((row.text()?, row.text()?, row.int()?));
        }
        let sql = "SELECT COUNT(DISTINCT lead_id) FROM (SELECT lead_id FROM entries GROUP BY lead_id, currency \
                   HAVING SUM(amount_micros) <> 0) AS unbalanced";
        for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Int]).await? {
            totals.unbalanced_leads = row.number()?;
        }
        // Both sides in one sum, so that an account that one of them lacks is found too.
        let sql = "SELECT COUNT(*) FROM (SELECT account, currency FROM (\
                   SELECT account, currency, amount_micros AS micros FROM entries UNION ALL \
                   SELECT account, currency, -balance_micros AS micros FROM balances) AS sides \
                   GROUP BY account, currency HAVING SUM(micros) <> 0) AS unbalanced";
        for mut row in session.fetch(sql.into(), Vec::new(), &[Kind::Int]).await? {
            totals.unbalanced_accounts = row.number()?;
        }
        Self::end(session).await?;
        Ok(totals)
    }

    pub(super) async fn read_paused(&self) -> Result<Vec<BuyerId>, DbError> {
        let mut session = self.database.reader().await?;
        let sql = "SELECT buyer_id FROM paused_buyers ORDER BY buyer_id";
        let rows = session.fetch(sql.into(), Vec::new(), &[Kind::Text]).await?;
        session.release();
        rows.into_iter().map(|mut row| row.parsed(buyer)).collect()
    }
}

const SELECT_USAGE: &str = "SELECT buyer_id, cap_id, CAST(window_start AS CHAR), used FROM cap_usage";
const USAGE_KINDS: [Kind; 4] = [Kind::Text, Kind::Text, Kind::Text, Kind::Int];

fn usage_row(mut row: Row) -> Result<UsageRow, DbError> {
    Ok(UsageRow {
        buyer: row.parsed(buyer)?,
        cap: CapId::new(&row.text()?),
        window_start: row.time()?,
        // Usage below zero would be a broken promise (P2); better no answer than a wrong one.
        used: row.number()?,
    })
}
