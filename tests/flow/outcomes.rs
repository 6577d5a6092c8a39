//! One buyer misbehaves, the next takes the lead: unit given back, one row per attempt, no lead lost, the answer in time.

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::BuyerId;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};

use crate::headline::behaviours;
use crate::support::{
    Answer, BuyerLine, Gateway, Place, client, closed, get, lead, post, post_until_taken, routing, until,
};

const SHORT_LATE: &str = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 600";

struct Rig {
    place: Place,
    gateway: Gateway,
    stub: StubBuyer,
}

/// Buyer `bad` first, with a day cap of 5, then buyer `good`.
async fn rig(bad: &str, more: &str) -> Rig {
    let stub = StubBuyer::on_loopback(behaviours(&[&format!("/bad={bad}")]), 1).await.expect("a stub buyer");
    let url = stub.url("/bad");
    rig_at(stub, url, more).await
}

async fn rig_at(stub: StubBuyer, bad_url: String, more: &str) -> Rig {
    let place = Place::embedded();
    let more = format!("{more}\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5");
    place.write_routing(&routing(&[
        BuyerLine { id: "bad", url: bad_url, more: &more, price: "25.00" },
        BuyerLine { id: "good", url: stub.url("/good"), more: "", price: "10.00" },
    ]));
    let gateway = place.start(SHORT_LATE).await;
    Rig { place, gateway, stub }
}

/// 250 ms is promised; a busy machine's time comes on top.
const ANSWERED_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);

impl Rig {
    async fn used(&self) -> String {
        let caps = get(&client(), self.gateway.admin, "/v1/caps?buyer=bad").await.json();
        caps["caps"][0]["used"].as_str().unwrap_or("none").to_owned()
    }

    async fn post(&self) -> Answer {
        let answer = post_until_taken(&client(), self.gateway.intake, "k", &lead(1)).await;
        assert!(answer.took < ANSWERED_WITHIN, "answered after {:?}", answer.took);
        assert_eq!(answer.status, 200);
        answer
    }

    /// The lead ends at `good`, with this outcome at `bad`, and the unit is back.
    async fn cascades(self, outcome: AttemptOutcome, reason: &str) {
        let answer = self.post().await;
        assert!(["sold", "pending"].contains(&answer.text("status").as_str()), "{answer:?}");
        let ledger = self.place.ledger().await;
        let detail = closed(&ledger, answer.lead()).await;
        assert_eq!(detail.lead.status, LeadStatus::Sold);
        assert_eq!(detail.lead.buyer.as_ref().map(BuyerId::as_str), Some("good"));
        let rows: Vec<_> = detail.attempts.iter().map(|a| (a.buyer.as_str(), a.outcome, a.counted)).collect();
        assert_eq!(rows, [("bad", outcome, false), ("good", AttemptOutcome::Accepted, true)], "one row per attempt");
        assert_eq!(detail.attempts[0].reason.as_deref(), Some(reason));
        assert_eq!(self.used().await, "0", "the unit is back");
        let sum: i64 = detail.entries.iter().map(|entry| entry.amount.0).sum();
        assert_eq!((detail.entries.len(), sum), (3, 0), "P6");
        assert!(self.stub.stats("/bad").received <= 1, "P4");
        let later = get(&client(), self.gateway.intake, &format!("/v1/leads/{}", answer.lead())).await;
        assert_eq!(later.text("status"), "sold");
        assert_eq!(later.text("price"), "7.00");
        self.gateway.app.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_that_times_out_is_passed_over() {
    rig("hang", "timeout_ms = 300").await.cascades(AttemptOutcome::InDoubt, "timeout").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_that_answers_500_is_passed_over() {
    rig("error:500", "").await.cascades(AttemptOutcome::Declined, "http_500").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_that_answers_200_rejected_is_passed_over() {
    let rig =
        rig("decline", "[buyer.answer]\naccepted = { path = \"/status\", in = [\"accepted\"] }\nreason = \"/reason\"");
    rig.await.cascades(AttemptOutcome::Declined, "not interested").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_that_is_not_there_is_passed_over() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    rig_at(stub, format!("http://{free}/bad"), "").await.cascades(AttemptOutcome::Unsent, "connect").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_that_breaks_after_reading_is_in_doubt_and_passed_over() {
    rig("close", "").await.cascades(AttemptOutcome::InDoubt, "broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_gives_the_unit_back_at_once_under_reserve_too() {
    rig("close", "on_timeout = \"reserve\"").await.cascades(AttemptOutcome::InDoubt, "broken").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f46_late_yes_after_the_lead_was_sold_elsewhere_is_counted_and_not_booked() {
    let rig = rig("late:500", "timeout_ms = 200").await;
    let answer = rig.post().await;
    let ledger = rig.place.ledger().await;
    until("the late yes is in the books", async || {
        let detail = ledger.lead_detail(answer.lead()).await.expect("books answer");
        detail.is_some_and(|detail| {
            detail.attempts.iter().any(|a| a.outcome == AttemptOutcome::LateAccepted && a.counted)
        })
    })
    .await;
    let detail = closed(&ledger, answer.lead()).await;
    assert_eq!(detail.lead.buyer.as_ref().map(BuyerId::as_str), Some("good"));
    assert_eq!(rig.used().await, "1", "P1: a yes is counted, however late");
    assert!(detail.entries.iter().all(|entry| entry.account != "buyer:bad"), "contested: not booked until resolved");
    let metrics = get(&client(), rig.gateway.admin, "/metrics").await;
    let text = String::from_utf8_lossy(&metrics.bytes).into_owned();
    assert!(text.contains("capgate_late_accepted_total{buyer=\"bad\"} 1"), "{text}");
    rig.gateway.app.shut_down().await;
}

/// Only `slow` may have the lead.
async fn alone(on_timeout: &str, behaviour: &str) -> Rig {
    let stub = StubBuyer::on_loopback(behaviours(&[&format!("/bad={behaviour}")]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let more = format!("timeout_ms = 200\non_timeout = \"{on_timeout}\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5");
    place.write_routing(&routing(&[BuyerLine { id: "bad", url: stub.url("/bad"), more: &more, price: "25.00" }]));
    let gateway = place.start(SHORT_LATE).await;
    Rig { place, gateway, stub }
}

#[tokio::test(flavor = "multi_thread")]
async fn f46_late_yes_sells_a_lead_that_nobody_else_has_under_every_policy() {
    for policy in ["refund", "reserve", "hold"] {
        let rig = alone(policy, "late:450").await;
        let answer = rig.post().await;
        assert_eq!(
            answer.text("status"),
            "pending",
            "{policy}: a lead is not closed while a late answer may still come"
        );
        let ledger = rig.place.ledger().await;
        let detail = closed(&ledger, answer.lead()).await;
        assert_eq!(detail.lead.status, LeadStatus::Sold, "{policy}");
        assert_eq!(detail.attempts[0].outcome, AttemptOutcome::LateAccepted, "{policy}");
        let booked: Vec<_> = detail.entries.iter().map(|e| (e.account.as_str(), e.amount.0)).collect();
        assert_eq!(booked.len(), 3, "{policy}: booked once");
        assert_eq!(booked.iter().map(|(_, micros)| micros).sum::<i64>(), 0, "{policy}");
        assert_eq!(rig.used().await, "1", "{policy}: counted once");
        assert_eq!(rig.stub.stats("/bad").received, 1, "{policy}");
        rig.gateway.app.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f46_without_a_late_answer_each_policy_keeps_or_returns_the_unit() {
    for (policy, status, used) in
        [("refund", LeadStatus::Unsold, "0"), ("reserve", LeadStatus::Unsold, "0"), ("hold", LeadStatus::InDoubt, "1")]
    {
        let rig = alone(policy, "hang").await;
        let answer = rig.post().await;
        assert_eq!(answer.text("status"), "pending", "{policy}");
        let ledger = rig.place.ledger().await;
        let detail = closed(&ledger, answer.lead()).await;
        assert_eq!(detail.lead.status, status, "{policy}");
        assert_eq!(detail.attempts[0].outcome, AttemptOutcome::InDoubt, "{policy}");
        assert_eq!(rig.used().await, used, "{policy}");
        assert!(detail.entries.is_empty(), "{policy}");
        rig.gateway.app.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_repeats_get_the_same_bytes_and_other_bodies_are_refused() {
    let rig = rig("accept", "").await;
    let client = client();
    let first = post(&client, rig.gateway.intake, "same", &lead(1)).await;
    let again = post(&client, rig.gateway.intake, "same", &lead(1)).await;
    assert_eq!(first.text("status"), "sold");
    assert_eq!((again.status, &again.bytes), (200, &first.bytes), "byte for byte");
    assert_eq!(
        again.headers.get("idempotent-replayed").map(reqwest::header::HeaderValue::as_bytes),
        Some(&b"true"[..])
    );
    let other = post(&client, rig.gateway.intake, "same", &lead(2)).await;
    assert_eq!((other.status, other.text("code").as_str()), (422, "idempotency_key_reused"));
    assert_eq!(rig.stub.stats("/bad").received, 1);
    rig.gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_hundred_twins_make_one_chain() {
    let rig = rig("delay:50:accept", "").await;
    let answers: Vec<_> = (0..100)
        .map(|_| {
            let intake = rig.gateway.intake;
            tokio::spawn(async move { post(&client(), intake, "twin", &lead(1)).await })
        })
        .collect();
    let (mut ids, mut verdicts) = (Vec::new(), Vec::new());
    for answer in answers {
        let answer = answer.await.expect("an answer");
        ids.push(answer.text("lead_id"));
        // A twin whose time is over before the verdict is told "pending", about the same lead.
        if answer.text("status") != "pending" {
            verdicts.push(answer.bytes);
        }
    }
    verdicts.push(post_until_taken(&client(), rig.gateway.intake, "twin", &lead(1)).await.bytes);
    for list in [&mut ids, &mut verdicts.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()] {
        list.sort();
        list.dedup();
        assert_eq!(list.len(), 1, "{list:?}");
    }
    assert_eq!(rig.stub.stats("/bad").received, 1, "one chain");
    rig.gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f44_a_publisher_that_hangs_up_changes_nothing() {
    use tokio::io::AsyncWriteExt;
    let rig = rig("delay:100:accept", "").await;
    let body = lead(1);
    let request = format!(
        "POST /v1/campaigns/solar/leads HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: \
         application/json\r\nidempotency-key: gone\r\ncontent-length: {}\r\n\r\n{body}",
        crate::support::KEY,
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(rig.gateway.intake).await.expect("connects");
    socket.write_all(request.as_bytes()).await.expect("sends");
    until("the buyer has been asked", async || rig.stub.stats("/bad").received == 1).await;
    drop(socket);
    until("a retry gets the answer", async || {
        post(&client(), rig.gateway.intake, "gone", &body).await.text("status") == "sold"
    })
    .await;
    assert_eq!(rig.stub.stats("/bad").received, 1);
    assert_eq!(rig.used().await, "1");
    rig.gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_every_candidate_is_explained_once() {
    let stub = StubBuyer::on_loopback(behaviours(&["/no=decline"]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let url = |path: &str| stub.url(path);
    place.write_routing(&routing(&[
        BuyerLine { id: "paused", url: url("/x"), more: "paused = true", price: "9.00" },
        BuyerLine { id: "texas", url: url("/x"), more: "[buyer.filter]\nstates = [\"TX\"]", price: "9.00" },
        BuyerLine { id: "full", url: url("/x"), more: "[[buyer.cap]]\nwindow = \"day\"\nleads = 0", price: "9.00" },
        BuyerLine { id: "no", url: url("/no"), more: "", price: "9.00" },
        BuyerLine { id: "yes", url: url("/yes"), more: "", price: "9.00" },
        BuyerLine { id: "last", url: url("/x"), more: "", price: "9.00" },
    ]));
    let gateway = place.start("").await;
    let answer = post(&client(), gateway.intake, "k", &lead(1)).await;
    let ledger = place.ledger().await;
    closed(&ledger, answer.lead()).await;
    let lead = get(&client(), gateway.admin, &format!("/v1/leads/{}", answer.lead())).await.json();
    let told: Vec<_> = lead["explanation"]["candidates"]
        .as_array()
        .expect("candidates")
        .iter()
        .map(|note| (note["buyer"].as_str().unwrap_or(""), note["check"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        told,
        [
            ("paused", "paused"),
            ("texas", "state"),
            ("full", "cap"),
            ("no", "declined"),
            ("yes", "accepted"),
            ("last", "not_reached")
        ]
    );
    let full = &lead["explanation"]["candidates"][2]["values"];
    assert_eq!(
        (full["cap"].as_str(), full["limit"].as_str(), full["used"].as_str()),
        (Some("day"), Some("0"), Some("0"))
    );
    gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_lead_is_decided_explained_and_touches_nothing() {
    let rig = rig("accept", "").await;
    let body = lead(1).replacen('{', "{\"test\":true,", 1);
    let answer = post(&client(), rig.gateway.intake, "t", &body).await;
    assert_eq!((answer.status, answer.text("status").as_str()), (200, "sold"));
    assert_eq!(answer.json()["explanation"]["candidates"][0]["buyer"], "bad");
    assert_eq!(rig.stub.stats("/bad").received + rig.stub.stats("/good").received, 0);
    assert_eq!(rig.used().await, "0");
    let ledger = rig.place.ledger().await;
    let detail = closed(&ledger, answer.lead()).await;
    assert!(detail.lead.is_test && detail.attempts.is_empty() && detail.entries.is_empty());
    rig.gateway.app.shut_down().await;
}
