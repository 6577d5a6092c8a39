//! The buyer's time-out, and what comes after it.

use std::sync::Arc;

use capgate::cli::stub_buyer::{PathBehaviour, StubBuyer};
use capgate::domain::outcome::{Acceptance, Outcome};

use crate::support::{LATE, RawBuyer, TIMEOUT, YES, buyer, buyer_with, eventually, forward, forwarder, order, patient};

async fn stub(path: &str) -> StubBuyer {
    StubBuyer::on_loopback(vec![path.parse::<PathBehaviour>().unwrap()], 1).await.unwrap()
}

fn yes() -> Outcome {
    Outcome::Accepted(Acceptance { http_status: 200, ..Acceptance::default() })
}

fn timed_out(http_status: Option<u16>) -> Outcome {
    Outcome::InDoubt { reason: "timeout", http_status }
}

#[tokio::test]
async fn f46_an_answer_after_the_time_out_is_still_read() {
    let forwarder = forwarder();
    for late_ms in [700, 800, 1_200] {
        let stub = stub(&format!("/a=late:{late_ms}")).await;
        let buyer = buyer(&stub.url("/a"));
        let told = forward(&forwarder, &buyer).await;
        assert_eq!(told.outcome, timed_out(None), "{late_ms}");
        assert!(told.duration >= TIMEOUT && told.duration < TIMEOUT + LATE, "{:?}", told.duration);
        assert_eq!(forwarder.in_flight(&buyer.id), 1, "the reader of the late answer gave its place up");
        assert_eq!(told.late.expect("a late answer").await, Ok(yes()), "{late_ms}");
        eventually("the place is given back", || forwarder.in_flight(&buyer.id) == 0).await;
        let stats = stub.stats("/a");
        assert_eq!((stats.received, stats.accepted, stats.duplicates), (1, 1, 0));
    }
}

#[tokio::test]
async fn f46_a_buyer_that_never_answers_is_given_up_after_the_late_time() {
    let stub = stub("/a=hang").await;
    let forwarder = forwarder();
    let buyer = buyer(&stub.url("/a"));
    let began = tokio::time::Instant::now();
    let told = forward(&forwarder, &buyer).await;
    assert_eq!(told.outcome, timed_out(None));
    assert_eq!(told.late.expect("a late answer").await, Ok(timed_out(None)));
    assert!(began.elapsed() >= TIMEOUT + LATE);
    eventually("the place is given back", || forwarder.in_flight(&buyer.id) == 0).await;
    assert_eq!(stub.stats("/a").received, 1);
}

#[tokio::test]
async fn f46_a_late_no_and_a_late_break_are_told_too() {
    let forwarder = forwarder();
    let refusing = stub("/a=delay:750:decline").await;
    let told = forward(&forwarder, &buyer(&refusing.url("/a"))).await;
    assert_eq!(told.outcome, timed_out(None));
    let late = told.late.expect("a late answer").await.unwrap();
    assert!(matches!(&late, Outcome::Declined { reason, .. } if reason == "not interested"), "{late:?}");

    let breaking = stub("/a=delay:750:close").await;
    let told = forward(&forwarder, &buyer(&breaking.url("/a"))).await;
    let late = told.late.expect("a late answer").await.unwrap();
    assert_eq!(late, Outcome::InDoubt { reason: "broken", http_status: None });
}

#[tokio::test]
async fn p3_a_caller_that_leaves_changes_nothing() {
    let stub = stub("/a=late:200").await;
    let forwarder = forwarder();
    let buyer = buyer(&stub.url("/a"));
    let permit = forwarder.enter(&buyer).unwrap();
    let order = order(&buyer, permit);
    let caller = tokio::spawn({
        let forwarder = forwarder.clone();
        async move { forwarder.forward(order).await }
    });
    eventually("the buyer has the lead", || stub.stats("/a").received == 1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert_eq!(forwarder.in_flight(&buyer.id), 1, "the call was cut");
    eventually("the answer was read", || forwarder.in_flight(&buyer.id) == 0).await;
    assert_eq!(stub.stats("/a").accepted, 1);
}

#[tokio::test]
async fn p7_late_readers_count_against_the_room_of_the_buyer() {
    let stub = stub("/a=hang").await;
    let forwarder = forwarder();
    let buyer = buyer_with(&stub.url("/a"), |buyer| buyer.in_flight_max = 2);
    let (first, second) = tokio::join!(forward(&forwarder, &buyer), forward(&forwarder, &buyer));
    assert!(forwarder.enter(&buyer).is_none(), "a third forward while two late answers are read");
    for told in [first, second] {
        told.late.expect("a late answer").await.unwrap();
    }
    eventually("room again", || forwarder.enter(&buyer).is_some()).await;
}

#[tokio::test]
async fn f48_a_body_that_drips_meets_the_one_deadline() {
    let forwarder = forwarder();
    // 21 bytes, 40 ms apart: no single wait is long, all of them are.
    let stub = stub("/a=drip:40").await;
    let told = forward(&forwarder, &buyer(&stub.url("/a"))).await;
    assert_eq!(told.outcome, timed_out(Some(200)));
    assert!(told.duration < TIMEOUT + LATE, "{:?}", told.duration);
    assert_eq!(told.late.expect("a late answer").await, Ok(yes()));

    let silent = RawBuyer::start(|mut connection| async move {
        connection.read_request().await;
        connection.write(&YES[..45]).await;
        connection.linger().await;
    })
    .await;
    let told = forward(&forwarder, &buyer(&silent.url())).await;
    assert_eq!(told.outcome, timed_out(Some(200)));
    assert_eq!(told.late.expect("a late answer").await, Ok(timed_out(Some(200))));
}

#[tokio::test]
async fn f46_a_connection_that_never_stands_is_unsent_and_nothing_comes_late() {
    let silent = RawBuyer::start(|mut connection| async move { connection.linger().await }).await;
    let buyer = buyer(&format!("https://127.0.0.1:{}/leads", silent.port()));
    let forwarder = forwarder();
    let told = forward(&forwarder, &buyer).await;
    assert_eq!(told.outcome, Outcome::Unsent { reason: "connect_timeout" });
    assert!(told.late.is_none());
    assert!(told.duration >= TIMEOUT && told.duration < TIMEOUT + LATE, "{:?}", told.duration);
    eventually("the call was cut", || forwarder.in_flight(&buyer.id) == 0).await;
    assert_eq!(silent.connections(), 1);
}

#[tokio::test]
async fn f51_a_slow_buyer_does_not_slow_another() {
    let forwarder = forwarder();
    let slow = stub("/a=hang").await;
    let fast = stub("/a=accept").await;
    let slow_buyer = patient(&slow.url("/a"));
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let (forwarder, buyer) = (forwarder.clone(), Arc::clone(&slow_buyer));
            tokio::spawn(async move { forward(&forwarder, &buyer).await.outcome })
        })
        .collect();
    eventually("the slow buyer has them all", || slow.stats("/a").received == 64).await;
    let fast_buyer = patient(&fast.url("/a"));
    for _ in 0..20 {
        assert_eq!(forward(&forwarder, &fast_buyer).await.outcome, yes());
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    slow.stop();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Outcome::InDoubt { reason: "broken", http_status: None });
    }
}

/// A gateway that slept past every deadline has the buyer's answer in its socket: it is read, not thrown away (contract,
/// verdicts: it was only asleep). The runtime is put to sleep by blocking its only thread.
#[test]
fn f46_an_answer_that_came_while_the_process_slept_is_used() {
    use std::io::{Read, Write};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (heard, told) = std::sync::mpsc::channel();
    let buyer_thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut some = [0; 4096];
            let count = stream.read(&mut some).unwrap();
            request.extend_from_slice(&some[..count]);
        }
        heard.send(()).unwrap();
        stream.write_all(YES).unwrap();
        // Held open until the other side has read it.
        let _ = stream.read(&mut [0; 1]);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let forwarder = forwarder();
        let call = tokio::spawn(async move { forward(&forwarder, &buyer(&url)).await });
        while told.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        std::thread::sleep(TIMEOUT + LATE + std::time::Duration::from_millis(300));
        let told = call.await.unwrap();
        assert_eq!(told.outcome, yes());
        assert!(told.duration > TIMEOUT + LATE, "it did not sleep");
    });
    drop(runtime);
    buyer_thread.join().unwrap();
}
