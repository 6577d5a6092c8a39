//! What whole-gateway tests share: a place for files, servers' databases and prefixes of their own, a scriptable buyer,
//! gateways in this process or as child processes, and a client.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use capgate::app::{App, open_ledger};
use capgate::clock::{Clock, SharedClock, SystemClock};
use capgate::config::{self, RoutingFile};
use capgate::domain::id::LeadId;
use capgate::domain::outcome::LeadStatus;
use capgate::ledger::{LeadDetail, SharedLedger, Totals};
use serde_json::Value;

mod outage;
pub mod tls;

#[cfg(feature = "server-tests")]
pub use outage::Proxy;

/// SHA-256 of `test-key-acme`, the key of publisher `acme` in test routings.
pub const KEY: &str = "test-key-acme";

/// Where state lives.
#[derive(Clone, Debug)]
pub struct Backing {
    pub store_url: String,
    pub ledger_url: String,
    pub prefix: String,
    /// More keys of `[store]`.
    pub store_more: &'static str,
    database: Option<(String, String)>,
}

impl Backing {
    /// Nothing installed: a journal file and a SQLite file.
    pub fn embedded(dir: &Path) -> Self {
        Self {
            store_url: format!("embedded:{}", dir.join("journal.db").display()),
            ledger_url: format!("sqlite:{}", dir.join("ledger.db").display()),
            prefix: "cg1".into(),
            store_more: "",
            database: None,
        }
    }

    /// Redis under a prefix of its own, MySQL in a database of its own.
    #[cfg(feature = "server-tests")]
    pub async fn servers() -> Self {
        Self::on_redis(required("CAPGATE_TEST_REDIS_URL")).await
    }

    /// The same on the Redis Cluster for tests.
    #[cfg(feature = "server-tests")]
    pub async fn cluster() -> Self {
        let on_redis = Self::on_redis(required("CAPGATE_TEST_REDIS_CLUSTER_URL")).await;
        // A walk asks a cluster in more steps than one server: what is tested is not how fast a busy machine is.
        Self { store_more: "command_timeout_ms = 1000", ..on_redis }
    }

    /// The same on a Redis, or cluster, of a test's own.
    #[cfg(feature = "server-tests")]
    pub async fn on_redis(redis: String) -> Self {
        let mysql = required("CAPGATE_TEST_MYSQL_URL");
        let name = format!("capgate_flow_{}", uuid::Uuid::now_v7().simple());
        let server = mysql.trim_end_matches('/').to_owned();
        execute(&server, &format!("CREATE DATABASE {name}")).await;
        Self {
            store_url: redis,
            ledger_url: format!("{server}/{name}"),
            // Redis keys keep short names: at most 32 characters.
            prefix: name.chars().rev().take(24).collect(),
            store_more: "",
            database: Some((server, name)),
        }
    }

    /// Drops what `servers` made.
    pub async fn clean(&self) {
        if let Some((server, name)) = &self.database {
            execute(server, &format!("DROP DATABASE IF EXISTS {name}")).await;
        }
    }
}

#[cfg(feature = "server-tests")]
fn required(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: scripts/test starts the servers and sets it"))
}

async fn execute(server: &str, statement: &str) {
    use sqlx::Connection;
    let mut connection = sqlx::MySqlConnection::connect(&format!("{server}/")).await.expect("the MySQL server answers");
    sqlx::query(statement).execute(&mut connection).await.expect("statement runs");
    connection.close().await.expect("connection closes");
}

/// A folder, its two files, and the buyers' routing.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub backing: Backing,
}

impl Place {
    pub fn embedded() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let backing = Backing::embedded(dir.path());
        Self { dir, backing }
    }

    #[cfg(feature = "server-tests")]
    pub async fn servers() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder"), backing: Backing::servers().await }
    }

    #[cfg(feature = "server-tests")]
    pub async fn cluster() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder"), backing: Backing::cluster().await }
    }

    #[cfg(feature = "server-tests")]
    pub async fn on_redis(url: String) -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary folder"), backing: Backing::on_redis(url).await }
    }

    pub fn routing_path(&self) -> PathBuf {
        self.dir.path().join("routing.toml")
    }

    /// Writes the routing file whole.
    pub fn write_routing(&self, text: &str) {
        let fresh = self.dir.path().join("routing.new");
        std::fs::write(&fresh, text).expect("routing is written");
        std::fs::rename(fresh, self.routing_path()).expect("routing is moved");
    }

    /// Writes `capgate.toml` with ports of its own; `more` is appended.
    pub fn write_config(&self, name: &str, intake: SocketAddr, admin: SocketAddr, more: &str) -> PathBuf {
        let Backing { store_url, ledger_url, prefix, store_more, .. } = &self.backing;
        let text = format!(
            "[intake]\nlisten = \"{intake}\"\n[admin]\nlisten = \"{admin}\"\n[store]\nurl = \"{store_url}\"\nprefix = \
             \"{prefix}\"\n{store_more}\n[ledger]\nurl = \"{ledger_url}\"\n[routing]\nfile = \"routing.toml\"\n{more}\n"
        );
        let text = if more.contains("[forward]") {
            text
        } else {
            format!("{text}[forward]\nallow_private_addresses = true\n")
        };
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("configuration is written");
        path
    }

    /// A gateway in this process.
    pub async fn start(&self, more: &str) -> Gateway {
        self.start_by(Arc::new(SystemClock), more).await
    }

    /// The same by a clock of its own.
    pub async fn start_by(&self, clock: SharedClock, more: &str) -> Gateway {
        if std::env::var_os(capgate::telemetry::log::FILTER_VARIABLE).is_some() {
            // Asked for by whoever looks for the cause of a failure; another test has done it already.
            let _ = capgate::telemetry::log::init_logging(false);
        }
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let path = self.write_config("capgate.toml", any, any, more);
        let config = config::load(Some(&path), &|_: &str| None).unwrap_or_else(|problems| panic!("{problems}"));
        let (file, routing, _) =
            RoutingFile::open(&config, &|_: &str| None).unwrap_or_else(|problems| panic!("{problems}"));
        let app = App::start(config, routing, file, clock).await.expect("gateway starts");
        Gateway { intake: app.intake_addr, admin: app.admin_addr, app }
    }

    /// A gateway as a process of its own.
    pub fn spawn(&self, name: &str, more: &str) -> Process {
        self.spawn_with(name, more, &[])
    }

    /// The same with environment variables.
    pub fn spawn_with(&self, name: &str, more: &str, variables: &[(&'static str, &'static str)]) -> Process {
        let mut process = self.process(name, more);
        process.variables = variables.to_vec();
        process.start();
        process
    }

    /// A gateway whose files cannot grow beyond so many bytes, as if its disk were full.
    pub fn spawn_on_a_small_disk(&self, name: &str, more: &str, file_bytes_max: u64) -> Process {
        let mut process = self.process(name, more);
        process.file_bytes_max = Some(file_bytes_max);
        process.start();
        process
    }

    fn process(&self, name: &str, more: &str) -> Process {
        let (intake, admin) = (free_port(), free_port());
        let config = self.write_config(name, intake, admin, more);
        let log = self.dir.path().join(format!("{name}.log"));
        Process { config, intake, admin, variables: Vec::new(), child: None, log, file_bytes_max: None }
    }

    /// The books, opened beside the gateways.
    pub async fn ledger(&self) -> SharedLedger {
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let path = self.write_config("reader.toml", any, any, "");
        let config = config::load(Some(&path), &|_: &str| None).unwrap_or_else(|problems| panic!("{problems}"));
        open_ledger(&config).await.expect("ledger opens")
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// A machine's clock that is off by so much.
#[derive(Debug)]
pub struct OffClock(pub jiff::SignedDuration);

impl Clock for OffClock {
    fn now(&self) -> jiff::Timestamp {
        SystemClock.now() + self.0
    }
}

/// A gateway in this process.
pub struct Gateway {
    pub intake: SocketAddr,
    pub admin: SocketAddr,
    pub app: App,
}

/// A gateway as a process of its own.
pub struct Process {
    pub config: PathBuf,
    pub intake: SocketAddr,
    pub admin: SocketAddr,
    variables: Vec<(&'static str, &'static str)>,
    child: Option<Child>,
    log: PathBuf,
    file_bytes_max: Option<u64>,
}

impl Process {
    pub fn start(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file");
        let program = env!("CARGO_BIN_EXE_capgate");
        let mut command = Command::new(if self.file_bytes_max.is_some() { "sh" } else { program });
        if let Some(bytes) = self.file_bytes_max {
            // Not told by a signal but by the write that fails, as a full disk does it.
            command.args(["-c", &format!("trap '' XFSZ; exec prlimit --fsize={bytes}: {program} \"$@\""), "capgate"]);
        }
        let child = command
            .args(["serve", "--config"])
            .arg(&self.config)
            .envs(self.variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("capgate starts");
        self.child = Some(child);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Runs a command of the shell on its pid: a small machine has no program that is called `kill`.
    pub fn sh(&self, command: &str) {
        let status = Command::new("sh").args(["-c", &format!("{command} {}", self.pid())]).status().expect("sh runs");
        assert!(status.success(), "{command}");
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it was running");
            child.wait().expect("it ended");
        }
    }

    /// SIGTERM; answers how long it took to end and whether it ended well.
    pub fn terminate(&mut self) -> (Duration, bool) {
        let started = Instant::now();
        self.sh("kill -TERM");
        let mut child = self.child.take().expect("it was running");
        let status = child.wait().expect("it ended");
        (started.elapsed(), status.success())
    }

    pub async fn until_ready(&self) {
        let url = format!("http://{}/readyz", self.admin);
        let client = client();
        until(
            "the gateway is ready",
            async || matches!(client.get(&url).send().await, Ok(answer) if answer.status() == 200),
        )
        .await;
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How long anything may take. What a test waits for must come, not come soon: a busy machine is no failure.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// How long an answer may take that waits for nothing: a busy machine's time. What hangs takes longer.
pub const PROMPT: Duration = Duration::from_secs(5);

/// Polls until it holds, or panics.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn client() -> reqwest::Client {
    capgate::forward::plain_client(Duration::from_secs(20)).expect("a client")
}

/// An answer of the gateway.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
    pub took: Duration,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or(Value::Null)
    }

    pub fn text(&self, name: &str) -> String {
        self.json()[name].as_str().unwrap_or_default().to_owned()
    }

    pub fn lead(&self) -> LeadId {
        self.text("lead_id").parse().unwrap_or_else(|_| panic!("no lead id in {self:?}"))
    }
}

/// Posts one lead of publisher `acme`; `None` when no answer came.
pub async fn try_post(client: &reqwest::Client, intake: SocketAddr, key: &str, body: &str) -> Option<Answer> {
    let started = Instant::now();
    let mut request = client
        .post(format!("http://{intake}/v1/campaigns/solar/leads"))
        .bearer_auth(KEY)
        .header("content-type", "application/json")
        .body(body.to_owned());
    if !key.is_empty() {
        request = request.header("idempotency-key", key);
    }
    let answer = request.send().await.ok()?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let bytes = answer.bytes().await.ok()?.to_vec();
    Some(Answer { status, headers, bytes, took: started.elapsed() })
}

pub async fn post(client: &reqwest::Client, intake: SocketAddr, key: &str, body: &str) -> Answer {
    try_post(client, intake, key, body).await.expect("an answer")
}

/// Posts as a publisher does: a 503 is not confirmed, so the same lead is sent again with the same key.
pub async fn post_until_taken(client: &reqwest::Client, intake: SocketAddr, key: &str, body: &str) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = post(client, intake, key, body).await;
        if answer.status != 503 || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn get(client: &reqwest::Client, addr: SocketAddr, path: &str) -> Answer {
    let started = Instant::now();
    let answer = client.get(format!("http://{addr}{path}")).bearer_auth(KEY).send().await.expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let bytes = answer.bytes().await.expect("a body").to_vec();
    Answer { status, headers, bytes, took: started.elapsed() }
}

/// A lead that every buyer of a test routing takes.
pub fn lead(number: u32) -> String {
    format!(
        r#"{{"first_name":"Test","phone":"201555{number:04}","email":"t{number}@example.com","state":"NJ","zip":"07030"}}"#
    )
}

struct HexOf<'a>(&'a [u8]);

impl std::fmt::LowerHex for HexOf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SHA-256 of a key, as routing files have it.
pub fn key_hash(key: &str) -> String {
    use sha2::Digest;
    format!("{:x}", HexOf(&sha2::Sha256::digest(key)))
}

/// Who buys in a test routing.
pub struct BuyerLine<'a> {
    pub id: &'a str,
    pub url: String,
    /// More keys of the buyer, and its caps.
    pub more: &'a str,
    pub price: &'a str,
}

/// A routing with publisher `acme`, campaign `solar` and these buyers in order of priority.
pub fn routing(buyers: &[BuyerLine<'_>]) -> String {
    let mut text = format!(
        "[[publisher]]\nid = \"acme\"\nkeys_sha256 = [\"{}\"]\npayout = {{ percent = \"70\" }}\n\n",
        key_hash(KEY)
    );
    for buyer in buyers {
        let _ = write!(
            text,
            "[[buyer]]\nid = \"{}\"\nurl = \"{}\"\ntimezone = \"America/New_York\"\n{}\n\n",
            buyer.id, buyer.url, buyer.more
        );
    }
    text += "[[campaign]]\nid = \"solar\"\ncurrency = \"USD\"\nrequired = [\"phone\"]\n";
    for (index, buyer) in buyers.iter().enumerate() {
        let _ = write!(
            text,
            "[[campaign.offer]]\nbuyer = \"{}\"\nprice = \"{}\"\npriority = {}\n",
            buyer.id,
            buyer.price,
            index + 1
        );
    }
    text
}

/// Waits until the books have a verdict for the lead.
pub async fn closed(ledger: &SharedLedger, lead: LeadId) -> LeadDetail {
    let mut found = None;
    until(&format!("lead {lead} is closed in the books"), async || {
        found = ledger.lead_detail(lead).await.ok().flatten().filter(is_whole);
        found.is_some()
    })
    .await;
    found.expect("it was found")
}

/// A verdict and its attempts come from partitions that are settled apart: is everything there that the verdict speaks of?
fn is_whole(detail: &LeadDetail) -> bool {
    let explanation = detail.lead.explanation.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let candidates = explanation.iter().filter_map(|it| it["candidates"].as_array()).flatten();
    let is_attempt = |check: &Value| ["accepted", "declined", "unsent", "in_doubt"].iter().any(|word| check == word);
    let attempts = candidates.filter(|candidate| is_attempt(&candidate["check"])).count();
    match detail.lead.status {
        LeadStatus::Pending => false,
        // It tells of attempts that were not made.
        _ if detail.lead.is_test => true,
        LeadStatus::Sold => detail.attempts.len() >= attempts.max(1) && !detail.entries.is_empty(),
        LeadStatus::Unsold | LeadStatus::InDoubt => detail.attempts.len() >= attempts,
    }
}

/// How many attempts of a buyer have this outcome.
pub fn attempts(totals: &Totals, buyer: &str, outcome: &str) -> u64 {
    totals.attempts.iter().filter(|(b, o, _)| b == buyer && o == outcome).map(|(_, _, count)| *count).sum()
}

/// How many leads have this status.
pub fn leads(totals: &Totals, status: &str) -> u64 {
    totals.leads.iter().filter(|(s, _)| s == status).map(|(_, count)| *count).sum()
}
