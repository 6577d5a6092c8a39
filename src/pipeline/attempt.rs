//! Forward and settle: one buyer is asked, and what it answered decides over unit and lead.

use std::time::Duration;

use super::Walk;
use super::late::{LateAttempt, contested};
use super::leasing::HeldOffer;
use crate::domain::lease::Terms;
use crate::domain::outcome::{Acceptance, AttemptOutcome, Outcome, Sold, Verdict};
use crate::domain::routing::OnTimeout;
use crate::forward::{ForwardOrder, Forwarded};
use crate::lease::{Held, Known, LEASE_MARGIN};
use crate::store::{Close, CloseReply, EndReply, LeadState, LeaseEnd, StoreError};

/// What follows from an attempt.
pub(super) enum After {
    /// The lead is still for sale.
    NextBuyer,
    /// The walk is over; the lead has to be closed.
    Final(Verdict),
    /// The walk is over and the lead was closed together with the commit.
    Closed(Box<ClosedWithCommit>),
    /// The lead waits for this buyer.
    Parked,
    /// The walk cannot go on in this gateway.
    Abandoned,
}

/// A lead that got its answer in the step that committed its sale.
pub(super) struct ClosedWithCommit {
    pub verdict: Verdict,
    pub close: Close,
    pub reply: CloseReply,
}

/// Which verb ends the lease.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Refund,
    Expire,
    Doubt,
}

impl Walk<'_> {
    /// Offers the lead to the buyer whose lease is held, and ends the lease by what was learned.
    pub(super) async fn forward_and_settle(&mut self, offered: HeldOffer) -> After {
        let HeldOffer { offer, held, asked_at, turn } = offered;
        let buyer = self.offer(offer).buyer.clone();
        // The store's answer came so late that the lead's time is over, or that recovery could end the lease while the buyer
        // is asked (F10).
        if self.gateway.clock.now() >= self.deadline || asked_at.elapsed() >= LEASE_MARGIN {
            let known = self.not_sent();
            return self.after_no(offer, &held, AttemptOutcome::Unsent, "store_slow", &known).await;
        }
        let Some(permit) = self.gateway.forwarder.enter(&buyer) else {
            // Others took the last place since it was looked at: nothing was sent, so the unit goes back.
            let known = self.not_sent();
            return self.after_no(offer, &held, AttemptOutcome::Unsent, "in_flight", &known).await;
        };
        let Terms { price, currency, .. } = held.about.terms;
        let country = self.campaign.campaign().country.clone();
        let lead = self.order.lead.clone();
        let order = ForwardOrder { buyer: buyer.clone(), lead, country, price, currency, permit, turn };
        let forwarded = self.gateway.forwarder.forward(order).await;
        let sent_at = self.gateway.store_time(forwarded.sent_at);
        let known = Known::of(&forwarded.outcome, sent_at, forwarded.duration);
        let metrics = self.gateway.telemetry.buyer(&buyer.id);
        metrics.forward.count(forwarded.outcome.as_attempt());
        metrics.forward_duration.record(forwarded.duration);
        match &forwarded.outcome {
            Outcome::Accepted(acceptance) => self.after_yes(offer, &held, acceptance, &known).await,
            Outcome::Declined { reason, is_duplicate, .. } => {
                let outcome = if *is_duplicate { AttemptOutcome::Duplicate } else { AttemptOutcome::Declined };
                let reason = reason.clone();
                self.after_no(offer, &held, outcome, &reason, &known).await
            }
            Outcome::Pending { .. } => {
                // Cannot fail because only a buyer that may decide later is read as pending; nothing is too late at once.
                let within = buyer.answer.pending_within.unwrap_or_default();
                self.after_pending(offer, &held, within, &known).await
            }
            Outcome::Unsent { reason } => self.after_no(offer, &held, AttemptOutcome::Unsent, reason, &known).await,
            Outcome::InDoubt { reason, .. } => {
                self.story.attempted(offer, AttemptOutcome::InDoubt, Some(reason));
                self.after_doubt(buyer.on_timeout, offer, held, forwarded, &known).await
            }
        }
    }

    fn not_sent(&self) -> Known {
        Known {
            sent_at: self.gateway.store.now(),
            duration: Duration::ZERO,
            http_status: None,
            reason: None,
            reference: None,
        }
    }

    /// A yes in time: commit, and close in the same round trip where the store can.
    async fn after_yes(&mut self, offer: usize, held: &Held, acceptance: &Acceptance, known: &Known) -> After {
        self.story.attempted(offer, AttemptOutcome::Accepted, None);
        let mut end = held.accepted(acceptance, known);
        if self.is_answered().await {
            end = end.as_late();
            // Should the answer be lost with the store's data, this verdict is the only one, and books.
            self.verdict_books = true;
        }
        let sold = sold(held, acceptance);
        let verdict = Verdict::Sold(sold.clone());
        let close = self.close_record(&verdict);
        let mut pause = self.gateway.backoff();
        let (commit, closed) = loop {
            match self.gateway.store.commit_and_close(&end, &close).await {
                Ok(replies) => break replies,
                Err(error) => self.gateway.note_store_error(&error),
            }
            // The buyer has the lead: the commit is asked again until the store takes it (F67). Should this process end
            // first, recovery finds the open lease and keeps its unit as a doubt.
            if !pause.wait().await {
                return After::Abandoned;
            }
        };
        // A money cap keeps the price and gives back what it had reserved beyond it.
        self.gateway.units_given_back(&held.key.buyer, &held.money_charges());
        match (commit, closed) {
            (_, Some(reply)) => After::Closed(Box::new(ClosedWithCommit { verdict, close, reply })),
            // A repeat of a commit whose reply was lost. Whether that one met the open lease and booked the sale, or a doubt
            // that recovery had made of it and left the booking to the verdict, cannot be told any more: the verdict books,
            // which changes nothing where it is booked already (P6).
            (EndReply::Already(_) | EndReply::Done, None) => {
                self.verdict_books = true;
                After::Final(verdict)
            }
            // Recovery was faster: it took this gateway for dead. The unit counts once, and the lead is sold by this yes if
            // nobody else has it.
            (reply @ (EndReply::Late { .. } | EndReply::Missing), None) => {
                if reply == EndReply::Missing && !self.gateway.record(&end.late_event).await {
                    return After::Abandoned;
                }
                self.gateway.late_accepted(held, &reply);
                if self.late.record_yes(sold) {
                    After::Final(verdict)
                } else {
                    contested(self.gateway, &held.key);
                    After::NextBuyer
                }
            }
        }
    }

    /// Has another walk answered the lead? Only recovery starts a second one, when it takes the first one's gateway for dead. A
    /// cluster's commit cannot see the lead's record in the same step, and would book a sale beside the one that stands there
    /// (P6).
    async fn is_answered(&self) -> bool {
        let lead = &self.order.lead;
        let is_alone = self.order.resumed.is_none() && self.gateway.store.now() < self.open_until;
        if is_alone {
            return false;
        }
        // Where the store gives no answer, its commit will find out.
        let state = self.gateway.store.lead_state(&lead.publisher, lead.id).await;
        matches!(state, Ok(Some(LeadState::Finished(_))))
    }

    /// A full "no", or never sent: the unit goes back, the next buyer is asked.
    async fn after_no(
        &mut self,
        offer: usize,
        held: &Held,
        outcome: AttemptOutcome,
        reason: &str,
        known: &Known,
    ) -> After {
        self.story.attempted(offer, outcome, Some(reason));
        let mut end = held.not_taken(outcome, known);
        if end.event.reason.is_none() {
            end.event.reason = Some(reason.to_owned());
        }
        self.end(Verb::Refund, &end).await
    }

    /// Unknown: what happens to unit and lead is the buyer's `on_timeout`.
    async fn after_doubt(
        &mut self,
        policy: OnTimeout,
        offer: usize,
        held: Held,
        forwarded: Forwarded,
        known: &Known,
    ) -> After {
        let after = match policy {
            OnTimeout::Refund => self.end(Verb::Expire, &held.in_doubt(false, known)).await,
            OnTimeout::Hold => self.end(Verb::Doubt, &held.in_doubt(true, known)).await,
            // Broken or cut off: there is no late answer to keep the unit for.
            OnTimeout::Reserve if forwarded.late.is_none() => {
                self.end(Verb::Expire, &held.in_doubt(false, known)).await
            }
            // The lease stays open while the answer may come. Should this gateway die, recovery gives the unit back at the
            // deadline.
            OnTimeout::Reserve => {
                let mut pause = self.gateway.backoff();
                while let Err(error) = self.gateway.store.give_back_at_deadline(&held.key).await {
                    self.gateway.note_store_error(&error);
                    if !pause.wait().await {
                        return After::Abandoned;
                    }
                }
                After::NextBuyer
            }
        };
        let buyer = held.key.buyer.clone();
        let watch = forwarded.late.map(|receiver| {
            let attempt = LateAttempt { held, policy, known: known.clone() };
            self.late.watch(self.gateway.clone(), attempt, receiver)
        });
        if matches!(after, After::Abandoned) {
            return after;
        }
        match (policy, watch) {
            (OnTimeout::Refund | OnTimeout::Reserve, _) => after,
            (OnTimeout::Hold, None) => After::Final(Verdict::InDoubt(buyer)),
            // Nobody else is asked before the late answer is known.
            (OnTimeout::Hold, Some(watch)) => match watch.await {
                Ok(Outcome::Accepted(_)) => match self.late.sold() {
                    Some(sold) => {
                        self.story.attempted(offer, AttemptOutcome::LateAccepted, None);
                        After::Final(Verdict::Sold(sold))
                    }
                    None => After::Final(Verdict::InDoubt(buyer)),
                },
                Ok(Outcome::Declined { .. } | Outcome::Unsent { .. }) => {
                    self.story.attempted(offer, AttemptOutcome::Declined, Some("late"));
                    After::NextBuyer
                }
                Ok(Outcome::InDoubt { .. } | Outcome::Pending { .. }) | Err(_) => After::Final(Verdict::InDoubt(buyer)),
            },
        }
    }

    async fn end(&self, verb: Verb, end: &LeaseEnd) -> After {
        match self.end_lease(verb, end).await {
            Some(_) => After::NextBuyer,
            None => After::Abandoned,
        }
    }

    /// Ends a lease; `None` when the walk cannot go on in this gateway.
    pub(super) async fn end_lease(&self, verb: Verb, end: &LeaseEnd) -> Option<EndReply> {
        let mut pause = self.gateway.backoff();
        loop {
            let reply = match verb {
                Verb::Refund => self.gateway.store.refund(end).await,
                Verb::Expire => self.gateway.store.expire(end).await,
                Verb::Doubt => self.gateway.store.doubt(end).await,
            };
            match reply {
                Ok(EndReply::Missing) => {
                    return self.gateway.record(&end.event).await.then_some(EndReply::Missing);
                }
                Ok(reply) => {
                    if !matches!(verb, Verb::Doubt) {
                        self.gateway.units_given_back(&end.key.buyer, &end.charges);
                    }
                    return Some(reply);
                }
                Err(error @ StoreError::Bug(_)) => {
                    self.gateway.note_store_error(&error);
                    return None;
                }
                Err(error) => self.gateway.note_store_error(&error),
            }
            if !pause.wait().await {
                return None;
            }
        }
    }
}

/// The terms of a sale by this answer.
pub(super) fn sold(held: &Held, acceptance: &Acceptance) -> Sold {
    let price = held.price(acceptance);
    Sold {
        buyer: held.key.buyer.clone(),
        price,
        payout: held.payout.of(price),
        currency: held.about.terms.currency,
        redirect_url: acceptance.redirect_url.clone(),
    }
}
