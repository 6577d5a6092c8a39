//! What goes wrong while settling, and how far it reaches.

use std::sync::Arc;
use std::time::Duration;

use capgate::domain::event::{Attempt, Event, Life, WindowAmount};
use capgate::domain::id::{CapId, LeadId, Partition};
use capgate::domain::money::Micros;
use capgate::domain::outcome::AttemptOutcome;
use capgate::ledger::{Replayed, SettleError};

use crate::events::{attempt, received, sale};
use crate::journal::{Journal, PARTITIONS, partition_of};
use crate::support::Books;

/// Makes the database refuse this lead's attempts, whatever the planner thinks of them.
async fn refuse(books: &Books, lead: LeadId) {
    let hex = lead.to_string().replace('-', "");
    let sql = if books.raw.is_mysql() {
        format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON attempts FOR EACH ROW IF NEW.lead_id = UNHEX('{hex}') THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'canary@example.com'; END IF"
        )
    } else {
        format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON attempts WHEN NEW.lead_id = x'{hex}' BEGIN \
             SELECT RAISE(ABORT, 'canary@example.com'); END"
        )
    };
    books.raw.run(&sql).await;
}

pub async fn f75_only_the_culprit_becomes_a_dead_letter(books: &Books) {
    let culprit = LeadId::generate();
    refuse(books, culprit).await;
    let journal = Journal::default();
    for index in 0..41 {
        if index == 17 {
            journal.append_all(sale(culprit, "acme", "sunco"));
            journal.append_bytes(
                Partition::of("sunco", PARTITIONS),
                Life(0),
                b"{\"v\":1,\"e\":{\"t\":\"attem".to_vec(),
            );
            let negative = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted);
            journal.append(&Event::Attempt(Attempt { price: Micros(-1), ..negative }));
        }
        journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    }
    for _ in 0..2 {
        let settled = books.settle_all(&journal, 1000).await;
        assert_eq!(settled.iter().map(|settled| settled.dead_letters).sum::<usize>(), 3);
        let totals = books.ledger.totals().await.unwrap();
        assert_eq!(totals.leads, [("sold".to_owned(), 42)]);
        assert_eq!(totals.attempts, [("sunco".to_owned(), "accepted".to_owned(), 41)]);
        assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
        assert_eq!(books.raw.number("SELECT used FROM cap_usage WHERE window_start > '1970-01-02'").await, 41);
        let reasons = books.raw.texts("SELECT reason FROM dead_letters ORDER BY reason").await;
        let reasons: Vec<_> = reasons.into_iter().flatten().collect();
        assert_eq!(reasons.len(), 3, "{reasons:?}");
        assert_eq!(reasons[..2], ["an amount is negative", "malformed"]);
        assert!(reasons[2].starts_with("the database refused the row"), "{reasons:?}");
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM dead_letters WHERE LENGTH(event) > 10").await, 3);
        books.put_marks_back().await;
    }
}

pub async fn f75_a_dead_letter_is_replayed_when_its_cause_is_gone(books: &Books) {
    let culprit = LeadId::generate();
    refuse(books, culprit).await;
    let journal = Journal::default();
    journal.append_all(sale(culprit, "acme", "sunco"));
    journal.append_bytes(Partition::of("sunco", PARTITIONS), Life(0), b"{\"v\":1,\"e\":{\"t\":\"attem".to_vec());
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    books.settle_all(&journal, 1000).await;
    let letters = books.ledger.dead_letters(0, 10).await.unwrap();
    assert_eq!(letters.len(), 2);
    assert!(letters.iter().all(|letter| letter.has_event && letter.partition == Partition::of("sunco", PARTITIONS)));
    assert_eq!(books.ledger.dead_letters(letters[0].id, 10).await.unwrap(), letters[1..]);
    let (broken, refused): (Vec<_>, Vec<_>) = letters.iter().partition(|letter| letter.reason == "malformed");
    let replay = async |id| books.ledger.replay(id).await.unwrap();
    assert!(matches!(replay(refused[0].id).await, Replayed::Refused(reason) if !reason.contains("canary")));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 3);

    books.raw.run("DROP TRIGGER refuse").await;
    assert_eq!(replay(broken[0].id).await, Replayed::Refused("malformed".into()));
    assert_eq!(replay(refused[0].id).await, Replayed::Stored);
    assert_eq!(replay(refused[0].id).await, Replayed::Gone);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 6);
    assert_eq!(books.raw.number("SELECT used FROM cap_usage WHERE window_start > '1970-01-02'").await, 2);
    let totals = books.ledger.totals().await.unwrap();
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    books.raw.run("UPDATE dead_letters SET event = NULL").await;
    assert_eq!(replay(broken[0].id).await, Replayed::WithoutEvent);
}

pub async fn f73_an_overflowing_balance_is_refused_and_not_altered(books: &Books) {
    let journal = Journal::default();
    let huge = |lead| Attempt {
        price: Micros(i64::MAX / 2),
        windows: Vec::new(),
        ..attempt(lead, "acme", "sunco", AttemptOutcome::Accepted)
    };
    for _ in 0..4 {
        journal.append(&Event::Attempt(huge(LeadId::generate())));
    }
    journal.append_all(sale(LeadId::generate(), "acme", "volt"));
    let settled = books.settle_all(&journal, 1000).await;
    assert_eq!(settled.iter().map(|settled| settled.dead_letters).sum::<usize>(), 2);
    let totals = books.ledger.totals().await.unwrap();
    let sunco = totals.balances.iter().find(|line| line.0 == "buyer:sunco").unwrap();
    assert_eq!(sunco.2, -(i64::MAX / 2) * 2);
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    assert_eq!(totals.attempts.len(), 2);
}

pub async fn f74_large_batches_and_large_payloads(books: &Books) {
    let journal = Journal::default();
    // 5,000 rows of 19 columns are more placeholders than any one statement may have.
    for _ in 0..5_000 {
        journal.append(&Event::Received(received(LeadId::generate(), "acme")));
    }
    // 400 payloads of 60 KB are more bytes than one packet may have.
    let payload = format!(r#"{{"notes":"{}"}}"#, "ü".repeat(30_000));
    let last = LeadId::generate();
    for index in 0..400 {
        let mut large = received(if index == 399 { last } else { LeadId::generate() }, "acme");
        large.payload.clone_from(&payload);
        journal.append(&Event::Received(large));
    }
    let settled = books.ledger.settle(&journal, 10_000).await.unwrap();
    assert_eq!((settled.entries, settled.dead_letters), (5_400, 0));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 5_400);
    assert_eq!(books.ledger.lead(last).await.unwrap().unwrap().payload.unwrap(), payload);
}

pub async fn f80_an_unknown_version_stops_its_partition_only(books: &Books) {
    let journal = Journal::default();
    let [arrival, _, verdict] = sale(LeadId::generate(), "acme", "sunco");
    let newer = b"{\"v\":9,\"e\":{\"t\":\"novel\"}}";
    journal.append(&arrival);
    journal.append_bytes(partition_of(&arrival), Life(0), newer.to_vec());
    journal.append(&verdict);
    journal.append(&Event::Received(received(LeadId::generate(), "summit")));
    assert_ne!(partition_of(&arrival), Partition::of("summit", PARTITIONS));
    let settled = books.ledger.settle(&journal, 100).await.unwrap();
    assert_eq!((settled.entries, settled.has_more, settled.dead_letters), (2, false, 0));
    assert_eq!(settled.stopped, [partition_of(&arrival)]);
    let again = books.ledger.settle(&journal, 100).await.unwrap();
    assert_eq!((again.entries, again.has_more, again.stopped.len()), (0, false, 1));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads WHERE status = 'pending'").await, 2);

    // A gateway that knows it has come.
    journal.replace(newer, &Event::Received(received(LeadId::generate(), "acme")).to_bytes());
    let settled = books.settle_all(&journal, 100).await;
    assert_eq!((settled[0].entries, settled[0].stopped.len()), (2, 0));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads WHERE status = 'sold'").await, 1);
}

pub async fn f71_a_cancelled_settlement_leaves_no_transaction_behind(books: &Books) {
    let (stalled, begun) = Journal::stalled();
    let ledger = books.ledger.clone();
    let settling = tokio::spawn(async move { ledger.settle(&stalled, 100).await });
    begun.notified().await;
    settling.abort();
    assert!(settling.await.unwrap_err().is_cancelled());
    // Whatever the pool gives out next is not inside the transaction that was cut: everybody sees what it writes.
    for index in 0..8 {
        books.ledger.set_paused(&crate::events::buyer(&format!("buyer{index}")), true).await.unwrap();
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM paused_buyers").await, index + 1);
    }
    // And its locks are gone as soon as the server has noticed.
    let journal = Journal::default();
    journal.append_all(sale(LeadId::generate(), "acme", "sunco"));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while books.ledger.settle(&journal, 100).await.unwrap().entries == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the marks stayed locked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 1);
}

pub async fn a_journal_that_cannot_be_read_holds_up_nobody_else(books: &Books) {
    let journal = Journal::default();
    let events = sale(LeadId::generate(), "acme", "sunco");
    let away = partition_of(&events[1]);
    assert_ne!(away, partition_of(&events[0]));
    journal.append_all(events);
    journal.set_readable(away, false);
    let settled = books.ledger.settle(&journal, 100).await.unwrap();
    assert_eq!(settled.entries, 2);
    assert!(settled.unread.is_some());
    let nothing = books.ledger.settle(&journal, 100).await;
    assert!(matches!(nothing, Err(SettleError::Store(_))), "{nothing:?}");
    journal.set_readable(away, true);
    assert_eq!(books.ledger.settle(&journal, 100).await.unwrap().entries, 1);
}

pub async fn f90_refusals_never_quote_values(books: &Books) {
    let culprit = LeadId::generate();
    refuse(books, culprit).await;
    let journal = Arc::new(Journal::default());
    journal.append_all(sale(culprit, "acme", "sunco"));
    // A cap id that is longer than the books keep.
    let mut event = attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted);
    let cap = CapId::new(&"canary@example.com".repeat(100));
    event.windows = vec![WindowAmount { cap, start_ms: 0, amount: 1 }];
    journal.append(&Event::Attempt(event));
    books.settle_all(&journal, 100).await;
    let reasons: Vec<_> = books.raw.texts("SELECT reason FROM dead_letters").await.into_iter().flatten().collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons.iter().all(|reason| !reason.contains("canary")), "{reasons:?}");
}
