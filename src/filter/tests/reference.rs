//! The compiled filter beside a slow one that is written straight from the contract, on random routings and leads.

use super::*;

/// Values that meet each other often: codes, names, other cases, nonsense, blanks.
const STATES: &[(&str, &str)] = &[
    ("NY", "NY"),
    ("ny", "NY"),
    ("New York", "NY"),
    ("TX", "TX"),
    ("texas", "TX"),
    ("ON", "ON"),
    ("Atlantis", "ATLANTIS"),
    ("ATLANTIS", "ATLANTIS"),
];
const COUNTRIES: &[(&str, &str)] = &[
    ("US", "US"),
    ("usa", "US"),
    ("United States", "US"),
    ("CA", "CA"),
    ("canada", "CA"),
    ("GB", "GB"),
    ("UK", "GB"),
    ("Narnia", "NARNIA"),
];
const ZIPS: &[&str] = &["07030", "07030-1234", "10001", "10002", "100", "K1A 0B1", "k1a0b1", ""];
const PUBLISHERS: &[&str] = &["acme", "spamco", "leadly"];
const ZONES: &[&str] = &["America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"];
const DAYS: [Weekday; 7] = [
    Weekday::Monday,
    Weekday::Tuesday,
    Weekday::Wednesday,
    Weekday::Thursday,
    Weekday::Friday,
    Weekday::Saturday,
    Weekday::Sunday,
];

fn pick<T: Copy>(rng: &mut StdRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn maybe<T>(rng: &mut StdRng, make: impl FnOnce(&mut StdRng) -> T) -> Option<T> {
    rng.random_bool(0.4).then(|| make(rng))
}

fn several<T>(rng: &mut StdRng, mut make: impl FnMut(&mut StdRng) -> T) -> Vec<T> {
    (0..rng.random_range(0..4)).map(|_| make(rng)).collect()
}

fn random_buyer(rng: &mut StdRng, index: usize) -> Buyer {
    let publisher = |rng: &mut StdRng| PublisherId::new(pick(rng, PUBLISHERS)).unwrap();
    let filter = BuyerFilter {
        states: maybe(rng, |rng| several(rng, |rng| pick(rng, STATES).0.to_owned())),
        countries: maybe(rng, |rng| several(rng, |rng| pick(rng, COUNTRIES).0.to_owned())),
        zips: maybe(rng, |rng| {
            several(rng, |rng| match rng.random_range(0..3) {
                0 => ZipPattern::Prefix(pick(rng, &["100", "0", "K1A", ""]).to_owned()),
                _ => ZipPattern::Exact(pick(rng, ZIPS).to_owned()),
            })
        }),
        publishers_allowed: maybe(rng, |rng| several(rng, publisher)),
        publishers_denied: maybe(rng, |rng| several(rng, publisher)).unwrap_or_default(),
        rules: maybe(rng, |rng| {
            several(rng, |rng| FieldRule {
                field: "age".into(),
                min: maybe(rng, |rng| f64::from(rng.random_range(0..40_i32))),
                max: maybe(rng, |rng| f64::from(rng.random_range(20..60_i32))),
                one_of: maybe(rng, |rng| several(rng, |rng| rng.random_range(0..60_i32).to_string())),
                is_present: maybe(rng, |rng| rng.random_bool(0.8)),
            })
        })
        .unwrap_or_default(),
    };
    let mut buyer = buyer(&format!("b{index}"), filter);
    buyer.is_paused = rng.random_bool(0.1);
    buyer.timezone_name = pick(rng, ZONES).to_owned();
    buyer.timezone = TimeZone::get(&buyer.timezone_name).unwrap();
    buyer.hours = maybe(rng, |rng| {
        several(rng, |rng| Hours {
            days: (0..5).map(|_| pick(rng, &DAYS)).collect(),
            from: time(rng.random_range(0..24), pick(rng, &[0, 30]), 0, 0),
            to: time(rng.random_range(0..24), pick(rng, &[0, 30]), 0, 0),
        })
    })
    .unwrap_or_default();
    buyer
}

fn random_lead(rng: &mut StdRng) -> Lead {
    let mut fields = Vec::new();
    let text = |text: &str| FieldValue::Text(text.into());
    if rng.random_bool(0.85) {
        fields.push(("state", text(pick(rng, STATES).0)));
    }
    if rng.random_bool(0.85) {
        fields.push(("country", text(pick(rng, COUNTRIES).0)));
    }
    if rng.random_bool(0.85) {
        fields.push(("zip", text(pick(rng, ZIPS))));
    }
    if rng.random_bool(0.85) {
        let age = rng.random_range(0..60_i32).to_string();
        fields.push(("age", if rng.random_bool(0.5) { text(&age) } else { FieldValue::Number(age.into()) }));
    }
    lead_of(pick(rng, PUBLISHERS), &fields)
}

fn canonical(table: &[(&str, &str)], text: &str) -> String {
    table.iter().find(|(spelling, _)| *spelling == text).unwrap().1.to_owned()
}

fn squeezed(zip: &str) -> String {
    zip.to_uppercase().replace([' ', '-'], "")
}

fn takes_zip(patterns: &[ZipPattern], zip: &str) -> bool {
    let zip = squeezed(zip);
    patterns.iter().any(|pattern| match pattern {
        ZipPattern::Exact(code) => squeezed(code) == zip || (zip == "070301234" && code == "07030"),
        ZipPattern::Prefix(prefix) => zip.starts_with(prefix.as_str()),
    })
}

fn takes_age(rule: &FieldRule, age: Option<i32>) -> bool {
    let in_range = rule.min.is_none_or(|min| age.is_some_and(|age| f64::from(age) >= min))
        && rule.max.is_none_or(|max| age.is_some_and(|age| f64::from(age) <= max));
    in_range
        && rule.one_of.as_ref().is_none_or(|list| age.is_some_and(|age| list.contains(&age.to_string())))
        && rule.is_present.is_none_or(|wanted| wanted == age.is_some())
}

/// Minutes since the start of a span's day are counted on the wall clock; every span that started today or yesterday.
fn is_open(buyer: &Buyer, at: Timestamp) -> bool {
    let local = buyer.timezone.to_datetime(at);
    let day = DAYS.iter().position(|day| *day == local.weekday()).unwrap();
    let minute = i32::from(local.hour()) * 60 + i32::from(local.minute());
    let of = |time: jiff::civil::Time| i32::from(time.hour()) * 60 + i32::from(time.minute());
    buyer.hours.is_empty()
        || buyer.hours.iter().any(|span| {
            let (from, mut to) = (of(span.from), of(span.to));
            if to <= from {
                to += 1_440;
            }
            [(day, minute), ((day + 6) % 7, minute + 1_440)]
                .into_iter()
                .any(|(day, minute)| span.days.contains(&DAYS[day]) && from <= minute && minute < to)
        })
}

fn first_failure(buyer: &Buyer, lead: &Lead, at: Timestamp, paused: &HashSet<BuyerId>) -> Option<Check> {
    let given = |name: &str| lead.text(name).filter(|text| !text.is_empty());
    let rule = &buyer.filter;
    let lists = |table: &'static [(&str, &str)], wanted: &Option<Vec<String>>, given: Option<&str>| {
        wanted.as_ref().is_none_or(|wanted| {
            given.is_some_and(|given| wanted.iter().any(|text| canonical(table, text) == canonical(table, given)))
        })
    };
    let age = given("age").map(|text| text.parse().unwrap());
    let is_denied = rule.publishers_denied.contains(&lead.publisher);
    let checks = [
        (Check::Paused, !buyer.is_paused && !paused.contains(&buyer.id)),
        (
            Check::Publisher,
            !is_denied && rule.publishers_allowed.as_ref().is_none_or(|allowed| allowed.contains(&lead.publisher)),
        ),
        (Check::Country, lists(COUNTRIES, &rule.countries, given("country"))),
        (Check::State, lists(STATES, &rule.states, given("state"))),
        (Check::Zip, rule.zips.as_ref().is_none_or(|zips| given("zip").is_some_and(|zip| takes_zip(zips, zip)))),
        (Check::Where, rule.rules.iter().all(|rule| takes_age(rule, age))),
        (Check::Hours, is_open(buyer, at)),
    ];
    checks.into_iter().find(|(_, holds)| !holds).map(|(check, _)| check)
}

#[test]
fn p10_the_compiled_filter_decides_like_the_rules_read_one_by_one() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let start = noon();
    let (mut passed_count, mut failed) = (0, HashMap::<Check, usize>::new());
    for _ in 0..150 {
        let count = pick(&mut rng, &[0, 1, 3, 63, 64, 65, 130]);
        let offers = (0..count).map(|index| {
            let buyer = random_buyer(&mut rng, index);
            offer(buyer, rng.random_range(0..4), rng.random_range(0..3))
        });
        let campaign = compile(offers.collect());
        let offers = &campaign.campaign().offers;
        for _ in 0..20 {
            let lead = random_lead(&mut rng);
            let at = start + jiff::SignedDuration::from_secs(rng.random_range(0..40_000_000));
            let paused: HashSet<BuyerId> =
                offers.iter().filter(|_| rng.random_bool(0.1)).map(|offer| offer.buyer.id.clone()).collect();

            let expected: Vec<Option<Check>> =
                offers.iter().map(|offer| first_failure(&offer.buyer, &lead, at, &paused)).collect();
            let candidates = campaign.filter(&lead, at, &paused);
            let mut found: Vec<Option<Check>> = vec![Some(Check::NotReached); count];
            for &index in &candidates.ranked {
                assert_eq!(found[index].replace(Check::Accepted), Some(Check::NotReached), "ranked twice");
                found[index] = None;
                passed_count += 1;
            }
            for skipped in campaign.explain(&lead, at, &paused, &candidates) {
                assert_eq!(found[skipped.offer], Some(Check::NotReached), "told twice");
                found[skipped.offer] = Some(skipped.check);
                *failed.entry(skipped.check).or_default() += 1;
                assert!(!skipped.into_note(campaign.campaign()).unwrap().values.is_empty());
            }
            assert_eq!(found, expected, "seed {seed}: {lead:?} at {at}");

            let priorities: Vec<u32> = candidates.ranked.iter().map(|&index| offers[index].priority).collect();
            assert!(priorities.is_sorted(), "seed {seed}: {priorities:?}");
        }
    }
    assert!(passed_count > 1_000, "only {passed_count} offers passed");
    for check in [Check::Paused, Check::Publisher, Check::Country, Check::State, Check::Zip, Check::Where, Check::Hours]
    {
        assert!(failed.get(&check).is_some_and(|count| *count > 500), "{check:?} hardly failed: {failed:?}");
    }
}
