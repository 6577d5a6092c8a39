//! The gateway is killed under load and started again: every lead that got a 2xx is in the books with a verdict, no buyer
//! is above its cap, nothing hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::LeadId;
use capgate::domain::outcome::LeadStatus;
use parking_lot::Mutex;

use crate::headline::behaviours;
use crate::support::{BuyerLine, Place, Process, attempts, client, get, lead, leads, routing, try_post, until};

const CAP: u64 = 150;

/// Short times, so that recovery is due within seconds.
const QUICK: &str =
    "[forward]\nallow_private_addresses = true\ntimeout_ms = 300\nlate_answer_ms = 300\nlead_deadline_ms = 1000";

/// Where nothing may be in doubt: a busy machine answers within this time.
const PATIENT: &str = "[forward]\nallow_private_addresses = true\nlead_deadline_ms = 5000";

fn buyers(stub: &StubBuyer, timeout_ms: u32) -> String {
    let timeout = format!("timeout_ms = {timeout_ms}");
    let cap = format!("{timeout}\n[[buyer.cap]]\nwindow = \"day\"\nleads = {CAP}");
    routing(&[
        BuyerLine { id: "capped", url: stub.url("/capped"), more: &cap, price: "25.00" },
        BuyerLine { id: "open", url: stub.url("/open"), more: &timeout, price: "10.00" },
    ])
}

/// Publishers that post until they are told to stop, and remember every lead that was acknowledged.
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<Vec<LeadId>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    pub fn start(gateways: &[std::net::SocketAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let number = Arc::new(AtomicU32::new(0));
        let tasks = (0..8_usize)
            .map(|task| {
                let (stop, acknowledged, number) = (stop.clone(), acknowledged.clone(), number.clone());
                let gateway = gateways[task % gateways.len()];
                tokio::spawn(async move {
                    let client = client();
                    while !stop.load(Ordering::Relaxed) {
                        let n = number.fetch_add(1, Ordering::Relaxed);
                        match try_post(&client, gateway, &format!("k{n}"), &lead(n % 10_000)).await {
                            Some(answer) if answer.status == 200 => acknowledged.lock().push(answer.lead()),
                            // Dead or refusing: a publisher pauses before it tries again.
                            Some(_) | None => tokio::time::sleep(Duration::from_millis(10)).await,
                        }
                    }
                })
            })
            .collect();
        Self { stop, acknowledged, tasks }
    }

    pub fn count(&self) -> usize {
        self.acknowledged.lock().len()
    }

    pub async fn end(self) -> Vec<LeadId> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("a publisher ends well");
        }
        let mut leads = self.acknowledged.lock();
        std::mem::take(&mut *leads)
    }
}

async fn killed_ten_times(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/capped=delay:5:accept", "/open=delay:5:accept"]), 1)
        .await
        .expect("a stub buyer");
    place.write_routing(&buyers(&stub, 300));
    let mut gateway: Process = place.spawn("gateway.toml", QUICK);
    gateway.until_ready().await;
    let load = Load::start(&[gateway.intake]);
    for round in 0..10 {
        let before = load.count();
        until(&format!("leads flow in round {round}"), async || load.count() > before + 30).await;
        gateway.kill();
        gateway.start();
        gateway.until_ready().await;
    }
    let acknowledged = load.end().await;
    let ledger = place.ledger().await;
    for lead in &acknowledged {
        until(
            &format!("acknowledged lead {lead} has its verdict in the books"),
            async || matches!(ledger.lead(*lead).await, Ok(Some(row)) if row.status != LeadStatus::Pending),
        )
        .await;
    }
    // Leads whose 2xx was lost with the gateway were taken all the same, and are finished too.
    let mut totals = ledger.totals().await.expect("totals");
    until("nothing hangs", async || {
        totals = ledger.totals().await.expect("totals");
        leads(&totals, "pending") == 0
    })
    .await;
    let capped = stub.stats("/capped");
    let counted = attempts(&totals, "capped", "accepted")
        + attempts(&totals, "capped", "late_accepted")
        + attempts(&totals, "capped", "in_doubt");
    assert!(capped.accepted <= CAP, "P1: {capped:?}");
    assert!(counted <= CAP, "P1: {totals:?}");
    assert!(counted >= capped.accepted, "P5: every acceptance has its row: {capped:?} {totals:?}");
    assert_eq!(capped.duplicates + stub.stats("/open").duplicates, 0, "P4");
    assert_eq!((totals.unbalanced_leads, totals.unbalanced_accounts), (0, 0), "P6");
    let caps = get(&client(), gateway.admin, "/v1/caps?buyer=capped").await.json();
    assert_eq!(caps["caps"][0]["used"].as_str(), Some(counted.to_string().as_str()), "P2: {caps} {totals:?}");
    println!(
        "{} acknowledged, {} accepted at the capped buyer, {counted} counted",
        acknowledged.len(),
        capped.accepted
    );
    gateway.terminate();
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_killed_ten_times_under_load_embedded() {
    killed_ten_times(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_killed_ten_times_under_load_on_servers() {
    killed_ten_times(Place::servers().await).await;
}

/// F85: what is in flight ends, nothing is in doubt, nothing is lost, and idle clients hold nothing up.
async fn terminated_under_load(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/capped=delay:40:accept", "/open=delay:40:accept"]), 1)
        .await
        .expect("a stub buyer");
    place.write_routing(&buyers(&stub, 5_000));
    let mut gateway = place.spawn("gateway.toml", PATIENT);
    gateway.until_ready().await;
    let idle = client();
    assert_eq!(get(&idle, gateway.intake, "/v1/leads/00000000-0000-7000-8000-000000000000").await.status, 404);
    let load = Load::start(&[gateway.intake]);
    until("leads flow", async || load.count() > 100).await;
    let (took, ended_well) = tokio::task::block_in_place(|| gateway.terminate());
    assert!(ended_well);
    assert!(took < Duration::from_secs(20), "the drain took {took:?}");
    let acknowledged = load.end().await;
    let ledger = place.ledger().await;
    for lead in &acknowledged {
        let row = ledger.lead(*lead).await.expect("books answer").expect("P5: it is in the books");
        assert_eq!(row.status, LeadStatus::Sold, "{lead}");
    }
    let totals = ledger.totals().await.expect("totals");
    let in_doubt = attempts(&totals, "capped", "in_doubt") + attempts(&totals, "open", "in_doubt");
    assert_eq!(in_doubt, 0, "{totals:?}");
    assert_eq!(attempts(&totals, "capped", "accepted"), stub.stats("/capped").accepted);
    assert_eq!(attempts(&totals, "open", "accepted"), stub.stats("/open").accepted);
    drop(idle);
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_sigterm_drains_embedded() {
    terminated_under_load(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_sigterm_drains_on_servers() {
    terminated_under_load(Place::servers().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_journal_file_is_refused() {
    let place = Place::embedded();
    place.write_routing(&routing(&[]));
    let first = place.spawn("first.toml", "");
    first.until_ready().await;
    let second = place.spawn("second.toml", "");
    until("the second one says why", async || second.log().contains("another process")).await;
    assert_eq!(get(&client(), first.admin, "/readyz").await.status, 200);
}
