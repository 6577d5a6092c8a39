//! The desk that the publishers' listener talks to: hands a lead to its walk and waits for the verdict.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::{Gateway, RoutingInForce};
use crate::domain::event::ClaimKey;
use crate::domain::id::{LeadId, PublisherId};
use crate::domain::lead::Lead;
use crate::domain::outcome::{LeadStatus, Sold, UnsoldReason, Verdict};
use crate::domain::routing::{Buyer, Routing};
use crate::intake::auth::Keys;
use crate::intake::{Decision, DecisionAnswer, LeadAnswer, LeadDesk, ReturnAnswer, Submitted, reply};
use crate::pipeline::{self, Progress, WalkOrder};
use crate::settle::{decision, returns};
use crate::store::{LeadState, StoreError};

/// Admission is bounded by two calls to the store; a POST waits this much beyond its own time to learn whether its lead was
/// taken, because "pending" before that would be a lie (P5).
const ADMISSION_GRACE: Duration = Duration::from_millis(40);

/// How often another gateway's walk is looked at by a twin that waits for it.
const TWIN_LOOK: Duration = Duration::from_millis(20);

/// One per gateway.
#[derive(Debug)]
pub struct Desk {
    pub(crate) gateway: Arc<Gateway>,
}

impl Desk {
    /// The desk of a gateway.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway }
    }

    /// Starts the walk in a task of its own, so that a publisher that hangs up changes nothing (F44). `None` when too many
    /// are under way (P7).
    fn start(&self, lead: Lead, claim: Option<ClaimKey>) -> Option<watch::Receiver<Progress>> {
        let gateway = self.gateway.clone();
        let permit = gateway.in_flight.clone().try_acquire_owned().ok()?;
        let routing: Arc<RoutingInForce> = gateway.routing();
        let publisher = routing.compiled.routing().publishers.get(&lead.publisher)?.clone();
        let id = lead.id;
        let (progress, waiter) = watch::channel(Progress::Started);
        let order = WalkOrder { lead: Arc::new(lead), claim, routing, publisher, resumed: None };
        let registered = Registered::new(gateway.clone(), id, waiter.clone());
        gateway.clone().tasks.spawn(async move {
            let _until_it_ends = (registered, permit);
            if order.lead.is_test {
                progress.send_replace(pipeline::rehearse(&gateway, &order).await);
            } else {
                pipeline::walk(gateway.clone(), order, progress).await;
            }
        });
        Some(waiter)
    }

    async fn wait_for(&self, lead: LeadId, mut walk: watch::Receiver<Progress>, until: Instant) -> Waited {
        let mut is_acknowledged = false;
        loop {
            let progress = walk.borrow_and_update().clone();
            match progress {
                Progress::Started => {}
                Progress::Admitted => is_acknowledged = true,
                Progress::Joined(other) => return Waited::Joined(other),
                Progress::Answered { lead, body, is_replay } => {
                    return Waited::Done(Submitted::Answered { lead, body, is_replay });
                }
                Progress::KeyReused => return Waited::Done(Submitted::KeyReused),
                Progress::Refused(why) => return Waited::Done(Submitted::Unavailable(why)),
                Progress::Parked | Progress::LeftToRecovery => return Waited::Done(Submitted::Pending { lead }),
            }
            let limit = if is_acknowledged { until } else { until + ADMISSION_GRACE };
            match tokio::time::timeout_at(limit, walk.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) if is_acknowledged => return Waited::Done(Submitted::Pending { lead }),
                Ok(Err(_)) | Err(_) => return Waited::Done(Submitted::Unavailable("store too slow")),
            }
        }
    }

    /// Another try of the key is on its walk, here or in another gateway: waits for its answer.
    async fn wait_for_twin(&self, publisher: &PublisherId, lead: LeadId, until: Instant) -> Submitted {
        let local = self.gateway.running.lock().get(&lead).cloned();
        if let Some(walk) = local {
            return match self.wait_for(lead, walk, until).await {
                Waited::Done(Submitted::Answered { lead, body, .. }) => {
                    Submitted::Answered { lead, body, is_replay: true }
                }
                Waited::Done(_) | Waited::Joined(_) => Submitted::Pending { lead },
            };
        }
        loop {
            // A slow store must not make the answer late: the lead is acknowledged, so "pending" is true.
            let looked = tokio::time::timeout_at(until, self.gateway.store.lead_state(publisher, lead)).await;
            match looked {
                Ok(Ok(Some(LeadState::Finished(body)))) => return Submitted::Answered { lead, body, is_replay: true },
                Ok(Ok(Some(LeadState::Running) | None)) => {}
                Ok(Err(error)) => self.gateway.note_store_error(&error),
                Err(_) => return Submitted::Pending { lead },
            }
            if Instant::now() + TWIN_LOOK >= until {
                return Submitted::Pending { lead };
            }
            tokio::time::sleep(TWIN_LOOK).await;
        }
    }

    async fn answer_in_books(&self, publisher: &PublisherId, lead: LeadId) -> LeadAnswer {
        match self.gateway.ledger.lead(lead).await {
            Ok(Some(row)) if row.publisher == *publisher => match (row.status, row.answer) {
                (LeadStatus::Pending, _) | (_, None) => LeadAnswer::Pending,
                (_, Some(answer)) => LeadAnswer::Finished(self.as_it_stands(lead, Bytes::from(answer)).await),
            },
            Ok(_) => LeadAnswer::NotFound,
            Err(_) => LeadAnswer::Unavailable,
        }
    }
}

impl Desk {
    /// A doubt may have been resolved since its lead was answered: whoever asks how the lead stands learns it from the books.
    /// A repeat of the POST goes on getting the first answer (P3).
    async fn as_it_stands(&self, lead: LeadId, body: Bytes) -> Bytes {
        #[derive(serde::Deserialize)]
        struct Status<'a> {
            status: &'a str,
        }
        let is_doubt = serde_json::from_slice::<Status<'_>>(&body).is_ok_and(|answer| answer.status == "in_doubt");
        if !is_doubt {
            return body;
        }
        let Ok(Some(row)) = self.gateway.ledger.lead(lead).await else { return body };
        let verdict = match (row.status, row.buyer, row.price, row.payout, row.currency) {
            (LeadStatus::Sold, Some(buyer), Some(price), Some(payout), Some(currency)) => {
                Verdict::Sold(Sold { buyer, price, payout, currency, redirect_url: None })
            }
            (LeadStatus::Unsold, ..) => match row.reason.as_deref().and_then(UnsoldReason::parse) {
                Some(reason) => Verdict::Unsold(reason),
                None => return body,
            },
            _ => return body,
        };
        reply::answer_body(lead, &verdict).into()
    }
}

/// A walk that twins can find; gone with its task, however that ends.
struct Registered {
    gateway: Arc<Gateway>,
    lead: LeadId,
}

impl Registered {
    fn new(gateway: Arc<Gateway>, lead: LeadId, waiter: watch::Receiver<Progress>) -> Self {
        gateway.running.lock().insert(lead, waiter);
        Self { gateway, lead }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.gateway.running.lock().remove(&self.lead);
    }
}

enum Waited {
    Done(Submitted),
    Joined(LeadId),
}

#[async_trait]
impl LeadDesk for Desk {
    fn routing(&self) -> Arc<Routing> {
        self.gateway.routing().compiled.routing().clone()
    }

    fn keys(&self) -> Arc<Keys> {
        self.gateway.routing().keys.clone()
    }

    async fn submit(&self, lead: Lead, claim: Option<ClaimKey>, wait: Duration) -> Submitted {
        if self.is_draining() {
            return Submitted::Unavailable("draining");
        }
        let until = Instant::now() + wait;
        let (id, publisher) = (lead.id, lead.publisher.clone());
        let Some(walk) = self.start(lead, claim) else {
            return Submitted::Unavailable("too many leads in flight");
        };
        let submitted = match self.wait_for(id, walk, until).await {
            Waited::Done(submitted) => submitted,
            Waited::Joined(twin) => self.wait_for_twin(&publisher, twin, until).await,
        };
        if matches!(submitted, Submitted::Answered { is_replay: true, .. }) {
            self.gateway.telemetry.intake.replays.increment(1);
        }
        submitted
    }

    async fn answer(&self, publisher: &PublisherId, lead: LeadId) -> LeadAnswer {
        match self.gateway.store.lead_state(publisher, lead).await {
            Ok(Some(LeadState::Finished(body))) => LeadAnswer::Finished(self.as_it_stands(lead, body).await),
            Ok(Some(LeadState::Running)) => LeadAnswer::Pending,
            Ok(None) => self.answer_in_books(publisher, lead).await,
            Err(error @ (StoreError::NotDone(_) | StoreError::MaybeDone(_) | StoreError::Bug(_))) => {
                self.gateway.note_store_error(&error);
                match self.answer_in_books(publisher, lead).await {
                    // The books may not have heard of it yet.
                    LeadAnswer::NotFound => LeadAnswer::Unavailable,
                    known => known,
                }
            }
        }
    }

    async fn take_back(&self, buyer: &Arc<Buyer>, lead: LeadId, reason: &str) -> ReturnAnswer {
        match returns::return_sale(&self.gateway, buyer, lead, reason).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(buyer = %buyer.id, %lead, %error, "a return has to wait");
                ReturnAnswer::Unavailable
            }
        }
    }

    async fn decide(&self, buyer: &Arc<Buyer>, lead: LeadId, decision: &Decision) -> DecisionAnswer {
        let (gateway, buyer, decision) = (self.gateway.clone(), buyer.clone(), decision.clone());
        let id = buyer.id.clone();
        // A buyer that hangs up does not stop half way between attempt and lead.
        let task = self.gateway.tasks.spawn(async move { decision::take(&gateway, &buyer, lead, &decision).await });
        match task.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::debug!(buyer = %id, %lead, %error, "a decision has to wait");
                DecisionAnswer::Unavailable
            }
            Err(_) => DecisionAnswer::Unavailable,
        }
    }

    fn is_draining(&self) -> bool {
        self.gateway.shutdown.is_draining()
    }

    fn now(&self) -> Timestamp {
        self.gateway.clock.now()
    }
}
