//! Crowds. F17: the race for the last units, over and over: 64 tasks on each gateway take until they are refused, at every cap from
//! 1 to 100. `CAPGATE_TEST_ROUNDS` sets how often; 1,000 is the whole of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capgate::domain::id::{LeadId, Partition};
use capgate::domain::lease::EndMark;
use capgate::lease::abandoned;
use capgate::store::{EndReply, Refusal};

use crate::bench::Bench;
use crate::support::{at_once, begin_lives, buyer, candidate, cap, demand, running_window, seed, take_one, used};

const TASKS: usize = 64;
const CAPS: u64 = 100;

fn rounds(default: u64) -> u64 {
    std::env::var("CAPGATE_TEST_ROUNDS").map_or(default, |rounds| rounds.parse().expect("a number of rounds"))
}

/// Never above, and always reached.
pub async fn race<B: Bench>(bench: B, default: u64) {
    let started = Instant::now();
    for gateway in 0..bench.gateways() {
        begin_lives(&*bench.gateway(gateway)).await;
    }
    let store = bench.gateway(0);
    let window = running_window(store.now());
    let (mut asked, mut taken, rounds) = (0, 0, rounds(default));
    for round in 0..rounds {
        // 37 and 100 share no divisor: every cap from 1 to 100 comes, small and large in turn.
        let limit = 1 + round * 37 % CAPS;
        let who = buyer(&format!("round{round}"));
        seed(&*store, &who, &[("hour", window, 0), ("day", window, 0)]).await;
        let wanted = candidate(&who, vec![demand("hour", window, CAPS), demand("day", window, limit)]);
        let granted = at_once(TASKS * bench.gateways(), |task| {
            let (store, wanted) = (bench.gateway(task % bench.gateways()), wanted.clone());
            async move {
                let mut granted = 0;
                loop {
                    match take_one(&*store, LeadId::generate(), &wanted).await {
                        Ok(()) => granted += 1,
                        Err(refusal) => {
                            let name = if limit == CAPS { "hour" } else { "day" };
                            assert_eq!(refusal, Refusal::Full { cap: cap(name), used: limit });
                            return granted;
                        }
                    }
                }
            }
        })
        .await;
        asked += granted.iter().sum::<u64>() + granted.len() as u64;
        assert_eq!(granted.iter().sum::<u64>(), limit, "round {round}: never above, and always reached");
        for name in ["hour", "day"] {
            assert_eq!(used(&*store, &who, name, window).await, Some(limit), "round {round}");
        }
        taken += limit;
        let open = store.open_counts().await.unwrap().leases;
        assert_eq!(open, taken, "round {round}: every unit has its lease");
    }
    println!("{rounds} rounds, {asked} takes in {:?}", started.elapsed());
    drop(store);
    bench.end().await;
}

/// F11: leases fall due while nobody recovers; then three recoveries start at once. Each unit goes back once, and takes go on
/// meanwhile. `CAPGATE_TEST_LEASES` sets how many; 100,000 is the whole of it.
pub async fn three_recoveries<B: Bench>(bench: B) {
    const BATCH: usize = 200;
    let leases = std::env::var("CAPGATE_TEST_LEASES").map_or(1_000, |count| count.parse().expect("a number of leases"));
    for gateway in 0..bench.gateways() {
        begin_lives(&*bench.gateway(gateway)).await;
    }
    let store = bench.gateway(0);
    let window = running_window(store.now());
    let (who, other) = (buyer("sunco"), buyer("other"));
    for one in [&who, &other] {
        seed(&*store, one, &[("day", window, 0)]).await;
    }
    let mut wanted = candidate(&who, vec![demand("day", window, leases as u64)]);
    wanted.lease_for = Duration::from_millis(1);
    at_once(TASKS, |task| {
        let (store, wanted) = (bench.gateway(task % bench.gateways()), wanted.clone());
        async move {
            for _ in (task..leases).step_by(TASKS) {
                take_one(&*store, LeadId::generate(), &wanted).await.unwrap();
            }
        }
    })
    .await;
    bench.wait_until_due().await;
    assert_eq!(used(&*store, &who, "day", window).await, Some(leases as u64));
    let partition = Partition::of(who.as_str(), store.partitions());
    let started = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let takes = tokio::spawn({
        let (store, is_over, wanted) = (store.clone(), is_over.clone(), candidate(&other, wanted.demands.clone()));
        async move {
            let mut took = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let before = Instant::now();
                take_one(&*store, LeadId::generate(), &wanted).await.unwrap();
                took.push(before.elapsed());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            took.sort_unstable();
            took
        }
    });
    let ended: usize = at_once(3, |recovery| {
        let store = bench.gateway(recovery % bench.gateways());
        async move {
            let mut ended = 0;
            loop {
                let overdue = store.overdue_leases(partition, BATCH).await.unwrap();
                if overdue.is_empty() {
                    return ended;
                }
                for lease in &overdue {
                    match store.expire(&abandoned(lease, false, store.now())).await.unwrap() {
                        EndReply::Done => ended += 1,
                        EndReply::Already(EndMark::Refunded) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    })
    .await
    .into_iter()
    .sum();
    is_over.store(true, Ordering::Relaxed);
    let took = takes.await.unwrap();
    println!(
        "{leases} leases ended by three in {:?}; takes meanwhile: p50 {:?}, p99 {:?} of {}",
        started.elapsed(),
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took.len()
    );
    assert_eq!(ended, leases, "each unit once");
    assert_eq!(used(&*store, &who, "day", window).await, Some(0));
    drop(store);
    bench.end().await;
}
