//! Comparing counters with the books.

use super::keys::{escape, life_text};
use super::reply::{Call, Reply};
use super::scripts::Verb;
use super::{Bytes, RedisStore, first_word, nth, unknown_reply};
use crate::domain::event::{Life, Mark};
use crate::domain::id::BuyerId;
use crate::store::{Compared, Comparison, ReconcileReply, StoreError, TAIL_ENTRIES_MAX};

/// Replies per counter.
const PARTS: usize = 3;

impl RedisStore {
    pub(super) async fn run_reconcile(
        &self,
        mark: &Mark,
        comparisons: &[Comparison],
    ) -> Result<ReconcileReply, StoreError> {
        let Some(life) = self.joined_life(mark.partition) else { return Ok(ReconcileReply::NewLife) };
        if mark.life != life {
            // Usage as of another life's mark is not the whole truth about this one.
            return Ok(ReconcileReply::NewLife);
        }
        let answer = self.client.run(Verb::Reconcile, &self.reconcile_call(mark, life, comparisons)?).await?;
        let (word, rest) = first_word(&answer.reply)?;
        match word {
            "compared" if rest.len() == PARTS * comparisons.len() => {
                rest.chunks_exact(PARTS).map(parse_compared).collect::<Result<_, _>>().map(ReconcileReply::Compared)
            }
            "stale" => Ok(ReconcileReply::Stale),
            "long" => Ok(ReconcileReply::TailTooLong),
            "life" => Ok(ReconcileReply::NewLife),
            word => Err(unknown_reply("reconcile", word)),
        }
    }

    /// Keys and arguments of reconcile.lua.
    fn reconcile_call(&self, mark: &Mark, life: Life, comparisons: &[Comparison]) -> Result<Call, StoreError> {
        let partition = mark.partition;
        let mut buyers: Vec<&BuyerId> = comparisons.iter().map(|comparison| &comparison.key.buyer).collect();
        buyers.sort_unstable();
        buyers.dedup();
        if buyers.iter().any(|buyer| self.partition(buyer.as_str()) != partition) {
            return Err(StoreError::Bug("the mark is of another partition than a buyer".to_owned()));
        }
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.journal(partition, Some(life)),
            self.keys.trimmed(partition, life),
        ]);
        call.arg(life_text(Some(life))).number(mark.entry).number(TAIL_ENTRIES_MAX).number(buyers.len());
        for buyer in buyers {
            call.keys.push(self.keys.leases(partition, buyer));
            call.arg(buyer.as_str().to_owned());
        }
        for Comparison { key, usage, repair } in comparisons {
            let start = key.window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, &key.buyer, &key.cap, start));
            call.arg(key.buyer.as_str().to_owned()).arg(escape(key.cap.as_str())).number(start);
            call.number((*usage).min(i64::MAX.unsigned_abs()));
            call.arg(repair.map_or_else(Bytes::new, |difference| difference.to_string().into()));
        }
        Ok(call)
    }
}

fn parse_compared(parts: &[Reply]) -> Result<Compared, StoreError> {
    let unreadable = |_| StoreError::Bug("a comparison holds no whole number".to_owned());
    let used = match nth(parts, 0)?.text()? {
        "" => None,
        text => Some(text.parse().map_err(unreadable)?),
    };
    let expected = nth(parts, 1)?.text()?.parse().map_err(unreadable)?;
    Ok(Compared { used, expected, is_repaired: nth(parts, 2)?.text()? == "1" })
}
