//! Journal, lives, health.

use std::time::Duration;

use bytes::Bytes;
use capgate::domain::event::{EntryId, Event, JournalEntry, Life};
use capgate::domain::id::{BuyerId, LeadId, Partition};
use capgate::ledger::{BookedLead, LeadPlace};
use capgate::store::{Admission, BeginReply, CloseReply, EndReply, LeadState, ReadBack, Refusal, SeedReply};

use crate::store::Harness;
use crate::support::{
    LIFE, RETENTION, Verb, admit, begin, begin_lives, buyer, candidate, cap, claim, close, demand, end, publisher,
    running_window, seed, start_mark, take, take_one,
};

pub async fn journal_is_read_in_order_and_trimmed_by_the_mark<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let start = start_mark(&*store, "acme");
    assert_eq!(store.journal_tip(start.partition).await, Ok(EntryId::default()));
    assert_eq!(store.read_journal(&start, 10).await, Ok(vec![]));
    let leads: Vec<LeadId> = (0..10).map(|_| LeadId::generate()).collect();
    for lead in &leads {
        assert_eq!(store.admit(&admit(&*store, *lead, None)).await, Ok(Admission::New));
    }
    let all = store.read_journal(&start, 100).await.unwrap();
    let read: Vec<LeadId> = all
        .iter()
        .map(|entry| match Event::from_bytes(&entry.bytes).unwrap() {
            Event::Received(received) => received.lead,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(read, leads);
    assert!(all.is_sorted_by(|a, b| a.id < b.id));
    assert_eq!(store.journal_tip(start.partition).await, Ok(all[9].id));
    assert_eq!(store.read_journal(&start, 3).await.unwrap(), all[..3]);
    let mut mark = start;
    mark.entry = all[3].id;
    assert_eq!(store.read_journal(&mark, 100).await.unwrap(), all[4..]);

    store.trim_journal(&mark).await.unwrap();
    assert_eq!(store.read_journal(&mark, 100).await.unwrap(), all[4..]);
    assert_eq!(store.read_journal(&start, 100).await.unwrap(), all[4..], "what is trimmed is gone");
    store.trim_journal(&start).await.unwrap();
    assert_eq!(store.read_journal(&mark, 100).await.unwrap(), all[4..], "an older mark trims nothing");
    mark.entry = all[9].id;
    store.trim_journal(&mark).await.unwrap();
    assert_eq!(store.read_journal(&start, 100).await, Ok(vec![]));
    assert_eq!(store.journal_tip(start.partition).await, Ok(all[9].id), "the tip outlives its entry");
    let standing = store.standing(start.partition).await.unwrap();
    assert_eq!((standing.tip, standing.newest), (all[9].id, EntryId::default()), "nothing waits for settlement");
    assert_eq!(store.admit(&admit(&*store, LeadId::generate(), None)).await, Ok(Admission::New));
    let next = store.read_journal(&mark, 100).await.unwrap();
    assert!(next.len() == 1 && next[0].id > all[9].id);
    let standing = store.standing(start.partition).await.unwrap();
    assert_eq!((standing.tip, standing.newest), (next[0].id, next[0].id));
    h.stop().await;
}

pub async fn f66_events_stand_in_the_journal_when_the_call_answers<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 5)]);
    let lead = LeadId::generate();
    let (received, commit) = (admit(&*store, lead, None), end(Verb::Commit, lead, &wanted));
    let closed = close(&*store, lead, None, "{\"status\":\"sold\"}");
    assert_eq!(store.admit(&received).await, Ok(Admission::New));
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    let buyer_mark = start_mark(&*store, "sunco");
    let events = |mark| {
        let store = std::sync::Arc::clone(&store);
        async move {
            let entries = store.read_journal(&mark, 100).await.unwrap();
            entries.iter().map(|e| Event::from_bytes(&e.bytes).unwrap()).collect::<Vec<_>>()
        }
    };
    assert!(!events(buyer_mark).await.iter().any(|e| matches!(e, Event::Attempt(_))), "a take is not an event");
    assert_eq!(store.commit(&commit).await, Ok(EndReply::Done));
    assert!(events(buyer_mark).await.contains(&Event::Attempt(commit.event)));
    assert_eq!(store.close(&closed).await, Ok(CloseReply::Closed));
    let publisher_events = events(start_mark(&*store, "acme")).await;
    assert!(publisher_events.contains(&Event::Received(received.event)));
    assert!(publisher_events.contains(&Event::Closed(closed.event)));
    h.stop().await;
}

pub async fn p8_nothing_is_granted_before_a_life<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    let window = running_window(store.now());
    let who = buyer("sunco");
    for partition in 0..store.partitions() {
        assert_eq!(store.standing(Partition(partition)).await.map(|standing| standing.life), Ok(None));
    }
    let lead = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::NewLife));
    let wanted = candidate(&who, vec![demand("day", window, 5)]);
    for wanted in [wanted.clone(), candidate(&who, vec![])] {
        let reply = store.take(&take(&*store, lead, vec![wanted])).await.unwrap();
        assert_eq!((reply.taken, reply.refused), (None, vec![(0, Refusal::NewLife)]));
    }
    assert_eq!(store.close(&close(&*store, lead, None, "x")).await, Ok(CloseReply::NewLife));
    let counters = [(cap("day"), window, 0)];
    assert_eq!(store.seed(&who, &start_mark(&*store, "sunco"), &counters).await, Ok(SeedReply::NewLife));
    begin_lives(&*store).await;
    for partition in 0..store.partitions() {
        assert_eq!(store.standing(Partition(partition)).await.map(|standing| standing.life), Ok(Some(LIFE)));
    }
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
    assert_eq!(take_one(&*store, lead, &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    h.stop().await;
}

pub async fn p8_older_life_than_the_stores_grants_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let old = start_mark(&*store, "acme");
    let partition = old.partition;
    let lead = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
    assert_eq!(begin(&*store, partition, LIFE).await, LIFE, "again is harmless");
    assert_eq!(begin(&*store, partition, Life(3)).await, Life(3));
    assert_eq!(store.standing(partition).await.map(|standing| standing.life), Ok(Some(Life(3))));
    let mut mark = old;
    mark.life = Life(3);
    let left = store.read_journal(&mark, 10).await.unwrap();
    assert!(left.iter().any(|entry| tells_of(entry, lead)), "what waited goes on in the new life's journal");
    assert_eq!(store.read_journal(&old, 10).await, Ok(vec![]), "the old one is nobody's");
    mark.entry = store.journal_tip(partition).await.unwrap();
    assert_eq!(Some(mark.entry), left.last().map(|entry| entry.id));

    // Who works under an older life than the store's is behind, and gets nothing until it knows.
    assert_eq!(begin(&*store, partition, Life(2)).await, Life(3));
    let second = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, second, None)).await, Ok(Admission::NewLife));
    let buyers = || (0..1000).map(|number| buyer(&format!("b{number}")));
    let is_here = |b: &BuyerId| Partition::of(b.as_str(), store.partitions()) == partition;
    let here = candidate(&buyers().find(|b| is_here(b)).unwrap(), vec![]);
    assert_eq!(take_one(&*store, second, &here).await, Err(Refusal::NewLife));
    let elsewhere = candidate(&buyers().find(|b| !is_here(b)).unwrap(), vec![]);
    assert_eq!(take_one(&*store, second, &elsewhere).await, Ok(()), "other partitions go on");
    assert_eq!(store.close(&close(&*store, lead, None, "x")).await, Ok(CloseReply::NewLife));
    assert_eq!(begin(&*store, partition, Life(3)).await, Life(3));
    assert_eq!(store.admit(&admit(&*store, second, None)).await, Ok(Admission::New));
    let fresh = store.read_journal(&mark, 10).await.unwrap();
    assert_eq!(fresh.len(), 1);
    assert_eq!(store.journal_tip(partition).await, Ok(fresh[0].id));
    // A mark of another life trims nothing.
    let late = capgate::domain::event::Mark { life: LIFE, entry: fresh[0].id, ..mark };
    store.trim_journal(&late).await.unwrap();
    assert_eq!(store.read_journal(&mark, 10).await.unwrap(), fresh);
    h.stop().await;
}

fn tells_of(entry: &JournalEntry, lead: LeadId) -> bool {
    matches!(Event::from_bytes(&entry.bytes), Ok(Event::Received(received)) if received.lead == lead)
}

/// F40: a store that lost its memory asks the books about keys until it has been told everything.
pub async fn p3_keys_that_were_forgotten_come_back_from_the_books<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    let partition = start_mark(&*store, "acme").partition;
    let server = store.standing(partition).await.unwrap().server;
    let life = Life(2);
    assert_eq!(store.begin_life(partition, life, &server).await, Ok(BeginReply::Life(life)));
    store.join(&[(partition, life)]).await.unwrap();
    assert_eq!(store.open_life(partition, life).await, Ok(true));
    assert_eq!(store.standing(partition).await.unwrap().read_back, ReadBack::UpTo(None));

    let (sold, open, fresh) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    let ask = async |key: &str, body: &str| {
        store.admit(&admit(&*store, LeadId::generate(), Some(claim(key, Some(body))))).await.unwrap()
    };
    assert_eq!(ask("sold", "body").await, Admission::AskBooks);
    let booked = |lead, key: &str, answer: Option<&str>| BookedLead {
        place: LeadPlace { received_at: store.now(), lead },
        publisher: publisher(),
        claim: Some(claim(key, Some("body"))),
        answer: answer.map(str::to_owned),
    };
    store.bring_back(&booked(sold, "sold", Some("{\"status\":\"sold\"}")), RETENTION).await.unwrap();
    let answer = Bytes::from_static(b"{\"status\":\"sold\"}");
    assert_eq!(ask("sold", "body").await, Admission::Finished(sold, answer.clone()));
    assert_eq!(ask("sold", "another").await, Admission::KeyReused);
    assert_eq!(store.lead_state(&publisher(), sold).await, Ok(Some(LeadState::Finished(answer.clone()))));

    // Pending in the books: open again, and due at once.
    store.bring_back(&booked(open, "open", None), RETENTION).await.unwrap();
    assert_eq!(ask("open", "body").await, Admission::Running(open));
    let claimed = store.claim_overdue_leads(partition, Duration::ZERO, Duration::from_mins(1), 9).await.unwrap();
    assert_eq!(claimed.iter().map(|lead| lead.lead).collect::<Vec<_>>(), [open]);
    assert_eq!(claimed[0].claim, Some(claim("open", Some("body"))));
    store.bring_back(&booked(open, "open", None), RETENTION).await.unwrap();
    let again = store.claim_overdue_leads(partition, Duration::ZERO, Duration::from_mins(1), 9).await.unwrap();
    assert_eq!(again, vec![], "told twice it is open once");

    // A key that the books do not know is new; without a key there is nothing to ask.
    assert_eq!(ask("new", "body").await, Admission::AskBooks);
    store.new_key(&publisher(), &claim("new", None).hash).await.unwrap();
    assert_eq!(ask("new", "body").await, Admission::New);
    assert_eq!(store.admit(&admit(&*store, fresh, None)).await, Ok(Admission::New));
    // What the store knows itself stays.
    store.bring_back(&booked(LeadId::generate(), "sold", Some("other")), RETENTION).await.unwrap();
    assert_eq!(ask("sold", "body").await, Admission::Finished(sold, answer));

    let up_to = ReadBack::UpTo(Some(LeadPlace { received_at: store.now(), lead: sold }));
    store.set_read_back(partition, Life(1), &ReadBack::Done).await.unwrap();
    store.set_read_back(partition, life, &up_to).await.unwrap();
    assert!(
        matches!(store.standing(partition).await.unwrap().read_back, ReadBack::UpTo(Some(place)) if place.lead == sold)
    );
    assert_eq!(ask("unknown", "body").await, Admission::AskBooks);
    store.set_read_back(partition, life, &ReadBack::Done).await.unwrap();
    assert_eq!(store.standing(partition).await.unwrap().read_back, ReadBack::Done);
    assert_eq!(ask("unknown", "body").await, Admission::New);
    h.stop().await;
}

pub async fn appended_wakes_the_settler<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let hour = Duration::from_hours(1);
    assert_eq!(store.admit(&admit(&*store, LeadId::generate(), None)).await, Ok(Admission::New));
    // An append between two waits is not missed, and neither is one that comes during the wait.
    tokio::time::timeout(Duration::from_secs(5), store.appended(hour)).await.unwrap();
    let (waited, _) = tokio::join!(tokio::time::timeout(Duration::from_secs(5), store.appended(hour)), async {
        tokio::task::yield_now().await;
        store.admit(&admit(&*store, LeadId::generate(), None)).await.unwrap()
    });
    waited.unwrap();
    let quiet = std::time::Instant::now();
    store.appended(Duration::from_millis(50)).await;
    store.appended(Duration::from_millis(50)).await;
    assert!(quiet.elapsed() >= Duration::from_millis(50), "nothing was appended, so the time had to pass");
    h.stop().await;
}

pub async fn health_counts_the_journal<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    assert_eq!(store.health().await.unwrap().journal_entries, 0);
    for _ in 0..3 {
        assert_eq!(store.admit(&admit(&*store, LeadId::generate(), None)).await, Ok(Admission::New));
    }
    let health = store.health().await.unwrap();
    assert_eq!(health.journal_entries, 3);
    assert!(health.clock_offset_ms.abs() < 60_000);
    let mut mark = start_mark(&*store, "acme");
    mark.entry = store.journal_tip(mark.partition).await.unwrap();
    store.trim_journal(&mark).await.unwrap();
    assert_eq!(store.health().await.unwrap().journal_entries, 0);
    h.stop().await;
}
