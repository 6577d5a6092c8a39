//! The lease step: the first buyer with room in every cap, refusals noted, what a second call can cure cured.

use std::time::Instant;

use super::{Walk, WalkOrder};
use crate::app::Gateway;
use crate::domain::explanation::Check;
use crate::domain::outcome::Verdict;
use crate::domain::routing::Campaign;
use crate::lease::{Held, TakeContext};
use crate::store::{Refusal, StoreError, Take, TakeCandidate, TakeReply};
use crate::telemetry::LeaseResult;

/// Most candidates in one take: bounds the script's work and the size of its call.
const CANDIDATES_PER_TAKE: usize = 8;

/// How often one lease is asked for again after a refusal that a second call can cure (wrong window, unseeded, a life that
/// has to be opened).
const CURES_MAX: u32 = 6;

/// What asking for the next lease came to.
pub(super) enum Leased {
    /// A unit of every cap of this buyer is held.
    Held(HeldOffer),
    /// Nobody is left to ask.
    Ended(Verdict),
    /// The store is away and the lead's time is over.
    Abandoned,
}

/// A held lease and the offer it is for.
pub(super) struct HeldOffer {
    /// Index into the campaign's offers.
    pub offer: usize,
    /// The lease.
    pub held: Held,
}

impl Walk<'_> {
    /// The next candidates that may be asked now, as a take. Skips buyers that rest or have too many forwards under way:
    /// before any cap is touched (F54).
    pub(super) fn next_take(&mut self) -> (Vec<usize>, Take) {
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
    pub(super) async fn lease(&mut self) -> Leased {
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
            self.gateway.open_partitions_for_take().await;
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
}

/// What is the same for every candidate of the lead.
pub(super) fn take_context<'a>(gateway: &Gateway, order: &'a WalkOrder, campaign: &'a Campaign) -> TakeContext<'a> {
    TakeContext {
        lead: &order.lead,
        campaign,
        payout: order.publisher.payout,
        late_answer: gateway.config.forward.late_answer,
        routing_version: order.routing.version(),
    }
}
