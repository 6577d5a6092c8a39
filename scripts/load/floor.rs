//! The floor: a bare proxy from hyper to reqwest. It reads a body, posts it to the buyer, and hands back the answer; there is
//! no filter, no cap, no key, no journal and no ledger. What a gateway costs is told as a multiple of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;

/// Serves until it is ended.
pub async fn serve(listen: &str, buyer: &str) -> Result<(), Failure> {
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build()?;
    let (client, buyer): (_, Arc<str>) = (Arc::new(client), buyer.into());
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(connection(socket, Arc::clone(&client), Arc::clone(&buyer)));
    }
}

async fn connection(socket: TcpStream, client: Arc<reqwest::Client>, buyer: Arc<str>) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(|request| {
        let (client, buyer) = (Arc::clone(&client), Arc::clone(&buyer));
        async move { Ok::<_, std::convert::Infallible>(forward(&client, &buyer, request).await) }
    });
    // A load generator that hangs up ends the connection, nothing else.
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
}

async fn forward(client: &reqwest::Client, buyer: &str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let answer = async {
        let body = request.into_body().collect().await.ok()?.to_bytes();
        let sent = client.post(buyer).header(http::header::CONTENT_TYPE, "application/json").body(body).send();
        sent.await.ok()?.bytes().await.ok()
    };
    let (status, body) = match answer.await {
        Some(body) => (StatusCode::OK, body),
        None => (StatusCode::BAD_GATEWAY, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}
