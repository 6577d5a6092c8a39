//! Two operators, two gateways, one doubt.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::LeadId;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use serde_json::json;

use super::SHORT_LATE;
use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, closed, get, lead, post_until_taken, routing, until};

/// Doubts that fill the cap.
const DOUBTS: usize = 12;

async fn resolve_at(admin: SocketAddr, lead: LeadId, buyer: &'static str, outcome: &'static str) -> u16 {
    let mut status = 503;
    until("the operator is answered", async || {
        let body = json!({ "buyer": buyer, "outcome": outcome }).to_string();
        let answer = client().post(format!("http://{admin}/v1/leads/{lead}/resolve")).body(body).send().await;
        status = answer.expect("an answer").status().as_u16();
        // A busy machine's "ask again".
        status != 503
    })
    .await;
    status
}

/// P1: at each of two gateways an operator resolves the same doubts, one as accepted and one as declined, while leads wait for
/// every unit that comes free. One of the two is right, the other is told so, and nothing is sold above the cap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_doubts_resolved_both_ways_at_two_gateways_never_oversell() {
    let mut place = Place::servers().await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let stub = StubBuyer::on_loopback(behaviours(&["/hang=hang"]), 1).await.expect("a stub buyer");
    let buyer = |path: &str, timeout_ms: u32| {
        let more = format!(
            "timeout_ms = {timeout_ms}\non_timeout = \"hold\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = {DOUBTS}"
        );
        routing(&[BuyerLine { id: "bad", url: stub.url(path), more: &more, price: "25.00" }])
    };
    place.write_routing(&buyer("/hang", 1_000));
    let (first, second) = (place.start(SHORT_LATE).await, place.start(SHORT_LATE).await);
    let ledger = place.ledger().await;
    let (mut leads, mut number) = (Vec::new(), 0);
    until("the cap is full of doubts", async || {
        let mut posted = Vec::new();
        while leads.len() + posted.len() < DOUBTS {
            number += 1;
            let (intake, number) = (if number % 2 == 0 { first.intake } else { second.intake }, number);
            posted.push(tokio::spawn(async move {
                post_until_taken(&client(), intake, &format!("k{number}"), &lead(number)).await.lead()
            }));
        }
        for lead in posted {
            let lead = lead.await.expect("it was taken");
            // A busy machine may not have reached the buyer in time: then the unit went back.
            if closed(&ledger, lead).await.lead.status == LeadStatus::InDoubt {
                leads.push(lead);
            }
        }
        leads.len() == DOUBTS
    })
    .await;
    // From here on the buyer says yes.
    place.write_routing(&buyer("/yes", 10_000));
    for gateway in [&first, &second] {
        let url = format!("http://{}/v1/reload", gateway.admin);
        assert_eq!(client().post(url).send().await.expect("an answer").status().as_u16(), 200);
    }
    let (is_over, posted) = (AtomicBool::new(false), AtomicU32::new(1_000));
    let wait_for_units = async |gateway: &Gateway| {
        while !is_over.load(Ordering::Relaxed) {
            let number = posted.fetch_add(1, Ordering::Relaxed);
            post_until_taken(&client(), gateway.intake, &format!("w{number}"), &lead(number)).await;
            // Often enough; each look into the books waits until all of them are settled.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let operators = async {
        let mut told = Vec::new();
        for (number, doubt) in leads.iter().enumerate() {
            let (one, other) = if number % 2 == 0 { (&first, &second) } else { (&second, &first) };
            told.push(tokio::join!(
                resolve_at(one.admin, *doubt, "bad", "accepted"),
                resolve_at(other.admin, *doubt, "bad", "declined"),
            ));
        }
        is_over.store(true, Ordering::Relaxed);
        told
    };
    let (told, ..) = tokio::join!(operators, wait_for_units(&first), wait_for_units(&second));
    let mut kept = 0;
    for (lead, (accepted, declined)) in leads.iter().zip(&told) {
        let detail = ledger.lead_detail(*lead).await.expect("books answer").expect("it is there");
        let outcome = detail.attempts[0].outcome;
        let right = match outcome {
            AttemptOutcome::LateAccepted => (200, 409),
            AttemptOutcome::Declined => (409, 200),
            other => panic!("{other:?}"),
        };
        assert_eq!((*accepted, *declined), right, "{outcome:?}: one is right, and the other is told so");
        kept += u64::from(outcome == AttemptOutcome::LateAccepted);
        let status = if outcome == AttemptOutcome::LateAccepted { LeadStatus::Sold } else { LeadStatus::Unsold };
        assert_eq!(detail.lead.status, status);
        assert_eq!(detail.entries.len(), if status == LeadStatus::Sold { 3 } else { 0 });
    }
    let sold = stub.stats("/yes").accepted;
    println!("{kept} of {DOUBTS} doubts kept, {} given back, {sold} sold to others", DOUBTS as u64 - kept);
    assert!(kept + sold <= DOUBTS as u64, "P1: {kept} kept and {sold} sold of {DOUBTS}");
    let used = get(&client(), first.admin, "/v1/caps?buyer=bad").await.json()["caps"][0]["used"].clone();
    assert_eq!(used, (kept + sold).to_string(), "P2");
    for gateway in [first, second] {
        gateway.app.shut_down().await;
    }
    let (_, usage) = ledger.usage_all(jiff::Timestamp::UNIX_EPOCH).await.expect("usage");
    assert_eq!(usage.iter().map(|row| row.used).sum::<u64>(), kept + sold, "P2: counter and books agree");
    let totals = ledger.totals().await.expect("totals");
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
    ledger.shut_down().await;
    place.backing.clean().await;
}

/// P6: both doubts of a lead are resolved as accepted at the same moment, each at another gateway. Both buyers pay, the
/// publisher is paid once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_two_doubts_of_a_lead_resolved_at_two_gateways_pay_the_publisher_once() {
    let mut place = Place::servers().await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let stub = StubBuyer::on_loopback(behaviours(&["/a=hang", "/b=hang"]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 1000\non_timeout = \"refund\"";
    place.write_routing(&routing(&[
        BuyerLine { id: "bad", url: stub.url("/a"), more, price: "25.00" },
        BuyerLine { id: "worse", url: stub.url("/b"), more, price: "20.00" },
    ]));
    let (first, second) = (place.start(SHORT_LATE).await, place.start(SHORT_LATE).await);
    let ledger = place.ledger().await;
    let mut posted = Vec::new();
    for number in 0..6 {
        posted.push(post_until_taken(&client(), first.intake, &format!("k{number}"), &lead(number)).await.lead());
    }
    for lead in posted {
        assert_eq!(closed(&ledger, lead).await.lead.status, LeadStatus::Unsold);
        until("both doubts are in the books", async || {
            let detail = ledger.lead_detail(lead).await.expect("books answer").expect("it is there");
            detail.attempts.iter().filter(|attempt| attempt.outcome == AttemptOutcome::InDoubt).count() == 2
        })
        .await;
        let told = tokio::join!(
            resolve_at(first.admin, lead, "bad", "accepted"),
            resolve_at(second.admin, lead, "worse", "accepted"),
        );
        assert_eq!(told, (200, 200));
        let detail = ledger.lead_detail(lead).await.expect("books answer").expect("it is there");
        assert_eq!((detail.lead.status, detail.entries.len()), (LeadStatus::Sold, 6));
        let of = |account: &str| {
            let lines = detail.entries.iter().filter(|entry| entry.account == account);
            lines.map(|entry| entry.amount.0).sum::<i64>()
        };
        assert_eq!((of("buyer:bad"), of("buyer:worse")), (-25_000_000, -20_000_000));
        assert!([17_500_000, 14_000_000].contains(&of("publisher:acme")), "paid once: {:?}", detail.entries);
    }
    for gateway in [first, second] {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}
