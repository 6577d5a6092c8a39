//! The end of the process: first no new leads, then what is under way ends, then everything stops.

use std::time::Duration;

use rand::RngExt;
use tokio_util::sync::CancellationToken;

/// Two steps towards the end.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// No new leads; readiness says so.
    pub draining: CancellationToken,
    /// Nothing waits any longer.
    pub halted: CancellationToken,
}

impl Shutdown {
    /// Are new leads refused?
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Pauses of 20 ms to 1 s with jitter, cut short by the halt.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff { halted: self.halted.clone(), next: Duration::from_millis(20) }
    }
}

/// Pauses between repeats of one call.
#[derive(Debug)]
pub struct Backoff {
    halted: CancellationToken,
    next: Duration,
}

const BACKOFF_MAX: Duration = Duration::from_secs(1);

impl Backoff {
    /// Waits; false when the process halts and the repeat must not be made.
    pub async fn wait(&mut self) -> bool {
        // Jitter keeps many walks from asking a store that has just come back at the same instant.
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(BACKOFF_MAX);
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.halted.cancelled() => false,
        }
    }
}
