//! The listener for publishers and for what buyers ask of their own: from bytes on a socket to a [`Lead`], and from a verdict
//! to an answer.
//!
//! Nothing here stores or decides. Bad input never reaches the [`LeadDesk`], so it can take nothing (P7).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::IntakeConfig;
use crate::domain::event::ClaimKey;
use crate::domain::id::{LeadId, PublisherId};
use crate::domain::lead::Lead;
use crate::domain::money::{Currency, Micros};
use crate::domain::routing::{Buyer, Routing};
use crate::telemetry::Telemetry;

pub mod auth;
pub mod body;
mod buyers;
pub mod check;
pub mod endpoint;
pub mod parse;
pub mod refusal;
pub mod reply;
pub mod server;
pub mod throttle;
pub mod wire;

#[cfg(test)]
pub(crate) mod tests;

/// What became of a lead that was handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// It has its answer.
    Answered {
        /// The lead; of the first request, when this one repeats it.
        lead: LeadId,
        /// The answer byte for byte.
        body: Bytes,
        /// It is the stored answer of an earlier request.
        is_replay: bool,
    },
    /// Not decided in time; it is on its walk.
    Pending {
        /// The lead; of the first request, when this one repeats it.
        lead: LeadId,
    },
    /// The key was used with another body.
    KeyReused,
    /// Not confirmed: overload, draining, store away. The words go to the publisher.
    Unavailable(&'static str),
}

/// A lead as it stands now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadAnswer {
    /// The answer byte for byte.
    Finished(Bytes),
    /// On its walk.
    Pending,
    /// Not a lead of this publisher.
    NotFound,
    /// Neither store nor ledger could tell.
    Unavailable,
}

/// What a buyer is told about a lead that it has given back; the same for every repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnReceipt {
    /// What the buyer had been charged.
    pub price: Micros,
    /// Of the price.
    pub currency: Currency,
    /// Does the sale no longer count in its cap windows?
    pub frees_cap: bool,
}

/// What became of a return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReturnAnswer {
    /// It is booked; now or by an earlier call.
    Returned(ReturnReceipt),
    /// The buyer was never offered such a lead.
    NotFound,
    /// It was offered and not sold to this buyer.
    NotSold,
    /// It was sold too long ago.
    TooLate,
    /// The sale is not booked yet: a late answer or an operator may still decide.
    Undecided,
    /// Store or ledger are away; a repeat goes on from where it stopped.
    Unavailable,
}

/// What a buyer that had answered "pending" has decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It takes the lead.
    Accepted {
        /// Its own price, if it named a possible one.
        price: Option<Micros>,
    },
    /// It does not.
    Declined {
        /// Its words.
        reason: Option<String>,
    },
}

impl Decision {
    /// The word in requests and answers.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Declined { .. } => "declined",
        }
    }
}

/// What a buyer is told about its decision; the same for every repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionReceipt {
    /// It has the lead.
    Accepted {
        /// What it is charged.
        price: Micros,
        /// Of the price.
        currency: Currency,
    },
    /// It does not have the lead.
    Declined,
}

/// What became of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionAnswer {
    /// It stands in the books; now or by an earlier call.
    Taken(DecisionReceipt),
    /// The buyer was never offered such a lead.
    NotFound,
    /// The lead was offered, and does not wait for this buyer.
    NotPending,
    /// It has decided otherwise before.
    Opposite,
    /// Its time is over, and the lead has gone on.
    TooLate,
    /// The forward is still under way.
    Undecided,
    /// Store or ledger are away; a repeat goes on from where it stopped.
    Unavailable,
}

/// The rest of the gateway, as intake sees it.
#[async_trait]
pub trait LeadDesk: Send + Sync {
    /// The routing in force.
    fn routing(&self) -> Arc<Routing>;

    /// Every key in force.
    fn keys(&self) -> Arc<auth::Keys>;

    /// Takes a lead and answers within `wait`. The walk runs in a task of its own: dropping the returned future changes
    /// nothing (F44). A test lead comes without a claim and is answered with its explanation.
    async fn submit(&self, lead: Lead, claim: Option<ClaimKey>, wait: Duration) -> Submitted;

    /// A lead as it stands now; another publisher's lead is not found.
    async fn answer(&self, publisher: &PublisherId, lead: LeadId) -> LeadAnswer;

    /// Takes a lead back that was sold to the buyer.
    async fn take_back(&self, buyer: &Arc<Buyer>, lead: LeadId, reason: &str) -> ReturnAnswer;

    /// Takes what a buyer has decided later.
    async fn decide(&self, buyer: &Arc<Buyer>, lead: LeadId, decision: &Decision) -> DecisionAnswer;

    /// Is the gateway going down? Then no lead is taken.
    fn is_draining(&self) -> bool;

    /// The gateway's clock.
    fn now(&self) -> Timestamp;
}

/// Serves publishers until `stop`; returns when the last connection is gone, at the latest `drain_within` after it.
pub async fn serve(
    listener: TcpListener,
    desk: Arc<dyn LeadDesk>,
    config: &IntakeConfig,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    drain_within: Duration,
) {
    let limits = server::Limits {
        header_timeout: config.header_timeout,
        idle_timeout: config.idle_timeout,
        connections_max: config.connections_max,
        unwanted_body_bytes_max: config.body_bytes_max,
        drain_within,
    };
    let endpoint = Arc::new(endpoint::Endpoint::new(desk, config, telemetry));
    let tls = config.tls.as_ref().map(|tls| tls.server().into());
    server::run(listener, tls, limits, endpoint, stop).await;
}
