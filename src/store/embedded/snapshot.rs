//! A partition's whole state as records: what a rewritten journal file begins with.

use super::change::{Change, CounterRecord, Record};
use super::partition::PartitionState;

impl PartitionState {
    /// The whole state as records, to be replayed into an empty partition.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let mut records =
            vec![Record { partition: self.index, number: self.number, change: Change::Reset, event: None }];
        let mut push = |change, event| records.push(Record { partition: self.index, number: 0, change, event });
        push(Change::Life { life: self.life }, None);
        push(Change::ReadBack((&self.read_back).into()), None);
        for (life, journal) in &self.journals {
            push(Change::Journal { life: *life, tip: journal.tip, trimmed: journal.trimmed }, None);
            for entry in &journal.entries {
                let change = Change::Entry { life: *life, id: entry.id, effects: entry.effects.clone() };
                push(change, Some(entry.event.clone()));
            }
        }
        for (lead, known) in &self.leads {
            let change = Change::Lead {
                lead: *lead,
                publisher: known.publisher.clone(),
                claim: known.claim.clone(),
                deadline_us: known.deadline_us,
                answer: known.answer.as_ref().map(|answer| String::from_utf8_lossy(answer).into_owned()),
                expires_ms: known.expires_ms,
            };
            push(change, None);
        }
        for lease in self.leases.values() {
            push(Change::Lease(lease.clone()), None);
        }
        for (buyer, known) in &self.buyers {
            for (cap, counters) in &known.caps {
                for (start_ms, counter) in &counters.windows {
                    let (buyer, cap) = (buyer.clone(), cap.clone());
                    let counter =
                        CounterRecord { buyer, cap, start_ms: *start_ms, end_ms: counter.end_ms, used: counter.used };
                    push(Change::Counter(counter), None);
                }
            }
            let newest = known.caps.iter().filter_map(|(cap, c)| Some((cap.clone(), c.newest_ms?))).collect();
            push(Change::Buyer { buyer: buyer.clone(), version: known.version, caps: newest }, None);
        }
        for (key, ended) in &self.ended {
            let (counts, expires_ms) = (ended.counts.clone(), ended.expires_ms);
            push(Change::Mark { key: key.clone(), mark: ended.mark, counts, expires_ms }, None);
        }
        records
    }
}
