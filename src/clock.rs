//! The one place that reads the time. Everything else is handed a [`Clock`].

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Tells the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Now, by this process's clock.
    fn now(&self) -> Timestamp;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the one reader of the machine's clock")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that stands still until it is moved; for tests.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// Starts at `at`.
    #[must_use]
    pub fn new(at: Timestamp) -> Arc<Self> {
        Arc::new(Self(Mutex::new(at)))
    }

    /// Moves to `at`, forwards or back.
    pub fn set(&self, at: Timestamp) {
        *self.0.lock() = at;
    }

    /// Moves by `by`.
    pub fn advance(&self, by: SignedDuration) {
        let mut now = self.0.lock();
        *now += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}
