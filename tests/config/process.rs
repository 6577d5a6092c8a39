//! `capgate.toml`.

use std::time::Duration;

use capgate::config::{self, LedgerUrl, StoreUrl};

use crate::support::{Folder, Vars, assert_keys, config_of, only_error, routing_with, with_buyer};

#[test]
fn built_in_defaults_need_nothing() {
    let config = config::load(None, &Vars::default()).expect("defaults are good");
    assert_eq!(config.intake.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert!(config.admin.token.is_none());
    assert!(matches!(&config.store.url, StoreUrl::Embedded(path) if path.to_str() == Some("capgate-journal.db")));
    assert!(matches!(&config.ledger.url, LedgerUrl::Sqlite(path) if path.to_str() == Some("capgate.db")));
    assert_eq!(config.routing_file.to_str(), Some("routing.toml"));
    assert!(config.is_routing_optional);
    assert_eq!(config.intake.answer_within, Duration::from_millis(200));
    assert_eq!(config.store.partitions, 16);
    assert_eq!(config.store.idempotency, Duration::from_hours(72));
    assert_eq!(config.reconcile.every, Duration::from_hours(1));
    assert!(config.ledger.migrate && !config.forward.allow_private_addresses);
}

#[test]
fn a_file_overrides_key_by_key_and_the_environment_overrides_the_file() {
    let file = "[intake]\nanswer_within_ms = 300\nbody_bytes_max = 1000\n";
    let env = Vars(vec![
        ("CAPGATE_INTAKE__ANSWER_WITHIN_MS", "400"),
        ("CAPGATE_STORE__URL", "redis://127.0.0.1:7000"),
        ("CAPGATE_LEDGER__MIGRATE", "false"),
        ("CAPGATE_ADMIN_TOKEN", "abc"),
        ("CAPGATE_UNRELATED", "x"),
    ]);
    let config = config_of(file, &env).expect("good");
    assert_eq!(config.intake.answer_within, Duration::from_millis(400));
    assert_eq!(config.intake.body_bytes_max, 1000);
    assert_eq!(config.intake.connections_max, 10_000);
    assert!(matches!(&config.store.url, StoreUrl::Redis(url) if url.expose() == "redis://127.0.0.1:7000"));
    assert!(!config.ledger.migrate);
    assert_eq!(config.admin.token.expect("the default names the variable").expose(), "abc");
}

#[test]
fn a_closure_is_an_environment_too() {
    let env = |name: &str| (name == "CAPGATE_INTAKE__LISTEN").then(|| "127.0.0.1:0".to_owned());
    assert_eq!(config::load(None, &env).expect("good").intake.listen.port(), 0);
}

#[test]
fn bad_and_unknown_overrides_are_problems_that_name_the_variable() {
    let env = Vars(vec![
        ("CAPGATE_INTAKE__LISTEN", "somewhere"),
        ("CAPGATE_INTAKE__ANSWER_WITHIN_MS", "-1"),
        ("CAPGATE_STORE__PARTITIONS", "1.5"),
        ("CAPGATE_INTAKE__LISTN", "127.0.0.1:1"),
        ("CAPGATE_NOWHERE__KEY", "1"),
    ]);
    let problems = config::load(None, &env).expect_err("bad");
    assert_keys(
        &problems,
        &["intake.listen", "intake.answer_within_ms", "store.partitions", "intake.listn", "nowhere"],
    );
    let text = problems.to_string();
    assert!(text.contains("CAPGATE_INTAKE__LISTEN: error: intake.listen = \"somewhere\": is not an address"), "{text}");
    assert!(text.contains("CAPGATE_INTAKE__LISTN: error: intake.listn = ***: unknown key; right would be: \"listen\""));
    assert!(text.ends_with("5 errors, 0 warnings"), "{text}");
}

#[test]
fn every_problem_of_a_file_is_told_at_once_with_its_line() {
    let text = r#"[intake]
listen = "nowhere"
answer_within_ms = "soon"
body_bytes_max = -1
tls = { cert = "a", key = "file:b" }
[store]
url = "memcached://x"
partitions = 0
prefix = "{x}"
[ledger]
url = "sqlite::memory:"
batch_rows_max = 1.5
migrate = "yes"
[forward]
timeout_ms = 30001
[reconcile]
lower_percent_max = 101
[routing]
file = ""
[extra]
key = 1
"#;
    let problems = config_of(text, &Vars::default()).expect_err("bad");
    let found: Vec<(usize, &str)> =
        problems.0.iter().map(|problem| (problem.line.expect("a line"), problem.key.as_str())).collect();
    assert_eq!(
        found,
        [
            (2, "intake.listen"),
            (3, "intake.answer_within_ms"),
            (4, "intake.body_bytes_max"),
            (5, "intake.tls.cert"),
            (7, "store.url"),
            (8, "store.partitions"),
            (9, "store.prefix"),
            (11, "ledger.url"),
            (12, "ledger.batch_rows_max"),
            (13, "ledger.migrate"),
            (15, "forward.timeout_ms"),
            (17, "reconcile.lower_percent_max"),
            (19, "routing.file"),
            (20, "extra"),
        ]
    );
    assert!(problems.0[3].wrong.contains("cannot be read"));
    assert!(problems.0[2].to_string().contains("= -1: is negative; right would be: a whole number from 1 to 16777216"));
}

#[test]
fn a_syntax_error_is_a_problem_with_its_line() {
    let problems = config_of("[intake]\nlisten = \"127.0.0.1:1\"\nbody_bytes_max = = 5\n", &Vars::default())
        .expect_err("not TOML");
    assert_eq!(problems.0[0].line, Some(3), "{problems}");
    let problems = config_of("[intake]\nlisten = \"a\"\nlisten = \"b\"\n", &Vars::default()).expect_err("not TOML");
    assert_eq!(problems.0[0].line, Some(3), "{problems}");
}

#[test]
fn a_file_that_cannot_be_read_is_a_problem() {
    let folder = Folder::new();
    let problems = config::load(Some(&folder.path("none.toml")), &Vars::default()).expect_err("missing");
    assert!(problems.0[0].wrong.contains("cannot be read"), "{problems}");
    let path = folder.path("latin1.toml");
    std::fs::write(&path, b"[intake]\n# caf\xe9\n").expect("written");
    let problems = config::load(Some(&path), &Vars::default()).expect_err("not UTF-8");
    assert_eq!((problems.0[0].line, problems.0[0].wrong.as_str()), (Some(2), "is not UTF-8"));
}

#[test]
fn without_a_token_the_admin_listener_stays_on_loopback() {
    let file = "[admin]\nlisten = \"0.0.0.0:9090\"\n";
    let problems = config_of(file, &Vars::default()).expect_err("open to the world");
    only_error(&problems, "admin.listen");
    // Set to nothing is not a token either.
    assert!(config_of(file, &Vars(vec![("CAPGATE_ADMIN_TOKEN", "")])).is_err());
    assert!(config_of(file, &Vars(vec![("CAPGATE_ADMIN_TOKEN", "abc")])).is_ok());
    assert!(config_of("[admin]\nlisten = \"[::1]:9090\"\n", &Vars::default()).is_ok());
    let problems = config_of("[admin]\ntoken = \"file:none\"\n", &Vars::default()).expect_err("no such file");
    only_error(&problems, "admin.token");
}

#[test]
fn the_two_listeners_do_not_share_a_port() {
    let problems = config_of("[admin]\nlisten = \"127.0.0.1:8080\"\n", &Vars::default()).expect_err("one port");
    only_error(&problems, "admin.listen");
}

#[test]
fn secrets_come_from_variables_and_files_and_are_never_printed() {
    let folder = Folder::new();
    folder.write("url", "mysql://root:hunter2@db:3306/books\n");
    let path = folder.write(
        "capgate.toml",
        "[ledger]\nurl = \"file:url\"\n[store]\nurl = \"env:STORE\"\n[admin]\ntoken = \"sesame\"\n",
    );
    let env = Vars(vec![("STORE", "redis-cluster://:hunter2@a:1,b:2,c:3")]);
    let config = config::load(Some(&path), &env).expect("good");
    assert!(matches!(&config.ledger.url, LedgerUrl::Mysql(url) if url.expose().ends_with("@db:3306/books")));
    assert!(matches!(&config.store.url, StoreUrl::Redis(url) if url.expose().ends_with("c:3")));
    let printed = format!("{config:?}");
    assert!(!printed.contains("hunter2") && !printed.contains("sesame"), "{printed}");

    for (file, key) in [
        ("[ledger]\nurl = \"mysql://root:hunter2@db:3306/\"\n", "ledger.url"),
        ("[store]\nurl = \"redis://\"\n", "store.url"),
        ("[store]\nurl = \"http://:hunter2@cache\"\n", "store.url"),
        ("[admin]\ntoken = \"hunter2 \\n\"\n", "admin.token"),
        ("[admin]\ntokn = \"hunter2\"\n", "admin.tokn"),
    ] {
        let problems = config_of(file, &Vars::default()).expect_err("bad");
        assert_eq!(only_error(&problems, key).value.as_deref(), Some("***"));
        assert!(!problems.to_string().contains("hunter2"), "{problems}");
    }
    let header = "request = { headers = { X-Api-Key = \"env:EMPTY\" } }";
    let problems = routing_with(&with_buyer(header), &Vars(vec![("EMPTY", "")])).expect_err("an empty secret");
    assert_eq!(only_error(&problems, "buyer[sunco].request.headers.X-Api-Key").wrong, "is empty");
    let problems = config_of("[store]\nurl = \"env:NOWHERE\"\n", &Vars::default()).expect_err("unset");
    assert!(only_error(&problems, "store.url").wrong.contains("NOWHERE is not set"), "{problems}");
}

#[test]
fn paths_are_relative_to_the_file_that_they_stand_in() {
    let folder = Folder::new();
    let path = folder.write(
        "capgate.toml",
        "[routing]\nfile = \"r.toml\"\n[ledger]\nurl = \"sqlite:l.db\"\n[store]\nurl = \"embedded:/abs/j.db\"\n",
    );
    let config = config::load(Some(&path), &Vars::default()).expect("good");
    assert_eq!(config.routing_file, folder.path("r.toml"));
    assert!(matches!(&config.ledger.url, LedgerUrl::Sqlite(file) if *file == folder.path("l.db")));
    assert!(matches!(&config.store.url, StoreUrl::Embedded(file) if file.to_str() == Some("/abs/j.db")));
    assert!(!config.is_routing_optional);
    let config = config::load(Some(&path), &Vars(vec![("CAPGATE_ROUTING__FILE", "other.toml")])).expect("good");
    assert_eq!(config.routing_file.to_str(), Some("other.toml"));
}

#[test]
fn f10_two_store_calls_that_outlast_the_answer_are_warned_about() {
    let folder = Folder::new();
    folder.write("routing.toml", "[[publisher]]\nid = \"a\"\npayout = { flat = \"1\" }\n");
    let file = "[intake]\nanswer_within_ms = 100\n[routing]\nfile = \"routing.toml\"\n";
    let path = folder.write("capgate.toml", file);
    let problems = config::check(Some(&path), &Vars::default());
    assert_eq!(problems.errors(), 0, "{problems}");
    assert_keys(&problems, &["store.command_timeout_ms", "publisher[a].keys_sha256"]);
}

#[test]
fn a_pair_of_certificate_and_key_is_read_relative_to_its_file_or_from_the_environment() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let (cert_path, key_path) = (folder.write("cert.pem", &cert), folder.write("key.pem", &key));
    let load = |text: &str, env: &Vars| config::load(Some(&folder.write("capgate.toml", text)), env);
    let files = |text: &str, env: &Vars| {
        let tls = load(text, env).unwrap_or_else(|problems| panic!("{text}: {problems}")).intake.tls.expect("TLS");
        tls.files().iter().map(|path| path.to_path_buf()).collect::<Vec<_>>()
    };
    let both = vec![cert_path.clone(), key_path.clone()];
    let none = Vars::default();
    assert_eq!(files("[intake]\ntls = { cert = \"cert.pem\", key = \"file:key.pem\" }\n", &none), both);
    assert_eq!(files("[intake.tls]\ncert = \"file:cert.pem\"\nkey = \"file:key.pem\"\n", &none), both);
    // A key in the environment is no file to watch.
    let variable = Vars(vec![("THE_KEY", key.clone().leak())]);
    assert_eq!(files("[intake]\ntls = { cert = \"cert.pem\", key = \"env:THE_KEY\" }\n", &variable), both[..1]);
    let inline = format!("{{ cert = {cert_path:?}, key = \"file:{}\" }}", key_path.display());
    assert_eq!(files("[store]\n", &Vars(vec![("CAPGATE_INTAKE__TLS", inline.leak())])), both);
    for (text, at) in [
        ("tls = { cert = \"cert.pem\" }", "intake.tls.key"),
        ("tls = { key = \"file:key.pem\" }", "intake.tls.cert"),
        ("tls = { cert = \"cert.pem\", key = \"key.pem\" }", "intake.tls.key"),
        ("tls = { cert = \"key.pem\", key = \"file:key.pem\" }", "intake.tls.cert"),
        ("tls = { cert = \"cert.pem\", key = \"file:key.pem\", ca = \"x\" }", "intake.tls.ca"),
        ("tls = true", "intake.tls"),
    ] {
        let problems = load(&format!("[intake]\n{text}\n"), &none).expect_err(text);
        assert_eq!(only_error(&problems, at).key, at, "{text}: {problems}");
        assert!(!problems.to_string().contains("BEGIN"), "P9: {problems}");
    }
}
