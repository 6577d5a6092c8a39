//! Ends of leases: by their owner, late, repeated, after a crash, by recovery.

use capgate::domain::event::WindowAmount;
use capgate::domain::lease::EndMark;
use capgate::lease::abandoned;
use capgate::store::{EndReply, LeaseEnd, Store};
use jiff::SignedDuration;

use crate::bench::{Bench, END_MARK_TTL};
use crate::pure::{State, Unit, Verb};
use crate::support::{self, end_with_amounts};
use crate::walk::{PRICE, Walk};

/// Units that ends are thrown at: so few that each meets several.
const RECENT: usize = 40;

impl<B: Bench> Walk<B> {
    pub fn recent(&mut self) -> Option<usize> {
        let count = self.model.units.len();
        let among = count.min(RECENT);
        (among > 0).then(|| count - 1 - self.dice.roll(among))
    }

    fn open_of_the_living(&self) -> impl Iterator<Item = usize> {
        let units = self.model.units.iter().enumerate();
        units
            .filter(|(_, unit)| unit.owner.is_some() && matches!(unit.state, State::Open { .. }))
            .map(|(index, _)| index)
    }

    /// Its end mark may have expired.
    pub fn may_be_forgotten(&self, unit: &Unit) -> bool {
        matches!(unit.state, State::Ended { at, .. } if self.latest.duration_since(at) >= SignedDuration::try_from(END_MARK_TTL).unwrap())
    }

    /// Ends a lease somehow, whoever owns it and whatever state it is in.
    pub async fn end_one(&mut self) {
        let open: Vec<_> = self.open_of_the_living().collect();
        let index = if open.is_empty() || self.dice.roll(3) == 0 {
            let Some(index) = self.recent() else { return };
            index
        } else {
            open[self.dice.roll(open.len())]
        };
        // A dead gateway ends nothing; its leases are for recovery.
        if self.model.units[index].owner.is_none() && matches!(self.model.units[index].state, State::Open { .. }) {
            return;
        }
        let verbs = [Verb::Commit, Verb::Confirm, Verb::Refund, Verb::Doubt, Verb::Expire];
        let verb = verbs[self.dice.roll(verbs.len())];
        let unit = &self.model.units[index];
        let amounts: Vec<u64> = unit
            .candidate
            .demands
            .iter()
            .map(|demand| match (verb, demand.charge.amount) {
                (Verb::Commit | Verb::Confirm, PRICE) => PRICE - u64::try_from(self.dice.roll(15)).unwrap(),
                (_, amount) => amount,
            })
            .collect();
        let call = end_call(verb, unit, &amounts);
        self.call_end(index, verb, &call, &amounts).await;
        if self.dice.roll(4) == 0 {
            self.count("lost reply of an end");
            self.call_end(index, verb, &call, &amounts).await;
        }
    }

    pub async fn call_end(&mut self, index: usize, verb: Verb, call: &LeaseEnd, amounts: &[u64]) {
        let (_, store) = self.gateway();
        let now = store.now();
        let mut reply = send_end(&*store, verb, call).await;
        if reply == EndReply::Missing {
            let unit = &self.model.units[index];
            assert!(self.may_be_forgotten(unit), "forgotten too early: {unit:?}");
            self.count("forgotten");
            self.remember(&*store, index).await;
            reply = send_end(&*store, verb, call).await;
        }
        let must = self.model.end(now, index, verb, amounts);
        assert_eq!(reply, must, "{verb:?} of {:?}", self.model.units[index]);
        self.count(match (reply, verb) {
            (EndReply::Done, Verb::Commit | Verb::Confirm) => "committed",
            (EndReply::Done, Verb::Refund) => "refunded",
            (EndReply::Done, Verb::Doubt) => "doubted",
            (EndReply::Done, Verb::Expire) => "expired",
            (EndReply::Late { was: EndMark::Refunded, .. }, _) => "late yes after a refund",
            (EndReply::Late { .. }, Verb::Commit) => "doubt ended by a yes",
            (EndReply::Late { .. }, Verb::Confirm) => "doubt confirmed",
            (EndReply::Late { .. }, _) => "doubt ended by a no",
            (EndReply::Already(EndMark::Refunded), Verb::Confirm) => "not confirmed after a refund",
            (EndReply::Already(_), _) => "already",
            (EndReply::Missing, _) => panic!("it was remembered"),
        });
    }

    /// The books tell the store how it ended.
    async fn remember(&mut self, store: &dyn Store, index: usize) {
        let now = store.now();
        let unit = &mut self.model.units[index];
        let State::Ended { mark, .. } = unit.state else { panic!("an open lease is never forgotten") };
        let demands = unit.candidate.demands.iter().zip(&unit.counts);
        let windows: Vec<_> = demands
            .map(|(demand, counts)| WindowAmount {
                cap: demand.charge.cap.clone(),
                start_ms: demand.charge.window.start.as_millisecond(),
                amount: *counts,
            })
            .collect();
        let counted = if mark == EndMark::Refunded { &[][..] } else { &windows[..] };
        let not_after = now + SignedDuration::from_mins(1);
        assert_eq!(store.remember(&unit.key, mark, counted, not_after).await, Ok(true));
        unit.state = State::Ended { mark, at: now };
    }

    /// Every overdue lease of a partition is ended as recovery does, by one or by two at once.
    pub async fn recover(&mut self) {
        let partition = self.any_partition();
        let (_, store) = self.gateway();
        let tolerance = self.bench.tolerance();
        let before = store.now();
        let overdue = store.overdue_leases(partition, 10_000).await.unwrap();
        for unit in &self.model.units {
            let State::Open { deadline, .. } = unit.state else { continue };
            if self.partition(&unit.key.buyer) != partition {
                continue;
            }
            if overdue.iter().any(|lease| lease.key == unit.key) {
                assert!(deadline <= before + tolerance, "{unit:?}");
            } else {
                assert!(deadline >= before - tolerance, "{before}: {unit:?}");
            }
        }
        let twice = if self.dice.roll(2) == 0 { 2 } else { 1 };
        for lease in &overdue {
            let index = self.model.unit(&lease.key).expect("it was granted");
            let unit = &self.model.units[index];
            assert!(matches!(unit.state, State::Open { gives_back, .. } if gives_back == lease.gives_back), "{unit:?}");
            let amounts: Vec<u64> = lease.charges.iter().map(|charge| charge.amount).collect();
            // `on_crash = "refund"` for one buyer.
            let keeps_unit = !lease.gives_back && lease.key.buyer.as_str() != "gamma";
            let verb = if keeps_unit { Verb::Doubt } else { Verb::Expire };
            let call = abandoned(lease, keeps_unit, store.now());
            for _ in 0..twice {
                self.call_end(index, verb, &call, &amounts).await;
            }
            self.count("recovered");
        }
    }

    pub async fn give_back_at_deadline(&mut self) {
        let Some(index) = self.recent() else { return };
        let (_, store) = self.gateway();
        store.give_back_at_deadline(&self.model.units[index].key).await.unwrap();
        if let State::Open { gives_back, .. } = &mut self.model.units[index].state {
            *gives_back = true;
            self.count("to be given back");
        }
    }
}

pub fn end_call(verb: Verb, unit: &Unit, amounts: &[u64]) -> LeaseEnd {
    let of = |verb| end_with_amounts(verb, unit.key.lead, &unit.candidate, amounts);
    match verb {
        Verb::Commit | Verb::Confirm => of(support::Verb::Commit),
        Verb::Refund => of(support::Verb::Refund),
        Verb::Doubt => of(support::Verb::Doubt),
        Verb::Expire => {
            let mut end = of(support::Verb::Doubt);
            (end.event.counted, end.late_event.counted) = (false, false);
            end
        }
    }
}

async fn send_end(store: &dyn Store, verb: Verb, call: &LeaseEnd) -> EndReply {
    match verb {
        Verb::Commit => store.commit(call).await,
        Verb::Confirm => store.confirm(call).await,
        Verb::Refund => store.refund(call).await,
        Verb::Doubt => store.doubt(call).await,
        Verb::Expire => store.expire(call).await,
    }
    .unwrap()
}
