//! What settlement writes.

use capgate::domain::event::{Attempt, Closed, Event, ParkedLead, WindowAmount};
use capgate::domain::id::{CapId, LeadId};
use capgate::domain::money::Micros;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;

use crate::events::{DAY_MS, PAYOUT, PRICE, RECEIVED_US, attempt, claim, publisher, received, sale, sold, unsold};
use crate::journal::{Journal, PARTITIONS};
use crate::support::Books;

pub async fn p5_a_lead_and_its_verdict_become_one_row_in_any_order(books: &Books) {
    let (together, apart, backwards) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    let journal = Journal::default();
    journal.append_all(sale(together, "acme", "sunco"));
    journal.append(&Event::Received(received(apart, "acme")));
    journal.append(&Event::Closed(unsold(backwards, "acme", "capped")));
    books.settle_all(&journal, 100).await;
    let pending = books.ledger.lead(apart).await.unwrap().unwrap();
    assert_eq!((pending.status, pending.closed_at, pending.answer), (LeadStatus::Pending, None, None));
    let early = books.ledger.lead(backwards).await.unwrap().unwrap();
    assert_eq!((early.status, early.payload), (LeadStatus::Unsold, None));

    journal.append(&Event::Closed(sold(apart, "acme", "sunco")));
    journal.append(&Event::Received(received(backwards, "acme")));
    books.settle_all(&journal, 100).await;
    for lead in [together, apart] {
        let row = books.ledger.lead(lead).await.unwrap().unwrap();
        assert_eq!(row.status, LeadStatus::Sold);
        assert_eq!(row.buyer.unwrap().as_str(), "sunco");
        assert_eq!((row.price, row.payout), (Some(PRICE), Some(PAYOUT)));
        assert_eq!(row.received_at.as_microsecond(), RECEIVED_US);
        assert_eq!(row.closed_at.unwrap().as_microsecond(), RECEIVED_US + 90_000);
        assert_eq!(row.payload.unwrap(), received(lead, "acme").payload);
        assert_eq!(row.answer.unwrap(), sold(lead, "acme", "sunco").answer);
    }
    let row = books.ledger.lead(backwards).await.unwrap().unwrap();
    assert_eq!((row.status, row.reason.as_deref()), (LeadStatus::Unsold, Some("capped")));
    assert_eq!(row.received_at.as_microsecond(), RECEIVED_US);
    assert_eq!(row.payload.unwrap(), received(backwards, "acme").payload);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 3);
}

pub async fn p6_sales_sum_to_zero_and_balances_follow(books: &Books) {
    let journal = Journal::default();
    for (by, to) in [("acme", "sunco"), ("acme", "volt"), ("summit", "sunco")] {
        journal.append_all(sale(LeadId::generate(), by, to));
    }
    // A flat payout may exceed the price: the margin pays.
    let lead = LeadId::generate();
    let dear = attempt(lead, "summit", "volt", AttemptOutcome::Accepted);
    journal.append(&Event::Attempt(Attempt { price: Micros(1), payout: Micros(3), ..dear }));
    let settled = books.settle_all(&journal, 100).await;
    assert_eq!(settled.iter().map(|settled| settled.entries).sum::<usize>(), 10);

    let totals = books.ledger.totals().await.unwrap();
    let balance = |account: &str| totals.balances.iter().find(|line| line.0 == account).map(|line| line.2);
    assert_eq!(balance("buyer:sunco"), Some(-2 * PRICE.0));
    assert_eq!(balance("buyer:volt"), Some(-PRICE.0 - 1));
    assert_eq!(balance("publisher:acme"), Some(2 * PAYOUT.0));
    assert_eq!(balance("publisher:summit"), Some(PAYOUT.0 + 3));
    assert_eq!(balance("margin"), Some(3 * (PRICE.0 - PAYOUT.0) - 2));
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    assert_eq!(totals.leads, [("sold".to_owned(), 3)]);
    let detail = books.ledger.lead_detail(lead).await.unwrap();
    assert_eq!(detail, None, "the lead's own partition has not been settled for it");
}

async fn used(books: &Books, cap: &str) -> i64 {
    let sql = format!("SELECT CAST(COALESCE(SUM(used), 0) AS SIGNED) FROM v_cap_usage WHERE cap_id = '{cap}'");
    books.raw.number(&sql).await
}

pub async fn p2_usage_counts_exactly_what_counts(books: &Books) {
    let journal = Journal::default();
    let step = async |event: Attempt| {
        journal.append(&Event::Attempt(event));
        books.settle_all(&journal, 100).await;
        (used(books, "day").await, used(books, "total:spend").await)
    };
    let doubted = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::InDoubt);
    assert_eq!(step(doubted.clone()).await, (1, 25_000_000));
    // Resolved as declined: given back in its own window.
    let no = Attempt { outcome: AttemptOutcome::Declined, counted: false, ..doubted };
    assert_eq!(step(no).await, (0, 0));
    // Refunded at the time-out, then a late yes for less money.
    let refunded = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::InDoubt);
    assert_eq!(step(Attempt { counted: false, ..refunded.clone() }).await, (0, 0));
    let mut late = Attempt { outcome: AttemptOutcome::LateAccepted, ..refunded };
    late.windows[1].amount = 20_000_000;
    assert_eq!(step(late).await, (1, 20_000_000));
    // A sale in another window of the same cap.
    let mut tomorrow = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted);
    tomorrow.windows = vec![WindowAmount { cap: CapId::new("day"), start_ms: DAY_MS + 82_800_000, amount: 1 }];
    assert_eq!(step(tomorrow).await, (2, 20_000_000));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM cap_usage WHERE used = 1").await, 2);
    let declined = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Declined);
    assert_eq!(step(declined).await, (2, 20_000_000));
}

pub async fn a_contested_yes_is_booked_when_it_is_resolved(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    journal.append_all(sale(lead, "acme", "sunco"));
    let late = attempt(lead, "acme", "volt", AttemptOutcome::LateAccepted);
    journal.append(&Event::Attempt(late.clone()));
    books.settle_all(&journal, 100).await;
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 3, "a contested yes was booked");
    assert_eq!(used(books, "day").await, 2);
    // The second buyer is charged too, the publisher is paid once.
    journal.append(&Event::Attempt(Attempt { books: true, payout: Micros(0), ..late }));
    books.settle_all(&journal, 100).await;
    assert_eq!(used(books, "day").await, 2);
    let totals = books.ledger.totals().await.unwrap();
    assert!(totals.balances.contains(&("buyer:volt".into(), "USD".into(), -PRICE.0)));
    assert!(totals.balances.contains(&("publisher:acme".into(), "USD".into(), PAYOUT.0)));
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
}

pub async fn a_closing_event_books_a_late_yes_once(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    let closing = Event::Closed(Closed { books: true, ..sold(lead, "acme", "sunco") });
    journal.append(&Event::Attempt(attempt(lead, "acme", "sunco", AttemptOutcome::LateAccepted)));
    journal.append(&closing);
    books.settle_all(&journal, 100).await;
    journal.append(&closing);
    books.settle_all(&journal, 100).await;
    let detail = books.ledger.lead_detail(lead).await.unwrap().unwrap();
    assert_eq!(detail.entries.len(), 3);
    assert_eq!(detail.entries.iter().map(|entry| entry.amount.0).sum::<i64>(), 0);
    let margin = ("margin".into(), "USD".into(), PRICE.0 - PAYOUT.0);
    assert!(books.ledger.totals().await.unwrap().balances.contains(&margin));
}

pub async fn test_leads_are_rows_without_money_or_caps(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    let mut arrival = received(lead, "acme");
    arrival.test = true;
    journal.append(&Event::Received(arrival));
    journal.append(&Event::Closed(Closed { test: true, books: true, ..sold(lead, "acme", "sunco") }));
    books.settle_all(&journal, 100).await;
    assert!(books.ledger.lead(lead).await.unwrap().unwrap().is_test);
    for table in ["entries", "balances", "cap_usage", "attempts"] {
        assert_eq!(books.raw.number(&format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
}

/// Leads with every kind of history.
fn histories() -> Vec<Event> {
    let mut events = Vec::new();
    for index in 0..30 {
        let (lead, by, to) = (LeadId::generate(), ["acme", "summit"][index % 2], ["sunco", "volt", "ray"][index % 3]);
        let mut arrival = received(lead, by);
        // The same key from both publishers, and no key twice from one: which lead keeps it would depend on the order.
        arrival.claim = (index < 15).then(|| claim(&format!("{:x}", index / 2)));
        events.push(Event::Received(arrival));
        let late = attempt(lead, by, to, AttemptOutcome::LateAccepted);
        match index % 5 {
            0 => events.extend(sale(lead, by, to).into_iter().skip(1)),
            1 => {
                let doubt = attempt(lead, by, to, AttemptOutcome::InDoubt);
                events.extend([Event::Attempt(doubt), Event::Attempt(Attempt { books: true, ..late })]);
                events.push(Event::Closed(sold(lead, by, to)));
            }
            2 => {
                let refunded = Attempt { counted: false, ..attempt(lead, by, to, AttemptOutcome::InDoubt) };
                events.extend([Event::Attempt(refunded), Event::Attempt(late)]);
                events.push(Event::Closed(Closed { books: true, ..sold(lead, by, to) }));
            }
            3 => {
                let doubt = attempt(lead, by, to, AttemptOutcome::InDoubt);
                let no = attempt(lead, by, to, AttemptOutcome::Declined);
                events.extend([Event::Attempt(doubt), Event::Attempt(no)]);
                let in_doubt = Closed { status: LeadStatus::InDoubt, sale: None, ..sold(lead, by, to) };
                events.extend([Event::Closed(in_doubt), Event::Closed(unsold(lead, by, "declined"))]);
            }
            _ => events.push(Event::Closed(unsold(lead, by, "no_buyer"))),
        }
    }
    events
}

pub async fn f72_every_event_five_times_in_different_batches(books: &Books) {
    let events = histories();
    let once = Journal::default();
    once.append_all(events.clone());
    books.settle_all(&once, 1000).await;
    let expected = books.dump().await;
    // Delivered again: with other neighbours, then the very same entries, as if their marks had never moved.
    let again = Journal::default();
    again.append_all(events.iter().rev().cloned());
    again.append_all(events);
    for rows_max in [7, 1000] {
        books.put_marks_back().await;
        books.settle_all(&again, rows_max).await;
        assert_eq!(books.dump().await, expected, "in batches of {rows_max}");
    }
    let totals = books.ledger.totals().await.unwrap();
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
}

pub async fn f78_any_order_gives_the_same_books(books: &Books) {
    let events = histories();
    let in_order = Journal::default();
    in_order.append_all(events.clone());
    books.settle_all(&in_order, 1000).await;
    let expected = books.dump().await;
    for round in 0..6_u64 {
        let seed = 0x00CA_96A7_E000 + round;
        println!("seed {seed}");
        let mut shuffled = events.clone();
        shuffled.shuffle(&mut rand::rngs::StdRng::seed_from_u64(seed));
        for table in ["leads", "attempts", "entries", "balances", "cap_usage"] {
            books.raw.run(&format!("DELETE FROM {table}")).await;
        }
        books.put_marks_back().await;
        let journal = Journal::default();
        journal.append_all(shuffled);
        books.settle_all(&journal, 5 + usize::try_from(round).unwrap() * 11).await;
        assert_eq!(books.dump().await, expected, "seed {seed}");
    }
}

pub async fn f42_keys_and_ids_differ_by_their_bytes(books: &Books) {
    let journal = Journal::default();
    // Hashes that differ in a bit that text without case would not see, and in their last digit.
    for (index, hash) in ["a1".repeat(32), "A2".repeat(32), "61".repeat(32), "41".repeat(32)].into_iter().enumerate() {
        let lead = LeadId::generate();
        let mut arrival = received(lead, if index == 3 { "Acme" } else { "acme" });
        arrival.claim = Some(capgate::domain::event::ClaimKey { hash, fingerprint: None });
        journal.append(&Event::Received(arrival));
    }
    for (to, cap) in [("sunco", "day"), ("Sunco", "day"), ("sunco", "Day"), ("sunco", "day "), ("sunco", "dáy")] {
        let lead = LeadId::generate();
        let mut event = attempt(lead, "acme", to, AttemptOutcome::Accepted);
        event.windows = vec![WindowAmount { cap: CapId::new(cap), start_ms: DAY_MS, amount: 1 }];
        journal.append(&Event::Attempt(event));
    }
    let settled = books.settle_all(&journal, 1000).await;
    assert_eq!(settled.iter().map(|settled| settled.key_clashes).sum::<usize>(), 0);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads WHERE key_hash IS NOT NULL").await, 4);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM cap_usage WHERE used = 1").await, 5);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM balances WHERE account LIKE 'buyer:%'").await, 2);
}

pub async fn a_second_lead_under_a_used_key_is_kept_without_it(books: &Books) {
    let leads = [LeadId::generate(), LeadId::generate(), LeadId::generate()];
    let journal = Journal::default();
    for (index, lead) in leads.into_iter().enumerate() {
        let mut arrival = received(lead, "acme");
        arrival.claim = Some(claim("b"));
        journal.append(&Event::Received(arrival));
        journal.append_all(sale(lead, "acme", "sunco").into_iter().skip(1));
        // The second clashes within the batch, the third with the books.
        if index > 0 {
            let settled = books.settle_all(&journal, 1000).await;
            assert_eq!(settled.iter().map(|settled| settled.key_clashes).sum::<usize>(), 1);
        }
    }
    let holder = books.ledger.lead_by_key(&received(leads[0], "acme").publisher, &"b".repeat(64)).await.unwrap();
    assert_eq!(holder.unwrap().place.lead, leads[0]);
    let totals = books.ledger.totals().await.unwrap();
    assert_eq!(totals.leads, [("sold".to_owned(), 3)]);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters").await, 0);
}

pub async fn batches_are_bounded_and_shared_between_partitions(books: &Books) {
    let journal = Journal::default();
    for _ in 0..40 {
        journal.append(&Event::Received(received(LeadId::generate(), "acme")));
    }
    journal.append(&Event::Received(received(LeadId::generate(), "summit")));
    let first = books.ledger.settle(&journal, 12).await.unwrap();
    assert_eq!((first.entries, first.has_more), (12, true));
    assert_eq!(first.marks.len(), 2, "the quiet partition starved: {:?}", first.marks);
    let rest = books.settle_all(&journal, 12).await;
    assert!(rest.iter().all(|settled| settled.entries <= 12));
    assert!(!rest.last().unwrap().has_more);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 41);
    let idle = books.ledger.settle(&journal, 12).await.unwrap();
    assert_eq!((idle.entries, idle.marks.len(), idle.has_more), (0, 0, false));
    assert_eq!(books.ledger.marks(PARTITIONS).await.unwrap().len(), usize::from(PARTITIONS));
}

/// Also when everything is settled a second time, and in the order that a restatement may bring.
pub async fn p10_a_parked_lead_is_told_of_and_a_late_decision_is_only_noted(books: &Books) {
    let journal = Journal::default();
    let lead = LeadId::generate();
    let parked =
        |story: &str| Event::Parked(ParkedLead { lead, publisher: publisher("acme"), explanation: story.to_owned() });
    let with = |outcome: AttemptOutcome, reason: &str| {
        let counted = outcome == AttemptOutcome::InDoubt;
        Event::Attempt(Attempt { counted, reason: Some(reason.into()), ..attempt(lead, "acme", "sunco", outcome) })
    };
    // Nobody is told of a lead that is not in the books.
    journal.append(&Event::Parked(ParkedLead {
        lead: LeadId::generate(),
        publisher: publisher("acme"),
        explanation: "{}".into(),
    }));
    journal.append(&Event::Received(received(lead, "acme")));
    journal.append(&with(AttemptOutcome::InDoubt, "pending until 2026-03-08T13:00:00Z, at most 25.00"));
    journal.append(&parked("{\"a\":1}"));
    books.settle_all(&journal, 100).await;
    let detail = books.ledger.lead_detail(lead).await.unwrap().unwrap();
    assert_eq!((detail.lead.status, detail.lead.explanation.as_deref()), (LeadStatus::Pending, Some("{\"a\":1}")));
    assert!(detail.attempts[0].counted);
    let sum = "SELECT CAST(COALESCE(SUM(used), 0) AS SIGNED) FROM v_cap_usage";
    assert_eq!(books.raw.number(sum).await, 25_000_001);

    journal.append(&with(AttemptOutcome::Declined, "pending_expired"));
    journal.append(&with(AttemptOutcome::Declined, "too_late: accepted"));
    journal.append(&with(AttemptOutcome::Declined, "pending_expired"));
    let mut closed = sold(lead, "acme", "other");
    closed.explanation = "{\"b\":2}".into();
    journal.append(&Event::Closed(closed));
    journal.append(&parked("{\"a\":1}"));
    for _ in 0..2 {
        books.settle_all(&journal, 3).await;
        let detail = books.ledger.lead_detail(lead).await.unwrap().unwrap();
        let row = &detail.attempts[0];
        assert_eq!((row.outcome, row.reason.as_deref()), (AttemptOutcome::Declined, Some("too_late: accepted")));
        assert_eq!((row.counted, detail.lead.explanation.as_deref()), (false, Some("{\"b\":2}")));
        assert_eq!(books.raw.number(sum).await, 0, "P2");
        books.put_marks_back().await;
    }
}
