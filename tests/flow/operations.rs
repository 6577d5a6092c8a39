//! What operators rely on: readiness that does not lie, reload whole or not at all, bounded metrics and logs.

use std::process::Command;

use capgate::cli::stub_buyer::{Behaviour, StubBuyer};

use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, closed, get, lead, post_until_taken, routing, until};

async fn started(place: &Place, more: &str) -> (StubBuyer, Gateway) {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    place.write_routing(&one_buyer(&stub, "sunco", more));
    let gateway = place.start("").await;
    (stub, gateway)
}

fn one_buyer(stub: &StubBuyer, id: &str, more: &str) -> String {
    routing(&[BuyerLine { id, url: stub.url("/b"), more, price: "10.00" }])
}

async fn sold(gateway: &Gateway, number: u32) -> String {
    let answer = post_until_taken(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut last = answer;
    // On a slow machine the verdict may come after the answer.
    until("the verdict", async || {
        if last.text("status") == "pending" {
            last = get(&client(), gateway.intake, &format!("/v1/leads/{}", last.lead())).await;
        }
        last.text("status") != "pending"
    })
    .await;
    let (status, reason) = (last.text("status"), last.text("reason"));
    if reason.is_empty() { status } else { reason }
}

#[tokio::test(flavor = "multi_thread")]
async fn f87_a_broken_routing_file_changes_nothing_and_a_good_one_everything() {
    let place = Place::embedded();
    let cap = "[[buyer.cap]]\nwindow = \"day\"\nleads = 2";
    let (stub, gateway) = started(&place, cap).await;
    assert_eq!(sold(&gateway, 1).await, "sold");
    let good = one_buyer(&stub, "sunco", "[[buyer.cap]]\nwindow = \"day\"\nleads = 3");
    for (what, text) in [
        ("half-written", good[..good.len() / 2].to_owned()),
        ("negative cap", good.replace("leads = 3", "leads = -1")),
        (
            "missing buyer",
            good.replace("[[campaign.offer]]\nbuyer = \"sunco\"", "[[campaign.offer]]\nbuyer = \"gone\""),
        ),
        ("duplicated ids", format!("{good}\n[[campaign]]\nid = \"solar\"\ncurrency = \"USD\"\n")),
        ("not TOML", "= = =".to_owned()),
    ] {
        place.write_routing(&text);
        let answer = client()
            .post(format!("http://{}/v1/reload", gateway.admin))
            .send()
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answer.status().as_u16(), 422, "{what}");
    }
    let ready = get(&client(), gateway.admin, "/readyz").await;
    let check =
        ready.json()["checks"].as_array().and_then(|all| all.iter().find(|it| it["name"] == "routing").cloned());
    let check = check.expect("a check of that name");
    assert_eq!((ready.status, check["ok"].as_bool()), (200, Some(false)), "told, and ready all the same: {check}");
    assert_eq!(sold(&gateway, 2).await, "sold", "the routing in force stays");
    assert_eq!(sold(&gateway, 3).await, "capped", "with its cap");
    let metrics = String::from_utf8_lossy(&get(&client(), gateway.admin, "/metrics").await.bytes).into_owned();
    assert!(metrics.contains("capgate_config_reload_total{result=\"refused\"}"), "{metrics}");
    place.write_routing(&good);
    until("the file is picked up", async || {
        gateway.app.gateway.routing().compiled.routing().buyers.values().any(|b| b.caps[0].limit_units() == 3)
    })
    .await;
    assert_eq!(sold(&gateway, 4).await, "sold", "F12: a raised cap works at once and the count is kept");
    assert_eq!(sold(&gateway, 5).await, "capped");
    let checks = get(&client(), gateway.admin, "/readyz").await.json()["checks"].clone();
    assert!(checks.as_array().is_some_and(|all| all.iter().all(|check| check["ok"] == true)), "{checks}");
    gateway.app.shut_down().await;
}

/// F13: a buyer is taken out while thirty forwards to it are under way, and put back: their rows are complete, and what is
/// left of the cap is what it was.
async fn removed_and_put_back(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/b=delay:1000:accept"]), 1).await.expect("a stub buyer");
    let with = one_buyer(&stub, "sunco", "timeout_ms = 20000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 32");
    place.write_routing(&with);
    let gateway = place.start("").await;
    let under_way: Vec<_> = (0..30)
        .map(|number| {
            let intake = gateway.intake;
            tokio::spawn(async move {
                post_until_taken(&client(), intake, &format!("k{number}"), &lead(number)).await.lead()
            })
        })
        .collect();
    until("thirty are on their way", async || stub.stats("/b").received >= 30).await;
    let reload = async |text: &str| {
        place.write_routing(text);
        let answer = client().post(format!("http://{}/v1/reload", gateway.admin)).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    };
    reload(&routing(&[])).await;
    assert_eq!(sold(&gateway, 100).await, "no_buyer");
    let mut sold_leads = Vec::new();
    for task in under_way {
        sold_leads.push(task.await.expect("an answer"));
    }
    reload(&with).await;
    let ledger = place.ledger().await;
    for lead in sold_leads {
        let detail = closed(&ledger, lead).await;
        assert_eq!(detail.lead.status.as_str(), "sold");
        assert_eq!(detail.attempts.len(), 1);
        assert_eq!(detail.entries.len(), 3, "P6: booked, though the buyer was not in the routing");
    }
    stub.set_behaviour("/b", Behaviour::Accept);
    for (number, verdict) in [(101, "sold"), (102, "sold"), (103, "capped")] {
        assert_eq!(sold(&gateway, number).await, verdict, "neither a fresh cap nor a lost unit");
    }
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f13_a_buyer_removed_and_put_back_keeps_its_sales_and_its_count_embedded() {
    removed_and_put_back(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread")]
async fn f13_a_buyer_removed_and_put_back_keeps_its_sales_and_its_count_on_servers() {
    removed_and_put_back(Place::servers().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_buyer_gets_nothing_until_it_is_resumed() {
    let place = Place::embedded();
    let (stub, gateway) = started(&place, "").await;
    let switch = async |what: &str| {
        let url = format!("http://{}/v1/buyers/sunco/{what}", gateway.admin);
        client().post(url).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(switch("pause").await, 200);
    assert_eq!(sold(&gateway, 1).await, "no_buyer");
    assert_eq!(switch("resume").await, 200);
    assert_eq!(sold(&gateway, 2).await, "sold");
    assert_eq!(stub.stats("/b").received, 1);
    let nobody =
        client().post(format!("http://{}/v1/buyers/nobody/pause", gateway.admin)).send().await.expect("an answer");
    assert_eq!(nobody.status().as_u16(), 404);

    let admin = format!("http://{}", gateway.admin);
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_capgate"));
        let output = tokio::task::block_in_place(|| command.args(words).args(["--admin", &admin]).output());
        output.expect("capgate runs").status.code()
    };
    assert_eq!(run(&["pause", "sunco"]), Some(0));
    assert_eq!(sold(&gateway, 3).await, "no_buyer");
    assert_eq!(run(&["resume", "sunco"]), Some(0));
    assert_eq!(sold(&gateway, 4).await, "sold");
    assert_eq!(run(&["pause", "nobody"]), Some(1));
    place.write_routing(&one_buyer(&stub, "other", ""));
    assert_eq!(run(&["reload"]), Some(0));
    place.write_routing("not a routing file");
    assert_eq!(run(&["reload"]), Some(1));
    assert_eq!(run(&["pause", "sunco"]), Some(1), "the routing in force has the other buyer");
    assert_eq!(run(&["pause", "other"]), Some(0));
    gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f88_what_clients_send_makes_no_metric_series() {
    let place = Place::embedded();
    let (_stub, gateway) = started(&place, "").await;
    let series = async || {
        let text = get(&client(), gateway.admin, "/metrics").await;
        String::from_utf8_lossy(&text.bytes).lines().filter(|line| !line.starts_with('#')).count()
    };
    assert_eq!(sold(&gateway, 1).await, "sold");
    assert_eq!(get(&client(), gateway.intake, "/nothing/here").await.status, 404);
    let before = series().await;
    let client = client();
    for number in 0..300 {
        let path = format!("/v1/campaigns/c{number}/leads");
        let answer = client
            .post(format!("http://{}{path}", gateway.intake))
            .bearer_auth(format!("key{number}"))
            .body("{}")
            .send()
            .await
            .expect("an answer");
        assert!(answer.status().is_client_error());
        assert_eq!(get(&client, gateway.intake, &format!("/p{number}")).await.status, 404);
    }
    assert!(series().await <= before + 2, "series grew with what clients sent");
    gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f91_readiness_lists_its_checks() {
    let place = Place::embedded();
    let (_stub, gateway) = started(&place, "").await;
    assert_eq!(get(&client(), gateway.admin, "/healthz").await.status, 200);
    let answer = get(&client(), gateway.admin, "/readyz").await;
    assert_eq!(answer.status, 200);
    let ready = answer.json();
    assert_eq!(ready["ready"], true);
    let names: Vec<_> = ready["checks"].as_array().expect("checks").iter().map(|check| check["name"].clone()).collect();
    assert_eq!(names, ["store", "setup", "life", "clock", "routing", "tls", "ledger", "journal", "draining"]);
    gateway.app.gateway.shutdown.draining.cancel();
    let draining = get(&client(), gateway.admin, "/readyz").await;
    assert_eq!((draining.status, draining.json()["ready"].as_bool()), (503, Some(false)));
    gateway.app.shut_down().await;
}

#[cfg(feature = "server-tests")]
mod servers {
    use super::*;
    use crate::replies;
    use crate::support::{PROMPT, Proxy, post};

    /// A gateway whose Redis and MySQL can be cut off.
    async fn behind_proxies() -> (Place, Proxy, Proxy, StubBuyer, Gateway) {
        let mut place = Place::servers().await;
        let (store, store_url) = Proxy::before(&place.backing.store_url).await;
        let (ledger, ledger_url) = Proxy::before(&place.backing.ledger_url).await;
        place.backing.store_url = store_url;
        place.backing.ledger_url = ledger_url;
        let (stub, gateway) = started(&place, "[[buyer.cap]]\nwindow = \"day\"\nleads = 100").await;
        (place, store, ledger, stub, gateway)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn f29_f91_store_away_means_503_and_not_ready_and_the_key_is_not_burned() {
        let (place, store, _ledger, stub, gateway) = behind_proxies().await;
        assert_eq!(sold(&gateway, 1).await, "sold");
        store.cut();
        let answer = post(&client(), gateway.intake, "again", &lead(2)).await;
        assert_eq!((answer.status, answer.text("code").as_str()), (503, "unavailable"));
        assert!(answer.headers.contains_key("retry-after"));
        assert!(answer.took < PROMPT, "refused after {:?}", answer.took);
        until("readiness says so", async || get(&client(), gateway.admin, "/readyz").await.status == 503).await;
        store.mend();
        until("the same key is served", async || {
            post(&client(), gateway.intake, "again", &lead(2)).await.text("status") == "sold"
        })
        .await;
        assert_eq!(stub.stats("/b").received, 2, "P4, P8: nothing was sent while the store was away");
        until("readiness says so", async || get(&client(), gateway.admin, "/readyz").await.status == 200).await;
        gateway.app.shut_down().await;
        place.backing.clean().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn p5_ledger_away_means_leads_go_on_and_are_settled_later() {
        let (place, _store, ledger, stub, gateway) = behind_proxies().await;
        assert_eq!(sold(&gateway, 1).await, "sold");
        ledger.cut();
        for number in 2..30 {
            let answer = post(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await;
            assert_eq!(answer.status, 200);
            assert!(answer.took < PROMPT, "answered after {:?}", answer.took);
        }
        until("readiness lists it", async || {
            let ready = get(&client(), gateway.admin, "/readyz").await.json();
            ready["checks"].as_array().is_some_and(|c| c.iter().any(|c| c["name"] == "ledger" && c["ok"] == false))
        })
        .await;
        assert_eq!(get(&client(), gateway.admin, "/readyz").await.status, 200, "leads can be taken");
        ledger.mend();
        let books = place.ledger().await;
        until(
            "everything is in the books",
            async || matches!(books.totals().await, Ok(totals) if crate::support::leads(&totals, "sold") == 29),
        )
        .await;
        assert_eq!(stub.stats("/b").accepted, 29);
        gateway.app.shut_down().await;
        books.shut_down().await;
        place.backing.clean().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn f92_a_store_that_is_away_does_not_flood_the_log() {
        let mut place = Place::servers().await;
        let (store, store_url) = Proxy::before(&place.backing.store_url).await;
        place.backing.store_url = store_url;
        let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
        place.write_routing(&one_buyer(&stub, "sunco", ""));
        let gateway = place.spawn("gateway.toml", "");
        gateway.until_ready().await;
        store.cut();
        let before = gateway.log().lines().count();
        let client = client();
        for number in 0..200 {
            let answer = post(&client, gateway.intake, &format!("k{number}"), &lead(number)).await;
            assert_eq!(answer.status, 503);
        }
        let lines = gateway.log().lines().count() - before;
        assert!(lines < 40, "{lines} lines for 200 refused leads:\n{}", gateway.log());
        place.backing.clean().await;
    }

    /// The store has done what it was asked, and its reply is lost: neither the lead nor its unit may be left behind.
    #[tokio::test(flavor = "multi_thread")]
    async fn f20_a_lost_reply_leaves_no_unit_and_no_lead_behind() {
        let mut place = Place::servers().await;
        let redis = place.backing.store_url.trim_start_matches("redis://").to_owned();
        let proxy = replies::Proxy::start(&redis).await;
        place.backing.store_url = proxy.url();
        let (stub, gateway) = started(&place, "[[buyer.cap]]\nwindow = \"day\"\nleads = 100").await;
        assert_eq!(sold(&gateway, 0).await, "sold");
        for number in 1..20 {
            proxy.cut_replies(1);
            assert_eq!(sold(&gateway, number).await, "sold");
        }
        let books = place.ledger().await;
        until("every lead is sold, once", async || {
            matches!(books.totals().await, Ok(totals) if crate::support::leads(&totals, "sold") == 20
                && crate::support::leads(&totals, "pending") == 0)
        })
        .await;
        let totals = books.totals().await.expect("totals");
        assert_eq!(crate::support::attempts(&totals, "sunco", "in_doubt"), 0, "{totals:?}");
        assert_eq!((stub.stats("/b").received, stub.stats("/b").duplicates), (20, 0), "P4");
        let caps = get(&client(), gateway.admin, "/v1/caps").await.json();
        assert_eq!(
            (caps["caps"][0]["used"].as_str(), caps["caps"][0]["open"].as_str()),
            (Some("20"), Some("0")),
            "{caps}"
        );
        gateway.app.shut_down().await;
        books.shut_down().await;
        place.backing.clean().await;
    }
}
