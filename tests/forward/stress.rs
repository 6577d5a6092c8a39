//! The load generator, against servers whose counts are known.

use std::time::Duration;

use capgate::cli::stress::{Pace, StressPlan, run};
use capgate::cli::stub_buyer::{PathBehaviour, StubBuyer};
use capgate::domain::id::CampaignId;
use capgate::domain::routing::Secret;

use crate::support::{RawBuyer, YES};

const LEADS: &str = "/v1/campaigns/solar/leads";

fn plan(port: u16, leads: u64, connections: u64) -> StressPlan {
    StressPlan {
        target: format!("http://127.0.0.1:{port}").parse().unwrap(),
        campaign: CampaignId::new("solar").unwrap(),
        key: Secret::new("k3y"),
        leads,
        connections,
        pace: Pace::Burst,
        seed: 1,
        fields: vec![("state".into(), "TX".into())],
        timeout: Duration::from_secs(10),
        follow: Duration::ZERO,
        resends: 0,
        keep_verdicts: true,
        show_progress: false,
    }
}

fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_burst_sends_each_lead_once_under_its_own_key() {
    let behaviour = format!("{LEADS}=random:accept=60,decline=30,error:503=10").parse::<PathBehaviour>().unwrap();
    let stub = StubBuyer::on_loopback(vec![behaviour], 3).await.unwrap();
    let report = run(plan(stub.addr().port(), 500, 20)).await.unwrap();
    let stats = stub.stats(LEADS);
    assert_eq!((stats.received, stats.distinct, stats.duplicates), (500, 500, 0));
    assert_eq!((report.sent, report.answered, report.failed(), report.repeated), (500, 500, 0, 0));
    assert_eq!(report.total("accepted"), stats.accepted);
    assert_eq!(report.total("rejected/not interested"), stats.declined);
    assert_eq!(report.total("503"), 500 - stats.accepted - stats.declined);
    assert!(report.total("503") > 0);
    let latency = report.latency_us;
    assert!(0 < latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.max);
    let indexes: Vec<u64> = report.verdicts.iter().map(|verdict| verdict.index).collect();
    assert_eq!(indexes, (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_refused_for_the_moment_is_sent_again_with_its_key() {
    let behaviour = format!("{LEADS}=random:accept=60,error:503=40").parse::<PathBehaviour>().unwrap();
    let stub = StubBuyer::on_loopback(vec![behaviour], 3).await.unwrap();
    let plan = StressPlan { resends: 1, ..plan(stub.addr().port(), 40, 40) };
    let report = run(plan).await.unwrap();
    let stats = stub.stats(LEADS);
    assert_eq!((report.sent, report.answered, stats.distinct), (40, 40, 40));
    assert!(report.repeated > 0 && report.repeated == stats.duplicates, "{report}");
    assert_eq!(report.total("accepted"), stats.accepted);
    assert_eq!(report.total("accepted") + report.total("503"), 40, "the last answer counts: {report}");
    let first = Duration::from_micros(report.latency_us.p90);
    assert!(
        first + Duration::from_millis(500) < Duration::from_millis(report.duration_ms),
        "without the pause: {report}"
    );
}

#[tokio::test]
async fn the_request_of_a_publisher() {
    let server = RawBuyer::answering(YES).await;
    run(plan(server.port(), 1, 1)).await.unwrap();
    let request = server.requests().remove(0);
    let lower = request.to_lowercase();
    assert!(request.starts_with("POST /v1/campaigns/solar/leads HTTP/1.1\r\n"), "{request}");
    for part in ["authorization: bearer k3y\r\n", "content-type: application/json\r\n", "idempotency-key: "] {
        assert!(lower.contains(part), "{part} is missing: {request}");
    }
    assert!(lower.contains(&format!("host: 127.0.0.1:{}\r\n", server.port())));
    let body: serde_json::Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["state"], "TX");
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_is_made_again_and_no_lead_is_lost() {
    let server = RawBuyer::start(|mut connection| async move {
        for _ in 0..3 {
            if !(connection.read_request().await && connection.write(YES).await) {
                return;
            }
        }
    })
    .await;
    let report = run(plan(server.port(), 200, 4)).await.unwrap();
    assert_eq!((report.answered, report.failed()), (200, 0), "{report}");
    assert_eq!(server.requests().len(), 200);
    assert!(server.connections() >= 60, "{}", server.connections());
}

#[tokio::test]
async fn an_open_loop_measures_from_the_moment_a_lead_was_due() {
    let server = RawBuyer::start(|mut connection| async move {
        while connection.read_request().await {
            tokio::time::sleep(Duration::from_millis(30)).await;
            connection.write(YES).await;
        }
    })
    .await;
    let mut stalled = plan(server.port(), 10, 1);
    stalled.pace = Pace::Every(Duration::from_millis(1));
    let report = run(stalled).await.unwrap();
    // The last lead was due after 9 ms and had nine others of 30 ms before it.
    assert!(report.latency_us.max >= 290_000, "{report}");
    assert!(report.latency_us.p50 >= 140_000, "{report}");

    let mut relaxed = plan(server.port(), 5, 5);
    relaxed.pace = Pace::Every(Duration::from_millis(60));
    let report = run(relaxed).await.unwrap();
    assert!(report.duration_ms >= 4 * 60, "{report}");
}

#[tokio::test]
async fn pending_leads_are_followed_to_their_verdict() {
    let server = RawBuyer::start(|mut connection| async move {
        let (mut asked, mut posted) = (0, 0);
        while connection.read_request().await {
            let answered = if connection.last_request().starts_with("POST") {
                posted += 1;
                format!(r#"{{"lead_id":"id-{posted}","status":"pending"}}"#)
            } else {
                asked += 1;
                let is_decided = connection.last_request().starts_with("GET /v1/leads/id-") && asked > 2;
                let status = if is_decided { "sold" } else { "pending" };
                format!(r#"{{"lead_id":"x","status":"{status}"}}"#)
            };
            connection.write(answer(&answered).as_bytes()).await;
        }
    })
    .await;
    let mut followed = plan(server.port(), 3, 1);
    followed.follow = Duration::from_secs(10);
    let report = run(followed).await.unwrap();
    assert_eq!((report.answers["pending"], report.total("sold"), report.total("pending")), (3, 3, 0), "{report}");
    assert!(report.verdicts.iter().all(|verdict| verdict.verdict == "sold"));
}

#[tokio::test]
async fn a_gateway_that_is_away_is_reported() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let report = run(plan(port, 20, 2)).await.unwrap();
    assert_eq!((report.sent, report.answered, report.errors["connect"]), (20, 0, 20));

    let silent = RawBuyer::start(|mut connection| async move { connection.linger().await }).await;
    let mut impatient = plan(silent.port(), 4, 2);
    impatient.timeout = Duration::from_millis(100);
    let report = run(impatient).await.unwrap();
    assert_eq!(report.errors["timeout"], 4);
}
