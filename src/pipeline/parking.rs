//! A buyer that decides later: its unit stays counted, and the lead waits without a walk until the buyer has decided or its time
//! is over. Whoever takes the lead over then resumes it from the books ([`crate::settle::decision`]).

use std::time::Duration;

use super::attempt::{After, Verb};
use super::late::contested_unless_booked;
use super::{Progress, Walk};
use crate::domain::event::ParkedLead;
use crate::domain::lease::LeaseKey;
use crate::domain::outcome::AttemptOutcome;
use crate::domain::parked::Parked;
use crate::lease::{Held, Known};
use crate::store::{EndReply, MoveDeadline};

impl Walk<'_> {
    /// "Later": a doubt with a date. What a gateway dies before is done by recovery: an open lease becomes a doubt without one,
    /// and a lead that was not parked yet is parked when its deadline has passed.
    pub(super) async fn after_pending(&mut self, offer: usize, held: &Held, within: Duration, known: &Known) -> After {
        let parked = Parked::new(known.sent_at + known.duration, within, held.about.terms.price_max);
        let known = Known { reason: Some(parked.to_string()), ..known.clone() };
        self.story.attempted(offer, AttemptOutcome::InDoubt, known.reason.as_deref());
        let reply = self.end_lease(Verb::Doubt, &held.in_doubt(true, &known)).await;
        // Anything else than our own doubt, and a lead that recovery may have claimed, is recovery's to look at.
        if reply != Some(EndReply::Done) || self.gateway.store.now() >= self.open_until {
            return After::Abandoned;
        }
        let lead = &self.order.lead;
        let story = self.story.explain(self.campaign, lead, &self.order.routing, &self.filtered);
        let explanation = serde_json::to_string(&story).unwrap_or_default();
        let publisher = lead.publisher.clone();
        let event = ParkedLead { lead: lead.id, publisher: publisher.clone(), explanation };
        let moved = MoveDeadline { lead: lead.id, publisher, from: None, to: parked.until, event: Some(event) };
        let mut pause = self.gateway.backoff();
        loop {
            match self.gateway.store.move_deadline(&moved).await {
                Ok(true) => return After::Parked,
                Ok(false) => return After::Abandoned,
                Err(error) => self.gateway.note_store_error(&error),
            }
            if !pause.wait().await || self.gateway.store.now() >= self.open_until {
                return After::Abandoned;
            }
        }
    }

    /// The walk ends here; the publisher is told "pending". A yes that is still to come from an earlier buyer is the books' to
    /// weigh.
    pub(super) fn parked(self) {
        if let Some(sold) = self.late.leave() {
            contested_unless_booked(self.gateway, LeaseKey { lead: self.order.lead.id, buyer: sold.buyer });
        }
        self.progress.send_replace(Progress::Parked);
    }
}
