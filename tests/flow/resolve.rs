//! An operator ends a doubt: unit, money and lead follow, once.

use std::process::Command;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::ledger::{LeadDetail, SharedLedger};
use serde_json::{Value, json};

use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, closed, get, lead, post, routing, until};

#[cfg(feature = "server-tests")]
mod race;

const SHORT_LATE: &str = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 600";

struct Rig {
    place: Place,
    gateway: Gateway,
    ledger: SharedLedger,
    /// Its answers must be awaited by nobody any more.
    _stub: StubBuyer,
}

/// Buyer `bad` first, with a cap of 5 and one of money; `good` second, if `has_good`.
async fn rig(place: Place, bad: &str, on_timeout: &str, has_good: bool) -> Rig {
    rig_with(place, bad, on_timeout, has_good, SHORT_LATE).await
}

async fn rig_with(place: Place, bad: &str, on_timeout: &str, has_good: bool, forward: &str) -> Rig {
    let stub = StubBuyer::on_loopback(behaviours(&[&format!("/bad={bad}")]), 1).await.expect("a stub buyer");
    let more = format!(
        "timeout_ms = 200\non_timeout = \"{on_timeout}\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5\n\
         [[buyer.cap]]\nwindow = \"month\"\nspend = \"1000.00\""
    );
    let mut buyers =
        vec![BuyerLine { id: "bad", url: stub.url("/bad"), more: &more, price: "25.00\"\nprice_max = \"40.00" }];
    if has_good {
        buyers.push(BuyerLine { id: "good", url: stub.url("/good"), more: "", price: "10.00" });
    }
    place.write_routing(&routing(&buyers));
    let gateway = place.start(forward).await;
    let ledger = place.ledger().await;
    Rig { place, gateway, ledger, _stub: stub }
}

impl Rig {
    /// A lead that has been closed, with an attempt at `bad` that nobody knows the end of.
    async fn doubted(&self, number: u32) -> LeadId {
        let answer = post(&client(), self.gateway.intake, &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        closed(&self.ledger, answer.lead()).await;
        let mut detail = None;
        until("the doubt is in the books", async || {
            detail = self.ledger.lead_detail(answer.lead()).await.expect("books answer");
            detail.as_ref().is_some_and(|detail| !detail.attempts.is_empty())
        })
        .await;
        assert_eq!(detail.map(|detail| detail.attempts[0].outcome), Some(AttemptOutcome::InDoubt));
        answer.lead()
    }

    async fn resolve(&self, lead: LeadId, buyer: &str, outcome: &str) -> (u16, Value) {
        let answer = client()
            .post(format!("http://{}/v1/leads/{lead}/resolve", self.gateway.admin))
            .body(json!({ "buyer": buyer, "outcome": outcome }).to_string())
            .send()
            .await
            .expect("an answer");
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON"))
    }

    /// Used and in doubt of the day cap, used and in doubt of the money cap.
    async fn caps(&self) -> [String; 4] {
        let caps = get(&client(), self.gateway.admin, "/v1/caps?buyer=bad").await.json();
        let cell = |row: usize, name: &str| caps["caps"][row][name].as_str().unwrap_or("none").to_owned();
        [cell(0, "used"), cell(0, "in_doubt"), cell(1, "used"), cell(1, "in_doubt")]
    }

    async fn detail(&self, lead: LeadId) -> LeadDetail {
        self.ledger.lead_detail(lead).await.expect("books answer").expect("the lead is in the books")
    }

    /// P2 and P6 at rest.
    async fn ends_even(self) {
        let totals = self.ledger.totals().await.expect("totals");
        assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
        let (_, usage) = self.ledger.usage_all(jiff::Timestamp::UNIX_EPOCH).await.expect("usage");
        let settled = |cap: &str| {
            let rows = usage.iter().filter(|row| row.buyer.as_str() == "bad" && row.cap.as_str() == cap);
            i64::try_from(rows.map(|row| row.used).sum::<u64>()).expect("small")
        };
        let caps = self.caps().await;
        assert_eq!(settled("day").to_string(), caps[0], "P2: counter and books agree");
        let micros = capgate::domain::money::Micros(settled("month:spend"));
        assert_eq!(micros.to_string(), caps[2], "P2: counter and books agree");
        self.gateway.app.shut_down().await;
        self.ledger.shut_down().await;
        self.place.backing.clean().await;
    }
}

fn accounts(detail: &LeadDetail) -> Vec<(&str, i64)> {
    let mut lines: Vec<_> = detail.entries.iter().map(|entry| (entry.account.as_str(), entry.amount.0)).collect();
    lines.sort_unstable();
    lines
}

async fn accepted_sells_the_lead(place: Place) {
    let rig = rig(place, "hang", "hold", true).await;
    let lead = rig.doubted(1).await;
    let path = format!("/v1/leads/{lead}");
    let first_answer = get(&client(), rig.gateway.intake, &path).await;
    assert_eq!(first_answer.text("status"), "in_doubt");
    assert_eq!(rig.caps().await, ["1", "1", "40.00", "40.00"]);

    let (status, body) = rig.resolve(lead, "bad", "accepted").await;
    let expected = json!({ "lead_id": lead.to_string(), "buyer": "bad", "outcome": "late_accepted", "status": "sold" });
    assert_eq!((status, &body), (200, &expected));
    assert_eq!(rig.caps().await, ["1", "0", "25.00", "0.00"], "the unit is kept, the money is what was booked");
    let detail = rig.detail(lead).await;
    assert_eq!((detail.lead.status, detail.lead.buyer.as_ref().map(BuyerId::as_str)), (LeadStatus::Sold, Some("bad")));
    assert_eq!((detail.lead.price.map(|p| p.0), detail.lead.payout.map(|p| p.0)), (Some(25_000_000), Some(17_500_000)));
    assert_eq!(detail.attempts.len(), 1, "it is not routed on");
    assert_eq!((detail.attempts[0].outcome, detail.attempts[0].counted), (AttemptOutcome::LateAccepted, true));
    let sale = [("buyer:bad", -25_000_000), ("margin", 7_500_000), ("publisher:acme", 17_500_000)];
    assert_eq!(accounts(&detail), sale);
    let now = get(&client(), rig.gateway.intake, &path).await;
    assert_eq!(
        (now.text("status"), now.text("price")),
        ("sold".to_owned(), "17.50".to_owned()),
        "the publisher can see that it is paid"
    );
    let repeat = post(&client(), rig.gateway.intake, "k1", &crate::support::lead(1)).await;
    assert_eq!(repeat.bytes, first_answer.bytes, "P3: one final answer");

    assert_eq!(rig.resolve(lead, "bad", "accepted").await, (200, expected), "a repeat");
    let (status, body) = rig.resolve(lead, "bad", "declined").await;
    assert_eq!((status, body["code"].as_str()), (409, Some("conflict")), "the opposite");
    assert_eq!(rig.detail(lead).await, detail, "neither changed anything");
    assert_eq!(rig.resolve(lead, "good", "accepted").await.0, 404, "never offered to this buyer");
    assert_eq!(rig.resolve(LeadId::generate(), "bad", "accepted").await.0, 404, "no such lead");
    rig.ends_even().await;
}

async fn declined_gives_the_unit_back(place: Place) {
    let rig = rig(place, "hang", "hold", true).await;
    let lead = rig.doubted(1).await;
    let (status, body) = rig.resolve(lead, "bad", "declined").await;
    let expected = json!({ "lead_id": lead.to_string(), "buyer": "bad", "outcome": "declined", "status": "unsold" });
    assert_eq!((status, &body), (200, &expected));
    assert_eq!(rig.caps().await, ["0", "0", "0.00", "0.00"]);
    let detail = rig.detail(lead).await;
    assert_eq!((detail.lead.status, detail.lead.reason.as_deref()), (LeadStatus::Unsold, Some("declined")));
    assert_eq!(detail.attempts.len(), 1, "it is not routed on");
    assert_eq!(detail.attempts[0].reason.as_deref(), Some("resolved"));
    let now = get(&client(), rig.gateway.intake, &format!("/v1/leads/{lead}")).await;
    assert_eq!((now.text("status"), now.text("reason")), ("unsold".to_owned(), "declined".to_owned()));
    assert!(detail.entries.is_empty());
    assert_eq!(rig.resolve(lead, "bad", "declined").await, (200, expected), "a repeat");
    assert_eq!(rig.resolve(lead, "bad", "accepted").await.0, 409, "the opposite");
    assert_eq!(rig.detail(lead).await, detail, "neither changed anything");
    assert_eq!(rig.caps().await, ["0", "0", "0.00", "0.00"]);
    rig.ends_even().await;
}

async fn a_second_buyer_is_charged_too(place: Place) {
    let rig = rig(place, "hang", "refund", true).await;
    let lead = rig.doubted(1).await;
    assert_eq!(rig.caps().await, ["0", "0", "0.00", "0.00"], "refunded at the time-out");
    assert_eq!(rig.resolve(lead, "good", "accepted").await.0, 409, "not in doubt");
    assert_eq!(rig.resolve(lead, "good", "declined").await.0, 409, "not in doubt");
    // Asked by several operators at once.
    let asked = futures_of(&rig, lead, 4).await;
    assert!(asked.iter().all(|status| *status == 200), "{asked:?}");
    let detail = rig.detail(lead).await;
    assert_eq!(detail.lead.buyer.as_ref().map(BuyerId::as_str), Some("good"), "the sale stays where it was");
    let lines = accounts(&detail);
    let sum = |name: &str| lines.iter().filter(|(account, _)| *account == name).map(|(_, micros)| micros).sum::<i64>();
    assert_eq!((sum("buyer:bad"), sum("buyer:good")), (-25_000_000, -10_000_000));
    assert_eq!((sum("publisher:acme"), sum("margin")), (7_000_000, 28_000_000), "the publisher is paid once");
    assert_eq!(rig.caps().await, ["1", "0", "25.00", "0.00"], "the unit counts again");
    rig.ends_even().await;
}

/// The same wish, several times at once.
async fn futures_of(rig: &Rig, lead: LeadId, count: usize) -> Vec<u16> {
    let url = format!("http://{}/v1/leads/{lead}/resolve", rig.gateway.admin);
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let request = client().post(&url).body(r#"{"buyer":"bad","outcome":"accepted"}"#);
            tokio::spawn(async move { request.send().await.expect("an answer").status().as_u16() })
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.expect("it ends"));
    }
    statuses
}

async fn a_contested_yes_is_booked(place: Place) {
    let rig = rig(place, "late:450", "refund", true).await;
    let answer = post(&client(), rig.gateway.intake, "k", &lead(1)).await;
    until("the late yes is in the books", async || {
        let detail = rig.ledger.lead_detail(answer.lead()).await.expect("books answer");
        detail.is_some_and(|detail| detail.attempts.iter().any(|a| a.outcome == AttemptOutcome::LateAccepted))
    })
    .await;
    let before = closed(&rig.ledger, answer.lead()).await;
    assert_eq!(rig.caps().await[0], "1");
    assert_eq!(rig.resolve(answer.lead(), "bad", "declined").await.0, 409, "a yes is not resolved away");
    assert_eq!(rig.detail(answer.lead()).await, before);
    assert_eq!(rig.resolve(answer.lead(), "bad", "accepted").await.0, 200);
    let detail = rig.detail(answer.lead()).await;
    assert_eq!(detail.entries.len(), 6);
    assert!(accounts(&detail).contains(&("publisher:acme", 0)), "the publisher is paid once: {detail:?}");
    assert_eq!(rig.resolve(answer.lead(), "bad", "accepted").await.0, 200);
    assert_eq!(rig.detail(answer.lead()).await, detail);
    assert_eq!(rig.caps().await[0], "1", "counted once");
    rig.ends_even().await;
}

async fn an_open_lead_is_resolved_when_it_has_its_verdict(place: Place) {
    let slow = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 3000";
    let rig = rig_with(place, "hang", "hold", false, slow).await;
    let answer = post(&client(), rig.gateway.intake, "k", &lead(1)).await;
    until("the doubt is in the books", async || {
        let detail = rig.ledger.lead_detail(answer.lead()).await.expect("books answer");
        detail.is_some_and(|detail| !detail.attempts.is_empty())
    })
    .await;
    assert_eq!(rig.detail(answer.lead()).await.lead.status, LeadStatus::Pending, "its late answer may still come");
    let (status, body) = rig.resolve(answer.lead(), "bad", "declined").await;
    assert_eq!((status, body["status"].as_str()), (200, Some("unsold")), "{body}");
    assert_eq!(rig.caps().await, ["0", "0", "0.00", "0.00"]);
    rig.ends_even().await;
}

async fn every_doubt_of_a_buyer_by_the_command(place: Place) {
    let rig = rig(place, "hang", "hold", false).await;
    let mut leads = Vec::new();
    for number in 0..3 {
        leads.push(rig.doubted(number).await);
    }
    let admin = format!("http://{}", rig.gateway.admin);
    let config = rig.place.dir.path().join("capgate.toml");
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_capgate"))
            .args(["resolve", "--admin", &admin, "--config"])
            .arg(&config)
            .args(words)
            .output()
            .expect("capgate runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let run = |words: &[&str]| tokio::task::block_in_place(|| run(words));
    let list = get(&client(), rig.gateway.admin, "/v1/buyers/bad/doubts").await.json();
    assert_eq!(list["doubts"].as_array().map(Vec::len), Some(3), "{list}");
    assert_eq!(list["doubts"][0]["lead_id"].as_str(), Some(leads[0].to_string().as_str()));

    let told = format!("lead {} at bad: late_accepted, the lead is sold\n", leads[1]);
    assert_eq!(run(&[&leads[1].to_string(), "bad", "accepted"]), (Some(0), told, String::new()));
    let (code, _, said) = run(&[&leads[1].to_string(), "bad", "declined"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("409"), "{said}");
    assert_eq!(
        run(&["--buyer", "bad", "--all", "declined"]),
        (Some(0), "2 resolved as declined, 0 not\n".into(), String::new())
    );
    assert_eq!(run(&["--buyer", "bad", "--all", "declined"]).1, "0 resolved as declined, 0 not\n");
    assert_eq!(run(&["--buyer", "bad", "declined"]).0, Some(64));
    assert_eq!(run(&["--buyer", "nobody", "--all", "declined"]).0, Some(1));
    assert_eq!(rig.caps().await, ["1", "0", "25.00", "0.00"]);
    rig.ends_even().await;
}

/// A gateway dies while it waits for a buyer; another life of it keeps the unit in doubt until it is resolved.
async fn a_doubt_of_a_dead_gateway(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/bad=hang"]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 1000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5";
    place.write_routing(&routing(&[
        BuyerLine { id: "bad", url: stub.url("/bad"), more, price: "25.00" },
        BuyerLine { id: "good", url: stub.url("/good"), more: "", price: "10.00" },
    ]));
    let quick = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 300\nlead_deadline_ms = 1000";
    let mut gateway = place.spawn("gateway.toml", quick);
    gateway.until_ready().await;
    let intake = gateway.intake;
    let answer = post(&client(), intake, "k", &lead(1)).await;
    until("the buyer has been asked", async || stub.stats("/bad").received == 1).await;
    gateway.kill();
    gateway.start();
    gateway.until_ready().await;
    let ledger = place.ledger().await;
    let detail = closed(&ledger, answer.lead()).await;
    assert_eq!((detail.lead.status, detail.attempts[0].reason.as_deref()), (LeadStatus::Sold, Some("gateway_lost")));
    let used = async || get(&client(), gateway.admin, "/v1/caps?buyer=bad").await.json()["caps"][0]["used"].clone();
    assert_eq!(used().await, "1", "kept in doubt");
    let body = r#"{"buyer":"bad","outcome":"declined"}"#;
    let url = format!("http://{}/v1/leads/{}/resolve", gateway.admin, answer.lead());
    let resolved = client().post(url).body(body).send().await.expect("an answer");
    assert_eq!(resolved.status().as_u16(), 200);
    assert_eq!(used().await, "0");
    let after = ledger.lead_detail(answer.lead()).await.expect("books answer").expect("it is there");
    assert_eq!((after.lead, after.entries), (detail.lead, detail.entries), "the sale is another's");
    tokio::task::block_in_place(|| gateway.terminate());
    ledger.shut_down().await;
    place.backing.clean().await;
}

macro_rules! on_both {
    ($($body:ident as $embedded:ident, $servers:ident;)+) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $embedded() {
            $body(Place::embedded()).await;
        }

        #[cfg(feature = "server-tests")]
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $servers() {
            $body(Place::servers().await).await;
        }
    )+ };
}

pub(crate) use on_both;

on_both! {
    accepted_sells_the_lead as p6_accepted_books_once_and_sells_the_lead_embedded, p6_accepted_books_once_and_sells_the_lead_on_servers;
    declined_gives_the_unit_back as p2_declined_gives_the_unit_back_embedded, p2_declined_gives_the_unit_back_on_servers;
    a_second_buyer_is_charged_too as p6_a_second_buyer_is_charged_and_the_publisher_paid_once_embedded, p6_a_second_buyer_is_charged_and_the_publisher_paid_once_on_servers;
    a_contested_yes_is_booked as f46_a_contested_yes_is_booked_by_resolve_embedded, f46_a_contested_yes_is_booked_by_resolve_on_servers;
    an_open_lead_is_resolved_when_it_has_its_verdict as an_open_lead_waits_for_its_verdict_embedded, an_open_lead_waits_for_its_verdict_on_servers;
    every_doubt_of_a_buyer_by_the_command as every_doubt_of_a_buyer_by_the_command_embedded, every_doubt_of_a_buyer_by_the_command_on_servers;
    a_doubt_of_a_dead_gateway as f05_a_doubt_of_a_dead_gateway_is_resolved_embedded, f05_a_doubt_of_a_dead_gateway_is_resolved_on_servers;
}
