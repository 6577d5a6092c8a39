//! HTTP/2 over TLS. The library refuses what is malformed by the protocol (connection headers, upper case, pseudo headers, a
//! body that is not as long as was said); here are the bounds that it does not know, and the second looks at a head that the
//! socket takes for HTTP/1.1.
//!
//! A connection costs no more than one of HTTP/1.1: every stream beyond the first counts against `connections_max`, the idle
//! time runs while no request is under way, whatever else the peer sends, and a peer that drops its requests faster than it
//! takes answers is let go (CVE-2023-44487).

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{HEADERS_MAX, Handler, Reply, Server};
use crate::intake::body::Body;
use crate::intake::wire::{HEAD_BYTES_MAX, HeadFault};

/// Requests of one connection at once; the library refuses streams beyond it.
const STREAMS_MAX: u32 = 64;
/// Bytes of a body, and of all bodies of a connection, that may come in before they are read.
const WINDOWS_BYTES: (u32, u32) = (64 * 1024, 256 * 1024);
/// Bytes of an answer that wait for a slow reader.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Streams that the peer may have reset before we saw them, and that we may have to reset for what they are.
const RESETS_MAX: (usize, usize) = (20, 128);
/// Requests that were dropped by the peer before they had their answer; every answer makes up for one.
const DROPPED_MAX: u32 = 100;
/// A connection that was told to end and has nothing under way is given this long for its last frames.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

pub(super) async fn serve<H, S>(server: Arc<Server<H>>, stream: S, peer: IpAddr)
where
    H: Handler,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = server.limits;
    let requests = Arc::new(Requests::new(server.cut.child_token()));
    // Its streams end with the connection, however that ends.
    let _ends = requests.ended.clone().drop_guard();
    let service = service_fn(|request: Request<Incoming>| {
        let (server, requests) = (Arc::clone(&server), Arc::clone(&requests));
        async move { Ok::<_, Infallible>(answer(&server, &requests, request, peer).await) }
    });
    let streams = Streams { tracker: server.tracker.clone(), ended: requests.ended.clone() };
    let connection = http2::Builder::new(streams)
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOWS_BYTES.0)
        .initial_connection_window_size(WINDOWS_BYTES.1)
        .max_send_buf_size(ANSWER_BYTES_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(RESETS_MAX.0)
        .max_local_error_reset_streams(RESETS_MAX.1)
        // Finds peers that are gone, or do not read.
        .keep_alive_interval(limits.idle_timeout / 2)
        .keep_alive_timeout(limits.header_timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut is_leaving = false;
    loop {
        let (first, idle) =
            if is_leaving { (LEAVE_WITHIN, LEAVE_WITHIN) } else { (limits.header_timeout, limits.idle_timeout) };
        tokio::select! {
            // Errors of a connection are the peer's business: every request has its own answer.
            _ = connection.as_mut() => return,
            () = requests.ended.cancelled() => return,
            () = server.stop.cancelled(), if !is_leaving => {}
            () = requests.quiet(first, idle) => {
                if is_leaving {
                    return;
                }
            }
        }
        is_leaving = true;
        connection.as_mut().graceful_shutdown();
    }
}

async fn answer<H: Handler>(
    server: &Server<H>,
    requests: &Requests,
    request: Request<Incoming>,
    peer: IpAddr,
) -> Reply {
    let under_way = requests.begin();
    let permit = (!under_way.is_alone).then(|| server.permits.try_acquire());
    let (head, incoming) = request.into_parts();
    let mut body = Body::new(incoming, &head.headers);
    let reply = match (permit, fault(&head)) {
        (Some(Err(_)), _) => server.handler.refuse_load(),
        (_, Some(fault)) => server.handler.refuse_head(fault),
        (_permit, None) => {
            let reply = server.handler.handle(peer, head, &mut body).await;
            body.discard(server.limits.unwanted_body_bytes_max).await;
            reply
        }
    };
    under_way.end();
    reply
}

/// What HTTP/1.1 refuses at the socket. Who passes the request on as HTTP/1.1 could read it in another way (F63).
fn fault(head: &Parts) -> Option<HeadFault> {
    let count = |name| head.headers.get_all(name).iter().count();
    let host = head.headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let is_two_hosts = host.zip(authority).is_some_and(|(host, authority)| !host.eq_ignore_ascii_case(authority));
    if head.headers.len() > HEADERS_MAX {
        Some(HeadFault::TooLarge)
    } else if count(CONTENT_LENGTH) > 1 || count(TRANSFER_ENCODING) > 0 || count(HOST) > 1 || is_two_hosts {
        Some(HeadFault::Malformed)
    } else {
        None
    }
}

/// Runs the streams of one connection.
#[derive(Clone)]
struct Streams {
    tracker: TaskTracker,
    ended: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        self.tracker.spawn(async move { ended.run_until_cancelled_owned(stream).await });
    }
}

/// The requests of one connection.
struct Requests {
    count: Mutex<Count>,
    ended: CancellationToken,
}

struct Count {
    under_way: usize,
    /// When nothing was under way for the first time since.
    quiet_since: Instant,
    has_begun: bool,
    /// More than were answered.
    dropped: u32,
}

impl Requests {
    fn new(ended: CancellationToken) -> Self {
        let count = Count { under_way: 0, quiet_since: Instant::now(), has_begun: false, dropped: 0 };
        Self { count: Mutex::new(count), ended }
    }

    fn begin(&self) -> UnderWay<'_> {
        let mut count = self.count.lock();
        count.under_way += 1;
        count.has_begun = true;
        UnderWay { requests: self, is_alone: count.under_way == 1, is_answered: false }
    }

    /// Waits until nothing was under way for `idle`; for `first`, while there has been nothing at all.
    async fn quiet(&self, first: Duration, idle: Duration) {
        loop {
            let left = {
                let count = self.count.lock();
                let patience = if count.has_begun { idle } else { first };
                let quiet = if count.under_way == 0 { count.quiet_since.elapsed() } else { Duration::ZERO };
                patience.saturating_sub(quiet)
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

struct UnderWay<'a> {
    requests: &'a Requests,
    /// Nothing else was under way on its connection when it began.
    is_alone: bool,
    is_answered: bool,
}

impl UnderWay<'_> {
    fn end(mut self) {
        self.is_answered = true;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut count = self.requests.count.lock();
        count.under_way -= 1;
        if count.under_way == 0 {
            count.quiet_since = Instant::now();
        }
        count.dropped = if self.is_answered { count.dropped.saturating_sub(1) } else { count.dropped + 1 };
        if count.dropped > DROPPED_MAX {
            self.requests.ended.cancel();
        }
    }
}
