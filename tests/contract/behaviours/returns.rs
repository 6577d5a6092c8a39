//! A buyer gives a sold lead back.

use std::sync::Arc;

use capgate::domain::event::Event;
use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::lease::EndMark;
use capgate::domain::window::Window;
use capgate::store::{
    Comparison, CounterKey, EndReply, ReconcileReply, Refusal, ReturnReply, SaleReturn, Store, StoreError,
};
use jiff::SignedDuration;

use crate::store::Harness;
use crate::support::{
    Verb, at_once, begin_lives, buyer, candidate, cap, demand, end, money_demand, past_window, running_window,
    sale_return, seed, start_mark, take_one, total_window, used,
};

async fn sell(store: &dyn Store, wanted: &capgate::store::TakeCandidate) -> LeadId {
    let lead = LeadId::generate();
    assert_eq!(take_one(store, lead, wanted).await, Ok(()));
    assert_eq!(store.commit(&end(Verb::Commit, lead, wanted)).await, Ok(EndReply::Done));
    lead
}

/// Reconciliation, which adds settled usage, the journal's tail and open leases up, finds no difference.
async fn is_exact(store: &dyn Store, who: &BuyerId, usage: &[(&str, Window, u64)], settled: bool) {
    let mut mark = start_mark(store, who.as_str());
    if settled {
        mark.entry = store.journal_tip(mark.partition).await.unwrap();
    }
    let comparison = |(id, window, usage): &(&str, Window, u64)| Comparison {
        key: CounterKey { buyer: who.clone(), cap: cap(id), window: *window },
        usage: *usage,
        repair: None,
    };
    let comparisons: Vec<_> = usage.iter().map(comparison).collect();
    let ReconcileReply::Compared(found) = store.reconcile(&mark, &comparisons).await.unwrap() else {
        panic!("not compared");
    };
    assert!(found.iter().all(|found| found.difference() == Some(0)), "P2: {found:?}");
}

pub async fn p2_a_return_gives_units_back_once_and_only_where_it_is_told_to<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (who, window, total) = (buyer("sunco"), running_window(store.now()), total_window());
    seed(&*store, &who, &[("day", window, 5), ("spend", total, 100)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 50), money_demand("spend", total, 40, 1000)]);
    let (kept, freed) = (sell(&*store, &wanted).await, sell(&*store, &wanted).await);
    let start = start_mark(&*store, "sunco");
    let sold = store.read_journal(&start, 100).await.unwrap().len();

    let keeps = sale_return(&*store, kept, &who, &[]);
    assert_eq!(store.return_sale(&keeps).await, Ok(ReturnReply::Done));
    assert_eq!(used(&*store, &who, "day", window).await, Some(7), "the unit is kept unless it was agreed otherwise");
    let given = sale_return(&*store, freed, &who, &[("day", window, 1), ("spend", total, 40)]);
    assert_eq!(store.return_sale(&given).await, Ok(ReturnReply::Done));
    let after = async || (used(&*store, &who, "day", window).await, used(&*store, &who, "spend", total).await);
    assert_eq!(after().await, (Some(6), Some(140)));
    // F20: asked again, also by somebody else whose words differ.
    for call in [&given, &keeps, &sale_return(&*store, freed, &who, &[("day", window, 1)])] {
        assert_eq!(store.return_sale(call).await, Ok(ReturnReply::Already));
    }
    assert_eq!(after().await, (Some(6), Some(140)));
    let entries = store.read_journal(&start, 100).await.unwrap();
    let told: Vec<_> = entries[sold..].iter().map(|entry| Event::from_bytes(&entry.bytes).unwrap()).collect();
    assert_eq!(told, [Event::Returned(keeps.event), Event::Returned(given.event)]);
    is_exact(&*store, &who, &[("day", window, 5), ("spend", total, 100)], false).await;
    is_exact(&*store, &who, &[("day", window, 6), ("spend", total, 140)], true).await;

    // P4: never offered to this buyer again, and no late word about the sale moves anything.
    for lead in [kept, freed] {
        assert_eq!(take_one(&*store, lead, &wanted).await, Err(Refusal::Ended(EndMark::Committed)));
        for verb in Verb::ALL {
            let reply = verb.call(&*store, &end(verb, lead, &wanted)).await;
            assert_eq!(reply, EndReply::Already(EndMark::Committed), "{verb:?}");
        }
    }
    assert_eq!(after().await, (Some(6), Some(140)));
    // The room that it made is room.
    let tight = candidate(&who, vec![demand("day", window, 7), money_demand("spend", total, 40, 180)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &tight).await, Ok(()));
    assert!(matches!(take_one(&*store, LeadId::generate(), &tight).await, Err(Refusal::Full { .. })));
    h.stop().await;
}

pub async fn f01_a_return_makes_no_counter_and_takes_none_below_zero<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (who, window, gone) = (buyer("sunco"), running_window(store.now()), past_window(store.now()));
    seed(&*store, &who, &[("spend", window, 30)]).await;
    // The store has not been told of this sale: it was weeks ago, and the books remember it.
    let lead = LeadId::generate();
    let call = sale_return(&*store, lead, &who, &[("day", gone, 1), ("spend", window, 40)]);
    assert_eq!(store.return_sale(&call).await, Ok(ReturnReply::Done));
    assert_eq!(used(&*store, &who, "day", gone).await, None);
    assert_eq!(used(&*store, &who, "spend", window).await, Some(0));
    assert_eq!(store.return_sale(&call).await, Ok(ReturnReply::Already));
    h.stop().await;
}

pub async fn a_return_after_its_time_changes_nothing<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&*store, &who, &[("day", window, 0)]).await;
    let lead = sell(&*store, &candidate(&who, vec![demand("day", window, 9)])).await;
    let call = sale_return(&*store, lead, &who, &[("day", window, 1)]);
    let late = SaleReturn { not_after: store.now() - SignedDuration::from_secs(1), ..call.clone() };
    let tip = store.journal_tip(start_mark(&*store, "sunco").partition).await.unwrap();
    assert_eq!(store.return_sale(&late).await, Ok(ReturnReply::TooLate));
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    assert_eq!(store.journal_tip(start_mark(&*store, "sunco").partition).await, Ok(tip));
    assert_eq!(store.return_sale(&call).await, Ok(ReturnReply::Done));
    // A caller that slept learns what happened meanwhile.
    assert_eq!(store.return_sale(&late).await, Ok(ReturnReply::Already));
    assert_eq!(used(&*store, &who, "day", window).await, Some(0));
    h.stop().await;
}

pub async fn f02_racing_returns_give_back_one_unit<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    // Many units, so that one too many would not be hidden by the floor of zero.
    seed(&*store, &who, &[("day", window, 100)]).await;
    let lead = sell(&*store, &candidate(&who, vec![demand("day", window, 200)])).await;
    let call = Arc::new(sale_return(&*store, lead, &who, &[("day", window, 1)]));
    let replies = at_once(16, |_| {
        let (store, call) = (Arc::clone(&store), Arc::clone(&call));
        async move { store.return_sale(&call).await.unwrap() }
    })
    .await;
    assert_eq!(replies.iter().filter(|reply| **reply == ReturnReply::Done).count(), 1, "{replies:?}");
    assert_eq!(used(&*store, &who, "day", window).await, Some(100));
    is_exact(&*store, &who, &[("day", window, 100)], false).await;
    h.stop().await;
}

pub async fn p8_a_return_waits_for_its_partition<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    let call = sale_return(&*store, LeadId::generate(), &who, &[("day", window, 1)]);
    assert!(matches!(store.return_sale(&call).await, Err(StoreError::NotDone(_))), "no life has begun");
    begin_lives(&*store).await;
    assert_eq!(store.return_sale(&call).await, Ok(ReturnReply::Done));
    h.stop().await;
}
