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
    lead_id: LeadId,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
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
