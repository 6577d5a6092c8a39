//! Giving a sold lead back.

use super::ends::{effects_text, of_another_life};
use super::reply::Call;
use super::restate::entry_id;
use super::scripts::Verb;
use super::{RedisStore, first_word, millis, nth, unknown_reply};
use crate::domain::event::Event;
use crate::domain::lease::Charge;
use crate::domain::window::Window;
use crate::store::{ReturnReply, SaleReturn, StoreError};

impl RedisStore {
    pub(super) async fn run_return(&self, sale: &SaleReturn) -> Result<ReturnReply, StoreError> {
        let event = &sale.event;
        let partition = self.partition(event.buyer.as_str());
        let life = self.joined_life(partition).ok_or_else(of_another_life)?;
        let bytes = Event::Returned(event.clone()).to_bytes();
        let mut charges = Vec::with_capacity(event.windows.len());
        for window in &event.windows {
            let start = jiff::Timestamp::from_millisecond(window.start_ms)
                .map_err(|_| StoreError::Bug("a window of a return is out of range".to_owned()))?;
            // Ends are kept with open leases only.
            let window_of = Window { start, end: None };
            charges.push(Charge { cap: window.cap.clone(), window: window_of, amount: window.amount });
        }
        let effects: Vec<i128> = charges.iter().map(|charge| -i128::from(charge.amount)).collect();
        let mut call = Call::new(vec![
            self.keys.life(partition),
            self.keys.returned(partition, event.lead, &event.buyer),
            self.keys.journal(partition, Some(life)),
        ]);
        call.number(life.0).number(sale.not_after.as_millisecond()).number(millis(self.end_mark_ttl).max(1));
        call.arg(bytes.clone()).arg(effects_text(&event.buyer, &charges, &effects));
        for charge in &charges {
            let start = charge.window.start.as_millisecond();
            call.keys.push(self.keys.counter(partition, &event.buyer, &charge.cap, start));
            call.number(charge.amount);
        }
        let answer = self.client.run(Verb::Return, &call).await?;
        let (word, rest) = first_word(&answer.reply)?;
        let reply = match word {
            "done" => ReturnReply::Done,
            "already" => ReturnReply::Already,
            "late" => return Ok(ReturnReply::TooLate),
            "life" => return Err(of_another_life()),
            word => return Err(unknown_reply("a return", word)),
        };
        // "already" may be the reply to a repeat of our own. Restated without its effects: the books take them out of usage
        // when they meet the event, and a counter that is too high until then oversells nothing.
        self.held.recorded(partition, life, entry_id(nth(rest, 0)?)?, bytes);
        self.appended.notify_one();
        Ok(reply)
    }
}
