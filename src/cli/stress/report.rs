//! What a run of the load generator found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Different words counted; an answer may hold any word, and a server gone wrong must not fill the memory (P7).
const WORDS_MAX: usize = 100;

/// How long answers took, in microseconds. In an open loop from the moment the lead was due, so that a gateway that stalls
/// does not hide the leads that waited for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Half were faster.
    pub p50: u64,
    /// 90 of 100 were at most this slow.
    pub p90: u64,
    /// 99 of 100 were at most this slow.
    pub p99: u64,
    /// 999 of 1,000 were at most this slow.
    #[serde(rename = "p99.9")]
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

impl Latency {
    /// By nearest rank: each figure is one that was measured. All zero when nothing was.
    #[must_use]
    pub fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let at = |per_mille: usize| {
            let rank = (micros.len() * per_mille).div_ceil(1000).max(1);
            micros.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: at(1000) }
    }
}

/// One lead and what was said about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeadVerdict {
    /// Number of the lead in its run, from 0.
    pub index: u64,
    /// The gateway's id, when it gave one.
    pub lead_id: Option<String>,
    /// As in [`StressReport::answers`], or the error.
    pub verdict: String,
    /// Until the first answer.
    pub latency_us: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StressReport {
    /// Leads sent.
    pub sent: u64,
    /// Leads that got an answer, of any kind.
    pub answered: u64,
    /// Answers by verdict: `sold`, `unsold/capped`, `pending`; refusals by status and code: `429/throttled`.
    pub answers: BTreeMap<String, u64>,
    /// Leads without an answer: `connect`, `broken`, `timeout`.
    pub errors: BTreeMap<String, u64>,
    /// Requests sent again, with the same key, because a kept connection was closed under them or because the gateway asked
    /// for it (429, 503).
    pub repeated: u64,
    /// Of the leads whose answer was `pending`, by final verdict; only when they were followed. Those that were still
    /// undecided in the end stay `pending`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub followed: BTreeMap<String, u64>,
    /// Of each lead's first answer. See [`Latency`].
    pub latency_us: Latency,
    /// From the first lead to the last answer, without the following.
    pub duration_ms: u64,
    /// Answers in a second.
    pub per_second: u64,
    /// One by one, when they were asked for, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<LeadVerdict>,
}

impl StressReport {
    /// Leads that ended with a verdict of these words, followed ones included.
    #[must_use]
    pub fn total(&self, verdict: &str) -> u64 {
        let count = |counts: &BTreeMap<String, u64>| counts.get(verdict).copied().unwrap_or_default();
        if verdict == "pending" && !self.followed.is_empty() {
            return count(&self.followed);
        }
        count(&self.answers) + count(&self.followed)
    }

    /// Leads without an answer.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Was no lead taken at all, as with a wrong key? Verdicts are words, refusals start with their HTTP status.
    #[must_use]
    pub fn is_all_refused(&self) -> bool {
        !self.answers.is_empty() && self.answers.keys().all(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    }

    pub(super) fn timed(mut self, latencies: Vec<u64>, duration: Duration) -> Self {
        self.latency_us = Latency::of(latencies);
        self.duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let micros = duration.as_micros().max(1);
        self.per_second = u64::try_from(u128::from(self.answered) * 1_000_000 / micros).unwrap_or(u64::MAX);
        self
    }
}

pub(super) fn count(counts: &mut BTreeMap<String, u64>, word: &str) {
    if let Some(known) = counts.get_mut(word) {
        *known += 1;
        return;
    }
    let word = if counts.len() < WORDS_MAX { word } else { "other" };
    *counts.entry(word.to_owned()).or_default() += 1;
}

impl fmt::Display for StressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |micros: u64| format!("{}.{:03} ms", micros / 1000, micros % 1000);
        writeln!(f, "sent       {}", self.sent)?;
        writeln!(f, "answered   {} in {} ms, {} per second", self.answered, self.duration_ms, self.per_second)?;
        for (title, counts) in [("answers", &self.answers), ("followed", &self.followed), ("errors", &self.errors)] {
            let width = counts.keys().map(String::len).max().unwrap_or(0);
            for (index, (word, count)) in counts.iter().enumerate() {
                let title = if index == 0 { title } else { "" };
                writeln!(f, "{title:<10} {word:<width$}  {count}")?;
            }
        }
        if self.repeated > 0 {
            writeln!(f, "repeated   {}", self.repeated)?;
        }
        let Latency { p50, p90, p99, p999, max } = self.latency_us;
        write!(f, "latency    ")?;
        for (name, micros) in [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999)] {
            write!(f, "{name} {}, ", ms(micros))?;
        }
        writeln!(f, "max {}", ms(max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        assert_eq!(Latency::of(Vec::new()), Latency::default());
        assert_eq!(Latency::of(vec![7]), Latency { p50: 7, p90: 7, p99: 7, p999: 7, max: 7 });
        let shuffled: Vec<u64> = (1..=1000).rev().collect();
        assert_eq!(Latency::of(shuffled), Latency { p50: 500, p90: 900, p99: 990, p999: 999, max: 1000 });
        assert_eq!(Latency::of((1..=10).collect()), Latency { p50: 5, p90: 9, p99: 10, p999: 10, max: 10 });
        // One slow lead in a hundred does not reach p99; two do.
        let mut one_slow = vec![1; 99];
        one_slow.push(1_000);
        assert_eq!(Latency::of(one_slow.clone()).p99, 1);
        one_slow[0] = 1_000;
        assert_eq!(Latency::of(one_slow).p99, 1_000);
    }

    #[test]
    fn p7_words_from_outside_do_not_pile_up() {
        let mut counts = BTreeMap::new();
        for index in 0..1_000 {
            count(&mut counts, &format!("word{index}"));
        }
        assert!(counts.len() <= WORDS_MAX + 1);
        assert_eq!(counts.values().sum::<u64>(), 1_000);
    }

    #[test]
    fn the_summary_reads_as_text_and_as_json() {
        let report = StressReport {
            sent: 3,
            answered: 2,
            answers: [("sold".into(), 1), ("unsold/capped".into(), 1)].into(),
            errors: [("timeout".into(), 1)].into(),
            ..StressReport::default()
        }
        .timed(vec![1_500, 2_500], Duration::from_millis(10));
        let expected = "sent       3\n\
                        answered   2 in 10 ms, 200 per second\n\
                        answers    sold           1\n\
                        \u{20}          unsold/capped  1\n\
                        errors     timeout  1\n\
                        latency    p50 1.500 ms, p90 2.500 ms, p99 2.500 ms, p99.9 2.500 ms, max 2.500 ms\n";
        assert_eq!(report.to_string(), expected);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["answers"]["unsold/capped"], 1);
        assert_eq!(json["latency_us"]["p99.9"], 2_500);
        assert!(json.get("verdicts").is_none());
    }
}
