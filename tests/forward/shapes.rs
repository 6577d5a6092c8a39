//! The buyers of `config/example/formats.toml`: the file is loaded, a lead goes over a socket, and each kind of answer is
//! read.

use std::path::Path;
use std::sync::Arc;

use capgate::config;
use capgate::domain::id::BuyerId;
use capgate::domain::lead::{FieldValue, Fields, Lead};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::{Acceptance, Outcome};
use capgate::forward::{ForwardOrder, Forwarder};

use crate::support::{RawBuyer, forwarder_with, lead};

/// What the buyer read: the request line, the headers in lower case, the body.
struct Sent {
    line: String,
    head: String,
    body: String,
}

fn shared() -> (Forwarder, config::ForwardConfig) {
    let mut kept = None;
    let forwarder = forwarder_with(|config| {
        // Outcomes here must not depend on a time-out.
        config.timeout = std::time::Duration::from_secs(30);
        kept = Some(config.clone());
    });
    (forwarder, kept.expect("it was called"))
}

fn ann() -> Lead {
    let text = |value: &str| FieldValue::Text(value.into());
    Lead {
        id: "0190b6f0-0000-7000-8000-000000000017".parse().unwrap(),
        fields: Fields::new(vec![
            ("first_name".into(), text("Zoë & <Ann>")),
            ("last_name".into(), text("O'Neil \"x\"")),
            ("email".into(), text("Ann@Example.com")),
            ("phone".into(), text("(201) 555-0123")),
            ("state".into(), text("nj")),
            ("zip".into(), text("07030")),
        ]),
        ..(*lead()).clone()
    }
}

/// Forwards Ann to the buyer, who answers so.
async fn exchange(id: &str, status: u16, answer: &[u8]) -> (Sent, Outcome) {
    let head = format!("HTTP/1.1 {status} Fine\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", answer.len());
    let server = RawBuyer::answering([head.as_bytes(), answer].concat()).await;
    let (forwarder, config) = shared();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example/formats.toml");
    let (mut routing, _) = config::load_routing(&file, &config, &|_: &str| None).expect("the file is good");
    let mut buyer = routing.buyers.remove(&BuyerId::new(id).unwrap()).expect("such a buyer");
    let known = Arc::get_mut(&mut buyer).expect("in no campaign");
    let here = reqwest::Url::parse(&server.url()).unwrap();
    known.url.set_scheme("http").unwrap();
    known.url.set_host(here.host_str()).unwrap();
    known.url.set_port(here.port()).unwrap();
    let permit = forwarder.enter(&buyer).expect("room");
    let (price, currency) = (Micros(25_500_000), Currency::new("USD").unwrap());
    let order =
        ForwardOrder { buyer, lead: Arc::new(ann()), country: "US".into(), price, currency, permit, turn: None };
    let outcome = forwarder.forward(order).await.outcome;
    let request = server.requests().remove(0);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let (line, head) = head.split_once("\r\n").unwrap();
    (Sent { line: line.into(), head: head.to_lowercase(), body: body.into() }, outcome)
}

fn yes(price_micros: i64, redirect_url: Option<&str>) -> Outcome {
    let redirect_url = redirect_url.map(str::to_owned);
    Outcome::Accepted(Acceptance { http_status: 200, price: Some(Micros(price_micros)), redirect_url, reference: None })
}

fn no(http_status: u16, reason: &str) -> Outcome {
    Outcome::Declined { http_status, reason: reason.into(), is_duplicate: false, rest_s: None }
}

fn duplicate(reason: &str) -> Outcome {
    Outcome::Declined { http_status: 200, reason: reason.into(), is_duplicate: true, rest_s: None }
}

/// Each answer is read as it should be.
async fn reads(id: &str, answers: &[(u16, &str, Outcome)]) {
    for (status, answer, expected) in answers {
        let (_, outcome) = exchange(id, *status, answer.as_bytes()).await;
        assert_eq!(outcome, *expected, "{id}: {answer}");
    }
    // What every buyer does on a bad day.
    for (status, answer, reason) in
        [(200, "", "unreadable_answer"), (500, "Internal Server Error", "http_500"), (404, "", "http_404")]
    {
        let (_, outcome) = exchange(id, status, answer.as_bytes()).await;
        let is_readable = id == "plain-text" && status == 200;
        let expected = no(status, if is_readable { "declined" } else { reason });
        assert_eq!(outcome, expected, "{id}: {status} {answer}");
    }
}

#[tokio::test]
async fn f52_f55_a_boberdoo_style_buyer() {
    let matched = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<response><status>Matched</status><lead_id>48</lead_id>\
                   <price>12.50</price><redirect_url>https://b.example/t?a=1&amp;b=2</redirect_url></response>";
    let (sent, outcome) = exchange("boberdoo-style", 200, matched.as_bytes()).await;
    assert_eq!(outcome, yes(12_500_000, Some("https://b.example/t?a=1&b=2")));
    assert_eq!(sent.line, "POST /genericPostlead.php HTTP/1.1");
    assert!(sent.head.contains("content-type: application/x-www-form-urlencoded"), "{}", sent.head);
    assert_eq!(
        sent.body,
        "Key=demo-key&API_Action=submitLead&TYPE=19&SRC=acme&First_Name=Zo%C3%AB+%26+%3CAnn%3E&\
         Last_Name=O%27Neil+%22x%22&Email=Ann%40Example.com&Primary_Phone=%28201%29+555-0123&State=nj&Zip=07030&\
         Unique_Identifier=0190b6f0-0000-7000-8000-000000000017"
    );
    reads(
        "boberdoo-style",
        &[
            (200, "<response><status>Unmatched</status></response>", no(200, "declined")),
            (
                200,
                "<response><status>Error</status><error>Invalid Key</error><error>Zip is bad</error></response>",
                no(200, "Invalid Key"),
            ),
            (
                200,
                "<response><status>Error</status><error>Duplicate lead</error></response>",
                duplicate("Duplicate lead"),
            ),
            // The same account with Format=JSON.
            (200, r#"{"response":{"status":"Matched","price":"7.00"}}"#, yes(7_000_000, None)),
        ],
    )
    .await;
}

#[tokio::test]
async fn f52_f55_a_leadspedia_style_buyer() {
    let success = r#"{"result":"success","lead_id":"7B0","price":"9.25","redirect_url":"https://b.example/x","msg":"Lead Accepted"}"#;
    let (sent, outcome) = exchange("leadspedia-style", 200, success.as_bytes()).await;
    assert_eq!(outcome, yes(9_250_000, Some("https://b.example/x")));
    assert_eq!(
        sent.body,
        "lp_campaign_id=642&lp_campaign_key=demo-key&lp_s1=acme&first_name=Zo%C3%AB+%26+%3CAnn%3E&\
         last_name=O%27Neil+%22x%22&phone_home=%28201%29+555-0123&email_address=Ann%40Example.com&state=nj&zip_code=07030"
    );
    reads(
        "leadspedia-style",
        &[
            (
                200,
                r#"{"result":"failed","msg":"Lead Rejected","errors":[{"error":"No Coverage"}]}"#,
                no(200, "No Coverage"),
            ),
            (200, r#"{"result":"failed","errors":[{"error":"Duplicate Lead"}]}"#, duplicate("Duplicate Lead")),
            (200, r#"{"result":"failed"}"#, no(200, "declined")),
        ],
    )
    .await;
}

#[tokio::test]
async fn f52_f55_a_cake_style_buyer() {
    let success = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><result><code>0</code><msg>success</msg>\
                   <leadid>9A</leadid><price>18.75</price><redirect>https://b.example/r</redirect></result>";
    let (sent, outcome) = exchange("cake-style", 200, success.as_bytes()).await;
    assert_eq!(outcome, yes(18_750_000, Some("https://b.example/r")));
    assert_eq!(
        sent.line,
        "GET /d.ashx?ckm_campaign_id=17&ckm_key=demo-key&ckm_subid=acme&first_name=Zo%C3%AB+%26+%3CAnn%3E&\
         last_name=O%27Neil+%22x%22&email_address=Ann%40Example.com&phone_home=%28201%29+555-0123&zip_code=07030&state=nj \
         HTTP/1.1"
    );
    assert_eq!(sent.body, "");
    reads(
        "cake-style",
        &[
            (200, "<result><code>1</code><errors><error>Cap Reached</error></errors></result>", no(200, "Cap Reached")),
            (
                200,
                "<result><code>1</code><msg>failure</msg><errors><error>Duplicate Email</error></errors></result>",
                duplicate("Duplicate Email"),
            ),
        ],
    )
    .await;
    // As an old server writes it.
    let latin = b"<?xml version=\"1.0\" encoding=\"iso-8859-1\"?><result><code>1</code><errors><error>Donn\xe9es</error></errors></result>";
    assert_eq!(exchange("cake-style", 200, latin).await.1, no(200, "Données"));
}

#[tokio::test]
async fn f52_f55_a_leadconduit_style_buyer() {
    let success = r#"{"outcome":"success","lead":{"id":"5c"},"price":18}"#;
    let (sent, outcome) = exchange("leadconduit-style", 201, success.as_bytes()).await;
    let terms = Acceptance { http_status: 201, price: Some(Micros(18_000_000)), redirect_url: None, reference: None };
    assert_eq!(outcome, Outcome::Accepted(terms));
    assert_eq!(sent.line, "POST /flows/5a/sources/5b/submit HTTP/1.1");
    assert!(sent.head.contains("accept: application/json"), "{}", sent.head);
    assert_eq!(
        sent.body,
        "{\"first_name\":\"Zoë & <Ann>\",\"last_name\":\"O'Neil \\\"x\\\"\",\"email\":\"Ann@Example.com\",\
         \"phone_1\":\"(201) 555-0123\",\"state\":\"nj\",\"postal_code\":\"07030\",\
         \"reference\":\"0190b6f0-0000-7000-8000-000000000017\"}"
    );
    reads(
        "leadconduit-style",
        &[
            (200, r#"{"outcome":"failure","reason":"bad phone","lead":{"id":"5c"}}"#, no(200, "bad phone")),
            (200, r#"{"outcome":"error","reason":"timeout at recipient"}"#, no(200, "timeout at recipient")),
            (200, r#"{"outcome":"failure","reason":"duplicate email"}"#, duplicate("duplicate email")),
        ],
    )
    .await;
}

#[tokio::test]
async fn f52_f55_a_buyer_with_xml_of_its_own() {
    let answer = |inside: &str, attributes: &str| {
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><soap:Envelope xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\">\
             <soap:Body><SubmitResponse xmlns=\"urn:leads\"{attributes}>{inside}</SubmitResponse></soap:Body></soap:Envelope>"
        )
    };
    let ok = answer("<Status>ok</Status>", " price=\"31\"");
    let (sent, outcome) = exchange("xml-template", 200, ok.as_bytes()).await;
    assert_eq!(outcome, yes(31_000_000, None));
    for header in ["content-type: text/xml; charset=utf-8", "soapaction: \"urn:leads/submit\"", "authorization: basic "]
    {
        assert!(sent.head.contains(header), "{}", sent.head);
    }
    let expected = "<Submit xmlns=\"urn:leads\" key=\"demo-key\" minPrice=\"25.50\">\n      \
                    <Lead id=\"0190b6f0-0000-7000-8000-000000000017\" received=\"03/08/2026\">\n        \
                    <Name first=\"Zoë &amp; &lt;Ann&gt;\" last=\"O&apos;Neil &quot;x&quot;\"/>\n        \
                    <Phone>2015550123</Phone>\n        <Email>ann@example.com</Email>\n        <State>NJ</State>\n";
    assert!(sent.body.starts_with("<?xml") && sent.body.contains(expected), "{}", sent.body);
    reads(
        "xml-template",
        &[
            (200, &answer("<Status>NO</Status><Message><![CDATA[a < b]]></Message>", ""), no(200, "a < b")),
            (200, &answer("<Status>DUP</Status>", ""), duplicate("duplicate")),
            (200, "<!DOCTYPE x [<!ENTITY a \"OK\">]><Envelope/>", no(200, "unreadable_answer")),
        ],
    )
    .await;
}

#[tokio::test]
async fn f52_f55_a_buyer_that_answers_in_plain_text() {
    let (sent, outcome) = exchange("plain-text", 200, b"ACCEPTED price=5.5 url=https://b.example/y").await;
    assert_eq!(outcome, yes(5_500_000, Some("https://b.example/y")));
    assert_eq!(sent.line, "POST /in?token=demo-token HTTP/1.1");
    assert_eq!(
        sent.body,
        "{\"campaign\":4711,\"live\":true,\"contact\":{\"name\":{\"first\":\"Zoë & <Ann>\"},\"phone\":\"(201) 555-0123\"},\
         \"offer\":{\"price\":25.50,\"currency\":\"USD\"}}"
    );
    reads(
        "plain-text",
        &[
            (200, "REJECTED: bad zip", no(200, "bad zip")),
            (200, "REJECTED dup", duplicate("dup")),
            (200, "NOT ACCEPTED", no(200, "declined")),
        ],
    )
    .await;
}
