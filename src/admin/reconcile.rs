//! A reconciliation as the admin API tells it.

use serde_json::{Value, json};

use crate::domain::cap::Limit;
use crate::domain::money::Micros;
use crate::settle::reconcile::{Difference, Report, Skipped};

/// `{"dry_run":..,"compared":..,"unseeded":..,"differences":[..],"skipped":[..]}`; money caps show decimal amounts.
pub(super) fn as_json(report: &Report) -> Value {
    json!({
        "dry_run": report.is_dry_run,
        "compared": report.compared,
        "unseeded": report.unseeded,
        "differences": report.differences.iter().map(difference).collect::<Vec<_>>(),
        "skipped": report.skipped.iter().map(skipped).collect::<Vec<_>>(),
    })
}

fn difference(found: &Difference) -> Value {
    let show = |units: i128| match found.limit {
        Limit::Leads(_) => units.to_string(),
        Limit::Spend(_) => {
            Micros(i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })).to_string()
        }
    };
    let expected = i128::from(found.expected);
    json!({
        "buyer": found.key.buyer.as_str(),
        "cap": found.key.cap.as_str(),
        "window_start": found.key.window.start.to_string(),
        "counter": show(found.used),
        "expected": show(expected),
        "difference": show(found.used - expected),
        "action": found.action.as_str(),
        "repaired": found.is_repaired,
    })
}

fn skipped(skipped: &Skipped) -> Value {
    json!({ "partition": skipped.partition.0, "reason": skipped.reason })
}
