//! A buyer that fails rests, is tried with one lead, and comes back.

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::outcome::LeadStatus;
use serde_json::Value;

use crate::caps::metric;
use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, closed, get, lead, post_until_taken, routing, until};

const QUICK: &str = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 100";

async fn is_open(gateway: &Gateway) -> bool {
    metric(gateway, "capgate_breaker_open{buyer=\"weak\"}").await > 0.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_buyer_that_fails_rests_and_comes_back_by_one_lead() {
    let stub = StubBuyer::on_loopback(behaviours(&["/weak=error:500", "/good=accept"]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let weak =
        "timeout_ms = 6000\nbreaker = { failures = 3, rest_s = 3 }\n[[buyer.cap]]\nwindow = \"total\"\nleads = 100";
    place.write_routing(&routing(&[
        BuyerLine { id: "weak", url: stub.url("/weak"), more: weak, price: "25.00" },
        BuyerLine { id: "good", url: stub.url("/good"), more: "timeout_ms = 6000", price: "10.00" },
    ]));
    let gateway = place.start(QUICK).await;
    let ledger = place.ledger().await;
    let mut number = 0;
    let mut sell = async || {
        number += 1;
        let answer = post_until_taken(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await;
        let detail = closed(&ledger, answer.lead()).await;
        assert_eq!(detail.lead.status, LeadStatus::Sold);
        let told: Value = serde_json::from_str(detail.lead.explanation.as_deref().unwrap_or_default()).expect("JSON");
        told["candidates"][0].clone()
    };
    assert!(!is_open(&gateway).await);
    for _ in 0..3 {
        assert_eq!(sell().await["check"], "declined");
    }
    // Open: skipped with a reason, and nothing of it is touched.
    let rests = sell().await;
    assert_eq!((&rests["check"], &rests["values"]["why"]), (&"breaker".into(), &"failures".into()), "{rests}");
    assert_eq!(stub.stats("/weak").received, 3);
    until("operators see it", async || is_open(&gateway).await).await;
    let caps = get(&client(), gateway.admin, "/v1/caps?buyer=weak").await.json();
    assert_eq!(caps["caps"][0]["used"], "0", "{caps}");

    // After the rest one lead tries, fails, and it rests again; a duplicate is an answer, and it is back.
    until("one more is tried", async || sell().await["check"] == "declined").await;
    assert_eq!(sell().await["check"], "breaker");
    assert_eq!(stub.stats("/weak").received, 4);
    stub.set_behaviour("/weak", "duplicate".parse().expect("a behaviour"));
    until("it has answered", async || sell().await["check"] == "duplicate").await;
    for _ in 0..3 {
        assert_eq!(sell().await["check"], "duplicate");
    }
    until("operators see that, too", async || !is_open(&gateway).await).await;
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}
