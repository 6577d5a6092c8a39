//! Recovery: what a dead gateway left open is ended by any other one (F04, F05, F11, F38).
//!
//! An overdue lease means that its owner died, perhaps with a yes in hand: it becomes a counted, listed doubt. Given back are
//! only leases whose owner had seen the time-out under `reserve`, and everything of a buyer with `on_crash = "refund"`. An
//! overdue lead is routed on, but only after the books alone know all of its attempts.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::decision;
use crate::app::Gateway;
use crate::domain::event::{Closed, EntryId, Mark};
use crate::domain::explanation::Explanation;
use crate::domain::id::{BuyerId, LeadId, Partition};
use crate::domain::lead::Lead;
use crate::domain::lease::OpenLease;
use crate::domain::outcome::{AttemptOutcome, LeadStatus, Sold, UnsoldReason, Verdict};
use crate::domain::parked::Parked;
use crate::domain::routing::{OnCrash, OnTimeout};
use crate::intake::parse::{BodyType, parse};
use crate::intake::reply;
use crate::lease::abandoned;
use crate::ledger::{AttemptRow, LeadDetail, LedgerError, SettleError};
use crate::pipeline::{self, Progress, Resumed, WalkOrder};
use crate::store::{Close, EndReply, OverdueLead, StoreError};
use crate::telemetry::Recovered;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Leases listed, and leads claimed, in one call: bounds the time that the store is busy with it.
const BATCH_MAX: usize = 200;
/// Claimed leads that wait for their attempts to reach the books; none is claimed beyond it.
const WAITING_MAX: usize = 5_000;
/// Open leases looked through for those of a lead.
const OPEN_LEASES_MAX: usize = 20_000;
/// An owner that is only slow is left alone this long after its deadline.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long a claimed lead waits for its attempts to reach the books before it is left for the next claim. Longer than a
/// gateway that was cut off in the middle of settling can keep the books' marks to itself.
const BOOKS_PATIENCE: Duration = Duration::from_secs(20);
/// How long one look waits for the books.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

/// Why a part of a look could not be done; the next look tries it again.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The store's side.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ledger's side.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Settling the journals.
    #[error(transparent)]
    Settle(#[from] SettleError),
}

/// Looks for overdue leases and leads until the process drains. Leases do not wait for leads, which wait for the books.
pub async fn run(gateway: Arc<Gateway>) {
    tokio::join!(
        async {
            while pause(&gateway).await {
                end_overdue_leases(&gateway).await;
            }
        },
        async {
            let mut claimed = ClaimedLeads::default();
            while pause(&gateway).await {
                claimed.look_once(&gateway).await;
            }
        },
    );
}

async fn pause(gateway: &Gateway) -> bool {
    tokio::select! {
        () = gateway.shutdown.draining.cancelled() => false,
        () = tokio::time::sleep(EVERY) => true,
    }
}

/// One partition, lease or lead that cannot be finished stops no other: counted, and logged at most once in a while.
fn note(gateway: &Gateway, error: &RecoveryError) {
    gateway.telemetry.store.recovery_failed.increment(1);
    gateway.status.recovery_failed(error);
}

/// Ends overdue leases in all partitions: batch by batch until none comes back, each partition in its turn. So one look ends
/// whatever dead gateways have left, and no call to the store is longer for it (F11).
pub async fn end_overdue_leases(gateway: &Arc<Gateway>) {
    let mut partitions: Vec<Partition> = (0..gateway.store.partitions()).map(Partition).collect();
    while !partitions.is_empty() && !gateway.shutdown.is_draining() {
        let mut unfinished = Vec::new();
        for partition in partitions {
            match gateway.store.overdue_leases(partition, BATCH_MAX).await {
                Ok(leases) if leases.is_empty() => {}
                Ok(leases) => {
                    // Those that cannot be ended now would come first again: the next look tries them.
                    if end_some(gateway, leases).await {
                        unfinished.push(partition);
                    }
                }
                Err(error) => note(gateway, &error.into()),
            }
        }
        partitions = unfinished;
    }
}

/// Were all of them ended?
async fn end_some(gateway: &Arc<Gateway>, leases: Vec<OpenLease>) -> bool {
    let ended = some_at_once(leases, |lease| {
        let gateway = gateway.clone();
        async move {
            let ended = end_overdue_lease(&gateway, &lease).await;
            ended.map_err(|error| note(&gateway, &error.into())).is_ok()
        }
    });
    ended.await.into_iter().all(|is_ended| is_ended)
}

/// Does the work on every item, a few at once: each waits for store or books most of the time.
async fn some_at_once<T, R, F>(items: Vec<T>, work: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let (queue, done) = (Mutex::new(VecDeque::from(items)), Mutex::new(Vec::new()));
    let work_off = || async {
        loop {
            let Some(item) = queue.lock().pop_front() else { return };
            let result = work(item).await;
            done.lock().push(result);
        }
    };
    tokio::join!(work_off(), work_off(), work_off(), work_off(), work_off(), work_off(), work_off(), work_off());
    done.into_inner()
}

async fn end_overdue_lease(gateway: &Gateway, lease: &OpenLease) -> Result<(), StoreError> {
    let routing = gateway.routing();
    let on_crash = routing.compiled.routing().buyers.get(&lease.key.buyer).map_or(OnCrash::Keep, |b| b.on_crash);
    let keeps_unit = !lease.gives_back && on_crash == OnCrash::Keep;
    let end = abandoned(lease, keeps_unit, gateway.store.now());
    let reply = if keeps_unit { gateway.store.doubt(&end).await? } else { gateway.store.expire(&end).await? };
    if !keeps_unit {
        gateway.units_given_back(&end.key.buyer, &end.charges);
    }
    tracing::warn!(lead = %lease.key.lead, buyer = %lease.key.buyer, keeps_unit, ?reply, "ended an overdue lease");
    // Its owner was faster, or another gateway was.
    if reply == EndReply::Done {
        gateway.telemetry.store.recovered.count(if keeps_unit { Recovered::Doubt } else { Recovered::Refund });
    }
    Ok(())
}

/// Overdue leads that this gateway has claimed and not finished yet. The claim covers [`BOOKS_PATIENCE`] and a whole walk:
/// nobody else takes the lead over meanwhile (P3).
#[derive(Debug, Default)]
pub struct ClaimedLeads(Vec<(OverdueLead, Instant)>);

impl ClaimedLeads {
    /// Claims overdue leads, and finishes those whose attempts the books know.
    pub async fn look_once(&mut self, gateway: &Arc<Gateway>) {
        // Without the books no lead can be taken over: then none is claimed, so that they are due at once when the books
        // return.
        if let Err(error) = gateway.ledger.ping().await {
            return note(gateway, &error.into());
        }
        self.claim(gateway).await;
        if self.0.is_empty() {
            return;
        }
        let ready = async {
            // A lead with an open lease waits for the lease's end.
            let busy = leads_with_open_leases(gateway).await?;
            wait_for_books(gateway, LOOK_PATIENCE).await?;
            Ok(busy)
        };
        let busy = match ready.await {
            Ok(busy) => busy,
            Err(error) => return note(gateway, &error),
        };
        let (mut waiting, ready): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|(overdue, _)| busy.contains(&overdue.lead));
        let failed = some_at_once(ready, |(overdue, claimed_at)| {
            let gateway = gateway.clone();
            async move {
                match resume(&gateway, &overdue).await {
                    Ok(Resumption::Done) => None,
                    Ok(Resumption::LookAgain) => Some((overdue, claimed_at)),
                    Err(error) => {
                        note(&gateway, &error);
                        Some((overdue, claimed_at))
                    }
                }
            }
        });
        waiting.extend(failed.await.into_iter().flatten());
        self.0 = waiting;
    }

    async fn claim(&mut self, gateway: &Gateway) {
        self.0.retain(|(_, claimed_at)| claimed_at.elapsed() < BOOKS_PATIENCE);
        let claim_for = BOOKS_PATIENCE + gateway.lead_open_for();
        // One batch a look: leads are routed on at once, and their buyers should not meet all of them in one instant.
        for partition in (0..gateway.store.partitions()).map(Partition) {
            let room = WAITING_MAX.saturating_sub(self.0.len()).min(BATCH_MAX);
            if room == 0 {
                return;
            }
            let claimed_at = Instant::now();
            match gateway.store.claim_overdue_leads(partition, GRACE, claim_for, room).await {
                Ok(overdue) => self.0.extend(overdue.into_iter().map(|overdue| (overdue, claimed_at))),
                Err(error) => note(gateway, &error.into()),
            }
        }
    }
}

async fn leads_with_open_leases(gateway: &Arc<Gateway>) -> Result<HashSet<LeadId>, RecoveryError> {
    let mut leads = HashSet::new();
    for partition in (0..gateway.store.partitions()).map(Partition) {
        let open = gateway.store.open_leases(partition, OPEN_LEASES_MAX).await?;
        leads.extend(open.into_iter().map(|lease| lease.key.lead));
    }
    Ok(leads)
}

/// Waits until the books have every event that is in the journals now. From then on they alone know all attempts of a lead
/// without an open lease, because only a lease can make another one.
pub(crate) async fn wait_for_books(gateway: &Gateway, patience: Duration) -> Result<(), RecoveryError> {
    let mut tips: Vec<(Partition, EntryId)> = Vec::new();
    for partition in (0..gateway.store.partitions()).map(Partition) {
        tips.push((partition, gateway.store.journal_tip(partition).await?));
    }
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let marks = gateway.ledger.marks(gateway.store.partitions()).await?;
        if tips.iter().all(|(partition, tip)| has_reached(&marks, *partition, *tip)) {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(LedgerError::NotDone("the books have not caught up with the journal".into()).into());
        }
        gateway.settler.settle_once().await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn has_reached(marks: &[Mark], partition: Partition, tip: EntryId) -> bool {
    tip == EntryId::default() || marks.iter().any(|mark| mark.partition == partition && mark.entry >= tip)
}

/// What became of a lead that was taken over.
enum Resumption {
    Done,
    /// Its attempt was just ended; the books have it next time.
    LookAgain,
}

/// Closes the lead by what the books know, routes it on, or lets it go on waiting for its buyer.
async fn resume(gateway: &Arc<Gateway>, overdue: &OverdueLead) -> Result<Resumption, RecoveryError> {
    let Some(detail) = gateway.ledger.lead_detail(overdue.lead).await? else {
        tracing::error!(lead = %overdue.lead, "an open lead is not in the books: its received event was lost");
        return Ok(Resumption::Done);
    };
    let routing = gateway.routing();
    let hold = |buyer: &BuyerId| {
        routing.compiled.routing().buyers.get(buyer).is_some_and(|buyer| buyer.on_timeout == OnTimeout::Hold)
    };
    match decided(&detail, hold) {
        Decided::Answered(answer) => close(gateway, overdue, &detail, None, answer).await?,
        Decided::By { verdict, books } => {
            let answer = reply::answer_body(overdue.lead, &verdict);
            close(gateway, overdue, &detail, Some((verdict, books)), answer).await?;
        }
        Decided::ByBuyer { row, parked } => {
            let is_done = decision::wait_on(gateway, &detail, row, parked).await?;
            return Ok(if is_done { Resumption::Done } else { Resumption::LookAgain });
        }
        Decided::StillForSale => {
            if let Some(order) = onward(gateway, overdue, &detail) {
                if was_left_alone(&detail) {
                    gateway.telemetry.store.recovered.count(Recovered::Routed);
                }
                let (progress, _nobody) = watch::channel(Progress::Admitted);
                gateway.tasks.spawn(pipeline::walk(gateway.clone(), order, progress));
            } else {
                tracing::warn!(lead = %overdue.lead, "a test, or its publisher, campaign or payload is gone: closed unsold");
                let verdict = Verdict::Unsold(UnsoldReason::Unavailable);
                let answer = reply::answer_body(overdue.lead, &verdict);
                close(gateway, overdue, &detail, Some((verdict, false)), answer).await?;
            }
        }
    }
    Ok(Resumption::Done)
}

enum Decided<'a> {
    /// The books have the answer; the store's record came back without it.
    Answered(String),
    /// An attempt decides.
    By {
        verdict: Verdict,
        books: bool,
    },
    /// Not before this attempt's buyer has decided, or its time is over.
    ByBuyer {
        row: &'a AttemptRow,
        parked: Parked,
    },
    StillForSale,
}

fn decided(detail: &LeadDetail, is_hold: impl Fn(&BuyerId) -> bool) -> Decided<'_> {
    if let (true, Some(answer)) = (detail.lead.status != LeadStatus::Pending, &detail.lead.answer) {
        return Decided::Answered(answer.clone());
    }
    let sale = |attempt: &AttemptRow| Sold {
        buyer: attempt.buyer.clone(),
        price: attempt.price,
        payout: attempt.payout,
        currency: attempt.currency,
        redirect_url: None,
    };
    let find = |outcome| detail.attempts.iter().find(|attempt| attempt.outcome == outcome);
    if let Some(attempt) = find(AttemptOutcome::Accepted) {
        return Decided::By { verdict: Verdict::Sold(sale(attempt)), books: false };
    }
    // It was promised its time, so a late yes of an earlier buyer waits, and sells the lead if this one does not take it.
    if let Some((row, parked)) = decision::waiting(detail) {
        return Decided::ByBuyer { row, parked };
    }
    if let Some(attempt) = find(AttemptOutcome::LateAccepted) {
        return Decided::By { verdict: Verdict::Sold(sale(attempt)), books: true };
    }
    let held = detail.attempts.iter().find(|a| a.outcome == AttemptOutcome::InDoubt && is_hold(&a.buyer));
    match held {
        Some(attempt) => Decided::By { verdict: Verdict::InDoubt(attempt.buyer.clone()), books: false },
        None => Decided::StillForSale,
    }
}

async fn close(
    gateway: &Arc<Gateway>,
    overdue: &OverdueLead,
    detail: &LeadDetail,
    verdict: Option<(Verdict, bool)>,
    answer: String,
) -> Result<(), RecoveryError> {
    let row = &detail.lead;
    let explanation = match (&verdict, &row.explanation) {
        (None, Some(text)) => text.clone(),
        (Some(_), Some(text)) => pipeline::told_further(text, &detail.attempts).unwrap_or_else(|| text.clone()),
        (_, None) => recovered_explanation(gateway, detail),
    };
    let (lead, publisher, campaign) = (row.lead, row.publisher.clone(), row.campaign.clone());
    let decided = match &verdict {
        Some((verdict, books)) => {
            let postback = gateway.postback(&publisher, lead, verdict).filter(|_| !row.is_test);
            Closed { books: *books, ..Closed::of(verdict, lead, publisher, campaign, postback) }
        }
        // The books have the verdict already; this only gives the store its answer back.
        None => Closed {
            status: row.status,
            reason: row.reason.clone(),
            buyer: row.buyer.clone(),
            ..Closed::of(&Verdict::Unsold(UnsoldReason::Unavailable), lead, publisher, campaign, None)
        },
    };
    let close = Close {
        event: Closed {
            test: row.is_test,
            closed_at_us: gateway.clock.now().as_microsecond(),
            answer,
            explanation,
            ..decided
        },
        claim: overdue.claim.clone(),
        retention: gateway.config.store.idempotency,
    };
    gateway.store.close(&close).await?;
    if let Some((verdict, _)) = &verdict {
        gateway.telemetry.leads(&row.campaign, &row.publisher).closed(verdict);
        match verdict {
            _ if !was_left_alone(detail) => {}
            Verdict::Sold(_) => gateway.telemetry.store.recovered.count(Recovered::Sold),
            Verdict::InDoubt(_) => gateway.telemetry.store.recovered.count(Recovered::InDoubt),
            Verdict::Unsold(_) => {}
        }
    }
    Ok(())
}

/// Did its gateway leave the lead without an end? One that waited for a buyer has its story in the books, and goes on as it was
/// meant to.
fn was_left_alone(detail: &LeadDetail) -> bool {
    detail.lead.explanation.is_none()
}

/// What is left of the story when its teller died: the attempts, as the books have them, and every other candidate as not
/// reached.
fn recovered_explanation(gateway: &Gateway, detail: &LeadDetail) -> String {
    let routing = gateway.routing();
    let candidates = match routing.compiled.campaign(detail.lead.campaign.as_str()) {
        Some(campaign) => pipeline::told_by_attempts(campaign, &detail.attempts),
        None => Vec::new(),
    };
    let explanation = Explanation { routing_version: routing.version().to_string(), candidates };
    serde_json::to_string(&explanation).unwrap_or_default()
}

/// The rest of a lead's walk, without the buyers that have an attempt of any kind for it (P4). `None` when what it needs
/// is gone.
fn onward(gateway: &Arc<Gateway>, overdue: &OverdueLead, detail: &LeadDetail) -> Option<WalkOrder> {
    let routing = gateway.routing();
    let row = &detail.lead;
    // A test lead must reach no buyer.
    if row.is_test {
        return None;
    }
    let fields = parse(BodyType::Json, row.payload.as_deref()?.as_bytes(), &[]).ok()?.fields;
    let publisher = routing.compiled.routing().publishers.get(&row.publisher)?.clone();
    routing.compiled.campaign(row.campaign.as_str())?;
    let lead = Lead {
        id: row.lead,
        publisher: row.publisher.clone(),
        campaign: row.campaign.clone(),
        received_at: row.received_at,
        is_test: false,
        fields,
        body: Bytes::new(),
    };
    let attempted = detail.attempts.iter().map(|attempt| (attempt.buyer.clone(), attempt.outcome)).collect();
    Some(WalkOrder {
        lead: Arc::new(lead),
        claim: overdue.claim.clone(),
        routing,
        publisher,
        resumed: Some(Resumed { attempted }),
    })
}
