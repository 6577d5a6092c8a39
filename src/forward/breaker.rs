//! The breaker: a buyer that fails again and again rests, and is then tried with one lead before all others come back (F54).
//! Per gateway; forgotten at a restart.
//!
//! A "no" is an answer: only forwards without one are failures, and 5xx, which says that the buyer could not look at the lead.
//! What our own side did not send says nothing about the buyer, and neither does a 429.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::clock::SharedClock;
use crate::domain::id::BuyerId;
use crate::domain::outcome::Outcome;
use crate::domain::routing::{BreakerRule, Buyer};

/// How much longer than the buyer's own time-out a probe may keep all others waiting.
const PROBE_MARGIN: Duration = Duration::from_secs(1);

/// What a forward says about its buyer's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// It answered.
    Good,
    /// It did not.
    Bad,
    /// Nothing.
    Neutral,
}

impl Health {
    pub(super) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Declined { http_status: 429, .. } => Self::Neutral,
            Outcome::Declined { http_status: 500.., .. }
            | Outcome::InDoubt { .. }
            | Outcome::Unsent { reason: "connect" | "connect_timeout" | "dns" | "tls" } => Self::Bad,
            Outcome::Accepted(_) | Outcome::Declined { .. } | Outcome::Pending { .. } => Self::Good,
            Outcome::Unsent { .. } => Self::Neutral,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Everybody may call; so many failures in a row.
    Closed { failures: u32 },
    /// Nobody may.
    Open { until: Timestamp },
    /// One lead is on its way; should nothing be heard of it, the next one goes.
    Probing { until: Timestamp },
}

/// One buyer's state. Pure: time is handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Breaker {
    state: State,
    /// Rises with each change of state: what was let through under an older one changes nothing any more.
    generation: u64,
}

/// What the breaker says to a lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// Go, under this generation.
    Go { generation: u64, is_probe: bool },
    /// Not for so long.
    Rest(SignedDuration),
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: State::Closed { failures: 0 }, generation: 0 }
    }
}

impl Breaker {
    fn change(&mut self, state: State) {
        self.state = state;
        self.generation += 1;
    }

    /// How long nobody may call; `None` when somebody may.
    pub(super) fn resting(&self, now: Timestamp) -> Option<SignedDuration> {
        match self.state {
            State::Open { until } | State::Probing { until } if now < until => Some(until.duration_since(now)),
            State::Closed { .. } | State::Open { .. } | State::Probing { .. } => None,
        }
    }

    /// A lead wants to go. After the rest one may, for at most `probe_for`.
    pub(super) fn ask(&mut self, now: Timestamp, probe_for: Duration) -> Says {
        if let Some(left) = self.resting(now) {
            return Says::Rest(left);
        }
        let is_probe = !matches!(self.state, State::Closed { .. });
        if is_probe {
            self.change(State::Probing { until: later(now, probe_for) });
        }
        Says::Go { generation: self.generation, is_probe }
    }

    /// A lead that was let through under `generation` has its result.
    pub(super) fn hear(&mut self, now: Timestamp, generation: u64, health: Health, rule: BreakerRule) {
        if generation != self.generation {
            return;
        }
        match (self.state, health) {
            // Nobody is let through while it is open.
            (State::Open { .. }, _)
            | (State::Closed { failures: 0 }, Health::Good)
            | (State::Closed { .. }, Health::Neutral) => {}
            (State::Closed { .. }, Health::Good) => self.state = State::Closed { failures: 0 },
            (State::Closed { failures }, Health::Bad) => {
                let failures = failures.saturating_add(1);
                if rule.failures > 0 && failures >= rule.failures {
                    self.change(State::Open { until: later(now, rule.rest) });
                } else {
                    self.state = State::Closed { failures };
                }
            }
            // The slot is free at once, for the next lead.
            (State::Probing { .. }, Health::Neutral) => self.change(State::Open { until: now }),
            (State::Probing { .. }, Health::Good) => self.change(State::Closed { failures: 0 }),
            (State::Probing { .. }, Health::Bad) if rule.failures == 0 => self.change(State::Closed { failures: 0 }),
            (State::Probing { .. }, Health::Bad) => self.change(State::Open { until: later(now, rule.rest) }),
        }
    }
}

fn later(now: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| now.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// The breakers of all buyers. Grows with the buyers that the routing has ever named, and with nothing else.
#[derive(Debug)]
pub(super) struct Breakers {
    clock: SharedClock,
    known: Mutex<HashMap<BuyerId, Breaker>>,
}

impl Breakers {
    pub(super) fn new(clock: SharedClock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    pub(super) fn resting(&self, buyer: &BuyerId) -> Option<Duration> {
        self.known.lock().get(buyer)?.resting(self.clock.now()).map(SignedDuration::unsigned_abs)
    }

    /// The right to call a buyer; else how long it rests.
    pub(super) fn ask(self: &Arc<Self>, buyer: &Buyer) -> Result<Turn, Duration> {
        let mut known = self.known.lock();
        let says = match known.get_mut(&buyer.id) {
            Some(breaker) => breaker.ask(self.clock.now(), buyer.timeout + PROBE_MARGIN),
            None => Says::Go { generation: 0, is_probe: false },
        };
        match says {
            Says::Rest(left) => Err(left.unsigned_abs()),
            Says::Go { generation, is_probe } => Ok(Turn {
                breakers: Arc::clone(self),
                buyer: buyer.id.clone(),
                rule: buyer.breaker,
                generation,
                is_probe,
                is_over: false,
            }),
        }
    }
}

/// The right to call a buyer. A probe's that is dropped before anything was learned lets the next lead go.
#[derive(Debug)]
pub struct Turn {
    breakers: Arc<Breakers>,
    buyer: BuyerId,
    rule: BreakerRule,
    generation: u64,
    is_probe: bool,
    is_over: bool,
}

impl Turn {
    /// What came of it; only the first word counts.
    pub(super) fn ends(&mut self, health: Health) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let now = self.breakers.clock.now();
        let mut known = self.breakers.known.lock();
        match known.get_mut(&self.buyer) {
            Some(breaker) => breaker.hear(now, self.generation, health, self.rule),
            None if health == Health::Bad => {
                let mut breaker = Breaker::default();
                breaker.hear(now, self.generation, health, self.rule);
                known.insert(self.buyer.clone(), breaker);
            }
            None => {}
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_probe {
            self.ends(Health::Neutral);
        }
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
