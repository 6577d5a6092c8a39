//! Which gateways are alive, and which of them a closed partition waits for. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::domain::event::Life;
use crate::domain::id::Partition;
use crate::ledger::Peer;

/// A gateway whose row is older is taken for dead: nobody waits for it.
pub(super) const FRESH: Duration = Duration::from_secs(5);

/// Whom a closed partition waits for; nobody when every gateway that is alive has restated what it holds. `since`: from when on
/// this gateway has written its own row without a gap.
pub(super) fn waits_for(peers: &[Peer], since: Option<Instant>, partition: Partition, life: Life) -> Option<String> {
    let is_behind = |peer: &&Peer| peer.restated.get(usize::from(partition.0)).copied().unwrap_or_default() < life;
    let mut is_unsure = false;
    for peer in peers.iter().filter(is_behind) {
        if peer.age < FRESH {
            return Some(format!("gateway {} has still to restate what it holds", peer.gateway));
        }
        is_unsure = true;
    }
    // Everybody's row is old after an outage of the books: who is alive shows within `FRESH`.
    let is_new = since.is_some_and(|since| since.elapsed() < FRESH + Duration::from_secs(1));
    (is_unsure && is_new).then(|| "it has still to be seen which gateways are alive".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::GatewayId;

    #[test]
    fn p1_a_partition_waits_for_every_gateway_that_is_alive() {
        let now = Instant::now();
        let peer = |age_s, life| Peer {
            gateway: GatewayId::generate(),
            age: Duration::from_secs(age_s),
            restated: vec![Life(life)],
        };
        let waits = |peers: Vec<Peer>, since: Instant| waits_for(&peers, Some(since), Partition(0), Life(4)).is_some();
        let long_ago = now - Duration::from_mins(1);
        assert!(!waits(vec![peer(0, 4), peer(1, 4)], now));
        assert!(waits(vec![peer(0, 4), peer(1, 3)], long_ago));
        assert!(!waits(vec![peer(0, 4), peer(10, 3)], long_ago), "dead");
        assert!(waits(vec![peer(0, 4), peer(10, 3)], now), "all rows are old after an outage of the books");
        assert!(!waits(vec![peer(0, 4), peer(10, 4)], now));
    }
}
