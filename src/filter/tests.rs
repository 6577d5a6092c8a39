use std::sync::Arc;

use bytes::Bytes;
use jiff::civil::{Weekday, time};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::*;
use crate::domain::id::{LeadId, PublisherId};
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::money::{Currency, Micros};
use crate::domain::routing::{
    AnswerRule, AnswerRules, Buyer, BuyerFilter, CandidateOrder, FieldRule, Hours, On5xx, OnCrash, OnTimeout,
    RequestShape, ReturnTerms, ZipPattern,
};

mod reference;

fn buyer(id: &str, filter: BuyerFilter) -> Buyer {
    Buyer {
        id: BuyerId::new(id).unwrap(),
        url: reqwest::Url::parse("http://127.0.0.1:1/").unwrap(),
        timezone: TimeZone::get("America/New_York").unwrap(),
        timezone_name: "America/New_York".into(),
        timeout: std::time::Duration::from_millis(1_500),
        on_timeout: OnTimeout::Refund,
        on_crash: OnCrash::Keep,
        in_flight_max: 10,
        is_paused: false,
        caps: Vec::new(),
        filter,
        hours: Vec::new(),
        request: RequestShape::default(),
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
    }
}

fn offer(buyer: Buyer, priority: u32, weight: u32) -> Offer {
    let price = Micros(25_000_000);
    Offer { buyer: Arc::new(buyer), price, price_max: price, priority, weight }
}

fn compile(offers: Vec<Offer>) -> CompiledCampaign {
    compile_in(CandidateOrder::Priority, offers)
}

fn compile_in(order: CandidateOrder, offers: Vec<Offer>) -> CompiledCampaign {
    CompiledCampaign::new(Arc::new(Campaign {
        id: CampaignId::new("solar").unwrap(),
        currency: Currency::new("USD").unwrap(),
        country: "US".into(),
        order,
        required: Vec::new(),
        idempotency_fields: Vec::new(),
        offers,
    }))
}

fn lead_of(publisher: &str, fields: &[(&str, FieldValue)]) -> Lead {
    Lead {
        id: LeadId::generate(),
        publisher: PublisherId::new(publisher).unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        received_at: noon(),
        is_test: false,
        fields: Fields::new(fields.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect()),
        body: Bytes::new(),
    }
}

fn lead(fields: &[(&str, &str)]) -> Lead {
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, FieldValue::Text((*value).into()))).collect();
    lead_of("acme", &fields)
}

/// Monday, 12:00 in New York.
fn noon() -> Timestamp {
    "2026-03-02T17:00:00Z".parse().unwrap()
}

fn nobody() -> HashSet<BuyerId> {
    HashSet::new()
}

/// The seed of a random test: `CAPGATE_TEST_SEED`, or a fresh one; printed.
fn seed() -> u64 {
    let seed = std::env::var("CAPGATE_TEST_SEED").ok().map_or_else(rand::random, |text| text.parse().unwrap());
    println!("CAPGATE_TEST_SEED={seed}");
    seed
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn publishers(ids: &[&str]) -> Vec<PublisherId> {
    ids.iter().map(|id| PublisherId::new(id).unwrap()).collect()
}

fn office_hours() -> Vec<Hours> {
    vec![Hours { days: vec![Weekday::Monday], from: time(9, 0, 0, 0), to: time(17, 0, 0, 0) }]
}

/// Why a single buyer does not get the lead; `None` when it does.
fn refusal(buyer: Buyer, lead: &Lead, paused: &HashSet<BuyerId>) -> Option<(Check, Value)> {
    let campaign = compile(vec![offer(buyer, 1, 1)]);
    let candidates = campaign.filter(lead, noon(), paused);
    let mut skipped = campaign.explain(lead, noon(), paused, &candidates);
    assert_eq!(candidates.ranked.len() + skipped.len(), 1);
    skipped.pop().map(|skipped| (skipped.check, Value::Object(skipped.values)))
}

#[test]
fn p10_the_first_failing_check_is_told_with_what_it_compared() {
    let lead = lead(&[("state", "texas"), ("country", "USA"), ("zip", "07030-1234"), ("age", "17")]);
    let rule = FieldRule { field: "age".into(), min: Some(18.0), max: Some(65.5), one_of: None, is_present: None };
    let cases = [
        (
            BuyerFilter { publishers_denied: publishers(&["spamco", "acme"]), ..BuyerFilter::default() },
            Check::Publisher,
            json!({"rule": {"denied": ["spamco", "acme"]}, "lead": "acme"}),
        ),
        (
            BuyerFilter { publishers_allowed: Some(publishers(&["other"])), ..BuyerFilter::default() },
            Check::Publisher,
            json!({"rule": {"allowed": ["other"]}, "lead": "acme"}),
        ),
        (
            BuyerFilter { countries: Some(texts(&["CA"])), states: Some(texts(&["NY"])), ..BuyerFilter::default() },
            Check::Country,
            json!({"rule": ["CA"], "lead": "US"}),
        ),
        (
            BuyerFilter {
                countries: Some(texts(&["US"])),
                states: Some(texts(&["NY", "NJ"])),
                ..BuyerFilter::default()
            },
            Check::State,
            json!({"rule": ["NY", "NJ"], "lead": "TX"}),
        ),
        (
            BuyerFilter {
                zips: Some(vec![ZipPattern::Prefix("100".into()), ZipPattern::Exact("07031".into())]),
                ..BuyerFilter::default()
            },
            Check::Zip,
            json!({"rule": ["100*", "07031"], "lead": "070301234"}),
        ),
        (
            BuyerFilter { rules: vec![rule], ..BuyerFilter::default() },
            Check::Where,
            json!({"field": "age", "rule": {"min": 18, "max": 65.5}, "lead": "17"}),
        ),
    ];
    for (filter, check, values) in cases {
        assert_eq!(refusal(buyer("sunco", filter), &lead, &nobody()), Some((check, values)));
    }

    let mut closed = buyer("sunco", BuyerFilter::default());
    closed.hours = vec![Hours { days: vec![Weekday::Monday], from: time(13, 0, 0, 0), to: time(17, 0, 0, 0) }];
    let values = json!({
        "local": "2026-03-02T12:00:00-05:00[America/New_York]",
        "timezone": "America/New_York",
        "rule": ["mon 13:00-17:00"],
    });
    assert_eq!(refusal(closed, &lead, &nobody()), Some((Check::Hours, values)));

    let mut paused = buyer("sunco", BuyerFilter { states: Some(texts(&["NY"])), ..BuyerFilter::default() });
    let by_operator = HashSet::from([paused.id.clone()]);
    paused.is_paused = true;
    assert_eq!(refusal(paused, &lead, &by_operator), Some((Check::Paused, json!({"by": "routing"}))));
    let open = buyer("sunco", BuyerFilter::default());
    assert_eq!(refusal(open, &lead, &by_operator), Some((Check::Paused, json!({"by": "operator"}))));
}

#[test]
fn p10_a_missing_field_is_told_as_null_and_long_rules_are_cut() {
    let states: Vec<String> = (0..50).map(|index| format!("S{index}")).collect();
    let filter = BuyerFilter { states: Some(states), ..BuyerFilter::default() };
    let Some((Check::State, values)) = refusal(buyer("sunco", filter), &lead(&[]), &nobody()) else {
        panic!("a lead without a state passed a state rule")
    };
    assert_eq!(values["lead"], Value::Null);
    assert_eq!(values["rule"].as_array().unwrap().len(), 21);
    assert_eq!(values["rule"][20], json!("and 30 more"));

    let rule = FieldRule { field: "note".into(), min: None, max: None, one_of: Some(texts(&["x"])), is_present: None };
    let filter = BuyerFilter { rules: vec![rule], ..BuyerFilter::default() };
    let long = "é".repeat(5_000);
    let (_, values) = refusal(buyer("sunco", filter), &lead(&[("note", &long)]), &nobody()).unwrap();
    assert_eq!(values["lead"].as_str().unwrap().chars().count(), 200);
}

#[test]
fn f14_an_empty_list_is_closed_and_an_absent_one_is_open() {
    let lead = lead(&[("state", "TX"), ("country", "US"), ("zip", "07030")]);
    assert_eq!(refusal(buyer("b", BuyerFilter::default()), &lead, &nobody()), None);
    let check_of = |filter| refusal(buyer("b", filter), &lead, &nobody()).map(|(check, _)| check);
    assert_eq!(check_of(BuyerFilter { states: Some(texts(&[])), ..BuyerFilter::default() }), Some(Check::State));
    assert_eq!(check_of(BuyerFilter { countries: Some(texts(&[])), ..BuyerFilter::default() }), Some(Check::Country));
    assert_eq!(check_of(BuyerFilter { zips: Some(vec![]), ..BuyerFilter::default() }), Some(Check::Zip));
    let nobody_allowed = BuyerFilter { publishers_allowed: Some(vec![]), ..BuyerFilter::default() };
    assert_eq!(check_of(nobody_allowed), Some(Check::Publisher));
}

#[test]
fn places_match_by_code_or_name_and_a_missing_country_is_not_filled_in() {
    let filter = BuyerFilter {
        states: Some(texts(&["New Jersey"])),
        countries: Some(texts(&["United States"])),
        ..BuyerFilter::default()
    };
    let passes = |fields: &[(&str, &str)]| refusal(buyer("b", filter.clone()), &lead(fields), &nobody()).is_none();
    assert!(passes(&[("state", "nj"), ("country", "us")]));
    assert!(passes(&[("state", " NEW  JERSEY "), ("country", "U.S.A.")]));
    assert!(!passes(&[("state", "NJ")]), "the campaign's country is for phones only");
    assert!(!passes(&[("state", "NJ"), ("country", " ")]));
    assert!(!passes(&[("state", ""), ("country", "US")]));
}

#[test]
fn f35_the_instant_handed_in_decides() {
    let mut office = buyer("office", BuyerFilter::default());
    office.hours = office_hours();
    let campaign = compile(vec![offer(office, 1, 1)]);
    let lead = lead(&[]);
    for (at, is_open) in [("2026-03-02T21:59:59.999Z", true), ("2026-03-02T22:00:00Z", false)] {
        let candidates = campaign.filter(&lead, at.parse().unwrap(), &nobody());
        assert_eq!(candidates.ranked.len() == 1, is_open, "{at}");
    }
}

#[test]
fn lower_priority_first_then_shares_by_weight_and_weight_zero_last() {
    let open = |id: &str| buyer(id, BuyerFilter::default());
    let campaign = compile(vec![
        offer(open("late"), 2, 100),
        offer(open("zero"), 1, 0),
        offer(open("one"), 1, 1),
        offer(open("three"), 1, 3),
    ]);
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (rounds, mut three_first) = (20_000, 0);
    for _ in 0..rounds {
        let lead = Lead { id: LeadId::from_bytes(rng.random()), ..lead(&[]) };
        let ranked = campaign.filter(&lead, noon(), &nobody()).ranked;
        assert_eq!(ranked[2..], [1, 0], "weight 0 is the last of its priority, priority 2 comes after it");
        assert_eq!(campaign.filter(&lead, noon(), &nobody()).ranked, ranked, "one lead has one order");
        three_first += usize::from(ranked[0] == 3);
    }
    // 15,000 expected; five standard deviations are 306.
    assert!((14_694..=15_306).contains(&three_first), "seed {seed}: {three_first} of {rounds}");

    // A buyer that leaves does not change the order of the others.
    let without_one = compile(vec![campaign.campaign().offers[1].clone(), campaign.campaign().offers[3].clone()]);
    let lead = lead(&[]);
    assert_eq!(without_one.filter(&lead, noon(), &nobody()).ranked[..], [1, 0]);
}

#[test]
fn by_weight_alone_every_buyer_stands_first_as_often_as_its_weight_says() {
    let open = |id: &str| buyer(id, BuyerFilter::default());
    let campaign = compile_in(
        CandidateOrder::Weighted,
        vec![offer(open("one"), 9, 1), offer(open("zero"), 1, 0), offer(open("two"), 5, 2), offer(open("five"), 1, 5)],
    );
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (rounds, mut first) = (16_000, [0_usize; 4]);
    for _ in 0..rounds {
        let lead = Lead { id: LeadId::from_bytes(rng.random()), ..lead(&[]) };
        let ranked = campaign.filter(&lead, noon(), &nobody()).ranked;
        assert_eq!(ranked[3], 1, "weight 0 is the last of all");
        first[ranked[0]] += 1;
    }
    for (index, expected) in [(0, 2_000_usize), (2, 4_000), (3, 10_000)] {
        // Five standard deviations are 310 at most.
        assert!(first[index].abs_diff(expected) <= 310, "seed {seed}: {first:?}");
    }
}

#[test]
fn by_price_the_dearest_comes_first_and_equals_keep_priority_and_weight() {
    let open = |id: &str| buyer(id, BuyerFilter::default());
    let at = |id: &str, price: i64, priority: u32, weight: u32| Offer {
        price: Micros(price),
        price_max: Micros(90_000_000),
        ..offer(open(id), priority, weight)
    };
    let campaign = compile_in(
        CandidateOrder::Price,
        vec![
            at("cheap", 24_999_999, 1, 100),
            at("dear", 25_000_000, 9, 1),
            at("dear-second", 25_000_000, 10, 100),
            at("dearest", 25_000_001, 99, 1),
        ],
    );
    for _ in 0..100 {
        assert_eq!(campaign.filter(&lead(&[]), noon(), &nobody()).ranked[..], [3, 1, 2, 0]);
    }
}

#[test]
fn ten_thousand_buyers_of_whom_ten_match_cost_ten_examinations() {
    let offers = (0..10_000).map(|index: u32| {
        let takes_texas = index % 1_000 == 7;
        let mut filter =
            BuyerFilter { states: Some(texts(&[if takes_texas { "TX" } else { "NY" }])), ..BuyerFilter::default() };
        // Buyers in Texas that other attributes keep out must not be looked at either.
        match index % 5 {
            0 => filter.states = Some(texts(&["NY", "CA", "NJ"])),
            1 => (filter.states, filter.countries) = (Some(texts(&["TX"])), Some(texts(&["CA"]))),
            3 => {
                (filter.states, filter.zips) =
                    (Some(texts(&["TX"])), Some(vec![ZipPattern::Exact(format!("{index:05}"))]));
            }
            4 => (filter.states, filter.publishers_allowed) = (Some(texts(&["TX"])), Some(publishers(&["other"]))),
            _ => {}
        }
        offer(buyer(&format!("b{index}"), filter), index, 1)
    });
    let campaign = compile(offers.collect());
    let lead = lead(&[("state", "TX"), ("country", "US"), ("zip", "99999")]);
    let candidates = campaign.filter(&lead, noon(), &nobody());
    let expected: Vec<usize> = (0..10).map(|index| index * 1_000 + 7).collect();
    assert_eq!(candidates.ranked[..], expected);
    assert_eq!(candidates.examined, 10);
    assert_eq!(campaign.explain(&lead, noon(), &nobody(), &candidates).len(), 9_990);
}
