//! Full caps, lowered limits, newer routings and overdue leads: what stands between a buyer and one lead too many.

#[cfg(feature = "server-tests")]
use std::fmt::Write as _;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use serde_json::Value;

use crate::headline::behaviours;
use crate::support::{Answer, BuyerLine, Gateway, Place, client, closed, get, lead, post_until_taken, routing, until};

pub async fn verdict(gateway: &Gateway, key: &str, number: u32) -> Answer {
    let mut answer = post_until_taken(&client(), gateway.intake, key, &lead(number)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // On a slow machine the verdict may come after the answer.
    let path = format!("/v1/leads/{}", answer.lead());
    until("the verdict", async || {
        if answer.text("status") == "pending" {
            answer = get(&client(), gateway.intake, &path).await;
        }
        answer.text("status") != "pending"
    })
    .await;
    answer
}

/// What became of a lead: its status, or why it was not sold.
pub async fn told(gateway: &Gateway, key: &str, number: u32) -> String {
    let answer = verdict(gateway, key, number).await;
    if answer.text("status") == "unsold" { answer.text("reason") } else { answer.text("status") }
}

pub async fn metric(gateway: &Gateway, series: &str) -> f64 {
    let page = String::from_utf8_lossy(&get(&client(), gateway.admin, "/metrics").await.bytes).into_owned();
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{series} is not on the page"))
}

async fn takes(gateway: &Gateway) -> f64 {
    metric(gateway, "capgate_lease_duration_seconds_count").await
}

const FULL_BUYERS: usize = 40;

/// Forty full buyers stand before the open one: the first lead meets them in the store, the ones after it in memory.
async fn many_full_buyers(place: Place) {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let ids: Vec<String> = (0..FULL_BUYERS).map(|number| format!("full{number}")).collect();
    let closed = "[[buyer.cap]]\nwindow = \"day\"\nleads = 0";
    let mut lines: Vec<BuyerLine<'_>> =
        ids.iter().map(|id| BuyerLine { id, url: stub.url("/full"), more: closed, price: "10.00" }).collect();
    lines.push(BuyerLine { id: "open", url: stub.url("/open"), more: "", price: "10.00" });
    place.write_routing(&routing(&lines));
    let gateway = place.start("").await;
    // Until every buyer's counters are read from the books.
    let mut first = 1_000;
    until("the gateway is warm", async || {
        first += 1;
        told(&gateway, &format!("first{first}"), first).await == "sold"
            && metric(&gateway, &format!("capgate_lease_total{{buyer=\"full{}\",result=\"full\"}}", FULL_BUYERS - 1))
                .await
                >= 1.0
    })
    .await;
    // Whether a lead comes within the short memory is up to the machine: of some, one does, and asks for nothing beyond the
    // take that goes with its admission.
    let mut number = 0;
    let explained = loop {
        number += 1;
        assert!(number < 100, "no lead met the memory");
        verdict(&gateway, &format!("a{number}"), number * 10).await;
        let before = takes(&gateway).await;
        let answer = verdict(&gateway, &format!("b{number}"), number * 10 + 1).await;
        if takes(&gateway).await - before < 1.0 {
            break answer;
        }
    };
    assert_eq!(explained.text("status"), "sold");
    let path = format!("/v1/leads/{}", explained.lead());
    let mut notes = Vec::new();
    until("the books have the lead", async || {
        let found = get(&client(), gateway.admin, &path).await.json();
        notes = found["explanation"]["candidates"].as_array().cloned().unwrap_or_default();
        !notes.is_empty()
    })
    .await;
    let full =
        |note: &&Value| note["check"] == "cap" && note["values"]["limit"] == "0" && note["values"]["used"] == "0";
    assert_eq!(notes.iter().filter(full).count(), FULL_BUYERS, "P10: {notes:?}");
    assert_eq!(stub.stats("/full").received, 0);
    gateway.app.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f16_many_full_buyers_cost_no_round_trip_per_lead_embedded() {
    many_full_buyers(Place::embedded()).await;
}

/// The unit comes back through this very gateway: the next lead gets it, memory or not.
#[tokio::test(flavor = "multi_thread")]
async fn f16_a_unit_that_came_back_here_is_seen_at_once() {
    let place = Place::embedded();
    let stub = StubBuyer::on_loopback(behaviours(&["/slow=delay:700:decline"]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 1";
    place.write_routing(&routing(&[BuyerLine { id: "one", url: stub.url("/slow"), more, price: "10.00" }]));
    let gateway = place.start("").await;
    assert_eq!(told(&gateway, "warm-up", 0).await, "declined");
    for round in 1..4_u32 {
        let holder = async { told(&gateway, &format!("holder{round}"), round * 100).await };
        let others = async {
            until("the holder is at the buyer", async || stub.stats("/slow").received == u64::from(round * 2)).await;
            // While one lead holds the unit, the buyer is full, and soon remembered as full.
            told(&gateway, &format!("full{round}"), round * 100 + 1).await
        };
        assert_eq!(tokio::join!(holder, others), ("declined".into(), "capped".into()));
        assert_eq!(told(&gateway, &format!("next{round}"), round * 100 + 2).await, "declined", "it was asked at once");
    }
    gateway.app.shut_down().await;
}

/// One lead whose row nobody can read must not keep the others from their verdict.
#[tokio::test(flavor = "multi_thread")]
async fn p5_a_lead_that_recovery_cannot_finish_stops_no_other() {
    use sqlx::Connection;
    let place = Place::embedded();
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    place.write_routing(&routing(&[BuyerLine { id: "b", url: stub.url("/b"), more: "", price: "10.00" }]));
    let gateway = place.start("").await;
    assert_eq!(told(&gateway, "k0", 0).await, "sold");
    let inner = &gateway.app.gateway;
    let mut leads = Vec::new();
    for _ in 0..6 {
        let id = capgate::domain::id::LeadId::generate();
        let now = inner.store.now();
        let admit = capgate::store::Admit {
            event: capgate::domain::event::Received {
                lead: id,
                publisher: capgate::domain::id::PublisherId::new("acme").expect("an id"),
                campaign: capgate::domain::id::CampaignId::new("solar").expect("an id"),
                received_at_us: now.as_microsecond(),
                test: false,
                payload: lead(1),
                claim: None,
            },
            // Time enough to spoil rows before recovery looks.
            deadline: now + Duration::from_secs(4),
            not_after: now + Duration::from_secs(4),
            retention: Duration::from_hours(1),
        };
        assert_eq!(inner.store.admit(&admit).await, Ok(capgate::store::Admission::New));
        leads.push(id);
    }
    let books = place.ledger().await;
    for id in &leads {
        until("the lead is in the books", async || matches!(books.lead(*id).await, Ok(Some(_)))).await;
    }
    let mut raw = sqlx::SqliteConnection::connect(&place.backing.ledger_url).await.expect("the file opens");
    for id in &leads[..3] {
        let bytes = uuid::Uuid::parse_str(&id.to_string()).expect("a uuid").into_bytes();
        let spoilt = sqlx::query("UPDATE leads SET publisher_id = '' WHERE lead_id = ?")
            .bind(bytes.to_vec())
            .execute(&mut raw)
            .await
            .expect("the row is spoilt");
        assert_eq!(spoilt.rows_affected(), 1);
    }
    for id in &leads[3..] {
        closed(&books, *id).await;
    }
    until("the failures are counted", async || metric(&gateway, "capgate_recovery_failed_total").await >= 3.0).await;
    gateway.app.shut_down().await;
    books.shut_down().await;
}

/// What `capgate caps --leads` shows is the counter, lead by lead: sold ones, one in doubt, one at the buyer.
async fn leads_of_a_cap(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/b=accept", "/hang=hang"]), 1).await.expect("a stub buyer");
    let with = |path: &str, timeout_ms: u32| {
        let more =
            format!("timeout_ms = {timeout_ms}\non_timeout = \"hold\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = 500");
        routing(&[BuyerLine { id: "sunco", url: stub.url(path), more: &more, price: "10.00" }])
    };
    let more = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 100";
    place.write_routing(&with("/b", 5_000));
    let gateway = place.start(more).await;
    let mut expected = Vec::new();
    for number in 0..250 {
        let answer = verdict(&gateway, &format!("k{number}"), number).await;
        assert_eq!(answer.text("status"), "sold");
        expected.push((answer.text("lead_id"), "accepted".to_owned()));
    }
    let reload = async |text: String| {
        place.write_routing(&text);
        let url = format!("http://{}/v1/reload", gateway.admin);
        assert_eq!(client().post(url).send().await.expect("an answer").status().as_u16(), 200);
    };
    reload(with("/hang", 100)).await;
    let answer = verdict(&gateway, "doubt", 300).await;
    assert_eq!(answer.text("status"), "in_doubt");
    expected.push((answer.text("lead_id"), "in_doubt".to_owned()));
    reload(with("/hang", 10_000)).await;
    let answer = post_until_taken(&client(), gateway.intake, "open", &lead(301)).await;
    assert_eq!(answer.text("status"), "pending");
    until("it is at the buyer", async || stub.stats("/hang").received == 2).await;
    expected.push((answer.text("lead_id"), "open".to_owned()));
    expected.sort();

    let (mut told, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = get(&client(), gateway.admin, &format!("/v1/caps/leads?buyer=sunco&cap=day{after}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        pages += 1;
        for row in page["leads"].as_array().expect("leads") {
            assert_eq!(row["amount"], "1");
            let word = |name: &str| row[name].as_str().expect("text").to_owned();
            told.push((word("lead_id"), word("state")));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    told.sort();
    let missing: Vec<_> = expected.iter().filter(|row| !told.contains(row)).collect();
    let unexpected: Vec<_> = told.iter().filter(|row| !expected.contains(row)).collect();
    assert_eq!((missing, unexpected), (vec![], vec![]));
    assert_eq!(told.len(), expected.len(), "each once");
    assert!(pages > 1, "one page is bounded");
    let caps = get(&client(), gateway.admin, "/v1/caps?buyer=sunco").await.json();
    assert_eq!(caps["caps"][0]["used"], told.len().to_string());
    for (query, status) in [("buyer=sunco&cap=week", 404), ("buyer=nobody&cap=day", 404), ("buyer=sunco", 400)] {
        assert_eq!(get(&client(), gateway.admin, &format!("/v1/caps/leads?{query}")).await.status, status, "{query}");
    }
    gateway.app.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_the_leads_of_a_cap_are_its_count_embedded() {
    leads_of_a_cap(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
mod servers {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn f16_many_full_buyers_cost_no_round_trip_per_lead_on_servers() {
        many_full_buyers(Place::servers().await).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn p2_the_leads_of_a_cap_are_its_count_on_servers() {
        leads_of_a_cap(Place::servers().await).await;
    }

    /// A second gateway on the same servers, with a routing file of its own.
    fn beside(place: &Place) -> Place {
        Place { dir: tempfile::tempdir().expect("a temporary folder"), backing: place.backing.clone() }
    }

    fn capped(stub: &StubBuyer, path: &str, version: u64, leads: u32) -> String {
        let more = format!("timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = {leads}");
        let mut text = format!("version = {version}\n");
        let _ =
            write!(text, "{}", routing(&[BuyerLine { id: "sunco", url: stub.url(path), more: &more, price: "10.00" }]));
        text
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn f16_a_unit_that_came_back_elsewhere_is_seen_when_the_memory_fades() {
        let place = Place::servers().await;
        let other = beside(&place);
        let stub = StubBuyer::on_loopback(behaviours(&["/slow=delay:1500:decline"]), 1).await.expect("a stub buyer");
        for one in [&place, &other] {
            one.write_routing(&capped(&stub, "/slow", 1, 1));
        }
        let (here, there) = (place.start("").await, other.start("").await);
        let holder = async {
            let answer = told(&there, "holder", 1).await;
            (answer, std::time::Instant::now())
        };
        let asker = async {
            until("the holder is at the buyer", async || stub.stats("/slow").received == 1).await;
            let mut number = 10;
            let mut capped = 0;
            while stub.stats("/slow").received == 1 {
                number += 1;
                assert!(number < 3_000, "the unit was never seen");
                let answer = post_until_taken(&client(), here.intake, &format!("k{number}"), &lead(number)).await;
                capped += u32::from(answer.text("reason") == "capped");
            }
            (capped, std::time::Instant::now())
        };
        let ((answer, came_back), (capped, seen)) = tokio::join!(holder, asker);
        assert_eq!(answer, "declined");
        assert!(capped > 2, "the buyer was full for a while: {capped}");
        // The memory's 200 ms, and a slow machine's time for one POST.
        assert!(seen < came_back + Duration::from_millis(200 + 5_000), "seen {:?} later", seen - came_back);
        let remembered = metric(&here, "capgate_lease_total{buyer=\"sunco\",result=\"remembered_full\"}").await;
        assert!(remembered >= 1.0);
        here.app.shut_down().await;
        there.app.shut_down().await;
        place.backing.clean().await;
    }

    /// A limit is lowered, and one gateway knows it first: from its first take on nobody grants by the higher one. A gateway
    /// whose file has the newer version reads it at once, one whose file does not skips the buyer.
    #[tokio::test(flavor = "multi_thread")]
    async fn f86_no_grant_above_a_lowered_limit_once_it_was_used_anywhere() {
        let place = Place::servers().await;
        let other = beside(&place);
        let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
        for one in [&place, &other] {
            one.write_routing(&capped(&stub, "/b", 1, 10));
        }
        let (first, second) = (place.start("").await, other.start("").await);
        for (number, gateway) in (0..3).zip([&first, &second, &first]) {
            assert_eq!(told(gateway, &format!("k{number}"), number).await, "sold");
        }
        let reload = async |gateway: &Gateway| {
            let url = format!("http://{}/v1/reload", gateway.admin);
            let answer = client().post(url).send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), 200);
        };
        place.write_routing(&capped(&stub, "/b", 2, 3));
        reload(&first).await;
        assert_eq!(told(&first, "k3", 3).await, "capped");
        let refused = verdict(&second, "k4", 4).await;
        assert_eq!(refused.text("reason"), "unavailable", "its file does not have the newer routing");
        let detail = closed(&second.app.gateway.ledger, refused.lead()).await;
        let explanation: Value = serde_json::from_str(&detail.lead.explanation.unwrap_or_default()).expect("JSON");
        let note = serde_json::json!({ "buyer": "sunco", "check": "not_reached", "values": { "routing_version": "1", "routing_newest": "2" } });
        assert_eq!(explanation["candidates"][0], note, "P10: no cap was full");
        let routing_check = async |gateway: &Gateway| {
            let answer = get(&client(), gateway.admin, "/readyz").await;
            let checks = answer.json()["checks"].as_array().cloned().unwrap_or_default();
            let check = checks.into_iter().find(|check| check["name"] == "routing").expect("it is told");
            (answer.status, check["ok"].clone(), check["detail"].as_str().unwrap_or_default().to_owned())
        };
        let (status, is_ok, detail) = routing_check(&second).await;
        assert_eq!((status, is_ok), (503, Value::Bool(false)), "what it would answer its publishers is final");
        assert!(detail.starts_with("version 1 is in force here, another gateway uses 2"), "{detail}");
        assert_eq!(routing_check(&first).await.1, Value::Bool(true));
        other.write_routing(&capped(&stub, "/b", 2, 3));
        // A file that did not have it is not read again at once.
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(told(&second, "k5", 5).await, "capped", "read at once");
        assert_eq!(second.app.gateway.routing().version(), 2);
        assert_eq!(routing_check(&second).await.1, Value::Bool(true), "it has the newest now");
        // What it remembers of the full buyer has faded.
        tokio::time::sleep(Duration::from_millis(250)).await;
        // Raised again: the older gateway takes the buyer's new limit for the very lead that met it.
        for one in [&place, &other] {
            one.write_routing(&capped(&stub, "/b", 3, 5));
        }
        reload(&first).await;
        assert_eq!(told(&first, "k6", 6).await, "sold");
        assert_eq!(told(&second, "k7", 7).await, "sold");
        assert_eq!(second.app.gateway.routing().version(), 3);
        assert_eq!(told(&first, "k8", 8).await, "capped");
        assert_eq!(told(&second, "k9", 9).await, "capped");
        assert_eq!(stub.stats("/b").accepted, 5);
        first.app.shut_down().await;
        second.app.shut_down().await;
        place.backing.clean().await;
    }

    /// Two copies of one file, neither with a `version`: each goes by its own file's time. The gateway with the older copy sells
    /// nothing, says so, and is in time again as soon as its file is as new.
    #[tokio::test(flavor = "multi_thread")]
    async fn f86_copies_of_a_file_without_a_version_are_told_apart_by_their_times() {
        let place = Place::servers().await;
        let other = beside(&place);
        let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
        let more = "timeout_ms = 10000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 10";
        let text = routing(&[BuyerLine { id: "sunco", url: stub.url("/b"), more, price: "10.00" }]);
        let written = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let set_time = |place: &Place, at| {
            let file = std::fs::File::options().write(true).open(place.routing_path()).expect("it is there");
            file.set_modified(at).expect("its time is set");
        };
        for (one, at) in [(&place, written), (&other, written - Duration::from_secs(3))] {
            one.write_routing(&text);
            set_time(one, at);
        }
        let (newer, older) = (place.start("").await, other.start("").await);
        assert_eq!(told(&newer, "k0", 0).await, "sold");
        assert_eq!(told(&older, "k1", 1).await, "unavailable");
        let readiness = get(&client(), older.admin, "/readyz").await;
        assert_eq!(readiness.status, 503);
        assert!(String::from_utf8_lossy(&readiness.bytes).contains("the file here does not have the newer one"));
        // The same bytes with the newer copy's time.
        set_time(&other, written);
        let mut number = 1;
        until("the older one sells again", async || {
            number += 1;
            told(&older, &format!("k{number}"), number).await == "sold"
        })
        .await;
        assert!(
            !String::from_utf8_lossy(&get(&client(), older.admin, "/readyz").await.bytes).contains("another gateway")
        );
        newer.app.shut_down().await;
        older.app.shut_down().await;
        place.backing.clean().await;
    }
}
