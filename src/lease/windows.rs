//! Which window a cap counts in when its buyer's zone was changed (F33): the window that was running counts on to its end, and
//! there the first window of the new zone starts. Editing the zone adds no capacity in mid-window.
//!
//! The store remembers the newest window of each cap, for every gateway and over restarts; what this gateway has learnt of it
//! is kept here.

use std::collections::HashMap;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use parking_lot::RwLock;

use crate::domain::cap::Cap;
use crate::domain::id::{BuyerId, CapId};
use crate::domain::routing::Buyer;
use crate::domain::window::{Window, WindowKind};
use crate::store::CounterKey;

/// Windows that are not those of their buyer's calendar; bounded by the caps of the routing.
#[derive(Debug, Default)]
pub struct WindowsInForce(RwLock<HashMap<BuyerId, HashMap<CapId, Window>>>);

impl WindowsInForce {
    /// The store's newest window of this cap is not the one that was asked for.
    pub fn learn(&self, buyer: &BuyerId, cap: &CapId, window: Window) {
        self.0.write().entry(buyer.clone()).or_default().insert(cap.clone(), window);
    }

    /// The window that the cap counts in at `at`.
    #[must_use]
    pub fn window(&self, buyer: &Buyer, cap: &Cap, at: Timestamp) -> Window {
        let by_calendar = Window::containing(cap.window, &buyer.timezone, at);
        let known = self.0.read();
        match known.get(&buyer.id).and_then(|caps| caps.get(&cap.id)) {
            Some(running) => after(running, by_calendar, at),
            None => by_calendar,
        }
    }

    /// The counter of each of a buyer's caps, in the order of the file, in the window that it counts in at `at`.
    #[must_use]
    pub fn counters(&self, buyer: &Buyer, at: Timestamp) -> Vec<CounterKey> {
        let key = |cap: &Cap| CounterKey {
            buyer: buyer.id.clone(),
            cap: cap.id.clone(),
            window: self.window(buyer, cap, at),
        };
        buyer.caps.iter().map(key).collect()
    }
}

/// The window that must be taken to run on at `now` when all memory of windows is lost but the books' (F33): something counts in
/// one that started at `newest`, which is not a window of the buyer's calendar, so the zone was changed since then. When it ends
/// nobody knows any more: at the latest after the longest window of its kind. `None` when the calendar explains it, or when it
/// is over in any case.
#[must_use]
pub fn unfinished(kind: WindowKind, zone: &TimeZone, newest: Timestamp, now: Timestamp) -> Option<Window> {
    let by_calendar = Window::containing(kind, zone, now);
    let before = by_calendar.start.checked_sub(SignedDuration::from_millis(1)).ok()?;
    if newest == by_calendar.start || newest == Window::containing(kind, zone, before).start {
        return None;
    }
    let end = newest.checked_add(kind.longest()?).ok()?;
    Some(Window { start: newest, end: Some(end) }).filter(|window| window.contains(now))
}

/// The window at `at` when `running` was the newest: it to its end, then the rest of the calendar's.
fn after(running: &Window, by_calendar: Window, at: Timestamp) -> Window {
    match running.end {
        Some(_) if running.contains(at) => *running,
        Some(end) if end <= at && by_calendar.start < end => Window { start: end, ..by_calendar },
        Some(_) | None => by_calendar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// New York to Los Angeles at noon, and back: one window until the old midnight, a short one until the new midnight, and
    /// never an instant in two windows.
    #[test]
    fn f33_a_changed_zone_takes_effect_at_the_next_boundary_of_the_old_one() {
        let day = |zone: &str, now| Window::containing(WindowKind::Day, &TimeZone::get(zone).unwrap(), now);
        for (old, new, short) in [
            ("America/New_York", "America/Los_Angeles", ["2026-07-02T04:00:00Z", "2026-07-02T07:00:00Z"]),
            ("America/Los_Angeles", "America/New_York", ["2026-07-02T07:00:00Z", "2026-07-03T04:00:00Z"]),
        ] {
            let running = day(old, at("2026-07-01T16:00:00Z"));
            let mut now = at("2026-07-01T16:00:00Z");
            let mut seen = vec![running];
            let mut last = running;
            while now < at("2026-07-05T00:00:00Z") {
                let window = after(&last, day(new, now), now);
                assert!(window.contains(now), "{old} {new} {now}");
                if window != last {
                    assert!(!window.overlaps(&last), "{window:?} {last:?}");
                    seen.push(window);
                    last = window;
                }
                now += SignedDuration::from_mins(20);
            }
            assert_eq!(seen[1], Window { start: at(short[0]), end: Some(at(short[1])) }, "{old} to {new}");
            assert_eq!(seen[2], day(new, seen[1].end.unwrap()), "then the calendar of the new zone");
        }
    }

    /// All that is left is that something counts since New York's midnight.
    #[test]
    fn f33_a_window_that_only_the_books_know_counts_on_until_it_is_surely_over() {
        let zone = |name| TimeZone::get(name).unwrap();
        let (east, west) = (zone("America/New_York"), zone("America/Los_Angeles"));
        let (midnight, noon) = (at("2026-07-01T04:00:00Z"), at("2026-07-01T16:00:00Z"));
        let day = WindowKind::Day;
        assert_eq!(unfinished(day, &east, midnight, noon), None, "the calendar's own");
        assert_eq!(unfinished(day, &east, at("2026-06-30T04:00:00Z"), noon), None, "yesterday's: nothing sold today");
        assert_eq!(unfinished(day, &east, at("2026-06-29T04:00:00Z"), noon), None, "over, whatever the zone was");
        let running = unfinished(day, &west, midnight, noon).unwrap();
        let real = Window::containing(day, &east, noon);
        assert!(
            running.start == real.start
                && running.end >= real.end
                && running.end < real.end.map(|end| end + SignedDuration::from_hours(3))
        );
        assert_eq!(unfinished(day, &west, midnight, running.end.unwrap()), None, "it ends");
        assert_eq!(unfinished(WindowKind::Total, &west, midnight, noon), None);
        // The longest window of each kind that any zone can have.
        for (kind, from, to) in [
            (WindowKind::Day, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
            (WindowKind::Month, "2026-10-01T04:00:00Z", "2026-11-01T04:00:00Z"),
        ] {
            let length = at(to).duration_since(at(from));
            assert!(kind.longest().unwrap() >= length, "{kind}");
        }
    }
}
