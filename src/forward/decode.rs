//! The bytes of an answer as text. What the header says about them is not asked: it is wrong too often.

use std::borrow::Cow;

/// What the bytes 0x80 to 0x9f mean in windows-1252, which is what is written where ISO-8859-1 is said.
const WINDOWS_1252: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘', '’',
    '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
];

/// UTF-8, with or without a byte order mark; UTF-16 with one; everything else is taken for windows-1252, which every byte
/// sequence is, so that one letter of a name cannot make an answer unreadable.
#[must_use]
pub fn decode(bytes: &[u8]) -> Cow<'_, str> {
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => decode_unmarked(rest),
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => decode_unmarked(bytes),
    }
}

fn decode_unmarked(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => bytes
            .iter()
            .map(|byte| match byte {
                0x80..=0x9f => WINDOWS_1252[usize::from(byte - 0x80)],
                byte => char::from(*byte),
            })
            .collect(),
    }
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Cow<'_, str> {
    let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|pair| unit(*pair)).collect();
    Cow::Owned(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_told_by_the_bytes() {
        assert_eq!(decode(b"\xef\xbb\xbf{\"a\":1}"), "{\"a\":1}");
        assert_eq!(decode("Zoë €".as_bytes()), "Zoë €");
        assert_eq!(decode(b"Zo\xeb \x80 \x92"), "Zoë € ’");
        let both = |unit: fn(u16) -> [u8; 2], mark: &[u8]| {
            let bytes = mark.iter().copied().chain("Zoë 😀".encode_utf16().flat_map(unit));
            decode(&bytes.collect::<Vec<_>>()).into_owned()
        };
        assert_eq!(both(u16::to_le_bytes, b"\xff\xfe"), "Zoë 😀");
        assert_eq!(both(u16::to_be_bytes, b"\xfe\xff"), "Zoë 😀");
        assert_eq!(decode(b""), "");
        assert_eq!(decode(b"\xff\xfeA"), "");
    }
}
