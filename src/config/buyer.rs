//! `[[buyer]]`

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::ForwardConfig;
use super::address;
use super::answer;
use super::campaign;
use super::caps;
use super::item::Reader;
use super::matching;
use super::process::FORWARD_TIMEOUT_MS_MAX;
use super::publisher;
use super::request;
use super::routing::Known;
use crate::domain::id::BuyerId;
use crate::domain::person::DuplicateRule;
use crate::domain::routing::{BreakerRule, Buyer, OnCrash, OnTimeout, ReturnTerms};
use crate::domain::window::WindowKind;
use crate::forward::REST_MAX_S;

/// Most forwards under way at once to one buyer.
const IN_FLIGHT_MAX: u32 = 100_000;
/// Ten years.
const RETURN_DAYS_MAX: u32 = 3_650;
const BREAKER_FAILURES_MAX: u32 = 1_000_000;
/// Ten years. Marks are kept in the store for so long.
const DUPLICATE_DAYS_MAX: u32 = 3_650;

pub(super) fn read(id: &BuyerId, reader: &Reader<'_>, forward: &ForwardConfig, known: &Known) -> Option<Arc<Buyer>> {
    let url = reader.required("url", address::RIGHT).and_then(|item| {
        let hint = "a URL without them, and the secret in [buyer.request] headers or basic";
        address::url(item, forward, "forward", hint)
    });
    let zone_item = reader.item("timezone");
    let timezone = zone_item.as_ref().map_or(Some(TimeZone::UTC), matching::timezone);
    let timeout_ms = reader.item("timeout_ms").map(|item| item.integer_in((1, FORWARD_TIMEOUT_MS_MAX)));
    let on_timeout = reader
        .item("on_timeout")
        .and_then(|item| {
            let words = [("refund", OnTimeout::Refund), ("reserve", OnTimeout::Reserve), ("hold", OnTimeout::Hold)];
            item.choice(&words)
        })
        .unwrap_or(OnTimeout::Refund);
    if on_timeout != OnTimeout::Refund && forward.late_answer.is_zero() {
        reader.warn("on_timeout", "waits for a late answer, and forward.late_answer_ms is 0", "refund, or a wait");
    }
    let on_crash = reader
        .item("on_crash")
        .and_then(|item| item.choice(&[("keep", OnCrash::Keep), ("refund", OnCrash::Refund)]))
        .unwrap_or(OnCrash::Keep);
    let in_flight_max = reader.integer("in_flight_max", (1, IN_FLIGHT_MAX), 200);
    let is_paused = reader.flag("paused", false);
    let caps = caps::read_all(reader, known);
    let filter = reader.table("filter").map(|table| matching::filter(table, known)).unwrap_or_default();
    let hours: Vec<_> = reader.tables("hours").into_iter().map(matching::hours).collect();
    let request = request::read(reader.table("request"), timezone.as_ref());
    let answer = answer::read(reader.table("answer"));
    let keys = publisher::keys(reader);
    if keys.is_empty() && answer.as_ref().is_some_and(|answer| answer.pending_within.is_some()) {
        reader.warn(
            "keys_sha256",
            "is missing, so the buyer cannot post what it decides within answer.pending_within_s",
            "the hash that `capgate key` prints",
        );
    }
    let returns = return_terms(reader, !keys.is_empty());
    let breaker = reader.table("breaker").map(breaker_rule).unwrap_or_default();
    let duplicates = reader.table("duplicates").and_then(duplicate_rule);

    if !answer.as_ref().is_none_or(|answer| answer.is_explicit) {
        reader.warn(
            "answer",
            "is missing: only 2xx with a JSON body whose \"status\" is \"accepted\" is a sale",
            "accepted = { path = \"/status\", in = [\"accepted\"] }, spelled out",
        );
    }
    // A minute starts at the same instant everywhere; longer windows and opening hours do not.
    let has_calendar =
        !hours.is_empty() || caps.iter().any(|cap| !matches!(cap.window, WindowKind::Minute | WindowKind::Total));
    if zone_item.is_none() && has_calendar {
        reader.warn("timezone", "is missing, so caps and hours follow UTC", "the buyer's zone, or \"UTC\" spelled out");
    }
    let timezone = timezone?;
    Some(Arc::new(Buyer {
        id: id.clone(),
        url: url?,
        timezone_name: timezone.iana_name().unwrap_or("UTC").to_owned(),
        timezone,
        timeout: timeout_ms.flatten().map_or(forward.timeout, Duration::from_millis),
        on_timeout,
        on_crash,
        in_flight_max: usize::try_from(in_flight_max).unwrap_or(usize::MAX),
        is_paused,
        caps,
        filter,
        hours: hours.into_iter().flatten().collect(),
        request: request?,
        answer: answer?,
        keys,
        returns,
        breaker,
        duplicates,
    }))
}

fn breaker_rule(reader: Reader<'_>) -> BreakerRule {
    let BreakerRule { failures, rest } = BreakerRule::default();
    let failures = reader.integer("failures", (0, BREAKER_FAILURES_MAX), failures);
    let rest_s = reader.integer("rest_s", (1, REST_MAX_S), u32::try_from(rest.as_secs()).unwrap_or(REST_MAX_S));
    reader.finish();
    BreakerRule { failures, rest: Duration::from_secs(rest_s.into()) }
}

/// `[buyer.duplicates]`; `None` when something is wrong with it.
fn duplicate_rule(reader: Reader<'_>) -> Option<DuplicateRule> {
    let item = reader.required("fields", "fields = [\"phone\"]");
    let fields = campaign::fields(&reader, "fields");
    if let Some(item) = item.as_ref().filter(|item| item.is_list() && item.list("a list of field names").is_empty()) {
        item.fail("names no field", "fields = [\"phone\"]");
    }
    let days = reader.required("days", "days = 30").and_then(|item| item.integer_in((1, DUPLICATE_DAYS_MAX)));
    reader.finish();
    let days = days?;
    (!fields.is_empty()).then_some(DuplicateRule { fields, days })
}

/// Without keys there is nobody who could return anything, so a rule about returns is probably half of what was meant.
fn return_terms(reader: &Reader<'_>, has_keys: bool) -> ReturnTerms {
    for key in ["return_within_days", "returns_free_cap"] {
        if !has_keys && reader.item(key).is_some() {
            reader.warn(
                key,
                "has no effect without keys_sha256",
                "the hash that `capgate key` prints, or no such rule",
            );
        }
    }
    ReturnTerms {
        within_days: reader.integer("return_within_days", (0, RETURN_DAYS_MAX), 30),
        frees_cap: reader.flag("returns_free_cap", false),
    }
}
