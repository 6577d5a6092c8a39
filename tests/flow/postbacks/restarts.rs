//! Postbacks and the end of gateways: killed, stopped, and several at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use capgate::clock::{Clock as _, SystemClock};
use capgate::ledger::PostbackState;

use super::receiver::{Answer, Receiver, status};
use super::told_at;
use crate::support::{Place, client, lead, post, post_until_taken, until};

/// Moves what waits, and whose claims are still held, an hour back: as if the hour had passed.
async fn an_hour_passes(place: &Place) {
    let path = place.dir.path().join("ledger.db");
    let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", path.display())).await.expect("the file opens");
    let back = |column: &str| format!("{column} = STRFTIME('%Y-%m-%d %H:%M:%f', {column}, '-1 hour') || '000'");
    let sql = format!("UPDATE postbacks SET {}, {} WHERE state = 'waiting'", back("next_at"), back("first_try_at"));
    sqlx::query(&sql).execute(&pool).await.expect("the rows are moved");
    pool.close().await;
}

/// The receiver hangs, the gateway is killed in the middle of its posts, the receiver fails for an hour, the gateway is killed
/// again: in the end each verdict has arrived, under one id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_postbacks_survive_kills_and_a_receiver_that_is_down() {
    let place = Place::embedded();
    let receiver = Receiver::start().await;
    receiver.set("/p", Answer::Hang);
    place.write_routing(&told_at(&receiver.url("/p"), &[]));
    let mut gateway = place.spawn("gateway.toml", "");
    gateway.until_ready().await;
    for number in 0..4 {
        assert_eq!(post_until_taken(&client(), gateway.intake, &format!("k{number}"), &lead(number)).await.status, 200);
    }
    until("all are on their way", async || receiver.posts("/p").len() >= 4).await;
    gateway.kill();
    let ledger = place.ledger().await;
    let waiting = async || ledger.postbacks(PostbackState::Waiting, None, 0, 10).await.expect("books answer");
    assert_eq!(waiting().await.len(), 4);
    let tries: Vec<_> = waiting().await.iter().map(|row| row.tries).collect();

    an_hour_passes(&place).await;
    receiver.set("/p", status(502));
    gateway.start();
    gateway.until_ready().await;
    until("the next tries have failed", async || {
        waiting().await.iter().zip(&tries).all(|(row, before)| row.tries > *before && row.http_status == Some(502))
    })
    .await;
    gateway.kill();

    an_hour_passes(&place).await;
    receiver.set("/p", status(200));
    gateway.start();
    gateway.until_ready().await;
    let delivered = async || ledger.postbacks(PostbackState::Delivered, None, 0, 10).await.expect("books answer");
    until("all have arrived", async || delivered().await.len() == 4).await;
    let mut ids: HashMap<String, HashSet<String>> = HashMap::new();
    for post in receiver.posts("/p") {
        assert!(post.is_signed(), "{post:?}");
        ids.entry(post.text("lead_id")).or_default().insert(post.id().to_owned());
    }
    assert_eq!(ids.len(), 4);
    assert!(ids.values().all(|ids| ids.len() == 1), "one id each: {ids:?}");
    gateway.terminate();
    ledger.shut_down().await;
}

/// F85: what is on its way when the gateway is told to stop ends, and is written down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_a_drain_cuts_no_postback() {
    let place = Place::embedded();
    let receiver = Receiver::start().await;
    receiver.set("/p", Answer::Status(200, "", Duration::from_secs(1)));
    place.write_routing(&told_at(&receiver.url("/p"), &[]));
    let mut gateway = place.spawn("gateway.toml", "");
    gateway.until_ready().await;
    for number in 0..40 {
        assert_eq!(post(&client(), gateway.intake, "", &lead(number)).await.status, 200);
    }
    until("some are on their way", async || receiver.posts("/p").len() >= 5).await;
    let (_, ended_well) = tokio::task::block_in_place(|| gateway.terminate());
    assert!(ended_well);
    let ledger = place.ledger().await;
    let rows = async |state| ledger.postbacks(state, None, 0, 100).await.expect("books answer");
    let (delivered, waiting) = (rows(PostbackState::Delivered).await, rows(PostbackState::Waiting).await);
    assert_eq!(delivered.len() + waiting.len(), 40, "{}", gateway.log());
    assert_eq!(delivered.len(), receiver.posts("/p").len(), "each post that left was written down: {}", gateway.log());
    let now = SystemClock.now();
    assert!(waiting.iter().all(|row| row.next_at.is_some_and(|at| at <= now)), "nothing is claimed: {waiting:?}");

    receiver.set("/p", status(200));
    gateway.start();
    gateway.until_ready().await;
    until("the rest is told by the next one", async || rows(PostbackState::Delivered).await.len() == 40).await;
    assert_eq!(receiver.posts("/p").len(), 40, "nothing was posted twice");
    gateway.terminate();
    ledger.shut_down().await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_send_each_postback_once_on_servers() {
    let place = Place::servers().await;
    let receiver = Receiver::start().await;
    receiver.set("/p", Answer::Status(200, "", Duration::from_millis(30)));
    place.write_routing(&told_at(&receiver.url("/p"), &[]));
    let gateways = [place.start("").await, place.start("").await, place.start("").await];
    let client = client();
    for (number, gateway) in (0..150).zip(gateways.iter().cycle()) {
        let answer = post_until_taken(&client, gateway.intake, &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let ledger = place.ledger().await;
    until("all have arrived", async || {
        ledger.postbacks(PostbackState::Delivered, None, 0, 1000).await.expect("books answer").len() == 150
    })
    .await;
    let posts = receiver.posts("/p");
    let ids: HashSet<_> = posts.iter().map(|post| post.id().to_owned()).collect();
    assert_eq!((ids.len(), posts.len()), (150, 150), "each once");
    for gateway in gateways {
        gateway.app.shut_down().await;
    }
    ledger.shut_down().await;
    place.backing.clean().await;
}
