//! A buyer gives leads back: money, caps and books follow, once.

use std::net::SocketAddr;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::{Clock, SystemClock};
use capgate::domain::id::LeadId;
use capgate::domain::outcome::LeadStatus;
use capgate::ledger::SharedLedger;
use capgate::ledger::audit::Period;
use capgate::settle::reconcile::reconcile;
use jiff::SignedDuration;
use serde_json::json;

use crate::headline::behaviours;
use crate::resolve::on_both;
use crate::support::{
    Answer, BuyerLine, Gateway, PATIENCE, Place, client, closed, get, key_hash, lead, post, post_until_taken, routing,
    until,
};

const SUNCO_KEY: &str = "key-of-sunco";
const OTHER_KEY: &str = "key-of-other";
/// Nothing here is a time-out but what is meant to be one.
const PATIENT: &str = "timeout_ms = 6000";

struct Rig {
    place: Place,
    gateways: Vec<Gateway>,
    ledger: SharedLedger,
    stub: StubBuyer,
}

/// Buyer `sunco` first, with a cap of 2 leads and one of money, terms as given; `other` second.
async fn rig(place: Place, gateways: usize, sunco: &str, terms: &str) -> Rig {
    let stub = StubBuyer::on_loopback(behaviours(&[&format!("/sunco={sunco}"), "/other=accept"]), 1)
        .await
        .expect("a stub buyer");
    write_routing(&place, &stub, SUNCO_KEY, terms);
    let mut running = Vec::new();
    for _ in 0..gateways {
        running.push(place.start("[forward]\nallow_private_addresses = true\nlate_answer_ms = 600").await);
    }
    let ledger = place.ledger().await;
    Rig { place, gateways: running, ledger, stub }
}

fn write_routing(place: &Place, stub: &StubBuyer, key: &str, terms: &str) {
    let timeout = if terms.contains("timeout_ms") { "" } else { PATIENT };
    let sunco = format!(
        "{timeout}\nkeys_sha256 = [\"{}\"]\n{terms}\n[[buyer.cap]]\nwindow = \"day\"\nleads = 2\n[[buyer.cap]]\n\
         window = \"month\"\nspend = \"1000.00\"",
        key_hash(key)
    );
    let other = format!("{PATIENT}\nkeys_sha256 = [\"{}\"]", key_hash(OTHER_KEY));
    place.write_routing(&routing(&[
        BuyerLine { id: "sunco", url: stub.url("/sunco"), more: &sunco, price: "25.00" },
        BuyerLine { id: "other", url: stub.url("/other"), more: &other, price: "10.00" },
    ]));
}

/// What is not confirmed is sent again.
async fn give_back(intake: SocketAddr, key: &str, buyer: &str, lead: LeadId, reason: &str) -> Answer {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let answer = give_back_once(intake, key, buyer, lead, reason).await;
        if answer.status != 503 || std::time::Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn give_back_once(intake: SocketAddr, key: &str, buyer: &str, lead: LeadId, reason: &str) -> Answer {
    let started = std::time::Instant::now();
    let answer = client()
        .post(format!("http://{intake}/v1/buyers/{buyer}/leads/{lead}/return"))
        .bearer_auth(key)
        .header("content-type", "application/json")
        .body(json!({ "reason": reason }).to_string())
        .send()
        .await
        .expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let bytes = answer.bytes().await.expect("a body").to_vec();
    Answer { status, headers, bytes, took: started.elapsed() }
}

impl Rig {
    fn intake(&self) -> SocketAddr {
        self.gateways[0].intake
    }

    /// A lead that is sold.
    async fn sold(&self, number: u32) -> LeadId {
        let answer = post_until_taken(&client(), self.intake(), &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // On a busy machine the verdict may come after the answer.
        let path = format!("/v1/leads/{}", answer.lead());
        until("it is sold", async || get(&client(), self.intake(), &path).await.text("status") == "sold").await;
        answer.lead()
    }

    async fn buyer_of(&self, lead: LeadId) -> String {
        closed(&self.ledger, lead).await.lead.buyer.map(|buyer| buyer.as_str().to_owned()).unwrap_or_default()
    }

    /// Used of the day cap and of the money cap, as every gateway shows them.
    async fn used(&self) -> [String; 2] {
        let mut shown = Vec::new();
        for gateway in &self.gateways {
            let caps = get(&client(), gateway.admin, "/v1/caps?buyer=sunco").await.json();
            let cell = |row: usize| caps["caps"][row]["used"].as_str().unwrap_or("none").to_owned();
            shown.push([cell(0), cell(1)]);
        }
        assert!(shown.windows(2).all(|pair| pair[0] == pair[1]), "{shown:?}");
        shown.swap_remove(0)
    }

    async fn balances(&self) -> Vec<(String, i64)> {
        let totals = self.ledger.totals().await.expect("totals");
        totals.balances.into_iter().map(|(account, _, micros)| (account, micros)).collect()
    }

    /// P2 and P6 at rest, by everything that can tell.
    async fn ends_even(self) {
        for gateway in &self.gateways {
            let report = reconcile(&gateway.app.gateway, true).await.expect("a comparison");
            assert_eq!((report.differences, report.skipped.len()), (vec![], 0), "P2");
        }
        let until = SystemClock.now() + SignedDuration::from_mins(10);
        let audit = self.ledger.audit(Period { since: None, until }, &|_| ()).await.expect("an audit");
        assert_eq!(audit.findings, vec![], "P6");
        for gateway in self.gateways {
            gateway.app.shut_down().await;
        }
        self.ledger.shut_down().await;
        self.place.backing.clean().await;
    }
}

async fn a_returned_lead_frees_the_cap_where_that_was_agreed(place: Place) {
    let rig = rig(place, 1, "accept", "returns_free_cap = true").await;
    let (first, second) = (rig.sold(1).await, rig.sold(2).await);
    let third = rig.sold(3).await;
    assert_eq!(rig.buyer_of(third).await, "other", "the cap is used up");
    let path = format!("/v1/leads/{first}");
    let before = get(&client(), rig.intake(), &path).await;

    let answer = give_back(rig.intake(), SUNCO_KEY, "sunco", first, "no such number").await;
    let expected =
        format!(r#"{{"lead_id":"{first}","status":"returned","price":"25.00","currency":"USD","cap_freed":true}}"#);
    assert_eq!((answer.status, String::from_utf8_lossy(&answer.bytes).into_owned()), (200, expected));
    assert_eq!(rig.used().await, ["1", "25.00"]);
    assert_eq!(rig.buyer_of(rig.sold(4).await).await, "sunco", "there is room again");
    assert_eq!(rig.buyer_of(rig.sold(5).await).await, "other", "for one");
    assert_eq!(rig.stub.stats("/sunco").received, 3, "P4: nobody is offered a lead twice");

    let again = give_back(rig.intake(), SUNCO_KEY, "sunco", first, "other words").await;
    assert_eq!((again.status, &again.bytes), (200, &answer.bytes), "a repeat");
    let detail = closed(&rig.ledger, first).await;
    assert_eq!((detail.lead.status, detail.returns[0].reason.as_str()), (LeadStatus::Sold, "no such number"));
    assert_eq!(detail.entries.len(), 6);
    let explained = get(&client(), rig.gateways[0].admin, &path).await.json();
    assert_eq!(explained["returns"][0]["reason"], "no such number", "{explained}");
    assert_eq!(explained["entries"][3]["kind"], "return", "{explained}");
    // P3: the publisher's answer stays.
    assert_eq!(get(&client(), rig.intake(), &path).await.bytes, before.bytes);
    assert_eq!(post(&client(), rig.intake(), "k1", &lead(1)).await.bytes, before.bytes);

    // Nobody learns anything of what is not its own.
    for (key, buyer, lead) in [
        (OTHER_KEY, "other", first),
        (OTHER_KEY, "sunco", first),
        (SUNCO_KEY, "other", first),
        (SUNCO_KEY, "sunco", third),
        (SUNCO_KEY, "sunco", LeadId::generate()),
    ] {
        let answer = give_back(rig.intake(), key, buyer, lead, "x").await;
        assert_eq!((answer.status, answer.text("code")), (404, "not_found".to_owned()), "{buyer} {lead}");
    }
    assert_eq!(give_back(rig.intake(), "key-of-nobody", "sunco", second, "x").await.status, 401);
    assert_eq!(rig.used().await, ["2", "50.00"]);
    let balances = rig.balances().await;
    for (account, micros) in
        [("buyer:sunco", -50_000_000), ("buyer:other", -20_000_000), ("publisher:acme", 49_000_000)]
    {
        assert!(balances.contains(&(account.to_owned(), micros)), "{balances:?}");
    }
    rig.ends_even().await;
}

async fn a_returned_lead_keeps_its_unit_unless_agreed(place: Place) {
    let rig = rig(place, 1, "accept", "").await;
    let (first, _) = (rig.sold(1).await, rig.sold(2).await);
    // At once: what is not settled yet is waited for.
    let answer = give_back(rig.intake(), SUNCO_KEY, "sunco", first, "no such number").await;
    assert_eq!((answer.status, answer.json()["cap_freed"].as_bool()), (200, Some(false)));
    assert_eq!(rig.used().await, ["2", "50.00"]);
    assert_eq!(rig.buyer_of(rig.sold(3).await).await, "other", "no room came of it");
    let balances = rig.balances().await;
    assert!(balances.contains(&("buyer:sunco".to_owned(), -25_000_000)), "{balances:?}");
    rig.ends_even().await;
}

async fn keys_and_terms_change_while_the_gateway_runs(place: Place) {
    let rig = rig(place, 1, "accept", "returns_free_cap = true").await;
    let (first, second) = (rig.sold(1).await, rig.sold(2).await);
    let answer = give_back(rig.intake(), SUNCO_KEY, "sunco", first, "x").await;
    assert_eq!(answer.status, 200);
    write_routing(&rig.place, &rig.stub, "a-new-key", "return_within_days = 0");
    let reloaded =
        client().post(format!("http://{}/v1/reload", rig.gateways[0].admin)).send().await.expect("an answer");
    assert_eq!(reloaded.status().as_u16(), 200);
    assert_eq!(give_back(rig.intake(), SUNCO_KEY, "sunco", second, "x").await.status, 401, "it is no key any more");
    let late = give_back(rig.intake(), "a-new-key", "sunco", second, "x").await;
    assert_eq!((late.status, late.text("code")), (409, "too_late".to_owned()));
    let again = give_back(rig.intake(), "a-new-key", "sunco", first, "x").await;
    assert_eq!((again.status, &again.bytes), (200, &answer.bytes), "the same answer, whatever is agreed by now");
    assert_eq!(rig.used().await, ["1", "25.00"]);
    rig.ends_even().await;
}

async fn what_is_not_decided_yet_is_asked_again(place: Place) {
    let rig = rig(place, 1, "hang", "timeout_ms = 200\non_timeout = \"hold\"\nreturns_free_cap = true").await;
    let answer = post(&client(), rig.intake(), "k", &lead(1)).await;
    let doubted = answer.lead();
    closed(&rig.ledger, doubted).await;
    let undecided = give_back(rig.intake(), SUNCO_KEY, "sunco", doubted, "x").await;
    assert_eq!((undecided.status, undecided.text("code")), (409, "undecided".to_owned()));
    assert!(undecided.headers.contains_key("retry-after"));
    assert_eq!(rig.used().await, ["1", "25.00"]);

    let resolve = async |lead: LeadId, outcome: &str| {
        let url = format!("http://{}/v1/leads/{lead}/resolve", rig.gateways[0].admin);
        let body = json!({ "buyer": "sunco", "outcome": outcome }).to_string();
        client().post(url).body(body).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(resolve(doubted, "accepted").await, 200);
    let returned = give_back(rig.intake(), SUNCO_KEY, "sunco", doubted, "x").await;
    assert_eq!((returned.status, returned.json()["cap_freed"].as_bool()), (200, Some(true)));
    assert_eq!(rig.used().await, ["0", "0.00"]);
    assert_eq!(resolve(doubted, "accepted").await, 200, "a repeat of the operator changes nothing");
    assert_eq!(rig.used().await, ["0", "0.00"]);

    let answer = post(&client(), rig.intake(), "k2", &lead(2)).await;
    closed(&rig.ledger, answer.lead()).await;
    assert_eq!(resolve(answer.lead(), "declined").await, 200);
    let not_sold = give_back(rig.intake(), SUNCO_KEY, "sunco", answer.lead(), "x").await;
    assert_eq!((not_sold.status, not_sold.text("code")), (409, "not_sold".to_owned()));
    let balances = rig.balances().await;
    assert!(balances.iter().all(|(_, micros)| *micros == 0), "{balances:?}");
    rig.ends_even().await;
}

/// While the buyer's answer is on its way, and right after it, a return is never told that there is no such lead.
async fn a_return_that_overtakes_its_sale(place: Place) {
    let rig = rig(place, 1, "delay:700:accept", "returns_free_cap = true").await;
    let answer = post(&client(), rig.intake(), "k", &lead(1)).await;
    assert_eq!(answer.text("status"), "pending", "{answer:?}");
    until("the buyer has been asked", async || rig.stub.stats("/sunco").received == 1).await;
    let mut returned = None;
    until("the return is booked", async || {
        let said = give_back(rig.intake(), SUNCO_KEY, "sunco", answer.lead(), "x").await;
        assert!(matches!(said.status, 200 | 409 | 429), "{said:?}");
        let is_done = said.status == 200;
        returned = Some(said);
        is_done
    })
    .await;
    assert_eq!(returned.map(|said| said.text("status")), Some("returned".to_owned()));
    let detail = closed(&rig.ledger, answer.lead()).await;
    assert_eq!((detail.lead.status, detail.entries.len()), (LeadStatus::Sold, 6));
    assert_eq!(rig.used().await, ["0", "0.00"]);
    rig.ends_even().await;
}

async fn returns_at_once(place: Place, gateways: usize) {
    let rig = rig(place, gateways, "accept", "returns_free_cap = true").await;
    let (first, _) = (rig.sold(1).await, rig.sold(2).await);
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let intake = rig.gateways[number % rig.gateways.len()].intake;
            tokio::spawn(async move { give_back(intake, SUNCO_KEY, "sunco", first, &format!("r{number}")).await })
        })
        .collect();
    let mut bodies = Vec::new();
    for task in tasks {
        let answer = task.await.expect("it ends");
        assert_eq!(answer.status, 200, "{answer:?}");
        bodies.push(answer.bytes);
    }
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "one answer for all");
    assert_eq!(rig.used().await, ["1", "25.00"], "one unit came back");
    let detail = closed(&rig.ledger, first).await;
    assert_eq!((detail.entries.len(), detail.returns.len()), (6, 1));
    rig.ends_even().await;
}

async fn returns_of_one_lead_at_once(place: Place) {
    let gateways = if place.backing.store_url.starts_with("embedded:") { 1 } else { 3 };
    returns_at_once(place, gateways).await;
}

on_both! {
    a_returned_lead_frees_the_cap_where_that_was_agreed as p6_a_returned_lead_frees_the_cap_where_agreed_embedded, p6_a_returned_lead_frees_the_cap_where_agreed_on_servers;
    a_returned_lead_keeps_its_unit_unless_agreed as p2_a_returned_lead_keeps_its_unit_embedded, p2_a_returned_lead_keeps_its_unit_on_servers;
    keys_and_terms_change_while_the_gateway_runs as keys_of_buyers_change_while_the_gateway_runs_embedded, keys_of_buyers_change_while_the_gateway_runs_on_servers;
    what_is_not_decided_yet_is_asked_again as a_return_waits_for_a_doubt_to_end_embedded, a_return_waits_for_a_doubt_to_end_on_servers;
    a_return_that_overtakes_its_sale as a_return_never_overtakes_its_sale_embedded, a_return_never_overtakes_its_sale_on_servers;
    returns_of_one_lead_at_once as f02_returns_at_once_are_one_return_embedded, f02_returns_at_once_are_one_return_on_servers;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f02_returns_at_once_are_one_return_on_a_cluster() {
    returns_at_once(Place::cluster().await, 2).await;
}

/// Redis comes back empty after a return: counters, books and the answer to a repeat agree all the same.
#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_a_return_outlives_the_store() {
    let mut server = crate::server::Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut place = Place::on_redis(server.url()).await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let rig = rig(place, 2, "accept", "returns_free_cap = true").await;
    let (first, second) = (rig.sold(1).await, rig.sold(2).await);
    let answer = give_back(rig.intake(), SUNCO_KEY, "sunco", first, "x").await;
    assert_eq!(answer.status, 200);
    server.kill();
    server.run().await;
    for gateway in &rig.gateways {
        until("every gateway is ready", async || get(&client(), gateway.admin, "/readyz").await.status == 200).await;
    }
    let again = give_back(rig.gateways[1].intake, SUNCO_KEY, "sunco", first, "x").await;
    assert_eq!((again.status, &again.bytes), (200, &answer.bytes));
    assert_eq!(rig.buyer_of(rig.sold(3).await).await, "sunco", "the room that came back is still there");
    assert_eq!(rig.buyer_of(rig.sold(4).await).await, "other");
    assert_eq!(give_back(rig.intake(), SUNCO_KEY, "sunco", second, "x").await.status, 200, "sold in an older life");
    assert_eq!(rig.used().await, ["1", "25.00"]);
    rig.ends_even().await;
}
