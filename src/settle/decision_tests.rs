use super::*;
use crate::domain::id::{CampaignId, PublisherId};
use crate::domain::money::Currency;
use crate::domain::outcome::LeadStatus;
use crate::ledger::LeadRow;

const SENT_US: i64 = 1_772_973_296_000_000;
const UNTIL_S: i64 = 600;

fn at(after_s: i64) -> Timestamp {
    Timestamp::from_microsecond(SENT_US).unwrap() + SignedDuration::from_secs(after_s)
}

fn pending() -> String {
    Parked::new(at(0), Duration::from_secs(UNTIL_S.unsigned_abs()), Micros(40_000_000)).to_string()
}

fn detail(outcome: AttemptOutcome, reason: Option<&str>) -> LeadDetail {
    let lead = LeadId::generate();
    let usd = Currency::new("USD").unwrap();
    let row = AttemptRow {
        lead,
        buyer: BuyerId::new("sunco").unwrap(),
        ordinal: 1,
        outcome,
        counted: outcome == AttemptOutcome::InDoubt,
        http_status: Some(202),
        reason: reason.map(str::to_owned),
        sent_at: at(0),
        duration_us: 1_000,
        windows: r#"[{"cap":"day","window_start":"2026-03-08T05:00:00Z","amount":1},
            {"cap":"month:spend","window_start":"2026-03-01T05:00:00Z","amount":40000000}]"#
            .to_owned(),
        price: Micros(25_000_000),
        payout: Micros(17_500_000),
        currency: usd,
        person: None,
        reference: None,
    };
    LeadDetail {
        lead: LeadRow {
            lead,
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            status: LeadStatus::Pending,
            reason: None,
            buyer: None,
            price: None,
            payout: None,
            currency: None,
            is_test: false,
            received_at: at(0),
            closed_at: None,
            payload: Some(r#"{"phone":"2015550123"}"#.to_owned()),
            explanation: None,
            answer: None,
        },
        attempts: vec![row],
        entries: vec![],
        returns: vec![],
    }
}

fn accept(price: Option<i64>) -> Decision {
    Decision::Accepted { price: price.map(Micros) }
}

fn decline() -> Decision {
    Decision::Declined { reason: Some("nobody at 2015550123".to_owned()) }
}

fn next_of(detail: &LeadDetail, decision: &Decision, after_s: i64, payout: Option<Payout>) -> Next {
    let buyer = BuyerId::new("sunco").unwrap();
    let question = Question { detail, buyer: &buyer, decision, now: at(after_s), payout };
    decide(&question, |cap| cap.as_str().ends_with("spend")).unwrap()
}

fn end_of(decision: &Decision, after_s: i64, payout: Option<Payout>) -> End {
    match next_of(&detail(AttemptOutcome::InDoubt, Some(&pending())), decision, after_s, payout) {
        Next::End(end) => *end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn p6_a_yes_is_booked_at_the_price_that_was_agreed_or_below() {
    let flat = Some(Payout::Flat(Micros(9_000_000)));
    for (named, rule, price, payout) in [
        (None, flat, 25_000_000, 17_500_000),
        (Some(30_000_000), flat, 30_000_000, 9_000_000),
        (Some(99_000_000), flat, 40_000_000, 9_000_000),
        (Some(0), flat, 0, 9_000_000),
        (Some(30_000_000), None, 25_000_000, 17_500_000),
    ] {
        let End { decided, lease, held, until } = end_of(&accept(named), 1, rule);
        assert_eq!((decided, until), (Decided::Accepted, at(UNTIL_S)));
        let event = &lease.late_event;
        assert_eq!((event.price.0, event.payout.0), (price, payout), "{named:?}");
        assert_eq!((event.outcome, event.counted, event.books), (AttemptOutcome::Accepted, true, true));
        let amounts: Vec<u64> = event.windows.iter().map(|window| window.amount).collect();
        assert_eq!(amounts, [1, price.unsigned_abs()], "a money cap keeps what is booked");
        let held: Vec<u64> = held.iter().map(|window| window.amount).collect();
        assert_eq!(held, [1, 40_000_000]);
        assert_eq!(event.duration_us, 1_000_000, "the sale is booked when it was made");
    }
}

#[test]
fn p1_a_no_and_a_time_that_is_over_give_back_what_is_held() {
    for (decision, after_s, decided, reason) in [
        (decline(), UNTIL_S - 1, Decided::Declined, "nobody at"),
        (decline(), UNTIL_S, Decided::Expired, EXPIRED),
        (accept(None), UNTIL_S, Decided::Expired, EXPIRED),
    ] {
        let found = end_of(&decision, after_s, None);
        let event = &found.lease.event;
        assert_eq!((found.decided, event.outcome), (decided, AttemptOutcome::Declined));
        assert_eq!((event.counted, event.books), (false, false));
        let said = event.reason.as_deref().unwrap();
        assert!(said.starts_with(reason) && !said.contains("2015550123"), "P9 {said}");
        assert_eq!(found.lease.charges.iter().map(|charge| charge.amount).sum::<u64>(), 40_000_001);
    }
}

#[test]
fn every_other_state_has_its_answer() {
    use AttemptOutcome::{Accepted, Declined, Duplicate, InDoubt, LateAccepted, Unsent};
    for (outcome, reason, to_yes, to_no) in [
        (InDoubt, Some("timeout"), "NotPending", "NotPending"),
        (InDoubt, None, "NotPending", "NotPending"),
        (Unsent, Some("connect"), "NotPending", "NotPending"),
        (Accepted, None, "Taken(Accepted", "Opposite"),
        (LateAccepted, None, "Taken(Accepted", "Opposite"),
        (Declined, Some("not interested"), "Opposite", "Taken(Declined"),
        (Duplicate, Some("duplicate"), "Opposite", "Taken(Declined"),
        (Declined, Some("too_late: accepted"), "TooLate", "TooLate"),
    ] {
        let detail = detail(outcome, reason);
        for (decision, expected) in [(accept(None), to_yes), (decline(), to_no)] {
            let Next::Answer(answer) = next_of(&detail, &decision, 1, None) else { panic!("{outcome} {reason:?}") };
            assert!(format!("{answer:?}").starts_with(expected), "{outcome} {reason:?} {decision:?}: {answer:?}");
        }
    }
    let expired = detail(Declined, Some(EXPIRED));
    let Next::Note(note) = next_of(&expired, &decline(), 1, None) else { panic!("it is noted") };
    assert_eq!((note.outcome, note.reason.as_deref()), (Declined, Some("too_late: declined")));
    assert!(!note.counted && !note.books);
    let nobody = LeadDetail { attempts: vec![], ..expired };
    assert!(matches!(next_of(&nobody, &decline(), 1, None), Next::Unknown));
    // A doubt whose unit has gone back waits for nobody.
    let mut gone = detail(InDoubt, Some(&pending()));
    gone.attempts[0].counted = false;
    assert!(matches!(next_of(&gone, &accept(None), 1, None), Next::Answer(DecisionAnswer::NotPending)));
}
