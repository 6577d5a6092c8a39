//! The bodies and mappings in `config/example`, in the set-up of `config/example/routing.toml`: each is a lead that is sold.

use std::path::{Path, PathBuf};

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::outcome::LeadStatus;

use crate::support::{Place, client, closed, key_hash};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example").join(file)
}

fn text(file: &str) -> String {
    std::fs::read_to_string(example(file)).expect(file)
}

/// The publishers of `inputs.toml`, each with a key: its own name.
fn publishers() -> String {
    let with_key = |line: &str| match line.strip_prefix("id = \"").and_then(|rest| rest.strip_suffix('"')) {
        Some(id) => format!("{line}\nkeys_sha256 = [\"{}\"]\n", key_hash(id)),
        None => format!("{line}\n"),
    };
    text("inputs.toml").lines().map(with_key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_body_is_a_lead_that_is_sold_in_the_example_set_up() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let routing = text("routing.toml").replace("http://127.0.0.1:9101", &stub.url(""));
    // A busy machine's buyers take their time.
    let routing = routing.replace("timeout_ms = 1500", "timeout_ms = 30000");
    place.write_routing(&format!("{routing}\n{}", publishers()));
    let gateway = place.start("").await;
    let ledger = place.ledger().await;
    let mut bodies: Vec<_> =
        std::fs::read_dir(example("inputs")).expect("bodies").map(|it| it.expect("one").path()).collect();
    bodies.sort();
    let mut seen = Vec::new();
    for path in &bodies {
        let publisher = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let content_type = match path.extension().and_then(|end| end.to_str()) {
            Some("form") => "application/x-www-form-urlencoded",
            _ => "application/json",
        };
        let body = std::fs::read(path).expect("a body");
        let answer = client()
            .post(format!("http://{}/v1/campaigns/solar/leads", gateway.intake))
            .header("content-type", content_type)
            .header("x-api-key", &publisher)
            .body(body)
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 200, "{publisher}");
        let answer = answer.bytes().await.expect("a body");
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        // The verdict may come later than the answer on a busy machine.
        let lead = answer["lead_id"].as_str().expect("an id").parse().expect("an id");
        let books = closed(&ledger, lead).await;
        assert_eq!(books.lead.status, LeadStatus::Sold, "{publisher}: {answer}");
        let payload = books.lead.payload.expect("a payload");
        let payload: serde_json::Value = serde_json::from_str(&payload).expect("JSON");
        for (field, value) in [("first_name", "Ada"), ("last_name", "Byron"), ("email", "ada.byron@example.com")] {
            assert_eq!(payload[field], value, "{publisher}");
        }
        assert_eq!(payload["zip"], "07030", "{publisher}");
        seen.push(publisher);
    }
    assert_eq!(seen, ["google-ads", "meta", "typeform", "unbounce"]);
    assert_eq!(stub.stats("/sunco").accepted, 4, "New Jersey's first buyer has them all");
    gateway.app.shut_down().await;
}
