//! The environment: `CAPGATE_SECTION__KEY` overrides a key of `capgate.toml`.

use std::sync::Arc;

use super::tree::{self, Entry, Node, Place, Source, Table, Value};

/// First part of the names of variables that override a key.
const PREFIX: &str = "CAPGATE_";

/// Where environment variables come from. A closure `Fn(&str) -> Option<String>` is one that cannot list its names: then
/// known overrides work and unknown ones go unnoticed.
pub trait Environment {
    /// The value of a variable.
    fn get(&self, name: &str) -> Option<String>;

    /// The names of all variables, where they can be listed.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<F: Fn(&str) -> Option<String> + ?Sized> Environment for F {
    fn get(&self, name: &str) -> Option<String> {
        self(name)
    }
}

/// The environment of this process. Variables that are not UTF-8 are as good as absent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

/// The name of the variable that overrides a key.
fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{}__{}", section.to_ascii_uppercase(), key.to_ascii_uppercase())
}

/// Everything the environment overrides, as a table to lay over the file; names that no key answers to come out as unknown
/// keys. Names without `__` mean nothing here.
pub(super) fn overrides(env: &dyn Environment, keys: &[(&'static str, &[&'static str])]) -> Table {
    let known = keys.iter().flat_map(|(section, keys)| keys.iter().map(|key| (*section, *key)));
    let mut names: Vec<String> = known.map(|(section, key)| variable(section, key)).collect();
    for name in env.names() {
        if name.starts_with(PREFIX) && name[PREFIX.len()..].contains("__") && !names.contains(&name) {
            names.push(name);
        }
    }
    let mut root = Table { entries: Vec::new() };
    for name in names {
        let Some(value) = env.get(&name) else { continue };
        let Some((section, key)) = name[PREFIX.len()..].split_once("__") else { continue };
        let place = Place { source: Source::named(&name), line: None };
        let entry = |key: &str, value: Value| Entry {
            key: key.to_ascii_lowercase(),
            place: place.clone(),
            node: Node { value, place: place.clone() },
        };
        let value = inline_table(&value, &place.source).unwrap_or(Value::Loose(value));
        let inner = Table { entries: vec![entry(key, value)] };
        root.overlay(Table { entries: vec![entry(section, Value::Table(inner))] });
    }
    root
}

/// `{ key = value, ... }` for a key that is a table.
fn inline_table(text: &str, source: &Arc<Source>) -> Option<Value> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let whole = tree::parse(&format!("table = {}", text.trim()), source).ok()?;
    let value = whole.entries.into_iter().next().map(|entry| entry.node.value);
    value.filter(|value| matches!(value, Value::Table(_)))
}
