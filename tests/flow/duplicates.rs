//! A buyer that wants nobody twice: once at once from all sides, after a restart, and after the store has lost everything.

use std::sync::Arc;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::LeadId;
use capgate::domain::outcome::LeadStatus;
use capgate::ledger::SharedLedger;
use serde_json::Value;

use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, closed, get, lead, post_until_taken, routing};

const QUICK: &str = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 600";
const TWINS: usize = 50;

/// `sunco` wants no phone twice and calls a lead by a name of its own; `picky` wants nobody at all, and would like to be asked
/// each time; then nobody else. Caps show what was touched.
async fn rig(place: &Place) -> StubBuyer {
    let yes = r#"say:200:{"status":"accepted","id":"S-1"}"#;
    let stub = StubBuyer::on_loopback(behaviours(&[&format!("/sunco={yes}"), "/picky=decline"]), 1)
        .await
        .expect("a stub buyer");
    let rule = "timeout_ms = 6000\nduplicates = { fields = [\"phone\"], days = 30 }\n[[buyer.cap]]\nwindow = \"total\"\nleads = 1000\n";
    let more =
        format!("{rule}[buyer.answer]\naccepted = {{ path = \"/status\", in = [\"accepted\"] }}\nreference = \"/id\"");
    place.write_routing(&routing(&[
        BuyerLine { id: "picky", url: stub.url("/picky"), more: rule, price: "30.00" },
        BuyerLine { id: "sunco", url: stub.url("/sunco"), more: &more, price: "25.00" },
    ]));
    stub
}

/// One way of writing the same number for each lead.
fn of_one_person(number: usize) -> String {
    let phone = ["201-555-0101", "(201) 555 0101", "+1 201 555 0101", "12015550101"][number % 4];
    lead(1).replace("2015550001", phone).replace("t1@", &format!("t{number}@"))
}

async fn used(gateway: &Gateway, buyer: &str) -> String {
    let caps = get(&client(), gateway.admin, &format!("/v1/caps?buyer={buyer}")).await.json();
    caps["caps"][0]["used"].as_str().unwrap_or("none").to_owned()
}

/// Posts one more lead about the person; it ends unsold, and the explanation says by which lead sunco has it.
async fn is_had_by(gateway: &Gateway, ledger: &SharedLedger, key: &str, number: usize, had: LeadId) {
    let answer = post_until_taken(&client(), gateway.intake, key, &of_one_person(number)).await;
    let detail = closed(ledger, answer.lead()).await;
    // The one that wants nobody was asked, and that is further than a duplicate comes.
    assert_eq!((detail.lead.status, detail.lead.reason.as_deref()), (LeadStatus::Unsold, Some("declined")));
    let told: Value = serde_json::from_str(detail.lead.explanation.as_deref().unwrap_or_default()).expect("JSON");
    let sunco = &told["candidates"][1];
    assert_eq!((&sunco["buyer"], &sunco["check"]), (&"sunco".into(), &"duplicate".into()), "{told}");
    assert_eq!(sunco["values"]["lead_id"], had.to_string(), "{told}");
    assert_eq!((&sunco["values"]["fields"], &sunco["values"]["days"]), (&"phone".into(), &"30".into()));
}

async fn sold(ledger: &SharedLedger, leads: &[LeadId]) -> Vec<LeadId> {
    let mut sold = Vec::new();
    for lead in leads {
        if closed(ledger, *lead).await.lead.status == LeadStatus::Sold {
            sold.push(*lead);
        }
    }
    sold
}

async fn twins(place: Place, gateways: usize) {
    let stub = rig(&place).await;
    let mut running = Vec::new();
    for _ in 0..gateways {
        running.push(place.start(QUICK).await);
    }
    let ledger = place.ledger().await;
    let intakes: Arc<Vec<_>> = Arc::new(running.iter().map(|gateway| gateway.intake).collect());
    let publisher = client();
    let posts = (0..TWINS).map(|twin| {
        let (intakes, publisher) = (intakes.clone(), publisher.clone());
        tokio::spawn(async move {
            let intake = intakes[twin % intakes.len()];
            post_until_taken(&publisher, intake, &format!("twin{twin}"), &of_one_person(twin)).await.lead()
        })
    });
    let mut leads = Vec::new();
    for post in posts.collect::<Vec<_>>() {
        leads.push(post.await.expect("a lead"));
    }
    let [first] = sold(&ledger, &leads).await.try_into().expect("exactly one sale");
    assert_eq!(stub.stats("/sunco").received, 1, "nobody else was offered to it");
    // While it has not answered yet it may be about to have the person: some of the twins are not offered to it.
    let refused = stub.stats("/picky").received;
    assert!((1..=TWINS as u64).contains(&refused), "{refused}");
    assert_eq!((used(&running[0], "sunco").await, used(&running[0], "picky").await), ("1".into(), "0".into()));
    is_had_by(&running[0], &ledger, "again", 7, first).await;
    assert_eq!(stub.stats("/picky").received, refused + 1, "a refusal blocks nobody");
    // Another person is another one.
    let other = post_until_taken(&client(), running[0].intake, "other", &lead(2)).await.lead();
    assert_eq!(closed(&ledger, other).await.lead.status, LeadStatus::Sold);

    // What the buyer calls the lead is told to operators, and to nobody else.
    let shown = get(&client(), running[0].admin, &format!("/v1/leads/{first}")).await.json();
    let attempts = shown["attempts"].as_array().expect("a list");
    let at_sunco = attempts.iter().find(|attempt| attempt["buyer"] == "sunco").expect("an attempt");
    assert_eq!(at_sunco["reference"], "S-1", "{shown}");
    let to_publisher = get(&client(), running[0].intake, &format!("/v1/leads/{first}")).await;
    assert!(!String::from_utf8_lossy(&to_publisher.bytes).contains("S-1"));

    // A process that starts anew knows it from the journal and the books.
    running.remove(0).app.shut_down().await;
    running.push(place.start(QUICK).await);
    is_had_by(running.last().expect("it runs"), &ledger, "after-the-start", 9, first).await;
    for gateway in running {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_twins_of_one_person_are_sold_once() {
    twins(Place::embedded(), 1).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_twins_of_one_person_at_three_gateways_are_sold_once() {
    twins(Place::servers().await, 3).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_p8_persons_come_back_from_the_books_after_a_loss() {
    use crate::server::Server;

    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut place = Place::on_redis(server.url()).await;
    place.backing.store_more = "command_timeout_ms = 1000";
    let stub = rig(&place).await;
    let gateways = [place.start(QUICK).await, place.start(QUICK).await];
    let ledger = place.ledger().await;
    let first = post_until_taken(&client(), gateways[0].intake, "first", &of_one_person(0)).await.lead();
    assert_eq!(closed(&ledger, first).await.lead.status, LeadStatus::Sold);
    for round in 0..3_usize {
        server.connection().await.run(&["FLUSHALL"]).await;
        let gateway = &gateways[round % 2];
        is_had_by(gateway, &ledger, &format!("round{round}"), round, first).await;
        if round == 1 {
            crate::support::until("everybody is read back", async || {
                let marked = server.connection().await.run(&["KEYS", "*:marked:*"]).await;
                format!("{marked:?}").matches("marked").count() == 2
            })
            .await;
            is_had_by(gateway, &ledger, "read-back", 3, first).await;
        }
    }
    // P9: neither keys nor values tell a number.
    let keys = format!("{:?}", server.connection().await.run(&["KEYS", "*"]).await);
    assert!(keys.contains(":dup:sunco:") && !keys.contains("5550101"), "{keys}");
    assert_eq!(stub.stats("/sunco").accepted + stub.stats("/sunco").received, 1);
    for gateway in gateways {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}
