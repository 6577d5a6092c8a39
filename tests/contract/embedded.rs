//! The embedded store: the shared list, and what only a file of its own can show.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use capgate::clock::{Clock, ManualClock, SystemClock};
use capgate::domain::event::{EntryId, Event, Mark};
use capgate::domain::id::{LeadId, Partition};
use capgate::ledger::UsageRow;
use capgate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use capgate::store::{Admission, CloseReply, EndReply, LeadState, Refusal, Store, StoreError};
use jiff::SignedDuration;

use crate::behaviours::random_step;
use crate::store::Harness;
use crate::support::{
    Dice, LIFE, Verb, admit, at_once, begin_lives, buyer, candidate, cap, claim, close, demand, end, end_with_amounts,
    eventually, money_demand, past_window, publisher, running_window, seed, start_mark, take, take_one, used,
};

pub fn options(partitions: u16, journal_entries_max: u64) -> EmbeddedOptions {
    EmbeddedOptions { partitions, journal_entries_max, end_mark_ttl: Duration::from_mins(10) }
}

pub fn open_with(path: &Path, marks: &[Mark], usage: &[UsageRow]) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open(path, options(4, 1_000_000), Arc::new(SystemClock), marks, usage)
}

pub fn open(path: &Path) -> EmbeddedStore {
    open_with(path, &[], &[]).unwrap()
}

struct Embedded {
    store: Arc<EmbeddedStore>,
    _folder: tempfile::TempDir,
}

#[async_trait]
impl Harness for Embedded {
    async fn start_with(journal_entries_max: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let clock = Arc::new(SystemClock);
        let store = EmbeddedStore::open(&path, options(4, journal_entries_max), clock, &[], &[]).unwrap();
        Self { store: Arc::new(store), _folder: folder }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn stop(self) {
        self.store.shut_down().await;
    }
}

crate::store_contract!(Embedded);

pub fn journal() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    (folder, path)
}

/// Everything that the trait shows of a partition, for comparing two stores.
async fn shown(store: &dyn Store, partition: Partition) -> String {
    let mark = Mark { partition, life: LIFE, entry: EntryId::default() };
    let mut open = store.open_leases(partition, 10_000).await.unwrap();
    open.sort_by(|a, b| a.key.cmp(&b.key));
    let held: Vec<_> = open.iter().map(|lease| (&lease.key, &lease.charges, &lease.about, lease.gives_back)).collect();
    let entries = store.read_journal(&mark, 100_000).await.unwrap();
    let (life, tip) = (store.standing(partition).await.unwrap().life, store.journal_tip(partition).await.unwrap());
    format!("{life:?} {tip} {entries:?} {held:?}")
}

#[tokio::test]
async fn p5_what_was_acknowledged_survives_a_reopen() {
    let (_folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&store, &who, &[("day", window, 3), ("day", past_window(store.now()), 9)]).await;
    let mut wanted = candidate(&who, vec![demand("day", window, 50)]);
    wanted.routing_version = 7;
    let [running, finished, committed, refunded, doubt, open_one, marked] = [(); 7].map(|()| LeadId::generate());
    let keys = ["running", "finished"].map(|key| Some(claim(key, Some("body"))));
    for (lead, key) in [running, finished].into_iter().zip(&keys) {
        assert_eq!(store.admit(&admit(&store, lead, key.clone())).await, Ok(Admission::New));
    }
    let answer = "{\"reason\":\"\\\"quoted\\\"\"}";
    assert_eq!(store.close(&close(&store, finished, keys[1].clone(), answer)).await, Ok(CloseReply::Closed));
    for lead in [committed, refunded, doubt, open_one, marked] {
        assert_eq!(take_one(&store, lead, &wanted).await, Ok(()));
    }
    for (lead, verb) in [committed, refunded, doubt].into_iter().zip(Verb::ALL) {
        assert_eq!(verb.call(&store, &end(verb, lead, &wanted)).await, EndReply::Done);
    }
    let open_leases = store.open_leases(start_mark(&store, "sunco").partition, 10).await.unwrap();
    store.give_back_at_deadline(&open_leases.iter().find(|l| l.key.lead == marked).unwrap().key).await.unwrap();
    let mut before = Vec::new();
    for partition in 0..4 {
        before.push(shown(&store, Partition(partition)).await);
    }
    drop(store);

    let store = open(&path);
    for (partition, before) in (0..).zip(before) {
        assert_eq!(shown(&store, Partition(partition)).await, before);
    }
    assert_eq!(used(&store, &who, "day", window).await, Some(3 + 4));
    assert_eq!(used(&store, &who, "day", past_window(store.now())).await, None);
    let refused = take_one(&store, LeadId::generate(), &wanted).await;
    assert_eq!(refused, Err(Refusal::NewLife), "nothing before the gateway says what life it knows");
    begin_lives(&store).await;
    assert_eq!(store.admit(&admit(&store, LeadId::generate(), keys[0].clone())).await, Ok(Admission::Running(running)));
    let bytes = Bytes::from_static(answer.as_bytes());
    assert_eq!(
        store.admit(&admit(&store, LeadId::generate(), keys[1].clone())).await,
        Ok(Admission::Finished(finished, bytes.clone()))
    );
    assert_eq!(store.lead_state(&publisher(), finished).await, Ok(Some(LeadState::Finished(bytes))));
    let other_body = admit(&store, LeadId::generate(), Some(claim("running", Some("other"))));
    assert_eq!(store.admit(&other_body).await, Ok(Admission::KeyReused));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(1));
    for (lead, verb) in [committed, refunded, doubt].into_iter().zip(Verb::ALL) {
        assert_eq!(verb.call(&store, &end(verb, lead, &wanted)).await, EndReply::Already(verb.mark()));
    }
    let late = end(Verb::Refund, doubt, &wanted);
    assert_eq!(store.refund(&late).await, Ok(EndReply::Late { was: Verb::Doubt.mark(), counters: Vec::new() }));
    assert_eq!(used(&store, &who, "day", window).await, Some(3 + 3));
    let repeat = store.take(&take(&store, open_one, vec![wanted.clone()])).await.unwrap();
    assert_eq!((repeat.taken, repeat.refused), (Some(0), vec![]));
    wanted.routing_version = 6;
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Err(Refusal::Stale { newest: 7 }));
}

#[tokio::test]
async fn f05_take_without_an_end_is_overdue_after_a_reopen() {
    let (_folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let (who, partition) = (buyer("sunco"), start_mark(&store, "sunco").partition);
    let wanted = candidate(&who, vec![]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&store, lead, &wanted).await, Ok(()));
    assert_eq!(store.overdue_leases(partition, 10).await, Ok(vec![]));
    drop(store);
    let store = open(&path);
    let overdue = store.overdue_leases(partition, 10).await.unwrap();
    assert_eq!(overdue.iter().map(|lease| lease.key.lead).collect::<Vec<_>>(), vec![lead]);
    assert!(overdue[0].deadline <= store.now());
    begin_lives(&store).await;
    assert_eq!(store.doubt(&end(Verb::Doubt, lead, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(store.open_leases(partition, 10).await, Ok(vec![]));
}

#[tokio::test]
async fn p2_counters_are_rebuilt_from_usage_journal_and_leases() {
    let (_folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&store, &who, &[("day", window, 0), ("spend", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50), money_demand("spend", window, 40, 1000)]);
    let mut mark = start_mark(&store, "sunco");
    for (count, verbs) in [(0, &[Verb::Commit][..]), (1, &[Verb::Doubt]), (2, &[Verb::Refund]), (3, &[Verb::Commit])] {
        let lead = LeadId::generate();
        assert_eq!(take_one(&store, lead, &wanted).await, Ok(()));
        for verb in verbs {
            verb.call(&store, &end_with_amounts(*verb, lead, &wanted, &[1, 30])).await;
        }
        if count == 1 {
            // The ledger has settled the first two: 2 leads, 60 micros.
            mark.entry = store.journal_tip(mark.partition).await.unwrap();
        }
    }
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&store, &who, "day", window).await, Some(4));
    assert_eq!(used(&store, &who, "spend", window).await, Some(3 * 30 + 40));
    drop(store);

    let row = |id: &str, start, count| UsageRow { buyer: who.clone(), cap: cap(id), window_start: start, used: count };
    let exact = [row("day", window.start, 2), row("spend", window.start, 60)];
    let store = open_with(&path, &[mark], &exact).unwrap();
    assert_eq!(used(&store, &who, "day", window).await, Some(4));
    assert_eq!(used(&store, &who, "spend", window).await, Some(3 * 30 + 40));
    let left = store.read_journal(&Mark { entry: EntryId::default(), ..mark }, 100).await.unwrap();
    assert_eq!(left.len(), 2, "what the ledger has settled is dropped");
    assert!(left.iter().all(|entry| entry.id > mark.entry));
    drop(store);

    // The ledger knows of more than the file does: its count is taken, with tail and lease on top.
    let old = past_window(jiff::Timestamp::from_millisecond(window.start.as_millisecond() + 3_600_000).unwrap());
    let more = [row("day", window.start, 20), row("month", window.start, 7), row("hour", old.start, 5)];
    let store = open_with(&path, &[mark], &more).unwrap();
    assert_eq!(used(&store, &who, "day", window).await, Some(20 + 1 + 1));
    assert_eq!(used(&store, &who, "month", window).await, Some(7));
    begin_lives(&store).await;
    for known in ["month", "hour"] {
        let answer = take_one(&store, LeadId::generate(), &candidate(&who, vec![demand(known, window, 50)])).await;
        assert_eq!(answer, Ok(()), "usage makes a cap known, of this window or an older one");
    }
    assert_eq!(used(&store, &who, "hour", window).await, Some(1));
    let unknown = candidate(&who, vec![demand("week", window, 50)]);
    assert_eq!(take_one(&store, LeadId::generate(), &unknown).await, Err(Refusal::Unseeded { cap: cap("week") }));
    drop(store);

    // And of less: a cap's past from before it existed is in no usage row, so the higher count stays (P1).
    let store = open_with(&path, &[mark], &exact).unwrap();
    assert_eq!(used(&store, &who, "day", window).await, Some(22));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_file_is_rewritten_when_it_is_large_and_mostly_dead() {
    let (folder, path) = journal();
    let store = Arc::new(open(&path));
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50)]);
    let kept: Vec<LeadId> = (0..6).map(|_| LeadId::generate()).collect();
    for (lead, verb) in kept.iter().zip([Some(Verb::Commit), Some(Verb::Refund), Some(Verb::Doubt), None, None, None]) {
        assert_eq!(store.admit(&admit(&*store, *lead, Some(claim(&lead.to_string(), None)))).await, Ok(Admission::New));
        assert_eq!(take_one(&*store, *lead, &wanted).await, Ok(()));
        if let Some(verb) = verb {
            verb.call(&*store, &end(verb, *lead, &wanted)).await;
        }
    }
    assert_eq!(store.close(&close(&*store, kept[0], None, "sold")).await, Ok(CloseReply::Closed));

    // Large leads come and are settled, while others go on.
    let size = || fs::metadata(&path).unwrap().len();
    let mark = start_mark(&*store, "acme");
    let mut largest = 0;
    eventually("the file was rewritten", async || {
        at_once(16, |_| {
            let store = Arc::clone(&store);
            async move {
                let mut call = admit(&*store, LeadId::generate(), None);
                call.event.payload = format!("{{\"text\":\"{}\"}}", "x".repeat(60_000));
                assert_eq!(store.admit(&call).await, Ok(Admission::New));
                store.close(&close(&*store, call.event.lead, None, "done")).await.unwrap();
            }
        })
        .await;
        let entry = store.journal_tip(mark.partition).await.unwrap();
        store.trim_journal(&Mark { entry, ..mark }).await.unwrap();
        largest = size().max(largest);
        size() < largest / 2
    })
    .await;
    let mut before = Vec::new();
    for partition in 0..4 {
        before.push(shown(&*store, Partition(partition)).await);
    }
    let leads = store.open_counts().await;
    store.shut_down().await;
    drop(store);
    assert!(!folder.path().join("journal.db.new").exists());

    let store = open(&path);
    for (partition, before) in (0..).zip(before) {
        assert_eq!(shown(&store, Partition(partition)).await, before);
    }
    assert_eq!(store.open_counts().await, leads);
    assert_eq!(used(&store, &who, "day", window).await, Some(5));
    begin_lives(&store).await;
    let sold = Ok(Admission::Finished(kept[0], Bytes::from_static(b"sold")));
    let repeat = admit(&store, LeadId::generate(), Some(claim(&kept[0].to_string(), None)));
    assert_eq!(store.admit(&repeat).await, sold);
    for (lead, verb) in kept.iter().zip(Verb::ALL) {
        let again = verb.call(&store, &end(verb, *lead, &wanted)).await;
        assert_eq!(again, EndReply::Already(verb.mark()));
    }
}

#[tokio::test]
async fn p5_file_holds_everything_acknowledged_at_any_moment() {
    let mut dice = Dice::new("p5_file_holds_everything_acknowledged_at_any_moment");
    let (folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&store, &who, &[("day", window, 5), ("spend", window, 100)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 40), money_demand("spend", window, 40, 1500)]);
    let mark = start_mark(&store, "sunco");
    let mut leads = Vec::new();
    for round in 0..300 {
        random_step(&store, &mut dice, &wanted, &mut leads).await;
        if round % 50 == 30 {
            let entries = store.read_journal(&mark, 10_000).await.unwrap();
            let entry = entries[dice.roll(entries.len())].id;
            store.trim_journal(&Mark { entry, ..mark }).await.unwrap();
        }
        if round % 25 == 0 {
            // What a process killed at this moment would leave.
            let copy = folder.path().join(format!("copy{round}.db"));
            fs::copy(&path, &copy).unwrap();
            let revived = open(&copy);
            assert_eq!(shown(&revived, mark.partition).await, shown(&store, mark.partition).await);
            for name in ["day", "spend"] {
                let counter = used(&revived, &who, name, window).await;
                assert_eq!(counter, used(&store, &who, name, window).await, "{name} in round {round}");
            }
        }
    }
}

#[tokio::test]
async fn claims_and_end_marks_expire() {
    let (_folder, path) = journal();
    let clock = ManualClock::new(SystemClock.now());
    let store = EmbeddedStore::open(&path, options(1, 100), clock.clone(), &[], &[]).unwrap();
    begin_lives(&store).await;
    let (finished, running, offered) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    let keys = ["finished", "running"].map(|key| Some(claim(key, None)));
    assert_eq!(store.admit(&admit(&store, finished, keys[0].clone())).await, Ok(Admission::New));
    assert_eq!(store.admit(&admit(&store, running, keys[1].clone())).await, Ok(Admission::New));
    assert_eq!(store.close(&close(&store, finished, keys[0].clone(), "done")).await, Ok(CloseReply::Closed));
    let wanted = candidate(&buyer("sunco"), vec![]);
    assert_eq!(take_one(&store, offered, &wanted).await, Ok(()));
    assert_eq!(store.refund(&end(Verb::Refund, offered, &wanted)).await, Ok(EndReply::Done));

    clock.advance(SignedDuration::from_secs(599));
    assert_eq!(store.refund(&end(Verb::Refund, offered, &wanted)).await, Ok(EndReply::Already(Verb::Refund.mark())));
    clock.advance(SignedDuration::from_secs(2));
    assert_eq!(store.refund(&end(Verb::Refund, offered, &wanted)).await, Ok(EndReply::Missing));
    clock.advance(SignedDuration::from_secs(3600 - 602));
    let again = admit(&store, LeadId::generate(), keys[0].clone());
    assert!(matches!(store.admit(&again).await, Ok(Admission::Finished(..))));
    clock.advance(SignedDuration::from_secs(2));
    let again = admit(&store, LeadId::generate(), keys[0].clone());
    assert_eq!(store.admit(&again).await, Ok(Admission::New), "the retention time is over");
    assert_eq!(store.lead_state(&publisher(), finished).await, Ok(None));
    let again = admit(&store, LeadId::generate(), keys[1].clone());
    assert_eq!(store.admit(&again).await, Ok(Admission::Running(running)), "an open lead is never forgotten");
}

#[tokio::test]
async fn entries_rise_when_the_clock_falls() {
    let (_folder, path) = journal();
    let clock = ManualClock::new(SystemClock.now());
    let mut last = EntryId::default();
    for hours_back in 0..3 {
        let store = EmbeddedStore::open(&path, options(1, 100), clock.clone(), &[], &[]).unwrap();
        begin_lives(&store).await;
        for _ in 0..3 {
            assert_eq!(store.admit(&admit(&store, LeadId::generate(), None)).await, Ok(Admission::New));
            let tip = store.journal_tip(Partition(0)).await.unwrap();
            assert!(tip > last, "{tip} after {last}");
            last = tip;
        }
        clock.advance(SignedDuration::from_hours(-hours_back));
    }
    let store = EmbeddedStore::open(&path, options(1, 100), clock, &[], &[]).unwrap();
    let entries = store.read_journal(&start_mark(&store, "acme"), 100).await.unwrap();
    assert!(entries.len() == 9 && entries.is_sorted_by(|a, b| a.id < b.id));
    assert!(entries.iter().all(|entry| matches!(Event::from_bytes(&entry.bytes), Ok(Event::Received(_)))));
}
