//! `capgate resolve`

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AskError};
use super::{BAD_ARGUMENTS, FAILED, block_on, fail};
use crate::domain::id::{BuyerId, LeadId};

#[derive(Debug, Args)]
#[command(override_usage = "capgate resolve [OPTIONS] <LEAD_ID> <BUYER> <accepted|declined>\n       \
                            capgate resolve [OPTIONS] --buyer <BUYER> --all <accepted|declined>")]
pub(super) struct ResolveArgs {
    /// The lead, the buyer, and what the buyer says: `accepted` keeps the unit and books the sale, `declined` gives the unit
    /// back. With --all only the last
    #[arg(required = true, num_args = 1..=3, value_names = ["LEAD_ID", "BUYER", "OUTCOME"])]
    what: Vec<String>,
    /// With --all: whose doubts
    #[arg(long, value_name = "BUYER", requires = "all")]
    buyer: Option<BuyerId>,
    /// Every attempt of the buyer that is in doubt now
    #[arg(long, requires = "buyer")]
    all: bool,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Outcome {
    Accepted,
    Declined,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Declined => "declined",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Order {
    One(LeadId, BuyerId, Outcome),
    All(BuyerId, Outcome),
}

pub(super) fn run(args: &ResolveArgs) -> ExitCode {
    let order = match order(&args.what, args.buyer.as_ref()) {
        Ok(order) => order,
        Err(why) => {
            eprintln!("capgate: {why}");
            return ExitCode::from(BAD_ARGUMENTS);
        }
    };
    block_on(async {
        match order {
            Order::One(lead, buyer, outcome) => match one(&args.admin, lead, &buyer, outcome).await {
                Ok(answer) if args.json => println!("{answer:#}"),
                Ok(answer) => println!("lead {lead} at {buyer}: {}", told(&answer)),
                Err(error) => return fail(&error.to_string()),
            },
            Order::All(buyer, outcome) => return all(args, &buyer, outcome).await,
        }
        ExitCode::SUCCESS
    })
}

fn order(what: &[String], all_of: Option<&BuyerId>) -> Result<Order, String> {
    let outcome =
        |text: &str| Outcome::from_str(text, false).map_err(|_| format!("{text:?} is not accepted or declined"));
    match (what, all_of) {
        ([text], Some(buyer)) => Ok(Order::All(buyer.clone(), outcome(text)?)),
        (_, Some(_)) => Err("with --all only accepted or declined is named".to_owned()),
        ([lead, buyer, text], None) => {
            let lead = lead.parse().map_err(|_| format!("{lead:?} is not a lead id"))?;
            let buyer = BuyerId::new(buyer).map_err(|_| format!("{buyer:?} is not a buyer's id"))?;
            Ok(Order::One(lead, buyer, outcome(text)?))
        }
        (_, None) => Err("name the lead, the buyer, and accepted or declined".to_owned()),
    }
}

async fn ask(admin: &AdminArgs, lead: LeadId, buyer: &BuyerId, outcome: Outcome) -> Result<Value, AskError> {
    let body = json!({ "buyer": buyer.as_str(), "outcome": outcome.as_str() });
    admin.post(&format!("/v1/leads/{lead}/resolve"), Some(&body)).await
}

/// The gateway answers when the books have it, which may take seconds; a person at the terminal is told so.
async fn one(admin: &AdminArgs, lead: LeadId, buyer: &BuyerId, outcome: Outcome) -> Result<Value, AskError> {
    let mut answer = std::pin::pin!(ask(admin, lead, buyer, outcome));
    if let Ok(answer) = tokio::time::timeout(Duration::from_secs(1), &mut answer).await {
        return answer;
    }
    if std::io::stderr().is_terminal() {
        eprintln!("waiting until it is in the books");
    }
    answer.await
}

fn told(answer: &Value) -> String {
    let word = |name: &str| answer[name].as_str().unwrap_or("-");
    format!("{}, the lead is {}", word("outcome"), word("status"))
}

/// One page of doubts after the other; what cannot be resolved now is told and passed over.
async fn all(args: &ResolveArgs, buyer: &BuyerId, outcome: Outcome) -> ExitCode {
    let shows_progress = std::io::stderr().is_terminal();
    let (mut resolved, mut left) = (0_u64, 0_u64);
    let mut after = String::new();
    loop {
        let page = match args.admin.get(&format!("/v1/buyers/{buyer}/doubts{after}")).await {
            Ok(page) => page,
            Err(error) => return fail(&format!("{resolved} resolved, then: {error}")),
        };
        let doubts = page["doubts"].as_array().into_iter().flatten();
        for lead in doubts.filter_map(|doubt| doubt["lead_id"].as_str()?.parse().ok()) {
            match ask(&args.admin, lead, buyer, outcome).await {
                Ok(_) => resolved += 1,
                Err(AskError::Refused { status, detail }) => {
                    left += 1;
                    eprintln!("lead {lead}: {status}: {detail}");
                }
                Err(error) => return fail(&format!("{resolved} resolved, then: {error}")),
            }
            if shows_progress {
                eprint!("\r{resolved} resolved, {left} not ");
            }
        }
        match page["next"].as_str() {
            Some(next) => after = format!("?after={next}"),
            None => break,
        }
    }
    if shows_progress {
        eprintln!();
    }
    if args.json {
        println!("{:#}", json!({ "buyer": buyer.as_str(), "resolved": resolved, "not_resolved": left }));
    } else {
        println!("{resolved} resolved as {}, {left} not", outcome.as_str());
    }
    if left == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAD: &str = "0195a0c2-7d3e-7c4b-8a1f-0242ac120002";

    #[test]
    fn one_attempt_or_all_of_a_buyer_and_nothing_between() {
        let sunco = BuyerId::new("sunco").unwrap();
        let read = |what: &[&str], all_of| order(&what.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), all_of);
        let one = Order::One(LEAD.parse().unwrap(), sunco.clone(), Outcome::Declined);
        assert_eq!(read(&[LEAD, "sunco", "declined"], None), Ok(one));
        assert_eq!(read(&["accepted"], Some(&sunco)), Ok(Order::All(sunco.clone(), Outcome::Accepted)));
        for (what, all_of) in [
            (&["accepted"][..], None),
            (&[LEAD, "sunco"], None),
            (&["x", "sunco", "declined"], None),
            (&[LEAD, "sun co", "declined"], None),
            (&[LEAD, "sunco", "maybe"], None),
            (&["maybe"], Some(&sunco)),
            (&[LEAD, "sunco", "accepted"], Some(&sunco)),
        ] {
            assert!(read(what, all_of).is_err(), "{what:?}");
        }
    }
}
