//! How many forwards a buyer may have under way at once, so that a slow buyer fills its own room and nobody else's (P7).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::domain::id::BuyerId;
use crate::domain::routing::Buyer;

/// Counts forwards under way, by buyer. Grows with the buyers that the routing has ever named, and with nothing else.
#[derive(Debug, Default)]
pub struct Bulkhead {
    under_way: RwLock<HashMap<BuyerId, Arc<AtomicUsize>>>,
}

/// One place among a buyer's forwards under way; given back when dropped. A forward that is past its time-out keeps its
/// place until the late answer is read or given up, which bounds those readers too.
#[derive(Debug)]
pub struct InFlight(Arc<AtomicUsize>);

impl Bulkhead {
    /// A place for one forward; `None` when the buyer has `in_flight_max` of them already.
    #[must_use]
    pub fn enter(&self, buyer: &Buyer) -> Option<InFlight> {
        let count = self.count(&buyer.id);
        count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now < buyer.in_flight_max).then_some(now + 1))
            .ok()?;
        Some(InFlight(count))
    }

    /// Forwards of a buyer that are under way, late readers included.
    #[must_use]
    pub fn under_way(&self, buyer: &BuyerId) -> usize {
        self.under_way.read().get(buyer).map_or(0, |count| count.load(Ordering::Acquire))
    }

    fn count(&self, buyer: &BuyerId) -> Arc<AtomicUsize> {
        if let Some(count) = self.under_way.read().get(buyer) {
            return Arc::clone(count);
        }
        Arc::clone(self.under_way.write().entry(buyer.clone()).or_default())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
