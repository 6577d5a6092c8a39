//! Publishers, campaigns, and what only shows when all are seen together.

use std::time::Duration;

use capgate::domain::money::{Micros, Payout};
use capgate::domain::routing::{CandidateOrder, Throttle};

use crate::support::{HASH_ACME, HASH_OTHER, Vars, assert_keys, only_error, routing_of, routing_with, with_buyer};

fn publisher(more: &str) -> String {
    format!("[[publisher]]\nid = \"p\"\nkeys_sha256 = [\"{HASH_OTHER}\"]\n{more}\n{}", with_buyer(""))
}

#[test]
fn a_publisher_arrives_whole() {
    let text = publisher(
        "payout = { percent = \"62.5\" }\nthrottle = { per_second = 20, burst = 40 }\ncampaigns = [\"solar\"]\n\
         wait_max_ms = 5000\naddresses_allowed = [\"203.0.113.0/24\", \"2001:db8::1\"]",
    );
    let (routing, warnings) = routing_of(&text).expect("good");
    assert!(warnings.is_empty(), "{warnings:?}");
    let publisher = &routing.publishers["p"];
    assert_eq!(publisher.payout, Payout::Share { millionths: 625_000 });
    assert_eq!(publisher.throttle, Some(Throttle { per_second: 20, burst: 40 }));
    assert_eq!(publisher.campaigns.as_ref().map(Vec::len), Some(1));
    assert_eq!(publisher.wait_max, Some(Duration::from_secs(5)));
    let addresses = publisher.addresses.as_ref().expect("a list");
    assert!(addresses[0].contains([203, 0, 113, 9].into()) && !addresses[1].contains([203, 0, 113, 9].into()));
    assert_eq!(publisher.keys[0].0[..4], [0x0e, 0xa5, 0xf4, 0x25]);
    let acme = &routing.publishers["acme"];
    assert!(acme.throttle.is_none() && acme.campaigns.is_none() && acme.wait_max.is_none());
}

#[test]
fn payouts_are_exact() {
    for (payout, meaning) in [
        ("{ percent = \"0\" }", Payout::Share { millionths: 0 }),
        ("{ percent = \"100\" }", Payout::Share { millionths: 1_000_000 }),
        ("{ percent = \"33.3333\" }", Payout::Share { millionths: 333_333 }),
        ("{ flat = \"8.00\" }", Payout::Flat(Micros(8_000_000))),
    ] {
        let (routing, _) = routing_of(&publisher(&format!("payout = {payout}"))).expect(payout);
        assert_eq!(routing.publishers["p"].payout, meaning);
    }
    for (payout, key) in [
        ("{ percent = \"100.0001\" }", "payout.percent"),
        ("{ percent = \"33.33333\" }", "payout.percent"),
        ("{ percent = \"-1\" }", "payout.percent"),
        ("{ percent = \"1000000000\" }", "payout.percent"),
        ("{ percent = 70 }", "payout.percent"),
        ("{ flat = \"-1\" }", "payout.flat"),
        ("{ flat = 8.0 }", "payout.flat"),
        ("{ flat = \"1\", percent = \"1\" }", "payout"),
        ("{}", "payout"),
        ("\"70\"", "payout"),
    ] {
        let problems = routing_of(&publisher(&format!("payout = {payout}"))).expect_err(payout);
        only_error(&problems, &format!("publisher[p].{key}"));
    }
    only_error(&routing_of(&publisher("")).expect_err("no payout"), "publisher[p].payout");
}

#[test]
fn a_publisher_that_is_wrong_is_refused() {
    for (more, key) in [
        ("throttle = { per_second = 0, burst = 1 }", "throttle.per_second"),
        ("throttle = { burst = 1 }", "throttle.per_second"),
        ("throttle = { per_second = 1, burst = 0 }", "throttle.burst"),
        ("campaigns = [\"sola\"]", "campaigns[1]"),
        ("campaigns = []", "campaigns"),
        ("wait_max_ms = -1", "wait_max_ms"),
        ("addresses_allowed = []", "addresses_allowed"),
        ("addresses_allowed = [\"203.0.113.0/24\", \"203.0.113.9/24\"]", "addresses_allowed[2]"),
        ("addresses_allowed = \"203.0.113.7\"", "addresses_allowed"),
        ("signing_secret = \"s\"", "signing_secret"),
        ("signing_secret = \"whsec_not base64\"", "signing_secret"),
        ("signing_secret = \"env:NOT_SET\"", "signing_secret"),
        ("mapping = { a = \"b\" }", "mapping.a"),
        ("mapping = { a = \"/b/[c]\" }", "mapping.a"),
        ("mapping = { zip = \"/a\", postal_code = \"/b\" }", "mapping.postal_code"),
        ("postback = { url = \"https://p.example\" }", "postback.signing_secret"),
        ("postback = { url = \"https://p.example\", signing_secret = \"s\" }", "postback.signing_secret"),
        ("postback = { url = \"https://p.example\", signing_secret = \"env:NOT_SET\" }", "postback.signing_secret"),
        ("postback = { signing_secret = \"0123456789abcdef\" }", "postback.url"),
        ("postback = { url = \"ftp://p.example\", signing_secret = \"0123456789abcdef\" }", "postback.url"),
        ("postback = { url = \"https://u:p@p.example\", signing_secret = \"0123456789abcdef\" }", "postback.url"),
        (
            "postback = { url = \"https://p.example\", signing_secret = \"0123456789abcdef\", retries = 3 }",
            "postback.retries",
        ),
        ("postback = \"https://p.example\"", "postback"),
        ("keys = [\"x\"]", "keys"),
    ] {
        let problems = routing_of(&publisher(&format!("payout = {{ flat = \"1\" }}\n{more}"))).expect_err(more);
        only_error(&problems, &format!("publisher[p].{key}"));
    }
    let problems = routing_of(&with_buyer("").replace(HASH_ACME, &HASH_ACME[1..])).expect_err("63 digits");
    only_error(&problems, "publisher[acme].keys_sha256[1]");
    let upper = routing_of(&with_buyer("").replace(HASH_ACME, &HASH_ACME.to_uppercase())).expect("hex is hex").0;
    assert_eq!(upper.publishers["acme"].keys[0].0[0], 0x86);
}

#[test]
fn a_postback_arrives_whole_and_its_secret_is_never_shown() {
    let postback = |url: &str| {
        publisher(&format!(
            "payout = {{ flat = \"1\" }}\npostback = {{ url = \"{url}\", signing_secret = \"env:POSTBACK_SECRET\" }}"
        ))
    };
    let vars = Vars(vec![("POSTBACK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]);
    let (routing, warnings) = routing_with(&postback("https://p.example/leads?of=7"), &vars).expect("good");
    assert!(warnings.is_empty(), "{warnings:?}");
    let found = routing.publishers["p"].postback.as_ref().expect("a postback");
    assert_eq!(found.url.as_str(), "https://p.example/leads?of=7");
    let signature = found.signing.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert!(!format!("{routing:?}").contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    let (_, warnings) = routing_with(&postback("http://10.0.0.1/leads"), &vars).expect("taken with a warning");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].key, "publisher[p].postback.url");
    assert!(warnings[0].wrong.contains("every postback to it is refused"), "{warnings:?}");
    assert!(routing_of(&publisher("payout = { flat = \"1\" }")).expect("good").0.publishers["p"].postback.is_none());
}

#[test]
fn a_key_has_one_owner() {
    let text = publisher("payout = { flat = \"1\" }").replace(HASH_OTHER, &HASH_ACME.to_uppercase());
    let problems = routing_of(&text).expect_err("shared key");
    assert!(only_error(&problems, "publisher[p].keys_sha256").wrong.contains("publisher acme"), "{problems}");
    let twice = publisher("payout = { flat = \"1\" }")
        .replace(&format!("[\"{HASH_OTHER}\"]"), &format!("[\"{HASH_OTHER}\", \"{HASH_OTHER}\"]"));
    only_error(&routing_of(&twice).expect_err("key twice"), "publisher[p].keys_sha256");
}

fn campaign(more: &str, offer: &str) -> String {
    format!(
        "{}\n[[campaign]]\nid = \"c\"\ncurrency = \"USD\"\n{more}\n[[campaign.offer]]\nbuyer = \"sunco\"\nprice = \"10\"\n{offer}\n",
        with_buyer("")
    )
}

#[test]
fn a_campaign_arrives_whole() {
    let text = campaign(
        "country = \"ca\"\norder = \"priority\"\nsell_to = 1\nrequired = [\"FirstName\", \"zip_code\"]\n\
         idempotency_fields = [\"phone_number\"]",
        "price_max = \"12.5\"\npriority = 3\nweight = 7",
    );
    let (routing, warnings) = routing_of(&text).expect("good");
    assert!(warnings.is_empty(), "{warnings:?}");
    let campaign = &routing.campaigns["c"];
    assert_eq!((campaign.currency.as_str(), campaign.country.as_str()), ("USD", "CA"));
    assert_eq!(campaign.required.iter().map(|name| &**name).collect::<Vec<_>>(), ["first_name", "zip"]);
    assert_eq!(&*campaign.idempotency_fields[0], "phone");
    let offer = &campaign.offers[0];
    assert_eq!((offer.price, offer.price_max), (Micros(10_000_000), Micros(12_500_000)));
    assert_eq!((offer.priority, offer.weight), (3, 7));
    let solar = &routing.campaigns["solar"];
    assert_eq!(solar.country, "US");
    assert_eq!(solar.offers[0].price_max, solar.offers[0].price);
    assert_eq!((solar.offers[0].priority, solar.offers[0].weight), (1, 1));
}

#[test]
fn the_order_of_a_campaign_is_one_of_three_words() {
    for (word, order) in [
        ("priority", CandidateOrder::Priority),
        ("weighted", CandidateOrder::Weighted),
        ("price", CandidateOrder::Price),
    ] {
        let (routing, _) = routing_of(&campaign(&format!("order = \"{word}\""), "")).expect("good");
        assert_eq!(routing.campaigns["c"].order, order);
    }
}

#[test]
fn a_campaign_that_is_wrong_is_refused() {
    for (more, offer, key) in [
        ("order = \"random\"", "", "order"),
        ("sell_to = 2", "", "sell_to"),
        ("sell_to = 0", "", "sell_to"),
        ("country = \"Atlantis\"", "", "country"),
        ("required = [\"zip\", \"postal_code\"]", "", "required[2]"),
        ("required = \"zip\"", "", "required"),
        ("colour = 1", "", "colour"),
        ("", "price_max = \"9.99\"", "offer[1].price_max"),
        ("", "price_max = \"-1\"", "offer[1].price_max"),
        ("", "priority = -1", "offer[1].priority"),
        ("", "weight = 0", "offer[1].weight"),
        ("", "weight = 1.5", "offer[1].weight"),
        ("", "[[campaign.offer]]\nbuyer = \"sunco\"\nprice = \"1\"", "offer[2].buyer"),
        ("", "[[campaign.offer]]\nbuyer = \"sunc\"\nprice = \"1\"", "offer[2].buyer"),
        ("", "[[campaign.offer]]\nprice = \"1\"", "offer[2].buyer"),
    ] {
        let problems = routing_of(&campaign(more, offer)).expect_err(key);
        only_error(&problems, &format!("campaign[c].{key}"));
    }
    for (from, to, key) in [
        ("currency = \"USD\"", "currency = \"usd\"", "campaign[solar].currency"),
        ("currency = \"USD\"", "", "campaign[solar].currency"),
        ("price = \"25.00\"", "", "campaign[solar].offer[1].price"),
        ("price = \"25.00\"", "price = 25.00", "campaign[solar].offer[1].price"),
        ("price = \"25.00\"", "price = \"1000000000.01\"", "campaign[solar].offer[1].price"),
    ] {
        let problems = routing_of(&with_buyer("").replace(from, to)).expect_err(to);
        only_error(&problems, key);
    }
}

#[test]
fn a_near_name_is_suggested() {
    let problems = routing_of(&with_buyer("").replace("buyer = \"sunco\"", "buyer = \"sunc\"")).expect_err("typo");
    assert_eq!(only_error(&problems, "campaign[solar].offer[1].buyer").right, "sunco");
}

#[test]
fn f79_a_money_cap_never_adds_two_currencies() {
    let two = |cap: &str| {
        campaign("", "")
            .replacen("currency = \"USD\"", "currency = \"EUR\"", 1)
            .replace("timezone =", &format!("cap = [{cap}]\ntimezone ="))
    };
    let problems = routing_of(&two("{ window = \"day\", spend = \"100\" }")).expect_err("EUR and USD");
    assert!(only_error(&problems, "buyer[sunco].cap").wrong.contains("EUR in solar, USD in c"), "{problems}");
    assert!(routing_of(&two("{ window = \"day\", leads = 100 }")).is_ok(), "leads have no currency");
}

#[test]
fn f87_duplicate_and_broken_ids_are_refused() {
    for what in ["publisher", "buyer", "campaign"] {
        let whole = with_buyer("");
        let start = whole.find(&format!("[[{what}]]")).expect("the table");
        let end = whole[start + 2..].find("\n[[").map_or(whole.len(), |at| start + 2 + at);
        let twin = &whole[start..end];
        // The twin of a publisher shares its key as well; that is said once the ids differ.
        let problems = routing_of(&format!("{whole}\n{twin}")).expect_err(what);
        let id = match what {
            "publisher" => "acme",
            "buyer" => "sunco",
            _ => "solar",
        };
        assert!(only_error(&problems, &format!("{what}[{id}].id")).wrong.contains("another"), "{problems}");
    }
    let problems = routing_of(&with_buyer("").replace("id = \"acme\"", "id = \"a b\"")).expect_err("not an id");
    only_error(&problems, "publisher[1].id");
    let problems = routing_of(&with_buyer("").replace("id = \"acme\"\n", "")).expect_err("no id");
    only_error(&problems, "publisher[1].id");
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "version = 0\nspeed = 1\n[[publisher]]\nid = \"p\"\npayout = { percent = \"101\" }\nkeys_sha256 = []\n\
                [[buyer]]\nid = \"b\"\nurl = \"ftp://x\"\ntimezone = \"Nowhere\"\n[buyer.answer]\nprice = \"p\"\n\
                [[campaign]]\nid = \"c\"\ncurrency = \"dollars\"\n[[campaign.offer]]\nbuyer = \"b\"\nprice = \"-1\"\n";
    let problems = routing_of(text).expect_err("all of it");
    assert_keys(
        &problems,
        &[
            "version",
            "speed",
            "publisher[p].payout.percent",
            "publisher[p].keys_sha256",
            "buyer[b].url",
            "buyer[b].timezone",
            "buyer[b].answer.price",
            "campaign[c].currency",
            "campaign[c].offer[1].price",
        ],
    );
    assert!(problems.to_string().ends_with("8 errors, 1 warning"), "{problems}");
    let lines: Vec<usize> = problems.0.iter().filter_map(|problem| problem.line).collect();
    assert!(lines.is_sorted(), "{problems}");
}

#[test]
fn tables_of_the_wrong_kind_are_refused() {
    only_error(&routing_of("[publisher]\nid = \"a\"\n").expect_err("no list"), "publisher");
    only_error(&routing_of("buyer = [1]\n").expect_err("no table"), "buyer[1]");
}
