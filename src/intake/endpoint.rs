//! The API of publishers and buyers: routes, and the order in which a request is looked at.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName};
use http::request::Parts;
use http::{Method, Uri};
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::body::{Body, BodyFault};
use super::parse::{self, BodyType};
use super::refusal::Refusal;
use super::server::{Handler, Reply};
use super::throttle::{Asked, Throttles};
use super::wire::HeadFault;
use super::{LeadAnswer, LeadDesk, Submitted, check, reply};
use crate::config::IntakeConfig;
use crate::domain::id::{CampaignId, LeadId};
use crate::domain::lead::Lead;
use crate::domain::routing::{Campaign, Publisher, Routing};
use crate::domain::signature::SigningKey;
use crate::openapi;
use crate::telemetry::Telemetry;

/// The publisher API.
pub struct Endpoint {
    pub(super) desk: Arc<dyn LeadDesk>,
    telemetry: Arc<Telemetry>,
    pub(super) throttles: Throttles,
    answer_within: Duration,
    pub(super) body_bytes_max: usize,
    body_timeout: Duration,
    /// Places for calls of buyers that are under way.
    pub(super) returns: Semaphore,
    pub(super) decisions: Semaphore,
}

/// The head of a request and the other end of its connection.
#[derive(Clone, Copy)]
struct Asker<'a> {
    peer: IpAddr,
    head: &'a Parts,
}

/// A known path with a known method.
enum Route<'a> {
    PostLead { campaign: &'a str },
    GetLead { lead: &'a str },
    GetOpenApi,
    PostReturn { buyer: &'a str, lead: &'a str },
    PostDecision { buyer: &'a str, lead: &'a str },
}

impl Handler for Endpoint {
    async fn handle(&self, peer: IpAddr, head: Parts, body: &mut Body) -> Reply {
        let since = Instant::now();
        let answered = match route(&head.method, &head.uri) {
            Ok(Route::PostLead { campaign }) => {
                self.post_lead(campaign, Asker { peer, head: &head }, body, since).await
            }
            Ok(Route::GetLead { lead }) => self.get_lead(lead, Asker { peer, head: &head }).await,
            Ok(Route::GetOpenApi) => Ok(openapi::reply()),
            Ok(Route::PostReturn { buyer, lead }) => self.post_return(buyer, lead, &head, body).await,
            Ok(Route::PostDecision { buyer, lead }) => self.post_decision(buyer, lead, &head, body).await,
            Err(refusal) => Err(refusal),
        };
        answered.unwrap_or_else(|refusal| self.refuse(&refusal))
    }

    fn refuse_head(&self, fault: HeadFault) -> Reply {
        self.refuse(&match fault {
            HeadFault::Malformed => Refusal::Malformed("the request is no HTTP/1.1, or can be read in two ways".into()),
            HeadFault::TooLarge => Refusal::HeadTooLarge,
            HeadFault::TimedOut => Refusal::HeadTimeout,
        })
    }

    fn refuse_load(&self) -> Reply {
        self.refuse(&Refusal::Unavailable("too many requests at once"))
    }
}

impl Endpoint {
    /// The publisher API over a desk.
    pub fn new(desk: Arc<dyn LeadDesk>, config: &IntakeConfig, telemetry: Arc<Telemetry>) -> Self {
        Self {
            desk,
            telemetry,
            throttles: Throttles::default(),
            answer_within: config.answer_within,
            body_bytes_max: config.body_bytes_max,
            body_timeout: config.body_timeout,
            returns: Semaphore::new(super::buyers::RETURNS_MAX),
            decisions: Semaphore::new(super::buyers::DECISIONS_MAX),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Reply {
        self.telemetry.intake.refused(refusal.code());
        reply::refused(refusal)
    }

    /// Cheap checks of the head come first, then the body, then the throttle: a request that is refused for what it says
    /// does not use up the publisher's rate (F64).
    async fn post_lead(
        &self,
        campaign: &str,
        asker: Asker<'_>,
        body: &mut Body,
        since: Instant,
    ) -> Result<Reply, Refusal> {
        let routing = self.desk.routing();
        let publisher = self.publisher(&routing, asker)?;
        let head = asker.head;
        let campaign = allowed_campaign(&routing, publisher, campaign)?;
        let key = check::idempotency_key(&head.headers)?;
        let signature = publisher.signing.as_ref().map(|key| signature(key, &head.headers)).transpose()?;
        let body_type = body_type(&head.headers)?;
        let is_test_asked = is_test_asked(&head.uri)?;
        if self.desk.is_draining() {
            return Err(Refusal::Unavailable("the gateway is going down"));
        }
        let body = self.read(body, self.body_bytes_max).await?;
        if signature.as_ref().is_some_and(|signature| !signature.is_of(&body, self.desk.now())) {
            return Err(Refusal::Unauthorized);
        }
        let parsed = parse::parse(body_type, &body, &publisher.mapping)?;
        check::required(campaign, &parsed.fields)?;
        self.throttles.check(&routing, publisher, Asked::Lead)?;
        let is_test = parsed.is_test || is_test_asked;
        // A test must not use up a key: the real lead that follows it would get the test's answer.
        let claim = if is_test { None } else { check::claim(key, &body, campaign, &parsed.fields) };
        // The id of a signed message is for telling repeats; the message itself may be sent again by whoever has seen it.
        let message = signature.as_ref().filter(|_| !is_test).map(|signature| signature.id.as_bytes());
        let claim = claim.or_else(|| check::claim(Some(message?), &body, campaign, &parsed.fields));
        let lead = Lead {
            id: LeadId::generate(),
            publisher: publisher.id.clone(),
            campaign: campaign.id.clone(),
            received_at: self.desk.now(),
            is_test,
            fields: parsed.fields,
            body,
        };
        let wait = self.wait(publisher, &head.headers).saturating_sub(since.elapsed());
        let answered = match self.desk.submit(lead, claim, wait).await {
            Submitted::Answered { body, is_replay, .. } => reply::answered(body, is_replay),
            Submitted::Pending { lead } => reply::pending(lead),
            Submitted::KeyReused => return Err(Refusal::IdempotencyKeyReused),
            Submitted::Unavailable(why) => return Err(Refusal::Unavailable(why)),
        };
        self.telemetry.intake.answered(since.elapsed());
        Ok(answered)
    }

    pub(super) async fn read(&self, body: &mut Body, bytes_max: usize) -> Result<Bytes, Refusal> {
        body.read(bytes_max, self.body_timeout).await.map_err(|fault| match fault {
            BodyFault::TooLarge => Refusal::TooLarge { bytes_max },
            BodyFault::TimedOut => Refusal::BodyTimeout,
            BodyFault::Broken => Refusal::Malformed("the body is incomplete".into()),
        })
    }

    async fn get_lead(&self, lead: &str, asker: Asker<'_>) -> Result<Reply, Refusal> {
        let routing = self.desk.routing();
        let publisher = self.publisher(&routing, asker)?;
        let lead: LeadId = lead.parse().map_err(|_| Refusal::NotFound)?;
        self.throttles.check(&routing, publisher, Asked::Question)?;
        match self.desk.answer(&publisher.id, lead).await {
            LeadAnswer::Finished(body) => Ok(reply::answered(body, false)),
            LeadAnswer::Pending => Ok(reply::pending(lead)),
            LeadAnswer::NotFound => Err(Refusal::NotFound),
            LeadAnswer::Unavailable => Err(Refusal::Unavailable("the lead cannot be looked up now")),
        }
    }

    /// Who asks, by key, from where it may.
    fn publisher<'a>(&self, routing: &'a Routing, asker: Asker<'_>) -> Result<&'a Arc<Publisher>, Refusal> {
        let keys = self.desk.keys();
        let id = keys.publisher(&asker.head.headers)?;
        // The index may be one reload ahead of the routing, or behind it.
        let publisher = routing.publishers.get(id).ok_or(Refusal::Unauthorized)?;
        // Only the connection counts: what a header says about where it came from, anybody can write.
        match &publisher.addresses {
            Some(allowed) if !allowed.iter().any(|range| range.contains(asker.peer)) => Err(Refusal::AddressNotAllowed),
            _ => Ok(publisher),
        }
    }

    /// How long the publisher waits for its verdict: as agreed, or what it prefers within what it may ask for.
    fn wait(&self, publisher: &Publisher, headers: &HeaderMap) -> Duration {
        match (publisher.wait_max, preferred_wait(headers)) {
            (Some(most), Some(preferred)) => preferred.min(most),
            _ => self.answer_within,
        }
    }
}

fn route<'a>(method: &Method, uri: &'a Uri) -> Result<Route<'a>, Refusal> {
    if uri.path() == openapi::PATH {
        return if *method == Method::GET { Ok(Route::GetOpenApi) } else { Err(Refusal::MethodNotAllowed("GET")) };
    }
    let path = uri.path().strip_prefix("/v1/").ok_or(Refusal::NotFound)?;
    // One more than the longest path has.
    let parts: Vec<&str> = path.splitn(6, '/').collect();
    let (route, known) = match parts[..] {
        ["campaigns", campaign, "leads"] => (Route::PostLead { campaign }, Method::POST),
        ["leads", lead] => (Route::GetLead { lead }, Method::GET),
        ["buyers", buyer, "leads", lead, "return"] => (Route::PostReturn { buyer, lead }, Method::POST),
        ["buyers", buyer, "leads", lead, "decision"] => (Route::PostDecision { buyer, lead }, Method::POST),
        _ => return Err(Refusal::NotFound),
    };
    match (known == Method::GET, *method == known) {
        (_, true) => Ok(route),
        (true, false) => Err(Refusal::MethodNotAllowed("GET")),
        (false, false) => Err(Refusal::MethodNotAllowed("POST")),
    }
}

/// The signature that a POST came with.
struct Signature<'a> {
    key: &'a SigningKey,
    id: &'a str,
    timestamp: &'a str,
    signatures: &'a str,
}

impl Signature<'_> {
    fn is_of(&self, body: &[u8], now: Timestamp) -> bool {
        self.key.is_signed(self.id, self.timestamp, self.signatures, body, now)
    }
}

/// Refuses a POST without one before its body is read.
fn signature<'a>(key: &'a SigningKey, headers: &'a HeaderMap) -> Result<Signature<'a>, Refusal> {
    let header = |name: &'static str| match single(headers, HeaderName::from_static(name)) {
        Ok(Some(value)) => Ok(value),
        Ok(None) | Err(()) => Err(Refusal::Unauthorized),
    };
    Ok(Signature {
        key,
        id: header("webhook-id")?,
        timestamp: header("webhook-timestamp")?,
        signatures: header("webhook-signature")?,
    })
}

fn allowed_campaign<'a>(
    routing: &'a Routing,
    publisher: &Publisher,
    campaign: &str,
) -> Result<&'a Arc<Campaign>, Refusal> {
    let id = CampaignId::new(campaign).map_err(|_| Refusal::UnknownCampaign)?;
    let campaign = routing.campaigns.get(&id).ok_or(Refusal::UnknownCampaign)?;
    match &publisher.campaigns {
        Some(allowed) if !allowed.contains(&id) => Err(Refusal::CampaignNotAllowed),
        _ => Ok(campaign),
    }
}

/// The one value of a header; an error when it stands there more than once.
fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ()> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(());
    }
    value.to_str().map(Some).map_err(|_| ())
}

/// How a body is written, by its headers.
///
/// # Errors
/// [`Refusal::UnsupportedMediaType`]: another type, another encoding of text, or compressed.
pub fn body_type(headers: &HeaderMap) -> Result<BodyType, Refusal> {
    // A compressed body could be small here and huge behind us.
    match single(headers, CONTENT_ENCODING) {
        Ok(None) => {}
        Ok(Some(coding)) if coding.trim().eq_ignore_ascii_case("identity") => {}
        _ => return Err(Refusal::UnsupportedMediaType("compressed bodies are not taken")),
    }
    let unknown = Refusal::UnsupportedMediaType("send application/json or application/x-www-form-urlencoded, in UTF-8");
    let Ok(Some(content_type)) = single(headers, CONTENT_TYPE) else { return Err(unknown) };
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let is_utf8 = parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
        !name.trim().eq_ignore_ascii_case("charset") || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
    });
    if is_utf8 && essence.eq_ignore_ascii_case("application/json") {
        Ok(BodyType::Json)
    } else if is_utf8 && essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        Ok(BodyType::Form)
    } else {
        Err(unknown)
    }
}

/// `?test=1`
fn is_test_asked(uri: &Uri) -> Result<bool, Refusal> {
    let query = uri.query().unwrap_or_default();
    let mut asked = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "test");
    asked.try_fold(false, |is_test, (_, value)| {
        let answer = parse::switch(&value).ok_or_else(|| Refusal::Malformed("test must be 1 or 0".into()))?;
        Ok(is_test || answer)
    })
}

/// `Prefer: wait=N` (RFC 7240); anything that cannot be read is no preference.
#[must_use]
pub fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = values.flat_map(|value| value.split(',')).filter_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse::<u32>().ok())
    });
    preferences.next()?.map(|seconds| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_document_has_every_route_and_every_operation_has_a_route() {
        let operation = |route: &Route<'_>| match route {
            Route::PostLead { .. } => "postLead",
            Route::GetLead { .. } => "getLead",
            Route::GetOpenApi => "getOpenApi",
            Route::PostReturn { .. } => "returnLead",
            Route::PostDecision { .. } => "decideLead",
        };
        let routed = openapi::tests::operations("publisher", |method, path| {
            let uri = path.parse().unwrap();
            route(&method, &uri).ok().map(|route| operation(&route))
        });
        assert_eq!(routed, ["decideLead", "getLead", "getOpenApi", "postLead", "returnLead"]);
    }

    #[test]
    fn preferences_are_read_as_the_rfc_has_them() {
        let wait = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_static(value));
            preferred_wait(&headers).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("wait=10"), Some(10));
        assert_eq!(wait("respond-async, Wait = 5; x=1"), Some(5));
        assert_eq!(wait("wait=\"7\""), Some(7));
        for none in ["", "wait", "wait=", "wait=-1", "wait=1.5", "respond-async", "await=3"] {
            assert_eq!(wait(none), None, "{none:?}");
        }
    }

    #[test]
    fn types_and_encodings_of_bodies() {
        let of = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            body_type(&headers).ok()
        };
        assert_eq!(of(&[("content-type", "application/json")]), Some(BodyType::Json));
        assert_eq!(of(&[("content-type", "Application/JSON; charset=\"UTF-8\"")]), Some(BodyType::Json));
        assert_eq!(of(&[("content-type", "application/x-www-form-urlencoded")]), Some(BodyType::Form));
        assert_eq!(of(&[("content-type", "application/json"), ("content-encoding", "identity")]), Some(BodyType::Json));
        for bad in [
            &[][..],
            &[("content-type", "text/plain")],
            &[("content-type", "application/jsonp")],
            &[("content-type", "application/json; charset=latin1")],
            &[("content-type", "application/json"), ("content-type", "application/json")],
            &[("content-type", "application/json"), ("content-encoding", "gzip")],
            &[("content-type", "application/json"), ("content-encoding", "identity, gzip")],
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }
}
