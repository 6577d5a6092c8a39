//! Lives and counters: which life a partition's data is of, and bringing missing counters back from the books.

use super::keys::{escape, life_text};
use super::reply::{Call, Plain};
use super::scripts::Verb;
use super::{RedisStore, expires_at, first_word, nth, unknown_reply};
use crate::domain::event::{Life, Mark};
use crate::domain::id::{BuyerId, CapId, Partition};
use crate::domain::window::Window;
use crate::store::{CounterKey, SeedReply, StoreError, TAIL_ENTRIES_MAX};

/// How often `begin_life` starts over because the list of counters changed under it.
const BEGIN_TRIES_MAX: u32 = 20;

impl RedisStore {
    pub(super) async fn stored_life(&self, partition: Partition) -> Result<Option<Life>, StoreError> {
        let reply = self.client.one("GET", vec![self.keys.life(partition).into()]).await?;
        reply.optional_text()?.map(parse_life).transpose()
    }

    pub(super) async fn begin(&self, partition: Partition, life: Life) -> Result<Life, StoreError> {
        for _ in 0..BEGIN_TRIES_MAX {
            let answer = self.client.run(Verb::BeginLife, &self.begin_call(partition, life).await?).await?;
            let (word, rest) = first_word(&answer.reply)?;
            match word {
                "life" => {
                    // The one asked for, also when a newer one is in force: who is behind gets nothing until it knows (P8).
                    if let Some(known) = self.lives.lock().get_mut(usize::from(partition.0)) {
                        *known = Some(life);
                    }
                    return parse_life(nth(rest, 0)?.text()?);
                }
                "again" => {}
                word => return Err(unknown_reply("begin_life", word)),
            }
        }
        Err(StoreError::NotDone("the partition's counters keep changing".to_owned()))
    }

    /// Keys and arguments of begin_life.lua. The counters it may have to forget are read first, because a script may only touch
    /// keys that it was given.
    async fn begin_call(&self, partition: Partition, life: Life) -> Result<Call, StoreError> {
        let windows = self.keys.windows(partition);
        let mut call = Call::new(vec![self.keys.life(partition), windows.clone()]);
        call.arg(life_text(Some(life)));
        let listed = self.client.one("HGETALL", vec![windows.into()]).await?;
        for pair in listed.list()?.chunks_exact(2) {
            let (field, start) = (nth(pair, 0)?.text()?, nth(pair, 1)?.text()?);
            let counter = self
                .keys
                .counter_of_field(partition, field, start)
                .ok_or_else(|| StoreError::Bug("the list of windows is unreadable".to_owned()))?;
            call.keys.push(counter);
            call.arg(field.to_owned()).arg(start.to_owned());
        }
        Ok(call)
    }

    pub(super) async fn run_seed(
        &self,
        buyer: &BuyerId,
        mark: &Mark,
        counters: &[(CapId, Window, u64)],
    ) -> Result<SeedReply, StoreError> {
        let partition = self.partition(buyer.as_str());
        let Some(life) = self.known_life(partition) else { return Ok(SeedReply::NewLife) };
        if mark.partition != partition {
            return Err(StoreError::Bug("the mark is of another partition than the buyer".to_owned()));
        }
        if mark.life != life {
            // Usage as of another life's mark is not the whole truth about this one.
            return Ok(SeedReply::NewLife);
        }
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.windows(partition),
            self.keys.leases(partition, buyer),
            self.keys.journal(partition, Some(life)),
            self.keys.trimmed(partition, life),
        ]);
        call.arg(life_text(Some(life))).number(mark.entry).number(TAIL_ENTRIES_MAX).arg(buyer.as_str().to_owned());
        for (cap, window, usage) in counters {
            let start = window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, buyer, cap, start));
            call.arg(escape(cap.as_str())).number(start).number((*usage).min(i64::MAX.unsigned_abs()));
            call.arg(expires_at(window));
        }
        let answer = self.client.run(Verb::Seed, &call).await?;
        match first_word(&answer.reply)?.0 {
            "seeded" => Ok(SeedReply::Seeded),
            "stale" => Ok(SeedReply::Stale),
            "life" => Ok(SeedReply::NewLife),
            word => Err(unknown_reply("seed", word)),
        }
    }

    pub(super) async fn read_counters(&self, keys: &[CounterKey]) -> Result<Vec<Option<u64>>, StoreError> {
        let reads = keys.iter().map(|key| {
            let partition = self.partition(key.buyer.as_str());
            let start = key.window.start.as_millisecond();
            Plain::new("GET", vec![self.keys.counter(partition, &key.buyer, &key.cap, start).into()])
        });
        let replies = self.client.plain(reads.collect()).await?;
        replies
            .iter()
            .map(|reply| {
                let parse = |text: &str| {
                    text.parse().map_err(|_| StoreError::Bug("a counter holds no whole number".to_owned()))
                };
                reply.optional_text()?.map(parse).transpose()
            })
            .collect()
    }
}

fn parse_life(text: &str) -> Result<Life, StoreError> {
    text.parse().map(Life).map_err(|_| StoreError::Bug("a partition's life is unreadable".to_owned()))
}
