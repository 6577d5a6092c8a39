//! The whole gateway on a Redis Cluster: the headline, and a slot that moves to another node while leads come in.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::Partition;

use crate::cluster_support::Cluster;
use crate::headline::{ROUGH, SHORT_LATE, behaviours, headline, rough, rough_buyers, three_buyers};
use crate::support::{Gateway, PATIENCE, Place, client, get};

async fn three_gateways(place: &Place, more: &str) -> Vec<Gateway> {
    vec![place.start(more).await, place.start(more).await, place.start(more).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_headline_three_gateways_on_a_cluster() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::cluster().await;
    place.write_routing(&three_buyers(&stub));
    let gateways = three_gateways(&place, "").await;
    headline(&place, gateways, &stub).await;
}

/// New lives so far, once every gateway is ready again; before that none.
async fn opened_again(admins: &[SocketAddr]) -> usize {
    let mut lives = 0;
    for admin in admins {
        if get(&client(), *admin, "/readyz").await.status != 200 {
            return 0;
        }
        let page = String::from_utf8_lossy(&get(&client(), *admin, "/metrics").await.bytes).into_owned();
        let value = page.lines().find_map(|line| line.strip_prefix("capgate_new_life_total ")?.parse::<usize>().ok());
        lives += value.expect("it is on the page");
    }
    lives
}

/// The slots of the capped buyer and of the publisher move under load, each in turn. Leads that come meanwhile wait, are
/// refused, or go to the next buyer; nothing is oversold, nothing that was acknowledged is lost, and no unit of the cap is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_slots_that_move_under_load_oversell_and_lose_nothing() {
    let stub = StubBuyer::on_loopback(behaviours(&[ROUGH]), 11).await.expect("a stub buyer");
    let cluster = Arc::new(Cluster::start(3).await);
    let mut place = Place::on_redis(cluster.url()).await;
    // With production's 100 ms a busy machine's calls time out over and over, and that is all that is seen.
    place.backing.store_more = "command_timeout_ms = 1000";
    place.write_routing(&rough_buyers(&stub));
    let gateways = three_gateways(&place, SHORT_LATE).await;
    let mover = tokio::spawn({
        let (cluster, admins) = (cluster.clone(), gateways.iter().map(|gateway| gateway.admin).collect::<Vec<_>>());
        async move {
            for (moves, id) in ["first", "acme"].into_iter().enumerate() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let tag = format!("{{p{:02}}}", Partition::of(id, 16).0);
                let to = (cluster.owner(&tag).await + 1) % cluster.nodes();
                let started = Instant::now();
                let keys = cluster.move_slot_of(&tag, to, Duration::from_millis(2)).await;
                assert!(keys > 3);
                let moved = Instant::now();
                // What comes must come: the test ends with every lead in the books.
                while opened_again(&admins).await <= moves && moved.elapsed() < PATIENCE {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                println!("{keys} keys of {id} moved in {:?}, open again {:?} later", moved - started, moved.elapsed());
            }
        }
    });
    rough(place, gateways, &stub, async { mover.await.expect("both slots have moved") }).await;
}
