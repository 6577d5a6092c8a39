//! A cluster: an undeclared key or a step over two slots fails there, and nowhere else; and a slot that moves under load.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capgate::domain::event::{Life, Mark};
use capgate::domain::id::{LeadId, Partition};
use capgate::store::redis::RedisStore;
use capgate::store::{Admission, BeginReply, CloseReply, EndReply, LeadState, Refusal, SeedReply, Store, StoreError};
use jiff::SignedDuration;

use crate::cluster_support::Cluster;
use crate::redis_support::{connect, fresh_prefix};
use crate::support::{
    Verb, admit, at_once, begin, begin_lives, buyer, candidate, cap, claim, close, demand, end, publisher,
    running_window, seed, start_mark, take, take_one, total_window, used,
};

#[tokio::test]
async fn f26_the_whole_walk_stays_in_one_slot_per_step() {
    let cluster = Cluster::start(2).await;
    let store = connect(&cluster.url(), &fresh_prefix(), 1_000_000).await;
    begin_lives(&store).await;
    assert!(store.health().await.unwrap().warnings.len() <= 1, "persistence only");
    let (window, total) = (running_window(store.now()), total_window());
    // Enough buyers to lie in many partitions, on both nodes.
    let candidates: Vec<_> = (0..12)
        .map(|number| {
            let limit = u64::from(number == 11) * 100;
            candidate(
                &buyer(&format!("b{number}")),
                vec![demand("day:state={TX}", window, limit), demand("total", total, limit)],
            )
        })
        .collect();
    for one in &candidates {
        seed(&store, &one.buyer, &[("day:state={TX}", window, 0), ("total", total, 0)]).await;
    }
    let last = candidates[11].clone();
    for (number, verb) in Verb::ALL.into_iter().enumerate() {
        let lead = LeadId::generate();
        let key = Some(claim(&number.to_string(), Some("body")));
        let received = admit(&store, lead, key.clone());
        let call = take(&store, lead, candidates.clone());
        let (admission, taken) = store.admit_and_take(&received, &call).await.unwrap();
        assert_eq!(admission, Admission::New);
        let taken = taken.unwrap();
        assert_eq!((taken.taken, taken.refused.len()), (Some(11), 11));
        assert_eq!(store.take(&call).await.unwrap(), taken, "a repeat");
        let answer = close(&store, lead, key, "x");
        if verb == Verb::Commit {
            let both = store.commit_and_close(&end(verb, lead, &last), &answer).await;
            assert_eq!(both, Ok((EndReply::Done, Some(CloseReply::Closed))));
        } else {
            store.give_back_at_deadline(&end(verb, lead, &last).key).await.unwrap();
            assert_eq!(verb.call(&store, &end(verb, lead, &last)).await, EndReply::Done);
            assert_eq!(store.close(&answer).await, Ok(CloseReply::Closed));
        }
        let state = Some(LeadState::Finished(Bytes::from_static(b"x")));
        assert_eq!(store.lead_state(&publisher(), lead).await, Ok(state));
    }
    assert_eq!(used(&store, &last.buyer, "total", total).await, Some(2));
    let mut overdue = admit(&store, LeadId::generate(), None);
    overdue.deadline = store.now() - SignedDuration::from_secs(1);
    assert_eq!(store.admit(&overdue).await, Ok(Admission::New));
    assert_eq!(store.open_counts().await.map(|open| open.leads), Ok(1));
    let mut entries = 0;
    for number in 0..store.partitions() {
        let partition = Partition(number);
        store.claim_overdue_leads(partition, Duration::ZERO, Duration::from_secs(9), 9).await.unwrap();
        assert_eq!(store.overdue_leases(partition, 9).await, Ok(vec![]));
        assert_eq!(store.open_leases(partition, 9).await, Ok(vec![]));
        let mut mark = start_mark(&store, "acme");
        mark.partition = partition;
        entries += store.read_journal(&mark, 100).await.unwrap().len();
        mark.entry = store.journal_tip(partition).await.unwrap();
        store.trim_journal(&mark).await.unwrap();
        store.let_go(&[mark]);
        assert_eq!(begin(&store, partition, Life(2)).await.0, 2);
    }
    assert_eq!(entries, 3 + 3 + 3 + 1);
    let mut mark = start_mark(&store, last.buyer.as_str());
    mark.life = Life(2);
    let usage = [(last.demands[1].charge.cap.clone(), total, 2)];
    assert_eq!(store.seed(&last.buyer, &mark, &usage).await, Ok(SeedReply::Seeded));
    assert_eq!(store.health().await.unwrap().journal_entries, 0);
    store.shut_down().await;
}

/// Asks as a caller does: again with the same ids, until there is an answer. Counts how often it was refused.
macro_rules! answered {
    ($refusals:ident, $call:expr) => {
        loop {
            match $call.await {
                Ok(answer) => break answer,
                Err(StoreError::NotDone(_) | StoreError::MaybeDone(_)) => $refusals += 1,
                Err(bug @ StoreError::Bug(_)) => panic!("{bug}"),
            }
            assert!($refusals < 10_000, "the store never answered again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
}

/// P1, P8: three gateways take and give back while the buyer's slot is moved to another server. From then on nothing is
/// granted, because that server cannot prove that it has all; the ends of leases wait. Under a new life, which every gateway
/// has restated what it holds in, the cap is reached to the unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f26_a_slot_that_moves_under_load_grants_nothing_until_it_is_restated() {
    const LIMIT: u64 = 200;
    let cluster = Arc::new(Cluster::start(3).await);
    let prefix = fresh_prefix();
    let mut stores: Vec<Arc<RedisStore>> = Vec::new();
    for _ in 0..3 {
        let store = connect(&cluster.url(), &prefix, 1_000_000).await;
        begin_lives(&store).await;
        stores.push(Arc::new(store));
    }
    let window = running_window(stores[0].now());
    let who = buyer("sunco");
    seed(&*stores[0], &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, LIMIT)]);
    let partition = Partition::of("sunco", stores[0].partitions());
    let tag = format!("{{p{:02}}}", partition.0);
    let mover = tokio::spawn({
        let (cluster, tag) = (cluster.clone(), tag.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let home = cluster.owner(&tag).await;
            assert!(cluster.move_slot_of(&tag, (home + 1) % 3, Duration::from_millis(5)).await > 3);
        }
    });
    // Each gateway goes on until it is refused; a third of what it takes is kept. An end that has to wait is tried again later.
    let rounds = at_once(3, |index| {
        let (store, wanted) = (stores[index].clone(), wanted.clone());
        async move {
            let (mut kept, mut waiting, mut refusals) = (0_u64, Vec::new(), 0_u32);
            for number in 0.. {
                let lead = LeadId::generate();
                let reply = answered!(refusals, store.take(&take(&*store, lead, vec![wanted.clone()])));
                if reply.taken.is_none() {
                    match reply.refused[0].1 {
                        Refusal::NewLife => break,
                        Refusal::Full { used, .. } if used == LIMIT => {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            continue;
                        }
                        _ => panic!("{reply:?}"),
                    }
                }
                let is_kept = number % 3 == 0 && kept < LIMIT / 6;
                let (verb, lease) = (if is_kept { Verb::Commit } else { Verb::Refund }, lead);
                let call = end(verb, lease, &wanted);
                let reply = if is_kept { store.commit(&call).await } else { store.refund(&call).await };
                match reply {
                    Ok(EndReply::Done | EndReply::Already(_)) => kept += u64::from(is_kept),
                    Err(StoreError::NotDone(_) | StoreError::MaybeDone(_)) => waiting.push((is_kept, call)),
                    other => panic!("{other:?}"),
                }
            }
            (kept, waiting, refusals)
        }
    })
    .await;
    mover.await.unwrap();
    let lead = LeadId::generate();
    for store in &stores {
        assert_eq!(take_one(&**store, lead, &wanted).await, Err(Refusal::NewLife));
    }

    let life = Life(2);
    let server = stores[0].standing(partition).await.unwrap().server;
    for store in &stores {
        assert_eq!(store.begin_life(partition, life, &server).await, Ok(BeginReply::Life(life)));
        store.join(&[(partition, life)]).await.unwrap();
    }
    assert_eq!(stores[0].open_life(partition, life).await, Ok(true));
    // What was restated is settled before the partition opens, and counts once; here that is done by hand.
    let entry = stores[0].journal_tip(partition).await.unwrap();
    let mark = Mark { life, entry, ..start_mark(&*stores[0], "sunco") };
    let settled = rounds.iter().map(|(kept, ..)| kept).sum();
    assert_eq!(stores[0].seed(&who, &mark, &[(cap("day"), window, settled)]).await, Ok(SeedReply::Seeded));
    let mut sold = 0;
    for (store, (kept, waiting, refusals)) in stores.iter().zip(rounds) {
        println!("{kept} sold, {} ends waited, {refusals} calls refused", waiting.len());
        sold += kept;
        for (is_kept, call) in waiting {
            let reply = if is_kept { store.commit(&call).await } else { store.refund(&call).await };
            assert!(matches!(reply, Ok(EndReply::Done | EndReply::Already(_))), "{reply:?}");
            sold += u64::from(is_kept);
        }
    }
    assert!(sold > 0);
    assert_eq!(used(&*stores[1], &who, "day", window).await, Some(sold), "P2: what was sold, and nothing else");
    for number in 0.. {
        match take_one(&*stores[number % 3], LeadId::generate(), &wanted).await {
            Ok(()) => sold += 1,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Full { cap: cap("day"), used: LIMIT });
                break;
            }
        }
    }
    assert_eq!(sold, LIMIT, "P1: never above, and reached");
    for store in &stores {
        store.shut_down().await;
    }
}
