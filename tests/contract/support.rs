//! Builders for store calls, and small helpers that several tests share.

use std::sync::Arc;
use std::time::Duration;

use capgate::domain::event::{
    Attempt, ClaimKey, Closed, EntryId, Life, Mark, Received, Returned, SaleMoney, WindowAmount,
};
use capgate::domain::id::{BuyerId, CampaignId, CapId, LeadId, Partition, PublisherId};
use capgate::domain::lease::{AttemptInfo, Charge, Demand, EndMark, LeaseKey, Terms, WalkName};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::domain::window::Window;
use capgate::store::{
    Admit, BeginReply, Close, CounterKey, LeaseEnd, ReadBack, Refusal, SaleReturn, Store, Take, TakeCandidate,
};
use jiff::{SignedDuration, Timestamp};

/// The life that tests work under unless they are about lives.
pub const LIFE: Life = Life(1);

/// How long claims and answers are kept in tests.
pub const RETENTION: Duration = Duration::from_hours(1);

pub fn publisher() -> PublisherId {
    PublisherId::new("acme").unwrap()
}

pub fn buyer(id: &str) -> BuyerId {
    BuyerId::new(id).unwrap()
}

pub fn cap(id: &str) -> CapId {
    CapId::new(id)
}

pub fn usd() -> Currency {
    Currency::new("USD").unwrap()
}

fn whole_ms(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap()
}

/// From an hour ago to an hour ahead.
pub fn running_window(now: Timestamp) -> Window {
    Window {
        start: whole_ms(now - SignedDuration::from_hours(1)),
        end: Some(whole_ms(now + SignedDuration::from_hours(1))),
    }
}

/// Over since an hour; older than [`running_window`].
pub fn past_window(now: Timestamp) -> Window {
    Window {
        start: whole_ms(now - SignedDuration::from_hours(2)),
        end: Some(whole_ms(now - SignedDuration::from_hours(1))),
    }
}

/// Running now, over after `left`.
pub fn ending_window(now: Timestamp, left: Duration) -> Window {
    let left = SignedDuration::try_from(left).unwrap();
    Window { start: whole_ms(now - SignedDuration::from_hours(1)), end: Some(whole_ms(now + left)) }
}

/// All time.
pub fn total_window() -> Window {
    Window { start: Timestamp::UNIX_EPOCH, end: None }
}

/// A claim by key and body.
pub fn claim(key: &str, body: Option<&str>) -> ClaimKey {
    let hex = |text: &str| format!("{:064x}", u128::from(crc32fast::hash(text.as_bytes())) + 1);
    ClaimKey { hash: hex(key), fingerprint: body.map(hex) }
}

/// An admit that is in time and may run for a minute.
pub fn admit(store: &dyn Store, lead: LeadId, claim: Option<ClaimKey>) -> Admit {
    let now = store.now();
    Admit {
        event: Received {
            lead,
            publisher: publisher(),
            campaign: CampaignId::new("solar").unwrap(),
            received_at_us: now.as_microsecond(),
            test: false,
            payload: "{\"first_name\":\"Ann \\\"A\\\"\",\"zip\":\"07030\"}".into(),
            claim,
        },
        deadline: now + SignedDuration::from_secs(60),
        not_after: now + SignedDuration::from_secs(30),
        retention: RETENTION,
    }
}

/// One unit of a cap.
pub fn demand(cap_id: &str, window: Window, limit: u64) -> Demand {
    money_demand(cap_id, window, 1, limit)
}

/// `amount` of a cap.
pub fn money_demand(cap_id: &str, window: Window, amount: u64, limit: u64) -> Demand {
    Demand { charge: Charge { cap: cap(cap_id), window, amount }, limit }
}

/// A buyer with its caps, routing version 1, held for a minute.
pub fn candidate(buyer: &BuyerId, demands: Vec<Demand>) -> TakeCandidate {
    TakeCandidate {
        buyer: buyer.clone(),
        demands,
        lease_for: Duration::from_mins(1),
        about: AttemptInfo {
            walk: WalkName::default(),
            publisher: publisher(),
            campaign: CampaignId::new("solar").unwrap(),
            ordinal: 1,
            terms: Terms {
                price: Micros(25_000_000),
                price_max: Micros(40_000_000),
                payout: Micros(17_500_000),
                currency: usd(),
            },
            person: None,
        },
        routing_version: 1,
    }
}

/// A take that is in time.
pub fn take(store: &dyn Store, lead: LeadId, candidates: Vec<TakeCandidate>) -> Take {
    Take { lead, candidates, not_after: store.now() + SignedDuration::from_secs(30) }
}

/// What an end says about a lease: the verb decides which event is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Commit,
    Refund,
    Doubt,
}

impl Verb {
    pub const ALL: [Self; 3] = [Self::Commit, Self::Refund, Self::Doubt];

    /// The mark it wants.
    pub fn mark(self) -> EndMark {
        match self {
            Self::Commit => EndMark::Committed,
            Self::Refund => EndMark::Refunded,
            Self::Doubt => EndMark::Doubt,
        }
    }

    /// Calls it.
    pub async fn call(self, store: &dyn Store, end: &LeaseEnd) -> capgate::store::EndReply {
        match self {
            Self::Commit => store.commit(end).await,
            Self::Refund => store.refund(end).await,
            Self::Doubt => store.doubt(end).await,
        }
        .unwrap()
    }
}

/// The end of a lease with the amounts as they were taken.
pub fn end(verb: Verb, lead: LeadId, candidate: &TakeCandidate) -> LeaseEnd {
    let amounts: Vec<u64> = candidate.demands.iter().map(|d| d.charge.amount).collect();
    end_with_amounts(verb, lead, candidate, &amounts)
}

/// The end of a lease with final amounts, in the order of the candidate's demands.
pub fn end_with_amounts(verb: Verb, lead: LeadId, candidate: &TakeCandidate, amounts: &[u64]) -> LeaseEnd {
    let charges: Vec<Charge> = candidate.demands.iter().map(|d| d.charge.clone()).collect();
    let windows: Vec<WindowAmount> = charges
        .iter()
        .zip(amounts)
        .map(|(c, amount)| WindowAmount {
            cap: c.cap.clone(),
            start_ms: c.window.start.as_millisecond(),
            amount: *amount,
        })
        .collect();
    let attempt = |outcome, counted, books| Attempt {
        lead,
        buyer: candidate.buyer.clone(),
        publisher: candidate.about.publisher.clone(),
        campaign: candidate.about.campaign.clone(),
        ordinal: candidate.about.ordinal,
        outcome,
        counted,
        http_status: Some(200),
        reason: None,
        sent_at_us: 1,
        duration_us: 2,
        windows: windows.clone(),
        price: candidate.about.terms.price,
        payout: candidate.about.terms.payout,
        currency: candidate.about.terms.currency,
        books,
        person: candidate.about.person,
        reference: None,
    };
    let (event, late_event) = match verb {
        Verb::Commit => {
            (attempt(AttemptOutcome::Accepted, true, true), attempt(AttemptOutcome::LateAccepted, true, false))
        }
        Verb::Refund => {
            (attempt(AttemptOutcome::Declined, false, false), attempt(AttemptOutcome::Declined, false, false))
        }
        Verb::Doubt => (attempt(AttemptOutcome::InDoubt, true, false), attempt(AttemptOutcome::InDoubt, true, false)),
    };
    LeaseEnd { key: LeaseKey { lead, buyer: candidate.buyer.clone() }, charges, event, late_event }
}

/// A return in time that gives these units back.
pub fn sale_return(store: &dyn Store, lead: LeadId, who: &BuyerId, windows: &[(&str, Window, u64)]) -> SaleReturn {
    let window = |(id, window, amount): &(&str, Window, u64)| WindowAmount {
        cap: cap(id),
        start_ms: window.start.as_millisecond(),
        amount: *amount,
    };
    let event = Returned {
        lead,
        buyer: who.clone(),
        publisher: publisher(),
        reason: "no such number".into(),
        returned_at_us: store.now().as_microsecond(),
        sale: SaleMoney { price: Micros(25_000_000), payout: Micros(17_500_000), currency: usd() },
        frees_cap: !windows.is_empty(),
        windows: windows.iter().map(window).collect(),
    };
    SaleReturn { event, not_after: store.now() + SignedDuration::from_secs(30) }
}

/// A close with an answer.
pub fn close(store: &dyn Store, lead: LeadId, claim: Option<ClaimKey>, answer: &str) -> Close {
    Close {
        event: Closed {
            lead,
            publisher: publisher(),
            campaign: CampaignId::new("solar").unwrap(),
            status: LeadStatus::Unsold,
            reason: Some("capped".into()),
            buyer: None,
            sale: None,
            books: false,
            test: false,
            closed_at_us: store.now().as_microsecond(),
            answer: answer.into(),
            explanation: "{}".into(),
            postback: None,
        },
        claim,
        retention: RETENTION,
    }
}

/// The mark before the first entry of a buyer's or publisher's partition.
pub fn start_mark(store: &dyn Store, id: &str) -> Mark {
    Mark { partition: Partition::of(id, store.partitions()), life: LIFE, entry: EntryId::default() }
}

/// Begins a life, joins it and opens it, with nothing left to read back; answers the life in force.
pub async fn begin(store: &dyn Store, partition: Partition, life: Life) -> Life {
    let server = store.standing(partition).await.unwrap().server;
    let BeginReply::Life(in_force) = store.begin_life(partition, life, &server).await.unwrap() else {
        panic!("a life was begun on another server");
    };
    let joined = store.join(&[(partition, life)]).await;
    // Under a life that is over there is nothing to restate into.
    assert!(in_force != life || joined.is_ok(), "{joined:?}");
    if in_force == life {
        assert_eq!(store.open_life(partition, life).await, Ok(true));
        store.set_read_back(partition, life, &ReadBack::Done).await.unwrap();
    }
    in_force
}

/// Begins [`LIFE`] in all partitions.
pub async fn begin_lives(store: &dyn Store) {
    for partition in 0..store.partitions() {
        assert_eq!(begin(store, Partition(partition), LIFE).await, LIFE);
    }
}

/// Sets a counter that nothing has happened to yet.
pub async fn seed(store: &dyn Store, buyer: &BuyerId, counters: &[(&str, Window, u64)]) {
    let counters: Vec<_> = counters.iter().map(|(id, window, used)| (cap(id), *window, *used)).collect();
    let reply = store.seed(buyer, &start_mark(store, buyer.as_str()), &counters).await.unwrap();
    assert_eq!(reply, capgate::store::SeedReply::Seeded);
}

/// One counter as it stands.
pub async fn used(store: &dyn Store, buyer: &BuyerId, cap_id: &str, window: Window) -> Option<u64> {
    let key = CounterKey { buyer: buyer.clone(), cap: cap(cap_id), window };
    store.counters(&[key]).await.unwrap()[0]
}

/// Takes with one candidate: `Ok` when it got the lease.
pub async fn take_one(store: &dyn Store, lead: LeadId, candidate: &TakeCandidate) -> Result<(), Refusal> {
    let reply = store.take(&take(store, lead, vec![candidate.clone()])).await.unwrap();
    assert!(!reply.too_late, "a take in time was too late");
    match reply.taken {
        Some(index) => {
            assert_eq!((index, reply.refused.len()), (0, 0));
            Ok(())
        }
        None => Err(reply.refused.into_iter().next().expect("a refusal has a reason").1),
    }
}

/// Asks again until `check` holds; fails with `what` after ten seconds.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !check().await {
        assert!(started.elapsed() < Duration::from_mins(2), "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs `count` calls at once and gathers what they answered.
pub async fn at_once<T, F>(count: usize, call: impl Fn(usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let gate = Arc::new(tokio::sync::Barrier::new(count));
    let tasks: Vec<_> = (0..count)
        .map(|index| {
            let (gate, work) = (Arc::clone(&gate), call(index));
            tokio::spawn(async move {
                gate.wait().await;
                work.await
            })
        })
        .collect();
    let mut answers = Vec::with_capacity(count);
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// A random source whose seed is printed, and can be given again with `CAPGATE_TEST_SEED`.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(test: &str) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let fresh = || std::hash::RandomState::new().build_hasher().finish() | 1;
        let seed = std::env::var("CAPGATE_TEST_SEED").map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
        Self::again(test, seed)
    }

    /// Rolls as it did when this seed was printed.
    pub fn again(test: &str, seed: u64) -> Self {
        println!("{test}: CAPGATE_TEST_SEED={seed}");
        Self(seed)
    }

    /// Another source, for a task of its own.
    pub fn split(&mut self) -> Self {
        Self(self.next() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// 0 up to, not including, `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(sides).unwrap()).unwrap()
    }
}
