//! F33: a buyer's zone is changed in the file while leads flow. The window that was running counts on to its end, whoever knows
//! of the change and whoever has forgotten everything else.

use std::fmt::Write as _;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::ManualClock;
use jiff::{SignedDuration, Timestamp};

use crate::caps::told;
#[cfg(feature = "server-tests")]
use crate::support::until;
use crate::support::{BuyerLine, Gateway, Place, client, get, routing};

/// Of each window.
const CAP: u64 = 40;

/// A zone whose clock shows this hour now.
#[cfg(feature = "server-tests")]
pub fn zone_at_hour(hour: i64) -> String {
    use capgate::clock::{Clock as _, SystemClock};
    let utc_hour = SystemClock.now().as_second() / 3_600;
    // -12 to +11; the names have the sign of the way to Greenwich.
    let ahead = (hour - utc_hour + 12).rem_euclid(24) - 12;
    format!("Etc/GMT{:+}", -ahead)
}

/// One capped buyer in a zone. A higher version is a newer file.
fn one_buyer(stub: &StubBuyer, version: u64, zone: &str) -> String {
    let cap = format!("timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = {CAP}");
    let mut text = format!("version = {version}\n");
    let buyers = routing(&[BuyerLine { id: "sunco", url: stub.url("/b"), more: &cap, price: "10.00" }]);
    let _ = write!(text, "{}", buyers.replace("America/New_York", zone));
    text
}

async fn reload(gateway: &Gateway) {
    let answer = client().post(format!("http://{}/v1/reload", gateway.admin)).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
}

/// Posts leads of these numbers to the gateways in turn; answers how many were sold. Whatever else happens to them is that the
/// cap is full.
async fn post_all(gateways: &[&Gateway], numbers: std::ops::Range<u32>) -> u64 {
    let mut sold = 0;
    for number in numbers {
        let gateway = gateways[number as usize % gateways.len()];
        match told(gateway, &format!("k{number}"), number).await.as_str() {
            "sold" => sold += 1,
            other => assert_eq!(other, "capped"),
        }
    }
    sold
}

/// Start, next reset and count of the only cap.
async fn cap_row(gateway: &Gateway) -> (Timestamp, Timestamp, String) {
    let caps = get(&client(), gateway.admin, "/v1/caps").await.json();
    let text = |name: &str| caps["caps"][0][name].as_str().unwrap_or_else(|| panic!("{caps}")).to_owned();
    let time = |name: &str| text(name).parse().expect("a time");
    (time("window_start"), time("resets_at"), text("used"))
}

/// To a zone whose day began an hour ago, and back to one whose day began long before: on a manual clock, over the border.
#[tokio::test(flavor = "multi_thread")]
async fn f33_a_changed_zone_counts_from_the_old_boundary_embedded() {
    for (old, new) in [("America/New_York", "America/Los_Angeles"), ("America/Los_Angeles", "America/New_York")] {
        let place = Place::embedded();
        let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
        let clock = ManualClock::new("2026-07-01T16:00:00Z".parse().expect("a time"));
        place.write_routing(&one_buyer(&stub, 1, old));
        let gateway = place.start_by(clock.clone(), "").await;
        assert_eq!(post_all(&[&gateway], 0..10).await, 10);
        let (start, end, _) = cap_row(&gateway).await;
        place.write_routing(&one_buyer(&stub, 2, new));
        reload(&gateway).await;
        assert_eq!(post_all(&[&gateway], 100..150).await, CAP - 10, "no room was added");
        assert_eq!(cap_row(&gateway).await, (start, end, CAP.to_string()));
        // A moment before the old boundary nothing is new; at the boundary the first window of the new zone starts, at 0.
        clock.set(end - SignedDuration::from_secs(1));
        assert_eq!(post_all(&[&gateway], 200..203).await, 0);
        clock.set(end);
        assert_eq!(post_all(&[&gateway], 300..350).await, CAP);
        let (first, next, used) = cap_row(&gateway).await;
        assert_eq!((first, used), (end, CAP.to_string()), "from the old boundary on");
        clock.set(next);
        assert_eq!(post_all(&[&gateway], 400..450).await, CAP);
        let local = jiff::tz::TimeZone::get(new).expect("a zone").to_datetime(next);
        assert_eq!(local.time(), jiff::civil::Time::midnight(), "then the new zone's own days");
        assert_eq!(stub.stats("/b").accepted, 3 * CAP);
        gateway.app.shut_down().await;
    }
}

#[cfg(feature = "server-tests")]
mod servers {
    use super::*;
    use crate::caps::metric;
    use crate::redis_support::Connection;
    use crate::server::Server;

    /// A second gateway on the same servers, with a routing file of its own.
    fn beside(place: &Place) -> Place {
        Place { dir: tempfile::tempdir().expect("a temporary folder"), backing: place.backing.clone() }
    }

    /// Leads flow while one gateway's file has the new zone and the other's still has the old one, under one version: as two
    /// gateways with different zone data would. Both go by the window that was running.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f33_a_zone_edited_while_leads_flow_adds_no_room_on_servers() {
        for hour in [1, 20] {
            let place = Place::servers().await;
            let other = beside(&place);
            let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
            let (old, new) = (zone_at_hour(12), zone_at_hour(hour));
            for one in [&place, &other] {
                one.write_routing(&one_buyer(&stub, 1, &old));
            }
            let (first, second) = (place.start("").await, other.start("").await);
            assert_eq!(post_all(&[&first, &second], 0..10).await, 10);
            let window = cap_row(&first).await;
            let both = [&first, &second];
            let flow = post_all(&both, 1_000..1_000 + 3 * u32::try_from(CAP).expect("small"));
            let edit = async {
                until("leads flow", async || stub.stats("/b").accepted >= 15).await;
                // Read when a lead meets the newer version, or after it: the old zone, under the same number.
                other.write_routing(&one_buyer(&stub, 2, &old));
                place.write_routing(&one_buyer(&stub, 2, &new));
                reload(&first).await;
                until("leads flow", async || stub.stats("/b").accepted >= 30).await;
                reload(&second).await;
            };
            let (sold, ()) = tokio::join!(flow, edit);
            assert_eq!(sold, CAP - 10, "to the last unit, and no more");
            assert_eq!(stub.stats("/b").accepted, CAP);
            for gateway in [&first, &second] {
                assert_eq!(cap_row(gateway).await, (window.0, window.1, CAP.to_string()), "from {old} to {new}");
            }
            first.app.shut_down().await;
            second.app.shut_down().await;
            place.backing.clean().await;
        }
    }

    /// The zone is changed, and right after that Redis forgets that there ever was another one: first under a gateway that runs
    /// on, then with a gateway that has just started. The books know that something counts.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f33_a_zone_edited_just_before_the_store_is_lost_adds_no_room() {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        for restarts in [false, true] {
            let mut place = Place::servers().await;
            place.backing.store_url = server.url();
            place.backing.store_more = "command_timeout_ms = 1000";
            let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
            place.write_routing(&one_buyer(&stub, 1, &zone_at_hour(12)));
            let mut gateway = place.start("").await;
            assert_eq!(post_all(&[&gateway], 0..25).await, 25);
            let (start, end, _) = cap_row(&gateway).await;
            place.write_routing(&one_buyer(&stub, 2, &zone_at_hour(1)));
            let mut raw = Connection::open(&server.url()).await;
            if restarts {
                gateway.app.shut_down().await;
                raw.run(&["FLUSHALL"]).await;
                gateway = place.start("").await;
            } else {
                let reloaded = reload(&gateway);
                let lost = raw.run(&["FLUSHALL"]);
                tokio::join!(reloaded, lost);
            }
            until("the store is rebuilt", async || {
                metric(&gateway, "capgate_new_life_total").await >= 1.0
                    && get(&client(), gateway.admin, "/readyz").await.status == 200
            })
            .await;
            assert_eq!(post_all(&[&gateway], 100..140).await, CAP - 25, "restarted: {restarts}");
            assert_eq!(stub.stats("/b").accepted, CAP);
            let (still, until_then, used) = cap_row(&gateway).await;
            assert_eq!((still, used), (start, CAP.to_string()));
            let late = until_then.duration_since(end);
            assert!((SignedDuration::ZERO..SignedDuration::from_hours(3)).contains(&late), "{late}");
            gateway.app.shut_down().await;
            place.backing.clean().await;
        }
    }
}
