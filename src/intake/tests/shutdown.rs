use std::time::{Duration, Instant};

use super::support::*;

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn f85_idle_clients_go_at_once_and_a_lead_under_way_is_answered() {
    let intake = Intake::start().await;
    let mut fresh = intake.connect().await;
    let mut idle = intake.connect().await;
    idle.send(&good()).await;
    assert_eq!(idle.answer().await.unwrap().status, 200);
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_secs(4));
    let mut busy = intake.connect().await;
    busy.send(&good()).await;
    until("the lead under way", || intake.leads() == 2).await;

    let since = Instant::now();
    intake.stop.cancel();
    assert!(fresh.is_closed().await);
    assert!(idle.is_closed().await);
    assert!(since.elapsed() < Duration::from_secs(3), "idle clients were held for {:?}", since.elapsed());
    let answer = busy.answer().await.expect("a lead under way was cut");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(busy.is_closed().await);
    tokio::time::timeout(PATIENCE, intake.served).await.expect("the server does not end").unwrap();
    assert!(since.elapsed() < PATIENCE / 2);
    assert!(tokio::net::TcpStream::connect(intake.address).await.is_err(), "still accepting");
}

#[tokio::test]
async fn f85_a_lead_that_is_coming_in_is_still_taken() {
    let intake = Intake::start().await;
    let request = good();
    for cut in [20, request.len() - 5] {
        let intake = Intake::start().await;
        let mut client = intake.connect().await;
        client.send(&request[..cut]).await;
        // Another request's answer proves that the bytes before it have come in too.
        assert_eq!(intake.ask(&good()).await.status, 200);
        intake.stop.cancel();
        client.send(&request[cut..]).await;
        let answer = client.answer().await.unwrap_or_else(|| panic!("cut at {cut}"));
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
        tokio::time::timeout(PATIENCE, intake.served).await.unwrap().unwrap();
    }
    intake.stop.cancel();
    tokio::time::timeout(PATIENCE, intake.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn f85_the_drain_has_an_end() {
    let drain = Duration::from_millis(300);
    let intake = Intake::with(config(), drain).await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_hours(1));
    let mut busy = intake.connect().await;
    busy.send(&good()).await;
    until("the lead under way", || intake.leads() == 1).await;
    let since = Instant::now();
    intake.stop.cancel();
    tokio::time::timeout(PATIENCE, intake.served).await.expect("the drain never ends").unwrap();
    assert!(since.elapsed() >= drain && since.elapsed() < PATIENCE / 2);
    assert!(busy.is_closed().await);
}

#[tokio::test]
async fn f44_a_client_that_hangs_up_is_not_waited_for() {
    let intake = Intake::start().await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_hours(1));
    let mut client = intake.connect().await;
    client.send(&good()).await;
    until("the lead under way", || intake.leads() == 1).await;
    drop(client);
    intake.stop.cancel();
    // The handler was dropped with its connection: there is nothing to drain.
    tokio::time::timeout(PATIENCE / 2, intake.served).await.expect("a gone client was waited for").unwrap();
}
