//! Buyers that answer "pending" and decide later, or never.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::{Clock, SystemClock};
use capgate::domain::id::LeadId;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::domain::parked::Parked;
use capgate::ledger::audit::Period;
use capgate::ledger::{LeadDetail, SharedLedger};
use capgate::settle::reconcile::reconcile;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::headline::behaviours;
use crate::resolve::on_both;
use crate::support::{
    Answer, BuyerLine, Gateway, PATIENCE, Place, client, closed, get, key_hash, lead, post_until_taken, routing, until,
};

const SUNCO_KEY: &str = "key-of-sunco";
const OTHER_KEY: &str = "key-of-other";
const CONFIG: &str = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 600";

struct Rig {
    place: Place,
    gateways: Vec<Gateway>,
    ledger: SharedLedger,
    stub: StubBuyer,
}

/// Buyer `sunco` decides within so many seconds, at 25.00 or up to 40.00, and has room for so many leads and for 1000.00;
/// `other` takes what is left for 10.00.
async fn rig(place: Place, gateways: usize, within_s: u32, leads: u32) -> Rig {
    let stub = StubBuyer::on_loopback(behaviours(&["/sunco=pending", "/other=accept"]), 1).await.expect("a stub buyer");
    write_routing(&place, &stub, within_s, leads);
    let mut running = Vec::new();
    for _ in 0..gateways {
        running.push(place.start(CONFIG).await);
    }
    let ledger = place.ledger().await;
    Rig { place, gateways: running, ledger, stub }
}

fn write_routing(place: &Place, stub: &StubBuyer, within_s: u32, leads: u32) {
    let sunco = format!(
        "timeout_ms = 6000\nkeys_sha256 = [\"{}\"]\nanswer = {{ pending_within_s = {within_s} }}\n[[buyer.cap]]\n\
         window = \"day\"\nleads = {leads}\n[[buyer.cap]]\nwindow = \"month\"\nspend = \"1000.00\"",
        key_hash(SUNCO_KEY)
    );
    let other = format!("timeout_ms = 6000\nkeys_sha256 = [\"{}\"]", key_hash(OTHER_KEY));
    let text = routing(&[
        BuyerLine { id: "sunco", url: stub.url("/sunco"), more: &sunco, price: "25.00" },
        BuyerLine { id: "other", url: stub.url("/other"), more: &other, price: "10.00" },
    ]);
    place.write_routing(&text.replace("price = \"25.00\"", "price = \"25.00\"\nprice_max = \"40.00\""));
}

async fn decide_once(intake: SocketAddr, key: &str, buyer: &str, lead: LeadId, decision: &Value) -> Answer {
    let started = Instant::now();
    let answer = client()
        .post(format!("http://{intake}/v1/buyers/{buyer}/leads/{lead}/decision"))
        .bearer_auth(key)
        .header("content-type", "application/json")
        .body(decision.to_string())
        .send()
        .await
        .expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let bytes = answer.bytes().await.expect("a body").to_vec();
    Answer { status, headers, bytes, took: started.elapsed() }
}

/// What is not confirmed is sent again.
async fn decide(intake: SocketAddr, lead: LeadId, decision: &Value) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = decide_once(intake, SUNCO_KEY, "sunco", lead, decision).await;
        if !matches!(answer.status, 429 | 503) || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn refusal(answer: &Answer) -> (u16, String) {
    (answer.status, answer.text("code"))
}

impl Rig {
    fn first(&self) -> SocketAddr {
        self.gateways[0].intake
    }

    fn last(&self) -> SocketAddr {
        self.gateways[self.gateways.len() - 1].intake
    }

    async fn pending(&self, number: u32) -> LeadId {
        let answer = post_until_taken(&client(), self.first(), &format!("k{number}"), &lead(number)).await;
        assert_eq!((answer.status, answer.text("status")), (200, "pending".to_owned()), "{answer:?}");
        self.parked(answer.lead()).await;
        answer.lead()
    }

    /// Waits until the books know of the pending answer.
    async fn parked(&self, lead: LeadId) {
        until("the lead waits for its buyer", async || {
            let detail = self.ledger.lead_detail(lead).await.ok().flatten();
            detail.is_some_and(|detail| detail.attempts.len() == 1 && detail.lead.explanation.is_some())
        })
        .await;
    }

    /// The lead's end, and sunco's attempt.
    async fn ended(&self, lead: LeadId) -> (String, AttemptOutcome, Option<String>, LeadDetail) {
        let detail = closed(&self.ledger, lead).await;
        let sunco =
            detail.attempts.iter().find(|attempt| attempt.buyer.as_str() == "sunco").expect("an attempt").clone();
        let buyer = detail.lead.buyer.as_ref().map_or("nobody", |buyer| buyer.as_str()).to_owned();
        (buyer, sunco.outcome, sunco.reason, detail)
    }

    async fn cap(&self, row: usize, column: &str) -> String {
        let caps = get(&client(), self.gateways[0].admin, "/v1/caps?buyer=sunco").await.json();
        caps["caps"][row][column].as_str().unwrap_or("none").to_owned()
    }

    async fn used(&self) -> [String; 2] {
        [self.cap(0, "used").await, self.cap(1, "used").await]
    }

    /// P2, P4 and P6 at rest, by everything that can tell.
    async fn ends_even(self) {
        for path in ["/sunco", "/other"] {
            assert_eq!(self.stub.stats(path).duplicates, 0, "P4");
        }
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

fn two_if_shared(place: &Place) -> usize {
    if place.backing.store_url.starts_with("embedded:") { 1 } else { 2 }
}

async fn a_decision_ends_the_wait(place: Place) {
    let gateways = two_if_shared(&place);
    let rig = rig(place, gateways, 600, 3).await;
    let first = rig.pending(1).await;
    assert_eq!(get(&client(), rig.last(), &format!("/v1/leads/{first}")).await.text("status"), "pending");
    assert_eq!(rig.used().await, ["1", "40.00"], "the most that it may pay is held");
    assert_eq!((rig.cap(0, "open").await, rig.cap(0, "in_doubt").await), ("0".into(), "1".into()));
    let explained = get(&client(), rig.gateways[0].admin, &format!("/v1/leads/{first}")).await.json();
    assert_eq!(explained["attempts"][0]["outcome"], "in_doubt", "{explained:#}");
    let reason = explained["attempts"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("pending until ") && reason.ends_with(", at most 40.00"), "{explained:#}");
    assert_eq!(explained["explanation"]["candidates"][0]["check"], "in_doubt", "P10 {explained:#}");
    assert_eq!(explained["explanation"]["candidates"][1]["check"], "not_reached", "{explained:#}");
    // It is no doubt that an operator has to end.
    let doubts = get(&client(), rig.gateways[0].admin, "/v1/buyers/sunco/doubts").await.json();
    assert_eq!(doubts["doubts"], json!([]));
    let resolve = client()
        .post(format!("http://{}/v1/leads/{first}/resolve", rig.gateways[0].admin))
        .body(json!({ "buyer": "sunco", "outcome": "declined" }).to_string());
    assert_eq!(resolve.send().await.expect("an answer").status().as_u16(), 409);

    // Only the buyer itself, and only about what it was offered.
    let yes = json!({ "decision": "accepted", "price": 30 });
    for (key, buyer, lead, expected) in [
        ("key-of-nobody", "sunco", first, (401, "unauthorized")),
        (OTHER_KEY, "sunco", first, (404, "not_found")),
        (OTHER_KEY, "other", first, (404, "not_found")),
        (SUNCO_KEY, "sunco", LeadId::generate(), (404, "not_found")),
    ] {
        let answer = decide_once(rig.last(), key, buyer, lead, &yes).await;
        assert_eq!(refusal(&answer), (expected.0, expected.1.to_owned()), "{key} {buyer}");
    }

    // Accepted, at its own price.
    let taken = decide(rig.last(), first, &yes).await;
    let body = format!(r#"{{"lead_id":"{first}","decision":"accepted","price":"30.00","currency":"USD"}}"#);
    assert_eq!((taken.status, String::from_utf8_lossy(&taken.bytes).into_owned()), (200, body));
    let (buyer, outcome, _, detail) = rig.ended(first).await;
    assert_eq!((buyer.as_str(), outcome, detail.entries.len()), ("sunco", AttemptOutcome::Accepted, 3));
    let answer = get(&client(), rig.first(), &format!("/v1/leads/{first}")).await;
    assert_eq!((answer.text("status"), answer.text("price")), ("sold".into(), "21.00".into()));
    assert_eq!(post_until_taken(&client(), rig.last(), "k1", &lead(1)).await.bytes, answer.bytes, "P3");
    for again in [&yes, &json!({ "decision": "accepted" })] {
        assert_eq!(decide(rig.first(), first, again).await.bytes, taken.bytes, "a repeat");
    }
    let no = json!({ "decision": "declined", "reason": "changed our mind" });
    assert_eq!(refusal(&decide(rig.last(), first, &no).await), (409, "already_decided".into()));
    assert_eq!(rig.used().await, ["1", "30.00"]);
    let told: Value = serde_json::from_str(detail.lead.explanation.as_deref().unwrap_or_default()).expect("JSON");
    assert_eq!(told["candidates"][0]["check"], "accepted", "P10 {told}");

    // Declined: the unit goes back, and the lead to the next buyer.
    let second = rig.pending(2).await;
    let declined = decide(rig.last(), second, &no).await;
    assert_eq!((declined.status, declined.json()["decision"].as_str()), (200, Some("declined")));
    let (buyer, outcome, reason, _) = rig.ended(second).await;
    assert_eq!(
        (buyer.as_str(), outcome, reason.as_deref()),
        ("other", AttemptOutcome::Declined, Some("changed our mind"))
    );
    assert_eq!(decide(rig.first(), second, &no).await.bytes, declined.bytes);
    assert_eq!(refusal(&decide(rig.first(), second, &yes).await), (409, "already_decided".into()));
    assert_eq!(rig.used().await, ["1", "30.00"]);

    // No more than was agreed.
    let third = rig.pending(3).await;
    let taken = decide(rig.last(), third, &json!({ "decision": "accepted", "price": "99.99" })).await;
    assert_eq!(taken.text("price"), "40.00");
    assert_eq!(rig.ended(third).await.0, "sunco");
    assert_eq!(rig.used().await, ["2", "70.00"]);
    // Sold to somebody who never said "pending".
    let answer = decide_once(rig.last(), OTHER_KEY, "other", second, &no).await;
    assert_eq!(refusal(&answer), (409, "already_decided".into()));
    rig.ends_even().await;
}

/// The gateway that was told "pending" is gone; another one, or the next, takes the decision and goes on with what is left.
async fn a_wait_outlives_its_gateway(place: Place) {
    let mut rig = rig(place, 1, 600, 3).await;
    let (decided, declined) = (rig.pending(1).await, rig.pending(2).await);
    // What was said when the buyer answered stays: only the third lead has a second.
    write_routing(&rig.place, &rig.stub, 1, 3);
    let reload = client().post(format!("http://{}/v1/reload", rig.gateways[0].admin)).send().await.expect("an answer");
    assert_eq!(reload.status().as_u16(), 200);
    let answer = post_until_taken(&client(), rig.first(), "k3", &lead(3)).await;
    let left = answer.lead();
    let gone = rig.gateways.remove(0);
    gone.app.shut_down().await;
    rig.gateways.push(rig.place.start(CONFIG).await);
    let answer = decide(rig.first(), decided, &json!({ "decision": "accepted" })).await;
    assert_eq!((answer.status, answer.text("price")), (200, "25.00".into()), "{answer:?}");
    let answer = decide(rig.first(), declined, &json!({ "decision": "declined" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(rig.ended(decided).await.0, "sunco");
    assert_eq!(rig.ended(declined).await.0, "other");

    // Nobody decides: the unit goes back and the lead goes on, never to this buyer again.
    let (buyer, outcome, reason, _) = rig.ended(left).await;
    assert_eq!(
        (buyer.as_str(), outcome, reason.as_deref()),
        ("other", AttemptOutcome::Declined, Some("pending_expired"))
    );
    assert_eq!(rig.used().await, ["1", "25.00"]);
    for word in ["accepted", "declined"] {
        let late = decide(rig.first(), left, &json!({ "decision": word })).await;
        assert_eq!(refusal(&late), (409, "too_late".into()));
    }
    let (buyer, _, reason, detail) = rig.ended(left).await;
    assert_eq!((buyer.as_str(), reason.as_deref()), ("other", Some("too_late: accepted")), "noted");
    assert_eq!(detail.entries.iter().filter(|entry| entry.buyer.as_str() == "sunco").count(), 0, "not booked");
    assert_eq!(rig.used().await, ["1", "25.00"], "not counted");
    rig.ends_even().await;
}

/// Opposite decisions and the end of the time, all at once at every gateway: one of them wins, and everybody is told the same.
async fn decisions_and_the_end_race(place: Place, gateways: usize) {
    let rig = rig(place, gateways, 12, 100).await;
    let mut leads = Vec::new();
    for number in 1..=8 {
        leads.push(rig.pending(number).await);
    }
    let mut tasks = Vec::new();
    for (lead, offset_ms) in leads.iter().copied().zip([-4_000, -2_000, -1_000, -500, -200, 0, 300, 1_500]) {
        let detail = rig.ledger.lead_detail(lead).await.expect("the books").expect("a lead");
        let reason = detail.attempts[0].reason.clone().unwrap_or_default();
        let until = Parked::read(&reason).expect(&reason).until;
        for (gateway, word) in [(0, "accepted"), (1, "declined"), (1, "accepted")] {
            let intake = rig.gateways[gateway % rig.gateways.len()].intake;
            let at = until + SignedDuration::from_millis(offset_ms);
            tasks.push(tokio::spawn(async move {
                let wait = at.duration_since(SystemClock.now());
                tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
                (lead, word, decide(intake, lead, &json!({ "decision": word })).await)
            }));
        }
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("it ends"));
    }
    let mut sold = 0;
    for lead in leads {
        let (buyer, outcome, _, detail) = rig.ended(lead).await;
        let is_sold = buyer == "sunco";
        assert_eq!(is_sold, outcome == AttemptOutcome::Accepted, "{detail:?}");
        sold += u32::from(is_sold);
        assert_eq!((detail.lead.status, detail.entries.len()), (LeadStatus::Sold, 3), "P6: one sale");
        for (_, word, answer) in answers.iter().filter(|(of, ..)| *of == lead) {
            let was_taken = answer.status == 200;
            assert!(was_taken || answer.status == 409, "{answer:?}");
            assert_eq!(was_taken && *word == "accepted", is_sold && *word == "accepted", "{answer:?} {detail:?}");
        }
    }
    println!("{sold} of 8 were decided as accepted");
    assert_eq!(rig.cap(0, "used").await, sold.to_string());
    rig.ends_even().await;
}

async fn decisions_and_the_end_race_at_two_gateways(place: Place) {
    let gateways = two_if_shared(&place);
    decisions_and_the_end_race(place, gateways).await;
}

on_both! {
    a_decision_ends_the_wait as p4_p6_a_decision_ends_the_wait_embedded, p4_p6_a_decision_ends_the_wait_on_servers;
    a_wait_outlives_its_gateway as p1_p5_a_wait_outlives_its_gateway_embedded, p1_p5_a_wait_outlives_its_gateway_on_servers;
    decisions_and_the_end_race_at_two_gateways as p1_decisions_and_the_end_race_embedded, p1_decisions_and_the_end_race_on_servers;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_decisions_and_the_end_race_on_a_cluster() {
    decisions_and_the_end_race(Place::cluster().await, 2).await;
}

/// Redis comes back empty while leads wait: their units stay counted, decisions are taken, and what nobody decides goes on.
#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_a_wait_outlives_the_store() {
    let mut server = crate::server::Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut place = Place::on_redis(server.url()).await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let mut rig = rig(place, 2, 600, 2).await;
    let (decided, declined) = (rig.pending(1).await, rig.pending(2).await);
    // Whoever knew of it in memory is gone as well: what is left are the books.
    let gone = rig.gateways.remove(0);
    gone.app.shut_down().await;
    server.kill();
    server.run().await;
    until("the gateway is ready", async || get(&client(), rig.gateways[0].admin, "/readyz").await.status == 200).await;
    let answer = post_until_taken(&client(), rig.first(), "k3", &lead(3)).await;
    assert_eq!(rig_buyer(&rig, answer.lead()).await, "other", "P1: both units are still counted");
    let answer = decide(rig.first(), decided, &json!({ "decision": "accepted" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = decide(rig.first(), declined, &json!({ "decision": "declined" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(rig.ended(decided).await.0, "sunco");
    assert_eq!(rig.ended(declined).await.0, "other");
    assert_eq!(rig.used().await, ["1", "25.00"]);
    rig.ends_even().await;
}

#[cfg(feature = "server-tests")]
async fn rig_buyer(rig: &Rig, lead: LeadId) -> String {
    let detail = closed(&rig.ledger, lead).await;
    detail.lead.buyer.map_or("nobody".to_owned(), |buyer| buyer.as_str().to_owned())
}
