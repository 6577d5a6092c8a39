//! Static rules: which buyers may have a lead and in which order, decided in memory. No I/O.
//!
//! Rules are compiled once per routing: for each attribute value a set of the offers that take it. A lead looks its own
//! values up and intersects the sets; only the offers left are looked at one by one (field rules, hours, pauses by the
//! operator). The explanation of what was skipped is made later, off the path of the answer.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::domain::explanation::{CandidateNote, Check};
use crate::domain::id::{BuyerId, CampaignId};
use crate::domain::lead::Lead;
use crate::domain::phone;
use crate::domain::place;
use crate::domain::routing::{Campaign, Offer, Routing};

mod explain;
mod hours;
mod index;
mod rank;
mod rules;
mod set;

use index::{PublisherIndex, ValueIndex, ZipIndex};
use set::Bits;

/// A routing with its rules compiled. Immutable; shared by all leads that started with it.
#[derive(Debug)]
pub struct CompiledRouting {
    routing: Arc<Routing>,
    campaigns: HashMap<CampaignId, CompiledCampaign>,
}

impl CompiledRouting {
    /// Compiles every campaign.
    #[must_use]
    pub fn new(routing: Routing) -> Self {
        let compile = |campaign: &Arc<Campaign>| CompiledCampaign::new(Arc::clone(campaign));
        let campaigns = routing.campaigns.iter().map(|(id, campaign)| (id.clone(), compile(campaign))).collect();
        Self { routing: Arc::new(routing), campaigns }
    }

    /// The routing it was made from.
    #[must_use]
    pub fn routing(&self) -> &Arc<Routing> {
        &self.routing
    }

    /// A campaign by id.
    #[must_use]
    pub fn campaign(&self, id: &str) -> Option<&CompiledCampaign> {
        self.campaigns.get(id)
    }
}

/// One campaign with the rules of its buyers compiled.
#[derive(Debug)]
pub struct CompiledCampaign {
    campaign: Arc<Campaign>,
    /// Offers whose buyer the routing file does not pause.
    active: Bits,
    publishers: PublisherIndex,
    countries: ValueIndex,
    states: ValueIndex,
    zips: ZipIndex,
    /// Each calendar once.
    zones: Vec<TimeZone>,
    /// Per offer: its place in `zones`; `None` for a buyer that is always open.
    zone_of: Vec<Option<usize>>,
    /// Per offer, for the draw among equals.
    salts: Vec<u64>,
}

/// Who may have a lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// Indexes into the campaign's offers, in the order to be tried.
    pub ranked: SmallVec<[usize; 8]>,
    /// How many offers were looked at one by one.
    pub examined: usize,
}

/// An offer that the static rules kept out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Index into the campaign's offers.
    pub offer: usize,
    /// The first check that failed: `paused`, `publisher`, `country`, `state`, `zip`, `where` or `hours`.
    pub check: Check,
    /// What was compared: the `rule` (lists cut to 20 entries) beside the `lead`'s value, `null` where it has none.
    pub values: Map<String, Value>,
}

impl Skipped {
    /// The note about it in an explanation; `None` when the offer is of another campaign.
    #[must_use]
    pub fn into_note(self, campaign: &Campaign) -> Option<CandidateNote> {
        let buyer = campaign.offers.get(self.offer)?.buyer.id.clone();
        Some(CandidateNote { buyer, check: self.check, values: self.values })
    }
}

/// What static rules compare of a lead, in canonical form; blank is missing.
#[derive(Debug)]
struct Facts<'a> {
    lead: &'a Lead,
    country: Option<Cow<'a, str>>,
    state: Option<Cow<'a, str>>,
    zip: Option<place::Zip<'a>>,
}

impl<'a> Facts<'a> {
    fn of(lead: &'a Lead) -> Self {
        let text = |field| lead.text(field).filter(|text| !text.trim().is_empty());
        Self {
            lead,
            country: text(place::COUNTRY).map(place::country),
            state: text(place::STATE).map(place::state),
            zip: text(place::ZIP).map(place::Zip::new).filter(|zip| !zip.as_str().is_empty()),
        }
    }
}

impl CompiledCampaign {
    fn new(campaign: Arc<Campaign>) -> Self {
        phone::warm_up(&campaign.country);
        let offers = campaign.offers.as_slice();
        let mut active = Bits::none(offers.len());
        let active_offers = offers.iter().enumerate().filter(|(_, offer)| !offer.buyer.is_paused);
        active_offers.for_each(|(index, _)| active.insert(index));
        let (zones, zone_of) = zones_of(offers);
        Self {
            active,
            publishers: PublisherIndex::new(offers),
            countries: ValueIndex::new(offers, |offer| {
                let countries = offer.buyer.filter.countries.as_ref()?;
                Some(countries.iter().map(|country| place::country(country).into_owned()).collect())
            }),
            states: ValueIndex::new(offers, |offer| {
                let states = offer.buyer.filter.states.as_ref()?;
                Some(states.iter().map(|state| place::state(state).into_owned()).collect())
            }),
            zips: ZipIndex::new(offers),
            zones,
            zone_of,
            salts: offers.iter().map(|offer| rank::salt(&offer.buyer.id)).collect(),
            campaign,
        }
    }

    /// The campaign it was made from.
    #[must_use]
    pub fn campaign(&self) -> &Arc<Campaign> {
        &self.campaign
    }

    /// The offers that pass every static rule at the instant `at`, in the order to be tried.
    ///
    /// `at` must be the instant that the caps' windows are chosen by, so that hours and caps speak of one moment (F35).
    /// `paused` are the buyers that the operator paused on top of the routing file.
    #[must_use]
    pub fn filter(&self, lead: &Lead, at: Timestamp, paused: &HashSet<BuyerId>) -> Candidates {
        let facts = Facts::of(lead);
        let mut eligible = self.active.clone();
        let mut scratch = Bits::default();
        self.publishers.keep(lead.publisher.as_str(), &mut eligible, &mut scratch);
        self.countries.keep(facts.country.as_deref(), &mut eligible, &mut scratch);
        self.states.keep(facts.state.as_deref(), &mut eligible, &mut scratch);
        self.zips.keep(facts.zip.as_ref(), &mut eligible, &mut scratch);

        let mut clocks = Clocks::new(&self.zones, at);
        let mut examined = 0;
        let mut ranked: SmallVec<[usize; 8]> = SmallVec::new();
        for index in eligible.iter() {
            examined += 1;
            if self.passes_alone(index, lead, paused, &mut clocks) {
                ranked.push(index);
            }
        }
        rank::sort(&mut ranked, self.campaign.order, &self.campaign.offers, &self.salts, lead.id);
        Candidates { ranked, examined }
    }

    /// The checks that are made offer by offer.
    fn passes_alone(&self, index: usize, lead: &Lead, paused: &HashSet<BuyerId>, clocks: &mut Clocks<'_>) -> bool {
        let Some(buyer) = self.campaign.offers.get(index).map(|offer| &offer.buyer) else { return false };
        !paused.contains(&buyer.id)
            && rules::first_broken(&buyer.filter.rules, lead).is_none()
            && self
                .zone_of
                .get(index)
                .copied()
                .flatten()
                .is_none_or(|zone| clocks.local(zone).is_some_and(|local| hours::is_open(&buyer.hours, local)))
    }

    /// Why each offer that is not among `candidates` was skipped, in the order of the campaign's offers: together they
    /// are every offer once (P10). Costs as much as there are offers; call it after the answer, with the arguments that
    /// [`Self::filter`] was given.
    #[must_use]
    pub fn explain(
        &self,
        lead: &Lead,
        at: Timestamp,
        paused: &HashSet<BuyerId>,
        candidates: &Candidates,
    ) -> Vec<Skipped> {
        let facts = Facts::of(lead);
        let mut kept = Bits::none(self.campaign.offers.len());
        candidates.ranked.iter().for_each(|&index| kept.insert(index));
        let offers = self.campaign.offers.iter().enumerate();
        offers
            .filter(|(index, _)| !kept.contains(*index))
            .map(|(index, offer)| explain::skipped(index, &offer.buyer, &facts, at, paused))
            .collect()
    }
}

/// The calendars of buyers with opening hours, each once, and each offer's place among them.
fn zones_of(offers: &[Offer]) -> (Vec<TimeZone>, Vec<Option<usize>>) {
    let mut zones = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let zone_of = offers.iter().map(|offer| {
        let buyer = &offer.buyer;
        (!buyer.hours.is_empty()).then(|| {
            *places.entry(buyer.timezone_name.as_str()).or_insert_with(|| {
                zones.push(buyer.timezone.clone());
                zones.len() - 1
            })
        })
    });
    let zone_of = zone_of.collect();
    (zones, zone_of)
}

/// One instant on the clocks of several zones, each read when it is first asked for.
struct Clocks<'a> {
    zones: &'a [TimeZone],
    at: Timestamp,
    read: SmallVec<[Option<DateTime>; 8]>,
}

impl<'a> Clocks<'a> {
    fn new(zones: &'a [TimeZone], at: Timestamp) -> Self {
        Self { zones, at, read: SmallVec::from_elem(None, zones.len()) }
    }

    fn local(&mut self, zone: usize) -> Option<DateTime> {
        let slot = self.read.get_mut(zone)?;
        if slot.is_none() {
            *slot = self.zones.get(zone).map(|zone| zone.to_datetime(self.at));
        }
        *slot
    }
}

#[cfg(test)]
mod tests;
