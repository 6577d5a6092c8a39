//! Text forms of what the scripts keep: plain separators, so that a script needs no JSON for what it reads itself.

use std::fmt::Write;

use jiff::Timestamp;

use super::keys::{escape, unescape};
use crate::domain::id::{BuyerId, CapId, LeadId};
use crate::domain::lease::{Charge, EndMark, LeaseKey, OpenLease};
use crate::domain::window::Window;
use crate::store::{Refusal, StoreError};

/// `<cap>|<window start ms>|<window end ms or nothing>|<amount>`, joined by `;`.
pub(super) fn charges_text<'a>(charges: impl IntoIterator<Item = &'a Charge>) -> String {
    let mut out = String::new();
    for charge in charges {
        if !out.is_empty() {
            out.push(';');
        }
        let (start, end) = (charge.window.start.as_millisecond(), end_text(&charge.window));
        // Cannot fail because writing to a String never does.
        let _ = write!(out, "{}|{start}|{end}|{}", escape(charge.cap.as_str()), charge.amount);
    }
    out
}

/// A window's end in milliseconds; nothing for a window without end.
pub(super) fn end_text(window: &Window) -> String {
    window.end.map(|end| end.as_millisecond().to_string()).unwrap_or_default()
}

pub(super) fn parse_ms(text: &str) -> Option<Timestamp> {
    Timestamp::from_millisecond(text.parse().ok()?).ok()
}

fn parse_charges(text: &str) -> Option<Vec<Charge>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(';')
        .map(|part| {
            let mut fields = part.split('|');
            let cap = CapId::new(&unescape(fields.next()?)?);
            let start = parse_ms(fields.next()?)?;
            let end = match fields.next()? {
                "" => None,
                text => Some(parse_ms(text)?),
            };
            Some(Charge { cap, window: Window { start, end }, amount: fields.next()?.parse().ok()? })
        })
        .collect()
}

/// Reads the record of an open lease: gives back (`0` or `1`), taken at, deadline, charges, refusals before it, about; a line
/// each.
pub(super) fn parse_lease(key: LeaseKey, record: &str) -> Result<OpenLease, StoreError> {
    let parse = || {
        let mut lines = record.splitn(6, '\n');
        let gives_back = lines.next()? == "1";
        let taken_at = parse_ms(lines.next()?)?;
        let deadline = parse_ms(lines.next()?)?;
        let charges = parse_charges(lines.next()?)?;
        let _refusals = lines.next()?;
        let about = serde_json::from_str(lines.next()?).ok()?;
        Some((charges, about, taken_at, deadline, gives_back))
    };
    let Some((charges, about, taken_at, deadline, gives_back)) = parse() else {
        return Err(StoreError::Bug(format!("the lease of lead {} at {} is unreadable", key.lead, key.buyer)));
    };
    Ok(OpenLease { key, charges, about, taken_at, deadline, gives_back })
}

/// The record of an open lease, as take.lua writes it; `about` is JSON.
pub(super) fn lease_text(gives_back: bool, taken_at_ms: i64, deadline_ms: i64, charges: &str, about: &str) -> String {
    format!("{}\n{taken_at_ms}\n{deadline_ms}\n{charges}\n\n{about}", u8::from(gives_back))
}

/// When the lease of a record was taken, milliseconds.
pub(super) fn taken_at_of_record(record: &str) -> Option<i64> {
    record.split('\n').nth(1)?.parse().ok()
}

/// The refusals in the record of an open lease.
pub(super) fn refusals_of_record(record: &str) -> &str {
    record.split('\n').nth(4).unwrap_or_default()
}

/// Reads `<lead>:<buyer>`.
pub(super) fn parse_lease_name(name: &str) -> Result<LeaseKey, StoreError> {
    let parse = || {
        let (lead, buyer) = name.split_once(':')?;
        Some(LeaseKey { lead: lead.parse::<LeadId>().ok()?, buyer: BuyerId::new(buyer).ok()? })
    };
    parse().ok_or_else(|| StoreError::Bug("a name in the set of open leases is unreadable".to_owned()))
}

/// Reads the refusals of take.
pub(super) fn parse_refusals(text: &str) -> Result<Vec<(usize, Refusal)>, StoreError> {
    text.split(';')
        .filter(|part| !part.is_empty())
        .map(|part| parse_refusal(part).ok_or_else(|| StoreError::Bug(format!("refusal {part:?} is unreadable"))))
        .collect()
}

fn parse_refusal(text: &str) -> Option<(usize, Refusal)> {
    let mut words = text.split(' ');
    let index = words.next()?.parse().ok()?;
    let cap = |word: &str| unescape(word).map(|text| CapId::new(&text));
    let refusal = match words.next()? {
        "F" => Refusal::Full { cap: cap(words.next()?)?, used: words.next()?.parse().ok()? },
        "W" => Refusal::WrongWindow { store_now: parse_ms(words.next()?)? },
        "Z" => Refusal::OtherWindow {
            cap: cap(words.next()?)?,
            window: Window { start: parse_ms(words.next()?)?, end: Some(parse_ms(words.next()?)?) },
        },
        "U" => Refusal::Unseeded { cap: cap(words.next()?)? },
        "S" => Refusal::Stale { newest: words.next()?.parse().ok()? },
        "E" => Refusal::Ended(EndMark::parse(words.next()?)?),
        "O" => Refusal::Underway,
        "L" => Refusal::NewLife,
        "D" => Refusal::Duplicate { lead: words.next()?.parse().ok()?, since: parse_ms(words.next()?)? },
        "B" => Refusal::AskBooks,
        _ => return None,
    };
    Some((index, refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(cap: &str, end: Option<i64>, amount: u64) -> Charge {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        Charge { cap: CapId::new(cap), window: Window { start: at(1000), end: end.map(at) }, amount }
    }

    #[test]
    fn charges_read_back() {
        for charges in [vec![], vec![charge("day:state=TX|;", Some(5000), 1), charge("total", None, u64::MAX)]] {
            assert_eq!(parse_charges(&charges_text(&charges)), Some(charges));
        }
        assert_eq!(parse_charges("day|1|2"), None);
    }

    #[test]
    fn refusals_read_back_and_unknown_ones_are_a_bug() {
        let text = "0 F day%3Aspend 12;1 W 1500;2 U day;3 S 9;4 E committed;5 L;6 O;7 Z day 1500 1500";
        let at = Timestamp::from_millisecond(1500).unwrap();
        assert_eq!(
            parse_refusals(text),
            Ok(vec![
                (0, Refusal::Full { cap: CapId::new("day:spend"), used: 12 }),
                (1, Refusal::WrongWindow { store_now: at }),
                (2, Refusal::Unseeded { cap: CapId::new("day") }),
                (3, Refusal::Stale { newest: 9 }),
                (4, Refusal::Ended(EndMark::Committed)),
                (5, Refusal::NewLife),
                (6, Refusal::Underway),
                (7, Refusal::OtherWindow { cap: CapId::new("day"), window: Window { start: at, end: Some(at) } }),
            ])
        );
        assert_eq!(parse_refusals(""), Ok(vec![]));
        assert!(parse_refusals("0 X").is_err());
    }
}
