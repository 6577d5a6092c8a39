//! Counters of one buyer's caps, by window.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::change::Held;
use crate::domain::id::CapId;
use crate::domain::window::Window;

/// Counters outlive their window this long, so that late refunds and reconciliation still see them (F01).
const COUNTER_SLACK_MS: i64 = 2 * 24 * 3_600_000;
/// Longest window with an end, for counters whose end is not known.
const WINDOW_MS_MAX: i64 = 32 * 24 * 3_600_000;

/// One window's counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    pub(super) used: u64,
    pub(super) end_ms: Option<i64>,
}

/// A cap's counters by window start.
#[derive(Debug, Default)]
pub(super) struct CapCounters {
    pub(super) windows: BTreeMap<i64, Counter>,
    /// Start of the newest window that had a counter.
    pub(super) newest_ms: Option<i64>,
}

impl CapCounters {
    pub(super) fn set(&mut self, start_ms: i64, end_ms: Option<i64>, used: u64) {
        self.windows.insert(start_ms, Counter { used, end_ms });
        self.newest_ms = self.newest_ms.max(Some(start_ms));
    }

    /// The newest window, if it has an end.
    pub(super) fn newest(&self) -> Option<Window> {
        let start_ms = self.newest_ms?;
        let end_ms = self.windows.get(&start_ms)?.end_ms?;
        let instant = |ms| Timestamp::from_millisecond(ms).ok();
        Some(Window { start: instant(start_ms)?, end: Some(instant(end_ms)?) })
    }

    pub(super) fn charge(&mut self, held: &Held, now_ms: i64) {
        if !self.windows.contains_key(&held.start_ms) {
            self.set(held.start_ms, held.end_ms, 0);
            // New windows are what makes a cap grow, so this is where the old ones go.
            self.windows.retain(|start_ms, counter| {
                let end_ms = counter.end_ms.or((*start_ms != 0).then(|| start_ms.saturating_add(WINDOW_MS_MAX)));
                end_ms.is_none_or(|end_ms| end_ms.saturating_add(COUNTER_SLACK_MS) > now_ms)
            });
        }
        if let Some(counter) = self.windows.get_mut(&held.start_ms) {
            counter.used = counter.used.saturating_add(held.amount);
            counter.end_ms = held.end_ms;
        }
    }
}

/// What is known of a buyer.
#[derive(Debug, Default)]
pub(super) struct Buyer {
    /// Newest routing version seen.
    pub(super) version: u64,
    pub(super) caps: HashMap<CapId, CapCounters>,
}

/// Sums of signed units per cap window.
#[derive(Default)]
pub(super) struct Moves(pub(super) Vec<(CapId, i64, i128)>);

impl Moves {
    pub(super) fn add(&mut self, cap: &CapId, start_ms: i64, units: i128) {
        match self.0.iter_mut().find(|(c, start, _)| c == cap && *start == start_ms) {
            Some((_, _, sum)) => *sum += units,
            None => self.0.push((cap.clone(), start_ms, units)),
        }
    }
}
