//! A cluster of two: an undeclared key or a step over two slots fails there, and nowhere else.

use std::time::{Duration, Instant};

use bytes::Bytes;
use capgate::domain::id::{LeadId, Partition};
use capgate::store::{Admission, CloseReply, EndReply, LeadState, SeedReply, Store};
use jiff::SignedDuration;

use crate::redis_support::{Raw, connect, fresh_prefix};
use crate::server::Server;
use crate::support::{
    Verb, admit, begin, begin_lives, buyer, candidate, claim, close, demand, end, publisher, running_window, seed,
    start_mark, take, total_window, used,
};

async fn two_nodes() -> [Server; 2] {
    let flags = ["--cluster-enabled", "yes", "--maxmemory-policy", "noeviction"];
    let nodes = [Server::start(&flags).await, Server::start(&flags).await];
    for (node, slots) in nodes.iter().zip([["0", "8191"], ["8192", "16383"]]) {
        let mut raw = node.connection().await;
        let reply = raw.run(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]).await;
        assert_eq!(reply, Raw::Text("OK".into()));
    }
    let mut raw = nodes[0].connection().await;
    let meet = raw.run(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port().to_string()]).await;
    assert_eq!(meet, Raw::Text("OK".into()));
    let started = Instant::now();
    for node in &nodes {
        let mut raw = node.connection().await;
        while !raw.run(&["CLUSTER", "INFO"]).await.text().contains("cluster_state:ok") {
            assert!(started.elapsed() < Duration::from_secs(30), "the cluster never was ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    nodes
}

#[tokio::test]
async fn f26_the_whole_walk_stays_in_one_slot_per_step() {
    let nodes = two_nodes().await;
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", nodes[0].port(), nodes[1].port());
    let store = connect(&url, &fresh_prefix(), 1_000_000).await;
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
        assert_eq!(begin(&store, partition, capgate::domain::event::Life(2)).await.0, 2);
    }
    assert_eq!(entries, 3 + 3 + 3 + 1);
    let mut mark = start_mark(&store, last.buyer.as_str());
    mark.life = capgate::domain::event::Life(2);
    let usage = [(last.demands[1].charge.cap.clone(), total, 2)];
    assert_eq!(store.seed(&last.buyer, &mark, &usage).await, Ok(SeedReply::Seeded));
    assert_eq!(store.health().await.unwrap().journal_entries, 0);
    store.shut_down().await;
}
