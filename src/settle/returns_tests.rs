use super::*;
use crate::domain::id::{CampaignId, PublisherId};
use crate::domain::money::Currency;
use crate::domain::outcome::LeadStatus;
use crate::ledger::{AttemptRow, EntryRow, LeadRow, ReturnRow};

const SENT_US: i64 = 1_772_973_296_000_000;
const DAY: SignedDuration = SignedDuration::from_hours(24);

fn at(us: i64) -> Timestamp {
    Timestamp::from_microsecond(us).unwrap()
}

fn buyer(id: &str) -> BuyerId {
    BuyerId::new(id).unwrap()
}

fn usd() -> Currency {
    Currency::new("USD").unwrap()
}

fn attempt(lead: LeadId, id: &str, outcome: AttemptOutcome) -> AttemptRow {
    AttemptRow {
        lead,
        buyer: buyer(id),
        ordinal: 1,
        outcome,
        counted: true,
        http_status: Some(200),
        reason: None,
        sent_at: at(SENT_US),
        duration_us: 0,
        windows: r#"[{"cap":"day","window_start":"2026-03-08T05:00:00Z","amount":1},
            {"cap":"month:spend","window_start":"2026-03-01T05:00:00Z","amount":25000000}]"#
            .to_owned(),
        // What is reversed is what was booked, and never these.
        price: Micros(1),
        payout: Micros(1),
        currency: usd(),
        person: None,
        reference: None,
    }
}

/// A lead that `first` had an attempt at, and that was sold to `second`, too: a doubt was resolved as accepted.
fn detail(outcome: AttemptOutcome, is_booked: bool) -> LeadDetail {
    let lead = LeadId::generate();
    let line = |of: &str, account: &str, micros: i64| EntryRow {
        buyer: buyer(of),
        account: account.to_owned(),
        amount: Micros(micros),
        currency: usd(),
        kind: "sale".to_owned(),
        booked_at: at(SENT_US),
    };
    let mut entries = vec![
        line("second", "buyer:second", -10_000_000),
        line("second", "margin", 10_000_000),
        line("second", "publisher:acme", 0),
    ];
    if is_booked {
        entries.push(line("first", "buyer:first", -25_000_000));
        entries.push(line("first", "margin", 7_500_000));
        entries.push(line("first", "publisher:acme", 17_500_000));
    }
    LeadDetail {
        lead: LeadRow {
            lead,
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            status: LeadStatus::Sold,
            reason: None,
            buyer: Some(buyer("first")),
            price: None,
            payout: None,
            currency: None,
            is_test: false,
            received_at: at(SENT_US),
            closed_at: None,
            payload: None,
            explanation: None,
            answer: None,
        },
        attempts: vec![attempt(lead, "first", outcome), attempt(lead, "second", AttemptOutcome::LateAccepted)],
        entries,
        returns: vec![],
    }
}

fn ask(detail: &LeadDetail, id: &str, terms: ReturnTerms, later: SignedDuration) -> Next {
    decide(&Question { detail, buyer: &buyer(id), terms, now: at(SENT_US) + later }, "no such number").unwrap()
}

const KEPT: ReturnTerms = ReturnTerms { within_days: 30, frees_cap: false };
const FREED: ReturnTerms = ReturnTerms { within_days: 30, frees_cap: true };

#[test]
fn p6_what_was_booked_is_reversed_and_the_cap_is_freed_only_where_it_was_agreed() {
    let detail = detail(AttemptOutcome::Accepted, true);
    let Next::Return(event) = ask(&detail, "first", KEPT, DAY) else { panic!("not returned") };
    assert_eq!((event.sale.price.0, event.sale.payout.0), (25_000_000, 17_500_000));
    assert_eq!((event.frees_cap, event.windows.len(), event.reason.as_str()), (false, 0, "no such number"));
    assert_eq!(event.returned_at_us, (at(SENT_US) + DAY).as_microsecond());
    let Next::Return(event) = ask(&detail, "first", FREED, DAY) else { panic!("not returned") };
    let amounts: Vec<_> = event.windows.iter().map(|window| (window.cap.as_str(), window.amount)).collect();
    assert_eq!((event.frees_cap, amounts), (true, vec![("day", 1), ("month:spend", 25_000_000)]));
    // The second buyer of a lead was charged and the publisher paid nothing more; its return takes back just that.
    let Next::Return(event) = ask(&detail, "second", KEPT, DAY) else { panic!("not returned") };
    assert_eq!((event.sale.price.0, event.sale.payout.0), (10_000_000, 0));
}

#[test]
fn the_time_for_a_return_is_counted_from_the_sale() {
    let detail = detail(AttemptOutcome::Accepted, true);
    let month = DAY * 30;
    assert!(matches!(ask(&detail, "first", KEPT, month), Next::Return(_)));
    let late = ask(&detail, "first", KEPT, month + SignedDuration::from_micros(1));
    assert!(matches!(late, Next::Answer(ReturnAnswer::TooLate)));
    let never = ReturnTerms { within_days: 0, frees_cap: false };
    assert!(matches!(ask(&detail, "first", never, SignedDuration::ZERO), Next::Answer(ReturnAnswer::TooLate)));
    // A gateway whose clock is a little behind the one that booked the sale.
    assert!(matches!(ask(&detail, "first", KEPT, -SignedDuration::from_secs(1)), Next::Return(_)));
}

#[test]
fn a_repeat_is_answered_from_the_books_whatever_was_agreed_since() {
    let mut detail = detail(AttemptOutcome::LateAccepted, true);
    let returned_at = at(SENT_US);
    detail.returns.push(ReturnRow { buyer: buyer("first"), reason: "x".to_owned(), frees_cap: true, returned_at });
    let never = ReturnTerms { within_days: 0, frees_cap: false };
    let Next::Answer(answer) = ask(&detail, "first", never, DAY * 400) else { panic!("returned twice") };
    let receipt = ReturnReceipt { price: Micros(25_000_000), currency: usd(), frees_cap: true };
    assert_eq!(answer, ReturnAnswer::Returned(receipt));
    assert!(matches!(ask(&detail, "second", KEPT, DAY), Next::Return(_)), "another buyer's return is not this one's");
}

#[test]
fn only_a_booked_sale_can_be_returned() {
    use AttemptOutcome::{Accepted, Declined, Duplicate, InDoubt, LateAccepted, Unsent};
    for outcome in [Declined, Duplicate, Unsent] {
        let next = ask(&detail(outcome, false), "first", KEPT, DAY);
        assert!(matches!(next, Next::Answer(ReturnAnswer::NotSold)), "{outcome:?}: {next:?}");
    }
    // A late answer or an operator may still decide it.
    for outcome in [InDoubt, LateAccepted, Accepted] {
        let next = ask(&detail(outcome, false), "first", KEPT, DAY);
        assert!(matches!(next, Next::Answer(ReturnAnswer::Undecided)), "{outcome:?}: {next:?}");
    }
    assert!(matches!(ask(&detail(Accepted, true), "third", KEPT, DAY), Next::Unknown));
}

#[test]
fn f90_the_buyers_words_are_kept_without_what_they_repeat_of_the_lead() {
    let mut detail = detail(AttemptOutcome::Accepted, true);
    detail.lead.payload = Some(r#"{"phone":"201-555-0142","email":"zoe@example.com"}"#.to_owned());
    let question = Question { detail: &detail, buyer: &buyer("first"), terms: KEPT, now: at(SENT_US) };
    let Next::Return(event) = decide(&question, "2015550142 is dead, so is Zoe@example.com").unwrap() else {
        panic!("not returned")
    };
    assert_eq!(event.reason, "*** is dead, so is ***");
}
