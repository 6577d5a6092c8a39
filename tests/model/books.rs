//! The books as settlement would keep them, from the journal alone: the state of each attempt by rank.

use std::collections::HashMap;

use capgate::domain::event::{Attempt, EntryId, Event, Mark};
use capgate::domain::id::{BuyerId, LeadId, Partition};
use capgate::ledger::UsageRow;
use capgate::store::Store;
use jiff::Timestamp;

use crate::pure::Place;
use crate::support::LIFE;

type Rows = HashMap<(LeadId, BuyerId), Attempt>;
type Used = HashMap<Place, u64>;

/// Rows and marks.
#[derive(Default)]
pub struct Books {
    rows: Rows,
    /// What is used: before the walk began, and by the rows.
    pub used: Used,
    marks: HashMap<Partition, EntryId>,
}

fn places(row: &Attempt) -> impl Iterator<Item = (Place, u64)> {
    row.windows.iter().filter(|_| row.counted).map(|window| {
        let place = Place { buyer: row.buyer.clone(), cap: window.cap.clone(), start_ms: window.start_ms };
        (place, window.amount)
    })
}

/// A row is made by the event that comes first and moves forward by rank; `settled` has those of before.
fn apply(bytes: &[u8], settled: &Rows, rows: &mut Rows, used: &mut Used) {
    let Event::Attempt(attempt) = Event::from_bytes(bytes).unwrap() else { return };
    let key = (attempt.lead, attempt.buyer.clone());
    if let Some(known) = rows.get(&key).or_else(|| settled.get(&key)) {
        if attempt.outcome.rank() <= known.outcome.rank() {
            return;
        }
        for (place, amount) in places(known) {
            *used.get_mut(&place).unwrap() -= amount;
        }
    }
    for (place, amount) in places(&attempt) {
        *used.entry(place).or_default() += amount;
    }
    rows.insert(key, attempt);
}

impl Books {
    pub fn mark(&self, partition: Partition) -> Mark {
        Mark { partition, life: LIFE, entry: self.marks.get(&partition).copied().unwrap_or_default() }
    }

    /// Settles at most `count_max` entries of a partition and has them trimmed.
    pub async fn settle(&mut self, store: &dyn Store, partition: Partition, count_max: usize) {
        let entries = store.read_journal(&self.mark(partition), count_max).await.unwrap();
        assert!(entries.is_sorted_by_key(|entry| entry.id));
        for entry in &entries {
            apply(&entry.bytes, &Rows::new(), &mut self.rows, &mut self.used);
        }
        if let Some(last) = entries.last() {
            self.marks.insert(partition, last.id);
            store.trim_journal(&self.mark(partition)).await.unwrap();
        }
    }

    /// The right side of P2 for a partition: settled usage + effects of its journal after the mark + its open leases.
    pub async fn must_be(&self, store: &dyn Store, partition: Partition) -> HashMap<Place, u64> {
        let (mut rows, mut used) = (Rows::new(), self.used.clone());
        for entry in store.read_journal(&self.mark(partition), 1_000_000).await.unwrap() {
            apply(&entry.bytes, &self.rows, &mut rows, &mut used);
        }
        for lease in store.open_leases(partition, 1_000_000).await.unwrap() {
            for charge in &lease.charges {
                *used.entry(Place::of(&lease.key.buyer, charge)).or_default() += charge.amount;
            }
        }
        used
    }

    /// For a start from the books.
    pub fn read(&self, partitions: u16) -> (Vec<Mark>, Vec<UsageRow>) {
        let marks = (0..partitions).map(|number| self.mark(Partition(number))).collect();
        let usage = self.used.iter().map(|(place, used)| UsageRow {
            buyer: place.buyer.clone(),
            cap: place.cap.clone(),
            window_start: Timestamp::from_millisecond(place.start_ms).unwrap(),
            used: *used,
        });
        (marks, usage.collect())
    }
}
