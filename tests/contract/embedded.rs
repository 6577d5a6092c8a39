//! The embedded store: the shared list, and what only a file of its own can show.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use capgate::clock::SystemClock;
use capgate::domain::event::{EntryId, Event, Life, Mark};
use capgate::domain::id::{LeadId, Partition};
use capgate::ledger::UsageRow;
use capgate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use capgate::store::{Admission, CloseReply, EndReply, LeadState, Refusal, Store, StoreError};
use jiff::SignedDuration;

use crate::store::Harness;
use crate::support::{
    LIFE, Verb, admit, at_once, begin_lives, buyer, candidate, cap, claim, close, demand, end, end_with_amounts,
    eventually, money_demand, past_window, publisher, running_window, seed, start_mark, take, take_one, used,
};

fn options(partitions: u16, journal_entries_max: u64) -> EmbeddedOptions {
    EmbeddedOptions { partitions, journal_entries_max, end_mark_ttl: Duration::from_secs(600) }
}

fn open_with(path: &Path, marks: &[Mark], usage: &[UsageRow]) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open(path, options(4, 1_000_000), Arc::new(SystemClock), marks, usage)
}

fn open(path: &Path) -> EmbeddedStore {
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

fn journal() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    (folder, path)
}
