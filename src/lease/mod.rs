//! Leases: which caps guard a buyer for this lead, in which windows, and how a held lease is ended.
//!
//! A [`Held`] lease must be settled: the only ways out of it are the [`LeaseEnd`]s it makes for commit, refund and doubt.

use std::time::Duration;

use jiff::Timestamp;

use crate::domain::cap::Limit;
use crate::domain::event::{Attempt, WindowAmount};
use crate::domain::lead::Lead;
use crate::domain::lease::{AttemptInfo, Charge, Demand, LeaseKey, OpenLease, Terms, WalkName};
use crate::domain::money::{Micros, Payout};
use crate::domain::outcome::{Acceptance, AttemptOutcome, Outcome};
use crate::domain::person::Person;
use crate::domain::routing::{Buyer, Campaign, Offer, OnTimeout};
use crate::store::{LeaseEnd, TakeCandidate};

mod full;
mod windows;

pub use full::{FullCap, FullMemory, REMEMBERED};
pub use windows::{WindowsInForce, unfinished};

/// Time that a lease has beyond the forward itself: connecting to the store, settling, and being late (F10).
pub const LEASE_MARGIN: Duration = Duration::from_secs(2);

/// How long a lease of this buyer lives before recovery may end it. `reserve` keeps the unit while the late answer is
/// awaited.
#[must_use]
pub fn lease_for(buyer: &Buyer, late_answer: Duration) -> Duration {
    let late = match buyer.on_timeout {
        OnTimeout::Reserve => late_answer,
        OnTimeout::Refund | OnTimeout::Hold => Duration::ZERO,
    };
    buyer.timeout + late + LEASE_MARGIN
}

/// Every cap of the buyer that counts this lead, in the window that it counts in at `at`.
#[must_use]
pub fn demands(windows: &WindowsInForce, buyer: &Buyer, lead: &Lead, price_max: Micros, at: Timestamp) -> Vec<Demand> {
    buyer
        .caps
        .iter()
        .filter(|cap| cap.counts(&lead.publisher, &lead.fields))
        .map(|cap| Demand {
            charge: Charge {
                cap: cap.id.clone(),
                window: windows.window(buyer, cap, at),
                amount: cap.amount(price_max),
            },
            limit: cap.limit_units(),
        })
        .collect()
}

/// What is the same for every candidate of a lead.
#[derive(Debug, Clone, Copy)]
pub struct TakeContext<'a> {
    /// The lead.
    pub lead: &'a Lead,
    /// Its campaign.
    pub campaign: &'a Campaign,
    /// The publisher's rule.
    pub payout: Payout,
    /// How long late answers are awaited.
    pub late_answer: Duration,
    /// Goes with every take.
    pub routing_version: u64,
    /// Whose takes they are.
    pub walk: WalkName,
    /// Windows that are not the calendar's.
    pub windows: &'a WindowsInForce,
}

impl TakeContext<'_> {
    fn person(&self, buyer: &Buyer) -> Option<Person> {
        buyer.duplicates.as_ref()?.person(&buyer.id, &self.lead.fields, &self.campaign.country)
    }

    /// One buyer as the store's take wants it, with the windows that `at` falls into.
    #[must_use]
    pub fn candidate(&self, offer: &Offer, at: Timestamp, ordinal: u16) -> TakeCandidate {
        TakeCandidate {
            buyer: offer.buyer.id.clone(),
            demands: demands(self.windows, &offer.buyer, self.lead, offer.price_max, at),
            lease_for: lease_for(&offer.buyer, self.late_answer),
            about: AttemptInfo {
                walk: self.walk,
                publisher: self.lead.publisher.clone(),
                campaign: self.campaign.id.clone(),
                ordinal,
                terms: Terms::new(offer.price, offer.price_max, self.payout, self.campaign.currency),
                person: self.person(&offer.buyer),
            },
            routing_version: self.routing_version,
        }
    }
}

/// The right to offer one lead to one buyer.
#[derive(Debug, Clone)]
#[must_use = "a held lease must be committed, refunded or left in doubt"]
pub struct Held {
    /// Its name.
    pub key: LeaseKey,
    /// What it holds.
    pub charges: Vec<Charge>,
    /// Limits the charges were taken under, in the order of `charges`.
    pub limits: Vec<u64>,
    /// Which charges are money, in the order of `charges`.
    money: Vec<bool>,
    /// Ordinal and terms.
    pub about: AttemptInfo,
    /// The publisher's payout rule, for a price that the answer names.
    pub payout: Payout,
}

/// What is known of a forward when its lease is ended.
#[derive(Debug, Clone)]
pub struct Known {
    /// When the forward started.
    pub sent_at: Timestamp,
    /// From start to verdict or time-out.
    pub duration: Duration,
    /// Of the answer.
    pub http_status: Option<u16>,
    /// The buyer's words or ours.
    pub reason: Option<String>,
    /// The buyer's own name for the lead.
    pub reference: Option<String>,
}

impl Known {
    /// What an outcome says beyond yes and no.
    #[must_use]
    pub fn of(outcome: &Outcome, sent_at: Timestamp, duration: Duration) -> Self {
        let (http_status, reason) = match outcome {
            Outcome::Accepted(acceptance) => (Some(acceptance.http_status), None),
            Outcome::Pending { http_status, .. } => (Some(*http_status), Some("pending".to_owned())),
            Outcome::Declined { http_status, reason, .. } => (Some(*http_status), Some(reason.clone())),
            Outcome::Unsent { reason } => (None, Some((*reason).to_owned())),
            Outcome::InDoubt { reason, http_status } => (*http_status, Some((*reason).to_owned())),
        };
        let reference = match outcome {
            Outcome::Accepted(acceptance) => acceptance.reference.clone(),
            Outcome::Pending { reference, .. } => reference.clone(),
            Outcome::Declined { .. } | Outcome::Unsent { .. } | Outcome::InDoubt { .. } => None,
        };
        Self { sent_at, duration, http_status, reason, reference }
    }
}

impl Held {
    /// Wraps what the store's take opened.
    pub fn new(lead: &Lead, buyer: &Buyer, candidate: &TakeCandidate, payout: Payout) -> Self {
        let is_money = |demand: &Demand| {
            buyer.caps.iter().any(|cap| cap.id == demand.charge.cap && matches!(cap.limit, Limit::Spend(_)))
        };
        Self {
            money: candidate.demands.iter().map(is_money).collect(),
            key: LeaseKey { lead: lead.id, buyer: candidate.buyer.clone() },
            charges: candidate.demands.iter().map(|demand| demand.charge.clone()).collect(),
            limits: candidate.demands.iter().map(|demand| demand.limit).collect(),
            about: candidate.about.clone(),
            payout,
        }
    }

    /// The charges that are money.
    #[must_use]
    pub fn money_charges(&self) -> Vec<Charge> {
        self.charges
            .iter()
            .zip(&self.money)
            .filter(|(_, is_money)| **is_money)
            .map(|(charge, _)| charge.clone())
            .collect()
    }

    /// The price that is booked for this answer: its own, if possible and at most `price_max`, else the offer's.
    #[must_use]
    pub fn price(&self, acceptance: &Acceptance) -> Micros {
        let terms = self.about.terms;
        acceptance.price.map_or(terms.price, |named| named.min(terms.price_max))
    }

    /// For [`crate::store::Store::commit`].
    #[must_use]
    pub fn accepted(&self, acceptance: &Acceptance, known: &Known) -> LeaseEnd {
        let price = self.price(acceptance);
        let payout = self.payout.of(price);
        let event = |outcome, books| {
            let mut event = attempt(&self.key, &self.about, &self.charges, outcome, true, known);
            event.price = price;
            event.payout = payout;
            event.books = books;
            // A money cap reserved `price_max` and keeps what is booked; a lead cap keeps its one lead.
            for (window, _) in event.windows.iter_mut().zip(&self.money).filter(|(_, is_money)| **is_money) {
                window.amount = u64::try_from(price.0).unwrap_or(0).min(window.amount);
            }
            event
        };
        LeaseEnd {
            key: self.key.clone(),
            charges: self.charges.clone(),
            event: event(AttemptOutcome::Accepted, true),
            // A yes that comes after the lease had ended carries no money: the closing event books it, if the lead is still
            // for sale.
            late_event: event(AttemptOutcome::LateAccepted, false),
        }
    }

    /// For [`crate::store::Store::commit`] of a yes that came after the time-out: under `reserve` the lease is still open, and
    /// even then the closing event is the one that books it.
    #[must_use]
    pub fn accepted_late(&self, acceptance: &Acceptance, known: &Known) -> LeaseEnd {
        let end = self.accepted(acceptance, known);
        LeaseEnd { event: end.late_event.clone(), ..end }
    }

    /// For [`crate::store::Store::refund`] after an answer in full, or after a forward that never left.
    #[must_use]
    pub fn not_taken(&self, outcome: AttemptOutcome, known: &Known) -> LeaseEnd {
        let event = attempt(&self.key, &self.about, &self.charges, outcome, false, known);
        LeaseEnd { key: self.key.clone(), charges: self.charges.clone(), late_event: event.clone(), event }
    }

    /// For [`crate::store::Store::doubt`] (`keeps_unit`) or [`crate::store::Store::expire`] of a forward whose outcome is
    /// unknown.
    #[must_use]
    pub fn in_doubt(&self, keeps_unit: bool, known: &Known) -> LeaseEnd {
        let event = attempt(&self.key, &self.about, &self.charges, AttemptOutcome::InDoubt, keeps_unit, known);
        LeaseEnd { key: self.key.clone(), charges: self.charges.clone(), late_event: event.clone(), event }
    }
}

/// The end that recovery gives a lease whose owner died.
#[must_use]
pub fn abandoned(lease: &OpenLease, keeps_unit: bool, now: Timestamp) -> LeaseEnd {
    let known = Known {
        sent_at: lease.taken_at,
        duration: Duration::try_from(now.duration_since(lease.taken_at)).unwrap_or_default(),
        http_status: None,
        reason: Some(if lease.gives_back { "timeout" } else { "gateway_lost" }.to_owned()),
        reference: None,
    };
    let event = attempt(&lease.key, &lease.about, &lease.charges, AttemptOutcome::InDoubt, keeps_unit, &known);
    LeaseEnd { key: lease.key.clone(), charges: lease.charges.clone(), late_event: event.clone(), event }
}

fn attempt(
    key: &LeaseKey,
    about: &AttemptInfo,
    charges: &[Charge],
    outcome: AttemptOutcome,
    counted: bool,
    known: &Known,
) -> Attempt {
    Attempt {
        lead: key.lead,
        buyer: key.buyer.clone(),
        publisher: about.publisher.clone(),
        campaign: about.campaign.clone(),
        ordinal: about.ordinal,
        outcome,
        counted,
        http_status: known.http_status,
        reason: known.reason.clone(),
        sent_at_us: known.sent_at.as_microsecond(),
        duration_us: u64::try_from(known.duration.as_micros()).unwrap_or(u64::MAX),
        windows: charges
            .iter()
            .map(|charge| WindowAmount {
                cap: charge.cap.clone(),
                start_ms: charge.window.start.as_millisecond(),
                amount: charge.amount,
            })
            .collect(),
        price: about.terms.price,
        payout: about.terms.payout,
        currency: about.terms.currency,
        books: false,
        person: about.person,
        reference: known.reference.clone(),
    }
}
