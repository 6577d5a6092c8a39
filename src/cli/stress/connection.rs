//! One keep-alive connection to the gateway: nothing but HTTP/1.1, so that the generator costs little beside what it measures.

use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Answers are small; what is larger is not one of ours.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Longest pause before a request is sent again, whatever `Retry-After` asks for.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Why a lead has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Never connected.
    Connect,
    /// The connection broke.
    Broken,
    /// It took too long.
    Timeout,
}

impl NoAnswer {
    /// The word in the report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::Timeout => "timeout",
        }
    }
}

/// What the gateway answered.
pub struct Reply {
    pub status: StatusCode,
    pub body: Bytes,
    retry_after: Option<Duration>,
}

impl Reply {
    /// How long a publisher waits before it sends the same again; `None` for an answer that stands.
    pub fn come_again_after(&self) -> Option<Duration> {
        let is_for_now = matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        is_for_now.then(|| self.retry_after.unwrap_or(PAUSE_MAX).min(PAUSE_MAX))
    }
}

/// A connection that is made when it is needed and made again when the other side has closed it.
pub struct Connection {
    authority: String,
    timeout: Duration,
    open: Option<SendRequest<Full<Bytes>>>,
    repeated: u64,
}

impl Connection {
    /// Connects with the first request. `authority` is `host:port`.
    pub fn new(authority: &str, timeout: Duration) -> Self {
        Self { authority: authority.to_owned(), timeout, open: None, repeated: 0 }
    }

    /// Requests that were sent again because a kept connection was closed under them.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Sends a request and reads its answer. Requests carry an idempotency key, so one that met a connection just being
    /// closed may be sent again, once, on a new one, as a careful publisher does.
    ///
    /// # Errors
    /// [`NoAnswer`]; the next request connects anew.
    pub async fn send(&mut self, request: &Request<Full<Bytes>>) -> Result<Reply, NoAnswer> {
        let limit = self.timeout;
        let sent = timeout(limit, async {
            let was_kept = self.open.is_some();
            match self.exchange(request).await {
                Err(NoAnswer::Broken) if was_kept => {
                    self.repeated += 1;
                    self.exchange(request).await
                }
                other => other,
            }
        });
        let result = sent.await.unwrap_or(Err(NoAnswer::Timeout));
        if result.is_err() {
            self.open = None;
        }
        result
    }

    async fn exchange(&mut self, request: &Request<Full<Bytes>>) -> Result<Reply, NoAnswer> {
        // Taken out, so that a request that is cut by its time-out leaves no half-used connection behind.
        let mut sender = match self.open.take() {
            Some(open) => open,
            None => connect(&self.authority).await?,
        };
        sender.ready().await.map_err(|_| NoAnswer::Broken)?;
        let response = sender.send_request(request.clone()).await.map_err(|_| NoAnswer::Broken)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|_| NoAnswer::Broken)?.to_bytes();
        self.open = Some(sender);
        Ok(Reply { status, body, retry_after })
    }
}

async fn connect(authority: &str) -> Result<SendRequest<Full<Bytes>>, NoAnswer> {
    let stream = TcpStream::connect(authority).await.map_err(|_| NoAnswer::Connect)?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|_| NoAnswer::Connect)?;
    // Ends with the sender, or with the other side; who sends learns of it there.
    tokio::spawn(connection);
    Ok(sender)
}
