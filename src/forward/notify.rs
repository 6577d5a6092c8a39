//! A signed message to a publisher: one POST, and whether it has arrived.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use reqwest::{Method, Request, Response};
use tokio::time::{Instant, timeout_at};

use super::classify::rest_s;
use super::exchange::without_answer;
use super::progress::{Progress, WatchedBody};
use super::request::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use super::{Forwarder, guard};
use crate::domain::outcome::Outcome;
use crate::domain::routing::Postback;

/// Longest wait for the answer's head; with it the message has arrived or not.
pub const NOTIFY_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the rest of an answer is read, only so that its connection can be used again.
const REST_OF_ANSWER: Duration = Duration::from_secs(1);
/// Most bytes of it that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What one POST came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notified {
    /// Of the answer; `None` when none came.
    pub http_status: Option<u16>,
    /// Why none came: `connect`, `dns`, `timeout`, ...
    pub error: Option<&'static str>,
    /// A 429 or 503 asks for so many seconds of rest.
    pub rest_s: Option<u32>,
}

impl Notified {
    fn failed(error: &'static str) -> Self {
        Self { http_status: None, error: Some(error), rest_s: None }
    }
}

impl Forwarder {
    /// Posts `body` once, signed as Standard Webhooks has it, with the time of this try. The status of the answer decides, and
    /// a redirect is an answer like others. Addresses are guarded as those of buyers are (F51).
    pub async fn notify(&self, to: &Postback, id: &str, body: Bytes) -> Notified {
        let shared = &self.0;
        if !shared.allow_private_addresses && guard::literal(&to.url).is_some_and(|address| !guard::is_public(address))
        {
            return Notified::failed("address_refused");
        }
        let deadline = Instant::now() + NOTIFY_TIMEOUT;
        let progress = Arc::new(Progress::default());
        let Some(request) = signed(to, id, body, shared.clock.now().as_second(), &progress) else {
            return Notified::failed("illegal_header");
        };
        match timeout_at(deadline, shared.client.execute(request)).await {
            Ok(Ok(response)) => {
                let http_status = response.status().as_u16();
                let rest_s = rest_s(http_status, response.headers(), shared.clock.now());
                let _ = timeout_at(Instant::now() + REST_OF_ANSWER, read_up(response)).await;
                Notified { http_status: Some(http_status), error: None, rest_s }
            }
            Ok(Err(error)) => match without_answer(&error, &progress, to.url.scheme() == "https") {
                Outcome::Unsent { reason } | Outcome::InDoubt { reason, .. } => Notified::failed(reason),
                Outcome::Accepted(_) | Outcome::Declined { .. } | Outcome::Pending { .. } => Notified::failed("broken"),
            },
            Err(_) if progress.cut() => Notified::failed("connect_timeout"),
            Err(_) => Notified::failed("timeout"),
        }
    }
}

/// Ends early, and so closes the connection, where there is more than anybody needs (F49).
async fn read_up(mut response: Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > ANSWER_BYTES_MAX {
            return;
        }
    }
}

fn signed(to: &Postback, id: &str, body: Bytes, unix_s: i64, progress: &Arc<Progress>) -> Option<Request> {
    let signature = to.signing.sign(id, unix_s, &body);
    let mut request = Request::new(Method::POST, to.url.clone());
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(WEBHOOK_ID, HeaderValue::from_str(id).ok()?);
    headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_s));
    headers.insert(WEBHOOK_SIGNATURE, HeaderValue::from_str(&signature).ok()?);
    *request.body_mut() = Some(reqwest::Body::wrap(WatchedBody::new(body, false, Arc::clone(progress))));
    Some(request)
}
