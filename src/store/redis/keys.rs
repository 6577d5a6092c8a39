//! Key names. A partition is a hash tag, so that everything one step changes lies in one slot of a cluster.

use crate::domain::event::{ClaimKey, Life};
use crate::domain::id::{BuyerId, CapId, LeadId, Partition, PublisherId};
use crate::domain::person::PersonDigest;

/// Escapes free text so that it can neither join with its neighbour in a key nor move the key to another slot (F30): all but
/// `A-Z a-z 0-9 . _ -` becomes `%XX`.
pub(super) fn escape(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len() + 8);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

/// Undoes [`escape`]; `None` for text that it never makes.
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// Names of one prefix's keys.
#[derive(Debug)]
pub(super) struct Keys {
    /// `cg1:{p07}:` and its siblings, by partition.
    heads: Vec<String>,
}

impl Keys {
    pub(super) fn new(prefix: &str, partitions: u16) -> Self {
        Self { heads: (0..partitions).map(|number| format!("{prefix}:{{p{number:02}}}:")).collect() }
    }

    fn key(&self, partition: Partition, tail: std::fmt::Arguments<'_>) -> String {
        // Cannot fail because partitions are made by `Partition::of` with the same count; the fallback names no key in use.
        let head = self.heads.get(usize::from(partition.0)).map_or("", String::as_str);
        format!("{head}{tail}")
    }

    /// `<life>|<server it was begun on>|<open or closed>`.
    pub(super) fn life(&self, partition: Partition) -> String {
        self.key(partition, format_args!("life"))
    }

    /// How far leads have been read back from the books since the life began; absent when nothing is missing.
    pub(super) fn unread(&self, partition: Partition) -> String {
        self.key(partition, format_args!("unread"))
    }

    /// A counter: whole leads, or micros.
    pub(super) fn counter(&self, partition: Partition, buyer: &BuyerId, cap: &CapId, start_ms: i64) -> String {
        self.key(partition, format_args!("cap:{buyer}:{}:{start_ms}", escape(cap.as_str())))
    }

    /// Hash: [`Self::window_field`] -> newest window start that has a counter.
    pub(super) fn windows(&self, partition: Partition) -> String {
        self.key(partition, format_args!("windows"))
    }

    /// A counter by its field in `windows` and its window start.
    pub(super) fn counter_of_field(&self, partition: Partition, field: &str, start_ms: &str) -> Option<String> {
        let (buyer, cap) = field.split_once('|')?;
        Some(self.key(partition, format_args!("cap:{buyer}:{cap}:{start_ms}")))
    }

    /// Hash: buyer -> newest routing version seen.
    pub(super) fn versions(&self, partition: Partition) -> String {
        self.key(partition, format_args!("versions"))
    }

    /// A gateway resolves the lead's attempts; expires. In a partition of the lead's own: nothing else is asked with it.
    pub(super) fn resolving(&self, partition: Partition, lead: LeadId) -> String {
        self.key(partition, format_args!("resolving:{lead}"))
    }

    /// How a lease ended; expires.
    pub(super) fn end_mark(&self, partition: Partition, lead: LeadId, buyer: &BuyerId) -> String {
        self.key(partition, format_args!("lease:{lead}:{buyer}"))
    }

    /// The lead was given back a short while ago; expires.
    pub(super) fn returned(&self, partition: Partition, lead: LeadId, buyer: &BuyerId) -> String {
        self.key(partition, format_args!("returned:{lead}:{buyer}"))
    }

    /// Hash of a buyer's open leases: lead -> record. One hash per buyer, so that a seed can read them all in its one step
    /// with every key named.
    pub(super) fn leases(&self, partition: Partition, buyer: &BuyerId) -> String {
        self.key(partition, format_args!("leases:{buyer}"))
    }

    /// This buyer has this person: `<lead>|<since ms>|<life>`; expires by the buyer's rule.
    pub(super) fn person(&self, partition: Partition, buyer: &BuyerId, person: PersonDigest) -> String {
        self.key(partition, format_args!("dup:{buyer}:{person}"))
    }

    /// Everybody has been marked whom the buyer had, `<life>|<days>`: within so many days, as the books told it in this life.
    pub(super) fn marked(&self, partition: Partition, buyer: &BuyerId) -> String {
        self.key(partition, format_args!("marked:{buyer}"))
    }

    /// Sorted set: `<lead>:<buyer>` of open leases by deadline.
    pub(super) fn due(&self, partition: Partition) -> String {
        self.key(partition, format_args!("due"))
    }

    /// Stream of events of one life.
    pub(super) fn journal(&self, partition: Partition, life: Option<Life>) -> String {
        self.key(partition, format_args!("journal:{}", life_text(life)))
    }

    /// The entry up to which the journal of a life was trimmed.
    pub(super) fn trimmed(&self, partition: Partition, life: Life) -> String {
        self.key(partition, format_args!("trimmed:{}", life.0))
    }

    /// Hash: claim of a publisher's key, then the stored answer (`l` lead, `f` fingerprint, `a` answer).
    pub(super) fn claim(&self, partition: Partition, publisher: &PublisherId, hash: &str) -> String {
        self.key(partition, format_args!("idem:{publisher}:{}", escape(hash)))
    }

    /// Hash: a lead by its id: `c` hash of its claim, or the record itself (`l`, `a`).
    pub(super) fn lead(&self, partition: Partition, publisher: &PublisherId, lead: LeadId) -> String {
        self.key(partition, format_args!("lead:{publisher}:{lead}"))
    }

    /// Where a lead's record stands: under its claim, or under its own id.
    pub(super) fn record(
        &self,
        partition: Partition,
        publisher: &PublisherId,
        lead: LeadId,
        claim: Option<&ClaimKey>,
    ) -> String {
        claim.map_or_else(
            || self.lead(partition, publisher, lead),
            |claim| self.claim(partition, publisher, &claim.hash),
        )
    }

    /// Sorted set: open leads by deadline.
    pub(super) fn open(&self, partition: Partition) -> String {
        self.key(partition, format_args!("open"))
    }

    /// Hash: open lead -> publisher and claim, for recovery.
    pub(super) fn open_info(&self, partition: Partition) -> String {
        self.key(partition, format_args!("open_info"))
    }
}

/// A life as it stands in keys and arguments; empty for none.
pub(super) fn life_text(life: Option<Life>) -> String {
    life.map(|life| life.0.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f30_keys_are_pinned_and_never_join() {
        let keys = Keys::new("cg1", 16);
        let partition = Partition(7);
        let lead: LeadId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let buyer = BuyerId::new("sunco").unwrap();
        let publisher = PublisherId::new("acme").unwrap();
        assert_eq!(keys.life(partition), "cg1:{p07}:life");
        assert_eq!(keys.unread(partition), "cg1:{p07}:unread");
        assert_eq!(keys.windows(partition), "cg1:{p07}:windows");
        assert_eq!(keys.versions(partition), "cg1:{p07}:versions");
        assert_eq!(keys.due(partition), "cg1:{p07}:due");
        assert_eq!(keys.open(partition), "cg1:{p07}:open");
        assert_eq!(keys.open_info(partition), "cg1:{p07}:open_info");
        assert_eq!(keys.journal(partition, Some(Life(3))), "cg1:{p07}:journal:3");
        assert_eq!(keys.trimmed(partition, Life(3)), "cg1:{p07}:trimmed:3");
        assert_eq!(
            keys.counter(partition, &buyer, &CapId::new("day:publisher=acme"), 1_700_000_000_000),
            "cg1:{p07}:cap:sunco:day%3Apublisher%3Dacme:1700000000000"
        );
        assert_eq!(
            keys.counter_of_field(partition, "sunco|day%3Aspend", "17"),
            Some("cg1:{p07}:cap:sunco:day%3Aspend:17".to_owned())
        );
        assert_eq!(
            keys.end_mark(partition, lead, &buyer),
            "cg1:{p07}:lease:01890a5d-ac96-774b-bcce-b302099a8057:sunco"
        );
        assert_eq!(
            keys.returned(partition, lead, &buyer),
            "cg1:{p07}:returned:01890a5d-ac96-774b-bcce-b302099a8057:sunco"
        );
        assert_eq!(keys.leases(partition, &buyer), "cg1:{p07}:leases:sunco");
        let person = PersonDigest([0xab; 16]);
        assert_eq!(keys.person(partition, &buyer, person), format!("cg1:{{p07}}:dup:sunco:{}", "ab".repeat(16)));
        assert_eq!(keys.marked(partition, &buyer), "cg1:{p07}:marked:sunco");
        assert_eq!(keys.claim(partition, &publisher, "ab12"), "cg1:{p07}:idem:acme:ab12");
        assert_eq!(keys.lead(partition, &publisher, lead), "cg1:{p07}:lead:acme:01890a5d-ac96-774b-bcce-b302099a8057");
    }

    #[test]
    fn f30_escaped_text_reads_back_and_holds_no_separator() {
        for text in ["day", "day:state=TX", "{p00}", "a|b;c d%", "é\n", ""] {
            let escaped = escape(text);
            assert!(!escaped.contains([':', '{', '}', '|', ';', ' ', '\n']), "{escaped:?}");
            assert_eq!(unescape(&escaped).as_deref(), Some(text));
        }
        assert_eq!(unescape("%4"), None);
        assert_eq!(unescape("%zz"), None);
        assert_eq!(unescape("%FF"), None);
    }
}
