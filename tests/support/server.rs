//! A Redis of a test's own, for what must not be done to a server that others use.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis_support::{Connection, Raw};

/// Runs until it is dropped.
pub struct Server {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    flags: Vec<String>,
}

fn free_port() -> u16 {
    // Below the ephemeral range, so that nobody is given the port between this look and the server's start; a cluster's bus
    // uses the port 10,000 above it.
    let seed = u32::from(rand::random::<u16>());
    (0..500)
        .filter_map(|step| u16::try_from(11_000 + (seed + step * 7) % 9_000).ok())
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("no free port")
}

impl Server {
    /// Starts with no persistence and the flags given (`["--maxmemory-policy", "allkeys-lru"]`).
    pub async fn start(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut server = Self { child: None, folder: TempDir::new().unwrap(), port: free_port(), flags };
        server.run().await;
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub async fn connection(&self) -> Connection {
        Connection::open(&self.url()).await
    }

    /// Kills it, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops it in its tracks (`STOP`), or lets it go on (`CONT`).
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id();
        // The shell's own: a small machine has no program of that name.
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().expect("sh runs");
        assert!(sent.success());
    }

    /// Starts it again, empty, on the same port.
    pub async fn run(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.flags)
            .stdout(Stdio::null())
            .spawn()
            .expect("these tests start a redis-server of their own: install it");
        self.child = Some(child);
        let started = Instant::now();
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && self.connection().await.run(&["PING"]).await == Raw::Text("PONG".into())
            {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "redis-server did not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
