//! Reconcile on real keys: what a hand has spoilt, and that looking writes nothing.

use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::window::Window;
use capgate::store::{Compared, Comparison, CounterKey, ReconcileReply, Store, StoreError};

use crate::redis_support::Raw;
use crate::support::{
    Verb, buyer, candidate, cap, demand, end, running_window, seed, start_mark, take_one, total_window, used,
};
use crate::world::World;

async fn ask(
    w: &World,
    who: &BuyerId,
    cap_id: &str,
    window: Window,
    repair: Option<i128>,
) -> Result<Compared, StoreError> {
    let key = CounterKey { buyer: who.clone(), cap: cap(cap_id), window };
    let comparison = Comparison { key, usage: 5, repair };
    match w.store.reconcile(&start_mark(&*w.store, who.as_str()), &[comparison]).await? {
        ReconcileReply::Compared(found) => Ok(found[0]),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn f84_a_spoilt_counter_is_put_right_and_looking_writes_nothing() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    let total = total_window();
    seed(&*w.store, &who, &[("day", window, 5), ("total", total, 5)]).await;
    let wanted = candidate(&who, vec![demand("day", window, 99), demand("total", total, 99)]);
    let (open, sold) = (LeadId::generate(), LeadId::generate());
    for lead in [open, sold] {
        assert_eq!(take_one(&*w.store, lead, &wanted).await, Ok(()));
    }
    Verb::Commit.call(&*w.store, &end(Verb::Commit, sold, &wanted)).await;
    for (cap_id, window) in [("day", window), ("total", total)] {
        let key = w.counter(&who, cap_id, window);
        let expiry = w.raw.run(&["PEXPIRETIME", &key]).await;
        for (command, by, difference) in [("INCRBY", "3", 3), ("DECRBY", "4", -4), ("DECRBY", "9", -9)] {
            w.raw.run(&[command, &key, by]).await;
            let before = w.dump().await;
            let found = ask(&w, &who, cap_id, window, None).await.unwrap();
            assert_eq!((found.difference(), found.expected, found.is_repaired), (Some(difference), 7, false));
            assert_eq!(w.dump().await, before, "a look writes nothing");
            let found = ask(&w, &who, cap_id, window, Some(difference)).await.unwrap();
            assert!(found.is_repaired, "{command} {by}: {found:?}");
            assert_eq!(used(&*w.store, &who, cap_id, window).await, Some(7));
        }
        assert_eq!(w.raw.run(&["PEXPIRETIME", &key]).await, expiry, "the expiry stays");
    }
    w.stop().await;
}

#[tokio::test]
async fn f06_a_counter_that_holds_nonsense_is_a_bug_and_moves_nothing() {
    let mut w = World::start().await;
    let (who, window) = (buyer("sunco"), running_window(w.store.now()));
    seed(&*w.store, &who, &[("day", window, 6), ("hour", window, 6)]).await;
    let mark = start_mark(&*w.store, "sunco");
    let comparisons = ["day", "hour"].map(|id| Comparison {
        key: CounterKey { buyer: who.clone(), cap: cap(id), window },
        usage: 5,
        repair: Some(1),
    });
    let key = w.counter(&who, "hour", window);
    for nonsense in ["abc", "1.5", ""] {
        w.raw.run(&["SET", &key, nonsense]).await;
        let before = w.dump().await;
        let reply = w.store.reconcile(&mark, &comparisons).await;
        assert!(matches!(reply, Err(StoreError::Bug(_))), "{nonsense:?}: {reply:?}");
        assert_eq!(w.dump().await, before, "{nonsense:?}: the counter before it was not repaired alone");
    }
    assert_eq!(w.raw.run(&["DEL", &key]).await, Raw::Int(1));
    w.stop().await;
}
