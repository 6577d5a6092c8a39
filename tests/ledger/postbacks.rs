//! What publishers are told: made with the verdict, claimed by one sender, ended once.

use std::collections::HashSet;
use std::sync::Arc;

use capgate::domain::event::{Closed, Event};
use capgate::domain::id::{LeadId, PublisherId};
use capgate::domain::outcome::LeadStatus;
use capgate::ledger::postbacks::{ClaimOrder, ClaimedPostback, NextStep, PostbackReplay, Tried};
use capgate::ledger::{Ledger, PostbackState};
use jiff::{SignedDuration, Timestamp};

use crate::events::{RECEIVED_US, publisher, received, sold, unsold};
use crate::journal::Journal;
use crate::support::Books;

/// So long after the verdicts.
fn after(seconds: i64) -> Timestamp {
    Timestamp::from_microsecond(RECEIVED_US + 90_000).unwrap() + SignedDuration::from_secs(seconds)
}

fn told(closed: Closed) -> Closed {
    let body =
        format!(r#"{{"lead_id":"{}","status":"{}","event":"lead.closed"}}"#, closed.lead, closed.status.as_str());
    Closed { postback: Some(body), ..closed }
}

fn in_doubt(lead: LeadId) -> Closed {
    told(Closed { status: LeadStatus::InDoubt, sale: None, ..sold(lead, "acme", "sunco") })
}

/// Leads of a publisher that was told nothing yet.
async fn closed(books: &Books, journal: &Journal, by: &str, count: usize) -> Vec<LeadId> {
    let leads: Vec<_> = (0..count).map(|_| LeadId::generate()).collect();
    for lead in &leads {
        journal.append(&Event::Received(received(*lead, by)));
        journal.append(&Event::Closed(told(unsold(*lead, by, "capped"))));
    }
    books.settle_all(journal, 1000).await;
    leads
}

async fn claim(
    ledger: &Arc<dyn Ledger>,
    wanted: &[(&str, usize)],
    count_max: usize,
    now: Timestamp,
) -> Vec<ClaimedPostback> {
    let wanted = wanted.iter().map(|(id, most)| (publisher(id), *most)).collect();
    let order = ClaimOrder { wanted, count_max, now, until: now + SignedDuration::from_secs(60) };
    // Another sender may be in the way of a whole file.
    for _ in 0..50 {
        match ledger.claim_postbacks(&order).await {
            Ok(claimed) => return claimed,
            Err(capgate::ledger::LedgerError::NotDone(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the ledger never took a claim");
}

fn tried(postback: &ClaimedPostback, at: Timestamp, next: NextStep) -> Tried {
    Tried { id: postback.id, claim: postback.claim, at, http_status: Some(500), error: None, next }
}

async fn states(books: &Books) -> Vec<Option<String>> {
    books.raw.texts("SELECT state FROM postbacks ORDER BY postback_id").await
}

pub async fn f72_a_verdict_is_told_once_however_often_it_is_settled(books: &Books) {
    let journal = Journal::default();
    let leads = closed(books, &journal, "acme", 3).await;
    let silent = LeadId::generate();
    journal.append(&Event::Closed(unsold(silent, "acme", "capped")));
    journal.append(&Event::Closed(told(Closed { test: true, ..unsold(LeadId::generate(), "acme", "capped") })));
    for rows_max in [1000, 1, 2] {
        books.put_marks_back().await;
        books.settle_all(&journal, rows_max).await;
    }
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM leads").await, 5);
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM postbacks").await, 3, "one each, none without, none of a test");
    let claimed = claim(&books.ledger, &[("acme", 10)], 10, after(0)).await;
    assert_eq!(claimed.iter().map(|postback| postback.lead).collect::<HashSet<_>>(), leads.into_iter().collect());
    assert!(claimed.iter().all(|postback| postback.body.contains(&postback.lead.to_string())), "{claimed:?}");
    // A row whose end is known is not made again either.
    let ends: Vec<_> = claimed.iter().map(|p| tried(p, after(1), NextStep::End(PostbackState::Delivered))).collect();
    assert_eq!(books.ledger.finish_postbacks(&ends).await, Ok(3));
    books.put_marks_back().await;
    books.settle_all(&journal, 7).await;
    assert_eq!(claim(&books.ledger, &[("acme", 10)], 10, after(3600)).await, []);
    assert_eq!(states(books).await, vec![Some("delivered".to_owned()); 3]);
}

pub async fn each_verdict_of_a_lead_is_told_in_order(books: &Books) {
    let (together, apart) = (LeadId::generate(), LeadId::generate());
    let journal = Journal::default();
    journal.append(&Event::Closed(in_doubt(together)));
    journal.append(&Event::Closed(told(sold(together, "acme", "sunco"))));
    journal.append(&Event::Closed(in_doubt(apart)));
    books.settle_all(&journal, 1000).await;
    journal.append(&Event::Closed(told(sold(apart, "acme", "sunco"))));
    books.settle_all(&journal, 1000).await;

    let first = claim(&books.ledger, &[("acme", 10)], 10, after(0)).await;
    assert_eq!(first.iter().map(|p| p.status).collect::<Vec<_>>(), [LeadStatus::InDoubt; 2]);
    assert_eq!(claim(&books.ledger, &[("acme", 10)], 10, after(30)).await, [], "while the first is on its way");
    let again: Vec<_> = first.iter().map(|p| tried(p, after(30), NextStep::TryAt(after(50)))).collect();
    assert_eq!(books.ledger.finish_postbacks(&again).await, Ok(2));
    assert_eq!(
        claim(&books.ledger, &[("acme", 10)], 10, after(40)).await,
        [],
        "while the first waits for its next try"
    );

    let again = claim(&books.ledger, &[("acme", 10)], 10, after(50)).await;
    assert_eq!(again.iter().map(|p| (p.status, p.tries)).collect::<Vec<_>>(), [(LeadStatus::InDoubt, 1); 2]);
    assert!(again.iter().all(|p| p.first_try_at == Some(after(30))), "{again:?}");
    let mut ids: HashSet<_> = first.iter().map(ClaimedPostback::message_id).collect();
    assert_eq!(again.iter().map(ClaimedPostback::message_id).collect::<HashSet<_>>(), ids, "the same on each try");
    let ends: Vec<_> = again.iter().map(|p| tried(p, after(51), NextStep::End(PostbackState::Dead))).collect();
    books.ledger.finish_postbacks(&ends).await.unwrap();

    let second = claim(&books.ledger, &[("acme", 10)], 10, after(51)).await;
    assert_eq!(second.iter().map(|p| p.status).collect::<Vec<_>>(), [LeadStatus::Sold; 2]);
    ids.extend(second.iter().map(ClaimedPostback::message_id));
    assert_eq!(ids.len(), 4, "each verdict has an id of its own: {ids:?}");
}

pub async fn a_postback_is_one_senders_until_its_claim_ends(books: &Books) {
    let journal = Journal::default();
    closed(books, &journal, "acme", 60).await;
    let other = books.open_again().await;
    let take = |ledger: Arc<dyn Ledger>| async move {
        let mut all = Vec::new();
        loop {
            let claimed = claim(&ledger, &[("acme", 7)], 7, after(0)).await;
            if claimed.is_empty() {
                return all;
            }
            all.extend(claimed);
            assert!(all.len() <= 60, "what is claimed is due again at once");
        }
    };
    let (mine, others) = tokio::join!(tokio::spawn(take(books.ledger.clone())), tokio::spawn(take(other.clone())));
    let (mine, others) = (mine.unwrap(), others.unwrap());
    let ids: HashSet<_> = mine.iter().chain(&others).map(|postback| postback.id).collect();
    // A row that both found is left out by the one that came second, which may then find nothing: the rest is due as before.
    assert_eq!(ids.len(), mine.len() + others.len(), "no row was claimed twice");
    let rest = take(books.ledger.clone()).await;
    assert_eq!(ids.len() + rest.len(), 60);

    let lost = mine.iter().chain(&others).chain(&rest).next().unwrap();
    assert_eq!(claim(&other, &[("acme", 100)], 100, after(59)).await, []);
    let again = claim(&other, &[("acme", 100)], 100, after(60)).await;
    assert_eq!(again.len(), 60, "what a dead gateway had claimed is claimed by another");
    let late = tried(lost, after(61), NextStep::End(PostbackState::Delivered));
    assert_eq!(books.ledger.finish_postbacks(&[late]).await, Ok(0), "whoever has lost its claim changes nothing");
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM postbacks WHERE state = 'waiting'").await, 60);
    let free: Vec<_> = again.iter().map(|p| tried(p, after(61), NextStep::Release)).collect();
    assert_eq!(other.finish_postbacks(&free).await, Ok(60));
    let released = claim(&books.ledger, &[("acme", 100)], 100, after(61)).await;
    assert_eq!((released.len(), released[0].tries), (60, 0), "given back untried");
    other.shut_down().await;
}

pub async fn p7_a_publishers_backlog_takes_nobody_elses_turn(books: &Books) {
    let journal = Journal::default();
    closed(books, &journal, "acme", 50).await;
    closed(books, &journal, "summit", 2).await;
    assert_eq!(claim(&books.ledger, &[], 10, after(0)).await, []);
    assert_eq!(claim(&books.ledger, &[("acme", 10), ("summit", 10)], 0, after(0)).await, []);
    assert_eq!(claim(&books.ledger, &[("acme", 10)], 10, after(-1)).await, [], "never before the verdict");
    let claimed = claim(&books.ledger, &[("acme", 10), ("summit", 10), ("nobody", 10)], 4, after(0)).await;
    let of = |id: &str| claimed.iter().filter(|postback| postback.publisher.as_str() == id).count();
    assert_eq!((of("acme"), of("summit")), (2, 2));
    assert_eq!(claim(&books.ledger, &[("acme", 3)], 100, after(0)).await.len(), 3);
    let many: Vec<String> = (0..120).map(|n| format!("p{n}")).collect();
    let mut wanted: Vec<(&str, usize)> = many.iter().map(|id| (id.as_str(), 1)).collect();
    wanted.push(("acme", 2));
    assert_eq!(
        claim(&books.ledger, &wanted, 100, after(0)).await.len(),
        2,
        "more publishers than one statement asks for"
    );
}

pub async fn postbacks_that_ended_are_listed_and_start_over(books: &Books) {
    let journal = Journal::default();
    closed(books, &journal, "acme", 3).await;
    let lead = closed(books, &journal, "summit", 1).await[0];
    journal.append(&Event::Closed(told(sold(lead, "summit", "sunco"))));
    books.settle_all(&journal, 1000).await;
    let claimed = claim(&books.ledger, &[("acme", 10), ("summit", 10)], 10, after(0)).await;
    assert_eq!(claimed.len(), 4);
    let ends: Vec<_> = claimed.iter().map(|p| tried(p, after(1), NextStep::End(PostbackState::Dead))).collect();
    books.ledger.finish_postbacks(&ends).await.unwrap();

    let dead = books.ledger.postbacks(PostbackState::Dead, None, 0, 10).await.unwrap();
    assert_eq!(dead.len(), 4);
    assert!(dead.iter().all(|row| row.http_status == Some(500) && row.tries == 1 && row.next_at.is_none()), "{dead:?}");
    let acmes = books.ledger.postbacks(PostbackState::Dead, Some(&publisher("acme")), 0, 2).await.unwrap();
    assert_eq!(acmes.len(), 2);
    let rest = books.ledger.postbacks(PostbackState::Dead, Some(&publisher("acme")), acmes[1].id, 2).await.unwrap();
    assert_eq!(rest.len(), 1);

    let backlog = books.ledger.postback_backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.oldest), (1, Some(after(0))));
    let replay = async |id| books.ledger.replay_postback(id, after(100)).await.unwrap();
    assert_eq!(replay(acmes[0].id).await, PostbackReplay::Waiting);
    assert_eq!(replay(acmes[0].id).await, PostbackReplay::WaitsAlready);
    assert_eq!(replay(-1).await, PostbackReplay::Unknown);
    let superseded = dead.iter().find(|row| row.lead == lead).unwrap();
    assert_eq!(replay(superseded.id).await, PostbackReplay::Superseded);
    assert_eq!(claim(&books.ledger, &[("acme", 10)], 10, after(99)).await, []);
    let again = claim(&books.ledger, &[("acme", 10)], 10, after(100)).await;
    let before = claimed.iter().find(|p| p.id == acmes[0].id).unwrap();
    assert_eq!(again.iter().map(ClaimedPostback::message_id).collect::<Vec<_>>(), [before.message_id()]);
    assert_eq!((again[0].tries, again[0].first_try_at), (0, None), "it starts over");
}

pub async fn postbacks_without_an_address_are_dropped_and_old_ones_removed(books: &Books) {
    let journal = Journal::default();
    closed(books, &journal, "acme", 2).await;
    closed(books, &journal, "summit", 3).await;
    let lost = claim(&books.ledger, &[("summit", 1)], 1, after(0)).await;
    let known: [PublisherId; 1] = [publisher("acme")];
    let ledger = &books.ledger;
    assert_eq!(ledger.drop_postbacks(&known, after(0), after(10), 100).await, Ok(0), "not before its time");
    assert_eq!(ledger.drop_postbacks(&known, after(1), after(10), 2).await, Ok(2));
    assert_eq!(ledger.drop_postbacks(&known, after(1), after(10), 100).await, Ok(1));
    let late = tried(&lost[0], after(11), NextStep::TryAt(after(12)));
    assert_eq!(ledger.finish_postbacks(&[late]).await, Ok(0), "what was dropped stays so");
    assert_eq!(ledger.postbacks(PostbackState::Dropped, None, 0, 10).await.unwrap().len(), 3);
    assert_eq!(ledger.postback_backlog().await.unwrap().waiting, 2);

    ledger.remove_payloads(after(0), 100).await.unwrap();
    assert_eq!(books.raw.number("SELECT COUNT(*) FROM postbacks").await, 5);
    ledger.remove_payloads(after(1), 100).await.unwrap();
    assert_eq!(states(books).await, vec![Some("waiting".to_owned()); 2], "what waits stays, however old");
    assert_eq!(ledger.drop_postbacks(&[], after(1), after(10), 100).await, Ok(2), "nobody has a postback any more");
}
