//! The moments between a buyer's yes, the publisher's answer and the books: crashes, refusals and sleep in each.

use std::sync::Arc;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::LeadId;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use parking_lot::Mutex;

use crate::headline::behaviours;
use crate::support::{BuyerLine, Place, Process, client, lead, routing, try_post, until};
#[cfg(feature = "server-tests")]
use crate::{
    reconcile::number,
    redis_support::Raw,
    server::Server,
    support::{Proxy, attempts, closed, get, leads, post_until_taken},
};

/// Short times, so that recovery is due within seconds.
const QUICK: &str =
    "[forward]\nallow_private_addresses = true\ntimeout_ms = 1000\nlate_answer_ms = 300\nlead_deadline_ms = 2000";

fn one_buyer(stub: &StubBuyer) -> String {
    let more = "timeout_ms = 1000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 100000";
    routing(&[BuyerLine { id: "sunco", url: stub.url("/b"), more, price: "10.00" }])
}

/// Publishers whose gateway dies.
fn post_some(
    gateway: &Process,
    round: u32,
    acknowledged: &Arc<Mutex<Vec<LeadId>>>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let post_one = |index: u32| {
        let (intake, acknowledged) = (gateway.intake, acknowledged.clone());
        tokio::spawn(async move {
            let number = round * 4 + index;
            if let Some(answer) = try_post(&client(), intake, &format!("k{number}"), &lead(number)).await
                && answer.status == 200
            {
                acknowledged.lock().push(answer.lead());
            }
        })
    };
    (0..4).map(post_one).collect()
}

/// F66: killed at the very moment of the buyer's yes, or of the first 2xx, in turn. `CAPGATE_TEST_CRASHES` sets how often.
async fn killed_around_the_answer(place: Place) {
    let crashes = std::env::var("CAPGATE_TEST_CRASHES").map_or(8, |text| text.parse().expect("a number"));
    let stub = StubBuyer::on_loopback(behaviours(&["/b=accept"]), 1).await.expect("a stub buyer");
    place.write_routing(&one_buyer(&stub));
    let mut gateway = place.spawn("gateway.toml", QUICK);
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for round in 0..crashes {
        gateway.until_ready().await;
        let (said_yes, answered) = (stub.stats("/b").accepted, acknowledged.lock().len());
        let posts = post_some(&gateway, round, &acknowledged);
        let has_come =
            || if round % 2 == 0 { stub.stats("/b").accepted > said_yes } else { acknowledged.lock().len() > answered };
        let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
        while !has_come() {
            assert!(tokio::time::Instant::now() < deadline, "round {round}: nothing came");
            tokio::task::yield_now().await;
        }
        gateway.kill();
        for post in posts {
            post.await.expect("a publisher ends well");
        }
        gateway.start();
    }
    gateway.until_ready().await;
    let ledger = place.ledger().await;
    let acknowledged = std::mem::take(&mut *acknowledged.lock());
    for lead in &acknowledged {
        until(
            &format!("P5: acknowledged lead {lead} has its verdict in the books"),
            async || matches!(ledger.lead(*lead).await, Ok(Some(row)) if row.status != LeadStatus::Pending),
        )
        .await;
    }
    let accepted = stub.accepted_ids("/b");
    let mut doubts = 0;
    for id in &accepted {
        let lead: LeadId = id.parse().expect("a lead's id");
        let mut outcome = None;
        until(&format!("P5: the yes to {id} has its row"), async || {
            let detail = ledger.lead_detail(lead).await.ok().flatten();
            outcome = detail.and_then(|detail| detail.attempts.first().map(|attempt| attempt.outcome));
            outcome.is_some()
        })
        .await;
        doubts += u32::from(outcome == Some(AttemptOutcome::InDoubt));
        assert!(
            matches!(outcome, Some(AttemptOutcome::Accepted | AttemptOutcome::LateAccepted | AttemptOutcome::InDoubt)),
            "{id}: {outcome:?}"
        );
    }
    assert_eq!(stub.stats("/b").duplicates, 0, "P4");
    assert!(!acknowledged.is_empty() && !accepted.is_empty());
    println!(
        "{crashes} crashes: {} acknowledged, {} accepted, {doubts} of them in doubt",
        acknowledged.len(),
        accepted.len()
    );
    drop(gateway);
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_killed_at_the_yes_and_at_the_answer_embedded() {
    killed_around_the_answer(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f66_killed_at_the_yes_and_at_the_answer_on_servers() {
    killed_around_the_answer(Place::servers().await).await;
}

#[cfg(feature = "server-tests")]
mod on_servers {
    use super::*;

    /// The buyer is asked, the store stops taking writes, the buyer says yes. The sale waits in the gateway and is booked once.
    async fn refused_after_the_yes(strike: impl AsyncFn(bool), server: &Server, through: String) {
        let place = Place::on_redis(through).await;
        let stub = StubBuyer::on_loopback(behaviours(&["/b=delay:700:accept"]), 1).await.expect("a stub buyer");
        let more = "timeout_ms = 20000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 1";
        place.write_routing(&routing(&[BuyerLine { id: "sunco", url: stub.url("/b"), more, price: "10.00" }]));
        let gateway = place.start("").await;
        let posted = tokio::spawn({
            let intake = gateway.intake;
            async move { post_until_taken(&client(), intake, "k", &lead(1)).await }
        });
        until("the buyer is asked", async || stub.stats("/b").received == 1).await;
        strike(true).await;
        until("the buyer says yes", async || stub.stats("/b").accepted == 1).await;
        let answer = posted.await.expect("an answer");
        assert_eq!((answer.status, answer.text("status")), (200, "pending".to_owned()), "P5: it was taken: {answer:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ledger = place.ledger().await;
        let before = ledger.lead_detail(answer.lead()).await.expect("the books answer").expect("its row");
        assert_eq!((before.attempts.len(), before.lead.status), (0, LeadStatus::Pending), "the fault came too late");
        strike(false).await;
        let after = closed(&ledger, answer.lead()).await;
        assert_eq!((after.lead.status, after.attempts.len(), after.entries.len()), (LeadStatus::Sold, 1, 3));
        assert_eq!(after.attempts[0].outcome, AttemptOutcome::Accepted);
        assert_eq!((stub.stats("/b").received, stub.stats("/b").duplicates), (1, 0), "P4");
        until("its unit is used, not held", async || {
            let caps = get(&client(), gateway.admin, "/v1/caps").await.json();
            (caps["caps"][0]["used"].as_str(), caps["caps"][0]["open"].as_str()) == (Some("1"), Some("0"))
        })
        .await;
        assert_eq!(server.connection().await.run(&["PING"]).await, Raw::Text("PONG".into()));
        gateway.app.shut_down().await;
        ledger.shut_down().await;
        place.backing.clean().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f67_a_store_that_refuses_writes_after_the_yes_gets_the_sale_later() {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        let strike = async |is_on: bool| {
            // Refuses every write as long as there is no copy, which there never is.
            let copies = if is_on { "1" } else { "0" };
            let set = server.connection().await.run(&["CONFIG", "SET", "min-replicas-to-write", copies]).await;
            assert_eq!(set, Raw::Text("OK".into()));
        };
        refused_after_the_yes(strike, &server, server.url()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f67_a_store_that_is_gone_after_the_yes_gets_the_sale_later() {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        let (proxy, through) = Proxy::before(&server.url()).await;
        let strike = async |is_on: bool| if is_on { proxy.cut() } else { proxy.mend() };
        refused_after_the_yes(strike, &server, through).await;
    }

    /// A gateway in the middle of settling holds all marks and waits for a row that a stranger has.
    struct InTheMiddle {
        place: Place,
        stub: StubBuyer,
        first: Process,
        stranger: sqlx::MySqlConnection,
        posted: u64,
    }

    async fn run_sql(connection: &mut sqlx::MySqlConnection, sql: &'static str) {
        sqlx::raw_sql(sql).execute(connection).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn in_the_middle() -> InTheMiddle {
        use sqlx::Connection as _;
        let place = Place::servers().await;
        let stub = StubBuyer::on_loopback(behaviours(&["/b=accept"]), 1).await.expect("a stub buyer");
        place.write_routing(&one_buyer(&stub));
        let first = place.spawn("first.toml", QUICK);
        first.until_ready().await;
        post_until_taken(&client(), first.intake, "first", &lead(0)).await;
        until("the margin has a balance", async || number(&place, "SELECT COUNT(*) FROM balances").await == 3).await;
        let mut stranger = sqlx::MySqlConnection::connect(&place.backing.ledger_url).await.expect("the books open");
        run_sql(&mut stranger, "BEGIN").await;
        run_sql(&mut stranger, "SELECT balance_micros FROM balances WHERE account = 'margin' FOR UPDATE").await;
        for number in 1..=200 {
            let answer = post_until_taken(&client(), first.intake, &format!("k{number}"), &lead(number)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let held =
            "SELECT 16 - COUNT(*) FROM (SELECT partition_id FROM settlement_marks FOR UPDATE SKIP LOCKED) AS free";
        until("the marks are held", async || number(&place, held).await > 0).await;
        InTheMiddle { place, stub, first, stranger, posted: 201 }
    }

    async fn everything_is_there_once(middle: &InTheMiddle) {
        let InTheMiddle { place, stub, posted, .. } = middle;
        let ledger = place.ledger().await;
        let mut totals = ledger.totals().await.expect("totals");
        until("every lead has its verdict in the books", async || {
            totals = ledger.totals().await.expect("totals");
            leads(&totals, "pending") == 0 && leads(&totals, "sold") + leads(&totals, "unsold") == *posted
        })
        .await;
        assert_eq!(attempts(&totals, "sunco", "accepted"), stub.stats("/b").accepted, "P5: {totals:?}");
        assert_eq!(stub.stats("/b").duplicates, 0, "P4");
        assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
        let entries = number(place, "SELECT COUNT(*) FROM entries").await;
        assert_eq!(u64::try_from(entries), Ok(3 * stub.stats("/b").accepted));
        let used = number(place, "SELECT CAST(SUM(used) AS SIGNED) FROM cap_usage").await;
        assert_eq!(u64::try_from(used), Ok(stub.stats("/b").accepted), "P2");
        ledger.shut_down().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f77_a_settler_killed_in_mid_batch_leaves_its_work_to_another() {
        let mut middle = in_the_middle().await;
        let second = middle.place.spawn("second.toml", QUICK);
        second.until_ready().await;
        middle.first.kill();
        run_sql(&mut middle.stranger, "ROLLBACK").await;
        everything_is_there_once(&middle).await;
        drop(second);
        middle.place.backing.clean().await;
    }

    /// Asleep with the marks of all partitions in its hands: the server ends its session, another gateway settles, and what the
    /// sleeper does when it wakes up changes nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f77_a_settler_that_sleeps_in_mid_batch_holds_nobody_up_for_long() {
        let mut middle = in_the_middle().await;
        let second = middle.place.spawn("second.toml", QUICK);
        second.until_ready().await;
        middle.first.sh("kill -STOP");
        run_sql(&mut middle.stranger, "ROLLBACK").await;
        everything_is_there_once(&middle).await;
        middle.first.sh("kill -CONT");
        // Awake: it settles what comes next like any other.
        middle.posted += 1;
        post_until_taken(&client(), middle.first.intake, "awake", &lead(9)).await;
        everything_is_there_once(&middle).await;
        drop(second);
        middle.place.backing.clean().await;
    }

    /// Told to stop while the ledger hangs in the middle of a batch: the process ends in time, nothing is half done, and the
    /// next one settles the rest.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f71_stopped_while_the_ledger_hangs() {
        let mut place = Place::servers().await;
        let direct = place.backing.ledger_url.clone();
        let (proxy, through) = Proxy::before(&direct).await;
        let stub = StubBuyer::on_loopback(behaviours(&["/b=accept"]), 1).await.expect("a stub buyer");
        place.write_routing(&one_buyer(&stub));
        place.backing.ledger_url = through;
        let mut gateway = place.spawn("gateway.toml", QUICK);
        place.backing.ledger_url = direct;
        gateway.until_ready().await;
        for number in 0..50 {
            assert_eq!(
                post_until_taken(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await.status,
                200
            );
            if number == 20 {
                proxy.stall();
            }
        }
        let (took, ended_well) = tokio::task::block_in_place(|| gateway.terminate());
        println!("ended after {took:?}");
        assert!(ended_well);
        assert!(took < Duration::from_secs(40), "the end took {took:?}");
        proxy.mend();
        gateway.start();
        gateway.until_ready().await;
        let ledger = place.ledger().await;
        let mut totals = ledger.totals().await.expect("totals");
        until("every lead has its verdict in the books", async || {
            totals = ledger.totals().await.expect("totals");
            leads(&totals, "sold") == 50
        })
        .await;
        assert_eq!(attempts(&totals, "sunco", "accepted"), 50, "{totals:?}");
        assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
        assert_eq!(number(&place, "SELECT COUNT(*) FROM entries").await, 150);
        ledger.shut_down().await;
        drop(gateway);
        place.backing.clean().await;
    }
}
