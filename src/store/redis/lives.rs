//! Lives and counters: which life a partition's data is of, and bringing missing counters back from the books.

use std::time::Duration;

use jiff::Timestamp;

use super::keys::{escape, life_text};
use super::leads::info_text;
use super::reply::{Call, Plain};
use super::restate::entry_id;
use super::scripts::Verb;
use super::{RedisStore, expires_at, first_word, millis, nth, unknown_reply};
use crate::domain::event::{Life, Mark};
use crate::domain::id::{BuyerId, CapId, Partition, PublisherId};
use crate::domain::lease::LeaseKey;
use crate::domain::window::Window;
use crate::ledger::{BookedLead, LeadPlace};
use crate::store::{BeginReply, CounterKey, ReadBack, SeedReply, Standing, StoreError, TAIL_ENTRIES_MAX};

/// How long an admit need not ask the books again about a key that they do not know: the time of its repeats.
const NEW_KEY_FOR: Duration = Duration::from_secs(10);

/// How often `begin_life` starts over because the list of counters changed under it.
const BEGIN_TRIES_MAX: u32 = 20;

impl RedisStore {
    pub(super) async fn read_standing(&self, partition: Partition) -> Result<Standing, StoreError> {
        let mut life = self.known_life(partition);
        // The last entry is that of the journal given: should the data be of a life we do not know, it is read again.
        for _ in 0..2 {
            let call = Call::new(vec![
                self.keys.life(partition),
                self.keys.unread(partition),
                self.keys.journal(partition, life),
            ]);
            let answer = self.client.run(Verb::Life, &call).await?;
            let parts = answer.reply.list()?;
            let stored = match nth(parts, 0)?.text()? {
                "" => None,
                text => Some(parse_life(text)?),
            };
            if stored == life || stored.is_none() {
                return Ok(Standing {
                    life: stored,
                    is_here: nth(parts, 1)?.text()? == "1",
                    is_open: nth(parts, 2)?.text()? == "open",
                    server: nth(parts, 3)?.text()?.to_owned(),
                    tip: entry_id(nth(parts, 5)?)?,
                    newest: entry_id(nth(parts, 6)?)?,
                    read_back: parse_read_back(nth(parts, 4)?.text()?)?,
                });
            }
            life = stored;
        }
        Err(changing())
    }

    pub(super) async fn begin(&self, partition: Partition, life: Life, server: &str) -> Result<BeginReply, StoreError> {
        for _ in 0..BEGIN_TRIES_MAX {
            let answer = self.client.run(Verb::BeginLife, &self.begin_call(partition, life, server).await?).await?;
            let (word, rest) = first_word(&answer.reply)?;
            match word {
                "life" => return Ok(BeginReply::Life(parse_life(nth(rest, 0)?.text()?)?)),
                "elsewhere" => return Ok(BeginReply::Elsewhere),
                "again" => {}
                word => return Err(unknown_reply("begin_life", word)),
            }
        }
        Err(changing())
    }

    /// Keys and arguments of begin_life.lua. What it may have to forget is read first, because a script may only touch keys
    /// that it was given.
    async fn begin_call(&self, partition: Partition, life: Life, server: &str) -> Result<Call, StoreError> {
        let (stored_key, windows) = (self.keys.life(partition), self.keys.windows(partition));
        let stored = self.client.one("GET", vec![stored_key.clone().into()]).await?;
        let stored = stored.optional_text()?.unwrap_or_default().to_owned();
        // Without its key the journal is still there, under the life that this gateway knows.
        let old = stored.split('|').next().and_then(|text| text.parse().ok()).map(Life);
        let old = old.or(self.known_life(partition).filter(|known| *known != life)).unwrap_or(Life(0));
        let mut call = Call::new(vec![
            stored_key,
            self.keys.unread(partition),
            windows.clone(),
            self.keys.journal(partition, Some(life)),
            self.keys.journal(partition, Some(old)),
            self.keys.trimmed(partition, old),
        ]);
        call.number(life.0).arg(server.to_owned()).arg(stored);
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

    pub(super) async fn open(&self, partition: Partition, life: Life) -> Result<bool, StoreError> {
        let mut call = Call::new(vec![self.keys.life(partition)]);
        call.number(life.0);
        self.told(Verb::OpenLife, &call, "open").await
    }

    pub(super) async fn forget(&self, life: Life, key: &LeaseKey) -> Result<(), StoreError> {
        let partition = self.partition(key.buyer.as_str());
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.leases(partition, &key.buyer),
            self.keys.due(partition),
        ]);
        call.number(life.0).arg(key.lead.to_string()).arg(key.buyer.as_str().to_owned());
        self.told(Verb::ForgetLease, &call, "done").await.map(drop)
    }

    pub(super) async fn run_bring_back(&self, lead: &BookedLead, retention: Duration) -> Result<(), StoreError> {
        let partition = self.partition(lead.publisher.as_str());
        let life = self.joined_life(partition).ok_or_else(changing)?;
        let claim = lead.claim.as_ref();
        let mut call = self.record_call(partition, life, &lead.publisher, lead.place.lead, claim);
        // The journal is not touched.
        call.keys.pop();
        call.arg(lead.answer.clone().unwrap_or_default()).arg(info_text(&lead.publisher, claim));
        call.number(lead.place.received_at.as_millisecond().saturating_add(millis(retention)));
        if self.told(Verb::BringBack, &call, "done").await? { Ok(()) } else { Err(changing()) }
    }

    pub(super) async fn run_new_key(&self, publisher: &PublisherId, hash: &str) -> Result<(), StoreError> {
        let partition = self.partition(publisher.as_str());
        let mut call = Call::new(vec![self.keys.life(partition), self.keys.claim(partition, publisher, hash)]);
        call.arg(life_text(self.joined_life(partition))).number(millis(NEW_KEY_FOR));
        self.told(Verb::NewKey, &call, "done").await.map(drop)
    }

    pub(super) async fn run_read_back(
        &self,
        partition: Partition,
        life: Life,
        read: &ReadBack,
    ) -> Result<(), StoreError> {
        let mut call = Call::new(vec![self.keys.life(partition), self.keys.unread(partition)]);
        call.number(life.0).arg(read_back_text(read));
        self.told(Verb::ReadBack, &call, "done").await.map(drop)
    }

    /// Runs a script that answers one word, or `life`; did it answer the word?
    async fn told(&self, verb: Verb, call: &Call, yes: &str) -> Result<bool, StoreError> {
        let answer = self.client.run(verb, call).await?;
        match first_word(&answer.reply)?.0 {
            word if word == yes => Ok(true),
            "life" => Ok(false),
            word => Err(unknown_reply("a life's script", word)),
        }
    }

    pub(super) async fn run_seed(
        &self,
        buyer: &BuyerId,
        mark: &Mark,
        counters: &[(CapId, Window, u64)],
    ) -> Result<SeedReply, StoreError> {
        let partition = self.partition(buyer.as_str());
        let Some(life) = self.joined_life(partition) else { return Ok(SeedReply::NewLife) };
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

/// A place as it stands in the store: `<unix microseconds>|<lead>`, `0` for the beginning, nothing when nothing is missing.
fn read_back_text(read: &ReadBack) -> String {
    match read {
        ReadBack::Done => String::new(),
        ReadBack::UpTo(None) => "0".to_owned(),
        ReadBack::UpTo(Some(place)) => format!("{}|{}", place.received_at.as_microsecond(), place.lead),
    }
}

fn parse_read_back(text: &str) -> Result<ReadBack, StoreError> {
    let parse = || {
        let (us, lead) = text.split_once('|')?;
        let received_at = Timestamp::from_microsecond(us.parse().ok()?).ok()?;
        Some(LeadPlace { received_at, lead: lead.parse().ok()? })
    };
    match text {
        "" => Ok(ReadBack::Done),
        "0" => Ok(ReadBack::UpTo(None)),
        _ => parse()
            .map(|place| ReadBack::UpTo(Some(place)))
            .ok_or_else(|| StoreError::Bug("how far leads were read back is unreadable".to_owned())),
    }
}

fn changing() -> StoreError {
    StoreError::NotDone("the partition's life keeps changing".to_owned())
}

fn parse_life(text: &str) -> Result<Life, StoreError> {
    text.parse().map(Life).map_err(|_| StoreError::Bug("a partition's life is unreadable".to_owned()))
}
