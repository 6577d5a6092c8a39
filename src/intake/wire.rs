//! The socket under the HTTP library. It hands over one request head at a time, never a byte beyond the head or the
//! body that belongs to it, and it owns the clocks of a connection: first byte, head, idle, stalled write.
//!
//! The library reads a head that carries both `Content-Length` and `Transfer-Encoding`, duplicate lengths or bare line
//! feeds without telling anyone, because it drops what it did not use. Behind a proxy that reads such a head in the other
//! way, bytes of one sender become a request of another (F63). So each head is looked at here, byte for byte, and a
//! request whose head was not seen whole, or looks like two readings, is refused and its connection closed.

use std::task::Waker;

use parking_lot::Mutex;

mod head;
mod socket;

pub use head::{HEAD_BYTES_MAX, HeadFault, has_one_reading};
pub use socket::{Patience, RefuseHead, Socket};

/// What follows on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// A head.
    Head,
    /// So many bytes of body.
    Body(u64),
    /// A body that says itself where it ends; the last four bytes handed over.
    Chunks([u8; 4]),
}

/// How the body of a request is delimited, as the HTTP library read the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes; 0 for none.
    Length(u64),
    /// Chunked.
    Chunked,
}

#[derive(Debug)]
struct State {
    expect: Expect,
    /// Bytes of the head so far.
    head: Vec<u8>,
    /// A whole head was handed over and its request has not begun: is it free of double meanings?
    seen: Option<bool>,
    /// The head passed its bound; the library refuses it.
    is_overlong: bool,
    /// A request is being answered.
    is_busy: bool,
    /// A request was answered and nothing of its answer was written yet.
    is_answer_due: bool,
    /// Requests begun.
    requests: u64,
    /// Bytes that were not looked at may be waiting in the library's buffer: no request may begin any more.
    is_spoiled: bool,
    /// No new request is wanted.
    is_stopping: bool,
    waker: Option<Waker>,
}

/// The part of a connection that its requests and its socket share.
#[derive(Debug)]
pub struct Wire(Mutex<State>);

impl Wire {
    fn new() -> Self {
        Self(Mutex::new(State {
            expect: Expect::Head,
            head: Vec::new(),
            seen: None,
            is_overlong: false,
            is_busy: false,
            is_answer_due: false,
            requests: 0,
            is_spoiled: false,
            is_stopping: false,
            waker: None,
        }))
    }

    /// A request begins. False when its head has two readings or was not seen whole: answer 400 and close (F63).
    pub fn begin(&self, framing: Framing) -> bool {
        let mut state = self.0.lock();
        let is_clean = state.seen.take().unwrap_or(false) && !state.is_spoiled;
        state.is_spoiled |= !is_clean;
        state.is_busy = true;
        state.requests += 1;
        state.expect = match framing {
            Framing::Length(0) => Expect::Head,
            Framing::Length(bytes) => Expect::Body(bytes),
            Framing::Chunked => Expect::Chunks([0; 4]),
        };
        state.wake();
        is_clean
    }

    /// The request has its answer. `is_body_read`: its body was read to the end, so that the next head may follow.
    pub fn end(&self, is_body_read: bool) {
        let mut state = self.0.lock();
        state.is_busy = false;
        state.is_answer_due = true;
        match state.expect {
            // The last chunk and its trailers end with an empty line. If the last bytes handed over do too, nothing of a
            // next head lies in the library's buffer except whole heads, which `begin` refuses as unseen.
            Expect::Chunks(tail) if is_body_read && tail == *b"\r\n\r\n" => state.expect = Expect::Head,
            Expect::Chunks(_) | Expect::Body(_) => state.is_spoiled = true,
            Expect::Head => state.is_spoiled |= !is_body_read,
        }
        state.wake();
    }

    /// Lets no new request begin; one whose head has started to come in is still served.
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.is_stopping = true;
        state.wake();
    }
}

/// What a read waits for, with the number of the request it waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    FirstByte,
    Head(u64),
    Idle(u64),
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn wait(&self) -> Option<Wait> {
        match (self.is_busy || self.seen.is_some(), self.expect, self.head.is_empty()) {
            (false, Expect::Head, true) if self.requests == 0 => Some(Wait::FirstByte),
            (false, Expect::Head, true) => Some(Wait::Idle(self.requests)),
            (false, Expect::Head, false) => Some(Wait::Head(self.requests)),
            _ => None,
        }
    }

    /// Nothing of a request is here or on its way to the handler.
    fn is_between_requests(&self) -> bool {
        self.expect == Expect::Head && self.head.is_empty() && self.seen.is_none() && !self.is_busy
    }

    /// How many of these bytes may be handed over now; looks at those that belong to a head.
    fn hand_over(&mut self, bytes: &[u8]) -> usize {
        match &mut self.expect {
            Expect::Body(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= count as u64;
                if *left == 0 {
                    self.expect = Expect::Head;
                }
                count
            }
            Expect::Chunks(tail) => {
                for byte in &bytes[bytes.len().saturating_sub(4)..] {
                    tail.rotate_left(1);
                    tail[3] = *byte;
                }
                bytes.len()
            }
            Expect::Head if self.is_overlong => bytes.len(),
            Expect::Head => self.hand_over_head(bytes),
        }
    }

    fn hand_over_head(&mut self, bytes: &[u8]) -> usize {
        // Empty lines before a request line are allowed and belong to no head.
        let blank =
            if self.head.is_empty() { bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count() } else { 0 };
        let bytes = &bytes[blank..];
        let from = self.head.len().saturating_sub(3);
        self.head.extend_from_slice(bytes);
        let Some(at) = self.head[from..].windows(4).position(|four| four == b"\r\n\r\n") else {
            if self.head.len() > HEAD_BYTES_MAX {
                self.is_overlong = true;
                self.head = Vec::new();
            }
            return blank + bytes.len();
        };
        let end = from + at + 4;
        let beyond = self.head.len() - end;
        self.seen = Some(has_one_reading(&self.head[..end]));
        self.head.clear();
        blank + bytes.len() - beyond
    }
}

#[cfg(test)]
mod tests;
