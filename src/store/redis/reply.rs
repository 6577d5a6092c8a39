//! What goes to the server and what comes back, without the library's types.

use bytes::Bytes;

use crate::store::StoreError;

/// A reply, as scripts and plain commands give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing there.
    Nil,
    /// A number.
    Int(i64),
    /// A string.
    Bytes(Bytes),
    /// A list.
    List(Vec<Reply>),
}

impl Reply {
    /// The string, or a bug: the server never gives anything else here.
    pub(super) fn text(&self) -> Result<&str, StoreError> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected("a string that is not UTF-8")),
            _ => Err(unexpected("no string")),
        }
    }

    /// The string, `None` for nothing there.
    pub(super) fn optional_text(&self) -> Result<Option<&str>, StoreError> {
        if *self == Self::Nil { Ok(None) } else { self.text().map(Some) }
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> Result<Bytes, StoreError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            _ => Err(unexpected("no string")),
        }
    }

    /// The number, written as such or as text.
    pub(super) fn int(&self) -> Result<i64, StoreError> {
        match self {
            Self::Int(number) => Ok(*number),
            other => other.text()?.parse().map_err(|_| unexpected("no number")),
        }
    }

    /// The list; nothing there is an empty one.
    pub(super) fn list(&self) -> Result<&[Reply], StoreError> {
        match self {
            Self::List(items) => Ok(items),
            Self::Nil => Ok(&[]),
            _ => Err(unexpected("no list")),
        }
    }
}

pub(super) fn unexpected(what: &str) -> StoreError {
    StoreError::Bug(format!("unexpected reply: {what}"))
}

/// Keys and arguments of a script call.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    /// All keys the script may touch.
    pub keys: Vec<String>,
    /// Everything else, in the order of the script's header.
    pub args: Vec<Bytes>,
}

impl Call {
    pub(super) fn new(keys: Vec<String>) -> Self {
        Self { keys, args: Vec::new() }
    }

    pub(super) fn arg(&mut self, arg: impl Into<Bytes>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn number(&mut self, number: impl std::fmt::Display + Copy) -> &mut Self {
        self.arg(number.to_string())
    }
}

/// What a script call gave.
#[derive(Debug)]
pub(super) struct Answer {
    /// The script's reply.
    pub reply: Reply,
    /// The first try got no answer: the reply may be that of a repeat.
    pub was_repeated: bool,
}

/// A plain command; its first argument is its key.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    pub name: &'static str,
    pub args: Vec<Bytes>,
}

impl Plain {
    pub(super) fn new(name: &'static str, args: Vec<Bytes>) -> Self {
        Self { name, args }
    }
}
