//! Request rates of publishers at this gateway, by authenticated id (F64).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;

use super::refusal::Refusal;
use crate::domain::id::PublisherId;
use crate::domain::routing::{Publisher, Routing, Throttle};

type Limiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// What a request asks for: leads and questions about leads are counted apart, so that polling never stops a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A lead to be taken.
    Lead,
    /// The state of a lead.
    Question,
}

struct Entry<C: Clock> {
    throttle: Throttle,
    leads: Limiter<C>,
    questions: Limiter<C>,
}

struct Table<C: Clock> {
    routing_version: u64,
    /// Only publishers of the routing: memory is bounded by the file.
    entries: HashMap<PublisherId, Arc<Entry<C>>>,
}

/// The throttles of all publishers. They live through a reload where their numbers did not change.
pub struct Throttles<C: Clock = DefaultClock> {
    clock: C,
    table: Mutex<Table<C>>,
}

impl Default for Throttles {
    fn default() -> Self {
        Self::with_clock(DefaultClock::default())
    }
}

impl<C: Clock + Clone> Throttles<C> {
    /// Counts time by `clock`, which must never go back.
    pub fn with_clock(clock: C) -> Self {
        Self { clock, table: Mutex::new(Table { routing_version: 0, entries: HashMap::new() }) }
    }

    /// Takes one request of the publisher's rate. A refused request takes nothing.
    ///
    /// # Errors
    /// [`Refusal::Throttled`] with the time until the next one is allowed.
    pub fn check(&self, routing: &Routing, publisher: &Publisher, asked: Asked) -> Result<(), Refusal> {
        let Some(throttle) = publisher.throttle else { return Ok(()) };
        let entry = self.entry(routing, &publisher.id, throttle);
        let limiter = match asked {
            Asked::Lead => &entry.leads,
            Asked::Question => &entry.questions,
        };
        limiter.check().map_err(|not_until| {
            let wait = not_until.wait_time_from(self.clock.now());
            let retry_after_s = wait.as_secs() + u64::from(wait > Duration::from_secs(wait.as_secs()));
            Refusal::Throttled { retry_after_s: retry_after_s.max(1) }
        })
    }

    fn entry(&self, routing: &Routing, publisher: &PublisherId, throttle: Throttle) -> Arc<Entry<C>> {
        let mut table = self.table.lock();
        if table.routing_version != routing.version {
            table.routing_version = routing.version;
            table.entries.retain(|id, _| routing.publishers.contains_key(id));
        }
        if let Some(entry) = table.entries.get(publisher).filter(|entry| entry.throttle == throttle) {
            return Arc::clone(entry);
        }
        let quota = quota(throttle);
        let limiter = || RateLimiter::direct_with_clock(quota, self.clock.clone());
        let entry = Arc::new(Entry { throttle, leads: limiter(), questions: limiter() });
        table.entries.insert(publisher.clone(), Arc::clone(&entry));
        entry
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
    use crate::intake::tests::support::{publisher, routing_of};
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
        assert_eq!(throttles.table.lock().entries.len(), 1);
        let third = routing_of(3, vec![publisher("a", Some(Throttle { per_second: 1, burst: 7 }))]);
        assert_eq!(count(&throttles, &third, "a", Asked::Lead), 7);
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
