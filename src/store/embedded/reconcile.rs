//! Comparing counters with the books. Part of the state machine.

use super::change::{Change, CounterRecord};
use super::start::sum_unsettled;
use super::state::State;
use crate::domain::event::Mark;
use crate::domain::id::Partition;
use crate::store::{Compared, Comparison, ReconcileReply, StoreError, TAIL_ENTRIES_MAX};

impl State {
    /// Reads tail and leases in the same step as it changes the counters, so the result is exact (P2). An absolute value in
    /// the journal file is a difference here, because nothing comes between.
    pub(super) fn reconcile(&mut self, mark: &Mark, comparisons: &[Comparison]) -> Result<ReconcileReply, StoreError> {
        let count = self.partition_count();
        let is_here = |comparison: &Comparison| Partition::of(comparison.key.buyer.as_str(), count) == mark.partition;
        if !comparisons.iter().all(is_here) {
            return Err(StoreError::Bug("the mark is of another partition than a buyer".to_owned()));
        }
        let state = self.partition(mark.partition)?;
        if !state.is_current() || state.life != Some(mark.life) {
            return Ok(ReconcileReply::NewLife);
        }
        if let Some(journal) = state.journals.get(&mark.life) {
            if journal.trimmed > mark.entry {
                return Ok(ReconcileReply::Stale);
            }
            if journal.after(mark.entry).nth(TAIL_ENTRIES_MAX).is_some() {
                return Ok(ReconcileReply::TailTooLong);
            }
        }
        let sums = sum_unsettled(state, Some(mark));
        let (mut compared, mut repairs) = (Vec::with_capacity(comparisons.len()), Vec::new());
        for Comparison { key, usage, repair } in comparisons {
            let start_ms = key.window.start.as_millisecond();
            let unsettled = sums.get(&(&key.buyer, &key.cap, start_ms)).copied().unwrap_or(0);
            let expected = u64::try_from((i128::from(*usage) + unsettled).max(0)).unwrap_or(u64::MAX);
            let cap = state.buyers.get(&key.buyer).and_then(|buyer| buyer.caps.get(&key.cap));
            let counter = cap.and_then(|cap| cap.windows.get(&start_ms));
            let used = counter.map(|counter| i128::from(counter.used));
            let mut found = Compared { used, expected, is_repaired: false };
            if let Some(counter) = counter
                && found.difference().is_some_and(|difference| difference != 0 && Some(difference) == *repair)
            {
                let (buyer, cap) = (key.buyer.clone(), key.cap.clone());
                repairs.push(CounterRecord { buyer, cap, start_ms, end_ms: counter.end_ms, used: expected });
                found.is_repaired = true;
            }
            compared.push(found);
        }
        drop(sums);
        for counter in repairs {
            self.change(mark.partition, Change::Counter(counter))?;
        }
        Ok(ReconcileReply::Compared(compared))
    }
}
