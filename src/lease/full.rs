//! A short memory of full caps (F16): a thousand full buyers ahead of the open one cost no round trip to the store per lead.
//!
//! It can only say "full", never "room": what it does not know is asked. What it says is at most [`REMEMBERED`] old, and less
//! when the window or the routing changes, or when a unit comes back through this gateway. A unit that comes back through
//! another gateway is seen when the memory fades; until then the buyer counts as full for this gateway's leads.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::domain::id::{BuyerId, CapId};
use crate::domain::lead::Lead;
use crate::domain::lease::{Charge, Demand};
use crate::domain::routing::{Offer, Routing};
use crate::domain::window::Window;

/// How long a full cap is remembered. It bounds how late this gateway learns of a unit that came back elsewhere, and is still
/// long enough that a burst asks the store for a full buyer a few times a second instead of once per lead.
pub const REMEMBERED: Duration = Duration::from_millis(200);

/// A cap without room, and the values that say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullCap {
    /// Which.
    pub cap: CapId,
    /// The window it counted in.
    pub window: Window,
    /// The counter.
    pub used: u64,
    /// The limit it was held against.
    pub limit: u64,
    /// What the lead would have charged.
    pub amount: u64,
}

impl FullCap {
    /// What a demand met.
    #[must_use]
    pub fn of(demand: &Demand, used: u64) -> Self {
        let Charge { cap, window, amount } = demand.charge.clone();
        Self { cap, window, used, limit: demand.limit, amount }
    }
}

#[derive(Debug, Clone)]
struct Seen {
    window: Window,
    used: u64,
    routing_version: u64,
    asked_at: Instant,
}

#[derive(Debug, Default)]
struct CapMemory {
    full: Option<Seen>,
    /// A refusal that was asked for before this moment may be older than a unit that came back since.
    given_back_at: Option<Instant>,
}

/// Full caps by buyer; bounded by the caps of the routing.
#[derive(Debug, Default)]
pub struct FullMemory(RwLock<HashMap<BuyerId, HashMap<CapId, CapMemory>>>);

impl FullMemory {
    /// The store has refused `buyer` because of `full`. `asked_at` is when the store was asked: from then on the memory fades.
    pub fn remember(&self, buyer: &BuyerId, full: &FullCap, routing_version: u64, asked_at: Instant) {
        let mut buyers = self.0.write();
        let memory = buyers.entry(buyer.clone()).or_default().entry(full.cap.clone()).or_default();
        if memory.given_back_at.is_none_or(|given_back_at| given_back_at < asked_at) {
            memory.full = Some(Seen { window: full.window, used: full.used, routing_version, asked_at });
        }
    }

    /// Units of these charges have come back, or may have: whoever was full may have room.
    pub fn given_back(&self, buyer: &BuyerId, charges: &[Charge], now: Instant) {
        if charges.is_empty() {
            return;
        }
        let mut buyers = self.0.write();
        let caps = buyers.entry(buyer.clone()).or_default();
        for charge in charges {
            *caps.entry(charge.cap.clone()).or_default() = CapMemory { full: None, given_back_at: Some(now) };
        }
    }

    /// Forgets everything; for changes that are not about one lease.
    pub fn forget(&self, now: Instant) {
        for memory in self.0.write().values_mut().flat_map(HashMap::values_mut) {
            *memory = CapMemory { full: None, given_back_at: Some(now) };
        }
    }

    /// Drops what is remembered of caps that are no longer in the routing.
    pub fn keep_only(&self, routing: &Routing) {
        self.0.write().retain(|buyer, memory| {
            let caps = routing.buyers.get(buyer).map_or(&[][..], |buyer| &buyer.caps);
            memory.retain(|cap, _| caps.iter().any(|known| known.id == *cap));
            !memory.is_empty()
        });
    }

    /// Holds the memory still for a look at many buyers.
    pub fn read(&self) -> FullCaps<'_> {
        FullCaps(self.0.read())
    }
}

/// The memory while it is looked at.
#[derive(Debug)]
pub struct FullCaps<'a>(RwLockReadGuard<'a, HashMap<BuyerId, HashMap<CapId, CapMemory>>>);

impl FullCaps<'_> {
    /// The first cap of the offer's buyer that is remembered as full for this lead; `at` by the store's clock.
    #[must_use]
    pub fn find(
        &self,
        offer: &Offer,
        lead: &Lead,
        at: Timestamp,
        routing_version: u64,
        now: Instant,
    ) -> Option<FullCap> {
        let known = self.0.get(&offer.buyer.id)?;
        offer.buyer.caps.iter().find_map(|cap| {
            let seen = known.get(&cap.id)?.full.as_ref()?;
            let is_fresh = now.saturating_duration_since(seen.asked_at) < REMEMBERED;
            if !is_fresh || seen.routing_version != routing_version || !seen.window.contains(at) {
                return None;
            }
            // A money cap that is full for a dear lead may have room for a cheap one.
            let (limit, amount) = (cap.limit_units(), cap.amount(offer.price_max));
            let has_room = limit > 0 && seen.used.checked_add(amount).is_some_and(|after| after <= limit);
            let is_full = !has_room && cap.counts(&lead.publisher, &lead.fields);
            is_full.then(|| FullCap { cap: cap.id.clone(), window: seen.window, used: seen.used, limit, amount })
        })
    }
}

#[cfg(test)]
#[path = "full_tests.rs"]
mod tests;
