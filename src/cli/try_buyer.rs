//! `capgate try-buyer`: one test lead to one buyer, over the same code that the gateway forwards with. No cap is asked, no
//! unit is taken, nothing is stored.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use http::HeaderMap;
use serde_json::{Value, json};

use super::{BAD_ARGUMENTS, BAD_CONFIG, ConfigArgs, FAILED, block_on, fail};
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Config, ProcessEnvironment, RoutingFile};
use crate::domain::id::{BuyerId, CampaignId, LeadId, PublisherId};
use crate::domain::lead::Lead;
use crate::domain::money::{Currency, Micros};
use crate::domain::outcome::Outcome;
use crate::domain::routing::{Buyer, Campaign, Routing};
use crate::forward::request::MASK;
use crate::forward::trace::{self, SeenAnswer, Trace, Tracer};
use crate::forward::{ForwardOrder, Forwarded, Forwarder};
use crate::intake::parse::{BodyType, parse};
use crate::intake::refusal::Refusal;

/// Longest part of an answer that is shown.
const SHOWN_BYTES_MAX: usize = 4096;
/// The lead that is sent when none is named. The number is from the range for fiction, the address from the one for examples.
const SAMPLE: &str = r#"{"first_name":"Ada","last_name":"Byron","email":"ada.byron@example.com","phone":"2015550123",
    "address":"1 Example Street","city":"Hoboken","state":"NJ","zip":"07030","country":"US"}"#;

/// Arguments of `capgate try-buyer`.
#[derive(Debug, Args)]
#[command(
    after_help = "A real request is sent to the buyer. Exit codes: 0 accepted, 1 anything else, 64 bad arguments, 78 bad \
                        configuration."
)]
pub(super) struct TryBuyerArgs {
    /// The buyer's id in the routing file
    buyer: String,
    /// A lead as a publisher posts it: a file with one JSON object; without it a sample lead is sent
    #[arg(long, value_name = "FILE")]
    lead: Option<PathBuf>,
    /// The campaign whose offer names the price; without it the first that offers to the buyer
    #[arg(long, value_name = "ID")]
    campaign: Option<String>,
    /// The publisher that the lead seems to come from, and whose mapping reads its fields
    #[arg(long, value_name = "ID")]
    publisher: Option<String>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &TryBuyerArgs) -> ExitCode {
    let read = || {
        let config = config::load(args.config.config.as_deref(), &ProcessEnvironment)?;
        let (_, routing, _) = RoutingFile::open(&config, &ProcessEnvironment)?;
        Ok::<_, config::Problems>((config, routing))
    };
    let (config, routing) = match read() {
        Ok(read) => read,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    match Trial::new(args, &config, &routing) {
        Ok(trial) => block_on(trial.run(args, &config)),
        Err(wrong) => {
            eprintln!("capgate: {wrong}");
            ExitCode::from(BAD_ARGUMENTS)
        }
    }
}

/// What is tried.
struct Trial {
    buyer: Arc<Buyer>,
    lead: Arc<Lead>,
    price: Micros,
    currency: Currency,
    has_offer: bool,
    country: String,
}

impl Trial {
    fn new(args: &TryBuyerArgs, config: &Config, routing: &Routing) -> Result<Self, String> {
        let buyer = BuyerId::new(&args.buyer).ok().and_then(|id| routing.buyers.get(&id)).ok_or_else(|| {
            let mut known: Vec<&str> = routing.buyers.keys().map(BuyerId::as_str).collect();
            known.sort_unstable();
            format!("there is no buyer {:?}; there are: {}", args.buyer, known.join(", "))
        })?;
        let campaign = campaign(args.campaign.as_deref(), routing, &buyer.id)?;
        let offer = campaign.and_then(|campaign| campaign.offers.iter().find(|offer| offer.buyer.id == buyer.id));
        let publisher = match &args.publisher {
            None => None,
            Some(text) => {
                let known = PublisherId::new(text).ok().and_then(|id| routing.publishers.get(&id));
                Some(known.ok_or_else(|| format!("there is no publisher {text:?}"))?)
            }
        };
        let body = match &args.lead {
            Some(path) => read_lead(path, config.intake.body_bytes_max)?,
            None => SAMPLE.into(),
        };
        let mapping = publisher.map(|publisher| publisher.mapping.as_slice()).unwrap_or_default();
        let parsed = parse(BodyType::Json, &body, mapping)
            .map_err(|refusal| format!("the lead is refused: {}", in_words(&refusal)))?;
        let stand_in = "try-buyer";
        let publisher = publisher.map_or(stand_in, |publisher| publisher.id.as_str());
        let from = campaign.map_or(stand_in, |campaign| campaign.id.as_str());
        // Cannot fail because both are ids already.
        let (publisher, from) = (PublisherId::new(publisher), CampaignId::new(from));
        let lead = Lead {
            id: LeadId::generate(),
            publisher: publisher.map_err(|error| error.to_string())?,
            campaign: from.map_err(|error| error.to_string())?,
            received_at: SystemClock.now(),
            is_test: true,
            fields: parsed.fields,
            body: body.into(),
        };
        let currency = campaign.map_or_else(|| Currency::new("USD"), |campaign| Some(campaign.currency));
        Ok(Self {
            buyer: Arc::clone(buyer),
            lead: Arc::new(lead),
            price: offer.map_or(Micros(0), |offer| offer.price),
            has_offer: offer.is_some(),
            currency: currency.ok_or("there is no currency")?,
            country: campaign.map_or_else(|| "US".to_owned(), |campaign| campaign.country.clone()),
        })
    }

    async fn run(self, args: &TryBuyerArgs, config: &Config) -> ExitCode {
        let forwarder = match Forwarder::new(&config.forward, Arc::new(SystemClock)) {
            Ok(forwarder) => forwarder,
            Err(error) => return fail(&error.to_string()),
        };
        if !args.json {
            println!(
                "A real request is sent to {}, marked as a test where the buyer's fields map $test.",
                self.buyer.id
            );
            println!("No cap is asked, no unit is taken, nothing is stored.\n");
            if !self.has_offer {
                println!("No campaign offers leads to this buyer: the price is 0.00.\n");
            }
        }
        let Some(permit) = forwarder.enter(&self.buyer) else { return fail("the buyer takes nothing at once") };
        let tracer = Arc::<Tracer>::default();
        let order = ForwardOrder {
            buyer: Arc::clone(&self.buyer),
            lead: Arc::clone(&self.lead),
            country: self.country.clone(),
            price: self.price,
            currency: self.currency,
            permit,
            turn: None,
        };
        let mut told = forwarder.forward_and_trace(order, Some(Arc::clone(&tracer))).await;
        let late = match told.late.take() {
            Some(late) => late.await.ok(),
            None => None,
        };
        let report = Report { buyer: &self.buyer, lead: &self.lead, trace: tracer.seen(), forwarded: told, late };
        if args.json {
            println!("{:#}", report.to_json());
        } else {
            print!("{}", report.to_text());
        }
        match &report.forwarded.outcome {
            Outcome::Accepted(_) => ExitCode::SUCCESS,
            _ => ExitCode::from(FAILED),
        }
    }
}

/// The campaign that was named, or the first by id that has an offer for the buyer.
fn campaign<'r>(
    name: Option<&str>,
    routing: &'r Routing,
    buyer: &BuyerId,
) -> Result<Option<&'r Arc<Campaign>>, String> {
    let offers = |campaign: &&Arc<Campaign>| campaign.offers.iter().any(|offer| offer.buyer.id == *buyer);
    match name {
        Some(text) => {
            let known = CampaignId::new(text).ok().and_then(|id| routing.campaigns.get(&id));
            known.map(Some).ok_or_else(|| format!("there is no campaign {text:?}"))
        }
        None => Ok(routing.campaigns.values().filter(offers).min_by_key(|campaign| campaign.id.clone())),
    }
}

fn in_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Malformed(detail) => detail.clone(),
        Refusal::InvalidLead(problems) => problems
            .iter()
            .map(|problem| format!("{} {}", problem.field, problem.problem))
            .collect::<Vec<_>>()
            .join("; "),
        other => other.code().to_owned(),
    }
}

fn read_lead(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let max = bytes_max as u64;
    std::fs::File::open(path)
        .and_then(|file| file.take(max + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if bytes.len() > bytes_max {
        return Err(format!("{} is larger than intake.body_bytes_max ({bytes_max})", path.display()));
    }
    Ok(bytes)
}

struct Report<'a> {
    buyer: &'a Buyer,
    lead: &'a Lead,
    trace: Trace,
    forwarded: Forwarded,
    late: Option<Outcome>,
}

impl Report<'_> {
    /// The outcome that the answer led to, were it in time or late.
    fn last(&self) -> &Outcome {
        self.late.as_ref().unwrap_or(&self.forwarded.outcome)
    }

    /// The outcome in one word, and the reason of everything that is no sale.
    fn word(outcome: &Outcome) -> (&'static str, Option<&str>) {
        let reason = match outcome {
            Outcome::Accepted(_) => None,
            Outcome::Pending { .. } => Some("pending"),
            Outcome::Declined { reason, .. } => Some(reason.as_str()),
            Outcome::Unsent { reason } | Outcome::InDoubt { reason, .. } => Some(*reason),
        };
        (outcome.as_attempt().as_str(), reason)
    }

    fn to_text(&self) -> String {
        let mut out = String::new();
        // Cannot fail because writing to a String has no error path.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        if let Some(request) = &self.trace.request {
            writeln!(out, "> {} {}", request.method, request.url)?;
            for (name, value) in shown_headers(&request.headers) {
                writeln!(out, "> {name}: {value}")?;
            }
            writeln!(out, ">\n{}\n", request.body)?;
        }
        let ms = self.forwarded.duration.as_millis();
        match &self.trace.answer {
            None => writeln!(out, "No answer after {ms} ms.\n")?,
            Some(answer) => {
                writeln!(out, "< {} after {} ms", answer.status, answer.after.as_millis())?;
                for (name, value) in shown_headers(&answer.headers) {
                    writeln!(out, "< {name}: {value}")?;
                }
                writeln!(
                    out,
                    "<\n{}\n",
                    shown_body(answer).unwrap_or_else(|| "(the answer did not come whole)".into())
                )?;
            }
        }
        let (word, reason) = Self::word(&self.forwarded.outcome);
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        writeln!(out, "Outcome: {word}{reason}")?;
        if let Some(late) = &self.late {
            let (word, reason) = Self::word(late);
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            writeln!(out, "After the time-out of {} ms: {word}{reason}", self.buyer.timeout.as_millis())?;
        }
        let Some(answer) = &self.trace.answer else { return Ok(()) };
        if let Some(reading) = trace::explain(answer, &self.buyer.answer, self.last()) {
            writeln!(out, "Read as: {}\nWhy: {}", reading.kind, reading.why)?;
        }
        for (key, said, taken) in self.picked(answer) {
            let said = said.map_or_else(|| "nothing there".to_owned(), |said| format!("{said:?}"));
            let taken = taken.map(|taken| format!(", taken as {taken}")).unwrap_or_default();
            writeln!(out, "answer.{key}: {said}{taken}")?;
        }
        Ok(())
    }

    /// What the configured places of the answer held, and what of it counts.
    fn picked(&self, answer: &SeenAnswer) -> Vec<(&'static str, Option<String>, Option<String>)> {
        let rules = &self.buyer.answer;
        let (price, redirect_url, reference) = match self.last() {
            Outcome::Accepted(terms) => {
                let price = terms.price.map(|price| price.to_string());
                (price, terms.redirect_url.clone(), terms.reference.clone())
            }
            _ => (None, None, None),
        };
        let reason = match self.last() {
            Outcome::Declined { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        [
            ("price", &rules.price, price),
            ("reason", &rules.reason, reason),
            ("redirect_url", &rules.redirect_url, redirect_url),
            ("reference", &rules.reference, reference),
        ]
        .into_iter()
        .filter(|(_, place, _)| place.is_some())
        .map(|(key, place, taken)| (key, trace::said(answer, place.as_ref()), taken))
        .collect()
    }

    fn to_json(&self) -> Value {
        let (outcome, reason) = Self::word(&self.forwarded.outcome);
        let request = self.trace.request.as_ref().map(|request| {
            json!({"method": request.method, "url": request.url, "headers": headers_json(&request.headers), "body": request.body})
        });
        let answer = self.trace.answer.as_ref();
        let reading = answer.and_then(|answer| trace::explain(answer, &self.buyer.answer, self.last()));
        let picked: serde_json::Map<String, Value> = answer
            .map(|answer| self.picked(answer))
            .unwrap_or_default()
            .into_iter()
            .map(|(key, said, taken)| (key.to_owned(), json!({"said": said, "taken": taken})))
            .collect();
        json!({
            "buyer": self.buyer.id.as_str(),
            "lead_id": self.lead.id.to_string(),
            "request": request,
            "answer": answer.map(|answer| json!({
                "status": answer.status, "headers": headers_json(&answer.headers), "body": shown_body(answer),
            })),
            "duration_ms": u64::try_from(self.forwarded.duration.as_millis()).unwrap_or(u64::MAX),
            "outcome": outcome,
            "reason": reason,
            "late_outcome": self.late.as_ref().map(|late| Self::word(late).0),
            "read_as": reading.as_ref().map(|reading| reading.kind),
            "rule": reading.as_ref().and_then(|reading| reading.rule),
            "why": reading.as_ref().map(|reading| reading.why.clone()),
            "picked": picked,
        })
    }
}

fn shown_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let shown = |value: &http::HeaderValue| {
        if value.is_sensitive() { MASK.to_owned() } else { String::from_utf8_lossy(value.as_bytes()).into_owned() }
    };
    headers.iter().map(|(name, value)| (name.to_string(), shown(value))).collect()
}

fn headers_json(headers: &HeaderMap) -> Value {
    shown_headers(headers).into_iter().map(|(name, value)| json!([name, value])).collect()
}

/// The beginning of an answer as text without control characters: it is shown on a terminal.
fn shown_body(answer: &SeenAnswer) -> Option<String> {
    let body = answer.body.as_deref()?;
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES_MAX)]);
    let mut text: String = shown.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    if body.len() > SHOWN_BYTES_MAX {
        let _ = write!(text, "... ({} bytes in all)", body.len());
    }
    Some(text)
}
