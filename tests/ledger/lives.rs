//! Lives, gateways, and what a store that has lost its memory is told again.

use std::time::Duration;

use capgate::clock::{Clock, SystemClock};
use capgate::domain::event::{ClaimKey, Event, Life};
use capgate::domain::id::{LeadId, Partition};
use capgate::domain::lease::LeaseKey;
use capgate::domain::outcome::AttemptOutcome;
use capgate::ledger::{GatewayId, LeadPlace, Raise, Stage};
use jiff::{SignedDuration, Timestamp};

use crate::events::{RECEIVED_US, attempt, claim, received, unsold};
use crate::journal::{Journal, PARTITIONS};
use crate::support::Books;

pub async fn f23_a_life_is_raised_for_one_server(books: &Books) {
    let other = books.open_again().await;
    let fresh = books.ledger.lives().await.unwrap();
    assert_eq!(fresh.len(), usize::from(PARTITIONS));
    assert!(fresh.iter().all(|row| row.mark.life == Life(0) && row.server.is_empty()));
    for round in 0..10_u64 {
        let raises = |server: &str| {
            let raise =
                |p| Raise { partition: Partition(p), from: Life(round), to: Life(round + 1), server: server.into() };
            (0..PARTITIONS).map(raise).collect::<Vec<_>>()
        };
        let (a, b) = (raises("a"), raises("b"));
        let (mine, theirs) = tokio::join!(books.ledger.raise_lives(&a), other.raise_lives(&b));
        // One of two that wait for each other may be sent back with nothing done.
        let (mine, theirs) = (mine.unwrap_or_default(), theirs.unwrap_or_default());
        for row in books.ledger.lives().await.unwrap() {
            let partition = row.mark.partition;
            assert!(mine.contains(&partition) != theirs.contains(&partition), "{mine:?} {theirs:?}");
            let server = if mine.contains(&partition) { "a" } else { "b" };
            assert_eq!((row.mark.life, row.server.as_str(), row.stage), (Life(round + 1), server, Stage::Raised));
        }
    }
    other.shut_down().await;
}

pub async fn stages_belong_to_their_life(books: &Books) {
    let partition = Partition(1);
    let raise = |from, to| Raise { partition, from: Life(from), to: Life(to), server: "a".into() };
    books.ledger.raise_lives(&[raise(0, 1)]).await.unwrap();
    let stage = async || books.ledger.lives().await.unwrap()[1].stage;
    assert_eq!(stage().await, Stage::Raised);
    books.ledger.set_stage(&[(partition, Life(1))], Stage::Open).await.unwrap();
    assert_eq!(stage().await, Stage::Open);
    books.ledger.raise_lives(&[raise(1, 2)]).await.unwrap();
    books.ledger.set_stage(&[(partition, Life(1))], Stage::Open).await.unwrap();
    assert_eq!(stage().await, Stage::Raised, "an older life's stage says nothing about the new one");
    books.ledger.set_stage(&[(partition, Life(2))], Stage::Begun).await.unwrap();
    assert_eq!(stage().await, Stage::Begun);
}

pub async fn p1_gateways_that_are_alive_are_known_to_each_other(books: &Books) {
    let [mine, theirs, forgotten] = [(); 3].map(|()| GatewayId::generate());
    let lives = |first: u64| vec![Life(first), Life(0), Life(0), Life(0)];
    assert_eq!(books.ledger.beat(mine, &lives(1)).await.unwrap().len(), 1);
    books.ledger.beat(forgotten, &lives(1)).await.unwrap();
    books.ledger.beat(theirs, &lives(1)).await.unwrap();
    // A row that nobody has written for long is not waited for, and in the end it is removed.
    books.raw.run(&set_back(forgotten, "2020-01-01 00:00:00.000000")).await;
    let peers = books.ledger.beat(theirs, &lives(u64::MAX >> 1)).await.unwrap();
    let of = |gateway| peers.iter().find(|peer| peer.gateway == gateway);
    assert_eq!(peers.len(), 2, "{peers:?}");
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM gateways").await, 2);
    assert_eq!(of(mine).unwrap().restated, lives(1));
    assert_eq!(of(theirs).unwrap().restated, lives(u64::MAX >> 1));
    assert!(peers.iter().all(|peer| peer.age < Duration::from_mins(1)), "{peers:?}");
    let minutes_ago = (SystemClock.now() - SignedDuration::from_mins(10)).strftime("%Y-%m-%d %H:%M:%S%.6f").to_string();
    books.raw.run(&set_back(mine, &minutes_ago)).await;
    let peers = books.ledger.beat(theirs, &lives(1)).await.unwrap();
    let old = peers.iter().find(|peer| peer.gateway == mine).unwrap();
    assert!(old.age > Duration::from_mins(5) && old.age < Duration::from_mins(20), "{old:?}");
    books.ledger.leave(mine).await.unwrap();
    assert_eq!(books.ledger.beat(theirs, &[]).await.unwrap().len(), 1);
}

fn set_back(gateway: GatewayId, at: &str) -> String {
    // Big-endian bytes of the id are its digits without hyphens.
    let hex = gateway.to_string().replace('-', "");
    format!("UPDATE gateways SET beat_at = '{at}' WHERE gateway_id = x'{hex}'")
}

pub async fn f40_leads_are_told_again_in_order_page_by_page(books: &Books) {
    let journal = Journal::default();
    let mut leads: Vec<LeadId> = (0..7).map(|_| LeadId::generate()).collect();
    leads.sort();
    for (index, lead) in leads.iter().enumerate() {
        let mut arrival = received(*lead, "acme");
        // Two of each instant.
        arrival.received_at_us = RECEIVED_US + i64::try_from(index / 2).unwrap();
        let fingerprint = Some("ab".repeat(32));
        arrival.claim = (index != 3).then(|| ClaimKey { fingerprint, ..claim(&index.to_string()) });
        journal.append(&Event::Received(arrival));
        if index != 5 {
            journal.append(&Event::Closed(unsold(*lead, "acme", "capped")));
        }
    }
    books.settle_all(&journal, 100).await;
    let since = Timestamp::from_microsecond(RECEIVED_US).unwrap();
    let mut told = Vec::new();
    let mut after: Option<LeadPlace> = None;
    loop {
        let page = books.ledger.booked_leads(since, after.as_ref(), 3).await.unwrap();
        after = page.last().map(|lead| lead.place);
        let is_last = page.len() < 3;
        told.extend(page);
        if is_last {
            break;
        }
    }
    assert_eq!(told.iter().map(|lead| lead.place.lead).collect::<Vec<_>>(), leads);
    let hash = claim("0").hash;
    assert_eq!(told[0].claim.as_ref().map(|claim| claim.hash.clone()), Some(hash.clone()));
    assert_eq!(told[0].claim.as_ref().unwrap().fingerprint, Some("ab".repeat(32)));
    assert_eq!(told[0].answer, Some(unsold(leads[0], "acme", "capped").answer));
    assert_eq!((&told[3].claim, &told[5].answer), (&None, &None));
    let later = since + SignedDuration::from_micros(1);
    assert_eq!(books.ledger.booked_leads(later, None, 9).await.unwrap().len(), 5);
    let by_key = books.ledger.lead_by_key(&told[0].publisher, &hash).await.unwrap();
    assert_eq!(by_key, Some(told[0].clone()));
}

pub async fn attempts_are_found_by_lead_and_buyer(books: &Books) {
    let journal = Journal::default();
    let (known, other) = (LeadId::generate(), LeadId::generate());
    journal.append(&Event::Attempt(attempt(known, "acme", "sunco", AttemptOutcome::Declined)));
    books.settle_all(&journal, 100).await;
    let key = |lead, buyer: &str| LeaseKey { lead, buyer: capgate::domain::id::BuyerId::new(buyer).unwrap() };
    let asked = [key(known, "sunco"), key(known, "volt"), key(other, "sunco")];
    assert_eq!(books.ledger.attempted(&asked).await.unwrap(), [key(known, "sunco")]);
    assert_eq!(books.ledger.attempted(&[]).await.unwrap(), []);
}
