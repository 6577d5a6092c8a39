//! What a buyer's complete answer means. Pure: the same answer always means the same.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, RETRY_AFTER};
use jiff::Timestamp;

use super::decode::decode;
use super::rest::REST_MAX_S;
use crate::domain::lead::Fields;
use crate::domain::money::Micros;
use crate::domain::outcome::{Acceptance, Outcome};
use crate::domain::routing::{AnswerRule, AnswerRules, AnswerText, On5xx};
use crate::domain::words::without_values;
use crate::domain::{pointer, xml};

/// Longest part of a buyer's own words that is kept, in characters.
pub const REASON_CHARS_MAX: usize = 200;

/// Longest name of a lead that is kept, in characters.
const REFERENCE_CHARS_MAX: usize = 128;
/// Longest redirect URL that is passed on, in bytes.
pub const REDIRECT_URL_BYTES_MAX: usize = 2048;

/// An answer that was read to its last byte.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its body, as it came over the wire.
    pub body: &'a [u8],
}

/// The body, as far as rules can look into it.
pub(super) struct Readable<'a> {
    text: Option<Cow<'a, str>>,
    xml: Option<xml::Document<'a>>,
}

impl<'a> Readable<'a> {
    pub(super) fn new(answer: &Answer<'a>) -> Self {
        // Compression was not asked for; what came all the same is not unpacked, since a few bytes may hide gigabytes (F49).
        let is_encoded =
            answer.headers.get_all(CONTENT_ENCODING).iter().any(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"));
        if is_encoded {
            return Self { text: None, xml: None };
        }
        let text = decode(answer.body);
        // The header is not asked: XML is sent as text/html, and JSON as text/plain.
        let xml = if text.trim_start().starts_with('<') { xml::Document::read(text.clone()) } else { None };
        Self { text: Some(text), xml }
    }

    /// What the body was taken for.
    pub(super) fn kind(&self) -> &'static str {
        match (&self.text, &self.xml) {
            (None, _) => "compressed",
            (_, Some(_)) => "XML",
            (Some(text), None) if pointer::Document::read(text.as_bytes()).is_some() => "JSON",
            (Some(_), None) => "text",
        }
    }

    pub(super) fn at(&self, path: &str) -> Option<String> {
        match &self.xml {
            Some(document) => document.text(path).map(|text| text.trim().to_owned()),
            None => pointer::Document::read(self.text.as_ref()?.as_bytes())?.text(path).map(Cow::into_owned),
        }
    }

    pub(super) fn say(&self, text: Option<&AnswerText>) -> Option<String> {
        match text? {
            AnswerText::Path(path) => self.at(path),
            AnswerText::Capture(regex) => Some(regex.captures(self.text.as_ref()?)?.get(1)?.as_str().to_owned()),
        }
    }

    fn matches(&self, rule: &AnswerRule, status: u16) -> bool {
        match rule {
            AnswerRule::Status(statuses) => statuses.contains(&status),
            AnswerRule::BodyMatches(regex) => self.text.as_ref().is_some_and(|text| regex.is_match(text)),
            AnswerRule::Path { pointer, values } => self.at(pointer).is_some_and(|text| {
                let text = text.to_lowercase();
                values.iter().any(|value| value.to_lowercase() == text)
            }),
            AnswerRule::PathMatches { pointer, regex } => self.at(pointer).is_some_and(|text| regex.is_match(&text)),
            AnswerRule::AnyOf(rules) => rules.iter().any(|rule| self.matches(rule, status)),
        }
    }

    /// Did the body hold what the rule looks at, whatever it said?
    fn answers(&self, rule: &AnswerRule) -> bool {
        match rule {
            AnswerRule::Status(_) => true,
            AnswerRule::BodyMatches(_) => self.text.is_some(),
            AnswerRule::Path { pointer, .. } | AnswerRule::PathMatches { pointer, .. } => self.at(pointer).is_some(),
            AnswerRule::AnyOf(rules) => rules.iter().any(|rule| self.answers(rule)),
        }
    }
}

/// The rules that an answer matches.
pub(super) struct Matched<'r> {
    pub(super) accepted: Option<&'r AnswerRule>,
    pub(super) duplicate: Option<&'r AnswerRule>,
}

impl<'r> Matched<'r> {
    pub(super) fn by(body: &Readable<'_>, status: u16, rules: &'r AnswerRules) -> Self {
        let is_success = (200..300).contains(&status);
        // What a body says counts in a 2xx only.
        let may_accept = |rule: &&AnswerRule| is_success || matches!(rule, AnswerRule::Status(_));
        let accepts = |rule: &&AnswerRule| may_accept(rule) && body.matches(rule, status);
        let duplicates = |rule: &&AnswerRule| body.matches(rule, status);
        Self {
            accepted: rules.accepted.parts().iter().find(accepts),
            duplicate: rules.duplicate.iter().flat_map(AnswerRule::parts).find(duplicates),
        }
    }

    /// A sale? A status is the less exact word: where only that says yes and a duplicate is told too, the duplicate counts.
    pub(super) fn is_sale(&self) -> bool {
        match (self.accepted, self.duplicate) {
            (None, _) | (Some(AnswerRule::Status(_)), Some(_)) => false,
            (Some(_), _) => true,
        }
    }
}

/// Reads an answer: only what `accepted` matches is a sale, everything else is a "no" with a reason, and a 5xx is in doubt
/// where the buyer is set so. A 202 that says `pending` is a decision to come, where that was agreed. Where `accepted` names nothing
/// but statuses and `duplicate` matches too, the duplicate counts: it was the more exact word. What the buyer's words repeat of the
/// fields that were sent is left out (P9). `now` is for a `Retry-After` that is a date.
#[must_use]
pub fn classify(answer: &Answer<'_>, rules: &AnswerRules, sent: &Fields, now: Timestamp) -> Outcome {
    let status = answer.status;
    let body = Readable::new(answer);
    let is_success = (200..300).contains(&status);
    if says_pending(&body, status, rules) {
        return Outcome::Pending { http_status: status, reference: reference(&body, rules) };
    }
    let matched = Matched::by(&body, status, rules);
    if matched.is_sale() {
        return Outcome::Accepted(Acceptance {
            http_status: status,
            price: body.say(rules.price.as_ref()).and_then(|text| Micros::read_number(text.trim())),
            redirect_url: body.say(rules.redirect_url.as_ref()).and_then(|text| web_address(&text)),
            reference: reference(&body, rules),
        });
    }
    let is_duplicate = matched.duplicate.is_some();
    let is_failure = (500..600).contains(&status);
    if is_failure && !is_duplicate && rules.on_5xx == On5xx::InDoubt {
        return Outcome::InDoubt { reason: "http_5xx", http_status: Some(status) };
    }
    // Masked before they are cut, so that no half of a value is left at the end.
    let words = body
        .say(rules.reason.as_ref())
        .and_then(|text| own_words(&without_values(&bounded(&text), sent), REASON_CHARS_MAX));
    let reason = if is_duplicate {
        words.unwrap_or_else(|| "duplicate".to_owned())
    } else if is_success {
        let ours = if body.answers(&rules.accepted) { "declined" } else { "unreadable_answer" };
        words.unwrap_or_else(|| ours.to_owned())
    } else if (400..500).contains(&status) {
        words.unwrap_or_else(|| format!("http_{status}"))
    } else {
        format!("http_{status}")
    };
    Outcome::Declined { http_status: status, reason, is_duplicate, rest_s: rest_s(status, answer.headers, now) }
}

fn reference(body: &Readable<'_>, rules: &AnswerRules) -> Option<String> {
    body.say(rules.reference.as_ref()).and_then(|text| own_words(&text, REFERENCE_CHARS_MAX))
}

/// Does the buyer decide later, as it was agreed that it may? The most exact word of all: it comes before every other rule.
pub(super) fn says_pending(body: &Readable<'_>, status: u16, rules: &AnswerRules) -> bool {
    let says = || body.at("/status").is_some_and(|word| word.trim().eq_ignore_ascii_case("pending"));
    rules.pending_within.is_some() && status == 202 && says()
}

/// How long a 429 or 503 asks for a rest, at most [`REST_MAX_S`] seconds; seconds or a date.
#[must_use]
pub fn rest_s(status: u16, headers: &HeaderMap, now: Timestamp) -> Option<u32> {
    if !matches!(status, 429 | 503) {
        return None;
    }
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Only too many digits can fail here.
        return Some(text.parse().map_or(REST_MAX_S, |seconds: u32| seconds.min(REST_MAX_S)));
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    let seconds = at.duration_since(now).as_secs().clamp(0, i64::from(REST_MAX_S));
    u32::try_from(seconds).ok()
}

/// As much of a text as masking is worth its time (P7).
fn bounded(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX * 4).collect()
}

/// A buyer's words without control characters, cut; `None` when nothing is left.
fn own_words(text: &str, chars_max: usize) -> Option<String> {
    let kept: String = text.chars().filter(|c| !c.is_control()).take(chars_max).collect();
    let trimmed = kept.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// Only a whole http or https URL is passed on: the publisher's page will follow it.
fn web_address(text: &str) -> Option<String> {
    if text.len() > REDIRECT_URL_BYTES_MAX {
        return None;
    }
    let url = reqwest::Url::parse(text.trim()).ok()?;
    matches!(url.scheme(), "http" | "https").then(|| url.to_string())
}

#[cfg(test)]
mod tests;
