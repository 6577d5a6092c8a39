//! What the machine and its servers say of themselves: processor time, memory, and the counters of Redis and MariaDB.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use sqlx::{Connection as _, MySqlConnection, Row as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Failure;

/// Ticks of `/proc` a second; the same on every Linux that matters here.
const TICKS: u64 = 100;

/// Processor time that a process has used, all threads, in microseconds.
pub fn cpu_us(pid: u32) -> Result<u64, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may hold spaces; the fields after it do not.
    let after = stat.rsplit_once(')').ok_or("/proc/PID/stat cannot be read")?.1;
    let field = |index: usize| after.split_whitespace().nth(index).and_then(|text| text.parse::<u64>().ok());
    let ticks = field(11).zip(field(12)).ok_or("/proc/PID/stat cannot be read")?;
    Ok((ticks.0 + ticks.1) * (1_000_000 / TICKS))
}

/// Processor time that the whole machine has spent on anything, in microseconds.
pub fn machine_busy_us() -> Result<u64, Failure> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().ok_or("/proc/stat cannot be read")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|text| text.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&index| fields.get(index)).sum();
    Ok(busy * (1_000_000 / TICKS))
}

/// Resident memory of a process and its highest so far, in MiB.
pub fn memory_mib(pid: u32) -> Result<(f64, f64), Failure> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let (now, most) = of("VmRSS:").zip(of("VmHWM:")).ok_or("/proc/PID/status cannot be read")?;
    Ok((now / 1024.0, most / 1024.0))
}

/// The fields of `INFO everything`.
pub async fn redis_info(url: &str) -> Result<HashMap<String, String>, Failure> {
    let address = url.strip_prefix("redis://").ok_or("the URL of Redis should be redis://HOST:PORT")?;
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(b"INFO everything\r\n").await?;
    let (mut answer, mut piece) = (Vec::new(), vec![0; 16_384]);
    loop {
        let read = tokio::time::timeout(Duration::from_secs(5), socket.read(&mut piece)).await??;
        answer.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answer);
        // $LENGTH\r\n...\r\n
        let length =
            text.split_once("\r\n").and_then(|(head, rest)| Some((head[1..].parse::<usize>().ok()?, rest.len())));
        if read == 0 || length.is_some_and(|(expected, there)| there >= expected) {
            return Ok(text.lines().filter_map(|line| line.split_once(':')).map(owned).collect());
        }
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.trim().to_owned())
}

/// How often Redis has run a script: what gateways ask of it comes as scripts.
pub fn script_calls(info: &HashMap<String, String>) -> f64 {
    let calls = |name: &str| {
        let stats = info.get(&format!("cmdstat_{name}")).map_or("", String::as_str);
        stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next()).and_then(|text| text.parse::<f64>().ok())
    };
    ["evalsha", "eval", "fcall"].iter().filter_map(|name| calls(name)).sum()
}

/// A number of `INFO`.
pub fn number(info: &HashMap<String, String>, name: &str) -> f64 {
    info.get(name).and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

/// A status counter of the database server.
pub async fn mysql_status(server: &mut MySqlConnection, name: &str) -> Result<f64, Failure> {
    let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
    let row = sqlx::raw_sql(&sql).fetch_one(server).await?;
    Ok(row.try_get::<String, _>(1)?.parse()?)
}

/// The process of the database server.
pub async fn mysql_pid(server: &mut MySqlConnection) -> Result<u32, Failure> {
    let file: String = sqlx::query_scalar("SELECT @@pid_file").fetch_one(&mut *server).await?;
    Ok(fs::read_to_string(file)?.trim().parse()?)
}

/// Connects to the server without a database.
pub async fn mysql(url: &str) -> Result<MySqlConnection, Failure> {
    Ok(MySqlConnection::connect(url).await?)
}

/// A GET on loopback: the body, whatever the status.
pub async fn get(address: &str, path: &str) -> Result<String, Failure> {
    Ok(reqwest::Client::builder()
        .no_proxy()
        .build()?
        .get(format!("http://{address}{path}"))
        .send()
        .await?
        .text()
        .await?)
}

/// The sum of a metric over its labels.
pub fn metric(page: &str, name: &str) -> f64 {
    let line = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = if rest.starts_with('{') { rest.rsplit_once(' ')?.1 } else { rest.strip_prefix(' ')? };
        value.parse::<f64>().ok()
    };
    page.lines().filter_map(line).sum()
}
