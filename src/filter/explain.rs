//! Why an offer was skipped: the first check that failed and what it compared (P10). Built off the latency path, check by
//! check, from the rules as they were read.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Facts, Skipped, hours, rules};
use crate::domain::explanation::Check;
use crate::domain::field::is_personal;
use crate::domain::id::{BuyerId, PublisherId};
use crate::domain::lead::{FieldValue, Lead};
use crate::domain::place;
use crate::domain::routing::{Buyer, FieldRule, ZipPattern};

/// Entries of a rule that an explanation repeats.
const ENTRIES_MAX: usize = 20;
/// Characters of a lead's value that an explanation repeats.
const VALUE_CHARS_MAX: usize = 200;

type Failure = (Check, Map<String, Value>);

/// Explains one skipped offer.
pub(super) fn skipped(
    offer: usize,
    buyer: &Buyer,
    facts: &Facts<'_>,
    at: Timestamp,
    paused: &HashSet<BuyerId>,
) -> Skipped {
    let failure = pause(buyer, paused)
        .or_else(|| publisher(buyer, &facts.lead.publisher))
        .or_else(|| country(buyer, facts))
        .or_else(|| state(buyer, facts))
        .or_else(|| zip(buyer, facts))
        .or_else(|| field(buyer, facts.lead))
        .or_else(|| opening(buyer, at));
    // Rules and lead never change, so an offer that passes all of them now was skipped for a pause that ended since.
    let (check, values) = failure.unwrap_or_else(|| (Check::Paused, object([("by", json!("operator"))])));
    Skipped { offer, check, values }
}

fn pause(buyer: &Buyer, paused: &HashSet<BuyerId>) -> Option<Failure> {
    let by = if buyer.is_paused {
        "routing"
    } else if paused.contains(&buyer.id) {
        "operator"
    } else {
        return None;
    };
    Some((Check::Paused, object([("by", json!(by))])))
}

fn publisher(buyer: &Buyer, publisher: &PublisherId) -> Option<Failure> {
    let filter = &buyer.filter;
    let rule = if filter.publishers_denied.contains(publisher) {
        ("denied", list(filter.publishers_denied.iter().map(PublisherId::as_str)))
    } else {
        let allowed = filter.publishers_allowed.as_ref().filter(|allowed| !allowed.contains(publisher))?;
        ("allowed", list(allowed.iter().map(PublisherId::as_str)))
    };
    let rule = Value::Object(object([rule]));
    Some((Check::Publisher, object([("rule", rule), ("lead", json!(publisher.as_str()))])))
}

fn country(buyer: &Buyer, facts: &Facts<'_>) -> Option<Failure> {
    let wanted = buyer.filter.countries.as_ref()?;
    let given = facts.country.as_deref();
    let is_taken = given.is_some_and(|given| wanted.iter().any(|country| place::country(country) == given));
    (!is_taken).then(|| (Check::Country, compared(list(wanted.iter().map(String::as_str)), given)))
}

fn state(buyer: &Buyer, facts: &Facts<'_>) -> Option<Failure> {
    let wanted = buyer.filter.states.as_ref()?;
    let given = facts.state.as_deref();
    let is_taken = given.is_some_and(|given| wanted.iter().any(|state| place::state(state) == given));
    (!is_taken).then(|| (Check::State, compared(list(wanted.iter().map(String::as_str)), given)))
}

fn zip(buyer: &Buyer, facts: &Facts<'_>) -> Option<Failure> {
    let patterns = buyer.filter.zips.as_ref()?;
    let is_taken = facts.zip.as_ref().is_some_and(|zip| patterns.iter().any(|pattern| zip.matches(pattern)));
    (!is_taken).then(|| {
        let shown = patterns.iter().map(|pattern| match pattern {
            ZipPattern::Exact(code) => code.clone(),
            ZipPattern::Prefix(prefix) => format!("{prefix}*"),
        });
        (Check::Zip, compared(list(shown), facts.zip.as_ref().map(place::Zip::as_str)))
    })
}

fn field(buyer: &Buyer, lead: &Lead) -> Option<Failure> {
    let rule = rules::first_broken(&buyer.filter.rules, lead)?;
    let given = match lead.fields.get(&rule.field) {
        Some(FieldValue::Nested(_)) => Some("(nested)"),
        // The explanation outlives the payload, and is shown in lists.
        Some(FieldValue::Text(_) | FieldValue::Number(_)) if is_personal(&rule.field) => Some("(given)"),
        value => value.and_then(FieldValue::as_text),
    };
    let mut values = compared(Value::Object(describe(rule)), given);
    values.insert("field".to_owned(), json!(&*rule.field));
    Some((Check::Where, values))
}

fn opening(buyer: &Buyer, at: Timestamp) -> Option<Failure> {
    if hours::is_open(&buyer.hours, buyer.timezone.to_datetime(at)) {
        return None;
    }
    let local = at.to_zoned_datetime(buyer.timezone.clone());
    let values = object([
        ("local", json!(local.to_string())),
        ("timezone", json!(buyer.timezone_name)),
        ("rule", list(buyer.hours.iter().map(hours::describe))),
    ]);
    Some((Check::Hours, values))
}

fn describe(rule: &FieldRule) -> Map<String, Value> {
    let mut parts = Map::new();
    for (name, bound) in [("min", rule.min), ("max", rule.max)] {
        if let Some(bound) = bound {
            parts.insert(name.to_owned(), plain_number(bound));
        }
    }
    if let Some(values) = &rule.one_of {
        parts.insert("in".to_owned(), list(values.iter().map(String::as_str)));
    }
    if let Some(is_present) = rule.is_present {
        parts.insert("present".to_owned(), json!(is_present));
    }
    parts
}

/// `18` rather than `18.0`.
fn plain_number(number: f64) -> Value {
    const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT_BELOW {
        #[allow(clippy::cast_possible_truncation, reason = "whole and small enough to be an integer exactly")]
        let whole = number as i64;
        json!(whole)
    } else {
        json!(number)
    }
}

fn compared(rule: Value, given: Option<&str>) -> Map<String, Value> {
    let given = given.map(|text| text.chars().take(VALUE_CHARS_MAX).collect::<String>());
    object([("rule", rule), ("lead", json!(given))])
}

/// At most [`ENTRIES_MAX`] entries, then how many more there are.
fn list<T: Into<String>>(entries: impl ExactSizeIterator<Item = T>) -> Value {
    let more = entries.len().saturating_sub(ENTRIES_MAX);
    let mut shown: Vec<Value> = entries.take(ENTRIES_MAX).map(|entry| Value::String(entry.into())).collect();
    if more > 0 {
        shown.push(Value::String(format!("and {more} more")));
    }
    Value::Array(shown)
}

fn object<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
