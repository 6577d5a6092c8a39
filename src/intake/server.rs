//! An HTTP server with bounds on everything (P7), used by the intake and the admin listener: HTTP/1.1, and over TLS also HTTP/2
//! for those who ask for it.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::Body;
use super::wire::{Framing, HEAD_BYTES_MAX, HeadFault, Patience, RefuseHead, Socket, Wire};

mod http2;

const HTTP_2: &[u8] = b"h2";
/// What is spoken over TLS, the preferred one first. Plain connections speak HTTP/1.1.
pub const PROTOCOLS: [&[u8]; 2] = [HTTP_2, b"http/1.1"];

/// Most header fields of one request.
const HEADERS_MAX: usize = 64;
/// Pauses after a failed accept, from the first to the longest: out of file descriptors is no reason to spin (F65).
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// What a request is answered with.
pub type Reply = Response<Full<Bytes>>;

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. `peer` is the other end of its connection. A body that is left unread is thrown away or costs the
    /// connection.
    fn handle(&self, peer: IpAddr, head: Parts, body: &mut Body) -> impl Future<Output = Reply> + Send;

    /// Answers a head that is no request; over HTTP/1.1 its connection is closed.
    fn refuse_head(&self, fault: HeadFault) -> Reply;

    /// Answers a request that is one too many.
    fn refuse_load(&self) -> Reply;
}

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From accept to the first byte, and from there to the end of the head; of a TLS handshake.
    pub header_timeout: Duration,
    /// Keep-alive without a request, and a peer that does not read its answer.
    pub idle_timeout: Duration,
    /// Above it, new connections wait in the kernel. Each further request that a connection has under way counts as one.
    pub connections_max: usize,
    /// A body that nobody wanted is read up to this size, to keep the connection.
    pub unwanted_body_bytes_max: usize,
    /// After the stop, requests under way may take this long; then they are cut.
    pub drain_within: Duration,
}

/// Serves until `stop`, then: no more connections, idle ones closed at once, requests under way finished (F85). Returns
/// when the last connection is gone, at the latest `drain_within` after the stop. Plain HTTP without `tls`.
pub async fn run<H: Handler>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    handler: Arc<H>,
    stop: CancellationToken,
) {
    let refuse: RefuseHead = {
        let handler = Arc::clone(&handler);
        Arc::new(move |fault| last_words(handler.refuse_head(fault)))
    };
    let server = Arc::new(Server {
        tls,
        limits,
        handler,
        refuse,
        permits: Arc::new(Semaphore::new(limits.connections_max)),
        tracker: TaskTracker::new(),
        stop,
        cut: CancellationToken::new(),
    });
    server.accept_all(&listener).await;
    drop(listener);
    let Server { tracker, cut, .. } = &*server;
    tracker.close();
    if tokio::time::timeout(limits.drain_within, tracker.wait()).await.is_err() {
        tracing::warn!(connections = tracker.len(), "requests under way were cut at the end of the drain time");
        cut.cancel();
        tracker.wait().await;
    }
}

/// What the connections of a listener share.
struct Server<H> {
    tls: Option<TlsAcceptor>,
    limits: Limits,
    handler: Arc<H>,
    refuse: RefuseHead,
    /// One for each connection, and for each further request that one has under way.
    permits: Arc<Semaphore>,
    tracker: TaskTracker,
    stop: CancellationToken,
    /// Out of patience.
    cut: CancellationToken,
}

impl<H: Handler> Server<H> {
    /// Accepts until the stop.
    async fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        let mut pause = ACCEPT_PAUSE.0;
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = accept(listener, &self.permits) => accepted,
            };
            match accepted {
                Ok((stream, peer, permit)) => {
                    pause = ACCEPT_PAUSE.0;
                    let server = Arc::clone(self);
                    self.tracker.spawn(async move {
                        let cut = server.cut.clone();
                        cut.run_until_cancelled_owned(Box::pin(server.serve_connection(stream, peer))).await;
                        drop(permit);
                    });
                }
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, pause_ms = pause.as_millis(), "cannot accept connections");
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(ACCEPT_PAUSE.1);
                }
            }
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream, peer: IpAddr) {
        // Without it a small answer can wait 40 ms for an acknowledgement.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let Some(tls) = &self.tls else { return self.serve_http1(stream, peer).await };
        // Who speaks no TLS is answered by the library, with an alert; who says nothing has the time of a head (F57).
        let shaken = tokio::select! {
            () = self.stop.cancelled() => return,
            shaken = tokio::time::timeout(self.limits.header_timeout, tls.accept(stream)) => shaken,
        };
        match shaken {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(HTTP_2) => {
                http2::serve(self, stream, peer).await;
            }
            Ok(Ok(stream)) => self.serve_http1(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake did not end in time"),
        }
    }

    async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, peer: IpAddr) {
        let patience = Patience { head: self.limits.header_timeout, idle: self.limits.idle_timeout };
        let (socket, wire) = Socket::new(stream, patience, Arc::clone(&self.refuse));
        let service = service_fn(|request: Request<Incoming>| {
            let wire = Arc::clone(&wire);
            async move { Ok::<_, Infallible>(self.serve_request(request, peer, &wire).await) }
        });
        // The socket keeps the time-outs: the library's own one would count an idle keep-alive connection as a slow head.
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(socket), service);
        let mut connection = pin!(connection);
        // Errors of a connection (reset, time-out, nonsense) are the peer's business: every request has its own answer.
        let _ = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                wire.stop();
                connection.await
            }
        };
    }

    async fn serve_request(&self, request: Request<Incoming>, peer: IpAddr, wire: &Wire) -> Reply {
        let (head, incoming) = request.into_parts();
        let framing = incoming.size_hint().exact().map_or(Framing::Chunked, Framing::Length);
        let mut body = Body::new(incoming, &head.headers);
        let mut reply = if wire.begin(framing) {
            let reply = self.handler.handle(peer, head, &mut body).await;
            body.discard(self.limits.unwanted_body_bytes_max).await;
            reply
        } else {
            body.spoil();
            self.handler.refuse_head(HeadFault::Malformed)
        };
        wire.end(body.is_read());
        if !body.is_read() || self.stop.is_cancelled() {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        reply
    }
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, IpAddr, tokio::sync::OwnedSemaphorePermit)> {
    // The permit comes first: a connection that may not be served is not accepted.
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer.ip(), permit))
}

/// The peer was gone before we got to it: no sign of trouble on our side.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The last answer on a connection, as bytes.
fn last_words(reply: Reply) -> Vec<u8> {
    let (head, mut body) = reply.into_parts();
    let frame = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
    // Cannot fail because the body is one piece that is here already.
    let body = match frame {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    };
    let mut bytes =
        format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", head.status, body.len()).into_bytes();
    for (name, value) in &head.headers {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f65_only_trouble_of_our_own_makes_accept_pause() {
        assert!(is_about_one_connection(&io::ErrorKind::ConnectionAborted.into()));
        // EMFILE and ENFILE.
        assert!(!is_about_one_connection(&io::Error::from_raw_os_error(24)));
        assert!(!is_about_one_connection(&io::Error::from_raw_os_error(23)));
    }
}
