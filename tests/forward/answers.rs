//! Answers that are cut, endless, elsewhere, compressed or plain.

use std::time::Duration;

use capgate::cli::stub_buyer::{PathBehaviour, StubBuyer};
use capgate::domain::money::Micros;
use capgate::domain::outcome::{Acceptance, Outcome};
use capgate::domain::routing::On5xx;

use crate::support::{RawBuyer, buyer_with, eventually, forwarder, forwarder_with, outcome, patient};

fn declined(http_status: u16, reason: &str) -> Outcome {
    Outcome::Declined { http_status, reason: reason.into(), is_duplicate: false, rest_s: None }
}

fn doubt(reason: &'static str, http_status: Option<u16>) -> Outcome {
    Outcome::InDoubt { reason, http_status }
}

async fn answered(bytes: impl Into<Vec<u8>>) -> Outcome {
    let server = RawBuyer::answering(bytes).await;
    let outcome = outcome(&forwarder(), &patient(&server.url())).await;
    assert_eq!(server.requests().len(), 1);
    outcome
}

#[tokio::test]
async fn f48_a_truncated_answer_is_in_doubt_whatever_it_began_with() {
    let truncated = doubt("truncated", Some(200));
    assert_eq!(answered("HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n{\"status\":\"accepted\"}").await, truncated);
    let chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n15\r\n{\"status\":\"accepted\"}\r\n";
    assert_eq!(answered(chunk).await, truncated);
    assert_eq!(answered(format!("{chunk}zz\r\n")).await, doubt("broken", Some(200)));
    let whole = format!("{chunk}0\r\n\r\n");
    assert!(matches!(answered(whole).await, Outcome::Accepted(_)));
}

#[tokio::test]
async fn f49_an_endless_answer_is_left_after_its_limit() {
    let forwarder = forwarder_with(|config| config.answer_bytes_max = 10_000);
    for head in
        ["transfer-encoding: chunked\r\n\r\n", "content-length: 100000000000\r\n\r\n", "connection: close\r\n\r\n"]
    {
        let server = RawBuyer::start(move |mut connection| async move {
            connection.read_request().await;
            connection.write(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await;
            let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
            while connection.write(chunk.as_bytes()).await {}
        })
        .await;
        let buyer = patient(&server.url());
        assert_eq!(outcome(&forwarder, &buyer).await, doubt("too_large", Some(200)), "{head}");
        eventually("the place is given back", || forwarder.in_flight(&buyer.id) == 0).await;
    }
    // Exactly at the limit is not over it.
    let body = format!("{{\"status\":\"accepted\"}}{}", " ".repeat(10_000 - 21));
    let server = RawBuyer::answering(format!("HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n{body}")).await;
    assert!(matches!(outcome(&forwarder, &patient(&server.url())).await, Outcome::Accepted(_)));
    let server = RawBuyer::answering(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body} ")).await;
    assert_eq!(outcome(&forwarder, &patient(&server.url())).await, doubt("too_large", Some(200)));
}

#[tokio::test]
async fn f49_a_bomb_in_the_head_is_left_too() {
    let many = "x: y\r\n".repeat(10_000);
    assert_eq!(answered(format!("HTTP/1.1 200 OK\r\n{many}\r\n")).await, doubt("too_large", None));
    let long = "x".repeat(1_000_000);
    assert_eq!(answered(format!("HTTP/1.1 200 {long}\r\n\r\n")).await, doubt("too_large", None));
}

#[tokio::test]
async fn f49_a_compressed_answer_is_a_no_that_cannot_be_read() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 21\r\ncontent-encoding: gzip\r\n\r\n";
    assert_eq!(answered(format!("{head}{{\"status\":\"accepted\"}}")).await, declined(200, "unreadable_answer"));
}

#[tokio::test]
async fn f50_no_redirect_is_followed() {
    let elsewhere = StubBuyer::on_loopback(Vec::new(), 1).await.unwrap();
    for status in [301, 302, 303, 307, 308] {
        let redirect = format!("/a=redirect:{status}:{}", elsewhere.url("/b"));
        let stub = StubBuyer::on_loopback(vec![redirect.parse::<PathBehaviour>().unwrap()], 1).await.unwrap();
        let refused = outcome(&forwarder(), &patient(&stub.url("/a"))).await;
        assert_eq!(refused, declined(status, &format!("http_{status}")));
        assert_eq!(stub.stats("/a").received, 1);
    }
    assert_eq!(elsewhere.stats("/b").received, 0, "the lead went to another host");
}

#[tokio::test]
async fn f52_each_answer_of_a_buyer_over_the_wire() {
    let forwarder = forwarder();
    let yes = Outcome::Accepted(Acceptance { http_status: 200, ..Acceptance::default() });
    for (behaviour, expected) in [
        ("accept", yes),
        ("decline", declined(200, "not interested")),
        ("error", declined(500, "http_500")),
        ("error:404", declined(404, "http_404")),
        ("garbage", declined(200, "unreadable_answer")),
        ("close", doubt("broken", None)),
    ] {
        let path = format!("/a={behaviour}").parse::<PathBehaviour>().unwrap();
        let stub = StubBuyer::on_loopback(vec![path], 1).await.unwrap();
        assert_eq!(outcome(&forwarder, &patient(&stub.url("/a"))).await, expected, "{behaviour}");
    }
    let stub = StubBuyer::on_loopback(vec!["/a=error".parse::<PathBehaviour>().unwrap()], 1).await.unwrap();
    let doubting = buyer_with(&stub.url("/a"), |buyer| {
        buyer.timeout = Duration::from_secs(30);
        buyer.answer.on_5xx = On5xx::InDoubt;
    });
    assert_eq!(outcome(&forwarder, &doubting).await, doubt("http_5xx", Some(500)));
}

#[tokio::test]
async fn p6_a_price_comes_over_the_wire_to_the_micro() {
    let body = r#"{"status":"accepted","price":12.345678}"#;
    let outcome = answered(format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    let terms = Acceptance { http_status: 201, price: Some(Micros(12_345_678)), redirect_url: None, reference: None };
    assert_eq!(outcome, Outcome::Accepted(terms));
}

#[tokio::test]
async fn retry_after_rests_the_buyer() {
    let forwarder = forwarder();
    let server =
        RawBuyer::answering("HTTP/1.1 429 Too Many Requests\r\nretry-after: 20\r\ncontent-length: 0\r\n\r\n").await;
    let buyer = patient(&server.url());
    assert_eq!(forwarder.resting(&buyer.id), None);
    let refused = outcome(&forwarder, &buyer).await;
    let expected =
        Outcome::Declined { http_status: 429, reason: "http_429".into(), is_duplicate: false, rest_s: Some(20) };
    assert_eq!(refused, expected);
    let rest = forwarder.resting(&buyer.id).expect("a rest").left;
    assert!(rest > Duration::from_secs(10) && rest <= Duration::from_secs(20), "{rest:?}");
}
