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
//!    the store does not know asks the books first (P3, F40).
//!
//! Without the books nothing opens. Uncapped buyers are under the same rule. A gateway that comes back when its row was
//! stale restates late: its units are added to counters that are there already.
//!
//! # What is not promised
//!
//! What only a Redis and a gateway knew, and both lost at once: leads acknowledged within the settlement's delay before. And
//! what a gateway does that still reaches an old primary while it is cut off from the books for longer than [`FRESH`]: it
//! cannot learn that its life is over, and the others cannot wait for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::app::Gateway;
use crate::domain::event::{EntryId, Life, Mark};
use crate::domain::id::Partition;
use crate::domain::lease::LeaseKey;
use crate::ledger::{GatewayId, LeadPlace, LifeRow, Peer, Raise, SettleError, Stage};
use crate::status::shown;
use crate::store::{BeginReply, ReadBack, Standing};

/// A gateway whose row is older is taken for dead: nobody waits for it.
pub const FRESH: Duration = Duration::from_secs(5);

/// Between two looks while everything is open. A gateway stops using an old life within this time.
const EVERY: Duration = Duration::from_secs(1);

/// Between two looks while something is closed.
const EVERY_CLOSED: Duration = Duration::from_millis(100);

/// Between two pages that are read back.
const EVERY_PAGE: Duration = Duration::from_millis(20);

/// Leads read back at once.
const PAGE: usize = 500;

/// Leads are read back for longer than claims are kept, because a lead without an answer must be finished however old it is.
const READ_BACK_SLACK: SignedDuration = SignedDuration::from_hours(24);

/// A lead that waits for its admission waits no longer than this for partitions to open.
const ADMIT_PATIENCE: Duration = Duration::from_millis(150);

/// A lead that is admitted can wait longer for its buyers.
const TAKE_PATIENCE: Duration = Duration::from_secs(3);

/// A gateway that starts waits this long for partitions to open; then it is up, and not ready.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries to find another server.
const RECONNECT_EVERY: Duration = Duration::from_secs(5);

/// Leases of older data looked through.
const LEASES_MAX: usize = 20_000;

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
}

/// What to do about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The data is the one that the books know, and open.
    Work,
    /// It is the one that the books know, and closed.
    Rebuild,
    /// The books have a new life for this server that the store has not heard of.
    Begin,
    /// The data proves nothing, or is newer than the books: the books get this life.
    Raise(Life),
    /// The data is sound but of a life that is over: another server has the newer one.
    Elsewhere,
}

fn decide(row: &LifeRow, standing: &Standing) -> Step {
    let (life, is_for_us) = (row.mark.life, row.server == standing.server);
    let next = |stored: Option<Life>| Step::Raise(Life(stored.unwrap_or_default().max(life).0 + 1));
    match standing.life {
        Some(stored) if standing.is_here && stored == life => {
            // A journal that ends before the mark has lost what the mark counts (F22, F28).
            if standing.tip < row.mark.entry || !is_for_us {
                next(Some(stored))
            } else if standing.is_open {
                Step::Work
            } else {
                Step::Rebuild
            }
        }
        // The books are older than the store (a restored backup): they take over its life, and its journal is settled from
        // its beginning.
        Some(stored) if standing.is_here && stored > life => Step::Raise(stored),
        Some(_) if standing.is_here && !is_for_us => Step::Elsewhere,
        // Begun once and gone since: what was restated under it is gone, too.
        stored if !is_for_us || row.stage != Stage::Raised => next(stored),
        _ => Step::Begin,
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
        for row in rows {
            let partition = row.mark.partition;
            match gateway.store.standing(partition).await {
                Ok(standing) => {
                    let step = decide(&row, &standing);
                    found.push(Found { row, standing, step });
                }
                Err(error) => closed.push(ClosedPartition { partition, reason: error.to_string() }),
            }
        }
        begin(gateway, &mut found).await?;
        join(gateway, memory, &found).await;
        self.beat(gateway, memory, &found).await?;
        self.open_settled(gateway, memory, &mut found, &mut closed).await?;
        for found in found.iter().filter(|found| found.step != Step::Work) {
            let (partition, reason) = (found.row.mark.partition, reason(gateway, memory, found));
            closed.push(ClosedPartition { partition, reason });
        }
        let reads = !gateway.store.is_shared() || self.is_first(memory);
        memory.has_unread = reads && read_back(gateway, &found).await?;
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
        closed: &mut Vec<ClosedPartition>,
    ) -> Result<(), SettleError> {
        let mut opened = Vec::new();
        let mut must_settle = false;
        for found in found.iter_mut().filter(|found| found.step == Step::Rebuild) {
            let Mark { partition, life, entry } = found.row.mark;
            if gateway.store.joined(partition) != Some(life) || waits_for(memory, partition, life).is_some() {
                continue;
            }
            let target = match memory.targets.get(&partition) {
                Some((of, target)) if *of == life => *target,
                _ => {
                    // Read after everybody has joined: it stands behind everything that was restated.
                    let tip = gateway.store.standing(partition).await?.tip;
                    memory.targets.insert(partition, (life, tip));
                    tip
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
            tracing::info!(partitions = opened.len(), still_closed = closed.len(), "partitions are open");
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

/// Raises and begins lives where the data proves nothing.
async fn begin(gateway: &Gateway, found: &mut [Found]) -> Result<(), SettleError> {
    raise(gateway, found).await?;
    let mut begun = Vec::new();
    for found in found.iter().filter(|found| found.step == Step::Begin) {
        let Mark { partition, life, .. } = found.row.mark;
        match gateway.store.begin_life(partition, life, &found.standing.server).await? {
            BeginReply::Life(in_force) if in_force == life => begun.push((partition, life)),
            // It has changed again.
            BeginReply::Life(_) | BeginReply::Elsewhere => {}
        }
    }
    if !begun.is_empty() {
        gateway.ledger.set_stage(&begun, Stage::Begun).await?;
        for found in found.iter_mut().filter(|found| begun.contains(&(found.row.mark.partition, found.row.mark.life))) {
            found.row.stage = Stage::Begun;
            found.standing = gateway.store.standing(found.row.mark.partition).await?;
            found.step = decide(&found.row, &found.standing);
        }
    }
    Ok(())
}

/// Where somebody else was first, the next look sees what it decided.
async fn raise(gateway: &Gateway, found: &mut [Found]) -> Result<(), SettleError> {
    let raise = |found: &Found| match found.step {
        Step::Raise(to) => {
            let Mark { partition, life: from, .. } = found.row.mark;
            Some(Raise { partition, from, to, server: found.standing.server.clone() })
        }
        Step::Work | Step::Rebuild | Step::Begin | Step::Elsewhere => None,
    };
    let raises: Vec<Raise> = found.iter().filter_map(raise).collect();
    if raises.is_empty() {
        return Ok(());
    }
    let raised = gateway.ledger.raise_lives(&raises).await?;
    for Raise { partition, to, server, .. } in raises.iter().filter(|raise| raised.contains(&raise.partition)) {
        for found in found.iter_mut().filter(|found| found.row.mark.partition == *partition) {
            let mark = Mark { partition: *partition, life: *to, entry: EntryId::default() };
            found.row = LifeRow { mark, server: server.clone(), stage: Stage::Raised };
            found.step = Step::Begin;
        }
    }
    let lost = raises.iter().filter(|raise| raise.from.0 > 0 && raised.contains(&raise.partition)).count() as u64;
    if lost > 0 {
        gateway.telemetry.store.new_lives.increment(lost);
        tracing::warn!(partitions = lost, "the store's data is not what the books know: new life");
    }
    Ok(())
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
    if !lives.is_empty()
        && let Err(error) = gateway.store.join(&lives).await
    {
        gateway.note_store_error(&error);
    }
}

/// Whom a closed partition waits for; nobody when every gateway that is alive has restated what it holds.
fn waits_for(memory: &Memory, partition: Partition, life: Life) -> Option<String> {
    let is_behind = |peer: &&Peer| peer.restated.get(usize::from(partition.0)).copied().unwrap_or_default() < life;
    let mut is_unsure = false;
    for peer in memory.peers.iter().filter(is_behind) {
        if peer.age < FRESH {
            return Some(format!("gateway {} has still to restate what it holds", peer.gateway));
        }
        is_unsure = true;
    }
    // Everybody's row is old after an outage of the books: who is alive shows within `FRESH`.
    let is_new = memory.beat.is_some_and(|(_, since)| since.elapsed() < FRESH + EVERY);
    (is_unsure && is_new).then(|| "it has still to be seen which gateways are alive".to_owned())
}

fn reason(gateway: &Gateway, memory: &Memory, found: &Found) -> String {
    let Mark { partition, life, .. } = found.row.mark;
    match found.step {
        Step::Elsewhere => "this server's data is of a life that is over, another server has the newer one".to_owned(),
        Step::Begin | Step::Raise(_) => "the data is not what the books know".to_owned(),
        Step::Work | Step::Rebuild if gateway.store.joined(partition) != Some(life) => {
            "this gateway has still to restate what it holds".to_owned()
        }
        Step::Work | Step::Rebuild => {
            waits_for(memory, partition, life).unwrap_or_else(|| "what was restated has still to be settled".to_owned())
        }
    }
}

/// Leases of older data whose end was lost with its last moments, but not in the books.
async fn forget_ended_leases(gateway: &Gateway, partition: Partition, life: Life) -> Result<(), SettleError> {
    let open = gateway.store.open_leases(partition, LEASES_MAX).await?;
    let keys: Vec<LeaseKey> = open.into_iter().map(|lease| lease.key).collect();
    if keys.is_empty() {
        return Ok(());
    }
    for key in gateway.ledger.attempted(&keys).await? {
        gateway.store.forget_lease(life, &key).await?;
    }
    Ok(())
}

/// Without the books open partitions stay open, and closed ones closed.
async fn closed_without_books(gateway: &Gateway, error: &SettleError) -> Vec<ClosedPartition> {
    let mut closed = Vec::new();
    for partition in (0..gateway.store.partitions()).map(Partition) {
        let is_open = match gateway.store.standing(partition).await {
            Ok(standing) => standing.is_here && standing.is_open && gateway.store.joined(partition) == standing.life,
            Err(_) => false,
        };
        if !is_open {
            closed.push(ClosedPartition { partition, reason: error.to_string() });
        }
    }
    closed
}

/// Brings one page of leads back; answers whether there is more.
async fn read_back(gateway: &Gateway, found: &[Found]) -> Result<bool, SettleError> {
    let mut unread: HashMap<Partition, (Life, Option<LeadPlace>)> = HashMap::new();
    for found in found.iter().filter(|found| found.step == Step::Work) {
        let Mark { partition, life, .. } = found.row.mark;
        if let (ReadBack::UpTo(place), true) = (found.standing.read_back, gateway.store.joined(partition) == Some(life))
        {
            unread.insert(partition, (life, place));
        }
    }
    let Some(first) = unread.values().map(|(_, place)| *place).min() else { return Ok(false) };
    let retention = gateway.config.store.idempotency;
    let kept = SignedDuration::try_from(retention).unwrap_or(SignedDuration::MAX).saturating_add(READ_BACK_SLACK);
    let since = gateway.clock.now().saturating_sub(kept).unwrap_or(jiff::Timestamp::MIN);
    let leads = gateway.ledger.booked_leads(since.max(jiff::Timestamp::UNIX_EPOCH), first.as_ref(), PAGE).await?;
    for lead in &leads {
        if unread.contains_key(&Partition::of(lead.publisher.as_str(), gateway.store.partitions())) {
            gateway.store.bring_back(lead, retention).await?;
        }
    }
    let has_more = leads.len() == PAGE;
    let last = leads.last().map(|lead| lead.place);
    for (partition, (life, place)) in unread {
        let read = if has_more { ReadBack::UpTo(place.max(last)) } else { ReadBack::Done };
        gateway.store.set_read_back(partition, life, &read).await?;
    }
    Ok(has_more)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(life: u64, entry_ms: u64, server: &str, stage: Stage) -> LifeRow {
        let mark = Mark { partition: Partition(0), life: Life(life), entry: EntryId { ms: entry_ms, seq: 0 } };
        LifeRow { mark, server: server.into(), stage }
    }

    fn data(life: Option<u64>, is_here: bool, tip_ms: u64) -> Standing {
        Standing {
            life: life.map(Life),
            is_here,
            is_open: true,
            server: "a".into(),
            tip: EntryId { ms: tip_ms, seq: 0 },
            read_back: ReadBack::Done,
        }
    }

    #[test]
    fn sound_data_is_worked_with() {
        assert_eq!(decide(&row(3, 50, "a", Stage::Open), &data(Some(3), true, 50)), Step::Work);
        let closed = Standing { is_open: false, ..data(Some(3), true, 50) };
        assert_eq!(decide(&row(3, 0, "a", Stage::Begun), &closed), Step::Rebuild);
    }

    #[test]
    fn f21_f22_f23_data_that_proves_nothing_gets_a_new_life() {
        let books = row(3, 50, "a", Stage::Open);
        assert_eq!(decide(&books, &data(None, false, 0)), Step::Raise(Life(4)), "empty");
        assert_eq!(decide(&books, &data(Some(3), false, 60)), Step::Raise(Life(4)), "loaded again");
        assert_eq!(decide(&books, &data(Some(2), false, 60)), Step::Raise(Life(4)), "older");
        assert_eq!(decide(&books, &data(Some(3), true, 49)), Step::Raise(Life(4)), "its journal ends before the mark");
        let elsewhere = row(3, 0, "b", Stage::Open);
        assert_eq!(decide(&elsewhere, &data(Some(3), false, 60)), Step::Raise(Life(4)), "promoted");
        assert_eq!(
            decide(&elsewhere, &data(Some(7), false, 60)),
            Step::Raise(Life(8)),
            "newer than the books, and a copy"
        );
        assert_eq!(
            decide(&row(0, 0, "", Stage::Begun), &data(None, false, 0)),
            Step::Raise(Life(1)),
            "the first start"
        );
    }

    #[test]
    fn a_life_that_was_raised_is_begun_once() {
        let raised = row(4, 0, "a", Stage::Raised);
        assert_eq!(decide(&raised, &data(None, false, 0)), Step::Begin);
        assert_eq!(decide(&raised, &data(Some(3), true, 60)), Step::Begin);
        // What was restated under it went with the data.
        assert_eq!(decide(&row(4, 0, "a", Stage::Begun), &data(None, false, 0)), Step::Raise(Life(5)));
        assert_eq!(decide(&row(4, 0, "b", Stage::Raised), &data(None, false, 0)), Step::Raise(Life(5)));
    }

    #[test]
    fn f23_an_old_primary_is_left_and_never_raised() {
        for stage in [Stage::Raised, Stage::Begun, Stage::Open] {
            assert_eq!(decide(&row(4, 0, "b", stage), &data(Some(3), true, 60)), Step::Elsewhere);
        }
    }

    #[test]
    fn books_from_a_backup_take_over_the_life_of_sound_data() {
        assert_eq!(decide(&row(3, 50, "a", Stage::Open), &data(Some(5), true, 60)), Step::Raise(Life(5)));
    }

    #[test]
    fn p1_a_partition_waits_for_every_gateway_that_is_alive() {
        let now = Instant::now();
        let peer = |age_s, life| Peer {
            gateway: GatewayId::generate(),
            age: Duration::from_secs(age_s),
            restated: vec![Life(life)],
        };
        let waits = |peers: Vec<Peer>, since: Instant| {
            let memory = Memory { beat: Some((now, since)), peers, ..Memory::default() };
            waits_for(&memory, Partition(0), Life(4)).is_some()
        };
        let long_ago = now - Duration::from_secs(60);
        assert!(!waits(vec![peer(0, 4), peer(1, 4)], now));
        assert!(waits(vec![peer(0, 4), peer(1, 3)], long_ago));
        assert!(!waits(vec![peer(0, 4), peer(10, 3)], long_ago), "dead");
        assert!(waits(vec![peer(0, 4), peer(10, 3)], now), "all rows are old after an outage of the books");
        assert!(!waits(vec![peer(0, 4), peer(10, 4)], now));
    }
}
