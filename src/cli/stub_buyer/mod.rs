//! A scriptable buyer: for tests, for the demo and for trying a routing file out. It tells afterwards, by its own count, what
//! it was sent and what it accepted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

mod behaviour;

pub use self::behaviour::{Behaviour, PathBehaviour, UnknownBehaviour};

/// Where the counts are read.
pub const STATS_PATH: &str = "/_stats";

/// Lead ids remembered, over all paths; later ones count as received and are not compared.
const IDS_MAX: u64 = 5_000_000;
/// Paths counted one by one; more share the count of `/_other`.
const PATHS_MAX: usize = 1_000;
const OTHER_PATH: &str = "/_other";
const BODY_BYTES_MAX: usize = 1 << 20;
const CONNECTIONS_MAX: usize = 20_000;
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

const ACCEPTED: &str = r#"{"status":"accepted"}"#;
const REJECTED: &str = r#"{"status":"rejected","reason":"not interested"}"#;
const PENDING: &str = r#"{"status":"pending"}"#;
const DUPLICATE: &str = r#"{"status":"duplicate","reason":"seen before"}"#;

/// Arguments of `capgate stub-buyer`.
#[derive(Debug, Clone, clap::Args)]
pub struct StubBuyerArgs {
    /// Address to listen on, such as 127.0.0.1:8081 (port 0: any free one)
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    pub listen: SocketAddr,
    /// What happens at a path: accept, decline, duplicate, pending, error[:STATUS], hang, late:MS, drip[:MS], close, garbage,
    /// say:STATUS:TEXT, redirect[:STATUS[:LOCATION]], delay:MS:BEHAVIOUR or random:BEHAVIOUR=WEIGHT,... Paths not named accept
    #[arg(long = "path", value_name = "PATH=BEHAVIOUR")]
    pub paths: Vec<PathBehaviour>,
    /// Seed of the random behaviours: the same seed chooses the same way
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What happened at one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PathStats {
    /// Leads that came complete.
    pub received: u64,
    /// Decisions to say yes, whether or not the answer arrived.
    pub accepted: u64,
    /// Decisions to say no.
    pub declined: u64,
    /// Different lead ids, by `Idempotency-Key`.
    pub distinct: u64,
    /// POSTs whose lead id had come before: a gateway that keeps its promises never makes one (P4).
    pub duplicates: u64,
}

#[derive(Debug, Default)]
struct PathState {
    stats: PathStats,
    seen: HashSet<Box<str>>,
    accepted: HashSet<Box<str>>,
}

#[derive(Debug)]
struct Shared {
    behaviours: Mutex<HashMap<String, Behaviour>>,
    paths: Mutex<HashMap<String, PathState>>,
    rng: Mutex<StdRng>,
    ids_left: AtomicU64,
}

/// A running stub buyer; stops when dropped.
#[derive(Debug)]
pub struct StubBuyer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// Runs a stub buyer until it is told to stop (Ctrl-C). Prints where it listens.
///
/// # Errors
/// When the address cannot be listened on, or nothing can be printed.
pub async fn run(args: StubBuyerArgs) -> io::Result<()> {
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {}: {error}", args.listen)))?;
    let stub = StubBuyer::start(listener, args.paths, args.seed)?;
    writeln!(io::stdout(), "stub buyer on http://{}, counts at {STATS_PATH}", stub.addr())?;
    tokio::signal::ctrl_c().await
}

impl StubBuyer {
    /// Serves on `listener` in the background.
    ///
    /// # Errors
    /// When the listener does not know its address.
    pub fn start(listener: TcpListener, paths: Vec<PathBehaviour>, seed: u64) -> io::Result<Self> {
        let addr = listener.local_addr()?;
        let behaviours: HashMap<_, _> = paths.into_iter().map(|p| (p.path, p.behaviour)).collect();
        let counted = behaviours.keys().map(|path| (path.clone(), PathState::default())).collect();
        let shared = Arc::new(Shared {
            behaviours: Mutex::new(behaviours),
            paths: Mutex::new(counted),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            ids_left: AtomicU64::new(IDS_MAX),
        });
        let stop = CancellationToken::new();
        tokio::spawn(accept(listener, Arc::clone(&shared), stop.clone()));
        Ok(Self { addr, shared, stop })
    }

    /// Serves on any free loopback port.
    ///
    /// # Errors
    /// When there is none.
    pub async fn on_loopback(paths: Vec<PathBehaviour>, seed: u64) -> io::Result<Self> {
        Self::start(TcpListener::bind(("127.0.0.1", 0)).await?, paths, seed)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// What happened at a path so far.
    pub fn stats(&self, path: &str) -> PathStats {
        self.shared.paths.lock().get(path).map(|state| state.stats).unwrap_or_default()
    }

    /// The lead ids that a path said yes to.
    pub fn accepted_ids(&self, path: &str) -> HashSet<String> {
        let paths = self.shared.paths.lock();
        paths.get(path).into_iter().flat_map(|state| &state.accepted).map(ToString::to_string).collect()
    }

    /// Changes what a path does from the next lead on.
    pub fn set_behaviour(&self, path: &str, behaviour: Behaviour) {
        self.shared.behaviours.lock().insert(path.to_owned(), behaviour);
    }

    /// Closes the listener and every connection; decisions that are still delayed are made all the same.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for StubBuyer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, or the caller is gone already: without a pause the first would spin (F65).
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(async move {
            let _place = place;
            let service = hyper::service::service_fn(move |request| serve(request, Arc::clone(&shared)));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = stop.cancelled() => {}
                // The caller's side of a broken connection is what the test looks at.
                _ = connection => {}
            }
        });
    }
}

type Body = BoxBody<Bytes, io::Error>;

/// The connection is closed without a word.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct ClosedOnPurpose;

async fn serve(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, ClosedOnPurpose> {
    let path = request.uri().path().to_owned();
    if path == STATS_PATH && request.method() == Method::GET {
        return Ok(answer(StatusCode::OK, shared.stats_json()));
    }
    // Some buyers take their leads by GET.
    if request.method() != Method::POST && request.method() != Method::GET {
        return Ok(answer(StatusCode::METHOD_NOT_ALLOWED, r#"{"status":"error"}"#));
    }
    let id = request.headers().get("idempotency-key").and_then(|id| id.to_str().ok()).map(Box::<str>::from);
    // A lead that did not come whole is not a lead.
    Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await.map_err(|_| ClosedOnPurpose)?;
    let path = shared.received(path, id.as_deref());
    let (delay, behaviour) = shared.choose(&path);

    // A real buyer decides whether or not its caller is still there, so the decision is not the connection's to cancel.
    let decision = behaviour.clone();
    let decided = tokio::spawn(async move {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        shared.decided(&path, id.as_deref(), &decision);
    });
    decided.await.map_err(|_| ClosedOnPurpose)?;
    act(behaviour).await
}

async fn act(behaviour: Behaviour) -> Result<Response<Body>, ClosedOnPurpose> {
    Ok(match behaviour {
        Behaviour::Accept => answer(StatusCode::OK, ACCEPTED),
        Behaviour::Decline => answer(StatusCode::OK, REJECTED),
        Behaviour::Duplicate => answer(StatusCode::OK, DUPLICATE),
        Behaviour::Pending => answer(StatusCode::ACCEPTED, PENDING),
        Behaviour::Garbage => answer(StatusCode::OK, "<html>\u{fffd}{{{ it works"),
        Behaviour::Say { status, text } => answer(status_of(status), text),
        Behaviour::Error(status) => answer(status_of(status), r#"{"status":"error"}"#),
        Behaviour::Redirect { status, location } => {
            let mut response = answer(status_of(status), "");
            if let Ok(location) = location.parse() {
                response.headers_mut().insert(LOCATION, location);
            }
            response
        }
        Behaviour::Drip { pause } => dripping(pause),
        Behaviour::Close => return Err(ClosedOnPurpose),
        // `choose` leaves neither a delay nor a choice behind; hanging is what would show a mistake soonest.
        Behaviour::Hang | Behaviour::Delay(..) | Behaviour::Random(_) => std::future::pending().await,
    })
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

/// A body that comes one byte at a time.
struct Dripping {
    left: Bytes,
    pause: Duration,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl hyper::body::Body for Dripping {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        std::task::ready!(self.sleep.as_mut().poll(cx));
        let next = tokio::time::Instant::now() + self.pause;
        self.sleep.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(1)))))
    }
}

fn dripping(pause: Duration) -> Response<Body> {
    let sleep = Box::pin(tokio::time::sleep(pause));
    Response::new(Dripping { left: Bytes::from_static(ACCEPTED.as_bytes()), pause, sleep }.boxed())
}

impl Shared {
    fn choose(&self, path: &str) -> (Duration, Behaviour) {
        match self.behaviours.lock().get(path) {
            Some(behaviour) => behaviour.choose(&mut *self.rng.lock()),
            None => (Duration::ZERO, Behaviour::Accept),
        }
    }

    /// Counts a complete POST; returns the path under which it is counted.
    fn received(&self, path: String, id: Option<&str>) -> String {
        let mut paths = self.paths.lock();
        let path = if paths.contains_key(&path) || paths.len() < PATHS_MAX { path } else { OTHER_PATH.to_owned() };
        let state = paths.entry(path.clone()).or_default();
        state.stats.received += 1;
        if let Some(id) = id {
            if state.seen.contains(id) {
                state.stats.duplicates += 1;
            } else if self.ids_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
                state.seen.insert(id.into());
                state.stats.distinct += 1;
            }
        }
        path
    }

    fn decided(&self, path: &str, id: Option<&str>, behaviour: &Behaviour) {
        let mut paths = self.paths.lock();
        let Some(state) = paths.get_mut(path) else { return };
        match behaviour {
            Behaviour::Accept | Behaviour::Drip { .. } => {
                state.stats.accepted += 1;
                if let Some(id) = id.filter(|id| state.seen.contains(*id)) {
                    state.accepted.insert(id.into());
                }
            }
            Behaviour::Decline | Behaviour::Duplicate => state.stats.declined += 1,
            Behaviour::Pending
            | Behaviour::Error(_)
            | Behaviour::Hang
            | Behaviour::Close
            | Behaviour::Garbage
            | Behaviour::Redirect { .. }
            | Behaviour::Say { .. }
            | Behaviour::Delay(..)
            | Behaviour::Random(_) => {}
        }
    }

    fn stats_json(&self) -> String {
        #[derive(Serialize)]
        struct Counts<'a> {
            paths: BTreeMap<&'a str, PathStats>,
        }
        let paths = self.paths.lock();
        let counts = Counts { paths: paths.iter().map(|(path, state)| (path.as_str(), state.stats)).collect() };
        // Cannot fail because counts hold only text and integers.
        serde_json::to_string(&counts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_tell_new_leads_from_repeats_and_do_not_grow_with_paths() {
        let path = "/a=random:accept=1".parse::<PathBehaviour>().unwrap();
        let stub = StubBuyer::on_loopback(vec![path], 1).await.unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let post = |path: &str, id: &str| client.post(stub.url(path)).header("idempotency-key", id).body("{}").send();
        for id in ["1", "2", "1"] {
            assert_eq!(post("/a", id).await.unwrap().text().await.unwrap(), ACCEPTED);
        }
        stub.set_behaviour("/a", Behaviour::Decline);
        assert_eq!(post("/a", "3").await.unwrap().text().await.unwrap(), REJECTED);
        let stats = client.get(stub.url(STATS_PATH)).send().await.unwrap().text().await.unwrap();
        assert_eq!(stats, r#"{"paths":{"/a":{"received":4,"accepted":3,"declined":1,"distinct":3,"duplicates":1}}}"#);
        assert_eq!(stub.accepted_ids("/a"), HashSet::from(["1".to_owned(), "2".to_owned()]));

        for index in 0..PATHS_MAX + 10 {
            stub.shared.received(format!("/{index}"), None);
        }
        assert!(stub.shared.paths.lock().len() <= PATHS_MAX + 1);
        assert_eq!(stub.stats(OTHER_PATH).received, 11);
    }

    #[tokio::test]
    async fn a_decision_is_made_whether_or_not_the_caller_is_still_there() {
        let path = "/a=late:50".parse::<PathBehaviour>().unwrap();
        let stub = StubBuyer::on_loopback(vec![path], 1).await.unwrap();
        let mut stream = tokio::net::TcpStream::connect(stub.addr()).await.unwrap();
        let request = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while stub.stats("/a").received == 0 {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(stream);
        while stub.stats("/a").accepted == 0 {
            assert!(tokio::time::Instant::now() < deadline, "the decision left with the caller");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
