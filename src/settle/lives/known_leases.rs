//! Leases that are open in the data, or in this process, although the books know how they ended.

use std::collections::HashSet;

use super::persons::note_leases;
use crate::app::Gateway;
use crate::domain::event::Life;
use crate::domain::id::Partition;
use crate::domain::lease::LeaseKey;
use crate::ledger::SettleError;

/// Leases of older data looked through.
const LEASES_MAX: usize = 20_000;

/// A lease whose end reached the old data and the books, but whose owner was cut off from the answer, must not be restated as
/// open: ended once more, it would be counted once more by the counter that is seeded from books and journal together, and a
/// unit of the cap would be missing until the next reconciliation (P2). Nothing of an old journal is settled after its life was
/// raised, so what the books know now is all that they will ever know of it.
pub(super) async fn let_known_leases_go(gateway: &Gateway, lives: &[(Partition, Life)]) {
    let partitions: Vec<Partition> = lives.iter().map(|(partition, _)| *partition).collect();
    let held = gateway.store.held_leases(&partitions);
    if held.is_empty() {
        return;
    }
    let known = match gateway.ledger.attempted(&held).await {
        Ok(known) => known,
        // Restated then: the unit counts as used until the next reconciliation.
        Err(error) => return gateway.status.lives_failed(&error),
    };
    for key in known {
        let home = Partition::of(key.buyer.as_str(), gateway.store.partitions());
        let life = lives.iter().find(|(partition, _)| *partition == home).map(|(_, life)| *life).unwrap_or_default();
        // Older data may have it as open, too.
        match gateway.store.forget_lease(life, &key).await {
            Ok(()) => gateway.store.let_lease_go(&key),
            Err(error) => return gateway.note_store_error(&error),
        }
    }
}

/// Leases of older data whose end was lost with its last moments, but not in the books.
pub(super) async fn forget_ended_leases(
    gateway: &Gateway,
    partition: Partition,
    life: Life,
) -> Result<(), SettleError> {
    let mut open = gateway.store.open_leases(partition, LEASES_MAX).await?;
    let keys: Vec<LeaseKey> = open.iter().map(|lease| lease.key.clone()).collect();
    if keys.is_empty() {
        return Ok(());
    }
    let ended: HashSet<LeaseKey> = gateway.ledger.attempted(&keys).await?.into_iter().collect();
    for key in &ended {
        gateway.store.forget_lease(life, key).await?;
    }
    open.retain(|lease| !ended.contains(&lease.key));
    note_leases(gateway, &open).await?;
    Ok(())
}
