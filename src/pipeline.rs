//! The walk of one lead: filter, admit, lease, forward, settle, close. Intake comes before it, the reply after.
//!
//! A walk runs in a task of its own: a publisher that hangs up changes nothing (F44). What the publisher waits for arrives
//! through a [`Progress`] channel, whoever is still listening.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::app::{Gateway, RoutingInForce};
use crate::domain::event::{ClaimKey, Closed, Received, SaleMoney};
use crate::domain::explanation::Check;
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::lead::Lead;
use crate::domain::outcome::{AttemptOutcome, Sold, Verdict};
use crate::domain::routing::{Campaign, Publisher};
use crate::filter::CompiledCampaign;
use crate::intake::reply;
use crate::lease::{Held, TakeContext};
use crate::store::{Admission, Admit, Close, CloseReply, Refusal, StoreError, Take, TakeCandidate, TakeReply};
use crate::telemetry::{LeadMetrics, LeaseResult};

mod attempt;
mod late;
mod rehearsal;
mod story;

use attempt::After;
use late::LateBoard;
pub use rehearsal::rehearse;
pub use story::told_by_attempts;
use story::{Filtered, Story};

/// Most candidates in one take: bounds the script's work and the size of its call.
const CANDIDATES_PER_TAKE: usize = 8;

/// How often one lease is asked for again after a refusal that a second call can cure (wrong window, unseeded, a life that
/// has to be opened).
const CURES_MAX: u32 = 6;

/// What the waiting publisher can learn of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Not acknowledged yet.
    Started,
    /// The lead is in the journal: it will get a verdict (P5).
    Admitted,
    /// Another try of the key is on its walk; wait for that one.
    Joined(LeadId),
    /// The final answer.
    Answered {
        /// The lead it belongs to: an earlier one for a replay.
        lead: LeadId,
        /// Byte for byte.
        body: Bytes,
        /// Was it stored by an earlier try?
        is_replay: bool,
    },
    /// The key was used with another body.
    KeyReused,
    /// Not acknowledged: nothing was taken that a repeat would not join.
    Refused(&'static str),
    /// Acknowledged, but this gateway cannot finish it now; recovery will.
    LeftToRecovery,
}

/// A lead that has to be routed.
#[derive(Debug)]
pub struct WalkOrder {
    /// The lead.
    pub lead: Arc<Lead>,
    /// The key it came under.
    pub claim: Option<ClaimKey>,
    /// The routing it keeps to its end.
    pub routing: Arc<RoutingInForce>,
    /// Who sent it.
    pub publisher: Arc<Publisher>,
    /// Set for a lead that recovery resumes: it is admitted already.
    pub resumed: Option<Resumed>,
}

/// What the books know of a lead that recovery resumes.
#[derive(Debug, Clone)]
pub struct Resumed {
    /// Never offered the lead again (P4).
    pub attempted: Vec<(BuyerId, AttemptOutcome)>,
}

/// Walks one lead to its verdict.
pub async fn walk(gateway: Arc<Gateway>, order: WalkOrder, progress: watch::Sender<Progress>) {
    let Some(campaign) = order.routing.compiled.campaign(order.lead.campaign.as_str()) else {
        progress.send_replace(Progress::Refused("campaign is gone"));
        return;
    };
    let mut walk = Walk::filter(&gateway, &order, campaign, progress);
    if !walk.admit().await {
        return;
    }
    let verdict = loop {
        let held = match walk.lease().await {
            Leased::Held(held) => held,
            Leased::Ended(verdict) => break verdict,
            Leased::Abandoned => return walk.leave_to_recovery(),
        };
        match walk.forward_and_settle(held).await {
            After::NextBuyer => {}
            After::Final(verdict) => break verdict,
            After::Abandoned => return walk.leave_to_recovery(),
            After::Closed(closed) => return walk.closed(&closed.verdict, &closed.close, closed.reply),
        }
    };
    walk.close(verdict).await;
}

/// What asking for the next lease came to.
enum Leased {
    /// A unit of every cap of this buyer is held.
    Held(HeldOffer),
    /// Nobody is left to ask.
    Ended(Verdict),
    /// The store is away and the lead's time is over.
    Abandoned,
}

/// A held lease and the offer it is for.
struct HeldOffer {
    /// Index into the campaign's offers.
    offer: usize,
    /// The lease.
    held: Held,
}

/// One lead on its walk.
struct Walk<'a> {
    gateway: &'a Arc<Gateway>,
    order: &'a WalkOrder,
    campaign: &'a CompiledCampaign,
    filtered: Filtered,
    progress: watch::Sender<Progress>,
    /// Offers not tried yet, in the order they are to be tried.
    remaining: VecDeque<usize>,
    /// What happened to each candidate.
    story: Story,
    /// Late answers that may still come.
    late: LateBoard,
    /// No attempt starts after it.
    deadline: Timestamp,
    attempts: u16,
    /// A take's reply that was not read yet: the first one comes with the admission.
    taken: Option<(Vec<usize>, Vec<TakeCandidate>, TakeReply)>,
}

impl<'a> Walk<'a> {
    fn filter(
        gateway: &'a Arc<Gateway>,
        order: &'a WalkOrder,
        campaign: &'a CompiledCampaign,
        progress: watch::Sender<Progress>,
    ) -> Self {
        let started = Instant::now();
        let filtered = Filtered::new(campaign, &order.lead, gateway.store.now(), gateway.paused.load_full());
        gateway.telemetry.filter.duration.record(started.elapsed());
        let attempted: &[(BuyerId, AttemptOutcome)] = order.resumed.as_ref().map_or(&[], |resumed| &resumed.attempted);
        let offers = &campaign.campaign().offers;
        let tried = |index: usize| attempted.iter().find(|(buyer, _)| *buyer == offers[index].buyer.id);
        let ranked = filtered.candidates.ranked.iter();
        let remaining = ranked.copied().filter(|&index| tried(index).is_none()).collect();
        let mut story = Story::default();
        for index in 0..offers.len() {
            if let Some((_, outcome)) = tried(index) {
                story.attempted(index, *outcome, None);
            }
        }
        let start = if order.resumed.is_some() { gateway.clock.now() } else { order.lead.received_at };
        Self {
            gateway,
            order,
            campaign,
            filtered,
            progress,
            remaining,
            story,
            late: LateBoard::default(),
            deadline: start + gateway.config.forward.lead_deadline,
            attempts: u16::try_from(attempted.len()).unwrap_or(u16::MAX),
            taken: None,
        }
    }

    /// Admits the lead, together with its first take where the store can do both at once. True when it is ours to route.
    async fn admit(&mut self) -> bool {
        if self.order.resumed.is_some() {
            self.progress.send_replace(Progress::Admitted);
            return true;
        }
        let admit = self.admission_record();
        let (offers, take) = self.next_take();
        let mut result = self.ask_for_admission(&admit, &take).await;
        if matches!(result, Ok((Admission::NewLife, _))) {
            // The publisher's partition has to be opened once; a second refusal is the answer (P8).
            self.gateway.open_partitions().await;
            result = self.ask_for_admission(&admit, &take).await;
        }
        let progress = match result {
            Ok((Admission::New, reply)) => {
                self.metrics().received.increment(1);
                self.taken = reply.map(|reply| (offers, take.candidates, reply));
                self.progress.send_replace(Progress::Admitted);
                return true;
            }
            Ok((Admission::Running(lead), _)) => Progress::Joined(lead),
            Ok((Admission::Finished(lead, body), _)) => Progress::Answered { lead, body, is_replay: true },
            Ok((Admission::KeyReused, _)) => Progress::KeyReused,
            Ok((Admission::JournalFull, _)) => Progress::Refused("journal full"),
            Ok((Admission::TooLate, _)) => Progress::Refused("store too slow"),
            Ok((Admission::NewLife, _)) => Progress::Refused("counts are being rebuilt"),
            Err(error) => {
                self.gateway.note_store_error(&error);
                Progress::Refused("store away")
            }
        };
        self.progress.send_replace(progress);
        false
    }

    /// Asks until it is known whether the lead was taken. A call whose reply was lost may have admitted the lead and opened a
    /// lease: left alone, the lead would wait for recovery and the unit would count as a doubt. The repeat finds both, or is
    /// too late to start anything. Meanwhile the publisher's time runs out and it is told 503; when it sends the lead again,
    /// it joins this walk.
    async fn ask_for_admission(
        &self,
        admit: &Admit,
        take: &Take,
    ) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let mut pause = self.gateway.backoff();
        loop {
            let result = self.gateway.store.admit_and_take(admit, take).await;
            let Err(error @ StoreError::MaybeDone(_)) = &result else { return result };
            self.gateway.note_store_error(error);
            if self.gateway.clock.now() >= self.deadline || !pause.wait().await {
                return result;
            }
        }
    }

    fn admission_record(&self) -> Admit {
        let lead = &self.order.lead;
        let now = self.gateway.store.now();
        Admit {
            event: Received {
                lead: lead.id,
                publisher: lead.publisher.clone(),
                campaign: lead.campaign.clone(),
                received_at_us: lead.received_at.as_microsecond(),
                test: lead.is_test,
                payload: lead.fields.to_json(),
                claim: self.order.claim.clone(),
            },
            deadline: now + self.gateway.lead_open_for(),
            not_after: now + self.gateway.call_patience(),
            retention: self.gateway.config.store.idempotency,
        }
    }

    /// The next candidates that may be asked now, as a take. Skips buyers that rest or have too many forwards under way:
    /// before any cap is touched (F54).
    fn next_take(&mut self) -> (Vec<usize>, Take) {
        let now = self.gateway.store.now();
        let campaign = self.campaign.campaign();
        let mut indexes = Vec::new();
        let mut candidates = Vec::new();
        let context = take_context(self.gateway, self.order, campaign);
        let attempt = self.attempts + 1;
        let (remaining, story) = (&mut self.remaining, &mut self.story);
        remaining.retain(|&index| {
            if candidates.len() == CANDIDATES_PER_TAKE {
                return true;
            }
            let offer = &campaign.offers[index];
            if let Some(rest) = self.gateway.forwarder.resting(&offer.buyer.id) {
                story.skipped(index, Check::Breaker, [("rest_s", rest.as_secs().to_string())]);
                return false;
            }
            if self.gateway.forwarder.in_flight(&offer.buyer.id) >= offer.buyer.in_flight_max {
                story.skipped(index, Check::InFlight, [("limit", offer.buyer.in_flight_max.to_string())]);
                return false;
            }
            indexes.push(index);
            candidates.push(context.candidate(offer, now, attempt));
            true
        });
        let not_after = now + self.gateway.call_patience();
        (indexes, Take { lead: self.order.lead.id, candidates, not_after })
    }

    /// Takes a lease of the first remaining buyer with room.
    async fn lease(&mut self) -> Leased {
        let mut cures = 0;
        loop {
            if let Some(sold) = self.late.sold() {
                return Leased::Ended(Verdict::Sold(sold));
            }
            if self.taken.is_none() {
                if self.remaining.is_empty() {
                    return Leased::Ended(self.when_nobody_is_left().await);
                }
                if self.is_over() {
                    self.story.ended_by_deadline();
                    return Leased::Ended(self.when_nobody_is_left().await);
                }
                let (offers, take) = self.next_take();
                if offers.is_empty() {
                    continue;
                }
                let Some(reply) = self.ask_store(&take).await else { return Leased::Abandoned };
                self.taken = Some((offers, take.candidates, reply));
            }
            let Some((offers, candidates, reply)) = self.taken.take() else { continue };
            if let Some(held) = self.read_take(&offers, &candidates, reply, &mut cures).await {
                return Leased::Held(held);
            }
        }
    }

    /// No attempt may start any more.
    fn is_over(&self) -> bool {
        self.attempts >= self.gateway.config.forward.attempts_max || self.gateway.clock.now() >= self.deadline
    }

    /// Asks until the store answers or the lead's time is over. A repeat finds the lease that the first call may have
    /// opened (F20).
    async fn ask_store(&self, take: &Take) -> Option<TakeReply> {
        let started = Instant::now();
        let mut pause = self.gateway.backoff();
        loop {
            match self.gateway.store.take(take).await {
                Ok(reply) => {
                    self.gateway.telemetry.store.lease_duration.record(started.elapsed());
                    return Some(reply);
                }
                Err(StoreError::Bug(text)) => {
                    self.gateway.note_store_error(&StoreError::Bug(text));
                    return None;
                }
                Err(error) => self.gateway.note_store_error(&error),
            }
            if self.gateway.clock.now() >= self.deadline || !pause.wait().await {
                return None;
            }
        }
    }

    /// Sorts a take's reply: notes who was full, cures what a second call can cure.
    async fn read_take(
        &mut self,
        offers: &[usize],
        candidates: &[TakeCandidate],
        reply: TakeReply,
        cures: &mut u32,
    ) -> Option<HeldOffer> {
        let (mut must_open, mut is_in_wrong_window) = (false, false);
        let mut unseeded = Vec::new();
        for (position, refusal) in &reply.refused {
            let (Some(&index), Some(candidate)) = (offers.get(*position), candidates.get(*position)) else { continue };
            let metrics = self.gateway.telemetry.buyer(&candidate.buyer);
            match refusal {
                Refusal::Full { cap, used } => {
                    metrics.lease.count(LeaseResult::Full);
                    self.story.full(
                        index,
                        candidate,
                        cap,
                        *used,
                        &self.campaign.campaign().offers[index].buyer.timezone,
                    );
                    self.drop_candidate(index);
                }
                Refusal::Ended(_) => {
                    metrics.lease.count(LeaseResult::Ended);
                    self.drop_candidate(index);
                }
                Refusal::Stale { newest } => {
                    metrics.lease.count(LeaseResult::Stale);
                    self.story.unavailable(index, Check::Cap, [("routing_newest", newest.to_string())]);
                    self.gateway.reload_soon();
                    self.drop_candidate(index);
                }
                Refusal::WrongWindow { .. } | Refusal::Unseeded { .. } | Refusal::NewLife if *cures >= CURES_MAX => {
                    metrics.lease.count(LeaseResult::Unavailable);
                    self.story.unavailable(index, Check::Cap, [("store", "counts are not ready".to_owned())]);
                    self.drop_candidate(index);
                }
                // The next take computes its windows from the store's clock anew.
                Refusal::WrongWindow { store_now } => {
                    is_in_wrong_window = true;
                    self.gateway.note_store_clock(*store_now);
                }
                Refusal::Unseeded { .. } => {
                    metrics.lease.count(LeaseResult::Unseeded);
                    unseeded.push(index);
                }
                Refusal::NewLife => {
                    metrics.lease.count(LeaseResult::NewLife);
                    must_open = true;
                }
            }
        }
        if let Some(position) = reply.taken {
            let (index, candidate) = (*offers.get(position)?, candidates.get(position)?);
            self.drop_candidate(index);
            self.gateway.telemetry.buyer(&candidate.buyer).lease.count(LeaseResult::Taken);
            self.attempts += 1;
            let buyer = &self.campaign.campaign().offers[index].buyer;
            let mut held = Held::new(&self.order.lead, buyer, candidate, self.order.publisher.payout);
            held.about.ordinal = self.attempts;
            return Some(HeldOffer { offer: index, held });
        }
        if must_open || is_in_wrong_window || !unseeded.is_empty() {
            *cures += 1;
        }
        if must_open {
            self.gateway.open_partitions().await;
        }
        for index in unseeded {
            self.gateway.seed(&self.campaign.campaign().offers[index].buyer).await;
        }
        None
    }

    fn drop_candidate(&mut self, index: usize) {
        self.remaining.retain(|&other| other != index);
    }

    /// A lead without a sale is not closed while a late answer may still come.
    async fn when_nobody_is_left(&mut self) -> Verdict {
        if let Some(sold) = self.late.first_yes().await {
            return Verdict::Sold(sold);
        }
        Verdict::Unsold(self.story.reason())
    }

    /// Gives the lead its answer and tells whoever waits.
    async fn close(mut self, verdict: Verdict) {
        let close = self.close_record(&verdict);
        let mut pause = self.gateway.backoff();
        loop {
            match self.gateway.store.close(&close).await {
                Ok(reply) => return self.closed(&verdict, &close, reply),
                Err(error) => self.gateway.note_store_error(&error),
            }
            if !pause.wait().await {
                return self.leave_to_recovery();
            }
        }
    }

    /// The close that goes with a verdict.
    fn close_record(&mut self, verdict: &Verdict) -> Close {
        let lead = &self.order.lead;
        let explanation = self.story.explain(self.campaign, lead, &self.order.routing, &self.filtered);
        for note in &explanation.candidates {
            self.gateway.telemetry.filter.skipped.count(note.check);
        }
        let (reason, buyer, sale) = match verdict {
            Verdict::Sold(sold) => (None, Some(sold.buyer.clone()), Some(sale_money(sold))),
            Verdict::Unsold(reason) => (Some(reason.as_str().to_owned()), None, None),
            Verdict::InDoubt(buyer) => (None, Some(buyer.clone()), None),
        };
        Close {
            event: Closed {
                lead: lead.id,
                publisher: lead.publisher.clone(),
                campaign: lead.campaign.clone(),
                status: verdict.status(),
                reason,
                buyer,
                sale,
                // A sale by an answer in time was booked by its commit; a late one is booked here.
                books: self.late.sold().is_some_and(|late| matches!(verdict, Verdict::Sold(sold) if *sold == late)),
                test: lead.is_test,
                closed_at_us: self.gateway.clock.now().as_microsecond(),
                answer: reply::answer_body(lead.id, verdict),
                explanation: serde_json::to_string(&explanation).unwrap_or_default(),
            },
            claim: self.order.claim.clone(),
            retention: self.gateway.config.store.idempotency,
        }
    }

    /// Tells whoever waits. Late answers that are still out are contested from here on.
    fn closed(self, verdict: &Verdict, close: &Close, reply: CloseReply) {
        let lead = &self.order.lead;
        let body = match reply {
            CloseReply::Closed => {
                self.metrics().closed(verdict);
                Bytes::from(close.event.answer.clone())
            }
            CloseReply::Already(body) => body,
            CloseReply::NewLife => return self.leave_to_recovery(),
        };
        self.late.contest();
        self.progress.send_replace(Progress::Answered { lead: lead.id, body, is_replay: false });
    }

    fn metrics(&self) -> Arc<LeadMetrics> {
        self.gateway.telemetry.leads(&self.order.lead.campaign, &self.order.lead.publisher)
    }

    fn leave_to_recovery(self) {
        tracing::warn!(lead = %self.order.lead.id, "walk cannot go on now; recovery will finish the lead");
        self.progress.send_replace(Progress::LeftToRecovery);
    }
}

/// What is the same for every candidate of the lead.
fn take_context<'a>(gateway: &Gateway, order: &'a WalkOrder, campaign: &'a Campaign) -> TakeContext<'a> {
    TakeContext {
        lead: &order.lead,
        campaign,
        payout: order.publisher.payout,
        late_answer: gateway.config.forward.late_answer,
        routing_version: order.routing.version(),
    }
}

fn sale_money(sold: &Sold) -> SaleMoney {
    SaleMoney { price: sold.price, payout: sold.payout, currency: sold.currency }
}
