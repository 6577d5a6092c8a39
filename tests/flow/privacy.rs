//! F90: what a lead says of a person stands in `leads.payload`, in events that wait to be settled or cannot be, and nowhere
//! else: no log at any level, no metric, no error, no other table, no list.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::{Connection as _, MySqlConnection, Row as _, SqliteConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Answer, BuyerLine, KEY, Place, Process, client, closed, get, key_hash, routing, until};

const BUYER_KEY: &str = "key-of-sold";
/// What gives a person away, in lower case.
const MARKERS: [&str; 4] = ["zqcanary", "6095550187", "609) 555-0187", "609-555-0187"];
/// A publisher's key is known by its hash alone.
const KEY_MARKER: &str = "zqkey";
/// Where the design has personal data: both are emptied after `payload_days`.
const ALLOWED: [&str; 2] = ["dead_letters.event", "leads.payload"];

fn lead(route: &str) -> String {
    json!({
        "first_name": "Zqcanaryfirst", "last_name": "Zqcanarylast", "email": "zqcanarymail@example.com",
        "phone": "(609) 555-0187", "address": "77 Zqcanarystreet", "note": "zqcanarynote",
        "more": { "deep": ["zqcanarydeep"] }, "route": route, "state": "NJ",
    })
    .to_string()
}

fn found_in(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    MARKERS.into_iter().chain([KEY_MARKER]).find(|marker| text.contains(marker))
}

#[track_caller]
fn is_clean(what: &str, text: &str) {
    let near = |marker: &str| {
        let at = text.to_lowercase().find(marker).unwrap_or_default();
        text.chars().skip(at.saturating_sub(200)).take(400).collect::<String>()
    };
    if let Some(marker) = found_in(text) {
        panic!("{marker} in {what}: ...{}...", near(marker));
    }
}

/// A buyer that repeats every lead in its answer, as a buyer whose programmers are debugging does.
async fn serve_echoing_buyer(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(answer_echoing(socket));
    }
}

async fn answer_echoing(mut socket: TcpStream) {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    let (head, body) = loop {
        let Ok(count @ 1..) = socket.read(&mut bytes).await else { return };
        request.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            break (head.to_owned(), body.to_owned());
        }
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let words = |status: &str| json!({ "status": status, "reason": body, "price": "zqcanaryprice" }).to_string();
    let (status, answer) = match path.as_str() {
        "/sold" => ("200 OK", words("accepted")),
        "/declined" => {
            ("200 OK", json!({ "status": "no", "reason": "6095550187 of Zqcanaryfirst is dead" }).to_string())
        }
        "/failed" => ("500 zqcanaryphrase", words("no")),
        "/refused" => ("422 Unprocessable", words("no")),
        "/unreadable" => ("200 OK", format!("<html>{body}</html>")),
        "/late" => {
            tokio::time::sleep(std::time::Duration::from_millis(700)).await;
            ("200 OK", words("accepted"))
        }
        // No HTTP at all.
        _ => {
            let _ = socket.write_all(body.as_bytes()).await;
            return;
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nx-echo: zqcanaryheader\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let _ = socket.write_all(format!("{head}{answer}").as_bytes()).await;
}

enum Raw {
    Sqlite(SqliteConnection),
    Mysql(MySqlConnection),
}

impl Raw {
    async fn open(place: &Place) -> Self {
        let url = &place.backing.ledger_url;
        if url.starts_with("sqlite:") {
            Self::Sqlite(SqliteConnection::connect(url).await.expect("the file opens"))
        } else {
            Self::Mysql(MySqlConnection::connect(url).await.expect("the server answers"))
        }
    }

    async fn run(&mut self, sql: &str) {
        match self {
            Self::Sqlite(connection) => drop(sqlx::raw_sql(sql).execute(connection).await.expect("it runs")),
            Self::Mysql(connection) => drop(sqlx::raw_sql(sql).execute(connection).await.expect("it runs")),
        }
    }

    async fn texts(&mut self, sql: &str) -> Vec<String> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_all(connection).await.expect("it reads"),
            // The driver takes texts that are compared byte for byte for bytes.
            Self::Mysql(connection) => {
                let rows = sqlx::query(sql).fetch_all(connection).await.expect("it reads");
                rows.iter().map(|row| row.try_get_unchecked(0).expect("a text")).collect()
            }
        }
    }

    /// Rows of leads whose payload cannot be stored; the database quotes a value, too.
    async fn refuse_some_payloads(&mut self) {
        let texts = match self {
            Self::Sqlite(_) => ["INSERT", "UPDATE"].map(|verb| {
                format!(
                    "CREATE TRIGGER refuse_{verb} BEFORE {verb} ON leads WHEN NEW.payload LIKE '%\"dead\"%' BEGIN \
                     SELECT RAISE(ABORT, 'zqcanarytrigger'); END"
                )
            }),
            Self::Mysql(_) => ["INSERT", "UPDATE"].map(|verb| {
                format!(
                    "CREATE TRIGGER refuse_{verb} BEFORE {verb} ON leads FOR EACH ROW BEGIN IF NEW.payload LIKE \
                     '%\"dead\"%' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'zqcanarytrigger'; END IF; END"
                )
            }),
        };
        for text in texts {
            self.run(&text).await;
        }
    }

    /// `table.column` of everything that holds a marker.
    async fn columns_with_markers(&mut self) -> BTreeSet<String> {
        let columns = match self {
            Self::Sqlite(_) => {
                "SELECT m.name || '.' || c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
            }
            Self::Mysql(_) => {
                "SELECT CONCAT(c.TABLE_NAME, '.', c.COLUMN_NAME) FROM information_schema.COLUMNS c JOIN \
                 information_schema.TABLES t ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME \
                 WHERE c.TABLE_SCHEMA = DATABASE() AND t.TABLE_TYPE = 'BASE TABLE'"
            }
        };
        let columns = self.texts(columns).await;
        assert!(columns.len() > 60, "all of the books are looked at: {columns:?}");
        let mut found = BTreeSet::new();
        for name in columns {
            let (table, column) = name.split_once('.').expect("a dot");
            for marker in MARKERS.into_iter().chain([KEY_MARKER]) {
                let holds = match self {
                    Self::Sqlite(_) => format!("INSTR(LOWER(CAST({column} AS TEXT)), '{marker}') > 0"),
                    Self::Mysql(_) => format!("LOCATE('{marker}', LOWER(CONVERT({column} USING utf8mb4))) > 0"),
                };
                if !self.texts(&format!("SELECT 'x' FROM {table} WHERE {holds} LIMIT 1")).await.is_empty() {
                    assert_ne!(marker, KEY_MARKER, "a publisher's key in {name}");
                    found.insert(name.clone());
                }
            }
        }
        found
    }
}

struct Rig {
    place: Place,
    gateway: Process,
    number: std::cell::Cell<u32>,
}

impl Rig {
    async fn send(&self, path: &str, key: &str, idempotency: &str, body: Vec<u8>) -> Answer {
        let started = std::time::Instant::now();
        let answer = client()
            .post(format!("http://{}{path}", self.gateway.intake))
            .bearer_auth(key)
            .header("content-type", "application/json")
            .header("idempotency-key", idempotency)
            .body(body)
            .send()
            .await
            .expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await.expect("a body").to_vec();
        let answer = Answer { status, headers, bytes, took: started.elapsed() };
        is_clean(
            &format!("the answer {status}"),
            &format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.bytes)),
        );
        answer
    }

    async fn post(&self, body: String) -> Answer {
        self.number.set(self.number.get() + 1);
        let key = format!("{KEY_MARKER}{}", self.number.get());
        let answer = self.send("/v1/campaigns/solar/leads", KEY, &key, body.into_bytes()).await;
        assert_eq!(answer.status, 200);
        answer
    }

    /// Everything that is refused says why without saying what.
    async fn send_what_is_refused(&self) {
        let path = "/v1/campaigns/solar/leads";
        let broken = lead("sold").replace('}', "");
        let twice = lead("sold").replacen('{', r#"{"phone_number":"6095550187","#, 1);
        for (status, path, key, idempotency, body) in [
            (400, path, KEY, "k", broken),
            (422, path, KEY, "k", twice),
            (400, path, KEY, "k", "\"zqcanarytext\"".to_owned()),
            (422, path, KEY, "k", json!({ "note": "zqcanarynote" }).to_string()),
            (401, path, "zqcanaryapikey", "k", lead("sold")),
            (404, "/v1/campaigns/zqcanarycampaign/leads", KEY, "k", lead("sold")),
            (404, "/v1/zqcanarypath", KEY, "k", lead("sold")),
            (413, path, KEY, "k", json!({ "phone": "zqcanary".repeat(20_000) }).to_string()),
            (422, path, KEY, &format!("{KEY_MARKER}1"), lead("another body")),
        ] {
            let answer = self.send(path, key, idempotency, body.into_bytes()).await;
            assert_eq!(answer.status, status, "{answer:?}");
        }
    }
}

async fn a_canary(place: Place) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let buyer = tokio::spawn(serve_echoing_buyer(listener));
    let routes = ["sold", "declined", "failed", "refused", "unreadable", "late", "broken"];
    let mut tables: Vec<(&str, String)> = routes
        .iter()
        .map(|route| {
            let keys = if *route == "sold" { key_hash(BUYER_KEY) } else { key_hash(route) };
            let timeout = if *route == "late" { 200 } else { 6_000 };
            let more = format!(
                "timeout_ms = {timeout}\nkeys_sha256 = [\"{keys}\"]\nfilter = {{ where = [{{ field = \"route\", in = \
                 [\"{route}\", \"dead\"] }}] }}\nanswer = {{ accepted = {{ path = \"/status\", in = [\"accepted\"] }}, \
                 reason = \"/reason\", price = \"/price\" }}"
            );
            (*route, more)
        })
        .collect();
    // A rule that compares what it must not tell.
    tables.push(("nosy", "filter = { where = [{ field = \"email\", in = [\"a@example.com\"] }] }".to_owned()));
    let lines: Vec<_> = tables
        .iter()
        .map(|(id, more)| BuyerLine { id, url: format!("http://{address}/{id}"), more, price: "25.00" })
        .collect();
    place.write_routing(&routing(&lines));
    let forward = "[forward]\nallow_private_addresses = true\nlate_answer_ms = 5000";
    let gateway = place.spawn_with("gateway.toml", forward, &[("CAPGATE_LOG", "trace")]);
    gateway.until_ready().await;
    let mut raw = Raw::open(&place).await;
    raw.refuse_some_payloads().await;
    let ledger = place.ledger().await;
    let mut rig = Rig { place, gateway, number: std::cell::Cell::new(0) };

    let mut leads = Vec::new();
    for route in routes.into_iter().chain(["nobody", "dead"]) {
        let answer = rig.post(lead(route)).await;
        let detail = closed(&ledger, answer.lead()).await;
        leads.push((route, answer.lead(), detail));
    }
    rig.post(lead("sold").replacen('{', r#"{"test":true,"#, 1)).await;
    rig.send_what_is_refused().await;
    let path = format!("/v1/buyers/sold/leads/{}/return", leads[0].1);
    let reason = json!({ "reason": "(609) 555-0187 of zqcanaryfirst ZQCANARYLAST is dead" }).to_string();
    let returned = rig.send(&path, BUYER_KEY, "k", reason.into_bytes()).await;
    assert_eq!(returned.status, 200, "{returned:?}");
    let detail = closed(&ledger, leads[0].1).await;
    assert_eq!(detail.returns[0].reason, "*** of *** *** is dead", "the words that say nothing of the person stay");

    // The test has met what it is about. An attempt and its lead's verdict come into the books by different ways.
    for (route, lead, detail) in leads.iter_mut().filter(|(route, ..)| !["nobody", "dead"].contains(route)) {
        until(&format!("the attempt of {route} is in the books"), async || {
            *detail = closed(&ledger, *lead).await;
            !detail.attempts.is_empty()
        })
        .await;
    }
    let reason = |route: &str| {
        let (.., detail) = leads.iter().find(|(of, ..)| *of == route).expect("a route");
        detail.attempts.first().and_then(|attempt| attempt.reason.clone()).unwrap_or_default()
    };
    assert_eq!(reason("declined"), "*** of *** is dead");
    assert_eq!((reason("failed").as_str(), reason("unreadable").as_str()), ("http_500", "unreadable_answer"));
    assert!(reason("refused").contains("***"), "{}", reason("refused"));
    let is_late =
        leads.iter().any(|(_, _, detail)| detail.attempts.iter().any(|a| a.outcome.as_str() == "late_accepted"));
    assert!(is_late, "a late yes: {leads:?}");
    until("there is a dead letter", async || !ledger.dead_letters(0, 10).await.expect("letters").is_empty()).await;

    for (_, lead, _) in &leads {
        let shown = get(&client(), rig.gateway.admin, &format!("/v1/leads/{lead}")).await;
        is_clean("what is told of a lead", &String::from_utf8_lossy(&shown.bytes));
    }
    for page in ["/metrics", "/readyz", "/v1/caps", "/v1/buyers/late/doubts"] {
        let shown = get(&client(), rig.gateway.admin, page).await;
        assert!(!shown.bytes.is_empty());
        is_clean(page, &String::from_utf8_lossy(&shown.bytes));
    }
    let found = raw.columns_with_markers().await;
    assert_eq!(
        found.iter().map(String::as_str).collect::<Vec<_>>(),
        ALLOWED,
        "the scan sees what is there, and no more"
    );
    #[cfg(feature = "server-tests")]
    nothing_is_left_in_redis(&rig.place).await;

    tokio::task::block_in_place(|| rig.gateway.terminate());
    let log = rig.gateway.log();
    assert!(log.contains("DEBUG capgate"), "the log was asked for everything: {log}");
    is_clean("the log", &log);
    buyer.abort();
    drop(raw);
    ledger.shut_down().await;
    rig.place.backing.clean().await;
}

/// Once everything is settled: claims hold hashes, and the journals are empty.
#[cfg(feature = "server-tests")]
async fn nothing_is_left_in_redis(place: &Place) {
    if !place.backing.store_url.starts_with("redis://") {
        return;
    }
    let mut raw = crate::redis_support::Connection::open(&place.backing.store_url).await;
    let keys = raw.keys_of(&place.backing.prefix).await;
    assert!(keys.iter().any(|key| key.contains(":idem:")), "claims are looked at: {keys:?}");
    until("the journals are empty", async || {
        for key in raw.keys_of(&place.backing.prefix).await.into_iter().filter(|key| key.contains(":journal:")) {
            if raw.run(&["XLEN", &key]).await.int() > 0 {
                return false;
            }
        }
        true
    })
    .await;
    for key in keys {
        is_clean("the name of a key", &key);
        let kind = raw.run(&["TYPE", &key]).await.text().to_owned();
        let read: &[&str] = match kind.as_str() {
            "string" => &["GET", &key],
            "hash" => &["HGETALL", &key],
            "zset" => &["ZRANGE", &key, "0", "-1"],
            _ => continue,
        };
        is_clean(&key, &format!("{:?}", raw.run(read).await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f90_a_canary_is_seen_nowhere_but_in_the_payload_embedded() {
    a_canary(Place::embedded()).await;
}

#[cfg(feature = "server-tests")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f90_a_canary_is_seen_nowhere_but_in_the_payload_on_servers() {
    a_canary(Place::servers().await).await;
}
