//! What reconciliation and seeding write and ask.

use capgate::clock::{Clock, SystemClock};
use capgate::domain::event::{Attempt, Event};
use capgate::domain::id::{CapId, LeadId, Partition};
use capgate::domain::money::Micros;
use capgate::domain::outcome::AttemptOutcome;
use capgate::domain::window::Window;
use capgate::ledger::{DifferenceAction, DifferenceRow, LedgerError};
use capgate::store::CounterKey;
use jiff::{SignedDuration, Timestamp};

use crate::events::{DAY_MS, attempt, buyer};
use crate::journal::{Journal, PARTITIONS};
use crate::support::Books;

fn key(to: &str, cap: &str, start_ms: i64) -> CounterKey {
    let start = Timestamp::from_millisecond(start_ms).unwrap();
    CounterKey { buyer: buyer(to), cap: CapId::new(cap), window: Window { start, end: None } }
}

pub async fn p2_usage_begins_once_and_settlement_adds_to_it(books: &Books) {
    let partition = Partition::of("sunco", PARTITIONS);
    let keys = [key("sunco", "month", DAY_MS), key("sunco", "day", DAY_MS), key("sunco", "total", 0)];
    let used = async || books.ledger.usage_snapshot(partition, &keys).await.unwrap().1;
    let begin = async |past: u64| {
        let rows: Vec<_> = keys.iter().map(|key| (key.clone(), past)).collect();
        books.ledger.begin_usage(&rows).await.unwrap();
    };
    books.ledger.begin_usage(&[]).await.unwrap();
    assert_eq!(used().await, [None; 3]);
    begin(40).await;
    assert_eq!(used().await, [Some(40); 3]);
    begin(7).await;
    assert_eq!(used().await, [Some(40); 3], "a row that is there stays");
    let journal = Journal::default();
    journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted)));
    books.settle_all(&journal, 100).await;
    assert_eq!(used().await, [Some(40), Some(41), Some(40)]);
    begin(0).await;
    assert_eq!(used().await, [Some(40), Some(41), Some(40)]);
    let too_much = [(key("sunco", "week", DAY_MS), u64::MAX)];
    assert!(matches!(books.ledger.begin_usage(&too_much).await, Err(LedgerError::Bug(_))));
}

/// All that is left of a cap's windows when a store has lost its memory (F33).
pub async fn f33_the_newest_window_that_something_counts_in_is_known(books: &Books) {
    let hour_ms = 3_600_000;
    let at = |ms| Timestamp::from_millisecond(ms).unwrap();
    let newest = async |cap: &str, from: i64, to: i64| {
        let span = Window { start: at(from), end: Some(at(to)) };
        books
            .ledger
            .newest_usage(&buyer("sunco"), &CapId::new(cap), &span)
            .await
            .unwrap()
            .map(Timestamp::as_millisecond)
    };
    assert_eq!(newest("day", 0, DAY_MS + 1).await, None);
    let rows: Vec<_> = [("day", 0, 3), ("day", hour_ms, 5), ("day", 2 * hour_ms, 0), ("Day", 3 * hour_ms, 1)]
        .into_iter()
        .map(|(cap, later, used)| (key("sunco", cap, DAY_MS + later), used))
        .chain([(key("volt", "day", DAY_MS + 4 * hour_ms), 1)])
        .collect();
    books.ledger.begin_usage(&rows).await.unwrap();
    let end = DAY_MS + 10 * hour_ms;
    assert_eq!(newest("day", DAY_MS, end).await, Some(DAY_MS + hour_ms), "nothing counts in the one after it");
    assert_eq!(newest("day", DAY_MS, DAY_MS + hour_ms).await, Some(DAY_MS), "a span is half open");
    assert_eq!(newest("day", DAY_MS + hour_ms + 1, end).await, None);
    assert_eq!(newest("Day", DAY_MS, end).await, Some(DAY_MS + 3 * hour_ms), "ids differ by their bytes");
}

/// Two gateways meet the same new cap while settlement goes on: the first row wins and nothing is counted twice.
pub async fn p2_usage_begins_beside_settlement(books: &Books) {
    let other = books.open_again().await;
    let journal = Journal::default();
    let rows: Vec<_> = (0..40).map(|n| (key("sunco", &format!("cap{n}"), DAY_MS), 3)).collect();
    let backwards: Vec<_> = rows.iter().rev().cloned().collect();
    for _ in 0..60 {
        journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted)));
    }
    let settle = books.settle_all(&journal, 5);
    let begin = async {
        for _ in 0..10 {
            let (one, two) = tokio::join!(books.ledger.begin_usage(&rows), other.begin_usage(&backwards));
            one.unwrap();
            two.unwrap();
        }
    };
    tokio::join!(settle, begin);
    let mut keys: Vec<_> = rows.into_iter().map(|(key, _)| key).collect();
    keys.push(key("sunco", "day", DAY_MS));
    let (_, used) = books.ledger.usage_snapshot(Partition::of("sunco", PARTITIONS), &keys).await.unwrap();
    assert!(used[..40].iter().all(|used| *used == Some(3)), "{used:?}");
    assert_eq!(used[40], Some(60));
    other.shut_down().await;
}

pub async fn f84_differences_are_written_down(books: &Books) {
    books.ledger.record_differences(&[]).await.unwrap();
    let row =
        |used, expected, action| DifferenceRow { key: key("sunco", "day:state=TX", DAY_MS), used, expected, action };
    let rows = [
        row(9, 7, DifferenceAction::Lower),
        row(-3, 7, DifferenceAction::Raise),
        row(i128::MAX, u64::MAX, DifferenceAction::KeepBeyondLimit),
        row(8, 7, DifferenceAction::KeepUnproven),
    ];
    books.ledger.record_differences(&rows).await.unwrap();
    let texts = async |column: &str| {
        let sql = format!("SELECT CAST({column} AS CHAR) FROM reconcile_differences ORDER BY difference_id");
        books.raw.texts(&sql).await.into_iter().map(Option::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(texts("action").await, ["lower", "raise", "keep_limit", "keep_unproven"]);
    assert_eq!(texts("counter").await, ["9", "-3", "9223372036854775807", "8"]);
    assert_eq!(texts("expected").await, ["7", "7", "9223372036854775807", "7"]);
    assert_eq!(texts("buyer_id").await, ["sunco"; 4]);
    assert_eq!(texts("cap_id").await, ["day:state=TX"; 4]);
    assert_eq!(texts("window_start").await, ["2026-03-08 05:00:00.000000"; 4]);
}

pub async fn f84_dead_letters_are_counted_by_partition_and_time(books: &Books) {
    let journal = Journal::default();
    let good = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted);
    journal.append(&Event::Attempt(Attempt { price: Micros(-1), ..good }));
    books.settle_all(&journal, 100).await;
    let here = Partition::of("sunco", PARTITIONS);
    let elsewhere = Partition((here.0 + 1) % PARTITIONS);
    let count = async |partition, since| books.ledger.dead_letters_since(partition, since).await.unwrap();
    let now = SystemClock.now();
    assert_eq!(count(here, Timestamp::UNIX_EPOCH).await, 1);
    assert_eq!(count(here, now - SignedDuration::from_mins(10)).await, 1);
    assert_eq!(count(here, now + SignedDuration::from_mins(10)).await, 0);
    assert_eq!(count(elsewhere, Timestamp::UNIX_EPOCH).await, 0);
}
