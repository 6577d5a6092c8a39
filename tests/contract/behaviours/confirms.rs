//! Confirm: an operator's "accepted".

use std::sync::Arc;

use capgate::domain::event::Event;
use capgate::domain::id::LeadId;
use capgate::domain::lease::EndMark;
use capgate::store::EndReply;

use crate::store::Harness;
use crate::support::{
    Verb, at_once, begin_lives, buyer, candidate, demand, end, end_with_amounts, money_demand, running_window, seed,
    start_mark, take_one, used,
};

/// An operator's "accepted" ends what is open or in doubt, and charges nothing again that has gone back.
pub async fn p1_confirm_never_counts_a_unit_that_has_gone_back<H: Harness>() {
    use EndMark::{Committed, Doubt, Refunded};
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    for (number, (state, reply, counts)) in [
        (&[][..], EndReply::Done, [1, 25]),
        (&[Verb::Doubt], EndReply::Late { was: Doubt, counters: Vec::new() }, [1, 25]),
        (&[Verb::Refund], EndReply::Already(Refunded), [0, 0]),
        (&[Verb::Doubt, Verb::Refund], EndReply::Already(Refunded), [0, 0]),
        (&[Verb::Commit], EndReply::Already(Committed), [1, 40]),
        (&[Verb::Doubt, Verb::Commit], EndReply::Already(Committed), [1, 40]),
    ]
    .into_iter()
    .enumerate()
    {
        let who = buyer(&format!("b{number}"));
        seed(&*store, &who, &[("day", window, 8), ("spend", window, 0)]).await;
        let wanted = candidate(&who, vec![demand("day", window, 9), money_demand("spend", window, 40, 40)]);
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        for before in state {
            before.call(&*store, &end(*before, lead, &wanted)).await;
        }
        let mark = start_mark(&*store, who.as_str());
        let before = store.read_journal(&mark, 10_000).await.unwrap().len();
        let wanted_end = end_with_amounts(Verb::Commit, lead, &wanted, &[1, 25]);
        assert_eq!(store.confirm(&wanted_end).await, Ok(reply.clone()), "after {state:?}");
        let entries = store.read_journal(&mark, 10_000).await.unwrap();
        let appended: Vec<Event> = entries[before..].iter().map(|e| Event::from_bytes(&e.bytes).unwrap()).collect();
        let expected = match reply {
            EndReply::Done => vec![Event::Attempt(wanted_end.event.clone())],
            EndReply::Late { .. } => vec![Event::Attempt(wanted_end.late_event.clone())],
            EndReply::Already(_) | EndReply::Missing => vec![],
        };
        assert_eq!(appended, expected, "after {state:?}");
        for _ in 0..2 {
            assert_eq!(used(&*store, &who, "day", window).await, Some(8 + counts[0]), "after {state:?}");
            assert_eq!(used(&*store, &who, "spend", window).await, Some(counts[1]), "after {state:?}");
            let again = if counts[0] == 1 { Committed } else { Refunded };
            assert_eq!(store.confirm(&wanted_end).await, Ok(EndReply::Already(again)), "a repeat after {state:?}");
        }
    }
    let nobody = candidate(&buyer("b0"), vec![demand("day", window, 9), money_demand("spend", window, 40, 40)]);
    let unknown = end_with_amounts(Verb::Commit, LeadId::generate(), &nobody, &[1, 25]);
    assert_eq!(store.confirm(&unknown).await, Ok(EndReply::Missing));
    h.stop().await;
}

/// Every doubt is confirmed and given back at the same moment, while others wait for what comes free.
pub async fn p1_doubts_resolved_both_ways_at_once_never_oversell<H: Harness>() {
    const DOUBTS: usize = 20;
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, u64::try_from(DOUBTS).unwrap())]);
    let doubts: Vec<LeadId> = (0..DOUBTS).map(|_| LeadId::generate()).collect();
    for lead in &doubts {
        assert_eq!(take_one(&*store, *lead, &wanted).await, Ok(()));
        assert_eq!(store.doubt(&end(Verb::Doubt, *lead, &wanted)).await, Ok(EndReply::Done));
    }
    let late = EndReply::Late { was: EndMark::Doubt, counters: Vec::new() };
    let replies = at_once(DOUBTS * 3, |index| {
        let (store, wanted, lead) = (Arc::clone(&store), wanted.clone(), doubts[index / 3]);
        async move {
            match index % 3 {
                0 => Ok(store.confirm(&end(Verb::Commit, lead, &wanted)).await.unwrap()),
                1 => Ok(store.refund(&end(Verb::Refund, lead, &wanted)).await.unwrap()),
                _ => Err(take_one(&*store, LeadId::generate(), &wanted).await.is_ok()),
            }
        }
    })
    .await;
    let mut counted = replies.iter().filter(|reply| **reply == Err(true)).count();
    for pair in replies.chunks(3) {
        match (&pair[0], &pair[1]) {
            (Ok(confirmed), Ok(EndReply::Already(EndMark::Committed))) if *confirmed == late => counted += 1,
            (Ok(EndReply::Already(EndMark::Refunded)), Ok(refunded)) if *refunded == late => {}
            other => panic!("one of them wins, and the other learns it: {other:?}"),
        }
    }
    assert!(counted <= DOUBTS, "P1: {counted} of {DOUBTS}");
    assert_eq!(used(&*store, &who, "day", window).await, Some(u64::try_from(counted).unwrap()));
    h.stop().await;
}
