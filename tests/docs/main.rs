//! What the texts of this repository say about its tests is true.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Every test's name: functions under a test attribute, and what the behaviour lists run on each store and ledger.
fn all_tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for folder in ["src", "tests"] {
        read_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut tests);
    }
    tests
}

fn read_folder(folder: &Path, tests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            read_functions(&text, tests);
            if ["tests/contract/store.rs", "tests/ledger/main.rs"].iter().any(|list| path.ends_with(list)) {
                read_list(&text, tests);
            }
        }
    }
}

fn name_of(line: &str) -> Option<&str> {
    let rest = line.split_once("fn ")?.1;
    rest.split(['(', '<']).next()
}

fn read_functions(text: &str, tests: &mut BTreeSet<String>) {
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let (true, Some(name)) = (is_test, name_of(line)) {
            tests.insert(name.to_owned());
            is_test = false;
        }
    }
}

fn read_list(text: &str, tests: &mut BTreeSet<String>) {
    for line in text.lines().map(str::trim) {
        let is_word = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if let Some(name) = line.strip_suffix(',').filter(|name| name.len() > 8 && is_word(name)) {
            tests.insert(name.to_owned());
        }
    }
}

#[test]
fn every_failure_mode_is_shown_by_tests_that_exist() {
    let text = include_str!("../failure-modes.md");
    let tests = all_tests();
    let mut shown: BTreeMap<u32, usize> = BTreeMap::new();
    for entry in text.split("\n- **F").skip(1) {
        let entry = entry.split("\n## ").next().unwrap();
        let (number, rest) = entry.split_once("**").expect("a number in bold");
        let number: u32 = number.parse().expect("a number");
        let names: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        for name in &names {
            assert!(tests.contains(*name), "F{number:02} names {name}, which is no test");
        }
        let has_reason = rest.contains("Cannot occur: ");
        assert_eq!(has_reason, names.is_empty(), "F{number:02} needs tests, or the reason why it cannot occur");
        assert!(shown.insert(number, names.len()).is_none(), "F{number:02} stands twice");
    }
    let all: Vec<u32> = (1..=92).collect();
    assert_eq!(shown.into_keys().collect::<Vec<_>>(), all);
}

/// Every table of a routing file once, each with a key that nobody knows.
const PROBE: &str = r#"
zzzzzzzzzzzzzzzz = 1
[[publisher]]
id = "p"
zzzzzzzzzzzzzzzz = 1
throttle = { zzzzzzzzzzzzzzzz = 1 }
payout = { zzzzzzzzzzzzzzzz = 1 }
postback = { zzzzzzzzzzzzzzzz = 1 }
[[buyer]]
id = "b"
zzzzzzzzzzzzzzzz = 1
[[buyer.cap]]
zzzzzzzzzzzzzzzz = 1
[buyer.filter]
zzzzzzzzzzzzzzzz = 1
[[buyer.filter.where]]
zzzzzzzzzzzzzzzz = 1
[[buyer.hours]]
zzzzzzzzzzzzzzzz = 1
[buyer.breaker]
zzzzzzzzzzzzzzzz = 1
[buyer.duplicates]
zzzzzzzzzzzzzzzz = 1
[buyer.request]
zzzzzzzzzzzzzzzz = 1
basic = { zzzzzzzzzzzzzzzz = 1 }
[buyer.answer]
zzzzzzzzzzzzzzzz = 1
price = { zzzzzzzzzzzzzzzz = 1 }
[[buyer]]
id = "whose-rule-is-wrong"
[buyer.answer]
accepted = { zzzzzzzzzzzzzzzz = 1 }
[[campaign]]
id = "c"
zzzzzzzzzzzzzzzz = 1
[[campaign.offer]]
zzzzzzzzzzzzzzzz = 1
"#;

/// The keys of each table, as the reader of the file tells them: an unknown key is answered with the list of those it asked for.
fn keys_by_table() -> BTreeMap<String, BTreeSet<String>> {
    let folder = tempfile::tempdir().unwrap();
    let (file, process) = (folder.path().join("routing.toml"), folder.path().join("capgate.toml"));
    std::fs::write(&file, PROBE).unwrap();
    std::fs::write(&process, "").unwrap();
    let none = |_: &str| None;
    let forward = capgate::config::load(Some(&process), &none).unwrap().forward;
    let problems = capgate::config::load_routing(&file, &forward, &none).unwrap_err();
    let mut tables = BTreeMap::new();
    for problem in problems.0.iter().filter(|problem| problem.wrong == "unknown key") {
        let path: String = problem.key.split(['[', ']']).step_by(2).collect();
        let table = path.strip_suffix("zzzzzzzzzzzzzzzz").unwrap().trim_end_matches('.');
        let keys = problem.right.strip_prefix("one of ").expect("the list of keys").split(", ").map(str::to_owned);
        tables.insert(if table.is_empty() { "routing".to_owned() } else { table.to_owned() }, keys.collect());
    }
    tables
}

#[test]
fn the_page_of_the_routing_file_has_every_key_that_is_read_and_no_other() {
    let mut on_page: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for section in include_str!("../../docs/routing.md").split("\n## ").flat_map(|part| part.split("\n### ")).skip(1) {
        let name = section.split('`').nth(1).expect("a table's name").to_owned();
        let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        assert!(on_page.insert(name, keys.map(str::to_owned).collect()).is_none());
    }
    let read = keys_by_table();
    for (table, keys) in &read {
        assert_eq!(on_page.get(table), Some(keys), "the table `{table}`");
    }
    assert_eq!(on_page.keys().collect::<Vec<_>>(), read.keys().collect::<Vec<_>>());
    // Every row says of which type the key is and what its absence means.
    for line in include_str!("../../docs/routing.md").lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(line.matches(" |").count(), 4, "{line}");
    }
}
