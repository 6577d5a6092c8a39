//! Everything of a buyer but its caps.

use std::time::Duration;

use capgate::config::{self, Severity};
use capgate::domain::routing::{
    AnswerRule, AnswerText, BodyFormat, Content, FieldPart, FieldSource, On5xx, OnCrash, OnTimeout, RequestShape,
    ZipPattern,
};
use jiff::civil::{Time, Weekday, time};

use crate::support::{
    Folder, Vars, assert_keys, buyer, buyer_problems, forward, only_error, routing_of, routing_with, with_buyer,
};

#[test]
fn defaults_are_those_of_the_contract() {
    let (routing, _) = routing_of("[[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\n").expect("good");
    let buyer = &routing.buyers["b"];
    assert_eq!((buyer.timeout, buyer.in_flight_max), (Duration::from_millis(1500), 200));
    assert_eq!((buyer.on_timeout, buyer.on_crash), (OnTimeout::Refund, OnCrash::Keep));
    assert!(!buyer.is_paused && buyer.caps.is_empty() && buyer.hours.is_empty());
    assert_eq!(buyer.timezone_name, "UTC");
    assert!(matches!(&buyer.request, RequestShape { format: BodyFormat::Json, content: Content::AllFields, .. }));
    assert!(!buyer.answer.is_explicit && buyer.answer.on_5xx == On5xx::Declined);
    assert!(matches!(&buyer.answer.accepted, AnswerRule::Path { pointer, values }
        if pointer == "/status" && *values == ["accepted"]));
}

#[test]
fn every_key_of_a_buyer_arrives() {
    let buyer = buyer(
        r#"
timeout_ms = 900
on_timeout = "hold"
on_crash = "refund"
in_flight_max = 7
paused = true
filter = { states = ["ny"], countries = ["us"], zips = ["100*", "07030"], publishers_denied = ["acme"], where = [
    { field = "age", min = 18, max = 65.5 }, { field = "Zip Code", in = ["1", 2] }, { field = "email", present = true } ] }
hours = [{ days = ["mon", "sun"], from = "09:00", to = "17:30" }, { from = "22:00", to = "24:00" }]
[buyer.request]
format = "form"
headers = { "X-Api-Key" = "secret" }
fields = { zz = "first_name", aa = "postal_code", ref = "$lead_id", c = "$campaign_id", p = "$publisher_id" }
"#,
    );
    assert_eq!((buyer.timeout, buyer.in_flight_max), (Duration::from_millis(900), 7));
    assert_eq!((buyer.on_timeout, buyer.on_crash, buyer.is_paused), (OnTimeout::Hold, OnCrash::Refund, true));
    assert_eq!(buyer.timezone_name, "America/New_York");
    let filter = &buyer.filter;
    assert_eq!(
        (filter.states.as_deref(), filter.countries.as_deref()),
        (Some(&["NY".into()][..]), Some(&["US".into()][..]))
    );
    let zips = [ZipPattern::Prefix("100".into()), ZipPattern::Exact("07030".into())];
    assert_eq!(filter.zips.as_deref(), Some(&zips[..]));
    assert_eq!(filter.publishers_denied.len(), 1);
    assert_eq!((filter.rules[0].min, filter.rules[0].max), (Some(18.0), Some(65.5)));
    assert_eq!(&*filter.rules[1].field, "zip");
    assert_eq!(filter.rules[1].one_of.as_deref(), Some(&["1".to_owned(), "2".to_owned()][..]));
    assert_eq!(filter.rules[2].is_present, Some(true));
    assert_eq!(buyer.hours[0].days, [Weekday::Monday, Weekday::Sunday]);
    assert_eq!((buyer.hours[0].from, buyer.hours[0].to), (time(9, 0, 0, 0), time(17, 30, 0, 0)));
    assert_eq!((buyer.hours[1].days.len(), buyer.hours[1].to), (7, Time::midnight()));
    assert_eq!(buyer.request.format, BodyFormat::Form);
    assert_eq!(buyer.request.headers[0].0.as_str(), "x-api-key");
    let part = |name: &str, source| FieldPart::Value(name.into(), source);
    let Content::Fields(fields) = &buyer.request.content else { panic!("{:?}", buyer.request) };
    let in_file_order = [
        part("zz", FieldSource::Field("first_name".into())),
        part("aa", FieldSource::Field("zip".into())),
        part("ref", FieldSource::LeadId),
        part("c", FieldSource::CampaignId),
        part("p", FieldSource::PublisherId),
    ];
    assert_eq!(*fields, in_file_order);
}

#[test]
fn values_that_are_wrong_are_refused_one_by_one() {
    for (more, key) in [
        ("timeout_ms = 0", "timeout_ms"),
        ("timeout_ms = 30001", "timeout_ms"),
        ("on_timeout = \"retry\"", "on_timeout"),
        ("on_crash = \"hold\"", "on_crash"),
        ("in_flight_max = 0", "in_flight_max"),
        ("paused = \"no\"", "paused"),
        ("pausd = true", "pausd"),
        ("filter = { states = [] }", "filter.states"),
        ("filter = { states = \"NY\" }", "filter.states"),
        ("filter = { states = [\"\"] }", "filter.states[1]"),
        ("filter = { zips = [\"100*\", \"*\"] }", "filter.zips[2]"),
        ("filter = { zips = [\"1*0\"] }", "filter.zips[1]"),
        ("filter = { publishers_allowed = [\"acme\"], publishers_denied = [\"acme\"] }", "filter.publishers_denied"),
        ("filter = { publishers_denied = [\"a b\"] }", "filter.publishers_denied[1]"),
        ("filter = { town = [\"x\"] }", "filter.town"),
        ("filter = { where = [{ min = 1 }] }", "filter.where[1].field"),
        ("filter = { where = [{ field = \"age\" }] }", "filter.where[1]"),
        ("filter = { where = [{ field = \"age\", min = 2, max = 1 }] }", "filter.where[1].min"),
        ("filter = { where = [{ field = \"age\", min = nan }] }", "filter.where[1].min"),
        ("filter = { where = [{ field = \"age\", min = 1, present = false }] }", "filter.where[1].present"),
        ("hours = [{ from = \"9:00\", to = \"17:00\" }]", "hours[1].from"),
        ("hours = [{ from = \"24:00\", to = \"17:00\" }]", "hours[1].from"),
        ("hours = [{ from = \"09:00\", to = \"17:60\" }]", "hours[1].to"),
        ("hours = [{ from = \"09:00\" }]", "hours[1].to"),
        ("hours = [{ days = [\"monday\"], from = \"09:00\", to = \"17:00\" }]", "hours[1].days[1]"),
        ("hours = [{ days = [\"mon\", \"mon\"], from = \"09:00\", to = \"17:00\" }]", "hours[1].days"),
        ("request = { format = \"jsn\" }", "request.format"),
        ("request = { headers = { \"X Y\" = \"v\" } }", "request.headers.X Y"),
        ("request = { headers = { Host = \"v\" } }", "request.headers.Host"),
        ("request = { headers = { Content-Length = \"1\" } }", "request.headers.Content-Length"),
        ("request = { headers = { transfer-encoding = \"v\" } }", "request.headers.transfer-encoding"),
        ("request = { headers = { Connection = \"v\" } }", "request.headers.Connection"),
        ("request = { headers = { X-A = \"v\", x-a = \"w\" } }", "request.headers.x-a"),
        ("request = { headers = { X-A = \"env:NOWHERE\" } }", "request.headers.X-A"),
        ("request = { fields = {} }", "request.fields"),
        ("request = { fields = { a = \"$time\" } }", "request.fields.a"),
    ] {
        only_error(&buyer_problems(more), &format!("buyer[sunco].{key}"));
    }
}

#[test]
fn a_rule_about_duplicates_is_whole_or_refused() {
    let rule = buyer("duplicates = { fields = [\"Phone_Number\", \"email\"], days = 30 }").duplicates.clone().unwrap();
    let names: Vec<&str> = rule.fields.iter().map(|name| &**name).collect();
    assert_eq!((names, rule.days), (vec!["phone", "email"], 30), "canonical names");
    assert_eq!(buyer("").duplicates, None);
    for (rule, key) in [
        ("{ days = 30 }", "fields"),
        ("{ fields = [\"phone\"] }", "days"),
        ("{ fields = [], days = 30 }", "fields"),
        ("{ fields = \"phone\", days = 30 }", "fields"),
        ("{ fields = [\"phone\", \"phone_number\"], days = 30 }", "fields[2]"),
        ("{ fields = [\"phone\"], days = 0 }", "days"),
        ("{ fields = [\"phone\"], days = 3651 }", "days"),
        ("{ fields = [\"phone\"], days = 30, hours = 1 }", "hours"),
    ] {
        only_error(&buyer_problems(&format!("duplicates = {rule}")), &format!("buyer[sunco].duplicates.{key}"));
    }
}

#[test]
fn a_field_name_that_is_nearly_a_known_one_is_warned_of() {
    let warned = |more: &str| {
        let text = format!("[[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\n{more}\n");
        let (_, warnings) = routing_of(&text).expect("good");
        warnings.iter().any(|warning| warning.wrong.contains("close to"))
    };
    for misspelt in [
        "duplicates = { fields = [\"phnoe\"], days = 30 }",
        "request = { fields = { a = \"frist_name\" } }",
        "filter = { where = [{ field = \"emial\", present = true }] }",
    ] {
        assert!(warned(misspelt), "{misspelt}");
    }
    for meant in [
        "duplicates = { fields = [\"phone_number\", \"homeowner\"], days = 30 }",
        "request = { fields = { a = \"phone2\", b = \"age\", c = \"$lead_id\", d = \"=emial\" } }",
        "filter = { where = [{ field = \"zip_code\", present = true }] }",
    ] {
        assert!(!warned(meant), "{meant}");
    }
}

#[test]
fn a_breaker_has_defaults_and_bounds() {
    use capgate::domain::routing::BreakerRule;

    assert_eq!(buyer("").breaker, BreakerRule::default());
    let rule = buyer("breaker = { failures = 3, rest_s = 60 }").breaker;
    assert_eq!((rule.failures, rule.rest.as_secs()), (3, 60));
    assert_eq!(buyer("breaker = { failures = 0 }").breaker.failures, 0);
    for (rule, key) in [
        ("{ failures = -1 }", "failures"),
        ("{ rest_s = 0 }", "rest_s"),
        ("{ rest_s = 3601 }", "rest_s"),
        ("{ rate = 1 }", "rate"),
    ] {
        only_error(&buyer_problems(&format!("breaker = {rule}")), &format!("buyer[sunco].breaker.{key}"));
    }
}

#[test]
fn what_was_agreed_about_returns_arrives() {
    let (one, two) = ("ab".repeat(32), "cd".repeat(32));
    let keys = format!("keys_sha256 = [\"{one}\", \"{two}\"]\n");
    let defaults = buyer("");
    assert_eq!((defaults.keys.len(), defaults.returns.within_days, defaults.returns.frees_cap), (0, 30, false));
    let given = buyer(&format!("{keys}return_within_days = 7\nreturns_free_cap = true"));
    assert_eq!((given.keys.len(), given.returns.within_days, given.returns.frees_cap), (2, 7, true));
    assert_eq!(buyer(&format!("{keys}return_within_days = 0")).returns.within_days, 0);
    for (more, key) in [
        (format!("{keys}return_within_days = -1"), "return_within_days"),
        (format!("{keys}return_within_days = 4000"), "return_within_days"),
        (format!("{keys}returns_free_cap = \"yes\""), "returns_free_cap"),
        ("keys_sha256 = [\"secret\"]".to_owned(), "keys_sha256"),
        (format!("keys_sha256 = [\"{one}\", \"{one}\"]"), "keys_sha256"),
    ] {
        let problems = buyer_problems(&more);
        assert!(problems.0.iter().any(|problem| problem.key.contains(key)), "{more}: {problems}");
        assert!(!problems.to_string().contains("secret"), "{problems}");
    }
    // A rule about returns without a key that could return anything.
    let (_, warnings) =
        routing_of("[[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\nreturn_within_days = 5\n").expect("good");
    assert!(warnings.iter().any(|warning| warning.key.contains("return_within_days")), "{warnings:?}");
    // A key names one buyer.
    let two = format!(
        "[[buyer]]\nid = \"a\"\nurl = \"https://a.example/\"\nkeys_sha256 = [\"{one}\"]\n\
         [[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\nkeys_sha256 = [\"{one}\"]\n"
    );
    let problems = routing_of(&two).expect_err("two owners");
    assert!(problems.to_string().contains("shares a key with buyer a"), "{problems}");
}

fn with_answer(answer: &str) -> String {
    format!("[[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\n[buyer.answer]\n{answer}\n")
}

#[test]
fn answer_rules_are_read_and_checked() {
    let (routing, _) = routing_of(&with_answer(
        r#"accepted = { path = "/a/0", in = ["ok", 1, true] }
duplicate = { body_matches = "(?i)dup" }
on_5xx = "in_doubt"
price = "/price"
reason = ""
redirect_url = "/a~1b""#,
    ))
    .expect("good");
    let rules = &routing.buyers["b"].answer;
    assert!(matches!(&rules.accepted, AnswerRule::Path { pointer, values }
        if pointer == "/a/0" && *values == ["ok", "1", "true"]));
    assert!(matches!(&rules.duplicate, Some(AnswerRule::BodyMatches(regex)) if regex.is_match("DUPLICATE")));
    assert!(rules.is_explicit && rules.on_5xx == On5xx::InDoubt);
    for (text, path) in [(&rules.price, "/price"), (&rules.reason, ""), (&rules.redirect_url, "/a~1b")] {
        assert!(matches!(text, Some(AnswerText::Path(found)) if found == path), "{text:?}");
    }

    for (answer, key) in [
        ("accepted = {}", "accepted"),
        ("accepted = { path = \"/a\" }", "accepted"),
        ("accepted = { path = \"/a\", in = [\"x\"], status = [200] }", "accepted"),
        ("accepted = { path = \"a\", in = [\"x\"] }", "accepted.path"),
        ("accepted = { path = \"/a\", in = [] }", "accepted.in"),
        ("accepted = { status = [] }", "accepted.status"),
        ("accepted = { status = [500] }", "accepted.status[1]"),
        ("accepted = { body_matches = \"(\" }", "accepted.body_matches"),
        ("accepted = { body_matches = \"(a{1000}){1000}\" }", "accepted.body_matches"),
        ("accepted = { path = \"/a\", on = [\"x\"], in = [\"x\"] }", "accepted.on"),
        ("price = \"/a~2\"", "price"),
        ("on_5xx = \"maybe\"", "on_5xx"),
        ("pending_within_s = 0", "pending_within_s"),
        ("pending_within_s = 2592001", "pending_within_s"),
        ("pending_within_s = \"1h\"", "pending_within_s"),
    ] {
        let problems = routing_of(&with_answer(answer)).expect_err(answer);
        only_error(&problems, &format!("buyer[b].answer.{key}"));
    }
}

#[test]
fn urls_are_http_with_a_host_and_without_credentials() {
    for url in
        ["ftp://b.example/", "b.example/leads", "mailto:x@b.example", "https://u:p@b.example/", "https://u@b.example/"]
    {
        let problems = routing_of(&format!("[[buyer]]\nid = \"b\"\nurl = \"{url}\"\n")).expect_err(url);
        only_error(&problems, "buyer[b].url");
        assert!(!problems.to_string().contains("u:p"), "{problems}");
    }
    let problems = routing_of("[[buyer]]\nid = \"b\"\n").expect_err("no URL");
    only_error(&problems, "buyer[b].url");
}

#[test]
fn a_private_address_is_warned_about_unless_allowed() {
    let folder = Folder::new();
    for url in ["http://127.0.0.1:9/", "http://2130706433/", "http://localhost/", "http://[::1]/", "http://10.1.2.3/"] {
        let path = folder.write("routing.toml", &with_buyer("").replace("https://buyer.example/leads", url));
        let mut forward = forward();
        let (_, warnings) = config::load_routing(&path, &forward, &Vars::default()).expect("a warning only");
        assert_eq!(warnings.len(), 1, "{url}");
        forward.allow_private_addresses = true;
        assert!(config::load_routing(&path, &forward, &Vars::default()).expect("good").1.is_empty());
    }
}

#[test]
fn unknown_zones_are_refused_with_a_near_name() {
    for (zone, near) in [
        ("America/NewYork", "America/New_York"),
        ("New York", "America/New_York"),
        ("Europe/Berlln", "Europe/Berlin"),
        ("Mars/Olympus", "an IANA name such as America/New_York"),
    ] {
        let text = with_buyer("").replace("\"America/New_York\"", &format!("{zone:?}"));
        let problems = routing_of(&text).expect_err(zone);
        assert_eq!(only_error(&problems, "buyer[sunco].timezone").right, near);
    }
}

#[test]
fn f90_secrets_of_a_buyer_are_never_printed() {
    let env = Vars(vec![("SUNCO_KEY", "hunter2"), ("BROKEN", "hunter2\r\nX-Evil: 1")]);
    let text = with_buyer("request = { headers = { X-Api-Key = \"env:SUNCO_KEY\" } }");
    let (routing, _) = routing_with(&text, &env).expect("good");
    assert_eq!(routing.buyers["sunco"].request.headers[0].1.expose(), "hunter2");
    assert!(!format!("{routing:?}").contains("hunter2"));
    for value in ["env:BROKEN", "hunter2\\n"] {
        let text = with_buyer(&format!("request = {{ headers = {{ X-Api-Key = \"{value}\" }} }}"));
        let problems = routing_with(&text, &env).expect_err("a line break in a header");
        only_error(&problems, "buyer[sunco].request.headers.X-Api-Key");
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
    // A key written in place of its hash is a secret as well.
    let problems = routing_of("[[publisher]]\nid = \"a\"\npayout = { flat = \"1\" }\nkeys_sha256 = [\"hunter2\"]\n")
        .expect_err("not a hash");
    assert!(!problems.to_string().contains("hunter2"), "{problems}");
}

#[test]
fn a_buyer_that_decides_later_needs_a_key_for_it() {
    let (routing, warnings) = routing_of(&with_answer("pending_within_s = 600")).expect("a warning only");
    assert_eq!(routing.buyers["b"].answer.pending_within, Some(Duration::from_mins(10)));
    assert!(warnings.iter().any(|warning| warning.key == "buyer[b].keys_sha256"), "{warnings:?}");
}

#[test]
fn forgotten_parts_are_warned_about() {
    let text = "[[publisher]]\nid = \"p\"\npayout = { flat = \"1\" }\n[[campaign]]\nid = \"c\"\ncurrency = \"USD\"\n\
                [[buyer]]\nid = \"b\"\nurl = \"https://b.example/\"\ncap = [{ window = \"day\", leads = 1, publisher = \"q\" }]\n";
    let (_, warnings) = routing_of(text).expect("warnings only");
    assert!(warnings.iter().all(|warning| warning.severity == Severity::Warning));
    assert_keys(
        &config::Problems(warnings),
        &[
            "publisher[p].keys_sha256",
            "campaign[c].offer",
            "buyer[b]",
            "buyer[b].answer",
            "buyer[b].timezone",
            "buyer[b].cap[1].publisher",
        ],
    );
}
