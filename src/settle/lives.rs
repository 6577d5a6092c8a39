//! Lives: proof that the store's data is the data the books know (P1, P5, P8; F21-F23, F26, F28).
//!
//! A store can come back empty, older (an older file, a copy that lagged behind), or as two. Each partition's data therefore
//! carries the number of its life and the server it was begun on, which the store compares within every call that grants
//! something: after a restart, a promotion or a move the server is another one, and nothing is granted. The number in force
//! stands in the books, beside the mark.
//!
//! # From one life to the next
//!
//! 1. **Raise.** Whoever meets data that proves nothing raises the life in the books (compare and set), for the server it
//!    met. From now on the old life's server is nobody's: its settlers find no mark of theirs.
//! 2. **Begin.** The store is told: the partition is closed, its counters are forgotten, and what is left of the old journal
//!    goes on in the new one, to be settled from its beginning. Settling an entry again changes nothing.
//! 3. **Join.** Every gateway works under the new life from the moment it sees it (a look every second) and never again under
//!    the old one; it waits for its calls that are under way, restates its open leases, its open leads and every event that
//!    the books have not settled, and says so in its row of the books. Ends wait until then.
//! 4. **Open.** When every gateway whose row is fresh has, and the journal is settled up to there, the partition opens.
//!    Leases of the old data whose attempt the books know are dropped before; those that nobody knows stay, and recovery
//!    makes counted doubts of them. Counters come back by the seed: usage + tail + open leases (P2).
//! 5. **Read back.** Claims, answers and leads without an answer come back from the books, page by page, by one gateway;
//!    what is left over is in the store beside the life, so that any other one can go on. Until then an admit of a key that
//!    the store does not know asks the books first (P3, F40). So do marks of persons that buyers want nobody twice of, and a
//!    take that meets a person without one.
//!
//! Without the books nothing opens. Uncapped buyers are under the same rule. A gateway that comes back when its row was
//! stale restates late: its units are added to counters that are there already.
//!
//! # What is not promised
//!
//! What only a Redis and a gateway knew, and both lost at once: leads acknowledged within the settlement's delay before. And
//! what a gateway does that still reaches an old primary while it is cut off from the books for longer than five seconds: it
//! cannot learn that its life is over, and the others cannot wait for it.

mod begin;
mod known_leases;
mod peers;
mod persons;
mod read_back;
mod standings;
mod step;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use self::begin::begin;
use self::known_leases::{forget_ended_leases, let_known_leases_go};
use self::peers::{FRESH, waits_for};
use self::persons::{PersonsRead, read_persons_back};
pub use self::persons::{ask_books_about, known_to_books};
use self::read_back::read_back;
use self::standings::standings;
use self::step::{Step, decide};
use crate::app::Gateway;
use crate::domain::event::{EntryId, Life, Mark};
use crate::domain::id::Partition;
use crate::ledger::{GatewayId, LifeRow, Peer, SettleError, Stage};
use crate::status::shown;
use crate::store::Standing;

/// Between two looks while everything is open. A gateway stops using an old life within this time.
const EVERY: Duration = Duration::from_secs(1);

/// Between two looks while something is closed.
const EVERY_CLOSED: Duration = Duration::from_millis(100);

/// Between two pages that are read back.
const EVERY_PAGE: Duration = Duration::from_millis(20);

/// A lead that waits for its admission waits no longer than this for partitions to open.
const ADMIT_PATIENCE: Duration = Duration::from_millis(150);

/// A lead that is admitted can wait longer for its buyers.
const TAKE_PATIENCE: Duration = Duration::from_secs(3);

/// A gateway that starts waits this long for partitions to open; then it is up, and not ready.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries to find another server.
const RECONNECT_EVERY: Duration = Duration::from_secs(5);

/// A partition that grants nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedPartition {
    /// Which.
    pub partition: Partition,
    /// For people.
    pub reason: String,
}

/// What the last look found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    looks: u64,
    closed: Vec<ClosedPartition>,
}

/// Keeps the lives of all partitions; one look at a time.
#[derive(Debug)]
pub struct Lives {
    gateway: GatewayId,
    memory: Mutex<Memory>,
    seen: watch::Sender<Seen>,
    wanted: Notify,
}

/// What one look leaves to the next.
#[derive(Debug, Default)]
struct Memory {
    /// When this gateway's row was last written, and since when without a gap.
    beat: Option<(Instant, Instant)>,
    told: Vec<Life>,
    peers: Vec<Peer>,
    /// Closed partitions that everybody has joined: settled up to here they can open.
    targets: HashMap<Partition, (Life, EntryId)>,
    /// Lives that were left because another server has the newer one.
    left: HashSet<(Partition, Life)>,
    reconnected: Option<Instant>,
    has_unread: bool,
    persons: PersonsRead,
}

impl Memory {
    fn since(&self) -> Option<Instant> {
        self.beat.map(|(_, since)| since)
    }
}

/// A partition as one look meets it.
struct Found {
    row: LifeRow,
    standing: Standing,
    step: Step,
}

impl Default for Lives {
    fn default() -> Self {
        Self {
            gateway: GatewayId::generate(),
            memory: Mutex::default(),
            seen: watch::Sender::default(),
            wanted: Notify::new(),
        }
    }
}

impl Lives {
    /// Asks for a look and waits a moment for all partitions to open; for a lead that waits for its admission.
    pub async fn open(&self) {
        self.wait(ADMIT_PATIENCE).await;
    }

    /// The same for a lead that is admitted.
    pub async fn open_for_take(&self) {
        self.wait(TAKE_PATIENCE).await;
    }

    async fn wait(&self, patience: Duration) {
        let mut seen = self.seen.subscribe();
        let looks = seen.borrow().looks;
        self.wanted.notify_one();
        // The caller finds out for itself.
        let opened = seen.wait_for(|seen| seen.looks > looks && seen.closed.is_empty());
        let _ = tokio::time::timeout(patience, opened).await;
    }

    /// Opens what can be opened at the start of the process.
    pub async fn start(&self, gateway: &Gateway) -> Result<(), SettleError> {
        gateway.ledger.marks(gateway.store.partitions()).await?;
        let started = Instant::now();
        loop {
            self.look(gateway).await?;
            if self.seen.borrow().closed.is_empty() || started.elapsed() > START_PATIENCE {
                return Ok(());
            }
            tokio::time::sleep(EVERY_CLOSED).await;
        }
    }

    /// This process has ended. A gateway that still holds something leaves its row to grow old.
    pub async fn leave(&self, gateway: &Gateway) {
        if gateway.store.is_shared()
            && gateway.store.held_bytes() == 0
            && let Err(error) = gateway.ledger.leave(self.gateway).await
        {
            tracing::debug!(%error, "the row of this gateway stays until it is forgotten");
        }
    }

    /// One look: moves every partition as far as it can go now.
    pub async fn look(&self, gateway: &Gateway) -> Result<(), SettleError> {
        let mut memory = self.memory.lock().await;
        let result = self.look_at_all(gateway, &mut memory).await;
        let closed = match &result {
            Ok(closed) => closed.clone(),
            Err(error) => closed_without_books(gateway, error).await,
        };
        gateway.telemetry.store.partitions_closed.set(shown(closed.len() as u64));
        gateway.telemetry.store.held_bytes.set(shown(gateway.store.held_bytes()));
        gateway.status.lives_looked_at(&closed);
        self.seen.send_modify(|seen| {
            seen.looks += 1;
            seen.closed = closed;
        });
        result.map(drop)
    }

    async fn look_at_all(&self, gateway: &Gateway, memory: &mut Memory) -> Result<Vec<ClosedPartition>, SettleError> {
        let rows = gateway.ledger.lives().await?;
        let marks: Vec<Mark> = rows.iter().map(|row| row.mark).collect();
        gateway.store.let_go(&marks);
        let mut closed = Vec::new();
        let mut found = Vec::new();
        let mut standings = standings(gateway).await;
        for row in rows {
            let partition = row.mark.partition;
            match standings.remove(&partition) {
                Some(Ok(standing)) => {
                    let step = decide(&row, &standing);
                    found.push(Found { row, standing, step });
                }
                Some(Err(error)) => closed.push(ClosedPartition { partition, reason: error.to_string() }),
                None => closed.push(ClosedPartition { partition, reason: "not looked at yet".to_owned() }),
            }
        }
        begin(gateway, &mut found).await?;
        join(gateway, memory, &found).await;
        self.beat(gateway, memory, &found).await?;
        self.open_settled(gateway, memory, &mut found).await?;
        for found in found.iter().filter(|found| found.step != Step::Work) {
            let (partition, reason) = (found.row.mark.partition, reason(gateway, memory, found));
            closed.push(ClosedPartition { partition, reason });
        }
        let reads = !gateway.store.is_shared() || self.is_first(memory);
        memory.has_unread = reads
            && (read_back(gateway, &found).await? | read_persons_back(gateway, &found, &mut memory.persons).await?);
        Ok(closed)
    }

    /// Writes this gateway's row: every second, and at once when it has something new to say.
    async fn beat(&self, gateway: &Gateway, memory: &mut Memory, found: &[Found]) -> Result<(), SettleError> {
        if !gateway.store.is_shared() {
            return Ok(());
        }
        let partitions = (0..gateway.store.partitions()).map(Partition);
        let told: Vec<Life> = partitions.map(|p| gateway.store.joined(p).unwrap_or_default()).collect();
        let is_closed = found.iter().any(|found| found.step == Step::Rebuild);
        let now = Instant::now();
        let since = match memory.beat {
            Some((at, since)) if now - at < FRESH / 2 => {
                if !is_closed && told == memory.told && now - at < EVERY / 2 {
                    return Ok(());
                }
                since
            }
            // Others may have taken this gateway for dead, and it does not know who else is alive.
            Some(_) | None => now,
        };
        memory.peers = gateway.ledger.beat(self.gateway, &told).await?;
        memory.beat = Some((now, since));
        memory.told = told;
        Ok(())
    }

    /// Of all gateways that are alive one reads back; which one does not matter.
    fn is_first(&self, memory: &Memory) -> bool {
        let alive = memory.peers.iter().filter(|peer| peer.age < FRESH);
        alive.map(|peer| peer.gateway).min().is_none_or(|first| first == self.gateway)
    }

    async fn open_settled(
        &self,
        gateway: &Gateway,
        memory: &mut Memory,
        found: &mut [Found],
    ) -> Result<(), SettleError> {
        let mut opened = Vec::new();
        let mut must_settle = false;
        for found in found.iter_mut().filter(|found| found.step == Step::Rebuild) {
            let Mark { partition, life, entry } = found.row.mark;
            if gateway.store.joined(partition) != Some(life)
                || waits_for(&memory.peers, memory.since(), partition, life).is_some()
            {
                continue;
            }
            let target = match memory.targets.get(&partition) {
                Some((of, target)) if *of == life => *target,
                _ => {
                    // Read after everybody has joined: it stands behind everything that was restated. Not the tip: of entries
                    // that were trimmed under the old life nobody settles anything again, and nothing would ever open.
                    let newest = gateway.store.standing(partition).await?.newest;
                    memory.targets.insert(partition, (life, newest));
                    newest
                }
            };
            if entry < target {
                must_settle = true;
                continue;
            }
            forget_ended_leases(gateway, partition, life).await?;
            if gateway.store.open_life(partition, life).await? {
                found.step = Step::Work;
                memory.targets.remove(&partition);
                opened.push((partition, life));
            }
        }
        let is_late = |found: &&Found| found.step == Step::Work && found.row.stage != Stage::Open;
        let stages: Vec<_> = found.iter().filter(is_late).map(|f| (f.row.mark.partition, f.row.mark.life)).collect();
        if !stages.is_empty() {
            gateway.ledger.set_stage(&stages, Stage::Open).await?;
        }
        if !opened.is_empty() {
            tracing::info!(partitions = opened.len(), "partitions are open");
            gateway.warm_up_wanted.notify_one();
            if opened.iter().any(|(_, life)| life.0 > 1) {
                gateway.reconcile_soon();
            }
        }
        if must_settle {
            gateway.settler.settle_once().await?;
        }
        Ok(())
    }
}

/// Works under the lives of the books from now on, wherever the store is.
async fn join(gateway: &Gateway, memory: &mut Memory, found: &[Found]) {
    let mut lives = Vec::new();
    let mut is_elsewhere = false;
    for found in found {
        let Mark { partition, life, .. } = found.row.mark;
        match found.step {
            Step::Work | Step::Rebuild if gateway.store.joined(partition) != Some(life) => {
                lives.push((partition, life));
            }
            Step::Elsewhere => {
                is_elsewhere = true;
                // The old life is over at once; what is held is restated when the right server answers.
                if memory.left.insert((partition, life)) {
                    lives.push((partition, life));
                }
            }
            Step::Work | Step::Rebuild | Step::Begin | Step::Raise(_) => {}
        }
    }
    if !is_elsewhere {
        memory.left.clear();
    } else if memory.reconnected.is_none_or(|at| at.elapsed() > RECONNECT_EVERY) {
        memory.reconnected = Some(Instant::now());
        tracing::warn!("another server has the newer data: looking for it");
        gateway.store.reconnect().await;
    }
    if lives.is_empty() {
        return;
    }
    let_known_leases_go(gateway, &lives).await;
    if let Err(error) = gateway.store.join(&lives).await {
        gateway.note_store_error(&error);
    }
}

fn reason(gateway: &Gateway, memory: &Memory, found: &Found) -> String {
    let Mark { partition, life, .. } = found.row.mark;
    match found.step {
        Step::Elsewhere => "this server's data is of a life that is over, another server has the newer one".to_owned(),
        Step::Begin | Step::Raise(_) => "the data is not what the books know".to_owned(),
        Step::Work | Step::Rebuild if gateway.store.joined(partition) != Some(life) => {
            "this gateway has still to restate what it holds".to_owned()
        }
        Step::Work | Step::Rebuild => waits_for(&memory.peers, memory.since(), partition, life)
            .unwrap_or_else(|| "what was restated has still to be settled".to_owned()),
    }
}

/// Without the books open partitions stay open, and closed ones closed.
async fn closed_without_books(gateway: &Gateway, error: &SettleError) -> Vec<ClosedPartition> {
    let mut closed = Vec::new();
    let standings = standings(gateway).await;
    for partition in (0..gateway.store.partitions()).map(Partition) {
        let is_open = match standings.get(&partition) {
            Some(Ok(standing)) => {
                standing.is_here && standing.is_open && gateway.store.joined(partition) == standing.life
            }
            Some(Err(_)) | None => false,
        };
        if !is_open {
            closed.push(ClosedPartition { partition, reason: error.to_string() });
        }
    }
    closed
}

/// Looks until the process halts.
pub async fn run(gateway: Arc<Gateway>) {
    let lives = &gateway.lives;
    loop {
        let every = if !lives.seen.borrow().closed.is_empty() {
            EVERY_CLOSED
        } else if lives.memory.lock().await.has_unread {
            EVERY_PAGE
        } else {
            EVERY
        };
        tokio::select! {
            () = gateway.shutdown.halted.cancelled() => return,
            () = tokio::time::sleep(every) => {}
            // Many leads may ask at once: one look answers all of them.
            () = lives.wanted.notified() => {}
        }
        if let Err(error) = lives.look(&gateway).await {
            match error {
                SettleError::Store(error) => gateway.note_store_error(&error),
                SettleError::Ledger(error) => gateway.status.lives_failed(&error),
            }
        }
    }
}
