//! A server that dies, sleeps, refuses writes or has no room left, in the middle of settling: each has a server of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capgate::domain::event::Event;
use capgate::domain::id::LeadId;
use capgate::ledger::{Ledger, LedgerError, SettleError};
use sqlx::{Executor, MySqlPool};

use crate::events::{received, sale};
use crate::journal::{Journal, PARTITIONS};
use crate::mariadb::MariaDb;
use crate::mysql::{open_ledger, sales_are_booked_once, until};
use crate::support::{Books, Raw};

async fn books_on(server: &MariaDb) -> Books {
    let ledger = open_ledger(&server.url()).await;
    ledger.migrate().await.unwrap();
    ledger.marks(PARTITIONS).await.unwrap();
    let raw = MySqlPool::connect(&server.url()).await.unwrap();
    Books { ledger, raw: Raw::Mysql(raw), place: server.url(), folder: None }
}

fn sales(journal: &Journal, count: usize) {
    for _ in 0..count {
        journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    }
}

/// Every way in which a settlement may fail while the server is not well; none of them is anybody's bug.
fn is_outage(error: &SettleError) -> bool {
    matches!(error, SettleError::Ledger(LedgerError::NotDone(_) | LedgerError::MaybeDone(_)))
}

/// Settles in small batches until nothing is left or somebody says stop; answers how often it failed.
async fn settle_through(ledger: Arc<dyn Ledger>, journal: Journal, is_over: Arc<AtomicBool>) -> u32 {
    let mut failures = 0;
    loop {
        match ledger.settle(&journal, 24).await {
            Ok(settled) if settled.entries == 0 && is_over.load(Ordering::Relaxed) => return failures,
            Ok(_) => {}
            Err(error) => {
                assert!(is_outage(&error), "{error}");
                failures += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_server_killed_in_mid_batch_loses_and_doubles_nothing() {
    let mut server = MariaDb::start().await;
    let books = books_on(&server).await;
    let journal = Journal::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let settling = tokio::spawn(settle_through(books.ledger.clone(), journal.clone(), is_over.clone()));
    for round in 0..6 {
        // More than can be settled until the kill comes.
        sales(&journal, 1_000);
        let wanted = round * 1_000 + 60;
        until("some are settled", async || books.raw.number("SELECT COUNT(*) FROM attempts").await >= wanted).await;
        server.kill();
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.run().await;
    }
    is_over.store(true, Ordering::Relaxed);
    let failures = settling.await.unwrap();
    println!("{failures} settlements failed");
    assert!(failures >= 6, "it was never in the middle of anything");
    sales_are_booked_once(&books, 6_000).await;
}

/// Longer than a statement may take: the settler gives up and asks again, and a batch that the server goes on with after all is
/// in the books once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_server_that_sleeps_in_mid_batch_loses_and_doubles_nothing() {
    let server = MariaDb::start().await;
    let books = books_on(&server).await;
    let journal = Journal::default();
    sales(&journal, 4_000);
    let is_over = Arc::new(AtomicBool::new(false));
    let settling = tokio::spawn(settle_through(books.ledger.clone(), journal.clone(), is_over.clone()));
    until("some are settled", async || books.raw.number("SELECT COUNT(*) FROM attempts").await >= 100).await;
    server.stop();
    tokio::time::sleep(Duration::from_secs(33)).await;
    server.go_on();
    is_over.store(true, Ordering::Relaxed);
    let failures = settling.await.unwrap();
    println!("{failures} settlements failed");
    assert!(failures > 0, "it was never waited for");
    sales_are_booked_once(&books, 4_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_read_only_server_gets_everything_later() {
    let server = MariaDb::start().await;
    let books = books_on(&server).await;
    let journal = Journal::default();
    sales(&journal, 20);
    books.settle_all(&journal, 1_000).await;
    let mut admin = server.admin().await;
    admin.execute("SET GLOBAL read_only = 1").await.unwrap();
    sales(&journal, 20);
    let refused = books.ledger.settle(&journal, 1_000).await.unwrap_err();
    assert!(is_outage(&refused) && refused.to_string().contains("read-only"), "{refused}");
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 20, "nothing of it is there");
    admin.execute("SET GLOBAL read_only = 0").await.unwrap();
    books.settle_all(&journal, 1_000).await;
    sales_are_booked_once(&books, 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_server_without_room_gets_everything_later() {
    let server = MariaDb::start_on_small_disk(16 << 20).await;
    let books = books_on(&server).await;
    let journal = Journal::default();
    sales(&journal, 20);
    let payload = format!(r#"{{"notes":"{}"}}"#, "x".repeat(50_000));
    let large = 600;
    for _ in 0..large {
        let mut arrival = received(LeadId::generate(), "acme");
        arrival.payload.clone_from(&payload);
        journal.append(&Event::Received(arrival));
    }
    let mut settled = 0;
    let refused = loop {
        match books.ledger.settle(&journal, 100).await {
            Ok(batch) => settled += batch.entries,
            Err(error) => break error,
        }
        assert!(settled < 60 + large, "there was room for everything");
    };
    assert!(is_outage(&refused), "{refused}");
    println!("after {settled} events: {refused}");
    let leads = books.raw.number("SELECT COUNT(*) FROM leads").await;
    assert!(leads < i64::try_from(20 + large).unwrap());
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters").await, 0, "no lead's own fault");
    server.free_the_disk();
    until("there is room again", async || books.ledger.settle(&journal, 100).await.is_ok()).await;
    books.settle_all(&journal, 1_000).await;
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, i64::try_from(20 + large).unwrap());
    books.raw.run("DELETE FROM leads WHERE status = 'pending'").await;
    sales_are_booked_once(&books, 20).await;
}
