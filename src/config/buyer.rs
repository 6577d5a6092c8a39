//! `[[buyer]]`

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use reqwest::Url;

use super::ForwardConfig;
use super::answer;
use super::caps;
use super::item::{Item, Reader};
use super::matching;
use super::process::FORWARD_TIMEOUT_MS_MAX;
use super::request;
use super::routing::Known;
use crate::domain::id::BuyerId;
use crate::domain::routing::{Buyer, OnCrash, OnTimeout};
use crate::domain::window::WindowKind;

/// Most forwards under way at once to one buyer.
const IN_FLIGHT_MAX: u32 = 100_000;

pub(super) fn read(id: &BuyerId, reader: &Reader<'_>, forward: &ForwardConfig, known: &Known) -> Option<Arc<Buyer>> {
    let url = reader.required("url", "http://HOST/PATH or https://HOST/PATH").and_then(|item| url(item, forward));
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
    for key in ["duplicates", "keys_sha256", "return_within_days", "returns_free_cap"] {
        reader.not_available_yet(key);
    }

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
    }))
}

fn url(item: Item<'_>, forward: &ForwardConfig) -> Option<Url> {
    const RIGHT: &str = "http://HOST/PATH or https://HOST/PATH";
    let text = item.text()?;
    // A URL may carry a password or a token.
    let item = if text.contains(['@', '?']) { item.secret() } else { item };
    let Ok(url) = Url::parse(text) else {
        item.fail("is not a URL", RIGHT);
        return None;
    };
    if !matches!(url.scheme(), "http" | "https") {
        item.fail("is neither http nor https", RIGHT);
        return None;
    }
    if !url.username().is_empty() || url.password().is_some() {
        item.fail(
            "carries a user name or password",
            "a URL without them, and the secret in [buyer.request] headers or basic",
        );
        return None;
    }
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        item.fail("names no host", RIGHT);
        return None;
    };
    if url.fragment().is_some() {
        item.fail("has a #fragment, which is never sent", RIGHT);
    }
    if !forward.allow_private_addresses && is_private(host) {
        item.warn(
            "is a private address, so every forward to it is refused",
            "a public address, or forward.allow_private_addresses = true",
        );
    }
    Some(url)
}

/// Plainly private, as far as the text tells; each forward checks the address that it really connects to.
fn is_private(host: &str) -> bool {
    if host == "localhost" || host.ends_with(".localhost") {
        return true;
    }
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => false,
    }
}
