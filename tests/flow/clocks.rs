//! F31: gateways whose own clocks are off by minutes and hours sell by the store's clock, and say how far off they are.

use std::sync::Arc;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::{Clock, SystemClock};
use jiff::{SignedDuration, Timestamp};

use crate::caps::metric;
use crate::reconcile::number;
use crate::support::{BuyerLine, Gateway, OffClock, Place, client, get, lead, leads, post_until_taken, routing, until};
use crate::zones::zone_at_hour;

const DAY_CAP: u64 = 15;
const MINUTE_CAP: u64 = 8;
/// Leads of each task at least, however slow the machine: more than the caps together.
const LEADS_MIN: u32 = 15;
/// Seconds that the gateways' clocks are ahead.
const OFF: [i64; 5] = [0, 90, -90, 7_200, -7_200];

/// A buyer whose day has just begun, one whose day is nearly over, one with a cap for each minute, and one for the rest: by
/// clocks that are two hours off, each of the first two would be in another day.
fn buyers(stub: &StubBuyer) -> String {
    let cap =
        |window: &str, leads: u64| format!("timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"{window}\"\nleads = {leads}");
    let (day, minute) = (cap("day", DAY_CAP), cap("minute", MINUTE_CAP));
    let text = routing(&[
        BuyerLine { id: "early", url: stub.url("/early"), more: &day, price: "25.00" },
        BuyerLine { id: "late", url: stub.url("/late"), more: &day, price: "20.00" },
        BuyerLine { id: "minutely", url: stub.url("/minutely"), more: &minute, price: "15.00" },
        BuyerLine { id: "open", url: stub.url("/open"), more: "", price: "10.00" },
    ]);
    let zone = "America/New_York";
    text.replacen(zone, &zone_at_hour(0), 1).replacen(zone, &zone_at_hour(23), 1)
}

async fn says_how_far_it_is_off(gateway: &Gateway, seconds: i64) {
    let ready = get(&client(), gateway.admin, "/readyz").await;
    let clock =
        ready.json()["checks"].as_array().and_then(|checks| checks.iter().find(|c| c["name"] == "clock").cloned());
    assert_eq!(
        (ready.status, clock.expect("the check")["ok"].as_bool()),
        if seconds == 0 { (200, Some(true)) } else { (503, Some(false)) }
    );
    let offset = metric(gateway, "capgate_store_clock_offset_seconds").await;
    #[allow(clippy::cast_precision_loss, reason = "a few thousand seconds")]
    let wrong = offset + seconds as f64;
    assert!(wrong.abs() < 0.9, "{offset} for a clock that is {seconds} s ahead");
}

/// Posts leads through all gateways in turn until it is time, and some in any case.
async fn load(gateways: &[Gateway], task: usize, until: Timestamp) -> u32 {
    let client = client();
    let mut number = 0;
    while SystemClock.now() < until || number < LEADS_MIN {
        let gateway = &gateways[(task + number as usize) % gateways.len()];
        let key = format!("k{task}-{number}");
        let answer = post_until_taken(
            &client,
            gateway.intake,
            &key,
            &lead(u32::try_from(task).expect("small") * 1_000 + number),
        )
        .await;
        assert_eq!(answer.status, 200, "{answer:?}");
        number += 1;
    }
    number
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_gateways_whose_clocks_are_off_sell_by_the_stores() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::servers().await;
    place.write_routing(&buyers(&stub));
    let mut gateways = Vec::new();
    for seconds in OFF {
        gateways.push(place.start_by(Arc::new(OffClock(SignedDuration::from_secs(seconds))), "").await);
    }
    for (gateway, seconds) in gateways.iter().zip(OFF) {
        says_how_far_it_is_off(gateway, seconds).await;
    }
    // From shortly before the end of a minute until after it.
    let now = SystemClock.now().as_second();
    let mut border = (now / 60 + 1) * 60;
    if border - now < 4 {
        border += 60;
    }
    tokio::time::sleep(Duration::from_secs(u64::try_from(border - now - 4).expect("it lies ahead"))).await;
    let started = SystemClock.now();
    let end = Timestamp::from_second(border + 4).expect("a time");
    let (one, two, three, four) = tokio::join!(
        load(&gateways, 0, end),
        load(&gateways, 1, end),
        load(&gateways, 2, end),
        load(&gateways, 3, end)
    );
    let posted = u64::from(one + two + three + four);
    let ledger = place.ledger().await;
    until("every lead is settled", async || leads(&ledger.totals().await.expect("totals"), "sold") == posted).await;
    let ended = SystemClock.now();
    println!("{posted} leads in {:?}", ended.duration_since(started));

    // Each window's count is within its cap, the windows are those of the store's clock, and the buyers agree.
    for (buyer, seconds, limit) in [("early", 86_400, DAY_CAP), ("late", 86_400, DAY_CAP), ("minutely", 60, MINUTE_CAP)]
    {
        let ask = async |what: &str, and: &str| {
            let sql =
                format!("SELECT CAST(COALESCE({what}, 0) AS SIGNED) FROM cap_usage WHERE buyer_id = '{buyer}' {and}");
            u64::try_from(number(&place, &sql).await).expect("P2: not negative")
        };
        assert!(ask("MAX(used)", "").await <= limit, "P1: {buyer}");
        let accepted = stub.stats(&format!("/{buyer}")).accepted;
        assert_eq!(ask("SUM(used)", "").await, accepted, "P2: {buyer}");
        assert!(accepted >= limit, "{buyer} was sold to: {accepted}");
        let first = Timestamp::from_second(started.as_second() - seconds).expect("a time");
        let strange = format!("AND (window_start <= '{}' OR window_start > '{}')", sql_time(first), sql_time(ended));
        assert_eq!(ask("COUNT(*)", &strange).await, 0, "windows of another clock: {buyer}");
        assert_eq!(stub.stats(&format!("/{buyer}")).duplicates, 0, "P4");
    }
    // Attempts are booked by the store's clock, too: what a new cap counts of its past is right whoever sent them.
    let early = SignedDuration::from_secs(30);
    let sent = format!(
        "SELECT COUNT(*) FROM attempts WHERE sent_at < '{}' OR sent_at > '{}'",
        sql_time(started - early),
        sql_time(ended + early)
    );
    assert_eq!(number(&place, &sent).await, 0);
    for gateway in gateways {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}

fn sql_time(at: Timestamp) -> String {
    jiff::tz::TimeZone::UTC.to_datetime(at).strftime("%Y-%m-%d %H:%M:%S").to_string()
}
