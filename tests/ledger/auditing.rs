//! What an audit finds, and what it leaves alone.

use capgate::clock::{Clock, SystemClock};
use capgate::domain::event::{Attempt, Closed, Event};
use capgate::domain::id::{CapId, LeadId};
use capgate::domain::money::Micros;
use capgate::domain::outcome::AttemptOutcome;
use capgate::domain::window::Window;
use capgate::ledger::audit::{Audit, Finding, Period};
use capgate::store::CounterKey;
use jiff::{SignedDuration, Timestamp};

use crate::events::{DAY_MS, attempt, buyer, received, sale, sold, unsold};
use crate::journal::Journal;
use crate::support::Books;

async fn audit(books: &Books, since: Option<Timestamp>) -> Audit {
    // Leads get their ids now, whatever time their events name.
    let until = SystemClock.now() + SignedDuration::from_mins(10);
    books.ledger.audit(Period { since, until }, &|_| ()).await.unwrap()
}

/// One lead of each kind.
async fn mixed(books: &Books) -> LeadId {
    let journal = Journal::default();
    let first = LeadId::generate();
    journal.append_all(sale(first, "acme", "sunco"));
    // Declined, then in doubt, and unsold.
    let lead = LeadId::generate();
    journal.append(&Event::Received(received(lead, "acme")));
    let declined = Attempt { counted: false, ..attempt(lead, "acme", "sunco", AttemptOutcome::Declined) };
    journal.append(&Event::Attempt(declined));
    journal.append(&Event::Attempt(attempt(lead, "acme", "volt", AttemptOutcome::InDoubt)));
    journal.append(&Event::Closed(unsold(lead, "acme", "unavailable")));
    // Sold by a late yes, at another price than was offered; its closing event books it.
    let lead = LeadId::generate();
    journal.append(&Event::Received(received(lead, "acme")));
    journal.append(&Event::Attempt(attempt(lead, "acme", "sunco", AttemptOutcome::LateAccepted)));
    let terms = sold(lead, "acme", "sunco");
    let sale_money = terms.sale.map(|sale| capgate::domain::event::SaleMoney { price: Micros(26_000_000), ..sale });
    journal.append(&Event::Closed(Closed { books: true, sale: sale_money, ..terms }));
    // Sold, and contested by a late yes that nobody has resolved.
    let lead = LeadId::generate();
    journal.append_all(sale(lead, "beta", "volt"));
    journal.append(&Event::Attempt(attempt(lead, "beta", "sunco", AttemptOutcome::LateAccepted)));
    // The same, resolved: the second buyer is charged and the publisher gets nothing more.
    let lead = LeadId::generate();
    journal.append_all(sale(lead, "beta", "volt"));
    let resolved =
        Attempt { books: true, payout: Micros(0), ..attempt(lead, "beta", "sunco", AttemptOutcome::LateAccepted) };
    journal.append(&Event::Attempt(resolved));
    // On its walk.
    journal.append(&Event::Received(received(LeadId::generate(), "acme")));
    books.settle_all(&journal, 100).await;
    first
}

pub async fn p6_an_audit_of_good_books_finds_nothing(books: &Books) {
    assert_eq!(audit(books, None).await, Audit::default());
    mixed(books).await;
    let found = audit(books, None).await;
    assert_eq!((found.findings.as_slice(), found.found), (&[][..], 0));
    assert_eq!((found.leads, found.attempts, found.entries, found.accounts), (6, 8, 15, 5));
    // Two buyers with a day and a total each.
    assert_eq!(found.windows, 4);
    let later = audit(books, Some(SystemClock.now() + SignedDuration::from_mins(5))).await;
    assert_eq!((later.leads, later.windows, later.accounts), (0, 0, 5));
    // The window of the day, and not the one of all time.
    assert_eq!(audit(books, Some(Timestamp::from_millisecond(DAY_MS).unwrap())).await.windows, 2);
}

pub async fn p6_an_audit_finds_each_row_that_was_changed_by_hand(books: &Books) {
    let lead = mixed(books).await;
    let hex = lead.to_string().replace('-', "").to_uppercase();
    let of_lead = format!("HEX(lead_id) = '{hex}'");
    for (change, back, expected) in [
        (
            format!("UPDATE entries SET amount_micros = amount_micros + 1 WHERE {of_lead} AND account = 'margin'"),
            format!("UPDATE entries SET amount_micros = amount_micros - 1 WHERE {of_lead} AND account = 'margin'"),
            vec!["unbalanced", "wrong_line", "wrong_balance"],
        ),
        (
            format!("UPDATE entries SET buyer_id = 'volt' WHERE {of_lead}"),
            format!("UPDATE entries SET buyer_id = 'sunco' WHERE {of_lead}"),
            vec!["missing_sale", "unearned_sale"],
        ),
        (
            "UPDATE balances SET balance_micros = balance_micros - 5 WHERE account = 'buyer:sunco'".to_owned(),
            "UPDATE balances SET balance_micros = balance_micros + 5 WHERE account = 'buyer:sunco'".to_owned(),
            vec!["wrong_balance"],
        ),
        (
            "UPDATE cap_usage SET used = used + 1 WHERE buyer_id = 'volt' AND cap_id = 'day'".to_owned(),
            "UPDATE cap_usage SET used = used - 1 WHERE buyer_id = 'volt' AND cap_id = 'day'".to_owned(),
            vec!["wrong_usage"],
        ),
        (
            format!("UPDATE attempts SET counted = 0 WHERE {of_lead}"),
            format!("UPDATE attempts SET counted = 1 WHERE {of_lead}"),
            vec!["wrong_usage", "wrong_usage"],
        ),
        (
            format!("UPDATE attempts SET outcome = 'declined' WHERE {of_lead}"),
            format!("UPDATE attempts SET outcome = 'accepted' WHERE {of_lead}"),
            vec!["unearned_sale"],
        ),
        (
            format!("UPDATE attempts SET price_micros = 24000000 WHERE {of_lead}"),
            format!("UPDATE attempts SET price_micros = 25000000 WHERE {of_lead}"),
            vec![],
        ),
        (
            format!("UPDATE leads SET price_micros = 24000000 WHERE {of_lead}"),
            format!("UPDATE leads SET price_micros = 25000000 WHERE {of_lead}"),
            vec!["wrong_line", "wrong_line"],
        ),
        (
            format!("UPDATE leads SET status = 'unsold' WHERE {of_lead}"),
            format!("UPDATE leads SET status = 'sold' WHERE {of_lead}"),
            vec!["wrong_verdict"],
        ),
        (
            format!("UPDATE leads SET has_received = 0 WHERE {of_lead}"),
            format!("UPDATE leads SET has_received = 1 WHERE {of_lead}"),
            vec!["never_received"],
        ),
        (
            format!("UPDATE leads SET test = 1 WHERE {of_lead}"),
            format!("UPDATE leads SET test = 0 WHERE {of_lead}"),
            vec!["test_lead_counted"],
        ),
    ] {
        books.raw.run(&change).await;
        let found = audit(books, None).await;
        let words: Vec<_> = found
            .findings
            .iter()
            .map(|finding| serde_json::to_value(finding).unwrap()["finding"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(words, expected, "{change}: {:?}", found.findings);
        assert!(found.findings.iter().all(|finding| !finding.to_string().is_empty()));
        books.raw.run(&back).await;
    }
    assert!(audit(books, None).await.is_clean());
    books.raw.run(&format!("DELETE FROM entries WHERE {of_lead}")).await;
    let found = audit(books, None).await;
    assert!(matches!(found.findings[0], Finding::MissingSale { .. }), "{:?}", found.findings);
    // Three accounts miss their lines.
    assert_eq!(found.found, 4);
}

pub async fn p2_a_caps_past_is_part_of_its_usage(books: &Books) {
    let window = Window { start: Timestamp::from_millisecond(DAY_MS).unwrap(), end: None };
    let key = |cap: &str| CounterKey { buyer: buyer("sunco"), cap: CapId::new(cap), window };
    books.ledger.begin_usage(&[(key("day"), 7), (key("day:spend"), 0)]).await.unwrap();
    let journal = Journal::default();
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    books.settle_all(&journal, 100).await;
    // Somebody else begins it once more, with what it holds by now.
    books.ledger.begin_usage(&[(key("day"), 8), (key("day:spend"), 9)]).await.unwrap();
    assert_eq!(books.raw.number("SELECT used FROM cap_usage WHERE cap_id = 'day'").await, 8);
    let found = audit(books, None).await;
    assert_eq!(found.findings, []);
    assert_eq!(found.windows, 3);
}

pub async fn an_audit_goes_page_by_page(books: &Books) {
    let journal = Journal::default();
    for _ in 0..1_500 {
        journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    }
    books.settle_all(&journal, 1_000).await;
    let found = audit(books, None).await;
    assert_eq!(found.findings, []);
    assert_eq!((found.leads, found.attempts, found.entries), (1_500, 1_500, 4_500));
    books.raw.run("UPDATE entries SET amount_micros = amount_micros * 2").await;
    let found = audit(books, None).await;
    assert_eq!(found.found, 3 * 1_500 + 3);
    assert_eq!(found.findings.len(), 1_000);
}
