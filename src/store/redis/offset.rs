//! How far the store's clock is from ours: the best that was measured lately.
//!
//! A measurement is right to half its round trip. One over which this process was stopped, or the server stood still, spans
//! seconds and says next to nothing; taken at its word it would put every instant off by half of that (F31).

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

/// How far two clocks can drift apart in a second, in microseconds: clocks that are kept right are slewed by at most this much.
const DRIFT_US_PER_S: i64 = 500;

/// One look at a server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measured {
    /// Server minus ours, as if it had answered in the middle of the round trip.
    pub offset_us: i64,
    /// What that can be wrong by.
    pub error_us: i64,
    /// When the answer was there.
    at: Timestamp,
}

impl Measured {
    /// `None` when our own clock was set back meanwhile: then the round trip has no length.
    pub(super) fn new(before: Timestamp, server_us: i64, after: Timestamp) -> Option<Self> {
        let (before_us, after_us) = (before.as_microsecond(), after.as_microsecond());
        let round_trip_us = after_us.checked_sub(before_us).filter(|us| *us >= 0)?;
        let offset_us = server_us.saturating_sub(i64::midpoint(before_us, after_us));
        Some(Self { offset_us, error_us: round_trip_us / 2 + 1, at: after })
    }

    /// The one to go by from now on: the newer one, unless it is the less certain of the two. Two that cannot both be true mean
    /// that one of the clocks was set meanwhile, and the newer one counts.
    pub(super) fn or_newer(self, newer: Self) -> Self {
        let age_s = newer.at.duration_since(self.at).as_secs().max(0);
        let error_us = self.error_us.saturating_add(age_s.saturating_mul(DRIFT_US_PER_S));
        let apart_us = newer.offset_us.saturating_sub(self.offset_us).saturating_abs();
        let was_set = apart_us > error_us.saturating_add(newer.error_us);
        if was_set || newer.error_us <= error_us { newer } else { self }
    }
}

/// Store clock minus this gateway's clock.
#[derive(Debug, Default)]
pub(super) struct Offset(AtomicI64);

impl Offset {
    pub(super) fn set(&self, offset_us: i64) {
        self.0.store(offset_us, Ordering::Relaxed);
    }

    /// The store's time at a time of ours.
    pub(super) fn apply(&self, at: Timestamp) -> Timestamp {
        at.saturating_add(SignedDuration::from_micros(self.0.load(Ordering::Relaxed))).unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};

    /// Asks a server whose clock is ahead by so much; each way takes its time.
    fn measure(clock: &ManualClock, ahead: SignedDuration, there: SignedDuration, back: SignedDuration) -> Measured {
        let before = clock.now();
        clock.advance(there);
        let server_us = (clock.now() + ahead).as_microsecond();
        clock.advance(back);
        Measured::new(before, server_us, clock.now()).expect("time went on")
    }

    #[test]
    fn f31_a_measurement_over_which_the_process_was_stopped_moves_nothing() {
        let clock = ManualClock::new("2026-03-08T12:00:00Z".parse().unwrap());
        let (ahead, quick) = (SignedDuration::from_millis(3), SignedDuration::from_micros(400));
        let mut best = measure(&clock, ahead, quick, quick);
        assert_eq!((best.offset_us, best.error_us), (3_000, 401));
        // Stopped before the answer was read: at its word the store would be 3.9 s behind.
        let stopped = measure(&clock, ahead, quick, SignedDuration::from_millis(7_800));
        assert!(stopped.offset_us < -3_800_000, "{stopped:?}");
        best = best.or_newer(stopped);
        assert_eq!(best.offset_us, 3_000);
        // Stopped before the question left.
        best = best.or_newer(measure(&clock, ahead, SignedDuration::from_secs(5), quick));
        assert_eq!(best.offset_us, 3_000);
        // The only one there is counts, until there is a better one.
        assert_eq!(stopped.or_newer(measure(&clock, ahead, quick, quick)).offset_us, 3_000);
    }

    #[test]
    fn f31_a_clock_that_is_set_and_one_that_drifts_are_followed() {
        let clock = ManualClock::new("2026-03-08T12:00:00Z".parse().unwrap());
        let (ahead, quick, slow) =
            (SignedDuration::from_millis(3), SignedDuration::from_micros(400), SignedDuration::from_millis(20));
        let best = measure(&clock, ahead, quick, quick);
        let set = measure(&clock, SignedDuration::from_secs(-2), slow, slow);
        assert_eq!(best.or_newer(set), set, "no drift explains it");
        // Less certain by 20 ms: what two clocks can drift in 40 s.
        let drifted = SignedDuration::from_millis(10);
        clock.advance(SignedDuration::from_secs(10));
        assert_eq!(best.or_newer(measure(&clock, drifted, slow, slow)), best);
        clock.advance(SignedDuration::from_secs(60));
        assert_eq!(best.or_newer(measure(&clock, drifted, slow, slow)).offset_us, 10_000);
        let before = clock.now();
        clock.advance(SignedDuration::from_secs(-1));
        assert_eq!(Measured::new(before, 0, clock.now()), None, "our own clock was set back");
    }
}
