//! How far a forward came. The one thing that must be known exactly is whether the lead may have left: it decides between
//! `unsent`, which frees the unit, and `in doubt`, which does not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

const WAITING: u8 = 0;
const STARTED: u8 = 1;
const CUT: u8 = 2;

/// Shared between the call and its body. Goes once from waiting to started or to cut, never further.
#[derive(Debug, Default)]
pub struct Progress {
    state: AtomicU8,
    http_status: AtomicU16,
}

impl Progress {
    /// Marks that bytes are about to leave; `false` when the call was cut before.
    pub fn start(&self) -> bool {
        self.state.compare_exchange(WAITING, STARTED, Ordering::AcqRel, Ordering::Acquire) != Err(CUT)
    }

    /// Makes sure that nothing leaves any more; `false` when something may have left already. Closes the race between the
    /// deadline and a connection that comes up in the same moment: exactly one of the two wins (F46).
    pub fn cut(&self) -> bool {
        self.state.compare_exchange(WAITING, CUT, Ordering::AcqRel, Ordering::Acquire) != Err(STARTED)
    }

    /// May bytes have left?
    pub fn is_started(&self) -> bool {
        self.state.load(Ordering::Acquire) == STARTED
    }

    /// Was it made sure that nothing leaves?
    pub fn is_cut(&self) -> bool {
        self.state.load(Ordering::Acquire) == CUT
    }

    /// Notes the status of the answer's head.
    pub fn head(&self, http_status: u16) {
        self.http_status.store(http_status, Ordering::Release);
    }

    /// The status, if a head came.
    pub fn http_status(&self) -> Option<u16> {
        match self.http_status.load(Ordering::Acquire) {
            0 => None,
            status => Some(status),
        }
    }
}

/// The body of a forward. HTTP asks for it when the connection stands (TLS included) and the head lies in the buffer, just
/// before anything is flushed: the first moment at which the lead may leave. An empty body (a GET has the lead in its URL) is
/// never asked for, but whether it is at its end is asked just before the head is written.
#[derive(Debug)]
pub struct WatchedBody {
    bytes: Option<Bytes>,
    /// A GET says nothing about the length of what it does not have.
    is_get: bool,
    progress: Arc<Progress>,
}

/// The call was cut before its body was asked for; ends the connection.
#[derive(Debug, thiserror::Error)]
#[error("cut before the first byte")]
pub struct CutBeforeFirstByte;

impl WatchedBody {
    /// A body of exactly these bytes; none for a GET.
    #[must_use]
    pub fn new(bytes: Bytes, is_get: bool, progress: Arc<Progress>) -> Self {
        Self { bytes: Some(bytes), is_get, progress }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = CutBeforeFirstByte;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(bytes) = self.bytes.take() else { return Poll::Ready(None) };
        if self.progress.start() {
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        } else {
            Poll::Ready(Some(Err(CutBeforeFirstByte)))
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.bytes {
            None => true,
            // When it was cut there is one byte more, which never comes: the head is not flushed without it.
            Some(bytes) => bytes.is_empty() && self.progress.start() && self.is_get,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.bytes {
            Some(bytes) if bytes.is_empty() && self.progress.is_cut() => SizeHint::with_exact(1),
            Some(bytes) => SizeHint::with_exact(bytes.len() as u64),
            None => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f46_an_empty_body_marks_the_start_and_holds_the_head_back_when_it_was_cut() {
        for is_get in [true, false] {
            let progress = Arc::<Progress>::default();
            let body = WatchedBody::new(Bytes::new(), is_get, Arc::clone(&progress));
            assert!(!progress.is_started(), "it was not asked yet");
            assert_eq!((body.is_end_stream(), body.size_hint().exact()), (is_get, Some(0)));
            assert!(progress.is_started() && !progress.cut());

            let progress = Arc::<Progress>::default();
            let body = WatchedBody::new(Bytes::new(), is_get, Arc::clone(&progress));
            assert!(progress.cut());
            assert_eq!((body.is_end_stream(), body.size_hint().exact()), (false, Some(1)));
        }
    }

    #[test]
    fn f46_start_and_cut_never_both_win() {
        let progress = Progress::default();
        assert!(progress.start() && progress.start(), "a start may be seen twice");
        assert!(!progress.cut() && progress.is_started());

        let progress = Progress::default();
        assert!(progress.cut() && progress.cut());
        assert!(!progress.start() && !progress.is_started());
    }
}
