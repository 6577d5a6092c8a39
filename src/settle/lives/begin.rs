//! A new life is raised in the books, then begun in the store.

use super::Found;
use super::step::{Step, decide};
use crate::app::Gateway;
use crate::domain::event::{EntryId, Mark};
use crate::ledger::{LifeRow, Raise, SettleError, Stage};
use crate::store::BeginReply;

/// Raises and begins lives where the data proves nothing.
pub(super) async fn begin(gateway: &Gateway, found: &mut [Found]) -> Result<(), SettleError> {
    raise(gateway, found).await?;
    let mut begun = Vec::new();
    for found in found.iter().filter(|found| found.step == Step::Begin) {
        let Mark { partition, life, .. } = found.row.mark;
        match gateway.store.begin_life(partition, life, &found.standing.server).await? {
            BeginReply::Life(in_force) if in_force == life => begun.push((partition, life)),
            // It has changed again.
            BeginReply::Life(_) | BeginReply::Elsewhere => {}
        }
    }
    if !begun.is_empty() {
        gateway.ledger.set_stage(&begun, Stage::Begun).await?;
        for found in found.iter_mut().filter(|found| begun.contains(&(found.row.mark.partition, found.row.mark.life))) {
            found.row.stage = Stage::Begun;
            found.standing = gateway.store.standing(found.row.mark.partition).await?;
            found.step = decide(&found.row, &found.standing);
        }
    }
    Ok(())
}

/// Where somebody else was first, the next look sees what it decided.
async fn raise(gateway: &Gateway, found: &mut [Found]) -> Result<(), SettleError> {
    let raise = |found: &Found| match found.step {
        Step::Raise(to) => {
            let Mark { partition, life: from, .. } = found.row.mark;
            Some(Raise { partition, from, to, server: found.standing.server.clone() })
        }
        Step::Work | Step::Rebuild | Step::Begin | Step::Elsewhere => None,
    };
    let wanted: Vec<Raise> = found.iter().filter_map(raise).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let raised = gateway.ledger.raise_lives(&wanted).await?;
    for Raise { partition, to, server, .. } in wanted.iter().filter(|raise| raised.contains(&raise.partition)) {
        for found in found.iter_mut().filter(|found| found.row.mark.partition == *partition) {
            let mark = Mark { partition: *partition, life: *to, entry: EntryId::default() };
            found.row = LifeRow { mark, server: server.clone(), stage: Stage::Raised };
            found.step = Step::Begin;
        }
    }
    let lost = wanted.iter().filter(|raise| raise.from.0 > 0 && raised.contains(&raise.partition)).count() as u64;
    if lost > 0 {
        gateway.telemetry.store.new_lives.increment(lost);
        tracing::warn!(partitions = lost, "the store's data is not what the books know: new life");
    }
    Ok(())
}
