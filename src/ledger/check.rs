//! What no ledger can store, found in an event before a transaction is spent on it.

use crate::domain::event::{Attempt, Event, WindowAmount};
use crate::domain::money::Micros;
use crate::domain::outcome::{AttemptOutcome, LeadStatus};

/// Last microsecond of the year 9999, the last one that a DATETIME holds.
const UNIX_US_MAX: i64 = 253_402_300_799_999_999;

/// Looks for what no ledger can store. The text names the fault and never the value (P9).
///
/// # Errors
/// Why the event is a dead letter.
pub(super) fn check(event: &Event) -> Result<(), &'static str> {
    match event {
        Event::Received(received) => {
            check_time(received.received_at_us)?;
            if let Some(claim) = &received.claim {
                hash_of_hex(&claim.hash).ok_or("the key's hash is not 64 hex digits")?;
                if let Some(fingerprint) = &claim.fingerprint {
                    hash_of_hex(fingerprint).ok_or("the fingerprint is not 64 hex digits")?;
                }
            }
            Ok(())
        }
        Event::Attempt(attempt) => {
            check_time(attempt.sent_at_us)?;
            check_time(booked_at_us(attempt))?;
            check_money(attempt.price, attempt.payout)?;
            i64::try_from(attempt.duration_us).map_err(|_| "the duration is out of range")?;
            check_windows(&attempt.windows)?;
            if attempt.books && !is_sale(attempt.outcome) {
                return Err("it books a sale that its outcome is not");
            }
            Ok(())
        }
        Event::Closed(closed) => {
            check_time(closed.closed_at_us)?;
            if closed.status == LeadStatus::Pending {
                return Err("it closes a lead as pending");
            }
            if let Some(sale) = &closed.sale {
                check_money(sale.price, sale.payout)?;
            }
            if closed.books && (closed.buyer.is_none() || closed.sale.is_none()) {
                return Err("it books a sale without a buyer or a price");
            }
            Ok(())
        }
        Event::Parked(_) => Ok(()),
        Event::Returned(returned) => {
            check_time(returned.returned_at_us)?;
            check_money(returned.sale.price, returned.sale.payout)?;
            check_windows(&returned.windows)
        }
    }
}

fn check_time(unix_us: i64) -> Result<(), &'static str> {
    if (0..=UNIX_US_MAX).contains(&unix_us) { Ok(()) } else { Err("a time is out of range") }
}

fn check_windows(windows: &[WindowAmount]) -> Result<(), &'static str> {
    for window in windows {
        check_time(window.start_ms.saturating_mul(1000))?;
        i64::try_from(window.amount).map_err(|_| "a window's amount is out of range")?;
    }
    Ok(())
}

fn check_money(price: Micros, payout: Micros) -> Result<(), &'static str> {
    if price < Micros::ZERO || payout < Micros::ZERO { Err("an amount is negative") } else { Ok(()) }
}

fn is_sale(outcome: AttemptOutcome) -> bool {
    matches!(outcome, AttemptOutcome::Accepted | AttemptOutcome::LateAccepted)
}

/// When the sale of an attempt was made.
pub(super) fn booked_at_us(attempt: &Attempt) -> i64 {
    i64::try_from(attempt.duration_us).map_or(i64::MAX, |duration| attempt.sent_at_us.saturating_add(duration))
}

/// Reads 64 hex digits.
pub(super) fn hash_of_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0_u8; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(hash)
}
