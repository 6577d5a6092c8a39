//! `capgate.toml` -> [`Config`].

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::env::{self, Environment};
use super::item::{Desk, Item, Reader};
use super::problem::Problems;
use super::tree::{self, Place, Source, Table};
use super::{
    AdminConfig, Config, ForwardConfig, IntakeConfig, LedgerConfig, LedgerUrl, ReconcileConfig, StoreConfig, StoreUrl,
    Tls,
};

/// `config/capgate.default.toml`: every key, its default and what it means.
pub const DEFAULTS: &str = include_str!("../../config/capgate.default.toml");

/// The whole schema of `capgate.toml`, for overrides by the environment.
const KEYS: &[(&str, &[&str])] = &[
    (
        "intake",
        &[
            "listen",
            "answer_within_ms",
            "body_bytes_max",
            "header_timeout_ms",
            "body_timeout_ms",
            "idle_timeout_ms",
            "connections_max",
            "leads_in_flight_max",
            "tls",
        ],
    ),
    ("admin", &["listen", "token"]),
    ("store", &["url", "prefix", "partitions", "command_timeout_ms", "journal_entries_max", "idempotency_hours"]),
    ("ledger", &["url", "connections_max", "batch_rows_max", "batch_delay_ms", "payload_days", "migrate"]),
    (
        "forward",
        &[
            "timeout_ms",
            "late_answer_ms",
            "answer_bytes_max",
            "allow_private_addresses",
            "lead_deadline_ms",
            "attempts_max",
        ],
    ),
    ("reconcile", &["every_minutes", "lower_percent_max"]),
    ("routing", &["file"]),
];

/// Longest time-out of one forward; `lead_deadline_ms` and the end marks of leases are sized for it (F10).
pub(super) const FORWARD_TIMEOUT_MS_MAX: u64 = 30_000;
const MINUTES_10_MS: u64 = 600_000;
const MEBIBYTES_16: u64 = 16 * 1024 * 1024;

/// Reads and checks. The config is there, with defaults in place of what is wrong, whenever the file could be parsed, so that
/// the routing file can be checked too; it must not be used while there are errors.
pub(super) fn read(path: Option<&Path>, environment: &dyn Environment) -> (Option<Config>, Problems) {
    let merged = match merged(path, environment) {
        Ok(table) => table,
        Err(problems) => return (None, problems),
    };
    let desk = Desk::new(environment);
    let source = path.map_or_else(|| Source::named("built-in defaults"), Source::file);
    let place = Place { source, line: None };
    let root = Reader::new(&desk, &merged, place.clone(), "");
    let empty = Table { entries: Vec::new() };
    let section = |name| root.table(name).unwrap_or_else(|| Reader::new(&desk, &empty, place.clone(), name));

    let intake = intake(section("intake"));
    let admin = admin(section("admin"), &intake);
    let config = Config {
        store: store(section("store"), &intake),
        ledger: ledger(section("ledger")),
        forward: forward(section("forward")),
        reconcile: reconcile(section("reconcile")),
        routing_file: routing_file(section("routing")),
        is_routing_optional: path.is_none() && environment.get("CAPGATE_ROUTING__FILE").is_none(),
        intake,
        admin,
    };
    root.finish();
    (Some(config), desk.into_problems())
}

/// Defaults, the file over them, the environment over both.
fn merged(path: Option<&Path>, environment: &dyn Environment) -> Result<Table, Problems> {
    let mut table = tree::parse(DEFAULTS, &Source::named("built-in defaults"))?;
    if let Some(path) = path {
        let text = tree::read_file(path).map_err(|problem| *problem)?;
        table.overlay(tree::parse(&text, &Source::file(path))?);
    }
    table.overlay(env::overrides(environment, KEYS));
    Ok(table)
}

fn millis(reader: &Reader<'_>, key: &'static str, range: (u64, u64), default: u64) -> Duration {
    Duration::from_millis(reader.integer(key, range, default))
}

/// The configuration's limits keep every count far below `usize` and `u32`.
fn count(reader: &Reader<'_>, key: &'static str, range: (u32, u32), default: u32) -> usize {
    usize::try_from(reader.integer(key, range, default)).unwrap_or(usize::MAX)
}

fn address(reader: &Reader<'_>, default: [u8; 4], port: u16) -> SocketAddr {
    let parsed = reader.item("listen").and_then(|item| {
        let address = item.text()?.parse::<SocketAddr>();
        if address.is_err() {
            item.fail("is not an address", "an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\"");
        }
        address.ok()
    });
    parsed.unwrap_or_else(|| SocketAddr::from((default, port)))
}

fn intake(reader: Reader<'_>) -> IntakeConfig {
    let bytes = |key, default| usize::try_from(reader.integer(key, (1, MEBIBYTES_16), default)).unwrap_or(usize::MAX);
    let config = IntakeConfig {
        listen: address(&reader, [127, 0, 0, 1], 8080),
        answer_within: millis(&reader, "answer_within_ms", (1, 60_000), 200),
        body_bytes_max: bytes("body_bytes_max", 65_536),
        header_timeout: millis(&reader, "header_timeout_ms", (1, MINUTES_10_MS), 5000),
        body_timeout: millis(&reader, "body_timeout_ms", (1, MINUTES_10_MS), 5000),
        idle_timeout: millis(&reader, "idle_timeout_ms", (1, 3_600_000), 60_000),
        connections_max: count(&reader, "connections_max", (1, 1_000_000), 10_000),
        leads_in_flight_max: count(&reader, "leads_in_flight_max", (1, 1_000_000), 5000),
        tls: reader.table("tls").and_then(Tls::read),
    };
    reader.finish();
    config
}

fn admin(reader: Reader<'_>, intake: &IntakeConfig) -> AdminConfig {
    let listen = address(&reader, [127, 0, 0, 1], 9090);
    // The default names a variable that most set-ups do not have: unset means no token, and then only loopback is served.
    let token_item = reader.item("token").map(Item::secret).filter(|item| !item.is_unset_variable());
    let token = token_item.as_ref().and_then(Item::secret_text);
    if let (Some(item), Some(token)) = (&token_item, &token)
        && !token.expose().bytes().all(|byte| byte.is_ascii_graphic())
    {
        item.fail("holds characters that a header cannot carry", "visible ASCII without spaces");
    }
    if token_item.is_none() && !listen.ip().is_loopback() {
        reader.fail(
            "listen",
            format!("{listen} is not a loopback address and admin.token is not set"),
            "a loopback address, or a token",
        );
    }
    if listen == intake.listen && listen.port() != 0 {
        reader.fail("listen", format!("{listen} is intake.listen too"), "two different ports");
    }
    reader.finish();
    AdminConfig { listen, token }
}

fn store(reader: Reader<'_>, intake: &IntakeConfig) -> StoreConfig {
    let url = reader.item("url").and_then(|item| store_url(&item.secret()));
    let prefix = reader.item("prefix").and_then(|item| {
        let text = item.text()?;
        let is_good = (1..=32).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if !is_good {
            item.fail("cannot be part of a key", "1 to 32 of A-Z a-z 0-9 . _ -");
        }
        is_good.then(|| text.to_owned())
    });
    let config = StoreConfig {
        url: url.unwrap_or_else(|| StoreUrl::Embedded("capgate-journal.db".into())),
        prefix: prefix.unwrap_or_else(|| "cg1".to_owned()),
        partitions: reader.integer("partitions", (1, 1024), 16),
        command_timeout: millis(&reader, "command_timeout_ms", (1, 30_000), 100),
        journal_entries_max: reader.integer("journal_entries_max", (1, 1_000_000_000), 1_000_000),
        idempotency: Duration::from_hours(reader.integer("idempotency_hours", (1, 8784), 72)),
    };
    if config.command_timeout * 2 > intake.answer_within {
        reader.warn(
            "command_timeout_ms",
            format!(
                "two calls may take {} ms, longer than intake.answer_within_ms = {}",
                config.command_timeout.as_millis() * 2,
                intake.answer_within.as_millis()
            ),
            "at most half of intake.answer_within_ms",
        );
    }
    reader.finish();
    config
}

fn store_url(item: &Item<'_>) -> Option<StoreUrl> {
    const RIGHT: &str =
        "embedded:PATH, redis://HOST:PORT, rediss://HOST:PORT or redis-cluster://HOST:PORT,HOST:PORT,HOST:PORT";
    let url = item.secret_text()?;
    let Some((scheme, rest)) = url.expose().split_once(':') else {
        item.fail("is not a store", RIGHT);
        return None;
    };
    let nodes_are_good = |nodes: &str| {
        let hosts = nodes.rsplit('@').next().unwrap_or(nodes).split('/').next().unwrap_or_default();
        hosts.split(',').all(|node| {
            let port = node.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>().is_ok()));
            port == Some((true, true)) || (port.is_none() && !node.is_empty())
        })
    };
    match scheme {
        "embedded" if rest.trim().is_empty() => item.fail("names no file", RIGHT),
        "embedded" => return Some(StoreUrl::Embedded(item.path(rest))),
        "redis" | "rediss" | "redis-cluster" if rest.strip_prefix("//").is_some_and(nodes_are_good) => {
            return Some(StoreUrl::Redis(url));
        }
        "redis" | "rediss" | "redis-cluster" => item.fail("names no host", RIGHT),
        _ => item.fail("is not a store", RIGHT),
    }
    None
}

fn ledger(reader: Reader<'_>) -> LedgerConfig {
    let url = reader.item("url").and_then(|item| ledger_url(&item.secret()));
    let config = LedgerConfig {
        url: url.unwrap_or_else(|| LedgerUrl::Sqlite("capgate.db".into())),
        connections_max: reader.integer("connections_max", (1, 1000), 8),
        batch_rows_max: count(&reader, "batch_rows_max", (1, 100_000), 1000),
        batch_delay: millis(&reader, "batch_delay_ms", (0, 60_000), 50),
        payload_days: reader.integer("payload_days", (1, 36_500), 90),
        migrate: reader.flag("migrate", true),
    };
    reader.finish();
    config
}

fn ledger_url(item: &Item<'_>) -> Option<LedgerUrl> {
    const RIGHT: &str = "sqlite:PATH, or mysql://USER:PASSWORD@HOST:PORT/DATABASE";
    let url = item.secret_text()?;
    match url.expose().split_once(':').unwrap_or((url.expose(), "")) {
        ("sqlite", rest) => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.trim().is_empty() || path.starts_with(':') {
                item.fail("names no file, and the books must outlive the process", RIGHT);
                return None;
            }
            Some(LedgerUrl::Sqlite(item.path(path)))
        }
        ("mysql", _) => {
            let is_whole = reqwest::Url::parse(url.expose()).is_ok_and(|parsed| {
                parsed.host_str().is_some_and(|host| !host.is_empty()) && !parsed.path().trim_matches('/').is_empty()
            });
            if !is_whole {
                item.fail("lacks a host or a database", RIGHT);
            }
            is_whole.then_some(LedgerUrl::Mysql(url))
        }
        _ => {
            item.fail("is not a ledger", RIGHT);
            None
        }
    }
}

fn forward(reader: Reader<'_>) -> ForwardConfig {
    let bytes = reader.integer("answer_bytes_max", (1, MEBIBYTES_16), 65_536);
    let config = ForwardConfig {
        timeout: millis(&reader, "timeout_ms", (1, FORWARD_TIMEOUT_MS_MAX), 1500),
        late_answer: millis(&reader, "late_answer_ms", (0, MINUTES_10_MS), 10_000),
        answer_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        allow_private_addresses: reader.flag("allow_private_addresses", false),
        lead_deadline: millis(&reader, "lead_deadline_ms", (1, MINUTES_10_MS), 10_000),
        attempts_max: reader.integer("attempts_max", (1, 1000), 10),
    };
    reader.finish();
    config
}

fn reconcile(reader: Reader<'_>) -> ReconcileConfig {
    let config = ReconcileConfig {
        every: Duration::from_mins(reader.integer("every_minutes", (1, 10_080), 60)),
        lower_percent_max: reader.integer("lower_percent_max", (0, 100), 20),
    };
    reader.finish();
    config
}

fn routing_file(reader: Reader<'_>) -> std::path::PathBuf {
    let path = reader.item("file").and_then(|item| Some(item.path(item.word()?)));
    reader.finish();
    path.unwrap_or_else(|| "routing.toml".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment with one variable, set to nothing.
    struct Named(String);

    impl Environment for Named {
        fn get(&self, name: &str) -> Option<String> {
            (name == self.0).then(String::new)
        }
        fn names(&self) -> Vec<String> {
            vec![self.0.clone()]
        }
    }

    #[test]
    fn the_default_file_holds_every_key_that_is_read() {
        for (section, keys) in KEYS {
            // An unknown key is answered with the list of the keys that the reader asked for.
            let name = format!("CAPGATE_{}__XXXXXXXXXX", section.to_ascii_uppercase());
            let (_, problems) = read(None, &Named(name));
            assert_eq!(problems.0.len(), 1, "{problems}");
            let mut asked: Vec<&str> =
                problems.0[0].right.strip_prefix("one of ").expect("the list").split(", ").collect();
            let mut keys = keys.to_vec();
            let text = DEFAULTS.split(&format!("\n[{section}]")).nth(1).expect("the section");
            let text = text.split("\n[").next().expect("its keys");
            for key in &keys {
                let lines: Vec<&str> = text
                    .lines()
                    .filter(|line| line.trim_start_matches("# ").starts_with(&format!("{key} = ")))
                    .collect();
                assert_eq!(lines.len(), 1, "{section}.{key}");
            }
            asked.sort_unstable();
            keys.sort_unstable();
            assert_eq!(asked, keys, "{section}");
        }
    }
}
