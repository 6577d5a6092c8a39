//! `capgate pause`, `capgate resume`, `capgate reload`: what an operator switches while gateways run.

use std::process::ExitCode;

use clap::Args;

use super::admin_client::AdminArgs;
use super::{block_on, fail};
use crate::domain::id::BuyerId;

#[derive(Debug, Args)]
pub(super) struct PauseArgs {
    /// The buyer's id in the routing file
    buyer: BuyerId,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn pause(args: &PauseArgs) -> ExitCode {
    post(&args.admin, &format!("/v1/buyers/{}/pause", args.buyer), "paused at every gateway, across restarts")
}

pub(super) fn resume(args: &PauseArgs) -> ExitCode {
    post(&args.admin, &format!("/v1/buyers/{}/resume", args.buyer), "gets leads again")
}

pub(super) fn reload(args: &ReloadArgs) -> ExitCode {
    post(&args.admin, "/v1/reload", "the routing file is in force at this gateway")
}

fn post(admin: &AdminArgs, path: &str, done: &str) -> ExitCode {
    block_on(async {
        match admin.post(path, None).await {
            Ok(_) => {
                println!("{done}");
                ExitCode::SUCCESS
            }
            Err(error) => fail(&error.to_string()),
        }
    })
}
