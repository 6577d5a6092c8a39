//! How the server is: its clock, how much waits for settlement, and how it is set up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::client::Node;
use super::offset::Measured;
use super::reply::Plain;
use super::{Bytes, RedisStore, nth};
use crate::store::{Refusal, SetupKind, SetupWarning, StoreError, StoreHealth, TakeReply};

/// A count of the journal that is older than this is not good enough to refuse leads by.
const COUNT_TRUSTED: Duration = Duration::from_secs(1);
/// At the start the clock is measured again, so often at most, while it may be wrong by more than this.
const FIRST_LOOKS_MAX: usize = 3;
const FIRST_ERROR_MAX_US: i64 = 50_000;
/// Oldest server that has script flags and `XINFO` as they are used here.
const VERSION_MIN: (u64, u64) = (7, 0);

/// How many entries wait for settlement, as last counted.
#[derive(Debug, Default)]
pub(super) struct JournalSize {
    entries: AtomicU64,
    counted_at: parking_lot::Mutex<Option<Instant>>,
}

/// What the last look at each node has found, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Looks {
    turn: AtomicUsize,
    seen: parking_lot::Mutex<Vec<(Node, Seen)>>,
    /// The best measurement of each node's clock.
    clocks: parking_lot::Mutex<Vec<(Node, Measured)>>,
}

#[derive(Debug)]
struct Seen {
    offset_us: i64,
    warnings: Vec<SetupWarning>,
}

impl RedisStore {
    /// Measures the clock that [`crate::store::Store::now`] goes by. The nodes of a cluster have a clock each, and a partition's
    /// windows go by its own node's: the estimate is the first one's, and takes at another learn from their refusal (F31).
    pub(super) async fn measure_clock(&self) -> Result<(), StoreError> {
        if let Some(first) = self.client.nodes().first() {
            self.offset.set(self.offset_of(first).await?);
        }
        Ok(())
    }

    /// The same at the start, where no better measurement is known: a poor one is made again.
    pub(super) async fn measure_clock_well(&self) -> Result<(), StoreError> {
        for _ in 0..FIRST_LOOKS_MAX {
            self.measure_clock().await?;
            if self.looks.clocks.lock().iter().all(|(_, measured)| measured.error_us <= FIRST_ERROR_MAX_US) {
                break;
            }
        }
        Ok(())
    }

    /// A node's clock minus ours, in microseconds, by the best measurement there is.
    async fn offset_of(&self, node: &Node) -> Result<i64, StoreError> {
        let before = self.clock.now();
        let reply = self.client.one_of(node, "TIME", vec![]).await?;
        let after = self.clock.now();
        let parts = reply.list()?;
        let server_us = nth(parts, 0)?.int()? * 1_000_000 + nth(parts, 1)?.int()?;
        let newer = Measured::new(before, server_us, after);
        let mut clocks = self.looks.clocks.lock();
        let known = clocks.iter().position(|(known, _)| known == node).map(|place| clocks.swap_remove(place).1);
        let best = match (known, newer) {
            (Some(known), Some(newer)) => known.or_newer(newer),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return Ok(0),
        };
        clocks.push((node.clone(), best));
        Ok(best.offset_us)
    }

    /// A take was refused because its windows, or its time, are not those of the store's clock. Most often a border has passed
    /// meanwhile, or the store was slow; but should one of the clocks have jumped, the next try is by the right one and does not
    /// wait for the next look (F31).
    pub(super) async fn measure_clock_after(&self, reply: &TakeReply) {
        if reply.too_late || reply.refused.iter().any(|(_, refusal)| matches!(refusal, Refusal::WrongWindow { .. })) {
            // A failure shows in the next call.
            let _ = self.measure_clock().await;
        }
    }

    /// Is the journal, of all partitions, at its limit? Counts again before it says so by an old count.
    pub(super) async fn is_journal_full(&self) -> Result<bool, StoreError> {
        if self.journal.entries.load(Ordering::Relaxed) < self.journal_entries_max {
            return Ok(false);
        }
        let is_old = {
            let mut counted_at = self.journal.counted_at.lock();
            let is_old = counted_at.is_none_or(|at| at.elapsed() > COUNT_TRUSTED);
            if is_old {
                // One caller counts; the others go by the old count meanwhile.
                *counted_at = Some(Instant::now());
            }
            is_old
        };
        if is_old {
            self.count_journal().await?;
        }
        Ok(self.journal.entries.load(Ordering::Relaxed) >= self.journal_entries_max)
    }

    async fn count_journal(&self) -> Result<u64, StoreError> {
        let counts = self
            .all_partitions()
            .map(|partition| (partition, self.known_life(partition)))
            .filter(|(_, life)| life.is_some())
            .map(|(partition, life)| Plain::new("XLEN", vec![self.keys.journal(partition, life).into()]));
        let mut total = 0;
        for reply in self.client.plain(counts.collect()).await? {
            total += u64::try_from(reply.int()?).unwrap_or(0);
        }
        self.journal.entries.store(total, Ordering::Relaxed);
        *self.journal.counted_at.lock() = Some(Instant::now());
        Ok(total)
    }

    /// One node of a cluster after the other, so that a look costs the same however many there are; one that is new at once. What
    /// is told is the clock that is furthest off, so that no node's can be wrong unseen, and what any node says, once.
    pub(super) async fn look(&self) -> Result<StoreHealth, StoreError> {
        let nodes = self.client.nodes();
        self.looks.clocks.lock().retain(|(node, _)| nodes.contains(node));
        let turn = self.looks.turn.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        for (index, node) in nodes.iter().enumerate() {
            if index == turn || !self.looks.seen.lock().iter().any(|(seen, _)| seen == node) {
                let offset_us = self.offset_of(node).await?;
                if index == 0 {
                    self.offset.set(offset_us);
                }
                let found = Seen { offset_us, warnings: self.look_at(node).await? };
                let mut seen = self.looks.seen.lock();
                seen.retain(|(seen, _)| seen != node && nodes.contains(seen));
                seen.push((node.clone(), found));
            }
        }
        let journal_entries = self.count_journal().await?;
        let seen = self.looks.seen.lock();
        let offset_us = seen.iter().map(|(_, seen)| seen.offset_us).max_by_key(|offset| offset.unsigned_abs());
        let mut warnings: Vec<SetupWarning> = Vec::new();
        for warning in seen.iter().flat_map(|(_, seen)| &seen.warnings) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        Ok(StoreHealth { clock_offset_ms: offset_us.unwrap_or_default() / 1000, journal_entries, warnings })
    }

    async fn look_at(&self, node: &Node) -> Result<Vec<SetupWarning>, StoreError> {
        let info = self.client.one_of(node, "INFO", vec![]).await?;
        let info = info.text()?;
        let keeps_log = info_value(info, "aof_enabled") == Some("1");
        let keeps = if keeps_log { Some(true) } else { self.saves_snapshots(node).await? };
        Ok(warnings_of(info, keeps))
    }

    /// Does the server write snapshots? `None` when it does not tell: managed servers often forbid the question.
    async fn saves_snapshots(&self, node: &Node) -> Result<Option<bool>, StoreError> {
        let question = vec![Bytes::from_static(b"GET"), Bytes::from_static(b"save")];
        match self.client.one_of(node, "CONFIG", question).await {
            Ok(reply) => Ok(reply.list()?.get(1).and_then(|value| value.text().ok()).map(|save| !save.is_empty())),
            Err(StoreError::Bug(_)) => Ok(None),
            Err(StoreError::NotDone(why)) if why.starts_with("NOPERM") => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What is wrong with a server, by its `INFO` and by whether it keeps anything on disk (`None`: it does not tell).
fn warnings_of(info: &str, keeps: Option<bool>) -> Vec<SetupWarning> {
    let mut warnings = Vec::new();
    let mut warn = |kind, text: String| warnings.push(SetupWarning { kind, text });
    let version = info_value(info, "redis_version").unwrap_or_default();
    if parse_version(version).is_some_and(|version| version < VERSION_MIN) {
        warn(SetupKind::Version, format!("Redis {version} is too old: 7.0 or later is needed"));
    }
    match info_value(info, "maxmemory_policy") {
        Some("noeviction") => {}
        Some(policy) => warn(
            SetupKind::Eviction,
            format!("maxmemory-policy is {policy}: Redis may drop counters and journal entries; set it to noeviction"),
        ),
        None => warn(SetupKind::Unknown, "maxmemory-policy could not be checked".to_owned()),
    }
    // Told by its bound and not by its value, or each look would tell something else.
    if memory_percent(info).is_some_and(|percent| percent >= MEMORY_PERCENT_WARN) {
        warn(
            SetupKind::Memory,
            format!(
                "Redis uses more than {MEMORY_PERCENT_WARN} % of its maxmemory: when it is full it takes no new lead; raise \
                 maxmemory"
            ),
        );
    }
    match keeps {
        Some(true) => {}
        Some(false) => {
            warn(SetupKind::Persistence, "Redis keeps nothing on disk: set appendonly yes, or save".to_owned());
        }
        None => {
            warn(SetupKind::Unknown, "persistence could not be checked: appendonly is off, save is unknown".to_owned());
        }
    }
    warnings
}

/// Memory in use at which an operator should hear of it: time enough to act before new leads are refused.
const MEMORY_PERCENT_WARN: u64 = 80;

/// A value of `INFO`.
fn info_value<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

/// Whole percents of `maxmemory` in use; `None` without a limit.
fn memory_percent(info: &str) -> Option<u64> {
    let number = |name| info_value(info, name)?.parse::<u64>().ok();
    let (used, max) = (number("used_memory")?, number("maxmemory")?);
    used.saturating_mul(100).checked_div(max)
}

fn parse_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_by_whole_names() {
        let info = "# Server\r\nredis_version:6.2.1\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(info_value(info, "redis_version"), Some("6.2.1"));
        assert_eq!(info_value(info, "maxmemory"), None);
        assert!(parse_version("6.2.1").unwrap() < VERSION_MIN);
        assert!(parse_version("7.0.15").unwrap() >= VERSION_MIN);
        assert_eq!(parse_version("unstable"), None);
    }

    #[test]
    fn f24_what_is_wrong_with_a_server_is_told_by_its_kind() {
        let info = |version: &str, policy: &str, used: u64| {
            format!("redis_version:{version}\r\nused_memory:{used}\r\nmaxmemory:100\r\nmaxmemory_policy:{policy}\r\n")
        };
        let kinds =
            |info: &str, keeps| warnings_of(info, keeps).into_iter().map(|warning| warning.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&info("7.0.15", "noeviction", 10), Some(true)), []);
        assert_eq!(
            kinds(&info("6.2.14", "allkeys-lru", 80), Some(false)),
            [SetupKind::Version, SetupKind::Eviction, SetupKind::Memory, SetupKind::Persistence]
        );
        assert_eq!(kinds("redis_version:8.2.1\r\n", None), [SetupKind::Unknown, SetupKind::Unknown]);
        let grave: Vec<_> = SetupKind::words().filter(|(kind, _)| kind.is_grave()).map(|(_, word)| word).collect();
        assert_eq!(grave, ["version", "eviction"]);
    }

    #[test]
    fn f24_memory_in_use_is_told_against_its_limit() {
        let percent = |used: u64, max: u64| memory_percent(&format!("used_memory:{used}\r\nmaxmemory:{max}\r\n"));
        assert_eq!(percent(79, 100), Some(79));
        assert_eq!(percent(3_000_000_000, 2_000_000_000), Some(150), "the limit was lowered");
        assert_eq!(percent(79, 0), None, "no limit");
        assert_eq!(memory_percent("used_memory:79\r\n"), None);
    }
}
