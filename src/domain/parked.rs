//! An attempt whose buyer decides later: until when, and what it may pay. Stands in the reason of the attempt, which is in doubt
//! meanwhile, so that every gateway that reads the books knows the terms that were fixed when the buyer said "pending".

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::money::Micros;

/// The reason of an attempt whose buyer let its time pass.
pub const EXPIRED: &str = "pending_expired";

/// How the reason of an attempt starts whose buyer decided after its time.
const TOO_LATE: &str = "too_late: ";

const UNTIL: &str = "pending until ";
const AT_MOST: &str = ", at most ";

/// What was agreed when the buyer answered "pending".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    /// From then on its decision is too late; by the store's clock, whole milliseconds.
    pub until: Timestamp,
    /// The most that its decision's own price may be.
    pub price_max: Micros,
}

impl Parked {
    /// The terms of an answer that came at `answered_at`, by the store's clock.
    #[must_use]
    pub fn new(answered_at: Timestamp, within: Duration, price_max: Micros) -> Self {
        let until = answered_at.as_millisecond().saturating_add(i64::try_from(within.as_millis()).unwrap_or(i64::MAX));
        // Only a clock at the end of time can fail here.
        Self { until: Timestamp::from_millisecond(until).unwrap_or(Timestamp::MAX), price_max }
    }

    /// Reads an attempt's reason; `None` for every other one. Reasons of attempts in doubt are never a buyer's own words.
    #[must_use]
    pub fn read(reason: &str) -> Option<Self> {
        let (until, price_max) = reason.strip_prefix(UNTIL)?.split_once(AT_MOST)?;
        Some(Self { until: until.parse().ok()?, price_max: Micros::read_number(price_max)? })
    }
}

impl fmt::Display for Parked {
    /// `pending until 2026-03-08T05:00:00.123Z, at most 40.00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{UNTIL}{}{AT_MOST}{}", self.until, self.price_max)
    }
}

/// The reason of an attempt after a decision that came too late.
#[must_use]
pub fn too_late(decision: &str) -> String {
    format!("{TOO_LATE}{decision}")
}

/// Has a decision that came too late been noted in this reason?
#[must_use]
pub fn is_too_late(reason: Option<&str>) -> bool {
    reason.is_some_and(|reason| reason.starts_with(TOO_LATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_read_back_to_the_millisecond_and_nothing_else_is_taken_for_them() {
        let at: Timestamp = "2026-03-08T05:00:00.123456Z".parse().unwrap();
        let parked = Parked::new(at, Duration::from_mins(10), Micros(40_000_001));
        assert_eq!(parked.to_string(), "pending until 2026-03-08T05:10:00.123Z, at most 40.000001");
        assert_eq!(Parked::read(&parked.to_string()), Some(parked));
        for other in ["", "timeout", "gateway_lost", "pending", "pending until soon, at most 1", EXPIRED] {
            assert_eq!(Parked::read(other), None, "{other}");
        }
        assert!(is_too_late(Some(&too_late("accepted"))) && !is_too_late(Some("declined")) && !is_too_late(None));
    }
}
