//! What a run of the load generator is asked to do.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use http::Uri;

use crate::domain::id::CampaignId;
use crate::domain::routing::Secret;

/// Most leads in one run: each keeps its latency in memory.
const LEADS_MAX: u64 = 10_000_000;
const CONNECTIONS_MAX: u64 = 10_000;

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
    /// Send a lead that is answered 429 or 503 again, with its key, at most so many times. Latencies are of first answers
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub resend: u32,
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
    /// How often a lead that is answered 429 or 503 is sent again.
    pub resends: u32,
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
            resends: self.resend,
            keep_verdicts: false,
            show_progress: io::stderr().is_terminal(),
        })
    }
}
