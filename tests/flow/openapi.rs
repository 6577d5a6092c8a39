//! Every operation of the OpenAPI document is asked of a running gateway, and every answer is held against it: status, content
//! type, body.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::outcome::LeadStatus;
use capgate::openapi;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use crate::headline::behaviours;
use crate::support::{BuyerLine, KEY, Place, client, closed, key_hash, lead, post, routing};

/// Of buyer `sunco`.
const BUYER_KEY: &str = "key-of-sunco";

struct Document {
    root: Value,
    seen: BTreeSet<String>,
}

impl Document {
    fn resolved<'a>(&'a self, node: &'a Value) -> &'a Value {
        match node["$ref"].as_str() {
            Some(pointer) => self.root.pointer(&pointer[1..]).expect("a reference leads somewhere"),
            None => node,
        }
    }

    /// Sends the request and checks its answer; the body, null where it is no JSON.
    async fn check(&mut self, operation: &str, status: u16, request: RequestBuilder) -> Value {
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{operation}");
        let content_type = answer.headers()["content-type"].to_str().expect("text").to_owned();
        let headers: Vec<String> = answer.headers().keys().map(|name| name.as_str().to_owned()).collect();
        let text = answer.text().await.expect("a body");
        let items =
            self.root["paths"].as_object().expect("paths").values().flat_map(|item| item.as_object().expect("item"));
        let named = |(_, found): &(&String, &Value)| found["operationId"] == operation;
        let (_, described) =
            items.into_iter().find(named).unwrap_or_else(|| panic!("{operation} is not in the document"));
        let described = self.resolved(&described["responses"][status.to_string()]);
        assert!(described.is_object(), "{operation} may not answer {status}");
        for name in described["headers"].as_object().into_iter().flat_map(serde_json::Map::keys) {
            let is_optional = name == "Idempotent-Replayed";
            assert!(is_optional || headers.contains(&name.to_lowercase()), "{operation} {status}: no {name}");
        }
        let essence = content_type.split(';').next().unwrap_or_default();
        let schema = &described["content"][essence]["schema"];
        assert!(schema.is_object(), "{operation} {status} may not be {essence}");
        if !essence.contains("json") {
            self.seen.insert(operation.to_owned());
            return Value::Null;
        }
        let body: Value = serde_json::from_str(&text).expect("JSON");
        let mut schema = schema.clone();
        self.seen.insert(operation.to_owned());
        // References lead from the root of the document.
        schema["components"] = self.root["components"].clone();
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let problems: Vec<String> = validator.iter_errors(&body).map(|error| error.to_string()).collect();
        assert!(problems.is_empty(), "{operation} {status}: {problems:?}\n{body:#}");
        body
    }
}

fn ask(addr: SocketAddr, method: Method, path: &str) -> RequestBuilder {
    client().request(method, format!("http://{addr}{path}")).bearer_auth(KEY)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_as_the_openapi_document_says() {
    let stub = StubBuyer::on_loopback(behaviours(&["/doubtful=hang"]), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let hold = "timeout_ms = 300\non_timeout = \"hold\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = 1";
    let day = "[[buyer.cap]]\nwindow = \"day\"\nleads = 1\n[[buyer.cap]]\nwindow = \"total\"\nspend = \"25.00\"";
    let day = format!("keys_sha256 = [\"{}\"]\n{day}", key_hash(BUYER_KEY));
    place.write_routing(&routing(&[
        BuyerLine { id: "doubtful", url: stub.url("/doubtful"), more: hold, price: "30.00" },
        BuyerLine { id: "sunco", url: stub.url("/sunco"), more: &day, price: "25.00" },
    ]));
    let gateway = place.start("[forward]\nallow_private_addresses = true\nlate_answer_ms = 300").await;
    let (intake, admin) = (gateway.intake, gateway.admin);
    let root: Value = serde_json::from_str(openapi::DOCUMENT).expect("JSON");
    let mut document = Document { root, seen: BTreeSet::new() };
    let (get, post_method) = (Method::GET, Method::POST);

    for addr in [intake, admin] {
        let served = document.check("getOpenApi", 200, ask(addr, get.clone(), openapi::PATH)).await;
        assert_eq!(served, document.root);
    }

    // The publisher's side: each verdict, each refusal that a request can bring about.
    let leads = "/v1/campaigns/solar/leads";
    let send = |path: &str, body: String| {
        ask(intake, Method::POST, path).header("content-type", "application/json").body(body)
    };
    let doubt = post(&client(), intake, "k1", &lead(1)).await.lead();
    assert_eq!(closed(&place.ledger().await, doubt).await.lead.status, LeadStatus::InDoubt);
    let sold = document.check("postLead", 200, send(leads, lead(2)).header("idempotency-key", "k2")).await;
    let replayed = document.check("postLead", 200, send(leads, lead(2)).header("idempotency-key", "k2")).await;
    assert_eq!((sold["status"].as_str(), &replayed), (Some("sold"), &sold));
    let capped = document.check("postLead", 200, send(leads, lead(3))).await;
    assert_eq!(capped["reason"], "capped");
    let test = document.check("postLead", 200, send(&format!("{leads}?test=1"), lead(4))).await;
    assert!(test["explanation"]["candidates"].is_array());
    document.check("postLead", 400, send(leads, "{".into())).await;
    let no_key = client().post(format!("http://{intake}{leads}")).header("content-type", "application/json").body("{}");
    document.check("postLead", 401, no_key).await;
    document.check("postLead", 404, send("/v1/campaigns/nowhere/leads", lead(5))).await;
    document.check("postLead", 413, send(leads, "x".repeat(100_000))).await;
    document.check("postLead", 415, ask(intake, Method::POST, leads).body(lead(6))).await;
    document.check("postLead", 422, send(leads, lead(7)).header("idempotency-key", "k2")).await;
    document.check("getLead", 200, ask(intake, get.clone(), &format!("/v1/leads/{doubt}"))).await;
    document.check("getLead", 404, ask(intake, get.clone(), "/v1/leads/0195a0c2-7d3e-7c4b-8a1f-0242ac120002")).await;

    // The buyer's.
    let path = |lead: &str| format!("/v1/buyers/sunco/leads/{lead}/return");
    let give_back = |path: &str, key: &str, body: &'static str| {
        let request = client().post(format!("http://{intake}{path}")).bearer_auth(key);
        request.header("content-type", "application/json").body(body)
    };
    let (sold, reason) = (path(sold["lead_id"].as_str().expect("an id")), r#"{"reason":"no such number"}"#);
    for _ in 0..2 {
        let returned = document.check("returnLead", 200, give_back(&sold, BUYER_KEY, reason)).await;
        assert_eq!(returned["cap_freed"], false);
    }
    document.check("returnLead", 400, give_back(&sold, BUYER_KEY, "{}")).await;
    document.check("returnLead", 401, give_back(&sold, KEY, reason)).await;
    document.check("returnLead", 404, give_back(&path(&doubt.to_string()), BUYER_KEY, reason)).await;

    // What it says of a lead that never waited for it: a yes that it has given, and a no that it has not.
    let decision = sold.replace("/return", "/decision");
    let yes = document.check("decideLead", 200, give_back(&decision, BUYER_KEY, r#"{"decision":"accepted"}"#)).await;
    assert_eq!(yes["price"], "25.00");
    document.check("decideLead", 409, give_back(&decision, BUYER_KEY, r#"{"decision":"declined"}"#)).await;
    document.check("decideLead", 400, give_back(&decision, BUYER_KEY, "{}")).await;
    document.check("decideLead", 401, give_back(&decision, KEY, "{}")).await;

    // The operator's side.
    document.check("getLead", 200, ask(admin, get.clone(), &format!("/v1/leads/{doubt}"))).await;
    for operation in ["getHealth", "getReadiness", "getMetrics"] {
        let path = ["/healthz", "/readyz", "/metrics"]
            [usize::from(operation != "getHealth") + usize::from(operation == "getMetrics")];
        document.check(operation, 200, ask(admin, get.clone(), path)).await;
    }
    let caps = document.check("getCaps", 200, ask(admin, get.clone(), "/v1/caps")).await;
    assert_eq!(caps["caps"].as_array().map(Vec::len), Some(3));
    document.check("getCaps", 404, ask(admin, get.clone(), "/v1/caps?buyer=nobody")).await;
    document.check("getCaps", 403, ask(admin, get.clone(), "/v1/caps").header("origin", "https://example.com")).await;
    let counted = ask(admin, get.clone(), "/v1/caps/leads?buyer=doubtful&cap=day");
    let counted = document.check("getCapLeads", 200, counted).await;
    assert_eq!(counted["leads"].as_array().map(Vec::len), Some(1));
    document.check("getCapLeads", 400, ask(admin, get.clone(), "/v1/caps/leads?buyer=sunco")).await;
    let doubts = document.check("getDoubts", 200, ask(admin, get.clone(), "/v1/buyers/doubtful/doubts")).await;
    assert_eq!(doubts["doubts"].as_array().map(Vec::len), Some(1));
    document.check("getDoubts", 404, ask(admin, get, "/v1/buyers/nobody/doubts")).await;
    let resolve = |lead: String, body: &'static str| {
        ask(admin, Method::POST, &format!("/v1/leads/{lead}/resolve"))
            .header("content-type", "application/json")
            .body(body)
    };
    let accepted = r#"{"buyer":"doubtful","outcome":"accepted"}"#;
    document.check("resolveLead", 200, resolve(doubt.to_string(), accepted)).await;
    document
        .check("resolveLead", 409, resolve(doubt.to_string(), r#"{"buyer":"doubtful","outcome":"declined"}"#))
        .await;
    document.check("resolveLead", 400, resolve(doubt.to_string(), "{}")).await;
    for (operation, path) in [
        ("pauseBuyer", "/v1/buyers/sunco/pause"),
        ("resumeBuyer", "/v1/buyers/sunco/resume"),
        ("reconcile", "/v1/reconcile?dry_run=1"),
        ("reconcile", "/v1/reconcile"),
        ("reloadRouting", "/v1/reload"),
    ] {
        document.check(operation, 200, ask(admin, post_method.clone(), path)).await;
    }
    place.write_routing("[[publisher]]\n");
    document.check("reloadRouting", 422, ask(admin, post_method.clone(), "/v1/reload")).await;
    document.check("pauseBuyer", 404, ask(admin, post_method, "/v1/buyers/nobody/pause")).await;

    let items = document.root["paths"].as_object().expect("paths").values();
    let operations = items.flat_map(|item| item.as_object().expect("item").values());
    let all: BTreeSet<_> = operations.map(|it| it["operationId"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(document.seen, all, "every operation was asked");
    gateway.app.shut_down().await;
}
