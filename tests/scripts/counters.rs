//! Counters: never negative, never without an expiry, never from nothing.

use std::sync::Arc;

use capgate::domain::id::{BuyerId, LeadId};
use capgate::store::{EndReply, Refusal, Store, StoreError};
use jiff::SignedDuration;

use crate::redis_support::{Raw, connect, url};
use crate::support::{
    Verb, at_once, buyer, candidate, cap, demand, end, ending_window, eventually, past_window, running_window, seed,
    take, take_one, total_window, used,
};
use crate::world::World;

#[tokio::test]
async fn f01_refund_creates_nothing_and_stops_at_zero() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0), ("hour", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9), demand("hour", window, 9)]);
    let (gone, low) = (LeadId::generate(), LeadId::generate());
    for lead in [gone, low] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    let (day, hour) = (w.counter(&who, "day", window), w.counter(&who, "hour", window));
    w.raw.run(&["DEL", &day]).await;
    assert_eq!(w.store.refund(&end(Verb::Refund, gone, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(w.raw.run(&["EXISTS", &day]).await, Raw::Int(0), "a refund never creates a counter");
    assert_eq!(used(&*w.store, &who, "hour", window).await, Some(1), "the other window got its unit back");
    let expiry = w.raw.run(&["PEXPIRETIME", &hour]).await;
    w.raw.run(&["SET", &hour, "0", "KEEPTTL"]).await;
    assert_eq!(w.store.refund(&end(Verb::Refund, low, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(w.raw.run(&["GET", &hour]).await, Raw::Text("0".into()), "never below zero");
    assert_eq!(w.raw.run(&["PEXPIRETIME", &hour]).await, expiry, "a refund never changes an expiry");
    w.stop().await;
}

#[tokio::test]
async fn f02_refund_sent_fifty_times_lowers_by_one() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 5)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    let call = end(Verb::Refund, lead, &wanted);
    let replies = at_once(50, |_| {
        let (store, call) = (Arc::clone(&w.store), call.clone());
        async move { store.refund(&call).await.unwrap() }
    })
    .await;
    assert_eq!(replies.iter().filter(|reply| **reply == EndReply::Done).count(), 1);
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(5));
    w.stop().await;
}

#[tokio::test]
async fn f06_a_full_cap_leaves_the_other_windows_untouched() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("hour", window, 0), ("day", window, 3)]).await;
    let wanted = candidate(&who, vec![demand("hour", window, 100), demand("day", window, 3)]);
    for _ in 0..50 {
        let refused = take_one(&*w.store, LeadId::generate(), &wanted).await;
        assert_eq!(refused, Err(Refusal::Full { cap: cap("day"), used: 3 }));
    }
    assert_eq!(used(&*w.store, &who, "hour", window).await, Some(0));
    w.stop().await;
}

#[tokio::test]
async fn f06_f19_a_broken_key_is_a_bug_and_moves_nothing() {
    // The server does not undo what a failed script has written, so whatever is broken must be met before the first write.
    let (first, window_of) = (buyer("sunco"), |w: &World| running_window(w.store.now()));
    let broken: [fn(&World, &BuyerId, capgate::domain::window::Window) -> String; 7] = [
        |w, who, window| w.counter(who, "day", window),
        |w, who, window| w.counter(who, "hour", window),
        |w, who, _| w.key(who.as_str(), "due"),
        |w, who, _| w.key(who.as_str(), "windows"),
        |w, who, _| w.key(who.as_str(), "versions"),
        |w, who, _| w.key(who.as_str(), "leases:sunco"),
        |w, who, _| w.key(who.as_str(), "life"),
    ];
    for name in broken {
        let mut w = World::start().await;
        let window = window_of(&w);
        seed(&*w.store, &first, &[("hour", window, 0), ("day", window, 0)]).await;
        let key = name(&w, &first, window);
        w.raw.run(&["DEL", &key]).await;
        w.raw.run(&["RPUSH", &key, "broken"]).await;
        let before = w.dump().await;
        let wanted = candidate(&first, vec![demand("hour", window, 9), demand("day", window, 9)]);
        let reply = w.store.take(&take(&*w.store, LeadId::generate(), vec![wanted])).await;
        assert!(matches!(reply, Err(StoreError::Bug(_))), "{key}: {reply:?}");
        assert_eq!(w.dump().await, before, "{key}");
        w.stop().await;
    }
    // A counter that holds no number at all.
    for nonsense in ["abc", "1.5", "1e3", ""] {
        let mut w = World::start().await;
        let window = window_of(&w);
        seed(&*w.store, &first, &[("hour", window, 0), ("day", window, 0)]).await;
        let key = w.counter(&first, "day", window);
        w.raw.run(&["SET", &key, nonsense]).await;
        let before = w.dump().await;
        let wanted = candidate(&first, vec![demand("hour", window, 9), demand("day", window, 9)]);
        let reply = w.store.take(&take(&*w.store, LeadId::generate(), vec![wanted])).await;
        assert!(matches!(reply, Err(StoreError::Bug(_))), "{nonsense:?}: {reply:?}");
        assert_eq!(w.dump().await, before, "{nonsense:?}");
        w.stop().await;
    }
}

#[tokio::test]
async fn a_negative_counter_grants_nothing() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let key = w.counter(&who, "day", window);
    w.raw.run(&["SET", &key, "-3"]).await;
    let refused = take_one(&*w.store, LeadId::generate(), &candidate(&who, vec![demand("day", window, 9)])).await;
    assert_eq!(refused, Err(Refusal::Unseeded { cap: cap("day") }));
    w.stop().await;
}

#[tokio::test]
async fn f07_every_windowed_counter_has_an_expiry_and_a_lost_one_is_repaired() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let (next, total) = (ending_window(w.store.now(), std::time::Duration::from_mins(1)), total_window());
    seed(&*w.store, &who, &[("day", window, 0), ("total", total, 0), ("hour", past_window(w.store.now()), 0)]).await;
    let demands = vec![demand("day", window, 99), demand("total", total, 99), demand("hour", next, 99)];
    let wanted = candidate(&who, demands);
    let last = LeadId::generate();
    for (verb, lead) in Verb::ALL.into_iter().zip([LeadId::generate(), LeadId::generate(), last]) {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
        assert_eq!(verb.call(&*w.store, &end(verb, lead, &wanted)).await, EndReply::Done);
    }
    let counters: Vec<String> =
        w.raw.keys_of(&w.prefix).await.into_iter().filter(|key| key.contains(":cap:sunco:")).collect();
    assert_eq!(counters.len(), 4);
    for key in counters {
        let ttl = w.raw.run(&["PTTL", &key]).await.int();
        if key.contains(":total:") {
            assert_eq!(ttl, -1, "{key}: all time never ends");
        } else {
            assert!(ttl > 24 * 3600 * 1000, "{key} outlives its window: {ttl}");
        }
    }
    let day = w.counter(&who, "day", window);
    w.raw.run(&["SET", &day, "2"]).await;
    assert_eq!(w.raw.run(&["PTTL", &day]).await, Raw::Int(-1));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()));
    let expected = (window.end.unwrap() + SignedDuration::from_hours(48)).as_millisecond();
    assert_eq!(w.raw.run(&["PEXPIRETIME", &day]).await, Raw::Int(expected));
    w.stop().await;
}

#[tokio::test]
async fn f08_a_window_that_is_over_is_refused_before_anything_is_written() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let over = past_window(w.store.now());
    seed(&*w.store, &who, &[("day", over, 0), ("hour", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("hour", window, 9), demand("day", over, 9)]);
    assert_eq!(take_one(&*w.store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()), "version 1 is seen");
    let before = w.dump().await;
    for _ in 0..10 {
        match take_one(&*w.store, LeadId::generate(), &wanted).await {
            Err(Refusal::WrongWindow { store_now }) => {
                assert!((store_now - w.store.now()).as_millis().abs() < 5_000);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(w.dump().await, before);
    w.stop().await;
}

#[tokio::test]
async fn a_clock_that_went_back_never_grants_from_zero() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let (windows, key) = (w.key("sunco", "windows"), w.counter(&who, "day", window));
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    w.raw.run(&["DEL", &key]).await;
    for newest in [window.start.as_millisecond(), window.start.as_millisecond() + 1] {
        w.raw.run(&["HSET", &windows, "sunco|day", &newest.to_string()]).await;
        let refused = take_one(&*w.store, LeadId::generate(), &wanted).await;
        assert_eq!(refused, Err(Refusal::Unseeded { cap: cap("day") }), "newest window {newest}");
    }
    let older = (window.start.as_millisecond() - 1).to_string();
    w.raw.run(&["HSET", &windows, "sunco|day", &older]).await;
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()), "a window after a known one is new");
    w.stop().await;
}

#[tokio::test]
async fn f15_the_largest_caps_are_counted_to_the_last_unit() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    for limit in [1_000_000_000_000_000_u64, 9_007_199_254_740_993, 9_223_372_036_854_775_807] {
        let name = format!("total-{limit}");
        seed(&*w.store, &who, &[(&name, window, limit - 2)]).await;
        let wanted = candidate(&who, vec![demand(&name, window, limit)]);
        for _ in 0..2 {
            assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()), "limit {limit}");
        }
        let refused = take_one(&*w.store, LeadId::generate(), &wanted).await;
        assert_eq!(refused, Err(Refusal::Full { cap: cap(&name), used: limit }));
        let key = w.counter(&who, &name, window);
        assert_eq!(w.raw.run(&["GET", &key]).await, Raw::Text(limit.to_string()));
    }
    w.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_the_last_unit_race_reaches_the_cap_and_never_passes_it() {
    let w = World::start().await;
    let window = running_window(w.store.now());
    let mut gateways = vec![Arc::clone(&w.store)];
    for _ in 0..2 {
        let gateway = Arc::new(connect(&url(), &w.prefix, 1_000_000).await);
        crate::support::begin_lives(&*gateway).await;
        gateways.push(gateway);
    }
    for limit in [1, 2, 3, 63, 64, 65, 100] {
        let who = buyer(&format!("b{limit}"));
        seed(&*w.store, &who, &[("day", window, 0)]).await;
        let wanted = candidate(&who, vec![demand("day", window, limit)]);
        let grants = at_once(64, |index| {
            let (store, wanted) = (Arc::clone(&gateways[index % 3]), wanted.clone());
            async move {
                let mut grants = 0;
                for _ in 0..3 {
                    grants += u64::from(take_one(&*store, LeadId::generate(), &wanted).await.is_ok());
                }
                grants
            }
        })
        .await;
        assert_eq!(grants.iter().sum::<u64>(), limit);
        assert_eq!(used(&*w.store, &who, "day", window).await, Some(limit));
    }
    for gateway in &gateways[1..] {
        gateway.shut_down().await;
    }
    w.stop().await;
}

#[tokio::test]
async fn f30_neighbours_with_another_prefix_are_strangers() {
    let (w, other) = (World::start().await, World::start().await);
    let window = running_window(w.store.now());
    for world in [&w, &other] {
        seed(&*world.store, &buyer("1"), &[("1", window, 0), ("1:1", window, 0)]).await;
        seed(&*world.store, &buyer("1.1"), &[("1", window, 0)]).await;
    }
    let takes = [(buyer("1"), "1", 3), (buyer("1"), "1:1", 5), (buyer("1.1"), "1", 7)];
    for (who, name, count) in &takes {
        for _ in 0..*count {
            let wanted = candidate(who, vec![demand(name, window, 9)]);
            assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()));
        }
    }
    for (who, name, count) in &takes {
        assert_eq!(used(&*w.store, who, name, window).await, Some(*count));
        assert_eq!(used(&*other.store, who, name, window).await, Some(0));
    }
    w.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_finished_window_gets_no_counter_by_a_late_yes() {
    let mut w = World::start().await;
    let who = buyer("sunco");
    let window = ending_window(w.store.now(), std::time::Duration::from_millis(600));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 1)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    assert_eq!(w.store.refund(&end(Verb::Refund, lead, &wanted)).await, Ok(EndReply::Done));
    eventually("the window is over", || async { w.store.now() > window.end.unwrap() }).await;
    let key = w.counter(&who, "day", window);
    w.raw.run(&["DEL", &key]).await;
    let before = w.journal_length("sunco", 1).await;
    let late = w.store.commit(&end(Verb::Commit, lead, &wanted)).await;
    let was = capgate::domain::lease::EndMark::Refunded;
    assert_eq!(late, Ok(EndReply::Late { was, counters: vec![0] }));
    assert_eq!(w.raw.run(&["EXISTS", &key]).await, Raw::Int(0));
    assert_eq!(w.journal_length("sunco", 1).await, before + 1, "the books learn of it all the same");
    w.stop().await;
}
