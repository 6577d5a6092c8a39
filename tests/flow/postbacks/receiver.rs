//! A publisher's end of the postbacks: takes down what comes, answers as it is told, and checks signatures with code of its
//! own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// 24 bytes: `0123456789abcdef01234567`.
pub const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3";

/// How a path answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With this status and these header lines, after a while.
    Status(u16, &'static str, Duration),
    /// Never.
    Hang,
}

pub fn status(status: u16) -> Answer {
    Answer::Status(status, "", Duration::ZERO)
}

/// One POST as it came.
#[derive(Clone, Debug)]
pub struct Post {
    pub path: String,
    pub headers: HashMap<String, String>,
    pub bytes: Vec<u8>,
}

impl Post {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("JSON")
    }

    pub fn text(&self, name: &str) -> String {
        self.json()[name].as_str().unwrap_or_default().to_owned()
    }

    /// Of this try.
    pub fn unix_s(&self) -> i64 {
        self.headers["webhook-timestamp"].parse().expect("whole seconds")
    }

    /// RFC 2104 over what Standard Webhooks says is signed.
    pub fn is_signed(&self) -> bool {
        let mut block = [0_u8; 64];
        let key = STANDARD.decode(&SECRET["whsec_".len()..]).expect("base64");
        block[..key.len()].copy_from_slice(&key);
        let signed = [format!("{}.{}.", self.id(), self.headers["webhook-timestamp"]).as_bytes(), &self.bytes].concat();
        let inner = Sha256::digest([&block.map(|byte| byte ^ 0x36)[..], &signed].concat());
        let outer = Sha256::digest([&block.map(|byte| byte ^ 0x5c)[..], &inner[..]].concat());
        self.headers["webhook-signature"] == format!("v1,{}", STANDARD.encode(outer))
    }
}

#[derive(Debug, Default)]
struct Shared {
    posts: Mutex<Vec<Post>>,
    answers: Mutex<HashMap<String, Answer>>,
    waiting: Mutex<HashMap<String, Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    now: usize,
    most: usize,
}

/// Listens until it is dropped.
pub struct Receiver {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, shared.clone()));
                }
            }
        });
        Self { addr, shared, task }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// From now on; paths that are not set answer 204.
    pub fn set(&self, path: &str, answer: Answer) {
        self.shared.answers.lock().insert(path.to_owned(), answer);
    }

    /// What has come at a path, oldest first.
    pub fn posts(&self, path: &str) -> Vec<Post> {
        self.shared.posts.lock().iter().filter(|post| post.path == path).cloned().collect()
    }

    /// Most posts of a path that were waiting for an answer at once.
    pub fn waiting_most(&self, path: &str) -> usize {
        self.shared.waiting.lock().get(path).map_or(0, |waiting| waiting.most)
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    while let Some(post) = read(&mut stream, &mut buffer).await {
        let answer = shared.answers.lock().get(&post.path).cloned().unwrap_or(status(204));
        let path = post.path.clone();
        shared.posts.lock().push(post);
        {
            let mut waiting = shared.waiting.lock();
            let waiting = waiting.entry(path.clone()).or_default();
            waiting.now += 1;
            waiting.most = waiting.most.max(waiting.now);
        }
        let told = match answer {
            Answer::Hang => {
                // Until the other side has enough of it.
                let _ = stream.read(&mut [0; 1]).await;
                None
            }
            Answer::Status(status, lines, after) => {
                tokio::time::sleep(after).await;
                Some(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n{lines}\r\n"))
            }
        };
        if let Some(waiting) = shared.waiting.lock().get_mut(&path) {
            waiting.now -= 1;
        }
        match told {
            Some(head) if stream.write_all(head.as_bytes()).await.is_ok() => {}
            _ => return,
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Post> {
    let end_of_head = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer[..end_of_head].to_vec()).expect("a head is text");
    let mut lines = head.split("\r\n");
    let (method, path) = lines.next()?.split_once(' ')?;
    assert_eq!(method, "POST");
    let path = path.split(' ').next()?.to_owned();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: HashMap<_, _> = lines.filter_map(header).collect();
    let length: usize = headers.get("content-length")?.parse().ok()?;
    while buffer.len() < end_of_head + length {
        read_more(stream, buffer).await?;
    }
    let bytes = buffer[end_of_head..end_of_head + length].to_vec();
    buffer.drain(..end_of_head + length);
    Some(Post { path, headers, bytes })
}

async fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}
