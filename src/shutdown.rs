//! The end of the process: first no new leads, then what is under way ends, then everything stops.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Two steps towards the end.
#[derive(Debug, Clone)]
pub struct Shutdown {
    /// No new leads; readiness says so.
    pub draining: CancellationToken,
    /// Nothing waits any longer.
    pub halted: CancellationToken,
    repeats: Arc<Semaphore>,
}

impl Default for Shutdown {
    fn default() -> Self {
        let repeats = Arc::new(Semaphore::new(REPEATS_MAX));
        Self { draining: CancellationToken::new(), halted: CancellationToken::new(), repeats }
    }
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
        Backoff {
            halted: self.halted.clone(),
            next: Duration::from_millis(20),
            turns: self.repeats.clone(),
            turn: None,
        }
    }
}

/// Pauses between repeats of one call. The repeat is made in turn: it counts as under way until the next pause, or until this is
/// dropped.
#[derive(Debug)]
pub struct Backoff {
    halted: CancellationToken,
    next: Duration,
    turns: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Repeats that are under way at once. After a stall of the store thousands of leads have a call to repeat. All of them at once
/// would keep it from answering any in time, and the stall would never end (F27).
const REPEATS_MAX: usize = 64;

impl Backoff {
    /// Waits; false when the process halts and the repeat must not be made.
    pub async fn wait(&mut self) -> bool {
        self.turn = None;
        // Jitter keeps many walks from asking a store that has just come back at the same instant.
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(BACKOFF_MAX);
        let turn = async {
            tokio::time::sleep(pause).await;
            self.turns.clone().acquire_owned().await.ok()
        };
        let turn = tokio::select! {
            turn = turn => turn,
            () = self.halted.cancelled() => return false,
        };
        self.turn = turn;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f27_repeats_are_made_in_turns_and_a_turn_ends_with_the_next_pause() {
        let shutdown = Shutdown::default();
        let mut under_way: Vec<Backoff> = (0..REPEATS_MAX).map(|_| shutdown.backoff()).collect();
        for pause in &mut under_way {
            assert!(pause.wait().await);
        }
        let mut next = shutdown.backoff();
        let late = Duration::from_mins(1);
        assert!(tokio::time::timeout(late, next.wait()).await.is_err(), "all turns are taken");
        // One repeat has its answer.
        under_way.pop();
        assert!(tokio::time::timeout(late, next.wait()).await.unwrap());
        // Another one has to be made again: its turn is free until it has waited.
        let mut again = under_way.pop().unwrap();
        let mut last = shutdown.backoff();
        let (one, two) = tokio::join!(tokio::time::timeout(late, last.wait()), async {
            let waited = tokio::time::timeout(late, again.wait()).await;
            drop(again);
            waited
        });
        assert!(one.is_ok() || two.is_ok(), "one of them has it");
        shutdown.halted.cancel();
        assert!(!shutdown.backoff().wait().await, "the halt waits for no turn");
    }
}
