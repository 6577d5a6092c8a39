//! Request heads, byte for byte: how large they may be, and whether they can be read in one way only (F63).

/// Largest request head, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Why a head was refused before there was a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadFault {
    /// It is not HTTP, or can be read in more than one way.
    Malformed,
    /// It passed [`HEAD_BYTES_MAX`], or has too many fields.
    TooLarge,
    /// It did not come in time.
    TimedOut,
}

/// Is there only one way to read where this request ends? `head` ends with an empty line.
#[must_use]
pub fn has_one_reading(head: &[u8]) -> bool {
    let is_bare = |at: usize| match head[at] {
        b'\n' => at == 0 || head[at - 1] != b'\r',
        b'\r' => head.get(at + 1) != Some(&b'\n'),
        byte => byte == 0,
    };
    if (0..head.len()).any(is_bare) {
        return false;
    }
    let mut lengths = 0;
    let mut codings = 0;
    let lines = head.split(|b| *b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    for line in lines.skip(1).filter(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { return false };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || name.iter().any(u8::is_ascii_whitespace) {
            return false;
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            lengths += 1;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            codings += 1;
            if !value.eq_ignore_ascii_case(b"chunked") {
                return false;
            }
        }
    }
    lengths + codings <= 1
}

/// What the library answers by itself to a head that it cannot read: an error without a body. An answer of ours goes out in its
/// place, so that no refusal is without words.
pub(super) fn fault_of(written: &[u8]) -> Option<HeadFault> {
    match written.strip_prefix(b"HTTP/1.1 ")?.get(..3)? {
        b"414" | b"431" => Some(HeadFault::TooLarge),
        [b'4' | b'5', ..] => Some(HeadFault::Malformed),
        _ => None,
    }
}
