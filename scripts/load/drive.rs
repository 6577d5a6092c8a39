//! The load generator, on plain sockets, so that it takes little of the machine that is measured.
//!
//! Closed loop: each connection posts its next lead when the last one is answered. Open loop: leads fall due at a steady
//! rate whatever the answers do, and latency runs from the moment a lead was due, so that a stall counts for every lead that
//! it held up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::sync::mpsc;

use crate::Failure;

/// What to send.
#[derive(Debug, Clone)]
pub struct Load {
    pub target: String,
    pub path: String,
    pub key: String,
    pub connections: usize,
    /// Leads a second; none: closed loop.
    pub rate: Option<u64>,
    pub warm_up: Duration,
    pub duration: Duration,
}

/// What came of it. Latencies in microseconds, of the leads that were answered after the warm-up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Answered with 2xx, warm-up included.
    pub acknowledged: u64,
    /// Answered as sold, warm-up included.
    pub sold: u64,
    /// Anything else than 2xx.
    pub refused: u64,
    /// Leads measured, and in how many seconds.
    pub leads: u64,
    pub seconds: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

#[derive(Default)]
struct Tally {
    latencies: Vec<u32>,
    acknowledged: u64,
    sold: u64,
    refused: u64,
}

/// Runs one load; prints a line when the measured part begins and the outcome when it is over.
pub async fn run(load: Load) -> Result<(), Failure> {
    let outcome = drive(load).await?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

async fn drive(load: Load) -> Result<Outcome, Failure> {
    let load = Arc::new(load);
    let began = Instant::now();
    let measured_from = began + load.warm_up;
    let until = measured_from + load.duration;
    let next = Arc::new(AtomicU64::new(0));
    let due = load.rate.map(|rate| schedule(rate, began, until)).map(Mutex::new).map(Arc::new);
    let mut workers = Vec::new();
    for _ in 0..load.connections {
        let (load, next, due) = (Arc::clone(&load), Arc::clone(&next), due.clone());
        workers.push(tokio::spawn(async move { work(&load, &next, due.as_deref(), measured_from, until).await }));
    }
    tokio::time::sleep_until(measured_from.into()).await;
    println!("measuring");
    let mut all = Tally::default();
    for worker in workers {
        let tally = worker.await??;
        all.latencies.extend(tally.latencies);
        all.acknowledged += tally.acknowledged;
        all.sold += tally.sold;
        all.refused += tally.refused;
    }
    all.latencies.sort_unstable();
    let at = |part: f64| percentile(&all.latencies, part);
    Ok(Outcome {
        acknowledged: all.acknowledged,
        sold: all.sold,
        refused: all.refused,
        leads: all.latencies.len() as u64,
        seconds: load.duration.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
    })
}

/// The smallest value that no more than `1 - part` of the sorted ones are above.
pub fn percentile(sorted: &[u32], part: f64) -> u64 {
    let rank = (part * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank.min(sorted.len()).wrapping_sub(1)).copied().unwrap_or(0).into()
}

/// Moments at which leads fall due, from a thread of its own: timers of the runtime are a millisecond apart.
fn schedule(rate: u64, began: Instant, until: Instant) -> mpsc::UnboundedReceiver<Instant> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for turn in 0_u32.. {
            let due = began + Duration::from_secs(1).mul_f64(f64::from(turn) / rate as f64);
            if due >= until {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if sender.send(due).is_err() {
                break;
            }
        }
    });
    receiver
}

async fn work(
    load: &Load,
    next: &AtomicU64,
    due: Option<&Mutex<mpsc::UnboundedReceiver<Instant>>>,
    measured_from: Instant,
    until: Instant,
) -> Result<Tally, Failure> {
    let mut socket = connect(&load.target).await?;
    let (mut tally, mut request, mut answer) = (Tally::default(), Vec::new(), vec![0; 8_192]);
    loop {
        let start = match due {
            Some(due) => match due.lock().await.recv().await {
                Some(at) => at,
                None => break,
            },
            None => Instant::now(),
        };
        if start >= until {
            break;
        }
        build(&mut request, load, next.fetch_add(1, Ordering::Relaxed));
        socket.write_all(&request).await?;
        let (status, is_sold, stays) = read_answer(&mut socket, &mut answer).await?;
        if start >= measured_from {
            tally.latencies.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        tally.sold += u64::from(is_sold);
        if (200..300).contains(&status) {
            tally.acknowledged += 1;
        } else {
            tally.refused += 1;
        }
        if !stays {
            socket = connect(&load.target).await?;
        }
    }
    Ok(tally)
}

async fn connect(target: &str) -> Result<TcpStream, Failure> {
    let socket = TcpStream::connect(target).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A lead of about 750 bytes with a key of its own.
fn build(request: &mut Vec<u8>, load: &Load, number: u64) {
    use std::io::Write as _;
    const COMMENT: &str = "Called after the second advert on the radio, would like two offers before the end of the month, \
        prefers to be called in the evening, has talked with the neighbours who have had theirs on the roof since last summer, \
        and wants to know whether the battery can be added later on, what the guarantee covers, who pays when the roof has to \
        be opened again, and how long the grid operator takes at present to change the meter for one that counts both ways";
    let body = format!(
        r#"{{"first_name":"Elena","last_name":"Garcia","email":"lead{number}@example.com","phone":"201{:07}","address":"{} Main St","city":"Newark","state":"NJ","zip":"07102","homeowner":"yes","age":"47","comment":"{COMMENT}"}}"#,
        2_000_000 + number % 7_000_000,
        number % 9_999,
    );
    request.clear();
    // Writing into a vector cannot fail.
    let _ = write!(
        request,
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {}-{number}\r\nContent-Length: {}\r\n\r\n{body}",
        load.path,
        load.target,
        load.key,
        std::process::id(),
        body.len(),
    );
}

/// Reads one answer: its status, whether it says sold (or is the floor's accepted), and whether the connection stays open.
async fn read_answer(socket: &mut TcpStream, buffer: &mut [u8]) -> Result<(u16, bool, bool), Failure> {
    let mut length = 0;
    loop {
        let read = socket.read(&mut buffer[length..]).await?;
        if read == 0 {
            return Err("the connection was closed before an answer".into());
        }
        length += read;
        let text = std::str::from_utf8(&buffer[..length])?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let header = |name: &str| {
            head.lines().filter_map(|line| line.split_once(':')).find(|line| line.0.eq_ignore_ascii_case(name))
        };
        let expected: usize = header("content-length").map_or(Ok(0), |(_, value)| value.trim().parse())?;
        if body.len() >= expected {
            let status = head.split(' ').nth(1).unwrap_or_default().parse()?;
            let is_sold = body.contains(r#""status":"sold""#) || body.contains(r#""status":"accepted""#);
            let stays = !header("connection").is_some_and(|(_, value)| value.trim().eq_ignore_ascii_case("close"));
            return Ok((status, is_sold, stays));
        }
    }
}
