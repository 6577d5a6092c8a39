//! P1 and P2 under races and random operations.

use std::collections::HashMap;
use std::sync::Arc;

use capgate::domain::event::{Attempt, Event};
use capgate::domain::id::{BuyerId, LeadId, Partition};
use capgate::domain::window::Window;
use capgate::store::{EndReply, Refusal, Store, TakeCandidate};

use crate::store::Harness;
use crate::support::{
    Dice, Verb, at_once, begin_lives, buyer, candidate, cap, demand, end, end_with_amounts, money_demand,
    running_window, seed, start_mark, take_one, used,
};

pub async fn p1_last_unit_race_never_oversells<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    for limit in [1_u64, 7, 100] {
        let who = buyer(&format!("cap{limit}"));
        seed(&*store, &who, &[("hour", window, 0), ("day", window, 0)]).await;
        let wanted = candidate(&who, vec![demand("hour", window, 1000), demand("day", window, limit)]);
        let granted: usize = at_once(64, |_| {
            let (store, wanted) = (Arc::clone(&store), wanted.clone());
            async move {
                let mut granted = 0;
                for _ in 0..4 {
                    match take_one(&*store, LeadId::generate(), &wanted).await {
                        Ok(()) => granted += 1,
                        Err(refusal) => assert_eq!(refusal, Refusal::Full { cap: cap("day"), used: limit }),
                    }
                }
                granted
            }
        })
        .await
        .into_iter()
        .sum();
        assert_eq!(u64::try_from(granted).unwrap(), limit, "never above, and always reached");
        assert_eq!(used(&*store, &who, "day", window).await, Some(limit));
        assert_eq!(used(&*store, &who, "hour", window).await, Some(limit));
    }
    h.stop().await;
}

/// The books as settlement would keep them: the state of each attempt by rank.
#[derive(Default)]
struct Books {
    rows: HashMap<(LeadId, BuyerId), Attempt>,
}

impl Books {
    /// Reads the journal to its end and has it trimmed, as settlement does.
    async fn settle(&mut self, store: &dyn Store, partition: Partition) {
        let mut mark = start_mark(store, "any");
        mark.partition = partition;
        loop {
            let entries = store.read_journal(&mark, 7).await.unwrap();
            let Some(last) = entries.last() else { break };
            assert!(entries.is_sorted_by_key(|entry| entry.id));
            mark.entry = last.id;
            for entry in &entries {
                if let Event::Attempt(attempt) = Event::from_bytes(&entry.bytes).unwrap() {
                    let row = self.rows.entry((attempt.lead, attempt.buyer.clone()));
                    let row = row.or_insert_with(|| attempt.clone());
                    if attempt.outcome.rank() > row.outcome.rank() {
                        *row = attempt;
                    }
                }
            }
            store.trim_journal(&mark).await.unwrap();
        }
    }

    /// Settled usage of a window.
    fn used(&self, who: &BuyerId, cap_id: &str, window: Window) -> u64 {
        let rows = self.rows.values().filter(|row| row.counted && row.buyer == *who);
        let windows = rows.flat_map(|row| &row.windows);
        windows.filter(|w| w.cap == cap(cap_id) && w.start_ms == window.start.as_millisecond()).map(|w| w.amount).sum()
    }
}

/// Counter = settled usage + effects of the journal + open leases, where `books` have just settled the whole journal.
async fn assert_conserved(store: &dyn Store, books: &Books, who: &BuyerId, caps: &[(&str, u64)], window: Window) {
    let partition = Partition::of(who.as_str(), store.partitions());
    let open = store.open_leases(partition, 10_000).await.unwrap();
    for (cap_id, base) in caps {
        let held: u64 = open
            .iter()
            .filter(|lease| lease.key.buyer == *who)
            .flat_map(|lease| &lease.charges)
            .filter(|charge| charge.cap == cap(cap_id))
            .map(|charge| charge.amount)
            .sum();
        let counted = books.used(who, cap_id, window);
        let stands = used(store, who, cap_id, window).await;
        assert_eq!(stands, Some(base + counted + held), "{cap_id}: {base} + {counted} settled + {held} held");
    }
}

/// One random step: a take, or an end of any lead that was ever offered. The second demand is money.
pub async fn random_step(store: &dyn Store, dice: &mut Dice, wanted: &TakeCandidate, leads: &mut Vec<LeadId>) {
    if leads.is_empty() || dice.roll(3) == 0 {
        let lead = LeadId::generate();
        match take_one(store, lead, wanted).await {
            Ok(()) => leads.push(lead),
            Err(Refusal::Full { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        return;
    }
    let lead = leads[dice.roll(leads.len())];
    let verb = Verb::ALL[dice.roll(3)];
    let spend = wanted.demands[1].charge.amount;
    let booked = if verb == Verb::Commit { spend - u64::try_from(dice.roll(15)).unwrap() } else { spend };
    let reply = verb.call(store, &end_with_amounts(verb, lead, wanted, &[1, booked])).await;
    assert_ne!(reply, EndReply::Missing);
}

pub async fn p2_conservation<H: Harness>() {
    let mut dice = Dice::new("p2_conservation");
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 5), ("spend", window, 100)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 40), money_demand("spend", window, 40, 1500)]);
    let partition = Partition::of("sunco", store.partitions());
    let (mut books, mut leads) = (Books::default(), Vec::new());
    for round in 0..400 {
        random_step(&*store, &mut dice, &wanted, &mut leads).await;
        if round % 10 == 0 {
            books.settle(&*store, partition).await;
            assert_conserved(&*store, &books, &who, &[("day", 5), ("spend", 100)], window).await;
        }
    }
    books.settle(&*store, partition).await;
    assert_conserved(&*store, &books, &who, &[("day", 5), ("spend", 100)], window).await;
    h.stop().await;
}

pub async fn p2_conservation_under_concurrency<H: Harness>() {
    let mut dice = Dice::new("p2_conservation_under_concurrency");
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 0), ("spend", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 40), money_demand("spend", window, 40, 1500)]);
    // Every end is sent by two callers, as a repeat after a lost reply would be.
    let dices: Vec<_> = (0..8).map(|_| parking_lot::Mutex::new(Some(dice.split()))).collect();
    at_once(8, |index| {
        let (store, wanted) = (Arc::clone(&store), wanted.clone());
        let mut dice = dices[index].lock().take().unwrap();
        async move {
            let mut leads = Vec::new();
            for _ in 0..60 {
                random_step(&*store, &mut dice, &wanted, &mut leads).await;
                if let Some(lead) = leads.last() {
                    let refund = end(Verb::Refund, *lead, &wanted);
                    let (one, two) = tokio::join!(store.refund(&refund), store.refund(&refund));
                    assert!(one.unwrap() != EndReply::Done || two.unwrap() != EndReply::Done);
                }
            }
        }
    })
    .await;
    let mut books = Books::default();
    books.settle(&*store, Partition::of("sunco", store.partitions())).await;
    assert_conserved(&*store, &books, &who, &[("day", 0), ("spend", 0)], window).await;
    h.stop().await;
}
