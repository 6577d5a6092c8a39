//! The whole gateway on a Redis Cluster: the headline, and a slot that moves to another node while leads come in.

use std::sync::Arc;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::Partition;

use crate::cluster_support::Cluster;
use crate::headline::{ROUGH, SHORT_LATE, behaviours, headline, rough, rough_buyers, three_buyers};
use crate::support::{Gateway, Place};

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

/// The slots of the capped buyer and of the publisher move under load, each in turn. Leads that come meanwhile wait, are
/// refused, or go to the next buyer; nothing is oversold, nothing that was acknowledged is lost, and no unit of the cap is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_slots_that_move_under_load_oversell_and_lose_nothing() {
    let stub = StubBuyer::on_loopback(behaviours(&[ROUGH]), 11).await.expect("a stub buyer");
    let cluster = Arc::new(Cluster::start(3).await);
    let place = Place::on_redis(cluster.url()).await;
    place.write_routing(&rough_buyers(&stub));
    let gateways = three_gateways(&place, SHORT_LATE).await;
    let mover = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            for id in ["first", "acme"] {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let tag = format!("{{p{:02}}}", Partition::of(id, 16).0);
                let to = (cluster.owner(&tag).await + 1) % cluster.nodes();
                assert!(cluster.move_slot_of(&tag, to, Duration::from_millis(2)).await > 3);
            }
        }
    });
    rough(place, gateways, &stub).await;
    mover.await.expect("both slots have moved");
}
