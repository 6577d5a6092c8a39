//! The stub buyer: answers after a while, and may be rough. Cheaper than `capgate stub-buyer`, so that it takes less of the
//! machine that is measured.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;

/// How it behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Before each answer.
    pub delay: Duration,
    /// Of a hundred leads, 2 get no answer, 5 a 500, and 10 are declined.
    pub is_rough: bool,
}

/// What one lead gets.
enum Answer {
    Accepted,
    Declined,
    Error,
    Silence,
}

#[derive(Default)]
struct Counts {
    received: AtomicU64,
    accepted: AtomicU64,
}

/// Serves until it is ended. `GET /_stats` answers what was received and accepted.
pub async fn serve(listen: &str, manners: Manners) -> Result<(), Failure> {
    let counts = Arc::new(Counts::default());
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(connection(socket, manners, Arc::clone(&counts)));
    }
}

async fn connection(socket: TcpStream, manners: Manners, counts: Arc<Counts>) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(|request| {
        let counts = Arc::clone(&counts);
        async move { Ok::<_, Infallible>(answer(request, manners, &counts).await) }
    });
    // A gateway that hangs up ends the connection, nothing else.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
}

async fn answer(request: Request<Incoming>, manners: Manners, counts: &Counts) -> Response<Full<Bytes>> {
    if request.uri().path() == "/_stats" {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stats = format!(r#"{{"received":{},"accepted":{}}}"#, of(&counts.received), of(&counts.accepted));
        return Response::new(Full::new(Bytes::from(stats)));
    }
    // A body that does not come whole belongs to a connection that is gone.
    drop(request.into_body().collect().await);
    let turn = counts.received.fetch_add(1, Ordering::Relaxed);
    let fate = match turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 {
        dice if !manners.is_rough || dice % 100 >= 17 => Answer::Accepted,
        dice if dice % 100 >= 7 => Answer::Declined,
        dice if dice % 100 >= 2 => Answer::Error,
        _ => Answer::Silence,
    };
    if !manners.delay.is_zero() {
        tokio::time::sleep(manners.delay).await;
    }
    let (status, body) = match fate {
        Answer::Accepted => {
            counts.accepted.fetch_add(1, Ordering::Relaxed);
            (200, r#"{"status":"accepted"}"#)
        }
        Answer::Declined => (200, r#"{"status":"declined"}"#),
        Answer::Error => (500, r#"{"status":"error"}"#),
        Answer::Silence => return std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}
