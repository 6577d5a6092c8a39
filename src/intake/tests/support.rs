//! A small routing, a desk that only notes, and a client that speaks raw bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::config::IntakeConfig;
use crate::domain::cap::{Cap, Limit};
use crate::domain::event::ClaimKey;
use crate::domain::id::{BuyerId, CampaignId, CapId, LeadId, PublisherId};
use crate::domain::lead::{FieldValue, Fields, Lead};
use crate::domain::money::{Currency, Payout};
use crate::domain::routing::{
    AnswerRule, AnswerRules, Buyer, BuyerFilter, Campaign, CandidateOrder, KeyHash, On5xx, OnCrash, OnTimeout,
    Publisher, RequestShape, ReturnTerms, Routing, Throttle,
};
use crate::domain::signature::SigningKey;
use crate::domain::window::WindowKind;
use crate::intake::auth::Keys;
use crate::intake::{Decision, DecisionAnswer, LeadAnswer, LeadDesk, ReturnAnswer, Submitted, serve};
use crate::telemetry::Telemetry;

/// Longest that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

fn keys(id: &str) -> Vec<KeyHash> {
    let hash = |key: String| KeyHash(Sha256::digest(key.as_bytes()).into());
    vec![hash(format!("{id}-key")), hash(format!("{id}-second-key"))]
}

pub(crate) fn publisher(id: &str, throttle: Option<Throttle>) -> Publisher {
    Publisher {
        id: PublisherId::new(id).unwrap(),
        keys: keys(id),
        addresses: None,
        throttle,
        payout: Payout::Share { millionths: 700_000 },
        campaigns: None,
        wait_max: None,
        signing: None,
        mapping: vec![],
        postback: None,
    }
}

pub(crate) fn campaign(id: &str) -> Campaign {
    Campaign {
        id: CampaignId::new(id).unwrap(),
        currency: Currency::new("USD").unwrap(),
        country: "US".into(),
        order: CandidateOrder::Priority,
        required: vec!["first_name".into(), "phone".into(), "state".into()],
        idempotency_fields: vec!["phone".into(), "email".into()],
        offers: vec![],
    }
}

pub(crate) fn buyer(id: &str, day_limit: u64) -> Buyer {
    let limit = Limit::Leads(day_limit);
    Buyer {
        id: BuyerId::new(id).unwrap(),
        url: "http://127.0.0.1:1/".parse().unwrap(),
        timezone: jiff::tz::TimeZone::UTC,
        timezone_name: "UTC".into(),
        timeout: Duration::from_secs(1),
        on_timeout: OnTimeout::Refund,
        on_crash: OnCrash::Keep,
        in_flight_max: 1,
        is_paused: false,
        caps: vec![Cap { id: CapId::new("day"), window: WindowKind::Day, limit, publisher: None, conditions: vec![] }],
        filter: BuyerFilter::default(),
        hours: vec![],
        request: RequestShape::default(),
        answer: AnswerRules {
            accepted: AnswerRule::Status(vec![200]),
            duplicate: None,
            on_5xx: On5xx::Declined,
            pending_within: None,
            price: None,
            reason: None,
            redirect_url: None,
            reference: None,
            is_explicit: true,
        },
        keys: keys(id),
        breaker: crate::domain::routing::BreakerRule::default(),
        duplicates: None,
        returns: ReturnTerms { within_days: 30, frees_cap: false },
    }
}

pub(crate) fn routing_of_all(
    version: u64,
    publishers: Vec<Publisher>,
    buyers: Vec<Buyer>,
    campaigns: Vec<Campaign>,
) -> Routing {
    Routing {
        version,
        publishers: publishers.into_iter().map(|p| (p.id.clone(), Arc::new(p))).collect(),
        buyers: buyers.into_iter().map(|b| (b.id.clone(), Arc::new(b))).collect(),
        campaigns: campaigns.into_iter().map(|c| (c.id.clone(), Arc::new(c))).collect(),
    }
}

pub(crate) fn routing_of(version: u64, publishers: Vec<Publisher>) -> Routing {
    routing_of_all(version, publishers, vec![], vec![])
}

/// What `signed` signs with.
pub(crate) const SIGNING_SECRET: &str = "a secret of both sides";

/// `acme` may use `solar` only, `elsewhere` may send from another address only, `here` from this one, `slow` may ask to wait 2 s, `burst` has 2 requests and then one in 10 minutes or so.
pub(crate) fn routing() -> Routing {
    let acme = Publisher { campaigns: Some(vec![CampaignId::new("solar").unwrap()]), ..publisher("acme", None) };
    let slow = Publisher { wait_max: Some(Duration::from_secs(2)), ..publisher("slow", None) };
    let burst = publisher("burst", Some(Throttle { per_second: 1, burst: 2 }));
    let signed = Publisher { signing: SigningKey::new(SIGNING_SECRET).ok(), ..publisher("signed", None) };
    let from = |id, range: &str| Publisher { addresses: Some(vec![range.parse().unwrap()]), ..publisher(id, None) };
    let all = vec![
        acme,
        slow,
        burst,
        signed,
        publisher("other", None),
        from("elsewhere", "203.0.113.0/24"),
        from("here", "127.0.0.0/8"),
    ];
    routing_of_all(1, all, vec![buyer("sunco", 1), buyer("volt", 1)], vec![campaign("solar"), campaign("roof")])
}

pub(crate) fn text_fields(pairs: &[(&str, &str)]) -> Fields {
    Fields::new(pairs.iter().map(|(name, value)| (Arc::from(*name), FieldValue::Text((*value).into()))).collect())
}

/// One lead that the desk was handed.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    pub(crate) lead: Lead,
    pub(crate) claim: Option<ClaimKey>,
    pub(crate) wait: Duration,
}

/// What the desk says to the next leads.
#[derive(Debug, Clone)]
pub(crate) enum Say {
    Sold,
    Replay(&'static str),
    Pending,
    KeyReused,
    Unavailable,
    /// Sold, after so long.
    SoldAfter(Duration),
}

pub(crate) struct Desk {
    routing: Arc<Routing>,
    keys: Arc<Keys>,
    pub(crate) handed: Mutex<Vec<Handed>>,
    pub(crate) say: Mutex<Say>,
    pub(crate) answers: Mutex<HashMap<(PublisherId, LeadId), LeadAnswer>>,
    /// What buyers gave back, and what they are told.
    pub(crate) taken_back: Mutex<Vec<(BuyerId, LeadId, String)>>,
    pub(crate) return_answer: Mutex<ReturnAnswer>,
    pub(crate) decided: Mutex<Vec<(BuyerId, LeadId, Decision)>>,
    pub(crate) decision_answer: Mutex<DecisionAnswer>,
    pub(crate) is_draining: Mutex<bool>,
}

pub(crate) const SOLD: &str = r#"{"status":"sold"}"#;

#[async_trait]
impl LeadDesk for Desk {
    fn routing(&self) -> Arc<Routing> {
        Arc::clone(&self.routing)
    }
    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys)
    }
    async fn submit(&self, lead: Lead, claim: Option<ClaimKey>, wait: Duration) -> Submitted {
        let id = lead.id;
        self.handed.lock().push(Handed { lead, claim, wait });
        let say = self.say.lock().clone();
        let answered = |body: &'static str, is_replay| Submitted::Answered { lead: id, body: body.into(), is_replay };
        match say {
            Say::Sold => answered(SOLD, false),
            Say::SoldAfter(delay) => {
                tokio::time::sleep(delay).await;
                answered(SOLD, false)
            }
            Say::Replay(body) => answered(body, true),
            Say::Pending => Submitted::Pending { lead: id },
            Say::KeyReused => Submitted::KeyReused,
            Say::Unavailable => Submitted::Unavailable("the store is away"),
        }
    }
    async fn answer(&self, publisher: &PublisherId, lead: LeadId) -> LeadAnswer {
        self.answers.lock().get(&(publisher.clone(), lead)).cloned().unwrap_or(LeadAnswer::NotFound)
    }
    async fn take_back(&self, buyer: &Arc<Buyer>, lead: LeadId, reason: &str) -> ReturnAnswer {
        self.taken_back.lock().push((buyer.id.clone(), lead, reason.to_owned()));
        self.return_answer.lock().clone()
    }
    async fn decide(&self, buyer: &Arc<Buyer>, lead: LeadId, decision: &Decision) -> DecisionAnswer {
        self.decided.lock().push((buyer.id.clone(), lead, decision.clone()));
        self.decision_answer.lock().clone()
    }
    fn is_draining(&self) -> bool {
        *self.is_draining.lock()
    }
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

/// A running intake.
pub(crate) struct Intake {
    pub(crate) desk: Arc<Desk>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<()>,
}

pub(crate) fn config() -> IntakeConfig {
    IntakeConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        answer_within: Duration::from_millis(200),
        body_bytes_max: 65_536,
        header_timeout: Duration::from_secs(5),
        body_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_mins(1),
        connections_max: 10_000,
        leads_in_flight_max: 5_000,
        tls: None,
    }
}

impl Intake {
    pub(crate) async fn start() -> Self {
        Self::with(config(), PATIENCE).await
    }

    pub(crate) async fn with(config: IntakeConfig, drain_within: Duration) -> Self {
        let routing = Arc::new(routing());
        let desk = Arc::new(Desk {
            keys: Arc::new(Keys::new(&routing)),
            routing,
            handed: Mutex::default(),
            say: Mutex::new(Say::Sold),
            answers: Mutex::default(),
            taken_back: Mutex::default(),
            return_answer: Mutex::new(ReturnAnswer::NotFound),
            decided: Mutex::default(),
            decision_answer: Mutex::new(DecisionAnswer::NotFound),
            is_draining: Mutex::default(),
        });
        let telemetry = Arc::new(Telemetry::new());
        let listener = TcpListener::bind(config.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = {
            let (desk, telemetry, stop) = (Arc::clone(&desk), Arc::clone(&telemetry), stop.clone());
            tokio::spawn(async move { serve(listener, desk, &config, telemetry, stop, drain_within).await })
        };
        Self { desk, telemetry, address, stop, served }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), kept: Vec::new() }
    }

    /// One request on a connection of its own.
    pub(crate) async fn ask(&self, request: &[u8]) -> Answer {
        let mut client = self.connect().await;
        client.send(request).await;
        client.answer().await.expect("no answer")
    }

    pub(crate) fn leads(&self) -> usize {
        self.desk.handed.lock().len()
    }

    pub(crate) fn last(&self) -> Handed {
        self.desk.handed.lock().last().cloned().expect("no lead was handed in")
    }

    /// How many requests were counted as refused for this reason.
    pub(crate) fn refused(&self, code: &str) -> u64 {
        let page = self.telemetry.render();
        let series = format!("capgate_intake_refused_total{{code=\"{code}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&series)).expect("a series").parse().expect("a number")
    }
}

/// A POST of a body with extra header lines.
pub(crate) fn post(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        request.push_str(header);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    request
}

pub(crate) const LEADS: &str = "/v1/campaigns/solar/leads";
pub(crate) const KEY: &str = "authorization: Bearer acme-key";
pub(crate) const JSON: &str = "content-type: application/json";
pub(crate) const GOOD: &[u8] = br#"{"first_name":"Ann","phone":"555 010 2030","state":"TX"}"#;

/// A good lead.
pub(crate) fn good() -> Vec<u8> {
    post(LEADS, &[KEY, JSON], GOOD)
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("the body is not JSON")
    }

    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    kept: Vec<u8>,
}

impl Client {
    /// Sends what the server will take; a connection that it closes in between is the test's business.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    async fn fill(&mut self) -> usize {
        let mut bytes = vec![0; 16_384];
        let read = tokio::time::timeout(PATIENCE, self.stream.read(&mut bytes));
        let count = read.await.expect("the server neither answered nor closed").unwrap_or(0);
        self.kept.extend_from_slice(&bytes[..count]);
        count
    }

    /// The next answer, or none when the server closed.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(at) = self.kept.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if self.fill().await == 0 {
                assert!(self.kept.is_empty(), "the answer was cut");
                return None;
            }
        };
        let head = String::from_utf8(self.kept[..end].to_vec()).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<_, _> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        while self.kept.len() < end + length {
            assert_ne!(self.fill().await, 0, "the answer was cut");
        }
        let body = Bytes::copy_from_slice(&self.kept[end..end + length]);
        self.kept.drain(..end + length);
        Some(Answer { status, headers, body })
    }

    /// Did the server give up on a head that did not come, and say so?
    pub(crate) async fn is_told_off(&mut self) -> bool {
        let answer = self.answer().await.expect("closed without a word");
        assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
        self.is_closed().await
    }

    /// Did the server close, with nothing more to say?
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.answer().await.is_none()
    }
}
