use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn utc(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn window(kind: WindowKind, zone_name: &str, at: &str) -> (String, String) {
    let window = Window::containing(kind, &zone(zone_name), utc(at));
    assert!(window.contains(utc(at)), "{kind} {zone_name} {at}: {window:?}");
    (window.start.to_string(), window.end.map_or_else(|| "never".into(), |end| end.to_string()))
}

fn assert_window(kind: WindowKind, zone_name: &str, at: &str, start: &str, end: &str) {
    assert_eq!(window(kind, zone_name, at), (start.to_owned(), end.to_owned()), "{kind} of {zone_name} at {at}");
}

/// All windows of `kind` that lie in `[start, end)`, found by walking from end to start.
fn walk(kind: WindowKind, zone: &TimeZone, start: Timestamp, end: Timestamp) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut at = start;
    while at < end {
        let window = Window::containing(kind, zone, at);
        assert_eq!(window.start, at, "windows leave a gap or overlap");
        windows.push(window);
        at = window.end.unwrap();
    }
    assert_eq!(at, end, "the last {kind} sticks out of its day");
    windows
}

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Zone, an instant, start and end of its day, hour windows in that day, and the length in minutes of the shortest.
const DAYS: &[(&str, &str, &str, &str, usize, i64)] = &[
    ("America/New_York", "2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", 23, 60),
    ("America/New_York", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z", 25, 60),
    ("Europe/London", "2026-03-29T12:00:00Z", "2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z", 23, 60),
    ("Europe/London", "2026-10-25T12:00:00Z", "2026-10-24T23:00:00Z", "2026-10-26T00:00:00Z", 25, 60),
    ("Asia/Kolkata", "2026-07-01T12:00:00Z", "2026-06-30T18:30:00Z", "2026-07-01T18:30:00Z", 24, 60),
    ("Asia/Kathmandu", "2026-07-01T12:00:00Z", "2026-06-30T18:15:00Z", "2026-07-01T18:15:00Z", 24, 60),
    // Half an hour of daylight saving: 24.5 and 23.5 hours.
    ("Australia/Lord_Howe", "2026-04-05T00:00:00Z", "2026-04-04T13:00:00Z", "2026-04-05T13:30:00Z", 25, 30),
    ("Australia/Lord_Howe", "2026-10-04T00:00:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", 24, 30),
    // No midnight: the clock goes from 23:59:59 to 01:00:00.
    ("America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", 23, 60),
    ("Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z", 23, 60),
    // Two midnights: back from 01:00:00 to 00:00:00, the same date again.
    ("America/Havana", "2018-11-04T12:00:00Z", "2018-11-04T04:00:00Z", "2018-11-05T05:00:00Z", 25, 60),
    // Back from 24:00:00 to 23:00:00: the old date is an hour longer.
    ("Asia/Beirut", "2026-10-24T12:00:00Z", "2026-10-23T21:00:00Z", "2026-10-24T22:00:00Z", 25, 60),
    // The last hour of a day is cut short: from 23:30 to 24:00.
    ("Asia/Pyongyang", "2018-05-04T12:00:00Z", "2018-05-03T15:30:00Z", "2018-05-04T15:00:00Z", 24, 30),
    // A jump of two hours.
    ("Antarctica/Troll", "2026-03-29T12:00:00Z", "2026-03-29T00:00:00Z", "2026-03-29T22:00:00Z", 22, 60),
];

#[test]
fn f32_a_day_and_its_hours_come_from_the_zone() {
    for &(name, at, start, end, hours, shortest_minutes) in DAYS {
        assert_window(WindowKind::Day, name, at, start, end);
        let (zone, start, end) = (zone(name), utc(start), utc(end));
        let day = Window { start, end: Some(end) };

        // One lead a second before and after each end: the cap of a local date is used up once.
        for inside in [start, start + SECOND, end - SECOND] {
            assert_eq!(Window::containing(WindowKind::Day, &zone, inside), day, "{name} {inside}");
        }
        assert_eq!(Window::containing(WindowKind::Day, &zone, start - SECOND).end, Some(start), "{name}");
        assert_eq!(Window::containing(WindowKind::Day, &zone, end).start, end, "{name}");

        let hours_of_day = walk(WindowKind::Hour, &zone, start, end);
        assert_eq!(hours_of_day.len(), hours, "hours of {name} {at}");
        let minutes = |window: &Window| window.end.unwrap().duration_since(window.start).as_mins();
        assert_eq!(hours_of_day.iter().map(minutes).min(), Some(shortest_minutes), "{name}");
        assert_eq!(
            hours_of_day.iter().filter(|window| minutes(window) != 60).count(),
            usize::from(shortest_minutes != 60)
        );
        walk(WindowKind::Minute, &zone, start, end);
    }
}

#[test]
fn f32_the_repeated_hour_is_two_windows() {
    // 05:30Z and 06:30Z are both 01:30 in New York.
    assert_window(
        WindowKind::Hour,
        "America/New_York",
        "2026-11-01T05:30:00Z",
        "2026-11-01T05:00:00Z",
        "2026-11-01T06:00:00Z",
    );
    assert_window(
        WindowKind::Hour,
        "America/New_York",
        "2026-11-01T06:30:00Z",
        "2026-11-01T06:00:00Z",
        "2026-11-01T07:00:00Z",
    );
    assert_window(
        WindowKind::Hour,
        "Asia/Kolkata",
        "2026-07-01T12:00:00Z",
        "2026-07-01T11:30:00Z",
        "2026-07-01T12:30:00Z",
    );
    // Lord Howe goes back from 02:00 to 01:30: 01:00 to 02:00, then 01:30 to 02:00 once more.
    assert_window(
        WindowKind::Hour,
        "Australia/Lord_Howe",
        "2026-04-04T14:59:59Z",
        "2026-04-04T14:00:00Z",
        "2026-04-04T15:00:00Z",
    );
    assert_window(
        WindowKind::Hour,
        "Australia/Lord_Howe",
        "2026-04-04T15:00:00Z",
        "2026-04-04T15:00:00Z",
        "2026-04-04T15:30:00Z",
    );
}

#[test]
fn f32_a_skipped_date_has_no_window_and_a_date_shown_again_keeps_its_place() {
    // Apia went from the end of 29 December to the start of the 31st.
    assert_window(
        WindowKind::Day,
        "Pacific/Apia",
        "2011-12-30T09:59:59Z",
        "2011-12-29T10:00:00Z",
        "2011-12-30T10:00:00Z",
    );
    assert_window(
        WindowKind::Day,
        "Pacific/Apia",
        "2011-12-30T10:00:00Z",
        "2011-12-30T10:00:00Z",
        "2011-12-31T10:00:00Z",
    );
    assert_window(
        WindowKind::Week,
        "Pacific/Apia",
        "2011-12-30T10:00:00Z",
        "2011-12-26T10:00:00Z",
        "2012-01-01T10:00:00Z",
    );
    // St John's went back from 00:01 on the 7th to 23:01 on the 6th: the 7th had begun and goes on.
    let midnight = ("2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z");
    for at in ["2010-11-07T02:30:00Z", "2010-11-07T02:31:00Z", "2010-11-07T03:29:59Z", "2010-11-07T03:30:00Z"] {
        assert_window(WindowKind::Day, "America/St_Johns", at, midnight.0, midnight.1);
    }
}

#[test]
fn f32_weeks_start_on_monday_and_span_the_change_of_clocks() {
    // 167 and 169 hours.
    for at in ["2026-03-02T05:00:00Z", "2026-03-08T07:00:00Z", "2026-03-09T03:59:59.999Z"] {
        assert_window(WindowKind::Week, "America/New_York", at, "2026-03-02T05:00:00Z", "2026-03-09T04:00:00Z");
    }
    for at in ["2026-10-26T04:00:00Z", "2026-11-02T04:59:59Z"] {
        assert_window(WindowKind::Week, "America/New_York", at, "2026-10-26T04:00:00Z", "2026-11-02T05:00:00Z");
    }
}

#[test]
fn f34_months_are_calendar_months_and_total_never_ends() {
    let month = |zone, at, start, end| assert_window(WindowKind::Month, zone, at, start, end);
    let new_york = "America/New_York";
    month(new_york, "2026-02-01T04:59:59.999Z", "2026-01-01T05:00:00Z", "2026-02-01T05:00:00Z");
    month(new_york, "2026-02-01T05:00:00Z", "2026-02-01T05:00:00Z", "2026-03-01T05:00:00Z");
    month(new_york, "2026-03-01T04:59:59Z", "2026-02-01T05:00:00Z", "2026-03-01T05:00:00Z");
    month(new_york, "2028-02-29T12:00:00Z", "2028-02-01T05:00:00Z", "2028-03-01T05:00:00Z");
    month(new_york, "2028-03-01T05:00:00Z", "2028-03-01T05:00:00Z", "2028-04-01T04:00:00Z");
    month(new_york, "2027-01-01T04:59:59Z", "2026-12-01T05:00:00Z", "2027-01-01T05:00:00Z");
    month(new_york, "2027-01-01T05:00:00Z", "2027-01-01T05:00:00Z", "2027-02-01T05:00:00Z");
    month("Asia/Kolkata", "2026-01-31T18:29:59Z", "2025-12-31T18:30:00Z", "2026-01-31T18:30:00Z");
    month("Asia/Kolkata", "2026-01-31T18:30:00Z", "2026-01-31T18:30:00Z", "2026-02-28T18:30:00Z");
    assert_window(WindowKind::Total, new_york, "2026-03-08T12:00:00Z", "1970-01-01T00:00:00Z", "never");
}

#[test]
fn resets_are_told_in_the_buyers_zone() {
    let zone = zone("America/New_York");
    let local = |kind, at| Window::containing(kind, &zone, utc(at)).resets_at_local(&zone);
    assert_eq!(local(WindowKind::Day, "2026-03-08T12:00:00Z").as_deref(), Some("2026-03-09T00:00:00-04:00"));
    assert_eq!(local(WindowKind::Hour, "2026-03-08T06:30:00Z").as_deref(), Some("2026-03-08T03:00:00-04:00"));
    assert_eq!(local(WindowKind::Day, "2026-11-01T12:00:00Z").as_deref(), Some("2026-11-02T00:00:00-05:00"));
    assert_eq!(local(WindowKind::Total, "2026-03-08T12:00:00Z"), None);
}

#[test]
fn f32_the_ends_of_time_do_not_panic() {
    for name in ["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"] {
        for at in [Timestamp::MIN, Timestamp::MAX, utc("-000001-01-01T00:00:00Z"), utc("1969-12-31T23:59:59.9995Z")] {
            for kind in [WindowKind::Minute, WindowKind::Hour, WindowKind::Day, WindowKind::Week, WindowKind::Month] {
                let window = Window::containing(kind, &zone(name), at);
                assert!(window.contains(at), "{kind} {name} {at}: {window:?}");
            }
        }
    }
}

/// What a window of this kind is called on the local clock; a window goes on until a later name than its own is shown.
fn local_name(kind: WindowKind, zone: &TimeZone, at: Timestamp) -> Vec<i32> {
    let local = zone.to_datetime(at);
    let date = [i32::from(local.year()), i32::from(local.month()), i32::from(local.day())];
    match kind {
        WindowKind::Minute => [&date[..], &[i32::from(local.hour()), i32::from(local.minute())]].concat(),
        WindowKind::Hour => [&date[..], &[i32::from(local.hour())]].concat(),
        WindowKind::Day => date.to_vec(),
        WindowKind::Week => {
            let week = local.date().iso_week_date();
            vec![i32::from(week.year()), i32::from(week.week())]
        }
        WindowKind::Month => date[..2].to_vec(),
        WindowKind::Total => Vec::new(),
    }
}

fn assert_tiles(kind: WindowKind, zone: &TimeZone, at: Timestamp, rng: &mut StdRng) {
    let window = Window::containing(kind, zone, at);
    let end = window.end.unwrap();
    assert!(window.start <= at && at < end, "{window:?}");
    for edge in [window.start, end] {
        assert_eq!(edge.as_nanosecond() % 1_000_000, 0, "{edge} is no whole millisecond");
    }
    let nanosecond = SignedDuration::from_nanos(1);
    let length = end.duration_since(window.start);
    let somewhere =
        window.start + SignedDuration::from_millis(rng.random_range(0..i64::try_from(length.as_millis()).unwrap()));
    for inside in [window.start, somewhere, end - nanosecond] {
        assert_eq!(Window::containing(kind, zone, inside), window, "{inside}");
    }
    assert_eq!(Window::containing(kind, zone, end).start, end, "gap or overlap after {end}");
    assert_eq!(Window::containing(kind, zone, window.start - nanosecond).end, Some(window.start));

    // Meaning, not only shape: the name on the clock does not pass the first one inside, and changes at the end.
    let name = |at| local_name(kind, zone, at);
    let is_calendar = matches!(kind, WindowKind::Day | WindowKind::Week | WindowKind::Month);
    for inside in [somewhere, end - nanosecond] {
        if is_calendar {
            assert!(name(inside) <= name(window.start), "{inside} is in a later {kind} than {}", window.start);
        } else {
            assert_eq!(name(inside), name(window.start), "{inside}");
        }
    }
    let changes_offset = zone.to_offset(end) != zone.to_offset(end - nanosecond);
    if is_calendar {
        assert!(name(end) > name(window.start), "the {kind} goes on after {end}");
        assert!(name(window.start - nanosecond) < name(window.start), "the {kind} began before {}", window.start);
    } else {
        assert!(name(end) != name(window.start) || changes_offset, "the {kind} goes on after {end}");
    }
}

#[test]
fn f36_windows_tile_time_in_every_zone() {
    let seed: u64 = std::env::var("CAPGATE_TEST_SEED").ok().map_or_else(rand::random, |text| text.parse().unwrap());
    println!("CAPGATE_TEST_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (first, last) = (utc("1970-01-10T00:00:00Z").as_millisecond(), utc("2100-01-01T00:00:00Z").as_millisecond());
    let mut zones = 0;
    for name in jiff::tz::db().available() {
        let zone = zone(name.as_str());
        zones += 1;
        let mut instants: Vec<Timestamp> = Vec::new();
        for _ in 0..4 {
            let at = Timestamp::from_millisecond(rng.random_range(first..last)).unwrap();
            instants.push(at);
            // Most of time is plain; look around the next change of the clock too.
            if let Some(change) = zone.following(at).next() {
                let near = SignedDuration::from_millis(rng.random_range(-7_200_000..7_200_000));
                instants.extend([change.timestamp(), change.timestamp() + near]);
            }
        }
        for at in instants {
            for kind in [WindowKind::Minute, WindowKind::Hour, WindowKind::Day, WindowKind::Week, WindowKind::Month] {
                let case = format!("seed {seed}: {kind} of {} at {at}", name.as_str());
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    assert_tiles(kind, &zone, at, &mut rng);
                }));
                assert!(result.is_ok(), "{case}");
            }
        }
    }
    assert!(zones > 400, "only {zones} zones are bundled");
}

/// A machine whose own data is older, newer or missing computes the same windows.
#[test]
fn f33_the_zone_data_is_compiled_in() {
    let used = format!("{:?}", jiff::tz::db());
    assert!(used.contains("Bundled"), "{used}");
    let version = zone_data_version();
    assert!(version.len() == 5 && version.starts_with("20"), "{version}");
}
