//! Claims, answers, and leads that change hands.

use std::time::Duration;

use bytes::Bytes;
use capgate::domain::id::LeadId;
use capgate::store::{Admission, CloseReply, LeadState, Store, StoreError};
use jiff::SignedDuration;

use crate::support::{admit, claim, close, eventually, publisher, start_mark};
use crate::world::World;

#[tokio::test]
async fn p3_a_repeat_after_recovery_took_the_lead_over_does_not_start_a_second_walk() {
    let w = World::start().await;
    let lead = LeadId::generate();
    let mut call = admit(&*w.store, lead, Some(claim("k", None)));
    call.deadline = w.store.now() - SignedDuration::from_secs(1);
    assert_eq!(w.store.admit(&call).await, Ok(Admission::New));
    assert_eq!(w.store.admit(&call).await, Ok(Admission::New));
    let partition = start_mark(&*w.store, "acme").partition;
    let minute = Duration::from_mins(1);
    let taken = w.store.claim_overdue_leads(partition, Duration::ZERO, minute, 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].claim, Some(claim("k", None)));
    assert_eq!(w.store.admit(&call).await, Ok(Admission::Running(lead)));
    w.stop().await;
}

#[tokio::test]
async fn f40_claims_and_answers_expire_and_open_leads_do_not_vanish_before_their_deadline() {
    let mut w = World::start().await;
    let (lead, plain) = (LeadId::generate(), LeadId::generate());
    let key = claim("k", Some("body"));
    let mut call = admit(&*w.store, lead, Some(key.clone()));
    call.retention = Duration::from_millis(50);
    assert_eq!(w.store.admit(&call).await, Ok(Admission::New));
    let record = w.key("acme", &format!("idem:acme:{}", key.hash));
    let ttl = w.raw.run(&["PTTL", &record]).await.int();
    assert!(ttl > 55_000, "kept beyond the deadline: {ttl}");
    let mut closing = close(&*w.store, lead, Some(key.clone()), "answer");
    closing.retention = Duration::from_millis(50);
    assert_eq!(w.store.close(&closing).await, Ok(CloseReply::Closed));
    eventually("the answer is forgotten", || async { w.store.lead_state(&publisher(), lead).await == Ok(None) }).await;
    assert_eq!(w.store.admit(&admit(&*w.store, plain, Some(key))).await, Ok(Admission::New));
    let forever: Vec<String> = {
        let mut keys = Vec::new();
        for name in w.raw.keys_of(&w.prefix).await {
            if (name.contains(":idem:") || name.contains(":lead:")) && w.raw.run(&["PTTL", &name]).await.int() < 0 {
                keys.push(name);
            }
        }
        keys
    };
    assert_eq!(forever, Vec::<String>::new(), "everything about one lead has an expiry");
    w.stop().await;
}

#[tokio::test]
async fn a_lead_whose_key_went_to_another_lead_after_a_loss_keeps_an_answer_of_its_own() {
    let w = World::start().await;
    let (lost, second) = (LeadId::generate(), LeadId::generate());
    let key = Some(claim("k", None));
    assert_eq!(w.store.admit(&admit(&*w.store, second, key.clone())).await, Ok(Admission::New));
    assert_eq!(w.store.close(&close(&*w.store, lost, key.clone(), "lost")).await, Ok(CloseReply::Closed));
    let own = Bytes::from_static(b"lost");
    assert_eq!(w.store.close(&close(&*w.store, lost, key.clone(), "x")).await, Ok(CloseReply::Already(own.clone())));
    assert_eq!(w.store.lead_state(&publisher(), lost).await, Ok(Some(LeadState::Finished(own))));
    assert_eq!(w.store.lead_state(&publisher(), second).await, Ok(Some(LeadState::Running)));
    let third = admit(&*w.store, LeadId::generate(), key.clone());
    assert_eq!(w.store.admit(&third).await, Ok(Admission::Running(second)), "the key is the second lead's");
    assert_eq!(w.store.close(&close(&*w.store, second, key, "second")).await, Ok(CloseReply::Closed));
    w.stop().await;
}

#[tokio::test]
async fn f06_a_broken_key_admits_and_closes_nothing() {
    for tail in ["open", "open_info", "journal:1", "life"] {
        let mut w = World::start().await;
        let lead = LeadId::generate();
        assert_eq!(w.store.admit(&admit(&*w.store, lead, None)).await, Ok(Admission::New));
        let key = w.key("acme", tail);
        w.raw.run(&["DEL", &key]).await;
        w.raw.run(&["RPUSH", &key, "broken"]).await;
        let before = w.dump().await;
        let reply = w.store.admit(&admit(&*w.store, LeadId::generate(), Some(claim("k", None)))).await;
        assert!(matches!(reply, Err(StoreError::Bug(_))), "{tail}: {reply:?}");
        let reply = w.store.close(&close(&*w.store, lead, None, "x")).await;
        assert!(matches!(reply, Err(StoreError::Bug(_))), "{tail}: {reply:?}");
        assert_eq!(w.dump().await, before, "{tail}");
        w.stop().await;
    }
}

#[tokio::test]
async fn f42_keys_are_compared_byte_by_byte() {
    let w = World::start().await;
    for key in ["Key-A", "key-a", "Key-A ", "caf\u{e9}", "cafe\u{301}", "a|b", "a:b", "{p00}"] {
        let mut call = admit(&*w.store, LeadId::generate(), Some(claim(key, None)));
        // As it would stand there if somebody ever stopped hashing keys.
        call.event.claim.as_mut().unwrap().hash = key.to_owned();
        call.deadline = w.store.now() - SignedDuration::from_secs(1);
        assert_eq!(w.store.admit(&call).await, Ok(Admission::New), "{key:?}");
        let partition = start_mark(&*w.store, "acme").partition;
        let taken = w.store.claim_overdue_leads(partition, Duration::ZERO, Duration::from_secs(9), 10).await.unwrap();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].claim.as_ref().map(|claim| claim.hash.as_str()), Some(key));
        assert_eq!(w.store.lead_state(&publisher(), call.event.lead).await, Ok(Some(LeadState::Running)));
    }
    w.stop().await;
}

#[tokio::test]
async fn an_open_lead_without_a_publisher_is_passed_over() {
    let mut w = World::start().await;
    let (lost, kept) = (LeadId::generate(), LeadId::generate());
    for lead in [lost, kept] {
        let mut call = admit(&*w.store, lead, None);
        call.deadline = w.store.now() - SignedDuration::from_secs(1);
        assert_eq!(w.store.admit(&call).await, Ok(Admission::New));
    }
    let info = w.key("acme", "open_info");
    w.raw.run(&["HDEL", &info, &lost.to_string()]).await;
    let partition = start_mark(&*w.store, "acme").partition;
    let taken = w.store.claim_overdue_leads(partition, Duration::ZERO, Duration::from_mins(1), 10).await.unwrap();
    assert_eq!(taken.iter().map(|lead| lead.lead).collect::<Vec<_>>(), vec![kept]);
    w.stop().await;
}
