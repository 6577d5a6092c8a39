//! What needs a look inside: failing disks, shared syncs, lost counters.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;

use super::file::Faults;
use super::*;
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::domain::event::WindowAmount;
use crate::domain::id::CampaignId;
use crate::domain::lease::{AttemptInfo, Charge, Demand, Terms, WalkName};
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::AttemptOutcome;
use crate::store::{Refusal, TakeCandidate};

/// Switches for the disk.
#[derive(Debug, Default)]
pub(super) struct Rig {
    is_disk_full: AtomicBool,
    /// Held by a test that wants the writer to wait.
    gate: Mutex<()>,
    writes: AtomicU64,
}

impl Rig {
    pub(super) fn check(&self) -> io::Result<()> {
        let _open = self.gate.lock();
        self.writes.fetch_add(1, Ordering::SeqCst);
        let is_full = self.is_disk_full.load(Ordering::SeqCst);
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

const OPTIONS: EmbeddedOptions =
    EmbeddedOptions { partitions: 4, journal_entries_max: 1_000_000, end_mark_ttl: Duration::from_mins(10) };

async fn open(path: &Path) -> (Arc<EmbeddedStore>, Arc<Rig>) {
    let faults = Faults::default();
    let rig = Arc::clone(&faults.rig);
    let store = EmbeddedStore::open_with(path, OPTIONS, Arc::new(SystemClock), &[], &[], faults).unwrap();
    for partition in 0..4 {
        begin(&store, partition).await;
    }
    (Arc::new(store), rig)
}

async fn begin(store: &EmbeddedStore, partition: u16) {
    let (partition, life) = (Partition(partition), Life(1));
    store.begin_life(partition, life, "").await.unwrap();
    store.join(&[(partition, life)]).await.unwrap();
    store.set_read_back(partition, life, &ReadBack::Done).await.unwrap();
}

fn admit(store: &EmbeddedStore, lead: LeadId) -> Admit {
    let now = store.now();
    Admit {
        event: Received {
            lead,
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            received_at_us: 1,
            test: false,
            payload: "{}".into(),
            claim: None,
        },
        deadline: now + SignedDuration::from_mins(1),
        not_after: now + SignedDuration::from_mins(1),
        retention: Duration::from_mins(1),
    }
}

fn state_of(store: &EmbeddedStore, lead: LeadId) -> Option<LeadState> {
    store.group.look(|state| state.lead_state(&PublisherId::new("acme").unwrap(), lead))
}

async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !check().await {
        assert!(started.elapsed() < Duration::from_mins(2), "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn full_disk_refuses_and_is_left_behind_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (store, rig) = open(&path).await;
    let [before, during, refused, after] = [(); 4].map(|()| LeadId::generate());
    assert_eq!(store.admit(&admit(&store, before)).await, Ok(Admission::New));

    rig.is_disk_full.store(true, Ordering::SeqCst);
    let call = admit(&store, during);
    assert!(matches!(store.admit(&call).await, Err(StoreError::MaybeDone(_))), "it cannot be known to be in the file");
    assert!(matches!(store.admit(&admit(&store, refused)).await, Err(StoreError::NotDone(_))));
    assert_eq!(state_of(&store, refused), None);
    assert!(matches!(store.health().await, Err(StoreError::NotDone(_))), "readiness sees it (F91)");
    let mark = Mark { partition: Partition::of("acme", 4), life: Life(1), entry: EntryId::default() };
    assert!(store.read_journal(&mark, 10).await.is_err(), "the ledger must not learn what the file does not hold");

    // A crash now leaves the old file with a torn end: what was acknowledged is there.
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let (revived, _) = open(&copy).await;
    assert_eq!(state_of(&revived, before), Some(LeadState::Running));
    assert_eq!(state_of(&revived, during), None);

    rig.is_disk_full.store(false, Ordering::SeqCst);
    eventually("the file is written again", async || store.health().await.is_ok()).await;
    assert_eq!(store.admit(&call).await, Ok(Admission::New), "the same call learns that it had been done");
    assert_eq!(store.admit(&admit(&store, after)).await, Ok(Admission::New));
    assert_eq!(store.read_journal(&mark, 10).await.unwrap().len(), 3);
    drop(store);
    let (store, _) = open(&path).await;
    for (lead, is_there) in [(before, true), (during, true), (refused, false), (after, true)] {
        assert_eq!(state_of(&store, lead).is_some(), is_there);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_come_together_share_a_sync_and_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let (store, rig) = open(&path).await;
    let writes_before = rig.writes.load(Ordering::SeqCst);
    let gate = rig.gate.lock();
    let lead = LeadId::generate();
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            // All the same lead: a repeat may not answer before the first try is durable either.
            tokio::spawn(async move { store.admit(&admit(&store, lead)).await })
        })
        .collect();
    let mark = Mark { partition: Partition::of("acme", 4), life: Life(1), entry: EntryId::default() };
    let reader = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.read_journal(&mark, 10).await })
    };
    let others: Vec<_> = (0..50)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.admit(&admit(&store, LeadId::generate())).await })
        })
        .collect();
    let is_all_there = || store.group.look(|state| state.open_counts().leads) == 51;
    while !is_all_there() {
        std::thread::yield_now();
    }
    assert!(tasks.iter().chain(&others).all(|task| !task.is_finished()), "answered before the sync");
    let held = std::fs::metadata(&path).unwrap().len();
    drop(gate);
    for task in tasks.into_iter().chain(others) {
        assert_eq!(task.await.unwrap(), Ok(Admission::New));
    }
    assert!(!reader.await.unwrap().unwrap().is_empty());
    assert!(std::fs::metadata(&path).unwrap().len() > held);
    let writes = rig.writes.load(Ordering::SeqCst) - writes_before;
    assert!(writes <= 3, "51 leads took {writes} writes");
}

fn buyer() -> BuyerId {
    BuyerId::new("sunco").unwrap()
}

fn candidate(window: Window) -> TakeCandidate {
    let demand = |id: &str, amount| Demand { charge: Charge { cap: CapId::new(id), window, amount }, limit: 1000 };
    TakeCandidate {
        buyer: buyer(),
        demands: vec![demand("day", 1), demand("spend", 40)],
        lease_for: Duration::from_mins(1),
        about: AttemptInfo {
            walk: WalkName::default(),
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            ordinal: 1,
            terms: Terms {
                price: Micros(25),
                price_max: Micros(40),
                payout: Micros(20),
                currency: Currency::new("USD").unwrap(),
            },
            person: None,
        },
        routing_version: 1,
    }
}

fn take(lead: LeadId, window: Window, now: Timestamp) -> Take {
    Take { lead, candidates: vec![candidate(window)], not_after: now + SignedDuration::from_secs(5) }
}

fn end(lead: LeadId, window: Window, spend: u64) -> LeaseEnd {
    let wanted = candidate(window);
    let amount =
        |id: &str, amount| WindowAmount { cap: CapId::new(id), start_ms: window.start.as_millisecond(), amount };
    let event = Attempt {
        lead,
        buyer: buyer(),
        publisher: wanted.about.publisher.clone(),
        campaign: wanted.about.campaign.clone(),
        ordinal: 1,
        outcome: AttemptOutcome::Accepted,
        counted: true,
        http_status: None,
        reason: None,
        sent_at_us: 1,
        duration_us: 1,
        windows: vec![amount("day", 1), amount("spend", spend)],
        price: Micros(25),
        payout: Micros(20),
        currency: wanted.about.terms.currency,
        books: true,
        person: None,
        reference: None,
    };
    LeaseEnd {
        key: LeaseKey { lead, buyer: buyer() },
        charges: wanted.demands.into_iter().map(|demand| demand.charge).collect(),
        late_event: event.clone(),
        event,
    }
}

#[tokio::test]
async fn p2_seed_of_a_lost_counter_counts_the_tail_and_open_leases() {
    use EndMark::{Committed, Doubt, Refunded};
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder.path().join("journal.db")).await;
    let now = store.now();
    let whole_hour = Timestamp::from_second(now.as_second() / 3600 * 3600).unwrap();
    let window = Window { start: whole_hour, end: Some(whole_hour + SignedDuration::from_hours(48)) };
    let start_ms = window.start.as_millisecond();
    let mut mark = Mark { partition: Partition::of("sunco", 4), life: Life(1), entry: EntryId::default() };
    let seeds = |day, spend| [(CapId::new("day"), window, day), (CapId::new("spend"), window, spend)];
    assert_eq!(store.seed(&buyer(), &mark, &seeds(7, 70)).await, Ok(SeedReply::Seeded));
    let ends: [&[EndMark]; 8] = [
        &[],
        &[],
        &[Committed],
        &[Refunded],
        &[Doubt],
        &[Doubt, Refunded],
        &[Doubt, Committed],
        &[Refunded, Committed],
    ];
    for (number, ends) in ends.into_iter().enumerate() {
        let lead = LeadId::generate();
        assert_eq!(store.take(&take(lead, window, now)).await.unwrap().taken, Some(0));
        for mark in ends {
            let call = end(lead, window, if *mark == Committed { 25 } else { 40 });
            match mark {
                Committed => store.commit(&call).await,
                Refunded => store.refund(&call).await,
                Doubt => store.doubt(&call).await,
            }
            .unwrap();
        }
        if number == 4 {
            // The ledger has settled a sale and a doubt: what follows of them is an effect on its usage, not a whole.
            mark.entry = store.journal_tip(mark.partition).await.unwrap();
        }
    }
    let keys = ["day", "spend"].map(|id| CounterKey { buyer: buyer(), cap: CapId::new(id), window });
    let exact = vec![Some(7 + 6), Some(70 + 2 * 40 + 25 + 40 + 25 + 25)];
    assert_eq!(store.counters(&keys).await, Ok(exact.clone()));
    store.group.look(|state| {
        for cap in state.partition_of("sunco").buyer_mut(&buyer()).caps.values_mut() {
            assert!(cap.windows.remove(&start_ms).is_some());
        }
    });
    assert_eq!(store.counters(&keys).await, Ok(vec![None, None]));
    let lost = store.take(&take(LeadId::generate(), window, now)).await.unwrap();
    assert_eq!(lost.refused, vec![(0, Refusal::Unseeded { cap: CapId::new("day") })], "lost, not new: closed (P8)");
    assert_eq!(store.seed(&buyer(), &mark, &seeds(7 + 2, 70 + 25 + 40)).await, Ok(SeedReply::Seeded));
    assert_eq!(store.counters(&keys).await, Ok(exact));
}

#[tokio::test]
async fn p7_memory_of_what_has_expired_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let clock = ManualClock::new(SystemClock.now());
    let store = EmbeddedStore::open(&path, OPTIONS, clock.clone(), &[], &[]).unwrap();
    for partition in 0..4 {
        begin(&store, partition).await;
    }
    let mark = Mark { partition: Partition::of("acme", 4), life: Life(1), entry: EntryId::default() };
    let minute = |at: Timestamp| {
        let start = Timestamp::from_second(at.as_second() / 60 * 60).unwrap();
        Window { start, end: Some(start + SignedDuration::from_mins(1)) }
    };
    let first = minute(clock.now());
    let counters = [(CapId::new("day"), first, 0), (CapId::new("spend"), first, 0)];
    let buyers_mark = Mark { partition: Partition::of("sunco", 4), ..mark };
    assert_eq!(store.seed(&buyer(), &buyers_mark, &counters).await, Ok(SeedReply::Seeded));
    for _ in 0..60 {
        // One lead, one lease per three hours, for a week.
        let (lead, now) = (LeadId::generate(), clock.now());
        let mut call = admit(&store, lead);
        call.event.claim =
            Some(crate::domain::event::ClaimKey { hash: lead.to_string(), fingerprint: Some("f".into()) });
        assert_eq!(store.admit(&call).await, Ok(Admission::New));
        assert_eq!(store.take(&take(lead, minute(now), now)).await.unwrap().taken, Some(0));
        assert_eq!(store.commit(&end(lead, minute(now), 25)).await, Ok(EndReply::Done));
        let closed = Closed {
            lead,
            publisher: call.event.publisher.clone(),
            campaign: call.event.campaign.clone(),
            status: crate::domain::outcome::LeadStatus::Sold,
            reason: None,
            buyer: Some(buyer()),
            sale: None,
            books: false,
            test: false,
            closed_at_us: 1,
            answer: "{}".into(),
            explanation: "{}".into(),
            postback: Some("{}".into()),
        };
        let close = Close { event: closed, claim: call.event.claim, retention: Duration::from_hours(6) };
        assert_eq!(store.close(&close).await, Ok(CloseReply::Closed));
        for mark in [mark, buyers_mark] {
            let entry = store.journal_tip(mark.partition).await.unwrap();
            store.trim_journal(&Mark { entry, ..mark }).await.unwrap();
        }
        clock.advance(SignedDuration::from_hours(3));
    }
    store.group.look(|state| {
        let known: Vec<(usize, usize)> = state.partitions.iter().map(|p| (p.leads.len(), p.ended.len())).collect();
        assert!(known.iter().all(|(leads, ended)| *leads <= 3 && *ended <= 3), "{known:?}");
        let claims: usize = state.partitions.iter().flat_map(|p| p.claims.values()).map(HashMap::len).sum();
        assert!(claims <= 3, "{claims} claims");
        let windows = state.partition_of("sunco").buyer_mut(&buyer()).caps[&CapId::new("day")].windows.len();
        assert!(windows <= 17, "{windows} windows, two days' worth is 16");
        assert_eq!(state.journal_entries(), 0);
    });
}
