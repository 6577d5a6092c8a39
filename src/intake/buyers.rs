//! What buyers ask of their own: to give a lead back, and to say what they have decided after a pending answer.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use tokio::sync::SemaphorePermit;

use super::body::Body;
use super::endpoint::{Endpoint, body_type};
use super::parse::{self, BodyType};
use super::refusal::Refusal;
use super::server::Reply;
use super::throttle::BuyerAsked;
use super::{Decision, DecisionAnswer, ReturnAnswer, reply};
use crate::domain::id::LeadId;
use crate::domain::lead::FieldValue;
use crate::domain::money::Micros;
use crate::domain::routing::{Buyer, Routing};

/// Returns at once, and decisions at once: each may wait seconds for the books (P7).
pub(super) const RETURNS_MAX: usize = 32;
pub(super) const DECISIONS_MAX: usize = 128;
/// Longest body of a call: far more than a reason needs.
const BODY_BYTES_MAX: usize = 8 * 1024;
/// Longest reason that is kept; the rest is cut.
const REASON_CHARS_MAX: usize = 200;
/// When to ask again about a sale that is not booked yet.
const UNDECIDED_RETRY_S: u64 = 5;
/// When to decide again about a lead whose forward is still under way.
const UNDER_WAY_RETRY_S: u64 = 1;

/// A call of a buyer that may be looked at.
struct BuyerCall<'a> {
    buyer: &'a Arc<Buyer>,
    lead: LeadId,
    body: Bytes,
    _under_way: SemaphorePermit<'a>,
}

impl Endpoint {
    /// `POST /v1/buyers/{buyer}/leads/{lead}/return`.
    pub(super) async fn post_return(
        &self,
        buyer: &str,
        lead: &str,
        head: &Parts,
        body: &mut Body,
    ) -> Result<Reply, Refusal> {
        let routing = self.desk.routing();
        let call = self.buyer_call(&routing, buyer, lead, head, body, BuyerAsked::Return).await?;
        let (buyer, lead) = (call.buyer, call.lead);
        let reason = reason(&call.body)?;
        match self.desk.take_back(buyer, lead, &reason).await {
            ReturnAnswer::Returned(receipt) => Ok(reply::returned(lead, &receipt)),
            ReturnAnswer::NotFound => Err(Refusal::NotFound),
            ReturnAnswer::NotSold => Err(Refusal::NotSold),
            ReturnAnswer::TooLate => Err(Refusal::TooLate(too_late(buyer.returns.within_days))),
            ReturnAnswer::Undecided => Err(Refusal::Undecided { retry_after_s: UNDECIDED_RETRY_S }),
            ReturnAnswer::Unavailable => Err(Refusal::Unavailable("the return cannot be booked now")),
        }
    }

    /// `POST /v1/buyers/{buyer}/leads/{lead}/decision`.
    pub(super) async fn post_decision(
        &self,
        buyer: &str,
        lead: &str,
        head: &Parts,
        body: &mut Body,
    ) -> Result<Reply, Refusal> {
        let routing = self.desk.routing();
        let call = self.buyer_call(&routing, buyer, lead, head, body, BuyerAsked::Decision).await?;
        let decision = decision(&call.body)?;
        match self.desk.decide(call.buyer, call.lead, &decision).await {
            DecisionAnswer::Taken(receipt) => Ok(reply::decided(call.lead, receipt)),
            DecisionAnswer::NotFound => Err(Refusal::NotFound),
            DecisionAnswer::NotPending => Err(Refusal::NotPending),
            DecisionAnswer::Opposite => Err(Refusal::AlreadyDecided),
            DecisionAnswer::TooLate => Err(Refusal::TooLate("the time for this decision is over".to_owned())),
            DecisionAnswer::Undecided => Err(Refusal::Undecided { retry_after_s: UNDER_WAY_RETRY_S }),
            DecisionAnswer::Unavailable => Err(Refusal::Unavailable("the decision cannot be booked now")),
        }
    }

    /// What both calls have in common. The rate is counted before any work, also of calls that are refused: each makes store and
    /// books work.
    async fn buyer_call<'a>(
        &'a self,
        routing: &'a Routing,
        buyer: &str,
        lead: &str,
        head: &Parts,
        body: &mut Body,
        asked: BuyerAsked,
    ) -> Result<BuyerCall<'a>, Refusal> {
        let buyer = self.buyer(routing, buyer, &head.headers)?;
        self.throttles.check_buyer(routing, buyer, asked)?;
        let lead: LeadId = lead.parse().map_err(|_| Refusal::NotFound)?;
        if body_type(&head.headers)? != BodyType::Json {
            return Err(Refusal::UnsupportedMediaType("send application/json"));
        }
        if self.desk.is_draining() {
            return Err(Refusal::Unavailable("the gateway is going down"));
        }
        let places = match asked {
            BuyerAsked::Return => &self.returns,
            BuyerAsked::Decision => &self.decisions,
        };
        let Ok(under_way) = places.try_acquire() else {
            return Err(Refusal::Unavailable("too many calls of buyers at once"));
        };
        let body = self.read(body, self.body_bytes_max.min(BODY_BYTES_MAX)).await?;
        Ok(BuyerCall { buyer, lead, body, _under_way: under_way })
    }

    /// The buyer whose key came with the request. What is asked in another one's name is nothing that this one may know of.
    fn buyer<'a>(&self, routing: &'a Routing, named: &str, headers: &HeaderMap) -> Result<&'a Arc<Buyer>, Refusal> {
        let keys = self.desk.keys();
        let id = keys.buyer(headers)?;
        if id.as_str() != named {
            return Err(Refusal::NotFound);
        }
        // The index may be one reload ahead of the routing, or behind it.
        routing.buyers.get(id).ok_or(Refusal::Unauthorized)
    }
}

fn too_late(within_days: u32) -> String {
    match within_days {
        0 => "no returns were agreed with this buyer".to_owned(),
        1 => "a lead can be returned within 1 day of its sale".to_owned(),
        days => format!("a lead can be returned within {days} days of its sale"),
    }
}

/// The buyer's words, as one line that no terminal stumbles over.
fn line(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

fn reason(body: &[u8]) -> Result<String, Refusal> {
    let fields = parse::parse(BodyType::Json, body, &[])?.fields;
    let reason = match fields.get("reason") {
        Some(FieldValue::Text(text)) => text.trim(),
        _ => "",
    };
    if reason.is_empty() {
        return Err(Refusal::Malformed("\"reason\" must be a text that says why".into()));
    }
    Ok(line(reason))
}

/// `{"decision":"accepted","price":...}` or `{"decision":"declined","reason":...}`. A price that is none means the offer's, as in
/// an answer.
fn decision(body: &[u8]) -> Result<Decision, Refusal> {
    let fields = parse::parse(BodyType::Json, body, &[])?.fields;
    let text = |name: &str| match fields.get(name) {
        Some(FieldValue::Text(text)) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Some(FieldValue::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    match text("decision").as_deref() {
        Some("accepted") => {
            Ok(Decision::Accepted { price: text("price").and_then(|price| Micros::read_number(&price)) })
        }
        Some("declined") => Ok(Decision::Declined { reason: text("reason").map(|reason| line(&reason)) }),
        _ => Err(Refusal::Malformed("\"decision\" must be \"accepted\" or \"declined\"".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_bounded_line() {
        let good = |body: &str| reason(body.as_bytes()).unwrap();
        assert_eq!(good(r#"{"reason":" wrong number "}"#), "wrong number");
        assert_eq!(good("{\"reason\":\"a\\nb\\u001b[31mc\",\"more\":[1]}"), "a b [31mc");
        assert_eq!(good(&format!("{{\"reason\":\"{}\"}}", "é".repeat(900))).chars().count(), 200);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"reason":null}"#,
            r#"{"reason":" "}"#,
            r#"{"reason":7}"#,
            r#"{"reason":["x"]}"#,
            r#"{"reason":"a","reason":"b"}"#,
            "{\"reason\":\"\\u0000\"}",
        ] {
            assert!(matches!(reason(bad.as_bytes()), Err(Refusal::Malformed(_))), "{bad}");
        }
    }
}
