//! What recovery asks of a store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use capgate::domain::event::{Event, ParkedLead};
use capgate::domain::id::LeadId;
use capgate::domain::lease::LeaseKey;
use capgate::store::{Admission, EndReply, MoveDeadline, OverdueLead};
use jiff::{SignedDuration, Timestamp};

use crate::store::Harness;
use crate::support::{
    Verb, admit, at_once, begin_lives, buyer, candidate, claim, close, demand, end, eventually, publisher,
    running_window, seed, start_mark, take_one, used,
};

pub async fn overdue_leases_are_listed_oldest_first<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let partition = start_mark(&*store, "sunco").partition;
    let mut wanted = candidate(&who, vec![demand("day", window, 50)]);
    let leads: Vec<LeadId> = (0..4).map(|_| LeadId::generate()).collect();
    let before = store.now();
    for (lead, lease_ms) in leads.iter().zip([300, 200, 100, 60_000]) {
        wanted.lease_for = Duration::from_millis(lease_ms);
        assert_eq!(take_one(&*store, *lead, &wanted).await, Ok(()));
    }
    let list = || async { store.overdue_leases(partition, 10).await.unwrap() };
    eventually("three leases are overdue", || async { list().await.len() == 3 }).await;
    let overdue = list().await;
    let keys: Vec<LeadId> = overdue.iter().map(|lease| lease.key.lead).collect();
    assert_eq!(keys, vec![leads[2], leads[1], leads[0]]);
    for lease in &overdue {
        assert_eq!(lease.key.buyer, who);
        assert_eq!(lease.charges, vec![wanted.demands[0].charge.clone()]);
        assert_eq!(lease.about, wanted.about);
        assert!(lease.taken_at >= before - SignedDuration::from_secs(1) && lease.deadline > lease.taken_at);
        assert!(lease.deadline <= store.now() + SignedDuration::from_secs(1));
        assert!(!lease.gives_back);
    }
    assert_eq!(store.overdue_leases(partition, 2).await.unwrap().len(), 2);
    assert_eq!(store.open_leases(partition, 10).await.unwrap().len(), 4);
    assert_eq!(store.open_leases(partition, 3).await.unwrap().len(), 3);
    assert_eq!(used(&*store, &who, "day", window).await, Some(4), "being overdue gives nothing back");
    assert_eq!(store.doubt(&end(Verb::Doubt, leads[2], &wanted)).await, Ok(EndReply::Done));
    assert_eq!(list().await.len(), 2);
    assert_eq!(store.open_leases(partition, 10).await.unwrap().len(), 3);
    h.stop().await;
}

pub async fn f09_two_leads_of_a_moment_hold_two_leases<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50)]);
    let leads = at_once(20, |_| {
        let (store, wanted) = (Arc::clone(&store), wanted.clone());
        async move {
            let lead = LeadId::generate();
            take_one(&*store, lead, &wanted).await.unwrap();
            lead
        }
    })
    .await;
    assert_eq!(used(&*store, &who, "day", window).await, Some(20));
    for lead in leads {
        assert_eq!(store.refund(&end(Verb::Refund, lead, &wanted)).await, Ok(EndReply::Done));
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(0));
    h.stop().await;
}

pub async fn give_back_is_remembered<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let who = buyer("sunco");
    let partition = start_mark(&*store, "sunco").partition;
    let wanted = candidate(&who, vec![]);
    let (marked, plain) = (LeadId::generate(), LeadId::generate());
    for lead in [marked, plain] {
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    }
    let key = LeaseKey { lead: marked, buyer: who.clone() };
    for _ in 0..2 {
        assert_eq!(store.give_back_at_deadline(&key).await, Ok(()));
    }
    for lease in store.open_leases(partition, 10).await.unwrap() {
        assert_eq!(lease.gives_back, lease.key.lead == marked);
    }
    // Of a lease that has ended or never was: nothing to remember.
    assert_eq!(store.refund(&end(Verb::Refund, plain, &wanted)).await, Ok(EndReply::Done));
    for lead in [plain, LeadId::generate()] {
        assert_eq!(store.give_back_at_deadline(&LeaseKey { lead, buyer: who.clone() }).await, Ok(()));
    }
    assert_eq!(store.open_leases(partition, 10).await.unwrap().len(), 1);
    h.stop().await;
}

pub async fn overdue_leads_are_claimed_once<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let partition = start_mark(&*store, "acme").partition;
    let mut admitted = HashMap::new();
    for number in 0..50 {
        let (lead, key) = (LeadId::generate(), (number % 2 == 0).then(|| claim(&format!("k{number}"), Some("b"))));
        let mut call = admit(&*store, lead, key);
        call.deadline = store.now() - SignedDuration::from_secs(10);
        assert_eq!(store.admit(&call).await, Ok(Admission::New));
        admitted.insert(lead, call.event.claim);
    }
    let running = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, running, None)).await, Ok(Admission::New));
    let closed = LeadId::generate();
    let mut call = admit(&*store, closed, None);
    call.deadline = store.now() - SignedDuration::from_secs(10);
    assert_eq!(store.admit(&call).await, Ok(Admission::New));
    store.close(&close(&*store, closed, None, "done")).await.unwrap();

    let claimed: Vec<Vec<OverdueLead>> = at_once(8, |_| {
        let store = Arc::clone(&store);
        async move {
            let mut mine = Vec::new();
            loop {
                let more = store
                    .claim_overdue_leads(partition, Duration::from_secs(2), Duration::from_mins(1), 5)
                    .await
                    .unwrap();
                assert!(more.len() <= 5);
                if more.is_empty() {
                    return mine;
                }
                mine.extend(more);
                assert!(mine.len() <= 50, "a claimed lead is given again and again");
            }
        }
    })
    .await;
    let claimed: Vec<OverdueLead> = claimed.into_iter().flatten().collect();
    assert_eq!(claimed.len(), 50, "each to one caller, none left");
    for lead in claimed {
        assert_eq!(lead.publisher, publisher());
        assert_eq!(admitted.remove(&lead.lead), Some(lead.claim), "given twice, or with another claim");
    }
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(51));
    h.stop().await;
}

pub async fn overdue_leads_wait_for_the_grace<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let partition = start_mark(&*store, "acme").partition;
    let lead = LeadId::generate();
    let mut call = admit(&*store, lead, None);
    call.deadline = store.now() - SignedDuration::from_secs(10);
    assert_eq!(store.admit(&call).await, Ok(Admission::New));
    let claim_after = |grace_s, extend_ms| {
        let (grace, extend) = (Duration::from_secs(grace_s), Duration::from_millis(extend_ms));
        let store = Arc::clone(&store);
        async move { store.claim_overdue_leads(partition, grace, extend, 10).await.unwrap().len() }
    };
    assert_eq!(claim_after(60, 100).await, 0);
    assert_eq!(claim_after(2, 100).await, 1);
    // The extension runs out like the first deadline did.
    eventually("the lead is overdue again", || async { claim_after(0, 60_000).await == 1 }).await;
    assert_eq!(claim_after(0, 60_000).await, 0);
    h.stop().await;
}

/// A lead that waits for its buyer is nobody's to take over before its time, and whoever ends the wait moves only that deadline.
pub async fn p4_a_parked_lead_is_taken_over_only_when_its_wait_is_over<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let mark = start_mark(&*store, "acme");
    let lead = LeadId::generate();
    let at = |ms: i64| {
        Timestamp::from_millisecond((store.now() + SignedDuration::from_millis(ms)).as_millisecond()).unwrap()
    };
    let moved = |from, to, event| MoveDeadline { lead, publisher: publisher(), from, to, event };
    assert_eq!(store.move_deadline(&moved(None, at(0), None)).await, Ok(false), "not known");
    let mut call = admit(&*store, lead, None);
    call.deadline = store.now() - SignedDuration::from_secs(10);
    assert_eq!(store.admit(&call).await, Ok(Admission::New));

    let (until, soon) = (at(600_000), at(5_000));
    let event = ParkedLead { lead, publisher: publisher(), explanation: "{\"a\":1}".into() };
    assert_eq!(store.move_deadline(&moved(None, until, Some(event.clone()))).await, Ok(true));
    let claim = async || {
        let hour = Duration::from_hours(1);
        store.claim_overdue_leads(mark.partition, Duration::from_secs(2), hour, 10).await.unwrap().len()
    };
    assert_eq!(claim().await, 0, "it waits");
    let told: Vec<Event> =
        store.read_journal(&mark, 10).await.unwrap().iter().map(|e| Event::from_bytes(&e.bytes).unwrap()).collect();
    assert_eq!(told.last(), Some(&Event::Parked(event)));

    assert_eq!(store.move_deadline(&moved(Some(soon), at(0), None)).await, Ok(false), "its deadline is another one");
    assert_eq!(claim().await, 0);
    assert_eq!(store.move_deadline(&moved(Some(until), soon, None)).await, Ok(true));
    assert_eq!(store.move_deadline(&moved(Some(until), soon, None)).await, Ok(true), "a repeat");
    let past = at(-2_000);
    let races = at_once(8, |_| {
        let (store, call) = (Arc::clone(&store), moved(Some(soon), past, None));
        async move { store.move_deadline(&call).await.unwrap() }
    });
    assert!(races.await.into_iter().any(|is_moved| is_moved));
    assert_eq!(claim().await, 1);
    // A lead that has gone on is let alone by whoever comes late.
    for from in [until, soon] {
        assert_eq!(store.move_deadline(&moved(Some(from), past, None)).await, Ok(false));
    }
    assert_eq!(claim().await, 0);
    store.close(&close(&*store, lead, None, "done")).await.unwrap();
    assert_eq!(store.move_deadline(&moved(None, past, None)).await, Ok(false), "it has its answer");
    assert_eq!(claim().await, 0);
    h.stop().await;
}
