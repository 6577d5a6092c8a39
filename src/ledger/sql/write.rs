//! Carries out a plan: a few statements with many rows each.

use std::borrow::Cow;

use super::session::{DbError, Dialect, Session, Set, Value};
use crate::domain::event::{Closed, Mark, Returned};
use crate::domain::id::{BuyerId, CampaignId, PublisherId};
use crate::domain::money::Currency;
use crate::domain::outcome::LeadStatus;
use crate::domain::person::Person;
use crate::ledger::plan::{Arrival, AttemptWrite, EntryWrite, NewLead, Place, Plan, PostbackWrite};
use crate::ledger::{DifferenceRow, PostbackState};
use crate::store::CounterKey;

/// Most characters of a buyer's words that are kept. Cut, not refused: they must not cost a sale its row.
const REASON_CHARS_MAX: usize = 200;

/// Longest name of a lead at a buyer, in characters.
const REFERENCE_CHARS_MAX: usize = 128;

/// Rows written, by table.
#[derive(Debug, Default, Clone, Copy)]
pub struct Written {
    pub leads: u64,
    pub attempts: u64,
    pub entries: u64,
    pub returns: u64,
    pub balances: u64,
    pub usage: u64,
    pub postbacks: u64,
}

impl Written {
    /// As `Settled` lists them.
    pub fn by_table(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("leads", self.leads),
            ("attempts", self.attempts),
            ("entries", self.entries),
            ("returns", self.returns),
            ("balances", self.balances),
            ("cap_usage", self.usage),
            ("postbacks", self.postbacks),
        ]
    }

    /// Adds another batch.
    pub fn add(&mut self, other: &Self) {
        self.leads += other.leads;
        self.attempts += other.attempts;
        self.entries += other.entries;
        self.returns += other.returns;
        self.balances += other.balances;
        self.usage += other.usage;
        self.postbacks += other.postbacks;
    }
}

/// Writes everything that the plan holds; balances last, because every settler wants the margin's row and holds it until
/// it commits.
pub async fn carry_out(session: &mut dyn Session, dialect: &Dialect, plan: &Plan<'_>) -> Result<Written, DbError> {
    let count = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
    let written = Written {
        leads: count(plan.new_leads.len() + plan.arrivals.len() + plan.verdicts.len()),
        attempts: count(plan.attempts.len()),
        entries: count(plan.entries.len()),
        returns: count(plan.returns.len()),
        balances: count(plan.balances.len()),
        usage: count(plan.usage.len()),
        postbacks: count(plan.postbacks.len()),
    };
    insert(session, dialect, NEW_LEADS, "", plan.new_leads.iter().map(new_lead)).await?;
    for arrival in &plan.arrivals {
        session.execute(Cow::Borrowed(ARRIVAL), arrival_args(arrival)).await?;
    }
    let sets = ["status", "reason", "buyer_id", "price_micros", "payout_micros", "currency", "closed_at"];
    let sets: Vec<_> = sets.into_iter().chain(["explanation", "answer"]).map(Set::New).collect();
    let end = dialect.upsert("lead_id", &sets);
    insert(session, dialect, VERDICTS, &end, plan.verdicts.iter().map(|closed| verdict(closed))).await?;
    for parked in &plan.stories {
        session.execute(Cow::Borrowed(STORY), vec![parked.explanation.as_str().into(), parked.lead.into()]).await?;
    }
    // The lead's row has just moved forward, so there is none; one that was left by hand stays and is not sent again.
    let end = dialect.upsert("lead_id, ordinal", &[Set::New("status")]);
    insert(session, dialect, POSTBACKS, &end, plan.postbacks.iter().map(postback)).await?;
    write_attempts(session, dialect, &plan.attempts).await?;
    let sets = ["person", "person_until", "reference"].map(Set::New);
    let end = dialect.upsert("lead_id, buyer_id", &sets);
    insert(session, dialect, DETAILS, &end, plan.attempts.iter().filter_map(details)).await?;
    for key in &plan.uncounted {
        let args = vec![key.lead.into(), key.buyer.as_str().into()];
        session.execute(Cow::Borrowed(UNCOUNT), args).await?;
    }
    insert(session, dialect, ENTRIES, "", plan.entries.iter().map(entry)).await?;
    insert(session, dialect, RETURNS, "", plan.returns.iter().map(|returned| returned_row(returned))).await?;
    let end = dialect.upsert("buyer_id, cap_id, window_start", &[Set::Add("used")]);
    let usage = plan.usage.iter().map(|(key, change)| {
        vec![key.buyer.as_str().into(), key.cap.as_str().into(), Value::time(key.start), (*change).into()]
    });
    insert(session, dialect, USAGE, &end, usage).await?;
    let end = dialect.upsert("account, currency", &[Set::Add("balance_micros")]);
    let balance = |((account, currency), change): (&(String, Currency), &i64)| {
        vec![account.as_str().into(), currency.as_str().into(), (*change).into()]
    };
    insert(session, dialect, BALANCES, &end, plan.balances.iter().map(balance)).await?;
    Ok(written)
}

/// The head of an INSERT and how many values a row has.
#[derive(Clone, Copy)]
struct Head {
    sql: &'static str,
    columns: usize,
}

const NEW_LEADS: Head = Head {
    sql: "INSERT INTO leads (lead_id, publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, \
          currency, test, received_at, closed_at, has_received, has_payload, payload, explanation, answer, key_hash, \
          fingerprint) VALUES ",
    columns: 19,
};
/// Only the primary key can be taken: `key_hash` stays NULL in the row that is offered, and NULL meets nothing.
const VERDICTS: Head = Head {
    sql: "INSERT INTO leads (lead_id, publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, \
          currency, test, received_at, closed_at, has_received, has_payload, explanation, answer) VALUES ",
    columns: 16,
};
const ARRIVAL: &str = "UPDATE leads SET test = ?, received_at = ?, has_received = 1, has_payload = 1, payload = ?, \
                       key_hash = ?, fingerprint = ? WHERE lead_id = ? AND has_received = 0";
const STORY: &str = "UPDATE leads SET explanation = ? WHERE lead_id = ? AND status = 'pending'";
const ATTEMPTS: Head = Head {
    sql: "INSERT INTO attempts (lead_id, buyer_id, publisher_id, campaign_id, ordinal, outcome, counted, http_status, \
          reason, sent_at, duration_us, windows, price_micros, payout_micros, currency) VALUES ",
    columns: 15,
};
const DETAILS: Head = Head {
    sql: "INSERT INTO attempt_details (lead_id, buyer_id, person, person_until, reference) VALUES ",
    columns: 5,
};
const UNCOUNT: &str = "UPDATE attempts SET counted = 0 WHERE lead_id = ? AND buyer_id = ?";
const ENTRIES: Head = Head {
    sql: "INSERT INTO entries (lead_id, buyer_id, account, amount_micros, currency, kind, booked_at) VALUES ",
    columns: 7,
};
const RETURNS: Head =
    Head { sql: "INSERT INTO returns (lead_id, buyer_id, reason, frees_cap, returned_at) VALUES ", columns: 5 };
const POSTBACKS: Head = Head {
    sql: "INSERT INTO postbacks (lead_id, ordinal, status, publisher_id, body, state, tries, created_at, next_at) VALUES ",
    columns: 9,
};
const USAGE: Head = Head { sql: "INSERT INTO cap_usage (buyer_id, cap_id, window_start, used) VALUES ", columns: 4 };
const BEGUN: Head =
    Head { sql: "INSERT INTO cap_usage_begun (buyer_id, cap_id, window_start, begun) VALUES ", columns: 4 };
const DIFFERENCES: Head = Head {
    sql: "INSERT INTO reconcile_differences (buyer_id, cap_id, window_start, counter, expected, action) VALUES ",
    columns: 6,
};
const BALANCES: Head = Head { sql: "INSERT INTO balances (account, currency, balance_micros) VALUES ", columns: 3 };
const DEAD_LETTERS: Head = Head {
    sql: "INSERT INTO dead_letters (partition_id, life, entry_ms, entry_seq, reason, event) VALUES ",
    columns: 6,
};
const MARKS: Head =
    Head { sql: "INSERT INTO settlement_marks (partition_id, life, entry_ms, entry_seq) VALUES ", columns: 4 };

/// Rows of a statement that is kept prepared. A server describes every placeholder of what it prepares, which costs both sides
/// more than the rows themselves: whole blocks are prepared once per connection, and only what is left over each time.
const BLOCK_ROWS: usize = 100;

/// Inserts rows with few statements, none larger than placeholders and bytes allow (F74).
async fn insert(
    session: &mut dyn Session,
    dialect: &Dialect,
    head: Head,
    end: &str,
    rows: impl Iterator<Item = Vec<Value>> + Send,
) -> Result<(), DbError> {
    // Every head has few enough columns for a block.
    let rows_max = BLOCK_ROWS.min(dialect.placeholders_max / head.columns);
    let (mut args, mut count, mut bytes) = (Vec::new(), 0, 0);
    for row in rows {
        let size: usize = row.iter().map(Value::size).sum();
        if size > dialect.row_bytes_max {
            return Err(DbError::Refused("larger than the database takes".to_owned()));
        }
        if count > 0 && (count == rows_max || bytes + size > dialect.statement_bytes_max) {
            send(session, head, end, count, std::mem::take(&mut args)).await?;
            (count, bytes) = (0, 0);
        }
        args.extend(row);
        count += 1;
        bytes += size;
    }
    if count > 0 {
        send(session, head, end, count, args).await?;
    }
    Ok(())
}

async fn send(session: &mut dyn Session, head: Head, end: &str, rows: usize, args: Vec<Value>) -> Result<(), DbError> {
    let row = format!("({})", vec!["?"; head.columns].join(","));
    let sql = format!("{}{}{end}", head.sql, vec![row.as_str(); rows].join(","));
    if rows == BLOCK_ROWS {
        session.execute_block(Cow::Owned(sql), args).await.map(drop)
    } else {
        session.execute(Cow::Owned(sql), args).await.map(drop)
    }
}

fn new_lead(lead: &NewLead<'_>) -> Vec<Value> {
    let arrival = lead.arrival.as_ref();
    let received = arrival.map(|arrival| arrival.event);
    let closed = lead.verdict;
    let id = received.map(|event| event.lead).or(closed.map(|event| event.lead));
    let publisher = received.map(|event| &event.publisher).or(closed.map(|event| &event.publisher));
    let campaign = received.map(|event| &event.campaign).or(closed.map(|event| &event.campaign));
    let is_test = received.is_some_and(|event| event.test) || closed.is_some_and(|event| event.test);
    // Until the lead's own event comes, the time of its verdict is the nearest that is known.
    let received_at = received.map(|event| event.received_at_us).or(closed.map(|event| event.closed_at_us));
    let mut row = vec![
        Value::optional(id),
        Value::optional(publisher.map(PublisherId::as_str)),
        Value::optional(campaign.map(CampaignId::as_str)),
    ];
    row.extend(verdict_terms(closed));
    row.extend([is_test.into(), received_at.map_or(Value::Null, Value::time_of_us)]);
    row.push(closed.map_or(Value::Null, |event| Value::time_of_us(event.closed_at_us)));
    row.extend([received.is_some().into(), received.is_some().into()]);
    row.push(Value::optional(received.map(|event| event.payload.as_str())));
    row.push(Value::optional(closed.map(|event| event.explanation.as_str())));
    row.push(Value::optional(closed.map(|event| event.answer.as_str())));
    row.push(Value::optional(arrival.and_then(|arrival| arrival.key_hash)));
    row.push(Value::optional(arrival.and_then(|arrival| arrival.fingerprint)));
    row
}

/// Status, reason, buyer, price, payout, currency.
fn verdict_terms(closed: Option<&Closed>) -> [Value; 6] {
    let status = closed.map_or(LeadStatus::Pending, |event| event.status);
    let sale = closed.and_then(|event| event.sale);
    [
        status.as_str().into(),
        cut(closed.and_then(|event| event.reason.as_deref())),
        Value::optional(closed.and_then(|event| event.buyer.as_ref()).map(BuyerId::as_str)),
        Value::optional(sale.map(|sale| sale.price.0)),
        Value::optional(sale.map(|sale| sale.payout.0)),
        Value::optional(sale.as_ref().map(|sale| sale.currency.as_str())),
    ]
}

fn verdict(closed: &Closed) -> Vec<Value> {
    let closed_at = Value::time_of_us(closed.closed_at_us);
    let mut row = vec![closed.lead.into(), closed.publisher.as_str().into(), closed.campaign.as_str().into()];
    row.extend(verdict_terms(Some(closed)));
    row.extend([closed.test.into(), closed_at.clone(), closed_at, false.into(), false.into()]);
    row.extend([closed.explanation.as_str().into(), closed.answer.as_str().into()]);
    row
}

fn arrival_args(arrival: &Arrival<'_>) -> Vec<Value> {
    let event = arrival.event;
    vec![
        event.test.into(),
        Value::time_of_us(event.received_at_us),
        event.payload.as_str().into(),
        Value::optional(arrival.key_hash),
        Value::optional(arrival.fingerprint),
        event.lead.into(),
    ]
}

async fn write_attempts(
    session: &mut dyn Session,
    dialect: &Dialect,
    attempts: &[AttemptWrite<'_>],
) -> Result<(), DbError> {
    let sets = ["ordinal", "outcome", "counted", "http_status", "reason", "sent_at", "duration_us", "windows"];
    let sets = sets.into_iter().chain(["price_micros", "payout_micros", "currency"]).map(Set::New);
    let end = dialect.upsert("lead_id, buyer_id", &sets.collect::<Vec<_>>());
    let row = |write: &AttemptWrite<'_>| {
        let event = write.event;
        vec![
            event.lead.into(),
            event.buyer.as_str().into(),
            event.publisher.as_str().into(),
            event.campaign.as_str().into(),
            i64::from(event.ordinal).into(),
            event.outcome.as_str().into(),
            event.counted.into(),
            Value::optional(event.http_status.map(i64::from)),
            cut(event.reason.as_deref()),
            Value::time_of_us(event.sent_at_us),
            // Cannot fail because the planner refuses larger ones.
            i64::try_from(event.duration_us).unwrap_or(i64::MAX).into(),
            write.windows.as_str().into(),
            event.price.0.into(),
            event.payout.0.into(),
            event.currency.as_str().into(),
        ]
    };
    insert(session, dialect, ATTEMPTS, &end, attempts.iter().map(row)).await
}

/// Most attempts have none.
fn details(write: &AttemptWrite<'_>) -> Option<Vec<Value>> {
    let event = write.event;
    if event.person.is_none() && event.reference.is_none() {
        return None;
    }
    let until = |person: Person| Value::time_of_us(event.sent_at_us.saturating_add(person.kept_ms() * 1000));
    let reference = event.reference.as_deref();
    Some(vec![
        event.lead.into(),
        event.buyer.as_str().into(),
        Value::optional(event.person.map(|person| person.digest)),
        event.person.map_or(Value::Null, until),
        Value::optional(reference.map(|text| text.chars().take(REFERENCE_CHARS_MAX).collect::<String>())),
    ])
}

fn entry(entry: &EntryWrite) -> Vec<Value> {
    vec![
        entry.lead.into(),
        entry.buyer.as_str().into(),
        entry.account.as_str().into(),
        entry.amount.0.into(),
        entry.currency.as_str().into(),
        entry.kind.as_str().into(),
        Value::time_of_us(entry.booked_at_us),
    ]
}

fn returned_row(returned: &Returned) -> Vec<Value> {
    vec![
        returned.lead.into(),
        returned.buyer.as_str().into(),
        cut(Some(&returned.reason)),
        returned.frees_cap.into(),
        Value::time_of_us(returned.returned_at_us),
    ]
}

/// Due from its verdict on, never before.
fn postback(postback: &PostbackWrite<'_>) -> Vec<Value> {
    let event = postback.event;
    let at = Value::time_of_us(event.closed_at_us);
    vec![
        event.lead.into(),
        i64::from(postback.ordinal).into(),
        event.status.as_str().into(),
        event.publisher.as_str().into(),
        postback.body.into(),
        PostbackState::Waiting.as_str().into(),
        0_i64.into(),
        at.clone(),
        at,
    ]
}

fn cut(words: Option<&str>) -> Value {
    Value::optional(words.map(|words| words.chars().take(REASON_CHARS_MAX).collect::<String>()))
}

/// An event that the books do not take.
#[derive(Debug)]
pub struct DeadLetter {
    pub place: Place,
    pub bytes: Vec<u8>,
    pub reason: String,
}

/// Keeps dead letters, each once. One that is too large for the database itself is kept without its bytes.
pub async fn bury(session: &mut dyn Session, dialect: &Dialect, letters: &[DeadLetter]) -> Result<(), DbError> {
    let end = dialect.upsert("partition_id, life, entry_ms, entry_seq", &[Set::New("reason")]);
    let mut rows = Vec::with_capacity(letters.len());
    for letter in letters {
        let mut row = place_args(&letter.place)?.to_vec();
        row.push(letter.reason.as_str().into());
        let fits = letter.bytes.len() < dialect.row_bytes_max.saturating_sub(1024);
        row.push(if fits { Value::Bytes(letter.bytes.clone()) } else { Value::Null });
        rows.push(row);
    }
    insert(session, dialect, DEAD_LETTERS, &end, rows.into_iter()).await
}

/// Makes usage rows where there are none, and writes down what they begin with. In the order that settlement takes them in,
/// so that the two wait for each other instead of locking each other out (F68). The caller commits.
pub async fn begin_usage(
    session: &mut dyn Session,
    dialect: &Dialect,
    rows: &[(CounterKey, u64)],
) -> Result<(), DbError> {
    let mut args = Vec::with_capacity(rows.len());
    for (key, used) in rows {
        let used = i64::try_from(*used).map_err(|_| DbError::Bug("a usage is out of range".to_owned()))?;
        args.push((&key.buyer, &key.cap, key.window.start, used));
    }
    args.sort();
    let mut begun = Vec::new();
    for (buyer, cap, start, used) in args {
        let row = vec![buyer.as_str().into(), cap.as_str().into(), Value::time(start), used.into()];
        // One by one, because only the row that this call has made begins with its past.
        match insert(session, dialect, USAGE, "", std::iter::once(row.clone())).await {
            Ok(()) if used > 0 => begun.push(row),
            Ok(()) | Err(DbError::Duplicate) => {}
            Err(error) => return Err(error),
        }
    }
    insert(session, dialect, BEGUN, "", begun.into_iter()).await
}

/// Writes differences down.
pub async fn record_differences(
    session: &mut dyn Session,
    dialect: &Dialect,
    differences: &[DifferenceRow],
) -> Result<(), DbError> {
    let row = |difference: &DifferenceRow| {
        // A counter beyond 64 bits would be a broken one; the nearest number tells as much.
        let used = i64::try_from(difference.used).unwrap_or(if difference.used < 0 { i64::MIN } else { i64::MAX });
        vec![
            difference.key.buyer.as_str().into(),
            difference.key.cap.as_str().into(),
            Value::time(difference.key.window.start),
            used.into(),
            i64::try_from(difference.expected).unwrap_or(i64::MAX).into(),
            difference.action.as_str().into(),
        ]
    };
    insert(session, dialect, DIFFERENCES, "", differences.iter().map(row)).await
}

fn place_args(place: &Place) -> Result<[Value; 4], DbError> {
    let number = |value: u64| {
        let number = i64::try_from(value).map_err(|_| DbError::Bug("a journal place is out of range".to_owned()))?;
        Ok(Value::Int(number))
    };
    let partition = i64::from(place.partition.0).into();
    Ok([partition, number(place.life.0)?, number(place.id.ms)?, number(place.id.seq)?])
}

/// Makes mark rows, all or none; [`DbError::Duplicate`] when someone else did.
pub async fn insert_marks(session: &mut dyn Session, dialect: &Dialect, marks: &[Mark]) -> Result<(), DbError> {
    let mut rows = Vec::with_capacity(marks.len());
    for mark in marks {
        rows.push(place_args(&Place { partition: mark.partition, life: mark.life, id: mark.entry })?.to_vec());
    }
    insert(session, dialect, MARKS, "", rows.into_iter()).await
}

/// Moves marks whose rows this transaction has locked.
pub async fn move_marks(session: &mut dyn Session, dialect: &Dialect, marks: &[Mark]) -> Result<(), DbError> {
    let mut rows = Vec::with_capacity(marks.len());
    for mark in marks {
        rows.push(place_args(&Place { partition: mark.partition, life: mark.life, id: mark.entry })?.to_vec());
    }
    let end = dialect.upsert("partition_id", &[Set::New("entry_ms"), Set::New("entry_seq")]);
    insert(session, dialect, MARKS, &end, rows.into_iter()).await
}
