//! Data that is gone or older, and counters that come back from the books.

use std::sync::Arc;

use capgate::domain::event::Life;
use capgate::domain::id::LeadId;
use capgate::store::{Admission, CloseReply, EndReply, Refusal, SeedReply, Store, StoreError};

use crate::redis_support::{connect, url};
use crate::support::{
    LIFE, Verb, admit, begin_lives, buyer, candidate, cap, close, demand, end, running_window, seed, start_mark,
    take_one, used,
};
use crate::world::World;

#[tokio::test]
async fn f21_p8_data_that_vanishes_in_mid_run_grants_nothing_until_it_is_rebuilt() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 60)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    let (lead, open) = (LeadId::generate(), LeadId::generate());
    assert_eq!(w.store.admit(&admit(&*w.store, lead, None)).await, Ok(Admission::New));
    assert_eq!(take_one(&*w.store, open, &wanted).await, Ok(()));

    w.raw.delete_all_of(&w.prefix).await;

    assert_eq!(w.store.admit(&admit(&*w.store, LeadId::generate(), None)).await, Ok(Admission::NewLife));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::NewLife));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &candidate(&who, vec![])).await, Err(Refusal::NewLife));
    assert_eq!(w.store.close(&close(&*w.store, lead, None, "x")).await, Ok(CloseReply::NewLife));
    for verb in Verb::ALL {
        assert_eq!(verb.call(&*w.store, &end(verb, open, &wanted)).await, EndReply::Missing);
    }
    let mark = start_mark(&*w.store, "sunco");
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 60)]).await, Ok(SeedReply::NewLife));
    assert_eq!(w.raw.keys_of(&w.prefix).await, Vec::<String>::new(), "none of these calls has made a key");

    for partition in 0..w.store.partitions() {
        let partition = capgate::domain::id::Partition(partition);
        assert_eq!(w.store.begin_life(partition, Life(2)).await, Ok(Life(2)));
    }
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    let older = w.store.seed(&who, &mark, &[(cap("day"), window, 60)]).await;
    assert_eq!(older, Ok(SeedReply::NewLife), "usage as of an older life's mark is not the whole truth");
    let mut mark = mark;
    mark.life = Life(2);
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 61)]).await, Ok(SeedReply::Seeded));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(62));
    w.stop().await;
}

#[tokio::test]
async fn p8_a_life_begun_over_older_data_forgets_its_counters_and_keeps_its_leases() {
    let mut w = World::start().await;
    let (who, other, window) = (buyer("sunco"), buyer("helio"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 5), ("day:state=TX", window, 5)]).await;
    seed(&*w.store, &other, &[("day", window, 5)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100), demand("day:state=TX", window, 100)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    let mark = start_mark(&*w.store, "sunco");
    assert_ne!(mark.partition, start_mark(&*w.store, "helio").partition);

    // The very same life again changes nothing.
    let before = w.dump().await;
    assert_eq!(w.store.begin_life(mark.partition, LIFE).await, Ok(LIFE));
    assert_eq!(w.dump().await, before);

    assert_eq!(w.store.begin_life(mark.partition, Life(10)).await, Ok(Life(10)));
    for name in ["day", "day:state=TX"] {
        assert_eq!(used(&*w.store, &who, name, window).await, None);
    }
    assert_eq!(used(&*w.store, &other, "day", window).await, Some(5), "another partition's");
    let refused = take_one(&*w.store, LeadId::generate(), &wanted).await;
    assert_eq!(refused, Err(Refusal::Unseeded { cap: cap("day") }));
    let mut fresh = mark;
    fresh.life = Life(10);
    let counters = [(cap("day"), window, 40), (cap("day:state=TX"), window, 30)];
    assert_eq!(w.store.seed(&who, &fresh, &counters).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(41), "the open lease holds one");
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(41));
    assert_eq!(w.journal_length("sunco", 10).await, 1, "events go to the journal of the life in force");
    w.stop().await;
}

#[tokio::test]
async fn p5_an_end_by_a_gateway_that_is_behind_goes_to_the_journal_in_force() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let (lead, second) = (LeadId::generate(), LeadId::generate());
    for lead in [lead, second] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    let partition = start_mark(&*w.store, "sunco").partition;
    let ahead = connect(&url(), &w.prefix, 1_000_000).await;
    assert_eq!(ahead.begin_life(partition, Life(2)).await, Ok(Life(2)));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::NewLife));
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    let closed =
        w.store.commit_and_close(&end(Verb::Commit, second, &wanted), &close(&*w.store, second, None, "x")).await;
    assert_eq!(closed, Ok((EndReply::Done, Some(CloseReply::Closed))), "the publisher's partition is of its life");
    assert_eq!((w.journal_length("sunco", 1).await, w.journal_length("sunco", 2).await), (0, 2));

    // Without a life there is no journal to write to: nothing happens, and the caller asks again.
    let third = LeadId::generate();
    let uncapped = candidate(&who, vec![]);
    assert_eq!(take_one(&ahead, third, &uncapped).await, Ok(()));
    let life = w.key("sunco", "life");
    w.raw.run(&["DEL", &life]).await;
    let before = w.dump().await;
    let reply = w.store.commit(&end(Verb::Commit, third, &uncapped)).await;
    assert!(matches!(reply, Err(StoreError::NotDone(_))), "{reply:?}");
    assert_eq!(w.dump().await, before);
    ahead.shut_down().await;
    w.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seed_is_exact_while_leads_are_running() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0), ("hour", window, 0)]).await;
    // Only the hour decides; the day is lost and brought back again and again under the traffic.
    let wanted = candidate(&who, vec![demand("hour", window, 1000), demand("day", window, 1000)]);
    let traffic: Vec<_> = (0..8)
        .map(|worker| {
            let (store, wanted) = (Arc::clone(&w.store), wanted.clone());
            tokio::spawn(async move {
                let mut counted = 0;
                for round in 0..60 {
                    let lead = LeadId::generate();
                    if take_one(&*store, lead, &wanted).await.is_err() {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    let verb = Verb::ALL[(worker + round) % 3];
                    assert_eq!(verb.call(&*store, &end(verb, lead, &wanted)).await, EndReply::Done);
                    counted += u64::from(verb != Verb::Refund);
                }
                counted
            })
        })
        .collect();
    let key = w.counter(&who, "day", window);
    for _ in 0..40 {
        w.raw.run(&["DEL", &key]).await;
        seed(&*w.store, &who, &[("day", window, 0)]).await;
    }
    let mut counted = 0;
    for worker in traffic {
        counted += worker.await.unwrap();
    }
    assert!(counted > 0);
    assert_eq!(used(&*w.store, &who, "hour", window).await, Some(counted));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(counted));
    w.stop().await;
}

#[tokio::test]
async fn seed_refuses_a_tail_that_is_too_long_for_one_step() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let journal = w.key("sunco", "journal:1");
    w.raw.run(&["EVAL", "for _ = 1, 5000 do redis.call('XADD', KEYS[1], '*', 'e', 'x') end", "1", &journal]).await;
    let mark = start_mark(&*w.store, "sunco");
    let counters = [(cap("day"), window, 0)];
    assert_eq!(w.store.seed(&who, &mark, &counters).await, Ok(SeedReply::Seeded), "5,000 entries are read");
    let counter = w.counter(&who, "day", window);
    w.raw.run(&["DEL", &counter]).await;
    w.raw.run(&["XADD", &journal, "*", "e", "x"]).await;
    let before = w.dump().await;
    assert_eq!(w.store.seed(&who, &mark, &counters).await, Ok(SeedReply::Stale));
    assert_eq!(w.dump().await, before);
    w.stop().await;
}

#[tokio::test]
async fn begin_life_is_the_same_for_two_gateways_at_once() {
    let w = World::start().await;
    let other = Arc::new(connect(&url(), &w.prefix, 1_000_000).await);
    begin_lives(&*other).await;
    let partition = start_mark(&*w.store, "sunco").partition;
    let (mine, theirs) = tokio::join!(w.store.begin_life(partition, Life(7)), other.begin_life(partition, Life(7)));
    assert_eq!((mine, theirs), (Ok(Life(7)), Ok(Life(7))));
    let who = buyer("sunco");
    for store in [&w.store, &other] {
        assert_eq!(take_one(&**store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()));
    }
    other.shut_down().await;
    w.stop().await;
}
