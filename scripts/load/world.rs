//! What is measured: processes of the floor, the stub buyer, the gateway and the load generator, each of them alone in its
//! processor time.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::Failure;
use crate::drive::Outcome;
use crate::machine;

pub const KEY: &str = "bench-key";
const START_PATIENCE: Duration = Duration::from_mins(1);
const DRAIN_PATIENCE: Duration = Duration::from_mins(5);

/// A process that ends with its value.
pub struct Process {
    child: Child,
    pub pid: u32,
}

impl Process {
    fn spawn(command: &mut Command) -> Result<Self, Failure> {
        let child = command.kill_on_drop(true).stdin(Stdio::null()).spawn()?;
        let pid = child.id().ok_or("a process ended at once")?;
        Ok(Self { child, pid })
    }

    /// Ends it and waits until it is gone.
    pub async fn end(mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        Ok(())
    }
}

/// An address that nobody listens on.
fn free_address() -> Result<String, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

async fn answers(address: &str, path: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        match machine::get(address, path).await {
            Ok(text) if path != "/readyz" || text.contains(r#""ready":true"#) => return Ok(()),
            _ if Instant::now() >= deadline => return Err(format!("{address}{path} is not ready").into()),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// This program in another role.
fn role(name: &str) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).stdout(Stdio::null());
    Ok(command)
}

/// Starts the stub buyer.
pub async fn buyer(delay_ms: u64, is_rough: bool) -> Result<(Process, String), Failure> {
    let address = free_address()?;
    let mut command = role("buyer")?;
    command.args(["--listen", &address, "--delay-ms", &delay_ms.to_string()]);
    if is_rough {
        command.arg("--rough");
    }
    let process = Process::spawn(&mut command)?;
    answers(&address, "/_stats").await?;
    Ok((process, address))
}

/// Starts the floor in front of a buyer.
pub async fn floor(buyer: &str) -> Result<(Process, String), Failure> {
    let address = free_address()?;
    let url = format!("http://{buyer}/");
    let process = Process::spawn(role("floor")?.args(["--listen", &address, "--buyer", &url]))?;
    let deadline = Instant::now() + START_PATIENCE;
    while tokio::net::TcpStream::connect(&address).await.is_err() {
        if Instant::now() >= deadline {
            return Err("the floor does not start".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((process, address))
}

/// Where a gateway keeps its state.
#[derive(Debug, Clone)]
pub enum Backing {
    /// Redis and MariaDB or MySQL.
    Servers { redis: String, database: String },
    /// Files in a folder.
    Embedded,
}

/// The buyers of a routing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buyers {
    /// Take every lead.
    pub eligible: usize,
    /// Want leads of other states.
    pub elsewhere: usize,
    /// Would take the lead, come first, and have a cap of none.
    pub full: usize,
}

/// A running gateway.
pub struct Gateway {
    pub process: Process,
    pub intake: String,
    pub admin: String,
    _folder: tempfile::TempDir,
}

/// Starts `capgate serve` on a folder of its own and waits until it is ready.
pub async fn gateway(program: &Path, backing: &Backing, buyers: Buyers, buyer: &str) -> Result<Gateway, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let (intake, admin) = (free_address()?, free_address()?);
    let prefix = path.file_name().and_then(|name| name.to_str()).unwrap_or("bench").replace('.', "");
    let (store, ledger) = match backing {
        Backing::Servers { redis, database } => (redis.clone(), database.clone()),
        Backing::Embedded => (
            format!("embedded:{}", path.join("journal.db").display()),
            format!("sqlite:{}", path.join("books.db").display()),
        ),
    };
    let process_file = format!(
        "[intake]\nlisten = \"{intake}\"\n[admin]\nlisten = \"{admin}\"\n[store]\nurl = \"{store}\"\nprefix = \"{prefix}\"\n\
         [ledger]\nurl = \"{ledger}\"\n[forward]\nallow_private_addresses = true\n[routing]\nfile = \"routing.toml\"\n"
    );
    tokio::fs::write(path.join("capgate.toml"), process_file).await?;
    tokio::fs::write(path.join("routing.toml"), routing(buyers, buyer)).await?;
    let log = std::fs::File::create(path.join("log"))?;
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(path.join("capgate.toml")).env("RUST_LOG", "warn");
    let process = Process::spawn(command.stdout(log.try_clone()?).stderr(log))?;
    if let Err(failure) = answers(&admin, "/readyz").await {
        let log = tokio::fs::read_to_string(path.join("log")).await.unwrap_or_default();
        return Err(format!("{failure}; its log:\n{log}").into());
    }
    Ok(Gateway { process, intake, admin, _folder: folder })
}

/// Three caps for each buyer, none of which is reached but those of the full ones.
fn routing(buyers: Buyers, buyer: &str) -> String {
    let hash: String = Sha256::digest(KEY).iter().fold(String::new(), |mut text, byte| {
        // Writing into a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let mut text =
        format!("[[publisher]]\nid = \"acme\"\nkeys_sha256 = [\"{hash}\"]\npayout = {{ percent = \"70\" }}\n");
    let mut offers =
        String::from("[[campaign]]\nid = \"solar\"\ncurrency = \"USD\"\nrequired = [\"phone\", \"state\"]\n");
    let kinds = [("full", buyers.full, 0_u32, "NJ"), ("open", buyers.eligible, 1_000_000_000, "NJ")];
    for (kind, count, cap, state) in kinds.into_iter().chain([("elsewhere", buyers.elsewhere, 1_000_000_000, "CA")]) {
        for number in 0..count {
            let _ = write!(
                text,
                "[[buyer]]\nid = \"{kind}-{number}\"\nurl = \"http://{buyer}/\"\ntimezone = \"America/New_York\"\n\
                 in_flight_max = 10000\n[buyer.answer]\naccepted = {{ path = \"/status\", in = [\"accepted\"] }}\n\
                 [buyer.filter]\nstates = [\"{state}\"]\n"
            );
            for window in ["hour", "day", "month"] {
                let _ = write!(text, "[[buyer.cap]]\nwindow = \"{window}\"\nleads = {cap}\n");
            }
            let priority = 1 + usize::from(kind == "open") * (buyers.full + number + 1);
            let _ = write!(
                offers,
                "[[campaign.offer]]\nbuyer = \"{kind}-{number}\"\nprice = \"25.00\"\npriority = {priority}\n"
            );
        }
    }
    text + &offers
}

impl Gateway {
    /// Waits until every event is in the ledger, and answers how long that took.
    pub async fn drained(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        while machine::metric(&self.metrics().await?, "capgate_journal_entries") > 0.0 {
            if began.elapsed() > DRAIN_PATIENCE {
                return Err("the journal is not settled".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(began.elapsed())
    }

    /// The page of metrics.
    pub async fn metrics(&self) -> Result<String, Failure> {
        machine::get(&self.admin, "/metrics").await
    }
}

/// A running load generator.
pub struct Driver {
    process: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

/// How hard it drives.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub connections: usize,
    pub rate: Option<u64>,
    pub warm_up: Duration,
    pub duration: Duration,
}

impl Driver {
    /// Starts it and waits for the end of its warm-up.
    pub async fn start(target: &str, path: &str, pace: &Pace) -> Result<Self, Failure> {
        let mut command = role("drive")?;
        command.args(["--target", target, "--path", path, "--key", KEY]);
        command.args(["--connections", &pace.connections.to_string()]);
        command.args(["--warm-up-ms", &pace.warm_up.as_millis().to_string()]);
        command.args(["--duration-ms", &pace.duration.as_millis().to_string()]);
        if let Some(rate) = pace.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        let mut process = Process::spawn(command.stdout(Stdio::piped()))?;
        let output = process.child.stdout.take().ok_or("the load generator has no output")?;
        let mut driver = Self { process, lines: BufReader::new(output).lines() };
        match driver.lines.next_line().await? {
            Some(line) if line == "measuring" => Ok(driver),
            _ => Err("the load generator ended in its warm-up".into()),
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Its outcome, when it is over.
    pub async fn outcome(mut self) -> Result<Outcome, Failure> {
        let line = self.lines.next_line().await?.ok_or("the load generator ended without an outcome")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// The gateway's program beside this one: `target/release/examples/bench` and `target/release/capgate`.
pub fn capgate_beside() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe()?;
    let folder = here.parent().and_then(Path::parent).ok_or("no folder of programs")?;
    Ok(folder.join("capgate"))
}
