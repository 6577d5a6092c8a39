//! Buyers' own calls over raw sockets.

use super::support::{Intake, JSON, KEY, post};
use crate::domain::id::LeadId;
use crate::domain::money::{Currency, Micros};
use crate::intake::{Decision, DecisionAnswer, DecisionReceipt, ReturnAnswer, ReturnReceipt};

const SUNCO: &str = "authorization: Bearer sunco-key";
const REASON: &[u8] = br#"{"reason":"no such number"}"#;
const LEAD: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

fn path(buyer: &str, lead: &str) -> String {
    format!("/v1/buyers/{buyer}/leads/{lead}/return")
}

#[tokio::test]
async fn a_return_is_answered_with_what_is_charged_no_more() {
    let intake = Intake::start().await;
    let receipt = ReturnReceipt { price: Micros(25_000_000), currency: Currency::new("USD").unwrap(), frees_cap: true };
    *intake.desk.return_answer.lock() = ReturnAnswer::Returned(receipt);
    for key in [SUNCO, "x-api-key: sunco-second-key"] {
        let answer = intake.ask(&post(&path("sunco", LEAD), &[key, JSON], REASON)).await;
        let expected =
            format!(r#"{{"lead_id":"{LEAD}","status":"returned","price":"25.00","currency":"USD","cap_freed":true}}"#);
        assert_eq!((answer.status, &*answer.body), (200, expected.as_bytes()));
    }
    let lead: LeadId = LEAD.parse().unwrap();
    let taken = intake.desk.taken_back.lock().clone();
    assert_eq!(taken.len(), 2);
    assert_eq!((taken[0].0.as_str(), taken[0].1, taken[0].2.as_str()), ("sunco", lead, "no such number"));
}

#[tokio::test]
async fn every_answer_to_a_return_has_its_status() {
    let intake = Intake::start().await;
    for (says, status, code, retry) in [
        (ReturnAnswer::NotFound, 404, "not_found", None),
        (ReturnAnswer::NotSold, 409, "not_sold", None),
        (ReturnAnswer::TooLate, 409, "too_late", None),
        (ReturnAnswer::Undecided, 409, "undecided", Some("5")),
        (ReturnAnswer::Unavailable, 503, "unavailable", Some("1")),
    ] {
        *intake.desk.return_answer.lock() = says;
        let answer = intake.ask(&post(&path("sunco", LEAD), &[SUNCO, JSON], REASON)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code));
        assert_eq!(answer.header("retry-after"), retry, "{code}");
        assert_eq!(intake.refused(code), 1, "{code}");
    }
}

#[tokio::test]
async fn only_the_buyer_itself_returns_and_nothing_else_is_asked() {
    let intake = Intake::start().await;
    let good = path("sunco", LEAD);
    let longer = format!("{good}/more");
    let long = [br#"{"reason":""#, &[b'x'; 9_000][..], br#""}"#].concat();
    for (what, request, status, code) in [
        ("no key", post(&good, &[JSON], REASON), 401, "unauthorized"),
        ("an unknown key", post(&good, &["x-api-key: sunco-kez", JSON], REASON), 401, "unauthorized"),
        ("a publisher's key", post(&good, &[KEY, JSON], REASON), 401, "unauthorized"),
        ("another buyer's key", post(&good, &["x-api-key: volt-key", JSON], REASON), 404, "not_found"),
        ("an unknown buyer", post(&path("nobody", LEAD), &[SUNCO, JSON], REASON), 404, "not_found"),
        ("no lead's id", post(&path("sunco", "1"), &[SUNCO, JSON], REASON), 404, "not_found"),
        ("a longer path", post(&longer, &[SUNCO, JSON], REASON), 404, "not_found"),
        ("no type", post(&good, &[SUNCO], REASON), 415, "unsupported_media_type"),
        (
            "a form",
            post(&good, &[SUNCO, "content-type: application/x-www-form-urlencoded"], b"reason=x"),
            415,
            "unsupported_media_type",
        ),
        ("no reason", post(&good, &[SUNCO, JSON], b"{}"), 400, "malformed"),
        ("no JSON", post(&good, &[SUNCO, JSON], b"{"), 400, "malformed"),
        ("a long body", post(&good, &[SUNCO, JSON], &long), 413, "too_large"),
    ] {
        let answer = intake.ask(&request).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{what}");
    }
    let get = format!("GET {good} HTTP/1.1\r\nhost: x\r\n{SUNCO}\r\n\r\n");
    let answer = intake.ask(get.as_bytes()).await;
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    *intake.desk.is_draining.lock() = true;
    assert_eq!(intake.ask(&post(&good, &[SUNCO, JSON], REASON)).await.status, 503);
    // A buyer's key sends no leads.
    assert_eq!(intake.ask(&post(super::support::LEADS, &[SUNCO, JSON], super::support::GOOD)).await.status, 401);
    assert_eq!(intake.desk.taken_back.lock().len(), 0);
}

#[tokio::test]
async fn p7_a_buyer_that_asks_too_often_is_throttled_before_any_work() {
    let intake = Intake::start().await;
    let mut client = intake.connect().await;
    let mut throttled = 0;
    for _ in 0..120 {
        client.send(&post(&path("sunco", LEAD), &[SUNCO, JSON], REASON)).await;
        let answer = client.answer().await.unwrap();
        if answer.status == 429 {
            throttled += 1;
            assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        }
    }
    let worked = intake.desk.taken_back.lock().len();
    assert_eq!(worked + throttled, 120);
    assert!(worked >= 50 && throttled > 0, "{worked} asked, {throttled} throttled");
    let other = intake.ask(&post(&path("volt", LEAD), &["x-api-key: volt-key", JSON], REASON)).await;
    assert_eq!(other.status, 404, "another buyer paid for it");
}

#[tokio::test]
async fn a_decision_is_read_strictly_and_every_answer_to_it_has_its_status() {
    let intake = Intake::start().await;
    let path = path("sunco", LEAD).replace("/return", "/decision");
    for bad in [
        "{",
        "[]",
        "{}",
        r#"{"decision":"maybe"}"#,
        r#"{"decision":true}"#,
        r#"{"decision":"accepted","decision":"declined"}"#,
    ] {
        let answer = intake.ask(&post(&path, &[SUNCO, JSON], bad.as_bytes())).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"), "{bad}");
    }
    let other = intake.ask(&post(&path, &["x-api-key: volt-key", JSON], br#"{"decision":"accepted"}"#)).await;
    assert_eq!(other.status, 404, "another buyer's key");
    assert_eq!(intake.desk.decided.lock().len(), 0);

    let usd = Currency::new("USD").unwrap();
    let accepted = DecisionReceipt::Accepted { price: Micros(25_500_000), currency: usd };
    for (says, body) in [
        (accepted, r#""decision":"accepted","price":"25.50","currency":"USD"}"#),
        (DecisionReceipt::Declined, r#""decision":"declined"}"#),
    ] {
        *intake.desk.decision_answer.lock() = DecisionAnswer::Taken(says);
        let answer = intake.ask(&post(&path, &[SUNCO, JSON], br#"{"decision":"accepted"}"#)).await;
        let expected = format!(r#"{{"lead_id":"{LEAD}",{body}"#);
        assert_eq!((answer.status, &*answer.body), (200, expected.as_bytes()));
    }
    for (says, status, code, retry) in [
        (DecisionAnswer::NotFound, 404, "not_found", None),
        (DecisionAnswer::NotPending, 409, "not_pending", None),
        (DecisionAnswer::Opposite, 409, "already_decided", None),
        (DecisionAnswer::TooLate, 409, "too_late", None),
        (DecisionAnswer::Undecided, 409, "undecided", Some("1")),
        (DecisionAnswer::Unavailable, 503, "unavailable", Some("1")),
    ] {
        *intake.desk.decision_answer.lock() = says;
        let answer = intake.ask(&post(&path, &[SUNCO, JSON], br#"{"decision":"declined","reason":" a\nb "}"#)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code));
        assert_eq!(answer.header("retry-after"), retry, "{code}");
    }
    for (body, expected) in [
        (r#"{"decision":"accepted","price":30.5}"#, Decision::Accepted { price: Some(Micros(30_500_000)) }),
        (r#"{"decision":"accepted","price":"30"}"#, Decision::Accepted { price: Some(Micros(30_000_000)) }),
        (r#"{"decision":"accepted","price":-1}"#, Decision::Accepted { price: None }),
        (r#"{"decision":"declined"}"#, Decision::Declined { reason: None }),
        (r#"{"decision":"declined","reason":" a\nb "}"#, Decision::Declined { reason: Some("a b".into()) }),
    ] {
        intake.ask(&post(&path, &[SUNCO, JSON], body.as_bytes())).await;
        let taken = intake.desk.decided.lock().last().cloned().unwrap();
        assert_eq!((taken.0.as_str(), taken.2), ("sunco", expected), "{body}");
    }
}
