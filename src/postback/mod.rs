//! The sender of postbacks: tells publishers the verdicts on their leads, from rows that settlement has made.
//!
//! Any number of gateways may run one. A claim in the row keeps two of them from sending it at once; a gateway that dies leaves
//! claims that end by themselves, and the next one sends again with the same id: at least once, and twice only after a death.
//! A place is kept until the end of its try is written down, so that a ledger that is away stops the sender instead of filling
//! its memory (P7).
//!
//! A publisher whose postback is taken out of the routing is told nothing more. What waits is kept for a day, in case it is put
//! back or another gateway still has it, and then dropped.

mod lanes;
mod schedule;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::SignedDuration;
use rand::RngExt as _;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use crate::app::Gateway;
use crate::domain::id::PublisherId;
use crate::domain::routing::Postback;
use crate::forward::{NOTIFY_TIMEOUT, Notified};
use crate::ledger::postbacks::{ClaimOrder, ClaimedPostback, NextStep, Tried};
use crate::ledger::{LedgerError, PostbackState};
use crate::settle::settler::SettlerStatus;
use crate::telemetry::PostbackResult;
use lanes::Lanes;

/// Between two looks for what has become due, or what a dead gateway has left.
const EVERY: Duration = Duration::from_secs(1);
/// One row alone costs as much as many: lets a few come together.
const TOGETHER: Duration = Duration::from_millis(20);
/// A claim ends by itself after so long.
const CLAIM_FOR: Duration = Duration::from_mins(1);
/// A send begins only while so much of its claim is left: a gateway that was asleep must not send what is another's by now.
const CLAIM_LEFT_MIN: Duration = NOTIFY_TIMEOUT.saturating_mul(2);
/// Between two looks at what waits in all.
const HOUSE_EVERY: Duration = Duration::from_secs(15);
/// What waits for so long for a publisher without a postback is dropped.
const DROP_AFTER: SignedDuration = SignedDuration::from_hours(24);
/// Rows dropped at one look.
const DROP_MAX: usize = 1000;
/// How often the ends of the last tries are written down again before a process ends.
const LAST_TRIES: usize = 3;

/// Sends until the process drains; what is under way then ends and is written down.
pub async fn run(gateway: Arc<Gateway>) {
    let draining = gateway.shutdown.draining.clone();
    let mut settled = gateway.settler.status();
    let mut sender = Sender::new(gateway);
    let mut told = 0;
    let mut house_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = draining.cancelled() => break,
            Some(ended) = sender.sends.join_next_with_id(), if !sender.sends.is_empty() => sender.note(ended),
            () = made_more(&mut settled, &mut told) => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        tokio::time::sleep(TOGETHER).await;
        sender.turn().await;
        if house_at.elapsed() >= HOUSE_EVERY {
            house_at = Instant::now();
            sender.keep_house().await;
        }
    }
    sender.drain().await;
}

/// Waits until this process's settler has made postbacks: they need not wait for the next look.
async fn made_more(settled: &mut tokio::sync::watch::Receiver<SettlerStatus>, told: &mut u64) {
    let made = |status: &SettlerStatus| status.rows.get("postbacks").copied().unwrap_or(0);
    let now = settled.wait_for(|status| made(status) != *told).await.map(|status| made(&status));
    match now {
        Ok(now) => *told = now,
        // The settler has ended; the looks go on.
        Err(_) => std::future::pending().await,
    }
}

struct Sender {
    gateway: Arc<Gateway>,
    lanes: Lanes,
    sends: JoinSet<Sent>,
    /// Whose each send is.
    under_way: HashMap<Id, PublisherId>,
    /// Ends that are not written down yet; their places are kept.
    unwritten: Vec<(PublisherId, Tried)>,
    /// Publishers that are known to fail: one log line when it begins, one when it ends (F92).
    failing: HashMap<PublisherId, Instant>,
    /// The ledger's trouble is told once, too.
    is_ledger_away: bool,
}

/// A send that has ended.
struct Sent {
    publisher: PublisherId,
    /// `None`: it was not begun.
    notified: Option<Notified>,
    tried: Tried,
}

impl Sender {
    fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            gateway,
            lanes: Lanes::default(),
            sends: JoinSet::new(),
            under_way: HashMap::new(),
            unwritten: Vec::new(),
            failing: HashMap::new(),
            is_ledger_away: false,
        }
    }

    /// Writes down what has ended, then begins what is due.
    async fn turn(&mut self) {
        while let Some(ended) = self.sends.try_join_next_with_id() {
            self.note(ended);
        }
        let result = match self.write_down().await {
            Ok(()) => self.begin_due().await,
            failed => failed,
        };
        match result {
            Ok(()) => self.is_ledger_away = false,
            Err(error) if !self.is_ledger_away => {
                self.is_ledger_away = true;
                tracing::warn!(%error, "postbacks wait for the ledger");
            }
            Err(_) => {}
        }
    }

    async fn begin_due(&mut self) -> Result<(), LedgerError> {
        let routing = self.gateway.routing();
        let now = self.gateway.store.now();
        let mut wanted = Vec::new();
        for publisher in routing.compiled.routing().publishers.values().filter(|p| p.postback.is_some()) {
            let free = self.lanes.free(&publisher.id, now);
            if free > 0 {
                wanted.push((publisher.id.clone(), free));
            }
        }
        let count_max = self.lanes.free_in_all();
        if wanted.is_empty() || count_max == 0 {
            return Ok(());
        }
        let claimed_at = Instant::now();
        let order = ClaimOrder { wanted, count_max, now, until: now + CLAIM_FOR };
        for postback in self.gateway.ledger.claim_postbacks(&order).await? {
            let publisher = postback.publisher.clone();
            let known = routing.compiled.routing().publishers.get(&publisher);
            // Cannot be absent because only publishers with a postback were asked for.
            let Some(to) = known.and_then(|known| known.postback.clone()) else { continue };
            self.lanes.begin(&publisher);
            let sending = self.sends.spawn(send(self.gateway.clone(), postback, to, claimed_at));
            self.under_way.insert(sending.id(), publisher);
        }
        Ok(())
    }

    /// What a send's end teaches.
    fn note(&mut self, ended: Result<(Id, Sent), JoinError>) {
        let sent = match ended {
            Ok((id, sent)) => {
                self.under_way.remove(&id);
                sent
            }
            Err(error) => {
                // It panicked: its claim ends by itself.
                if let Some(publisher) = self.under_way.remove(&error.id()) {
                    self.lanes.end(&publisher);
                }
                return;
            }
        };
        let Sent { publisher, notified, tried } = sent;
        if let Some(notified) = notified {
            let is_fine = matches!(tried.next, NextStep::End(PostbackState::Delivered | PostbackState::Gone));
            self.lanes.learn(&publisher, is_fine);
            if let Some(rest_s) = notified.rest_s {
                let until = self.gateway.store.now() + SignedDuration::from_secs(rest_s.into());
                self.lanes.rest(&publisher, until);
            }
            self.tell(&publisher, &notified, is_fine);
        }
        self.unwritten.push((publisher, tried));
    }

    fn tell(&mut self, publisher: &PublisherId, notified: &Notified, is_fine: bool) {
        if is_fine {
            if let Some(since) = self.failing.remove(publisher) {
                let seconds = since.elapsed().as_secs();
                tracing::info!(%publisher, seconds, "postbacks arrive again");
            }
        } else if !self.failing.contains_key(publisher) {
            self.failing.insert(publisher.clone(), Instant::now());
            let Notified { http_status, error, .. } = notified;
            tracing::warn!(%publisher, http_status, error, "a postback failed; it is tried again for a day");
        }
    }

    async fn write_down(&mut self) -> Result<(), LedgerError> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let tried: Vec<Tried> = self.unwritten.iter().map(|(_, tried)| tried.clone()).collect();
        self.gateway.ledger.finish_postbacks(&tried).await?;
        for (publisher, tried) in std::mem::take(&mut self.unwritten) {
            self.lanes.end(&publisher);
            let result = match tried.next {
                NextStep::TryAt(_) => PostbackResult::Failed,
                NextStep::End(PostbackState::Delivered) => PostbackResult::Delivered,
                NextStep::End(PostbackState::Gone) => PostbackResult::Gone,
                NextStep::End(PostbackState::Dropped) => PostbackResult::Dropped,
                NextStep::End(PostbackState::Dead | PostbackState::Waiting) => PostbackResult::Dead,
                NextStep::Release => continue,
            };
            self.gateway.telemetry.postbacks_of(&publisher).count(result);
            if result == PostbackResult::Dead {
                tracing::error!(%publisher, postback = tried.id, "a postback is dead: `capgate postbacks replay` tries it again");
            }
        }
        Ok(())
    }

    async fn keep_house(&self) {
        let gateway = &self.gateway;
        let routing = gateway.routing();
        let publishers = routing.compiled.routing().publishers.values();
        let known: Vec<_> = publishers.filter(|p| p.postback.is_some()).map(|p| p.id.clone()).collect();
        let now = gateway.store.now();
        let dropped = gateway.ledger.drop_postbacks(&known, now - DROP_AFTER, now, DROP_MAX).await;
        if let Ok(count @ 1..) = dropped {
            gateway.telemetry.other_postbacks().add(PostbackResult::Dropped, count);
            tracing::warn!(count, "postbacks were dropped: their publishers have none in the routing");
        }
        if let Ok(backlog) = gateway.ledger.postback_backlog().await {
            gateway.telemetry.ledger.postbacks_wait(backlog.waiting, backlog.oldest.map(|at| now.duration_since(at)));
        }
    }

    /// Nothing new begins; every send that has begun ends and is written down. Bounded by the time-out of a send.
    async fn drain(&mut self) {
        while let Some(ended) = self.sends.join_next_with_id().await {
            self.note(ended);
        }
        let mut pause = self.gateway.backoff();
        for _ in 0..LAST_TRIES {
            match self.write_down().await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "ends of postbacks could not be written down"),
            }
            if !pause.wait().await {
                return;
            }
        }
    }
}

async fn send(gateway: Arc<Gateway>, postback: ClaimedPostback, to: Postback, claimed_at: Instant) -> Sent {
    let at = gateway.store.now();
    let publisher = postback.publisher.clone();
    let (id, claim) = (postback.id, postback.claim);
    let mut tried = Tried { id, claim, at, http_status: None, error: None, next: NextStep::Release };
    if claimed_at.elapsed() + CLAIM_LEFT_MIN > CLAIM_FOR {
        return Sent { publisher, notified: None, tried };
    }
    let began = Instant::now();
    let message_id = postback.message_id();
    let notified = gateway.forwarder.notify(&to, &message_id, Bytes::from(postback.body)).await;
    gateway.telemetry.ledger.postback_duration.record(began.elapsed());
    let jitter = rand::rng().random_range(0.0..1.0);
    tried.next = schedule::next_step(postback.tries, postback.first_try_at, gateway.store.now(), &notified, jitter);
    (tried.http_status, tried.error) = (notified.http_status, notified.error);
    Sent { publisher, notified: Some(notified), tried }
}
