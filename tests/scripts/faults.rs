//! Lost replies, stalled, full, read-only, restarted servers: an error is never a grant, and nothing counts twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use capgate::domain::id::LeadId;
use capgate::store::{Admission, CloseReply, EndReply, Refusal, SeedReply, Store, StoreError};

use crate::proxy::Proxy;
use crate::redis_support::{Connection, Raw, connect_within, fresh_prefix, url};
use crate::server::Server;
use crate::support::{
    Verb, admit, at_once, begin, begin_lives, buyer, candidate, cap, claim, close, demand, end, eventually,
    running_window, seed, start_mark, take, take_one, used,
};
use crate::world::World;

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn f20_a_lost_reply_is_asked_again_and_counts_once() {
    let proxy = Proxy::start(&url()).await;
    let prefix = fresh_prefix();
    let store = connect_within(&proxy.url(), &prefix, 1_000_000, Duration::from_secs(2)).await;
    begin_lives(&store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99)]);
    let mut counted = 0;
    for round in 0..4 {
        let lead = LeadId::generate();
        proxy.cut_replies(1);
        assert_eq!(store.admit(&admit(&store, lead, Some(claim(&round.to_string(), None)))).await, Ok(Admission::New));
        proxy.cut_replies(1);
        assert_eq!(take_one(&store, lead, &wanted).await, Ok(()));
        assert_eq!(used(&store, &who, "day", window).await, Some(counted + 1));
        proxy.cut_replies(1);
        let verb = Verb::ALL[round % 3];
        // The call's own repeat knows what its first try did.
        assert_eq!(verb.call(&store, &end(verb, lead, &wanted)).await, EndReply::Done);
        counted += u64::from(verb != Verb::Refund);
        assert_eq!(used(&store, &who, "day", window).await, Some(counted));
        proxy.cut_replies(1);
        let key = Some(claim(&round.to_string(), None));
        assert_eq!(store.close(&close(&store, lead, key, "x")).await, Ok(CloseReply::Closed));
        assert_eq!(proxy.cuts_left(), 0);
    }
    // Both in one step, and a late yes: the repeat tells the same story.
    let (sold, late) = (LeadId::generate(), LeadId::generate());
    proxy.cut_replies(1);
    let both =
        store.admit_and_take(&admit(&store, sold, None), &take(&store, sold, vec![wanted.clone()])).await.unwrap();
    assert_eq!((both.0, both.1.unwrap().taken), (Admission::New, Some(0)));
    proxy.cut_replies(1);
    let both = store.commit_and_close(&end(Verb::Commit, sold, &wanted), &close(&store, sold, None, "x")).await;
    assert_eq!(both, Ok((EndReply::Done, Some(CloseReply::Closed))));
    assert_eq!(take_one(&store, late, &wanted).await, Ok(()));
    assert_eq!(store.refund(&end(Verb::Refund, late, &wanted)).await, Ok(EndReply::Done));
    proxy.cut_replies(1);
    let was = capgate::domain::lease::EndMark::Refunded;
    assert_eq!(
        store.commit(&end(Verb::Commit, late, &wanted)).await,
        Ok(EndReply::Late { was, counters: vec![counted + 2] })
    );
    assert_eq!(used(&store, &who, "day", window).await, Some(counted + 2));
    store.shut_down().await;
    Connection::open(&url()).await.delete_all_of(&prefix).await;
}

#[tokio::test]
async fn f19_f20_no_answer_is_no_grant_and_whatever_happened_is_found_by_asking_again() {
    let proxy = Proxy::start(&url()).await;
    let prefix = fresh_prefix();
    let store = connect_within(&proxy.url(), &prefix, 1_000_000, SHORT).await;
    begin_lives(&store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99)]);
    let lead = LeadId::generate();
    let call = take(&store, lead, vec![wanted.clone()]);
    proxy.hold_replies(Duration::from_secs(3));
    let started = Instant::now();
    let reply = store.take(&call).await;
    assert!(matches!(reply, Err(StoreError::MaybeDone(_))), "{reply:?}");
    assert!(started.elapsed() < Duration::from_millis(2_900), "two tries, each bounded: {:?}", started.elapsed());
    proxy.hold_replies(Duration::ZERO);
    eventually("the store answers again", || async {
        store.counters(&[]).await.is_ok() && store.take(&call).await.is_ok()
    })
    .await;
    assert_eq!(store.take(&call).await.unwrap().taken, Some(0));
    assert_eq!(used(&store, &who, "day", window).await, Some(1), "asked four times at least, counted once");
    store.shut_down().await;
    Connection::open(&url()).await.delete_all_of(&prefix).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f25_forgotten_scripts_lose_no_lead_and_charge_none_twice() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100_000)]);
    let traffic = {
        let (store, wanted) = (Arc::clone(&w.store), wanted.clone());
        tokio::spawn(at_once(8, move |_| {
            let (store, wanted) = (Arc::clone(&store), wanted.clone());
            async move {
                for _ in 0..50 {
                    let lead = LeadId::generate();
                    assert_eq!(store.admit(&admit(&*store, lead, None)).await, Ok(Admission::New));
                    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
                    assert_eq!(store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
                }
            }
        }))
    };
    let mut flushes = 0;
    while !traffic.is_finished() {
        assert_eq!(w.raw.run(&["SCRIPT", "FLUSH"]).await, Raw::Text("OK".into()));
        flushes += 1;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    traffic.await.unwrap();
    assert!(flushes > 3, "the traffic was over after {flushes} flushes");
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(400));
    w.stop().await;
}

#[tokio::test]
async fn f18_f19_a_full_server_grants_nothing_and_still_ends_everything() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut w = World::start_on(&server.url()).await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99)]);
    let leads: Vec<LeadId> = (0..4).map(|_| LeadId::generate()).collect();
    for lead in &leads {
        assert_eq!(w.store.admit(&admit(&*w.store, *lead, None)).await, Ok(Admission::New));
        assert_eq!(take_one(&*w.store, *lead, &wanted).await, Ok(()));
    }
    let before = w.dump().await;
    assert_eq!(w.raw.run(&["CONFIG", "SET", "maxmemory", "1"]).await, Raw::Text("OK".into()));
    let lead = LeadId::generate();
    let (received, taking) = (admit(&*w.store, lead, None), take(&*w.store, lead, vec![wanted.clone()]));
    assert!(matches!(w.store.admit(&received).await, Err(StoreError::NotDone(_))));
    assert!(matches!(w.store.take(&taking).await, Err(StoreError::NotDone(_))));
    assert!(matches!(w.store.admit_and_take(&received, &taking).await, Err(StoreError::NotDone(_))));
    assert_eq!(w.dump().await, before, "refused before anything was written");
    for (verb, lead) in Verb::ALL.into_iter().zip(&leads) {
        assert_eq!(verb.call(&*w.store, &end(verb, *lead, &wanted)).await, EndReply::Done);
        assert_eq!(w.store.close(&close(&*w.store, *lead, None, "x")).await, Ok(CloseReply::Closed));
    }
    let (commit, answer) = (end(Verb::Commit, leads[3], &wanted), close(&*w.store, leads[3], None, "x"));
    assert_eq!(w.store.commit_and_close(&commit, &answer).await, Ok((EndReply::Done, Some(CloseReply::Closed))));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(3));
    let mut mark = start_mark(&*w.store, "sunco");
    mark.entry = w.store.journal_tip(mark.partition).await.unwrap();
    w.store.trim_journal(&mark).await.unwrap();
    assert_eq!(w.store.read_journal(&start_mark(&*w.store, "sunco"), 10).await, Ok(vec![]), "settlement makes room");
    w.store.shut_down().await;
}

#[tokio::test]
async fn f19_f23_a_copy_grants_nothing() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut w = World::start_on(&server.url()).await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99)]);
    let before = w.dump().await;
    assert_eq!(w.raw.run(&["REPLICAOF", "127.0.0.1", "1"]).await, Raw::Text("OK".into()));
    for _ in 0..5 {
        let lead = LeadId::generate();
        let reply = w.store.take(&take(&*w.store, lead, vec![wanted.clone()])).await;
        assert!(matches!(reply, Err(StoreError::NotDone(_) | StoreError::MaybeDone(_))), "{reply:?}");
        let reply = w.store.admit(&admit(&*w.store, lead, None)).await;
        assert!(matches!(reply, Err(StoreError::NotDone(_) | StoreError::MaybeDone(_))), "{reply:?}");
    }
    assert_eq!(w.raw.run(&["REPLICAOF", "NO", "ONE"]).await, Raw::Text("OK".into()));
    assert_eq!(w.dump().await, before);
    eventually("a primary again", || async {
        let call = take(&*w.store, LeadId::generate(), vec![wanted.clone()]);
        w.store.take(&call).await.is_ok()
    })
    .await;
    assert_eq!(
        take_one(&*w.store, LeadId::generate(), &wanted).await,
        Err(Refusal::NewLife),
        "it may have missed something"
    );
    let partition = start_mark(&*w.store, "sunco").partition;
    let life = capgate::domain::event::Life(2);
    assert_eq!(begin(&*w.store, partition, life).await, life);
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    w.store.shut_down().await;
}

#[tokio::test]
async fn f27_a_stalled_server_holds_nobody_longer_than_two_tries_and_late_takes_start_nothing() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut raw = server.connection().await;
    let prefix = fresh_prefix();
    let store = Arc::new(connect_within(&server.url(), &prefix, 1_000_000, SHORT).await);
    begin_lives(&*store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&*store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99)]);
    assert_eq!(raw.run(&["CLIENT", "PAUSE", "2000", "ALL"]).await, Raw::Text("OK".into()));
    let started = Instant::now();
    let replies = at_once(50, |_| {
        let (store, wanted) = (Arc::clone(&store), wanted.clone());
        async move {
            let mut call = take(&*store, LeadId::generate(), vec![wanted]);
            // As the lease step asks: at most two time-outs ahead.
            call.not_after = store.now() + jiff::SignedDuration::from_millis(600);
            store.take(&call).await
        }
    })
    .await;
    assert!(started.elapsed() < Duration::from_millis(1_950), "{:?}", started.elapsed());
    assert!(replies.iter().all(|reply| matches!(reply, Err(StoreError::MaybeDone(_) | StoreError::NotDone(_)))));
    eventually("the server answers again", || async {
        let nothing = take(&*store, LeadId::generate(), vec![]);
        store.open_counts().await.is_ok() && store.take(&nothing).await.is_ok()
    })
    .await;
    assert_eq!(used(&*store, &who, "day", window).await, Some(0), "what reached the server late has started nothing");
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()));
    store.shut_down().await;
}

#[tokio::test]
async fn f29_f21_a_server_that_dies_grants_nothing_and_comes_back_closed() {
    let mut server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let prefix = fresh_prefix();
    let store = connect_within(&server.url(), &prefix, 1_000_000, SHORT).await;
    begin_lives(&store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&store, &who, &[("day", window, 60)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Ok(()));
    server.kill();
    for _ in 0..20 {
        let lead = LeadId::generate();
        assert!(store.take(&take(&store, lead, vec![wanted.clone()])).await.is_err());
        assert!(store.admit(&admit(&store, lead, None)).await.is_err());
    }
    eventually("it is known that nobody is there", || async {
        matches!(store.admit(&admit(&store, LeadId::generate(), None)).await, Err(StoreError::NotDone(_)))
    })
    .await;
    server.run().await;
    // Two connections, each with a back-off of its own.
    eventually("connected again", || async {
        let uncapped = take(&store, LeadId::generate(), vec![candidate(&who, vec![])]);
        store.open_counts().await.is_ok() && store.take(&uncapped).await.is_ok()
    })
    .await;
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Err(Refusal::NewLife));
    assert_eq!(store.admit(&admit(&store, LeadId::generate(), None)).await, Ok(Admission::NewLife));
    let mut mark = start_mark(&store, "sunco");
    mark.life = capgate::domain::event::Life(2);
    assert_eq!(begin(&store, mark.partition, mark.life).await, mark.life);
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    assert_eq!(store.seed(&who, &mark, &[(cap("day"), window, 60)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&store, &who, "day", window).await, Some(61), "the open lease was restated");
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&store, &who, "day", window).await, Some(62));
    store.shut_down().await;
}
