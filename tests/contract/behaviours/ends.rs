//! Commit, refund, doubt.

use std::sync::Arc;

use bytes::Bytes;
use capgate::domain::event::{Closed, Event, WindowAmount};
use capgate::domain::id::LeadId;
use capgate::domain::lease::EndMark;
use capgate::domain::outcome::LeadStatus;
use capgate::store::{Admission, CloseReply, EndReply, LeadState};
use jiff::SignedDuration;

use crate::store::Harness;
use crate::support::{
    Verb, admit, at_once, begin_lives, buyer, candidate, close, demand, end, end_with_amounts, money_demand, publisher,
    running_window, seed, start_mark, take_one, used,
};

/// What a verb answers in a state, and whether the unit counts afterwards.
#[allow(clippy::match_same_arms, reason = "a table, one line per case")]
fn expected(state: &[Verb], verb: Verb) -> (EndReply, bool) {
    use EndMark::{Committed, Doubt, Refunded};
    // Seeded with 10 and 0.
    let late = |was| EndReply::Late { was, counters: if was == Refunded { vec![11, 1] } else { Vec::new() } };
    match (state, verb) {
        ([], Verb::Commit | Verb::Doubt) => (EndReply::Done, true),
        ([], Verb::Refund) => (EndReply::Done, false),
        ([Verb::Commit], _) => (EndReply::Already(Committed), true),
        ([Verb::Refund], Verb::Commit) => (late(Refunded), true),
        ([Verb::Refund], _) => (EndReply::Already(Refunded), false),
        ([Verb::Doubt], Verb::Commit) => (late(Doubt), true),
        ([Verb::Doubt], Verb::Refund) => (late(Doubt), false),
        ([Verb::Doubt], Verb::Doubt) => (EndReply::Already(Doubt), true),
        ([Verb::Doubt, Verb::Refund], Verb::Commit) => (late(Refunded), true),
        ([Verb::Doubt, Verb::Refund], _) => (EndReply::Already(Refunded), false),
        ([Verb::Refund | Verb::Doubt, Verb::Commit], _) => (EndReply::Already(Committed), true),
        other => unreachable!("{other:?} is not in the table"),
    }
}

pub async fn ends_of_a_lease_in_every_state<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let states: [&[Verb]; 7] = [
        &[],
        &[Verb::Commit],
        &[Verb::Refund],
        &[Verb::Doubt],
        &[Verb::Doubt, Verb::Refund],
        &[Verb::Doubt, Verb::Commit],
        &[Verb::Refund, Verb::Commit],
    ];
    for (number, (state, verb)) in
        states.iter().flat_map(|state| Verb::ALL.into_iter().map(move |verb| (state, verb))).enumerate()
    {
        let who = buyer(&format!("b{number}"));
        seed(&*store, &who, &[("day", window, 10), ("total", window, 0)]).await;
        let wanted = candidate(&who, vec![demand("day", window, 11), demand("total", window, 1)]);
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        for (depth, before) in state.iter().enumerate() {
            let (reply, _) = expected(&state[..depth], *before);
            assert_eq!(before.call(&*store, &end(*before, lead, &wanted)).await, reply);
        }
        let mark = start_mark(&*store, who.as_str());
        let entries_before = store.read_journal(&mark, 10_000).await.unwrap();
        let wanted_end = end(verb, lead, &wanted);
        let (reply, counts) = expected(state, verb);
        assert_eq!(verb.call(&*store, &wanted_end).await, reply, "{verb:?} after {state:?}");
        let left = u64::from(counts);
        assert_eq!(used(&*store, &who, "day", window).await, Some(10 + left), "{verb:?} after {state:?}");
        assert_eq!(used(&*store, &who, "total", window).await, Some(left), "{verb:?} after {state:?}");
        let entries = store.read_journal(&mark, 10_000).await.unwrap();
        let appended: Vec<Event> =
            entries[entries_before.len()..].iter().map(|e| Event::from_bytes(&e.bytes).unwrap()).collect();
        match reply {
            EndReply::Done => assert_eq!(appended, vec![Event::Attempt(wanted_end.event)]),
            EndReply::Late { .. } => assert_eq!(appended, vec![Event::Attempt(wanted_end.late_event)]),
            EndReply::Already(_) | EndReply::Missing => assert_eq!(appended, vec![]),
        }
    }
    // Neither record nor mark.
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 3)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 11)]);
    for verb in Verb::ALL {
        let unknown = LeadId::generate();
        assert_eq!(verb.call(&*store, &end(verb, unknown, &wanted)).await, EndReply::Missing);
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(3));
    h.stop().await;
}

pub async fn f20_ends_repeated_change_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50)]);
    for verb in Verb::ALL {
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        assert_eq!(verb.call(&*store, &end(verb, lead, &wanted)).await, EndReply::Done);
        let after = used(&*store, &who, "day", window).await;
        for _ in 0..3 {
            assert_eq!(verb.call(&*store, &end(verb, lead, &wanted)).await, EndReply::Already(verb.mark()));
        }
        assert_eq!(used(&*store, &who, "day", window).await, after);
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(2));
    assert_eq!(store.read_journal(&start_mark(&*store, "sunco"), 10).await.unwrap().len(), 3);
    h.stop().await;
}

pub async fn f02_double_refund_lowers_once<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    // Other leases stay open, so that a wrong count shows as a positive number.
    for _ in 0..60 {
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()));
    }
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    let replies = at_once(50, |_| {
        let (store, refund) = (Arc::clone(&store), end(Verb::Refund, lead, &wanted));
        async move { store.refund(&refund).await.unwrap() }
    })
    .await;
    assert_eq!(replies.iter().filter(|reply| **reply == EndReply::Done).count(), 1);
    assert_eq!(replies.iter().filter(|reply| **reply == EndReply::Already(EndMark::Refunded)).count(), 49);
    assert_eq!(used(&*store, &who, "day", window).await, Some(60));
    h.stop().await;
}

pub async fn f02_racing_ends_have_one_winner<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    for round in 1..=20 {
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        let replies = at_once(12, |index| {
            let verb = Verb::ALL[index % 3];
            let (store, wanted_end) = (Arc::clone(&store), end(verb, lead, &wanted));
            async move { verb.call(&*store, &wanted_end).await }
        })
        .await;
        assert_eq!(replies.iter().filter(|reply| **reply == EndReply::Done).count(), 1);
        assert!(!replies.contains(&EndReply::Missing));
        // There was a commit among them, and nothing takes a commit back.
        assert_eq!(used(&*store, &who, "day", window).await, Some(round));
    }
    h.stop().await;
}

pub async fn money_is_corrected_at_the_commit<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0), ("spend", window, 10)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 40, 100)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(50));
    let commit = end_with_amounts(Verb::Commit, lead, &wanted, &[1, 25]);
    assert_eq!(store.commit(&commit).await, Ok(EndReply::Done));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(35));
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    let refunded = LeadId::generate();
    assert_eq!(take_one(&*store, refunded, &wanted).await, Ok(()));
    assert_eq!(store.refund(&end(Verb::Refund, refunded, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(35));
    let late = end_with_amounts(Verb::Commit, refunded, &wanted, &[1, 20]);
    let counters = vec![2, 55];
    assert_eq!(store.commit(&late).await, Ok(EndReply::Late { was: EndMark::Refunded, counters }));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(55), "a late yes is charged what it books");
    h.stop().await;
}

pub async fn late_commit_after_a_doubt_is_not_counted_twice<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0), ("spend", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 40, 100)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    assert_eq!(store.doubt(&end(Verb::Doubt, lead, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(40));
    let late = end_with_amounts(Verb::Commit, lead, &wanted, &[1, 25]);
    assert_eq!(store.commit(&late).await, Ok(EndReply::Late { was: EndMark::Doubt, counters: Vec::new() }));
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(25), "corrected to what was booked");
    h.stop().await;
}

/// Recovery took the owner for dead and kept the unit as a doubt; the owner was only asleep, and its time-out must not give
/// the unit back: the buyer may have the lead.
pub async fn p1_an_owner_that_wakes_up_cannot_expire_a_doubt<H: Harness>() {
    let harness = H::start().await;
    let store = harness.store();
    begin_lives(&*store).await;
    let wanted = candidate(&buyer("sunco"), vec![demand("day", running_window(store.now()), 5)]);
    seed(&*store, &wanted.buyer, &[("day", wanted.demands[0].charge.window, 0)]).await;
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    assert_eq!(store.doubt(&end(Verb::Doubt, lead, &wanted)).await, Ok(EndReply::Done));
    let expired = end(Verb::Refund, lead, &wanted);
    assert_eq!(store.expire(&expired).await, Ok(EndReply::Already(EndMark::Doubt)));
    assert_eq!(used(&*store, &wanted.buyer, "day", wanted.demands[0].charge.window).await, Some(1));
    let other = LeadId::generate();
    assert_eq!(take_one(&*store, other, &wanted).await, Ok(()));
    let expired = end(Verb::Refund, other, &wanted);
    assert_eq!(store.expire(&expired).await, Ok(EndReply::Done));
    assert_eq!(store.expire(&expired).await, Ok(EndReply::Already(EndMark::Refunded)));
    assert_eq!(used(&*store, &wanted.buyer, "day", wanted.demands[0].charge.window).await, Some(1));
    harness.stop().await;
}

pub async fn late_commit_after_a_refund_counts_above_the_limit<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 1)]);
    let (first, second) = (LeadId::generate(), LeadId::generate());
    assert_eq!(take_one(&*store, first, &wanted).await, Ok(()));
    assert_eq!(store.refund(&end(Verb::Refund, first, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(take_one(&*store, second, &wanted).await, Ok(()));
    let late = end(Verb::Commit, first, &wanted);
    assert_eq!(store.commit(&late).await, Ok(EndReply::Late { was: EndMark::Refunded, counters: vec![2] }));
    assert_eq!(used(&*store, &who, "day", window).await, Some(2));
    assert_eq!(store.commit(&late).await, Ok(EndReply::Already(EndMark::Committed)));
    assert_eq!(used(&*store, &who, "day", window).await, Some(2));
    h.stop().await;
}

/// Late yeses that come at once each learn the counter right after their own charge: a unit above the limit is told once.
pub async fn f46_late_yeses_at_once_each_learn_their_own_count<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0), ("total", window, 100)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 20), demand("total", window, 500)]);
    let leads: Vec<LeadId> = (0..20).map(|_| LeadId::generate()).collect();
    for lead in &leads {
        assert_eq!(take_one(&*store, *lead, &wanted).await, Ok(()));
        assert_eq!(store.refund(&end(Verb::Refund, *lead, &wanted)).await, Ok(EndReply::Done));
    }
    let replies = at_once(leads.len(), |index| {
        let (store, late) = (store.clone(), end(Verb::Commit, leads[index], &wanted));
        async move { store.commit(&late).await.unwrap() }
    })
    .await;
    let mut told: Vec<Vec<u64>> = replies
        .into_iter()
        .map(|reply| match reply {
            EndReply::Late { was: EndMark::Refunded, counters } => counters,
            other => panic!("{other:?}"),
        })
        .collect();
    told.sort_unstable();
    assert_eq!(told, (1..=20).map(|n| vec![n, 100 + n]).collect::<Vec<_>>());
    h.stop().await;
}

pub async fn commit_and_close_closes_only_what_it_committed<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let (sold, doubted) = (LeadId::generate(), LeadId::generate());
    for lead in [sold, doubted] {
        assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    }
    let answer = close(&*store, sold, None, "sold");
    let reply = store.commit_and_close(&end(Verb::Commit, sold, &wanted), &answer).await;
    assert_eq!(reply, Ok((EndReply::Done, Some(CloseReply::Closed))));
    let state = store.lead_state(&publisher(), sold).await;
    assert_eq!(state, Ok(Some(LeadState::Finished(Bytes::from_static(b"sold")))));
    assert_eq!(store.doubt(&end(Verb::Doubt, doubted, &wanted)).await, Ok(EndReply::Done));
    let answer = close(&*store, doubted, None, "sold");
    let reply = store.commit_and_close(&end(Verb::Commit, doubted, &wanted), &answer).await;
    assert_eq!(reply, Ok((EndReply::Late { was: EndMark::Doubt, counters: Vec::new() }, None)));
    assert_eq!(store.lead_state(&publisher(), doubted).await, Ok(Some(LeadState::Running)));
    assert_eq!(used(&*store, &who, "day", window).await, Some(2));
    h.stop().await;
}

pub async fn p2_a_lease_whose_mark_expired_ends_as_the_books_remember_it<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 5), ("spend", window, 200)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 40, 900)]);
    let counts = async || (used(&*store, &who, "day", window).await, used(&*store, &who, "spend", window).await);
    for (mark, verb, after) in [
        (EndMark::Doubt, Verb::Refund, (Some(4), Some(160))),
        (EndMark::Doubt, Verb::Commit, (Some(4), Some(145))),
        (EndMark::Refunded, Verb::Commit, (Some(5), Some(170))),
    ] {
        let ending = match verb {
            Verb::Commit => end_with_amounts(verb, LeadId::generate(), &wanted, &[1, 25]),
            Verb::Refund | Verb::Doubt => end(verb, LeadId::generate(), &wanted),
        };
        assert_eq!(verb.call(&*store, &ending).await, EndReply::Missing);
        let held: Vec<WindowAmount> = ending
            .charges
            .iter()
            .map(|charge| WindowAmount {
                cap: charge.cap.clone(),
                start_ms: charge.window.start.as_millisecond(),
                amount: charge.amount,
            })
            .collect();
        let before = store.read_journal(&start_mark(&*store, "sunco"), 100).await.unwrap().len();
        let remembered: &[WindowAmount] = if mark == EndMark::Doubt { &held } else { &[] };
        // Knowledge that is older than marks live sets none.
        let (early, late) = (store.now() - SignedDuration::from_secs(1), store.now() + SignedDuration::from_mins(1));
        assert_eq!(store.remember(&ending.key, mark, remembered, early).await, Ok(false));
        assert_eq!(verb.call(&*store, &ending).await, EndReply::Missing);
        for not_after in [late, early] {
            assert_eq!(store.remember(&ending.key, mark, remembered, not_after).await, Ok(true));
        }
        let counters = if mark == EndMark::Refunded { vec![5, 170] } else { Vec::new() };
        assert_eq!(verb.call(&*store, &ending).await, EndReply::Late { was: mark, counters });
        assert_eq!(counts().await, after, "{verb:?} after {mark:?}");
        // What is known is not overwritten by older knowledge.
        assert_eq!(store.remember(&ending.key, mark, remembered, late).await, Ok(true));
        assert_eq!(verb.call(&*store, &ending).await, EndReply::Already(verb.mark()));
        assert_eq!(counts().await, after);
        let entries = store.read_journal(&start_mark(&*store, "sunco"), 100).await.unwrap();
        assert_eq!(entries.len(), before + 1);
        let last = Event::from_bytes(&entries[before].bytes).unwrap();
        assert_eq!(last, Event::Attempt(ending.late_event));
    }
    // Nor is an open lease.
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    let open = end(Verb::Commit, lead, &wanted);
    let late = store.now() + SignedDuration::from_mins(1);
    assert_eq!(store.remember(&open.key, EndMark::Refunded, &[], late).await, Ok(true));
    assert_eq!(store.commit(&open).await, Ok(EndReply::Done));
    h.stop().await;
}

pub async fn p3_a_recorded_verdict_leaves_the_answer_alone<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let lead = LeadId::generate();
    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
    let answer = close(&*store, lead, None, "in doubt");
    assert_eq!(store.close(&answer).await, Ok(CloseReply::Closed));
    let verdict = Closed { status: LeadStatus::Sold, answer: "other".to_owned(), ..answer.event.clone() };
    assert_eq!(store.record_verdict(&verdict).await, Ok(()));
    let entries = store.read_journal(&start_mark(&*store, publisher().as_str()), 100).await.unwrap();
    assert_eq!(Event::from_bytes(&entries.last().unwrap().bytes), Ok(Event::Closed(verdict)));
    let state = store.lead_state(&publisher(), lead).await;
    assert_eq!(state, Ok(Some(LeadState::Finished(Bytes::from_static(b"in doubt")))));
    assert_eq!(store.open_counts().await.unwrap().leads, 0);
    h.stop().await;
}
