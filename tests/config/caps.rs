//! Caps of every kind and value.

use capgate::domain::cap::Limit;
use capgate::domain::money::Micros;
use capgate::domain::window::WindowKind;

use crate::support::{assert_keys, buyer, buyer_problems, only_error};

fn cap(keys: &str) -> String {
    format!("[[buyer.cap]]\nwindow = \"day\"\n{keys}\n")
}

#[test]
fn f14_limits_that_are_taken_mean_what_they_say() {
    assert!(buyer("").caps.is_empty(), "absent is unlimited");
    for (keys, limit) in [
        ("leads = 0", Limit::Leads(0)),
        ("leads = 1", Limit::Leads(1)),
        ("leads = 1_000_000_000_000_000", Limit::Leads(1_000_000_000_000_000)),
        ("spend = \"0\"", Limit::Spend(Micros(0))),
        ("spend = \"0.000001\"", Limit::Spend(Micros(1))),
        ("spend = \"10000.00\"", Limit::Spend(Micros(10_000_000_000))),
        ("spend = \"1000000000000\"", Limit::Spend(Micros(1_000_000_000_000_000_000))),
    ] {
        assert_eq!(buyer(&cap(keys)).caps[0].limit, limit, "{keys}");
    }
}

#[test]
fn f14_anything_else_is_refused() {
    for (keys, key, wrong) in [
        ("leads = -1", "leads", "is negative"),
        ("leads = -99999999999999999999999999999999999999999999", "leads", "is negative"),
        ("leads = 1.5", "leads", "is a fractional number"),
        ("leads = 100.0", "leads", "is a fractional number"),
        ("leads = nan", "leads", "is a fractional number"),
        ("leads = 1_000_000_000_000_001", "leads", "is too much"),
        ("leads = 18446744073709551616", "leads", "is too much"),
        ("leads = 99999999999999999999999999999999999999999999", "leads", "is too much"),
        ("leads = \"500\"", "leads", "is text"),
        ("leads = true", "leads", "is true or false"),
        ("leads = 2026-01-01", "leads", "is a date or time"),
        ("leads = []", "leads", "is a list"),
        ("spend = 100", "spend", "is a whole number"),
        ("spend = 100.5", "spend", "is a fractional number"),
        ("spend = \"-5.00\"", "spend", "is negative"),
        ("spend = \"1e3\"", "spend", "is not an amount"),
        ("spend = \"1,000\"", "spend", "is not an amount"),
        ("spend = \"0.0000001\"", "spend", "is not an amount"),
        ("spend = \"\"", "spend", "is not an amount"),
        ("spend = \"1000000000000.000001\"", "spend", "is too much"),
    ] {
        let problems = buyer_problems(&cap(keys));
        let problem = only_error(&problems, &format!("buyer[sunco].cap[1].{key}"));
        assert_eq!(problem.wrong, wrong, "{keys}");
    }
    for keys in ["leads = 1\nspend = \"1.00\"", ""] {
        only_error(&buyer_problems(&cap(keys)), "buyer[sunco].cap[1]");
    }
}

#[test]
fn the_line_is_the_one_of_the_value() {
    let problems = buyer_problems("[[buyer.cap]]\nwindow = \"day\"\nleads = -5\n");
    let problem = only_error(&problems, "buyer[sunco].cap[1].leads");
    assert_eq!(problem.line, Some(22));
    assert!(
        problem.to_string().ends_with(
            "routing.toml:22: error: buyer[sunco].cap[1].leads = -5: is negative; right would be: a whole number from 0 \
             (closed) to 1000000000000000; for no limit leave the cap out"
        ),
        "{problem}"
    );
}

#[test]
fn windows_are_known_words() {
    for kind in WindowKind::ALL {
        let buyer = buyer(&format!("[[buyer.cap]]\nwindow = \"{kind}\"\nleads = 5\n"));
        assert_eq!((buyer.caps[0].window, buyer.caps[0].id.as_str()), (kind, kind.as_str()));
    }
    let problems = buyer_problems("[[buyer.cap]]\nwindow = \"year\"\nleads = 5\n[[buyer.cap]]\nleads = 5\n");
    assert_keys(&problems, &["buyer[sunco].cap[1].window", "buyer[sunco].cap[2].window"]);
}

#[test]
fn default_ids_come_from_window_and_conditions() {
    for (keys, id) in [
        ("spend = \"5\"", "day:spend"),
        ("leads = 5\npublisher = \"acme\"", "day:publisher=acme"),
        ("leads = 5\nwhere = { state = [\"TX\"] }", "day:state=TX"),
        ("leads = 5\nwhere = { zip_code = [\"2\", \"1\"], state = [\"ny\", \"TX\"] }", "day:state=NY,TX:zip=1,2"),
        (
            "spend = \"5\"\npublisher = \"acme\"\nwhere = { State = [\"TX\"], age = [30, 40] }",
            "day:spend:publisher=acme:age=30,40:state=TX",
        ),
        ("leads = 5\nid = \"main\"", "main"),
    ] {
        assert_eq!(buyer(&cap(keys)).caps[0].id.as_str(), id);
    }
    // The order in the file is no part of the id: a counter outlives an edit.
    let first = buyer(&cap("leads = 5\nwhere = { state = [\"TX\", \"NY\"], zip = [\"1\"] }"));
    let second = buyer(&cap("leads = 5\nwhere = { zip = [\"1\"], state = [\"NY\", \"TX\"] }"));
    assert_eq!(first.caps, second.caps);
}

#[test]
fn two_caps_never_share_a_counter() {
    let problems = buyer_problems(&format!("{}{}", cap("leads = 5"), cap("leads = 7")));
    only_error(&problems, "buyer[sunco].cap[2].id");
    let problems = buyer_problems(&format!("{}{}", cap("leads = 5"), cap("spend = \"7\"\nid = \"day\"")));
    only_error(&problems, "buyer[sunco].cap[2].id");
    assert_eq!(buyer(&format!("{}{}", cap("leads = 5"), cap("leads = 7\nid = \"second\""))).caps.len(), 2);
}

#[test]
fn conditions_are_checked() {
    let problems = buyer_problems(&cap("leads = 5\nwhere = { state = [] }"));
    only_error(&problems, "buyer[sunco].cap[1].where.state");
    let problems = buyer_problems(&cap("leads = 5\nwhere = { zip = [\"1\"], postal_code = [\"2\"] }"));
    only_error(&problems, "buyer[sunco].cap[1].where.postal_code");
    only_error(&buyer_problems(&cap("leads = 5\nwhere = {}")), "buyer[sunco].cap[1].where");
    only_error(&buyer_problems(&cap("leads = 5\npublisher = \"a b\"")), "buyer[sunco].cap[1].publisher");
    only_error(&buyer_problems(&cap("leads = 5\nlimit = 7")), "buyer[sunco].cap[1].limit");
    let long = format!("leads = 5\nid = \"{}\"", "x".repeat(191));
    only_error(&buyer_problems(&cap(&long)), "buyer[sunco].cap[1].id");
}
