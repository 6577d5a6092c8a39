//! The load generator: posts leads to a running gateway and measures what a publisher would see.

mod connection;
mod lead;
mod plan;
mod report;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request};
use http_body_util::Full;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::connection::{Connection, Reply};
pub use self::plan::{InvalidPlan, Pace, StressArgs, StressPlan};
use self::report::count;
pub use self::report::{Latency, LeadVerdict, StressReport};
use crate::domain::id::LeadId;

/// Between two looks at a lead that is pending.
const FOLLOW_PAUSE: Duration = Duration::from_millis(50);

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
                tally.repeated += connection.repeated();
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
            let mut answer = connection.send(&request).await;
            let latency_us = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
            for _ in 0..self.plan.resends {
                let Some(pause) = answer.as_ref().ok().and_then(Reply::come_again_after) else { break };
                sleep(pause).await;
                tally.repeated += 1;
                answer = connection.send(&request).await;
            }
            let (lead_id, verdict) = match answer {
                Ok(Reply { status, body, .. }) => {
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
                        connection.send(&request).await.ok().filter(|reply| reply.come_again_after().is_none())
                    }
                    _ => None,
                };
                let word = answer.map(|reply| Answer::read(reply.status, &reply.body).1);
                match word.filter(|word| word != "pending") {
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
