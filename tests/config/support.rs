//! Files in a folder of their own, and an environment that is a list.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use capgate::config::{self, Config, Environment, ForwardConfig, Problem, Problems, Severity};
use capgate::domain::routing::{Buyer, Routing};
use tempfile::TempDir;

pub const HASH_ACME: &str = "8649cdebee753898fd50e01408a9e438aa5090249bc3e51b65f33dce973b0873";
pub const HASH_OTHER: &str = "0ea5f4259e3ac0bb039700e4df7f9d3da0d209ea1e402d2556618b12f8252cbc";

#[derive(Default)]
pub struct Vars(pub Vec<(&'static str, &'static str)>);

impl Environment for Vars {
    fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }
    fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| (*name).to_owned()).collect()
    }
}

pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a written file");
        path
    }
}

pub fn forward() -> ForwardConfig {
    ForwardConfig {
        timeout: Duration::from_millis(1500),
        late_answer: Duration::from_secs(10),
        answer_bytes_max: 65_536,
        allow_private_addresses: false,
        lead_deadline: Duration::from_secs(10),
        attempts_max: 10,
    }
}

/// `capgate.toml` with this text.
pub fn config_of(text: &str, env: &Vars) -> Result<Config, Problems> {
    let folder = Folder::new();
    let path = folder.write("capgate.toml", text);
    config::load(Some(&path), env)
}

/// `routing.toml` with this text.
pub fn routing_with(text: &str, env: &Vars) -> Result<(Routing, Vec<Problem>), Problems> {
    let folder = Folder::new();
    let path = folder.write("routing.toml", text);
    config::load_routing(&path, &forward(), env)
}

pub fn routing_of(text: &str) -> Result<(Routing, Vec<Problem>), Problems> {
    routing_with(text, &Vars::default())
}

/// One publisher, one campaign and the buyer `sunco`, whose table ends with `more`.
pub fn with_buyer(more: &str) -> String {
    format!(
        r#"
[[publisher]]
id = "acme"
keys_sha256 = ["{HASH_ACME}"]
payout = {{ percent = "70" }}

[[campaign]]
id = "solar"
currency = "USD"

[[campaign.offer]]
buyer = "sunco"
price = "25.00"

[[buyer]]
id = "sunco"
url = "https://buyer.example/leads"
timezone = "America/New_York"
answer = {{ accepted = {{ status = [201] }} }}
{more}
"#
    )
}

/// The buyer of [`with_buyer`], when the routing is taken without a warning.
pub fn buyer(more: &str) -> Arc<Buyer> {
    match routing_of(&with_buyer(more)) {
        Ok((routing, warnings)) => {
            assert!(warnings.is_empty(), "{warnings:?}");
            Arc::clone(&routing.buyers["sunco"])
        }
        Err(problems) => panic!("refused:\n{problems}\nin {more}"),
    }
}

/// The problems of [`with_buyer`]; it must be refused.
pub fn buyer_problems(more: &str) -> Problems {
    match routing_of(&with_buyer(more)) {
        Ok(_) => panic!("taken: {more}"),
        Err(problems) => problems,
    }
}

/// The one error among the problems, which must be about `key`.
#[track_caller]
pub fn only_error<'p>(problems: &'p Problems, key: &str) -> &'p Problem {
    let errors: Vec<&Problem> = problems.0.iter().filter(|problem| problem.severity == Severity::Error).collect();
    assert_eq!(errors.len(), 1, "{problems}");
    assert_eq!(errors[0].key, key, "{problems}");
    errors[0]
}

/// All of these keys have problems, and no others.
#[track_caller]
pub fn assert_keys(problems: &Problems, keys: &[&str]) {
    let mut found: Vec<&str> = problems.0.iter().map(|problem| problem.key.as_str()).collect();
    let mut keys = keys.to_vec();
    found.sort_unstable();
    keys.sort_unstable();
    assert_eq!(found, keys, "{problems}");
}
