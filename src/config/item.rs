//! Reading the tree: each value is asked for by name and type, every mismatch is noted and reading goes on, and a key that
//! nobody asked for is a problem.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::path::PathBuf;

use super::env::Environment;
use super::problem::{Problem, Problems, Severity};
use super::secret;
use super::tree::{Entry, Node, Place, Table, Value};
use crate::domain::field;
use crate::domain::lead::FieldValue;
use crate::domain::money::Micros;
use crate::domain::routing::Secret;

/// What all readers of one configuration share.
pub(super) struct Desk<'a> {
    problems: RefCell<Vec<Problem>>,
    pub(super) env: &'a dyn Environment,
}

impl<'a> Desk<'a> {
    pub(super) fn new(env: &'a dyn Environment) -> Self {
        Self { problems: RefCell::new(Vec::new()), env }
    }

    pub(super) fn note(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// Everything noted, in the order of the lines.
    pub(super) fn into_problems(self) -> Problems {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        Problems(problems)
    }
}

/// One table of the tree.
pub(super) struct Reader<'a> {
    desk: &'a Desk<'a>,
    table: &'a Table,
    /// Where the table itself stands, for keys that are missing from it.
    place: Place,
    path: String,
    asked: RefCell<Vec<&'static str>>,
}

/// One value of the tree.
pub(super) struct Item<'a> {
    desk: &'a Desk<'a>,
    node: &'a Node,
    place: &'a Place,
    path: String,
    is_secret: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(desk: &'a Desk<'a>, table: &'a Table, place: Place, path: &str) -> Self {
        Self { desk, table, place, path: path.to_owned(), asked: RefCell::new(Vec::new()) }
    }

    /// The value of a key, if it is there.
    pub(super) fn item(&self, key: &'static str) -> Option<Item<'a>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key).map(|entry| self.item_of(entry))
    }

    /// The text of a key, without asking for it and without a word when it is something else.
    pub(super) fn peek_text(&self, key: &str) -> Option<&'a str> {
        match &self.table.get(key)?.node.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn item_of(&self, entry: &'a Entry) -> Item<'a> {
        Item {
            desk: self.desk,
            node: &entry.node,
            place: &entry.place,
            path: self.path_of(&entry.key),
            is_secret: false,
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key that must be there.
    pub(super) fn required(&self, key: &'static str, right: &str) -> Option<Item<'a>> {
        let item = self.item(key);
        if item.is_none() {
            self.fail(key, "is missing", right);
        }
        item
    }

    /// Every key and its value, for tables whose keys are free.
    pub(super) fn all(&self) -> Vec<(&'a str, Item<'a>)> {
        self.table.entries.iter().map(|entry| (entry.key.as_str(), self.item_of(entry))).collect()
    }

    /// A whole number in a range, or the default.
    pub(super) fn integer<T: TryFrom<i128> + Into<i128> + Copy>(
        &self,
        key: &'static str,
        range: (T, T),
        default: T,
    ) -> T {
        self.item(key).and_then(|item| item.integer_in(range)).unwrap_or(default)
    }

    /// True or false, or the default.
    pub(super) fn flag(&self, key: &'static str, default: bool) -> bool {
        self.item(key).and_then(|item| item.flag()).unwrap_or(default)
    }

    /// A table below this one.
    pub(super) fn table(&self, key: &'static str) -> Option<Reader<'a>> {
        self.item(key).and_then(|item| item.table())
    }

    /// A list of tables (`[[key]]`), none when it is absent.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Reader<'a>> {
        let items = self.item(key).map(|item| item.list("a list of tables")).unwrap_or_default();
        items.into_iter().filter_map(|item| item.table()).collect()
    }

    /// Notes an error about a key of this table that may be absent.
    pub(super) fn fail(&self, key: &str, wrong: impl Display, right: impl Display) {
        self.note(key, wrong.to_string(), right.to_string(), Severity::Error);
    }

    /// Notes a warning about a key of this table that may be absent.
    pub(super) fn warn(&self, key: &str, wrong: impl Display, right: impl Display) {
        self.note(key, wrong.to_string(), right.to_string(), Severity::Warning);
    }

    fn note(&self, key: &str, wrong: String, right: String, severity: Severity) {
        let place = self.table.get(key).map_or(&self.place, |entry| &entry.place);
        let key = if key.is_empty() { self.path.clone() } else { self.path_of(key) };
        let file = place.source.label.clone();
        self.desk.note(Problem { file, line: place.line, key, value: None, wrong, right, severity });
    }

    /// From here on problems name the table by the id of what it describes.
    pub(super) fn rename(&mut self, path: String) {
        self.path = path;
    }

    /// Every key that was not asked for is unknown.
    pub(super) fn finish(self) {
        let mut asked = self.asked.borrow().clone();
        let mut seen = HashSet::new();
        asked.retain(|key| seen.insert(*key));
        for entry in &self.table.entries {
            if asked.contains(&entry.key.as_str()) {
                continue;
            }
            let near = nearest(&entry.key, asked.iter().copied());
            let right = near
                .map_or_else(|| format!("one of {}", asked.join(", ")), |near| format!("{near:?}, or leave it out"));
            // Its value may be a misspelt secret.
            self.item_of(entry).secret().fail("unknown key", right);
        }
    }
}

impl<'a> Item<'a> {
    /// From here on the value is not shown in problems.
    pub(super) fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }

    /// Notes an error about this value.
    pub(super) fn fail(&self, wrong: impl Display, right: impl Display) {
        self.note(wrong.to_string(), right.to_string(), Severity::Error);
    }

    /// Notes a warning about this value.
    pub(super) fn warn(&self, wrong: impl Display, right: impl Display) {
        self.note(wrong.to_string(), right.to_string(), Severity::Warning);
    }

    fn note(&self, wrong: String, right: String, severity: Severity) {
        let value = match (&self.node.value, self.is_secret) {
            (Value::Text(text) | Value::Loose(text), true) if !secret::is_reference(text) => Some("***".to_owned()),
            (Value::List(_) | Value::Table(_), _) => None,
            (Value::Text(_) | Value::Loose(_), _) | (_, false) => self.node.shown(),
            (_, true) => Some("***".to_owned()),
        };
        // A value may stand lines below its key, in a list; the value's own line helps more.
        let line = self.node.place.line.or(self.place.line);
        let file = self.node.place.source.label.clone();
        self.desk.note(Problem { file, line, key: self.path.clone(), value, wrong, right, severity });
    }

    fn wrong_type(&self, right: &str) {
        self.fail(format!("is {}", self.node.kind()), right);
    }

    /// Text.
    pub(super) fn text(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) | Value::Loose(text) => Some(text),
            _ => {
                self.wrong_type("text in quotes");
                None
            }
        }
    }

    /// Text that is not empty.
    pub(super) fn word(&self) -> Option<&'a str> {
        let text = self.text()?;
        if text.trim().is_empty() {
            self.fail("is empty", "a text that is not empty");
            return None;
        }
        Some(text)
    }

    /// The text behind `"env:NAME"` or `"file:PATH"`, or the text itself.
    pub(super) fn secret_text(&self) -> Option<Secret> {
        let text = self.text()?;
        match secret::resolve(text, &self.node.place.source.base, self.desk.env) {
            Ok(secret) => Some(secret),
            Err(wrong) => {
                self.fail(
                    wrong,
                    "\"env:NAME\" of a set variable, \"file:PATH\" of a readable file, or the secret itself",
                );
                None
            }
        }
    }

    /// Is it a reference to an environment variable that is not set, or set to nothing?
    pub(super) fn is_unset_variable(&self) -> bool {
        let (Value::Text(text) | Value::Loose(text)) = &self.node.value else { return false };
        text.strip_prefix("env:").is_some_and(|name| self.desk.env.get(name).is_none_or(|value| value.is_empty()))
    }

    /// Is it a table?
    pub(super) fn is_table(&self) -> bool {
        matches!(self.node.value, Value::Table(_))
    }

    /// Is it a list?
    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// The number, true or false that stands here and is meant as it is.
    pub(super) fn constant(&self) -> Option<FieldValue> {
        match &self.node.value {
            Value::Integer(number) => Some(FieldValue::Number(number.to_string().into())),
            Value::Bool(flag) => Some(FieldValue::Bool(*flag)),
            _ => None,
        }
    }

    /// A whole number, any.
    pub(super) fn integer(&self, right: &str) -> Option<i128> {
        match &self.node.value {
            Value::Integer(number) => Some(*number),
            Value::Loose(text) if text.parse::<i128>().is_ok() => text.parse().ok(),
            _ => {
                self.wrong_type(right);
                None
            }
        }
    }

    /// A whole number in a range, ends included.
    pub(super) fn integer_in<T: TryFrom<i128> + Into<i128> + Copy>(&self, (low, high): (T, T)) -> Option<T> {
        let (low, high): (i128, i128) = (low.into(), high.into());
        let right = format!("a whole number from {low} to {high}");
        let number = self.integer(&right)?;
        if number < low || number > high {
            let wrong = if number < 0 && low >= 0 { "is negative" } else { "is out of range" };
            self.fail(wrong, right);
            return None;
        }
        T::try_from(number).ok()
    }

    /// A number of a rule.
    pub(super) fn number(&self) -> Option<f64> {
        let number = match &self.node.value {
            // Rules compare as floats; whole numbers beyond 2^53 lose digits there as well.
            #[allow(clippy::cast_precision_loss, reason = "rules compare as floats")]
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            _ => {
                self.wrong_type("a number");
                return None;
            }
        };
        if !number.is_finite() {
            self.fail("is not finite", "a number");
            return None;
        }
        Some(number)
    }

    /// True or false.
    pub(super) fn flag(&self) -> Option<bool> {
        match &self.node.value {
            Value::Bool(flag) => Some(*flag),
            Value::Loose(text) if text.parse::<bool>().is_ok() => text.parse().ok(),
            _ => {
                self.wrong_type("true or false");
                None
            }
        }
    }

    /// Money: a decimal in quotes, so that no float ever touches it (P6); at most `max`.
    pub(super) fn money(&self, max: Micros) -> Option<Micros> {
        const RIGHT: &str = "a decimal in quotes with at most six decimals, such as \"25.00\"";
        let (Value::Text(text) | Value::Loose(text)) = &self.node.value else {
            self.wrong_type(RIGHT);
            return None;
        };
        match Micros::parse(text) {
            Ok(amount) if amount <= max => Some(amount),
            Ok(_) => {
                self.fail("is too much", format!("at most {max}"));
                None
            }
            Err(_) if text.starts_with('-') => {
                self.fail("is negative", RIGHT);
                None
            }
            Err(_) => {
                self.fail("is not an amount", RIGHT);
                None
            }
        }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.fail("is not a known word here", words.join(" | "));
        }
        found
    }

    /// The items of a list.
    pub(super) fn list(&self, right: &str) -> Vec<Item<'a>> {
        let Value::List(nodes) = &self.node.value else {
            self.wrong_type(right);
            return Vec::new();
        };
        let item = |(index, node): (usize, &'a Node)| Item {
            desk: self.desk,
            node,
            place: &node.place,
            path: format!("{}[{}]", self.path, index + 1),
            is_secret: self.is_secret,
        };
        nodes.iter().enumerate().map(item).collect()
    }

    /// A list of texts; an empty one is an error, since it would match nothing.
    pub(super) fn texts(&self) -> Vec<(&'a str, Item<'a>)> {
        let items = self.list("a list of texts in brackets");
        if items.is_empty() && matches!(self.node.value, Value::List(_)) {
            self.fail("is empty and would match nothing", "at least one value, or leave the key out");
        }
        items.into_iter().filter_map(|item| item.word().map(|text| (text, item))).collect()
    }

    /// Values as text: texts, whole numbers, true and false.
    pub(super) fn values(&self) -> Vec<String> {
        let items = self.list("a list in brackets");
        if items.is_empty() && matches!(self.node.value, Value::List(_)) {
            self.fail("is empty and would match nothing", "at least one value, or leave the key out");
        }
        let value = |item: Item<'a>| match &item.node.value {
            Value::Integer(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => item.word().map(|text| text.trim().to_owned()),
        };
        items.into_iter().filter_map(value).collect()
    }

    /// The table that this is.
    pub(super) fn table(&self) -> Option<Reader<'a>> {
        if let Value::Table(table) = &self.node.value {
            Some(Reader::new(self.desk, table, self.place.clone(), &self.path))
        } else {
            self.wrong_type("a table");
            None
        }
    }

    /// A path, relative to the file that it stands in.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        self.node.place.source.base.join(text)
    }
}

/// A field name that is nearly one of those that people use, and none of them, is probably misspelt: nothing would ever match it.
pub(super) fn warn_of_misspelling(item: &Item<'_>, name: &str) {
    // `phone2` is a field of its own.
    if field::known(name).is_none()
        && !name.ends_with(|last: char| last.is_ascii_digit())
        && let Some(near) =
            field::names().find(|known| is_swapped(name, known)).or_else(|| nearest(name, field::names()))
    {
        item.warn(
            format!("is no field that is known by this name, and close to {near:?}"),
            format!("{near:?}, or this if leads have it"),
        );
    }
}

/// Are they the same but for two neighbours that changed places?
fn is_swapped(word: &str, known: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let differ: Vec<usize> =
        word.bytes().zip(known.bytes()).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect();
    let (word, known) = (word.as_bytes(), known.as_bytes());
    word.len() == known.len()
        && matches!(differ[..], [one, two] if two == one + 1 && word[one] == known[two] && word[two] == known[one])
}

/// The candidate that is most like the word, if one is like it.
pub(super) fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let word = word.to_ascii_lowercase();
    candidates
        .map(|candidate| (distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words; words of very different length are not compared.
fn distance(left: &str, right: &str) -> usize {
    if left.len().abs_diff(right.len()) > 2 {
        return usize::MAX;
    }
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[right.len()]
}
