//! The shipped mappings, on bodies as they really come.

use std::path::Path;

use capgate::config;
use capgate::domain::routing::Routing;
use capgate::intake::parse::{BodyType, Parsed, parse};

use crate::support::{Folder, Vars};

fn inputs() -> Routing {
    let folder = Folder::new();
    let path = folder.write("capgate.toml", "");
    let config = config::load(Some(&path), &Vars::default()).expect("good");
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example/inputs.toml");
    config::load_routing(&inputs, &config.forward, &Vars::default()).expect("good").0
}

fn read(publisher: &str, body: &str) -> Parsed {
    parse(BodyType::Json, body.as_bytes(), &inputs().publishers[publisher].mapping).expect("a lead")
}

fn assert_fields(parsed: &Parsed, expected: &[(&str, &str)]) {
    let fields: Vec<_> =
        parsed.fields.iter().map(|(name, value)| (name, value.as_text().expect("a single value"))).collect();
    assert_eq!(fields, expected);
}

#[test]
fn google_ads_lead_forms_are_read() {
    let body = r#"{"lead_id":"TeSter-123","user_column_data":[
        {"column_name":"Full Name","string_value":"Ann Example","column_id":"FULL_NAME"},
        {"column_name":"First Name","string_value":"Ann","column_id":"FIRST_NAME"},
        {"column_name":"User Phone","string_value":"+12015550123","column_id":"PHONE_NUMBER"},
        {"column_name":"User Email","string_value":"ann@example.com","column_id":"EMAIL"},
        {"column_name":"Postal Code","string_value":"07030","column_id":"POSTAL_CODE"}],
        "api_version":"1.0","form_id":40000000000,"campaign_id":123,"google_key":"testing","is_test":true,"gcl_id":"abc"}"#;
    let parsed = read("google-ads", body);
    assert!(parsed.is_test);
    assert_fields(
        &parsed,
        &[
            ("api_version", "1.0"),
            ("form_id", "40000000000"),
            ("campaign_id", "123"),
            ("google_key", "testing"),
            ("gcl_id", "abc"),
            ("first_name", "Ann"),
            ("email", "ann@example.com"),
            ("phone", "+12015550123"),
            ("zip", "07030"),
            ("google_lead_id", "TeSter-123"),
        ],
    );
    assert!(!read("google-ads", &body.replace("\"is_test\":true", "\"is_test\":false")).is_test);
}

#[test]
fn meta_lead_ads_are_read() {
    let body = r#"{"created_time":"2026-02-28T08:49:14+0000","id":"1790001","ad_id":"238","form_id":"773",
        "field_data":[{"name":"zodiac","values":["leo"]},{"name":"email","values":["ann@example.com"]},
        {"name":"first_name","values":["Ann"]},{"name":"phone_number","values":["+12015550123"]},
        {"name":"state","values":[]}]}"#;
    assert_fields(
        &read("meta", body),
        &[
            ("created_time", "2026-02-28T08:49:14+0000"),
            ("ad_id", "238"),
            ("form_id", "773"),
            ("first_name", "Ann"),
            ("email", "ann@example.com"),
            ("phone", "+12015550123"),
            ("meta_lead_id", "1790001"),
        ],
    );
}

#[test]
fn typeform_answers_are_read() {
    let body = r#"{"event_id":"LtWXD3crgy","event_type":"form_response","form_response":{"form_id":"lT4Z3j","answers":[
        {"type":"text","text":"Ann","field":{"id":"DlXFaesGBpoF","type":"short_text","ref":"first_name"}},
        {"type":"choice","choice":{"label":"NJ","other":null},"field":{"id":"k6","type":"dropdown","ref":"state"}},
        {"type":"phone_number","phone_number":"+12015550123","field":{"id":"p","type":"phone_number","ref":"phone"}},
        {"type":"boolean","boolean":true,"field":{"id":"b","type":"yes_no","ref":"homeowner"}}]}}"#;
    assert_fields(
        &read("typeform", body),
        &[
            ("event_id", "LtWXD3crgy"),
            ("event_type", "form_response"),
            ("first_name", "Ann"),
            ("phone", "+12015550123"),
            ("state", "NJ"),
            ("homeowner", "true"),
        ],
    );
}

#[test]
fn lists_of_one_value_are_read() {
    let body = r#"{"page_id":"a1","data.json":{"first_name":["Ann"],"email":["ann@example.com"],"phone_number":["2015550123"],
        "ip_address":["192.0.2.1"]}}"#;
    assert_fields(
        &read("unbounce", body),
        &[("page_id", "a1"), ("first_name", "Ann"), ("email", "ann@example.com"), ("phone", "2015550123")],
    );
}

#[test]
fn what_a_mapping_finds_wins_over_a_field_of_that_name() {
    let mapping = [("zip".into(), "/deep/zip".to_owned())];
    let body = br#"{"Postal_Code":"10001","phone":"1","deep":{"zip":"07030"}}"#;
    let parsed = parse(BodyType::Json, body, &mapping).expect("a lead");
    assert_fields(&parsed, &[("phone", "1"), ("zip", "07030")]);
    let parsed = parse(BodyType::Form, b"zip=10001", &mapping).expect("forms are flat");
    assert_fields(&parsed, &[("zip", "10001")]);
}
