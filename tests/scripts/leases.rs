//! Leases: end marks, versions, long lists of candidates, strays.

use std::time::Duration;

use bytes::Bytes;
use capgate::domain::event::{Event, Life, Mark};
use capgate::domain::id::LeadId;
use capgate::domain::lease::EndMark;
use capgate::store::{Admission, BeginReply, CloseReply, EndReply, Refusal, SeedReply, Store, StoreError};

use crate::lives::begin_closed;
use crate::redis_support::Raw;
use crate::support::{
    Verb, admit, buyer, candidate, cap, close, demand, end, end_with_amounts, eventually, money_demand, running_window,
    seed, start_mark, take, take_one, used,
};
use crate::world::World;

#[tokio::test]
async fn f03_without_record_or_mark_nothing_is_touched() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 3)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let other = LeadId::generate();
    assert_eq!(
        take_one(&*w.store, other, &wanted).await,
        Ok(()),
        "another lease is open, to make a wrong step visible"
    );
    let lead = LeadId::generate();
    let before = w.dump().await;
    for verb in Verb::ALL {
        assert_eq!(verb.call(&*w.store, &end(verb, lead, &wanted)).await, EndReply::Missing);
    }
    w.store.give_back_at_deadline(&end(Verb::Refund, lead, &wanted).key).await.unwrap();
    assert_eq!(w.dump().await, before);

    // An end mark that has expired is no mark.
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    assert_eq!(w.store.refund(&end(Verb::Refund, lead, &wanted)).await, Ok(EndReply::Done));
    let mark = w.key("sunco", &format!("lease:{lead}:sunco"));
    let ttl = w.raw.run(&["PTTL", &mark]).await.int();
    assert!(ttl > 590_000 && ttl <= 600_000, "{ttl}");
    w.raw.run(&["DEL", &mark]).await;
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Missing));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(4));
    w.stop().await;
}

#[tokio::test]
async fn ends_that_contradict_their_lease_are_a_bug_and_move_nothing() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0), ("spend", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 40, 100)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    let before = w.dump().await;
    let other = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 41, 100)]);
    let fewer = candidate(&who, vec![demand("day", window, 9)]);
    let mut swapped = end(Verb::Commit, lead, &wanted);
    swapped.event.windows.reverse();
    let mut unfinished = end(Verb::Commit, lead, &wanted);
    unfinished.event.windows.clear();
    for call in [end(Verb::Commit, lead, &other), end(Verb::Commit, lead, &fewer), swapped, unfinished] {
        assert!(matches!(w.store.commit(&call).await, Err(StoreError::Bug(_))));
    }
    let doubt = end_with_amounts(Verb::Doubt, lead, &wanted, &[1, 25]);
    assert!(matches!(w.store.doubt(&doubt).await, Err(StoreError::Bug(_))));
    let (due, journal) = (w.key("sunco", "due"), w.key("sunco", "journal:1"));
    for broken in [due, journal] {
        let kept = w.raw.run(&["DUMP", &broken]).await;
        w.raw.run(&["RENAME", &broken, &format!("{}:kept", w.prefix)]).await;
        w.raw.run(&["SET", &broken, "broken"]).await;
        let during = w.dump().await;
        for verb in [Verb::Commit, Verb::Refund] {
            let call = end(verb, lead, &wanted);
            let reply = if verb == Verb::Commit { w.store.commit(&call).await } else { w.store.refund(&call).await };
            assert!(matches!(reply, Err(StoreError::Bug(_))), "{broken}: {reply:?}");
        }
        assert_eq!(w.dump().await, during, "{broken}");
        w.raw.run(&["DEL", &broken]).await;
        if kept != Raw::Nil {
            w.raw.run(&["RENAME", &format!("{}:kept", w.prefix), &broken]).await;
        }
    }
    assert_eq!(w.dump().await, before);
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    w.stop().await;
}

/// P1: an operator's "accepted" that comes after another one's "declined" writes nothing at all; one that came first leaves the
/// "declined" nothing to give back.
#[tokio::test]
async fn p1_of_confirm_and_refund_the_second_writes_nothing() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let (given_back, kept) = (LeadId::generate(), LeadId::generate());
    for lead in [given_back, kept] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
        assert_eq!(w.store.doubt(&end(Verb::Doubt, lead, &wanted)).await, Ok(EndReply::Done));
    }
    let refunded = w.store.refund(&end(Verb::Refund, given_back, &wanted)).await;
    assert_eq!(refunded, Ok(EndReply::Late { was: EndMark::Doubt, counters: vec![] }));
    let before = w.dump().await;
    let late = w.store.confirm(&end(Verb::Commit, given_back, &wanted)).await;
    assert_eq!(late, Ok(EndReply::Already(EndMark::Refunded)));
    assert_eq!(w.dump().await, before);
    let confirmed = w.store.confirm(&end(Verb::Commit, kept, &wanted)).await;
    assert_eq!(confirmed, Ok(EndReply::Late { was: EndMark::Doubt, counters: vec![] }));
    let name = w.key("sunco", &format!("lease:{kept}:sunco"));
    let mark = w.raw.run(&["GET", &name]).await;
    assert!(mark.text().starts_with("committed|") && mark.text().ends_with("|doubt|"), "{mark:?}");
    let after = w.dump().await;
    let again = w.store.refund(&end(Verb::Refund, kept, &wanted)).await;
    assert_eq!(again, Ok(EndReply::Already(EndMark::Committed)));
    assert_eq!(w.dump().await, after);
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(1));
    w.stop().await;
}

#[tokio::test]
async fn f86_a_newer_routing_counts_from_its_first_use_even_when_it_was_refused() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 50)]).await;
    let (mut old, mut new) =
        (candidate(&who, vec![demand("day", window, 100)]), candidate(&who, vec![demand("day", window, 50)]));
    old.routing_version = 9;
    new.routing_version = 10;
    assert_eq!(take_one(&*w.store, LeadId::generate(), &old).await, Ok(()));
    assert!(matches!(take_one(&*w.store, LeadId::generate(), &new).await, Err(Refusal::Full { .. })));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &old).await, Err(Refusal::Stale { newest: 10 }));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(51));
    w.stop().await;
}

#[tokio::test]
async fn f20_a_repeat_of_a_long_list_finds_its_lease_whatever_call_it_was_in() {
    // More candidates than one script call is given.
    let w = World::start().await;
    let window = running_window(w.store.now());
    let mut candidates = Vec::new();
    for number in 0..70 {
        let who = buyer(&format!("b{number}"));
        seed(&*w.store, &who, &[("day", window, 0)]).await;
        let limit = u64::from(number >= 50);
        candidates.push(candidate(&who, vec![demand("day", window, limit)]));
    }
    let lead = LeadId::generate();
    let call = take(&*w.store, lead, candidates.clone());
    let first = w.store.take(&call).await.unwrap();
    assert_eq!(first.taken, Some(50));
    assert_eq!(first.refused.iter().map(|(index, _)| *index).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    assert!(first.refused.iter().all(|(_, why)| matches!(why, Refusal::Full { used: 0, .. })));
    // The first of the list has room by now.
    candidates[0].demands[0].limit = 5;
    let again = w.store.take(&take(&*w.store, lead, candidates)).await.unwrap();
    assert_eq!(again, first, "the same lease, and the same reasons");
    let mut open = 0;
    for partition in 0..w.store.partitions() {
        open += w.store.open_leases(capgate::domain::id::Partition(partition), 100).await.unwrap().len();
    }
    assert_eq!(open, 1);
    w.stop().await;
}

#[tokio::test]
async fn a_list_without_room_is_refused_in_full() {
    let w = World::start().await;
    let window = running_window(w.store.now());
    let mut candidates = Vec::new();
    for number in 0..40 {
        let who = buyer(&format!("b{number}"));
        seed(&*w.store, &who, &[("day", window, 1)]).await;
        candidates.push(candidate(&who, vec![demand("day", window, 1)]));
    }
    let reply = w.store.take(&take(&*w.store, LeadId::generate(), candidates)).await.unwrap();
    assert_eq!((reply.taken, reply.too_late, reply.refused.len()), (None, false, 40));
    let nobody = w.store.take(&take(&*w.store, LeadId::generate(), vec![])).await.unwrap();
    assert_eq!((nobody.taken, nobody.too_late, nobody.refused.len()), (None, false, 0));
    w.stop().await;
}

#[tokio::test]
async fn a_name_whose_lease_was_lost_does_not_stand_before_the_others() {
    let mut w = World::start().await;
    let who = buyer("sunco");
    let mut wanted = candidate(&who, vec![]);
    wanted.lease_for = Duration::from_millis(1);
    let (lost, kept) = (LeadId::generate(), LeadId::generate());
    assert_eq!(take_one(&*w.store, lost, &wanted).await, Ok(()));
    assert_eq!(take_one(&*w.store, kept, &wanted).await, Ok(()));
    let leases = w.key("sunco", "leases:sunco");
    w.raw.run(&["HDEL", &leases, &lost.to_string()]).await;
    let partition = start_mark(&*w.store, "sunco").partition;
    eventually("the lease that is left comes up", || async {
        let overdue = w.store.overdue_leases(partition, 1).await.unwrap();
        overdue.len() == 1 && overdue[0].key.lead == kept
    })
    .await;
    w.stop().await;
}

#[tokio::test]
async fn commit_and_close_may_lie_in_two_partitions_and_are_told_apart_when_repeated() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    assert_ne!(start_mark(&*w.store, "sunco").partition, start_mark(&*w.store, "acme").partition);
    let lead = LeadId::generate();
    let call = (admit(&*w.store, lead, None), take(&*w.store, lead, vec![wanted.clone()]));
    let (_, taken) = w.store.admit_and_take(&call.0, &call.1).await.unwrap();
    assert_eq!(taken.unwrap().taken, Some(0));
    let (commit, answer) = (end(Verb::Commit, lead, &wanted), close(&*w.store, lead, None, "sold"));
    let done = w.store.commit_and_close(&commit, &answer).await.unwrap();
    assert_eq!(done, (EndReply::Done, Some(CloseReply::Closed)));
    let again = w.store.commit_and_close(&commit, &answer).await.unwrap();
    assert_eq!(again, (EndReply::Already(EndMark::Committed), None));
    w.stop().await;
}

/// P6: another walk has answered the lead meanwhile. This yes counts and books nothing, also when it is told again after a
/// loss.
#[tokio::test]
async fn p6_a_commit_of_a_lead_that_has_its_answer_writes_the_late_event() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let lead = LeadId::generate();
    assert_eq!(w.store.admit(&admit(&*w.store, lead, None)).await, Ok(Admission::New));
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    assert_eq!(w.store.close(&close(&*w.store, lead, None, "theirs")).await, Ok(CloseReply::Closed));
    let commit = end(Verb::Commit, lead, &wanted);
    let both = w.store.commit_and_close(&commit, &close(&*w.store, lead, None, "ours")).await;
    assert_eq!(both, Ok((EndReply::Done, Some(CloseReply::Already(Bytes::from_static(b"theirs"))))));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(1));
    let mark = start_mark(&*w.store, "sunco");
    let attempts = async |mark: &Mark| -> Vec<Event> {
        let entries = w.store.read_journal(mark, 10).await.unwrap();
        entries.iter().map(|entry| Event::from_bytes(&entry.bytes).unwrap()).collect()
    };
    let late = vec![Event::Attempt(commit.late_event.clone())];
    assert_ne!(commit.event, commit.late_event);
    assert_eq!(attempts(&mark).await, late);

    w.raw.delete_all_of(&w.prefix).await;
    begin_closed(&*w.store, mark.partition, Life(2)).await;
    w.store.join(&[(mark.partition, Life(2))]).await.unwrap();
    assert_eq!(attempts(&Mark { life: Life(2), ..mark }).await, late);
    w.stop().await;
}

/// P2: the books know how a lease ended whose owner was cut off from the answer. Under the next life it is not restated, and
/// ended once more it moves no unit.
#[tokio::test]
async fn p2_a_lease_that_the_books_know_is_not_restated() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let (known, open) = (LeadId::generate(), LeadId::generate());
    for lead in [known, open] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    let (partition, life) = (start_mark(&*w.store, "sunco").partition, Life(2));
    assert_eq!(w.store.held_leases(&[partition]).len(), 2);
    assert_eq!(w.store.held_leases(&[start_mark(&*w.store, "helio").partition]), vec![]);
    let server = w.store.standing(partition).await.unwrap().server;
    assert_eq!(w.store.begin_life(partition, life, &server).await, Ok(BeginReply::Life(life)));
    let key = end(Verb::Commit, known, &wanted).key;
    w.store.forget_lease(life, &key).await.unwrap();
    w.store.let_lease_go(&key);
    w.store.join(&[(partition, life)]).await.unwrap();
    let leases = w.store.open_leases(partition, 9).await.unwrap();
    assert_eq!(leases.iter().map(|lease| lease.key.lead).collect::<Vec<_>>(), [open]);
    assert_eq!(w.store.commit(&end(Verb::Commit, known, &wanted)).await, Ok(EndReply::Missing));
    assert_eq!(w.store.open_life(partition, life).await, Ok(true));
    let mark = Mark { life, ..start_mark(&*w.store, "sunco") };
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 1)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(2), "what the books know, and the open lease");
    w.stop().await;
}
