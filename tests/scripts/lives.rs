//! Data that is gone or older, and counters that come back from the books.

use std::sync::Arc;

use capgate::domain::event::{Event, JournalEntry, Life, Mark};
use capgate::domain::id::{LeadId, Partition};
use capgate::domain::lease::EndMark;
use capgate::store::{Admission, BeginReply, CloseReply, EndReply, Refusal, SeedReply, Store, StoreError};

use crate::redis_support::{connect, fresh_prefix, url};
use crate::server::Server;
use crate::support::{
    LIFE, Verb, admit, begin, begin_lives, buyer, candidate, cap, claim, close, demand, end, eventually,
    running_window, seed, start_mark, take, take_one, used,
};
use crate::world::World;

/// A life on the server that answers, closed; nobody has joined it.
pub(crate) async fn begin_closed(store: &dyn Store, partition: Partition, life: Life) {
    let server = store.standing(partition).await.unwrap().server;
    assert_eq!(store.begin_life(partition, life, &server).await, Ok(BeginReply::Life(life)));
}

fn all_of(store: &dyn Store, life: Life) -> Vec<(Partition, Life)> {
    (0..store.partitions()).map(|partition| (Partition(partition), life)).collect()
}

pub(crate) fn waits<T: std::fmt::Debug>(reply: &Result<T, StoreError>) -> bool {
    matches!(reply, Err(StoreError::NotDone(_)))
}

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
    for reply in [
        w.store.commit(&end(Verb::Commit, open, &wanted)).await,
        w.store.refund(&end(Verb::Refund, open, &wanted)).await,
        w.store.doubt(&end(Verb::Doubt, open, &wanted)).await,
    ] {
        assert!(waits(&reply), "{reply:?}");
    }
    let mark = start_mark(&*w.store, "sunco");
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 60)]).await, Ok(SeedReply::NewLife));
    assert_eq!(w.raw.keys_of(&w.prefix).await, Vec::<String>::new(), "none of these calls has made a key");

    for (partition, life) in all_of(&*w.store, Life(2)) {
        assert_eq!(begin(&*w.store, partition, life).await, life);
    }
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::Unseeded { cap: cap("day") }));
    let older = w.store.seed(&who, &mark, &[(cap("day"), window, 60)]).await;
    assert_eq!(older, Ok(SeedReply::NewLife), "usage as of an older life's mark is not the whole truth");
    let mut mark = mark;
    mark.life = Life(2);
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 60)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(61), "the open lease was restated");
    assert_eq!(w.store.commit(&end(Verb::Commit, open, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(62));
    assert_eq!(w.store.close(&close(&*w.store, lead, None, "x")).await, Ok(CloseReply::Closed));
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
    begin_closed(&*w.store, mark.partition, LIFE).await;
    assert_eq!(w.dump().await, before);
    // Nor does a life that was raised for another server.
    assert_eq!(w.store.begin_life(mark.partition, Life(10), "ab12").await, Ok(BeginReply::Elsewhere));
    assert_eq!(w.dump().await, before);

    assert_eq!(begin(&*w.store, mark.partition, Life(10)).await, Life(10));
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
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(41), "the open lease holds one, once");
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(41));
    assert_eq!(w.journal_length("sunco", 10).await, 1, "events go to the journal of the life in force");
    w.stop().await;
}

#[tokio::test]
async fn p8_a_closed_partition_takes_what_has_happened_and_grants_nothing() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 9)]);
    let (sold, overdue, admitted) = (LeadId::generate(), LeadId::generate(), LeadId::generate());
    let short = capgate::store::TakeCandidate { lease_for: std::time::Duration::ZERO, ..wanted.clone() };
    assert_eq!(take_one(&*w.store, sold, &wanted).await, Ok(()));
    assert_eq!(take_one(&*w.store, overdue, &short).await, Ok(()));
    let mut late = admit(&*w.store, admitted, None);
    late.deadline = w.store.now() - jiff::SignedDuration::from_secs(1);
    assert_eq!(w.store.admit(&late).await, Ok(Admission::New));
    let lives = all_of(&*w.store, Life(2));
    for (partition, life) in &lives {
        begin_closed(&*w.store, *partition, *life).await;
    }
    assert!(waits(&w.store.commit(&end(Verb::Commit, sold, &wanted)).await), "not joined yet");
    w.store.join(&lives).await.unwrap();
    assert_eq!(w.store.commit(&end(Verb::Commit, sold, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(w.store.admit(&admit(&*w.store, LeadId::generate(), None)).await, Ok(Admission::NewLife));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &candidate(&who, vec![])).await, Err(Refusal::NewLife));
    let (mine, theirs) = (start_mark(&*w.store, "sunco"), start_mark(&*w.store, "acme"));
    let mut seeding = mine;
    seeding.life = Life(2);
    assert_eq!(w.store.seed(&who, &seeding, &[(cap("day"), window, 0)]).await, Ok(SeedReply::NewLife));
    assert_eq!(w.store.overdue_leases(mine.partition, 9).await, Ok(vec![]), "its owner may still say how it ended");
    let minute = std::time::Duration::from_mins(1);
    let claimed = w.store.claim_overdue_leads(theirs.partition, std::time::Duration::ZERO, minute, 9).await;
    assert_eq!(claimed, Ok(vec![]));
    assert_eq!(w.store.open_leases(mine.partition, 9).await.unwrap().len(), 1);
    w.store.forget_lease(Life(2), &end(Verb::Commit, overdue, &wanted).key).await.unwrap();
    assert_eq!(w.store.open_leases(mine.partition, 9).await, Ok(vec![]));

    for (partition, life) in &lives {
        assert_eq!(w.store.open_life(*partition, Life(7)).await, Ok(false));
        assert_eq!(w.store.open_life(*partition, *life).await, Ok(true));
    }
    assert_eq!(take_one(&*w.store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()));
    let open = w.store.open_leases(mine.partition, 9).await.unwrap();
    w.store.forget_lease(Life(2), &open[0].key).await.unwrap();
    assert_eq!(w.store.open_leases(mine.partition, 9).await, Ok(open), "only while it is closed");
    w.stop().await;
}

/// Events by kind and lead, as settlement would read them.
pub(crate) async fn told(store: &dyn Store, id: &str, life: Life) -> Vec<String> {
    let mark = Mark { life, ..start_mark(store, id) };
    let entries = store.read_journal(&mark, 1000).await.unwrap();
    let name = |entry: &JournalEntry| match Event::from_bytes(&entry.bytes).unwrap() {
        Event::Received(received) => format!("received {}", received.lead),
        Event::Attempt(attempt) => format!("{} {}", attempt.outcome.as_str(), attempt.lead),
        Event::Closed(closed) => format!("closed {}", closed.lead),
        Event::Parked(parked) => format!("parked {}", parked.lead),
        Event::Returned(returned) => format!("returned {}", returned.lead),
    };
    entries.iter().map(name).collect()
}

#[tokio::test]
async fn f21_p5_everything_that_a_gateway_holds_is_restated_after_a_loss() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 10)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    let [sold, refunded, doubt, late, held, reserved] = std::array::from_fn(|_| LeadId::generate());
    for lead in [sold, refunded, doubt, late, held, reserved] {
        let key = Some(claim(&lead.to_string(), Some("body")));
        assert_eq!(w.store.admit(&admit(&*w.store, lead, key)).await, Ok(Admission::New));
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    let store = Arc::clone(&w.store);
    let call = async |verb: Verb, lead| verb.call(&*store, &end(verb, lead, &wanted)).await;
    assert_eq!(call(Verb::Commit, sold).await, EndReply::Done);
    assert_eq!(call(Verb::Refund, refunded).await, EndReply::Done);
    assert_eq!(call(Verb::Doubt, doubt).await, EndReply::Done);
    assert_eq!(call(Verb::Doubt, late).await, EndReply::Done);
    assert_eq!(call(Verb::Commit, late).await, EndReply::Late { was: EndMark::Doubt, counters: vec![] });
    w.store.give_back_at_deadline(&end(Verb::Refund, reserved, &wanted).key).await.unwrap();
    w.store.record(&end(Verb::Refund, doubt, &wanted).event).await.unwrap();
    let answer = "{\"status\":\"sold\"}";
    let closing = close(&*w.store, sold, Some(claim(&sold.to_string(), Some("body"))), answer);
    assert_eq!(w.store.close(&closing).await, Ok(CloseReply::Closed));
    let mut before = (told(&*w.store, "acme", LIFE).await, told(&*w.store, "sunco", LIFE).await);

    w.raw.delete_all_of(&w.prefix).await;
    let lives = all_of(&*w.store, Life(2));
    for (partition, life) in &lives {
        begin_closed(&*w.store, *partition, *life).await;
    }
    w.store.join(&lives).await.unwrap();
    let mut after = (told(&*w.store, "acme", Life(2)).await, told(&*w.store, "sunco", Life(2)).await);
    for list in [&mut before.0, &mut before.1, &mut after.0, &mut after.1] {
        list.sort();
    }
    assert_eq!(after, before, "every event, once");
    let once = w.dump().await;
    w.store.join(&lives).await.unwrap();
    assert_eq!(w.dump().await, once, "joined is joined");

    for (partition, life) in &lives {
        assert_eq!(w.store.open_life(*partition, *life).await, Ok(true));
    }
    let open = w.store.open_leases(start_mark(&*w.store, "sunco").partition, 9).await.unwrap();
    let mut leases: Vec<_> =
        open.iter().map(|lease| (lease.key.lead, lease.gives_back, lease.charges.clone())).collect();
    leases.sort_by_key(|(lead, ..)| *lead);
    let charges: Vec<_> = wanted.demands.iter().map(|demand| demand.charge.clone()).collect();
    assert_eq!(leases, [(held, false, charges.clone()), (reserved, true, charges)]);
    assert_eq!(open[0].about, wanted.about);
    let mark = Mark { life: Life(2), ..start_mark(&*w.store, "sunco") };
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 10)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(15), "sold, late, doubt and two open leases");
    assert_eq!(call(Verb::Refund, sold).await, EndReply::Already(EndMark::Committed));
    assert_eq!(call(Verb::Doubt, refunded).await, EndReply::Already(EndMark::Refunded));
    assert_eq!(call(Verb::Refund, late).await, EndReply::Already(EndMark::Committed));
    assert_eq!(call(Verb::Refund, doubt).await, EndReply::Late { was: EndMark::Doubt, counters: vec![] });
    assert_eq!(call(Verb::Commit, held).await, EndReply::Done);
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(14));
    let ask = async |lead: LeadId, body: &str| {
        let key = Some(claim(&lead.to_string(), Some(body)));
        w.store.admit(&admit(&*w.store, LeadId::generate(), key)).await.unwrap()
    };
    assert_eq!(ask(sold, "body").await, Admission::Finished(sold, bytes::Bytes::from(answer)));
    assert_eq!(ask(sold, "other").await, Admission::KeyReused);
    assert_eq!(ask(held, "body").await, Admission::Running(held));
    assert_eq!(w.store.open_counts().await.unwrap().leads, 5);
    w.stop().await;
}

/// P1: an older routing gets no more after a loss than before it, from whichever gateway has seen the newer one.
#[tokio::test]
async fn f86_the_newest_routing_is_restated_after_a_loss() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let behind = connect(&url(), &w.prefix, 1_000_000).await;
    begin_lives(&behind).await;
    let partition = start_mark(&*w.store, "sunco").partition;
    let mut old = candidate(&who, vec![demand("day", window, 100)]);
    let mut new = candidate(&who, vec![demand("day", window, 50)]);
    (old.routing_version, new.routing_version) = (9, 10);
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    assert_eq!(take_one(&*w.store, LeadId::generate(), &new).await, Ok(()));
    for (number, teller) in [&*w.store, &behind].into_iter().enumerate() {
        assert_eq!(take_one(&behind, LeadId::generate(), &old).await, Err(Refusal::Stale { newest: 10 }));
        w.raw.delete_all_of(&w.prefix).await;
        let life = Life(2 + number as u64);
        begin_closed(teller, partition, life).await;
        teller.join(&[(partition, life)]).await.unwrap();
        assert_eq!(teller.open_life(partition, life).await, Ok(true));
        behind.join(&[(partition, life)]).await.unwrap();
        let mark = Mark { life, ..start_mark(teller, "sunco") };
        assert_eq!(teller.seed(&who, &mark, &[(cap("day"), window, 50)]).await, Ok(SeedReply::Seeded));
    }
    assert_eq!(take_one(&behind, LeadId::generate(), &old).await, Err(Refusal::Stale { newest: 10 }));
    behind.shut_down().await;
    w.stop().await;
}

#[tokio::test]
async fn restating_into_data_that_was_kept_changes_no_counter() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    let [sold, held, doubt] = std::array::from_fn(|_| LeadId::generate());
    for lead in [sold, held, doubt] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    assert_eq!(w.store.commit(&end(Verb::Commit, sold, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(w.store.doubt(&end(Verb::Doubt, doubt, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(
        w.store.refund(&end(Verb::Refund, doubt, &wanted)).await,
        Ok(EndReply::Late { was: EndMark::Doubt, counters: vec![] })
    );
    let partition = start_mark(&*w.store, "sunco").partition;
    begin_closed(&*w.store, partition, Life(2)).await;
    w.store.join(&[(partition, Life(2))]).await.unwrap();
    assert_eq!(w.store.open_life(partition, Life(2)).await, Ok(true));
    assert_eq!(w.journal_length("sunco", 2).await, 6, "what waited, and the same restated");
    // What was restated is settled before the partition opens; here it is by hand.
    let mut mark = Mark { life: Life(2), ..start_mark(&*w.store, "sunco") };
    mark.entry = w.store.journal_tip(partition).await.unwrap();
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 1)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(2), "the sale and the open lease");
    let late = w.store.commit(&end(Verb::Commit, doubt, &wanted)).await;
    assert_eq!(late, Ok(EndReply::Late { was: EndMark::Refunded, counters: vec![3] }));
    w.stop().await;
}

#[tokio::test]
async fn p1_a_gateway_that_restates_late_is_added_to_the_counters() {
    let w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let slow = connect(&url(), &w.prefix, 1_000_000).await;
    begin_lives(&slow).await;
    seed(&*w.store, &who, &[("day", window, 0)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    let [held, sold, refunded] = std::array::from_fn(|_| LeadId::generate());
    for lead in [held, sold, refunded] {
        assert_eq!(take_one(&slow, lead, &wanted).await, Ok(()));
    }
    assert_eq!(slow.commit(&end(Verb::Commit, sold, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(slow.refund(&end(Verb::Refund, refunded, &wanted)).await, Ok(EndReply::Done));
    let mut raw = crate::redis_support::Connection::open(&url()).await;
    raw.delete_all_of(&w.prefix).await;
    let partition = start_mark(&*w.store, "sunco").partition;
    assert_eq!(begin(&*w.store, partition, Life(2)).await, Life(2));
    let mark = Mark { life: Life(2), ..start_mark(&*w.store, "sunco") };
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 0)]).await, Ok(SeedReply::Seeded));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Ok(()));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(1));
    slow.join(&[(partition, Life(2))]).await.unwrap();
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(3), "its open lease and its sale");
    assert_eq!(slow.refund(&end(Verb::Refund, held, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(2));
    slow.shut_down().await;
    w.stop().await;
}

#[tokio::test]
async fn p5_an_end_by_a_gateway_that_is_behind_waits_until_it_has_joined() {
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
    assert_eq!(begin(&ahead, partition, Life(2)).await, Life(2));
    assert_eq!(take_one(&*w.store, LeadId::generate(), &wanted).await, Err(Refusal::NewLife));
    let before = w.dump().await;
    assert!(waits(&w.store.commit(&end(Verb::Commit, lead, &wanted)).await));
    let both =
        w.store.commit_and_close(&end(Verb::Commit, second, &wanted), &close(&*w.store, second, None, "x")).await;
    assert!(waits(&both), "{both:?}");
    assert!(waits(&w.store.record(&end(Verb::Commit, lead, &wanted).event).await));
    assert_eq!(w.dump().await, before);
    w.store.join(&[(partition, Life(2))]).await.unwrap();
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    let both =
        w.store.commit_and_close(&end(Verb::Commit, second, &wanted), &close(&*w.store, second, None, "x")).await;
    assert_eq!(both, Ok((EndReply::Done, Some(CloseReply::Closed))));
    assert_eq!((w.journal_length("sunco", 1).await, w.journal_length("sunco", 2).await), (0, 2));
    ahead.shut_down().await;
    w.stop().await;
}

/// F22: a restart loads what was there and is another server all the same.
#[tokio::test]
async fn f22_a_restarted_server_grants_nothing_under_the_life_it_has_loaded() {
    let mut server = Server::start(&["--maxmemory-policy", "noeviction", "--save", "3600 100000"]).await;
    let prefix = fresh_prefix();
    let store = connect(&server.url(), &prefix, 1_000_000).await;
    begin_lives(&store).await;
    let (who, window) = (buyer("sunco"), running_window(store.now()));
    seed(&store, &who, &[("day", window, 60)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Ok(()));
    let partition = start_mark(&store, "sunco").partition;
    let before = store.standing(partition).await.unwrap();
    assert!(before.is_here && before.is_open);
    server.connection().await.run(&["SAVE"]).await;
    server.kill();
    server.run().await;
    eventually("connected again", || async {
        store.open_counts().await.is_ok()
            && store.take(&take(&store, LeadId::generate(), vec![candidate(&who, vec![])])).await.is_ok()
    })
    .await;
    assert_eq!(used(&store, &who, "day", window).await, Some(61), "the data is there");
    let after = store.standing(partition).await.unwrap();
    assert_eq!((after.life, after.is_here), (Some(LIFE), false));
    assert_ne!(after.server, before.server);
    assert_eq!(take_one(&store, LeadId::generate(), &wanted).await, Err(Refusal::NewLife));
    assert_eq!(store.admit(&admit(&store, LeadId::generate(), None)).await, Ok(Admission::NewLife));
    let both = store
        .admit_and_take(
            &admit(&store, LeadId::generate(), None),
            &take(&store, LeadId::generate(), vec![wanted.clone()]),
        )
        .await;
    assert_eq!(both, Ok((Admission::NewLife, None)));
    // Whoever settles finds no journal of that life here, and trims none.
    assert_eq!(store.read_journal(&start_mark(&store, "sunco"), 9).await, Ok(vec![]));
    assert_eq!(begin(&store, partition, Life(2)).await, Life(2));
    assert_eq!(used(&store, &who, "day", window).await, None, "its counters prove nothing");
    store.shut_down().await;
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
    let (mine, theirs) = tokio::join!(begin(&*w.store, partition, Life(7)), begin(&*other, partition, Life(7)));
    assert_eq!((mine, theirs), (Life(7), Life(7)));
    let who = buyer("sunco");
    for store in [&w.store, &other] {
        assert_eq!(take_one(&**store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()));
    }
    other.shut_down().await;
    w.stop().await;
}
