//! How many sends each publisher may have under way, so that one whose endpoint is dead takes nobody else's place (P7).

use std::collections::HashMap;

use jiff::Timestamp;

use crate::domain::id::PublisherId;

/// Sends under way at once in this gateway.
pub const SENDS_MAX: usize = 256;
/// Of one publisher that answers.
const ROOM_MAX: usize = 16;
/// Of one publisher that does not.
const ROOM_MIN: usize = 4;

#[derive(Debug)]
struct Lane {
    under_way: usize,
    room: usize,
    rests_until: Option<Timestamp>,
}

/// Every publisher's lane. Grows with the publishers that the routing has ever named, and with nothing else.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: HashMap<PublisherId, Lane>,
    under_way: usize,
}

impl Lanes {
    fn lane(&mut self, publisher: &PublisherId) -> &mut Lane {
        self.lanes.entry(publisher.clone()).or_insert(Lane { under_way: 0, room: ROOM_MAX, rests_until: None })
    }

    /// How many more of this publisher may begin now.
    pub fn free(&mut self, publisher: &PublisherId, now: Timestamp) -> usize {
        let lane = self.lane(publisher);
        if lane.rests_until.is_some_and(|until| now < until) {
            return 0;
        }
        lane.rests_until = None;
        lane.room.saturating_sub(lane.under_way)
    }

    /// How many more may begin in all.
    pub fn free_in_all(&self) -> usize {
        SENDS_MAX.saturating_sub(self.under_way)
    }

    /// One begins.
    pub fn begin(&mut self, publisher: &PublisherId) {
        self.lane(publisher).under_way += 1;
        self.under_way += 1;
    }

    /// One has ended, and its end is written down.
    pub fn end(&mut self, publisher: &PublisherId) {
        let lane = self.lane(publisher);
        lane.under_way = lane.under_way.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// What the endpoint did: room shrinks fast and grows slowly.
    pub fn learn(&mut self, publisher: &PublisherId, is_fine: bool) {
        let lane = self.lane(publisher);
        lane.room = if is_fine { (lane.room + 1).min(ROOM_MAX) } else { (lane.room / 2).max(ROOM_MIN) };
    }

    /// The publisher has asked for a rest. One that ends later already stays.
    pub fn rest(&mut self, publisher: &PublisherId, until: Timestamp) {
        let lane = self.lane(publisher);
        lane.rests_until = lane.rests_until.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p7_a_publisher_that_fails_gets_less_room_and_gets_it_back() {
        let (dead, fine) = (PublisherId::new("dead").unwrap(), PublisherId::new("fine").unwrap());
        let now = Timestamp::UNIX_EPOCH;
        let mut lanes = Lanes::default();
        for _ in 0..ROOM_MAX {
            lanes.begin(&dead);
        }
        assert_eq!((lanes.free(&dead, now), lanes.free(&fine, now)), (0, ROOM_MAX));
        for _ in 0..ROOM_MAX {
            lanes.learn(&dead, false);
            lanes.end(&dead);
        }
        assert_eq!((lanes.free(&dead, now), lanes.free_in_all()), (ROOM_MIN, SENDS_MAX));
        for _ in 0..100 {
            lanes.learn(&dead, true);
        }
        assert_eq!(lanes.free(&dead, now), ROOM_MAX);
    }

    #[test]
    fn a_publisher_that_rests_gets_nothing_until_it_has_rested() {
        let publisher = PublisherId::new("p").unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let later = |seconds| now + jiff::SignedDuration::from_secs(seconds);
        let mut lanes = Lanes::default();
        lanes.rest(&publisher, later(60));
        lanes.rest(&publisher, later(30));
        assert_eq!(lanes.free(&publisher, later(59)), 0);
        assert_eq!(lanes.free(&publisher, later(60)), ROOM_MAX);
    }
}
