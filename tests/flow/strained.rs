//! Redis under strain: scripts that are forgotten over and over, a server that stands still or is lost with an answer on its way,
//! and more left over by dead gateways than one batch. The numbers are small by default; each test says how to ask for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::event::Received;
use capgate::domain::id::{BuyerId, CampaignId, LeadId, Partition, PublisherId};
use capgate::domain::lease::{AttemptInfo, Terms, WalkName};
use capgate::domain::money::{Currency, Micros, Payout};
use capgate::settle::reconcile::reconcile;
use capgate::settle::recovery::{ClaimedLeads, end_overdue_leases};
use capgate::store::{Admission, Admit, Take, TakeCandidate};

use crate::headline::behaviours;
use crate::redis_support::Raw;
use crate::replies;
use crate::server::Server;
use crate::support::{
    BuyerLine, Place, attempts, client, closed, get, lead, leads, post, post_until_taken, routing, try_post, until,
};

/// A number that the environment may set.
fn asked(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

const SAFE: [&str; 2] = ["--maxmemory-policy", "noeviction"];

async fn on(server: &Server) -> Place {
    let mut place = Place::servers().await;
    place.backing.store_url = server.url();
    place
}

fn capped(stub: &StubBuyer, cap: u64) -> String {
    let cap = format!("timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = {cap}");
    routing(&[
        BuyerLine { id: "capped", url: stub.url("/capped"), more: &cap, price: "25.00" },
        BuyerLine { id: "open", url: stub.url("/open"), more: "timeout_ms = 10000", price: "10.00" },
    ])
}

/// `SCRIPT FLUSH` every 100 ms while leads come in: no lead is refused, none is charged twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_forgotten_scripts_refuse_no_lead() {
    const TASKS: u32 = 8;
    let total = u32::try_from(asked("CAPGATE_TEST_LEADS", 400)).expect("fewer");
    let server = Server::start(&SAFE).await;
    let mut place = on(&server).await;
    // What is tested is not how fast a busy machine is.
    place.backing.store_more = "command_timeout_ms = 5000";
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let cap = u64::from(total) / 2;
    place.write_routing(&capped(&stub, cap));
    let gateway = place.start("").await;
    let started = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let flushes = tokio::spawn({
        let (mut raw, is_over) = (server.connection().await, is_over.clone());
        async move {
            let mut flushes = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(raw.run(&["SCRIPT", "FLUSH"]).await, Raw::Text("OK".into()));
                flushes += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            flushes
        }
    });
    let posters: Vec<_> = (0..TASKS)
        .map(|task| {
            let intake = gateway.intake;
            tokio::spawn(async move {
                let client = client();
                for number in (task..total).step_by(TASKS as usize) {
                    let answer = post(&client, intake, &format!("k{number}"), &lead(number % 10_000)).await;
                    assert_eq!(answer.status, 200, "no lead is refused: {answer:?}");
                }
            })
        })
        .collect();
    for poster in posters {
        poster.await.expect("every lead is taken at once");
    }
    let took = started.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let flushes = flushes.await.expect("the server answers");
    println!("{total} leads in {took:?}, scripts forgotten {flushes} times");
    assert!(flushes >= 3, "{flushes}");
    let ledger = place.ledger().await;
    until("every lead is settled", async || leads(&ledger.totals().await.expect("totals"), "sold") == u64::from(total))
        .await;
    let (first, second) = (stub.stats("/capped"), stub.stats("/open"));
    assert_eq!((first.accepted, first.duplicates, second.duplicates), (cap, 0, 0), "P1, P4");
    let caps = get(&client(), gateway.admin, "/v1/caps?buyer=capped").await.json();
    assert_eq!((&caps["caps"][0]["used"], &caps["caps"][0]["open"]), (&cap.to_string().into(), &"0".into()), "{caps}");
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}

/// Resident memory of a process, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Redis stands still for a while under a steady stream of leads: they are refused and not piled up, nothing is forwarded without
/// a lease, and answers are back soon after. `CAPGATE_TEST_RATE` leads a second (500 is the whole of it) and
/// `CAPGATE_TEST_STALL_SECONDS` (5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f27_a_server_that_stands_still_piles_nothing_up() {
    let (rate, stall) = (asked("CAPGATE_TEST_RATE", 40), asked("CAPGATE_TEST_STALL_SECONDS", 3));
    let server = Server::start(&SAFE).await;
    let mut place = on(&server).await;
    // Short beside the stall, and still long for a busy machine.
    place.backing.store_more = "command_timeout_ms = 300";
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    place.write_routing(&capped(&stub, 100_000));
    let gateway = place.spawn("capgate.toml", "");
    gateway.until_ready().await;
    post_until_taken(&client(), gateway.intake, "first", &lead(1)).await;
    let before_kib = resident_kib(gateway.pid());
    let counts: Arc<[AtomicU64; 3]> = Arc::default();
    let slowest_ms = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let sender = tokio::spawn({
        let (counts, slowest_ms, is_over, intake) =
            (counts.clone(), slowest_ms.clone(), is_over.clone(), gateway.intake);
        async move {
            let client = client();
            let mut ticks =
                tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(u32::try_from(rate).expect("small"))));
            let mut posts = tokio::task::JoinSet::new();
            for number in 0_u32.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                ticks.tick().await;
                let (client, counts, slowest_ms) = (client.clone(), counts.clone(), slowest_ms.clone());
                posts.spawn(async move {
                    let answer = try_post(&client, intake, &format!("k{number}"), &lead(number % 10_000)).await;
                    let place = match answer.as_ref().map(|answer| answer.status) {
                        Some(200) => 0,
                        Some(503) => 1,
                        _ => 2,
                    };
                    if let Some(answer) = answer.filter(|answer| answer.status == 503) {
                        let took = u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX);
                        slowest_ms.fetch_max(took, Ordering::Relaxed);
                    }
                    counts[place].fetch_add(1, Ordering::Relaxed);
                });
            }
            while posts.join_next().await.is_some() {}
        }
    });
    let count = |place: usize| counts[place].load(Ordering::Relaxed);
    until("leads flow", async || count(0) > rate).await;
    server.signal("STOP");
    let mut peak_kib = 0;
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(stall) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        peak_kib = peak_kib.max(resident_kib(gateway.pid()));
    }
    let (taken, refused) = (count(0), count(1));
    server.signal("CONT");
    let back = Instant::now();
    until("leads flow again", async || count(0) > taken + rate / 4).await;
    println!(
        "{rate} leads a second, Redis stood still for {stall} s: {refused} refused, slowest refusal {} ms, back after {:?}, resident \
         {before_kib} -> {peak_kib} KiB",
        slowest_ms.load(Ordering::Relaxed),
        back.elapsed()
    );
    is_over.store(true, Ordering::Relaxed);
    sender.await.expect("every post is answered");
    assert!(refused > 0 && count(2) == 0, "refused, and answered: {refused} {}", count(2));
    assert!(peak_kib < before_kib + 150 * 1024, "P7: {before_kib} -> {peak_kib} KiB");
    let ledger = place.ledger().await;
    let mut totals = ledger.totals().await.expect("totals");
    until("no lead is pending, and every attempt is in the books", async || {
        totals = ledger.totals().await.expect("totals");
        leads(&totals, "pending") == 0 && attempts(&totals, "capped", "accepted") == stub.stats("/capped").accepted
    })
    .await;
    assert_eq!(attempts(&totals, "capped", "in_doubt"), 0, "{totals:?}");
    assert_eq!((stub.stats("/capped").duplicates, stub.stats("/open").received), (0, 0), "P4, P8: {totals:?}");
    let caps = get(&client(), gateway.admin, "/v1/caps?buyer=capped").await.json();
    assert_eq!(caps["caps"][0]["used"], stub.stats("/capped").accepted.to_string(), "P2: {caps}");
    ledger.shut_down().await;
    drop(gateway);
    place.backing.clean().await;
}

/// More leases, and leads, of dead gateways than many batches: one look ends all. `CAPGATE_TEST_LEASES` sets how many; 100,000 is
/// the whole of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_one_look_ends_whatever_dead_gateways_left() {
    const TASKS: usize = 32;
    let count = usize::try_from(asked("CAPGATE_TEST_LEASES", 600)).expect("fewer");
    // A gateway has at most 5,000 leads under way.
    let lead_count = usize::try_from(asked("CAPGATE_TEST_LEADS", 200)).expect("fewer");
    let server = Server::start(&SAFE).await;
    let mut place = on(&server).await;
    place.backing.store_more = "command_timeout_ms = 2000";
    let stub = StubBuyer::on_loopback(behaviours(&["/capped=accept"]), 1).await.expect("a stub buyer");
    place.write_routing(&capped(&stub, 100_000));
    let gateway = place.start("").await;
    let inner = gateway.app.gateway.clone();
    let ghost = BuyerId::new("ghost").expect("an id");
    let lost = Duration::from_secs(2 + count as u64 / 1_000);
    let deadline = inner.store.now() + lost;
    let about = AttemptInfo {
        walk: WalkName::generate(),
        publisher: PublisherId::new("acme").expect("an id"),
        campaign: CampaignId::new("solar").expect("an id"),
        ordinal: 1,
        terms: Terms::new(Micros(1), Micros(1), Payout::Flat(Micros(1)), Currency::new("USD").expect("a currency")),
        person: None,
    };
    let mut takers = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (store, ghost, about) = (inner.store.clone(), ghost.clone(), about.clone());
        takers.spawn(async move {
            for number in (task..count).step_by(TASKS) {
                let now = store.now();
                let lead = LeadId::generate();
                let candidate = TakeCandidate {
                    buyer: ghost.clone(),
                    demands: Vec::new(),
                    lease_for: Duration::try_from(deadline.duration_since(now)).unwrap_or_default(),
                    about: about.clone(),
                    routing_version: 1,
                };
                let not_after = now + Duration::from_mins(1);
                let reply = store.take(&Take { lead, candidates: vec![candidate], not_after }).await;
                assert_eq!(reply.expect("the store answers").taken, Some(0));
                if number < lead_count {
                    let event = Received {
                        lead,
                        publisher: about.publisher.clone(),
                        campaign: about.campaign.clone(),
                        received_at_us: now.as_microsecond(),
                        test: false,
                        payload: crate::support::lead(1),
                        claim: None,
                    };
                    let admit = Admit { event, deadline, not_after, retention: Duration::from_hours(1) };
                    assert_eq!(store.admit(&admit).await, Ok(Admission::New));
                }
            }
        });
    }
    while let Some(taker) = takers.join_next().await {
        taker.expect("all are taken");
    }
    println!("{count} leases taken, {:?} before they are due", deadline.duration_since(inner.store.now()));
    let home = Partition::of(ghost.as_str(), inner.store.partitions());
    until("they are due", async || inner.store.now() > deadline).await;
    let started = Instant::now();
    end_overdue_leases(&inner).await;
    let open = inner.store.overdue_leases(home, 10).await.expect("the store answers");
    assert_eq!(open, [], "one look ends all");
    println!("{count} leases ended within {:?} of their deadline", started.elapsed());
    // Recovery's own looks may have claimed the leads by now; whoever has, finishes them.
    let mut claimed = ClaimedLeads::default();
    let ledger = place.ledger().await;
    until("all leads are finished", async || {
        claimed.look_once(&inner).await;
        let totals = ledger.totals().await.expect("totals");
        leads(&totals, "sold") == lead_count as u64
    })
    .await;
    println!("{lead_count} leads finished within {:?} of their deadline", started.elapsed());
    let totals = ledger.totals().await.expect("totals");
    assert_eq!(attempts(&totals, "ghost", "in_doubt"), count as u64, "each is a listed doubt, once: {totals:?}");
    assert_eq!(stub.stats("/capped").duplicates, 0, "P4");
    drop(inner);
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}

/// Nothing here waits for a late answer.
const QUICK: &str = "[forward]\nallow_private_addresses = true\ntimeout_ms = 3000\nlate_answer_ms = 500";

/// A sale's commit reaches Redis and the books, its answer does not reach the gateway, and then Redis loses everything. The
/// gateway still holds the lease as open: restated and ended once more, it would be counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_sale_whose_answer_was_lost_with_the_server_counts_once() {
    let server = Server::start(&SAFE).await;
    let stub = StubBuyer::on_loopback(behaviours(&["/slow=delay:1500:accept"]), 1).await.expect("a stub buyer");
    let mut place = Place::servers().await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let caps = "timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5";
    place.write_routing(&routing(&[BuyerLine { id: "slow", url: stub.url("/slow"), more: caps, price: "25.00" }]));
    place.backing.store_url = server.url();
    // The other gateway settles what the first one appends.
    let other = place.start(QUICK).await;
    let replies = replies::Proxy::start(&server.url()).await;
    place.backing.store_url = replies.url();
    let gateway = place.start(QUICK).await;
    let answer = post_until_taken(&client(), gateway.intake, "key-1", &lead(1)).await;
    assert_eq!((answer.status, answer.text("status").as_str()), (200, "pending"));
    until("it is at the buyer", async || stub.stats("/slow").received == 1).await;
    replies.cut_replies(usize::MAX);
    let ledger = place.ledger().await;
    until("the books have the sale", async || {
        attempts(&ledger.totals().await.expect("totals"), "slow", "accepted") == 1
    })
    .await;
    server.connection().await.run(&["FLUSHALL"]).await;
    // While the partition waits for the first gateway, that one comes back.
    until("the other gateway has begun a new life", async || {
        get(&client(), other.admin, "/readyz").await.status == 503
    })
    .await;
    replies.cut_replies(0);
    closed(&ledger, answer.lead()).await;
    for gateway in [&gateway, &other] {
        until("every gateway is ready", async || get(&client(), gateway.admin, "/readyz").await.status == 200).await;
    }
    until("all is settled", async || gateway.app.gateway.store.held_bytes() == 0).await;
    let caps = get(&client(), other.admin, "/v1/caps").await.json();
    assert_eq!((&caps["caps"][0]["used"], &caps["caps"][0]["open"]), (&"1".into(), &"0".into()), "P2: {caps}");
    let report = reconcile(&other.app.gateway, true).await.expect("a comparison");
    assert_eq!(report.differences, vec![], "P2");
    let totals = ledger.totals().await.expect("totals");
    assert_eq!((stub.stats("/slow").received, leads(&totals, "sold")), (1, 1), "P4, P5: {totals:?}");
    gateway.app.shut_down().await;
    other.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}
