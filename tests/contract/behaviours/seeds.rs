//! Seed, and where counters begin.

use capgate::domain::id::LeadId;
use capgate::store::{EndReply, Refusal, SeedReply};

use crate::store::Harness;
use crate::support::{
    Verb, begin_lives, buyer, candidate, cap, demand, end, past_window, running_window, seed, start_mark, take_one,
    total_window, used,
};

pub async fn unseeded_counter_is_closed_until_seeded<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    let wanted = candidate(&who, vec![demand("day", window, 5)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    assert_eq!(used(&*store, &who, "day", window).await, None);
    seed(&*store, &who, &[("day", window, 4)]).await;
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Err(Refusal::Full { cap: cap("day"), used: 5 }));
    // Every cap is seeded for itself.
    let total = candidate(&who, vec![demand("total", total_window(), 5)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &total).await, Err(Refusal::Unseeded { cap: cap("total") }));
    h.stop().await;
}

pub async fn seed_never_touches_a_counter_that_is_there<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 3)]).await;
    assert_eq!(take_one(&*store, LeadId::generate(), &candidate(&who, vec![demand("day", window, 5)])).await, Ok(()));
    seed(&*store, &who, &[("day", window, 0), ("hour", window, 7)]).await;
    assert_eq!(used(&*store, &who, "day", window).await, Some(4));
    assert_eq!(used(&*store, &who, "hour", window).await, Some(7));
    h.stop().await;
}

pub async fn seed_beyond_a_trimmed_mark_is_stale<H: Harness>() {
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
    let counters = [(cap("month"), window, 0)];
    assert_eq!(store.seed(&who, &old, &counters).await, Ok(SeedReply::Stale));
    assert_eq!(used(&*store, &who, "month", window).await, None);
    assert_eq!(store.seed(&who, &settled, &counters).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*store, &who, "month", window).await, Some(0));
    h.stop().await;
}

pub async fn new_window_of_a_known_cap_starts_at_zero<H: Harness>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let now = store.now();
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", past_window(now), 50)]).await;
    let wanted = candidate(&who, vec![demand("day", running_window(now), 1)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&*store, &who, "day", running_window(now)).await, Some(1));
    assert_eq!(used(&*store, &who, "day", past_window(now)).await, Some(50));
    // Known for this buyer and cap only.
    let other_cap = candidate(&who, vec![demand("hour", running_window(now), 1)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &other_cap).await, Err(Refusal::Unseeded { cap: cap("hour") }));
    let other_buyer = candidate(&buyer("helio"), vec![demand("day", running_window(now), 1)]);
    assert_eq!(take_one(&*store, LeadId::generate(), &other_buyer).await, Err(Refusal::Unseeded { cap: cap("day") }));
    h.stop().await;
}

/// What a store does that can lose a counter (a key deleted by hand); run beside the list on such stores.
#[cfg(feature = "server-tests")]
pub async fn seed_counts_the_tail_and_open_leases<H: crate::store::LosesCounters>() {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    let window = running_window(store.now());
    let who = buyer("sunco");
    seed(&*store, &who, &[("day", window, 7), ("spend", window, 70)]).await;
    let wanted =
        candidate(&who, vec![demand("day", window, 50), crate::support::money_demand("spend", window, 40, 1000)]);
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
    for ends in verbs {
        let lead = LeadId::generate();
        assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
        for verb in ends {
            let booked = if *verb == Verb::Commit { 25 } else { 40 };
            verb.call(&*store, &crate::support::end_with_amounts(*verb, lead, &wanted, &[1, booked])).await;
        }
    }
    let counts = (used(&*store, &who, "day", window).await, used(&*store, &who, "spend", window).await);
    assert_eq!(counts, (Some(7 + 6), Some(70 + 2 * 40 + 25 + 40 + 25 + 25)));
    for name in ["day", "spend"] {
        h.lose_counter(&who, name, window).await;
        assert_eq!(used(&*store, &who, name, window).await, None);
    }
    let refused = take_one(&*store, LeadId::generate(), &wanted).await;
    assert_eq!(refused, Err(Refusal::Unseeded { cap: cap("day") }), "lost, not new: closed");
    seed(&*store, &who, &[("day", window, 7), ("spend", window, 70)]).await;
    assert_eq!((used(&*store, &who, "day", window).await, used(&*store, &who, "spend", window).await), counts);
    h.stop().await;
}
