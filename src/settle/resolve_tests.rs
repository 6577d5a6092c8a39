use super::*;
use crate::domain::id::{CampaignId, LeadId, PublisherId};
use crate::domain::money::Currency;
use crate::ledger::{EntryRow, LeadRow};

const SENT_US: i64 = 1_772_973_296_000_000;
const NOW_US: i64 = SENT_US + 3_600_000_000;

fn at(us: i64) -> Timestamp {
    Timestamp::from_microsecond(us).unwrap()
}

fn buyer(id: &str) -> BuyerId {
    BuyerId::new(id).unwrap()
}

fn row(id: &str, outcome: AttemptOutcome, counted: bool, reason: &str) -> AttemptRow {
    AttemptRow {
        lead: LeadId::generate(),
        buyer: buyer(id),
        ordinal: 1,
        outcome,
        counted,
        http_status: None,
        reason: Some(reason.to_owned()),
        sent_at: at(SENT_US),
        duration_us: 1_500_000,
        windows: r#"[{"cap":"day","window_start":"2026-03-08T05:00:00Z","amount":1},
            {"cap":"month:spend","window_start":"2026-03-01T05:00:00Z","amount":40000000}]"#
            .to_owned(),
        price: Micros(25_000_000),
        payout: Micros(17_500_000),
        currency: Currency::new("USD").unwrap(),
        person: None,
        reference: None,
    }
}

fn detail(status: LeadStatus, of: Option<&str>, attempts: Vec<AttemptRow>, sales: &[(&str, i64)]) -> LeadDetail {
    let entry = |of: &str, account: String, micros: i64| EntryRow {
        buyer: buyer(of),
        account,
        amount: Micros(micros),
        currency: Currency::new("USD").unwrap(),
        kind: "sale".to_owned(),
        booked_at: at(SENT_US),
    };
    let lines = sales.iter().flat_map(|(id, payout)| {
        [entry(id, format!("buyer:{id}"), -10_000_000), entry(id, "publisher:acme".to_owned(), *payout)]
    });
    LeadDetail {
        lead: LeadRow {
            lead: attempts.first().map_or_else(LeadId::generate, |row| row.lead),
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            status,
            reason: None,
            buyer: of.map(buyer),
            price: None,
            payout: None,
            currency: None,
            is_test: false,
            received_at: at(SENT_US),
            closed_at: None,
            payload: None,
            explanation: Some("{\"told\":1}".to_owned()),
            answer: Some("{\"status\":\"in_doubt\"}".to_owned()),
        },
        attempts,
        entries: lines.collect(),
        returns: vec![],
    }
}

fn ask(detail: &LeadDetail, wish: Wish) -> Next {
    let question = Question { detail, buyer: &buyer("hold"), wish, now: at(NOW_US), publisher: None };
    decide(&question, |cap| cap.as_str() == "month:spend").unwrap()
}

fn amounts(windows: &[WindowAmount]) -> Vec<u64> {
    windows.iter().map(|window| window.amount).collect()
}

#[test]
fn a_counted_doubt_is_committed_at_its_price_and_booked_today() {
    let detail =
        detail(LeadStatus::InDoubt, Some("hold"), vec![row("hold", AttemptOutcome::InDoubt, true, "timeout")], &[]);
    let Next::Attempt(Step::Commit(doubt)) = ask(&detail, Wish::Accepted) else { panic!("no commit") };
    let end = &doubt.end;
    assert_eq!((doubt.was, amounts(&doubt.counts)), (EndMark::Doubt, vec![1, 40_000_000]));
    assert_eq!(end.charges.iter().map(|charge| charge.amount).collect::<Vec<_>>(), [1, 40_000_000]);
    let event = &end.late_event;
    assert_eq!((event.outcome, event.counted, event.books), (AttemptOutcome::LateAccepted, true, true));
    assert_eq!(amounts(&event.windows), [1, 25_000_000], "a money cap keeps what is booked");
    assert_eq!(event.payout, Micros(17_500_000));
    assert_eq!(event.sent_at_us + i64::try_from(event.duration_us).unwrap(), NOW_US);
    assert_eq!(event.reason.as_deref(), Some(RESOLVED));
}

#[test]
fn p6_the_publisher_is_paid_once_and_a_returned_sale_counts_for_nothing() {
    let doubt = || row("hold", AttemptOutcome::InDoubt, false, "timeout");
    for (sales, payout) in [
        (&[][..], 17_500_000),
        (&[("good", 7_000_000)][..], 0),
        (&[("good", 7_000_000), ("good", -7_000_000)][..], 17_500_000),
    ] {
        let detail = detail(LeadStatus::Sold, Some("good"), vec![doubt()], sales);
        let Next::Attempt(Step::Commit(doubt)) = ask(&detail, Wish::Accepted) else { panic!("no commit") };
        let end = &doubt.end;
        assert_eq!((doubt.was, doubt.counts.len()), (EndMark::Refunded, 0), "the unit had gone back at the time-out");
        assert_eq!((end.late_event.price.0, end.late_event.payout.0), (25_000_000, payout), "{sales:?}");
    }
}

#[test]
fn a_declined_doubt_gives_back_what_it_held() {
    for (counted, mark) in [(true, EndMark::Doubt), (false, EndMark::Refunded)] {
        let doubt = row("hold", AttemptOutcome::InDoubt, counted, "gateway_lost");
        let detail = detail(LeadStatus::InDoubt, Some("hold"), vec![doubt], &[]);
        let Next::Attempt(Step::GiveBack(doubt)) = ask(&detail, Wish::Declined) else { panic!("kept") };
        assert_eq!(doubt.was, mark);
        let event = &doubt.end.late_event;
        assert_eq!((event.outcome, event.counted, event.books), (AttemptOutcome::Declined, false, false));
        assert_eq!(amounts(&event.windows), [1, 40_000_000]);
    }
}

#[test]
fn the_lead_follows_its_attempt_and_keeps_its_answer() {
    let late = || vec![row("hold", AttemptOutcome::LateAccepted, true, RESOLVED)];
    for status in [LeadStatus::InDoubt, LeadStatus::Unsold] {
        let detail = detail(status, Some("hold"), late(), &[("hold", 17_500_000)]);
        let Next::Verdict(closed) = ask(&detail, Wish::Accepted) else { panic!("{status:?} was left") };
        assert_eq!(
            (closed.status, closed.books, closed.sale.map(|sale| sale.payout.0)),
            (LeadStatus::Sold, false, Some(17_500_000))
        );
        assert_eq!(
            (Some(closed.answer), Some(closed.explanation)),
            (detail.lead.answer, detail.lead.explanation),
            "P3"
        );
    }
    let declined = || vec![row("hold", AttemptOutcome::Declined, false, RESOLVED)];
    let Next::Verdict(closed) = ask(&detail(LeadStatus::InDoubt, Some("hold"), declined(), &[]), Wish::Declined) else {
        panic!("the lead stays in doubt")
    };
    assert_eq!((closed.status, closed.reason.as_deref(), closed.buyer), (LeadStatus::Unsold, Some("declined"), None));
    // In doubt because of another buyer, or with a verdict of its own: left alone.
    for (status, of) in [(LeadStatus::InDoubt, "other"), (LeadStatus::Sold, "other"), (LeadStatus::Pending, "other")] {
        let next = ask(&detail(status, Some(of), declined(), &[]), Wish::Declined);
        assert!(matches!(next, Next::Done(done) if done.lead == status), "{next:?}");
    }
}

#[test]
fn repeats_end_and_opposites_are_refused() {
    use AttemptOutcome::{Accepted, Declined, Duplicate, InDoubt, LateAccepted, Unsent};
    let ask_of = |outcome, reason, sales: &[(&str, i64)], wish| {
        ask(&detail(LeadStatus::Sold, Some("good"), vec![row("hold", outcome, false, reason)], sales), wish)
    };
    let booked: &[(&str, i64)] = &[("hold", 0), ("good", 7_000_000)];
    assert!(matches!(ask_of(LateAccepted, RESOLVED, booked, Wish::Accepted), Next::Done(_)));
    assert!(matches!(ask_of(Declined, RESOLVED, &[], Wish::Declined), Next::Done(_)));
    // Contested: counted since the late yes, booked by the operator, never resolved away.
    let Next::Attempt(Step::Book(event)) = ask_of(LateAccepted, "late", &[("good", 7_000_000)], Wish::Accepted) else {
        panic!("a contested yes was not booked")
    };
    assert_eq!((event.books, event.payout), (true, Micros::ZERO));
    assert!(matches!(ask_of(LateAccepted, "late", &[], Wish::Declined), Next::Contradicts(_)));
    assert!(matches!(ask_of(LateAccepted, RESOLVED, booked, Wish::Declined), Next::Contradicts(_)));
    assert!(matches!(ask_of(Declined, RESOLVED, &[], Wish::Accepted), Next::Contradicts(_)));
    for outcome in [Accepted, Declined, Duplicate, Unsent] {
        for wish in [Wish::Accepted, Wish::Declined] {
            assert!(matches!(ask_of(outcome, "no", &[], wish), Next::Contradicts(_)), "{outcome:?}");
        }
    }
    let other = detail(LeadStatus::Sold, None, vec![row("other", InDoubt, true, "timeout")], &[]);
    assert!(matches!(ask(&other, Wish::Accepted), Next::Unknown));
}
