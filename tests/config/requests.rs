//! `[buyer.request]` and the newer parts of `[buyer.answer]`.

use capgate::config::Problems;
use capgate::domain::lead::FieldValue;
use capgate::domain::routing::{
    AnswerRule, AnswerText, BodyFormat, Content, FieldPart, FieldSource, RequestShape, Secret,
};

use crate::support::{Folder, Vars, assert_keys, buyer, buyer_problems, forward, only_error, routing_with, with_buyer};

fn request(more: &str) -> RequestShape {
    buyer(&format!("[buyer.request]\n{more}")).request.clone()
}

fn problems(more: &str) -> Problems {
    buyer_problems(&format!("[buyer.request]\n{more}"))
}

#[test]
fn every_kind_of_field_is_read() {
    let shape = request(
        r#"format = "xml"
root = "Lead"
content_type = "text/xml; charset=utf-8"
[buyer.request.fields]
Key = "k3y"
Source = "=acme & co"
Type = 19
Live = true
Price = "$price"
Contact.First = "first_name"
Contact.Zip = "Postal Code"
Test_Lead = "$test"
"#,
    );
    let part = |name: &str, source| FieldPart::Value(name.into(), source);
    let Content::Fields(fields) = &shape.content else { panic!("{shape:?}") };
    let contact =
        vec![part("First", FieldSource::Field("first_name".into())), part("Zip", FieldSource::Field("zip".into()))];
    let expected = [
        part("Key", FieldSource::Field("k3y".into())),
        part("Source", FieldSource::Constant(FieldValue::Text("acme & co".into()))),
        part("Type", FieldSource::Constant(FieldValue::Number("19".into()))),
        part("Live", FieldSource::Constant(FieldValue::Bool(true))),
        part("Price", FieldSource::Price),
        FieldPart::Group("Contact".into(), contact),
        part("Test_Lead", FieldSource::Test),
    ];
    assert_eq!(*fields, expected);
    assert_eq!((shape.format, shape.xml_root.as_deref()), (BodyFormat::Xml, Some("Lead")));
    assert_eq!(shape.content_type.unwrap(), "text/xml; charset=utf-8");
}

#[test]
fn f90_secrets_are_taken_from_the_environment_and_never_printed() {
    let env = Vars(vec![("KEY", "hunter2"), ("USER", "us:er")]);
    let more = r#"[buyer.request]
format = "query"
query = { key = "env:KEY" }
basic = { user = "me", password = "env:KEY" }
fields = { Key = "env:KEY", zip = "zip" }
"#;
    let (routing, _) = routing_with(&with_buyer(more), &env).expect("good");
    let shape = &routing.buyers["sunco"].request;
    assert_eq!(shape.query, [("key".to_owned(), Secret::new("hunter2"))]);
    // me:hunter2
    assert_eq!((shape.headers[0].0.as_str(), shape.headers[0].1.expose()), ("authorization", "Basic bWU6aHVudGVyMg=="));
    let Content::Fields(fields) = &shape.content else { panic!("{shape:?}") };
    assert_eq!(fields[0], FieldPart::Value("Key".into(), FieldSource::Secret(Secret::new("hunter2"))));
    assert!(!format!("{routing:?}").contains("hunter2"));

    let template = "[buyer.request]\nsecrets = { key = \"env:KEY\" }\ntemplate = '{\"k\": \"{{ secrets.key }}\"}'";
    let (routing, _) = routing_with(&with_buyer(template), &env).expect("good");
    assert!(matches!(routing.buyers["sunco"].request.content, Content::Template(_)));
    assert!(!format!("{routing:?}").contains("hunter2"));

    for (more, key) in [
        ("query = { key = \"env:NOWHERE\" }", "query.key"),
        ("fields = { key = \"env:NOWHERE\" }", "fields.key"),
        ("secrets = { key = \"env:NOWHERE\" }\ntemplate = \"1\"", "secrets.key"),
        ("basic = { user = \"env:USER\", password = \"env:KEY\" }", "basic.user"),
        ("basic = { user = \"u\" }", "basic.password"),
        ("headers = { authorization = \"x\" }\nbasic = { user = \"u\", password = \"hunter2\" }", "basic"),
    ] {
        let text = with_buyer(&format!("[buyer.request]\n{more}"));
        let problems = routing_with(&text, &env).expect_err(more);
        only_error(&problems, &format!("buyer[sunco].request.{key}"));
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
}

#[test]
fn requests_that_are_wrong_are_refused_one_by_one() {
    for (more, key) in [
        ("format = \"get\"", "format"),
        ("method = \"GET\"", "method"),
        ("root = \"lead\"", "root"),
        ("format = \"xml\"\nroot = \"1st\"", "root"),
        ("format = \"xml\"\nfields = { \"a b\" = \"zip\" }", "fields.a b"),
        ("format = \"form\"\nfields = { a = { b = \"zip\" } }", "fields.a"),
        ("format = \"query\"\nfields.a.b = \"zip\"", "fields.a"),
        ("fields = { a = {} }", "fields.a"),
        ("fields = { a = \"$cost\" }", "fields.a"),
        ("fields = { a = 1.5 }", "fields.a"),
        ("fields.a.b.c.d.e.f.g.h.i = \"zip\"", "fields.a.b.c.d.e.f.g.h"),
        ("content_type = \"json\"", "content_type"),
        ("content_type = \"text/xml\\r\\nX: 1\"", "content_type"),
        ("format = \"query\"\nsigning_secret = \"0123456789abcdef\"", "signing_secret"),
        ("template = \"1\"\nfields = { a = \"zip\" }", "template"),
        ("template = \"1\"\ntemplate_file = \"x\"", "template_file"),
        ("template_file = \"nowhere.json\"", "template_file"),
        ("template = \"\"", "template"),
        ("secrets = { key = \"v\" }", "secrets"),
        ("secrets = { \"a-b\" = \"v\" }\ntemplate = \"1\"", "secrets.a-b"),
    ] {
        only_error(&problems(more), &format!("buyer[sunco].request.{key}"));
    }
}

#[test]
fn f14_a_template_is_tried_out_when_it_is_loaded() {
    let folder = Folder::new();
    folder.write("sunco.json", "{\n  \"zip\": \"{{ lead.zip }}\",\n  \"price\": {{ price }}\n}\n");
    let path = folder.write("routing.toml", &with_buyer("[buyer.request]\ntemplate_file = \"sunco.json\""));
    let (routing, _) = capgate::config::load_routing(&path, &forward(), &Vars::default()).expect("good");
    assert!(matches!(routing.buyers["sunco"].request.content, Content::Template(_)), "beside the routing file");

    for (template, wrong, right) in [
        ("{{ first_name }}", "\"first_name\"", "lead.first_name"),
        ("{{ leads.first_name }}", "\"leads.first_name\"", "lead"),
        ("{{ secrets.key }}", "\"secrets.key\"", "secrets = { key"),
        ("{\"a\": {{ lead.a }", "line 1", ""),
        ("{\"a\": \"{{ lead.a|upcase }}\"}", "upcase", ""),
        ("{\"a\": \"{{ lead.a }}\",}", "is not JSON", ""),
        ("{{ lead.a|safe }}", "safe", ""),
    ] {
        let problems = problems(&format!("template = '''{template}'''"));
        let problem = only_error(&problems, "buyer[sunco].request.template");
        assert!(problem.wrong.contains(wrong) && problem.right.contains(right), "{problem}");
    }
    let xml = problems("format = \"xml\"\ntemplate = \"<a>{{ lead.a }}</b>\"");
    assert!(only_error(&xml, "buyer[sunco].request.template").wrong.contains("well-formed XML"), "{xml}");
    // All of it at once.
    let all = problems(
        "format = \"xml\"\nroot = \"1\"\ntemplate = \"{{ a }}{{ b }}\"\nheaders = { Host = \"x\" }\nqury = {}",
    );
    let keys = ["root", "template", "template", "headers.Host", "qury"];
    assert_keys(&all, &keys.map(|key| format!("buyer[sunco].request.{key}")).each_ref().map(String::as_str));
}

#[test]
fn answers_are_told_by_path_pattern_or_list() {
    let text = with_buyer("").replace(
        "answer = { accepted = { status = [201] } }",
        r#"[buyer.answer]
accepted = { path = "/response/status", matches = "(?i)^(matched|accepted)$" }
duplicate = [{ status = [409] }, { path = "/response/error", matches = "(?i)duplicate" }]
price = { body_matches = "price=([0-9.]+)" }
reason = "/response/error"
"#,
    );
    let (routing, _) = routing_with(&text, &Vars::default()).expect("good");
    let rules = &routing.buyers["sunco"].answer;
    assert!(matches!(&rules.accepted, AnswerRule::PathMatches { regex, .. } if regex.is_match("Matched")));
    assert!(matches!(&rules.duplicate, Some(AnswerRule::AnyOf(rules)) if rules.len() == 2));
    assert!(matches!(&rules.price, Some(AnswerText::Capture(_))));

    for (answer, key) in [
        ("accepted = []", "accepted"),
        ("accepted = [{ status = [200] }, { status = [99] }]", "accepted[2].status[1]"),
        ("accepted = { path = \"/a\", in = [\"x\"], matches = \"x\" }", "accepted"),
        ("accepted = { path = \"/a\", matches = \"(\" }", "accepted.matches"),
        ("price = { body_matches = \"price\" }", "price.body_matches"),
        ("price = {}", "price.body_matches"),
        ("reason = { body_matches = \"(a)\", path = \"/a\" }", "reason.path"),
        ("redirect_url = 5", "redirect_url"),
    ] {
        let text =
            with_buyer("").replace("answer = { accepted = { status = [201] } }", &format!("[buyer.answer]\n{answer}"));
        let problems = routing_with(&text, &Vars::default()).expect_err(answer);
        only_error(&problems, &format!("buyer[sunco].answer.{key}"));
    }
}
