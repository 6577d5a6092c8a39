//! Which routing buyers were used with: an older one must not grant after a newer one was used, loss or not (F86).

use std::collections::HashMap;

use parking_lot::Mutex;

use super::reply::Call;
use super::scripts::Verb;
use super::{RedisStore, first_word, unknown_reply};
use crate::domain::event::Life;
use crate::domain::id::{BuyerId, Partition};
use crate::store::StoreError;

/// Buyers in one call: bounds the time that the server is busy with it.
const BUYERS_MAX: usize = 500;

/// The newest version that each buyer was used with, as far as this gateway has seen: one number for each buyer that was ever
/// in its routing.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<HashMap<BuyerId, u64>>);

impl Versions {
    pub(super) fn saw(&self, buyer: &BuyerId, version: u64) {
        let mut known = self.0.lock();
        match known.get_mut(buyer) {
            Some(newest) => *newest = version.max(*newest),
            None => drop(known.insert(buyer.clone(), version)),
        }
    }

    fn all(&self) -> Vec<(BuyerId, u64)> {
        self.0.lock().iter().map(|(buyer, version)| (buyer.clone(), *version)).collect()
    }
}

impl RedisStore {
    /// Tells the data of a new life what this gateway has seen.
    pub(super) async fn restate_versions(&self, partition: Partition, life: Life) -> Result<(), StoreError> {
        let mut known = self.versions.all();
        known.retain(|(buyer, _)| self.partition(buyer.as_str()) == partition);
        for some in known.chunks(BUYERS_MAX) {
            let mut call = Call::new(vec![self.keys.life(partition), self.keys.versions(partition)]);
            call.number(life.0);
            for (buyer, version) in some {
                call.arg(buyer.as_str().to_owned()).number(*version);
            }
            let answer = self.client.run(Verb::RestateVersions, &call).await?;
            match first_word(&answer.reply)?.0 {
                "done" => {}
                "life" => return Err(StoreError::NotDone("the partition has another life by now".to_owned())),
                word => return Err(unknown_reply("restate_versions", word)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f86_the_newest_version_that_was_seen_stays() {
        let versions = Versions::default();
        let buyer = BuyerId::new("sunco").unwrap();
        for version in [3, 7, 5] {
            versions.saw(&buyer, version);
        }
        assert_eq!(versions.all(), [(buyer, 7)]);
    }
}
