//! Over TLS, HTTP/1.1 and HTTP/2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Version};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::support::*;
use crate::config::{self, IntakeConfig, Tls};

const SHORT: Duration = Duration::from_millis(300);
const H2: &[u8] = b"h2";
const HTTP_11: &[u8] = b"http/1.1";

/// A certificate of its own, as the gateway and its clients have it.
struct Identity {
    tls: Tls,
    roots: RootCertStore,
    _folder: TempDir,
}

impl Identity {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let file = folder.path().join("capgate.toml");
        std::fs::write(&file, "[intake]\ntls = { cert = \"cert.pem\", key = \"file:key.pem\" }\n").unwrap();
        let tls = config::load(Some(&file), &|_: &str| None).unwrap().intake.tls.unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        Self { tls, roots, _folder: folder }
    }

    async fn start(&self, config: IntakeConfig) -> Intake {
        Intake::with(IntakeConfig { tls: Some(self.tls.clone()), ..config }, PATIENCE).await
    }

    /// A handshake that offers these protocols.
    async fn shake(&self, intake: &Intake, protocols: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let stream = TcpStream::connect(intake.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(client)).connect(name, stream).await
    }

    async fn http2(&self, intake: &Intake) -> SendRequest<Bytes> {
        let stream = self.shake(intake, &[H2, HTTP_11]).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        send
    }
}

/// The head of a good lead.
fn head() -> http::request::Builder {
    Request::post(format!("https://localhost{LEADS}"))
        .version(Version::HTTP_2)
        .header("authorization", "Bearer acme-key")
        .header("content-type", "application/json")
}

/// One request; status and body, or nothing when the stream was reset.
async fn ask(send: &SendRequest<Bytes>, head: Request<()>, body: &[u8]) -> Option<(u16, String)> {
    let mut send = tokio::time::timeout(PATIENCE, send.clone().ready()).await.expect("no turn").ok()?;
    let (answer, mut stream) = send.send_request(head, body.is_empty()).ok()?;
    if !body.is_empty() {
        // What is refused early is reset before all of it is sent.
        let _ = stream.send_data(Bytes::copy_from_slice(body), true);
    }
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("no answer").ok()?;
    let status = answer.status().as_u16();
    let mut incoming = answer.into_body();
    let mut all = Vec::new();
    while let Some(Ok(data)) = incoming.data().await {
        let _ = incoming.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    Some((status, String::from_utf8(all).unwrap()))
}

/// Waits until the server closes the connection.
async fn closed<S: tokio::io::AsyncRead + Unpin>(stream: &mut S) -> Duration {
    let since = Instant::now();
    let mut bytes = [0; 4096];
    let ended = async { while matches!(stream.read(&mut bytes).await, Ok(1..)) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the server keeps the connection");
    since.elapsed()
}

#[tokio::test]
async fn f57_a_handshake_that_does_not_end_costs_a_socket_for_a_short_time() {
    let identity = Identity::new();
    let config = IntakeConfig { header_timeout: SHORT, connections_max: 4, ..config() };
    let intake = identity.start(config).await;
    // More than may be connected: each must make room for the next.
    for start in
        [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00", b"\x16", &good(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0"]
    {
        let mut stream = TcpStream::connect(intake.address).await.unwrap();
        stream.write_all(start).await.unwrap();
        tokio::spawn(async move { closed(&mut stream).await });
    }
    // A handshake, and then nothing; a preface, and then nothing.
    for protocol in [HTTP_11, H2] {
        let mut stream = identity.shake(&intake, &[protocol]).await.unwrap();
        let took = closed(&mut stream).await;
        assert!(took < SHORT * 20, "{took:?}");
    }
    let lead = ask(&identity.http2(&intake).await, head().body(()).unwrap(), GOOD).await.unwrap();
    assert_eq!(lead, (200, SOLD.to_owned()));
    assert_eq!(intake.leads(), 1);
}

#[tokio::test]
async fn the_client_chooses_the_protocol() {
    let identity = Identity::new();
    let intake = identity.start(config()).await;
    for (offered, chosen) in
        [(&[][..], None), (&[HTTP_11][..], Some(HTTP_11)), (&[HTTP_11, H2], Some(H2)), (&[H2], Some(H2))]
    {
        let stream = identity.shake(&intake, offered).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
        if chosen == Some(H2) {
            continue;
        }
        // The looks at a head of HTTP/1.1 hold over TLS too (F63).
        for (request, status) in [
            (good(), "HTTP/1.1 200 "),
            (post(LEADS, &[KEY, JSON, "transfer-encoding: chunked"], GOOD), "HTTP/1.1 400 "),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), "HTTP/1.1 400 "),
        ] {
            let mut stream = identity.shake(&intake, offered).await.unwrap();
            stream.write_all(&request).await.unwrap();
            let mut answer = [0; 13];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(String::from_utf8_lossy(&answer), status);
        }
    }
    assert!(identity.shake(&intake, &[b"spdy/3"]).await.is_err(), "a protocol that nobody speaks");
    assert_eq!(intake.leads(), 2);
}

#[tokio::test]
async fn http2_without_tls_is_refused_in_words() {
    let intake = Intake::start().await;
    let answer = intake.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "malformed"));
    // Who asks for it by an upgrade goes on in HTTP/1.1.
    let upgrade =
        post(LEADS, &[KEY, JSON, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AA"], GOOD);
    assert_eq!(intake.ask(&upgrade).await.status, 200);
}

/// What is sent, and the status and word that it gets; none: the stream is reset.
type Case = (&'static str, Request<()>, Vec<u8>, Option<(u16, &'static str)>);

#[tokio::test]
async fn f58_f63_http2_goes_around_no_check_of_head_or_body() {
    let identity = Identity::new();
    let intake = identity.start(IntakeConfig { body_timeout: SHORT * 2, ..config() }).await;
    let http2 = identity.http2(&intake).await;
    let plain = || head().body(()).unwrap();
    let with = |name: &'static str, value: &'static str| head().header(name, value).body(()).unwrap();
    let length = GOOD.len().to_string();
    let exact =
        |times: usize| (0..times).fold(head(), |head, _| head.header("content-length", &length)).body(()).unwrap();
    let many = (0..80).fold(head(), |head, number| head.header(format!("x-{number}"), "x")).body(()).unwrap();
    let long = head().header("x-long", "x".repeat(20_000)).body(()).unwrap();
    let cases: Vec<Case> = vec![
        ("good", plain(), GOOD.to_vec(), Some((200, "sold"))),
        ("with its length", exact(1), GOOD.to_vec(), Some((200, "sold"))),
        ("two lengths", exact(2), GOOD.to_vec(), Some((400, "malformed"))),
        (
            "two keys",
            head().header("idempotency-key", "a").header("idempotency-key", "b").body(()).unwrap(),
            GOOD.to_vec(),
            Some((400, "malformed")),
        ),
        ("its own host", with("host", "localhost"), GOOD.to_vec(), Some((200, "sold"))),
        ("another host", with("host", "elsewhere"), GOOD.to_vec(), Some((400, "malformed"))),
        ("many fields", many, GOOD.to_vec(), Some((431, "too_large"))),
        (
            "another type",
            head().header("content-type", "text/plain").body(()).unwrap(),
            GOOD.to_vec(),
            Some((415, "unsupported_media_type")),
        ),
        ("compressed", with("content-encoding", "gzip"), GOOD.to_vec(), Some((415, "unsupported_media_type"))),
        ("a large body", plain(), vec![b' '; 70_000], Some((413, "too_large"))),
        ("no body", plain(), Vec::new(), Some((400, "malformed"))),
    ];
    let mut sold = 0;
    for (what, head, body, expected) in cases {
        let answer = ask(&http2, head, &body).await;
        let (status, text) = answer.unwrap_or_else(|| panic!("{what}: no answer"));
        let (expected, word) = expected.unwrap();
        assert_eq!(status, expected, "{what}: {text}");
        assert!(text.contains(&format!("\"{word}\"")), "{what}: {text}");
        sold += usize::from(status == 200);
        assert_eq!(intake.leads(), sold, "{what}");
    }
    // The library has an answer of its own, without words.
    assert_eq!(ask(&http2, long, GOOD).await.map_or(431, |(status, _)| status), 431);
    // A body that is not as long as it says is no lead, whichever way the stream ends.
    for length in ["5", "5000"] {
        let http2 = identity.http2(&intake).await;
        let answer = ask(&http2, with("content-length", length), GOOD).await;
        assert!(answer.as_ref().is_none_or(|(status, _)| *status == 400), "{answer:?}");
    }
    // A body that does not come.
    let mut slow = http2.clone().ready().await.unwrap();
    let (answer, mut stream) = slow.send_request(plain(), false).unwrap();
    stream.send_data(Bytes::from_static(b"{"), false).unwrap();
    let others = ask(&http2, plain(), GOOD).await.unwrap();
    assert_eq!(others.0, 200, "one slow stream holds up another");
    assert_eq!(tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap().status(), 408);
    assert_eq!(intake.leads(), sold + 1);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header field as it stands, without any table.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| [u8::try_from(bytes).unwrap()];
    [&[0][..], &length(name.len()), name.as_bytes(), &length(value.len()), value].concat()
}

#[tokio::test]
async fn f63_what_no_library_sends_over_http2_becomes_no_lead() {
    let identity = Identity::new();
    let intake = identity.start(config()).await;
    let usual =
        [(":method", &b"POST"[..]), (":scheme", b"https"), (":authority", b"localhost"), (":path", LEADS.as_bytes())];
    let key = [("authorization", &b"Bearer acme-key"[..]), ("content-type", b"application/json")];
    let bad: [&[(&str, &[u8])]; 8] = [
        &[],
        &[("Idempotency-Key", b"a")],
        &[("transfer-encoding", b"chunked")],
        &[("connection", b"keep-alive")],
        &[("x", b"a\r\ncontent-length: 0")],
        &[("x", b"a\0b")],
        &[(":path", b"/elsewhere")],
        &[("x y", b"z")],
    ];
    for (number, more) in bad.into_iter().enumerate() {
        let mut stream = identity.shake(&intake, &[H2]).await.unwrap();
        let fields = usual.iter().chain(&key).chain(more).flat_map(|(name, value)| field(name, value));
        let block: Vec<u8> = fields.collect();
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[]),
            frame(1, 4, 1, &block),
            frame(0, 1, 1, GOOD),
            // A ping, whose answer says that all before it was seen.
            frame(6, 0, 0, b"12345678"),
        ];
        stream.write_all(&bytes.concat()).await.unwrap();
        // Frames until the stream has its end: a reset, an answer, or the end of the connection.
        let is_reset = loop {
            let mut header = [0; 9];
            if tokio::time::timeout(PATIENCE, stream.read_exact(&mut header)).await.unwrap().is_err() {
                break true;
            }
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            match (header[3], header[8]) {
                (3 | 7, _) => break true,
                // An answer: the first field is its status.
                (1, 1) => break payload[0] != 0x88,
                _ => {}
            }
        };
        // The first one is good, which shows that the others are refused for what they add.
        assert_eq!((is_reset, intake.leads()), (number > 0, 1), "{more:?}");
    }
}

#[tokio::test]
async fn p7_streams_are_bounded_like_connections() {
    let identity = Identity::new();
    let intake = identity.start(IntakeConfig { connections_max: 12, ..config() }).await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_secs(1));
    let http2 = identity.http2(&intake).await;
    // One permit is the connection's, one waits for the next connection, and the first stream needs none.
    let asked = (0..30).map(|_| {
        let http2 = http2.clone();
        tokio::spawn(async move { ask(&http2, head().body(()).unwrap(), GOOD).await.unwrap().0 })
    });
    let mut statuses = Vec::new();
    for asked in asked.collect::<Vec<_>>() {
        statuses.push(asked.await.unwrap());
    }
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((count(200), count(503)), (11, 19), "{statuses:?}");
    assert_eq!(intake.refused("unavailable"), 19);
    *intake.desk.say.lock() = Say::Sold;
    assert_eq!(ask(&http2, head().body(()).unwrap(), GOOD).await.unwrap().0, 200, "the permits came back");
    // Of one connection no more than its streams are served, however much room there is.
    let intake = identity.start(config()).await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_secs(1));
    let http2 = identity.http2(&intake).await;
    assert_eq!(ask(&http2, head().body(()).unwrap(), GOOD).await.unwrap().0, 200, "the settings are known by now");
    let asked: Vec<_> = (0..200)
        .map(|_| {
            let http2 = http2.clone();
            tokio::spawn(async move { ask(&http2, head().body(()).unwrap(), GOOD).await })
        })
        .collect();
    let mut most = 0;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        most = most.max(intake.leads() - 1);
    }
    assert!((1..=64 * 2).contains(&most), "{most}");
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().0, 200);
    }
}

#[tokio::test]
async fn p7_a_flood_of_dropped_streams_ends_its_connection_and_no_other() {
    let identity = Identity::new();
    let intake = identity.start(config()).await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_secs(1));
    let good = identity.http2(&intake).await;
    for with_body in [false, true] {
        let flood = identity.http2(&intake).await;
        let before = intake.leads();
        let mut opened = 0;
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let Ok(mut send) = flood.clone().ready().await else { break };
            let Ok((_, mut stream)) = send.send_request(head().body(()).unwrap(), false) else { break };
            if with_body {
                let _ = stream.send_data(Bytes::from_static(GOOD), true);
                // Far enough to be a lead that is under way.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            stream.send_reset(h2::Reason::CANCEL);
            opened += 1;
            tokio::task::yield_now().await;
        }
        assert!(since.elapsed() < PATIENCE, "the flood goes on after {opened} streams");
        println!("over after {opened} streams, {} leads, {:?}", intake.leads() - before, since.elapsed());
        assert!(intake.leads() - before <= 200, "{}", intake.leads());
        assert_eq!(ask(&good, head().body(()).unwrap(), GOOD).await.unwrap().0, 200, "another connection");
    }
}

#[tokio::test]
async fn f57_f85_idle_connections_of_http2_end_whatever_they_send() {
    let identity = Identity::new();
    let intake = identity.start(IntakeConfig { idle_timeout: SHORT, ..config() }).await;
    let stream = identity.shake(&intake, &[H2]).await.unwrap();
    let (send, mut connection) = h2::client::handshake(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let connection = tokio::spawn(connection);
    assert_eq!(ask(&send, head().body(()).unwrap(), GOOD).await.unwrap().0, 200);
    let pinging = async { while pings.ping(h2::Ping::opaque()).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, pinging).await.expect("pings keep a connection");
    let _ = connection.await.unwrap();

    // At the stop: an idle one goes, one with a lead under way has its answer first.
    let intake = identity.start(config()).await;
    let mut idle = identity.shake(&intake, &[H2]).await.unwrap();
    idle.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let busy = identity.http2(&intake).await;
    *intake.desk.say.lock() = Say::SoldAfter(Duration::from_secs(2));
    let answer = tokio::spawn(async move { ask(&busy, head().body(()).unwrap(), GOOD).await });
    while intake.leads() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    intake.stop.cancel();
    assert!(closed(&mut idle).await < Duration::from_secs(10));
    assert_eq!(answer.await.unwrap().expect("a lead under way was cut").0, 200);
    tokio::time::timeout(PATIENCE, intake.served).await.expect("the server does not end").unwrap();
}
