//! What clients can do with connections and bodies: thousands that say nothing or little, and more than any body may hold. A
//! gateway in a process of its own is looked at from outside: its descriptors and its memory.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use capgate::cli::stub_buyer::StubBuyer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{BuyerLine, KEY, PROMPT, Place, Process, client, lead, post, routing, until};

/// As many as are wanted, where this process and the gateway may open that many.
const SLOW_WANTED: usize = 2_000;
/// Descriptors that tests beside this one, and the gateway itself, need.
const DESCRIPTORS_SPARE: usize = 300;
/// Heads and bodies of this test's gateway may take so long.
const SLOW_TIMEOUT: Duration = Duration::from_secs(10);

fn proc(process: &Process, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", process.pid()))
}

pub fn descriptors(process: &Process) -> usize {
    std::fs::read_dir(proc(process, "fd")).expect("the gateway runs").count()
}

/// A value of the gateway's `/proc/PID/status` in KiB: `VmRSS` is its memory now, `VmHWM` the most that it ever had.
fn memory_kib(process: &Process, name: &str) -> u64 {
    let mut status = String::new();
    std::fs::File::open(proc(process, "status")).and_then(|mut it| it.read_to_string(&mut status)).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("such a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The soft limit of open files, which the gateway inherits.
fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit of files");
    line.split_whitespace().next().and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX)
}

async fn gateway(place: &Place, stub: &StubBuyer, variables: &[(&'static str, &'static str)]) -> Process {
    let patient = "timeout_ms = 30000";
    place.write_routing(&routing(&[BuyerLine { id: "any", url: stub.url("/any"), more: patient, price: "9.00" }]));
    let gateway = place.spawn_with("gateway.toml", "", variables);
    gateway.until_ready().await;
    // The first lead makes what later ones share.
    assert_eq!(post(&client(), gateway.intake, "first", &lead(0)).await.status, 200);
    gateway
}

fn head(more: &str) -> String {
    format!(
        "POST /v1/campaigns/solar/leads HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: \
         application/json\r\n{more}\r\n"
    )
}

/// A connection that says nothing, half a head, or a head and half a body.
async fn slow(intake: SocketAddr, number: usize) -> TcpStream {
    let mut stream = TcpStream::connect(intake).await.expect("connects");
    let start = match number % 3 {
        0 => String::new(),
        1 => "POST /v1/campaigns/solar/le".to_owned(),
        _ => head("content-length: 500\r\n") + "{\"phone\":",
    };
    stream.write_all(start.as_bytes()).await.expect("sends");
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f57_thousands_of_slow_connections_leave_leads_alone_and_their_descriptors_come_back() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let timeout = SLOW_TIMEOUT.as_millis().to_string();
    let timeout: &'static str = Box::leak(timeout.into_boxed_str());
    let variables = [("CAPGATE_INTAKE__HEADER_TIMEOUT_MS", timeout), ("CAPGATE_INTAKE__BODY_TIMEOUT_MS", timeout)];
    let gateway = gateway(&place, &stub, &variables).await;
    let before = descriptors(&gateway);
    let count = SLOW_WANTED.min(files_max().saturating_sub(DESCRIPTORS_SPARE));
    assert!(count >= 100, "open files are limited to {}", files_max());

    let began = Instant::now();
    let mut connections = Vec::with_capacity(count);
    for number in 0..count {
        connections.push(slow(gateway.intake, number).await);
    }
    let mut peak = 0;
    until("the gateway has them all", async || {
        peak = peak.max(descriptors(&gateway));
        peak + 20 >= before + count || began.elapsed() > SLOW_TIMEOUT
    })
    .await;
    println!("{count} slow connections after {:?}; {before} descriptors before, {peak} then", began.elapsed());
    // Two of three say a byte now and then, which moves none of their deadlines.
    let drip = tokio::spawn(async move {
        while began.elapsed() < SLOW_TIMEOUT / 2 {
            for (number, connection) in connections.iter_mut().enumerate() {
                if number % 3 != 0 {
                    let _ = connection.write_all(b" ").await;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        connections
    });
    let client = client();
    let mut slowest = Duration::ZERO;
    for number in 1..=50 {
        let answer = post(&client, gateway.intake, &format!("k{number}"), &lead(number)).await;
        assert_eq!(answer.status, 200);
        slowest = slowest.max(answer.took);
    }
    println!("50 leads beside them, the slowest answered after {slowest:?}");
    assert!(slowest < PROMPT, "{slowest:?}");
    let connections = drip.await.expect("drips");
    if began.elapsed() < SLOW_TIMEOUT {
        assert!(peak >= before + count * 9 / 10, "{peak} of {count}");
    }
    until("the descriptors came back", async || descriptors(&gateway) <= before + 20).await;
    println!("{} descriptors after {:?}", descriptors(&gateway), began.elapsed());
    drop(connections);
    assert_eq!(post(&client, gateway.intake, "last", &lead(99)).await.status, 200);
}

/// Sends a request piece by piece until the gateway wants no more of it; what it answered.
async fn send(intake: SocketAddr, head: &str, piece: &[u8], times: usize) -> String {
    let mut stream = TcpStream::connect(intake).await.expect("connects");
    let (mut reader, mut writer) = stream.split();
    let write = async {
        if writer.write_all(head.as_bytes()).await.is_err() {
            return 0;
        }
        for sent in 0..times {
            if writer.write_all(piece).await.is_err() {
                return sent;
            }
        }
        times
    };
    let mut answer = Vec::new();
    let read = async {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes).await {
            answer.extend_from_slice(&bytes[..count]);
        }
    };
    tokio::join!(write, read);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f58_f59_what_is_too_much_gets_its_error_and_memory_stays_flat() {
    let stub = StubBuyer::on_loopback(Vec::new(), 1).await.expect("a stub buyer");
    let place = Place::embedded();
    let gateway = gateway(&place, &stub, &[]).await;
    let intake = gateway.intake;
    let before = memory_kib(&gateway, "VmRSS");
    let expect = |answer: &str, status: &str, code: &str, what: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer:?}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{what}: {answer:?}");
    };
    // 100 MB that declare nothing, four times at once.
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x1_0000], b"\r\n"].concat();
    let chunked = head("transfer-encoding: chunked\r\n");
    let endless = async || send(intake, &chunked, &chunk, 1_600).await;
    let (one, two, three, four) = tokio::join!(endless(), endless(), endless(), endless());
    for answer in [one, two, three, four] {
        expect(&answer, "413", "too_large", "100 MB in chunks");
    }
    let declared = send(intake, &head("content-length: 104857600\r\n"), &chunk, 1_600).await;
    expect(&declared, "413", "too_large", "100 MB as declared");
    // What would be 100 MB once it is unpacked: nothing is unpacked here, whatever the coding is called.
    let bomb = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".as_slice(), &[0xed, 0xc1, 1, 1, 0, 0].repeat(10_000)].concat();
    for coding in ["gzip", "deflate", "br", "zstd", "identity, gzip", "x-gzip"] {
        let more = format!("content-encoding: {coding}\r\ncontent-length: {}\r\nconnection: close\r\n", bomb.len());
        expect(&send(intake, &head(&more), &bomb, 1).await, "415", "unsupported_media_type", coding);
    }
    // As deep, and as many, as a body can hold.
    let deep = format!("{{\"phone\":\"1\",\"x\":{}", "[".repeat(60_000)).into_bytes();
    let objects = format!("{{\"phone\":\"1\",\"x\":{}", "{\"a\":".repeat(12_000)).into_bytes();
    let many = format!("{{\"phone\":\"1\",\"x\":[{}]}}", vec!["1"; 30_000].join(",")).into_bytes();
    for round in 0..50 {
        // A busy machine may ask for another try.
        for (body, statuses) in [(&deep, ["400", "400"]), (&objects, ["400", "400"]), (&many, ["200", "503"])] {
            let more = format!("content-length: {}\r\nconnection: close\r\nidempotency-key: r{round}\r\n", body.len());
            let answer = send(intake, &head(&more), body, 1).await;
            assert!(statuses.iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status}"))), "{answer:?}");
        }
    }
    let (now, peak) = (memory_kib(&gateway, "VmRSS"), memory_kib(&gateway, "VmHWM"));
    println!("memory: {before} KiB before, {now} KiB now, {peak} KiB at most");
    // More than 500 MB were sent.
    assert!(peak < before + 64 * 1024, "{before} KiB grew to {peak} KiB");
}
