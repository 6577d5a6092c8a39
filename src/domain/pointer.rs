//! RFC 6901 pointers into JSON text that is left as it was written, so that `12.50` stays `12.50` (P6).
//!
//! One thing beyond the RFC: in a list, the step `[name=value]` finds the first object whose member `name` has that text, and
//! `[a.b=value]` looks into members of members. Forms that send their answers as a list of names and values are read by it.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::value::RawValue;

/// A JSON document that was read to its end once, without recursion into it: depth costs nothing (F59).
#[derive(Debug, Clone, Copy)]
pub struct Document<'a>(&'a RawValue);

impl<'a> Document<'a> {
    /// `None` when the bytes are not one JSON value in UTF-8, with or without a byte order mark.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text)).ok().map(Self)
    }

    /// Are the bytes one JSON value?
    ///
    /// # Errors
    /// What is wrong, and where; nothing of the text.
    pub fn check(bytes: &[u8]) -> Result<(), serde_json::Error> {
        serde_json::from_slice::<&RawValue>(bytes).map(drop)
    }

    /// The text of the scalar behind a pointer: a string unescaped, a number digit for digit, `true` or `false`. `None`
    /// for what is not there, null, objects and lists.
    #[must_use]
    pub fn text(self, pointer: &str) -> Option<Cow<'a, str>> {
        let raw = self.find(pointer)?.get();
        match raw.as_bytes().first()? {
            b'"' => serde_json::from_str::<String>(raw).ok().map(Cow::Owned),
            b'{' | b'[' | b'n' => None,
            _ => Some(Cow::Borrowed(raw)),
        }
    }

    /// The JSON behind a pointer, as it was written.
    #[must_use]
    pub fn raw(self, pointer: &str) -> Option<&'a RawValue> {
        self.find(pointer)
    }

    fn find(self, pointer: &str) -> Option<&'a RawValue> {
        if pointer.is_empty() {
            return Some(self.0);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self.0, |value, token| {
            let token = token.replace("~1", "/").replace("~0", "~");
            match value.get().as_bytes().first()? {
                b'{' => serde_json::from_str::<HashMap<String, &RawValue>>(value.get()).ok()?.remove(&token),
                b'[' if token.starts_with('[') => select(value, &token),
                b'[' => {
                    let is_index = token == "0" || !token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit());
                    let index: usize = is_index.then(|| token.parse().ok())??;
                    serde_json::from_str::<Vec<&RawValue>>(value.get()).ok()?.get(index).copied()
                }
                _ => None,
            }
        })
    }
}

/// `[name=value]`
fn select<'a>(list: &'a RawValue, token: &str) -> Option<&'a RawValue> {
    let (path, wanted) = token.strip_prefix('[')?.strip_suffix(']')?.split_once('=')?;
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    let is_it = |item: &&RawValue| {
        let found = path.split('.').try_fold(*item, |value, name| {
            let members: HashMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
            members.get(name).copied()
        });
        found.and_then(|value| Document(value).text("")).is_some_and(|text| text == wanted)
    };
    items.into_iter().find(is_it)
}

/// Is it a pointer that could find something?
#[must_use]
pub fn is_pointer(text: &str) -> bool {
    let is_good = |token: &str| {
        let tildes_are_good = token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        let selects = token.strip_prefix('[').is_none_or(|rest| {
            rest.strip_suffix(']').and_then(|rest| rest.split_once('=')).is_some_and(|(name, _)| !name.is_empty())
        });
        tildes_are_good && selects
    };
    text.is_empty() || text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_find_scalars_as_they_were_written() {
        let json = br#"{"a":{"b":[1,{"c":12.50}]},"x/y":"s\u0061","~":true,"n":null,"":7,"big":18446744073709551616}"#;
        let document = Document::read(json).unwrap();
        for (pointer, expected) in [
            ("/a/b/1/c", Some("12.50")),
            ("/a/b/0", Some("1")),
            ("/a/b/00", None),
            ("/a/b/+1", None),
            ("/a/b/9", None),
            ("/a/b/", None),
            ("/a", None),
            ("/a/b", None),
            ("/x~1y", Some("sa")),
            ("/~0", Some("true")),
            ("/n", None),
            ("/", Some("7")),
            ("/big", Some("18446744073709551616")),
            ("/nowhere/else", None),
            ("no-slash", None),
        ] {
            assert_eq!(document.text(pointer).as_deref(), expected, "{pointer}");
        }
        assert_eq!(Document::read(b"\xef\xbb\xbf \"accepted\" ").unwrap().text("").as_deref(), Some("accepted"));
    }

    #[test]
    fn a_list_of_names_and_values_is_read_by_name() {
        let json = br#"{"answers":[7,{"id":"a","field":{"ref":"x"},"v":1},{"id":"b=","field":{"ref":"y"},"v":"two"}]}"#;
        let document = Document::read(json).unwrap();
        for (pointer, expected) in [
            ("/answers/[id=a]/v", Some("1")),
            ("/answers/[field.ref=y]/v", Some("two")),
            ("/answers/[id=b=]/v", Some("two")),
            ("/answers/[v=1]/id", Some("a")),
            ("/answers/[id=c]/v", None),
            ("/answers/[field=x]/v", None),
            ("/answers/[id]/v", None),
            ("/[id=a]", None),
        ] {
            assert_eq!(document.text(pointer).as_deref(), expected, "{pointer}");
        }
        for good in ["", "/", "/a/0", "/a~1b", "/a/[n=v]/x", "/a/[n=]"] {
            assert!(is_pointer(good), "{good}");
        }
        for bad in ["a", "/a~2", "/a~", "/a/[n", "/a/[n]", "/a/[=v]"] {
            assert!(!is_pointer(bad), "{bad}");
        }
    }

    #[test]
    fn f59_what_is_not_one_json_value_is_not_read() {
        for bad in [&b""[..], b"OK", b"{", b"{}{}", b"{\"a\":1,}", b"\"\xff\"", b"{'a':1}", b"<html>"] {
            assert!(Document::read(bad).is_none(), "{bad:?}");
        }
        let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
        assert_eq!(Document::read(deep.as_bytes()).unwrap().text("/0/0/0"), None);
    }
}
