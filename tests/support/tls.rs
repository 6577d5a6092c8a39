//! Certificates for tests, and clients that trust them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Answer, KEY};

pub const HTTP_2: &[u8] = b"h2";
pub const HTTP_11: &[u8] = b"http/1.1";

/// A certificate for `localhost` and its private key.
pub struct Pair {
    pub cert: CertificateDer<'static>,
    pub cert_pem: String,
    pub key_pem: String,
}

impl Pair {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        Self { cert: made.cert.der().clone(), cert_pem: made.cert.pem(), key_pem: made.signing_key.serialize_pem() }
    }

    /// Replaces the files one after the other, as people do.
    pub fn write(&self, folder: &Path) {
        std::fs::write(folder.join("cert.pem"), &self.cert_pem).expect("the certificate is written");
        std::fs::write(folder.join("key.pem"), &self.key_pem).expect("the key is written");
    }
}

/// Trusts these certificates and offers these protocols.
pub fn client_config(trusted: &[&Pair], protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for pair in trusted {
        roots.add(pair.cert.clone()).expect("a certificate");
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    // Each handshake shows a certificate.
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

pub async fn connect(intake: SocketAddr, config: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(intake).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await
}

/// The certificate that a new connection is shown.
pub async fn shown(intake: SocketAddr, config: &Arc<ClientConfig>) -> Option<CertificateDer<'static>> {
    let stream = connect(intake, config).await.ok()?;
    stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|cert| cert.clone().into_owned())
}

/// A connection of HTTP/2.
pub async fn http2(intake: SocketAddr, config: &Arc<ClientConfig>) -> SendRequest<Bytes> {
    let stream = connect(intake, config).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(HTTP_2));
    let (send, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    send
}

/// Starts a lead of publisher `acme` on a stream of its own.
pub async fn start(
    http2: &SendRequest<Bytes>,
    key: &str,
    body: &str,
) -> Option<(h2::client::ResponseFuture, h2::SendStream<Bytes>)> {
    let mut head = http::Request::post("https://localhost/v1/campaigns/solar/leads")
        .version(http::Version::HTTP_2)
        .header("authorization", format!("Bearer {KEY}"))
        .header("content-type", "application/json");
    if !key.is_empty() {
        head = head.header("idempotency-key", key);
    }
    let mut send = http2.clone().ready().await.ok()?;
    let (answer, mut stream) = send.send_request(head.body(()).expect("a head"), false).ok()?;
    stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).ok()?;
    Some((answer, stream))
}

/// The same, with its answer; `None` when none came.
pub async fn post(http2: &SendRequest<Bytes>, key: &str, body: &str) -> Option<Answer> {
    let started = std::time::Instant::now();
    let (answer, _stream) = start(http2, key, body).await?;
    let (head, mut incoming) = answer.await.ok()?.into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = incoming.data().await {
        let data = data.ok()?;
        let _ = incoming.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
    Some(Answer { status: head.status.as_u16(), headers: head.headers, bytes, took: started.elapsed() })
}
