//! The operators' side: health, readiness, metrics, caps, leads, and the few things an operator may do.
//!
//! Probes (`/healthz`, `/readyz`) are open; everything else needs the token where one is configured.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::routing::Secret;
use crate::intake::server;
use crate::ledger::AttemptPlace;

mod caps;
mod desk;
mod endpoint;
mod reconcile;
mod reply;

/// One thing that must hold for leads to be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadyCheck {
    /// `store`, `setup`, `life`, `clock`, `routing`, `tls`, `ledger`, `journal`, `draining`.
    pub name: &'static str,
    /// Does it hold?
    pub ok: bool,
    /// What was measured, for people; no payload, no secret.
    pub detail: String,
    /// Does it decide over readiness? A ledger that is away does not: leads are taken as long as the journal has room.
    #[serde(skip)]
    pub decides: bool,
}

/// What was named and is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// By the routing in force.
    #[error("there is no such buyer in the routing in force")]
    Buyer,
    /// The buyer is there.
    #[error("the buyer has no such cap; `GET /v1/caps?buyer=` lists those that it has")]
    Cap,
    /// In the books.
    #[error("there is no such lead in the books; a lead is there a moment after its answer")]
    Lead,
    /// The lead may be there.
    #[error("there is no such lead in the books, or it was never offered to this buyer")]
    Attempt,
}

/// Why an operator's wish was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// No such thing. Nothing happened.
    #[error("{0}")]
    NotFound(Missing),
    /// It contradicts how things stand. Nothing happened.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Store or ledger are away; it may have happened, and asking again is safe.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// This gateway cannot do it.
    #[error("not available")]
    NotAvailableYet,
}

/// One thing that is wrong with what was to be reloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadProblem {
    /// `routing` or `tls`.
    pub part: &'static str,
    /// File, place, and what would be right.
    pub line: String,
}

/// A place in a list of attempts, as `next` and `after` carry it: microseconds and lead.
fn write_place(place: &AttemptPlace) -> String {
    format!("{}_{}", place.sent_at.as_microsecond(), place.lead)
}

/// Reads [`write_place`].
fn read_place(text: &str) -> Option<AttemptPlace> {
    let (sent_at_us, lead) = text.split_once('_')?;
    let sent_at = Timestamp::from_microsecond(sent_at_us.parse().ok()?).ok()?;
    Some(AttemptPlace { sent_at, lead: lead.parse().ok()? })
}

/// The rest of the gateway, as operators see it.
#[async_trait]
pub trait AdminDesk: Send + Sync {
    /// Everything that must hold; ready means that a lease could be taken now (F91).
    async fn readiness(&self) -> Vec<ReadyCheck>;

    /// The metrics page.
    fn metrics(&self) -> String;

    /// Caps of one buyer or of all: `{"caps":[...]}`.
    async fn caps(&self, buyer: Option<BuyerId>) -> Result<Value, AdminError>;

    /// The leads that make up a cap's count in its present window, page by page: `{"buyer","cap","window_start","leads":[{
    /// "lead_id","state","amount","at"}],"next":...}`. `state` is `open` for a lease that has not ended (on the first page),
    /// else the attempt's outcome. A page may be short, or empty, before the last one.
    async fn cap_leads(&self, buyer: BuyerId, cap: CapId, after: Option<AttemptPlace>) -> Result<Value, AdminError>;

    /// Everything about one lead.
    async fn lead(&self, lead: LeadId) -> Result<Option<Value>, AdminError>;

    /// Pauses or resumes a buyer, on every gateway and across restarts.
    async fn set_paused(&self, buyer: BuyerId, is_paused: bool) -> Result<(), AdminError>;

    /// Reads the routing file, and the certificate, again; the problems when one was refused and the old one stays. Each is
    /// taken or refused on its own.
    async fn reload(&self) -> Result<(), Vec<ReloadProblem>>;

    /// A buyer's attempts in doubt, from the oldest on, page by page: `{"doubts":[...],"next":...}`, where `next` is what
    /// the next page comes after, or null.
    async fn doubts(&self, buyer: BuyerId, after: Option<AttemptPlace>) -> Result<Value, AdminError>;

    /// Ends a doubt.
    async fn resolve(&self, lead: LeadId, buyer: BuyerId, is_accepted: bool) -> Result<Value, AdminError>;

    /// Compares counters and books now; a dry run repairs nothing.
    async fn reconcile(&self, is_dry_run: bool) -> Result<Value, AdminError>;
}

/// Bounds of the admin listener: few connections, small requests.
const LIMITS: server::Limits = server::Limits {
    header_timeout: Duration::from_secs(5),
    idle_timeout: Duration::from_mins(1),
    connections_max: 64,
    unwanted_body_bytes_max: endpoint::BODY_BYTES_MAX,
    drain_within: Duration::from_secs(2),
};

/// Serves operators until `stop`. Without a token everything is open; the configuration allows that on loopback only.
pub async fn serve(listener: TcpListener, desk: Arc<dyn AdminDesk>, token: Option<Secret>, stop: CancellationToken) {
    let endpoint = Arc::new(endpoint::Endpoint::new(desk, token.as_ref()));
    server::run(listener, None, LIMITS, endpoint, stop).await;
}

#[cfg(test)]
mod tests;
