//! The load generator: posts leads to a running gateway and measures what a publisher would see.

mod connection;
mod lead;
mod report;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::connection::Connection;
use self::report::count;
pub use self::report::{Latency, LeadVerdict, StressReport};
use crate::domain::id::{CampaignId, LeadId};
use crate::domain::routing::Secret;

/// Most leads in one run: each keeps its latency in memory.
const LEADS_MAX: u64 = 10_000_000;
const CONNECTIONS_MAX: u64 = 10_000;
/// Between two looks at a lead that is pending.
const FOLLOW_PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `capgate stress`.
#[derive(Debug, Clone, clap::Args)]
pub struct StressArgs {
    /// The gateway's intake listener, such as http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    pub target: Uri,
    /// Campaign to post to
    #[arg(long)]
    pub campaign: CampaignId,
    /// The publisher's API key, or env:NAME for one that other users of the machine do not see
    #[arg(long, value_parser = parse_key)]
    pub key: Secret,
    /// How many leads
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=LEADS_MAX))]
    pub leads: u64,
    /// Over how many connections
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    pub connections: u64,
    /// Leads per second, sent when due and measured from then on. Without a rate: as fast as the answers come
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "spread_over")]
    pub rate: Option<f64>,
    /// Spread the leads evenly over so many seconds: a rate, said the other way round
    #[arg(long, value_name = "SECONDS")]
    pub spread_over: Option<f64>,
    /// The same seed makes the same leads (under new idempotency keys)
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A field that every lead has, in place of a random one: state=TX
    #[arg(long = "field", value_name = "NAME=VALUE", value_parser = parse_field)]
    pub fields: Vec<(String, String)>,
    /// Longest wait for one answer
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub timeout_ms: u64,
    /// Ask at most so many seconds for the verdicts of leads that were answered "pending"
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub follow: u64,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_key(text: &str) -> Result<Secret, String> {
    match text.strip_prefix("env:") {
        None => Ok(Secret::new(text)),
        Some(name) => std::env::var(name).map(|key| Secret::new(&key)).map_err(|_| format!("{name} is not set")),
    }
}

fn parse_field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("use NAME=VALUE, such as state=TX".to_owned()),
    }
}

/// When leads are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Each connection sends its next lead when it has its answer.
    Burst,
    /// A lead is due each so often, whatever the answers do.
    Every(Duration),
}

/// One run.
#[derive(Debug, Clone)]
pub struct StressPlan {
    /// Base URL of the gateway; only http.
    pub target: Uri,
    /// Campaign to post to.
    pub campaign: CampaignId,
    /// The publisher's key.
    pub key: Secret,
    /// How many leads.
    pub leads: u64,
    /// Over how many connections.
    pub connections: u64,
    /// When.
    pub pace: Pace,
    /// Of the random fields.
    pub seed: u64,
    /// Fields that every lead has.
    pub fields: Vec<(String, String)>,
    /// Longest wait for one answer.
    pub timeout: Duration,
    /// Longest wait for the verdicts of pending leads; zero: they stay `pending`.
    pub follow: Duration,
    /// Keep each lead's id and verdict.
    pub keep_verdicts: bool,
    /// Say on standard error how far the run is.
    pub show_progress: bool,
}

/// A plan that cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// Not `http://HOST[:PORT]`.
    #[error("the target must be http://HOST[:PORT], without a path")]
    Target,
    /// Not a positive number.
    #[error("the rate must be above 0 and the time to spread over must not be negative")]
    Pace,
    /// Not something that a header can carry.
    #[error("the key must be visible ASCII characters")]
    Key,
}

impl StressArgs {
    /// The run that the arguments describe.
    ///
    /// # Errors
    /// [`InvalidPlan`]; clap has checked the rest.
    pub fn plan(self) -> Result<StressPlan, InvalidPlan> {
        let every = |seconds: f64| Duration::try_from_secs_f64(seconds).map_err(|_| InvalidPlan::Pace);
        #[allow(clippy::cast_precision_loss, reason = "there are at most ten million leads")]
        let pace = match (self.rate, self.spread_over) {
            (Some(rate), _) if rate > 0.0 => Pace::Every(every(1.0 / rate)?),
            (Some(_), _) => return Err(InvalidPlan::Pace),
            (None, Some(seconds)) => Pace::Every(every(seconds / self.leads as f64)?),
            (None, None) => Pace::Burst,
        };
        Ok(StressPlan {
            target: self.target,
            campaign: self.campaign,
            key: self.key,
            leads: self.leads,
            connections: self.connections,
            pace,
            seed: self.seed,
            fields: self.fields,
            timeout: Duration::from_millis(self.timeout_ms),
            follow: Duration::from_secs(self.follow),
            keep_verdicts: false,
            show_progress: io::stderr().is_terminal(),
        })
    }
}

/// Why `capgate stress` ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum StressError {
    /// The arguments do not fit together; nothing was sent.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// The report could not be printed.
    #[error("the report cannot be printed: {0}")]
    Print(#[from] io::Error),
}

/// Runs `capgate stress`: prints the report, as text or JSON, and hands it back for the exit code.
///
/// # Errors
/// [`StressError`]
pub async fn command(args: StressArgs) -> Result<StressReport, StressError> {
    let is_json = args.json;
    let report = run(args.plan()?).await?;
    let mut out = io::stdout().lock();
    if is_json {
        writeln!(out, "{}", serde_json::to_string(&report).map_err(io::Error::from)?)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(report)
}

/// Sends the leads of a plan and reports.
///
/// # Errors
/// [`InvalidPlan`]; nothing was sent. A gateway that is away is no error but a report full of them.
pub async fn run(plan: StressPlan) -> Result<StressReport, InvalidPlan> {
    let run = Arc::new(Run::new(plan)?);
    let mut workers = JoinSet::new();
    for _ in 0..run.plan.connections.min(run.plan.leads) {
        workers.spawn(Arc::clone(&run).work());
    }
    let ticker = run.plan.show_progress.then(|| tokio::spawn(Arc::clone(&run).tick()));
    // A worker's panic is ours.
    let tallies = workers.join_all().await;
    if let Some(ticker) = ticker {
        ticker.abort();
    }
    let duration = run.began.elapsed();
    let mut report = StressReport::default();
    let (mut latencies, mut pending) = (Vec::new(), Vec::new());
    for tally in tallies {
        report.sent += tally.sent;
        report.answered += tally.latencies.len() as u64;
        report.repeated += tally.repeated;
        latencies.extend(tally.latencies);
        for (counts, of_worker) in
            [(&mut report.answers, tally.counts.answers), (&mut report.errors, tally.counts.errors)]
        {
            for (word, count) in of_worker {
                *counts.entry(word).or_default() += count;
            }
        }
        pending.extend(tally.pending);
        report.verdicts.extend(tally.verdicts);
    }
    report.verdicts.sort_unstable_by_key(|verdict| verdict.index);
    let mut report = report.timed(latencies, duration);
    run.follow(pending, &mut report).await;
    Ok(report)
}

struct Run {
    plan: StressPlan,
    authority: String,
    host: HeaderValue,
    authorization: HeaderValue,
    /// Sets the keys of this run apart from those of all others.
    name: String,
    began: Instant,
    next: AtomicU64,
    done: AtomicU64,
}

/// What one connection saw.
#[derive(Default)]
struct Tally {
    sent: u64,
    repeated: u64,
    counts: StressReport,
    latencies: Vec<u64>,
    pending: Vec<(u64, String)>,
    verdicts: Vec<LeadVerdict>,
}

/// The parts of an answer that are looked at; a refusal has a code.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Answer {
    lead_id: Option<String>,
    status: serde_json::Value,
    reason: Option<String>,
    code: Option<String>,
}

impl Answer {
    fn read(status: http::StatusCode, body: &[u8]) -> (Option<String>, String) {
        let answer: Self = serde_json::from_slice(body).unwrap_or_default();
        let word = match (status.is_success(), answer.status.as_str(), answer.reason, answer.code) {
            (true, Some(verdict), None, _) => verdict.to_owned(),
            (true, Some(verdict), Some(reason), _) => format!("{verdict}/{reason}"),
            (false, _, _, Some(code)) => format!("{}/{code}", status.as_u16()),
            _ => status.as_u16().to_string(),
        };
        (answer.lead_id, word)
    }
}

impl Run {
    fn new(plan: StressPlan) -> Result<Self, InvalidPlan> {
        let target = &plan.target;
        let has_path = !matches!(target.path_and_query().map(http::uri::PathAndQuery::as_str), None | Some("/" | ""));
        let authority = target.authority().filter(|_| target.scheme_str() == Some("http") && !has_path);
        let authority = authority.ok_or(InvalidPlan::Target)?;
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {}", plan.key.expose())).map_err(|_| InvalidPlan::Key)?;
        authorization.set_sensitive(true);
        Ok(Self {
            authority: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidPlan::Target)?,
            authorization,
            name: LeadId::generate().to_string(),
            began: Instant::now(),
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            plan,
        })
    }

    fn request(&self, index: u64) -> Request<Full<Bytes>> {
        let body = lead::body(self.plan.seed, index, &self.plan.fields);
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = http::Method::POST;
        // Cannot fail because an id holds only characters that a path may hold, and so does a key of hyphens and digits.
        *request.uri_mut() = format!("/v1/campaigns/{}/leads", self.plan.campaign).parse().unwrap_or_default();
        let key = HeaderValue::from_str(&format!("{}-{index}", self.name)).ok();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(AUTHORIZATION, self.authorization.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(key.map(|key| (http::HeaderName::from_static("idempotency-key"), key)));
        request
    }

    /// Sends leads over one connection until all are taken.
    async fn work(self: Arc<Self>) -> Tally {
        let mut connection = Connection::new(&self.authority, self.plan.timeout);
        let mut tally = Tally::default();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.plan.leads {
                tally.repeated = connection.repeated();
                return tally;
            }
            let request = self.request(index);
            let due = match self.plan.pace {
                Pace::Burst => Instant::now(),
                Pace::Every(interval) => {
                    let nanos = interval.as_nanos().saturating_mul(u128::from(index));
                    let due = self.began + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                    sleep_until(due).await;
                    due
                }
            };
            tally.sent += 1;
            let answer = connection.send(&request).await;
            let latency_us = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
            let (lead_id, verdict) = match answer {
                Ok((status, body)) => {
                    let (lead_id, word) = Answer::read(status, &body);
                    count(&mut tally.counts.answers, &word);
                    tally.latencies.push(latency_us);
                    (lead_id, word)
                }
                Err(no_answer) => {
                    count(&mut tally.counts.errors, no_answer.as_str());
                    (None, no_answer.as_str().to_owned())
                }
            };
            if !self.plan.follow.is_zero() && verdict == "pending" {
                tally.pending.extend(lead_id.clone().map(|id| (index, id)));
            }
            if self.plan.keep_verdicts {
                tally.verdicts.push(LeadVerdict { index, lead_id, verdict, latency_us });
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks for the verdicts of pending leads until all have one or the time is over.
    async fn follow(&self, mut pending: Vec<(u64, String)>, report: &mut StressReport) {
        let deadline = Instant::now() + self.plan.follow;
        let mut connection = Connection::new(&self.authority, self.plan.timeout);
        while !pending.is_empty() && Instant::now() < deadline {
            let mut undecided = Vec::new();
            for (index, id) in pending {
                let mut request = Request::new(Full::new(Bytes::new()));
                let uri = format!("/v1/leads/{id}").parse();
                let headers = request.headers_mut();
                headers.insert(HOST, self.host.clone());
                headers.insert(AUTHORIZATION, self.authorization.clone());
                let is_over = Instant::now() >= deadline;
                let answer = match uri {
                    Ok(uri) if !is_over => {
                        *request.uri_mut() = uri;
                        connection.send(&request).await.ok()
                    }
                    _ => None,
                };
                match answer.map(|(status, body)| Answer::read(status, &body).1).filter(|word| word != "pending") {
                    Some(word) => {
                        count(&mut report.followed, &word);
                        if let Ok(place) = report.verdicts.binary_search_by_key(&index, |verdict| verdict.index) {
                            report.verdicts[place].verdict = word;
                        }
                    }
                    None => undecided.push((index, id)),
                }
            }
            pending = undecided;
            if !pending.is_empty() {
                sleep(FOLLOW_PAUSE).await;
            }
        }
        for _ in pending {
            count(&mut report.followed, "pending");
        }
    }

    async fn tick(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(1)).await;
            let done = self.done.load(Ordering::Relaxed);
            // A terminal that went away is no reason to stop.
            let _ = writeln!(io::stderr(), "{done} of {} leads answered", self.plan.leads);
        }
    }
}

#[cfg(test)]
mod tests;
