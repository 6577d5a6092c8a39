//! Reads the rows that the events of a batch meet.

use std::collections::BTreeSet;

use super::session::{DbError, Kind, Session, Value};
use crate::domain::event::Event;
use crate::domain::id::{BuyerId, LeadId, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::outcome::{AttemptOutcome, LeadStatus};
use crate::ledger::check::hash_of_hex;
use crate::ledger::plan::{EntryKind, Incoming, Known, KnownAttempt, KnownLead};

/// Ids in one IN list.
const LIST_MAX: usize = 1000;

/// Reads what [`crate::ledger::plan`] must know.
pub async fn read(session: &mut dyn Session, events: &[Incoming]) -> Result<Known, DbError> {
    let (mut leads, mut attempts, mut sales) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut hashes = BTreeSet::new();
    for event in events.iter().map(|incoming| &incoming.event) {
        match event {
            Event::Received(received) => {
                leads.insert(received.lead);
                hashes.extend(received.claim.as_ref().and_then(|claim| hash_of_hex(&claim.hash)));
            }
            Event::Attempt(attempt) => {
                attempts.insert(attempt.lead);
                sales.extend(attempt.books.then_some(attempt.lead));
            }
            Event::Closed(closed) => {
                leads.insert(closed.lead);
                sales.extend(closed.books.then_some(closed.lead));
            }
            Event::Parked(parked) => {
                leads.insert(parked.lead);
            }
            Event::Returned(returned) => {
                attempts.insert(returned.lead);
                sales.insert(returned.lead);
            }
        }
    }
    let mut known = Known::default();
    read_leads(session, leads, &mut known).await?;
    read_keys(session, hashes, &mut known).await?;
    read_attempts(session, attempts, &mut known).await?;
    read_sales(session, sales, &mut known).await?;
    Ok(known)
}

/// Rows of a query with one IN list, which may be long. `sql` ends where the list begins; `before` are its arguments.
pub(super) async fn fetch_in<T: Into<Value>>(
    session: &mut dyn Session,
    sql: &str,
    before: &[Value],
    ids: impl IntoIterator<Item = T>,
    kinds: &[Kind],
) -> Result<Vec<super::session::Row>, DbError> {
    let ids: Vec<Value> = ids.into_iter().map(Into::into).collect();
    let mut rows = Vec::new();
    for ids in ids.chunks(LIST_MAX) {
        let sql = format!("{sql} IN ({})", vec!["?"; ids.len()].join(","));
        rows.extend(session.fetch(sql.into(), [before, ids].concat(), kinds).await?);
    }
    Ok(rows)
}

async fn read_leads(session: &mut dyn Session, ids: BTreeSet<LeadId>, known: &mut Known) -> Result<(), DbError> {
    let sql = "SELECT lead_id, status, has_received FROM leads WHERE lead_id";
    for mut row in fetch_in(session, sql, &[], ids, &[Kind::Bytes, Kind::Text, Kind::Int]).await? {
        let lead = row.lead()?;
        let status = row.parsed(LeadStatus::parse)?;
        known.leads.insert(lead, KnownLead { status, has_received: row.int()? != 0 });
    }
    Ok(())
}

async fn read_keys(session: &mut dyn Session, hashes: BTreeSet<[u8; 32]>, known: &mut Known) -> Result<(), DbError> {
    let sql = "SELECT publisher_id, key_hash, lead_id FROM leads WHERE key_hash";
    for mut row in fetch_in(session, sql, &[], hashes, &[Kind::Text, Kind::Bytes, Kind::Bytes]).await? {
        let publisher = row.parsed(|text| PublisherId::new(text).ok())?;
        let hash = row.bytes()?;
        known.keys.insert((publisher, hash), row.lead()?);
    }
    Ok(())
}

async fn read_attempts(session: &mut dyn Session, ids: BTreeSet<LeadId>, known: &mut Known) -> Result<(), DbError> {
    let sql = "SELECT lead_id, buyer_id, outcome, counted, windows FROM attempts WHERE lead_id";
    let kinds = [Kind::Bytes, Kind::Text, Kind::Text, Kind::Int, Kind::Text];
    for mut row in fetch_in(session, sql, &[], ids, &kinds).await? {
        let key = LeaseKey { lead: row.lead()?, buyer: row.parsed(|text| BuyerId::new(text).ok())? };
        let outcome = row.parsed(AttemptOutcome::parse)?;
        let attempt = KnownAttempt { outcome, counted: row.int()? != 0, windows: row.text()? };
        known.attempts.insert(key, attempt);
    }
    Ok(())
}

async fn read_sales(session: &mut dyn Session, ids: BTreeSet<LeadId>, known: &mut Known) -> Result<(), DbError> {
    let sql = "SELECT lead_id, buyer_id, kind FROM entries WHERE lead_id";
    for mut row in fetch_in(session, sql, &[], ids, &[Kind::Bytes, Kind::Text, Kind::Text]).await? {
        let key = LeaseKey { lead: row.lead()?, buyer: row.parsed(|text| BuyerId::new(text).ok())? };
        let lines = if row.text()? == EntryKind::Sale.as_str() { &mut known.sales } else { &mut known.returns };
        lines.insert(key);
    }
    Ok(())
}
