//! Values that buyers are matched by: zones, hours, places, field rules.

use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;

use super::item::{Item, Reader, nearest, warn_of_misspelling};
use super::routing::{Known, canonical_country, canonical_state};
use crate::domain::field;
use crate::domain::id::PublisherId;
use crate::domain::money::Micros;
use crate::domain::routing::{BuyerFilter, FieldRule, Hours, ZipPattern};

/// Millionths of a percent value such as `"70"` or `"12.3456"`.
pub(super) fn percent_millionths(item: &Item<'_>) -> Option<u32> {
    const RIGHT: &str = "a decimal in quotes from 0 to 100 with at most four decimals, such as \"70\"";
    let percent = Micros::parse(item.text()?).ok().filter(|percent| percent.0 % 100 == 0);
    // A millionth of the price is a ten-thousandth of a percent.
    let millionths = percent.and_then(|percent| u32::try_from(percent.0 / 100).ok()).filter(|part| *part <= 1_000_000);
    if millionths.is_none() {
        item.fail("is not a percentage", RIGHT);
    }
    millionths
}

/// A zone of the bundled database, so that all gateways agree (F33).
pub(super) fn timezone(item: &Item<'_>) -> Option<TimeZone> {
    let name = item.word()?;
    let database = jiff::tz::db();
    if let Ok(zone) = database.get(name) {
        return Some(zone);
    }
    let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
    let place = name.rsplit('/').next().unwrap_or(name).replace(' ', "_").to_ascii_lowercase();
    let same_place = names.iter().find(|known| known.to_ascii_lowercase().ends_with(&format!("/{place}")));
    let near = same_place.map(String::as_str).or_else(|| nearest(name, names.iter().map(String::as_str)));
    item.fail("is not a time zone", near.unwrap_or("an IANA name such as America/New_York"));
    None
}

/// One `[[buyer.hours]]`.
pub(super) fn hours(reader: Reader<'_>) -> Option<Hours> {
    let days = match reader.item("days") {
        None => DAYS.iter().map(|(_, day)| *day).collect(),
        Some(item) => {
            let days: Vec<Weekday> = item.texts().iter().filter_map(|(_, item)| item.choice(&DAYS)).collect();
            if (1..days.len()).any(|at| days[..at].contains(&days[at])) {
                item.fail("names a day twice", "each day once");
            }
            days
        }
    };
    let from = reader.required("from", CLOCK).and_then(|item| clock(&item, false));
    let to = reader.required("to", CLOCK).and_then(|item| clock(&item, true));
    reader.finish();
    Some(Hours { days, from: from?, to: to? })
}

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];
const CLOCK: &str = "a time of day such as \"09:00\"";

fn clock(item: &Item<'_>, is_end: bool) -> Option<Time> {
    let text = item.text()?;
    let number = |part: &str| {
        let is_two_digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        is_two_digits.then(|| part.parse::<i8>().ok()).flatten()
    };
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    let time = match parts {
        // Both spellings of the end of a day are in use.
        Some((24, 0)) if is_end => Some(Time::midnight()),
        Some((hour, minute)) => Time::new(hour, minute, 0, 0).ok(),
        None => None,
    };
    if time.is_none() {
        item.fail("is not a time of day", CLOCK);
    }
    time
}

/// `[buyer.filter]`
pub(super) fn filter(reader: Reader<'_>, known: &Known) -> BuyerFilter {
    let places = |key, canonical: fn(&str) -> String| {
        reader.item(key).map(|item| item.texts().iter().map(|(text, _)| canonical(text)).collect())
    };
    let zips = |item: Item<'_>| item.texts().iter().filter_map(|(text, item)| zip(text, item)).collect();
    let filter = BuyerFilter {
        states: places("states", canonical_state),
        countries: places("countries", canonical_country),
        zips: reader.item("zips").map(zips),
        publishers_allowed: reader.item("publishers_allowed").map(|item| publishers(item.texts(), known)),
        publishers_denied: reader
            .item("publishers_denied")
            // Nobody denied is a sensible list.
            .map(|item| item.list("a list of publisher ids"))
            .map(|items| items.into_iter().filter_map(|item| item.text().map(|text| (text, item))).collect())
            .map(|texts| publishers(texts, known))
            .unwrap_or_default(),
        rules: reader.tables("where").into_iter().filter_map(rule).collect(),
    };
    if filter.publishers_allowed.is_some() && !filter.publishers_denied.is_empty() {
        reader.fail("publishers_denied", "stands beside publishers_allowed", "one of the two");
    }
    reader.finish();
    filter
}

fn zip(text: &str, item: &Item<'_>) -> Option<ZipPattern> {
    let trimmed = text.trim().to_uppercase();
    let (body, is_prefix) = trimmed.strip_suffix('*').map_or((trimmed.as_str(), false), |body| (body, true));
    let is_good = !body.is_empty()
        && body.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-'))
        && body.len() <= 16;
    if !is_good {
        item.fail(
            "is not a zip",
            "a whole zip such as \"07030\", or its first characters and a star, such as \"100*\"",
        );
        return None;
    }
    Some(if is_prefix { ZipPattern::Prefix(body.to_owned()) } else { ZipPattern::Exact(body.to_owned()) })
}

fn publishers(texts: Vec<(&str, Item<'_>)>, known: &Known) -> Vec<PublisherId> {
    texts.into_iter().filter_map(|(text, item)| publisher(text, &item, known)).collect()
}

/// A publisher that this file does not have is only a warning: one may be denied, or capped, before it is added.
pub(super) fn publisher(text: &str, item: &Item<'_>, known: &Known) -> Option<PublisherId> {
    let Ok(id) = PublisherId::new(text) else {
        item.fail("is not an id", "the id of a publisher");
        return None;
    };
    if !known.publishers.contains(&id) {
        let near = nearest(text, known.publishers.iter().map(PublisherId::as_str));
        item.warn("there is no such publisher", near.unwrap_or("the id of a publisher in this file"));
    }
    Some(id)
}

fn rule(reader: Reader<'_>) -> Option<FieldRule> {
    let name = reader.required("field", "the name of a field").and_then(|item| {
        let name = item.word()?;
        warn_of_misspelling(&item, name.trim());
        Some(name)
    });
    let (min, max, one_of) = (reader.item("min"), reader.item("max"), reader.item("in"));
    let asks_value = min.is_some() || max.is_some() || one_of.is_some();
    let (min, max) = (min.and_then(|item| item.number()), max.and_then(|item| item.number()));
    let one_of = one_of.map(|item| item.values());
    let present = reader.item("present");
    if present.is_none() && !asks_value {
        reader.fail("", "asks nothing", "at least one of min, max, in, present");
    }
    let is_present = present.and_then(|item| item.flag());
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        reader.fail("min", format!("{min} is above max, {max}"), "min at most max");
    }
    if is_present == Some(false) && asks_value {
        reader.fail("present", "a field that must be absent has no value to compare", "present = false alone");
    }
    reader.finish();
    Some(FieldRule { field: field::canonical(name?.trim()), min, max, one_of, is_present })
}
