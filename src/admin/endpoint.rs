//! The admin API: routes, token, and the small bodies it takes.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use http::request::Parts;
use http::{Method, Uri};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::reply::{self, Refusal};
use super::{AdminDesk, AdminError, Missing, read_place};
use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::routing::Secret;
use crate::intake::auth::bearer_token;
use crate::intake::body::{Body, BodyFault};
use crate::intake::server::{Handler, Reply};
use crate::intake::wire::HeadFault;
use crate::ledger::AttemptPlace;
use crate::openapi;

/// Largest body.
pub(super) const BODY_BYTES_MAX: usize = 4_096;
/// A body takes no longer than this.
const BODY_WITHIN: Duration = Duration::from_secs(5);
/// A probe that is not answered in this time is answered "not ready".
const READINESS_WITHIN: Duration = Duration::from_secs(2);
/// Longest that an operator waits; a reconciliation of everything is the slowest thing.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// The admin API.
pub(super) struct Endpoint {
    desk: Arc<dyn AdminDesk>,
    /// SHA-256 of the token: digests have one length, so that comparing tells nothing about it.
    token: Option<[u8; 32]>,
}

enum Route<'a> {
    OpenApi,
    Health,
    Readiness,
    Metrics,
    Caps,
    CapLeads,
    Lead(&'a str),
    Pause { buyer: &'a str, is_paused: bool },
    Doubts(&'a str),
    Resolve(&'a str),
    Reload,
    Reconcile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resolution {
    buyer: BuyerId,
    outcome: Ending,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Ending {
    Accepted,
    Declined,
}

impl Handler for Endpoint {
    async fn handle(&self, _peer: IpAddr, head: Parts, body: &mut Body) -> Reply {
        self.answer(&head, body).await.unwrap_or_else(|refusal| reply::refused(&refusal))
    }

    fn refuse_head(&self, fault: HeadFault) -> Reply {
        reply::refused(&match fault {
            HeadFault::Malformed => Refusal::Malformed("the request is no HTTP/1.1, or can be read in two ways"),
            HeadFault::TooLarge => Refusal::HeadTooLarge,
            HeadFault::TimedOut => Refusal::HeadTimeout,
        })
    }

    fn refuse_load(&self) -> Reply {
        reply::refused(&Refusal::Desk(AdminError::Unavailable("too many requests at once".to_owned())))
    }
}

impl Endpoint {
    pub(super) fn new(desk: Arc<dyn AdminDesk>, token: Option<&Secret>) -> Self {
        Self { desk, token: token.map(|token| Sha256::digest(token.expose().as_bytes()).into()) }
    }

    async fn answer(&self, head: &Parts, body: &mut Body) -> Result<Reply, Refusal> {
        let path = head.uri.path();
        let Some((route, method)) = route(path) else {
            // Only who may ask learns which paths there are.
            return Err(self.authorize(&head.headers).err().unwrap_or(Refusal::NotFound));
        };
        if !matches!(route, Route::OpenApi | Route::Health | Route::Readiness) {
            self.authorize(&head.headers)?;
        }
        if head.method != method {
            return Err(Refusal::MethodNotAllowed(if method == Method::GET { "GET" } else { "POST" }));
        }
        match route {
            Route::OpenApi => Ok(openapi::reply()),
            Route::Health => Ok(reply::text("text/plain; charset=utf-8", "ok".to_owned())),
            Route::Readiness => {
                let checks = tokio::time::timeout(READINESS_WITHIN, self.desk.readiness()).await;
                Ok(reply::readiness(&checks.unwrap_or_else(|_| vec![no_answer()])))
            }
            Route::Metrics => Ok(reply::text("text/plain; version=0.0.4", self.desk.metrics())),
            Route::Caps => {
                let buyer = query(&head.uri, "buyer").map(|id| buyer_id(&id)).transpose()?;
                Ok(reply::done(&in_time(self.desk.caps(buyer)).await??))
            }
            Route::CapLeads => {
                let named = |name| query(&head.uri, name).ok_or(Refusal::Malformed("name buyer and cap"));
                let (buyer, cap) = (buyer_id(&named("buyer")?)?, CapId::new(&named("cap")?));
                Ok(reply::done(&in_time(self.desk.cap_leads(buyer, cap, after(&head.uri)?)).await??))
            }
            Route::Lead(lead) => {
                let found = in_time(self.desk.lead(lead_id(lead)?)).await??;
                found.map(|value| reply::done(&value)).ok_or(Refusal::Desk(AdminError::NotFound(Missing::Lead)))
            }
            Route::Pause { buyer, is_paused } => {
                let buyer = buyer_id(buyer)?;
                in_time(self.desk.set_paused(buyer.clone(), is_paused)).await??;
                Ok(reply::done(&json!({ "buyer": buyer.as_str(), "paused": is_paused })))
            }
            Route::Doubts(buyer) => {
                let buyer = buyer_id(buyer)?;
                Ok(reply::done(&in_time(self.desk.doubts(buyer, after(&head.uri)?)).await??))
            }
            Route::Resolve(lead) => {
                let lead = lead_id(lead)?;
                let resolution = resolution(body).await?;
                let is_accepted = resolution.outcome == Ending::Accepted;
                Ok(reply::done(&in_time(self.desk.resolve(lead, resolution.buyer, is_accepted)).await??))
            }
            Route::Reload => {
                in_time(self.desk.reload()).await?.map_err(Refusal::InvalidRouting)?;
                Ok(reply::done(&json!({ "reloaded": true })))
            }
            Route::Reconcile => {
                let is_dry_run = match query(&head.uri, "dry_run").as_deref() {
                    None | Some("0" | "false") => false,
                    Some("1" | "true") => true,
                    Some(_) => return Err(Refusal::Malformed("dry_run must be 1 or 0")),
                };
                Ok(reply::done(&in_time(self.desk.reconcile(is_dry_run)).await??))
            }
        }
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        // On loopback without a token, any page in the operator's browser could post here; browsers say where from.
        if headers.contains_key(ORIGIN) {
            return Err(Refusal::FromWebPage);
        }
        let Some(expected) = &self.token else { return Ok(()) };
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let token = sent.next().and_then(|value| bearer_token(value.as_bytes())).ok_or(Refusal::Unauthorized)?;
        let digest: [u8; 32] = Sha256::digest(token).into();
        if sent.next().is_none() && bool::from(digest.ct_eq(expected)) { Ok(()) } else { Err(Refusal::Unauthorized) }
    }
}

fn route(path: &str) -> Option<(Route<'_>, Method)> {
    let parts: Vec<&str> = path.strip_prefix('/')?.splitn(5, '/').collect();
    Some(match parts[..] {
        ["openapi.json"] => (Route::OpenApi, Method::GET),
        ["healthz"] => (Route::Health, Method::GET),
        ["readyz"] => (Route::Readiness, Method::GET),
        ["metrics"] => (Route::Metrics, Method::GET),
        ["v1", "caps"] => (Route::Caps, Method::GET),
        ["v1", "caps", "leads"] => (Route::CapLeads, Method::GET),
        ["v1", "leads", lead] => (Route::Lead(lead), Method::GET),
        ["v1", "leads", lead, "resolve"] => (Route::Resolve(lead), Method::POST),
        ["v1", "buyers", buyer, "doubts"] => (Route::Doubts(buyer), Method::GET),
        ["v1", "buyers", buyer, "pause"] => (Route::Pause { buyer, is_paused: true }, Method::POST),
        ["v1", "buyers", buyer, "resume"] => (Route::Pause { buyer, is_paused: false }, Method::POST),
        ["v1", "reload"] => (Route::Reload, Method::POST),
        ["v1", "reconcile"] => (Route::Reconcile, Method::POST),
        _ => return None,
    })
}

fn no_answer() -> super::ReadyCheck {
    super::ReadyCheck { name: "answer", ok: false, detail: "the checks did not end in time".to_owned(), decides: true }
}

async fn in_time<T>(asked: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(ANSWER_WITHIN, asked).await.map_err(|_| Refusal::TooSlow)
}

fn query(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

/// Where a page of a list begins.
fn after(uri: &Uri) -> Result<Option<AttemptPlace>, Refusal> {
    let place = |text: String| read_place(&text).ok_or(Refusal::Malformed("after is not a next of this list"));
    query(uri, "after").map(place).transpose()
}

/// What is no id names nobody.
fn buyer_id(text: &str) -> Result<BuyerId, Refusal> {
    BuyerId::new(text).map_err(|_| Refusal::Desk(AdminError::NotFound(Missing::Buyer)))
}

fn lead_id(text: &str) -> Result<LeadId, Refusal> {
    text.parse().map_err(|_| Refusal::Desk(AdminError::NotFound(Missing::Lead)))
}

async fn resolution(body: &mut Body) -> Result<Resolution, Refusal> {
    let body = body.read(BODY_BYTES_MAX, BODY_WITHIN).await.map_err(|fault| match fault {
        BodyFault::TooLarge => Refusal::TooLarge,
        BodyFault::TimedOut => Refusal::BodyTimeout,
        BodyFault::Broken => Refusal::Malformed("the body is incomplete"),
    })?;
    // An array would be read as an object without names.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    let shape = Refusal::Malformed(r#"send {"buyer":"...","outcome":"accepted"} or "declined""#);
    if is_object { serde_json::from_slice(&body).map_err(|_| shape) } else { Err(shape) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_route_and_every_operation_has_a_route() {
        let operation = |route: &Route<'_>| match route {
            Route::OpenApi => "getOpenApi",
            Route::Health => "getHealth",
            Route::Readiness => "getReadiness",
            Route::Metrics => "getMetrics",
            Route::Caps => "getCaps",
            Route::CapLeads => "getCapLeads",
            Route::Lead(_) => "getLead",
            Route::Pause { is_paused: true, .. } => "pauseBuyer",
            Route::Pause { is_paused: false, .. } => "resumeBuyer",
            Route::Doubts(_) => "getDoubts",
            Route::Resolve(_) => "resolveLead",
            Route::Reload => "reloadRouting",
            Route::Reconcile => "reconcile",
        };
        let routed = openapi::tests::operations("admin", |method, path| {
            let (route, needed) = route(path)?;
            (needed == method).then(|| operation(&route))
        });
        let own = [
            "getCapLeads",
            "getCaps",
            "getDoubts",
            "getHealth",
            "getMetrics",
            "getReadiness",
            "pauseBuyer",
            "reconcile",
            "reloadRouting",
            "resolveLead",
            "resumeBuyer",
        ];
        assert_eq!(routed, own);
        // Two that both listeners have stand under the publishers' tag.
        assert!(route(openapi::PATH).is_some() && route("/v1/leads/x").is_some());
    }
}
