//! What others ask of the books.

use capgate::domain::event::{Attempt, Event, Received};
use capgate::domain::id::{CapId, LeadId, Partition, PublisherId};
use capgate::domain::money::Micros;
use capgate::domain::outcome::AttemptOutcome;
use capgate::domain::window::Window;
use capgate::ledger::CountedAttempt;
use capgate::store::CounterKey;
use jiff::{SignedDuration, Timestamp};

use crate::events::{DAY_MS, PRICE, RECEIVED_US, attempt, buyer, claim, publisher, received, sale, sold, unsold};
use crate::journal::{Journal, PARTITIONS};
use crate::support::Books;

pub async fn views_are_readable(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    journal.append_all(sale(lead, "acme", "sunco"));
    books.settle_all(&journal, 100).await;
    let one = async |sql: &str| books.raw.texts(sql).await.remove(0).unwrap();
    for view in ["v_leads", "v_attempts", "v_entries"] {
        assert_eq!(one(&format!("SELECT lead_id FROM {view}")).await, lead.to_string());
    }
    let time = async |column: &str, view: &str| one(&format!("SELECT CAST({column} AS CHAR) FROM {view}")).await;
    assert_eq!(time("received_at", "v_leads").await, "2026-03-08 12:34:56.789012");
    assert_eq!(time("closed_at", "v_leads").await, "2026-03-08 12:34:56.879012");
    assert_eq!(time("sent_at", "v_attempts").await, "2026-03-08 12:34:56.790012");
    assert_eq!(time("booked_at", "v_entries").await, "2026-03-08 12:34:56.870012");
    assert_eq!(
        time("window_start", "cap_usage WHERE buyer_id = 'sunco' AND used = 1").await,
        "2026-03-08 05:00:00.000000"
    );
    let windows: serde_json::Value = serde_json::from_str(&one("SELECT windows FROM v_attempts").await).unwrap();
    let first = serde_json::json!({"cap": "day", "window_start": "2026-03-08T05:00:00Z", "amount": 1});
    assert_eq!(windows[0], first);
    // The contract's columns, by name.
    for sql in [
        "SELECT lead_id, publisher_id, campaign_id, status, reason, buyer_id, price_micros, payout_micros, currency, test, \
         received_at, closed_at, payload, explanation FROM v_leads",
        "SELECT attempt_id, lead_id, buyer_id, ordinal, outcome, http_status, reason, sent_at, duration_us, windows \
         FROM v_attempts",
        "SELECT entry_id, lead_id, account, amount_micros, currency, kind, booked_at FROM v_entries",
        "SELECT account, currency, balance_micros FROM balances",
        "SELECT buyer_id, cap_id, window_start, used FROM cap_usage",
    ] {
        books.raw.run(sql).await;
    }
}

pub async fn usage_is_read_with_its_mark(books: &Books) {
    let journal = Journal::default();
    for to in ["sunco", "sunco", "volt"] {
        journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", to, AttemptOutcome::Accepted)));
    }
    books.settle_all(&journal, 100).await;
    let at = |ms| Timestamp::from_millisecond(ms).unwrap();
    let key = |to: &str, cap: &str, start| {
        let window = Window { start: at(start), end: None };
        CounterKey { buyer: buyer(to), cap: CapId::new(cap), window }
    };
    let keys = [
        key("sunco", "day", DAY_MS),
        key("sunco", "total:spend", 0),
        key("sunco", "day", DAY_MS + 1),
        key("sunco", "Day", DAY_MS),
        key("volt", "day", DAY_MS),
        key("nobody", "day", DAY_MS),
    ];
    let partition = Partition::of("sunco", PARTITIONS);
    let (mark, used) = books.ledger.usage_snapshot(partition, &keys).await.unwrap();
    assert_eq!(used, [Some(2), Some(50_000_000), None, None, Some(1), None]);
    let marks = books.ledger.marks(PARTITIONS).await.unwrap();
    assert_eq!(mark, marks[usize::from(partition.0)]);
    assert!(mark.entry.ms > 0);
    assert_eq!(books.ledger.usage_snapshot(partition, &[]).await.unwrap().1, []);
    assert!(books.ledger.usage_snapshot(Partition(PARTITIONS), &keys).await.is_err());

    let (all_marks, rows) = books.ledger.usage_all(at(DAY_MS)).await.unwrap();
    assert_eq!((all_marks, rows.len()), (marks, 4));
    let (_, rows) = books.ledger.usage_all(at(DAY_MS + 1)).await.unwrap();
    let mut totals: Vec<_> = rows.iter().map(|row| (row.buyer.as_str(), row.cap.as_str(), row.used)).collect();
    totals.sort_unstable();
    assert_eq!(totals, [("sunco", "total:spend", 50_000_000), ("volt", "total:spend", 25_000_000)]);
}

pub async fn leads_are_found_by_key(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    let mut arrival = received(lead, "acme");
    arrival.claim = Some(claim("c"));
    journal.append(&Event::Received(arrival));
    journal.append(&Event::Closed(unsold(lead, "acme", "capped")));
    books.settle_all(&journal, 100).await;
    let find = async |by: &str, digit: &str| books.ledger.lead_by_key(&publisher(by), &digit.repeat(64)).await.unwrap();
    let found = find("acme", "c").await.unwrap();
    assert_eq!((found.place.lead, found.answer), (lead, Some(unsold(lead, "acme", "capped").answer)));
    assert_eq!(find("acme", "C").await.map(|row| row.place.lead), Some(lead), "hex digits have no case");
    assert_eq!(find("summit", "c").await, None);
    assert_eq!(find("acme", "d").await, None);
    assert!(books.ledger.lead_by_key(&publisher("acme"), "short").await.is_err());
    assert_eq!(books.ledger.lead(LeadId::generate()).await.unwrap(), None);
}

pub async fn a_lead_is_told_with_attempts_and_entries(books: &Books) {
    let lead = LeadId::generate();
    let journal = Journal::default();
    let mut no = attempt(lead, "acme", "volt", AttemptOutcome::Declined);
    // Kept whole up to 200 characters, whatever they are.
    no.reason = Some("ñ".repeat(300));
    let yes = Attempt { ordinal: 2, ..attempt(lead, "acme", "sunco", AttemptOutcome::Accepted) };
    journal.append_all([
        Event::Attempt(yes),
        Event::Attempt(no),
        Event::Received(received(lead, "acme")),
        Event::Closed(sold(lead, "acme", "sunco")),
    ]);
    books.settle_all(&journal, 100).await;
    let detail = books.ledger.lead_detail(lead).await.unwrap().unwrap();
    let attempts: Vec<_> = detail.attempts.iter().map(|row| (row.ordinal, row.buyer.as_str(), row.outcome)).collect();
    assert_eq!(attempts, [(1, "volt", AttemptOutcome::Declined), (2, "sunco", AttemptOutcome::Accepted)]);
    assert_eq!(detail.attempts[0].reason.as_deref(), Some("ñ".repeat(200).as_str()));
    assert_eq!((detail.attempts[0].counted, detail.attempts[1].counted), (false, true));
    assert_eq!(detail.attempts[1].http_status, Some(200));
    assert_eq!(detail.attempts[1].sent_at.as_microsecond(), RECEIVED_US + 1_000);
    assert_eq!(detail.attempts[1].duration_us, 80_000);
    assert_eq!(detail.attempts[1].price, PRICE);
    assert_eq!(detail.entries.len(), 3);
    assert_eq!(detail.entries.iter().map(|row| row.amount.0).sum::<i64>(), 0);
    assert!(detail.entries.iter().all(|row| row.kind == "sale"));
    assert_eq!(detail.lead, books.ledger.lead(lead).await.unwrap().unwrap());
}

pub async fn counted_attempts_carry_what_a_new_cap_needs(books: &Books) {
    let (known, unknown) = (LeadId::generate(), LeadId::generate());
    let journal = Journal::default();
    journal.append_all(sale(known, "acme", "sunco"));
    let doubt = attempt(unknown, "summit", "sunco", AttemptOutcome::InDoubt);
    journal.append(&Event::Attempt(Attempt { price: Micros(7), sent_at_us: RECEIVED_US + 5_000, ..doubt }));
    journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Declined)));
    journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "volt", AttemptOutcome::Accepted)));
    books.settle_all(&journal, 100).await;
    let at = |us| Timestamp::from_microsecond(us).unwrap();
    let span = |start, end: Option<i64>| Window { start: at(start), end: end.map(at) };
    let sunco = buyer("sunco");
    // Page by page comes to the same as all at once.
    let read = async |span: Window, page: usize| {
        let mut rows: Vec<CountedAttempt> = Vec::new();
        loop {
            let after = rows.last().map(|row| row.place);
            let more = books.ledger.counted_attempts(&sunco, &span, after.as_ref(), page, true).await.unwrap();
            assert!(more.len() <= page);
            let is_last = more.len() < page;
            rows.extend(more);
            if is_last {
                return rows;
            }
        }
    };
    let rows = read(span(RECEIVED_US, None), 100).await;
    assert_eq!(read(span(RECEIVED_US, None), 1).await, rows);
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[1].publisher.as_str(), &rows[1].payload, rows[1].place.lead), ("summit", &None, unknown));
    assert_eq!((rows[0].outcome, rows[1].outcome), (AttemptOutcome::Accepted, AttemptOutcome::InDoubt));
    assert_eq!(rows[0].payload, Some(received(known, "acme").payload));
    assert!(!rows[0].windows.is_empty());
    let bare = books.ledger.counted_attempts(&sunco, &span(RECEIVED_US, None), None, 9, false).await.unwrap();
    assert!(bare.iter().all(|row| row.payload.is_none()));
    assert_eq!(bare[0].windows, rows[0].windows);
    let sum = async |span: Window, publisher: Option<&str>| {
        let publisher = publisher.map(|id| PublisherId::new(id).unwrap());
        let sum = books.ledger.counted_sum(&sunco, &span, publisher.as_ref()).await.unwrap();
        (sum.leads, sum.price)
    };
    let price = u64::try_from(PRICE.0).unwrap();
    assert_eq!(sum(span(RECEIVED_US, None), None).await, (2, price + 7));
    assert_eq!(sum(span(RECEIVED_US, None), Some("acme")).await, (1, price));
    assert_eq!(sum(span(RECEIVED_US, None), Some("nobody")).await, (0, 0));
    // Half-open: the start is inside, the end is not.
    for (start, expected) in [(RECEIVED_US + 1_000, 1), (RECEIVED_US + 1_001, 0)] {
        let span = span(start, Some(RECEIVED_US + 5_000));
        assert_eq!(read(span, 100).await.len(), expected);
        assert_eq!(sum(span, None).await.0, expected as u64);
    }
}

pub async fn doubts_are_listed_from_the_oldest_on_page_by_page(books: &Books) {
    let journal = Journal::default();
    let mut expected = Vec::new();
    for index in 0..7_i64 {
        let lead = LeadId::generate();
        // Three at one instant, so that pages end between attempts that only their leads tell apart; the last are the oldest.
        let sent_at_us = RECEIVED_US - 1_000 * (index / 3);
        let doubt = attempt(lead, "acme", "sunco", AttemptOutcome::InDoubt);
        let reason = Some("gateway_lost".to_owned());
        journal.append(&Event::Attempt(Attempt { sent_at_us, counted: index % 2 == 0, reason, ..doubt }));
        expected.push((sent_at_us, lead, index % 2 == 0));
    }
    expected.sort_unstable();
    let resolved = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::InDoubt);
    journal.append(&Event::Attempt(resolved.clone()));
    journal.append(&Event::Attempt(Attempt { outcome: AttemptOutcome::Declined, counted: false, ..resolved }));
    journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "volt", AttemptOutcome::InDoubt)));
    journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted)));
    books.settle_all(&journal, 100).await;
    for page in [1, 2, 3, 100] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let rows = books.ledger.doubts(&buyer("sunco"), after.as_ref(), page).await.unwrap();
            assert!(rows.len() <= page);
            let Some(last) = rows.last() else { break };
            assert_eq!(last.reason.as_deref(), Some("gateway_lost"));
            after = Some(last.place);
            found.extend(rows.iter().map(|row| (row.place.sent_at.as_microsecond(), row.place.lead, row.counted)));
        }
        assert_eq!(found, expected, "in pages of {page}");
    }
    assert_eq!(books.ledger.doubts(&buyer("nobody"), None, 10).await.unwrap(), []);
}

pub async fn paused_buyers_are_remembered(books: &Books) {
    for (id, is_paused) in [("sunco", true), ("volt", true), ("sunco", true), ("volt", false), ("ray", false)] {
        books.ledger.set_paused(&buyer(id), is_paused).await.unwrap();
    }
    assert_eq!(books.ledger.paused_buyers().await.unwrap(), [buyer("sunco")]);
}

pub async fn payloads_are_removed_and_rows_stay(books: &Books) {
    let journal = Journal::default();
    let leads: Vec<_> = (0..5).map(|_| LeadId::generate()).collect();
    for (index, lead) in (0..).zip(&leads) {
        let mut arrival = received(*lead, "acme");
        arrival.received_at_us += index * 1_000_000;
        journal.append(&Event::Received(arrival));
    }
    journal.append_bytes(Partition(0), capgate::domain::event::Life(0), b"canary@example.com".to_vec());
    books.settle_all(&journal, 100).await;
    books.raw.run("UPDATE dead_letters SET at = '2026-03-08 00:00:00.000000'").await;
    let before = Timestamp::from_microsecond(RECEIVED_US).unwrap() + SignedDuration::from_secs(3);
    assert_eq!(books.ledger.remove_payloads(before, 2).await.unwrap(), 2);
    // A payload, and the event of a dead letter.
    assert_eq!(books.ledger.remove_payloads(before, 100).await.unwrap(), 2);
    assert_eq!(books.ledger.remove_payloads(before, 100).await.unwrap(), 0);
    for (index, lead) in leads.iter().enumerate() {
        let row = books.ledger.lead(*lead).await.unwrap().unwrap();
        assert_eq!(row.payload.is_some(), index >= 3, "lead {index}");
    }
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters WHERE event IS NULL").await, 1);
    // Told again, a removed payload does not come back.
    books.put_marks_back().await;
    books.settle_all(&journal, 100).await;
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads WHERE payload IS NOT NULL").await, 2);
}

pub async fn a_backlog_of_payloads_is_removed_by_several_gateways_at_once(books: &Books) {
    const OLD: usize = 2_500;
    let journal = Journal::default();
    for number in 0..OLD + 100 {
        let lead = LeadId::generate();
        for event in sale(lead, "acme", "sunco") {
            journal.append(&match event {
                Event::Received(arrival) if number >= OLD => {
                    Event::Received(Received { received_at_us: RECEIVED_US + 10_000_000, ..arrival })
                }
                other => other,
            });
        }
    }
    for number in 0..1_200 {
        journal.append_bytes(Partition(0), capgate::domain::event::Life(0), format!("canary {number}").into_bytes());
    }
    books.settle_all(&journal, 1_000).await;
    books.raw.run("UPDATE dead_letters SET at = '2026-03-08 00:00:00.000000'").await;
    let sums = async || {
        let mut sums = Vec::new();
        for sql in [
            "SELECT COUNT(*) FROM leads WHERE status = 'sold' AND answer IS NOT NULL AND explanation IS NOT NULL",
            "SELECT CAST(SUM(ABS(amount_micros)) AS SIGNED) FROM entries",
            "SELECT CAST(SUM(ABS(balance_micros)) AS SIGNED) FROM balances",
            "SELECT CAST(SUM(used) AS SIGNED) FROM cap_usage",
            "SELECT COUNT(*) FROM dead_letters",
        ] {
            sums.push(books.raw.number(sql).await);
        }
        sums
    };
    let before = sums().await;
    let until = Timestamp::from_microsecond(RECEIVED_US).unwrap() + SignedDuration::from_secs(5);
    let others = [books.open_again().await, books.open_again().await];
    let remove = async |ledger: &dyn capgate::ledger::Ledger| {
        let (mut removed, mut largest) = (0, 0);
        loop {
            // In steps, as the gateway does it; another gateway may be in the way for a moment.
            match ledger.remove_payloads(until, 400).await {
                Ok(0) => return (removed, largest),
                Ok(count) => (removed, largest) = (removed + count, largest.max(count)),
                Err(capgate::ledger::LedgerError::NotDone(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let (first, second, third) = tokio::join!(remove(&*books.ledger), remove(&*others[0]), remove(&*others[1]));
    // Each row was found by somebody; several may have found the same.
    assert!(first.0 + second.0 + third.0 >= OLD as u64 + 1_200, "{first:?} {second:?} {third:?}");
    assert!([first, second, third].iter().all(|(_, largest)| *largest <= 400), "{first:?} {second:?} {third:?}");
    assert_eq!(
        books.raw.number("SELECT COUNT(*) FROM leads WHERE payload IS NOT NULL").await,
        100,
        "younger ones stay"
    );
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters WHERE event IS NOT NULL").await, 0);
    assert_eq!(sums().await, before, "rows and money stay");
    for other in others {
        other.shut_down().await;
    }
}

pub async fn totals_find_books_that_do_not_balance(books: &Books) {
    let journal = Journal::default();
    for _ in 0..3 {
        journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    }
    books.settle_all(&journal, 100).await;
    let unbalanced = async || {
        let totals = books.ledger.totals().await.unwrap();
        (totals.unbalanced_leads, totals.unbalanced_accounts)
    };
    assert_eq!(unbalanced().await, (0, 0));
    books.raw.run("UPDATE balances SET balance_micros = balance_micros + 1 WHERE account = 'margin'").await;
    assert_eq!(unbalanced().await, (0, 1));
    books.raw.run("UPDATE entries SET amount_micros = amount_micros + 1 WHERE account = 'margin'").await;
    assert_eq!(unbalanced().await, (3, 1));
    books.raw.run("DELETE FROM balances WHERE account = 'buyer:sunco'").await;
    assert_eq!(unbalanced().await, (3, 2));
}

/// The SQL of the page, with the heading that it stands under.
fn named_queries() -> Vec<(&'static str, &'static str)> {
    let page = include_str!("../../docs/ledger.md");
    let query = |part: &'static str| {
        let (name, rest) = part.split_once('\n').unwrap();
        let sql = rest.split_once("```sql\n").unwrap().1.split_once("```").unwrap().0;
        (name, sql.trim().trim_end_matches(';'))
    };
    page.split("\n#### ").skip(1).map(query).collect()
}

pub async fn the_named_queries_of_the_page_go_over_an_index(books: &Books) {
    let journal = Journal::default();
    let known: LeadId = "0195a0c2-7d3e-7c4b-8a1f-0242ac120002".parse().unwrap();
    journal.append_all(sale(known, "acme", "sunco"));
    for index in 0..1_000 {
        let (by, to) = (["acme", "summit", "peak"][index % 3], ["sunco", "volt", "ray", "glow"][index % 4]);
        journal.append_all(sale(LeadId::generate(), by, to));
    }
    books.settle_all(&journal, 5_000).await;
    let queries = named_queries();
    assert!(queries.len() >= 6, "{queries:?}");
    for (name, sql) in queries {
        books.raw.run(sql).await;
        for (table, access) in books.raw.plan(sql).await {
            let is_by_index =
                if books.raw.is_mysql() { access != "ALL" && access != "index" } else { !access.starts_with("SCAN") };
            assert!(is_by_index, "{name}: {table}: {access}");
        }
        if name.ends_with("of a lead") || name.ends_with("by its id") || name.ends_with("owes") {
            assert!(!books.raw.texts(sql).await.is_empty(), "{name}: found nothing");
        }
    }
}
