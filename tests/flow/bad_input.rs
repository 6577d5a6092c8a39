//! Bad input gets the error that the contract names, and nothing is stored.

use capgate::cli::stub_buyer::StubBuyer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{BuyerLine, KEY, Place, client, lead, routing};

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_named_and_stores_nothing() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    place.write_routing(&routing(&[BuyerLine { id: "any", url: stub.url("/any"), more: "", price: "9.00" }]));
    let gateway = place.start("").await;
    let client = client();
    let good = lead(1);
    let large = format!("{{\"phone\":\"1\",\"x\":\"{}\"}}", "y".repeat(1 << 20));
    let deep = format!("{{\"phone\":\"1\",\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let invalid = b"{\"phone\":\"1\",\"x\":\"\xff\"}".to_vec();
    let cases = [
        ("wrong key", "solar", "nobody's key", good.clone().into_bytes(), 401, "unauthorized"),
        ("unknown campaign", "lunar", KEY, good.clone().into_bytes(), 404, "unknown_campaign"),
        ("not JSON", "solar", KEY, b"phone=1".to_vec(), 400, "malformed"),
        ("an array", "solar", KEY, b"[{\"phone\":\"1\"}]".to_vec(), 400, "malformed"),
        ("1 MB", "solar", KEY, large.into_bytes(), 413, "too_large"),
        ("duplicate names", "solar", KEY, b"{\"phone\":\"1\",\"ph\\u006fne\":\"2\"}".to_vec(), 400, "malformed"),
        ("deep nesting", "solar", KEY, deep.into_bytes(), 400, "malformed"),
        ("invalid UTF-8", "solar", KEY, invalid, 400, "malformed"),
        ("missing field", "solar", KEY, b"{\"email\":\"a@example.com\"}".to_vec(), 422, "invalid_lead"),
    ];
    for (what, campaign, key, body, status, code) in cases {
        let answer = client
            .post(format!("http://{}/v1/campaigns/{campaign}/leads", gateway.intake))
            .bearer_auth(key)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answer.status().as_u16(), status, "{what}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{what}");
        let problem: serde_json::Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        assert_eq!(problem["code"], code, "{what}: {problem}");
        assert_eq!(problem["status"], status, "{what}");
    }
    // Half a request: the client ends before its body does.
    let half = format!(
        "POST /v1/campaigns/solar/leads HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: \
         application/json\r\ncontent-length: 500\r\n\r\n{{\"phone\":"
    );
    let mut socket = tokio::net::TcpStream::connect(gateway.intake).await.expect("connects");
    socket.write_all(half.as_bytes()).await.expect("sends");
    socket.shutdown().await.expect("ends its side");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("the connection is closed");
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));

    gateway.app.shut_down().await;
    let totals = place.ledger().await.totals().await.expect("totals");
    assert!(totals.leads.is_empty() && totals.attempts.is_empty(), "nothing is stored: {totals:?}");
    assert_eq!(stub.stats("/any").received, 0);
}
