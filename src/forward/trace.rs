//! What one forward sent and what came back, for people who connect a buyer. Secrets are masked; leads are not, so nothing of
//! it may reach a log (P9).

use std::time::{Duration, Instant};

use http::HeaderMap;
use parking_lot::Mutex;

use super::classify::{Answer, Matched, Readable, says_pending};
use super::request::{self, BadMessage, Offered, Secrets};
use crate::domain::outcome::Outcome;
use crate::domain::routing::{AnswerRule, AnswerRules, AnswerText, Buyer, On5xx};

/// Learns what happens while it happens.
#[derive(Debug, Default)]
pub struct Tracer(Mutex<Trace>);

/// What is known so far.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Absent: there was no request to send.
    pub request: Option<SentRequest>,
    /// Absent: no head of an answer came.
    pub answer: Option<SeenAnswer>,
    since: Option<Instant>,
}

/// A request as it was written, with masks in the place of secrets.
#[derive(Debug, Clone)]
pub struct SentRequest {
    /// POST or GET.
    pub method: String,
    /// Where to.
    pub url: String,
    /// Those that the gateway sets; secrets are marked as sensitive.
    pub headers: HeaderMap,
    /// Empty for a GET.
    pub body: String,
}

/// An answer as it came.
#[derive(Debug, Clone)]
pub struct SeenAnswer {
    /// HTTP status.
    pub status: u16,
    /// From the request to its first line.
    pub after: Duration,
    /// Its headers.
    pub headers: HeaderMap,
    /// Absent while it has not come whole.
    pub body: Option<Vec<u8>>,
}

/// How an answer was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// `JSON`, `XML`, `text`, `compressed`.
    pub kind: &'static str,
    /// The key of the rule that decided: `accepted`, `duplicate`, `on_5xx`; absent when none did.
    pub rule: Option<&'static str>,
    /// The whole sentence.
    pub why: String,
}

impl Tracer {
    /// What is known so far.
    #[must_use]
    pub fn seen(&self) -> Trace {
        self.0.lock().clone()
    }

    pub(super) fn request(&self, buyer: &Buyer, offered: &Offered<'_>, headers: &HeaderMap) -> Result<(), BadMessage> {
        let body = request::body(&buyer.request, offered, Secrets::Masked)?;
        let request = SentRequest {
            method: request::method(&buyer.request).to_string(),
            url: request::url(buyer, offered, Secrets::Masked)?.to_string(),
            headers: headers.clone(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        *self.0.lock() = Trace { request: Some(request), answer: None, since: Some(Instant::now()) };
        Ok(())
    }

    pub(super) fn head(&self, status: u16, headers: &HeaderMap) {
        let mut trace = self.0.lock();
        let after = trace.since.map(|since| since.elapsed()).unwrap_or_default();
        trace.answer = Some(SeenAnswer { status, after, headers: headers.clone(), body: None });
    }

    pub(super) fn body(&self, bytes: &[u8]) {
        if let Some(answer) = &mut self.0.lock().answer {
            answer.body = Some(bytes.to_vec());
        }
    }
}

/// Says why an answer was read as it was.
#[must_use]
pub fn explain(answer: &SeenAnswer, rules: &AnswerRules, outcome: &Outcome) -> Option<Reading> {
    let status = answer.status;
    let body = Readable::new(&Answer { status, headers: &answer.headers, body: answer.body.as_deref()? });
    let matched = Matched::by(&body, status, rules);
    let is_success = (200..300).contains(&status);
    let (rule, why) = match (matched.accepted, matched.duplicate) {
        _ if says_pending(&body, status, rules) => {
            (Some("pending_within_s"), "status 202, and its /status is \"pending\"".to_owned())
        }
        (Some(rule), _) if matched.is_sale() => {
            (Some("accepted"), format!("answer.accepted matched: {}", found(&body, status, rule)))
        }
        (_, Some(rule)) => (Some("duplicate"), format!("answer.duplicate matched: {}", found(&body, status, rule))),
        _ if (500..600).contains(&status) && rules.on_5xx == On5xx::InDoubt => {
            (Some("on_5xx"), format!("status {status}, and answer.on_5xx is \"in_doubt\""))
        }
        _ if matches!(outcome, Outcome::InDoubt { .. }) => (None, "it did not come in full".to_owned()),
        _ => {
            let parts = rules.accepted.parts().iter();
            let found: Vec<String> = parts.map(|rule| found(&body, status, rule)).collect();
            let why = format!("answer.accepted did not match: {}", found.join("; "));
            let is_by_status = rules.accepted.parts().iter().any(|rule| matches!(rule, AnswerRule::Status(_)));
            let note = if is_success || is_by_status { "" } else { " (and only a 2xx can be a sale)" };
            (None, why + note)
        }
    };
    Some(Reading { kind: body.kind(), rule, why })
}

/// A rule and what the answer has for it.
fn found(body: &Readable<'_>, status: u16, rule: &AnswerRule) -> String {
    let at = |path: &str| body.at(path).map_or("nothing".to_owned(), |text| format!("{text:?}"));
    match rule {
        AnswerRule::Status(statuses) => format!("status {status}, wanted one of {statuses:?}"),
        AnswerRule::Path { pointer, values } => format!("{pointer:?} is {}, wanted one of {values:?}", at(pointer)),
        AnswerRule::PathMatches { pointer, regex } => {
            format!("{pointer:?} is {}, wanted a match of {:?}", at(pointer), regex.as_str())
        }
        AnswerRule::BodyMatches(regex) => format!("the body, wanted a match of {:?}", regex.as_str()),
        AnswerRule::AnyOf(rules) => rules.iter().map(|rule| found(body, status, rule)).collect::<Vec<_>>().join(" or "),
    }
}

/// What the answer says in one of its places, before it is judged.
#[must_use]
pub fn said(answer: &SeenAnswer, text: Option<&AnswerText>) -> Option<String> {
    let body = answer.body.as_deref()?;
    Readable::new(&Answer { status: answer.status, headers: &answer.headers, body }).say(text)
}
