//! Opening hours, on the buyer's clock.

use jiff::civil::DateTime;

use crate::domain::routing::Hours;

/// Is the buyer open at this local time? No hours at all: always.
///
/// Only the clock on the wall is compared, so changes of the clock need no rule of their own: an hour that is skipped is
/// never open, an hour that happens twice is open twice.
pub(super) fn is_open(hours: &[Hours], local: DateTime) -> bool {
    hours.is_empty() || hours.iter().any(|span| is_inside(span, local))
}

fn is_inside(span: &Hours, local: DateTime) -> bool {
    let (day, time) = (local.weekday(), local.time());
    let starts_on = |day| span.days.contains(&day);
    if span.from < span.to {
        starts_on(day) && span.from <= time && time < span.to
    } else {
        // Past midnight: the evening of its own day, or the morning after it. From and to alike are 24 hours.
        (starts_on(day) && span.from <= time) || (starts_on(day.previous()) && time < span.to)
    }
}

/// `mon,tue 09:00-17:00`
pub(super) fn describe(span: &Hours) -> String {
    let days: Vec<&str> = span.days.iter().map(|day| name(*day)).collect();
    format!(
        "{} {:02}:{:02}-{:02}:{:02}",
        days.join(","),
        span.from.hour(),
        span.from.minute(),
        span.to.hour(),
        span.to.minute()
    )
}

fn name(day: jiff::civil::Weekday) -> &'static str {
    use jiff::civil::Weekday;
    match day {
        Weekday::Monday => "mon",
        Weekday::Tuesday => "tue",
        Weekday::Wednesday => "wed",
        Weekday::Thursday => "thu",
        Weekday::Friday => "fri",
        Weekday::Saturday => "sat",
        Weekday::Sunday => "sun",
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::civil::{Weekday, time};
    use jiff::tz::TimeZone;

    use super::*;

    fn span(days: &[Weekday], from: (i8, i8), to: (i8, i8)) -> Hours {
        Hours { days: days.to_vec(), from: time(from.0, from.1, 0, 0), to: time(to.0, to.1, 0, 0) }
    }

    fn open(span: &Hours, zone: &str, at: &str) -> bool {
        let at: Timestamp = at.parse().unwrap();
        is_open(std::slice::from_ref(span), TimeZone::get(zone).unwrap().to_datetime(at))
    }

    #[test]
    fn f35_hours_are_half_open_to_the_nanosecond() {
        let office = span(&[Weekday::Monday], (9, 0), (18, 0));
        // 2 March 2026 is a Monday; New York is at -05:00.
        for (at, is_open) in [
            ("2026-03-02T13:59:59.999999999Z", false),
            ("2026-03-02T14:00:00Z", true),
            ("2026-03-02T22:59:59.999999999Z", true),
            ("2026-03-02T23:00:00Z", false),
            ("2026-03-03T15:00:00Z", false),
        ] {
            assert_eq!(open(&office, "America/New_York", at), is_open, "{at}");
        }
        assert!(is_open(&[], "2026-03-02T03:00:00".parse().unwrap()));
    }

    #[test]
    fn a_span_past_midnight_belongs_to_the_day_it_starts_on() {
        let night = span(&[Weekday::Friday], (22, 0), (6, 0));
        let evening = span(&[Weekday::Friday], (18, 0), (0, 0));
        let whole = span(&[Weekday::Friday], (9, 30), (9, 30));
        // 6 March 2026 is a Friday.
        for (at, in_night, in_evening, in_whole) in [
            ("2026-03-06T05:00:00Z", false, false, false),
            ("2026-03-06T09:30:00Z", false, false, true),
            ("2026-03-06T18:00:00Z", false, true, true),
            ("2026-03-06T22:00:00Z", true, true, true),
            ("2026-03-07T00:00:00Z", true, false, true),
            ("2026-03-07T05:59:59Z", true, false, true),
            ("2026-03-07T06:00:00Z", false, false, true),
            ("2026-03-07T09:29:59Z", false, false, true),
            ("2026-03-07T09:30:00Z", false, false, false),
            ("2026-03-07T22:30:00Z", false, false, false),
        ] {
            assert_eq!(open(&night, "UTC", at), in_night, "night {at}");
            assert_eq!(open(&evening, "UTC", at), in_evening, "evening {at}");
            assert_eq!(open(&whole, "UTC", at), in_whole, "whole {at}");
        }
    }

    #[test]
    fn f32_hours_follow_the_wall_clock_over_its_changes() {
        let early = span(&[Weekday::Sunday], (1, 0), (3, 0));
        for (at, is_open) in [
            // 8 March 2026 in New York: 01:59:59 is followed by 03:00:00.
            ("2026-03-08T06:59:59Z", true),
            ("2026-03-08T07:00:00Z", false),
            // 1 November 2026: 01:30 happens twice, 02:59:59 once.
            ("2026-11-01T05:30:00Z", true),
            ("2026-11-01T06:30:00Z", true),
            ("2026-11-01T07:59:59Z", true),
            ("2026-11-01T08:00:00Z", false),
        ] {
            assert_eq!(open(&early, "America/New_York", at), is_open, "{at}");
        }
        assert_eq!(describe(&early), "sun 01:00-03:00");
    }
}
