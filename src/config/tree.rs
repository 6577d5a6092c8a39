//! TOML as a tree whose every value knows where it was written, so that a problem can name file and line. Checking works on
//! the tree and not on serde structs, because those stop at the first value of a wrong type.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::problem::{Problem, Problems, Severity};

/// Largest configuration file read (P7).
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest piece of a value that is repeated in a problem.
const SHOWN_CHARS_MAX: usize = 80;

/// Something that values are written in.
#[derive(Debug)]
pub(super) struct Source {
    /// How problems call it.
    pub label: String,
    /// What relative paths in it are relative to.
    pub base: PathBuf,
}

impl Source {
    pub(super) fn file(path: &Path) -> Arc<Self> {
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        Arc::new(Self { label: path.display().to_string(), base })
    }

    /// Not a file: paths are relative to the working directory.
    pub(super) fn named(label: &str) -> Arc<Self> {
        Arc::new(Self { label: label.to_owned(), base: PathBuf::new() })
    }

    /// A problem of the whole source.
    pub(super) fn problem(&self, line: Option<usize>, wrong: String, right: &str) -> Problem {
        Problem {
            file: self.label.clone(),
            line,
            key: String::new(),
            value: None,
            wrong,
            right: right.to_owned(),
            severity: Severity::Error,
        }
    }
}

/// Where something is written.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub source: Arc<Source>,
    pub line: Option<usize>,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub value: Value,
    pub place: Place,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Text(String),
    /// Beyond `i128` it is held at the end of the range: far outside every limit.
    Integer(i128),
    Float(f64),
    Bool(bool),
    Date(String),
    List(Vec<Node>),
    Table(Table),
    /// Text from the environment: becomes whatever type is asked for.
    Loose(String),
}

/// Keys in the order in which they were written.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

impl Table {
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Lays another table over this one, key by key.
    pub(super) fn overlay(&mut self, over: Self) {
        for entry in over.entries {
            match self.entries.iter_mut().find(|known| known.key == entry.key) {
                None => self.entries.push(entry),
                Some(known) => match (&mut known.node.value, entry.node.value) {
                    (Value::Table(under), Value::Table(over)) => {
                        under.overlay(over);
                        known.place = entry.place;
                    }
                    (_, value) => {
                        known.node = Node { value, place: entry.node.place };
                        known.place = entry.place;
                    }
                },
            }
        }
    }
}

impl Node {
    /// The value as written, shortened, for a problem.
    pub(super) fn shown(&self) -> Option<String> {
        let text = match &self.value {
            Value::Text(text) | Value::Loose(text) => format!("{text:?}"),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Date(text) => text.clone(),
            Value::List(_) | Value::Table(_) => return None,
        };
        if text.chars().count() <= SHOWN_CHARS_MAX {
            return Some(text);
        }
        Some(text.chars().take(SHOWN_CHARS_MAX).chain("...".chars()).collect())
    }

    /// What kind of value it is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) | Value::Loose(_) => "text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a fractional number",
            Value::Bool(_) => "true or false",
            Value::Date(_) => "a date or time",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// Reads a file, bounded and as UTF-8.
pub(super) fn read_file(path: &Path) -> Result<String, Box<Problem>> {
    use std::io::Read as _;
    let source = Source::file(path);
    let fail = |wrong: String, right: &str| Box::new(source.problem(None, wrong, right));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| fail(format!("cannot be read: {error}"), "a file that this user may read"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fail(format!("is larger than {FILE_BYTES_MAX} bytes"), "a smaller file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        Box::new(source.problem(Some(line), "is not UTF-8".to_owned(), "text in UTF-8"))
    })
}

/// Parses TOML; every syntax error is a problem with its line.
pub(super) fn parse(text: &str, source: &Arc<Source>) -> Result<Table, Problems> {
    let lines = Lines::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let reader = TreeBuilder { source, lines: &lines };
        return Ok(reader.table(document.get_ref()));
    }
    let problems = errors.iter().map(|error| {
        let line = error.span().map(|span| lines.line_of(span.start));
        // The parser's message names tokens and keys of the grammar, never the value it stumbled over.
        source.problem(line, format!("is not TOML: {}", error.message()), "")
    });
    Err(Problems(problems.collect()))
}

/// Offsets of line starts.
struct Lines(Vec<usize>);

impl Lines {
    fn new(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn line_of(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}

struct TreeBuilder<'a> {
    source: &'a Arc<Source>,
    lines: &'a Lines,
}

impl TreeBuilder<'_> {
    fn place(&self, offset: usize) -> Place {
        Place { source: Arc::clone(self.source), line: Some(self.lines.line_of(offset)) }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let mut entries: Vec<(usize, Entry)> = table
            .iter()
            .map(|(key, value)| {
                let offset = key.span().start;
                let place = self.place(offset);
                let node = Node { value: self.value(value.get_ref()), place: self.place(value.span().start) };
                (offset, Entry { key: key.get_ref().clone().into_owned(), place, node })
            })
            .collect();
        // The parser keeps keys sorted by name; buyers get their fields in the order of the file.
        entries.sort_by_key(|(offset, _)| *offset);
        Table { entries: entries.into_iter().map(|(_, entry)| entry).collect() }
    }

    fn value(&self, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.clone().into_owned()),
            DeValue::Integer(integer) => {
                let far = if integer.as_str().starts_with('-') { i128::MIN } else { i128::MAX };
                Value::Integer(i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(far))
            }
            // Cannot fail because the parser has checked the digits; too large becomes infinite, which every rule refuses.
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::Bool(*flag),
            DeValue::Datetime(at) => Value::Date(at.to_string()),
            DeValue::Array(items) => Value::List(
                items
                    .iter()
                    .map(|item| Node { value: self.value(item.get_ref()), place: self.place(item.span().start) })
                    .collect(),
            ),
            DeValue::Table(table) => Value::Table(self.table(table)),
        }
    }
}
