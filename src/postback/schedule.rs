//! When a postback is tried again, and when it has ended. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::forward::Notified;
use crate::ledger::PostbackState;
use crate::ledger::postbacks::NextStep;

/// Before the second try.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Pauses double up to this; a publisher cannot ask for more.
const PAUSE_MAX: Duration = Duration::from_hours(1);
/// A try that fails so long after the first one was the last.
const TRIED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// Decides what becomes of a postback after a try.
///
/// `tries` and `first_try_at` are those before this one, `now` is its end. `jitter` is in `[0, 1)`: pauses are between half and
/// the whole of what they may be, so that those of one outage do not come back all at once.
#[must_use]
pub fn next_step(
    tries: u32,
    first_try_at: Option<Timestamp>,
    now: Timestamp,
    notified: &Notified,
    jitter: f64,
) -> NextStep {
    match notified.http_status {
        Some(200..=299) => return NextStep::End(PostbackState::Delivered),
        Some(410) => return NextStep::End(PostbackState::Gone),
        Some(_) | None => {}
    }
    if first_try_at.is_some_and(|first| now.duration_since(first) >= TRIED_FOR) {
        return NextStep::End(PostbackState::Dead);
    }
    let longest = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(PAUSE_MAX);
    let asked = Duration::from_secs(notified.rest_s.unwrap_or(0).into()).min(PAUSE_MAX);
    NextStep::TryAt(now + longest.mul_f64(0.5 + jitter / 2.0).max(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(http_status: u16, rest_s: Option<u32>) -> Notified {
        Notified { http_status: Some(http_status), error: None, rest_s }
    }

    fn start() -> Timestamp {
        "2026-03-08T12:00:00Z".parse().unwrap()
    }

    fn pause(tries: u32, notified: &Notified, jitter: f64) -> Duration {
        match next_step(tries, Some(start()), start(), notified, jitter) {
            NextStep::TryAt(at) => at.duration_since(start()).unsigned_abs(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_2xx_is_success_and_only_410_ends_at_once() {
        for status in 100..600 {
            let step = next_step(0, None, start(), &answered(status, None), 0.5);
            match status {
                200..=299 => assert_eq!(step, NextStep::End(PostbackState::Delivered), "{status}"),
                410 => assert_eq!(step, NextStep::End(PostbackState::Gone)),
                _ => assert!(matches!(step, NextStep::TryAt(_)), "{status}: {step:?}"),
            }
        }
        let silent = Notified { http_status: None, error: Some("timeout"), rest_s: None };
        assert!(matches!(next_step(0, None, start(), &silent, 0.0), NextStep::TryAt(_)));
    }

    #[test]
    fn pauses_double_to_an_hour_and_are_never_less_than_half() {
        let failed = answered(500, None);
        for (tries, longest_s) in [(0, 5), (1, 10), (2, 20), (9, 2560), (10, 3600), (11, 3600), (u32::MAX, 3600)] {
            let longest = Duration::from_secs(longest_s);
            assert_eq!(pause(tries, &failed, 0.0), longest / 2, "{tries}");
            let nearly = pause(tries, &failed, 0.999_999);
            assert!(nearly <= longest && nearly > longest.mul_f64(0.99), "{tries}: {nearly:?}");
        }
    }

    #[test]
    fn a_rest_that_is_asked_for_is_kept_within_bounds() {
        assert_eq!(pause(0, &answered(429, Some(60)), 0.0), Duration::from_mins(1));
        assert_eq!(pause(0, &answered(503, Some(1)), 0.0), Duration::from_millis(2500));
        assert_eq!(pause(0, &answered(503, Some(u32::MAX)), 0.0), PAUSE_MAX);
    }

    #[test]
    fn it_is_tried_for_a_day_from_its_first_try_and_then_dead() {
        let failed = answered(404, None);
        let (mut now, mut tries, mut first) = (start(), 0, None);
        let end = loop {
            match next_step(tries, first, now, &failed, 0.5) {
                NextStep::TryAt(at) => {
                    first = first.or(Some(now));
                    tries += 1;
                    now = at;
                }
                NextStep::End(state) => break state,
                NextStep::Release => panic!("it was tried"),
            }
        };
        let lasted = now.duration_since(start());
        assert_eq!(end, PostbackState::Dead);
        assert!(lasted >= TRIED_FOR && lasted < TRIED_FOR + SignedDuration::from_hours(1), "{lasted}");
        assert!((30..60).contains(&tries), "{tries}");
        // However old the verdict is, somebody has tried before it is dead.
        assert!(matches!(next_step(0, None, now, &failed, 0.5), NextStep::TryAt(_)));
    }
}
