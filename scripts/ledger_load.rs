//! How fast the books are written: fills a journal in Redis with leads as gateways write them, settles it, and measures.
//!
//! ```text
//! cargo run --release --example ledger_load -- --redis redis://127.0.0.1:6379 --ledger mysql://root@127.0.0.1:3306/books \
//!     --leads 1000000
//! ```
//!
//! The database is migrated and must be new; the keys in Redis get a prefix of their own and are left to expire. Leads come in
//! portions: each is appended while nothing settles, then settled while nothing is appended, so that time and processor time
//! of the settler are its own. At the end: sizes of the tables, and how the server carries out the named queries of
//! `docs/ledger.md`.
#![allow(clippy::print_stdout, reason = "a program that reports")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capgate::clock::{Clock as _, SystemClock};
use capgate::domain::event::{Attempt, ClaimKey, Closed, Life, Received, SaleMoney, WindowAmount};
use capgate::domain::id::{BuyerId, CampaignId, CapId, LeadId, Partition, PublisherId};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::domain::routing::Secret;
use capgate::ledger::mysql::MysqlLedger;
use capgate::ledger::{Raise, SharedLedger, Stage};
use capgate::settle::settler::{Settler, SettlerParts};
use capgate::store::redis::RedisStore;
use capgate::store::{Admission, Admit, BeginReply, Close, CloseReply, ReadBack, Store};
use clap::Parser;
use jiff::Timestamp;
use sqlx::{Connection as _, MySqlConnection, Row as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

type Failure = Box<dyn Error + Send + Sync>;

const PARTITIONS: u16 = 16;
const PUBLISHERS: u64 = 20;
const BUYERS: u64 = 50;
/// Leads are spread over the days before now.
const DAYS: i64 = 30;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[derive(Debug, Parser)]
#[command(about = "Fill a journal with leads, settle it into MySQL or MariaDB, and measure")]
struct Load {
    /// redis://HOST:PORT
    #[arg(long, value_name = "URL")]
    redis: String,
    /// A new, empty database: mysql://USER:PASSWORD@HOST:PORT/DATABASE
    #[arg(long, value_name = "URL")]
    ledger: String,
    /// How many leads
    #[arg(long, default_value_t = 100_000)]
    leads: u64,
    /// So many at a time
    #[arg(long, default_value_t = 50_000)]
    portion: u64,
    /// As `batch_rows_max` of the configuration
    #[arg(long, default_value_t = 1_000)]
    rows_max: usize,
    /// Calls to Redis at once
    #[arg(long, default_value_t = 64)]
    calls: u64,
}

fn one_in_list(names: &str, index: u64) -> String {
    format!("{names}-{index:02}")
}

/// Lead `index` of `count` and everything that happens to it. The same for the same index, but for ids.
struct Story {
    received: Received,
    attempts: Vec<Attempt>,
    closed: Closed,
}

/// An id of that time, with `index` in its random part.
fn lead_id(ms: i64, index: u64) -> LeadId {
    let mut bytes = *LeadId::first_at(Timestamp::from_millisecond(ms).unwrap_or_default()).as_bytes();
    bytes[8..].copy_from_slice(&(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0x8000_0000_0000_0000).to_be_bytes());
    bytes[8] &= 0xbf;
    LeadId::from_bytes(bytes)
}

fn story(index: u64, count: u64, now: Timestamp) -> Result<Story, Failure> {
    let dice = index.wrapping_mul(0xd134_2543_de82_ef95) >> 33;
    let age = DAYS * DAY_MS * i64::try_from(count - index)? / i64::try_from(count)?;
    let received_ms = now.as_millisecond() - age;
    let lead = lead_id(received_ms, index);
    // A few large publishers and buyers, many small ones.
    let publisher = PublisherId::new(&one_in_list("publisher", (dice % PUBLISHERS).min(dice / 32 % PUBLISHERS)))?;
    let first = (dice / 7 % BUYERS).min(dice / 1024 % BUYERS);
    let campaign = CampaignId::new("solar")?;
    let currency = Currency::new("USD").ok_or("a currency")?;
    let price = Micros(10_000_000 + i64::try_from(first)? * 500_000);
    let payout = Micros(price.0 * 7 / 10);
    // Of a hundred leads: 70 sold at once, 15 to the second buyer, 10 capped, 5 declined by everybody.
    let outcomes: &[AttemptOutcome] = match dice % 100 {
        0..70 => &[AttemptOutcome::Accepted],
        70..85 => &[AttemptOutcome::Declined, AttemptOutcome::Accepted],
        85..95 => &[],
        _ => &[AttemptOutcome::Declined, AttemptOutcome::Declined],
    };
    let mut attempts = Vec::new();
    let mut notes = vec![r#"{"buyer":"buyer-97","check":"state","values":{"state":"NJ","states":["NY"]}}"#.to_owned()];
    for (ordinal, outcome) in outcomes.iter().enumerate() {
        let buyer = BuyerId::new(&one_in_list("buyer", (first + ordinal as u64) % BUYERS))?;
        let is_sale = *outcome == AttemptOutcome::Accepted;
        notes.push(format!(r#"{{"buyer":"{buyer}","check":"{outcome}"}}"#));
        attempts.push(Attempt {
            lead,
            buyer,
            publisher: publisher.clone(),
            campaign: campaign.clone(),
            ordinal: u16::try_from(ordinal + 1)?,
            outcome: *outcome,
            counted: is_sale,
            http_status: Some(200),
            reason: (!is_sale).then(|| "not interested".to_owned()),
            sent_at_us: (received_ms + 2) * 1000,
            duration_us: 80_000 + dice % 50_000,
            windows: vec![
                WindowAmount { cap: CapId::new("day"), start_ms: received_ms / DAY_MS * DAY_MS, amount: 1 },
                WindowAmount { cap: CapId::new("total:spend"), start_ms: 0, amount: u64::try_from(price.0)? },
            ],
            price,
            payout,
            currency,
            books: is_sale,
            person: None,
            reference: None,
        });
    }
    let sale = attempts.iter().find(|attempt| attempt.books);
    if sale.is_none() {
        notes.push(r#"{"buyer":"buyer-98","check":"cap","values":{"cap":"day","limit":"500","used":"500","resets_at":"2026-12-01T05:00:00Z"}}"#.to_owned());
    }
    let answer = match sale {
        Some(_) => format!(r#"{{"lead_id":"{lead}","status":"sold","price":"{payout}","currency":"{currency}"}}"#),
        None => format!(r#"{{"lead_id":"{lead}","status":"unsold","reason":"capped"}}"#),
    };
    let closed = Closed {
        lead,
        publisher: publisher.clone(),
        campaign: campaign.clone(),
        status: if sale.is_some() { LeadStatus::Sold } else { LeadStatus::Unsold },
        reason: sale.is_none().then(|| "capped".to_owned()),
        buyer: sale.map(|attempt| attempt.buyer.clone()),
        sale: sale.map(|attempt| SaleMoney { price: attempt.price, payout: attempt.payout, currency }),
        books: false,
        test: false,
        closed_at_us: (received_ms + 140) * 1000,
        answer,
        postback: None,
        explanation: format!(r#"{{"routing_version":"1764496800000","candidates":[{}]}}"#, notes.join(",")),
    };
    let received = Received {
        lead,
        publisher,
        campaign,
        received_at_us: received_ms * 1000,
        test: false,
        payload: format!(
            r#"{{"first_name":"Elena","last_name":"Garcia","email":"lead{index}@example.com","phone":"201{index:07}","address":"{} Main St","city":"Newark","state":"NJ","zip":"07102"}}"#,
            dice % 9_999
        ),
        claim: Some(ClaimKey { hash: format!("{index:064x}"), fingerprint: Some(format!("{dice:064x}")) }),
    };
    Ok(Story { received, attempts, closed })
}

/// Begins life 1 in store and books, as a gateway does at its first start.
async fn begin(store: &RedisStore, ledger: &SharedLedger) -> Result<(), Failure> {
    if ledger.marks(PARTITIONS).await?.iter().any(|mark| mark.life != Life::default()) {
        return Err("the database is not new".into());
    }
    let life = Life(1);
    for partition in (0..PARTITIONS).map(Partition) {
        let server = store.standing(partition).await?.server;
        let raise = Raise { partition, from: Life::default(), to: life, server: server.clone() };
        ledger.raise_lives(&[raise]).await?;
        if store.begin_life(partition, life, &server).await? != BeginReply::Life(life) {
            return Err("the store is not new".into());
        }
        store.join(&[(partition, life)]).await?;
        store.open_life(partition, life).await?;
        store.set_read_back(partition, life, &ReadBack::Done).await?;
        ledger.set_stage(&[(partition, life)], Stage::Open).await?;
    }
    Ok(())
}

async fn append(store: &RedisStore, told: Story) -> Result<(), Failure> {
    let now = store.now();
    let claim = told.received.claim.clone();
    let admit = Admit {
        event: told.received,
        deadline: now + Duration::from_mins(10),
        not_after: now + Duration::from_secs(10),
        retention: Duration::from_mins(1),
    };
    let admitted = store.admit(&admit).await?;
    if admitted != Admission::New {
        return Err(format!("not admitted: {admitted:?}").into());
    }
    for attempt in &told.attempts {
        store.record(attempt).await?;
    }
    let close = Close { event: told.closed, claim, retention: Duration::from_secs(1) };
    match store.close(&close).await? {
        CloseReply::Closed => Ok(()),
        other => Err(format!("not closed: {other:?}").into()),
    }
}

async fn append_portion(
    store: &Arc<RedisStore>,
    load: &Load,
    from: u64,
    to: u64,
    now: Timestamp,
) -> Result<(), Failure> {
    let (count, calls) = (load.leads, load.calls);
    let mut tasks = tokio::task::JoinSet::new();
    for offset in 0..calls {
        let store = store.clone();
        tasks.spawn(async move {
            let mut index = from + offset;
            while index < to {
                append(&store, story(index, count, now)?).await?;
                index += calls;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(())
}

/// Processor time that this process has used.
fn processor_time() -> Result<Duration, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    // Linux counts a hundred in a second, whatever the kernel's own clock does.
    Ok(Duration::from_millis(ticks * 10))
}

#[derive(Debug, Default)]
struct Measured {
    events: u64,
    rounds: u64,
    rows: BTreeMap<&'static str, u64>,
    took: Duration,
    processor: Duration,
    inserts: u64,
}

/// Settles until the journal is empty.
async fn settle(settler: &Settler, server: &mut MySqlConnection, measured: &mut Measured) -> Result<(), Failure> {
    let inserts_before = status(server, "Com_insert").await?;
    let (began, processor) = (Instant::now(), processor_time()?);
    loop {
        let settled = settler.settle_once().await?;
        if settled.entries == 0 {
            break;
        }
        measured.events += settled.entries as u64;
        measured.rounds += 1;
        for (table, rows) in settled.rows {
            *measured.rows.entry(table).or_default() += rows;
        }
        if settled.dead_letters > 0 || settled.key_clashes > 0 {
            return Err("events that the books do not take".into());
        }
    }
    measured.took += began.elapsed();
    measured.processor += processor_time()?.saturating_sub(processor);
    measured.inserts += status(server, "Com_insert").await? - inserts_before;
    Ok(())
}

async fn status(server: &mut MySqlConnection, name: &str) -> Result<u64, Failure> {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let row = sqlx::raw_sql(&sql).fetch_one(server).await?;
    Ok(row.try_get::<String, _>(1)?.parse()?)
}

/// Bytes that the journals take in Redis, and their entries, as Redis counts them.
async fn journal(redis: &str, prefix: &str) -> Result<(u64, u64), Failure> {
    let address = redis.trim_start_matches("redis://").trim_end_matches('/');
    let mut socket = tokio::net::TcpStream::connect(address).await?;
    let mut sums = (0, 0);
    for partition in 0..PARTITIONS {
        let key = format!("{prefix}:{{p{partition:02}}}:journal:1");
        for (command, sum) in
            [(format!("MEMORY USAGE {key} SAMPLES 0"), &mut sums.0), (format!("XLEN {key}"), &mut sums.1)]
        {
            socket.write_all(format!("{command}\r\n").as_bytes()).await?;
            let mut reply = [0; 64];
            let count = socket.read(&mut reply).await?;
            let text = String::from_utf8_lossy(&reply[..count]);
            // An empty journal has no key.
            *sum += text.trim().trim_start_matches(':').parse::<u64>().unwrap_or(0);
        }
    }
    Ok(sums)
}

/// The SQL of the page about the books: every block of it under its heading.
fn named_queries() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../docs/ledger.md");
    let block = |part: &'static str| {
        let (name, rest) = part.split_once('\n')?;
        let sql = rest.split_once("```sql\n")?.1.split_once("```")?.0;
        Some((name.trim(), sql.trim().trim_end_matches(';')))
    };
    page.split("\n#### ").skip(1).filter_map(block).collect()
}

async fn report_tables(server: &mut MySqlConnection) -> Result<(), Failure> {
    sqlx::raw_sql("ANALYZE TABLE leads, attempts, entries, balances, cap_usage").execute(&mut *server).await?;
    let sql = "SELECT table_name, CAST(data_length AS SIGNED), CAST(index_length AS SIGNED) FROM information_schema.tables \
               WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY data_length + index_length DESC LIMIT 5";
    for row in sqlx::raw_sql(sql).fetch_all(&mut *server).await? {
        let (name, data, index): (String, i64, i64) = (row.try_get_unchecked(0)?, row.try_get(1)?, row.try_get(2)?);
        let count: i64 = sqlx::query_scalar(&format!("SELECT COUNT(*) FROM {name}")).fetch_one(&mut *server).await?;
        println!("table {name:<12} {count:>9} rows  {:>6} MiB data  {:>6} MiB indexes", data >> 20, index >> 20);
    }
    Ok(())
}

/// A cell of EXPLAIN, whatever its type.
fn cell(row: &sqlx::mysql::MySqlRow, name: &str) -> String {
    let text = row.try_get_unchecked::<Option<Vec<u8>>, _>(name).ok().flatten();
    text.map_or_else(|| "-".to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

async fn report_plans(server: &mut MySqlConnection) -> Result<(), Failure> {
    // What exists: a lead in the middle, with its names.
    let sql = "SELECT lead_id, publisher_id, buyer_id, CAST(DATE(received_at) AS CHAR), \
               CAST(DATE(received_at + INTERVAL 1 DAY) AS CHAR) FROM v_leads WHERE status = 'sold' LIMIT 1";
    let row = sqlx::query(sql).fetch_one(&mut *server).await?;
    // The driver takes texts that are compared byte for byte for bytes.
    let text = |index: usize| row.try_get_unchecked::<String, _>(index);
    let known = [text(0)?, text(1)?, text(2)?, text(3)?, text(4)?];
    for (name, sql) in named_queries() {
        let sql = sql
            .replace("0195a0c2-7d3e-7c4b-8a1f-0242ac120002", &known[0])
            .replace("acme", &known[1])
            .replace("sunco", &known[2])
            .replace("2026-11-30", &known[3])
            .replace("2026-12-01", &known[4]);
        let began = Instant::now();
        let rows = sqlx::raw_sql(&sql).fetch_all(&mut *server).await?.len();
        let took = began.elapsed();
        println!("query {name}: {rows} rows in {took:?}");
        for row in sqlx::raw_sql(&format!("EXPLAIN FORMAT=TRADITIONAL {sql}")).fetch_all(&mut *server).await? {
            let [table, kind, key, extra] = ["table", "type", "key", "Extra"].map(|name| cell(&row, name));
            println!("      {table}: {kind} by {key}; {extra}");
        }
    }
    Ok(())
}

fn report(load: &Load, measured: &Measured) {
    let leads = load.leads as f64;
    let Measured { events, rounds, rows, took, processor, inserts } = measured;
    println!(
        "settled {} leads, {events} events in {took:.2?}: {:.0} leads per second",
        load.leads,
        leads / took.as_secs_f64()
    );
    println!("processor time of the settler: {:.1} us per lead", processor.as_secs_f64() * 1e6 / leads);
    println!("{rounds} transactions, {:.0} events in each", *events as f64 / *rounds as f64);
    let all: u64 = rows.values().sum();
    println!("{all} rows in {inserts} INSERTs: {:.0} rows in each", all as f64 / *inserts as f64);
    for (table, rows) in rows {
        println!("      {table}: {rows} rows, {:.0} in each transaction", *rows as f64 / *rounds as f64);
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let load = Load::parse();
    let clock = Arc::new(SystemClock);
    let ledger: SharedLedger = Arc::new(MysqlLedger::connect(&Secret::new(&load.ledger), 4).await?);
    ledger.migrate().await?;
    let prefix = format!("load-{}", LeadId::generate());
    let store = RedisStore::connect(
        &Secret::new(&load.redis),
        &prefix,
        PARTITIONS,
        Duration::from_secs(5),
        u64::MAX >> 1,
        Duration::from_mins(1),
        clock.clone(),
    )
    .await?;
    let store = Arc::new(store);
    begin(&store, &ledger).await?;
    let settler = Settler::new(SettlerParts {
        store: store.clone(),
        ledger: ledger.clone(),
        clock: clock.clone(),
        rows_max: load.rows_max,
        delay: Duration::ZERO,
    });
    let mut server = MySqlConnection::connect(&load.ledger).await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut server).await?;
    println!("{version}, at most {} events in a transaction", load.rows_max);
    let (mut measured, mut filled, mut done) = (Measured::default(), (0, 0), 0);
    let now = clock.now();
    while done < load.leads {
        let to = (done + load.portion).min(load.leads);
        append_portion(&store, &load, done, to, now).await?;
        let (bytes, entries) = journal(&load.redis, &prefix).await?;
        filled = (filled.0 + bytes, filled.1 + entries);
        settle(&settler, &mut server, &mut measured).await?;
        store.let_go(&ledger.marks(PARTITIONS).await?);
        done = to;
        println!("{done} leads, {:.0} per second", done as f64 / measured.took.as_secs_f64());
    }
    let bytes_per_event = filled.0 as f64 / filled.1 as f64;
    println!(
        "journal in Redis: {bytes_per_event:.0} bytes per event, {:.0} per lead, {:.0} MiB for a million leads",
        filled.0 as f64 / load.leads as f64,
        filled.0 as f64 / load.leads as f64 * 1e6 / f64::from(1 << 20),
    );
    report(&load, &measured);
    report_tables(&mut server).await?;
    report_plans(&mut server).await?;
    server.close().await?;
    store.shut_down().await;
    ledger.shut_down().await;
    Ok(())
}
