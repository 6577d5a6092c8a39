//! Logs: to stderr, filtered by `CAPGATE_LOG`, and never faster than a person can read (F92).

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::IsTerminal;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use crate::clock::SharedClock;

/// Which lines are wanted, e.g. `info` or `capgate=debug,info`.
pub const FILTER_VARIABLE: &str = "CAPGATE_LOG";

/// Most keys that a [`Throttled`] tells apart; all further ones share one.
const KEYS_MAX: usize = 1_000;
/// The key they share.
const OVERFLOW_KEY: &str = "";

/// Logs cannot be set up: somebody else in this process has done it already.
#[derive(Debug, thiserror::Error)]
#[error("logging is set up already")]
pub struct AlreadyLogging;

/// Sends logs to stderr, as text or as one JSON object a line. An unreadable filter counts as `info`.
///
/// # Errors
/// [`AlreadyLogging`]
pub fn init_logging(json: bool) -> Result<(), AlreadyLogging> {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer: Box<dyn Layer<Registry> + Send + Sync> =
        if json { text.json().boxed() } else { text.with_ansi(std::io::stderr().is_terminal()).boxed() };
    let layer = layer.with_filter(filter.and(filter_fn(is_private)));
    tracing_subscriber::registry().with(layer).try_init().map_err(|_| AlreadyLogging)
}

/// Libraries below us print what they carry when they are asked for details: requests, statements, bytes of connections. No
/// filter gets that out of them (P9); our own lines hold no values, at any level.
fn is_private(line: &Metadata<'_>) -> bool {
    let is_ours = line.target().split("::").next() == Some(env!("CARGO_CRATE_NAME"));
    is_ours || *line.level() <= Level::INFO
}

#[derive(Debug)]
struct Line {
    written_at: Timestamp,
    suppressed: u64,
}

/// Lets one line per key through in a span of time and counts the others.
///
/// ```text
/// if let Some(suppressed) = throttled.check("store") {
///     tracing::warn!(suppressed, "the store does not answer");
/// }
/// ```
#[derive(Debug)]
pub struct Throttled {
    clock: SharedClock,
    every: SignedDuration,
    lines: Mutex<HashMap<Cow<'static, str>, Line>>,
}

impl Throttled {
    /// One line per key in 5 seconds.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self::every(clock, SignedDuration::from_secs(5))
    }

    /// One line per key in `every`.
    #[must_use]
    pub fn every(clock: SharedClock, every: SignedDuration) -> Self {
        Self { clock, every, lines: Mutex::new(HashMap::new()) }
    }

    /// May a line with this key be written now? Then says how many were held back since the last one.
    pub fn check(&self, key: impl Into<Cow<'static, str>>) -> Option<u64> {
        let now = self.clock.now();
        let mut lines = self.lines.lock();
        let mut key = key.into();
        if lines.len() >= KEYS_MAX && !lines.contains_key(&key) {
            key = Cow::Borrowed(OVERFLOW_KEY);
        }
        let Some(line) = lines.get_mut(&key) else {
            lines.insert(key, Line { written_at: now, suppressed: 0 });
            return Some(0);
        };
        // A clock that was set back must not silence a key until it has caught up.
        let is_due = now < line.written_at || now.duration_since(line.written_at) >= self.every;
        if is_due {
            line.written_at = now;
            return Some(std::mem::take(&mut line.suppressed));
        }
        line.suppressed += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn f92_an_error_loop_writes_a_bounded_number_of_lines() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let throttled = Throttled::new(clock.clone());
        let mut written = 0;
        let mut told = 0;
        // Ten minutes of a thousand errors a second.
        for _ in 0..600_000 {
            if let Some(suppressed) = throttled.check("store") {
                written += 1;
                told += suppressed;
            }
            clock.advance(SignedDuration::from_millis(1));
        }
        assert_eq!(written, 120);
        assert_eq!(told, 119 * 4_999, "lines held back were not counted");
        assert_eq!(throttled.check("ledger"), Some(0), "another key was held back");
        clock.set(Timestamp::UNIX_EPOCH);
        assert!(throttled.check("store").is_some(), "a clock set back silenced the key");
    }

    #[test]
    fn f92_keys_are_bounded() {
        let throttled = Throttled::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let written = (0..10_000).filter(|n| throttled.check(format!("key {n}")).is_some()).count();
        assert_eq!(written, KEYS_MAX + 1);
        assert_eq!(throttled.lines.lock().len(), KEYS_MAX + 1);
    }
}
