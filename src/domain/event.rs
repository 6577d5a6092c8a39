//! Journal events: what settlement moves into the books. Self-contained and unordered across partitions.
//!
//! An event is stored as JSON with a version, the first one that knew its kind; readers accept every version up to theirs and
//! leave unknown ones where they are. So gateways of the version before settle all that they know, and nothing that they do
//! not (F80).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::id::{BuyerId, CampaignId, CapId, LeadId, Partition, PublisherId};
use super::money::{Currency, Micros};
use super::outcome::{AttemptOutcome, LeadStatus, Verdict};
use super::person::Person;

/// The newest version that is read here.
pub const EVENT_VERSION: u8 = 3;

/// Which life of a partition's data: rises when the store came back empty or older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(pub u64);

/// Place of an entry in a partition's journal: milliseconds and sequence, as Redis streams number them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct EntryId {
    /// Milliseconds by the store's clock.
    pub ms: u64,
    /// Rises within a millisecond.
    pub seq: u64,
}

impl std::fmt::Display for EntryId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl std::str::FromStr for EntryId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a journal entry id");
        let (ms, seq) = text.split_once('-').ok_or_else(bad)?;
        Ok(Self { ms: ms.parse().map_err(|_| bad())?, seq: seq.parse().map_err(|_| bad())? })
    }
}

/// How far a partition's journal is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Whose journal.
    pub partition: Partition,
    /// Which life's journal.
    pub life: Life,
    /// Last entry settled; `0-0` for none.
    pub entry: EntryId,
}

/// One entry read from a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its place.
    pub id: EntryId,
    /// The event as it was appended; may be unreadable, then settlement decides.
    pub bytes: Vec<u8>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Event {
    /// A lead was admitted.
    Received(Received),
    /// An attempt reached a new state.
    Attempt(Attempt),
    /// A lead got its verdict.
    Closed(Closed),
    /// A buyer gave a lead back. Since version 2.
    Returned(Returned),
    /// A lead waits for a buyer that decides later. Since version 3.
    Parked(ParkedLead),
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    v: u8,
    e: Cow<'a, Event>,
}

/// An event that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableEvent {
    /// Written by a newer gateway: it must stay in the journal until one reads it.
    #[error("event version {0} is not known here")]
    Version(u8),
    /// Can never be read by anybody.
    #[error("event is malformed")]
    Malformed,
}

impl Event {
    fn version(&self) -> u8 {
        match self {
            Self::Received(_) | Self::Attempt(_) | Self::Closed(_) => 1,
            Self::Returned(_) => 2,
            Self::Parked(_) => 3,
        }
    }

    /// The stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Cannot fail because events hold only strings, integers and lists, which JSON can always express.
        serde_json::to_vec(&Envelope { v: self.version(), e: Cow::Borrowed(self) }).unwrap_or_default()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`UnreadableEvent`]; the text of the event is never part of it (P9).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, UnreadableEvent> {
        #[derive(Deserialize)]
        struct VersionOnly {
            v: u8,
        }
        match serde_json::from_slice::<Envelope<'_>>(bytes) {
            Ok(Envelope { v: 1..=EVENT_VERSION, e }) => Ok(e.into_owned()),
            Ok(Envelope { v, .. }) => Err(UnreadableEvent::Version(v)),
            // What a newer version writes may have another form.
            Err(_) => match serde_json::from_slice(bytes) {
                Ok(VersionOnly { v }) if !(1..=EVENT_VERSION).contains(&v) => Err(UnreadableEvent::Version(v)),
                Ok(_) | Err(_) => Err(UnreadableEvent::Malformed),
            },
        }
    }
}

/// The idempotency key a lead came under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimKey {
    /// SHA-256 of the publisher's key, or of the campaign's idempotency fields; 64 hex digits.
    pub hash: String,
    /// SHA-256 of the raw body; absent for a key made from fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// A lead was admitted; in the publisher's partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// The lead.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// Unix microseconds.
    pub received_at_us: i64,
    /// A test lead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
    /// JSON text with canonical names.
    pub payload: String,
    /// Absent: no protection against repeats was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimKey>,
}

/// Units of one cap window that an attempt holds or held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowAmount {
    /// The cap.
    pub cap: CapId,
    /// Unix milliseconds.
    pub start_ms: i64,
    /// Leads or micros.
    pub amount: u64,
}

/// Money of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaleMoney {
    /// What the buyer owes.
    pub price: Micros,
    /// What the publisher is owed.
    pub payout: Micros,
    /// Of both.
    pub currency: Currency,
}

/// An attempt reached a new state; in the buyer's partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The lead.
    pub lead: LeadId,
    /// Who was offered it.
    pub buyer: BuyerId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// 1 for the first buyer tried.
    pub ordinal: u16,
    /// The new state.
    pub outcome: AttemptOutcome,
    /// Do the units in `windows` count now?
    pub counted: bool,
    /// Of the buyer's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// The buyer's words or ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Unix microseconds; when the forward started.
    pub sent_at_us: i64,
    /// From start to verdict, or to the time-out.
    pub duration_us: u64,
    /// What the attempt was charged, with final amounts.
    pub windows: Vec<WindowAmount>,
    /// Terms, kept with the row so that a doubt can be booked when it is resolved.
    pub price: Micros,
    /// The publisher's part of `price`.
    pub payout: Micros,
    /// Of both.
    pub currency: Currency,
    /// Is the sale booked by this event? False for a late yes: the closing or resolving event books it.
    pub books: bool,
    /// Whom the lead is about, where the buyer wants nobody twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<Person>,
    /// The buyer's own name for the lead, out of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// A lead got its verdict; in the publisher's partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The lead.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// What it is for.
    pub campaign: CampaignId,
    /// `sold`, `unsold` or `in_doubt`.
    pub status: LeadStatus,
    /// Of an unsold lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who has it, or may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer: Option<BuyerId>,
    /// Of a sale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sale: Option<SaleMoney>,
    /// Is the sale booked by this event? Only when its yes came late: otherwise the commit has booked it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub books: bool,
    /// A test lead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
    /// Unix microseconds.
    pub closed_at_us: i64,
    /// The answer, byte for byte.
    pub answer: String,
    /// JSON text.
    pub explanation: String,
    /// What the publisher is told about this verdict, byte for byte; absent: it has no postback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postback: Option<String>,
}

impl Closed {
    /// What a verdict says, and what the publisher is told of it; when, why and with which words is left to the caller.
    #[must_use]
    pub fn of(
        verdict: &Verdict,
        lead: LeadId,
        publisher: PublisherId,
        campaign: CampaignId,
        postback: Option<String>,
    ) -> Self {
        let (reason, buyer, sale) = match verdict {
            Verdict::Sold(sold) => {
                let money = SaleMoney { price: sold.price, payout: sold.payout, currency: sold.currency };
                (None, Some(sold.buyer.clone()), Some(money))
            }
            Verdict::Unsold(reason) => (Some(reason.as_str().to_owned()), None, None),
            Verdict::InDoubt(buyer) => (None, Some(buyer.clone()), None),
        };
        Self {
            lead,
            publisher,
            campaign,
            status: verdict.status(),
            reason,
            buyer,
            sale,
            books: false,
            test: false,
            closed_at_us: 0,
            answer: String::new(),
            explanation: String::new(),
            postback,
        }
    }
}

/// A buyer gave a lead back that was sold to it; in the buyer's partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returned {
    /// The lead.
    pub lead: LeadId,
    /// Who had it.
    pub buyer: BuyerId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// The buyer's words.
    pub reason: String,
    /// Unix microseconds.
    pub returned_at_us: i64,
    /// The sale as it was booked; every line of it is booked the other way round.
    pub sale: SaleMoney,
    /// Does the sale no longer count in its cap windows?
    pub frees_cap: bool,
    /// What goes back to the windows of the sale; empty where the cap is not freed.
    pub windows: Vec<WindowAmount>,
}

/// A lead waits for a buyer that decides later; in the publisher's partition. Carries the story so far, whose teller ends here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedLead {
    /// The lead.
    pub lead: LeadId,
    /// Who sent it.
    pub publisher: PublisherId,
    /// JSON text.
    pub explanation: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_back_and_unknown_versions_are_told_apart() {
        let event = Event::Received(Received {
            lead: LeadId::generate(),
            publisher: PublisherId::new("acme").unwrap(),
            campaign: CampaignId::new("solar").unwrap(),
            received_at_us: 1,
            test: false,
            payload: "{\"zip\":\"07030\"}".into(),
            claim: None,
        });
        let bytes = event.to_bytes();
        assert_eq!(Event::from_bytes(&bytes), Ok(event));
        assert!(bytes.starts_with(b"{\"v\":1,"), "a gateway of the version before reads it");
        assert_eq!(Event::from_bytes(b"{\"v\":0,\"e\":{}}"), Err(UnreadableEvent::Version(0)));
        assert_eq!(Event::from_bytes(b"{\"v\":9,\"e\":{\"t\":\"novel\"}}"), Err(UnreadableEvent::Version(9)));
        assert_eq!(Event::from_bytes(b"{\"v\":1,\"e\":{}}"), Err(UnreadableEvent::Malformed));
        assert_eq!(Event::from_bytes(b"\xff"), Err(UnreadableEvent::Malformed));
    }

    #[test]
    fn f80_an_event_is_written_under_the_first_version_that_knew_its_kind() {
        let returned = Event::Returned(Returned {
            lead: LeadId::generate(),
            buyer: BuyerId::new("sunco").unwrap(),
            publisher: PublisherId::new("acme").unwrap(),
            reason: "no such number".into(),
            returned_at_us: 1,
            sale: SaleMoney { price: Micros(2), payout: Micros(1), currency: Currency::new("USD").unwrap() },
            frees_cap: true,
            windows: vec![WindowAmount { cap: CapId::new("day"), start_ms: 0, amount: 1 }],
        });
        let bytes = returned.to_bytes();
        assert!(bytes.starts_with(b"{\"v\":2,"), "the version before stops at it and does not bury it");
        assert_eq!(Event::from_bytes(&bytes), Ok(returned));
    }
}
