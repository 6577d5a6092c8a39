//! The seam to the buyers: one HTTP call, classified into an [`Outcome`].
//!
//! A forward runs in a task of its own. Whoever waits for it may leave at any time; the call goes on, its answer is read,
//! and nothing is posted twice (P4).

mod breaker;
pub mod bulkhead;
pub mod classify;
mod client;
mod decode;
mod exchange;
pub mod guard;
mod notify;
mod progress;
pub mod request;
mod resolve;
mod rest;
pub mod trace;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::{Client, Method, Request};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

pub use self::breaker::Turn;
pub use self::bulkhead::InFlight;
pub use self::client::{ForwardSetupError, plain as plain_client};
pub use self::notify::{NOTIFY_TIMEOUT, Notified};
pub use self::rest::REST_MAX_S;

use self::breaker::{Breakers, Health};
use self::bulkhead::Bulkhead;
use self::exchange::{Exchanged, Expected, exchange};
use self::progress::{Progress, WatchedBody};
use self::request::{BadMessage, Offered, Secrets};
use self::resolve::GuardedResolver;
use self::rest::Rests;
use self::trace::Tracer;
use crate::clock::SharedClock;
use crate::config::ForwardConfig;
use crate::domain::id::BuyerId;
use crate::domain::lead::Lead;
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::Outcome;
use crate::domain::routing::Buyer;
use crate::telemetry::log::Throttled;

/// A deadline noticed this much too late was slept through.
const OVERSLEPT: Duration = Duration::from_millis(50);
/// How long an answer that is in the socket already may take to be read.
const READ_ON: Duration = Duration::from_millis(200);

/// One lead for one buyer.
#[derive(Debug)]
pub struct ForwardOrder {
    /// Who gets it.
    pub buyer: Arc<Buyer>,
    /// What.
    pub lead: Arc<Lead>,
    /// The campaign's country, for phones.
    pub country: String,
    /// What the offer asks, for buyers that want to be told.
    pub price: Micros,
    /// Of the price.
    pub currency: Currency,
    /// The forward's place among those of the buyer, from [`Forwarder::enter`]; kept until the last byte is read.
    pub permit: InFlight,
    /// The right to call the buyer, from [`Forwarder::turn`]; what comes of the call is told to its breaker.
    pub turn: Option<Turn>,
}

/// Why a buyer is not called for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest {
    /// For so long yet.
    pub left: Duration,
    /// `retry_after`: it asked for it. `failures`: it failed too often, or is being tried with one lead.
    pub why: &'static str,
}

/// What one forward taught us within the buyer's time-out.
#[derive(Debug)]
pub struct Forwarded {
    /// The outcome so far.
    pub outcome: Outcome,
    /// When the forward started.
    pub sent_at: Timestamp,
    /// From start to verdict or time-out.
    pub duration: Duration,
    /// Present after a time-out: the answer is still being read in the background (for at most `late_answer_ms`) and
    /// arrives here; `Outcome::InDoubt` when none came.
    pub late: Option<oneshot::Receiver<Outcome>>,
}

/// Calls buyers. Cheap to clone; all clones share connections, places and rests.
#[derive(Clone)]
pub struct Forwarder(Arc<Shared>);

struct Shared {
    client: Client,
    clock: SharedClock,
    late_answer: Duration,
    answer_bytes_max: usize,
    allow_private_addresses: bool,
    bulkhead: Bulkhead,
    rests: Rests,
    breakers: Arc<Breakers>,
    lines: Throttled,
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forwarder")
    }
}

/// What the waiting caller is told at the verdict or at the deadline, whichever comes first.
type Told = (Outcome, Option<oneshot::Receiver<Outcome>>);

impl Forwarder {
    /// Sets up the client.
    ///
    /// # Errors
    /// [`ForwardSetupError`]; nothing was sent.
    pub fn new(config: &ForwardConfig, clock: SharedClock) -> Result<Self, ForwardSetupError> {
        Self::with_resolver(config, clock, GuardedResolver::system(config.allow_private_addresses))
    }

    fn with_resolver(
        config: &ForwardConfig,
        clock: SharedClock,
        resolver: GuardedResolver,
    ) -> Result<Self, ForwardSetupError> {
        Ok(Self(Arc::new(Shared {
            client: client::build(resolver)?,
            rests: Rests::new(Arc::clone(&clock)),
            breakers: Arc::new(Breakers::new(Arc::clone(&clock))),
            lines: Throttled::new(Arc::clone(&clock)),
            clock,
            late_answer: config.late_answer,
            answer_bytes_max: config.answer_bytes_max,
            allow_private_addresses: config.allow_private_addresses,
            bulkhead: Bulkhead::default(),
        })))
    }

    /// A place among the buyer's forwards; `None` when `in_flight_max` are under way. Asked for before any cap is touched.
    #[must_use]
    pub fn enter(&self, buyer: &Buyer) -> Option<InFlight> {
        self.0.bulkhead.enter(buyer)
    }

    /// Forwards of a buyer that are under way, late readers included.
    #[must_use]
    pub fn in_flight(&self, buyer: &BuyerId) -> usize {
        self.0.bulkhead.under_way(buyer)
    }

    /// Why the buyer rests, and how long yet; `None` when it may be called.
    #[must_use]
    pub fn resting(&self, buyer: &BuyerId) -> Option<Rest> {
        let asked_for = self.0.rests.resting(buyer).map(|left| Rest { left, why: "retry_after" });
        asked_for.or_else(|| self.0.breakers.resting(buyer).map(|left| Rest { left, why: "failures" }))
    }

    /// The right to call a buyer, asked for before any cap is touched (F54).
    ///
    /// # Errors
    /// The buyer rests.
    pub fn turn(&self, buyer: &Buyer) -> Result<Turn, Rest> {
        if let Some(left) = self.0.rests.resting(&buyer.id) {
            return Err(Rest { left, why: "retry_after" });
        }
        self.0.breakers.ask(buyer).map_err(|left| Rest { left, why: "failures" })
    }

    /// Posts the lead to the buyer, once, and reads the answer until the buyer's time-out. After it the answer is read on in
    /// the background and arrives in [`Forwarded::late`] (F46). Dropping this future stops nothing.
    pub async fn forward(&self, order: ForwardOrder) -> Forwarded {
        self.forward_and_trace(order, None).await
    }

    /// The same, and the tracer learns what was sent and what came back.
    pub async fn forward_and_trace(&self, order: ForwardOrder, tracer: Option<Arc<Tracer>>) -> Forwarded {
        let sent_at = self.0.clock.now();
        let began = Instant::now();
        let progress = Arc::new(Progress::default());
        let (tell, told) = oneshot::channel();
        tokio::spawn(Arc::clone(&self.0).run(order, Arc::clone(&progress), began, tell, tracer));
        // The task ends without a word only when the runtime goes down.
        let (outcome, late) = told.await.unwrap_or_else(|_| (ended_early(&progress), None));
        Forwarded { outcome, sent_at, duration: began.elapsed(), late }
    }
}

impl Shared {
    async fn run(
        self: Arc<Self>,
        order: ForwardOrder,
        progress: Arc<Progress>,
        began: Instant,
        tell: oneshot::Sender<Told>,
        tracer: Option<Arc<Tracer>>,
    ) {
        let ForwardOrder { buyer, lead, country, price, currency, permit: _held_to_the_end, mut turn } = order;
        // A turn that is dropped before this, by a message that cannot be written or by a panic, is given back.
        let mut learned = |outcome: &Outcome| {
            if let Some(turn) = turn.as_mut() {
                turn.ends(Health::of(outcome));
            }
        };
        let offered = Offered { lead: &lead, country: &country, price, currency };
        let request = match self.request(&buyer, &offered, &progress, tracer.as_deref()) {
            Ok(request) => request,
            Err(reason) => {
                let _ = tell.send((Outcome::Unsent { reason }, None));
                return;
            }
        };
        let expected = Expected { rules: &buyer.answer, sent: &lead.fields, bytes_max: self.answer_bytes_max };
        let call = exchange(&self.client, request, &progress, &expected, &*self.clock, tracer.as_deref());
        let mut call = std::pin::pin!(call);

        // A caller that left has no use for the word; sending to it fails, and nothing is lost by that.
        if let Some(done) = in_time(began + buyer.timeout, call.as_mut()).await {
            let outcome = self.finish(&buyer, &lead, done);
            learned(&outcome);
            let _ = tell.send((outcome, None));
            return;
        }
        if progress.cut() {
            // No connection in time, and none can come any more.
            let outcome = Outcome::Unsent { reason: "connect_timeout" };
            learned(&outcome);
            let _ = tell.send((outcome, None));
            return;
        }
        let (tell_late, late) = oneshot::channel();
        // A late answer is too late for the breaker as well.
        learned(&timed_out(&progress));
        let _ = tell.send((timed_out(&progress), Some(late)));
        let outcome = match in_time(began + buyer.timeout + self.late_answer, call).await {
            Some(done) => self.finish(&buyer, &lead, done),
            None => timed_out(&progress),
        };
        let _ = tell_late.send(outcome);
    }

    fn request(
        &self,
        buyer: &Buyer,
        offered: &Offered<'_>,
        progress: &Arc<Progress>,
        tracer: Option<&Tracer>,
    ) -> Result<Request, &'static str> {
        // A host that is an address never meets the resolver and its guard (F51).
        if !self.allow_private_addresses && guard::literal(&buyer.url).is_some_and(|address| !guard::is_public(address))
        {
            return Err("address_refused");
        }
        let write = || {
            let url = request::url(buyer, offered, Secrets::Sent)?;
            let body = request::body(&buyer.request, offered, Secrets::Sent)?;
            let headers = request::headers(&buyer.request, offered.lead, &body, self.clock.now())?;
            if let Some(tracer) = tracer {
                tracer.request(buyer, offered, &headers)?;
            }
            Ok((url, headers, body))
        };
        let (url, headers, body) = write().map_err(|error: BadMessage| {
            // Every lead may fail in the same way (F92).
            if let Some(suppressed) = self.lines.check(buyer.id.as_str().to_owned()) {
                let (buyer, lead) = (&buyer.id, offered.lead.id);
                tracing::error!(%buyer, %lead, %error, suppressed, "a lead cannot be written for this buyer");
            }
            error.word()
        })?;
        let method = request::method(&buyer.request);
        let body = WatchedBody::new(body, method == Method::GET, Arc::clone(progress));
        let mut request = Request::new(method, url);
        *request.headers_mut() = headers;
        *request.body_mut() = Some(reqwest::Body::wrap(body));
        Ok(request)
    }

    fn finish(&self, buyer: &Buyer, lead: &Lead, done: Exchanged) -> Outcome {
        if let Some(seconds) = done.rest_s {
            self.rests.rest(&buyer.id, seconds);
        }
        if let Outcome::Unsent { reason } | Outcome::InDoubt { reason, .. } = &done.outcome {
            tracing::debug!(buyer = %buyer.id, lead = %lead.id, reason, "no answer");
        }
        done.outcome
    }
}

/// The call's end, if it comes before `deadline`. A process that was asleep at its deadline, or too busy to look, may have the
/// answer in its socket and not know it yet: then the connection gets a moment to read what is there.
async fn in_time<T>(deadline: Instant, mut call: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match timeout_at(deadline, call.as_mut()).await {
        Ok(done) => Some(done),
        Err(_) if deadline.elapsed() >= OVERSLEPT => timeout(READ_ON, call).await.ok(),
        Err(_) => None,
    }
}

fn timed_out(progress: &Progress) -> Outcome {
    Outcome::InDoubt { reason: "timeout", http_status: progress.http_status() }
}

fn ended_early(progress: &Progress) -> Outcome {
    if progress.cut() {
        Outcome::Unsent { reason: "connect" }
    } else {
        Outcome::InDoubt { reason: "broken", http_status: progress.http_status() }
    }
}

#[cfg(test)]
mod tests;
