//! Take, seed, counters.

use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::lease::WalkName;
use capgate::domain::window::Window;
use capgate::store::{Admission, EndReply, Refusal};
use jiff::SignedDuration;

use crate::store::Harness;
use crate::support::{
    Verb, admit, begin_lives, buyer, candidate, cap, claim, demand, end, ending_window, eventually, money_demand,
    past_window, running_window, seed, start_mark, take, take_one, total_window, used,
};

pub async fn take_takes_the_first_with_room<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let buyers = [buyer("full"), buyer("first"), buyer("second")];
    for (who, count) in buyers.iter().zip([5, 4, 0]) {
        seed(&*store, who, &[("day", window, count)]).await;
    }
    let candidates: Vec<_> = buyers.iter().map(|b| candidate(b, vec![demand("day", window, 5)])).collect();
    let full = |cap_used| Refusal::Full { cap: cap("day"), used: cap_used };

    let reply = store.take(&take(&*store, LeadId::generate(), candidates.clone())).await.unwrap();
    assert_eq!((reply.taken, reply.too_late), (Some(1), false));
    assert_eq!(reply.refused, vec![(0, full(5))]);
    assert_eq!(used(&*store, &buyers[1], "day", window).await, Some(5));
    assert_eq!(used(&*store, &buyers[2], "day", window).await, Some(0), "nobody after the taken one is touched");

    let reply = store.take(&take(&*store, LeadId::generate(), candidates.clone())).await.unwrap();
    assert_eq!(reply.taken, Some(2));
    assert_eq!(reply.refused, vec![(0, full(5)), (1, full(5))]);

    let reply = store.take(&take(&*store, LeadId::generate(), candidates[..2].to_vec())).await.unwrap();
    assert_eq!(reply.taken, None);
    assert_eq!(reply.refused, vec![(0, full(5)), (1, full(5))]);

    let reply = store.take(&take(&*store, LeadId::generate(), vec![])).await.unwrap();
    assert_eq!((reply.taken, reply.refused, reply.too_late), (None, vec![], false));
    h.stop().await;
}

pub async fn f06_all_caps_or_none<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("hour", window, 0), ("day", window, 10), ("month:spend", window, 0)]).await;
    let demands = vec![
        demand("hour", window, 5),
        demand("day", window, 10),
        money_demand("month:spend", window, 40_000_000, 90_000_000),
    ];
    for _ in 0..50 {
        let refused = take_one(&*store, LeadId::generate(), &candidate(&who, demands.clone())).await;
        assert_eq!(refused, Err(Refusal::Full { cap: cap("day"), used: 10 }));
    }
    assert_eq!(used(&*store, &who, "hour", window).await, Some(0));
    assert_eq!(used(&*store, &who, "month:spend", window).await, Some(0));
    assert_eq!(store.open_leases(start_mark(&*store, "sunco").partition, 10).await, Ok(vec![]));
    let mut roomy = demands;
    roomy[1].limit = 11;
    assert_eq!(take_one(&*store, LeadId::generate(), &candidate(&who, roomy)).await, Ok(()));
    assert_eq!(used(&*store, &who, "hour", window).await, Some(1));
    assert_eq!(used(&*store, &who, "day", window).await, Some(11));
    assert_eq!(used(&*store, &who, "month:spend", window).await, Some(40_000_000));
    h.stop().await;
}

pub async fn f12_limit_is_an_argument_of_each_take<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 40)]).await;
    let full = |cap_used| Err(Refusal::Full { cap: cap("day"), used: cap_used });
    for (limit, answer) in [(10, full(40)), (41, Ok(())), (41, full(41)), (0, full(41)), (100, Ok(()))] {
        let wanted = candidate(&who, vec![demand("day", window, limit)]);
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, answer, "limit {limit}");
    }
    assert_eq!(take_one(&*store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()), "no limit: free");
    assert_eq!(used(&*store, &who, "day", window).await, Some(42));
    h.stop().await;
}

pub async fn f14_zero_is_closed_and_no_cap_is_open<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let (closed, open) = (buyer("closed"), buyer("open"));
    seed(&*store, &closed, &[("day", window, 0), ("spend", window, 0)]).await;
    for wanted in [demand("day", window, 0), money_demand("spend", window, 0, 0)] {
        let refused = take_one(&*store, LeadId::generate(), &candidate(&closed, vec![wanted.clone()])).await;
        assert_eq!(refused, Err(Refusal::Full { cap: wanted.charge.cap, used: 0 }));
    }
    for _ in 0..20 {
        assert_eq!(take_one(&*store, LeadId::generate(), &candidate(&open, vec![])).await, Ok(()));
    }
    assert_eq!(store.open_leases(start_mark(&*store, "open").partition, 100).await.unwrap().len(), 20);
    h.stop().await;
}

pub async fn money_caps_never_pass_their_limit_by_a_fraction<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("spend", window, 60_000_001)]).await;
    let wanted = |amount| candidate(&who, vec![money_demand("spend", window, amount, 100_000_000)]);
    let refused = take_one(&*store, LeadId::generate(), &wanted(40_000_000)).await;
    assert_eq!(refused, Err(Refusal::Full { cap: cap("spend"), used: 60_000_001 }));
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(39_999_999)).await, Ok(()));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(100_000_000));
    h.stop().await;
}

pub async fn f15_large_numbers_stay_exact<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    // 2^53 + 1 is the first whole number that a double cannot hold.
    let base = 9_007_199_254_740_993;
    seed(&*store, &who, &[("spend", window, base)]).await;
    assert_eq!(used(&*store, &who, "spend", window).await, Some(base));
    let wanted = |limit| candidate(&who, vec![money_demand("spend", window, 2, limit)]);
    let refused = take_one(&*store, LeadId::generate(), &wanted(base + 1)).await;
    assert_eq!(refused, Err(Refusal::Full { cap: cap("spend"), used: base }));
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted(base + 2)).await, Ok(()));
    assert_eq!(used(&*store, &who, "spend", window).await, Some(base + 2));
    assert_eq!(Verb::Refund.call(&*store, &end(Verb::Refund, lead, &wanted(base + 2))).await, EndReply::Done);
    assert_eq!(used(&*store, &who, "spend", window).await, Some(base));
    h.stop().await;
}

pub async fn caps_with_odd_names_stay_apart<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let names =
        ["day", "day:", "day:state=TX", "day:state={TX}", "day state=\"TX\"\n", "day:é", "%64ay", "day%3A", "DAY"];
    let who = buyer("sunco");
    for (name, count) in names.iter().zip(0..) {
        seed(&*store, &who, &[(name, window, count)]).await;
    }
    for (name, count) in names.iter().zip(0..) {
        assert_eq!(used(&*store, &who, name, window).await, Some(count), "{name:?}");
        let wanted = candidate(&who, vec![demand(name, window, count + 1)]);
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()), "{name:?}");
    }
    let open = store.open_leases(start_mark(&*store, "sunco").partition, 100).await.unwrap();
    let mut held: Vec<&str> = open.iter().map(|lease| lease.charges[0].cap.as_str()).collect();
    held.sort_unstable();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(held, expected);
    h.stop().await;
}

/// Names that join to the same text keep their own counters and leases.
pub async fn f30_crossed_ids_stay_apart<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let pairs = [
        ("1", "h"),
        ("1", "h:x"),
        ("1", ":h"),
        ("1.h", "x"),
        ("1.h", ""),
        ("1", ".h"),
        ("1-h", "h"),
        ("1", "-h:h"),
        ("1.h.x", "h"),
        ("1", "h|x"),
        ("1", "1:h"),
        ("1_h", "h"),
        ("1", "_h"),
    ];
    for ((who, name), count) in pairs.iter().zip(1..) {
        seed(&*store, &buyer(who), &[(name, window, count)]).await;
    }
    for ((who, name), count) in pairs.iter().zip(1..) {
        let wanted = candidate(&buyer(who), vec![demand(name, window, count + 1)]);
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()), "{who} {name}");
    }
    for ((who, name), count) in pairs.iter().zip(1..) {
        assert_eq!(used(&*store, &buyer(who), name, window).await, Some(count + 1), "{who} {name}");
    }
    h.stop().await;
}

pub async fn f08_window_that_is_not_now_is_refused<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let now = store.now();
    let who = buyer("sunco");
    let mut ahead = running_window(now);
    ahead.start = ahead.end.unwrap();
    ahead.end = Some(ahead.start + SignedDuration::from_hours(1));
    seed(&*store, &who, &[("day", past_window(now), 0), ("day", ahead, 0), ("total", total_window(), 0)]).await;
    for window in [past_window(now), ahead] {
        let demands = vec![demand("total", total_window(), 5), demand("day", window, 5)];
        match take_one(&*store, LeadId::generate(), &candidate(&who, demands)).await {
            Err(Refusal::WrongWindow { store_now }) => {
                let off = store_now.duration_since(now).abs();
                assert!(off < SignedDuration::from_secs(30), "the store's clock is {off} off");
                assert!(!window.contains(store_now));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(used(&*store, &who, "day", window).await, Some(0));
    }
    assert_eq!(used(&*store, &who, "total", total_window()).await, Some(0));
    h.stop().await;
}

pub async fn f86_older_routing_is_stale<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let at_version = |version| {
        let mut wanted = candidate(&who, vec![demand("day", window, 50)]);
        wanted.routing_version = version;
        wanted
    };
    // Beyond 2^53 too: versions may be times.
    for (version, answer) in [
        (7, Ok(())),
        (6, Err(Refusal::Stale { newest: 7 })),
        (7, Ok(())),
        (9_007_199_254_740_993, Ok(())),
        (9_007_199_254_740_992, Err(Refusal::Stale { newest: 9_007_199_254_740_993 })),
    ] {
        assert_eq!(take_one(&*store, LeadId::generate(), &at_version(version)).await, answer, "version {version}");
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(3));
    let mut other = candidate(&buyer("helio"), vec![]);
    other.routing_version = 1;
    assert_eq!(take_one(&*store, LeadId::generate(), &other).await, Ok(()), "versions are kept per buyer");
    h.stop().await;
}

pub async fn f20_repeat_of_a_take_is_the_same_lease<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let call = take(&*store, LeadId::generate(), vec![candidate(&who, vec![demand("day", window, 1)])]);
    for _ in 0..5 {
        let reply = store.take(&call).await.unwrap();
        assert_eq!((reply.taken, reply.refused), (Some(0), vec![]));
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    let open = store.open_leases(start_mark(&*store, "sunco").partition, 10).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].charges, vec![demand("day", window, 1).charge]);
    assert_eq!(open[0].about, call.candidates[0].about);
    assert!(!open[0].gives_back);
    h.stop().await;
}

pub async fn f20_repeat_finds_its_lease_when_an_earlier_buyer_has_room_again<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let (first, second) = (buyer("first"), buyer("second"));
    seed(&*store, &first, &[("day", window, 0)]).await;
    seed(&*store, &second, &[("day", window, 0)]).await;
    let candidates =
        vec![candidate(&first, vec![demand("day", window, 1)]), candidate(&second, vec![demand("day", window, 1)])];
    let (other, lead) = (LeadId::generate(), LeadId::generate());
    assert_eq!(take_one(&*store, other, &candidates[0]).await, Ok(()));
    let call = take(&*store, lead, candidates.clone());
    assert_eq!(store.take(&call).await.unwrap().taken, Some(1));
    assert_eq!(Verb::Refund.call(&*store, &end(Verb::Refund, other, &candidates[0])).await, EndReply::Done);
    assert_eq!(store.take(&call).await.unwrap().taken, Some(1), "one lead, one lease");
    assert_eq!(used(&*store, &first, "day", window).await, Some(0));
    assert_eq!(used(&*store, &second, "day", window).await, Some(1));
    h.stop().await;
}

pub async fn p4_take_after_an_end_is_refused<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let (who, next) = (buyer("sunco"), buyer("helio"));
    seed(&*store, &who, &[("day", window, 0)]).await;
    for (verb, left) in Verb::ALL.into_iter().zip([1, 1, 2]) {
        let (lead, wanted) = (LeadId::generate(), candidate(&who, vec![demand("day", window, 50)]));
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        assert_eq!(verb.call(&*store, &end(verb, lead, &wanted)).await, EndReply::Done);
        let reply = store.take(&take(&*store, lead, vec![wanted, candidate(&next, vec![])])).await.unwrap();
        assert_eq!(reply.refused, vec![(0, Refusal::Ended(verb.mark()))]);
        assert_eq!(reply.taken, Some(1), "the lead goes on to the next buyer");
        assert_eq!(used(&*store, &who, "day", window).await, Some(left));
    }
    h.stop().await;
}

pub async fn take_after_its_time_changes_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let mut call = take(&*store, LeadId::generate(), vec![candidate(&who, vec![demand("day", window, 5)])]);
    call.not_after = store.now() - SignedDuration::from_secs(2);
    let reply = store.take(&call).await.unwrap();
    assert_eq!((reply.taken, reply.too_late), (None, true));
    assert_eq!(used(&*store, &who, "day", window).await, Some(0));
    assert_eq!(store.open_leases(start_mark(&*store, "sunco").partition, 10).await, Ok(vec![]));
    h.stop().await;
}

pub async fn admit_and_take_takes_only_for_a_new_lead<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = vec![candidate(&who, vec![demand("day", window, 5)])];
    let (lead, twin) = (LeadId::generate(), LeadId::generate());
    let first = admit(&*store, lead, Some(claim("k", None)));
    for _ in 0..2 {
        let (admission, reply) = store.admit_and_take(&first, &take(&*store, lead, wanted.clone())).await.unwrap();
        assert_eq!((admission, reply.unwrap().taken), (Admission::New, Some(0)));
    }
    let second = admit(&*store, twin, Some(claim("k", None)));
    let answer = store.admit_and_take(&second, &take(&*store, twin, wanted)).await;
    assert_eq!(answer, Ok((Admission::Running(lead), None)));
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    h.stop().await;
}

pub async fn f01_refund_after_the_window_leaves_nothing_negative<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let who = buyer("sunco");
    let window = ending_window(store.now(), std::time::Duration::from_millis(1500));
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 5)]);
    let leads: Vec<LeadId> = (0..5).map(|_| LeadId::generate()).collect();
    for lead in &leads {
        assert_eq!(take_one(&*store, *lead, &wanted).await, Ok(()));
    }
    eventually("the window is over", || async { store.now() > window.end.unwrap() }).await;
    let mut next = window;
    next.start = window.end.unwrap();
    next.end = Some(next.start + SignedDuration::from_hours(1));
    for lead in leads {
        assert_eq!(Verb::Refund.call(&*store, &end(Verb::Refund, lead, &wanted)).await, EndReply::Done);
        assert_eq!(used(&*store, &who, "day", next).await, None, "a refund never creates a counter");
    }
    assert!(used(&*store, &who, "day", window).await.is_none_or(|left| left == 0));
    let wanted = candidate(&who, vec![demand("day", next, 5)]);
    for round in 0..6 {
        let answer = take_one(&*store, LeadId::generate(), &wanted).await;
        assert_eq!(answer.is_ok(), round < 5, "the next window grants exactly 5");
    }
    h.stop().await;
}

/// A gateway that only seemed dead and the walk that recovery began: one of them has the lease, the other one skips the buyer.
pub async fn p4_a_lease_belongs_to_the_walk_that_took_it<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let (who, next) = (buyer("sunco"), buyer("helio"));
    seed(&*store, &who, &[("day", window, 0)]).await;
    let of = |walk: WalkName, whom: &BuyerId, demands| {
        let mut wanted = candidate(whom, demands);
        wanted.about.walk = walk;
        wanted
    };
    let (ours, other, lead) = (WalkName::generate(), WalkName::generate(), LeadId::generate());
    let demands = vec![demand("day", window, 5)];
    let first = take(&*store, lead, vec![of(ours, &who, demands.clone())]);
    assert_eq!(store.take(&first).await.unwrap().taken, Some(0));
    let second = take(&*store, lead, vec![of(other, &who, demands.clone()), of(other, &next, vec![])]);
    for _ in 0..2 {
        let reply = store.take(&second).await.unwrap();
        assert_eq!((reply.taken, reply.refused), (Some(1), vec![(0, Refusal::Underway)]), "the other walk goes on");
        assert_eq!(store.take(&first).await.unwrap().taken, Some(0), "a repeat of the same walk finds its lease");
    }
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    // What is gathered from open leases names the walk, so that it stays known wherever they are restated.
    let open = store.open_leases(start_mark(&*store, "sunco").partition, 10).await.unwrap();
    assert_eq!(
        open.iter().filter(|lease| lease.key.buyer == who).map(|lease| lease.about.walk).collect::<Vec<_>>(),
        [ours]
    );
    h.stop().await;
}

/// The buyer's zone was changed in mid-window: what has counted until now counts on to its end, and there the next window
/// starts at 0. A gateway that knows nothing of the old zone learns it from the store.
pub async fn f33_a_window_that_overlaps_the_running_one_adds_no_room<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let who = buyer("sunco");
    let running = ending_window(store.now(), std::time::Duration::from_millis(2500));
    let (start, end) = (running.start, running.end.unwrap());
    let overlapping = [
        // Begun later, begun earlier, and the same start with another end.
        Window { start: start + SignedDuration::from_mins(30), end: Some(end + SignedDuration::from_hours(1)) },
        Window { start: start - SignedDuration::from_mins(30), end: Some(end + SignedDuration::from_hours(1)) },
        Window { start, end: Some(end + SignedDuration::from_hours(1)) },
    ];
    assert_eq!(store.newest_windows(&who, &[cap("day"), cap("hour")]).await, Ok(vec![None, None]));
    seed(&*store, &who, &[("day", running, 0)]).await;
    let wanted = |window| candidate(&who, vec![demand("day", window, 1)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(running)).await, Ok(()));
    let other = Refusal::OtherWindow { cap: cap("day"), window: running };
    for window in overlapping {
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted(window)).await, Err(other.clone()), "{window:?}");
    }
    assert_eq!(store.newest_windows(&who, &[cap("day"), cap("hour")]).await, Ok(vec![Some(running), None]));
    let full = Err(Refusal::Full { cap: cap("day"), used: 1 });
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(running)).await, full);
    eventually("the window is over", || async { store.now() > end }).await;
    for window in &overlapping[..2] {
        assert_eq!(take_one(&*store, LeadId::generate(), &wanted(*window)).await, Err(other.clone()), "still overlaps");
    }
    let next = Window { start: end, end: overlapping[0].end };
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(next)).await, Ok(()), "starts at 0");
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(next)).await, full);
    let other = Refusal::OtherWindow { cap: cap("day"), window: next };
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted(overlapping[0])).await, Err(other));
    assert_eq!(store.newest_windows(&who, &[cap("day")]).await, Ok(vec![Some(next)]));
    h.stop().await;
}
