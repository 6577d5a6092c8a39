use std::io;
use std::net::IpAddr;

use super::*;
use crate::clock::SystemClock;
use crate::domain::field::canonical;
use crate::domain::id::{CampaignId, LeadId, PublisherId};
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::money::{Currency, Micros};
use crate::domain::routing::{
    AnswerRule, AnswerRules, BodyFormat, BuyerFilter, Content, FieldPart, FieldSource, On5xx, OnCrash, OnTimeout,
    RequestShape, ReturnTerms, Secret,
};
use crate::domain::signature::SigningKey;
use crate::domain::template::{Syntax, Template};

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
            pending_within: None,
            price: None,
            reason: None,
            redirect_url: None,
            reference: None,
            is_explicit: true,
        },
        keys: vec![],
        breaker: crate::domain::routing::BreakerRule::default(),
        duplicates: None,
        returns: ReturnTerms { within_days: 0, frees_cap: false },
    })
}

fn shape(format: BodyFormat, fields: Option<&[(&str, FieldSource)]>) -> RequestShape {
    let part = |(name, source): &(&str, FieldSource)| FieldPart::Value((*name).to_owned(), source.clone());
    let content = fields.map_or(Content::AllFields, |fields| Content::Fields(fields.iter().map(part).collect()));
    RequestShape { format, content, ..RequestShape::default() }
}

fn templated(format: BodyFormat, syntax: Syntax, source: &str) -> RequestShape {
    let template = Template::compile(source, syntax, jiff::tz::TimeZone::UTC).unwrap();
    RequestShape { format, content: Content::Template(Arc::new(template)), ..RequestShape::default() }
}

fn offered(lead: &Lead) -> Offered<'_> {
    Offered { lead, country: "US", price: Micros(25_500_000), currency: Currency::new("USD").unwrap() }
}

fn body(shape: &RequestShape, lead: &Lead) -> String {
    let bytes = request::body(shape, &offered(lead), Secrets::Sent).unwrap();
    std::str::from_utf8(&bytes).unwrap().to_owned()
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
    let (price, currency) = (Micros(0), Currency::new("USD").unwrap());
    forwarder
        .forward(ForwardOrder { buyer, lead: lead(&[]), country: "US".into(), price, currency, permit, turn: None })
        .await
        .outcome
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
    let json = body(&shape(BodyFormat::Json, None), &lead);
    let expected = format!(
        r#"{{"first_name":"Zoë \"Z\"\r\n😀","amount":100.10,"big":18446744073709551616,"tiny":1E-7,"owner":true,"nothing":null,"tags":{{"b":1.0, "a":[2]}},"lead_id":"{id}"}}"#
    );
    assert_eq!(json, expected);

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
    let json = body(&shape(BodyFormat::Json, Some(&mapping)), &lead);
    let expected = format!(
        r#"{{"first":"Zoë \"Z\"\r\n😀","sum":100.10,"none":null,"t":{{"b":1.0, "a":[2]}},"ref":"{id}","c":"solar","p":"acme"}}"#
    );
    assert_eq!(json, expected);

    let xml = body(&shape(BodyFormat::Xml, Some(&mapping)), &lead);
    let expected = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<lead><first>Zoë &quot;Z&quot;&#13;\n😀</first><sum>100.10</sum>\
         <none></none><t>{{&quot;b&quot;:1.0, &quot;a&quot;:[2]}}</t><ref>{id}</ref><c>solar</c><p>acme</p></lead>"
    );
    assert_eq!(xml, expected);

    let form = body(&shape(BodyFormat::Form, Some(&mapping)), &lead);
    let expected = format!(
        "first=Zo%C3%AB+%22Z%22%0D%0A%F0%9F%98%80&sum=100.10&none=&t=%7B%22b%22%3A1.0%2C+%22a%22%3A%5B2%5D%7D&ref={id}&c=solar&p=acme"
    );
    assert_eq!(form, expected);
    assert_eq!(body(&shape(BodyFormat::Query, Some(&mapping)), &lead), "", "a query has no body");
}

#[test]
fn all_that_can_stand_in_a_field() {
    let mut lead = lead(&[("zip", text("07030"))]);
    let secret = Secret::new("k3y&\"");
    let parts = |test| {
        vec![
            FieldPart::Value("key".into(), FieldSource::Secret(secret.clone())),
            FieldPart::Group(
                "offer".into(),
                vec![
                    FieldPart::Value("price".into(), FieldSource::Price),
                    FieldPart::Value("in".into(), FieldSource::Currency),
                ],
            ),
            FieldPart::Value("at".into(), FieldSource::ReceivedAt),
            FieldPart::Value("type".into(), FieldSource::Constant(number("19"))),
            FieldPart::Value(test, FieldSource::Test),
        ]
    };
    let shape = |format| RequestShape {
        format,
        content: Content::Fields(parts("Test_Lead".into())),
        ..RequestShape::default()
    };
    let json = r#"{"key":"k3y&\"","offer":{"price":25.50,"in":"USD"},"at":"2026-03-08T12:00:00Z","type":19}"#;
    assert_eq!(body(&shape(BodyFormat::Json), &lead), json);
    let masked = request::body(&shape(BodyFormat::Json), &offered(&lead), Secrets::Masked).unwrap();
    assert_eq!(masked, json.replace("k3y&\\\"", "***"));
    let xml = body(&shape(BodyFormat::Xml), &lead);
    assert!(xml.contains("<key>k3y&amp;&quot;</key><offer><price>25.50</price><in>USD</in></offer>"), "{xml}");

    Arc::get_mut(&mut lead).unwrap().is_test = true;
    assert!(body(&shape(BodyFormat::Json), &lead).ends_with(r#""type":19,"Test_Lead":1}"#), "a test says so");

    let source = r#"{"k": "{{ secrets.key }}", "z": "{{ lead.zip_code }}", "p": {{ price }}, "t": {{ test }}, "at": "{{ received_at|date("%Y-%m-%d") }}"}"#;
    let mut shape = templated(BodyFormat::Json, Syntax::Json, source);
    shape.secrets = vec![("key".into(), secret)];
    assert_eq!(body(&shape, &lead), r#"{"k": "k3y&\"", "z": "07030", "p": 25.50, "t": true, "at": "2026-03-08"}"#);
}

#[test]
fn a_phone_is_sent_as_e164_where_the_buyer_wants_it_so() {
    let fields = [("p", FieldSource::PhoneE164), ("as_written", FieldSource::Field("phone".into()))];
    let mapped = shape(BodyFormat::Json, Some(&fields));
    let template = templated(BodyFormat::Json, Syntax::Json, r#"{"p": "{{ phone_e164 }}"}"#);
    for (phone, by_fields, by_template) in [
        ("(201) 555-0123", r#"{"p":"+12015550123","as_written":"(201) 555-0123"}"#, r#"{"p": "+12015550123"}"#),
        ("none", r#"{"as_written":"none"}"#, r#"{"p": ""}"#),
    ] {
        let lead = lead(&[("phone", text(phone))]);
        assert_eq!(body(&mapped, &lead), by_fields);
        assert_eq!(body(&template, &lead), by_template);
    }
}

#[test]
fn f55_a_get_has_the_lead_in_its_url_and_nothing_else() {
    let lead = lead(&[("first_name", text("Zoë & Co #1\r\nX: 1")), ("zip", text("07030"))]);
    let mut buyer = buyer("http://buyer.example/post?campaign=7&src=a%20b", 1);
    let url = |buyer: &Arc<Buyer>, secrets| request::url(buyer, &offered(&lead), secrets).map(|url| url.to_string());
    assert_eq!(url(&buyer, Secrets::Sent).unwrap(), buyer.url.as_str(), "a POST leaves the URL as it is");

    let parts = [("fn", FieldSource::Field("first_name".into())), ("z", FieldSource::Field("zip".into()))];
    let query = vec![("key".into(), Secret::new("k3y=&"))];
    Arc::get_mut(&mut buyer).unwrap().request = RequestShape { query, ..shape(BodyFormat::Query, Some(&parts)) };
    let fields = "fn=Zo%C3%AB+%26+Co+%231%0D%0AX%3A+1&z=07030";
    let sent = format!("http://buyer.example/post?campaign=7&src=a%20b&key=k3y%3D%26&{fields}");
    assert_eq!(url(&buyer, Secrets::Sent).unwrap(), sent);
    let masked = format!("http://buyer.example/post?campaign=***&src=***&key=***&{fields}");
    assert_eq!(url(&buyer, Secrets::Masked).unwrap(), masked);
    assert_eq!(request::method(&buyer.request), "GET");
    let headers = request::headers(&buyer.request, &lead, b"", Timestamp::UNIX_EPOCH).unwrap();
    assert!(!headers.contains_key("content-type") && headers.contains_key("idempotency-key"), "{headers:?}");

    let template = "fn={{ lead.first_name }}&\n z={{ lead.zip }}";
    Arc::get_mut(&mut buyer).unwrap().request = templated(BodyFormat::Query, Syntax::Form, template);
    let sent = url(&buyer, Secrets::Sent).unwrap();
    assert_eq!(sent, "http://buyer.example/post?campaign=7&src=a%20b&fn=Zo%C3%AB+%26+Co+%231%0D%0AX%3A+1&z=07030");

    Arc::get_mut(&mut buyer).unwrap().request = shape(BodyFormat::Query, None);
    let mut long = (*lead).clone();
    long.fields = Fields::new(vec![("a".into(), text(&"x".repeat(request::URL_BYTES_MAX)))]);
    let refused = request::url(&buyer, &offered(&long), Secrets::Sent);
    assert_eq!(refused, Err(BadMessage::UrlTooLong));
}

#[test]
fn p7_a_template_that_does_not_fit_a_lead_sends_nothing() {
    let fits = templated(BodyFormat::Json, Syntax::Json, r#"{"age": {{ lead.age }}}"#);
    let refused = |age| request::body(&fits, &offered(&lead(&[("age", age)])), Secrets::Sent);
    assert!(refused(number("47")).is_ok());
    let error = refused(text("forty \" seven")).unwrap_err();
    assert_eq!((error.word(), error.to_string().contains("forty")), ("illegal_body", false), "p9");
    let long = templated(
        BodyFormat::Json,
        Syntax::Json,
        r#"["{{ lead.a }}{{ lead.a }}{{ lead.a }}{{ lead.a }}{{ lead.a }}"]"#,
    );
    let error = request::body(&long, &offered(&lead(&[("a", text(&"x".repeat(60_000)))])), Secrets::Sent);
    assert_eq!(error.unwrap_err().word(), "body_too_large");
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
    shape.content_type = Some("text/xml; charset=utf-8".parse().unwrap());
    assert_eq!(headers(&shape).unwrap()["content-type"], "text/xml; charset=utf-8");
    shape.content_type = None;

    shape.headers = vec![("x-api-key".parse().unwrap(), Secret::new("a\r\nX-Evil: 1"))];
    assert_eq!(headers(&shape), Err(BadMessage::IllegalHeader("x-api-key".parse().unwrap())));

    shape.headers.clear();
    let key = SigningKey::new("a secret of both sides").unwrap();
    shape.signing = Some(key.clone());
    let sent = headers(&shape).unwrap();
    let text = |name: &str| sent[name].to_str().unwrap().to_owned();
    assert_eq!((text("webhook-id"), text("webhook-timestamp")), (id.clone(), "0".to_owned()));
    assert!(key.is_signed(&id, "0", &text("webhook-signature"), b"a=1", Timestamp::UNIX_EPOCH));
}
