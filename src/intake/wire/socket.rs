//! The stream under the HTTP library, TCP or TLS over it: hands over what [`Wire`] allows, and owns the clocks of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::head::{HeadFault, fault_of};
use super::{State, Wait, Wire};

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

/// Makes the whole answer, as bytes of HTTP/1.1, to a head that was refused.
pub type RefuseHead = Arc<dyn Fn(HeadFault) -> Vec<u8> + Send + Sync>;

/// A stream that keeps the rules of this module.
pub struct Socket<S> {
    stream: S,
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

impl<S> std::fmt::Debug for Socket<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("wire", &self.wire).finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    /// Wraps an accepted stream.
    pub fn new(stream: S, patience: Patience, refuse: RefuseHead) -> (Self, Arc<Wire>) {
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
            let _ = Pin::new(&mut self.stream).poll_write(cx, &(self.refuse)(HeadFault::TimedOut));
            let _ = Pin::new(&mut self.stream).poll_flush(cx);
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
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
        // What TLS has taken and TCP has not is still to be written.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.poll_stalled(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
            ready!(this.poll_stalled(shut, cx))?;
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
