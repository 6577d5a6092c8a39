//! What an operator's machine does on its own or by a command: old payloads go, the schema comes up to date.

use std::process::Command;
use std::sync::Arc;

use capgate::app::monitor::remove_old_payloads;
use capgate::cli::stub_buyer::StubBuyer;
use capgate::clock::{Clock, SystemClock};
use jiff::{SignedDuration, Timestamp};

use crate::headline::behaviours;
use crate::resolve::on_both;
use crate::support::{BuyerLine, Place, client, closed, lead, post, routing};

/// The machine's clock, moved.
#[derive(Debug)]
struct Ahead(SignedDuration);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        SystemClock.now() + self.0
    }
}

async fn payloads_go_by_the_clock(place: Place) {
    let stub = StubBuyer::on_loopback(behaviours(&["/a=accept"]), 1).await.expect("a stub buyer");
    place.write_routing(&routing(&[BuyerLine {
        id: "a",
        url: stub.url("/a"),
        more: "timeout_ms = 6000",
        price: "9.00",
    }]));
    let gateway = place.start("").await;
    let ledger = place.ledger().await;
    let answer = post(&client(), gateway.intake, "k", &lead(1)).await;
    let before = closed(&ledger, answer.lead()).await;
    assert!(before.lead.payload.is_some());
    assert_eq!(remove_old_payloads(&gateway.app.gateway).await, Ok(0));
    gateway.app.shut_down().await;
    let day = SignedDuration::from_hours(24);
    for (ahead, removed) in [(day * 89, 0), (day * 90 + SignedDuration::from_mins(10), 1)] {
        let gateway = place.start_by(Arc::new(Ahead(ahead)), "").await;
        assert_eq!(remove_old_payloads(&gateway.app.gateway).await, Ok(removed), "{ahead:?} later");
        gateway.app.shut_down().await;
    }
    let mut after = closed(&ledger, answer.lead()).await;
    assert_eq!(after.lead.payload, None);
    after.lead.payload.clone_from(&before.lead.payload);
    assert_eq!(after, before, "rows and money stay");
    ledger.shut_down().await;
    place.backing.clean().await;
}

fn migrate(config: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capgate"));
    command.arg("migrate").arg("--config").arg(config);
    command
}

/// A statement on the books, past the code under test.
async fn run_on_ledger(place: &Place, sql: &str) {
    use sqlx::Connection;
    let url = &place.backing.ledger_url;
    if url.starts_with("sqlite:") {
        let mut connection = sqlx::SqliteConnection::connect(url).await.expect("the file opens");
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("it runs");
        connection.close().await.expect("it closes");
    } else {
        let mut connection = sqlx::MySqlConnection::connect(url).await.expect("the server answers");
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("it runs");
        connection.close().await.expect("it closes");
    }
}

async fn the_schema_by_the_command(place: Place) {
    let any = "127.0.0.1:0".parse().expect("an address");
    let config = place.write_config("capgate.toml", any, any, "");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Two at once, on books that do not exist yet.
    let both: Vec<_> = (0..2)
        .map(|_| {
            migrate(&config)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("capgate runs")
        })
        .collect();
    let mut told = Vec::new();
    for one in both {
        let output = tokio::task::block_in_place(|| one.wait_with_output()).expect("it ends");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        told.push(text(&output.stdout));
    }
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite")).expect("a folder");
    let last = files.count();
    for step in 1..=last {
        let step = format!("{step:4}  ");
        let lines: Vec<_> = told.iter().flat_map(|said| said.lines()).filter(|line| line.starts_with(&step)).collect();
        let applied = lines.iter().filter(|line| line.contains("applied")).count();
        assert_eq!((lines.len(), applied), (2, 1), "each step is applied by one of them: {told:?}");
    }
    let output = tokio::task::block_in_place(|| migrate(&config).output()).expect("capgate runs");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(said.starts_with("   1  in force   books\n") && !said.contains("applied  "), "{said}");
    assert!(said.ends_with(&format!("the ledger is at migration {last}; 0 applied now\n")), "{said}");

    // Nobody may go on with books that another build has made.
    let change = "UPDATE _sqlx_migrations SET checksum = x'00c0ffee' WHERE version = 2";
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (99, 'later', TRUE, x'00', 0)";
    for (sql, expected) in [(newer, "newer version"), (change, "0002_lives.sql was applied in another form")] {
        run_on_ledger(&place, sql).await;
        for command in ["migrate", "serve"] {
            let mut run = Command::new(env!("CARGO_BIN_EXE_capgate"));
            place.write_routing(&routing(&[BuyerLine {
                id: "a",
                url: "http://127.0.0.1:9/".into(),
                more: "",
                price: "1",
            }]));
            run.arg(command).arg("--config").arg(&config);
            let output = tokio::task::block_in_place(|| run.output()).expect("capgate runs");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains(expected), "{command}: {said}");
        }
        run_on_ledger(&place, "DELETE FROM _sqlx_migrations WHERE version = 99").await;
    }
    place.backing.clean().await;
}

on_both! {
    payloads_go_by_the_clock as payloads_go_by_the_clock_embedded, payloads_go_by_the_clock_on_servers;
    the_schema_by_the_command as the_schema_by_the_command_embedded, the_schema_by_the_command_on_servers;
}
