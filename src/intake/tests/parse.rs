use super::*;
use proptest::prelude::*;

fn read_json(body: &str) -> Result<Parsed, Refusal> {
    parse(BodyType::Json, body.as_bytes(), &[])
}

fn pairs(parsed: &Parsed) -> Vec<(&str, String)> {
    let json = |value: &FieldValue| {
        let mut out = Vec::new();
        value.write_json(&mut out);
        String::from_utf8(out).unwrap()
    };
    parsed.fields.iter().map(|(name, value)| (name, json(value))).collect()
}

fn is_malformed(body_type: BodyType, body: impl AsRef<[u8]>) -> bool {
    matches!(parse(body_type, body.as_ref(), &[]), Err(Refusal::Malformed(_)))
}

#[test]
fn fields_come_out_as_sent_under_names_that_rules_know() {
    let parsed = read_json(
        r#" {"FirstName":"Ann \u00e9","postal_code":"07030","age":42,"ratio":1.50,"own":true,"x":null,"Extra":{"a":[1, 2]}} "#,
    )
    .unwrap();
    let expected = [
        ("first_name", "\"Ann \u{e9}\""),
        ("zip", "\"07030\""),
        ("age", "42"),
        ("ratio", "1.50"),
        ("own", "true"),
        ("x", "null"),
        ("Extra", r#"{"a":[1, 2]}"#),
    ];
    assert_eq!(pairs(&parsed), expected.map(|(name, json)| (name, json.to_owned())));
    assert!(!parsed.is_test);

    let parsed = parse(BodyType::Form, b"First+Name=Ann+%C3%A9&zip=07030&&age=42&empty=&lone&odd=%zz", &[]).unwrap();
    let expected = [
        ("first_name", "\"Ann \u{e9}\""),
        ("zip", "\"07030\""),
        ("age", "\"42\""),
        ("empty", "\"\""),
        ("lone", "\"\""),
        ("odd", "\"%zz\""),
    ];
    assert_eq!(pairs(&parsed), expected.map(|(name, json)| (name, json.to_owned())));
}

#[test]
fn f59_depth_is_bounded_before_anything_recurses() {
    let nested = |levels: usize| format!("{{\"x\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(read_json(&nested(DEPTH_MAX)).is_ok());
    assert!(is_malformed(BodyType::Json, nested(DEPTH_MAX + 1)));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for name in ["phone", "unknown"] {
            let deep = format!("{{\"{name}\":{}1{}}}", open.repeat(100_000), close.repeat(100_000));
            assert!(is_malformed(BodyType::Json, deep), "{name} {open}");
            assert!(is_malformed(BodyType::Json, format!("{{\"{name}\":{}", open.repeat(100_000))), "{name} {open}");
        }
    }
    assert!(is_malformed(BodyType::Json, "[".repeat(100_000)));
    // Brackets inside of strings nest nothing.
    assert!(read_json(&format!("{{\"x\":\"\\\"{}\"}}", "[".repeat(1_000))).is_ok());
}

#[test]
fn f60_duplicate_names_are_refused_at_every_level() {
    for bad in [
        r#"{"state":"TX","state":"CA"}"#,
        r#"{"state":"TX","state":"TX"}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"x":{"a":1,"a":2}}"#,
        r#"{"x":[{"b":{"a":1,"\u0061":2}}]}"#,
        r#"{"":1,"":2}"#,
    ] {
        assert!(is_malformed(BodyType::Json, bad), "{bad}");
    }
    assert!(is_malformed(BodyType::Form, "state=TX&state=CA"));
    assert!(is_malformed(BodyType::Form, "a=1&%61=2"));
    assert!(read_json(r#"{"x":{"a":1},"y":{"a":2},"z":[{"a":1},{"a":2}]}"#).is_ok());
}

#[test]
fn f60_names_that_mean_one_field_must_agree() {
    let parsed = read_json(r#"{"zip":"07030","postal_code":"07030","Own":"yes","own":"yes"}"#).unwrap();
    assert_eq!(pairs(&parsed), [("zip", "\"07030\"".to_owned()), ("Own", "\"yes\"".to_owned())]);
    let Err(Refusal::InvalidLead(problems)) =
        read_json(r#"{"zip":"07030","ZipCode":"10001","own":"yes","OWN":"no","test":"perhaps"}"#)
    else {
        panic!("names that disagree were taken");
    };
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["zip", "own", "test"]);
    assert!(matches!(parse(BodyType::Form, b"zip=1&zipcode=2", &[]), Err(Refusal::InvalidLead(_))));
    // A number and a text are two values.
    assert!(matches!(read_json(r#"{"zip":7030,"zipcode":"7030"}"#), Err(Refusal::InvalidLead(_))));
}

#[test]
fn f61_text_that_somebody_behind_us_would_choke_on_is_refused() {
    let places = [
        ("{\"phone\":\"", "\"}"),
        ("{\"", "\":1}"),
        ("{\"unknown\":\"", "\"}"),
        ("{\"unknown\":{\"a\":[\"", "\"]}}"),
        ("{\"unknown\":{\"", "\":1}}"),
    ];
    let bad: [&[u8]; 9] =
        [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xc0\x80", b"\\ud800", b"\\udc00\\ud800", b"\\u0000", b"\0", b"\n"];
    for (before, after) in places {
        for bad in bad {
            let body = [before.as_bytes(), bad, after.as_bytes()].concat();
            assert!(is_malformed(BodyType::Json, &body), "{}", String::from_utf8_lossy(&body));
        }
        for good in ["\\ud83d\\ude00", "\\u00e9", "\u{1f600}"] {
            assert!(read_json(&format!("{before}{good}{after}")).is_ok(), "{before}{good}{after}");
        }
    }
    assert!(is_malformed(BodyType::Json, "\u{feff}{\"a\":1}"));
    for bad in ["a=%FF", "%FF=a", "a=%ED%A0%80", "a=%00", "%00=a", "\u{feff}a=1", "a=\0"] {
        assert!(is_malformed(BodyType::Form, bad), "{bad:?}");
    }
    assert!(is_malformed(BodyType::Form, b"a=\xff"));
}

#[test]
fn f62_numbers_stay_as_written_and_only_an_object_is_a_lead() {
    for digits in ["0", "-1", "1e400", "18446744073709551617", "0.1000000000000000055511", "1E-9", "-0.0"] {
        let parsed = read_json(&format!("{{\"amount\":{digits},\"x\":[{digits}]}}")).unwrap();
        assert_eq!(pairs(&parsed), [("amount", digits.to_owned()), ("x", format!("[{digits}]"))]);
    }
    for bad in [
        "",
        " ",
        "[7]",
        "7",
        "\"x\"",
        "null",
        "true",
        "[{\"a\":1}]",
        "{",
        "{}{}",
        "{\"a\":1}x",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":1.}",
        "{\"a\":0x1}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{\"a\":tru}",
        "{\"a\":[1,]}",
        "{\"a\":{\"b\"}}",
        "{\"a\":[1 2]}",
        "{1:2}",
        "{\"a\":}",
    ] {
        assert!(is_malformed(BodyType::Json, bad), "{bad:?}");
    }
}

#[test]
fn refusals_do_not_quote_the_body() {
    for body in [
        r#"{"email":"canary@leak.example" canary}"#,
        r#"{"email":"canary@leak.example","email":"canary"}"#,
        r#""canary""#,
        r#"{"zip":"canary","zipcode":"other"}"#,
        r#"{"test":"canary"}"#,
        r#"{"a":["canary\ud800"]}"#,
    ] {
        let refusal = read_json(body).unwrap_err();
        assert!(!format!("{refusal:?}").contains("canary"), "{refusal:?}");
    }
}

#[test]
fn a_lead_has_a_bounded_number_of_fields() {
    let body = |count: usize| {
        let fields: Vec<_> = (0..count).map(|n| format!("\"f{n}\":1")).collect();
        format!("{{{}}}", fields.join(","))
    };
    assert!(read_json(&body(FIELDS_MAX)).is_ok());
    assert!(is_malformed(BodyType::Json, body(FIELDS_MAX + 1)));
}

#[test]
fn the_test_switch_is_read_strictly_and_not_forwarded() {
    for (body, is_test) in [
        (r#"{"test":true,"a":1}"#, true),
        (r#"{"Test":"TRUE","a":1}"#, true),
        (r#"{"test":1,"a":1}"#, true),
        (r#"{"test":"1","a":1}"#, true),
        (r#"{"test":false,"a":1}"#, false),
        (r#"{"test":null,"a":1}"#, false),
        (r#"{"test":"","a":1}"#, false),
        (r#"{"test":"0","a":1}"#, false),
    ] {
        let parsed = read_json(body).unwrap();
        assert_eq!(parsed.is_test, is_test, "{body}");
        assert_eq!(pairs(&parsed), [("a", "1".to_owned())], "{body}");
    }
    for bad in [r#"{"test":"yes"}"#, r#"{"test":2}"#, r#"{"test":{}}"#, r#"{"test":true,"TEST":false}"#] {
        assert!(matches!(read_json(bad), Err(Refusal::InvalidLead(_))), "{bad}");
    }
    assert!(parse(BodyType::Form, b"test=1", &[]).unwrap().is_test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever is taken reads back the same by an independent reader, so nobody behind us sees another lead.
    #[test]
    fn what_is_taken_reads_back_the_same(
        body in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\"", "\"\\u0061\"", "\"b\"", "1", "1e400", "null", "\\", "\"", "\\ud800", " ", "\"zip\":\"1\"",
        ]), 0..24)
    ) {
        let body = body.concat();
        if let Ok(parsed) = read_json(&body) {
            let again = read_json(&parsed.fields.to_json());
            prop_assert_eq!(again, Ok(parsed));
        }
    }

    #[test]
    fn no_bytes_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(BodyType::Json, &body, &[]);
        let _ = parse(BodyType::Form, &body, &[]);
    }
}

#[test]
fn json_inside_a_form_is_read_as_strictly_as_a_body() {
    let mapping: Vec<(Arc<str>, String)> = vec![
        ("first_name".into(), "/data.json/first_name/0".into()),
        ("phone".into(), "/data.json/phone_number/0".into()),
        ("page".into(), "/page_id".into()),
    ];
    let form = |json: &str| {
        form_urlencoded::Serializer::new(String::new())
            .append_pair("page_id", "7")
            .append_pair("First-Name", "Eve")
            .append_pair("variant", "a")
            .append_pair("data.json", json)
            .finish()
    };
    let read = |json: &str| parse(BodyType::Form, form(json).as_bytes(), &mapping);
    let parsed = read(r#" {"first_name":["Ann"],"phone_number":["\u00312015550123"],"x":1} "#).unwrap();
    let fields: Vec<_> = parsed.fields.iter().map(|(name, value)| (name, value.as_text().unwrap())).collect();
    assert_eq!(fields, [("variant", "a"), ("first_name", "Ann"), ("phone", "12015550123"), ("page", "7")]);
    let deep = format!("{{\"x\":{}", "[".repeat(40_000));
    for bad in [
        r#"{"first_name":["Ann"],"first_name":["Eve"]}"#,
        r#"{"first_name":["Ann"],"x":{"a":1,"\u0061":2}}"#,
        r#"{"first_name":["Ann"],"x":"\ud800"}"#,
        r#"{"first_name":["Ann"],"x":"\u0000"}"#,
        r#"{"first_name":["Ann"]"#,
        r#"{"first_name":["Ann"]}}"#,
        &deep,
    ] {
        assert!(matches!(read(bad), Err(Refusal::Malformed(_))), "{}", &bad[..bad.len().min(60)]);
    }
    // No JSON is nothing found, as in a body that lacks it.
    for none in ["", "Ann", "7", "\"first_name\""] {
        let parsed = read(none).unwrap();
        assert_eq!(parsed.fields.text("first_name"), None, "{none:?}");
        assert_eq!(parsed.fields.text("page"), Some("7"), "{none:?}");
    }
}
