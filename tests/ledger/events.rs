//! Events as gateways write them.

use capgate::domain::event::{Attempt, ClaimKey, Closed, Event, Received, SaleMoney, WindowAmount};
use capgate::domain::id::{BuyerId, CampaignId, CapId, LeadId, PublisherId};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};

/// 2026-03-08 05:00:00 UTC: midnight in New York on a day of 23 hours.
pub const DAY_MS: i64 = 1_772_946_000_000;
/// 2026-03-08 12:34:56.789012 UTC.
pub const RECEIVED_US: i64 = 1_772_973_296_789_012;

pub const PRICE: Micros = Micros(25_000_000);
pub const PAYOUT: Micros = Micros(17_500_000);

pub fn publisher(id: &str) -> PublisherId {
    PublisherId::new(id).unwrap()
}

pub fn buyer(id: &str) -> BuyerId {
    BuyerId::new(id).unwrap()
}

pub fn usd() -> Currency {
    Currency::new("USD").unwrap()
}

pub fn received(lead: LeadId, by: &str) -> Received {
    Received {
        lead,
        publisher: publisher(by),
        campaign: CampaignId::new("solar").unwrap(),
        received_at_us: RECEIVED_US,
        test: false,
        payload: r#"{"first_name":"Zoë","zip":"07030"}"#.into(),
        claim: None,
    }
}

/// The claim of a key whose hash is this digit, 64 times.
pub fn claim(digit: &str) -> ClaimKey {
    ClaimKey { hash: digit.repeat(64), fingerprint: Some("0f".repeat(32)) }
}

pub fn attempt(lead: LeadId, by: &str, to: &str, outcome: AttemptOutcome) -> Attempt {
    let is_sale = matches!(outcome, AttemptOutcome::Accepted | AttemptOutcome::LateAccepted);
    Attempt {
        lead,
        buyer: buyer(to),
        publisher: publisher(by),
        campaign: CampaignId::new("solar").unwrap(),
        ordinal: 1,
        outcome,
        counted: is_sale || outcome == AttemptOutcome::InDoubt,
        http_status: Some(200),
        reason: None,
        sent_at_us: RECEIVED_US + 1_000,
        duration_us: 80_000,
        windows: vec![
            WindowAmount { cap: CapId::new("day"), start_ms: DAY_MS, amount: 1 },
            WindowAmount { cap: CapId::new("total:spend"), start_ms: 0, amount: 25_000_000 },
        ],
        price: PRICE,
        payout: PAYOUT,
        currency: usd(),
        books: outcome == AttemptOutcome::Accepted,
        person: None,
        reference: None,
    }
}

pub fn sold(lead: LeadId, by: &str, to: &str) -> Closed {
    Closed {
        lead,
        publisher: publisher(by),
        campaign: CampaignId::new("solar").unwrap(),
        status: LeadStatus::Sold,
        reason: None,
        buyer: Some(buyer(to)),
        sale: Some(SaleMoney { price: PRICE, payout: PAYOUT, currency: usd() }),
        books: false,
        test: false,
        closed_at_us: RECEIVED_US + 90_000,
        answer: format!(r#"{{"lead_id":"{lead}","status":"sold","price":"17.50","currency":"USD"}}"#),
        explanation: r#"{"routing_version":"1","candidates":[]}"#.into(),
        postback: None,
    }
}

pub fn unsold(lead: LeadId, by: &str, reason: &str) -> Closed {
    Closed {
        status: LeadStatus::Unsold,
        reason: Some(reason.into()),
        buyer: None,
        sale: None,
        answer: format!(r#"{{"lead_id":"{lead}","status":"unsold","reason":"{reason}"}}"#),
        ..sold(lead, by, "nobody")
    }
}

/// What a sale leaves in the journal.
pub fn sale(lead: LeadId, by: &str, to: &str) -> [Event; 3] {
    [
        Event::Received(received(lead, by)),
        Event::Attempt(attempt(lead, by, to, AttemptOutcome::Accepted)),
        Event::Closed(sold(lead, by, to)),
    ]
}
