//! Reading a request's body within bounds of size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

/// A body that nobody wanted is given this long to come in.
const DISCARD_WITHIN: Duration = Duration::from_secs(1);

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// Larger than allowed, as declared or as counted.
    TooLarge,
    /// Not complete in time.
    TimedOut,
    /// The connection broke, or the chunks make no sense.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Unread,
    Read,
    /// Will never be read to its end: the connection must close.
    Spoiled,
}

/// The body of one request.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    state: State,
    /// The client sends nothing before it is told to: reading would tell it.
    is_held_back: bool,
}

impl Body {
    pub(super) fn new(incoming: Incoming, headers: &HeaderMap) -> Self {
        let state = if incoming.is_end_stream() { State::Read } else { State::Unread };
        Self { incoming, state, is_held_back: headers.contains_key(EXPECT) }
    }

    /// Was it read to its end (or is there none)?
    pub(super) fn is_read(&self) -> bool {
        self.state == State::Read
    }

    /// Gives it up.
    pub(super) fn spoil(&mut self) {
        if self.state == State::Unread {
            self.state = State::Spoiled;
        }
    }

    /// Reads all of it, counted while it comes in: a declared length can be missing, or a lie (F58).
    ///
    /// # Errors
    /// [`BodyFault`]; the connection cannot be used again after one.
    pub async fn read(&mut self, bytes_max: usize, within: Duration) -> Result<Bytes, BodyFault> {
        if self.is_read() {
            return Ok(Bytes::new());
        }
        let read = if self.incoming.size_hint().lower() > bytes_max as u64 {
            Err(BodyFault::TooLarge)
        } else {
            tokio::time::timeout(within, self.collect(bytes_max)).await.unwrap_or(Err(BodyFault::TimedOut))
        };
        self.state = if read.is_ok() { State::Read } else { State::Spoiled };
        read
    }

    async fn collect(&mut self, bytes_max: usize) -> Result<Bytes, BodyFault> {
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(frame) = self.incoming.frame().await {
            // Trailers are no part of the lead.
            let Ok(data) = frame.map_err(|_| BodyFault::Broken)?.into_data() else { continue };
            if first.len() + all.len() + data.len() > bytes_max {
                return Err(BodyFault::TooLarge);
            }
            if first.is_empty() && all.is_empty() {
                // Nearly every body comes in one piece; then nothing is copied.
                first = data;
                continue;
            }
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    }

    /// Reads a body that a refusal left behind, so that the connection can go on; gives up where that is not cheap.
    pub(super) async fn discard(&mut self, bytes_max: usize) {
        if self.state == State::Unread {
            if self.is_held_back {
                self.spoil();
            } else {
                let _ = self.read(bytes_max, DISCARD_WITHIN).await;
            }
        }
    }
}
