use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use super::support::*;
use crate::config::IntakeConfig;

const SHORT: Duration = Duration::from_millis(200);

async fn short() -> Intake {
    let config = IntakeConfig { header_timeout: SHORT, body_timeout: SHORT, idle_timeout: SHORT * 8, ..config() };
    Intake::with(config, PATIENCE).await
}

/// Sends a byte now and then until the server closes, and says how long that took.
async fn drip(client: &mut Client, bytes: &[u8]) -> Duration {
    let since = Instant::now();
    for byte in bytes {
        if client.stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        if tokio::time::timeout(Duration::from_millis(40), client.is_told_off()).await == Ok(true) {
            return since.elapsed();
        }
        assert!(since.elapsed() < PATIENCE, "a dripping client is held for ever");
    }
    assert!(client.is_told_off().await);
    since.elapsed()
}

#[tokio::test]
async fn f57_a_silent_or_dripping_client_is_let_go() {
    let intake = short().await;
    let mut silent = intake.connect().await;
    let since = Instant::now();
    assert!(silent.is_closed().await);
    assert!(since.elapsed() >= SHORT && since.elapsed() < SHORT * 15, "{:?}", since.elapsed());

    let mut slow_head = intake.connect().await;
    let took = drip(&mut slow_head, good().as_slice()).await;
    assert!(took < SHORT * 15, "{took:?}");

    let mut slow_body = intake.connect().await;
    let request = good();
    slow_body.send(&request[..request.len() - 10]).await;
    let answer = slow_body.answer().await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(slow_body.is_closed().await);
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn f57_keep_alive_is_bounded_by_idle_time_and_not_by_head_time() {
    let intake = short().await;
    let mut client = intake.connect().await;
    client.send(&good()).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    // Longer than a head may take, shorter than a connection may idle.
    tokio::time::sleep(SHORT * 3 / 2).await;
    client.send(&good()).await;
    assert_eq!(client.answer().await.expect("an idle connection was treated as a slow head").status, 200);
    // The next head drips: the time of a head counts, not the idle time.
    let since = Instant::now();
    client.send(&good()[..10]).await;
    assert!(client.is_told_off().await);
    assert!(since.elapsed() >= SHORT && since.elapsed() < SHORT * 7, "{:?}", since.elapsed());
    assert_eq!(intake.refused("request_timeout"), 1);

    let mut idle = intake.connect().await;
    idle.send(&good()).await;
    assert_eq!(idle.answer().await.unwrap().status, 200);
    let since = Instant::now();
    assert!(idle.is_closed().await);
    assert!(since.elapsed() >= SHORT * 7, "{:?}", since.elapsed());
}

#[tokio::test]
async fn f57_a_long_walk_is_not_a_slow_client() {
    let intake = short().await;
    *intake.desk.say.lock() = Say::SoldAfter(SHORT * 5);
    assert_eq!(intake.ask(&good()).await.body, SOLD);
}

#[tokio::test]
async fn f57_many_slow_clients_do_not_disturb_a_lead() {
    let intake = short().await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut client = intake.connect().await;
        client.send(b"POST /").await;
        slow.push(client);
    }
    let since = Instant::now();
    assert_eq!(intake.ask(&good()).await.status, 200);
    assert!(since.elapsed() < PATIENCE / 2);
    for client in &mut slow {
        assert!(client.is_told_off().await);
    }
}

#[tokio::test]
async fn f58_oversized_bodies_are_counted_while_they_come_in() {
    let intake = Intake::start().await;
    // A declared length is refused before a byte of the body is sent.
    let head = format!("POST {LEADS} HTTP/1.1\r\nhost: x\r\n{KEY}\r\n{JSON}\r\n");
    let mut client = intake.connect().await;
    client.send(format!("{head}content-length: 104857600\r\n\r\n").as_bytes()).await;
    let answer = client.answer().await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed().await);

    // A chunked body declares nothing; far more is sent than may be read.
    let mut client = intake.connect().await;
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).await;
    let chunk = [b"4000\r\n".as_slice(), &[b' '; 0x4000], b"\r\n"].concat();
    for _ in 0..64 {
        client.send(&chunk).await;
    }
    let answer = client.answer().await.expect("the answer was destroyed by a reset");
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    assert!(client.is_closed().await);

    // Exactly the limit is fine, declared or not.
    let mut body = GOOD.to_vec();
    body.resize(65_536, b' ');
    assert_eq!(intake.ask(&post(LEADS, &[KEY, JSON], &body)).await.status, 200);
    let mut client = intake.connect().await;
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\n10000\r\n").as_bytes()).await;
    client.send(&body).await;
    client.send(b"\r\n0\r\n\r\n").await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    assert_eq!(intake.last().lead.body, body);
    // And the connection goes on.
    client.send(&good()).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
}

#[tokio::test]
async fn f58_a_body_shorter_than_declared_is_no_lead() {
    let intake = Intake::start().await;
    let mut client = intake.connect().await;
    let request = good();
    client.send(&request[..request.len() - 1]).await;
    client.stream.shutdown().await.unwrap();
    // The peer is gone as far as HTTP can tell; with or without an answer, nothing was taken.
    let _ = client.answer().await;
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn a_client_that_waits_for_a_go_ahead_gets_it_or_a_refusal() {
    let intake = Intake::start().await;
    let head = |key: &str| {
        let length = GOOD.len();
        format!(
            "POST {LEADS} HTTP/1.1\r\nhost: x\r\n{key}\r\n{JSON}\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let mut client = intake.connect().await;
    client.send(head(KEY).as_bytes()).await;
    assert_eq!(client.answer().await.unwrap().status, 100);
    client.send(GOOD).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    let mut client = intake.connect().await;
    client.send(head("x-api-key: nobody").as_bytes()).await;
    let answer = client.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (401, Some("close")));
}

#[tokio::test]
async fn f59_f60_f61_hostile_bodies_reach_no_desk() {
    let intake = Intake::start().await;
    let deep = format!("{{\"phone\":{}", "[".repeat(60_000));
    for body in [
        deep.as_bytes(),
        br#"{"first_name":"Ann","phone":"1","state":"TX","\u0073tate":"CA"}"#,
        b"{\"first_name\":\"Ann\",\"phone\":\"1\",\"state\":\"TX\",\"unknown\":\"\xff\"}",
        br#"{"first_name":"Ann","phone":"1","state":"TX","unknown":["\ud800"]}"#,
        b"[7]",
    ] {
        let answer = intake.ask(&post(LEADS, &[KEY, JSON], body)).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"));
    }
    // Bytes that are no text in a header of ours are refused; in other headers they are nobody's business.
    let odd = post(LEADS, &[KEY, JSON, "idempotency-key: \u{e9}"], GOOD);
    assert_eq!(intake.ask(&odd).await.status, 400);
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn f63_a_hidden_request_never_becomes_a_lead() {
    let intake = Intake::start().await;
    let hidden = String::from_utf8(good()).unwrap();
    let start = format!("POST {LEADS} HTTP/1.1\r\nhost: x\r\n{KEY}\r\n{JSON}\r\n");
    let length = GOOD.len();
    let good_text = std::str::from_utf8(GOOD).unwrap();
    for request in [
        // Two ways to find the end.
        format!("{start}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}content-length: 0\r\ncontent-length: {}\r\n\r\n{hidden}", hidden.len()),
        format!("{start}content-length: {length}\r\ncontent-length: {length}\r\n\r\n{good_text}{hidden}"),
        format!("{start}content-length: {length}, {length}\r\n\r\n{good_text}{hidden}"),
        format!("{start}content-length: +{length}\r\n\r\n{good_text}{hidden}"),
        // Odd codings.
        format!("{start}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}x: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        // Bare line feeds.
        format!("{start}x: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{start}x: y\n\n{hidden}"),
        format!("{start}x: y\n\r\n{hidden}"),
        format!("{start}transfer-encoding: chunked\r\n\r\n0\n\n{hidden}"),
        // A size that is not what it seems.
        format!("{start}transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n{hidden}"),
        format!("{start}transfer-encoding: chunked\r\n\r\n10000000000000000\r\n\r\n{hidden}"),
        // Behind a chunked body nothing is looked at any more.
        format!("{start}transfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!(
            "GET /v1/leads/x HTTP/1.1\r\nhost: x\r\nx-api-key: nobody\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
        ),
    ] {
        let mut client = intake.connect().await;
        client.send(request.as_bytes()).await;
        while let Some(answer) = client.answer().await {
            assert!((400..500).contains(&answer.status), "{}: {request:?}", answer.status);
        }
        assert_eq!(intake.leads(), 0, "{request:?}");
    }
    // Not even when the pieces come one by one.
    let request = format!("{start}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}");
    let mut client = intake.connect().await;
    for byte in request.as_bytes() {
        client.send(&[*byte]).await;
    }
    let answer = client.answer().await.unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed().await);
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn requests_one_after_the_other_on_one_connection_stay_apart() {
    let intake = Intake::start().await;
    // Sent in one piece: a declared length says where each one ends.
    let mut three = good();
    three.extend(b"GET /v1/leads/x HTTP/1.1\r\nhost: x\r\nx-api-key: acme-key\r\n\r\n");
    three.extend(good());
    let mut client = intake.connect().await;
    client.send(&three).await;
    for status in [200, 404, 200] {
        assert_eq!(client.answer().await.unwrap().status, status);
    }
    assert_eq!(intake.leads(), 2);
    // A refusal leaves the connection usable.
    client.send(&post(LEADS, &["x-api-key: nobody", JSON], GOOD)).await;
    client.send(&post("/nowhere", &[], GOOD)).await;
    client.send(&good()).await;
    for status in [401, 404, 200] {
        assert_eq!(client.answer().await.unwrap().status, status);
    }
    // Chunked, and then another one after its answer.
    let length = GOOD.len();
    let text = std::str::from_utf8(GOOD).unwrap();
    let chunked = format!(
        "POST {LEADS} HTTP/1.1\r\nhost: x\r\n{KEY}\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{text}\r\n0\r\n\r\n"
    );
    for _ in 0..3 {
        client.send(chunked.as_bytes()).await;
        assert_eq!(client.answer().await.unwrap().status, 200);
    }
    assert_eq!(intake.leads(), 6);
    assert!(intake.desk.handed.lock().iter().all(|handed| handed.lead.body == GOOD));
}

#[tokio::test]
async fn heads_are_bounded() {
    let intake = Intake::start().await;
    let long = format!("x: {}", "a".repeat(20_000));
    let many: Vec<_> = (0..100).map(|n| format!("x-{n}: a")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for headers in [&[long.as_str()][..], &many] {
        let mut client = intake.connect().await;
        client.send(&post(LEADS, &[headers, &[KEY, JSON]].concat(), GOOD)).await;
        let answer = client.answer().await.unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (431, "too_large"));
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert!(client.is_closed().await);
    }
    assert_eq!(intake.refused("too_large"), 2);
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn f63_what_is_no_http_is_told_so_in_words_and_counted() {
    let intake = Intake::start().await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1 and more\r\n\r\n",
        b"GET /v1/leads/x HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n",
    ] {
        // In one piece, and after a lead on the same connection.
        for before in [0, 1] {
            let mut client = intake.connect().await;
            for _ in 0..before {
                client.send(&good()).await;
                assert_eq!(client.answer().await.unwrap().status, 200);
            }
            client.send(bytes).await;
            let answer = client.answer().await.unwrap();
            assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"), "{bytes:?}");
            assert_eq!(answer.header("connection"), Some("close"));
            assert!(client.is_closed().await);
        }
    }
    assert_eq!(intake.refused("malformed"), 8);
    assert_eq!(intake.leads(), 4);
}

#[tokio::test]
async fn f65_connections_above_the_bound_wait_their_turn() {
    let intake = Intake::with(IntakeConfig { connections_max: 2, ..config() }, PATIENCE).await;
    let mut first = intake.connect().await;
    let mut second = intake.connect().await;
    for client in [&mut first, &mut second] {
        client.send(&good()).await;
        assert_eq!(client.answer().await.unwrap().status, 200);
    }
    let mut third = intake.connect().await;
    third.send(&good()).await;
    assert!(tokio::time::timeout(SHORT, third.answer()).await.is_err(), "served above the bound");
    assert_eq!(intake.leads(), 2);
    drop(first);
    assert_eq!(third.answer().await.unwrap().status, 200);
}
