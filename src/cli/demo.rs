//! `capgate demo`: the main job in one process and one command, with the headline test and its proof.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use super::stress::{self, Pace, StressPlan, StressReport};
use super::stub_buyer::StubBuyer;
use super::{block_on, fail};
use crate::app::App;
use crate::clock::SystemClock;
use crate::config::{self, Config, LedgerUrl, RoutingFile, StoreUrl};
use crate::domain::id::CampaignId;
use crate::domain::outcome::AttemptOutcome;
use crate::domain::routing::Secret;
use crate::domain::window::Window;
use crate::ledger::Totals;
use crate::store::CounterKey;

/// Arguments of `capgate demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Stay up afterwards, and print a curl line to try
    #[arg(long)]
    keep: bool,
}

const LEADS: u64 = 1_000;
const CONNECTIONS: u64 = 50;
const WITHIN: Duration = Duration::from_secs(5);
/// The publisher's promise: no answer slower than this at the 99th percentile.
const ANSWER_P99_MAX: Duration = Duration::from_millis(250);
const SETTLE_PATIENCE: Duration = Duration::from_secs(30);
/// A publisher sends a lead again that is refused for the moment.
const RESENDS: u32 = 5;
/// A disk that keeps a write within this time is quiet, as the slowest of so many writes shows.
const QUIET: Duration = Duration::from_millis(25);
const DISK_WRITES: usize = 10;
const DISK_PATIENCE: Duration = Duration::from_mins(1);
const KEY: &str = "demo-key";

/// A stub buyer of the demo.
struct DemoBuyer {
    id: &'static str,
    path: &'static str,
    cap: u64,
    price: &'static str,
}

const BUYERS: [DemoBuyer; 3] = [
    DemoBuyer { id: "sunco", path: "/sunco", cap: 100, price: "25.00" },
    DemoBuyer { id: "brightside", path: "/brightside", cap: 300, price: "20.00" },
    DemoBuyer { id: "helios", path: "/helios", cap: 500, price: "12.50" },
];

pub(super) fn run(args: &DemoArgs) -> ExitCode {
    block_on(async {
        match demo(args.keep).await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => fail("the counts disagree"),
            Err(text) => fail(&text),
        }
    })
}

async fn demo(keep: bool) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.map_err(|error| format!("no stub buyers: {error}"))?;
    let config = configuration(folder.path())?;
    std::fs::write(&config.routing_file, routing(&stub)).map_err(|error| error.to_string())?;
    let (file, routing, _) = RoutingFile::open(&config, &|_: &str| None).map_err(|problems| problems.to_string())?;
    let app = App::start(config, routing, file, Arc::new(SystemClock)).await.map_err(|error| error.to_string())?;

    let write = tokio::task::spawn_blocking({
        let file = folder.path().join("disk");
        move || quiet_disk(&file)
    });
    let write = write.await.map_err(|error| error.to_string())?.map_err(|error| format!("the disk: {error}"))?;
    #[allow(clippy::cast_precision_loss, reason = "microseconds shown as milliseconds")]
    let write_ms = write.as_micros() as f64 / 1_000.0;
    println!("disk keeps a write within {write_ms:.1} ms: here every lead waits for that, or for a write of many");
    println!(
        "{LEADS} leads over {CONNECTIONS} connections within {} s, three stub buyers, embedded store, SQLite\n",
        WITHIN.as_secs()
    );
    let report = load(app.intake_addr).await?;
    let totals = settled(&app).await?;
    let is_right = show(&app, &stub, &report, &totals).await?;
    if keep {
        println!(
            "\nstill up, with every cap used up; end it with Ctrl-C. Try:\n{}",
            curl(app.intake_addr, app.admin_addr)
        );
        // An error means that Ctrl-C cannot be waited for; then the demo simply ends.
        let _ = tokio::signal::ctrl_c().await;
    }
    app.shut_down().await;
    stub.stop();
    Ok(is_right)
}

/// A disk that still writes down a build makes each lead wait until it is kept (P5): waits until it is done, or for a minute.
/// Answers how long the slowest of the last writes took.
fn quiet_disk(file: &Path) -> std::io::Result<Duration> {
    let mut file = std::fs::File::create(file)?;
    let deadline = Instant::now() + DISK_PATIENCE;
    loop {
        let mut slowest = Duration::ZERO;
        for _ in 0..DISK_WRITES {
            let started = Instant::now();
            file.write_all(&[0; 4_096])?;
            file.sync_data()?;
            slowest = slowest.max(started.elapsed());
        }
        if slowest <= QUIET || Instant::now() >= deadline {
            return Ok(slowest);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn configuration(folder: &Path) -> Result<Config, String> {
    let mut config = config::load(None, &|_: &str| None).map_err(|problems| problems.to_string())?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    config.intake.listen = any;
    config.admin.listen = any;
    config.store.url = StoreUrl::Embedded(folder.join("journal.db"));
    config.ledger.url = LedgerUrl::Sqlite(folder.join("ledger.db"));
    config.forward.allow_private_addresses = true;
    config.routing_file = folder.join("routing.toml");
    Ok(config)
}

fn routing(stub: &StubBuyer) -> String {
    let mut text = format!(
        "[[publisher]]\nid = \"acme\"\nkeys_sha256 = [\"{}\"]\npayout = {{ percent = \"70\" }}\n",
        super::key::hash_hex(KEY)
    );
    // Writing into a String cannot fail.
    for buyer in &BUYERS {
        let _ = write!(
            text,
            "[[buyer]]\nid = \"{}\"\nurl = \"{}\"\ntimezone = \"America/New_York\"\n[buyer.answer]\naccepted = {{ path = \
             \"/status\", in = [\"accepted\"] }}\n[[buyer.cap]]\nwindow = \"day\"\nleads = {}\n",
            buyer.id,
            stub.url(buyer.path),
            buyer.cap
        );
    }
    text += "[[campaign]]\nid = \"solar\"\ncurrency = \"USD\"\nrequired = [\"phone\"]\n";
    for (index, buyer) in BUYERS.iter().enumerate() {
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

async fn load(intake: SocketAddr) -> Result<StressReport, String> {
    let plan = StressPlan {
        target: format!("http://{intake}").parse().map_err(|error| format!("{error}"))?,
        campaign: CampaignId::new("solar").map_err(|error| error.to_string())?,
        key: Secret::new(KEY),
        leads: LEADS,
        connections: CONNECTIONS,
        pace: Pace::Every(WITHIN / u32::try_from(LEADS).unwrap_or(u32::MAX)),
        seed: 1,
        fields: Vec::new(),
        timeout: Duration::from_secs(10),
        follow: Duration::from_secs(20),
        resends: RESENDS,
        keep_verdicts: false,
        show_progress: std::io::IsTerminal::is_terminal(&std::io::stderr()),
    };
    stress::run(plan).await.map_err(|error| error.to_string())
}

/// The books, when every lead has its verdict in them.
async fn settled(app: &App) -> Result<Totals, String> {
    let deadline = Instant::now() + SETTLE_PATIENCE;
    loop {
        let totals = app.gateway.ledger.totals().await.map_err(|error| error.to_string())?;
        let closed: u64 = totals.leads.iter().filter(|(status, _)| status != "pending").map(|(_, count)| count).sum();
        if closed >= LEADS || Instant::now() >= deadline {
            return Ok(totals);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prints what happened; true when the stubs, the counters, the answers and the books agree.
async fn show(app: &App, stub: &StubBuyer, report: &StressReport, totals: &Totals) -> Result<bool, String> {
    let gateway = &app.gateway;
    let mut findings = Findings(true);
    println!("{:<12} {:>5} {:>9} {:>8} {:>8}", "buyer", "cap", "accepted", "counter", "ledger");
    let mut sold = 0;
    for buyer in &BUYERS {
        let stats = stub.stats(buyer.path);
        let routing = gateway.routing();
        let known = routing.compiled.routing().buyers.get(buyer.id).ok_or("a demo buyer is missing")?.clone();
        let cap = known.caps.first().ok_or("a demo buyer has no cap")?;
        let window = Window::containing(cap.window, &known.timezone, gateway.store.now());
        let key = CounterKey { buyer: known.id.clone(), cap: cap.id.clone(), window };
        let counters = gateway.store.counters(&[key]).await.map_err(|error| error.to_string())?;
        let counter = counters.first().copied().flatten().unwrap_or(0);
        let in_ledger = counted(totals, buyer.id, AttemptOutcome::Accepted);
        // Only on a machine too busy to answer within the time-out: these buyers answer at once.
        let late = counted(totals, buyer.id, AttemptOutcome::LateAccepted);
        print!("{:<12} {:>5} {:>9} {:>8} {:>8}", buyer.id, buyer.cap, stats.accepted, counter, in_ledger);
        if late > 0 {
            print!("  and {late} late");
        }
        println!();
        findings.must(stats.accepted <= buyer.cap + late, "a buyer got more than its cap");
        findings.must(stats.accepted == counter && counter == in_ledger + late, "buyer, counter and ledger differ");
        findings.must(stats.duplicates == 0, "a lead was posted twice to one buyer");
        sold += in_ledger;
    }
    findings.must(stub.stats(BUYERS[0].path).accepted >= BUYERS[0].cap, "the first buyer's cap was not reached");
    let (answered, capped) = (report.total("sold"), report.total("unsold/capped"));
    findings.must(answered == sold, "the answers and the books disagree over what was sold");
    findings.must(answered + capped == LEADS, "a lead was neither sold nor capped");

    if answered + capped != LEADS {
        println!("\n{report}");
    }
    println!("\nanswers      sold {answered}, capped {capped}, of {LEADS}");
    let latency = report.latency_us;
    #[allow(clippy::cast_precision_loss, reason = "microseconds shown as milliseconds")]
    let ms = |micros: u64| micros as f64 / 1_000.0;
    println!(
        "latency      p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, max {:.1} ms",
        ms(latency.p50),
        ms(latency.p99),
        ms(latency.p999),
        ms(latency.max)
    );
    findings.must(u128::from(latency.p99) <= ANSWER_P99_MAX.as_micros(), "answers are slower than 250 ms at p99");

    println!("\nledger");
    for (status, count) in &totals.leads {
        println!("  leads {status:<10} {count:>6}");
    }
    for (account, currency, micros) in &totals.balances {
        println!("  {account:<22} {:>14} {currency}", crate::domain::money::Micros(*micros).to_string());
    }
    let sum: i64 = totals.balances.iter().map(|(_, _, micros)| *micros).sum();
    println!("  {:<22} {:>14}", "sum", crate::domain::money::Micros(sum).to_string());
    findings.must(sum == 0, "the balances do not sum to zero");
    findings.must(totals.unbalanced_leads == 0, "the entries of a lead do not sum to zero");
    findings.must(totals.unbalanced_accounts == 0, "a balance is not the sum of its entries");
    let leads: u64 = totals.leads.iter().map(|(_, count)| *count).sum();
    findings.must(leads == LEADS, "not every lead is in the ledger");
    if findings.0 {
        println!("\nall of them agree");
    }
    Ok(findings.0)
}

fn counted(totals: &Totals, buyer: &str, outcome: AttemptOutcome) -> u64 {
    let word = outcome.as_str();
    totals.attempts.iter().filter(|(b, outcome, _)| b == buyer && outcome == word).map(|(_, _, count)| *count).sum()
}

struct Findings(bool);

impl Findings {
    fn must(&mut self, holds: bool, otherwise: &str) {
        if !holds {
            println!("WRONG: {otherwise}");
            self.0 = false;
        }
    }
}

fn curl(intake: SocketAddr, admin: SocketAddr) -> String {
    format!(
        "  curl -s http://{intake}/v1/campaigns/solar/leads -H 'Authorization: Bearer {KEY}' \\\n    -H 'Content-Type: \
         application/json' -d '{{\"first_name\":\"Ada\",\"phone\":\"201-555-0123\",\"state\":\"NJ\"}}'\n  curl -s \
         http://{admin}/v1/caps"
    )
}
