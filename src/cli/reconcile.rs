//! `capgate reconcile`: exit 0 when counters and books agree, 1 when they differ or could not all be compared.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::admin_client::AdminArgs;
use super::table::table;
use super::{FAILED, block_on, fail};

#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    /// Only show what differs; nothing is written
    #[arg(long)]
    dry_run: bool,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HEADER: [&str; 7] = ["BUYER", "CAP", "COUNTER", "BOOKS", "DIFFERENCE", "WINDOW START (UTC)", "ACTION"];

pub(super) fn run(args: &ReconcileArgs) -> ExitCode {
    block_on(async {
        let path = if args.dry_run { "/v1/reconcile?dry_run=1" } else { "/v1/reconcile" };
        let report = match args.admin.post(path, None).await {
            Ok(report) => report,
            Err(error) => return fail(&error.to_string()),
        };
        if args.json {
            println!("{report:#}");
        } else {
            print!("{}", as_text(&report));
        }
        if is_clean(&report) { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
    })
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().map_or(&[], Vec::as_slice)
}

/// An answer without lists is no proof that nothing differs.
fn is_clean(report: &Value) -> bool {
    ["differences", "skipped"].iter().all(|name| report[*name].as_array().is_some_and(Vec::is_empty))
}

fn as_text(report: &Value) -> String {
    let differences = list(report, "differences");
    let mut text = String::new();
    if !differences.is_empty() {
        let cell = |row: &Value, name: &str| row[name].as_str().unwrap_or("?").to_owned();
        let action = |row: &Value| match row["action"].as_str() {
            Some("keep_limit") => "kept: more than one run may lower".to_owned(),
            Some("keep_unproven") => "kept: dead letters, the books may lack units".to_owned(),
            _ if report["dry_run"] == true => "none: dry run".to_owned(),
            _ if row["repaired"] == true => "repaired".to_owned(),
            _ => "none: it changed meanwhile".to_owned(),
        };
        let row = |row: &Value| {
            let names = ["buyer", "cap", "counter", "expected", "difference", "window_start"];
            names.iter().map(|name| cell(row, name)).chain([action(row)]).collect::<Vec<_>>()
        };
        text += &table(&HEADER, differences.iter().map(row).collect(), &(2..5));
    }
    for skipped in list(report, "skipped") {
        let reason = skipped["reason"].as_str().unwrap_or("no reason given");
        text.push_str(&["partition ", &skipped["partition"].to_string(), " was not compared: ", reason, "\n"].concat());
    }
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let seeded = if report["dry_run"] == true { 0 } else { count("unseeded") };
    let (compared, differ) = (count("compared"), differences.len());
    let summary = format!(
        "{compared} counters compared, {differ} differences, {seeded} missing counters seeded from the books\n"
    );
    text + &summary
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_says_what_was_done_and_only_an_empty_one_is_clean() {
        let row = |action: &str, repaired: bool| {
            json!({"buyer": "sunco", "cap": "day", "window_start": "2026-03-08T05:00:00Z", "counter": "9",
                "expected": "7", "difference": "2", "action": action, "repaired": repaired})
        };
        let mut report = json!({"dry_run": false, "compared": 12, "unseeded": 1, "skipped": [],
            "differences": [row("lower", true), row("raise", false), row("keep_limit", false)]});
        let text = as_text(&report);
        for part in
            ["repaired", "changed meanwhile", "more than one run", "12 counters compared, 3 differences, 1 missing"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(!is_clean(&report));
        report["dry_run"] = json!(true);
        assert!(as_text(&report).contains("dry run") && !as_text(&report).contains("repaired"));
        report["differences"] = json!([]);
        assert!(is_clean(&report));
        report["skipped"] = json!([{"partition": 3, "reason": "closed"}]);
        assert!(!is_clean(&report) && as_text(&report).contains("partition 3 was not compared: closed"));
        assert!(!is_clean(&json!({})));
    }
}
