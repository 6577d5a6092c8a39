//! Reconciliation of a whole gateway: nothing is found where nothing is wrong, and what a hand has spoilt is put right.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::Partition;
use capgate::settle::reconcile::reconcile;
use serde_json::Value;
use sqlx::Connection as _;

use crate::headline::{ROUGH, SHORT_LATE, behaviours, burst_of, rough_buyers};
use crate::support::{BuyerLine, Gateway, Place, client, get, lead, leads, post_until_taken, routing, until};

const SUNCO_DAY: &str = "buyer_id = 'sunco' AND cap_id = 'day'";

/// Runs a statement in the books, past the gateway.
pub async fn run_sql(place: &Place, sql: &str) {
    let url = &place.backing.ledger_url;
    if url.starts_with("sqlite:") {
        let mut books = sqlx::SqliteConnection::connect(url).await.expect("the books open");
        sqlx::query(sql).execute(&mut books).await.expect("the statement runs");
    } else {
        let mut books = sqlx::MySqlConnection::connect(url).await.expect("the books open");
        sqlx::query(sql).execute(&mut books).await.expect("the statement runs");
    }
}

/// The one number of a query.
pub async fn number(place: &Place, sql: &str) -> i64 {
    let url = &place.backing.ledger_url;
    if url.starts_with("sqlite:") {
        let mut books = sqlx::SqliteConnection::connect(url).await.expect("the books open");
        sqlx::query_scalar(sql).fetch_one(&mut books).await.expect("a number")
    } else {
        let mut books = sqlx::MySqlConnection::connect(url).await.expect("the books open");
        sqlx::query_scalar(sql).fetch_one(&mut books).await.expect("a number")
    }
}

async fn recorded(place: &Place, action: &str) -> i64 {
    number(place, &format!("SELECT COUNT(*) FROM reconcile_differences WHERE {SUNCO_DAY} AND action = '{action}'"))
        .await
}

/// Runs for as long as leads come, on every gateway: whatever the traffic does, nothing may be found. `CAPGATE_TEST_BURSTS` sets
/// how many times 1,000 leads in five seconds.
async fn quiet_under_load(place: Place, gateways: Vec<Gateway>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let reconcilers: Vec<_> = gateways
        .iter()
        .map(|gateway| {
            let (gateway, is_over) = (gateway.app.gateway.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut compared = 0;
                let mut pause = tokio::time::interval(Duration::from_millis(50));
                while !is_over.load(Ordering::Relaxed) {
                    pause.tick().await;
                    let report = reconcile(&gateway, false).await.expect("store and ledger are there");
                    assert_eq!(report.differences, [], "nothing is wrong");
                    compared += report.compared;
                }
                compared
            })
        })
        .collect();
    let addresses: Vec<_> = gateways.iter().map(|gateway| gateway.intake).collect();
    let bursts = std::env::var("CAPGATE_TEST_BURSTS").map_or(1, |text| text.parse().expect("a number"));
    for number in 0..bursts {
        let (words, _) = burst_of(format!("burst{number}").leak(), &addresses).await;
        assert_eq!(words.len(), 1_000);
    }
    let ledger = place.ledger().await;
    until("every lead is settled", async || {
        let totals = ledger.totals().await.expect("totals");
        leads(&totals, "sold") + leads(&totals, "unsold") == 1_000 * bursts
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    for reconciler in reconcilers {
        let compared = reconciler.await.expect("it found nothing");
        println!("{compared} counters compared under load");
        assert!(compared > 20, "{compared}");
    }
    let report = reconcile(&gateways[0].app.gateway, false).await.expect("store and ledger are there");
    assert!(report.is_clean() && report.compared == 2, "{report:?}");
    assert_eq!(number(&place, "SELECT COUNT(*) FROM reconcile_differences").await, 0);
    for gateway in gateways {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f81_reconcile_under_full_load_changes_nothing_embedded() {
    let stub = StubBuyer::on_loopback(behaviours(&[ROUGH]), 7).await.expect("a stub buyer");
    let place = Place::embedded();
    place.write_routing(&rough_buyers(&stub));
    let gateway = place.start(SHORT_LATE).await;
    quiet_under_load(place, vec![gateway]).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f81_reconcile_under_full_load_changes_nothing_on_servers() {
    let stub = StubBuyer::on_loopback(behaviours(&[ROUGH]), 7).await.expect("a stub buyer");
    let place = Place::servers().await;
    place.write_routing(&rough_buyers(&stub));
    let gateways = vec![place.start(SHORT_LATE).await, place.start(SHORT_LATE).await, place.start(SHORT_LATE).await];
    quiet_under_load(place, gateways).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f81_reconcile_under_full_load_changes_nothing_on_a_cluster() {
    let stub = StubBuyer::on_loopback(behaviours(&[ROUGH]), 7).await.expect("a stub buyer");
    let place = Place::cluster().await;
    place.write_routing(&rough_buyers(&stub));
    let gateways = vec![place.start(SHORT_LATE).await, place.start(SHORT_LATE).await, place.start(SHORT_LATE).await];
    quiet_under_load(place, gateways).await;
}

/// A counter that a hand has changed in the store is put right to the unit, and no other is touched.
#[cfg(feature = "server-tests")]
async fn counter_changed_by_hand(place: Place) {
    use crate::cluster_support::{nodes_of, run_on_owner};
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    place.write_routing(&one_buyer(&stub, "[[buyer.cap]]\nwindow = \"hour\"\nleads = 100"));
    let gateway = place.start("").await;
    sell(&place, &gateway, 0..10).await;
    let url = &place.backing.store_url;
    let mut keys = Vec::new();
    for node in nodes_of(url) {
        keys.extend(crate::redis_support::Connection::open(&node).await.keys_of(&place.backing.prefix).await);
    }
    let key = keys.iter().find(|key| key.contains(":cap:sunco:day:")).expect("the counter");
    for (by, action) in [(3, "lower"), (-4, "raise")] {
        let (day, hour) = (used(&gateway, "day").await, used(&gateway, "hour").await);
        assert_eq!(run_on_owner(url, &["INCRBY", key, &by.to_string()]).await.int(), day + by);
        assert_eq!(only(&ask(&gateway, "").await), (by.to_string(), action.into(), true));
        assert_eq!((used(&gateway, "day").await, used(&gateway, "hour").await), (day, hour));
        assert_eq!(ask(&gateway, "").await["differences"], serde_json::json!([]));
    }
    gateway.app.shut_down().await;
    place.backing.clean().await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread")]
async fn f84_a_counter_changed_by_hand_is_put_right_on_servers() {
    counter_changed_by_hand(Place::servers().await).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread")]
async fn f84_a_counter_changed_by_hand_is_put_right_on_a_cluster() {
    counter_changed_by_hand(Place::cluster().await).await;
}

fn one_buyer(stub: &StubBuyer, more: &str) -> String {
    let caps = format!("[[buyer.cap]]\nwindow = \"day\"\nleads = 100\n{more}");
    routing(&[BuyerLine { id: "sunco", url: stub.url("/b"), more: &caps, price: "10.00" }])
}

/// Sells leads and waits until the books have them.
async fn sell(place: &Place, gateway: &Gateway, numbers: std::ops::Range<u32>) {
    for number in numbers.clone() {
        let answer = post_until_taken(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let ledger = place.ledger().await;
    until("the leads are in the books", async || {
        leads(&ledger.totals().await.expect("totals"), "sold") == u64::from(numbers.end)
    })
    .await;
    ledger.shut_down().await;
}

async fn used(gateway: &Gateway, cap: &str) -> i64 {
    let caps = get(&client(), gateway.admin, "/v1/caps").await.json();
    let row = caps["caps"].as_array().expect("caps").iter().find(|row| row["cap"] == cap).expect("the cap").clone();
    row["used"].as_str().expect("a count").parse().expect("a number")
}

async fn ask(gateway: &Gateway, query: &str) -> Value {
    let url = format!("http://{}/v1/reconcile{query}", gateway.admin);
    let answer = client().post(url).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON")
}

/// The only difference of a report.
fn only(report: &Value) -> (String, String, bool) {
    let rows = report["differences"].as_array().expect("differences");
    assert_eq!(rows.len(), 1, "{report}");
    let text = |name: &str| rows[0][name].as_str().expect("text").to_owned();
    assert_eq!((text("buyer"), text("cap")), ("sunco".into(), "day".into()));
    (text("difference"), text("action"), rows[0]["repaired"] == true)
}

/// What `/metrics` says of the last difference.
async fn gauge(gateway: &Gateway) -> String {
    let page = String::from_utf8_lossy(&get(&client(), gateway.admin, "/metrics").await.bytes).into_owned();
    let name = "capgate_reconcile_difference_units{buyer=\"sunco\",cap=\"day\"} ";
    page.lines().find_map(|line| line.strip_prefix(name)).expect("the gauge").to_owned()
}

fn command(place: &Place, gateway: &Gateway, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_capgate"))
        .arg("reconcile")
        .args(args)
        .args(["--config".as_ref(), place.dir.path().join("capgate.toml").as_os_str()])
        .args(["--admin", &format!("http://{}", gateway.admin)])
        .output()
        .expect("capgate runs")
}

/// Makes the counter too high by `by`: in Redis by hand; where the counter cannot be reached, by taking it from the books.
async fn spoil(place: &Place, by: i64) {
    #[cfg(feature = "server-tests")]
    if place.backing.store_url.starts_with("redis:") {
        let mut raw = crate::redis_support::Connection::open(&place.backing.store_url).await;
        let keys = raw.keys_of(&place.backing.prefix).await;
        let key = keys.iter().find(|key| key.contains(":cap:sunco:day:")).expect("the counter");
        raw.run(&["INCRBY", key, &by.to_string()]).await.int();
        return;
    }
    run_sql(place, &format!("UPDATE cap_usage SET used = used - {by} WHERE {SUNCO_DAY}")).await;
}

async fn spoilt_counters(place: Place, stub: StubBuyer) {
    place.write_routing(&one_buyer(&stub, ""));
    let gateway = place.start("").await;
    sell(&place, &gateway, 0..10).await;
    let clean = ask(&gateway, "").await;
    assert_eq!(
        (clean["differences"].clone(), clean["skipped"].clone()),
        (serde_json::json!([]), serde_json::json!([]))
    );
    assert_eq!(command(&place, &gateway, &[]).status.code(), Some(0));

    // Too high, within the limit: seen without a trace, then put right to the unit.
    spoil(&place, 3).await;
    let before = used(&gateway, "day").await;
    assert_eq!(only(&ask(&gateway, "?dry_run=1").await), ("3".into(), "lower".into(), false));
    let output = command(&place, &gateway, &["--dry-run", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((only(&json).0.as_str(), &json["dry_run"]), ("3", &Value::Bool(true)));
    assert_eq!(used(&gateway, "day").await, before, "a dry run writes nothing");
    assert_eq!(number(&place, "SELECT COUNT(*) FROM reconcile_differences").await, 0, "a dry run writes nothing");
    let output = command(&place, &gateway, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("repaired"), "{output:?}");
    assert_eq!((used(&gateway, "day").await, recorded(&place, "lower").await), (before - 3, 1));
    assert_eq!(gauge(&gateway).await, "3");
    assert_eq!(command(&place, &gateway, &[]).status.code(), Some(0));
    assert_eq!(gauge(&gateway).await, "0");

    // Too low: raised, and two who ask at once do it once.
    spoil(&place, -4).await;
    let before = used(&gateway, "day").await;
    let gateways = [&gateway.app.gateway; 2];
    let (one, two) = tokio::join!(reconcile(gateways[0], false), reconcile(gateways[1], false));
    assert!(one.expect("a report").differences.len() + two.expect("a report").differences.len() >= 1);
    assert_eq!(used(&gateway, "day").await, before + 4);
    assert!(recorded(&place, "raise").await >= 1);
    assert_eq!(ask(&gateway, "").await["differences"], serde_json::json!([]));

    // Too high by more than one run may lower: told and written down each time, and not touched.
    spoil(&place, 8).await;
    let before = used(&gateway, "day").await;
    for run in 1..=2 {
        assert_eq!(only(&ask(&gateway, "").await), ("8".into(), "keep_limit".into(), false));
        assert_eq!((used(&gateway, "day").await, recorded(&place, "keep_limit").await), (before, run));
    }
    spoil(&place, -6).await;

    // Too high, but the books may lack a unit that became a dead letter.
    let partition = Partition::of("sunco", 16).0;
    let letter = "INSERT INTO dead_letters (partition_id, life, entry_ms, entry_seq, reason)";
    run_sql(&place, &format!("{letter} VALUES ({partition}, 1, 1, 1, 'for the test')")).await;
    let before = used(&gateway, "day").await;
    assert_eq!(only(&ask(&gateway, "").await), ("2".into(), "keep_unproven".into(), false));
    assert_eq!(used(&gateway, "day").await, before);
    run_sql(&place, "DELETE FROM dead_letters").await;
    assert_eq!(only(&ask(&gateway, "").await), ("2".into(), "lower".into(), true));
    assert_eq!(used(&gateway, "day").await, before - 2);
    gateway.app.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f84_a_spoilt_counter_is_recorded_and_repaired_embedded() {
    spoilt_counters(Place::embedded(), StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer")).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread")]
async fn f84_a_spoilt_counter_is_recorded_and_repaired_on_servers() {
    spoilt_counters(Place::servers().await, StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer")).await;
}

/// A cap that is new in mid-window starts from what was sold before it: that past is in the books from then on, so
/// reconciliation leaves it, and a counter that is lost comes back with it.
async fn new_cap(place: Place, stub: StubBuyer) {
    place.write_routing(&one_buyer(&stub, ""));
    let gateway = place.start("").await;
    sell(&place, &gateway, 0..8).await;
    place.write_routing(&one_buyer(&stub, "[[buyer.cap]]\nwindow = \"month\"\nleads = 100"));
    let reloaded = client().post(format!("http://{}/v1/reload", gateway.admin)).send().await.expect("an answer");
    assert_eq!(reloaded.status().as_u16(), 200);
    sell(&place, &gateway, 8..9).await;
    assert_eq!((used(&gateway, "month").await, used(&gateway, "day").await), (9, 9));
    let report = ask(&gateway, "").await;
    assert_eq!((&report["differences"], &report["compared"]), (&serde_json::json!([]), &serde_json::json!(2)));
    assert_eq!(used(&gateway, "month").await, 9, "the past of a new cap is not taken away");
    assert_eq!(number(&place, "SELECT used FROM cap_usage WHERE cap_id = 'month'").await, 9);
    #[cfg(feature = "server-tests")]
    if place.backing.store_url.starts_with("redis:") {
        let mut raw = crate::redis_support::Connection::open(&place.backing.store_url).await;
        let keys = raw.keys_of(&place.backing.prefix).await;
        let key = keys.iter().find(|key| key.contains(":cap:sunco:month:")).expect("the counter");
        assert_eq!(raw.run(&["DEL", key]).await.int(), 1);
        let report = ask(&gateway, "?dry_run=1").await;
        assert_eq!((&report["differences"], &report["unseeded"]), (&serde_json::json!([]), &serde_json::json!(1)));
        assert_eq!(used(&gateway, "month").await, 0, "a dry run seeds nothing");
        assert_eq!(ask(&gateway, "").await["unseeded"], 1);
        assert_eq!(used(&gateway, "month").await, 9);
    }
    gateway.app.shut_down().await;
    if place.backing.store_url.starts_with("embedded:") {
        // Rebuilt from nothing but the books.
        std::fs::remove_file(place.dir.path().join("journal.db")).expect("the journal file");
    }
    let gateway = place.start("").await;
    sell(&place, &gateway, 9..10).await;
    assert_eq!((used(&gateway, "month").await, used(&gateway, "day").await), (10, 10));
    assert_eq!(ask(&gateway, "").await["differences"], serde_json::json!([]));
    gateway.app.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_the_past_of_a_new_cap_stands_in_the_books_embedded() {
    new_cap(Place::embedded(), StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer")).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread")]
async fn p2_the_past_of_a_new_cap_stands_in_the_books_on_servers() {
    new_cap(Place::servers().await, StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer")).await;
}
