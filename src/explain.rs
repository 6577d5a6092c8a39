//! Everything about one lead, as JSON for programs and as text for people (P10).

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::domain::id::BuyerId;
use crate::ledger::{AttemptRow, EntryRow, LeadDetail, ReturnRow};

/// The lead, its explanation, attempts and entries.
#[must_use]
pub fn as_json(detail: &LeadDetail) -> Value {
    let lead = &detail.lead;
    json!({
        "lead_id": lead.lead.to_string(),
        "publisher": lead.publisher.as_str(),
        "campaign": lead.campaign.as_str(),
        "status": lead.status.as_str(),
        "reason": lead.reason,
        "buyer": lead.buyer.as_ref().map(BuyerId::as_str),
        "price": lead.price.map(|price| price.to_string()),
        "payout": lead.payout.map(|payout| payout.to_string()),
        "currency": lead.currency.map(|currency| currency.as_str().to_owned()),
        "test": lead.is_test,
        "received_at": lead.received_at.to_string(),
        "closed_at": lead.closed_at.map(|at| at.to_string()),
        "answer": lead.answer.as_deref().map(text_as_json),
        "explanation": lead.explanation.as_deref().map(text_as_json),
        "attempts": detail.attempts.iter().map(attempt).collect::<Vec<_>>(),
        "entries": detail.entries.iter().map(entry).collect::<Vec<_>>(),
        "returns": detail.returns.iter().map(returned).collect::<Vec<_>>(),
    })
}

fn text_as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn attempt(row: &AttemptRow) -> Value {
    json!({
        "buyer": row.buyer.as_str(),
        "ordinal": row.ordinal,
        "outcome": row.outcome.as_str(),
        "counted": row.counted,
        "http_status": row.http_status,
        "reason": row.reason,
        "reference": row.reference,
        "sent_at": row.sent_at.to_string(),
        "duration_us": row.duration_us,
        "windows": text_as_json(&row.windows),
    })
}

fn entry(row: &EntryRow) -> Value {
    json!({
        "buyer": row.buyer.as_str(),
        "account": row.account,
        "amount": row.amount.to_string(),
        "currency": row.currency.as_str(),
        "kind": row.kind,
        "booked_at": row.booked_at.to_string(),
    })
}

fn returned(row: &ReturnRow) -> Value {
    json!({
        "buyer": row.buyer.as_str(),
        "reason": row.reason,
        "cap_freed": row.frees_cap,
        "returned_at": row.returned_at.to_string(),
    })
}

/// The same for people, from the JSON that the admin listener gives.
#[must_use]
pub fn as_text(lead: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    // Writing into a String cannot fail.
    let _ = writeln!(out, "lead {}  {}", text(&lead["lead_id"]), text(&lead["status"]));
    for name in ["reason", "publisher", "campaign", "buyer", "price", "payout", "currency", "received_at", "closed_at"]
    {
        if !lead[name].is_null() {
            let _ = writeln!(out, "  {name:<12} {}", text(&lead[name]));
        }
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let _ = writeln!(out, "candidates (routing {})", text(&lead["explanation"]["routing_version"]));
    for candidate in list(&lead["explanation"]["candidates"]) {
        let values = candidate["values"].as_object().map(|values| {
            values.iter().map(|(name, value)| format!("{name}={}", text(value))).collect::<Vec<_>>().join(" ")
        });
        let _ = writeln!(
            out,
            "  {:<20} {:<12} {}",
            text(&candidate["buyer"]),
            text(&candidate["check"]),
            values.unwrap_or_default()
        );
    }
    let _ = writeln!(out, "attempts");
    for attempt in list(&lead["attempts"]) {
        let _ = writeln!(
            out,
            "  {:>2} {:<20} {:<14} http={} {} us {}{}",
            text(&attempt["ordinal"]),
            text(&attempt["buyer"]),
            text(&attempt["outcome"]),
            text(&attempt["http_status"]),
            text(&attempt["duration_us"]),
            text(&attempt["reason"]),
            attempt["reference"].as_str().map(|reference| format!(" reference={reference}")).unwrap_or_default()
        );
    }
    let _ = writeln!(out, "entries");
    for entry in list(&lead["entries"]) {
        let _ = writeln!(
            out,
            "  {:<28} {:>14} {} {}",
            text(&entry["account"]),
            text(&entry["amount"]),
            text(&entry["currency"]),
            text(&entry["kind"])
        );
    }
    for returned in list(&lead["returns"]) {
        let freed = if returned["cap_freed"] == true { "cap freed" } else { "cap kept" };
        let _ = writeln!(
            out,
            "returned by {} at {}, {freed}: {}",
            text(&returned["buyer"]),
            text(&returned["returned_at"]),
            text(&returned["reason"])
        );
    }
    out
}
