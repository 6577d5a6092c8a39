//! Lives: proof that the store's data is the data the books know (P8).
//!
//! A partition whose data is gone or older gets a new life in the ledger first (compare and set), then in the store. Under a
//! new life every counter is unseeded, so nothing is granted before its count was read from the books.

use std::time::Duration;

use tokio::sync::Mutex;

use crate::app::Gateway;
use crate::domain::event::{Life, Mark};
use crate::ledger::SettleError;

/// A lead that waits for partitions to open waits no longer than this.
const OPEN_PATIENCE: Duration = Duration::from_millis(150);

/// Rounds of compare and set when several gateways open a partition at once.
const ROUNDS_MAX: usize = 5;

/// Opens partitions, one task at a time.
#[derive(Debug, Default)]
pub struct Lives {
    one_at_a_time: Mutex<()>,
}

impl Lives {
    /// Opens what can be opened within a bounded time; the monitor goes on with the rest.
    pub async fn open(&self, gateway: &Gateway) {
        let opened = tokio::time::timeout(OPEN_PATIENCE, self.open_all(gateway)).await;
        if let Ok(Err(error)) = opened {
            tracing::warn!(%error, "partitions stay closed");
        }
    }

    /// Opens all partitions, however long store and ledger take.
    pub async fn open_all(&self, gateway: &Gateway) -> Result<(), SettleError> {
        let _turn = self.one_at_a_time.lock().await;
        let marks = gateway.ledger.marks(gateway.store.partitions()).await?;
        for mark in marks {
            self.open_one(gateway, mark).await?;
        }
        gateway.status.lives_looked_at(true);
        Ok(())
    }

    async fn open_one(&self, gateway: &Gateway, mut mark: Mark) -> Result<(), SettleError> {
        let partition = mark.partition;
        let mut has_new_life = false;
        for _ in 0..ROUNDS_MAX {
            let wanted = match gateway.store.life(partition).await? {
                Some(life) if life == mark.life => life,
                // The books are older than the store (a restored backup): they take over the store's life, and its journal is
                // settled from its beginning.
                Some(life) if life > mark.life => life,
                Some(_) | None => Life(mark.life.0 + 1),
            };
            if wanted != mark.life {
                if !gateway.ledger.raise_life(partition, mark.life, wanted).await? {
                    mark = reread(gateway, mark).await?;
                    continue;
                }
                if mark.life.0 > 0 {
                    tracing::warn!(
                        partition = partition.0,
                        life = wanted.0,
                        "the store's data is not what the books know: new life"
                    );
                }
                mark.life = wanted;
                has_new_life = true;
            }
            if gateway.store.begin_life(partition, wanted).await? == wanted {
                if has_new_life {
                    gateway.reconcile_soon();
                }
                return Ok(());
            }
            mark = reread(gateway, mark).await?;
        }
        Ok(())
    }
}

async fn reread(gateway: &Gateway, mark: Mark) -> Result<Mark, SettleError> {
    let marks = gateway.ledger.marks(gateway.store.partitions()).await?;
    Ok(marks.into_iter().find(|other| other.partition == mark.partition).unwrap_or(mark))
}
