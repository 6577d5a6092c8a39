//! The walk of one lead: filter, admit, lease, forward, settle, close. Intake comes before it, the reply after.
//!
//! A walk runs in a task of its own: a publisher that hangs up changes nothing (F44). What the publisher waits for arrives
//! through a [`Progress`] channel, whoever is still listening.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::app::{Gateway, RoutingInForce};
use crate::domain::event::{ClaimKey, Closed, Received};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::lead::Lead;
use crate::domain::lease::{LeaseKey, WalkName};
use crate::domain::outcome::{AttemptOutcome, Verdict};
use crate::domain::routing::Publisher;
use crate::filter::CompiledCampaign;
use crate::forward::Turn;
use crate::intake::reply;
use crate::ledger::LedgerError;
use crate::store::{Admission, Admit, Close, CloseReply, StoreError, Take, TakeReply};
use crate::telemetry::LeadMetrics;

mod attempt;
mod late;
mod leasing;
mod parking;
mod rehearsal;
mod story;

use attempt::After;
use late::LateBoard;
use leasing::{Leased, NewerOffer, Taken};
pub use rehearsal::rehearse;
use story::{Filtered, Story};
pub use story::{told_by_attempts, told_further};

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
    /// Acknowledged, and waiting for a buyer that decides later.
    Parked,
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
            Leased::Held(held) => *held,
            Leased::Ended(verdict) => break verdict,
            Leased::Abandoned => return walk.leave_to_recovery(),
        };
        match walk.forward_and_settle(held).await {
            After::NextBuyer => {}
            After::Final(verdict) => break verdict,
            After::Parked => return walk.parked(),
            After::Abandoned => return walk.leave_to_recovery(),
            // The store lost its data between the sale and its close: the sale is in the books, the close is asked again.
            After::Closed(closed) if closed.reply == CloseReply::NewLife => break closed.verdict,
            After::Closed(closed) => return walk.closed(&closed.verdict, &closed.close, closed.reply),
        }
    };
    walk.close(verdict).await;
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
    /// The sale may not have been booked by its commit: its verdict does it.
    verdict_books: bool,
    /// No attempt starts after it.
    deadline: Timestamp,
    /// From here on, by the store's clock, recovery may have given the lead to another walk.
    open_until: Timestamp,
    attempts: u16,
    /// A take's reply that was not read yet: the first one comes with the admission.
    taken: Option<Taken>,
    /// Rights to call the candidates of the last take, by their place among the offers.
    turns: HashMap<usize, Turn>,
    /// Its name, in every lease that it opens.
    name: WalkName,
    /// Offers of a newer routing, for buyers that the store has seen it used for (F86), by the place of the old offer.
    newer: HashMap<usize, NewerOffer>,
    /// How much longer the lead waits for counters that have to be read from the books.
    seed_patience: Duration,
    /// Most candidates in the next take.
    candidates_max: usize,
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
            verdict_books: false,
            deadline: start + gateway.config.forward.lead_deadline,
            open_until: gateway.store.now() + gateway.lead_open_for(),
            attempts: u16::try_from(attempted.len()).unwrap_or(u16::MAX),
            taken: None,
            turns: HashMap::new(),
            name: WalkName::generate(),
            newer: HashMap::new(),
            seed_patience: leasing::SEED_PATIENCE,
            candidates_max: leasing::CANDIDATES_IN_FIRST_TAKE,
        }
    }

    /// Admits the lead, together with its first take where the store can do both at once. True when it is ours to route.
    async fn admit(&mut self) -> bool {
        if self.order.resumed.is_some() {
            self.progress.send_replace(Progress::Admitted);
            return true;
        }
        let mut admit = self.admission_record();
        let (offers, mut take) = self.next_take();
        let mut asked_at = Instant::now();
        let mut result = self.ask_for_admission(&admit, &take).await;
        if matches!(result, Ok((Admission::NewLife, _))) {
            // The publisher's partition has to be opened once; a second refusal is the answer (P8).
            self.gateway.open_partitions().await;
            asked_at = Instant::now();
            result = self.ask_for_admission(&admit, &take).await;
        }
        if matches!(result, Ok((Admission::AskBooks, _))) {
            if let Err(error) = self.ask_books(&admit).await {
                self.gateway.status.lives_failed(&error);
                self.progress.send_replace(Progress::Refused("books away"));
                return false;
            }
            // The books took their time: both may start anew from now.
            admit.not_after = self.gateway.store.now() + self.gateway.call_patience();
            take.not_after = admit.not_after;
            asked_at = Instant::now();
            result = self.ask_for_admission(&admit, &take).await;
        }
        let progress = match result {
            Ok((Admission::New, reply)) => {
                self.metrics().received.increment(1);
                let candidates = take.candidates;
                self.taken = reply.map(|reply| Taken { offers, candidates, reply, asked_at });
                self.progress.send_replace(Progress::Admitted);
                return true;
            }
            Ok((Admission::Running(lead), _)) => Progress::Joined(lead),
            Ok((Admission::Finished(lead, body), _)) => Progress::Answered { lead, body, is_replay: true },
            Ok((Admission::KeyReused, _)) => Progress::KeyReused,
            Ok((Admission::JournalFull, _)) => Progress::Refused("journal full"),
            Ok((Admission::TooLate, _)) => Progress::Refused("store too slow"),
            Ok((Admission::NewLife | Admission::AskBooks, _)) => Progress::Refused("counts are being rebuilt"),
            Err(error) => {
                self.gateway.note_store_error(&error);
                Progress::Refused("store away")
            }
        };
        self.progress.send_replace(progress);
        false
    }

    /// Asks until it is known whether the lead was taken. A call whose reply was lost may have admitted the lead and opened a
    /// lease: left alone, the lead would wait for recovery and the unit would count as a doubt, although nothing was sent. The
    /// repeat finds both, or is too late to start anything. Asked until the lead would be recovery's to finish. Meanwhile the
    /// publisher's time runs out and it is told 503; when it sends the lead again, it joins this walk.
    async fn ask_for_admission(
        &self,
        admit: &Admit,
        take: &Take,
    ) -> Result<(Admission, Option<TakeReply>), StoreError> {
        let mut pause = self.gateway.backoff();
        let mut may_have_happened = false;
        loop {
            let result = self.gateway.store.admit_and_take(admit, take).await;
            match &result {
                Err(StoreError::MaybeDone(_)) => may_have_happened = true,
                Err(StoreError::NotDone(_)) if may_have_happened => {}
                Ok(_) | Err(StoreError::NotDone(_) | StoreError::Bug(_)) => return result,
            }
            if let Err(error) = &result {
                self.gateway.note_store_error(error);
            }
            if self.gateway.store.now() >= admit.deadline || !pause.wait().await {
                return result;
            }
        }
    }

    /// The store has lost its memory of keys and has not got it back: tells it what the books know of this one (P3, F40).
    async fn ask_books(&self, admit: &Admit) -> Result<(), LedgerError> {
        let Some(claim) = &admit.event.claim else { return Ok(()) };
        let told = match self.gateway.ledger.lead_by_key(&admit.event.publisher, &claim.hash).await? {
            Some(lead) => self.gateway.store.bring_back(&lead, admit.retention).await,
            None => self.gateway.store.new_key(&admit.event.publisher, &claim.hash).await,
        };
        if let Err(error) = told {
            // The admission that follows finds out.
            self.gateway.note_store_error(&error);
        }
        Ok(())
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

    /// Gives the lead its answer and tells whoever waits.
    async fn close(mut self, verdict: Verdict) {
        let close = self.close_record(&verdict);
        let mut pause = self.gateway.backoff();
        loop {
            match self.gateway.store.close(&close).await {
                // Opened once more, the partition takes the verdict: this walk is the only one that still knows it (P5).
                Ok(CloseReply::NewLife) => self.gateway.open_partitions().await,
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
        // A sale by an answer in time was booked by its commit; a late one is booked here.
        let is_late = self.late.sold().is_some_and(|late| matches!(verdict, Verdict::Sold(sold) if *sold == late));
        let postback = reply::postback_body(&self.order.publisher, lead.id, verdict);
        Close {
            event: Closed {
                books: is_late || (self.verdict_books && matches!(verdict, Verdict::Sold(_))),
                closed_at_us: self.gateway.clock.now().as_microsecond(),
                answer: reply::answer_body(lead.id, verdict),
                explanation: serde_json::to_string(&explanation).unwrap_or_default(),
                ..Closed::of(verdict, lead.id, lead.publisher.clone(), lead.campaign.clone(), postback)
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
            CloseReply::Already(body) => {
                self.answered_elsewhere(verdict);
                body
            }
            CloseReply::NewLife => return self.leave_to_recovery(),
        };
        let winner = match verdict {
            Verdict::Sold(sold) => Some(&sold.buyer),
            Verdict::Unsold(_) | Verdict::InDoubt(_) => None,
        };
        if let Some(lost) = self.late.end(winner) {
            late::contested(self.gateway, &LeaseKey { lead: lead.id, buyer: lost.buyer });
        }
        self.progress.send_replace(Progress::Answered { lead: lead.id, body, is_replay: false });
    }

    fn metrics(&self) -> Arc<LeadMetrics> {
        self.gateway.telemetry.leads(&self.order.lead.campaign, &self.order.lead.publisher)
    }

    /// The lead had its answer: from our own call whose reply was lost, or from another gateway that took this one for dead, and
    /// then what was sold here may have been sold by nobody. The bytes of two answers can be equal: only the books know.
    fn answered_elsewhere(&self, verdict: &Verdict) {
        let late = self.late.leave();
        let sold = late.map(|sold| sold.buyer).or_else(|| match verdict {
            Verdict::Sold(sold) => Some(sold.buyer.clone()),
            Verdict::Unsold(_) | Verdict::InDoubt(_) => None,
        });
        if let Some(buyer) = sold {
            late::contested_unless_booked(self.gateway, LeaseKey { lead: self.order.lead.id, buyer });
        }
    }

    fn leave_to_recovery(self) {
        if let Some(sold) = self.late.leave() {
            late::contested_unless_booked(self.gateway, LeaseKey { lead: self.order.lead.id, buyer: sold.buyer });
        }
        tracing::warn!(lead = %self.order.lead.id, "walk cannot go on now; recovery will finish the lead");
        self.progress.send_replace(Progress::LeftToRecovery);
    }
}
