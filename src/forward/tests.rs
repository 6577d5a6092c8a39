use std::io;
use std::net::IpAddr;

use super::*;
use crate::clock::SystemClock;
use crate::domain::field::canonical;
use crate::domain::id::{CampaignId, LeadId, PublisherId};
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::routing::{
    AnswerRule, AnswerRules, BodyFormat, BuyerFilter, FieldSource, On5xx, OnCrash, OnTimeout, RequestShape,
    ReturnTerms, Secret,
};
use crate::domain::signature::SigningKey;

fn buyer(url: &str, in_flight_max: usize) -> Arc<Buyer> {
    Arc::new(Buyer {
        id: BuyerId::new("sunco").unwrap(),
        url: reqwest::Url::parse(url).unwrap(),
        timezone: jiff::tz::TimeZone::UTC,
        timezone_name: "UTC".into(),
        timeout: Duration::from_secs(5),
        on_timeout: OnTimeout::Refund,
        on_crash: OnCrash::Keep,
        in_flight_max,
        is_paused: false,
        caps: Vec::new(),
        filter: BuyerFilter::default(),
        hours: Vec::new(),
        request: shape(BodyFormat::Json, None),
        answer: AnswerRules {
            accepted: AnswerRule::Status(vec![200]),
            duplicate: None,
            on_5xx: On5xx::Declined,
            price: None,
            reason: None,
            redirect_url: None,
            is_explicit: true,
        },
        keys: vec![],
        returns: ReturnTerms { within_days: 0, frees_cap: false },
    })
}

fn shape(format: BodyFormat, fields: Option<&[(&str, FieldSource)]>) -> RequestShape {
    let fields = fields.map(|f| f.iter().map(|(name, source)| ((*name).to_owned(), source.clone())).collect());
    RequestShape { format, headers: Vec::new(), signing: None, fields }
}

fn lead(fields: &[(&str, FieldValue)]) -> Arc<Lead> {
    Arc::new(Lead {
        id: LeadId::generate(),
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        received_at: "2026-03-08T12:00:00Z".parse().unwrap(),
        is_test: false,
        fields: Fields::new(fields.iter().map(|(name, value)| (canonical(name), value.clone())).collect()),
        body: bytes::Bytes::new(),
    })
}

fn text(value: &str) -> FieldValue {
    FieldValue::Text(value.into())
}

fn number(digits: &str) -> FieldValue {
    FieldValue::Number(digits.into())
}

async fn forward_through(lookup: fn() -> io::Result<Vec<IpAddr>>, is_private_allowed: bool) -> Outcome {
    let config = ForwardConfig {
        timeout: Duration::from_secs(5),
        late_answer: Duration::from_secs(1),
        answer_bytes_max: 1024,
        allow_private_addresses: is_private_allowed,
        lead_deadline: Duration::from_secs(10),
        attempts_max: 10,
    };
    let resolver = GuardedResolver::new(is_private_allowed, move |_| Box::pin(async move { lookup() }));
    let forwarder = Forwarder::with_resolver(&config, Arc::new(SystemClock), resolver).unwrap();
    let buyer = buyer("http://buyer.example:9/leads", 1);
    let permit = forwarder.enter(&buyer).unwrap();
    forwarder.forward(ForwardOrder { buyer, lead: lead(&[]), permit }).await.outcome
}

#[tokio::test]
async fn f51_a_name_that_does_not_resolve_or_points_inside_is_never_called() {
    let unknown = forward_through(|| Err(io::Error::other("no such name")), true).await;
    assert_eq!(unknown, Outcome::Unsent { reason: "dns" });
    let inside = forward_through(|| Ok(vec![[127, 0, 0, 1].into()]), false).await;
    assert_eq!(inside, Outcome::Unsent { reason: "address_refused" });
    // The same address, allowed: now the connection is tried, and nobody listens on the discard port.
    let allowed = forward_through(|| Ok(vec![[127, 0, 0, 1].into()]), true).await;
    assert_eq!(allowed, Outcome::Unsent { reason: "connect" });
}

#[tokio::test]
async fn p7_no_more_forwards_at_once_than_the_buyer_allows() {
    let bulkhead = Bulkhead::default();
    let buyer = buyer("http://buyer.example/", 2);
    let (first, second) = (bulkhead.enter(&buyer), bulkhead.enter(&buyer));
    assert!(first.is_some() && second.is_some() && bulkhead.enter(&buyer).is_none());
    assert_eq!(bulkhead.under_way(&buyer.id), 2);
    drop(first);
    assert!(bulkhead.enter(&buyer).is_some());
}

#[test]
fn f55_values_reach_the_buyer_as_they_were_written() {
    let lead = lead(&[
        ("first_name", text("Zoë \"Z\"\r\n\u{1f600}")),
        ("amount", number("100.10")),
        ("big", number("18446744073709551616")),
        ("tiny", number("1E-7")),
        ("owner", FieldValue::Bool(true)),
        ("nothing", FieldValue::Null),
        ("tags", FieldValue::Nested(r#"{"b":1.0, "a":[2]}"#.into())),
        ("lead_id", text("theirs")),
    ]);
    let id = lead.id;
    let json = request::body(&shape(BodyFormat::Json, None), &lead);
    let expected = format!(
        r#"{{"first_name":"Zoë \"Z\"\r\n😀","amount":100.10,"big":18446744073709551616,"tiny":1E-7,"owner":true,"nothing":null,"tags":{{"b":1.0, "a":[2]}},"lead_id":"{id}"}}"#
    );
    assert_eq!(std::str::from_utf8(&json).unwrap(), expected);

    let mapping = [
        ("first", FieldSource::Field("first_name".into())),
        ("sum", FieldSource::Field("amount".into())),
        ("missing", FieldSource::Field("phone".into())),
        ("none", FieldSource::Field("nothing".into())),
        ("t", FieldSource::Field("tags".into())),
        ("ref", FieldSource::LeadId),
        ("c", FieldSource::CampaignId),
        ("p", FieldSource::PublisherId),
    ];
    let json = request::body(&shape(BodyFormat::Json, Some(&mapping)), &lead);
    let expected = format!(
        r#"{{"first":"Zoë \"Z\"\r\n😀","sum":100.10,"none":null,"t":{{"b":1.0, "a":[2]}},"ref":"{id}","c":"solar","p":"acme"}}"#
    );
    assert_eq!(std::str::from_utf8(&json).unwrap(), expected);

    let form = request::body(&shape(BodyFormat::Form, Some(&mapping)), &lead);
    let expected = format!(
        "first=Zo%C3%AB+%22Z%22%0D%0A%F0%9F%98%80&sum=100.10&none=&t=%7B%22b%22%3A1.0%2C+%22a%22%3A%5B2%5D%7D&ref={id}&c=solar&p=acme"
    );
    assert_eq!(std::str::from_utf8(&form).unwrap(), expected);
}

#[test]
fn our_headers_win_and_framing_is_left_to_the_client() {
    let lead = lead(&[]);
    let mut shape = shape(BodyFormat::Form, None);
    let configured = [
        ("x-api-key", "k3y"),
        ("idempotency-key", "theirs"),
        ("content-type", "text/plain"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
    ];
    shape.headers = configured.map(|(name, value)| (name.parse().unwrap(), Secret::new(value))).into();
    let headers = |shape: &RequestShape| request::headers(shape, &lead, b"a=1", Timestamp::UNIX_EPOCH);
    let sent = headers(&shape).unwrap();
    let id = lead.id.to_string();
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert_eq!(sent["x-api-key"], "k3y");
    assert_eq!(sent["idempotency-key"], id);
    assert_eq!(sent["capgate-lead-id"], id);
    assert_eq!(sent["content-type"], "application/x-www-form-urlencoded");
    assert!(!format!("{sent:?}").contains("k3y"), "p9: a secret is printed");

    shape.headers = vec![("x-api-key".parse().unwrap(), Secret::new("a\r\nX-Evil: 1"))];
    assert_eq!(headers(&shape), Err(request::IllegalHeader("x-api-key".parse().unwrap())));

    shape.headers.clear();
    let key = SigningKey::new("a secret of both sides").unwrap();
    shape.signing = Some(key.clone());
    let sent = headers(&shape).unwrap();
    let text = |name: &str| sent[name].to_str().unwrap().to_owned();
    assert_eq!((text("webhook-id"), text("webhook-timestamp")), (id.clone(), "0".to_owned()));
    assert!(key.is_signed(&id, "0", &text("webhook-signature"), b"a=1", Timestamp::UNIX_EPOCH));
}
