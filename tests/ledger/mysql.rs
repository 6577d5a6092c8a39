//! The list on MySQL or MariaDB, and what only a server does: deadlocks, lock waits, lost connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use capgate::domain::id::LeadId;
use capgate::domain::routing::Secret;
use capgate::ledger::mysql::MysqlLedger;
use capgate::ledger::{Ledger, LedgerError, SettleError};
use sqlx::mysql::MySqlConnection;
use sqlx::{Connection, Executor, MySqlPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::events::sale;
use crate::journal::{Journal, PARTITIONS};
use crate::support::{Books, Raw, run};

fn server() -> String {
    let url = std::env::var("CAPGATE_TEST_MYSQL_URL").expect(
        "CAPGATE_TEST_MYSQL_URL must name a MySQL or MariaDB server without a database, like mysql://root@127.0.0.1:3306",
    );
    url.trim_end_matches('/').to_owned()
}

pub async fn open_ledger(url: &str) -> Arc<dyn Ledger> {
    Arc::new(MysqlLedger::connect(&Secret::new(url), 4).await.unwrap())
}

pub async fn open() -> Books {
    let name = format!("capgate_test_{}", LeadId::generate().to_string().replace('-', ""));
    let mut admin = MySqlConnection::connect(&server()).await.unwrap();
    admin.execute(format!("CREATE DATABASE {name}").as_str()).await.unwrap();
    let place = format!("{}/{name}", server());
    let raw = sqlx::mysql::MySqlPoolOptions::new().max_connections(4).connect(&place).await.unwrap();
    Books { ledger: open_ledger(&place).await, raw: Raw::Mysql(raw), place, folder: None }
}

/// Drops the database of a test.
pub async fn remove(books: &Books) {
    if let Raw::Mysql(pool) = &books.raw {
        let name = books.place.rsplit('/').next().unwrap();
        pool.execute(format!("DROP DATABASE {name}").as_str()).await.unwrap();
        pool.close().await;
    }
}

crate::all_behaviours!(crate::mysql::open);

fn pool(books: &Books) -> &MySqlPool {
    match &books.raw {
        Raw::Mysql(pool) => pool,
        Raw::Sqlite(_) => panic!("not a server"),
    }
}

pub async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Does somebody hold the row that the settler locks before it wants the margin's?
async fn is_window_locked(books: &Books) -> bool {
    let sql = "SELECT buyer_id FROM cap_usage WHERE buyer_id = 'sunco' FOR UPDATE SKIP LOCKED";
    books.raw.texts(sql).await.is_empty()
}

/// The settler's connection, while a statement of it waits.
async fn busy_connection(books: &Books) -> i64 {
    let sql = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
               WHERE db = DATABASE() AND command <> 'Sleep' AND id <> CONNECTION_ID() LIMIT 1";
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        if let Some(id) = sqlx::query_scalar(sql).fetch_optional(pool(books)).await.unwrap() {
            return id;
        }
        assert!(Instant::now() < deadline, "the settler never waited");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One sale in the books, another on its way, and a stranger who holds the margin's row.
struct Blocked {
    stranger: MySqlConnection,
    journal: Journal,
    settling: tokio::task::JoinHandle<Result<capgate::ledger::Settled, SettleError>>,
}

async fn block(books: &Arc<Books>) -> Blocked {
    let journal = Journal::default();
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    books.settle_all(&journal, 100).await;
    let mut stranger = MySqlConnection::connect(&books.place).await.unwrap();
    stranger.execute("BEGIN").await.unwrap();
    // InnoDB undoes whoever changed fewer rows: these make it the settler.
    let rows: Vec<_> = (0..500).map(|index| format!("('heavy{index}')")).collect();
    let sql = format!("INSERT INTO paused_buyers (buyer_id) VALUES {}", rows.join(","));
    stranger.execute(sql.as_str()).await.unwrap();
    stranger.execute("UPDATE balances SET balance_micros = balance_micros + 0 WHERE account = 'margin'").await.unwrap();
    stranger.execute("SELECT * FROM balances WHERE account = 'margin' FOR UPDATE").await.unwrap();
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    let (ledger, source) = (books.ledger.clone(), journal.clone());
    let settling = tokio::spawn(async move { ledger.settle(&source, 100).await });
    until("the settler at the locked row", || is_window_locked(books)).await;
    Blocked { stranger, journal, settling }
}

pub async fn sales_are_booked_once(books: &Books, count: u64) {
    let totals = books.ledger.totals().await.unwrap();
    assert_eq!(totals.leads, [("sold".to_owned(), count)]);
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    let count = i64::try_from(count).unwrap();
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM attempts").await, count);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 3 * count);
    assert_eq!(books.raw.number("SELECT used FROM cap_usage WHERE window_start > '1970-01-02'").await, count);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters").await, 0);
}

async fn both_sales_are_booked_once(books: &Books) {
    sales_are_booked_once(books, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f68_a_deadlock_restarts_the_whole_transaction() {
    run(open().await, |books| async move {
        let mut blocked = block(&books).await;
        let tries = blocked.journal.reads();
        // The settler holds this window's row and waits for the stranger: now they wait for each other.
        blocked.stranger.execute("UPDATE cap_usage SET used = used + 0 WHERE buyer_id = 'sunco'").await.unwrap();
        blocked.stranger.execute("SELECT * FROM cap_usage FOR UPDATE").await.unwrap();
        blocked.stranger.execute("COMMIT").await.unwrap();
        let settled = blocked.settling.await.unwrap().unwrap();
        assert_eq!(settled.entries, 3);
        assert!(blocked.journal.reads() > tries, "it was not restarted: there was no deadlock");
        both_sales_are_booked_once(&books).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f69_a_lock_wait_restarts_the_whole_transaction() {
    run(open().await, |books| async move {
        let mut blocked = block(&books).await;
        let tries = blocked.journal.reads();
        until("the second try", async || blocked.journal.reads() > tries).await;
        // Half a batch was written before the wait; nobody may see any of it.
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 1);
        blocked.stranger.execute("ROLLBACK").await.unwrap();
        assert_eq!(blocked.settling.await.unwrap().unwrap().entries, 3);
        both_sales_are_booked_once(&books).await;
    })
    .await;
}

/// What the proxy does to the next COMMIT.
const PASS: u8 = 0;
const CUT_BEFORE: u8 = 1;
const CUT_DURING: u8 = 2;
const CUT_AFTER: u8 = 3;

/// A proxy before the server that can cut a connection around COMMIT. Answers its port.
async fn proxy(mode: Arc<AtomicU8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = server().rsplit('@').next().unwrap().to_owned();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(relay(client, server, mode.clone()));
        }
    });
    port
}

async fn relay(mut client: TcpStream, mut server: TcpStream, mode: Arc<AtomicU8>) {
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(count @ 1..) = read else { return };
                let is_commit = up[..count].ends_with(b"COMMIT");
                let mode = if is_commit { mode.swap(PASS, Ordering::SeqCst) } else { PASS };
                if mode == CUT_BEFORE || server.write_all(&up[..count]).await.is_err() {
                    return;
                }
                if mode == CUT_DURING {
                    // On its way, and nobody waits for what becomes of it.
                    return;
                }
                if mode == CUT_AFTER {
                    // The server's word that it is done; the client never hears it.
                    let _ = server.read(&mut down).await;
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(count @ 1..) = read else { return };
                if client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_connection_lost_around_commit_may_be_repeated() {
    run(open().await, |books| async move {
        let mode = Arc::new(AtomicU8::new(PASS));
        let port = proxy(mode.clone()).await;
        let name = books.place.rsplit('/').next().unwrap();
        // In the clear, so that the proxy sees the statement.
        let url = format!("mysql://root@127.0.0.1:{port}/{name}?ssl-mode=DISABLED");
        let ledger = open_ledger(&url).await;
        let journal = Journal::default();
        for (cut, sales_after) in [(CUT_BEFORE, [0, 0]), (CUT_DURING, [1, 2]), (CUT_AFTER, [3, 3])] {
            journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
            mode.store(cut, Ordering::SeqCst);
            let result = ledger.settle(&journal, 100).await;
            assert!(matches!(result, Err(SettleError::Ledger(LedgerError::MaybeDone(_)))), "cut {cut}: {result:?}");
            // All of the batch or nothing of it; which one is known only to the server.
            let sales = books.raw.number("SELECT COUNT(*) FROM leads").await;
            assert!(sales_after.contains(&sales), "cut {cut}: {sales} sales");
            // In one statement: the commit may come between two.
            let odd = "SELECT (SELECT COUNT(*) FROM entries) - 3 * (SELECT COUNT(*) FROM leads)";
            assert_eq!(books.raw.number(odd).await, 0, "cut {cut}");
            // Whether it had happened or not, asking again ends the same.
            books.put_marks_back().await;
            until("the marks are free", async || {
                ledger.settle(&journal, 100).await.is_ok_and(|settled| settled.entries > 0)
            })
            .await;
        }
        sales_are_booked_once(&books, 3).await;
        ledger.shut_down().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f70_a_connection_killed_in_mid_batch_leaves_nothing() {
    run(open().await, |books| async move {
        let mut blocked = block(&books).await;
        let id = busy_connection(&books).await;
        pool(&books).execute(format!("KILL {id}").as_str()).await.unwrap();
        let result = blocked.settling.await.unwrap();
        assert!(matches!(result, Err(SettleError::Ledger(LedgerError::NotDone(_)))), "{result:?}");
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 1);
        blocked.stranger.execute("ROLLBACK").await.unwrap();
        assert_eq!(books.ledger.settle(&blocked.journal, 100).await.unwrap().entries, 3);
        both_sales_are_booked_once(&books).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_the_connection_is_said_without_the_password() {
    let place = server().rsplit('@').next().unwrap().to_owned();
    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, word) in [
        (format!("mysql://root:canary@{closed}/books"), "refused"),
        ("mysql://root:canary@127.0.0.1:1:2/books".to_owned(), "should be"),
        (format!("mysql://nobody:canary@{place}/books"), "access denied"),
        (format!("mysql://root@{place}"), "no database"),
        (format!("mysql://root@{place}/capgate_test_never_made"), "does not exist"),
    ] {
        let started = Instant::now();
        let error = MysqlLedger::connect(&Secret::new(&url), 4).await.unwrap_err();
        assert!(error.to_string().contains(word), "{url}: {error}");
        assert!(!error.to_string().contains("canary"), "{error}");
        assert!(started.elapsed() < Duration::from_mins(1), "{url}");
    }
}

#[tokio::test]
async fn every_session_is_strict_and_reads_utc() {
    let books = open().await;
    books.ledger.migrate().await.unwrap();
    books.ledger.marks(PARTITIONS).await.unwrap();
    let mut connection = MySqlConnection::connect(&books.place).await.unwrap();
    // A server that is forgiving and in another zone by default must not change what the ledger does.
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()";
    let sessions: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap();
    assert!(sessions > 1);
    let overlong = capgate::domain::id::BuyerId::new(&"x".repeat(64)).unwrap();
    connection.execute("ALTER TABLE paused_buyers MODIFY buyer_id VARCHAR(10) NOT NULL").await.unwrap();
    assert!(books.ledger.set_paused(&overlong, true).await.is_err(), "an id was cut to fit");
    assert_eq!(books.ledger.paused_buyers().await.unwrap(), []);
    connection.execute("ALTER TABLE paused_buyers MODIFY buyer_id VARCHAR(64) NOT NULL").await.unwrap();
    books.ledger.set_paused(&overlong, true).await.unwrap();
    let sql = "SELECT CAST(ABS(TIMESTAMPDIFF(SECOND, paused_at, UTC_TIMESTAMP())) AS SIGNED) FROM paused_buyers";
    assert!(books.raw.number(sql).await < 60);
    connection.close().await.unwrap();
    books.ledger.shut_down().await;
    remove(&books).await;
}
