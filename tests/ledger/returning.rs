//! A buyer gives a lead back: the sale reversed, once.

use capgate::clock::{Clock, SystemClock};
use capgate::domain::event::{Attempt, Event, Returned, SaleMoney};
use capgate::domain::id::LeadId;
use capgate::domain::money::Micros;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::ledger::audit::Period;
use jiff::SignedDuration;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;

use crate::events::{PAYOUT, PRICE, RECEIVED_US, attempt, buyer, publisher, sale, usd};
use crate::journal::Journal;
use crate::support::Books;

const RETURNED_US: i64 = RECEIVED_US + 3 * 24 * 3_600 * 1_000_000;

fn returned(lead: LeadId, by: &str, to: &str, frees_cap: bool) -> Returned {
    Returned {
        lead,
        buyer: buyer(to),
        publisher: publisher(by),
        reason: "no such number".into(),
        returned_at_us: RETURNED_US,
        sale: SaleMoney { price: PRICE, payout: PAYOUT, currency: usd() },
        frees_cap,
        windows: if frees_cap { attempt(lead, by, to, AttemptOutcome::Accepted).windows } else { vec![] },
    }
}

async fn used(books: &Books, cap: &str) -> i64 {
    let sql = format!("SELECT CAST(COALESCE(SUM(used), 0) AS SIGNED) FROM v_cap_usage WHERE cap_id = '{cap}'");
    books.raw.number(&sql).await
}

async fn findings(books: &Books) -> Vec<String> {
    let until = SystemClock.now() + SignedDuration::from_mins(10);
    let audit = books.ledger.audit(Period { since: None, until }, &|_| ()).await.unwrap();
    audit.findings.iter().map(ToString::to_string).collect()
}

pub async fn p6_a_return_is_the_sale_the_other_way_round(books: &Books) {
    let journal = Journal::default();
    let (kept, freed, other) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    for lead in [kept, freed, other] {
        journal.append_all(sale(lead, "acme", "sunco"));
    }
    books.settle_all(&journal, 100).await;
    let before = books.ledger.lead_detail(freed).await.unwrap().unwrap();
    journal.append(&Event::Returned(returned(kept, "acme", "sunco", false)));
    journal.append(&Event::Returned(returned(freed, "acme", "sunco", true)));
    books.settle_all(&journal, 100).await;

    let detail = books.ledger.lead_detail(freed).await.unwrap().unwrap();
    assert_eq!(detail.entries[..3], before.entries, "old lines stay as they are");
    for (line, old) in detail.entries[3..].iter().zip(&before.entries) {
        assert_eq!((line.kind.as_str(), line.amount.0, &line.account), ("return", -old.amount.0, &old.account));
        assert_eq!((line.booked_at.as_microsecond(), &line.buyer), (RETURNED_US, &old.buyer));
    }
    assert_eq!((detail.entries.len(), detail.lead.status), (6, LeadStatus::Sold), "it was sold");
    assert_eq!((detail.lead.price, detail.lead.payout), (Some(PRICE), Some(PAYOUT)));
    assert_eq!((detail.attempts[0].outcome, detail.attempts[0].counted), (AttemptOutcome::Accepted, false));
    let row = &detail.returns[0];
    assert_eq!((row.reason.as_str(), row.frees_cap), ("no such number", true));
    assert_eq!((row.returned_at.as_microsecond(), &row.buyer), (RETURNED_US, &buyer("sunco")));
    let detail = books.ledger.lead_detail(kept).await.unwrap().unwrap();
    assert!(detail.attempts[0].counted && !detail.returns[0].frees_cap, "the cap is kept unless agreed otherwise");
    assert_eq!((used(books, "day").await, used(books, "total:spend").await), (2, 50_000_000));

    let totals = books.ledger.totals().await.unwrap();
    let balance = |account: &str| totals.balances.iter().find(|line| line.0 == account).map(|line| line.2);
    assert_eq!(balance("buyer:sunco"), Some(-PRICE.0), "one sale of three is left");
    assert_eq!((balance("publisher:acme"), balance("margin")), (Some(PAYOUT.0), Some(PRICE.0 - PAYOUT.0)));
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    assert_eq!(findings(books).await, Vec::<String>::new());
    let text = format!("SELECT COUNT(*) FROM v_returns WHERE lead_id = '{freed}' AND frees_cap = 1");
    assert_eq!(books.raw.number(&text).await, 1);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM v_entries WHERE kind = 'return'").await, 6);
}

pub async fn f72_a_return_is_booked_once_in_whatever_batches(books: &Books) {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let leads: Vec<LeadId> = (0..20).map(|_| LeadId::generate()).collect();
    let journal = Journal::default();
    for lead in &leads {
        journal.append_all(sale(*lead, "acme", "sunco"));
    }
    books.settle_all(&journal, 100).await;
    // Two gateways that each gave it back, with words and terms of their own: the first one counts.
    let mut events: Vec<Event> = leads
        .iter()
        .flat_map(|lead| {
            let event = Event::Returned(returned(*lead, "acme", "sunco", true));
            [event.clone(), event.clone(), event]
        })
        .collect();
    events.shuffle(&mut rng);
    journal.append_all(events);
    for _ in 0..2 {
        books.settle_all(&journal, 7).await;
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries WHERE kind = 'return'").await, 60);
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM returns").await, 20);
        assert_eq!((used(books, "day").await, used(books, "total:spend").await), (0, 0));
        let totals = books.ledger.totals().await.unwrap();
        assert!(totals.balances.iter().all(|line| line.2 == 0), "{totals:?}");
        assert_eq!(findings(books).await, Vec::<String>::new());
        // Everything is told again, as after a loss.
        books.put_marks_back().await;
    }
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters").await, 0);
}

pub async fn p6_a_sale_and_its_return_in_one_batch(books: &Books) {
    let (lead, second) = (LeadId::generate(), LeadId::generate());
    let journal = Journal::default();
    journal.append_all(sale(lead, "acme", "sunco"));
    journal.append(&Event::Returned(returned(lead, "acme", "sunco", true)));
    // The second buyer of a lead was charged alone; its return takes back what it was charged.
    journal.append_all(sale(second, "acme", "volt"));
    let late = attempt(second, "acme", "sunco", AttemptOutcome::LateAccepted);
    journal.append(&Event::Attempt(Attempt { books: true, payout: Micros(0), ..late }));
    let money = SaleMoney { price: PRICE, payout: Micros(0), currency: usd() };
    journal.append(&Event::Returned(Returned { sale: money, ..returned(second, "acme", "sunco", false) }));
    books.settle_all(&journal, 100).await;
    let detail = books.ledger.lead_detail(lead).await.unwrap().unwrap();
    assert_eq!((detail.entries.len(), detail.returns.len(), detail.attempts[0].counted), (6, 1, false));
    let balances = books.ledger.totals().await.unwrap().balances;
    assert!(balances.contains(&("publisher:acme".into(), "USD".into(), PAYOUT.0)), "{balances:?}");
    assert!(balances.contains(&("buyer:sunco".into(), "USD".into(), 0)), "{balances:?}");
    assert_eq!(used(books, "day").await, 2);
    assert_eq!(findings(books).await, Vec::<String>::new());
}

pub async fn p6_nothing_is_reversed_that_was_never_booked(books: &Books) {
    let journal = Journal::default();
    let (declined, unknown) = (LeadId::generate(), LeadId::generate());
    let no = Attempt { counted: false, ..attempt(declined, "acme", "sunco", AttemptOutcome::Declined) };
    journal.append(&Event::Attempt(no));
    for lead in [declined, unknown] {
        journal.append(&Event::Returned(returned(lead, "acme", "sunco", true)));
    }
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    books.settle_all(&journal, 100).await;
    let reasons = books.ledger.dead_letters(0, 10).await.unwrap();
    assert_eq!(reasons.len(), 2);
    assert!(reasons.iter().all(|letter| letter.reason.contains("not in the books")), "{reasons:?}");
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM returns").await, 0);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 3, "the rest went on");
    assert_eq!(used(books, "day").await, 1);
}

pub async fn p6_an_audit_finds_a_return_that_is_not_its_sale(books: &Books) {
    let journal = Journal::default();
    let lead = LeadId::generate();
    journal.append_all(sale(lead, "acme", "sunco"));
    journal.append(&Event::Returned(returned(lead, "acme", "sunco", true)));
    books.settle_all(&journal, 100).await;
    assert_eq!(findings(books).await, Vec::<String>::new());
    let of = |account: &str| format!("WHERE kind = 'return' AND account = '{account}'");
    // The same sum, other accounts: only the comparison with the sale sees it, and the balances.
    for (account, by) in [("margin", 1), ("publisher:acme", -1)] {
        books.raw.run(&format!("UPDATE entries SET amount_micros = amount_micros + {by} {}", of(account))).await;
        books
            .raw
            .run(&format!("UPDATE balances SET balance_micros = balance_micros + {by} WHERE account = '{account}'"))
            .await;
    }
    let found = findings(books).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|text| text.contains("return by sunco")), "{found:?}");
    books.raw.run("DELETE FROM entries WHERE kind = 'sale'").await;
    let found = findings(books).await;
    assert!(
        found.iter().any(|text| text.contains("return by sunco: buyer:sunco has 25.00 booked, not 0.00")),
        "{found:?}"
    );
}
