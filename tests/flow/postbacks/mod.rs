//! Publishers are told verdicts: signed, in order, at least once under one id, whatever dies in between.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::{Clock, SystemClock};
use capgate::domain::id::LeadId;
use capgate::ledger::postbacks::PostbackRow;
use capgate::ledger::{PostbackState, SharedLedger};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::headline::behaviours;
use crate::support::{BuyerLine, Gateway, Place, client, get, lead, post, routing, until};
use receiver::{Answer, Receiver, SECRET, status};

mod documents;
mod receiver;
mod restarts;

/// The machine's clock, moved forward by hand.
#[derive(Debug, Default)]
struct MovedClock(Mutex<SignedDuration>);

impl MovedClock {
    fn advance(&self, by: SignedDuration) {
        *self.0.lock() += by;
    }
}

impl Clock for MovedClock {
    fn now(&self) -> Timestamp {
        SystemClock.now() + *self.0.lock()
    }
}

/// A routing whose publisher `acme` is told at `url`.
fn told_at(url: &str, buyers: &[BuyerLine<'_>]) -> String {
    let postback = format!("postback = {{ url = \"{url}\", signing_secret = \"{SECRET}\" }}");
    let text = routing(buyers);
    assert!(text.contains("payout = { percent = \"70\" }\n"));
    text.replace("payout = { percent = \"70\" }\n", &format!("payout = {{ percent = \"70\" }}\n{postback}\n"))
}

struct Rig {
    place: Place,
    receiver: Receiver,
    clock: Arc<MovedClock>,
    gateway: Gateway,
    ledger: SharedLedger,
    _stub: StubBuyer,
}

impl Rig {
    /// Buyer `good` takes everything up to three a day.
    async fn new(place: Place, path: &str) -> Self {
        let receiver = Receiver::start().await;
        let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
        let cap = "[[buyer.cap]]\nwindow = \"day\"\nleads = 3";
        let buyers = [BuyerLine { id: "good", url: stub.url("/good"), more: cap, price: "10.00" }];
        place.write_routing(&told_at(&receiver.url(path), &buyers));
        let clock = Arc::new(MovedClock::default());
        let gateway = place.start_by(clock.clone(), "").await;
        let ledger = place.ledger().await;
        Self { place, receiver, clock, gateway, ledger, _stub: stub }
    }

    async fn posted(&self, number: u32) -> LeadId {
        let answer = post(&client(), self.gateway.intake, &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.lead()
    }

    async fn rows(&self, state: PostbackState) -> Vec<PostbackRow> {
        self.ledger.postbacks(state, None, 0, 1000).await.expect("books answer")
    }

    async fn until_rows(&self, state: PostbackState, count: usize) -> Vec<PostbackRow> {
        until(&format!("{count} postbacks are {}", state.as_str()), async || self.rows(state).await.len() >= count)
            .await;
        self.rows(state).await
    }

    /// Waits for a row that has been tried so often and waits for its next try.
    async fn until_tried(&self, tries: u32) -> PostbackRow {
        let mut rows = Vec::new();
        until(&format!("{tries} tries"), async || {
            rows = self.rows(PostbackState::Waiting).await;
            rows.first().is_some_and(|row| row.tries >= tries)
        })
        .await;
        rows.remove(0)
    }

    async fn metric(&self, name: &str) -> String {
        let page = get(&client(), self.gateway.admin, "/metrics").await;
        let page = String::from_utf8(page.bytes).expect("text");
        page.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).unwrap_or("absent").to_owned()
    }

    async fn end(self) {
        self.gateway.app.shut_down().await;
        self.ledger.shut_down().await;
        self.place.backing.clean().await;
    }
}

fn delivered(result: &str) -> String {
    format!("capgate_postbacks_total{{publisher=\"acme\",result=\"{result}\"}}")
}

async fn told_once(place: Place) {
    let rig = Rig::new(place, "/told?by=capgate").await;
    let began = SystemClock.now().as_second();
    let mut answers = HashSet::new();
    for number in 0..5 {
        answers.insert(rig.posted(number).await.to_string());
    }
    let test = lead(9).replace('{', "{\"test\":true,");
    assert_eq!(post(&client(), rig.gateway.intake, "", &test).await.status, 200);
    rig.until_rows(PostbackState::Delivered, 5).await;
    assert_eq!(rig.rows(PostbackState::Waiting).await, [], "a test lead tells nobody");
    let as_documented = documents::body();
    let posts = rig.receiver.posts("/told?by=capgate");
    assert_eq!(posts.len(), 5, "each once: {posts:?}");
    for post in &posts {
        assert!(post.is_signed(), "{post:?}");
        assert_eq!(post.headers["content-type"], "application/json");
        assert!((began - 1..=SystemClock.now().as_second() + 1).contains(&post.unix_s()), "{post:?}");
        let id = post.text("lead_id");
        assert!(answers.remove(&id), "{id} was told twice, or never sent");
        assert_eq!(post.id(), format!("{id}_{}", post.text("status")));
        let stands = get(&client(), rig.gateway.intake, &format!("/v1/leads/{id}")).await;
        let mut expected = stands.json();
        expected["event"] = "lead.closed".into();
        assert_eq!(post.json(), expected, "the final answer, and the event");
        assert!(as_documented.is_valid(&expected), "{expected}");
    }
    let sold = posts.iter().filter(|post| post.text("status") == "sold").count();
    assert_eq!(sold, 3, "sold and unsold are told alike");
    // Counted just after it is written down.
    until("five are counted", async || rig.metric(&delivered("delivered")).await == "5").await;
    assert_eq!(rig.metric(&delivered("failed")).await, "0");
    let settled = "capgate_settle_rows_total{table=\"postbacks\"}";
    until("five rows are counted", async || rig.metric(settled).await == "5").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_is_told_every_verdict_once_embedded() {
    told_once(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_is_told_every_verdict_once_on_servers() {
    told_once(Place::servers().await).await;
}

/// A doubt is told, and then how it was resolved; the first one fails for a while and still comes first.
async fn told_in_order(place: Place) {
    let receiver = Receiver::start().await;
    receiver.set("/p", status(500));
    let stub = StubBuyer::on_loopback(behaviours(&["/hold=hang"]), 1).await.expect("a stub buyer");
    let more = "timeout_ms = 200\non_timeout = \"hold\"";
    let buyers = [BuyerLine { id: "hold", url: stub.url("/hold"), more, price: "10.00" }];
    place.write_routing(&told_at(&receiver.url("/p"), &buyers));
    let gateway = place.start("[forward]\nallow_private_addresses = true\nlate_answer_ms = 300").await;
    let ledger = place.ledger().await;
    let answer = post(&client(), gateway.intake, "k", &lead(1)).await;
    let id = answer.lead();
    until("the doubt was told in vain", async || !receiver.posts("/p").is_empty()).await;
    let resolved = client()
        .post(format!("http://{}/v1/leads/{id}/resolve", gateway.admin))
        .body(r#"{"buyer":"hold","outcome":"accepted"}"#)
        .send()
        .await
        .expect("an answer");
    assert_eq!(resolved.status().as_u16(), 200);
    until("the sale waits behind the doubt", async || {
        let waiting = ledger.postbacks(PostbackState::Waiting, None, 0, 10).await.expect("books answer");
        waiting.len() == 2 && waiting[0].tries > 0 && waiting[1].tries == 0
    })
    .await;
    receiver.set("/p", status(200));
    until("both are told", async || {
        ledger.postbacks(PostbackState::Delivered, None, 0, 10).await.expect("books answer").len() == 2
    })
    .await;
    let posts = receiver.posts("/p");
    let mut verdicts: Vec<_> = posts.iter().map(|post| post.text("status")).collect();
    verdicts.dedup();
    assert_eq!(verdicts, ["in_doubt", "sold"], "in order, the second once the first has arrived");
    let last = posts.last().expect("posts");
    assert_eq!((last.text("price"), last.text("currency")), ("7.00".to_owned(), "USD".to_owned()));
    assert_eq!(posts.iter().map(|post| post.id().to_owned()).collect::<HashSet<_>>().len(), 2);
    assert!(posts.iter().all(receiver::Post::is_signed));
    gateway.app.shut_down().await;
    ledger.shut_down().await;
    place.backing.clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leads_verdicts_are_told_in_order_embedded() {
    told_in_order(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leads_verdicts_are_told_in_order_on_servers() {
    told_in_order(Place::servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postback_is_dead_after_a_day_listed_and_replayed() {
    let rig = Rig::new(Place::embedded(), "/p").await;
    rig.receiver.set("/p", status(503));
    rig.posted(1).await;
    let mut tries = 0;
    loop {
        until("the next try has ended", async || {
            let dead = !rig.rows(PostbackState::Dead).await.is_empty();
            dead || rig.rows(PostbackState::Waiting).await.first().is_some_and(|row| row.tries > tries)
        })
        .await;
        match rig.rows(PostbackState::Waiting).await.first() {
            Some(row) => tries = row.tries,
            None => break,
        }
        rig.clock.advance(SignedDuration::from_hours(4));
    }
    let posts = rig.receiver.posts("/p");
    let lasted_s = posts.last().expect("posts").unix_s() - posts[0].unix_s();
    assert!((24 * 3600..25 * 3600).contains(&lasted_s), "tried for {lasted_s} s");
    assert!(posts.iter().all(|post| post.is_signed() && post.id() == posts[0].id()), "one id: {posts:?}");
    assert_ne!(
        posts[0].headers["webhook-signature"], posts[1].headers["webhook-signature"],
        "each try has its own time"
    );
    until("it is counted", async || rig.metric(&delivered("dead")).await == "1").await;

    let run = |arguments: &[&str]| {
        let config = rig.place.dir.path().join("capgate.toml");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_capgate"))
            .arg("postbacks")
            .args(arguments)
            .arg("--config")
            .arg(config)
            .output()
            .expect("capgate runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let listed = run(&["list"]);
    assert!(listed.contains(&posts[0].text("lead_id")) && listed.contains("503"), "{listed}");
    let listed: serde_json::Value =
        serde_json::from_str(&run(&["list", "--json", "--publisher", "acme"])).expect("JSON");
    assert_eq!(listed["webhook_id"], posts[0].id());
    assert_eq!(run(&["list", "--publisher", "summit"]), "");
    rig.receiver.set("/p", status(200));
    // A machine's clock is behind the moved one: what is due by it is due by both.
    assert!(run(&["replay"]).contains("due now"));
    rig.until_rows(PostbackState::Delivered, 1).await;
    assert_eq!(rig.receiver.posts("/p").last().expect("posts").id(), posts[0].id(), "the same id");
    assert_eq!(run(&["list"]), "");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_postbacks_mean_what_they_say() {
    let rig = Rig::new(Place::embedded(), "/p").await;
    rig.receiver.set("/p", status(410));
    rig.posted(1).await;
    let gone = rig.until_rows(PostbackState::Gone, 1).await;
    assert_eq!((gone[0].tries, gone[0].http_status), (1, Some(410)), "ended at once");

    rig.receiver.set("/p", Answer::Status(302, "location: /elsewhere\r\n", Duration::ZERO));
    rig.posted(2).await;
    let moved = rig.until_tried(1).await;
    assert_eq!(moved.http_status, Some(302));
    assert_eq!(rig.receiver.posts("/elsewhere").len(), 0, "redirects are not followed");

    rig.receiver.set("/p", Answer::Status(429, "retry-after: 900\r\n", Duration::ZERO));
    rig.clock.advance(SignedDuration::from_secs(6));
    let asked_at = rig.clock.now();
    let rests = rig.until_tried(2).await;
    let pause = rests.next_at.expect("it waits").duration_since(asked_at);
    assert!(pause >= SignedDuration::from_secs(900), "{pause}");
    let before = rig.receiver.posts("/p").len();
    // The publisher rests as a whole.
    rig.receiver.set("/p", status(204));
    rig.posted(3).await;
    rig.until_rows(PostbackState::Waiting, 2).await;
    rig.clock.advance(SignedDuration::from_secs(600));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(rig.receiver.posts("/p").len(), before, "nothing is posted while it rests");
    rig.clock.advance(SignedDuration::from_mins(20));
    rig.until_rows(PostbackState::Delivered, 2).await;
    assert_eq!(rig.receiver.posts("/p").len(), before + 2);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f51_postbacks_to_private_addresses_are_refused() {
    let place = Place::embedded();
    let receiver = Receiver::start().await;
    place.write_routing(&told_at(&receiver.url("/p"), &[]));
    let gateway = place.start("[forward]\nallow_private_addresses = false").await;
    let ledger = place.ledger().await;
    assert_eq!(post(&client(), gateway.intake, "k", &lead(1)).await.text("reason"), "no_buyer");
    let mut rows = Vec::new();
    until("it was tried", async || {
        rows = ledger.postbacks(PostbackState::Waiting, None, 0, 10).await.expect("books answer");
        rows.first().is_some_and(|row| row.tries > 0)
    })
    .await;
    assert_eq!((rows[0].http_status, rows[0].error.as_deref()), (None, Some("address_refused")));
    assert_eq!(receiver.posts("/p").len(), 0);
    gateway.app.shut_down().await;
    ledger.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_a_dead_receiver_delays_no_other_publisher() {
    let place = Place::embedded();
    let receiver = Receiver::start().await;
    receiver.set("/dead", Answer::Hang);
    let text = told_at(&receiver.url("/dead"), &[]);
    let key = "another-key";
    let hash: String = {
        use sha2::Digest as _;
        use std::fmt::Write as _;
        sha2::Sha256::digest(key).iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let other = format!(
        "[[publisher]]\nid = \"other\"\nkeys_sha256 = [\"{hash}\"]\npayout = {{ flat = \"1\" }}\npostback = {{ url = \
         \"{}\", signing_secret = \"{SECRET}\" }}\n",
        receiver.url("/fine")
    );
    place.write_routing(&format!("{other}\n{text}"));
    let gateway = place.start("").await;
    let ledger = place.ledger().await;
    for number in 0..60 {
        assert_eq!(post(&client(), gateway.intake, "", &lead(number)).await.status, 200);
    }
    until("the dead one has all it may have", async || receiver.posts("/dead").len() >= 16).await;
    for number in 0..10 {
        let answer = client()
            .post(format!("http://{}/v1/campaigns/solar/leads", gateway.intake))
            .bearer_auth(key)
            .header("content-type", "application/json")
            .body(lead(number))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    }
    until("the other one is told everything", async || receiver.posts("/fine").len() == 10).await;
    assert_eq!(receiver.waiting_most("/dead"), 16, "and no more at once");
    let rows = ledger.postbacks(PostbackState::Delivered, None, 0, 100).await.expect("books answer");
    assert!(rows.iter().all(|row| row.publisher.as_str() == "other"), "{rows:?}");
    gateway.app.shut_down().await;
    ledger.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f87_a_reload_moves_keeps_and_drops_postbacks() {
    let rig = Rig::new(Place::embedded(), "/old").await;
    let reload = async || {
        let url = format!("http://{}/v1/reload", rig.gateway.admin);
        let answer = client().post(url).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), 200);
    };
    rig.receiver.set("/old", status(500));
    rig.posted(1).await;
    rig.until_tried(1).await;
    rig.place.write_routing(&routing(&[]));
    reload().await;
    let before = rig.receiver.posts("/old").len();
    rig.clock.advance(SignedDuration::from_hours(2));
    rig.posted(2).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(rig.receiver.posts("/old").len(), before, "nothing is posted where no postback is");
    assert_eq!(rig.rows(PostbackState::Waiting).await.len(), 1, "what waits is kept, and nothing new is made");

    rig.place.write_routing(&told_at(&rig.receiver.url("/new"), &[]));
    reload().await;
    rig.until_rows(PostbackState::Delivered, 1).await;
    let posts = rig.receiver.posts("/new");
    assert_eq!((posts.len(), posts[0].id()), (1, rig.receiver.posts("/old")[0].id()), "at its new address");

    rig.receiver.set("/new", status(500));
    rig.posted(3).await;
    rig.until_tried(1).await;
    rig.place.write_routing(&routing(&[]));
    reload().await;
    rig.clock.advance(SignedDuration::from_hours(25));
    rig.until_rows(PostbackState::Dropped, 1).await;
    let counted = "capgate_postbacks_total{publisher=\"other\",result=\"dropped\"}";
    until("it is counted", async || rig.metric(counted).await == "1").await;
    rig.end().await;
}
