//! A gateway that another one took for dead: what became of its lease and of its lead meanwhile.

use capgate::cli::stub_buyer::StubBuyer;
use capgate::domain::event::Closed;
use capgate::domain::id::{CampaignId, LeadId, PublisherId};
use capgate::domain::money::{Currency, Micros};
use capgate::domain::outcome::{AttemptOutcome, LeadStatus, Sold, UnsoldReason, Verdict};
use capgate::store::{Close, CloseReply};

use crate::caps::metric;
use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, lead, routing, try_post, until};

const LATE_YES: &str = "/late=late:2500";

/// A lead whose only buyer has timed out and says yes later.
async fn waiting(gateway: &Gateway) -> LeadId {
    let mut taken = None;
    until("the lead is taken", async || {
        let answer = try_post(&client(), gateway.intake, "", &lead(1)).await.expect("an answer");
        taken = (answer.status == 200).then(|| answer.lead());
        taken.is_some()
    })
    .await;
    taken.expect("it was taken")
}

/// What another gateway's recovery does with a lead of a gateway that seems dead.
async fn close_elsewhere(gateway: &Gateway, lead: LeadId, verdict: &Verdict, books: bool) {
    let (publisher, campaign) = (PublisherId::new("acme").unwrap(), CampaignId::new("solar").unwrap());
    let event = Closed {
        books,
        closed_at_us: gateway.app.gateway.clock.now().as_microsecond(),
        answer: "told by another gateway".to_owned(),
        explanation: "{}".to_owned(),
        ..Closed::of(verdict, lead, publisher, campaign, None)
    };
    let close = Close { event, claim: None, retention: std::time::Duration::from_hours(1) };
    assert_eq!(gateway.app.gateway.store.close(&close).await, Ok(CloseReply::Closed));
}

async fn one_late_buyer() -> (Place, StubBuyer, Gateway) {
    let place = Place::embedded();
    let stub = StubBuyer::on_loopback(behaviours(&[LATE_YES]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 200\non_timeout = \"refund\"\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5";
    place.write_routing(&routing(&[BuyerLine { id: "late", url: stub.url("/late"), more, price: "25.00" }]));
    let gateway = place.start("").await;
    (place, stub, gateway)
}

/// The publisher was told "unsold", and then the buyer has the lead: that is nobody's sale until an operator says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f46_a_late_yes_to_a_lead_that_another_gateway_closed_is_contested() {
    let (place, stub, gateway) = one_late_buyer().await;
    let lead = waiting(&gateway).await;
    close_elsewhere(&gateway, lead, &Verdict::Unsold(UnsoldReason::Unavailable), false).await;
    assert_eq!(stub.stats("/late").accepted, 0, "its yes was too early for this test");
    until("it is contested", async || metric(&gateway, "capgate_contested_total{buyer=\"late\"}").await >= 1.0).await;
    let ledger = place.ledger().await;
    let detail = ledger.lead_detail(lead).await.expect("books answer").expect("it is there");
    assert_eq!((detail.lead.status, detail.entries.len()), (LeadStatus::Unsold, 0), "not booked until it is resolved");
    assert_eq!((detail.attempts[0].outcome, detail.attempts[0].counted), (AttemptOutcome::LateAccepted, true));
    gateway.app.shut_down().await;
    ledger.shut_down().await;
}

/// Recovery sold the lead by this very yes: nothing is contested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f46_a_late_yes_that_another_gateway_has_booked_is_not_contested() {
    let (place, stub, gateway) = one_late_buyer().await;
    let lead = waiting(&gateway).await;
    let sold = Sold {
        buyer: capgate::domain::id::BuyerId::new("late").unwrap(),
        price: Micros(25_000_000),
        payout: Micros(17_500_000),
        currency: Currency::new("USD").unwrap(),
        redirect_url: None,
    };
    close_elsewhere(&gateway, lead, &Verdict::Sold(sold), true).await;
    assert_eq!(stub.stats("/late").accepted, 0, "its yes was too early for this test");
    until("the yes is here", async || metric(&gateway, "capgate_late_accepted_total{buyer=\"late\"}").await >= 1.0)
        .await;
    // The books are asked before the process ends.
    let inner = gateway.app.gateway.clone();
    gateway.app.shut_down().await;
    assert!(inner.telemetry.render().contains("capgate_contested_total{buyer=\"late\"} 0"));
    drop((place, stub));
}

/// P6: recovery's walk has sold the lead to somebody else while our buyer thought about it, in time. Its yes counts, is told as
/// contested, and is not booked beside the sale that stands.
async fn a_yes_in_time_to_a_lead_that_was_sold_elsewhere(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/slow=delay:2500:accept"]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 20000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5";
    place.write_routing(&routing(&[BuyerLine { id: "slow", url: stub.url("/slow"), more, price: "25.00" }]));
    let gateway = place.start("").await;
    let lead = waiting(&gateway).await;
    let sold = Sold {
        buyer: capgate::domain::id::BuyerId::new("other").unwrap(),
        price: Micros(25_000_000),
        payout: Micros(17_500_000),
        currency: Currency::new("USD").unwrap(),
        redirect_url: None,
    };
    close_elsewhere(&gateway, lead, &Verdict::Sold(sold), true).await;
    assert_eq!(stub.stats("/slow").accepted, 0, "its yes was too early for this test");
    until("it is contested", async || metric(&gateway, "capgate_contested_total{buyer=\"slow\"}").await >= 1.0).await;
    let ledger = place.ledger().await;
    let detail = ledger.lead_detail(lead).await.expect("books answer").expect("it is there");
    assert_eq!((detail.attempts[0].outcome, detail.attempts[0].counted), (AttemptOutcome::LateAccepted, true));
    assert_eq!(detail.entries.len(), 3, "P6: {:?}", detail.entries);
    assert!(detail.entries.iter().any(|entry| entry.account == "buyer:other"), "{:?}", detail.entries);
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_a_yes_in_time_to_a_lead_that_was_sold_elsewhere_books_nothing_embedded() {
    a_yes_in_time_to_a_lead_that_was_sold_elsewhere(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
mod on_servers {
    use capgate::domain::id::Partition;
    use capgate::lease::abandoned;
    use capgate::store::EndReply;

    use super::*;
    use crate::replies::Proxy;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p6_a_yes_in_time_to_a_lead_that_was_sold_elsewhere_books_nothing_on_redis() {
        a_yes_in_time_to_a_lead_that_was_sold_elsewhere(Place::servers().await).await;
    }

    /// P6: recovery took the gateway for dead and made a doubt of its lease; then the yes came in time, its commit ended the
    /// doubt, and no reply came back. Asked again the store says "committed already", which does not tell who books: the verdict
    /// does.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p6_a_commit_that_met_a_doubt_and_lost_its_reply_is_booked_by_the_verdict() {
        let mut place = Place::servers().await;
        let other = Place { dir: tempfile::tempdir().expect("a temporary folder"), backing: place.backing.clone() };
        let proxy = Proxy::start(&place.backing.store_url).await;
        place.backing.store_url = proxy.url();
        let stub = StubBuyer::on_loopback(behaviours(&["/yes=delay:4000:accept"]), 1).await.expect("a stub buyer");
        let more = "timeout_ms = 20000\n[[buyer.cap]]\nwindow = \"day\"\nleads = 5";
        for one in [&place, &other] {
            one.write_routing(&routing(&[BuyerLine { id: "yes", url: stub.url("/yes"), more, price: "25.00" }]));
        }
        let (owner, rescuer) = (place.start("").await, other.start("").await);
        let ledger = other.ledger().await;
        let lead = waiting(&owner).await;
        until("the buyer is asked", async || stub.stats("/yes").received == 1).await;
        let store = &rescuer.app.gateway.store;
        let lease = store.open_leases(Partition::of("yes", store.partitions()), 10).await.unwrap().remove(0);
        assert_eq!(store.doubt(&abandoned(&lease, true, store.now())).await, Ok(EndReply::Done));
        proxy.cut_replies(usize::MAX);
        assert_eq!(stub.stats("/yes").accepted, 0, "its yes was too early for this test");
        until("the commit has ended the doubt", async || {
            let detail = ledger.lead_detail(lead).await.expect("books answer");
            detail.is_some_and(|detail| detail.attempts.iter().any(|a| a.outcome == AttemptOutcome::LateAccepted))
        })
        .await;
        proxy.cut_replies(0);
        let mut found = None;
        until("the lead is closed", async || {
            found = ledger.lead_detail(lead).await.expect("books answer");
            found.as_ref().is_some_and(|detail| detail.lead.status == LeadStatus::Sold)
        })
        .await;
        let detail = found.expect("it was found");
        // The owner never learned that its yes was late: it was answered "already", and its verdict booked the sale.
        assert_eq!(metric(&owner, "capgate_late_accepted_total{buyer=\"yes\"}").await.to_string(), "0");
        assert_eq!(detail.entries.len(), 3, "P6: {:?}", detail.entries);
        for gateway in [owner, rescuer] {
            gateway.app.shut_down().await;
        }
        ledger.shut_down().await;
        place.backing.clean().await;
    }
}
