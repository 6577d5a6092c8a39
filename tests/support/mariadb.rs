//! A MariaDB of a test's own, for what must not be done to a server that others use.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection, MySqlConnection};
use tempfile::TempDir;

/// Debian keeps servers where the PATH of ordinary users does not look.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs until it is dropped.
pub struct MariaDb {
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    /// No file may be larger.
    file_bytes_max: Option<u64>,
}

fn free_port() -> u16 {
    // Below the ephemeral range, so that nobody is given the port between this look and the server's start.
    let seed = u32::from(rand::random::<u16>());
    (0..500)
        .filter_map(|step| u16::try_from(11_000 + (seed + step * 7) % 20_000).ok())
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("no free port")
}

fn sh(script: &str) {
    let status = Command::new("sh").args(["-c", script]).env("PATH", PATH).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{script}");
}

impl MariaDb {
    /// Starts empty: a database `books`, and `books` as the user that owns it and may do nothing to the server.
    pub async fn start() -> Self {
        Self::start_on_disk(None).await
    }

    /// The same on a disk that takes no file beyond so many bytes.
    pub async fn start_on_small_disk(file_bytes_max: u64) -> Self {
        Self::start_on_disk(Some(file_bytes_max)).await
    }

    async fn start_on_disk(file_bytes_max: Option<u64>) -> Self {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("data");
        sh(&format!(
            "mariadb-install-db --no-defaults --user=\"$(id -un)\" --datadir={} --skip-test-db --skip-name-resolve \
             --innodb-log-file-size=4M --auth-root-authentication-method=normal",
            data.display()
        ));
        let init = "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\nGRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1';\n\
                    CREATE USER IF NOT EXISTS 'books'@'127.0.0.1';\nGRANT ALL PRIVILEGES ON books.* TO 'books'@'127.0.0.1';\n\
                    CREATE DATABASE IF NOT EXISTS books;\n";
        std::fs::write(folder.path().join("init.sql"), init).unwrap();
        let mut server = Self { child: None, folder, port: free_port(), file_bytes_max };
        server.run().await;
        server
    }

    /// Where the books are, as their owner.
    pub fn url(&self) -> String {
        format!("mysql://books@127.0.0.1:{}/books", self.port)
    }

    /// A connection that may do everything.
    pub async fn admin(&self) -> MySqlConnection {
        MySqlConnection::connect(&format!("mysql://root@127.0.0.1:{}/books", self.port)).await.unwrap()
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Kills it, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops it: sockets stay open, nothing answers.
    pub fn stop(&self) {
        sh(&format!("kill -STOP {}", self.pid()));
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        sh(&format!("kill -CONT {}", self.pid()));
    }

    /// Files may grow again.
    pub fn free_the_disk(&self) {
        sh(&format!("prlimit --fsize=unlimited: --pid {}", self.pid()));
    }

    /// Starts it again with the data it has, on the same port.
    pub async fn run(&mut self) {
        let limit = self.file_bytes_max.map_or(String::new(), |bytes| format!("prlimit --fsize={bytes}: "));
        // A full disk is told by the write that fails, not by a signal.
        let script = format!(
            "trap '' XFSZ; exec {limit}mariadbd --no-defaults --user=\"$(id -un)\" --datadir={0}/data --socket={0}/socket \
             --pid-file={0}/pid --port={1} --bind-address=127.0.0.1 --skip-name-resolve --innodb-buffer-pool-size=32M \
             --innodb-log-file-size=4M --init-file={0}/init.sql",
            Path::display(self.folder.path()),
            self.port
        );
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let child =
            Command::new("sh").args(["-c", &script]).env("PATH", PATH).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.unwrap());
        let started = Instant::now();
        while MySqlConnection::connect(&self.url()).await.is_err() {
            assert!(
                started.elapsed() < Duration::from_mins(2),
                "these tests start a mariadbd of their own: {}",
                std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
