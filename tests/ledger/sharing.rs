//! Several gateways over the same books.

use capgate::domain::event::{EntryId, Event, Life, Mark};
use capgate::domain::id::{CapId, LeadId, Partition};
use capgate::domain::outcome::AttemptOutcome;
use capgate::domain::window::Window;
use capgate::ledger::Ledger;
use capgate::ledger::{LedgerError, Raise, SettleError};
use capgate::store::CounterKey;
use jiff::Timestamp;

use crate::events::{DAY_MS, attempt, buyer, received, sale};
use crate::journal::{Journal, PARTITIONS};
use crate::support::Books;

pub async fn two_settlers_at_once_settle_everything_once(books: &Books) {
    let journal = Journal::default();
    for index in 0..400 {
        let (by, to) = (["acme", "summit"][index % 2], ["sunco", "volt", "ray"][index % 3]);
        journal.append_all(sale(LeadId::generate(), by, to));
    }
    let other = books.open_again().await;
    let settle = async |ledger: &dyn Ledger| {
        let (mut entries, mut idle) = (0, 0);
        // The other one may hold all marks for a while: done is when nothing has come for some rounds.
        while idle < 5 {
            match ledger.settle(&journal, 37).await {
                Ok(settled) => {
                    entries += settled.entries;
                    idle = if settled.entries == 0 { idle + 1 } else { 0 };
                }
                Err(SettleError::Ledger(LedgerError::NotDone(_))) => {}
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
        entries
    };
    let (mine, theirs) = tokio::join!(settle(books.ledger.as_ref()), settle(other.as_ref()));
    let left: usize = books.settle_all(&journal, 1000).await.iter().map(|settled| settled.entries).sum();
    println!("one settled {mine}, the other {theirs}, {left} were left");
    assert_eq!(mine + theirs + left, 1200);
    let totals = books.ledger.totals().await.unwrap();
    assert_eq!(totals.leads, [("sold".to_owned(), 400)]);
    assert_eq!(totals.attempts.iter().map(|line| line.2).sum::<u64>(), 400);
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM entries").await, 1200);
    let sql = "SELECT CAST(SUM(used) AS SIGNED) FROM cap_usage WHERE window_start > '1970-01-02'";
    assert_eq!(books.raw.number(sql).await, 400);
    other.shut_down().await;
}

pub async fn p2_usage_and_mark_are_of_one_instant(books: &Books) {
    let journal = Journal::default();
    for _ in 0..300 {
        journal.append(&Event::Attempt(attempt(LeadId::generate(), "acme", "sunco", AttemptOutcome::Accepted)));
    }
    let window = Window { start: Timestamp::from_millisecond(DAY_MS).unwrap(), end: None };
    let key = [CounterKey { buyer: buyer("sunco"), cap: CapId::new("day"), window }];
    let partition = Partition::of("sunco", PARTITIONS);
    let everything = Mark { partition, life: Life(0), entry: EntryId::default() };
    let entries = journal.read_now(&everything, usize::MAX).unwrap();
    let (ledger, source) = (books.ledger.clone(), journal.clone());
    let settling = tokio::spawn(async move { while ledger.settle(&source, 4).await.unwrap().entries > 0 {} });
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let is_last = settling.is_finished();
        let (mark, used) = books.ledger.usage_snapshot(partition, &key).await.unwrap();
        let settled = entries.iter().filter(|entry| entry.id <= mark.entry).count();
        assert_eq!(used[0].unwrap_or(0), u64::try_from(settled).unwrap(), "at {}", mark.entry);
        seen.insert(settled);
        if is_last {
            break;
        }
    }
    settling.await.unwrap();
    assert!(seen.len() > 3 && seen.contains(&300), "the reads never met a settlement: {seen:?}");
}

pub async fn a_new_life_starts_with_an_empty_mark(books: &Books) {
    let journal = Journal::default();
    let event = Event::Received(received(LeadId::generate(), "acme"));
    let partition = Partition::of("acme", PARTITIONS);
    journal.append(&event);
    books.settle_all(&journal, 10).await;
    let raise = async |to: u64, server: &str| {
        let raise = Raise { partition, from: Life(0), to: Life(to), server: server.into() };
        books.ledger.raise_lives(&[raise]).await.unwrap()
    };
    assert_eq!(raise(3, "a").await, [partition]);
    assert_eq!(raise(4, "b").await, [], "the second gateway was first too");
    let marks = books.ledger.marks(PARTITIONS).await.unwrap();
    let mark = marks.iter().find(|mark| mark.partition == partition).unwrap();
    assert_eq!((mark.life, mark.entry), (Life(3), EntryId::default()));
    assert!(marks.iter().filter(|mark| mark.partition != partition).all(|mark| mark.life == Life(0)));
    // Restated under the new life beside something new.
    journal.append_bytes(partition, Life(3), event.to_bytes());
    journal.append_bytes(partition, Life(3), Event::Received(received(LeadId::generate(), "acme")).to_bytes());
    let settled = books.settle_all(&journal, 10).await;
    assert_eq!((settled[0].entries, settled[0].marks[0].life), (2, Life(3)));
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 2);
}

pub async fn the_number_of_partitions_is_written_down(books: &Books) {
    for other in [PARTITIONS - 1, PARTITIONS * 2] {
        let error = books.ledger.marks(other).await.unwrap_err();
        assert!(matches!(&error, LedgerError::Schema(text) if text.contains("4 partitions")), "{error}");
    }
    assert_eq!(books.ledger.marks(PARTITIONS).await.unwrap().len(), 4);
}

pub async fn two_gateways_start_at_once_with_different_numbers(books: &Books) {
    let other = books.open_again().await;
    for _ in 0..10 {
        books.raw.run("DELETE FROM settlement_marks").await;
        let (mine, theirs) = tokio::join!(books.ledger.marks(8), other.marks(16));
        assert!(mine.is_ok() != theirs.is_ok(), "both or none agreed: {mine:?} {theirs:?}");
        let rows = if mine.is_ok() { 8 } else { 16 };
        assert_eq!(books.raw.number("SELECT COUNT(*) FROM settlement_marks").await, rows);
    }
    other.shut_down().await;
}
