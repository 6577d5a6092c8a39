use super::*;
use crate::domain::event::{ClaimKey, SaleMoney, WindowAmount};
use crate::domain::id::CampaignId;
use crate::ledger::check::check;

fn received(lead: LeadId, key: Option<&str>) -> Event {
    Event::Received(Received {
        lead,
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        received_at_us: 1_000_000,
        test: false,
        payload: "{}".into(),
        claim: key.map(|digit| ClaimKey { hash: digit.repeat(64), fingerprint: None }),
    })
}

fn attempt(lead: LeadId, outcome: AttemptOutcome, counted: bool, amount: u64, books: bool) -> Attempt {
    Attempt {
        lead,
        buyer: BuyerId::new("sunco").unwrap(),
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        ordinal: 1,
        outcome,
        counted,
        http_status: Some(200),
        reason: None,
        sent_at_us: 2_000_000,
        duration_us: 5,
        windows: vec![WindowAmount { cap: CapId::new("day"), start_ms: 86_400_000, amount }],
        price: Micros(25_000_000),
        payout: Micros(17_500_000),
        currency: Currency::new("USD").unwrap(),
        books,
        person: None,
        reference: None,
    }
}

fn closed(lead: LeadId, status: LeadStatus, books: bool) -> Closed {
    let sale =
        SaleMoney { price: Micros(25_000_000), payout: Micros(17_500_000), currency: Currency::new("USD").unwrap() };
    Closed {
        lead,
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        status,
        reason: None,
        buyer: Some(BuyerId::new("sunco").unwrap()),
        sale: Some(sale),
        books,
        test: false,
        closed_at_us: 3_000_000,
        answer: "{}".into(),
        explanation: "{}".into(),
        postback: Some(format!("{lead} {}", status.as_str())),
    }
}

fn usage_of(plan: &Plan<'_>) -> Vec<i64> {
    plan.usage.values().copied().collect()
}

#[test]
fn p6_a_sale_is_three_lines_that_sum_to_zero() {
    let lead = LeadId::generate();
    let events = [Event::Attempt(attempt(lead, AttemptOutcome::Accepted, true, 1, true))];
    let plan = plan(events.iter(), &Known::default()).unwrap();
    let lines: Vec<_> = plan.entries.iter().map(|entry| (entry.account.as_str(), entry.amount.0)).collect();
    assert_eq!(lines, [("buyer:sunco", -25_000_000), ("margin", 7_500_000), ("publisher:acme", 17_500_000)]);
    assert_eq!(plan.balances.values().sum::<i64>(), 0);
    assert!(plan.entries.iter().all(|entry| entry.booked_at_us == 2_000_005));
}

#[test]
fn f72_a_repeat_in_the_same_batch_or_a_later_one_changes_nothing() {
    let lead = LeadId::generate();
    let event = Event::Attempt(attempt(lead, AttemptOutcome::Accepted, true, 1, true));
    let closed = Event::Closed(closed(lead, LeadStatus::Sold, true));
    let events = [event.clone(), closed.clone(), event.clone(), closed.clone()];
    let first = plan(events.iter(), &Known::default()).unwrap();
    assert_eq!((first.entries.len(), first.attempts.len(), usage_of(&first)), (3, 1, vec![1]));

    let key = LeaseKey { lead, buyer: BuyerId::new("sunco").unwrap() };
    let windows = first.attempts[0].windows.clone();
    let attempt = KnownAttempt { outcome: AttemptOutcome::Accepted, counted: true, windows };
    let known = Known {
        leads: HashMap::from([(lead, KnownLead { status: LeadStatus::Sold, has_received: true })]),
        attempts: HashMap::from([(key.clone(), attempt)]),
        sales: HashSet::from([key]),
        ..Known::default()
    };
    let again = plan(events.iter(), &known).unwrap();
    assert!(again.entries.is_empty() && again.attempts.is_empty() && again.verdicts.is_empty());
    assert!(again.usage.is_empty() && again.balances.is_empty() && again.new_leads.is_empty());
}

#[test]
fn f78_an_attempt_moves_forward_only_and_takes_its_units_with_it() {
    let lead = LeadId::generate();
    let doubt = Event::Attempt(attempt(lead, AttemptOutcome::InDoubt, true, 40, false));
    let no = Event::Attempt(attempt(lead, AttemptOutcome::Declined, false, 40, false));
    let late = Event::Attempt(attempt(lead, AttemptOutcome::LateAccepted, true, 25, false));
    for (order, expected) in [
        (vec![&doubt], vec![40]),
        (vec![&doubt, &no], vec![]),
        (vec![&no, &doubt], vec![]),
        (vec![&doubt, &late], vec![25]),
        (vec![&late, &doubt, &no], vec![25]),
    ] {
        let plan = plan(order.iter().copied(), &Known::default()).unwrap();
        assert_eq!(usage_of(&plan), expected, "{order:?}");
        assert_eq!(plan.attempts.len(), 1);
    }
    // Of two answers of equal rank the first stands: a sale is not undone by a "no" that turns up beside it.
    let yes = Event::Attempt(attempt(lead, AttemptOutcome::Accepted, true, 30, true));
    let both = plan([&yes, &no].into_iter(), &Known::default()).unwrap();
    assert_eq!((both.attempts[0].event.outcome, usage_of(&both)), (AttemptOutcome::Accepted, vec![30]));
    // The doubt is in the books already: the batch takes away what it counted, in its own window.
    let key = LeaseKey { lead, buyer: BuyerId::new("sunco").unwrap() };
    let windows = r#"[{"cap":"day","window_start":"1970-01-02T00:00:00Z","amount":40}]"#.to_owned();
    let attempt = KnownAttempt { outcome: AttemptOutcome::InDoubt, counted: true, windows };
    let known = Known { attempts: HashMap::from([(key, attempt)]), ..Known::default() };
    assert_eq!(usage_of(&plan([&late].into_iter(), &known).unwrap()), vec![-15]);
    assert_eq!(usage_of(&plan([&no].into_iter(), &known).unwrap()), vec![-40]);
}

#[test]
fn a_contested_yes_counts_at_once_and_is_booked_when_it_is_resolved() {
    let lead = LeadId::generate();
    let late = Event::Attempt(attempt(lead, AttemptOutcome::LateAccepted, true, 1, false));
    let resolved = Event::Attempt(attempt(lead, AttemptOutcome::LateAccepted, true, 1, true));
    let plan = plan([&late, &resolved].into_iter(), &Known::default()).unwrap();
    assert_eq!((usage_of(&plan), plan.entries.len()), (vec![1], 3));
}

#[test]
fn a_test_lead_moves_no_money() {
    let mut verdict = closed(LeadId::generate(), LeadStatus::Sold, true);
    verdict.test = true;
    let events = [Event::Closed(verdict)];
    let plan = plan(events.iter(), &Known::default()).unwrap();
    assert!(plan.entries.is_empty() && plan.new_leads.len() == 1);
}

#[test]
fn a_second_lead_under_a_used_key_loses_the_key_and_nothing_else() {
    let (first, second, third) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    let events = [received(first, Some("a")), received(second, Some("a")), received(third, Some("b"))];
    let key = (PublisherId::new("acme").unwrap(), hash_of_hex(&"b".repeat(64)).unwrap());
    let known = Known { keys: HashMap::from([(key, LeadId::generate())]), ..Known::default() };
    let plan = plan(events.iter(), &known).unwrap();
    let keys: Vec<_> = plan.new_leads.iter().map(|lead| lead.arrival.as_ref().unwrap().key_hash.is_some()).collect();
    assert_eq!((keys.iter().filter(|has_key| **has_key).count(), keys.len(), plan.key_clashes), (1, 3, 2));
}

#[test]
fn f73_what_cannot_be_stored_unaltered_is_refused() {
    let lead = LeadId::generate();
    let good = attempt(lead, AttemptOutcome::Accepted, true, 1, true);
    assert_eq!(check(&Event::Attempt(good.clone())), Ok(()));
    for bad in [
        Attempt { price: Micros(-1), ..good.clone() },
        Attempt { payout: Micros(i64::MIN), ..good.clone() },
        Attempt { sent_at_us: -1, ..good.clone() },
        Attempt { sent_at_us: i64::MAX, ..good.clone() },
        Attempt { duration_us: u64::MAX, ..good.clone() },
        Attempt { outcome: AttemptOutcome::Declined, ..good.clone() },
        Attempt {
            windows: vec![WindowAmount { cap: CapId::new("day"), start_ms: 0, amount: u64::MAX }],
            ..good.clone()
        },
        Attempt {
            windows: vec![WindowAmount { cap: CapId::new("day"), start_ms: i64::MAX, amount: 1 }],
            ..good.clone()
        },
    ] {
        assert!(check(&Event::Attempt(bad.clone())).is_err(), "{bad:?} was taken");
    }
    let verdict = closed(lead, LeadStatus::Sold, true);
    assert_eq!(check(&Event::Closed(verdict.clone())), Ok(()));
    for bad in [
        Closed { status: LeadStatus::Pending, ..verdict.clone() },
        Closed { sale: None, ..verdict.clone() },
        Closed { buyer: None, ..verdict.clone() },
        Closed { closed_at_us: i64::MIN, ..verdict },
    ] {
        assert!(check(&Event::Closed(bad.clone())).is_err(), "{bad:?} was taken");
    }
    assert!(check(&received(lead, Some("g"))).is_err(), "a hash that is not hex was taken");
    assert_eq!(check(&received(lead, Some("A"))), Ok(()));
}

#[test]
fn f79_sums_beyond_64_bits_are_refused_and_not_wrapped() {
    let huge = |lead| Attempt { price: Micros(i64::MAX), ..attempt(lead, AttemptOutcome::Accepted, true, 1, true) };
    let events = [Event::Attempt(huge(LeadId::generate())), Event::Attempt(huge(LeadId::generate()))];
    assert!(plan(events[..1].iter(), &Known::default()).is_ok());
    assert!(plan(events.iter(), &Known::default()).is_err());
}

#[test]
fn a_lead_moves_forward_only() {
    let lead = LeadId::generate();
    let doubt = Event::Closed(closed(lead, LeadStatus::InDoubt, false));
    let sold = Event::Closed(closed(lead, LeadStatus::Sold, false));
    for order in [[&doubt, &sold], [&sold, &doubt]] {
        let plan = plan(order.into_iter(), &Known::default()).unwrap();
        assert_eq!(plan.new_leads[0].verdict.unwrap().status, LeadStatus::Sold);
    }
}
