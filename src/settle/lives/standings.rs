//! All partitions are asked at once, so that a look is as long as one call: a partition that has moved or lost its data is seen,
//! and opened again, that much sooner.

use std::collections::HashMap;

use tokio::task::JoinSet;

use crate::app::Gateway;
use crate::domain::id::Partition;
use crate::store::{Standing, StoreError};

/// What every partition's data says of itself.
pub(super) async fn standings(gateway: &Gateway) -> HashMap<Partition, Result<Standing, StoreError>> {
    let mut asked = JoinSet::new();
    for partition in (0..gateway.store.partitions()).map(Partition) {
        let store = gateway.store.clone();
        asked.spawn(async move { (partition, store.standing(partition).await) });
    }
    let mut standings = HashMap::new();
    while let Some(answer) = asked.join_next().await {
        // One that was cut short is missing, and asked again at the next look.
        standings.extend(answer.ok());
    }
    standings
}
