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
