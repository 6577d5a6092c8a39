//! Reconcile: exact under load, by difference, and nothing that was not asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use capgate::domain::event::{Life, Mark};
use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::window::Window;
use capgate::store::{Compared, Comparison, CounterKey, EndReply, ReconcileReply, Store, StoreError, TAIL_ENTRIES_MAX};

use super::random_step;
use crate::store::Harness;
use crate::support::{
    Dice, Verb, at_once, begin_lives, buyer, candidate, cap, demand, end, end_with_amounts, money_demand,
    running_window, seed, start_mark, take_one, used,
};

fn comparison(who: &BuyerId, cap_id: &str, window: Window, usage: u64, repair: Option<i128>) -> Comparison {
    Comparison { key: CounterKey { buyer: who.clone(), cap: cap(cap_id), window }, usage, repair }
}

async fn compare(store: &dyn Store, mark: &Mark, comparisons: &[Comparison]) -> Vec<Compared> {
    match store.reconcile(mark, comparisons).await.unwrap() {
        ReconcileReply::Compared(found) => {
            assert_eq!(found.len(), comparisons.len());
            found
        }
        other => panic!("{other:?}"),
    }
}

/// Compares one counter from the journal's beginning.
async fn one(store: &dyn Store, who: &BuyerId, window: Window, usage: u64, repair: Option<i128>) -> Compared {
    let mark = start_mark(store, who.as_str());
    compare(store, &mark, &[comparison(who, "day", window, usage, repair)]).await[0]
}

pub async fn p2_reconcile_counts_settled_usage_tail_and_leases<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 7), ("spend", window, 70), ("idle", window, 3)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50), money_demand("spend", window, 40, 1000)]);
    let verbs: [&[Verb]; 8] = [
        &[],
        &[],
        &[Verb::Commit],
        &[Verb::Refund],
        &[Verb::Doubt],
        &[Verb::Doubt, Verb::Refund],
        &[Verb::Doubt, Verb::Commit],
        &[Verb::Refund, Verb::Commit],
    ];
    let mark = start_mark(&*store, "sunco");
    let all = |day, spend| {
        ["day", "spend", "idle"]
            .into_iter()
            .zip([day, spend, 3])
            .map(|(id, usage)| comparison(&who, id, window, usage, None))
    };
    for ends in verbs {
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        for verb in ends {
            let booked = if *verb == Verb::Commit { 25 } else { 40 };
            verb.call(&*store, &end_with_amounts(*verb, lead, &wanted, &[1, booked])).await;
            let found = compare(&*store, &mark, &all(7, 70).collect::<Vec<_>>()).await;
            assert!(found.iter().all(|found| found.difference() == Some(0)), "{ends:?}: {found:?}");
        }
    }
    let found = compare(&*store, &mark, &all(7, 70).collect::<Vec<_>>()).await;
    let right = |used: u64| Compared { used: Some(i128::from(used)), expected: used, is_repaired: false };
    assert_eq!(found, [right(7 + 6), right(70 + 2 * 40 + 25 + 40 + 25 + 25), right(3)]);
    // Settled to its end, and trimmed or not: the same counters from other usage.
    let mut settled = mark;
    settled.entry = store.journal_tip(mark.partition).await.unwrap();
    let newer: Vec<_> = all(7 + 4, 70 + 25 + 40 + 25 + 25).collect();
    assert_eq!(compare(&*store, &settled, &newer).await, found);
    store.trim_journal(&settled).await.unwrap();
    assert_eq!(compare(&*store, &settled, &newer).await, found);
    h.stop().await;
}

pub async fn f82_only_the_named_difference_is_taken_out<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    // The last two need more digits than a double has.
    for (name, counter, usage) in [
        ("low", 5_u64, 7_u64),
        ("high", 1_000_000_000, 999_999_999),
        ("nought", 9, 0),
        ("large", 9_007_199_254_740_993, 9_007_199_254_740_992),
        ("huge", 4_000_000_000_000_000_001, 9_000_000_000_000_000_000),
    ] {
        let who = buyer(name);
        seed(&*store, &who, &[("day", window, counter)]).await;
        let difference = i128::from(counter) - i128::from(usage);
        let found = |is_repaired| Compared { used: Some(counter.into()), expected: usage, is_repaired };
        for no_repair in [None, Some(0), Some(difference + 1), Some(difference - 1), Some(-difference)] {
            assert_eq!(one(&*store, &who, window, usage, no_repair).await, found(false), "{name} {no_repair:?}");
            assert_eq!(used(&*store, &who, "day", window).await, Some(counter), "{name} {no_repair:?}");
        }
        assert_eq!(one(&*store, &who, window, usage, Some(difference)).await, found(true), "{name}");
        assert_eq!(used(&*store, &who, "day", window).await, Some(usage), "{name}");
        let again = one(&*store, &who, window, usage, Some(difference)).await;
        assert_eq!((again.difference(), again.is_repaired), (Some(0), false), "{name}: a repeat changes nothing");
    }
    h.stop().await;
}

/// Two reconcilers name the same difference while units are taken and given back: one repairs, and every unit stays where
/// its own call has put it.
pub async fn f82_two_reconcilers_with_takes_between_repair_once<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    for (round, difference) in [(0, 30_i128), (1, -3), (2, 30), (3, -3)] {
        let who = buyer(&format!("b{round}"));
        let (usage, counter) = (100_u64, u64::try_from(100 + difference).unwrap());
        seed(&*store, &who, &[("day", window, counter)]).await;
        let wanted = candidate(&who, vec![demand("day", window, 10_000)]);
        let repairs: usize = at_once(6, |index| {
            let (store, who, wanted) = (Arc::clone(&store), who.clone(), wanted.clone());
            async move {
                if index < 2 {
                    return usize::from(one(&*store, &who, window, usage, Some(difference)).await.is_repaired);
                }
                for _ in 0..5 {
                    let (kept, back) = (LeadId::generate(), LeadId::generate());
                    assert_eq!(take_one(&*store, kept, &wanted).await, Ok(()));
                    assert_eq!(take_one(&*store, back, &wanted).await, Ok(()));
                    assert_eq!(store.refund(&end(Verb::Refund, back, &wanted)).await, Ok(EndReply::Done));
                }
                0
            }
        })
        .await
        .into_iter()
        .sum();
        assert_eq!(repairs, 1, "{difference}");
        assert_eq!(used(&*store, &who, "day", window).await, Some(100 + 4 * 5), "{difference}");
    }
    h.stop().await;
}

pub async fn f81_reconcile_finds_nothing_under_load<H: Harness>() {
    let mut dice = Dice::new("f81_reconcile_finds_nothing_under_load");
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 5), ("spend", window, 100)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 60), money_demand("spend", window, 40, 2500)]);
    let dices: Vec<_> = (0..4).map(|_| parking_lot::Mutex::new(Some(dice.split()))).collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let looks = tokio::spawn({
        let (store, who, is_over) = (Arc::clone(&store), who.clone(), Arc::clone(&is_over));
        async move {
            let mark = start_mark(&*store, "sunco");
            let mut looks = 0;
            while !is_over.load(Ordering::Relaxed) {
                // A difference that is not there cannot be taken out, whatever is named.
                let repair = Some(if looks % 2 == 0 { 1 } else { -1 });
                let wanted =
                    [comparison(&who, "day", window, 5, repair), comparison(&who, "spend", window, 100, repair)];
                for found in compare(&*store, &mark, &wanted).await {
                    assert_eq!((found.difference(), found.is_repaired), (Some(0), false), "{found:?}");
                }
                looks += 1;
            }
            looks
        }
    });
    at_once(4, |index| {
        let (store, wanted) = (Arc::clone(&store), wanted.clone());
        let mut dice = dices[index].lock().take().unwrap();
        async move {
            let mut leads = Vec::new();
            for _ in 0..80 {
                random_step(&*store, &mut dice, &wanted, &mut leads).await;
            }
        }
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    assert!(looks.await.unwrap() > 3);
    h.stop().await;
}

pub async fn f81_reconcile_beyond_a_trimmed_mark_is_stale<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0)]).await;
    let (lead, wanted) = (LeadId::generate(), candidate(&who, vec![demand("day", window, 5)]));
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    assert_eq!(Verb::Commit.call(&*store, &end(Verb::Commit, lead, &wanted)).await, EndReply::Done);
    let old = start_mark(&*store, "sunco");
    let mut settled = old;
    settled.entry = store.journal_tip(old.partition).await.unwrap();
    store.trim_journal(&settled).await.unwrap();
    // By the old usage the counter is one too high; by the new one it is right.
    let ask = |usage| [comparison(&who, "day", window, usage, Some(1))];
    assert_eq!(store.reconcile(&old, &ask(0)).await, Ok(ReconcileReply::Stale));
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    assert_eq!(compare(&*store, &settled, &ask(1)).await[0].difference(), Some(0));
    h.stop().await;
}

pub async fn p8_reconcile_of_another_life_or_partition_changes_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    let window = running_window(store.now());
    let who = buyer("sunco");
    let mark = start_mark(&*store, "sunco");
    let ask = [comparison(&who, "day", window, 1, Some(4))];
    assert_eq!(store.reconcile(&mark, &ask).await, Ok(ReconcileReply::NewLife), "before any life");
    begin_lives(&*store).await;
    seed(&*store, &who, &[("day", window, 5)]).await;
    let newer = Mark { life: Life(2), ..mark };
    assert_eq!(store.reconcile(&newer, &ask).await, Ok(ReconcileReply::NewLife));
    let stranger = (0..1_000)
        .map(|n| buyer(&format!("n{n}")))
        .find(|other| start_mark(&*store, other.as_str()).partition != mark.partition);
    let elsewhere = start_mark(&*store, stranger.unwrap().as_str());
    assert!(matches!(store.reconcile(&elsewhere, &ask).await, Err(StoreError::Bug(_))));
    assert_eq!(used(&*store, &who, "day", window).await, Some(5));
    assert_eq!(store.reconcile(&mark, &[]).await, Ok(ReconcileReply::Compared(Vec::new())));
    h.stop().await;
}

pub async fn reconcile_never_creates_a_counter<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    let found = one(&*store, &who, window, 7, Some(-7)).await;
    assert_eq!(found, Compared { used: None, expected: 7, is_repaired: false });
    assert_eq!(used(&*store, &who, "day", window).await, None);
    h.stop().await;
}

pub async fn p7_reconcile_reads_no_endless_tail<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 5)]).await;
    let event = end(Verb::Refund, LeadId::generate(), &candidate(&who, Vec::new())).event;
    let append = async |count: usize| {
        at_once(count.min(100), |index| {
            let (store, event) = (Arc::clone(&store), event.clone());
            async move {
                for _ in (index..count).step_by(100) {
                    store.record(&event).await.unwrap();
                }
            }
        })
        .await;
    };
    append(TAIL_ENTRIES_MAX).await;
    assert_eq!(one(&*store, &who, window, 5, None).await.difference(), Some(0));
    append(1).await;
    let mark = start_mark(&*store, "sunco");
    let ask = [comparison(&who, "day", window, 1, Some(4))];
    assert_eq!(store.reconcile(&mark, &ask).await, Ok(ReconcileReply::TailTooLong));
    assert_eq!(used(&*store, &who, "day", window).await, Some(5));
    let settled = Mark { entry: store.journal_tip(mark.partition).await.unwrap(), ..mark };
    assert!(compare(&*store, &settled, &ask).await[0].is_repaired, "only what comes after the mark is read");
    h.stop().await;
}
