//! F24: what is wrong with how Redis is set up shows in readiness, metrics and the log, at the start and while the gateway runs.

use capgate::cli::stub_buyer::StubBuyer;

use crate::redis_support::{Connection, Raw};
use crate::server::Server;
use crate::support::{BuyerLine, Place, Process, client, get, lead, post_until_taken, routing, until};

async fn set(raw: &mut Connection, name: &str, value: &str) {
    assert_eq!(raw.run(&["CONFIG", "SET", name, value]).await, Raw::Text("OK".into()));
}

/// Is the gateway ready, and which kinds of trouble does it tell? In readiness and in the metrics alike.
async fn told(gateway: &Process) -> (bool, Vec<String>, String) {
    let ready = get(&client(), gateway.admin, "/readyz").await.json();
    let check =
        ready["checks"].as_array().and_then(|checks| checks.iter().find(|check| check["name"] == "setup").cloned());
    let check = check.unwrap_or_else(|| panic!("{ready}"));
    let page = String::from_utf8_lossy(&get(&client(), gateway.admin, "/metrics").await.bytes).into_owned();
    let kind = |line: &str| {
        let (kind, value) = line.strip_prefix("capgate_store_setup_warning{kind=\"")?.split_once("\"} ")?;
        (value == "1").then(|| kind.to_owned())
    };
    let mut kinds: Vec<String> = page.lines().filter_map(kind).collect();
    kinds.sort();
    if check["ok"] != kinds.is_empty() {
        // It changed between the two questions.
        kinds.push("asked again".to_owned());
    }
    (ready["ready"] == true, kinds, check["detail"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the gateway tells exactly this; answers its words.
async fn until_told(gateway: &Process, is_ready: bool, kinds: &[&str]) -> String {
    let mut words = String::new();
    until(&format!("it tells {kinds:?}"), async || {
        let (ready, found, detail) = told(gateway).await;
        words = detail;
        ready == is_ready && found == kinds
    })
    .await;
    words
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_a_server_that_may_evict_is_not_ready_from_the_start_and_whenever_it_is_set_so() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]).await;
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let mut place = Place::servers().await;
    place.backing.store_url = server.url();
    place.write_routing(&routing(&[BuyerLine { id: "b", url: stub.url("/b"), more: "", price: "10.00" }]));
    let gateway = place.spawn("capgate.toml", "");
    until("it answers", async || client().get(format!("http://{}/healthz", gateway.admin)).send().await.is_ok()).await;
    let words = until_told(&gateway, false, &["eviction", "persistence"]).await;
    assert!(words.contains("allkeys-lru") && words.contains("noeviction") && words.contains("appendonly"), "{words}");
    assert_eq!(get(&client(), gateway.admin, "/readyz").await.status, 503);
    assert!(gateway.log().contains("store set-up: maxmemory-policy is allkeys-lru"), "{}", gateway.log());

    // What an operator mends is seen, step by step.
    let mut raw = server.connection().await;
    set(&mut raw, "maxmemory-policy", "noeviction").await;
    until_told(&gateway, true, &["persistence"]).await;
    set(&mut raw, "save", "3600 1").await;
    until_told(&gateway, true, &[]).await;
    assert!(gateway.log().contains("the store is set up as it should be again"));

    // And so is what is spoilt at run time, each thing once in the log.
    set(&mut raw, "maxmemory-policy", "volatile-ttl").await;
    until_told(&gateway, false, &["eviction"]).await;
    set(&mut raw, "maxmemory-policy", "noeviction").await;
    until_told(&gateway, true, &[]).await;
    let used = raw
        .run(&["INFO", "memory"])
        .await
        .text()
        .lines()
        .find_map(|line| line.trim_end().strip_prefix("used_memory:").map(|n| n.parse::<u64>().expect("a number")));
    set(&mut raw, "maxmemory", &(used.expect("it says") * 11 / 10).to_string()).await;
    let words = until_told(&gateway, true, &["memory"]).await;
    assert!(words.contains("maxmemory"), "{words}");
    assert_eq!(post_until_taken(&client(), gateway.intake, "k", &lead(1)).await.status, 200, "it goes on");
    set(&mut raw, "maxmemory", "0").await;
    set(&mut raw, "save", "").await;
    until_told(&gateway, true, &["persistence"]).await;
    let lines = gateway.log().lines().filter(|line| line.contains("volatile-ttl")).count();
    assert_eq!(lines, 1, "F92: {}", gateway.log());
    drop(gateway);
    place.backing.clean().await;
}
