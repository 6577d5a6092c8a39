//! Claims, answers and open leads come back from the books into a store that has lost its memory.

use std::collections::HashMap;

use jiff::SignedDuration;

use super::Found;
use super::step::Step;
use crate::app::Gateway;
use crate::domain::event::{Life, Mark};
use crate::domain::id::Partition;
use crate::ledger::{LeadPlace, SettleError};
use crate::store::ReadBack;

/// Leads read back at once.
const PAGE: usize = 500;

/// Leads are read back for longer than claims are kept, because a lead without an answer must be finished however old it is.
const READ_BACK_SLACK: SignedDuration = SignedDuration::from_hours(24);

/// Brings one page of leads back; answers whether there is more.
pub(super) async fn read_back(gateway: &Gateway, found: &[Found]) -> Result<bool, SettleError> {
    let mut unread: HashMap<Partition, (Life, Option<LeadPlace>)> = HashMap::new();
    for found in found.iter().filter(|found| found.step == Step::Work) {
        let Mark { partition, life, .. } = found.row.mark;
        if let (ReadBack::UpTo(place), true) = (found.standing.read_back, gateway.store.joined(partition) == Some(life))
        {
            unread.insert(partition, (life, place));
        }
    }
    let Some(first) = unread.values().map(|(_, place)| *place).min() else { return Ok(false) };
    let retention = gateway.config.store.idempotency;
    let kept = SignedDuration::try_from(retention).unwrap_or(SignedDuration::MAX).saturating_add(READ_BACK_SLACK);
    let since = gateway.clock.now().saturating_sub(kept).unwrap_or(jiff::Timestamp::MIN);
    let leads = gateway.ledger.booked_leads(since.max(jiff::Timestamp::UNIX_EPOCH), first.as_ref(), PAGE).await?;
    for lead in &leads {
        if unread.contains_key(&Partition::of(lead.publisher.as_str(), gateway.store.partitions())) {
            gateway.store.bring_back(lead, retention).await?;
        }
    }
    let has_more = leads.len() == PAGE;
    let last = leads.last().map(|lead| lead.place);
    for (partition, (life, place)) in unread {
        let read = if has_more { ReadBack::UpTo(place.max(last)) } else { ReadBack::Done };
        gateway.store.set_read_back(partition, life, &read).await?;
    }
    Ok(has_more)
}
