//! What settlement and recovery read: the journal, and leases that are open.

use super::keys::life_text;
use super::record::{parse_lease, parse_lease_name};
use super::reply::{Call, Plain};
use super::scripts::Verb;
use super::{Bytes, RedisStore, Reply, first_word, nth, unknown_reply};
use crate::domain::event::{EntryId, JournalEntry, Mark};
use crate::domain::id::Partition;
use crate::domain::lease::{LeaseKey, OpenLease};
use crate::store::StoreError;

impl RedisStore {
    pub(super) async fn read_entries(&self, mark: &Mark, count_max: usize) -> Result<Vec<JournalEntry>, StoreError> {
        if count_max == 0 {
            return Ok(Vec::new());
        }
        let mut call =
            Call::new(vec![self.keys.life(mark.partition), self.keys.journal(mark.partition, Some(mark.life))]);
        call.number(mark.life.0).number(mark.entry).number(count_max);
        let answer = self.client.run(Verb::Read, &call).await?;
        match first_word(&answer.reply)? {
            ("entries", rest) => nth(rest, 0)?.list()?.iter().map(parse_entry).collect(),
            // What stands in other data is settled when it is in the mark's life.
            ("life", _) => Ok(Vec::new()),
            (word, _) => Err(unknown_reply("read", word)),
        }
    }

    pub(super) async fn run_trim(&self, mark: &Mark) -> Result<(), StoreError> {
        let mut call = Call::new(vec![
            self.keys.life(mark.partition),
            self.keys.journal(mark.partition, Some(mark.life)),
            self.keys.trimmed(mark.partition, mark.life),
        ]);
        call.number(mark.life.0).number(mark.entry).number(after(mark.entry));
        self.client.run(Verb::Trim, &call).await?;
        Ok(())
    }

    pub(super) async fn read_tip(&self, partition: Partition) -> Result<EntryId, StoreError> {
        let life = self.known_life(partition);
        if life.is_none() {
            return Ok(EntryId::default());
        }
        let call = Call::new(vec![self.keys.journal(partition, life)]);
        parse_id(&self.client.run(Verb::Tip, &call).await?.reply)
    }

    /// Leases past their deadline by the store's own clock, oldest first.
    pub(super) async fn overdue_names(&self, partition: Partition, count_max: usize) -> Result<Reply, StoreError> {
        let mut call = Call::new(vec![self.keys.life(partition), self.keys.due(partition)]);
        call.arg(life_text(self.joined_life(partition))).number(count_max);
        Ok(self.client.run(Verb::Overdue, &call).await?.reply)
    }

    /// All open leases, soonest deadline first.
    pub(super) async fn open_names(&self, partition: Partition, count_max: usize) -> Result<Reply, StoreError> {
        if count_max == 0 {
            return Ok(Reply::Nil);
        }
        let args = vec![self.keys.due(partition).into(), Bytes::from_static(b"0"), (count_max - 1).to_string().into()];
        self.client.one("ZRANGE", args).await
    }

    pub(super) async fn read_leases(&self, partition: Partition, names: Reply) -> Result<Vec<OpenLease>, StoreError> {
        let names: Vec<LeaseKey> =
            names.list()?.iter().map(|name| parse_lease_name(name.text()?)).collect::<Result<_, _>>()?;
        let reads = names.iter().map(|name| {
            let leases = self.keys.leases(partition, &name.buyer);
            Plain::new("HGET", vec![leases.into(), name.lead.to_string().into()])
        });
        let records = self.client.plain(reads.collect()).await?;
        let mut leases = Vec::with_capacity(names.len());
        let mut strays = Vec::new();
        for (name, record) in names.into_iter().zip(&records) {
            match record.optional_text()? {
                Some(record) => leases.push(parse_lease(name, record)?),
                None => strays.push(name),
            }
        }
        self.forget_strays(partition, &strays).await?;
        Ok(leases)
    }

    /// A name without a record has ended between the two reads, and then is gone already; or its record was lost, and then it
    /// would stand in front of all others for ever.
    async fn forget_strays(&self, partition: Partition, strays: &[LeaseKey]) -> Result<(), StoreError> {
        let removals = strays.iter().map(|name| {
            Plain::new("ZREM", vec![self.keys.due(partition).into(), format!("{}:{}", name.lead, name.buyer).into()])
        });
        self.client.plain(removals.collect()).await?;
        Ok(())
    }
}

/// The smallest id after this one.
fn after(id: EntryId) -> EntryId {
    match id.seq.checked_add(1) {
        Some(seq) => EntryId { ms: id.ms, seq },
        None => EntryId { ms: id.ms.saturating_add(1), seq: 0 },
    }
}

fn parse_id(reply: &Reply) -> Result<EntryId, StoreError> {
    reply.text()?.parse().map_err(StoreError::Bug)
}

/// Reads `[id, [e, event, ...]]`. An entry without an event is somebody else's; settlement decides about its empty text.
fn parse_entry(reply: &Reply) -> Result<JournalEntry, StoreError> {
    let parts = reply.list()?;
    let id = parse_id(nth(parts, 0)?)?;
    let mut bytes = Vec::new();
    for pair in nth(parts, 1)?.list()?.chunks_exact(2) {
        if nth(pair, 0)?.bytes()? == b"e".as_slice() {
            bytes = nth(pair, 1)?.bytes()?.to_vec();
        }
    }
    Ok(JournalEntry { id, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_after_one_is_the_smallest_that_is_larger() {
        assert_eq!(after(EntryId { ms: 5, seq: 7 }), EntryId { ms: 5, seq: 8 });
        assert_eq!(after(EntryId { ms: 5, seq: u64::MAX }), EntryId { ms: 6, seq: 0 });
    }
}
