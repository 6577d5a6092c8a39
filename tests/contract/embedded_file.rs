//! The embedded store's journal file when it is torn, locked, foreign or old.

use std::fs;
use std::sync::Arc;

use capgate::clock::SystemClock;
use capgate::domain::event::{EntryId, Life, Mark};
use capgate::domain::id::LeadId;
use capgate::store::embedded::EmbeddedStore;
use capgate::store::{Admission, LeadState, Store, StoreError};

use crate::embedded::{journal, open, open_with, options};
use crate::support::{LIFE, admit, begin, begin_lives, publisher, start_mark};

#[tokio::test]
async fn torn_end_is_cut_off_and_nothing_else() {
    let (folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let [first, second, third] = [(); 3].map(|()| LeadId::generate());
    let mut sizes = Vec::new();
    for lead in [first, second, third] {
        assert_eq!(store.admit(&admit(&store, lead, None)).await, Ok(Admission::New));
        sizes.push(usize::try_from(fs::metadata(&path).unwrap().len()).unwrap());
    }
    drop(store);
    let (whole, acknowledged) = (fs::read(&path).unwrap(), sizes[0]);
    let torn_path = folder.path().join("torn.db");
    let mut ends: Vec<Vec<u8>> = (acknowledged..sizes[1]).step_by(13).map(|cut| whole[..cut].to_vec()).collect();
    // Pages of one batch may reach the disk in any order: zeros where the rest was to be, or a damaged part before a good
    // one, which must not come back to life when something as long is written over the damage.
    ends.push([&whole[..acknowledged], &[0; 4096]].concat());
    let mut damaged = whole.clone();
    damaged[acknowledged + 20] ^= 1;
    ends.push(damaged);
    for torn in ends {
        fs::write(&torn_path, &torn).unwrap();
        for has_more in [false, true] {
            let store = open(&torn_path);
            assert_eq!(store.lead_state(&publisher(), first).await, Ok(Some(LeadState::Running)));
            assert_eq!(store.lead_state(&publisher(), second).await.unwrap().is_some(), has_more);
            assert_eq!(store.lead_state(&publisher(), third).await, Ok(None));
            begin_lives(&store).await;
            assert_eq!(store.admit(&admit(&store, second, None)).await, Ok(Admission::New));
        }
    }
}

#[tokio::test]
async fn second_process_is_refused() {
    let (_folder, path) = journal();
    let store = open(&path);
    match open_with(&path, &[], &[]) {
        Err(StoreError::NotDone(reason)) => assert!(reason.contains("in use by another process"), "{reason}"),
        other => panic!("{other:?}"),
    }
    store.shut_down().await;
    let _second = open(&path);
    let late = store.admit(&admit(&store, LeadId::generate(), None)).await;
    assert_eq!(late, Err(StoreError::NotDone("shutting down".into())));
}

#[tokio::test]
async fn file_that_is_not_ours_is_refused_and_left_alone() {
    let (_folder, path) = journal();
    drop(open(&path));
    match EmbeddedStore::open(&path, options(8, 10), Arc::new(SystemClock), &[], &[]) {
        Err(StoreError::Bug(reason)) => assert!(reason.contains("4 partitions"), "{reason}"),
        other => panic!("{other:?}"),
    }
    let foreign = b"SQLite format 3\0 and so on, much longer than a frame's head".to_vec();
    fs::write(&path, &foreign).unwrap();
    assert!(matches!(open_with(&path, &[], &[]), Err(StoreError::Bug(_))));
    assert_eq!(fs::read(&path).unwrap(), foreign);
}

#[tokio::test]
async fn p8_file_older_than_the_ledger_has_no_life() {
    let (folder, path) = journal();
    let store = open(&path);
    begin_lives(&store).await;
    let (first, second) = (LeadId::generate(), LeadId::generate());
    assert_eq!(store.admit(&admit(&store, first, None)).await, Ok(Admission::New));
    let copy = folder.path().join("copy.db");
    fs::copy(&path, &copy).unwrap();
    assert_eq!(store.admit(&admit(&store, second, None)).await, Ok(Admission::New));
    let mut mark = start_mark(&store, "acme");
    mark.entry = store.journal_tip(mark.partition).await.unwrap();
    drop(store);

    let store = open_with(&path, &[mark], &[]).unwrap();
    assert_eq!(
        store.standing(mark.partition).await.map(|standing| standing.life),
        Ok(Some(LIFE)),
        "settled to its end is not rolled back"
    );
    assert_eq!(store.read_journal(&Mark { entry: EntryId::default(), ..mark }, 10).await, Ok(vec![]));
    drop(store);

    for lost in [&copy, &folder.path().join("new.db")] {
        let store = open_with(lost, &[mark], &[]).unwrap();
        assert_eq!(store.standing(mark.partition).await.map(|standing| standing.life), Ok(None));
        assert_eq!(begin(&store, mark.partition, Life(2)).await, Life(2));
        assert_eq!(store.journal_tip(mark.partition).await, Ok(EntryId::default()));
        assert_eq!(store.admit(&admit(&store, LeadId::generate(), None)).await, Ok(Admission::New));
        drop(store);
        let store = open_with(lost, &[Mark { life: Life(2), entry: EntryId::default(), ..mark }], &[]).unwrap();
        assert_eq!(store.standing(mark.partition).await.map(|standing| standing.life), Ok(Some(Life(2))));
    }
}
