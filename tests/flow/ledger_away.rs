//! The books are away, hang, or have no room while leads come: intake goes on as long as the journal has room, then refuses,
//! and goes on by itself afterwards; every event is in the books exactly once.
//!
//! `CAPGATE_TEST_OUTAGE_SECONDS` and `CAPGATE_TEST_OUTAGE_RATE` (leads per second) make the outage longer and the load higher.

use std::process::Command;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use sqlx::Connection as _;

use crate::headline::behaviours;
use crate::reconcile::number;
#[cfg(feature = "server-tests")]
use crate::support::Proxy;
use crate::support::{
    Answer, BuyerLine, Place, Process, attempts, client, get, lead, leads, post, post_until_taken, routing, until,
};

/// On a busy machine a buyer that answers at once may seem to time out.
const PATIENT: &str = "[forward]\nallow_private_addresses = true\ntimeout_ms = 6000\nlate_answer_ms = 500";

const BUYERS: [(&str, &str, i64, i64); 3] = [
    ("first", "25.00", 25_000_000, 17_500_000),
    ("second", "12.345678", 12_345_678, 8_641_974),
    ("third", "1.00", 1_000_000, 700_000),
];

async fn stub() -> StubBuyer {
    let paths = ["/first=delay:5:accept", "/second=random:accept=80,decline=20", "/third=accept"];
    StubBuyer::on_loopback(behaviours(&paths), 1).await.expect("a stub buyer")
}

fn buyers(stub: &StubBuyer, first_cap: u64) -> String {
    let cap = format!("timeout_ms = 6000\n[[buyer.cap]]\nwindow = \"day\"\nleads = {first_cap}");
    let line = |index: usize, more| {
        let (id, price, ..) = BUYERS[index];
        BuyerLine { id, url: stub.url(&format!("/{id}")), more, price }
    };
    routing(&[line(0, &cap), line(1, "timeout_ms = 6000"), line(2, "timeout_ms = 6000")])
}

#[cfg(feature = "server-tests")]
fn from_env(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

async fn metric(gateway: &Process, name: &str) -> f64 {
    let text = get(&client(), gateway.admin, "/metrics").await;
    let text = String::from_utf8_lossy(&text.bytes).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing")).parse().expect("a number")
}

/// Waits until the books have a verdict for so many leads, and compares them with what the buyers know: every event once.
async fn books_are_exact(place: &Place, gateway: &Process, stub: &StubBuyer, count: u64) {
    let ledger = place.ledger().await;
    let mut totals = ledger.totals().await.expect("totals");
    until("every lead has its verdict in the books", async || {
        totals = ledger.totals().await.expect("totals");
        leads(&totals, "sold") + leads(&totals, "unsold") >= count && leads(&totals, "pending") == 0
    })
    .await;
    until("the journal is empty", async || metric(gateway, "capgate_journal_entries").await == 0.0).await;
    totals = ledger.totals().await.expect("totals");
    assert_eq!(leads(&totals, "sold") + leads(&totals, "unsold"), count, "P3: one run each: {totals:?}");
    let balance = |account: &str| totals.balances.iter().find(|(a, ..)| a == account).map_or(0, |(.., micros)| *micros);
    let (mut sold, mut payout_all) = (0, 0);
    for (buyer, _, price, payout) in BUYERS {
        let at_buyer = stub.stats(&format!("/{buyer}"));
        assert_eq!(at_buyer.duplicates, 0, "P4: {buyer}");
        assert_eq!(attempts(&totals, buyer, "accepted"), at_buyer.accepted, "P5: {buyer}: {totals:?}");
        assert_eq!(attempts(&totals, buyer, "declined"), at_buyer.declined, "P5: {buyer}: {totals:?}");
        let accepted = i64::try_from(at_buyer.accepted).expect("a small number");
        assert_eq!(balance(&format!("buyer:{buyer}")), -accepted * price, "P6: {buyer}");
        payout_all += accepted * payout;
        sold += at_buyer.accepted;
    }
    assert_eq!(balance("publisher:acme"), payout_all, "P6");
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
    assert_eq!(leads(&totals, "sold"), sold);
    let count_of = async |sql: &str| u64::try_from(number(place, sql).await).expect("a count");
    assert_eq!(count_of("SELECT COUNT(*) FROM leads WHERE has_received = 1").await, count);
    assert_eq!(count_of("SELECT COUNT(*) FROM entries").await, 3 * sold);
    assert_eq!(count_of("SELECT COUNT(*) FROM dead_letters").await, 0);
    let used = "SELECT CAST(COALESCE(SUM(used), 0) AS SIGNED) FROM cap_usage WHERE buyer_id = 'first'";
    assert_eq!(count_of(used).await, stub.stats("/first").accepted, "P2");
    ledger.shut_down().await;
    let check = tokio::task::block_in_place(|| {
        Command::new(env!("CARGO_BIN_EXE_capgate"))
            .args(["ledger", "check", "--until", "2100-01-01", "--config"])
            .arg(&gateway.config)
            .output()
            .expect("capgate runs")
    });
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

/// What publishers saw.
#[cfg(feature = "server-tests")]
#[derive(Default)]
struct Seen {
    /// How long each answer took, refusals included, from the POST on.
    took: Vec<Duration>,
    /// Answers that were not confirmed: the lead was sent again with its key.
    refused: usize,
}

/// Leads at a steady rate, whatever the answers do.
#[cfg(feature = "server-tests")]
async fn load(intake: std::net::SocketAddr, rate: u32, count: u32) -> Seen {
    const CONNECTIONS: u32 = 50;
    let started = tokio::time::Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..CONNECTIONS {
        tasks.spawn(async move {
            let (client, mut seen) = (client(), Seen::default());
            for number in (connection..count).step_by(CONNECTIONS as usize) {
                tokio::time::sleep_until(started + Duration::from_secs(1) * number / rate).await;
                loop {
                    let answer = post(&client, intake, &format!("k{number}"), &lead(number % 10_000)).await;
                    seen.took.push(answer.took);
                    if !is_refusal(&answer) {
                        break;
                    }
                    seen.refused += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            seen
        });
    }
    let mut all = Seen::default();
    for seen in tasks.join_all().await {
        all.took.extend(seen.took);
        all.refused += seen.refused;
    }
    all.took.sort_unstable();
    all
}

/// P5, F76: two seconds of peace, an outage, two seconds of peace.
#[cfg(feature = "server-tests")]
async fn away_under_load(default_seconds: u32, strike: fn(&Proxy)) {
    let seconds = from_env("CAPGATE_TEST_OUTAGE_SECONDS", default_seconds);
    let rate = from_env("CAPGATE_TEST_OUTAGE_RATE", 200);
    let count = rate * (seconds + 4);
    let mut place = Place::servers().await;
    let direct = place.backing.ledger_url.clone();
    let (proxy, through) = Proxy::before(&direct).await;
    let stub = stub().await;
    place.write_routing(&buyers(&stub, u64::from(count / 2)));
    // A busy machine is no store that is away.
    (place.backing.ledger_url, place.backing.store_more) = (through, "command_timeout_ms = 1000");
    let gateway = place.spawn("gateway.toml", PATIENT);
    place.backing.ledger_url = direct;
    gateway.until_ready().await;
    let load = tokio::spawn(load(gateway.intake, rate, count));
    tokio::time::sleep(Duration::from_secs(2)).await;
    strike(&proxy);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let waiting = metric(&gateway, "capgate_journal_entries").await;
    proxy.mend();
    let mended = std::time::Instant::now();
    let Seen { took, refused } = load.await.expect("the load ends");
    let [p50, p99, max] = [50, 99, 100].map(|percent| took[(took.len() - 1) * percent / 100]);
    println!(
        "{seconds} s without the ledger at {rate} leads per second, {waiting} events in the journal at its end: p50 {p50:?}, \
         p99 {p99:?}, max {max:?}, {refused} sent again"
    );
    assert!(waiting > 0.0, "the ledger was never away");
    // How fast is the machine's affair (`scripts/ledger-outage` measures it); but whoever waits for the ledger waits that long.
    assert!(p99 < Duration::from_secs(seconds.into()), "p50 {p50:?}, p99 {p99:?}");
    books_are_exact(&place, &gateway, &stub, u64::from(count)).await;
    println!("all in the books {:?} after the outage", mended.elapsed());
    drop(gateway);
    place.backing.clean().await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_p5_the_ledger_is_gone_under_load_on_servers() {
    away_under_load(10, Proxy::cut).await;
}

/// Sockets stay open and nothing answers: nobody but settlement waits for it.
#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_p5_the_ledger_hangs_under_load_on_servers() {
    away_under_load(6, Proxy::stall).await;
}

/// Leads that are posted after there was no room.
const MORE: u32 = 20;

/// What publishers saw before and after that.
struct Refusals {
    taken: u32,
    /// Of those that were posted after it.
    refused: u32,
}

fn is_refusal(answer: &Answer) -> bool {
    assert!([200, 503].contains(&answer.status), "{answer:?}");
    if answer.status == 503 {
        let seconds = answer.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds > 0), "{answer:?}");
        assert_eq!(answer.text("code"), "unavailable");
    }
    answer.status == 503
}

/// Posts until the gateway has no room and says so, and some more.
async fn post_until_full(gateway: &Process, body: impl Fn(u32) -> String) -> Refusals {
    let client = client();
    let is_full = async || get(&client, gateway.admin, "/readyz").await.status == 503;
    let mut taken = 0;
    loop {
        if !is_refusal(&post(&client, gateway.intake, &format!("k{taken}"), &body(taken)).await) {
            taken += 1;
            assert!(taken < 3_000, "the journal has no end");
        } else if is_full().await {
            break;
        } else {
            // A machine that is busy refuses a lead now and then: the publisher sends it again.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let mut refused = 0;
    for number in taken..taken + MORE {
        refused += u32::from(is_refusal(&post(&client, gateway.intake, &format!("k{number}"), &body(number)).await));
    }
    Refusals { taken, refused }
}

/// By itself, without a restart: the leads that were refused are sent again with their keys, as a publisher does it.
async fn goes_on(place: &Place, gateway: &Process, stub: &StubBuyer, seen: &Refusals, body: impl Fn(u32) -> String) {
    gateway.until_ready().await;
    let client = client();
    for number in seen.taken..seen.taken + MORE {
        let answer = post_until_taken(&client, gateway.intake, &format!("k{number}"), &body(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    println!("{} leads were taken before the journal was full", seen.taken);
    books_are_exact(place, gateway, stub, u64::from(seen.taken + MORE)).await;
}

const SMALL_JOURNAL: &str = "journal_entries_max = 60";

/// F76, P7: the journal has an end, and nothing behind it is lost.
#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_full_journal_refuses_and_goes_on_by_itself_on_servers() {
    let mut place = Place::servers().await;
    let direct = place.backing.ledger_url.clone();
    let (proxy, through) = Proxy::before(&direct).await;
    let stub = stub().await;
    place.write_routing(&buyers(&stub, 10));
    (place.backing.ledger_url, place.backing.store_more) = (through, SMALL_JOURNAL);
    let gateway = place.spawn("gateway.toml", PATIENT);
    place.backing.ledger_url = direct;
    gateway.until_ready().await;
    proxy.cut();
    let seen = post_until_full(&gateway, lead).await;
    assert_eq!(seen.refused, MORE, "nothing has made room");
    proxy.mend();
    goes_on(&place, &gateway, &stub, &seen, lead).await;
    drop(gateway);
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_full_journal_refuses_and_goes_on_by_itself_embedded() {
    let mut place = Place::embedded();
    place.backing.store_more = SMALL_JOURNAL;
    let stub = stub().await;
    place.write_routing(&buyers(&stub, 10));
    let gateway = place.spawn("gateway.toml", PATIENT);
    gateway.until_ready().await;
    // Somebody else has the file for himself.
    let mut stranger = sqlx::SqliteConnection::connect(&place.backing.ledger_url).await.expect("the books open");
    let mut locked = false;
    until("the books are locked", async || {
        locked = locked || sqlx::query("BEGIN IMMEDIATE").execute(&mut stranger).await.is_ok();
        locked
    })
    .await;
    let seen = post_until_full(&gateway, lead).await;
    assert_eq!(seen.refused, MORE, "nothing has made room");
    sqlx::query("ROLLBACK").execute(&mut stranger).await.expect("the lock ends");
    stranger.close().await.expect("the books close");
    goes_on(&place, &gateway, &stub, &seen, lead).await;
}

/// P7, P8: neither journal nor books can grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_a_full_disk_refuses_and_goes_on_by_itself_embedded() {
    let place = Place::embedded();
    let stub = stub().await;
    place.write_routing(&buyers(&stub, 10));
    let gateway = place.spawn_on_a_small_disk("gateway.toml", PATIENT, 1 << 20);
    gateway.until_ready().await;
    let long = |number: u32| lead(number).replacen('{', &format!("{{\"notes\":\"{}\",", "x".repeat(20_000)), 1);
    let seen = post_until_full(&gateway, long).await;
    // What little fits into a file that was written anew may be taken.
    assert!(seen.refused > 0, "the disk was not full");
    gateway.sh("prlimit --fsize=unlimited: --pid");
    goes_on(&place, &gateway, &stub, &seen, long).await;
}
