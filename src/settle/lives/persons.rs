//! Marks of persons come back from the books into a store that has lost its memory, or that has never been told of a buyer's
//! rule: buyer by buyer, page by page, by one gateway. Until then a take that meets a person without a mark asks the books about
//! that one first (P8).

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::Found;
use super::step::Step;
use crate::app::Gateway;
use crate::domain::event::{Life, Mark};
use crate::domain::id::{BuyerId, LeadId, Partition};
use crate::domain::lease::OpenLease;
use crate::domain::person::{Person, PersonDigest, PersonMark};
use crate::ledger::{LedgerError, SettleError};
use crate::store::StoreError;

/// Persons read back at once.
const PAGE: usize = 1_000;

/// How far the persons of the buyers have been read back. Not written down: another gateway begins again, and telling a store
/// what it knows changes nothing.
#[derive(Debug, Default)]
pub(super) struct PersonsRead {
    /// Under which life, and within how many days.
    done: HashMap<BuyerId, (Life, u32)>,
    /// The buyer that is being read.
    at: Option<Page>,
}

/// Where the reading of a buyer's persons stands.
#[derive(Debug)]
struct Page {
    buyer: BuyerId,
    life: Life,
    days: u32,
    /// The last one that was read.
    last: (PersonDigest, LeadId),
}

/// Brings one page of persons back; answers whether there is more.
pub(super) async fn read_persons_back(
    gateway: &Gateway,
    found: &[Found],
    read: &mut PersonsRead,
) -> Result<bool, SettleError> {
    let routing = gateway.routing();
    let buyers = &routing.compiled.routing().buyers;
    let lives: HashMap<Partition, Life> = found
        .iter()
        .filter(|found| found.step == Step::Work)
        .map(|found| found.row.mark)
        .filter(|Mark { partition, life, .. }| gateway.store.joined(*partition) == Some(*life))
        .map(|mark| (mark.partition, mark.life))
        .collect();
    read.done.retain(|id, _| buyers.contains_key(id));
    let wanted = buyers.values().find_map(|buyer| {
        let days = buyer.duplicates.as_ref()?.days;
        let life = *lives.get(&Partition::of(buyer.id.as_str(), gateway.store.partitions()))?;
        let is_done = read.done.get(&buyer.id).is_some_and(|(of, marked)| *of == life && *marked >= days);
        (!is_done).then(|| (buyer.id.clone(), life, days))
    });
    let Some((buyer, life, days)) = wanted else {
        read.at = None;
        return Ok(false);
    };
    let after = match read.at.take() {
        Some(page) if page.buyer == buyer && page.life == life && page.days == days => Some(page.last),
        _ => None,
    };
    let marks = gateway.ledger.persons(&buyer, since(gateway, days), after, PAGE).await?;
    gateway.store.bring_persons(&buyer, days, &marks).await?;
    match marks.last().and_then(|last| Some((last.digest, last.lead?))) {
        Some(last) if marks.len() == PAGE => read.at = Some(Page { buyer, life, days, last }),
        _ => {
            gateway.store.set_marked(&buyer, days).await?;
            read.done.insert(buyer, (life, days));
        }
    }
    Ok(true)
}

/// Within a buyer's days from now.
fn since(gateway: &Gateway, days: u32) -> Timestamp {
    let span = SignedDuration::from_hours(24 * i64::from(days));
    gateway.store.now().saturating_sub(span).unwrap_or(Timestamp::UNIX_EPOCH).max(Timestamp::UNIX_EPOCH)
}

/// Open leases of older data that nobody has restated: their marks are of another life, and the books do not know them yet.
pub(super) async fn note_leases(gateway: &Gateway, leases: &[OpenLease]) -> Result<(), StoreError> {
    for lease in leases {
        if let Some(person) = lease.about.person {
            let since_ms = lease.taken_at.as_millisecond();
            let mark = PersonMark { digest: person.digest, lead: Some(lease.key.lead), since_ms };
            gateway.store.bring_persons(&lease.key.buyer, person.days, &[mark]).await?;
        }
    }
    Ok(())
}

/// Asks the books about one person, and tells the store.
pub async fn ask_books_about(gateway: &Gateway, buyer: &BuyerId, person: &Person) -> Result<(), SettleError> {
    let mark = known_to_books(gateway, buyer, person).await?;
    gateway.store.bring_persons(buyer, person.days, &[mark]).await?;
    Ok(())
}

/// What the books know of a person.
pub async fn known_to_books(gateway: &Gateway, buyer: &BuyerId, person: &Person) -> Result<PersonMark, LedgerError> {
    let since_ms = gateway.store.now().as_millisecond();
    let found = gateway.ledger.person(buyer, person.digest, since(gateway, person.days)).await?;
    Ok(found.unwrap_or(PersonMark { digest: person.digest, lead: None, since_ms }))
}
