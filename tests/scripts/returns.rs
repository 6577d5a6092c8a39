//! Returns: expiries, and what a loss of the data means for them.

use capgate::domain::event::{Life, Mark};
use capgate::domain::id::LeadId;
use capgate::store::{EndReply, ReturnReply, SeedReply, Store};

use crate::lives::{begin_closed, told, waits};
use crate::support::{
    Verb, buyer, candidate, cap, demand, end, running_window, sale_return, seed, start_mark, take_one, used,
};
use crate::world::World;

#[tokio::test]
async fn f21_a_return_is_restated_after_a_loss_and_frees_nothing_twice() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 10)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 100)]);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    assert_eq!(w.store.commit(&end(Verb::Commit, lead, &wanted)).await, Ok(EndReply::Done));
    let counter = w.counter(&who, "day", window);
    let ttl = w.raw.run(&["PEXPIRETIME", &counter]).await.int();
    let call = sale_return(&*w.store, lead, &who, &[("day", window, 1)]);
    assert_eq!(w.store.return_sale(&call).await, Ok(ReturnReply::Done));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(10));
    assert_eq!(w.raw.run(&["PEXPIRETIME", &counter]).await.int(), ttl, "F07");
    let key = w.key("sunco", &format!("returned:{lead}:sunco"));
    let ttl = w.raw.run(&["PTTL", &key]).await.int();
    assert!(ttl > 590_000 && ttl <= 600_000, "{ttl}");

    w.raw.delete_all_of(&w.prefix).await;
    assert!(waits(&w.store.return_sale(&call).await), "what is gone proves nothing");
    let partition = start_mark(&*w.store, "sunco").partition;
    begin_closed(&*w.store, partition, Life(2)).await;
    w.store.join(&[(partition, Life(2))]).await.unwrap();
    assert!(waits(&w.store.return_sale(&call).await), "closed");
    assert_eq!(w.store.open_life(partition, Life(2)).await, Ok(true));
    let names = told(&*w.store, "sunco", Life(2)).await;
    assert_eq!(names, [format!("accepted {lead}"), format!("returned {lead}")]);
    // The books take the unit out when they meet the return. Until then the cap is closed by one and never open by one.
    let mut mark = Mark { life: Life(2), ..start_mark(&*w.store, "sunco") };
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 10)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(11));
    w.raw.run(&["DEL", &counter]).await;
    mark.entry = w.store.journal_tip(partition).await.unwrap();
    assert_eq!(w.store.seed(&who, &mark, &[(cap("day"), window, 10)]).await, Ok(SeedReply::Seeded));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(10));
    w.stop().await;
}

#[tokio::test]
async fn f06_a_broken_key_stops_a_return_before_anything_is_written() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 5), ("month", window, 5)]).await;
    let call = sale_return(&*w.store, LeadId::generate(), &who, &[("day", window, 1), ("month", window, 1)]);
    let counter = w.counter(&who, "month", window);
    w.raw.run(&["SET", &counter, "broken"]).await;
    let before = w.dump().await;
    assert!(w.store.return_sale(&call).await.is_err());
    let journal = w.key("sunco", "journal:1");
    w.raw.run(&["SET", &counter, "5"]).await;
    w.raw.run(&["SET", &journal, "broken"]).await;
    assert!(w.store.return_sale(&call).await.is_err());
    w.raw.run(&["DEL", &journal]).await;
    w.raw.run(&["SET", &counter, "broken"]).await;
    assert_eq!(w.dump().await, before, "neither try has moved anything");
    w.raw.run(&["SET", &counter, "5"]).await;
    assert_eq!(w.store.return_sale(&call).await, Ok(ReturnReply::Done));
    assert_eq!(used(&*w.store, &who, "day", window).await, Some(4));
    w.stop().await;
}
