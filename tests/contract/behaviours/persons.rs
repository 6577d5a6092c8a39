//! A buyer that wants nobody twice.

use std::time::Duration;

use capgate::domain::id::{BuyerId, LeadId};
use capgate::domain::lease::EndMark;
use capgate::domain::person::{DAY_MS, Person, PersonDigest, PersonMark};
use capgate::store::{EndReply, PersonReply, Refusal, Store, TakeCandidate};

use crate::store::Harness;
use crate::support::{
    Verb, at_once, begin_lives, buyer, candidate, demand, end, running_window, sale_return, seed, start_mark, take,
    take_one, used,
};

const DAYS: u32 = 30;

fn person(number: u8) -> Person {
    Person { digest: PersonDigest([number; 16]), days: DAYS }
}

fn about(who: &BuyerId, number: u8) -> TakeCandidate {
    let mut wanted = candidate(who, vec![]);
    wanted.about.person = Some(person(number));
    wanted
}

/// A store that knows everybody: nobody.
async fn with_marks<H: Harness>(who: &BuyerId) -> (H, std::sync::Arc<dyn Store>) {
    let h = H::start().await;
    let store = h.store();
    begin_lives(&*store).await;
    store.set_marked(who, DAYS).await.unwrap();
    (h, store)
}

async fn has(store: &dyn Store, who: &BuyerId, number: u8) -> Option<LeadId> {
    match store.person(who, &person(number)).await.unwrap() {
        PersonReply::Had { lead, .. } => Some(lead),
        PersonReply::Free => None,
        PersonReply::AskBooks => panic!("everybody is marked"),
    }
}

/// Takes and asks that it is refused as a duplicate of that lead.
async fn is_duplicate_of(store: &dyn Store, wanted: &TakeCandidate, lead: LeadId) {
    let refused = take_one(store, LeadId::generate(), wanted).await;
    assert!(matches!(refused, Err(Refusal::Duplicate { lead: of, .. }) if of == lead), "{refused:?}");
}

pub async fn a_person_is_taken_once_and_freed_by_a_refusal_alone<H: Harness>() {
    let who = buyer("sunco");
    let (h, store) = with_marks::<H>(&who).await;
    let wanted = about(&who, 1);
    let first = LeadId::generate();
    assert_eq!(take_one(&*store, first, &wanted).await, Ok(()));
    assert_eq!(take_one(&*store, first, &wanted).await, Ok(()), "F20: a repeat finds its own lease");
    is_duplicate_of(&*store, &wanted, first).await;
    // A refusal frees the person, and only the one that has it.
    assert_eq!(store.refund(&end(Verb::Refund, first, &wanted)).await, Ok(EndReply::Done));
    assert_eq!(has(&*store, &who, 1).await, None);
    let second = LeadId::generate();
    assert_eq!(take_one(&*store, second, &wanted).await, Ok(()));
    store.record(&end(Verb::Refund, first, &wanted).event).await.unwrap();
    is_duplicate_of(&*store, &wanted, second).await;
    assert_eq!(store.commit(&end(Verb::Commit, second, &wanted)).await, Ok(EndReply::Done));
    is_duplicate_of(&*store, &wanted, second).await;
    assert_eq!(store.refund(&end(Verb::Refund, second, &wanted)).await, Ok(EndReply::Already(EndMark::Committed)));
    is_duplicate_of(&*store, &wanted, second).await;
    store.return_sale(&sale_return(&*store, second, &who, &[])).await.unwrap();
    is_duplicate_of(&*store, &wanted, second).await;
    // A doubt keeps it, whether its unit counts or not, until it ends as a "no".
    for keeps_unit in [true, false] {
        let wanted = about(&who, 2);
        let doubted = LeadId::generate();
        assert_eq!(take_one(&*store, doubted, &wanted).await, Ok(()));
        let doubt = end(Verb::Doubt, doubted, &wanted);
        let ended = if keeps_unit { store.doubt(&doubt).await } else { store.expire(&doubt).await };
        assert_eq!(ended, Ok(EndReply::Done));
        is_duplicate_of(&*store, &wanted, doubted).await;
        let no = end(Verb::Refund, doubted, &wanted);
        match store.refund(&no).await.unwrap() {
            EndReply::Late { was: EndMark::Doubt, .. } => assert!(keeps_unit),
            // The unit had gone back; the "no" is recorded.
            EndReply::Already(EndMark::Refunded) => store.record(&no.event).await.unwrap(),
            other => panic!("{other:?}"),
        }
        assert_eq!(has(&*store, &who, 2).await, None);
    }
    // A yes after a "no" has the person again.
    let late = LeadId::generate();
    let wanted = about(&who, 3);
    assert_eq!(take_one(&*store, late, &wanted).await, Ok(()));
    assert_eq!(store.refund(&end(Verb::Refund, late, &wanted)).await, Ok(EndReply::Done));
    let mut yes = end(Verb::Commit, late, &wanted);
    yes.event.sent_at_us = store.now().as_microsecond();
    yes.late_event.sent_at_us = yes.event.sent_at_us;
    assert!(matches!(store.commit(&yes).await, Ok(EndReply::Late { was: EndMark::Refunded, .. })));
    is_duplicate_of(&*store, &wanted, late).await;
    // Others are others: another person, a lead about nobody, another buyer.
    assert_eq!(take_one(&*store, LeadId::generate(), &about(&who, 4)).await, Ok(()));
    for _ in 0..2 {
        assert_eq!(take_one(&*store, LeadId::generate(), &candidate(&who, vec![])).await, Ok(()));
    }
    let other = buyer("helios");
    store.set_marked(&other, DAYS).await.unwrap();
    assert_eq!(take_one(&*store, LeadId::generate(), &about(&other, 1)).await, Ok(()));
    h.stop().await;
}

pub async fn a_duplicate_touches_no_cap_and_the_next_buyer_gets_the_lead<H: Harness>() {
    let who = buyer("sunco");
    let (h, store) = with_marks::<H>(&who).await;
    let (other, window) = (buyer("helios"), running_window(store.now()));
    for id in [&who, &other] {
        seed(&*store, id, &[("day", window, 0)]).await;
    }
    let wanted = TakeCandidate { demands: vec![demand("day", window, 1)], ..about(&who, 1) };
    let first = LeadId::generate();
    assert_eq!(take_one(&*store, first, &wanted).await, Ok(()));
    // Its cap is full as well, and the person is what is told: it comes before any cap.
    let next = candidate(&other, vec![demand("day", window, 9)]);
    let lead = LeadId::generate();
    let reply = store.take(&take(&*store, lead, vec![wanted.clone(), next])).await.unwrap();
    assert_eq!(reply.taken, Some(1));
    assert!(matches!(&reply.refused[..], [(0, Refusal::Duplicate { lead: of, .. })] if *of == first), "{reply:?}");
    assert_eq!(used(&*store, &who, "day", window).await, Some(1));
    assert_eq!(used(&*store, &other, "day", window).await, Some(1));
    // And a full cap marks nobody.
    let unmarked = TakeCandidate { demands: wanted.demands.clone(), ..about(&who, 2) };
    assert!(matches!(take_one(&*store, LeadId::generate(), &unmarked).await, Err(Refusal::Full { .. })));
    assert_eq!(has(&*store, &who, 2).await, None);
    h.stop().await;
}

pub async fn p1_twins_of_one_person_get_one_lease<H: Harness>() {
    let who = buyer("sunco");
    let (h, store) = with_marks::<H>(&who).await;
    let (wanted, calls) = (about(&who, 1), store.clone());
    let taken = at_once(50, |_| {
        let (store, wanted) = (calls.clone(), wanted.clone());
        async move { take_one(&*store, LeadId::generate(), &wanted).await.is_ok() }
    })
    .await;
    assert_eq!(taken.into_iter().filter(|taken| *taken).count(), 1);
    h.stop().await;
}

pub async fn p8_an_unknown_person_waits_for_the_books<H: Harness>() {
    let h = H::start().await;
    let (store, who) = (h.store(), buyer("sunco"));
    begin_lives(&*store).await;
    let (wanted, free) = (about(&who, 1), about(&who, 2));
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Err(Refusal::AskBooks));
    assert_eq!(store.person(&who, &person(1)).await, Ok(PersonReply::AskBooks));
    let (now_ms, had) = (store.now().as_millisecond(), LeadId::generate());
    let tell = async |number: u8, lead, since_ms| {
        let mark = PersonMark { digest: PersonDigest([number; 16]), lead, since_ms };
        store.bring_persons(&who, DAYS, &[mark]).await.unwrap();
    };
    tell(1, Some(had), now_ms - DAY_MS).await;
    is_duplicate_of(&*store, &wanted, had).await;
    tell(2, None, now_ms).await;
    assert_eq!(take_one(&*store, LeadId::generate(), &free).await, Ok(()));
    // Longer ago than the rule's days, by what the books say and by a rule that has become shorter.
    tell(3, Some(had), now_ms - i64::from(DAYS) * DAY_MS).await;
    assert_eq!(store.person(&who, &person(3)).await, Ok(PersonReply::AskBooks));
    let mut shorter = about(&who, 1);
    shorter.about.person = Some(Person { days: 1, ..person(1) });
    assert_eq!(take_one(&*store, LeadId::generate(), &shorter).await, Ok(()));
    // A rule that has become longer asks the books again.
    store.set_marked(&who, DAYS).await.unwrap();
    assert_eq!(take_one(&*store, LeadId::generate(), &about(&who, 4)).await, Ok(()));
    let mut longer = about(&who, 5);
    longer.about.person = Some(Person { days: DAYS + 1, ..person(5) });
    assert_eq!(take_one(&*store, LeadId::generate(), &longer).await, Err(Refusal::AskBooks));
    store.set_marked(&who, DAYS + 1).await.unwrap();
    assert_eq!(take_one(&*store, LeadId::generate(), &longer).await, Ok(()));
    assert_eq!(start_mark(&*store, "sunco").entry, capgate::domain::event::EntryId::default());
    h.stop().await;
}

pub async fn what_the_books_tell_of_persons_gives_way_to_what_the_store_knows<H: Harness>() {
    let who = buyer("sunco");
    let (h, store) = with_marks::<H>(&who).await;
    let wanted = about(&who, 1);
    let lead = LeadId::generate();
    assert_eq!(take_one(&*store, lead, &wanted).await, Ok(()));
    let now_ms = store.now().as_millisecond();
    let tell = async |lead, since_ms| {
        let mark = PersonMark { digest: PersonDigest([1; 16]), lead, since_ms };
        store.bring_persons(&who, DAYS, &[mark]).await.unwrap();
    };
    // Asked before the lease was taken, told after it.
    tell(None, now_ms).await;
    tell(Some(LeadId::generate()), now_ms - 5 * DAY_MS).await;
    assert_eq!(has(&*store, &who, 1).await, Some(lead));
    assert_eq!(store.refund(&end(Verb::Refund, lead, &wanted)).await, Ok(EndReply::Done));
    // The books have yet to learn of the "no".
    tell(Some(lead), now_ms).await;
    assert_eq!(has(&*store, &who, 1).await, None);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(take_one(&*store, LeadId::generate(), &wanted).await, Ok(()));
    h.stop().await;
}
