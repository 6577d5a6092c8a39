//! What certainly never left, and what may have.

use std::collections::HashMap;
use std::sync::Arc;

use capgate::domain::outcome::Outcome;
use capgate::domain::routing::{BodyFormat, Buyer, Content};
use tokio::net::TcpListener;

use crate::support::{RawBuyer, YES, buyer_with, forward, forwarder, forwarder_with, outcome, patient};

fn broken() -> Outcome {
    Outcome::InDoubt { reason: "broken", http_status: None }
}

#[tokio::test]
async fn a_refused_connection_is_unsent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    assert_eq!(outcome(&forwarder(), &patient(&url)).await, Outcome::Unsent { reason: "connect" });
}

#[tokio::test]
async fn a_failed_handshake_is_unsent() {
    let talks_http = RawBuyer::start(|mut connection| async move {
        connection.write(YES).await;
        connection.linger().await;
    })
    .await;
    let hangs_up = RawBuyer::start(|connection| async move { drop(connection) }).await;
    for server in [talks_http, hangs_up] {
        let buyer = patient(&format!("https://127.0.0.1:{}/leads", server.port()));
        assert_eq!(outcome(&forwarder(), &buyer).await, Outcome::Unsent { reason: "tls" });
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn f51_a_private_address_in_the_url_is_not_called() {
    let server = RawBuyer::answering(YES).await;
    let guarded = forwarder_with(|config| config.allow_private_addresses = false);
    for host in ["127.0.0.1", "127.1", "[::ffff:127.0.0.1]", "localhost"] {
        let buyer = patient(&format!("http://{host}:{}/leads", server.port()));
        assert_eq!(outcome(&guarded, &buyer).await, Outcome::Unsent { reason: "address_refused" }, "{host}");
    }
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn f47_a_connection_that_breaks_after_the_lead_was_read_is_in_doubt_at_once() {
    let server = RawBuyer::start(|mut connection| async move {
        connection.read_request().await;
    })
    .await;
    assert_eq!(outcome(&forwarder(), &patient(&server.url())).await, broken());
    assert_eq!(server.requests().len(), 1, "the lead was posted again");

    for nonsense in ["nonsense\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"] {
        let server = RawBuyer::answering(nonsense).await;
        assert_eq!(outcome(&forwarder(), &patient(&server.url())).await, broken(), "{nonsense:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn f47_p4_a_buyer_that_closes_idle_connections_never_sees_a_lead_twice() {
    // Says nothing about closing, and closes after each second answer: each reuse races with the close.
    let server = RawBuyer::start(|mut connection| async move {
        for _ in 0..2 {
            if !(connection.read_request().await && connection.write(YES).await) {
                return;
            }
        }
    })
    .await;
    let forwarder = forwarder();
    let buyer = patient(&server.url());
    let (mut accepted, mut doubted) = (0, 0);
    for _ in 0..300 {
        match outcome(&forwarder, &buyer).await {
            Outcome::Accepted(_) => accepted += 1,
            Outcome::InDoubt { reason: "broken", .. } => doubted += 1,
            other => panic!("{other:?}"),
        }
    }
    let mut posts: HashMap<String, usize> = HashMap::new();
    for request in server.requests() {
        let id = request.lines().find_map(|line| line.strip_prefix("idempotency-key: ")).unwrap();
        *posts.entry(id.to_owned()).or_default() += 1;
    }
    assert!(posts.values().all(|posts| *posts == 1), "a lead was posted twice");
    assert_eq!(accepted + doubted, 300);
    assert_eq!(posts.len(), accepted, "a lead that the buyer read has an answer");
    assert!(
        server.connections() >= 150 && server.connections() < 300,
        "connections are reused: {}",
        server.connections()
    );
}

#[tokio::test]
async fn f55_the_request_on_the_wire() {
    let server = RawBuyer::answering(YES).await;
    outcome(&forwarder(), &patient(&server.url())).await;
    let request = server.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("POST /leads HTTP/1.1"));
    let headers: HashMap<&str, &str> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let id = headers["idempotency-key"];
    assert_eq!(headers["capgate-lead-id"], id);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-api-key"], "k3y");
    assert_eq!(headers["content-length"], body.len().to_string());
    assert!(headers["user-agent"].starts_with("capgate/"));
    for absent in ["transfer-encoding", "accept-encoding", "cookie", "referer", "expect"] {
        assert!(!headers.contains_key(absent), "{absent}");
    }
    let expected = format!(r#"{{"state":"TX","amount":100.10,"big":18446744073709551616,"lead_id":"{id}"}}"#);
    assert_eq!(body, expected);
}

/// A buyer that wants its leads in the URL.
fn by_get(url: &str) -> Arc<Buyer> {
    buyer_with(url, |buyer| buyer.request.format = BodyFormat::Query)
}

#[tokio::test]
async fn f55_a_get_on_the_wire() {
    let server = RawBuyer::answering(YES).await;
    let answered = outcome(&forwarder(), &by_get(&server.url())).await;
    assert!(matches!(answered, Outcome::Accepted(_)), "{answered:?}");
    let request = server.requests().remove(0).to_lowercase();
    let (line, head) = request.split_once("\r\n").unwrap();
    let id = head.split_once("idempotency-key: ").unwrap().1.split("\r\n").next().unwrap();
    assert_eq!(line, format!("get /leads?state=tx&amount=100.10&big=18446744073709551616&lead_id={id} http/1.1"));
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    for absent in ["content-type", "content-length", "transfer-encoding"] {
        assert!(!head.contains(absent), "{absent}");
    }
}

#[tokio::test]
async fn f47_p4_a_get_is_as_final_as_a_post() {
    // Read and closed: it may have been taken.
    let server = RawBuyer::start(|mut connection| async move {
        connection.read_request().await;
    })
    .await;
    assert_eq!(outcome(&forwarder(), &by_get(&server.url())).await, broken());
    assert_eq!(server.requests().len(), 1, "the lead was sent again");
    // Nothing ever stands: it was certainly not sent, although it has no body to wait for.
    let silent = RawBuyer::start(|mut connection| async move { connection.linger().await }).await;
    let told = forward(&forwarder(), &by_get(&format!("https://127.0.0.1:{}/leads", silent.port()))).await;
    assert_eq!(told.outcome, Outcome::Unsent { reason: "connect_timeout" });
    assert!(told.late.is_none());
    // Silence after it is a doubt, and the answer is waited for.
    let silent = RawBuyer::start(|mut connection| async move {
        connection.read_request().await;
        connection.linger().await;
    })
    .await;
    let told = forward(&forwarder(), &by_get(&silent.url())).await;
    assert_eq!(told.outcome, Outcome::InDoubt { reason: "timeout", http_status: None });
    assert!(told.late.is_some());
}

#[tokio::test]
async fn an_empty_form_is_sent_and_doubted_like_any_other() {
    let empty = |url: &str| {
        buyer_with(url, |buyer| {
            buyer.request.format = BodyFormat::Form;
            buyer.request.content = Content::Fields(Vec::new());
        })
    };
    let server = RawBuyer::answering(YES).await;
    let answered = outcome(&forwarder(), &empty(&server.url())).await;
    assert!(matches!(answered, Outcome::Accepted(_)), "{answered:?}");
    assert!(server.requests()[0].to_lowercase().contains("content-length: 0\r\n"));

    let server = RawBuyer::start(|mut connection| async move {
        connection.read_request().await;
    })
    .await;
    assert_eq!(outcome(&forwarder(), &empty(&server.url())).await, broken());
}
