//! Every kind of answer, in time and late, under every `on_timeout`, with and without another buyer: what becomes of the unit,
//! the lead, the attempt's row, the money and the metrics. All cases run side by side in one gateway, so that the test takes
//! as long as its longest wait.

use std::fmt::Write as _;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::id::BuyerId;
use capgate::domain::outcome::{AttemptOutcome, LeadStatus};
use capgate::ledger::LeadDetail;

use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, KEY, Place, client, closed, get, lead, routing, until};

/// Far enough apart that a busy machine makes no late answer of one in time, nor the other way round.
const TIMEOUT_MS: u32 = 4_000;
const IN_TIME_MS: u32 = 1_000;
const LATE_MS: u32 = 6_500;
const LATE_ANSWER_MS: u32 = 7_000;

const POLICIES: [&str; 3] = ["refund", "reserve", "hold"];
/// What a buyer does, and the state of an attempt that ends so; none: nobody can know.
const ANSWERS: [(&str, Option<AttemptOutcome>); 7] = [
    ("accept", Some(AttemptOutcome::Accepted)),
    ("decline", Some(AttemptOutcome::Declined)),
    ("duplicate", Some(AttemptOutcome::Duplicate)),
    ("error:500", Some(AttemptOutcome::Declined)),
    ("garbage", Some(AttemptOutcome::Declined)),
    ("close", None),
    ("hang", None),
];

#[derive(Debug, Clone)]
struct Case {
    id: String,
    policy: &'static str,
    behaviour: &'static str,
    answer: Option<AttemptOutcome>,
    is_late: bool,
    has_next: bool,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in POLICIES {
        for (behaviour, answer) in ANSWERS {
            for is_late in [false, true] {
                // Never is neither.
                if behaviour == "hang" && !is_late {
                    continue;
                }
                for has_next in [false, true] {
                    let id = format!("c{}", cases.len());
                    cases.push(Case { id, policy, behaviour, answer, is_late, has_next });
                }
            }
        }
    }
    cases
}

impl Case {
    /// Where the lead ends, and with whom.
    fn verdict(&self) -> (LeadStatus, Option<String>) {
        let (first, next) = (Some(self.id.clone()), Some(format!("{}-next", self.id)));
        let waits = self.policy == "hold";
        match self.answer {
            Some(AttemptOutcome::Accepted) if !self.is_late || waits || !self.has_next => (LeadStatus::Sold, first),
            None if waits => (LeadStatus::InDoubt, first),
            _ if self.has_next => (LeadStatus::Sold, next),
            _ => (LeadStatus::Unsold, None),
        }
    }

    /// The state of the first buyer's attempt, and whether its unit counts.
    fn attempt(&self) -> (AttemptOutcome, bool) {
        match self.answer {
            Some(AttemptOutcome::Accepted) if self.is_late => (AttemptOutcome::LateAccepted, true),
            Some(AttemptOutcome::Accepted) => (AttemptOutcome::Accepted, true),
            Some(no) => (no, false),
            None => (AttemptOutcome::InDoubt, self.policy == "hold"),
        }
    }

    /// What was known when the time-out came.
    fn in_time(&self) -> AttemptOutcome {
        match self.answer {
            Some(answer) if !self.is_late => answer,
            _ => AttemptOutcome::InDoubt,
        }
    }

    fn is_contested(&self) -> bool {
        self.attempt().0 == AttemptOutcome::LateAccepted && self.has_next && self.policy != "hold"
    }
}

fn routing_of(cases: &[Case], stub: &StubBuyer) -> String {
    let mut text = routing(&[]);
    for Case { id, policy, has_next, .. } in cases {
        let buyer = |text: &mut String, id: &str, path: &str, price: u32| {
            let url = stub.url(path);
            let _ = write!(
                text,
                "[[buyer]]\nid = \"{id}\"\nurl = \"{url}\"\ntimezone = \"UTC\"\ntimeout_ms = {TIMEOUT_MS}\n\
                 on_timeout = \"{policy}\"\ncap = [{{ window = \"total\", leads = 5 }}]\n\
                 answer = {{ accepted = {{ path = \"/status\", in = [\"accepted\"] }}, duplicate = {{ path = \"/status\", in = \
                 [\"duplicate\"] }} }}\n"
            );
            format!("[[campaign.offer]]\nbuyer = \"{id}\"\nprice = \"{price}.00\"\npriority = {}\n", 100 - price)
        };
        let mut offers = buyer(&mut text, id, &format!("/{id}"), 20);
        if *has_next {
            offers += &buyer(&mut text, &format!("{id}-next"), "/next", 10);
        }
        let _ = write!(text, "[[campaign]]\nid = \"{id}\"\ncurrency = \"USD\"\n{offers}");
    }
    text
}

async fn post(gateway: &Gateway, case: &Case) -> capgate::domain::id::LeadId {
    let mut taken = None;
    // A 503 of a busy machine is not confirmed: the same again.
    until("the lead is taken", async || {
        let request = client()
            .post(format!("http://{}/v1/campaigns/{}/leads", gateway.intake, case.id))
            .bearer_auth(KEY)
            .header("content-type", "application/json")
            .header("idempotency-key", case.id.clone());
        let answer = request.body(lead(1)).send().await.expect("an answer");
        assert!(matches!(answer.status().as_u16(), 200 | 503), "{answer:?}");
        if answer.status() == 200 {
            let body: serde_json::Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
            taken = body["lead_id"].as_str().and_then(|id| id.parse().ok());
        }
        taken.is_some()
    })
    .await;
    taken.expect("it was taken")
}

async fn used(gateway: &Gateway, buyer: &str) -> String {
    let caps = get(&client(), gateway.admin, &format!("/v1/caps?buyer={buyer}")).await.json();
    caps["caps"][0]["used"].as_str().unwrap_or("none").to_owned()
}

/// The value of a series of one buyer.
fn series(metrics: &str, name: &str, labels: &[String]) -> u64 {
    let is_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|label| line.contains(label))
    };
    metrics.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

fn check(case: &Case, detail: &LeadDetail, metrics: &str) {
    let (status, buyer) = case.verdict();
    assert_eq!(detail.lead.status, status, "{case:?}");
    if status == LeadStatus::Sold {
        assert_eq!(detail.lead.buyer.as_ref().map(BuyerId::as_str), buyer.as_deref(), "{case:?}");
    }
    let (outcome, is_counted) = case.attempt();
    assert_eq!((detail.attempts[0].outcome, detail.attempts[0].counted), (outcome, is_counted), "{case:?}");
    assert_eq!(detail.attempts.len(), if buyer == Some(format!("{}-next", case.id)) { 2 } else { 1 }, "{case:?}");
    // P6: one sale, booked with its buyer and nobody else.
    let booked: Vec<&str> = detail.entries.iter().map(|entry| entry.account.as_str()).collect();
    let sum: i64 = detail.entries.iter().map(|entry| entry.amount.0).sum();
    assert_eq!(sum, 0, "{case:?}");
    match (status, buyer) {
        (LeadStatus::Sold, Some(buyer)) => {
            assert_eq!(booked.len(), 3, "{case:?}: {booked:?}");
            assert!(booked.contains(&format!("buyer:{buyer}").as_str()), "{case:?}: {booked:?}");
        }
        _ => assert!(booked.is_empty(), "{case:?}: {booked:?}"),
    }
    let of = |name: &str, more: Option<AttemptOutcome>| {
        let outcome = more.map(|outcome| format!("outcome=\"{outcome}\""));
        let labels: Vec<String> = outcome.into_iter().chain([format!("buyer=\"{}\"", case.id)]).collect();
        series(metrics, name, &labels)
    };
    assert_eq!(of("capgate_forward_total", Some(case.in_time())), 1, "{case:?}");
    let is_late_yes = outcome == AttemptOutcome::LateAccepted;
    assert_eq!(of("capgate_late_accepted_total", None), u64::from(is_late_yes), "{case:?}");
    assert_eq!(of("capgate_contested_total", None), u64::from(case.is_contested()), "{case:?}");
    assert_eq!(of("capgate_cap_overshoot_total", None), 0, "{case:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f46_f52_every_answer_under_every_policy() {
    let cases = cases();
    let does = |case: &Case| {
        let delay = if case.is_late { LATE_MS } else { IN_TIME_MS };
        match case.behaviour {
            "hang" => format!("/{}=hang", case.id),
            behaviour => format!("/{}=delay:{delay}:{behaviour}", case.id),
        }
    };
    let paths: Vec<String> = cases.iter().map(does).collect();
    let stub = StubBuyer::on_loopback(behaviours(&paths.iter().map(String::as_str).collect::<Vec<_>>()), 1)
        .await
        .expect("a stub buyer");
    let place = Place::embedded();
    place.write_routing(&routing_of(&cases, &stub));
    let more = format!(
        "[forward]\nallow_private_addresses = true\nlate_answer_ms = {LATE_ANSWER_MS}\nlead_deadline_ms = 60000"
    );
    let gateway = place.start(&more).await;
    let mut leads = Vec::new();
    for case in &cases {
        leads.push((case, post(&gateway, case).await));
    }
    let ledger = place.ledger().await;
    for (case, id) in &leads {
        // The verdict may stand before the late answer is in the books.
        let mut detail = closed(&ledger, *id).await;
        until(&format!("{case:?} has settled"), async || {
            detail = ledger.lead_detail(*id).await.expect("books answer").expect("the lead");
            let (outcome, is_counted) = case.attempt();
            detail.attempts.first().is_some_and(|a| (a.outcome, a.counted) == (outcome, is_counted))
                && used(&gateway, &case.id).await == u8::from(is_counted).to_string()
        })
        .await;
        let metrics = get(&client(), gateway.admin, "/metrics").await;
        check(case, &detail, &String::from_utf8_lossy(&metrics.bytes));
        assert_eq!(stub.stats(&format!("/{}", case.id)).received, 1, "P4: {case:?}");
    }
    gateway.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f53_ten_silent_buyers_do_not_hold_a_lead_longer_than_its_deadline() {
    let stub = StubBuyer::on_loopback(behaviours(&["/silent=hang"]), 1).await.expect("a stub buyer");
    let ids: Vec<String> = (0..10).map(|number| format!("silent{number}")).collect();
    for (bound, most) in [("lead_deadline_ms = 2000", 3), ("lead_deadline_ms = 60000\nattempts_max = 2", 2)] {
        let place = Place::embedded();
        let buyer = |id| BuyerLine { id, url: stub.url("/silent"), more: "timeout_ms = 800", price: "25.00" };
        place.write_routing(&routing(&ids.iter().map(|id| buyer(id)).collect::<Vec<_>>()));
        let more = format!("[forward]\nallow_private_addresses = true\nlate_answer_ms = 500\n{bound}");
        let gateway = place.start(&more).await;
        let answer = crate::support::post(&client(), gateway.intake, "k", &lead(1)).await;
        let ledger = place.ledger().await;
        let detail = closed(&ledger, answer.lead()).await;
        assert_eq!(
            (detail.lead.status, detail.lead.reason.as_deref()),
            (LeadStatus::Unsold, Some("deadline")),
            "{bound}"
        );
        let attempts = detail.attempts.len();
        // A busy machine may start fewer before the deadline, and never more.
        assert!(attempts >= 1 && attempts <= most, "{bound}: {attempts} attempts");
        gateway.app.shut_down().await;
    }
}
