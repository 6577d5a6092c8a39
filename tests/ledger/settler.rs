//! The settler over a store that is nothing but journals, and real books in SQLite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capgate::clock::SystemClock;
use capgate::domain::event::{Attempt, Closed, EntryId, Event, JournalEntry, Life, Mark, WindowAmount};
use capgate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use capgate::domain::lease::{EndMark, LeaseKey, OpenLease};
use capgate::domain::person::{Person, PersonMark};
use capgate::domain::window::Window;
use capgate::ledger::BookedLead;
use capgate::settle::settler::{Settler, SettlerParts, Trouble};
use capgate::store::{
    Admission, Admit, BeginReply, Close, CloseReply, Comparison, CounterKey, EndReply, LeadState, LeaseEnd,
    MoveDeadline, OpenCounts, OverdueLead, PersonReply, ReadBack, ReconcileReply, ReturnReply, SaleReturn, SeedReply,
    Standing, Store, StoreError, StoreHealth, Take, TakeReply,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::events::sale;
use crate::journal::{Journal, PARTITIONS};
use crate::sqlite::open;
use crate::support::{Books, run};

/// Journals, and nothing else of a store.
#[derive(Default)]
struct Journals {
    journal: Journal,
    appended: Notify,
    trimmed: Mutex<Vec<Mark>>,
    refuses_trims: Mutex<bool>,
}

impl std::fmt::Debug for Journals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Journals")
    }
}

impl Journals {
    fn append_all(&self, events: impl IntoIterator<Item = Event>) {
        self.journal.append_all(events);
        self.appended.notify_one();
    }
}

#[async_trait]
impl Store for Journals {
    fn partitions(&self) -> u16 {
        PARTITIONS
    }
    async fn read_journal(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        self.journal.read_now(mark, count_max)
    }
    async fn trim_journal(&self, mark: &Mark) -> Result<(), StoreError> {
        if *self.refuses_trims.lock() {
            return Err(StoreError::NotDone("away".into()));
        }
        self.trimmed.lock().push(*mark);
        self.journal.trim(mark);
        Ok(())
    }
    async fn appended(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.appended.notified()).await;
    }

    fn now(&self) -> Timestamp {
        unreachable!("settlement does not ask for this")
    }
    async fn bring_persons(&self, _: &BuyerId, _: u32, _: &[PersonMark]) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn set_marked(&self, _: &BuyerId, _: u32) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn person(&self, _: &BuyerId, _: &Person) -> Result<PersonReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn standing(&self, _: Partition) -> Result<Standing, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn begin_life(&self, _: Partition, _: Life, _: &str) -> Result<BeginReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn join(&self, _: &[(Partition, Life)]) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn bring_back(&self, _: &BookedLead, _: Duration) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn new_key(&self, _: &PublisherId, _: &str) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn set_read_back(&self, _: Partition, _: Life, _: &ReadBack) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn health(&self) -> Result<StoreHealth, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn admit(&self, _: &Admit) -> Result<Admission, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn take(&self, _: &Take) -> Result<TakeReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn commit(&self, _: &LeaseEnd) -> Result<EndReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn confirm(&self, _: &LeaseEnd) -> Result<EndReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn refund(&self, _: &LeaseEnd) -> Result<EndReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn doubt(&self, _: &LeaseEnd) -> Result<EndReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn record_verdict(&self, _: &Closed) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn remember(&self, _: &LeaseKey, _: EndMark, _: &[WindowAmount], _: Timestamp) -> Result<bool, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn give_back_at_deadline(&self, _: &LeaseKey) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn close(&self, _: &Close) -> Result<CloseReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn seed(&self, _: &BuyerId, _: &Mark, _: &[(CapId, Window, u64)]) -> Result<SeedReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn reconcile(&self, _: &Mark, _: &[Comparison]) -> Result<ReconcileReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn lead_state(&self, _: &PublisherId, _: LeadId) -> Result<Option<LeadState>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn counters(&self, _: &[CounterKey]) -> Result<Vec<Option<u64>>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn newest_windows(&self, _: &BuyerId, _: &[CapId]) -> Result<Vec<Option<Window>>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn overdue_leases(&self, _: Partition, _: usize) -> Result<Vec<OpenLease>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn open_leases(&self, _: Partition, _: usize) -> Result<Vec<OpenLease>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn move_deadline(&self, _: &MoveDeadline) -> Result<bool, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn claim_overdue_leads(
        &self,
        _: Partition,
        _: Duration,
        _: Duration,
        _: usize,
    ) -> Result<Vec<OverdueLead>, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn open_counts(&self) -> Result<OpenCounts, StoreError> {
        unreachable!("settlement does not ask for this")
    }

    fn joined(&self, _: Partition) -> Option<Life> {
        unreachable!("settlement does not ask for this")
    }

    async fn expire(&self, _: &LeaseEnd) -> Result<EndReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }

    async fn return_sale(&self, _: &SaleReturn) -> Result<ReturnReply, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn record(&self, _: &Attempt) -> Result<(), StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn journal_tip(&self, _: Partition) -> Result<EntryId, StoreError> {
        unreachable!("settlement does not ask for this")
    }
    async fn shut_down(&self) {}
}

fn settler(books: &Books, store: &Arc<Journals>, rows_max: usize) -> Settler {
    Settler::new(SettlerParts {
        store: store.clone(),
        ledger: books.ledger.clone(),
        clock: Arc::new(SystemClock),
        rows_max,
        delay: Duration::from_millis(5),
    })
}

async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "{what} never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f76_the_journal_keeps_everything_while_the_ledger_is_away() {
    run(open().await, |books| async move {
        let store = Arc::new(Journals::default());
        let settler = settler(&books, &store, 100);
        let status = settler.status();
        let stop = CancellationToken::new();
        let running = tokio::spawn(settler.run(stop.clone()));
        until("the first round", async || status.borrow().settled_to.is_some()).await;
        books.raw.run("ALTER TABLE settlement_marks RENAME TO elsewhere").await;
        store.append_all(sale(LeadId::generate(), "acme", "sunco"));
        until("the trouble", async || status.borrow().trouble == Some(Trouble::Schema)).await;
        assert!(!status.borrow().is_ledger_up());
        assert_eq!(store.journal.len(), 3, "an entry was trimmed before it was settled");
        books.raw.run("ALTER TABLE elsewhere RENAME TO settlement_marks").await;
        until("an empty journal", async || store.journal.len() == 0).await;
        let now = status.borrow().clone();
        assert_eq!((now.trouble, now.entries, now.rows["leads"]), (None, 3, 1));
        stop.cancel();
        running.await.unwrap();
        assert_eq!(books.ledger.totals().await.unwrap().leads, [("sold".to_owned(), 1)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_committed_and_not_trimmed_is_trimmed_later() {
    run(open().await, |books| async move {
        let store = Arc::new(Journals::default());
        store.append_all(sale(LeadId::generate(), "acme", "sunco"));
        // Another gateway commits and dies.
        books.settle_all(&store.journal, 100).await;
        assert_eq!(store.journal.len(), 3);
        let settler = settler(&books, &store, 100);
        *store.refuses_trims.lock() = true;
        settler.settle_once().await.unwrap();
        assert_eq!(store.journal.len(), 3);
        *store.refuses_trims.lock() = false;
        settler.settle_once().await.unwrap();
        assert_eq!(store.journal.len(), 0);
        let trims = store.trimmed.lock().len();
        settler.settle_once().await.unwrap();
        assert_eq!(store.trimmed.lock().len(), trims, "a journal is trimmed once per mark");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settler_that_is_stopped_settles_what_is_left() {
    run(open().await, |books| async move {
        let store = Arc::new(Journals::default());
        let settler = settler(&books, &store, 50);
        let status = settler.status();
        let stop = CancellationToken::new();
        for _ in 0..200 {
            store.append_all(sale(LeadId::generate(), "acme", "sunco"));
        }
        stop.cancel();
        settler.run(stop).await;
        assert_eq!(store.journal.len(), 0);
        assert_eq!(books.ledger.totals().await.unwrap().leads, [("sold".to_owned(), 200)]);
        let now = status.borrow().clone();
        assert_eq!((now.entries, now.rows["entries"], now.rows["attempts"]), (600, 600, 200));
        assert!(now.rounds >= 12);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f71_a_caller_that_gives_up_does_not_cut_a_round() {
    run(open().await, |books| async move {
        let store = Arc::new(Journals::default());
        let settler = settler(&books, &store, 100);
        store.append_all(sale(LeadId::generate(), "acme", "sunco"));
        // Polled often enough to have begun, never to the end.
        let mut given_up = Box::pin(settler.settle_once());
        for _ in 0..1000 {
            tokio::select! { biased; _ = &mut given_up => break, () = std::future::ready(()) => {} }
        }
        drop(given_up);
        until("the next round", async || settler.settle_once().await.is_ok() && store.journal.len() == 0).await;
        assert_eq!(books.ledger.totals().await.unwrap().leads, [("sold".to_owned(), 1)]);
    })
    .await;
}
