use http::{HeaderName, HeaderValue};

use super::*;

fn path(pointer: &str, values: &[&str]) -> AnswerRule {
    AnswerRule::Path { pointer: pointer.into(), values: values.iter().map(|v| (*v).to_owned()).collect() }
}

fn rules() -> AnswerRules {
    AnswerRules {
        accepted: path("/status", &["accepted", "ok"]),
        duplicate: Some(path("/status", &["duplicate"])),
        on_5xx: On5xx::Declined,
        pending_within: None,
        price: Some(AnswerText::Path("/price".into())),
        reason: Some(AnswerText::Path("/reason".into())),
        redirect_url: Some(AnswerText::Path("/redirect".into())),
        reference: Some(AnswerText::Path("/id".into())),
        is_explicit: true,
    }
}

fn now() -> Timestamp {
    "2026-03-08T12:00:00Z".parse().unwrap()
}

fn read_with(status: u16, headers: &[(&'static str, &'static str)], body: &str, rules: &AnswerRules) -> Outcome {
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
    classify(&Answer { status, headers: &headers, body: body.as_bytes() }, rules, &Fields::default(), now())
}

fn read(status: u16, body: &str) -> Outcome {
    read_with(status, &[], body, &rules())
}

fn declined(http_status: u16, reason: &str) -> Outcome {
    Outcome::Declined { http_status, reason: reason.into(), is_duplicate: false, rest_s: None }
}

fn accepted(http_status: u16) -> Outcome {
    Outcome::Accepted(Acceptance { http_status, ..Acceptance::default() })
}

#[test]
fn f52_only_what_accepted_matches_is_a_sale() {
    assert_eq!(read(200, r#"{"status":"accepted"}"#), accepted(200));
    assert_eq!(read(201, r#"{"status":"OK","more":[1]}"#), accepted(201));
    for (status, body, reason) in [
        (200, r#"{"status":"rejected"}"#, "declined"),
        (200, r#"{"status":"rejected","reason":"not interested"}"#, "not interested"),
        (200, r#"{"status":true}"#, "declined"),
        (200, r#"{"result":"accepted"}"#, "unreadable_answer"),
        (200, r#"["accepted"]"#, "unreadable_answer"),
        (200, "accepted", "unreadable_answer"),
        (200, "", "unreadable_answer"),
        (204, "", "unreadable_answer"),
        (200, r#"{"status":"accepted""#, "unreadable_answer"),
        (101, "", "http_101"),
        (301, r#"{"status":"accepted"}"#, "http_301"),
        (302, r#"{"status":"accepted","reason":"moved"}"#, "http_302"),
        (400, r#"{"status":"accepted"}"#, "http_400"),
        (422, r#"{"reason":"bad zip"}"#, "bad zip"),
        (500, r#"{"status":"accepted","reason":"words"}"#, "http_500"),
        (503, "", "http_503"),
    ] {
        assert_eq!(read(status, body), declined(status, reason), "{status} {body}");
    }
}

#[test]
fn f52_pending_is_an_answer_only_where_it_was_agreed() {
    let within = Some(std::time::Duration::from_secs(1));
    // Also where a rule would take the status for a sale: the body is the more exact word.
    let eager = AnswerRules { accepted: AnswerRule::Status(vec![200, 202]), pending_within: within, ..rules() };
    let agreed = AnswerRules { pending_within: within, ..rules() };
    for (status, body, is_pending) in [
        (202, r#"{"status":"pending"}"#, true),
        (202, r#"{"status":" Pending "}"#, true),
        (200, r#"{"status":"pending"}"#, false),
        (202, r#"{"status":"queued"}"#, false),
        (202, r#"{"state":"pending"}"#, false),
        (202, "pending", false),
    ] {
        let expected = Outcome::Pending { http_status: 202, reference: None };
        for rules in [&agreed, &eager] {
            assert_eq!(read_with(status, &[], body, rules) == expected, is_pending, "{status} {body}");
        }
        assert!(matches!(read_with(status, &[], body, &rules()), Outcome::Declined { .. }), "{status} {body}");
    }
}

#[test]
fn f52_statuses_and_texts_can_be_rules() {
    let by_status = AnswerRules { accepted: AnswerRule::Status(vec![201, 302]), ..rules() };
    assert_eq!(read_with(201, &[], "", &by_status), accepted(201));
    assert_eq!(read_with(302, &[], "", &by_status), accepted(302));
    assert_eq!(read_with(200, &[], "", &by_status), declined(200, "declined"));
    let duplicate = read_with(201, &[], r#"{"status":"duplicate"}"#, &by_status);
    assert!(matches!(duplicate, Outcome::Declined { is_duplicate: true, .. }), "{duplicate:?}");

    let by_text = AnswerRules { accepted: AnswerRule::BodyMatches(regex::Regex::new("^Success").unwrap()), ..rules() };
    assert_eq!(read_with(200, &[], "Success: 17", &by_text), accepted(200));
    assert_eq!(read_with(200, &[], "Failure", &by_text), declined(200, "declined"));
    assert_eq!(read_with(404, &[], "Success", &by_text), declined(404, "http_404"));
}

#[test]
fn f52_xml_is_read_like_json_whatever_the_header_says() {
    let rules = AnswerRules {
        accepted: path("/response/status", &["matched"]),
        duplicate: Some(AnswerRule::AnyOf(vec![
            AnswerRule::Status(vec![409]),
            AnswerRule::PathMatches {
                pointer: "/response/error".into(),
                regex: regex::Regex::new("(?i)duplicate").unwrap(),
            },
        ])),
        price: Some(AnswerText::Path("/response/price".into())),
        reason: Some(AnswerText::Path("/response/error".into())),
        redirect_url: Some(AnswerText::Path("/response/@url".into())),
        reference: Some(AnswerText::Path("/response/id".into())),
        ..rules()
    };
    let yes =
        "<response url=\"https://b.example/?a=1&amp;b=2\">\n<status> Matched </status><price>12.50</price></response>";
    let terms = Acceptance {
        http_status: 200,
        price: Some(Micros(12_500_000)),
        redirect_url: Some("https://b.example/?a=1&b=2".into()),
        reference: None,
    };
    for lie in ["text/html", "application/json", "text/plain; charset=utf-16"] {
        for before in ["", "\u{feff}", "\r\n ", "<?xml version=\"1.0\" encoding=\"utf-16\"?>"] {
            let read = read_with(200, &[("content-type", lie)], &format!("{before}{yes}"), &rules);
            assert_eq!(read, Outcome::Accepted(terms.clone()), "{lie} {before}");
        }
    }
    let latin = b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><response><status>Unmatched</status><error>d\xe9j\xe0 vu</error></response>";
    let answer = Answer { status: 200, headers: &HeaderMap::new(), body: latin };
    assert_eq!(classify(&answer, &rules, &Fields::default(), now()), declined(200, "déjà vu"));
    for (status, body, outcome) in [
        (200, "<response><status>Unmatched</status></response>", declined(200, "declined")),
        (200, "<response><status>matched</status>", declined(200, "unreadable_answer")),
        (200, "<!DOCTYPE html><response><status>matched</status></response>", declined(200, "unreadable_answer")),
        (200, "<html><body>Login</body></html>", declined(200, "unreadable_answer")),
        (500, yes, declined(500, "http_500")),
    ] {
        assert_eq!(read_with(status, &[], body, &rules), outcome, "{body}");
    }
    for (status, body, reason) in
        [(200, "<response><error>Duplicate lead</error></response>", "Duplicate lead"), (409, "", "duplicate")]
    {
        let expected =
            Outcome::Declined { http_status: status, reason: reason.into(), is_duplicate: true, rest_s: None };
        assert_eq!(read_with(status, &[], body, &rules), expected);
    }
}

#[test]
fn f52_plain_text_is_read_by_pattern() {
    let capture = |text: &str| Some(AnswerText::Capture(regex::Regex::new(text).unwrap()));
    let rules = AnswerRules {
        accepted: AnswerRule::BodyMatches(regex::Regex::new("(?i)^success").unwrap()),
        duplicate: None,
        price: capture("price=([0-9.]+)"),
        reason: capture("(?i)error[:=] *(.*)"),
        redirect_url: capture("url=([^|]+)"),
        reference: None,
        ..rules()
    };
    let terms = Acceptance {
        http_status: 200,
        price: Some(Micros(7_250_000)),
        redirect_url: Some("https://b.example/x".into()),
        reference: None,
    };
    let yes = read_with(200, &[], "\u{feff}Success|price=7.25|url=https://b.example/x|", &rules);
    assert_eq!(yes, Outcome::Accepted(terms));
    assert_eq!(read_with(200, &[], "Error: bad zip\nmore", &rules), declined(200, "bad zip"));
    assert_eq!(read_with(200, &[], "Success", &rules), accepted(200), "a price that is not there is the offer's");
}

#[test]
fn one_byte_that_is_not_utf_8_does_not_make_a_yes_unreadable() {
    let body = b"{\"status\":\"accepted\",\"note\":\"Zo\xeb\"}";
    assert_eq!(
        classify(&Answer { status: 200, headers: &HeaderMap::new(), body }, &rules(), &Fields::default(), now()),
        accepted(200)
    );
}

#[test]
fn f52_a_5xx_is_in_doubt_where_the_buyer_is_set_so() {
    let doubting = AnswerRules { on_5xx: On5xx::InDoubt, ..rules() };
    let doubt = Outcome::InDoubt { reason: "http_5xx", http_status: Some(500) };
    assert_eq!(read_with(500, &[], r#"{"status":"accepted"}"#, &doubting), doubt);
    assert_eq!(read_with(404, &[], "", &doubting), declined(404, "http_404"));
    let duplicate = read_with(500, &[], r#"{"status":"duplicate"}"#, &doubting);
    assert!(matches!(duplicate, Outcome::Declined { is_duplicate: true, .. }), "{duplicate:?}");
}

#[test]
fn a_duplicate_is_a_refusal_of_its_own() {
    for (status, body, reason) in [
        (200, r#"{"status":"duplicate"}"#, "duplicate"),
        (409, r#"{"status":"Duplicate","reason":"seen in May"}"#, "seen in May"),
    ] {
        let expected =
            Outcome::Declined { http_status: status, reason: reason.into(), is_duplicate: true, rest_s: None };
        assert_eq!(read(status, body), expected);
    }
}

#[test]
fn f49_a_compressed_answer_is_not_unpacked() {
    let body = r#"{"status":"accepted"}"#;
    for coding in ["gzip", "br", "identity, gzip"] {
        let outcome = read_with(200, &[("content-encoding", coding)], body, &rules());
        assert_eq!(outcome, declined(200, "unreadable_answer"), "{coding}");
    }
    assert_eq!(read_with(200, &[("content-encoding", "Identity")], body, &rules()), accepted(200));
}

#[test]
fn p6_the_price_of_an_answer_is_read_digit_by_digit() {
    for (price, micros) in [
        ("12.50", Some(12_500_000)),
        ("0.1", Some(100_000)),
        ("1234567890.123456", Some(1_234_567_890_123_456)),
        (r#""7.25""#, Some(7_250_000)),
        (r#"" 7 ""#, Some(7_000_000)),
        ("0", Some(0)),
        ("-1", None),
        ("1e3", Some(1_000_000_000)),
        ("0.1234567", Some(123_456)),
        ("99999999999999999999", Some(i64::MAX)),
        (r#""free""#, None),
        ("null", None),
        ("[5]", None),
    ] {
        let outcome = read(200, &format!(r#"{{"status":"ok","price":{price}}}"#));
        let Outcome::Accepted(terms) = outcome else { panic!("{outcome:?}") };
        assert_eq!(terms.price, micros.map(Micros), "{price}");
    }
}

#[test]
fn only_web_addresses_are_passed_on() {
    for (url, kept) in [
        ("https://buyer.example/thanks?id=1", Some("https://buyer.example/thanks?id=1")),
        ("http://buyer.example", Some("http://buyer.example/")),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        ("/thanks", None),
        ("", None),
    ] {
        let outcome = read(200, &format!(r#"{{"status":"ok","redirect":"{url}"}}"#));
        let Outcome::Accepted(terms) = outcome else { panic!("{outcome:?}") };
        assert_eq!(terms.redirect_url.as_deref(), kept, "{url}");
    }
    let long = format!(r#"{{"status":"ok","redirect":"https://b.example/{}"}}"#, "x".repeat(REDIRECT_URL_BYTES_MAX));
    assert_eq!(read(200, &long), accepted(200));
}

#[test]
fn a_buyers_words_are_cut_and_cleaned() {
    let long = "ä".repeat(300);
    assert_eq!(read(200, &format!(r#"{{"status":"no","reason":"{long}"}}"#)), declined(200, &"ä".repeat(200)));
    let dirty = r#"{"status":"no","reason":"\u001b[31mno\r\n\u0000way\u0085 "}"#;
    assert_eq!(read(200, dirty), declined(200, "[31mnoway"));
    assert_eq!(read(200, r#"{"status":"no","reason":" \n "}"#), declined(200, "declined"));
}

#[test]
fn retry_after_rests_by_seconds_or_date() {
    let rest_of = |status, value: &'static str| {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        rest_s(status, &headers, now())
    };
    for (value, seconds) in [
        ("30", Some(30)),
        ("0", Some(0)),
        ("999999999999999999999", Some(REST_MAX_S)),
        ("86400", Some(REST_MAX_S)),
        ("Sun, 08 Mar 2026 12:01:30 GMT", Some(90)),
        ("Sun, 08 Mar 2026 11:00:00 GMT", Some(0)),
        ("soon", None),
        ("-5", None),
        ("", None),
    ] {
        assert_eq!(rest_of(429, value), seconds, "{value}");
        assert_eq!(rest_of(503, value), seconds, "{value}");
        assert_eq!(rest_of(500, value), None, "{value}");
    }
    let outcome = read_with(429, &[("retry-after", "7")], "", &rules());
    assert!(matches!(outcome, Outcome::Declined { rest_s: Some(7), .. }), "{outcome:?}");
}
