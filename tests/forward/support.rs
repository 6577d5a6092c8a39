//! Buyers made of bare sockets, and what is needed to call them.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use capgate::clock::SystemClock;
use capgate::config::ForwardConfig;
use capgate::domain::id::{BuyerId, CampaignId, LeadId, PublisherId};
use capgate::domain::lead::{FieldValue, Fields, Lead};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::Outcome;
use capgate::domain::routing::{
    AnswerRule, AnswerRules, AnswerText, Buyer, BuyerFilter, On5xx, OnCrash, OnTimeout, RequestShape, ReturnTerms,
    Secret,
};
use capgate::forward::{ForwardOrder, Forwarded, Forwarder, InFlight};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The buyers' time-out in these tests.
pub const TIMEOUT: Duration = Duration::from_millis(500);
/// How long a late answer is awaited.
pub const LATE: Duration = Duration::from_secs(1);
/// A full yes.
pub const YES: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 21\r\n\r\n{\"status\":\"accepted\"}";

/// A forwarder that may call loopback.
pub fn forwarder() -> Forwarder {
    forwarder_with(|_| {})
}

/// A forwarder with changes.
pub fn forwarder_with(change: impl FnOnce(&mut ForwardConfig)) -> Forwarder {
    let mut config = ForwardConfig {
        timeout: TIMEOUT,
        late_answer: LATE,
        answer_bytes_max: 65_536,
        allow_private_addresses: true,
        lead_deadline: Duration::from_secs(10),
        attempts_max: 10,
    };
    change(&mut config);
    Forwarder::new(&config, Arc::new(SystemClock)).unwrap()
}

/// A buyer as the contract's defaults make it.
pub fn buyer(url: &str) -> Arc<Buyer> {
    buyer_with(url, |_| {})
}

/// A buyer with changes.
pub fn buyer_with(url: &str, change: impl FnOnce(&mut Buyer)) -> Arc<Buyer> {
    let mut buyer = Buyer {
        id: BuyerId::new("sunco").unwrap(),
        url: url.parse().unwrap(),
        timezone: jiff::tz::TimeZone::UTC,
        timezone_name: "UTC".into(),
        timeout: TIMEOUT,
        on_timeout: OnTimeout::Refund,
        on_crash: OnCrash::Keep,
        in_flight_max: 200,
        is_paused: false,
        caps: Vec::new(),
        filter: BuyerFilter::default(),
        hours: Vec::new(),
        request: RequestShape {
            headers: vec![("x-api-key".parse().unwrap(), Secret::new("k3y"))],
            ..RequestShape::default()
        },
        answer: AnswerRules {
            accepted: AnswerRule::Path { pointer: "/status".into(), values: vec!["accepted".into()] },
            duplicate: None,
            on_5xx: On5xx::Declined,
            pending_within: None,
            price: Some(AnswerText::Path("/price".into())),
            reason: Some(AnswerText::Path("/reason".into())),
            redirect_url: None,
            reference: None,
            is_explicit: false,
        },
        keys: Vec::new(),
        breaker: capgate::domain::routing::BreakerRule::default(),
        duplicates: None,
        returns: ReturnTerms { within_days: 0, frees_cap: false },
    };
    change(&mut buyer);
    Arc::new(buyer)
}

/// A buyer that has all the time in the world: for outcomes that must not depend on a time-out.
pub fn patient(url: &str) -> Arc<Buyer> {
    buyer_with(url, |buyer| buyer.timeout = Duration::from_secs(30))
}

/// A fresh lead.
pub fn lead() -> Arc<Lead> {
    let number = |digits: &str| FieldValue::Number(digits.into());
    Arc::new(Lead {
        id: LeadId::generate(),
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        received_at: "2026-03-08T12:00:00Z".parse().unwrap(),
        is_test: false,
        fields: Fields::new(vec![
            ("state".into(), FieldValue::Text("TX".into())),
            ("amount".into(), number("100.10")),
            ("big".into(), number("18446744073709551616")),
        ]),
        body: bytes::Bytes::new(),
    })
}

/// Forwards a fresh lead.
pub async fn forward(forwarder: &Forwarder, buyer: &Arc<Buyer>) -> Forwarded {
    let permit = forwarder.enter(buyer).expect("the buyer has room");
    forwarder.forward(order(buyer, permit)).await
}

/// A fresh lead for a buyer.
pub fn order(buyer: &Arc<Buyer>, permit: InFlight) -> ForwardOrder {
    let (price, currency) = (Micros(25_000_000), Currency::new("USD").unwrap());
    ForwardOrder { buyer: Arc::clone(buyer), lead: lead(), country: "US".into(), price, currency, permit, turn: None }
}

/// The outcome of a forward that must leave nothing running.
pub async fn outcome(forwarder: &Forwarder, buyer: &Arc<Buyer>) -> Outcome {
    let told = forward(forwarder, buyer).await;
    assert!(told.late.is_none(), "a late answer is awaited after {:?}", told.outcome);
    told.outcome
}

/// Waits until something holds, at most ten seconds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A buyer that does with each connection what a test says.
pub struct RawBuyer {
    addr: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
}

/// One connection of a [`RawBuyer`].
pub struct Connection {
    stream: TcpStream,
    requests: Arc<Mutex<Vec<String>>>,
}

impl RawBuyer {
    pub async fn start<F, R>(script: F) -> Self
    where
        F: Fn(Connection) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (requests, connections) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<usize>>::default());
        let (log, counter) = (Arc::clone(&requests), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *counter.lock() += 1;
                tokio::spawn(script(Connection { stream, requests: Arc::clone(&log) }));
            }
        });
        Self { addr, requests, connections }
    }

    /// Answers each connection's first lead with these bytes and closes.
    pub async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes: Arc<[u8]> = bytes.into().into();
        Self::start(move |mut connection| {
            let bytes = Arc::clone(&bytes);
            async move {
                if connection.read_request().await {
                    connection.write(&bytes).await;
                }
            }
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}/leads", self.addr)
    }

    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Every whole request, as it came.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    pub fn connections(&self) -> usize {
        *self.connections.lock()
    }
}

impl Connection {
    /// Reads one request with its body; false when the connection ended before.
    pub async fn read_request(&mut self) -> bool {
        let mut request = Vec::new();
        loop {
            let mut byte = [0];
            if !matches!(self.stream.read(&mut byte).await, Ok(1)) {
                return false;
            }
            request.push(byte[0]);
            if request.ends_with(b"\r\n\r\n") {
                break;
            }
        }
        let head = String::from_utf8(request).unwrap();
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if self.stream.read_exact(&mut body).await.is_err() {
            return false;
        }
        self.requests.lock().push(head + std::str::from_utf8(&body).unwrap());
        true
    }

    /// The request read last on any connection.
    pub fn last_request(&self) -> String {
        self.requests.lock().last().cloned().unwrap_or_default()
    }

    /// Writes; false when the other side is gone.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Keeps the connection open until the other side closes it.
    pub async fn linger(&mut self) {
        let mut rest = [0; 1024];
        while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
    }
}
