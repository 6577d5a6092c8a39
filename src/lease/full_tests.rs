use std::sync::Arc;

use bytes::Bytes;
use jiff::tz::TimeZone;

use super::*;
use crate::domain::cap::{Cap, Limit};
use crate::domain::id::{CampaignId, LeadId, PublisherId};
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::money::Micros;
use crate::domain::routing::{
    AnswerRule, AnswerRules, Buyer, BuyerFilter, On5xx, OnCrash, OnTimeout, RequestShape, ReturnTerms,
};
use crate::domain::window::WindowKind;

fn offer(caps: Vec<Cap>, price_max: Micros) -> Offer {
    let buyer = Buyer {
        id: BuyerId::new("sunco").unwrap(),
        url: reqwest::Url::parse("http://127.0.0.1:1/").unwrap(),
        timezone: TimeZone::UTC,
        timezone_name: "UTC".into(),
        timeout: Duration::from_millis(1_500),
        on_timeout: OnTimeout::Refund,
        on_crash: OnCrash::Keep,
        in_flight_max: 10,
        is_paused: false,
        caps,
        filter: BuyerFilter::default(),
        hours: Vec::new(),
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
        keys: vec![],
        breaker: crate::domain::routing::BreakerRule::default(),
        duplicates: None,
        returns: ReturnTerms { within_days: 0, frees_cap: false },
    };
    Offer { buyer: Arc::new(buyer), price: price_max, price_max, priority: 1, weight: 1 }
}

fn cap(id: &str, limit: Limit, state: Option<&str>) -> Cap {
    let conditions = state.map(|state| ("state".into(), vec![state.to_owned()])).into_iter().collect();
    Cap { id: CapId::new(id), window: WindowKind::Day, limit, publisher: None, conditions }
}

fn lead(state: &str) -> Lead {
    Lead {
        id: LeadId::generate(),
        publisher: PublisherId::new("acme").unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        received_at: Timestamp::UNIX_EPOCH,
        is_test: false,
        fields: Fields::new(vec![("state".into(), FieldValue::Text(state.into()))]),
        body: Bytes::new(),
    }
}

fn at() -> Timestamp {
    "2026-03-08T12:00:00Z".parse().unwrap()
}

fn window() -> Window {
    Window::containing(WindowKind::Day, &TimeZone::UTC, at())
}

fn full(id: &str, used: u64, limit: u64, amount: u64) -> FullCap {
    FullCap { cap: CapId::new(id), window: window(), used, limit, amount }
}

fn charge(id: &str) -> Charge {
    Charge { cap: CapId::new(id), window: window(), amount: 1 }
}

#[test]
fn f16_a_full_cap_is_remembered_for_a_moment_and_no_longer() {
    let (memory, offer, began) =
        (FullMemory::default(), offer(vec![cap("day", Limit::Leads(5), None)], Micros(1)), Instant::now());
    let look = |offer: &Offer, at, version, now| memory.read().find(offer, &lead("TX"), at, version, now);
    let just_before = began + REMEMBERED.mul_f64(0.99);
    assert_eq!(look(&offer, at(), 1, began), None, "what is not known is asked");
    memory.remember(&offer.buyer.id, &full("day", 5, 5, 1), 1, began);
    assert_eq!(look(&offer, at(), 1, just_before), Some(full("day", 5, 5, 1)));
    assert_eq!(look(&offer, at(), 1, began + REMEMBERED), None, "faded");
    assert_eq!(look(&offer, at(), 2, began), None, "another routing");
    assert_eq!(look(&offer, window().end.unwrap(), 1, began), None, "the window is over");
}

#[test]
fn f16_a_unit_that_came_back_ends_the_memory_also_of_answers_on_their_way() {
    let (memory, began) = (FullMemory::default(), Instant::now());
    let offer = offer(vec![cap("day", Limit::Leads(5), None), cap("month", Limit::Leads(9), None)], Micros(1));
    let look = || memory.read().find(&offer, &lead("TX"), at(), 1, began + Duration::from_millis(20));
    memory.remember(&offer.buyer.id, &full("day", 5, 5, 1), 1, began);
    memory.given_back(&offer.buyer.id, &[charge("month")], began + Duration::from_millis(5));
    assert!(look().is_some(), "another cap's unit says nothing of this one");
    memory.given_back(&offer.buyer.id, &[charge("day")], began + Duration::from_millis(10));
    assert_eq!(look(), None);
    memory.remember(&offer.buyer.id, &full("day", 5, 5, 1), 1, began + Duration::from_millis(10));
    assert_eq!(look(), None, "asked before the unit came back");
    memory.remember(&offer.buyer.id, &full("day", 5, 5, 1), 1, began + Duration::from_millis(11));
    assert!(look().is_some(), "asked after it");
    memory.forget(began + Duration::from_millis(12));
    assert_eq!(look(), None);
}

#[test]
fn f16_only_what_counts_the_lead_and_has_no_room_for_it_is_full() {
    let (memory, began) = (FullMemory::default(), Instant::now());
    let caps = vec![cap("day:state=TX", Limit::Leads(5), Some("TX")), cap("spend", Limit::Spend(Micros(100)), None)];
    let (dear, cheap) = (offer(caps.clone(), Micros(40)), offer(caps, Micros(30)));
    let id = &dear.buyer.id;
    let look = |offer: &Offer, state| memory.read().find(offer, &lead(state), at(), 1, began);
    memory.remember(id, &full("day:state=TX", 5, 5, 1), 1, began);
    assert_eq!(look(&dear, "TX"), Some(full("day:state=TX", 5, 5, 1)));
    assert_eq!(look(&dear, "NY"), None);
    memory.remember(id, &full("spend", 70, 100, 40), 1, began);
    assert_eq!(look(&dear, "NY"), Some(full("spend", 70, 100, 40)));
    assert_eq!(look(&cheap, "NY"), None, "70 and 30 fit");
}
