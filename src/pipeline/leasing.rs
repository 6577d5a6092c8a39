//! The lease step: the first buyer with room in every cap, refusals noted, what a second call can cure cured.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::story::Filtered;
use super::{Walk, WalkOrder};
use crate::app::Gateway;
use crate::app::reload::catch_up;
use crate::domain::explanation::Check;
use crate::domain::id::{CapId, LeadId};
use crate::domain::lease::WalkName;
use crate::domain::outcome::Verdict;
use crate::domain::person::Person;
use crate::domain::routing::{Campaign, Offer};
use crate::forward::Turn;
use crate::lease::{FullCap, Held, TakeContext};
use crate::ledger::SettleError;
use crate::settle::lives::ask_books_about;
use crate::store::{Refusal, StoreError, Take, TakeCandidate, TakeReply};
use crate::telemetry::LeaseResult;

/// Most candidates in a walk's first take: bounds the script's work and the size of its call.
pub(super) const CANDIDATES_IN_FIRST_TAKE: usize = 8;
/// Most candidates in any take. Where many are full each take asks for twice as many as the one before, so that a long list
/// costs few round trips and a short one little work.
const CANDIDATES_PER_TAKE: usize = 32;

/// How often one candidate is asked again after a refusal that a second call can cure (wrong window, unseeded, a life that
/// has to be opened).
const CURES_MAX: u32 = 6;

/// The candidate that was cured last, and how often in a row.
type Cured = (usize, u32);

/// How long a lead waits for counters to be read from the books, all its buyers together: the rest of its time is for buyers
/// whose counters are there.
pub(super) const SEED_PATIENCE: Duration = Duration::from_secs(3);

/// Between two questions to books that are away.
const BOOKS_PAUSE: Duration = Duration::from_millis(200);

/// What asking for the next lease came to.
pub(super) enum Leased {
    /// A unit of every cap of this buyer is held.
    Held(Box<HeldOffer>),
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
    /// When it was asked for: it is not older than this.
    pub asked_at: Instant,
    /// The right to call the buyer.
    pub turn: Option<Turn>,
}

/// A take and what the store said to it.
pub(super) struct Taken {
    /// The candidates' places among the campaign's offers.
    pub offers: Vec<usize>,
    /// As they were asked for.
    pub candidates: Vec<TakeCandidate>,
    /// The store's answer.
    pub reply: TakeReply,
    /// When it was first asked for.
    pub asked_at: Instant,
}

/// An offer as a newer routing has it.
pub(super) struct NewerOffer {
    /// Goes with the take.
    pub version: u64,
    /// Buyer and terms.
    pub offer: Offer,
}

impl Walk<'_> {
    /// The offer as it stands for this lead: of the routing it started with, or of a newer one that had to be loaded for it.
    pub(super) fn offer(&self, index: usize) -> &Offer {
        match self.newer.get(&index) {
            Some(newer) => &newer.offer,
            None => &self.campaign.campaign().offers[index],
        }
    }

    /// The next candidates that may be asked now, as a take. Skips buyers that rest, that have too many forwards under way
    /// (F54) or whose cap was full a moment ago (F16): before any cap is touched.
    pub(super) fn next_take(&mut self) -> (Vec<usize>, Take) {
        let (at, now) = (self.gateway.store.now(), Instant::now());
        let campaign = self.campaign.campaign();
        let mut indexes = Vec::new();
        let mut candidates = Vec::new();
        let context = take_context(self.gateway, self.order, campaign, self.name);
        let (attempt, candidates_max) = (self.attempts + 1, self.candidates_max);
        // Turns of an earlier take that came to nothing are given back.
        self.turns.clear();
        let (remaining, story, newer, turns) = (&mut self.remaining, &mut self.story, &self.newer, &mut self.turns);
        let full_caps = self.gateway.full.read();
        remaining.retain(|&index| {
            if candidates.len() == candidates_max {
                return true;
            }
            let (offer, version) = match newer.get(&index) {
                Some(newer) => (&newer.offer, newer.version),
                None => (&campaign.offers[index], context.routing_version),
            };
            if self.gateway.forwarder.in_flight(&offer.buyer.id) >= offer.buyer.in_flight_max {
                story.skipped(index, Check::InFlight, [("limit", offer.buyer.in_flight_max.to_string())]);
                return false;
            }
            if let Some(full) = full_caps.find(offer, &self.order.lead, at, version, now) {
                self.gateway.telemetry.buyer(&offer.buyer.id).lease.count(LeaseResult::RememberedFull);
                story.full(index, &full, &offer.buyer.timezone);
                return false;
            }
            // Last, because it may be the one turn of a buyer that is being tried again.
            match self.gateway.forwarder.turn(&offer.buyer) {
                Ok(turn) => drop(turns.insert(index, turn)),
                Err(rest) => {
                    story.resting(index, rest);
                    return false;
                }
            }
            indexes.push(index);
            candidates.push(TakeContext { routing_version: version, ..context }.candidate(offer, at, attempt));
            true
        });
        drop(full_caps);
        self.candidates_max = (candidates_max * 2).min(CANDIDATES_PER_TAKE);
        let not_after = at + self.gateway.call_patience();
        (indexes, Take { lead: self.order.lead.id, candidates, not_after })
    }

    /// Takes a lease of the first remaining buyer with room.
    pub(super) async fn lease(&mut self) -> Leased {
        let mut cured = (usize::MAX, 0);
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
                let asked_at = Instant::now();
                let Some(reply) = self.ask_store(&take).await else { return Leased::Abandoned };
                self.taken = Some(Taken { offers, candidates: take.candidates, reply, asked_at });
            }
            let Some(taken) = self.taken.take() else { continue };
            if let Some(held) = self.read_take(&taken, &mut cured).await {
                return Leased::Held(Box::new(held));
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
    async fn read_take(&mut self, taken: &Taken, cured: &mut Cured) -> Option<HeldOffer> {
        let mut cure: Option<(usize, Cure)> = None;
        for (position, refusal) in &taken.reply.refused {
            let (Some(&index), Some(candidate)) = (taken.offers.get(*position), taken.candidates.get(*position)) else {
                continue;
            };
            let result = match refusal {
                Refusal::Full { cap, used } => {
                    self.note_full(index, candidate, cap, *used, taken.asked_at);
                    LeaseResult::Full
                }
                Refusal::Duplicate { lead, since } => {
                    self.note_duplicate(index, *lead, *since);
                    LeaseResult::Duplicate
                }
                Refusal::Ended(_) => LeaseResult::Ended,
                Refusal::Underway => LeaseResult::Underway,
                Refusal::AskBooks if self.seed_patience.is_zero() || *cured == (index, CURES_MAX) => {
                    self.story.unavailable(index, Check::Duplicate, [("store", "the books are away".to_owned())]);
                    LeaseResult::AskBooks
                }
                Refusal::AskBooks => {
                    cure = Some((index, Cure::AskBooks(candidate.about.person)));
                    LeaseResult::AskBooks
                }
                Refusal::Unseeded { .. } if self.seed_patience.is_zero() => {
                    self.story.unavailable(index, Check::Cap, [("store", "counts are not ready".to_owned())]);
                    LeaseResult::Unseeded
                }
                Refusal::Stale { newest } if *cured == (index, CURES_MAX) => {
                    self.note_old_routing(index, *newest);
                    LeaseResult::Stale
                }
                _ if *cured == (index, CURES_MAX) => {
                    self.story.unavailable(index, Check::Cap, [("store", "counts are not ready".to_owned())]);
                    LeaseResult::Unavailable
                }
                Refusal::Stale { newest } => {
                    cure = Some((index, Cure::CatchUp { newest: *newest }));
                    LeaseResult::Stale
                }
                // The next take computes its windows from the store's clock anew.
                Refusal::WrongWindow { store_now } => {
                    self.gateway.note_store_clock(*store_now);
                    cure = Some((index, Cure::AskAgain));
                    continue;
                }
                Refusal::OtherWindow { cap, window } => {
                    self.gateway.windows.learn(&candidate.buyer, cap, *window);
                    cure = Some((index, Cure::AskAgain));
                    continue;
                }
                Refusal::Unseeded { .. } => {
                    cure = Some((index, Cure::Seed));
                    LeaseResult::Unseeded
                }
                Refusal::NewLife => {
                    cure = Some((index, Cure::OpenPartitions));
                    LeaseResult::NewLife
                }
            };
            self.gateway.telemetry.buyer(&candidate.buyer).lease.count(result);
            if cure.is_none() {
                self.drop_candidate(index);
            }
        }
        if let Some(position) = taken.reply.taken {
            let (index, candidate) = (*taken.offers.get(position)?, taken.candidates.get(position)?);
            self.drop_candidate(index);
            self.gateway.telemetry.buyer(&candidate.buyer).lease.count(LeaseResult::Taken);
            self.attempts += 1;
            let buyer = &self.offer(index).buyer;
            let mut held = Held::new(&self.order.lead, buyer, candidate, self.order.publisher.payout);
            held.about.ordinal = self.attempts;
            let turn = self.turns.remove(&index);
            // Those of the others, who were not reached or had no room, are given back.
            self.turns.clear();
            return Some(HeldOffer { offer: index, held, asked_at: taken.asked_at, turn });
        }
        if let Some((index, cure)) = cure {
            *cured = if cured.0 == index { (index, cured.1 + 1) } else { (index, 1) };
            self.cure(index, cure).await;
        }
        None
    }

    fn note_full(&mut self, index: usize, candidate: &TakeCandidate, cap: &CapId, used: u64, asked_at: Instant) {
        let Some(demand) = candidate.demands.iter().find(|demand| demand.charge.cap == *cap) else { return };
        let full = FullCap::of(demand, used);
        self.gateway.full.remember(&candidate.buyer, &full, candidate.routing_version, asked_at);
        let zone = self.offer(index).buyer.timezone.clone();
        self.story.full(index, &full, &zone);
    }

    fn note_duplicate(&mut self, index: usize, lead: LeadId, since: Timestamp) {
        let Some(rule) = self.offer(index).buyer.duplicates.clone() else { return };
        self.story.duplicate(index, &rule, lead, since);
    }

    async fn cure(&mut self, index: usize, cure: Cure) {
        match cure {
            Cure::AskAgain => {}
            Cure::OpenPartitions => self.gateway.open_partitions_for_take().await,
            Cure::Seed => {
                // The seed that runs when the routing comes into force waits for nobody: it ends what is too long for a lead.
                let (began, seed) = (Instant::now(), self.gateway.seed(&self.offer(index).buyer));
                let _ = tokio::time::timeout(self.seed_patience, seed).await;
                self.seed_patience = self.seed_patience.saturating_sub(began.elapsed());
            }
            Cure::AskBooks(person) => {
                let (began, buyer) = (Instant::now(), self.offer(index).buyer.id.clone());
                let Some(person) = person else { return };
                let asked = ask_books_about(self.gateway, &buyer, &person);
                match tokio::time::timeout(self.seed_patience, asked).await {
                    Ok(Ok(())) | Err(_) => {}
                    Ok(Err(SettleError::Store(error))) => self.gateway.note_store_error(&error),
                    Ok(Err(SettleError::Ledger(error))) => {
                        tracing::warn!(%buyer, %error, "nobody is offered to the buyer: the books cannot be asked");
                        // Asking at once again would find them as they are.
                        tokio::time::sleep(BOOKS_PAUSE).await;
                    }
                }
                self.seed_patience = self.seed_patience.saturating_sub(began.elapsed());
            }
            Cure::CatchUp { newest } => self.catch_up(index, newest).await,
        }
    }

    /// Another gateway has used a newer routing for this buyer: nothing is granted by the older one any more (F86). The buyer
    /// is asked again by the newer one, if this gateway can have it and its rules take the lead. The rest of the lead keeps
    /// the routing it started with.
    async fn catch_up(&mut self, index: usize, newest: u64) {
        let routing = catch_up(self.gateway, newest).await;
        let buyer = self.offer(index).buyer.id.clone();
        let lead = &self.order.lead;
        let Some(routing) = routing else {
            self.note_old_routing(index, newest);
            return self.drop_candidate(index);
        };
        let campaign = routing.compiled.campaign(lead.campaign.as_str());
        let place = campaign.and_then(|campaign| {
            let place = campaign.campaign().offers.iter().position(|offer| offer.buyer.id == buyer)?;
            Some((campaign, place))
        });
        let Some((campaign, place)) = place else {
            self.story.skipped(index, Check::NotReached, [("routing_newest", newest.to_string())]);
            return self.drop_candidate(index);
        };
        let rules = Filtered::new(campaign, lead, self.gateway.store.now(), self.gateway.paused.load_full());
        if rules.candidates.ranked.contains(&place) {
            let offer = campaign.campaign().offers[place].clone();
            self.newer.insert(index, NewerOffer { version: routing.version(), offer });
            return;
        }
        let skipped = campaign.explain(lead, rules.at, &rules.paused, &rules.candidates);
        if let Some(skipped) = skipped.into_iter().find(|skipped| skipped.offer == place) {
            self.story.skipped_by(index, skipped);
        }
        self.drop_candidate(index);
    }

    /// The store grants nothing by this gateway's routing: no cap is full, and no buyer was asked.
    fn note_old_routing(&mut self, index: usize, newest: u64) {
        let ours = self.gateway.routing().version();
        self.gateway.status.routing_is_old(&self.offer(index).buyer.id, ours, newest);
        let values = [("routing_version", ours.to_string()), ("routing_newest", newest.to_string())];
        self.story.unavailable(index, Check::NotReached, values);
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

/// What has to be done before a refused candidate is asked again.
enum Cure {
    /// Nothing more: the next take is made anew.
    AskAgain,
    /// The partition's life has to be opened.
    OpenPartitions,
    /// The buyer's counters have to be read from the books.
    Seed,
    /// The books have to be asked whether the buyer has the lead's person.
    AskBooks(Option<Person>),
    /// A newer routing has to be loaded.
    CatchUp { newest: u64 },
}

/// What is the same for every candidate of the lead.
pub(super) fn take_context<'a>(
    gateway: &'a Gateway,
    order: &'a WalkOrder,
    campaign: &'a Campaign,
    walk: WalkName,
) -> TakeContext<'a> {
    TakeContext {
        walk,
        windows: &gateway.windows,
        lead: &order.lead,
        campaign,
        payout: order.publisher.payout,
        late_answer: gateway.config.forward.late_answer,
        routing_version: order.routing.version(),
    }
}
