//! Admit, close, lead state.

use std::sync::Arc;

use bytes::Bytes;
use capgate::domain::id::{LeadId, PublisherId};
use capgate::store::{Admission, CloseReply, LeadState};
use jiff::SignedDuration;

use crate::store::Harness;
use crate::support::{admit, at_once, begin_lives, claim, close, eventually, publisher, start_mark};

pub async fn admit_answers_new_once_and_running_after<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (first, second) = (LeadId::generate(), LeadId::generate());
    let call = admit(&*store, first, Some(claim("k", Some("body"))));
    assert_eq!(store.admit(&call).await, Ok(Admission::New));
    assert_eq!(store.admit(&call).await, Ok(Admission::New), "a repeat of the very same call (F20)");
    let twin = admit(&*store, second, Some(claim("k", Some("body"))));
    assert_eq!(store.admit(&twin).await, Ok(Admission::Running(first)));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(1));
    let entries = store.read_journal(&start_mark(&*store, "acme"), 10).await.unwrap();
    assert_eq!(entries.len(), 1, "one received event, whatever was repeated");
    h.stop().await;
}

pub async fn admit_of_a_finished_key_answers_the_same_bytes<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (first, second) = (LeadId::generate(), LeadId::generate());
    let key = Some(claim("k", Some("body")));
    assert_eq!(store.admit(&admit(&*store, first, key.clone())).await, Ok(Admission::New));
    let answer = "{\"status\":\"unsold\",\n \"reason\":\"é\\u0000\"}";
    assert_eq!(store.close(&close(&*store, first, key.clone(), answer)).await, Ok(CloseReply::Closed));
    let finished = Ok(Admission::Finished(first, Bytes::from_static(answer.as_bytes())));
    assert_eq!(store.admit(&admit(&*store, second, key.clone())).await, finished);
    assert_eq!(store.admit(&admit(&*store, first, key)).await, finished);
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(0));
    h.stop().await;
}

pub async fn f39_key_with_another_body_is_refused<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let first = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, first, Some(claim("k", Some("body"))))).await, Ok(Admission::New));
    let other = admit(&*store, LeadId::generate(), Some(claim("k", Some("another"))));
    assert_eq!(store.admit(&other).await, Ok(Admission::KeyReused));
    // A key made from fields has no fingerprint: same fields, same lead, whatever else the body says.
    let without = admit(&*store, LeadId::generate(), Some(claim("k", None)));
    assert_eq!(store.admit(&without).await, Ok(Admission::Running(first)));
    assert_eq!(store.close(&close(&*store, first, Some(claim("k", Some("body"))), "x")).await, Ok(CloseReply::Closed));
    let other = admit(&*store, LeadId::generate(), Some(claim("k", Some("another"))));
    assert_eq!(store.admit(&other).await, Ok(Admission::KeyReused), "a finished key too");
    let (second, third) = (LeadId::generate(), LeadId::generate());
    assert_eq!(store.admit(&admit(&*store, second, Some(claim("fields", None)))).await, Ok(Admission::New));
    let with = admit(&*store, third, Some(claim("fields", Some("body"))));
    assert_eq!(store.admit(&with).await, Ok(Admission::Running(second)));
    h.stop().await;
}

pub async fn f39_keys_of_two_publishers_are_strangers<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (first, second) = (LeadId::generate(), LeadId::generate());
    assert_eq!(store.admit(&admit(&*store, first, Some(claim("k", None)))).await, Ok(Admission::New));
    let mut other = admit(&*store, second, Some(claim("k", None)));
    other.event.publisher = PublisherId::new("other").unwrap();
    assert_eq!(store.admit(&other).await, Ok(Admission::New));
    assert_eq!(store.lead_state(&publisher(), second).await, Ok(None), "leads are known to their publisher only");
    assert_eq!(store.lead_state(&other.event.publisher, second).await, Ok(Some(LeadState::Running)));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(2));
    h.stop().await;
}

pub async fn admit_without_a_key_is_named_by_its_lead<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (first, second) = (LeadId::generate(), LeadId::generate());
    let call = admit(&*store, first, None);
    assert_eq!(store.admit(&call).await, Ok(Admission::New));
    assert_eq!(store.admit(&call).await, Ok(Admission::New));
    assert_eq!(store.admit(&admit(&*store, second, None)).await, Ok(Admission::New));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(2));
    assert_eq!(store.close(&close(&*store, first, None, "done")).await, Ok(CloseReply::Closed));
    assert_eq!(store.admit(&call).await, Ok(Admission::Finished(first, Bytes::from_static(b"done"))));
    h.stop().await;
}

pub async fn admit_after_its_time_changes_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    let mut late = admit(&*store, lead, Some(claim("k", None)));
    late.not_after = store.now() - SignedDuration::from_secs(2);
    assert_eq!(store.admit(&late).await, Ok(Admission::TooLate));
    assert_eq!(store.lead_state(&publisher(), lead).await, Ok(None));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(0));
    assert_eq!(store.read_journal(&start_mark(&*store, "acme"), 10).await.unwrap(), vec![]);
    let other = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, other, Some(claim("k", None)))).await, Ok(Admission::New));
    h.stop().await;
}

pub async fn f37_twins_get_one_lead<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let answers = at_once(100, |_| {
        let store = Arc::clone(&store);
        async move {
            let lead = LeadId::generate();
            let call = admit(&*store, lead, Some(claim("k", Some("body"))));
            (lead, store.admit(&call).await.unwrap())
        }
    })
    .await;
    let winners: Vec<LeadId> = answers.iter().filter(|(_, a)| *a == Admission::New).map(|(lead, _)| *lead).collect();
    assert_eq!(winners.len(), 1, "one chain only");
    for (lead, answer) in answers {
        if lead != winners[0] {
            assert_eq!(answer, Admission::Running(winners[0]));
        }
    }
    assert_eq!(store.read_journal(&start_mark(&*store, "acme"), 200).await.unwrap().len(), 1);
    h.stop().await;
}

pub async fn f76_full_journal_admits_nothing_until_trimmed<H: Harness>() {
    let h = H::start_with(3).await;
    let store = h.store();
    begin_lives(&*store).await;
    let mut admitted = 0;
    // A store may count now and then only: health makes it count.
    loop {
        store.health().await.unwrap();
        let lead = LeadId::generate();
        match store.admit(&admit(&*store, lead, None)).await.unwrap() {
            Admission::New => admitted += 1,
            Admission::JournalFull => {
                assert_eq!(store.lead_state(&publisher(), lead).await, Ok(None));
                break;
            }
            other => panic!("{other:?}"),
        }
        assert!(admitted < 50, "the limit of 3 entries was never noticed");
    }
    assert!(admitted >= 3);
    let mut mark = start_mark(&*store, "acme");
    mark.entry = store.journal_tip(mark.partition).await.unwrap();
    store.trim_journal(&mark).await.unwrap();
    eventually("room after settlement", || async {
        store.health().await.unwrap();
        store.admit(&admit(&*store, LeadId::generate(), None)).await == Ok(Admission::New)
    })
    .await;
    h.stop().await;
}

pub async fn p3_close_is_won_by_the_first<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    let key = Some(claim("k", None));
    assert_eq!(store.admit(&admit(&*store, lead, key.clone())).await, Ok(Admission::New));
    assert_eq!(store.close(&close(&*store, lead, key.clone(), "first")).await, Ok(CloseReply::Closed));
    let first = Ok(CloseReply::Already(Bytes::from_static(b"first")));
    assert_eq!(store.close(&close(&*store, lead, key.clone(), "second")).await, first);
    assert_eq!(store.close(&close(&*store, lead, key, "first")).await, first);
    assert_eq!(store.read_journal(&start_mark(&*store, "acme"), 10).await.unwrap().len(), 2);
    h.stop().await;
}

pub async fn p3_close_race_has_one_winner<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
    let answers = at_once(32, |index| {
        let store = Arc::clone(&store);
        async move {
            let answer = format!("answer {index}");
            let reply = store.close(&close(&*store, lead, None, &answer)).await.unwrap();
            (answer, reply)
        }
    })
    .await;
    let winners: Vec<&String> =
        answers.iter().filter(|(_, reply)| *reply == CloseReply::Closed).map(|(answer, _)| answer).collect();
    assert_eq!(winners.len(), 1);
    let won = Bytes::from(winners[0].clone());
    for (answer, reply) in &answers {
        if answer != winners[0] {
            assert_eq!(*reply, CloseReply::Already(won.clone()));
        }
    }
    h.stop().await;
}

pub async fn close_of_an_unknown_lead_is_kept<H: Harness>() {
    // A lead whose claim was lost with an older life is closed by recovery all the same.
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    let key = Some(claim("k", Some("body")));
    assert_eq!(store.close(&close(&*store, lead, key.clone(), "late")).await, Ok(CloseReply::Closed));
    let late = Bytes::from_static(b"late");
    assert_eq!(store.lead_state(&publisher(), lead).await, Ok(Some(LeadState::Finished(late.clone()))));
    assert_eq!(store.admit(&admit(&*store, LeadId::generate(), key)).await, Ok(Admission::Finished(lead, late)));
    h.stop().await;
}

pub async fn lead_state_tells_what_is_remembered<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    assert_eq!(store.lead_state(&publisher(), lead).await, Ok(None));
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
    assert_eq!(store.lead_state(&publisher(), lead).await, Ok(Some(LeadState::Running)));
    assert_eq!(store.close(&close(&*store, lead, None, "done")).await, Ok(CloseReply::Closed));
    let done = Some(LeadState::Finished(Bytes::from_static(b"done")));
    assert_eq!(store.lead_state(&publisher(), lead).await, Ok(done));
    h.stop().await;
}
