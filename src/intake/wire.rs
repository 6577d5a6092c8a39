//! The socket under the HTTP library. It hands over one request head at a time, never a byte beyond the head or the
//! body that belongs to it, and it owns the clocks of a connection: first byte, head, idle, stalled write.
//!
//! The library reads a head that carries both `Content-Length` and `Transfer-Encoding`, duplicate lengths or bare line
//! feeds without telling anyone, because it drops what it did not use. Behind a proxy that reads such a head in the other
//! way, bytes of one sender become a request of another (F63). So each head is looked at here, byte for byte, and a
//! request whose head was not seen whole, or looks like two readings, is refused and its connection closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Largest request head, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes asked of the kernel at once.
const READ_BYTES: usize = 8 * 1024;
/// After a refusal in mid-body, this much is read and thrown away, so that the answer is not destroyed by a reset.
const LINGER_BYTES_MAX: usize = 512 * 1024;
/// And for this long.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// How long a connection may keep us waiting.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// From accept to the first byte, and from there to the end of the head.
    pub head: Duration,
    /// Between an answer and the next head, and for a peer that does not read.
    pub idle: Duration,
}

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

/// Makes the whole answer, as bytes of HTTP/1.1, to a head that was refused.
pub type RefuseHead = Arc<dyn Fn(HeadFault) -> Vec<u8> + Send + Sync>;

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

/// Is there only one way to read where this request ends? `head` ends with an empty line.
fn has_one_reading(head: &[u8]) -> bool {
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
fn fault_of(written: &[u8]) -> Option<HeadFault> {
    match written.strip_prefix(b"HTTP/1.1 ")?.get(..3)? {
        b"414" | b"431" => Some(HeadFault::TooLarge),
        [b'4' | b'5', ..] => Some(HeadFault::Malformed),
        _ => None,
    }
}

/// A TCP stream that keeps the rules of this module.
pub struct Socket {
    stream: TcpStream,
    wire: Arc<Wire>,
    patience: Patience,
    /// Read from the kernel and not handed over yet.
    kept: Vec<u8>,
    armed: Option<Wait>,
    read_deadline: Pin<Box<Sleep>>,
    write_deadline: Option<Pin<Box<Sleep>>>,
    lingering: Option<(usize, Pin<Box<Sleep>>)>,
    refuse: RefuseHead,
    /// Being written in place of the library's answer, and how much of it is.
    instead: Option<(Vec<u8>, usize)>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("stream", &self.stream).field("wire", &self.wire).finish_non_exhaustive()
    }
}

impl Socket {
    /// Wraps an accepted stream.
    pub fn new(stream: TcpStream, patience: Patience, refuse: RefuseHead) -> (Self, Arc<Wire>) {
        let wire = Arc::new(Wire::new());
        let socket = Self {
            stream,
            wire: Arc::clone(&wire),
            patience,
            kept: Vec::new(),
            armed: None,
            read_deadline: Box::pin(tokio::time::sleep(patience.head)),
            write_deadline: None,
            lingering: None,
            refuse,
            instead: None,
        };
        (socket, wire)
    }

    /// Hands over as much of what is kept as the next read may have.
    fn deliver(&mut self, state: &mut State, buf: &mut ReadBuf<'_>) -> bool {
        let room = buf.remaining().min(self.kept.len());
        if room == 0 || state.seen.is_some() {
            return false;
        }
        let count = state.hand_over(&self.kept[..room]);
        buf.put_slice(&self.kept[..count]);
        self.kept.drain(..count);
        true
    }

    /// Ready with an error when the peer has kept us waiting for too long.
    fn poll_deadline(&mut self, wait: Option<Wait>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if wait != self.armed {
            self.armed = wait;
            let patience = match wait {
                Some(Wait::FirstByte | Wait::Head(_)) => self.patience.head,
                Some(Wait::Idle(_)) => self.patience.idle,
                None => return Poll::Pending,
            };
            self.read_deadline.as_mut().reset(Instant::now() + patience);
        }
        if wait.is_none() {
            return Poll::Pending;
        }
        ready!(self.read_deadline.as_mut().poll(cx));
        if matches!(wait, Some(Wait::Head(_))) && self.write_deadline.is_none() {
            // The library knows of no request yet and would close without a word. A peer whose window has no room for a
            // few hundred bytes gets none.
            let _ = self.stream.try_write(&(self.refuse)(HeadFault::TimedOut));
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Writes an answer of ours where the library begins one of its own, `bytes` long; `None` when it does not.
    fn poll_instead(&mut self, start: &[u8], bytes: usize, cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        if self.instead.is_none() {
            let is_ours = {
                let mut state = self.wire.0.lock();
                std::mem::take(&mut state.is_answer_due) || state.is_busy
            };
            let fault = if is_ours { None } else { fault_of(start) };
            self.instead = Some(((self.refuse)(fault?), 0));
        }
        while let Some((answer, written)) = &mut self.instead {
            match Pin::new(&mut self.stream).poll_write(cx, &answer[*written..]) {
                Poll::Ready(Ok(more)) if more > 0 => *written += more,
                Poll::Ready(Ok(_)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => return Some(Poll::Pending),
            }
            if *written == answer.len() {
                self.instead = None;
            }
        }
        Some(Poll::Ready(Ok(bytes)))
    }

    /// A peer that does not read its answers is let go (F57).
    fn poll_stalled<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let idle = self.patience.idle;
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let wire = Arc::clone(&this.wire);
        let mut state = wire.0.lock();
        if this.deliver(&mut state, buf) {
            return Poll::Ready(Ok(()));
        }
        // With a whole head handed over, or bytes kept back, nothing more is read: what does not fit waits in the kernel.
        if state.seen.is_none() && this.kept.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut this.stream).poll_read(cx, &mut read) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if read.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {
                    this.kept.extend_from_slice(read.filled());
                    this.deliver(&mut state, buf);
                    return Poll::Ready(Ok(()));
                }
                // Told to stop and nothing has come in: the end of the stream, as far as the library is concerned (F85).
                Poll::Pending if state.is_stopping && state.is_between_requests() => return Poll::Ready(Ok(())),
                Poll::Pending => {}
            }
        }
        state.waker = Some(cx.waker().clone());
        let wait = state.wait();
        drop(state);
        this.poll_deadline(wait, cx)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let instead = self.poll_instead(buf, buf.len(), cx);
        let written = instead.unwrap_or_else(|| Pin::new(&mut self.stream).poll_write(cx, buf));
        self.poll_stalled(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (start, bytes) = (bufs.first().map_or(&[][..], |first| &**first), bufs.iter().map(|buf| buf.len()).sum());
        let instead = self.poll_instead(start, bytes, cx);
        let written = instead.unwrap_or_else(|| Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        self.poll_stalled(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            let state = this.wire.0.lock();
            if !(state.is_spoiled || state.is_overlong || !state.head.is_empty()) {
                return Poll::Ready(Ok(()));
            }
        }
        // A close with unread bytes makes the kernel send a reset, which can destroy the answer before the peer has read it.
        let (budget, deadline) =
            this.lingering.get_or_insert_with(|| (LINGER_BYTES_MAX, Box::pin(tokio::time::sleep(LINGER_TIME))));
        loop {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut this.stream).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() && *budget > read.filled().len() => {
                    *budget -= read.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(deadline.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
