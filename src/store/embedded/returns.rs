//! Giving a sold lead back. Part of the state machine.

use jiff::Timestamp;

use super::change::{Change, CounterRecord, Effect};
use super::partition::PartitionState;
use super::state::{State, span_ms};
use crate::domain::event::{Event, Life, WindowAmount};
use crate::domain::id::BuyerId;
use crate::domain::lease::LeaseKey;
use crate::store::{ReturnReply, SaleReturn, StoreError};

impl State {
    /// Its records are kinds that every version of the file has: an entry with its effects, and counters.
    pub(super) fn return_sale(&mut self, now: Timestamp, call: &SaleReturn) -> Result<ReturnReply, StoreError> {
        let event = &call.event;
        let key = LeaseKey { lead: event.lead, buyer: event.buyer.clone() };
        let expires_ms = now.as_millisecond().saturating_add(span_ms(self.end_mark_ttl));
        let state = self.partition_of(event.buyer.as_str());
        state.purge(now.as_millisecond());
        if !state.is_current() {
            return Err(StoreError::NotDone("the partition is closed until its counts are rebuilt".to_owned()));
        }
        if state.returned.contains_key(&key) {
            return Ok(ReturnReply::Already);
        }
        if now > call.not_after {
            return Ok(ReturnReply::TooLate);
        }
        let effects = event.windows.iter().map(|window| given_back(&event.buyer, window)).collect::<Result<_, _>>()?;
        let lowered: Vec<_> = event.windows.iter().filter_map(|window| lowered(state, &event.buyer, window)).collect();
        let (life, id) = (state.life.unwrap_or(Life(0)), state.next_entry(now.as_millisecond()));
        state.remember_return(key, expires_ms);
        let bytes = Event::Returned(event.clone()).to_bytes();
        self.change_of(event.buyer.as_str(), Change::Entry { life, id, effects }, Some(bytes.into()));
        for counter in lowered {
            self.change_of(event.buyer.as_str(), Change::Counter(counter), None);
        }
        Ok(ReturnReply::Done)
    }
}

fn given_back(buyer: &BuyerId, window: &WindowAmount) -> Result<Effect, StoreError> {
    let units = i64::try_from(window.amount)
        .map_err(|_| StoreError::Bug("an amount of a return is out of range".to_owned()))?;
    Ok(Effect { buyer: buyer.clone(), cap: window.cap.clone(), start_ms: window.start_ms, units: -units })
}

/// A counter that is gone stays gone, and none falls below zero (F01).
fn lowered(state: &PartitionState, buyer: &BuyerId, window: &WindowAmount) -> Option<CounterRecord> {
    let counter = state.buyers.get(buyer)?.caps.get(&window.cap)?.windows.get(&window.start_ms)?;
    Some(CounterRecord {
        buyer: buyer.clone(),
        cap: window.cap.clone(),
        start_ms: window.start_ms,
        end_ms: counter.end_ms,
        used: counter.used.saturating_sub(window.amount),
    })
}
