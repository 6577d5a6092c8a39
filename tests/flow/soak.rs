//! Three gateway processes under load are killed at random, over and over, and started again; then, after recovery, every unit
//! of every cap is sold, free, or in doubt and listed. `CAPGATE_TEST_SOAK_SECONDS` sets how long.

use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::{Behaviour, StubBuyer};
use capgate::domain::id::LeadId;
use capgate::domain::outcome::LeadStatus;
use capgate::ledger::Totals;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::cluster_support::nodes_of;
use crate::crash::Load;
use crate::headline::behaviours;
use crate::reconcile::number;
use crate::redis_support::Connection;
use crate::support::{BuyerLine, Place, Process, attempts, client, get, lead, leads, post_until_taken, routing, until};

const QUICK: &str =
    "[forward]\nallow_private_addresses = true\ntimeout_ms = 1000\nlate_answer_ms = 500\nlead_deadline_ms = 3000";
const MINUTE_LIMIT: u64 = 150;

fn buyers(stub: &StubBuyer, day_limit: u64) -> String {
    let cap = |window: &str, limit: u64| {
        format!("timeout_ms = 1000\n[[buyer.cap]]\nwindow = \"{window}\"\nleads = {limit}\n")
    };
    routing(&[
        BuyerLine { id: "daily", url: stub.url("/daily"), more: &cap("day", day_limit), price: "25.00" },
        BuyerLine { id: "minutely", url: stub.url("/minutely"), more: &cap("minute", MINUTE_LIMIT), price: "20.00" },
        BuyerLine { id: "open", url: stub.url("/open"), more: "timeout_ms = 1000", price: "10.00" },
    ])
}

/// Kills one of the gateways and starts it again, at random, until the time is over. Answers how often.
async fn kill_at_random(gateways: &mut [Process], dice: &mut StdRng, time: Duration) -> u32 {
    let until = Instant::now() + time;
    let mut kills = 0;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(dice.random_range(100..1_500))).await;
        let victim = &mut gateways[dice.random_range(0..3)];
        victim.kill();
        kills += 1;
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..500))).await;
        victim.start();
        if dice.random_bool(0.8) {
            victim.until_ready().await;
        }
    }
    for gateway in gateways {
        gateway.until_ready().await;
    }
    kills
}

/// Every attempt of a buyer that is in doubt, as the admin API lists them: lead, and whether its unit is counted.
async fn listed_doubts(gateway: &Process, buyer: &str) -> Vec<(String, bool)> {
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let page = get(&client(), gateway.admin, &format!("/v1/buyers/{buyer}/doubts{after}")).await.json();
        for doubt in page["doubts"].as_array().expect("a list") {
            listed.push((doubt["lead_id"].as_str().expect("an id").to_owned(), doubt["counted"] == Value::Bool(true)));
        }
        let Some(next) = page["next"].as_str() else { return listed };
        after = format!("?after={next}");
    }
}

async fn cap_row(gateway: &Process, buyer: &str) -> [u64; 4] {
    let caps = get(&client(), gateway.admin, &format!("/v1/caps?buyer={buyer}")).await.json();
    ["used", "open", "in_doubt", "free"].map(|name| {
        caps["caps"][0][name].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name}: {caps}"))
    })
}

/// Waits until all is decided, given back or in doubt, and in the books.
async fn until_quiet(place: &Place, gateways: &[Process], acknowledged: &[LeadId]) -> Totals {
    let ledger = place.ledger().await;
    for lead in acknowledged {
        until(
            &format!("P5: acknowledged lead {lead} has its verdict in the books"),
            async || matches!(ledger.lead(*lead).await, Ok(Some(row)) if row.status != LeadStatus::Pending),
        )
        .await;
    }
    let mut totals = ledger.totals().await.expect("totals");
    until("nothing hangs", async || {
        let metrics = get(&client(), gateways[0].admin, "/metrics").await;
        let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
        let is_nought = |name: &str| metrics.lines().any(|line| line == format!("{name} 0"));
        totals = ledger.totals().await.expect("totals");
        leads(&totals, "pending") == 0 && is_nought("capgate_leases_open") && is_nought("capgate_journal_entries")
    })
    .await;
    ledger.shut_down().await;
    totals
}

/// Attempts of a buyer that are counted: sold, in time or late, or in doubt and counted.
async fn counted(place: &Place, gateway: &Process, totals: &Totals, buyer: &str) -> u64 {
    let listed = listed_doubts(gateway, buyer).await;
    assert_eq!(listed.len() as u64, attempts(totals, buyer, "in_doubt"), "every doubt is listed");
    let doubts = listed.iter().filter(|(_, is_counted)| *is_counted).count() as u64;
    let counted = attempts(totals, buyer, "accepted") + attempts(totals, buyer, "late_accepted") + doubts;
    let usage = format!("SELECT CAST(COALESCE(SUM(used), 0) AS SIGNED) FROM cap_usage WHERE buyer_id = '{buyer}'");
    assert_eq!(u64::try_from(number(place, &usage).await), Ok(counted), "P2: {buyer} in the books: {totals:?}");
    counted
}

async fn soak(place: Place) {
    let seconds = std::env::var("CAPGATE_TEST_SOAK_SECONDS").map_or(10, |text| text.parse().expect("a number"));
    let seed = std::env::var("CAPGATE_TEST_SEED").map_or_else(|_| rand::random(), |text| text.parse().expect("a seed"));
    println!("soak: CAPGATE_TEST_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let day_limit = 30 * seconds;
    let mixed = ["/daily", "/minutely"].map(|path| format!("{path}=random:accept=75,decline=15,error=10"));
    let stub = StubBuyer::on_loopback(behaviours(&[&mixed[0], &mixed[1], "/open=delay:5:accept"]), seed)
        .await
        .expect("a stub buyer");
    place.write_routing(&buyers(&stub, day_limit));
    let mut gateways = ["one.toml", "two.toml", "three.toml"].map(|name| place.spawn(name, QUICK));
    for gateway in &gateways {
        gateway.until_ready().await;
    }
    let load = Load::start(&gateways.each_ref().map(|gateway| gateway.intake));
    let kills = kill_at_random(&mut gateways, &mut dice, Duration::from_secs(seconds)).await;
    let before = load.count();
    until("leads flow again", async || load.count() > before + 20).await;
    let acknowledged = load.end().await;
    let totals = until_quiet(&place, &gateways, &acknowledged).await;

    assert_windowed_counters_expire(&place).await;
    // Each unit of the day is sold, free, or in doubt and listed.
    let units = counted(&place, &gateways[0], &totals, "daily").await;
    let late = attempts(&totals, "daily", "late_accepted");
    let [used, open, in_doubt, free] = cap_row(&gateways[1], "daily").await;
    assert_eq!((used, open), (units, 0), "P2: {totals:?}");
    assert_eq!(in_doubt, units - attempts(&totals, "daily", "accepted") - late);
    assert_eq!(free, day_limit.saturating_sub(used));
    assert!(units <= day_limit + late, "P1: {totals:?}");
    let minutes = counted(&place, &gateways[2], &totals, "minutely").await;
    let highest = number(&place, "SELECT MAX(used) FROM cap_usage WHERE buyer_id = 'minutely'").await;
    let late = attempts(&totals, "minutely", "late_accepted");
    assert!(u64::try_from(highest).expect("P2: not negative") <= MINUTE_LIMIT + late, "P1: {highest}");
    for (buyer, path, counted) in [("daily", "/daily", units), ("minutely", "/minutely", minutes)] {
        let at_buyer = stub.stats(path);
        assert_eq!(at_buyer.duplicates, 0, "P4");
        let known = counted + (attempts(&totals, buyer, "in_doubt") - listed_counted(&gateways[0], buyer).await);
        assert!(known >= at_buyer.accepted, "P5: every acceptance has its row: {buyer} {at_buyer:?} {totals:?}");
    }
    assert_eq!(stub.stats("/open").duplicates, 0, "P4");
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
    println!(
        "{kills} kills, {} acknowledged; daily: {used} used of {day_limit}, of which {in_doubt} in doubt; minutely: {minutes} \
         used, at most {highest} in a minute; {} in doubt",
        acknowledged.len(),
        attempts(&totals, "minutely", "in_doubt"),
    );

    // What is free can be sold to the last unit, and not one more.
    stub.set_behaviour("/daily", Behaviour::Accept);
    let (accepted, wanted) = (stub.stats("/daily").accepted, free.min(200));
    for number in 0..wanted {
        post_until_taken(&client(), gateways[0].intake, &format!("more-{number}"), &lead(0)).await;
    }
    until("what is free is sold", async || stub.stats("/daily").accepted >= accepted + wanted).await;
    if wanted == free {
        for number in 0..3 {
            post_until_taken(&client(), gateways[1].intake, &format!("above-{number}"), &lead(0)).await;
        }
        until("all is sold", async || cap_row(&gateways[2], "daily").await[..2] == [day_limit.max(used), 0]).await;
    }
    assert_eq!(stub.stats("/daily").accepted, accepted + wanted, "P1");
    drop(gateways);
    place.backing.clean().await;
}

/// F07: whatever has been killed meanwhile, no counter is left without an expiry.
async fn assert_windowed_counters_expire(place: &Place) {
    let mut counters = 0;
    for node in nodes_of(&place.backing.store_url) {
        let mut raw = Connection::open(&node).await;
        for key in raw.keys_of(&place.backing.prefix).await.iter().filter(|key| key.contains(":cap:")) {
            assert!(raw.run(&["PTTL", key]).await.int() > 0, "{key}");
            counters += 1;
        }
    }
    assert!(counters >= 2, "{counters}");
}

async fn listed_counted(gateway: &Process, buyer: &str) -> u64 {
    listed_doubts(gateway, buyer).await.iter().filter(|(_, is_counted)| *is_counted).count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_p2_p5_gateways_killed_at_random_on_servers() {
    soak(Place::servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_p2_p5_gateways_killed_at_random_on_a_cluster() {
    soak(Place::cluster().await).await;
}
