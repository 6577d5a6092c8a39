//! A TCP proxy that loses replies: the request arrives, the answer does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Faults that the next replies meet.
#[derive(Debug, Default)]
struct Faults {
    cuts: AtomicUsize,
    hold_ms: AtomicU64,
}

/// Stands in front of a server until the test ends.
#[derive(Debug)]
pub struct Proxy {
    faults: Arc<Faults>,
    port: u16,
}

impl Proxy {
    pub async fn start(target: &str) -> Self {
        let target = target.trim_start_matches("redis://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { faults: Arc::default(), port: listener.local_addr().unwrap().port() };
        let faults = proxy.faults.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, target.clone(), faults.clone()));
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends the connection in place of each of the next replies.
    pub fn cut_replies(&self, count: usize) {
        self.faults.cuts.store(count, Ordering::SeqCst);
    }

    /// Replies still to be lost.
    pub fn cuts_left(&self) -> usize {
        self.faults.cuts.load(Ordering::SeqCst)
    }

    /// Holds every reply that long.
    pub fn hold_replies(&self, time: Duration) {
        self.faults.hold_ms.store(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

async fn carry(client: TcpStream, target: String, faults: Arc<Faults>) {
    let Ok(server) = TcpStream::connect(&target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(count) = from_server.read(&mut buffer).await {
        let is_cut = faults.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |cuts| cuts.checked_sub(1)).is_ok();
        if count == 0 || is_cut {
            break;
        }
        let hold = faults.hold_ms.load(Ordering::SeqCst);
        if hold > 0 {
            tokio::time::sleep(Duration::from_millis(hold)).await;
        }
        if to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    requests.abort();
}
