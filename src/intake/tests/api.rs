use std::time::Duration;

use super::support::*;
use crate::config::IntakeConfig;
use crate::domain::id::{LeadId, PublisherId};
use crate::domain::signature::SigningKey;
use crate::intake::LeadAnswer;

#[tokio::test]
async fn a_lead_is_taken_and_answered() {
    let intake = Intake::start().await;
    let answer = intake.ask(&good()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, SOLD);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("idempotent-replayed"), None);
    let handed = intake.last();
    assert_eq!(handed.lead.publisher.as_str(), "acme");
    assert_eq!(handed.lead.campaign.as_str(), "solar");
    assert_eq!(handed.lead.text("first_name"), Some("Ann"));
    assert_eq!(handed.lead.body, GOOD);
    assert!(!handed.lead.is_test);
    assert_eq!(handed.claim, None, "no key and no e-mail: nothing to recognise a repeat by");
    let page = intake.telemetry.render();
    assert!(page.contains("capgate_answer_duration_seconds_count 1\n"), "{page}");

    let form = b"first_name=Ann&phone=5550102030&state=TX&email=a%40x.example";
    let headers = ["x-api-key: acme-key", "content-type: application/x-www-form-urlencoded", "idempotency-key: k-1"];
    assert_eq!(intake.ask(&post(LEADS, &headers, form)).await.status, 200);
    let claim = intake.last().claim.expect("a key makes a claim");
    assert!(claim.fingerprint.is_some());
    assert_eq!(intake.ask(&post(LEADS, &headers[..2], form)).await.status, 200);
    let claim = intake.last().claim.expect("idempotency fields make a claim");
    assert!(claim.fingerprint.is_none());
}

#[tokio::test]
async fn what_the_desk_says_is_what_the_publisher_hears() {
    let intake = Intake::start().await;
    *intake.desk.say.lock() = Say::Replay("{\"x\":1}");
    let answer = intake.ask(&good()).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"{\"x\":1}"[..]));
    assert_eq!(answer.header("idempotent-replayed"), Some("true"));

    *intake.desk.say.lock() = Say::Pending;
    let answer = intake.ask(&good()).await;
    let lead = intake.last().lead.id;
    assert_eq!(answer.body, format!("{{\"lead_id\":\"{lead}\",\"status\":\"pending\"}}"));

    *intake.desk.say.lock() = Say::KeyReused;
    let answer = intake.ask(&good()).await;
    assert_eq!((answer.status, answer.code().as_str()), (422, "idempotency_key_reused"));

    *intake.desk.say.lock() = Say::Unavailable;
    let answer = intake.ask(&good()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn every_refusal_is_a_problem_and_reaches_no_desk() {
    let intake = Intake::start().await;
    let big = vec![b' '; 65_537];
    for (request, status, code) in [
        (post(LEADS, &[KEY, JSON], b"{"), 400, "malformed"),
        (post(LEADS, &[KEY, JSON], b""), 400, "malformed"),
        (post(LEADS, &[KEY, JSON, "idempotency-key:"], GOOD), 400, "malformed"),
        (post(LEADS, &[KEY, JSON, "idempotency-key: a", "idempotency-key: a"], GOOD), 400, "malformed"),
        (post(&format!("{LEADS}?test=perhaps"), &[KEY, JSON], GOOD), 400, "malformed"),
        (post(LEADS, &[JSON], GOOD), 401, "unauthorized"),
        (post(LEADS, &["authorization: Bearer nobody", JSON], GOOD), 401, "unauthorized"),
        (post("/v1/campaigns/nothing/leads", &[JSON], GOOD), 401, "unauthorized"),
        (post("/v1/campaigns/roof/leads", &[KEY, JSON], GOOD), 403, "campaign_not_allowed"),
        (post(LEADS, &["x-api-key: elsewhere-key", JSON], GOOD), 403, "address_not_allowed"),
        (post("/v1/campaigns/nothing/leads", &[KEY, JSON], GOOD), 404, "unknown_campaign"),
        (post("/v1/campaigns/so%6car/leads", &[KEY, JSON], GOOD), 404, "unknown_campaign"),
        (post("/", &[], b""), 404, "not_found"),
        (post("/v1/campaigns/solar/leads/", &[KEY, JSON], GOOD), 404, "not_found"),
        (post("/v2/campaigns/solar/leads", &[KEY, JSON], GOOD), 404, "not_found"),
        (post("//v1/campaigns/solar/leads", &[KEY, JSON], GOOD), 404, "not_found"),
        (post("/v1/leads/x", &[KEY, JSON], GOOD), 405, "method_not_allowed"),
        (post(LEADS, &[KEY, JSON], &big), 413, "too_large"),
        (post(LEADS, &[KEY], GOOD), 415, "unsupported_media_type"),
        (post(LEADS, &[KEY, "content-type: text/csv"], GOOD), 415, "unsupported_media_type"),
        (post(LEADS, &[KEY, JSON, "content-encoding: gzip"], GOOD), 415, "unsupported_media_type"),
        (post(LEADS, &[KEY, JSON], b"{\"phone\":\" \",\"state\":null}"), 422, "invalid_lead"),
    ] {
        let answer = intake.ask(&request).await;
        let shown = String::from_utf8_lossy(&request[..request.len().min(120)]).into_owned();
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{shown}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{shown}");
        let body = answer.json();
        assert_eq!(body["status"], status, "{shown}");
        for member in ["type", "title", "detail"] {
            assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{member}: {shown}");
        }
    }
    assert_eq!(intake.leads(), 0, "a refused request reached the desk");
    let page = intake.telemetry.render();
    assert!(page.contains("capgate_intake_refused_total{code=\"unauthorized\"} 3\n"));
    for code in ["too_large", "invalid_lead", "campaign_not_allowed"] {
        assert_eq!(intake.refused(code), 1, "{code}");
    }
}

#[tokio::test]
async fn an_invalid_lead_lists_every_field_at_fault() {
    let intake = Intake::start().await;
    let answer = intake.ask(&post(LEADS, &[KEY, JSON], b"{\"phone\":\" \",\"state\":null}")).await;
    let expected = serde_json::json!([
        { "field": "first_name", "problem": "is missing" },
        { "field": "phone", "problem": "is empty" },
        { "field": "state", "problem": "is missing" },
    ]);
    assert_eq!(answer.json()["errors"], expected);
}

#[tokio::test]
async fn other_methods_are_named_and_refused() {
    let intake = Intake::start().await;
    for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
        let mut client = intake.connect().await;
        client.send(format!("{method} {LEADS} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes()).await;
        let mut text = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut text).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.0 405") || text.starts_with("HTTP/1.1 405"), "{method}: {text}");
        assert!(text.contains("allow: POST\r\n"), "{method}: {text}");
    }
}

#[tokio::test]
async fn a_lead_can_be_asked_for_by_its_publisher_only() {
    let intake = Intake::start().await;
    let (done, open) = (LeadId::generate(), LeadId::generate());
    let acme = PublisherId::new("acme").unwrap();
    intake.desk.answers.lock().extend([
        ((acme.clone(), done), LeadAnswer::Finished("{\"x\":2}".into())),
        ((acme, open), LeadAnswer::Pending),
    ]);
    let get = |lead: String, key: &str| format!("GET /v1/leads/{lead} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n");
    let answer = intake.ask(get(done.to_string(), "acme-key").as_bytes()).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"{\"x\":2}"[..]));
    let answer = intake.ask(get(open.to_string(), "acme-key").as_bytes()).await;
    assert_eq!(answer.body, format!("{{\"lead_id\":\"{open}\",\"status\":\"pending\"}}"));
    for (lead, key, status) in [
        (done.to_string(), "other-key", 404),
        (LeadId::generate().to_string(), "acme-key", 404),
        ("x".to_owned(), "acme-key", 404),
        (done.to_string(), "nobody", 401),
    ] {
        assert_eq!(intake.ask(get(lead, key).as_bytes()).await.status, status);
    }
}

#[tokio::test]
async fn test_leads_are_marked_and_use_up_no_key() {
    let intake = Intake::start().await;
    let body = br#"{"first_name":"Ann","phone":"5550102030","state":"TX","email":"a@x.example","test":true}"#;
    assert_eq!(intake.ask(&post(LEADS, &[KEY, JSON, "idempotency-key: k"], body)).await.status, 200);
    let handed = intake.last();
    assert!(handed.lead.is_test);
    assert_eq!(handed.claim, None);
    assert_eq!(handed.lead.fields.get("test"), None, "the switch would be forwarded");
    assert_eq!(intake.ask(&post(&format!("{LEADS}?test=1"), &[KEY, JSON], GOOD)).await.status, 200);
    assert!(intake.last().lead.is_test);
    assert_eq!(intake.ask(&post(&format!("{LEADS}?test=0&x=y"), &[KEY, JSON], GOOD)).await.status, 200);
    assert!(!intake.last().lead.is_test);
}

#[tokio::test]
async fn the_wait_is_what_was_promised_or_preferred_less_what_is_gone() {
    let promised = Duration::from_secs(10);
    let intake = Intake::with(IntakeConfig { answer_within: promised, ..config() }, PATIENCE).await;
    let slow = "authorization: Bearer slow-key";
    for (headers, most_s) in [
        (&[KEY, JSON][..], 10),
        (&[KEY, JSON, "prefer: wait=1"], 10), // acme may not ask
        (&[slow, JSON], 10),
        (&[slow, JSON, "prefer: wait=1"], 1),
        (&[slow, JSON, "prefer: wait=60"], 2),
        (&[slow, JSON, "prefer: wait=0"], 0),
    ] {
        assert_eq!(intake.ask(&post(LEADS, headers, GOOD)).await.status, 200);
        let (wait, most) = (intake.last().wait, Duration::from_secs(most_s));
        assert!(wait <= most && wait + Duration::from_millis(900) >= most, "{headers:?}: {wait:?}");
    }
    // The body takes its time; the publisher was promised an answer from the head on.
    let request = good();
    let (head, rest) = request.split_at(request.len() - 1);
    let mut client = intake.connect().await;
    client.send(head).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.send(rest).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    assert!(intake.last().wait + Duration::from_millis(150) <= promised);
}

#[tokio::test]
async fn f64_above_the_throttle_is_429_before_any_claim() {
    let intake = Intake::start().await;
    let burst = "authorization: Bearer burst-key";
    let mut client = intake.connect().await;
    // What is refused for what it says uses up nothing.
    for _ in 0..5 {
        client.send(&post(LEADS, &[burst, JSON], b"{}")).await;
        assert_eq!(client.answer().await.unwrap().status, 422);
    }
    let mut taken = 0;
    let mut throttled = 0;
    for _ in 0..20 {
        client.send(&post(LEADS, &[burst, JSON], GOOD)).await;
        let answer = client.answer().await.unwrap();
        match answer.status {
            200 => taken += 1,
            429 => {
                throttled += 1;
                assert_eq!(answer.code(), "throttled");
                assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(taken, intake.leads());
    assert!((2..=4).contains(&taken) && throttled >= 16, "{taken} taken, {throttled} throttled");
    assert_eq!(intake.ask(&good()).await.status, 200, "another publisher paid for it");
}

#[tokio::test]
async fn a_draining_gateway_takes_nothing() {
    let intake = Intake::start().await;
    *intake.desk.is_draining.lock() = true;
    let answer = intake.ask(&good()).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "unavailable"));
    assert_eq!(intake.leads(), 0);
}

#[tokio::test]
async fn a_publisher_with_a_signing_secret_signs_each_post() {
    let intake = Intake::start().await;
    let key = SigningKey::new(SIGNING_SECRET).unwrap();
    // The desk's clock stands at 0.
    let headers = |id: &str, unix_s: i64, body: &[u8]| {
        ["x-api-key: signed-key".to_owned(), JSON.to_owned()]
            .into_iter()
            .chain([format!("webhook-id: {id}"), format!("webhook-timestamp: {unix_s}")])
            .chain([format!("webhook-signature: v1,AAAA {}", key.sign(id, unix_s, body))])
            .collect::<Vec<_>>()
    };
    let send = async |headers: &[String], body: &[u8]| {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        intake.ask(&post(LEADS, &headers, body)).await.status
    };
    let good = headers("msg-1", 10, GOOD);
    assert_eq!(send(&good, GOOD).await, 200);
    let claim = intake.last().claim.expect("the message's id tells repeats");
    assert_eq!(send(&headers("msg-1", 20, GOOD), GOOD).await, 200);
    assert_eq!(intake.last().claim.as_ref(), Some(&claim));
    let taken = intake.desk.handed.lock().len();

    let mut spoilt =
        vec![headers("msg-1", 10, b"{}"), headers("msg-1", 301, GOOD), good[..4].to_vec(), good[..2].to_vec()];
    spoilt.push([&good[..], &good[4..]].concat());
    for headers in spoilt {
        assert_eq!(send(&headers, GOOD).await, 401, "{headers:?}");
    }
    let foreign: Vec<_> = good.iter().map(|line| line.replace("signed-key", "acme-key")).collect();
    assert_eq!(send(&foreign, GOOD).await, 200, "others need none");
    assert_eq!(intake.desk.handed.lock().len(), taken + 1);
}

#[tokio::test]
async fn p7_a_key_opens_nothing_from_an_address_that_is_not_allowed() {
    let intake = Intake::start().await;
    let elsewhere = "x-api-key: elsewhere-key";
    // What anybody can write into a head moves no connection.
    for claimed in ["x-forwarded-for: 203.0.113.9", "forwarded: for=203.0.113.9", "x-real-ip: 203.0.113.9"] {
        let answer = intake.ask(&post(LEADS, &[elsewhere, JSON, claimed, "idempotency-key: k"], GOOD)).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "address_not_allowed"), "{claimed}");
    }
    let get = format!("GET /v1/leads/{} HTTP/1.1\r\nhost: x\r\n{elsewhere}\r\n\r\n", LeadId::generate());
    assert_eq!(intake.ask(get.as_bytes()).await.code(), "address_not_allowed");
    // Who does not know the key learns nothing about the list.
    assert_eq!(intake.ask(&post(LEADS, &["x-api-key: nobody", JSON], GOOD)).await.status, 401);
    assert_eq!((intake.leads(), intake.refused("address_not_allowed")), (0, 4));
    let here = post(LEADS, &["x-api-key: here-key", JSON], GOOD);
    assert_eq!(intake.ask(&here).await.status, 200);
    // A listener for both families names an IPv4 peer by an address of the other one.
    let both = IntakeConfig { listen: "[::ffff:127.0.0.1]:0".parse().unwrap(), ..config() };
    let both = Intake::with(both, PATIENCE).await;
    assert_eq!(both.ask(&here).await.status, 200);
    assert_eq!(both.ask(&post(LEADS, &[elsewhere, JSON], GOOD)).await.status, 403);
}
