//! From meanings to HTTP. Status codes of the publisher API stand in this file and nowhere else.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::refusal::{FieldProblem, Refusal};
use super::server::Reply;
use super::{DecisionReceipt, ReturnReceipt};
use crate::domain::explanation::Explanation;
use crate::domain::id::LeadId;
use crate::domain::money::Currency;
use crate::domain::outcome::{LeadStatus, Verdict};
use crate::domain::routing::Publisher;

/// Says that an answer is the stored one of an earlier request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The event of a postback.
const LEAD_CLOSED: &str = "lead.closed";

#[derive(Serialize)]
struct Answer<'a> {
    lead_id: LeadId,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<Currency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redirect_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<&'a Explanation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'static str>,
}

impl<'a> Answer<'a> {
    fn new(lead: LeadId, status: LeadStatus) -> Self {
        Self {
            lead_id: lead,
            status: status.as_str(),
            reason: None,
            price: None,
            currency: None,
            redirect_url: None,
            test: None,
            explanation: None,
            event: None,
        }
    }

    fn of(lead: LeadId, verdict: &'a Verdict) -> Self {
        let answer = Self::new(lead, verdict.status());
        match verdict {
            // The price that a publisher sees is what it earns.
            Verdict::Sold(sold) => Self {
                price: Some(sold.payout.to_string()),
                currency: Some(sold.currency),
                redirect_url: sold.redirect_url.as_deref(),
                ..answer
            },
            Verdict::Unsold(reason) => Self { reason: Some(reason.as_str()), ..answer },
            Verdict::InDoubt(_) => answer,
        }
    }

    fn to_json(&self) -> String {
        // Cannot fail because the answer holds only strings, booleans and lists.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The final answer to a publisher: what is stored with the lead and replayed byte for byte (P3).
#[must_use]
pub fn answer_body(lead: LeadId, verdict: &Verdict) -> String {
    Answer::of(lead, verdict).to_json()
}

/// What the publisher's postback says about a verdict: the final answer, and what it is about. `None` without a postback.
#[must_use]
pub fn postback_body(publisher: &Publisher, lead: LeadId, verdict: &Verdict) -> Option<String> {
    publisher.postback.as_ref()?;
    Some(Answer { event: Some(LEAD_CLOSED), ..Answer::of(lead, verdict) }.to_json())
}

/// The answer to a test lead: the verdict and why.
#[must_use]
pub fn test_answer_body(lead: LeadId, verdict: &Verdict, explanation: &Explanation) -> String {
    Answer { test: Some(true), explanation: Some(explanation), ..Answer::of(lead, verdict) }.to_json()
}

/// The answer while a lead is on its walk.
#[must_use]
pub fn pending_body(lead: LeadId) -> String {
    Answer::new(lead, LeadStatus::Pending).to_json()
}

/// 200 with an answer. `is_replay`: it is the stored answer of an earlier request.
#[must_use]
pub fn answered(body: Bytes, is_replay: bool) -> Reply {
    let mut reply = json(StatusCode::OK, body);
    if is_replay {
        reply.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    reply
}

/// 200: not decided yet.
#[must_use]
pub fn pending(lead: LeadId) -> Reply {
    json(StatusCode::OK, pending_body(lead).into())
}

#[derive(Serialize)]
struct ReturnAnswer {
    lead_id: LeadId,
    status: &'static str,
    price: String,
    currency: Currency,
    cap_freed: bool,
}

/// 200: the buyer has given the lead back. `price` is what it had been charged and is charged no more.
#[must_use]
pub fn returned(lead: LeadId, receipt: &ReturnReceipt) -> Reply {
    let answer = ReturnAnswer {
        lead_id: lead,
        status: "returned",
        price: receipt.price.to_string(),
        currency: receipt.currency,
        cap_freed: receipt.frees_cap,
    };
    // Cannot fail because the answer holds only strings and a boolean.
    json(StatusCode::OK, serde_json::to_vec(&answer).unwrap_or_default().into())
}

#[derive(Serialize)]
struct DecisionAnswer {
    lead_id: LeadId,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<Currency>,
}

/// 200: what the buyer decided stands. `price` is what it is charged.
#[must_use]
pub fn decided(lead: LeadId, receipt: DecisionReceipt) -> Reply {
    let answer = match receipt {
        DecisionReceipt::Accepted { price, currency } => DecisionAnswer {
            lead_id: lead,
            decision: "accepted",
            price: Some(price.to_string()),
            currency: Some(currency),
        },
        DecisionReceipt::Declined => {
            DecisionAnswer { lead_id: lead, decision: "declined", price: None, currency: None }
        }
    };
    // Cannot fail because the answer holds only strings.
    json(StatusCode::OK, serde_json::to_vec(&answer).unwrap_or_default().into())
}

/// A JSON answer that no cache may keep.
#[must_use]
pub fn json(status: StatusCode, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    #[serde(skip_serializing_if = "<[FieldProblem]>::is_empty")]
    errors: &'a [FieldProblem],
}

/// An error as RFC 9457 has it.
#[must_use]
pub fn problem(status: StatusCode, code: &'static str, detail: &str, errors: &[FieldProblem]) -> Reply {
    let title = status.canonical_reason().unwrap_or("Error");
    let problem = Problem { r#type: "about:blank", title, status: status.as_u16(), detail, code, errors };
    // Cannot fail because the problem holds only strings and a number.
    let mut reply = json(status, serde_json::to_vec(&problem).unwrap_or_default().into());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    reply
}

/// The one table from refusals to HTTP.
#[must_use]
pub fn refused(refusal: &Refusal) -> Reply {
    let code = refusal.code();
    let plain = |status, detail: &str| problem(status, code, detail, &[]);
    match refusal {
        Refusal::Malformed(detail) => plain(StatusCode::BAD_REQUEST, detail),
        Refusal::Unauthorized => with(
            plain(
                StatusCode::UNAUTHORIZED,
                "send one valid API key as a bearer token or in X-Api-Key, and the signature where one was agreed",
            ),
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer"),
        ),
        Refusal::CampaignNotAllowed => plain(StatusCode::FORBIDDEN, "this key may not send leads to this campaign"),
        Refusal::AddressNotAllowed => plain(StatusCode::FORBIDDEN, "this key may not be used from your address"),
        Refusal::UnknownCampaign => plain(StatusCode::NOT_FOUND, "there is no such campaign"),
        Refusal::NotFound => plain(StatusCode::NOT_FOUND, "there is no such path, or no lead of yours with this id"),
        Refusal::MethodNotAllowed(allowed) => with(
            plain(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method"),
            ALLOW,
            HeaderValue::from_static(allowed),
        ),
        Refusal::HeadTimeout => plain(StatusCode::REQUEST_TIMEOUT, "the head did not come in time"),
        Refusal::HeadTooLarge => {
            plain(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too large or has too many fields")
        }
        Refusal::BodyTimeout => plain(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
        Refusal::TooLarge { bytes_max } => {
            plain(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is larger than {bytes_max} bytes"))
        }
        Refusal::UnsupportedMediaType(detail) => plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail),
        Refusal::InvalidLead(errors) => {
            problem(StatusCode::UNPROCESSABLE_ENTITY, code, "fields are missing or do not fit", errors)
        }
        Refusal::IdempotencyKeyReused => {
            plain(StatusCode::UNPROCESSABLE_ENTITY, "this idempotency key was used with another body")
        }
        Refusal::NotSold => plain(StatusCode::CONFLICT, "the lead was not sold to this buyer"),
        Refusal::NotPending => plain(StatusCode::CONFLICT, "this lead does not wait for a decision of this buyer"),
        Refusal::AlreadyDecided => plain(StatusCode::CONFLICT, "this buyer has decided otherwise before"),
        Refusal::TooLate(detail) => plain(StatusCode::CONFLICT, detail),
        Refusal::Undecided { retry_after_s } => with(
            plain(StatusCode::CONFLICT, "whether this buyer has it is not settled yet: ask again"),
            RETRY_AFTER,
            HeaderValue::from(*retry_after_s),
        ),
        Refusal::Throttled { retry_after_s } => with(
            plain(StatusCode::TOO_MANY_REQUESTS, "above the agreed rate"),
            RETRY_AFTER,
            HeaderValue::from(*retry_after_s),
        ),
        Refusal::Unavailable(detail) => with(
            plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{detail}; not confirmed, send the same again")),
            RETRY_AFTER,
            HeaderValue::from(1_u64),
        ),
    }
}

fn with(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    reply.headers_mut().insert(name, value);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::BuyerId;
    use crate::domain::money::Micros;
    use crate::domain::outcome::{Sold, UnsoldReason};

    fn lead() -> LeadId {
        "0195a0c2-7d3e-7c4b-8a1f-0242ac120002".parse().unwrap()
    }

    fn sold(redirect_url: Option<&str>) -> Verdict {
        Verdict::Sold(Sold {
            buyer: BuyerId::new("sunco").unwrap(),
            price: Micros(25_000_000),
            payout: Micros(17_500_000),
            currency: Currency::new("USD").unwrap(),
            redirect_url: redirect_url.map(str::to_owned),
        })
    }

    #[test]
    fn answers_are_exactly_what_the_interface_promises() {
        let id = "{\"lead_id\":\"0195a0c2-7d3e-7c4b-8a1f-0242ac120002\",\"status\":";
        let expect = |body: String, rest: &str| assert_eq!(body, format!("{id}{rest}"));
        expect(answer_body(lead(), &sold(None)), r#""sold","price":"17.50","currency":"USD"}"#);
        expect(
            answer_body(lead(), &sold(Some("https://a.example/?x=\"1\""))),
            r#""sold","price":"17.50","currency":"USD","redirect_url":"https://a.example/?x=\"1\""}"#,
        );
        expect(answer_body(lead(), &Verdict::Unsold(UnsoldReason::Capped)), r#""unsold","reason":"capped"}"#);
        expect(answer_body(lead(), &Verdict::InDoubt(BuyerId::new("b").unwrap())), r#""in_doubt"}"#);
        expect(pending_body(lead()), r#""pending"}"#);
        let explanation = Explanation { routing_version: "7".into(), candidates: vec![] };
        expect(
            test_answer_body(lead(), &Verdict::Unsold(UnsoldReason::NoBuyer), &explanation),
            r#""unsold","reason":"no_buyer","test":true,"explanation":{"routing_version":"7","candidates":[]}}"#,
        );
    }

    #[test]
    fn every_refusal_has_its_status_and_a_listed_code() {
        let all = [
            (Refusal::Malformed("x".into()), 400),
            (Refusal::Unauthorized, 401),
            (Refusal::CampaignNotAllowed, 403),
            (Refusal::AddressNotAllowed, 403),
            (Refusal::UnknownCampaign, 404),
            (Refusal::NotFound, 404),
            (Refusal::MethodNotAllowed("POST"), 405),
            (Refusal::BodyTimeout, 408),
            (Refusal::TooLarge { bytes_max: 1 }, 413),
            (Refusal::UnsupportedMediaType("x"), 415),
            (Refusal::InvalidLead(vec![]), 422),
            (Refusal::IdempotencyKeyReused, 422),
            (Refusal::NotSold, 409),
            (Refusal::NotPending, 409),
            (Refusal::AlreadyDecided, 409),
            (Refusal::TooLate("x".into()), 409),
            (Refusal::Undecided { retry_after_s: 3 }, 409),
            (Refusal::Throttled { retry_after_s: 3 }, 429),
            (Refusal::Unavailable("x"), 503),
        ];
        for (refusal, status) in &all {
            assert_eq!(refused(refusal).status().as_u16(), *status, "{refusal:?}");
            assert!(Refusal::CODES.contains(&refusal.code()), "{refusal:?}");
        }
        assert_eq!(all.len(), Refusal::CODES.len());
    }
}
