//! Request rates of callers at this gateway, by authenticated id (F64).

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;

use super::refusal::Refusal;
use crate::domain::id::{BuyerId, PublisherId};
use crate::domain::routing::{Buyer, Publisher, Routing, Throttle};

/// The rate of a buyer's returns, which are few.
const RETURNS: Throttle = Throttle { per_second: 10, burst: 50 };
/// The rate of a buyer's decisions: one for each lead that it has answered "pending" to.
const DECISIONS: Throttle = Throttle { per_second: 200, burst: 1_000 };

type Limiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// What a request asks for: leads and questions about leads are counted apart, so that polling never stops a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A lead to be taken.
    Lead,
    /// The state of a lead.
    Question,
}

/// What a buyer asks for; each has a rate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuyerAsked {
    /// To give a lead back.
    Return,
    /// To decide about a lead.
    Decision,
}

struct Entry<C: Clock> {
    throttle: Throttle,
    limiter: Limiter<C>,
}

struct Table<Key, C: Clock> {
    routing_version: u64,
    /// Only callers of the routing: memory is bounded by the file.
    entries: HashMap<Key, Arc<Entry<C>>>,
}

impl<Key: Hash + Eq, C: Clock + Clone> Table<Key, C> {
    fn new() -> Mutex<Self> {
        Mutex::new(Self { routing_version: 0, entries: HashMap::new() })
    }

    /// Counters live through a reload where their numbers did not change.
    fn entry(
        &mut self,
        clock: &C,
        routing: &Routing,
        key: Key,
        throttle: Throttle,
        is_known: impl Fn(&Key) -> bool,
    ) -> Arc<Entry<C>> {
        if self.routing_version != routing.version {
            self.routing_version = routing.version;
            self.entries.retain(|key, _| is_known(key));
        }
        if let Some(entry) = self.entries.get(&key).filter(|entry| entry.throttle == throttle) {
            return Arc::clone(entry);
        }
        let limiter = RateLimiter::direct_with_clock(quota(throttle), clock.clone());
        let entry = Arc::new(Entry { throttle, limiter });
        self.entries.insert(key, Arc::clone(&entry));
        entry
    }
}

/// The throttles of everybody who calls.
pub struct Throttles<C: Clock = DefaultClock> {
    clock: C,
    leads: Mutex<Table<PublisherId, C>>,
    questions: Mutex<Table<PublisherId, C>>,
    returns: Mutex<Table<BuyerId, C>>,
    decisions: Mutex<Table<BuyerId, C>>,
}

impl Default for Throttles {
    fn default() -> Self {
        Self::with_clock(DefaultClock::default())
    }
}

impl<C: Clock + Clone> Throttles<C> {
    /// Counts time by `clock`, which must never go back.
    pub fn with_clock(clock: C) -> Self {
        Self { clock, leads: Table::new(), questions: Table::new(), returns: Table::new(), decisions: Table::new() }
    }

    /// Takes one request of the publisher's rate. A refused request takes nothing.
    ///
    /// # Errors
    /// [`Refusal::Throttled`] with the time until the next one is allowed.
    pub fn check(&self, routing: &Routing, publisher: &Publisher, asked: Asked) -> Result<(), Refusal> {
        let Some(throttle) = publisher.throttle else { return Ok(()) };
        let table = match asked {
            Asked::Lead => &self.leads,
            Asked::Question => &self.questions,
        };
        let is_known = |id: &PublisherId| routing.publishers.contains_key(id);
        let entry = table.lock().entry(&self.clock, routing, publisher.id.clone(), throttle, is_known);
        self.take(&entry)
    }

    /// Takes one call of the buyer's rate.
    ///
    /// # Errors
    /// As [`Throttles::check`].
    pub fn check_buyer(&self, routing: &Routing, buyer: &Buyer, asked: BuyerAsked) -> Result<(), Refusal> {
        let (table, throttle) = match asked {
            BuyerAsked::Return => (&self.returns, RETURNS),
            BuyerAsked::Decision => (&self.decisions, DECISIONS),
        };
        let is_known = |id: &BuyerId| routing.buyers.contains_key(id);
        let entry = table.lock().entry(&self.clock, routing, buyer.id.clone(), throttle, is_known);
        self.take(&entry)
    }

    fn take(&self, entry: &Entry<C>) -> Result<(), Refusal> {
        entry.limiter.check().map_err(|not_until| {
            let wait = not_until.wait_time_from(self.clock.now());
            let retry_after_s = wait.as_secs() + u64::from(wait > Duration::from_secs(wait.as_secs()));
            Refusal::Throttled { retry_after_s: retry_after_s.max(1) }
        })
    }
}

/// The configuration refuses zeros; should one come here, it means the smallest rate and not "unlimited".
fn quota(throttle: Throttle) -> Quota {
    let at_least_one = |count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(at_least_one(throttle.per_second)).allow_burst(at_least_one(throttle.burst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::tests::support::{buyer, publisher, routing_of, routing_of_all};
    use governor::clock::FakeRelativeClock;

    fn count(throttles: &Throttles<FakeRelativeClock>, routing: &Routing, id: &str, asked: Asked) -> usize {
        let publisher = &routing.publishers[id];
        (0..10_000).filter(|_| throttles.check(routing, publisher, asked).is_ok()).count()
    }

    #[test]
    fn f64_a_throttle_is_per_publisher_and_hammering_does_not_burn_it() {
        let clock = FakeRelativeClock::default();
        let throttles = Throttles::with_clock(clock.clone());
        let limit = Some(Throttle { per_second: 100, burst: 20 });
        let routing = routing_of(1, vec![publisher("a", limit), publisher("b", limit), publisher("free", None)]);
        assert_eq!(count(&throttles, &routing, "a", Asked::Lead), 20);
        assert_eq!(count(&throttles, &routing, "a", Asked::Question), 20, "polling took the rate of leads");
        assert_eq!(count(&throttles, &routing, "b", Asked::Lead), 20, "a twin paid for it");
        assert_eq!(count(&throttles, &routing, "free", Asked::Lead), 10_000);
        clock.advance(Duration::from_millis(100));
        assert_eq!(count(&throttles, &routing, "a", Asked::Lead), 10);
        clock.advance(Duration::from_secs(1));
        assert_eq!(count(&throttles, &routing, "a", Asked::Lead), 20, "more than the burst was saved up");
    }

    #[test]
    fn f64_a_throttle_lives_through_a_reload_and_is_dropped_with_its_publisher() {
        let clock = FakeRelativeClock::default();
        let throttles = Throttles::with_clock(clock.clone());
        let limit = Some(Throttle { per_second: 1, burst: 5 });
        let first = routing_of(1, vec![publisher("a", limit), publisher("b", limit)]);
        assert_eq!(count(&throttles, &first, "a", Asked::Lead), 5);
        assert_eq!(count(&throttles, &first, "b", Asked::Lead), 5);
        let second = routing_of(2, vec![publisher("a", limit)]);
        assert_eq!(count(&throttles, &second, "a", Asked::Lead), 0, "a reload gave a fresh burst");
        assert_eq!(throttles.leads.lock().entries.len(), 1);
        let third = routing_of(3, vec![publisher("a", Some(Throttle { per_second: 1, burst: 7 }))]);
        assert_eq!(count(&throttles, &third, "a", Asked::Lead), 7);
    }

    #[test]
    fn f64_buyers_are_throttled_each_for_itself() {
        let clock = FakeRelativeClock::default();
        let throttles = Throttles::with_clock(clock.clone());
        let routing = routing_of_all(1, vec![], vec![buyer("a", 1), buyer("b", 1)], vec![]);
        let count_of = |id: &str, asked| {
            let buyer = &routing.buyers[id];
            (0..5_000).filter(|_| throttles.check_buyer(&routing, buyer, asked).is_ok()).count()
        };
        let count = |id: &str| count_of(id, BuyerAsked::Return);
        assert_eq!((count("a"), count("a"), count("b")), (50, 0, 50));
        assert_eq!(count_of("a", BuyerAsked::Decision), 1_000, "returns took the rate of decisions");
        clock.advance(Duration::from_secs(1));
        assert_eq!((count("a"), count_of("a", BuyerAsked::Decision)), (10, 200));
    }

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let throttles = Throttles::with_clock(FakeRelativeClock::default());
        let routing = routing_of(1, vec![publisher("a", Some(Throttle { per_second: 1, burst: 1 }))]);
        let a = &routing.publishers["a"];
        assert_eq!(throttles.check(&routing, a, Asked::Lead), Ok(()));
        assert_eq!(throttles.check(&routing, a, Asked::Lead), Err(Refusal::Throttled { retry_after_s: 1 }));
    }
}
