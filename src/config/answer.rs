//! `[buyer.answer]`: how a buyer's answer is read.

use std::time::Duration;

use super::item::{Item, Reader};
use crate::domain::pointer::is_pointer;
use crate::domain::routing::{AnswerRule, AnswerRules, AnswerText, On5xx};

/// Largest compiled form of an operator's regular expression (P7). Matching is linear in the answer whatever it says.
const REGEX_BYTES_MAX: usize = 1024 * 1024;
/// Thirty days: longest time for a decision.
const PENDING_S_MAX: u64 = 30 * 24 * 60 * 60;

fn default_rule() -> AnswerRule {
    AnswerRule::Path { pointer: "/status".to_owned(), values: vec!["accepted".to_owned()] }
}

/// `None` when something is wrong with it.
pub(super) fn read(table: Option<Reader<'_>>) -> Option<AnswerRules> {
    let Some(reader) = table else {
        return Some(AnswerRules {
            accepted: default_rule(),
            duplicate: None,
            on_5xx: On5xx::Declined,
            pending_within: None,
            price: None,
            reason: None,
            redirect_url: None,
            reference: None,
            is_explicit: false,
        });
    };
    // A rule that is wrong must never fall back to the default one.
    let accepted = match reader.item("accepted") {
        Some(item) => rules(&item),
        None => Some(default_rule()),
    };
    let duplicate = reader.item("duplicate").map(|item| rules(&item));
    let on_5xx = reader
        .item("on_5xx")
        .and_then(|item| item.choice(&[("declined", On5xx::Declined), ("in_doubt", On5xx::InDoubt)]))
        .unwrap_or(On5xx::Declined);
    let answer = AnswerRules {
        accepted: accepted?,
        duplicate: duplicate.map_or(Some(None), |rule| rule.map(Some))?,
        on_5xx,
        pending_within: reader
            .item("pending_within_s")
            .and_then(|item| item.integer_in((1, PENDING_S_MAX)))
            .map(Duration::from_secs),
        price: reader.item("price").and_then(|item| text(&item)),
        reason: reader.item("reason").and_then(|item| text(&item)),
        redirect_url: reader.item("redirect_url").and_then(|item| text(&item)),
        reference: reader.item("reference").and_then(|item| text(&item)),
        is_explicit: true,
    };
    reader.finish();
    Some(answer)
}

/// One rule, or a list of which any may match.
fn rules(item: &Item<'_>) -> Option<AnswerRule> {
    if !item.is_list() {
        return rule(item);
    }
    let items = item.list("a list of rules");
    if items.is_empty() {
        item.fail("is empty and would match nothing", "at least one rule, or leave the key out");
        return None;
    }
    // All of them are read, for their problems.
    let rules: Vec<Option<AnswerRule>> = items.iter().map(rule).collect();
    rules.into_iter().collect::<Option<Vec<_>>>().map(AnswerRule::AnyOf)
}

fn rule(item: &Item<'_>) -> Option<AnswerRule> {
    const RIGHT: &str = "{ path = \"/status\", in = [\"accepted\"] }, { path = \"/status\", matches = \"regex\" }, { status = [201] } or { body_matches = \"regex\" }";
    let reader = item.table()?;
    let path = reader.item("path");
    let values = reader.item("in");
    let matches = reader.item("matches");
    let status = reader.item("status");
    let body = reader.item("body_matches");
    let rule = match (&path, &values, &matches, &status, &body) {
        (Some(path), Some(values), None, None, None) => {
            let (pointer, values) = (pointer(path), values.values());
            pointer.map(|pointer| AnswerRule::Path { pointer, values })
        }
        (Some(path), None, Some(matches), None, None) => {
            let (pointer, regex) = (pointer(path), regex(matches));
            pointer.zip(regex).map(|(pointer, regex)| AnswerRule::PathMatches { pointer, regex })
        }
        (None, None, None, Some(status), None) => statuses(status).map(AnswerRule::Status),
        (None, None, None, None, Some(body)) => regex(body).map(AnswerRule::BodyMatches),
        _ => {
            reader.fail("", "is not one whole rule", RIGHT);
            None
        }
    };
    reader.finish();
    rule
}

/// `"/path"`, or `{ body_matches = "regex with one (group)" }` for answers that are neither JSON nor XML.
fn text(item: &Item<'_>) -> Option<AnswerText> {
    if !item.is_table() {
        return pointer(item).map(AnswerText::Path);
    }
    let reader = item.table()?;
    let body = reader.required("body_matches", "a path such as \"/price\", or { body_matches = \"price=([0-9.]+)\" }");
    reader.finish();
    let body = body?;
    let regex = regex(&body)?;
    if regex.captures_len() < 2 {
        body.fail(
            "has no group, so it finds nothing",
            "brackets around the part that is meant, such as \"price=([0-9.]+)\"",
        );
        return None;
    }
    Some(AnswerText::Capture(regex))
}

/// RFC 6901: empty, or steps that each start with a slash; `~` only as `~0` and `~1`.
pub(super) fn pointer(item: &Item<'_>) -> Option<String> {
    let text = item.text()?;
    if !is_pointer(text) {
        item.fail("is not a JSON pointer", "a path such as \"/status\" or \"/result/0/price\"");
        return None;
    }
    Some(text.to_owned())
}

/// 5xx is ruled by `on_5xx`, and 1xx is no answer.
fn statuses(item: &Item<'_>) -> Option<Vec<u16>> {
    let items = item.list("a list of HTTP statuses");
    let statuses: Vec<u16> = items.iter().filter_map(|item| item.integer_in((200, 499))).collect();
    if items.is_empty() {
        item.fail("names no status", "a list of HTTP statuses, such as [201]");
    }
    (!statuses.is_empty()).then_some(statuses)
}

fn regex(item: &Item<'_>) -> Option<regex::Regex> {
    let text = item.word()?;
    match regex::RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build() {
        Ok(regex) => Some(regex),
        Err(regex::Error::CompiledTooBig(_)) => {
            item.fail("compiles to more than a mebibyte", "a simpler regular expression");
            None
        }
        Err(_) => {
            item.fail("is not a regular expression", "for example \"(?i)^ok\"");
            None
        }
    }
}
