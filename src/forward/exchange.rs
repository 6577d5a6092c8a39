//! One POST and its answer. Knows no time limit: whoever runs it decides how long.

use std::error::Error;
use std::io;

use bytes::BytesMut;
use reqwest::{Client, Request, Response};

use super::classify::{Answer, classify, rest_s};
use super::progress::Progress;
use super::resolve::ResolveError;
use super::trace::Tracer;
use crate::clock::Clock;
use crate::domain::lead::Fields;
use crate::domain::outcome::Outcome;
use crate::domain::routing::AnswerRules;

/// What came of it.
#[derive(Debug)]
pub struct Exchanged {
    /// What it means.
    pub outcome: Outcome,
    /// The buyer asked for so many seconds of rest.
    pub rest_s: Option<u32>,
}

impl From<Outcome> for Exchanged {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, rest_s: None }
    }
}

/// How an answer is to be read.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The buyer's rules.
    pub rules: &'a AnswerRules,
    /// What the request says of the lead.
    pub sent: &'a Fields,
    /// Most bytes of its body.
    pub bytes_max: usize,
}

/// Sends `request` once and reads its answer to the last byte. Errors of the client hold URLs, which may hold secrets: they are
/// looked at here and never leave (P9).
pub async fn exchange(
    client: &Client,
    request: Request,
    progress: &Progress,
    expected: &Expected<'_>,
    clock: &dyn Clock,
    tracer: Option<&Tracer>,
) -> Exchanged {
    let is_https = request.url().scheme() == "https";
    let mut response = match client.execute(request).await {
        Ok(response) => response,
        Err(error) => return without_answer(&error, progress, is_https).into(),
    };
    let status = response.status().as_u16();
    progress.head(status);
    let headers = std::mem::take(response.headers_mut());
    if let Some(tracer) = tracer {
        tracer.head(status, &headers);
    }
    match read_body(response, expected.bytes_max).await {
        Ok(body) => {
            if let Some(tracer) = tracer {
                tracer.body(&body);
            }
            let now = clock.now();
            let answer = Answer { status, headers: &headers, body: &body };
            Exchanged {
                outcome: classify(&answer, expected.rules, expected.sent, now),
                rest_s: rest_s(status, &headers, now),
            }
        }
        // It was not answered in full: whatever its head said, nobody knows what the rest would have been.
        Err(reason) => Outcome::InDoubt { reason, http_status: Some(status) }.into(),
    }
}

/// Reads what fits; the connection of an answer that does not fit is closed by the drop of its response (F49).
async fn read_body(mut response: Response, bytes_max: usize) -> Result<BytesMut, &'static str> {
    let max = bytes_max as u64;
    if response.content_length().is_some_and(|announced| announced > max) {
        return Err("too_large");
    }
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > bytes_max => return Err("too_large"),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) if chain(&error).any(ends_early) => return Err("truncated"),
            Err(_) => return Err("broken"),
        }
    }
}

pub(super) fn without_answer(error: &reqwest::Error, progress: &Progress, is_https: bool) -> Outcome {
    if progress.is_started() && !error.is_connect() {
        let is_too_large =
            chain(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(hyper::Error::is_parse_too_large);
        return Outcome::InDoubt { reason: if is_too_large { "too_large" } else { "broken" }, http_status: None };
    }
    let refused = chain(error).find_map(|cause| cause.downcast_ref::<ResolveError>());
    let reason = match refused {
        Some(ResolveError::Refused) => "address_refused",
        Some(ResolveError::Unknown) => "dns",
        None if error.is_timeout() => "connect_timeout",
        None if is_https && chain(error).any(is_handshake_failure) => "tls",
        None => "connect",
    };
    Outcome::Unsent { reason }
}

/// An error and all that it came from. What an I/O error wraps is not among its sources, only what *that* came from.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

fn ends_early(cause: &(dyn Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::UnexpectedEof)
        || cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
}

/// A connection that stood and then failed before HTTP could use it: over https that is the handshake.
fn is_handshake_failure(cause: &(dyn Error + 'static)) -> bool {
    if cause.is::<rustls::Error>() {
        return true;
    }
    cause.downcast_ref::<io::Error>().is_some_and(|io| {
        matches!(
            io.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::InvalidData
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        )
    })
}
