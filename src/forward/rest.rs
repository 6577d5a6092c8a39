//! Buyers that asked for a rest with `Retry-After`. Per gateway; forgotten at a restart.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::clock::SharedClock;
use crate::domain::id::BuyerId;

/// Longest rest that a buyer can ask for. An absurd header must not switch a buyer off for good.
pub const REST_MAX_S: u32 = 3600;

/// Who rests, and until when.
#[derive(Debug)]
pub struct Rests {
    clock: SharedClock,
    until: Mutex<HashMap<BuyerId, Timestamp>>,
}

impl Rests {
    /// Nobody rests.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, until: Mutex::default() }
    }

    /// Rests a buyer from now on, at most [`REST_MAX_S`]; a rest that ends later already stays.
    pub fn rest(&self, buyer: &BuyerId, seconds: u32) {
        let end = self.clock.now() + SignedDuration::from_secs(i64::from(seconds.min(REST_MAX_S)));
        let mut until = self.until.lock();
        let known = until.entry(buyer.clone()).or_insert(end);
        *known = (*known).max(end);
    }

    /// How long the buyer still rests; `None` when it does not.
    #[must_use]
    pub fn resting(&self, buyer: &BuyerId) -> Option<Duration> {
        let mut until = self.until.lock();
        let left = until.get(buyer)?.duration_since(self.clock.now());
        if left > SignedDuration::ZERO {
            return Some(left.unsigned_abs().min(Duration::from_secs(REST_MAX_S.into())));
        }
        until.remove(buyer);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_rest_ends_by_itself_and_never_lasts_more_than_an_hour() {
        let clock = ManualClock::new("2026-03-08T12:00:00Z".parse().unwrap());
        let rests = Rests::new(clock.clone());
        let buyer = BuyerId::new("sunco").unwrap();
        assert_eq!(rests.resting(&buyer), None);

        rests.rest(&buyer, 30);
        rests.rest(&buyer, 10);
        assert_eq!(rests.resting(&buyer), Some(Duration::from_secs(30)));
        clock.advance(SignedDuration::from_secs(29));
        assert_eq!(rests.resting(&buyer), Some(Duration::from_secs(1)));
        clock.advance(SignedDuration::from_secs(1));
        assert_eq!(rests.resting(&buyer), None);

        rests.rest(&buyer, u32::MAX);
        assert_eq!(rests.resting(&buyer), Some(Duration::from_hours(1)));
    }
}
