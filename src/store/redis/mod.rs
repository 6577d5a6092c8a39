//! The store on Redis (7.0 or later): one server or a cluster, shared by many gateways.
//!
//! Every verb is one Lua script, so that what it changes changes in one step; `keys` names the data, `client` is the only file
//! that knows the library. A lease is a record in its buyer's hash while it is open and an end mark of its own afterwards.

mod address;
mod client;
mod ends;
mod held;
mod journal;
mod keys;
mod leads;
mod lives;
mod offset;
mod persons;
mod reconcile;
mod record;
mod reply;
mod restate;
mod returns;
mod scripts;
mod setup;
mod take;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::client::Client;
use self::held::Held;
use self::keys::Keys;
use self::offset::Offset;
use self::reply::Reply;
use self::setup::{JournalSize, Looks};
use self::versions::Versions;
use super::ends::End;
use super::{
    Admission, Admit, BeginReply, Close, CloseReply, Comparison, CounterKey, EndReply, LeadState, LeaseEnd,
    MoveDeadline, OpenCounts, OverdueLead, PersonReply, ReadBack, ReconcileReply, ReturnReply, SaleReturn, SeedReply,
    Standing, Store, StoreError, StoreHealth, Take, TakeReply,
};
use crate::clock::SharedClock;
use crate::domain::event::{Attempt, Closed, EntryId, Event, JournalEntry, Life, Mark, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::lease::{EndMark, LeaseKey, OpenLease};
use crate::domain::person::{Person, PersonMark};
use crate::domain::routing::Secret;
use crate::domain::window::Window;
use crate::ledger::BookedLead;

/// How long a counter outlives its window, so that late refunds and reconciliation still see it (F01).
const COUNTER_SLACK_MS: i64 = 2 * 24 * 3600 * 1000;

/// Hot state on Redis.
#[derive(Debug)]
pub struct RedisStore {
    client: Client,
    keys: Keys,
    partitions: u16,
    lives: Mutex<Vec<KnownLife>>,
    /// Held by every call that takes or ends something, and for a moment alone by whoever joins a life.
    under_way: tokio::sync::RwLock<()>,
    held: Held,
    versions: Versions,
    clock: SharedClock,
    offset: Offset,
    looks: Looks,
    journal: JournalSize,
    journal_entries_max: u64,
    end_mark_ttl: Duration,
    appended: Arc<Notify>,
}

impl RedisStore {
    /// Connects to `redis://`, `rediss://` or `redis-cluster://h:p,h:p`, loads the scripts and measures the clock.
    ///
    /// `prefix` is the first part of every key; `partitions` must be the same for every gateway that ever uses the prefix.
    /// `command_timeout` bounds each try of a call; `end_mark_ttl` is how long an end mark outlives its lease and must be longer
    /// than any caller can still ask about it.
    ///
    /// # Errors
    /// [`StoreError::NotDone`] when the server cannot be reached, [`StoreError::Bug`] when the address cannot be read or the
    /// server refuses the scripts.
    pub async fn connect(
        url: &Secret,
        prefix: &str,
        partitions: u16,
        command_timeout: Duration,
        journal_entries_max: u64,
        end_mark_ttl: Duration,
        clock: SharedClock,
    ) -> Result<Self, StoreError> {
        let client = Client::connect(url.expose(), command_timeout).await?;
        let store = Self {
            client,
            keys: Keys::new(prefix, partitions),
            partitions,
            lives: Mutex::new(vec![KnownLife::default(); usize::from(partitions)]),
            under_way: tokio::sync::RwLock::new(()),
            held: Held::new(partitions),
            versions: Versions::default(),
            clock,
            offset: Offset::default(),
            looks: Looks::default(),
            journal: JournalSize::default(),
            journal_entries_max,
            end_mark_ttl,
            appended: Arc::new(Notify::new()),
        };
        store.measure_clock_well().await?;
        Ok(store)
    }

    fn partition(&self, id: &str) -> Partition {
        Partition::of(id, self.partitions)
    }

    fn all_partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        (0..self.partitions).map(Partition)
    }

    /// The life this gateway works under, restated or not.
    fn known_life(&self, partition: Partition) -> Option<Life> {
        self.lives.lock().get(usize::from(partition.0)).and_then(|known| known.life)
    }

    /// The life this gateway works under, if everything it holds is restated under it.
    fn joined_life(&self, partition: Partition) -> Option<Life> {
        self.lives.lock().get(usize::from(partition.0)).filter(|known| known.is_restated).and_then(|known| known.life)
    }

    fn store_now_ms(&self) -> i64 {
        self.offset.apply(self.clock.now()).as_millisecond()
    }
}

/// What this gateway knows of a partition's life.
#[derive(Debug, Clone, Copy, Default)]
struct KnownLife {
    /// `None` until [`Store::join`] was called.
    life: Option<Life>,
    /// Does the store have under it what this process holds?
    is_restated: bool,
}

/// Milliseconds of a duration, as arguments of scripts.
fn millis(duration: Duration) -> i64 {
    // A duration of more than 292 million years is cut.
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// When a window's counter expires, in milliseconds; nothing for a window without end.
fn expires_at(window: &Window) -> String {
    window.end.map(|end| (end.as_millisecond() + COUNTER_SLACK_MS).to_string()).unwrap_or_default()
}

fn first_word(reply: &Reply) -> Result<(&str, &[Reply]), StoreError> {
    let (word, rest) =
        reply.list()?.split_first().ok_or_else(|| StoreError::Bug("unexpected reply: an empty list".to_owned()))?;
    Ok((word.text()?, rest))
}

fn nth(items: &[Reply], index: usize) -> Result<&Reply, StoreError> {
    items.get(index).ok_or_else(|| StoreError::Bug("unexpected reply: a short list".to_owned()))
}

fn unknown_reply(verb: &str, word: &str) -> StoreError {
    StoreError::Bug(format!("unexpected reply of {verb}: {word:?}"))
}

#[async_trait]
impl Store for RedisStore {
    fn partitions(&self) -> u16 {
        self.partitions
    }

    fn now(&self) -> Timestamp {
        self.offset.apply(self.clock.now())
    }

    fn time_at(&self, ours: Timestamp) -> Timestamp {
        self.offset.apply(ours)
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn standing(&self, partition: Partition) -> Result<Standing, StoreError> {
        self.read_standing(partition).await
    }

    fn joined(&self, partition: Partition) -> Option<Life> {
        self.joined_life(partition)
    }

    async fn begin_life(&self, partition: Partition, life: Life, server: &str) -> Result<BeginReply, StoreError> {
        self.begin(partition, life, server).await
    }

    async fn join(&self, lives: &[(Partition, Life)]) -> Result<(), StoreError> {
        self.join_lives(lives).await
    }

    async fn open_life(&self, partition: Partition, life: Life) -> Result<bool, StoreError> {
        self.open(partition, life).await
    }

    async fn forget_lease(&self, life: Life, key: &LeaseKey) -> Result<(), StoreError> {
        self.forget(life, key).await
    }

    async fn bring_back(&self, lead: &BookedLead, retention: Duration) -> Result<(), StoreError> {
        self.run_bring_back(lead, retention).await
    }

    async fn new_key(&self, publisher: &PublisherId, hash: &str) -> Result<(), StoreError> {
        self.run_new_key(publisher, hash).await
    }

    async fn bring_persons(&self, buyer: &BuyerId, days: u32, marks: &[PersonMark]) -> Result<(), StoreError> {
        self.run_bring_persons(buyer, days, marks).await
    }

    async fn set_marked(&self, buyer: &BuyerId, days: u32) -> Result<(), StoreError> {
        self.run_marked(buyer, days).await
    }

    async fn person(&self, buyer: &BuyerId, person: &Person) -> Result<PersonReply, StoreError> {
        self.run_person(buyer, person).await
    }

    async fn set_read_back(&self, partition: Partition, life: Life, read: &ReadBack) -> Result<(), StoreError> {
        self.run_read_back(partition, life, read).await
    }

    fn held_leases(&self, partitions: &[Partition]) -> Vec<LeaseKey> {
        self.held.leases_of(partitions)
    }

    fn let_lease_go(&self, key: &LeaseKey) {
        self.held.ended(key);
    }

    fn let_go(&self, marks: &[Mark]) {
        self.held.let_go(marks, self.store_now_ms());
    }

    fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    async fn reconnect(&self) {
        self.client.reconnect();
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.look().await
    }

    async fn admit(&self, admit: &Admit) -> Result<Admission, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_admit(admit).await
    }

    async fn take(&self, take: &Take) -> Result<TakeReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_take(take).await
    }

    async fn admit_and_take(&self, admit: &Admit, take: &Take) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let _under_way = self.under_way.read().await;
        if self.is_one_call(take) {
            return self.run_admit_take(admit, take).await;
        }
        match self.run_admit(admit).await? {
            Admission::New => Ok((Admission::New, Some(self.run_take(take).await?))),
            other => Ok((other, None)),
        }
    }

    async fn commit(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_end(End::Commit, end).await
    }

    async fn confirm(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_end(End::Confirm, end).await
    }

    async fn refund(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_end(End::Refund, end).await
    }

    async fn expire(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_end(End::Expire, end).await
    }

    async fn doubt(&self, end: &LeaseEnd) -> Result<EndReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_end(End::Doubt, end).await
    }

    async fn return_sale(&self, sale: &SaleReturn) -> Result<ReturnReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_return(sale).await
    }

    async fn record(&self, event: &Attempt) -> Result<(), StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_record(self.partition(event.buyer.as_str()), &Event::Attempt(event.clone())).await
    }

    async fn record_verdict(&self, event: &Closed) -> Result<(), StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_record(self.partition(event.publisher.as_str()), &Event::Closed(event.clone())).await
    }

    async fn remember(
        &self,
        key: &LeaseKey,
        mark: EndMark,
        _windows: &[WindowAmount],
        not_after: Timestamp,
    ) -> Result<bool, StoreError> {
        // The mark says only how the lease ended: what it counts comes with the call that ends it again.
        self.run_remember(key, mark, not_after).await
    }

    async fn give_back_at_deadline(&self, key: &LeaseKey) -> Result<(), StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_give_back(key).await
    }

    async fn close(&self, close: &Close) -> Result<CloseReply, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_close(close).await
    }

    async fn claim_resolution(&self, lead: LeadId, claim_for: Duration) -> Result<bool, StoreError> {
        let words = [
            self.keys.resolving(self.partition(&lead.to_string()), lead),
            "1".to_owned(),
            "NX".to_owned(),
            "PX".to_owned(),
            millis(claim_for).to_string(),
        ];
        let reply = self.client.one("SET", words.map(Bytes::from).to_vec()).await?;
        Ok(reply.optional_text()?.is_some())
    }

    async fn end_resolution(&self, lead: LeadId) -> Result<(), StoreError> {
        self.client
            .one("DEL", vec![self.keys.resolving(self.partition(&lead.to_string()), lead).into()])
            .await
            .map(drop)
    }

    async fn commit_and_close(
        &self,
        end: &LeaseEnd,
        close: &Close,
    ) -> Result<(EndReply, Option<CloseReply>), StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_commit_close(end, close).await
    }

    async fn seed(
        &self,
        buyer: &BuyerId,
        mark: &Mark,
        counters: &[(CapId, Window, u64)],
    ) -> Result<SeedReply, StoreError> {
        self.run_seed(buyer, mark, counters).await
    }

    async fn reconcile(&self, mark: &Mark, comparisons: &[Comparison]) -> Result<ReconcileReply, StoreError> {
        self.run_reconcile(mark, comparisons).await
    }

    async fn lead_state(&self, publisher: &PublisherId, lead: LeadId) -> Result<Option<LeadState>, StoreError> {
        self.read_lead_state(publisher, lead).await
    }

    async fn counters(&self, keys: &[CounterKey]) -> Result<Vec<Option<u64>>, StoreError> {
        self.read_counters(keys).await
    }

    async fn newest_windows(&self, buyer: &BuyerId, caps: &[CapId]) -> Result<Vec<Option<Window>>, StoreError> {
        self.read_newest_windows(buyer, caps).await
    }

    async fn overdue_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError> {
        let names = self.overdue_names(partition, count_max).await?;
        self.read_leases(partition, names).await
    }

    async fn open_leases(&self, partition: Partition, count_max: usize) -> Result<Vec<OpenLease>, StoreError> {
        let names = self.open_names(partition, count_max).await?;
        self.read_leases(partition, names).await
    }

    async fn claim_overdue_leads(
        &self,
        partition: Partition,
        grace: Duration,
        extend: Duration,
        count_max: usize,
    ) -> Result<Vec<OverdueLead>, StoreError> {
        self.run_claim_leads(partition, grace, extend, count_max).await
    }

    async fn move_deadline(&self, moved: &MoveDeadline) -> Result<bool, StoreError> {
        let _under_way = self.under_way.read().await;
        self.run_park(moved).await
    }

    async fn open_counts(&self) -> Result<OpenCounts, StoreError> {
        self.count_open().await
    }

    async fn journal_tip(&self, partition: Partition) -> Result<EntryId, StoreError> {
        self.read_tip(partition).await
    }

    async fn read_journal(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        self.read_entries(mark, count_max).await
    }

    async fn trim_journal(&self, mark: &Mark) -> Result<(), StoreError> {
        self.run_trim(mark).await
    }

    async fn appended(&self, wait: Duration) {
        // The end of the wait is as good a reason to look as an entry.
        let _ = tokio::time::timeout(wait, self.appended.notified()).await;
    }

    async fn shut_down(&self) {
        self.client.close().await;
    }
}
