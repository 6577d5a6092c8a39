//! `capgate caps`

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::admin_client::AdminArgs;
use super::table::table;
use super::{block_on, fail};
use crate::domain::id::BuyerId;

#[derive(Debug, Args)]
pub(super) struct CapsArgs {
    /// Only this buyer
    #[arg(long)]
    buyer: Option<BuyerId>,
    /// The leads that make up the count of one cap of the buyer (by the cap's id, like day or month:spend)
    #[arg(long, value_name = "CAP", requires = "buyer")]
    leads: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const COLUMNS: [(&str, &str); 9] = [
    ("buyer", "BUYER"),
    ("cap", "CAP"),
    ("limit", "LIMIT"),
    ("used", "USED"),
    ("open", "OPEN"),
    ("in_doubt", "IN DOUBT"),
    ("free", "FREE"),
    ("resets_at_local", "RESETS (BUYER)"),
    ("resets_at", "RESETS (UTC)"),
];

const LEAD_COLUMNS: [&str; 4] = ["lead_id", "state", "amount", "at"];

pub(super) fn run(args: &CapsArgs) -> ExitCode {
    block_on(async {
        if let (Some(buyer), Some(cap)) = (&args.buyer, &args.leads) {
            return leads(args, buyer, cap).await;
        }
        let path = args.buyer.as_ref().map_or_else(|| "/v1/caps".to_owned(), |buyer| format!("/v1/caps?buyer={buyer}"));
        match args.admin.get(&path).await {
            Ok(caps) if args.json => println!("{caps:#}"),
            Ok(caps) => print!("{}", as_text(&caps)),
            Err(error) => return fail(&error.to_string()),
        }
        ExitCode::SUCCESS
    })
}

/// One page after the other; with `--json` one lead a line.
async fn leads(args: &CapsArgs, buyer: &BuyerId, cap: &str) -> ExitCode {
    let mut after: Option<String> = None;
    loop {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("buyer", buyer.as_str()).append_pair("cap", cap);
        if let Some(after) = &after {
            query.append_pair("after", after);
        }
        let page = match args.admin.get(&format!("/v1/caps/leads?{}", query.finish())).await {
            Ok(page) => page,
            Err(error) => return fail(&error.to_string()),
        };
        for lead in page["leads"].as_array().into_iter().flatten() {
            if args.json {
                println!("{lead}");
            } else {
                let words: Vec<&str> = LEAD_COLUMNS.iter().map(|name| lead[*name].as_str().unwrap_or("-")).collect();
                println!("{}", words.join("  "));
            }
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return ExitCode::SUCCESS,
        }
    }
}

fn as_text(caps: &Value) -> String {
    let rows = caps["caps"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| COLUMNS.iter().map(|(name, _)| cell(row, name)).collect())
        .collect();
    table(&COLUMNS.map(|(_, title)| title), rows, &(2..7))
}

fn cell(row: &Value, name: &str) -> String {
    let text = row[name].as_str().unwrap_or("never");
    if name == "buyer" && row["paused"] == true { format!("{text} (paused)") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up_and_total_caps_never_reset() {
        let caps = serde_json::json!({"caps": [
            {"buyer": "sunco", "cap": "day", "limit": "500", "used": "37", "open": "2", "in_doubt": "0", "free": "463",
             "resets_at": "2026-03-09T04:00:00Z", "resets_at_local": "2026-03-09T00:00:00-04:00"},
            {"buyer": "sunco", "paused": true, "cap": "total", "limit": "9", "used": "9", "open": "0", "in_doubt": "0", "free": "0",
             "resets_at": null, "resets_at_local": null},
        ]});
        let text = as_text(&caps);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("BUYER "));
        assert!(lines[1].starts_with("sunco  ") && lines[2].starts_with("sunco (paused)  "));
        assert_eq!(lines[0].find("LIMIT").map(|at| at + 5), lines[1].find("500").map(|at| at + 3));
        assert!(lines[2].ends_with("never"));
    }
}
