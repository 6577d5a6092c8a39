//! What stands in the journal file: one record per change of one partition, framed by length and CRC32.
//!
//! A record says what was decided, never what was asked: replay applies it without deciding anything again, so limits and
//! clocks of another day cannot change it.

use std::io::{self, Read};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::domain::event::{ClaimKey, EntryId, Life, WindowAmount};
use crate::domain::id::{BuyerId, CapId, LeadId, PublisherId};
use crate::domain::lease::{AttemptInfo, EndMark, LeaseKey};
use crate::ledger::LeadPlace;
use crate::store::ReadBack;

/// Version of the file and of each record in it.
pub(super) const FILE_VERSION: u8 = 1;

/// Longest record, in bytes: far above an event with the largest body, far below what a damaged length could ask for.
pub(super) const RECORD_BYTES_MAX: usize = 16 << 20;

const FORMAT: &str = "capgate-journal";
const FRAME_HEAD_BYTES: usize = 8;

/// First frame of a file.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct FileHead {
    format: String,
    version: u8,
    pub(super) partitions: u16,
}

impl FileHead {
    pub(super) fn new(partitions: u16) -> Self {
        Self { format: FORMAT.to_owned(), version: FILE_VERSION, partitions }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let start = begin_frame(out);
        serde_json::to_writer(&mut *out, self)?;
        end_frame(out, start)
    }

    /// `None` when these bytes are no head of a file that this version reads.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let head: Self = serde_json::from_slice(body).ok()?;
        (head.format == FORMAT && head.version == FILE_VERSION).then_some(head)
    }
}

/// What a lease holds of one cap window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) cap: CapId,
    pub(super) start_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end_ms: Option<i64>,
    pub(super) amount: u64,
}

/// An open lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) key: LeaseKey,
    pub(super) held: Vec<Held>,
    pub(super) about: AttemptInfo,
    pub(super) taken_at_us: i64,
    pub(super) deadline_us: i64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) gives_back: bool,
}

/// A counter and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CounterRecord {
    pub(super) buyer: BuyerId,
    pub(super) cap: CapId,
    pub(super) start_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end_ms: Option<i64>,
    pub(super) used: u64,
}

/// Signed effect of a journal entry on the ledger's usage of one cap window, when it is settled (P2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effect {
    pub(super) buyer: BuyerId,
    pub(super) cap: CapId,
    pub(super) start_ms: i64,
    pub(super) units: i64,
}

/// [`ReadBack`] as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReadBackRecord {
    Done,
    UpTo(Option<(i64, LeadId)>),
}

impl From<&ReadBack> for ReadBackRecord {
    fn from(read: &ReadBack) -> Self {
        match read {
            ReadBack::Done => Self::Done,
            ReadBack::UpTo(place) => Self::UpTo(place.map(|place| (place.received_at.as_microsecond(), place.lead))),
        }
    }
}

impl From<&ReadBackRecord> for ReadBack {
    fn from(read: &ReadBackRecord) -> Self {
        match read {
            ReadBackRecord::Done => Self::Done,
            ReadBackRecord::UpTo(place) => Self::UpTo(place.and_then(|(us, lead)| {
                // A time that cannot be read starts over, which is harmless.
                Some(LeadPlace { received_at: Timestamp::from_microsecond(us).ok()?, lead })
            })),
        }
    }
}

/// One change of one partition. Those from `Reset` on stand in snapshots, except for `Entry` and `Mark`, which are changes too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// The partition's life.
    Life { life: Option<Life> },
    /// A lead was admitted; with its event.
    Admit { lead: LeadId, publisher: PublisherId, claim: Option<ClaimKey>, deadline_us: i64, entry: EntryId },
    /// A lead got its answer; with its event.
    Close {
        lead: LeadId,
        publisher: PublisherId,
        claim: Option<ClaimKey>,
        answer: String,
        expires_ms: i64,
        entry: EntryId,
    },
    /// How far leads were brought back from the books.
    ReadBack(ReadBackRecord),
    /// An open lead was claimed by recovery.
    Deadline { lead: LeadId, deadline_us: i64 },
    /// A lease was opened; counters follow from what it holds.
    Take { lease: Lease, version: u64 },
    /// A lease got an end mark; `counts` is what counts from now on. With its event.
    End { key: LeaseKey, mark: EndMark, counts: Vec<WindowAmount>, expires_ms: i64, entry: EntryId },
    /// An open lease is to be given back at its deadline.
    GivesBack { key: LeaseKey },
    /// A counter was set.
    Counter(CounterRecord),
    /// Entries up to this one are in the ledger.
    Trim { life: Life, entry: EntryId },

    /// What follows is the whole state of the partition after the record whose number this one carries.
    Reset,
    /// How far a life's journal has come.
    Journal { life: Life, tip: EntryId, trimmed: EntryId },
    /// An entry that waits for settlement; with its event.
    Entry { life: Life, id: EntryId, effects: Vec<Effect> },
    /// A lead, its answer if it has one.
    Lead {
        lead: LeadId,
        publisher: PublisherId,
        claim: Option<ClaimKey>,
        deadline_us: i64,
        answer: Option<String>,
        expires_ms: i64,
    },
    /// A buyer's newest routing version, and the newest window of each of its caps.
    Buyer { buyer: BuyerId, version: u64, caps: Vec<(CapId, i64)> },
    /// An open lease, whose charges stand in the counters already.
    Lease(Lease),
    /// An end mark.
    Mark { key: LeaseKey, mark: EndMark, counts: Vec<WindowAmount>, expires_ms: i64 },
}

/// A change, where it belongs, and the event that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) partition: u16,
    /// Rises by one per change of the partition; 0 within a snapshot. What a snapshot covers already is skipped by it.
    pub(super) number: u64,
    pub(super) change: Change,
    pub(super) event: Option<Bytes>,
}

#[derive(Serialize)]
struct HeadOut<'a> {
    p: u16,
    n: u64,
    c: &'a Change,
}

#[derive(Deserialize)]
struct HeadIn {
    p: u16,
    n: u64,
    c: Change,
}

impl Record {
    /// Appends the framed record: `[length][crc32]` then `[version][length of the JSON][JSON][event]`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let start = begin_frame(out);
        out.push(FILE_VERSION);
        let json_length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let json_at = out.len();
        serde_json::to_writer(&mut *out, &HeadOut { p: self.partition, n: self.number, c: &self.change })?;
        let json_length = u32::try_from(out.len() - json_at).map_err(|_| too_long())?;
        out[json_length_at..json_at].copy_from_slice(&json_length.to_le_bytes());
        if let Some(event) = &self.event {
            out.extend_from_slice(event);
        }
        end_frame(out, start)
    }

    /// `None` when the bytes are whole but mean nothing to this version.
    pub(super) fn decode(body: &Bytes) -> Option<Self> {
        let (version, rest) = body.split_first()?;
        let (length, rest) = rest.split_at_checked(4)?;
        let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
        if *version != FILE_VERSION || rest.len() < length {
            return None;
        }
        let head: HeadIn = serde_json::from_slice(&rest[..length]).ok()?;
        let event = (rest.len() > length).then(|| body.slice(5 + length..));
        Some(Self { partition: head.p, number: head.n, change: head.c, event })
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "record is too long")
}

fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    start
}

/// Fills in length and checksum, or takes the frame back when it is too long to be read again.
fn end_frame(out: &mut Vec<u8>, start: usize) -> io::Result<()> {
    let body = start + FRAME_HEAD_BYTES;
    let bytes = out.len() - body;
    let length = u32::try_from(bytes).map_err(|_| too_long())?;
    if bytes > RECORD_BYTES_MAX {
        out.truncate(start);
        return Err(too_long());
    }
    let crc = crc32fast::hash(&out[body..]);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..body].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// What reading the next frame found.
#[derive(Debug)]
pub(super) enum Frame {
    /// A whole one.
    Whole(Bytes),
    /// Nothing more.
    End,
    /// Cut short or damaged.
    Torn,
}

/// Reads one frame.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; FRAME_HEAD_BYTES];
    match read_fully(from, &mut head)? {
        0 => return Ok(Frame::End),
        FRAME_HEAD_BYTES => {}
        _ => return Ok(Frame::Torn),
    }
    let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    // A hole of zeros, which a crash can leave, has a checksum that fits: nothing we write is empty.
    if length == 0 || length > RECORD_BYTES_MAX {
        return Ok(Frame::Torn);
    }
    let mut body = vec![0; length];
    if read_fully(from, &mut body)? < length || crc32fast::hash(&body) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Ok(Frame::Torn);
    }
    Ok(Frame::Whole(Bytes::from(body)))
}

fn read_fully(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        Record {
            partition: 3,
            number,
            change: Change::Trim { life: Life(2), entry: EntryId { ms: 5, seq: 1 } },
            event: number.is_multiple_of(2).then(|| Bytes::from_static(b"{\"v\":1}")),
        }
    }

    #[test]
    fn records_read_back_and_every_cut_is_noticed() {
        let mut bytes = Vec::new();
        FileHead::new(16).encode(&mut bytes).unwrap();
        let head_bytes = bytes.len();
        record(1).encode(&mut bytes).unwrap();
        let first_bytes = bytes.len();
        record(2).encode(&mut bytes).unwrap();
        for cut in 0..=bytes.len() {
            let mut rest = &bytes[..cut];
            let mut read = Vec::new();
            let is_torn = loop {
                match read_frame(&mut rest).unwrap() {
                    Frame::Whole(body) => read.push(body),
                    Frame::End => break false,
                    Frame::Torn => break true,
                }
            };
            let ends = [0, head_bytes, first_bytes, bytes.len()];
            assert_eq!(is_torn, !ends.contains(&cut), "cut at {cut}");
            assert_eq!(read.len(), ends.iter().filter(|end| **end <= cut).count() - 1);
            if let [head, records @ ..] = &read[..] {
                assert_eq!(FileHead::decode(head), Some(FileHead::new(16)));
                let records: Vec<Record> = records.iter().map(|body| Record::decode(body).unwrap()).collect();
                assert_eq!(records, [record(1), record(2)][..records.len()]);
            }
        }
        for at in head_bytes..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let mut rest = &damaged[head_bytes..];
            let frames = [read_frame(&mut rest).unwrap(), read_frame(&mut rest).unwrap()];
            assert!(frames.iter().any(|frame| matches!(frame, Frame::Torn)), "damage at {at} was not noticed");
        }
        assert!(matches!(read_frame(&mut &[0_u8; 64][..]).unwrap(), Frame::Torn));
    }
}
