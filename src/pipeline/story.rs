//! What happened to each candidate on the walk: the source of the explanation (P10) and of the reason of an unsold lead.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::app::RoutingInForce;
use crate::domain::explanation::{CandidateNote, Check, Explanation};
use crate::domain::id::{BuyerId, LeadId};
use crate::domain::lead::Lead;
use crate::domain::outcome::{AttemptOutcome, UnsoldReason};
use crate::domain::person::DuplicateRule;
use crate::domain::routing::Offer;
use crate::filter::{Candidates, CompiledCampaign, Skipped};
use crate::forward::Rest;
use crate::lease::FullCap;
use crate::ledger::AttemptRow;

/// What the static rules said, and what they were asked with: the explanation asks them again (F35: at the same instant).
#[derive(Debug)]
pub(super) struct Filtered {
    pub candidates: Candidates,
    pub at: Timestamp,
    pub paused: Arc<HashSet<BuyerId>>,
}

impl Filtered {
    /// Filters the campaign's offers at the store's time.
    pub fn new(campaign: &CompiledCampaign, lead: &Lead, at: Timestamp, paused: Arc<HashSet<BuyerId>>) -> Self {
        Self { candidates: campaign.filter(lead, at, &paused), at, paused }
    }
}

/// Notes by index of the campaign's offers. Static rules are not noted here: the filter can tell them again.
#[derive(Debug, Default)]
pub(super) struct Story {
    notes: HashMap<usize, (Check, Map<String, Value>)>,
    is_over_time: bool,
    is_store_unready: bool,
}

impl Story {
    /// A candidate that was not asked, and why.
    pub fn skipped<const N: usize>(&mut self, offer: usize, check: Check, values: [(&str, String); N]) {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect();
        self.notes.insert(offer, (check, values));
    }

    /// A candidate whose counts the store could not vouch for (P8).
    pub fn unavailable<const N: usize>(&mut self, offer: usize, check: Check, values: [(&str, String); N]) {
        self.is_store_unready = true;
        self.skipped(offer, check, values);
    }

    /// A candidate with a full cap.
    pub fn full(&mut self, offer: usize, full: &FullCap, zone: &TimeZone) {
        let mut values = Map::new();
        let mut put = |name: &str, value: String| values.insert(name.to_owned(), Value::String(value));
        put("cap", full.cap.to_string());
        put("limit", full.limit.to_string());
        put("used", full.used.to_string());
        if full.amount != 1 {
            put("amount", full.amount.to_string());
        }
        if let Some(resets_at) = full.window.resets_at_local(zone) {
            put("resets_at", resets_at);
        }
        self.notes.insert(offer, (Check::Cap, values));
    }

    /// A candidate that is not called for a while.
    pub fn resting(&mut self, offer: usize, rest: Rest) {
        self.skipped(
            offer,
            Check::Breaker,
            [("rest_s", rest.left.as_secs().to_string()), ("why", rest.why.to_owned())],
        );
    }

    /// A candidate that has the person by another lead.
    pub fn duplicate(&mut self, offer: usize, rule: &DuplicateRule, lead: LeadId, since: Timestamp) {
        let values = [
            ("fields", rule.fields.join(",")),
            ("days", rule.days.to_string()),
            ("lead_id", lead.to_string()),
            ("since", since.to_string()),
        ];
        self.skipped(offer, Check::Duplicate, values);
    }

    /// A candidate that another check of the explanation has skipped.
    pub fn skipped_by(&mut self, offer: usize, skipped: Skipped) {
        self.notes.insert(offer, (skipped.check, skipped.values));
    }

    /// A candidate that was asked.
    pub fn attempted(&mut self, offer: usize, outcome: AttemptOutcome, reason: Option<&str>) {
        self.notes.insert(offer, note_of(outcome, reason));
    }

    /// Time or attempts ended the walk before every candidate was asked.
    pub fn ended_by_deadline(&mut self) {
        self.is_over_time = true;
    }

    /// The furthest that any candidate came.
    pub fn reason(&self) -> UnsoldReason {
        if self.is_over_time {
            return UnsoldReason::Deadline;
        }
        let furthest = self.notes.values().filter_map(|(check, _)| reason_of(*check)).max();
        match furthest {
            Some(UnsoldReason::Capped | UnsoldReason::Duplicate) | None if self.is_store_unready => {
                UnsoldReason::Unavailable
            }
            Some(reason) => reason,
            None => UnsoldReason::NoBuyer,
        }
    }

    /// Every candidate once, in the order of the offers.
    pub fn explain(
        &self,
        campaign: &CompiledCampaign,
        lead: &Lead,
        routing: &RoutingInForce,
        filtered: &Filtered,
    ) -> Explanation {
        let mut skipped: HashMap<usize, (Check, Map<String, Value>)> = campaign
            .explain(lead, filtered.at, &filtered.paused, &filtered.candidates)
            .into_iter()
            .map(|skipped| (skipped.offer, (skipped.check, skipped.values)))
            .collect();
        let notes = campaign.campaign().offers.iter().enumerate().map(|(index, offer)| {
            let (check, values) = self
                .notes
                .get(&index)
                .cloned()
                .or_else(|| skipped.remove(&index))
                .unwrap_or((Check::NotReached, Map::new()));
            CandidateNote { buyer: offer.buyer.id.clone(), check, values }
        });
        Explanation { routing_version: routing.version().to_string(), candidates: notes.collect() }
    }
}

/// The story as the books have it: attempts, and every other candidate as not reached.
#[must_use]
pub fn told_by_attempts(campaign: &CompiledCampaign, attempts: &[AttemptRow]) -> Vec<CandidateNote> {
    let offers = &campaign.campaign().offers;
    let mut story = Story::default();
    for (index, offer) in offers.iter().enumerate() {
        if let Some(attempt) = attempts.iter().find(|attempt| attempt.buyer == offer.buyer.id) {
            story.attempted(index, attempt.outcome, attempt.reason.as_deref());
        }
    }
    let note = |(index, offer): (usize, &Offer)| {
        let (check, values) = story.notes.remove(&index).unwrap_or((Check::NotReached, Map::new()));
        CandidateNote { buyer: offer.buyer.id.clone(), check, values }
    };
    offers.iter().enumerate().map(note).collect()
}

/// A story that ended with its walk, and what the books know besides: how attempts have ended since. `None` for text that is no
/// story.
#[must_use]
pub fn told_further(told: &str, attempts: &[AttemptRow]) -> Option<String> {
    let mut explanation: Explanation = serde_json::from_str(told).ok()?;
    for note in &mut explanation.candidates {
        if let Some(attempt) = attempts.iter().find(|attempt| attempt.buyer == note.buyer) {
            (note.check, note.values) = note_of(attempt.outcome, attempt.reason.as_deref());
        }
    }
    serde_json::to_string(&explanation).ok()
}

/// What is told of an attempt.
fn note_of(outcome: AttemptOutcome, reason: Option<&str>) -> (Check, Map<String, Value>) {
    let check = match outcome {
        AttemptOutcome::Accepted | AttemptOutcome::LateAccepted => Check::Accepted,
        AttemptOutcome::Declined => Check::Declined,
        AttemptOutcome::Duplicate => Check::Duplicate,
        AttemptOutcome::Unsent => Check::Unsent,
        AttemptOutcome::InDoubt => Check::InDoubt,
    };
    let values = reason.map(|reason| ("reason".to_owned(), Value::String(reason.to_owned()))).into_iter().collect();
    (check, values)
}

/// How far a candidate with this note came; `None` for those that say nothing about an unsold lead.
fn reason_of(check: Check) -> Option<UnsoldReason> {
    match check {
        Check::Declined => Some(UnsoldReason::Declined),
        Check::Unsent | Check::InDoubt | Check::Breaker | Check::InFlight => Some(UnsoldReason::Unavailable),
        Check::Cap => Some(UnsoldReason::Capped),
        Check::Duplicate => Some(UnsoldReason::Duplicate),
        Check::Paused
        | Check::Publisher
        | Check::Country
        | Check::State
        | Check::Zip
        | Check::Where
        | Check::Hours
        | Check::Accepted
        | Check::NotReached => None,
    }
}
