//! Taking leases: one script call for all candidates on a single server, one per run of a partition on a cluster.

use bytes::Bytes;

use super::held::HeldLease;
use super::keys::{escape, life_text};
use super::record::{
    charges_text, end_text, parse_lease, parse_ms, parse_refusals, refusals_of_record, taken_at_of_record,
};
use super::reply::{Call, Plain};
use super::scripts::Verb;
use super::{RedisStore, Reply, expires_at, millis, nth};
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::domain::lease::{Demand, LeaseKey};
use crate::domain::window::Window;
use crate::store::{Refusal, StoreError, Take, TakeCandidate, TakeReply};

/// Candidates in one script call: bounds the time the server is busy with it.
const CANDIDATES_MAX: usize = 32;

/// A candidate with its place in the caller's list.
type Placed<'a> = (usize, &'a TakeCandidate);

impl RedisStore {
    /// Does the whole take fit into one step, so that it may share one with its admit?
    pub(super) fn is_one_call(&self, take: &Take) -> bool {
        !self.client.is_cluster() && take.candidates.len() <= CANDIDATES_MAX
    }

    pub(super) async fn run_take(&self, take: &Take) -> Result<TakeReply, StoreError> {
        let calls = self.split(take);
        if calls.len() > 1 {
            // Each call finds its own open lease; a repeat must find one that a later call of it has opened (F20).
            if let Some(reply) = self.find_open(take, &calls).await? {
                return Ok(reply);
            }
        }
        let mut refused = String::new();
        for candidates in &calls {
            let answer = self.client.run(Verb::Take, &self.take_call(take, candidates, &refused)?).await?;
            let (reply, so_far) = self.read_taken(take, &answer.reply)?;
            self.measure_clock_after(&reply).await;
            if reply.taken.is_some() || reply.too_late {
                return Ok(reply);
            }
            refused = so_far;
            if reply.refused.iter().any(|(_, refusal)| refusal.is_curable()) {
                break;
            }
        }
        Ok(TakeReply { taken: None, refused: parse_refusals(&refused)?, too_late: false })
    }

    pub(super) async fn read_newest_windows(
        &self,
        buyer: &BuyerId,
        caps: &[CapId],
    ) -> Result<Vec<Option<Window>>, StoreError> {
        if caps.is_empty() {
            return Ok(Vec::new());
        }
        let mut args: Vec<Bytes> = vec![self.keys.windows(self.partition(buyer.as_str())).into()];
        for cap in caps {
            let field = format!("{buyer}|{}", escape(cap.as_str()));
            args.extend([Bytes::from(format!("{field}|end")), Bytes::from(field)]);
        }
        let found = self.client.one("HMGET", args).await?;
        let window = |pair: &[Reply]| {
            let (end, start) = (nth(pair, 0)?.optional_text()?, nth(pair, 1)?.optional_text()?);
            let both = start.and_then(parse_ms).zip(end.and_then(parse_ms));
            Ok(both.map(|(start, end)| Window { start, end: Some(end) }))
        };
        found.list()?.chunks_exact(2).map(window).collect()
    }

    fn split<'a>(&self, take: &'a Take) -> Vec<Vec<Placed<'a>>> {
        let mut calls: Vec<Vec<Placed<'a>>> = Vec::new();
        for placed in take.candidates.iter().enumerate() {
            let fits = calls.last().is_some_and(|call| {
                call.len() < CANDIDATES_MAX
                    && (!self.client.is_cluster() || call.iter().all(|one| self.home(one) == self.home(&placed)))
            });
            match calls.last_mut() {
                Some(call) if fits => call.push(placed),
                _ => calls.push(vec![placed]),
            }
        }
        calls
    }

    fn home(&self, (_, candidate): &Placed<'_>) -> Partition {
        self.partition(candidate.buyer.as_str())
    }

    async fn find_open(&self, take: &Take, calls: &[Vec<Placed<'_>>]) -> Result<Option<TakeReply>, StoreError> {
        let later: Vec<Placed<'_>> = calls.iter().skip(1).flatten().copied().collect();
        let reads = later.iter().map(|placed| {
            let leases = self.keys.leases(self.home(placed), &placed.1.buyer);
            Plain::new("HGET", vec![leases.into(), take.lead.to_string().into()])
        });
        let records = self.client.plain(reads.collect()).await?;
        for ((index, candidate), record) in later.iter().zip(&records) {
            if let Some(record) = record.optional_text()? {
                let key = LeaseKey { lead: take.lead, buyer: candidate.buyer.clone() };
                if parse_lease(key, record)?.about.walk != candidate.about.walk {
                    continue;
                }
                self.hold_lease(take, *index, taken_at_of_record(record).unwrap_or_default())?;
                let refused = parse_refusals(refusals_of_record(record))?;
                return Ok(Some(TakeReply { taken: Some(*index), refused, too_late: false }));
            }
        }
        Ok(None)
    }

    /// [`read_reply`]; a lease that is now open is held.
    pub(super) fn read_taken(&self, take: &Take, reply: &Reply) -> Result<(TakeReply, String), StoreError> {
        let (read, so_far) = read_reply(reply)?;
        for (index, refusal) in &read.refused {
            if let Some(candidate) = take.candidates.get(*index) {
                let newest = match refusal {
                    Refusal::Stale { newest } => *newest,
                    _ => candidate.routing_version,
                };
                self.versions.saw(&candidate.buyer, newest);
            }
        }
        if let Some(index) = read.taken {
            self.hold_lease(take, index, nth(reply.list()?, 3)?.int()?)?;
        }
        Ok((read, so_far))
    }

    fn hold_lease(&self, take: &Take, index: usize, taken_at_ms: i64) -> Result<(), StoreError> {
        let candidate =
            take.candidates.get(index).ok_or_else(|| StoreError::Bug("take names an unknown candidate".to_owned()))?;
        let lease = HeldLease {
            charges: candidate.demands.iter().map(|demand| demand.charge.clone()).collect(),
            about: about_text(candidate)?,
            taken_at_ms,
            deadline_ms: taken_at_ms.saturating_add(millis(candidate.lease_for)),
            gives_back: false,
            person: candidate.about.person,
        };
        self.versions.saw(&candidate.buyer, candidate.routing_version);
        self.held.taken(LeaseKey { lead: take.lead, buyer: candidate.buyer.clone() }, lease);
        Ok(())
    }

    /// Keys and arguments of take.lua.
    pub(super) fn take_call(&self, take: &Take, candidates: &[Placed<'_>], refused: &str) -> Result<Call, StoreError> {
        let mut groups: Vec<Partition> = Vec::new();
        for placed in candidates {
            let home = self.home(placed);
            if !groups.contains(&home) {
                groups.push(home);
            }
        }
        let mut call = Call::default();
        call.arg(take.lead.to_string());
        call.number(take.not_after.as_millisecond());
        call.arg(refused.to_owned()).number(groups.len()).number(candidates.len());
        for group in &groups {
            call.keys.extend([
                self.keys.life(*group),
                self.keys.due(*group),
                self.keys.windows(*group),
                self.keys.versions(*group),
            ]);
            call.arg(life_text(self.joined_life(*group)));
        }
        for placed @ (index, candidate) in candidates {
            let home = self.home(placed);
            let group = groups.iter().position(|group| *group == home).unwrap_or_default();
            self.push_candidate(&mut call, take, home, group + 1, *index, candidate)?;
        }
        Ok(call)
    }

    pub(super) fn whole_take_call(&self, take: &Take) -> Result<Call, StoreError> {
        let candidates: Vec<Placed<'_>> = take.candidates.iter().enumerate().collect();
        self.take_call(take, &candidates, "")
    }

    fn push_candidate(
        &self,
        call: &mut Call,
        take: &Take,
        home: Partition,
        group: usize,
        index: usize,
        candidate: &TakeCandidate,
    ) -> Result<(), StoreError> {
        let buyer = &candidate.buyer;
        call.keys.push(self.keys.end_mark(home, take.lead, buyer));
        call.keys.push(self.keys.leases(home, buyer));
        call.number(index).number(group).arg(buyer.as_str().to_owned()).number(candidate.routing_version);
        call.number(millis(candidate.lease_for)).arg(about_text(candidate)?);
        call.arg(charges_text(candidate.demands.iter().map(|demand| &demand.charge)));
        match candidate.about.person {
            Some(person) => {
                call.keys.push(self.keys.person(home, buyer, person.digest));
                call.keys.push(self.keys.marked(home, buyer));
                call.number(person.days);
            }
            None => {
                call.arg(String::new());
            }
        }
        call.number(candidate.demands.len());
        for demand in &candidate.demands {
            let charge = &demand.charge;
            let start = charge.window.start.as_millisecond();
            call.keys.push(self.keys.counter(home, buyer, &charge.cap, start));
            call.arg(escape(charge.cap.as_str())).number(start).arg(end_text(&charge.window));
            call.number(charge.amount).arg(room_before(demand)).arg(expires_at(&charge.window));
        }
        Ok(())
    }
}

fn about_text(candidate: &TakeCandidate) -> Result<String, StoreError> {
    serde_json::to_string(&candidate.about)
        .map_err(|_| StoreError::Bug("an attempt cannot be written as JSON".to_owned()))
}

/// The most that a counter may be before the charge; negative when the charge alone is above the limit, or when the limit is
/// zero, which closes the cap also to what costs nothing. Never so much that the server's 64 bits could overflow.
fn room_before(demand: &Demand) -> String {
    if demand.limit == 0 {
        return "-1".to_owned();
    }
    let limit = demand.limit.min(i64::MAX.unsigned_abs());
    (i128::from(limit) - i128::from(demand.charge.amount)).to_string()
}

/// The reply, and the refusals as text for the next call.
fn read_reply(reply: &Reply) -> Result<(TakeReply, String), StoreError> {
    let items = reply.list()?;
    let taken = match nth(items, 0)?.text()? {
        "" => None,
        index => Some(index.parse().map_err(|_| StoreError::Bug("unexpected reply of take: no index".to_owned()))?),
    };
    let too_late = nth(items, 1)?.text()? == "1";
    let text = nth(items, 2)?.text()?;
    Ok((TakeReply { taken, refused: parse_refusals(text)?, too_late }, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::domain::lease::Charge;

    #[test]
    fn f15_room_is_exact_to_the_last_digit() {
        let room = |amount, limit| {
            let window = Window { start: Timestamp::UNIX_EPOCH, end: None };
            room_before(&Demand { charge: Charge { cap: CapId::new("total"), window, amount }, limit })
        };
        assert_eq!(room(1, 9_007_199_254_740_993), "9007199254740992");
        assert_eq!(room(1, 0), "-1");
        assert_eq!(room(0, 0), "-1");
        assert_eq!(room(5, 3), "-2");
        assert_eq!(room(1, u64::MAX), "9223372036854775806");
    }
}
