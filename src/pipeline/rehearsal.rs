//! A test lead: every decision is made, nothing is touched. No cap, no buyer, no money; the answer carries the explanation.

use std::sync::Arc;

use bytes::Bytes;

use super::leasing::take_context;
use super::story::{Filtered, Story};
use super::{Progress, WalkOrder};
use crate::app::Gateway;
use crate::domain::event::{Closed, Received};
use crate::domain::explanation::Check;
use crate::domain::id::BuyerId;
use crate::domain::lease::WalkName;
use crate::domain::outcome::{AttemptOutcome, Sold, Verdict};
use crate::domain::person::Person;
use crate::intake::reply;
use crate::lease::FullCap;
use crate::ledger::SettleError;
use crate::settle::lives::known_to_books;
use crate::store::{Admission, Admit, Close, CounterKey, PersonReply, StoreError, TakeCandidate};

/// Decides a test lead and records it with `test = 1`.
pub async fn rehearse(gateway: &Arc<Gateway>, order: &WalkOrder) -> Progress {
    let lead = &order.lead;
    let Some(compiled) = order.routing.compiled.campaign(lead.campaign.as_str()) else {
        return Progress::Refused("campaign is gone");
    };
    let campaign = compiled.campaign();
    let now = gateway.store.now();
    let filtered = Filtered::new(compiled, lead, now, gateway.paused.load_full());
    let context = take_context(gateway, order, campaign, WalkName::default());
    let mut story = Story::default();
    let mut verdict = None;
    for &index in &filtered.candidates.ranked {
        let offer = &campaign.offers[index];
        if let Some(rest) = gateway.forwarder.resting(&offer.buyer.id) {
            story.resting(index, rest);
            continue;
        }
        let candidate = context.candidate(offer, now, 1);
        match has_person(gateway, &offer.buyer.id, candidate.about.person.as_ref()).await {
            Ok(false) => {}
            // Which lead it has, and since when, is nothing for the publisher of another one.
            Ok(true) => {
                let days = candidate.about.person.map(|person| person.days.to_string()).unwrap_or_default();
                story.skipped(index, Check::Duplicate, [("days", days)]);
                continue;
            }
            Err(error) => {
                note(gateway, &error);
                return Progress::Refused("store away");
            }
        }
        let full = match first_full(gateway, &candidate).await {
            Ok(full) => full,
            Err(error) => {
                gateway.note_store_error(&error);
                return Progress::Refused("store away");
            }
        };
        if let Some(full) = full {
            story.full(index, &full, &offer.buyer.timezone);
            continue;
        }
        // What a yes at the offer's price would come to.
        story.attempted(index, AttemptOutcome::Accepted, Some("test"));
        verdict = Some(Verdict::Sold(Sold {
            buyer: offer.buyer.id.clone(),
            price: offer.price,
            payout: order.publisher.payout.of(offer.price),
            currency: campaign.currency,
            redirect_url: None,
        }));
        break;
    }
    let verdict = verdict.unwrap_or_else(|| Verdict::Unsold(story.reason()));
    let explanation = story.explain(compiled, lead, &order.routing, &filtered);
    let body = reply::test_answer_body(lead.id, &verdict, &explanation);
    match record(gateway, order, &verdict, &body, serde_json::to_string(&explanation).unwrap_or_default()).await {
        Ok(true) => Progress::Answered { lead: lead.id, body: Bytes::from(body), is_replay: false },
        Ok(false) => Progress::Refused("store not ready"),
        Err(error) => {
            gateway.note_store_error(&error);
            Progress::Refused("store away")
        }
    }
}

/// Has the buyer the person, by the store or else by the books?
async fn has_person(gateway: &Gateway, buyer: &BuyerId, person: Option<&Person>) -> Result<bool, SettleError> {
    let Some(person) = person else { return Ok(false) };
    Ok(match gateway.store.person(buyer, person).await? {
        PersonReply::Had { .. } => true,
        PersonReply::Free => false,
        PersonReply::AskBooks => known_to_books(gateway, buyer, person).await?.lead.is_some(),
    })
}

fn note(gateway: &Gateway, error: &SettleError) {
    match error {
        SettleError::Store(error) => gateway.note_store_error(error),
        SettleError::Ledger(error) => tracing::warn!(%error, "a test lead was not decided: the books cannot be asked"),
    }
}

/// The first cap without room.
async fn first_full(gateway: &Gateway, candidate: &TakeCandidate) -> Result<Option<FullCap>, StoreError> {
    let keys: Vec<CounterKey> = candidate
        .demands
        .iter()
        .map(|demand| CounterKey {
            buyer: candidate.buyer.clone(),
            cap: demand.charge.cap.clone(),
            window: demand.charge.window,
        })
        .collect();
    let counters = gateway.store.counters(&keys).await?;
    Ok(candidate.demands.iter().zip(counters).find_map(|(demand, counter)| {
        let full = FullCap::of(demand, counter.unwrap_or(0));
        (full.limit == 0 || full.used.saturating_add(full.amount) > full.limit).then_some(full)
    }))
}

/// True when the books will have it.
async fn record(
    gateway: &Gateway,
    order: &WalkOrder,
    verdict: &Verdict,
    body: &str,
    explanation: String,
) -> Result<bool, StoreError> {
    let lead = &order.lead;
    let now = gateway.store.now();
    let admit = Admit {
        event: Received {
            lead: lead.id,
            publisher: lead.publisher.clone(),
            campaign: lead.campaign.clone(),
            received_at_us: lead.received_at.as_microsecond(),
            test: true,
            payload: lead.fields.to_json(),
            // A test lead must not use up the key of a real one.
            claim: None,
        },
        deadline: now + gateway.lead_open_for(),
        not_after: now + gateway.call_patience(),
        retention: gateway.config.store.idempotency,
    };
    if gateway.store.admit(&admit).await? != Admission::New {
        return Ok(false);
    }
    let close = Close {
        event: Closed {
            test: true,
            closed_at_us: gateway.clock.now().as_microsecond(),
            answer: body.to_owned(),
            explanation,
            // A rehearsal ends with its answer.
            ..Closed::of(verdict, lead.id, lead.publisher.clone(), lead.campaign.clone(), None)
        },
        claim: None,
        retention: gateway.config.store.idempotency,
    };
    gateway.store.close(&close).await.map(|_| true)
}
