//! F17: the race for the last units, over and over: 64 tasks on each gateway take until they are refused, at every cap from
//! 1 to 100. `CAPGATE_TEST_ROUNDS` sets how often; 1,000 is the whole of it.

use capgate::domain::id::{LeadId, Partition};
use capgate::store::Refusal;

use crate::bench::Bench;
use crate::support::{at_once, begin_lives, buyer, candidate, cap, demand, running_window, seed, take_one, used};

const TASKS: usize = 64;
const CAPS: u64 = 100;

fn rounds(default: u64) -> u64 {
    std::env::var("CAPGATE_TEST_ROUNDS").map_or(default, |rounds| rounds.parse().expect("a number of rounds"))
}

/// Never above, and always reached.
pub async fn race<B: Bench>(bench: B, default: u64) {
    let started = std::time::Instant::now();
    for gateway in 0..bench.gateways() {
        begin_lives(&*bench.gateway(gateway)).await;
    }
    let store = bench.gateway(0);
    let window = running_window(store.now());
    let (mut takes, rounds) = (0, rounds(default));
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
        takes += granted.iter().sum::<u64>() + granted.len() as u64;
        assert_eq!(granted.iter().sum::<u64>(), limit, "round {round}: never above, and always reached");
        for name in ["hour", "day"] {
            assert_eq!(used(&*store, &who, name, window).await, Some(limit), "round {round}");
        }
        let open = store.open_leases(Partition::of(who.as_str(), store.partitions()), 100_000).await;
        let open = open.unwrap().iter().filter(|lease| lease.key.buyer == who).count();
        assert_eq!(open as u64, limit, "round {round}: every unit has its lease");
    }
    println!("{rounds} rounds, {takes} takes in {:?}", started.elapsed());
    drop(store);
    bench.end().await;
}
