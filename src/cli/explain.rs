//! `capgate explain`

use std::process::ExitCode;

use clap::Args;

use super::admin_client::AdminArgs;
use super::{block_on, fail};
use crate::domain::id::LeadId;
use crate::explain;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The lead's id
    #[arg(value_parser = parse_lead_id)]
    lead_id: LeadId,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

fn parse_lead_id(text: &str) -> Result<LeadId, String> {
    text.parse().map_err(|_| "a lead id looks like 0195a0c2-7d3e-7c4b-8a1f-0242ac120002".to_owned())
}

pub(super) fn run(args: &ExplainArgs) -> ExitCode {
    block_on(async {
        match args.admin.get(&format!("/v1/leads/{}", args.lead_id)).await {
            Ok(lead) if args.json => println!("{lead:#}"),
            Ok(lead) => print!("{}", explain::as_text(&lead)),
            Err(error) => return fail(&error.to_string()),
        }
        ExitCode::SUCCESS
    })
}
