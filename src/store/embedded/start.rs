//! From file and ledger to a running state: replay, rollback check, settled entries, overdue leases, counters.

use std::collections::HashMap;

use jiff::Timestamp;

use super::change::{Change, CounterRecord};
use super::leases::unsettled;
use super::partition::PartitionState;
use super::state::State;
use crate::domain::event::Mark;
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::ledger::UsageRow;
use crate::store::StoreError;

/// Brings a replayed state in line with the ledger's `marks` and `usage`, read in one snapshot.
pub(super) fn catch_up(
    state: &mut State,
    now: Timestamp,
    marks: &[Mark],
    usage: &[UsageRow],
) -> Result<(), StoreError> {
    state.purge_all(now);
    for mark in marks {
        forget_settled(state, mark)?;
    }
    rebuild_counters(state, marks, usage);
    make_leases_due(state, now);
    for partition in &mut state.partitions {
        partition.tell_persons_again();
    }
    Ok(())
}

/// Drops entries at or below the mark. A mark ahead of the file means that the file is an older one than the ledger was
/// settled from: what it holds is no longer the life it claims to be (P8).
fn forget_settled(state: &mut State, mark: &Mark) -> Result<(), StoreError> {
    let partition = state.partition(mark.partition)?;
    let known = partition.journals.get(&mark.life);
    if known.is_some_and(|journal| journal.trimmed >= mark.entry)
        || mark.entry == crate::domain::event::EntryId::default()
    {
        return Ok(());
    }
    let is_rolled_back = partition.life == Some(mark.life) && known.is_none_or(|journal| journal.tip < mark.entry);
    state.change(mark.partition, Change::Trim { life: mark.life, entry: mark.entry })?;
    if is_rolled_back {
        tracing::warn!(partition = mark.partition.0, "journal file is older than the ledger: its life has ended");
        state.change(mark.partition, Change::Life { life: None })?;
    }
    Ok(())
}

/// Counter = settled usage + effects of entries after the mark + open leases (P2). A counter that stands higher in the file
/// is left to reconciliation, which records a difference before it repairs it: too many closes a cap where too few would
/// oversell it (P1).
fn rebuild_counters(state: &mut State, marks: &[Mark], usage: &[UsageRow]) {
    let mut rows: HashMap<Partition, Vec<&UsageRow>> = HashMap::new();
    for row in usage {
        rows.entry(Partition::of(row.buyer.as_str(), state.partition_count())).or_default().push(row);
    }
    for (partition, rows) in rows {
        let mark = marks.iter().find(|mark| mark.partition == partition);
        let Ok(known) = state.partition(partition) else { continue };
        let (mut raised, mut higher) = (Vec::new(), 0_u64);
        let sums = sum_unsettled(known, mark);
        for row in rows {
            let start_ms = row.window_start.as_millisecond();
            let sum = sums.get(&(&row.buyer, &row.cap, start_ms)).copied().unwrap_or(0);
            let used = u64::try_from((i128::from(row.used) + sum).max(0)).unwrap_or(u64::MAX);
            let cap = known.buyers.get(&row.buyer).and_then(|buyer| buyer.caps.get(&row.cap));
            let counter = cap.and_then(|cap| cap.windows.get(&start_ms));
            match counter {
                Some(counter) if counter.used > used => higher += 1,
                Some(counter) if counter.used == used => {}
                Some(_) | None => raised.push(CounterRecord {
                    buyer: row.buyer.clone(),
                    cap: row.cap.clone(),
                    start_ms,
                    end_ms: counter.and_then(|counter| counter.end_ms),
                    used,
                }),
            }
        }
        drop(sums);
        if higher > 0 {
            tracing::warn!(partition = partition.0, counters = higher, "counters stand above the ledger's usage; kept");
        }
        for counter in raised {
            let id = counter.buyer.clone();
            state.change_of(id.as_str(), Change::Counter(counter), None);
        }
    }
}

/// Buyer, cap, window start in milliseconds.
type Place<'a> = (&'a BuyerId, &'a CapId, i64);

/// Sums of [`unsettled`].
pub(super) fn sum_unsettled<'a>(state: &'a PartitionState, mark: Option<&Mark>) -> HashMap<Place<'a>, i128> {
    let mut sums = HashMap::new();
    unsettled(state, mark, |buyer, cap, start_ms, units| *sums.entry((buyer, cap, start_ms)).or_insert(0) += units);
    sums
}

/// Whoever owned an open lease died with the last process: recovery makes it a doubt.
fn make_leases_due(state: &mut State, now: Timestamp) {
    for partition in &mut state.partitions {
        let keys: Vec<_> = partition.leases.keys().cloned().collect();
        for key in keys {
            partition.make_due(&key, now.as_microsecond());
        }
    }
}
