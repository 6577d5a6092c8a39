//! Bodies that an operator writes as a template: `{"name": "{{ lead.first_name }}"}`.
//!
//! Every value is escaped for the format it stands in, so that no lead can change what the buyer reads beside its own value
//! (F55). Work and output are bounded (P7).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value};

use super::lead::{FieldValue, Fields, write_json_string};
use super::{field, pointer, xml};

/// Largest output, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Work of one rendering, in the engine's units: about one instruction or 64 bytes each.
const FUEL: u64 = 200_000;
/// The one template of an environment.
const NAME: &str = "template";

/// How values are escaped, and what the whole must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// Values are written as the inside of a JSON string; the whole must be one JSON value.
    Json,
    /// Values are written as XML text; the whole must be one well-formed document.
    Xml,
    /// Values are percent-encoded; line breaks and indentation of the template itself are dropped.
    Form,
}

/// A template that was compiled.
pub struct Template {
    environment: Environment<'static>,
    syntax: Syntax,
}

/// A template that cannot be used; no value of a lead is part of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wrong}")]
pub struct BadTemplate {
    /// Line in the template, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub wrong: String,
}

/// Why a lead cannot be written with a template. No value of the lead is part of it (P9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Longer than [`OUTPUT_BYTES_MAX`], or more work than a body is worth.
    #[error("too large")]
    TooLarge,
    /// The template failed with this lead, or did not make what its [`Syntax`] asks for.
    #[error("malformed")]
    Malformed,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.syntax)
    }
}

impl Template {
    /// Compiles a template. `timezone` is the one that its dates are written in.
    ///
    /// # Errors
    /// [`BadTemplate`] when it is not one.
    pub fn compile(source: &str, syntax: Syntax, timezone: TimeZone) -> Result<Self, BadTemplate> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(move |out, _, value| {
            let text = plain(value).unwrap_or_default();
            let escaped = if value.is_safe() { text } else { escape(&text, syntax) };
            out.write_str(&escaped).map_err(minijinja::Error::from)
        });
        // They mark text as escaped, for a syntax that may not be ours.
        for filter in ["safe", "escape", "e"] {
            environment.remove_filter(filter);
        }
        environment.add_filter("json", move |value: &Value| Value::from_safe_string(json(value)));
        environment.add_filter("digits", |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>());
        environment.add_filter("date", move |text: &str, format: &str| date(text, format, &timezone));
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| bad(&error))?;
        Ok(Self { environment, syntax })
    }

    /// What it asks for from outside, with dots: `lead.first_name`, `price`.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        let names = self.environment.get_template(NAME).map(|template| template.undeclared_variables(true));
        let is_ours = |name: &String| self.environment.globals().all(|(global, _)| global != name);
        names.unwrap_or_default().into_iter().filter(is_ours).collect()
    }

    /// Writes a body with these values.
    ///
    /// # Errors
    /// [`RenderError`]
    pub fn render(&self, values: Vec<(&'static str, Value)>) -> Result<String, RenderError> {
        self.rendered(values).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel | ErrorKind::WriteFailure => RenderError::TooLarge,
            _ => RenderError::Malformed,
        })
    }

    /// Writes a body with values that stand for real ones, to see whether it can be done.
    ///
    /// # Errors
    /// [`BadTemplate`]
    pub fn rehearse(&self, values: Vec<(&'static str, Value)>) -> Result<(), BadTemplate> {
        self.rendered(values).map(drop).map_err(|error| bad(&error))
    }

    fn rendered(&self, values: Vec<(&'static str, Value)>) -> Result<String, minijinja::Error> {
        let template = self.environment.get_template(NAME)?;
        let mut out = Bounded(Vec::new());
        template.render_captured_to(Value::from_pairs(values), &mut out)?;
        let malformed = |wrong: String| minijinja::Error::new(ErrorKind::BadSerialization, wrong);
        let text = String::from_utf8(out.0).map_err(|_| malformed("it does not make text".into()))?;
        match self.syntax {
            Syntax::Json => pointer::Document::check(text.as_bytes())
                .map_err(|error| malformed(format!("what it makes is not JSON: {error}")))?,
            Syntax::Xml if xml::Document::read((&*text).into()).is_none() => {
                return Err(malformed("what it makes is not well-formed XML".into()));
            }
            Syntax::Xml => {}
            // A value has no white space left, so this is the template's own.
            Syntax::Form => return Ok(text.lines().map(str::trim).collect()),
        }
        Ok(text)
    }
}

/// The engine's words for what is wrong quote the template and never a value.
fn bad(error: &minijinja::Error) -> BadTemplate {
    let wrong = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    BadTemplate { line: error.line(), wrong }
}

fn escape(text: &str, syntax: Syntax) -> String {
    match syntax {
        Syntax::Json => {
            let mut out = Vec::with_capacity(text.len() + 2);
            write_json_string(text, &mut out);
            // Cannot fail because JSON of a text is text in quotes.
            String::from_utf8_lossy(&out[1..out.len() - 1]).into_owned()
        }
        Syntax::Xml => {
            let mut out = String::with_capacity(text.len());
            xml::write_text(text, &mut out);
            out
        }
        Syntax::Form => form_urlencoded::byte_serialize(text.as_bytes()).collect(),
    }
}

/// A value as text; `None` for what is not there.
fn plain(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        // The engine writes them as Python does.
        ValueKind::Bool => Some(value.is_true().to_string()),
        _ => Some(value.to_string()),
    }
}

/// A value with all that makes it JSON: quotes around text, `null` for what is not there.
fn json(value: &Value) -> String {
    if let Some(nested) = value.downcast_object_ref::<Written>() {
        return nested.0.clone();
    }
    let Some(text) = plain(value) else { return "null".to_owned() };
    if matches!(value.kind(), ValueKind::Bool | ValueKind::Number) {
        return text;
    }
    let mut out = Vec::with_capacity(text.len() + 2);
    write_json_string(&text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// An instant in the template's zone, or a calendar date.
fn date(text: &str, format: &str, timezone: &TimeZone) -> Result<String, minijinja::Error> {
    let written = if let Ok(at) = text.parse::<Timestamp>() {
        jiff::fmt::strtime::format(format, timezone.to_datetime(at))
    } else if let Ok(day) = text.parse::<jiff::civil::Date>() {
        jiff::fmt::strtime::format(format, day)
    } else {
        // A field that the lead does not have, or has in a form of its own, goes on as it is.
        return Ok(text.to_owned());
    };
    written.map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, "a date cannot be written in this format"))
}

/// The fields of a lead as a template sees them: `lead.zip` finds aliases too.
#[must_use]
pub fn lead_value(fields: &Fields) -> Value {
    Value::from_object(LeadFields(fields.clone()))
}

#[derive(Debug)]
struct LeadFields(Fields);

impl Object for LeadFields {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(&field::canonical(key.as_str()?)).map(field_value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Value::from(name)).collect())
    }
}

/// Numbers stay digits: a template must not make floats of them (F55).
fn field_value(value: &FieldValue) -> Value {
    match value {
        FieldValue::Text(text) | FieldValue::Number(text) => Value::from(&**text),
        FieldValue::Bool(flag) => Value::from(*flag),
        FieldValue::Null => Value::from(()),
        FieldValue::Nested(json) => Value::from_object(Written(json.to_string())),
    }
}

/// JSON that a publisher wrote: shown as text, and by the filter `json` as what it is.
#[derive(Debug)]
struct Written(String);

impl Object for Written {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, FieldValue)]) -> Fields {
        Fields::new(pairs.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
    }

    fn text(value: &str) -> FieldValue {
        FieldValue::Text(value.into())
    }

    fn render(source: &str, syntax: Syntax, pairs: &[(&str, FieldValue)]) -> Result<String, RenderError> {
        let zone = TimeZone::get("America/New_York").unwrap();
        let template = Template::compile(source, syntax, zone).unwrap();
        template.render(vec![("lead", lead_value(&fields(pairs))), ("lead_id", Value::from("17"))])
    }

    #[test]
    fn f55_a_value_cannot_leave_its_place() {
        let evil = "x\", \"price\": \"0\\\r\n<b>&'\u{1}";
        let pairs = [("first_name", text(evil))];
        let json = render(r#"{"name": "{{ lead.first_name }}", "id": "{{ lead_id }}"}"#, Syntax::Json, &pairs).unwrap();
        assert_eq!(json, r#"{"name": "x\", \"price\": \"0\\\r\n<b>&'\u0001", "id": "17"}"#);
        let xml = render("<l n='{{ lead.first_name }}'>{{ lead.FirstName }}</l>", Syntax::Xml, &pairs).unwrap();
        let written = "x&quot;, &quot;price&quot;: &quot;0\\&#13;\n&lt;b&gt;&amp;&apos;";
        assert_eq!(xml, format!("<l n='{written}'>{written}</l>"));
        let form =
            render("a={{ lead.first_name }}&\n  b=1", Syntax::Form, &[("first_name", text("1&b=2\r\n%"))]).unwrap();
        assert_eq!(form, "a=1%26b%3D2%0D%0A%25&b=1");
        // Without the quotes, a value can at worst make what no buyer gets.
        let bare = |value: &str| render("{\"a\": {{ lead.a }}}", Syntax::Json, &[("a", text(value))]);
        assert_eq!(bare("12.50").as_deref(), Ok("{\"a\": 12.50}"));
        assert_eq!(bare("1, \"b\": 2"), Err(RenderError::Malformed));
        assert_eq!(bare(""), Err(RenderError::Malformed));
    }

    #[test]
    fn values_are_written_as_they_came() {
        let pairs = [
            ("big", FieldValue::Number("18446744073709551616".into())),
            ("sum", FieldValue::Number("100.10".into())),
            ("owner", FieldValue::Bool(true)),
            ("none", FieldValue::Null),
            ("tags", FieldValue::Nested(r#"{"b":1.0, "a":["x"]}"#.into())),
            ("phone", text("+1 (201) 555-0123")),
            ("zip", text("07030")),
            ("born", text("1980-05-17")),
            ("at", text("2026-03-08T03:30:00Z")),
        ];
        for (source, expected) in [
            ("[{{ lead.big }}, {{ lead.sum }}, {{ lead.owner }}]", "[18446744073709551616, 100.10, true]"),
            ("[{{ lead.none|json }}, {{ lead.missing|json }}, {{ lead.owner|json }}]", "[null, null, true]"),
            (
                r#"{"t": {{ lead.tags|json }}, "s": "{{ lead.tags }}"}"#,
                r#"{"t": {"b":1.0, "a":["x"]}, "s": "{\"b\":1.0, \"a\":[\"x\"]}"}"#,
            ),
            (r#"["{{ lead.none }}", "{{ lead.missing.more }}", {{ lead.zip|json }}]"#, r#"["", "", "07030"]"#),
            (r#""{{ lead.phone|digits }} {{ lead.postal_code }}""#, r#""12015550123 07030""#),
            (
                r#""{{ lead.born|date('%m/%d/%Y') }} {{ lead.at|date('%m/%d/%Y %H:%M') }}""#,
                r#""05/17/1980 03/07/2026 22:30""#,
            ),
            (r#""{{ lead.zip|date('%Y') }}{{ lead.missing|default('-') }}""#, r#""07030-""#),
            (
                r#"{"all": [{% for name in lead %}"{{ name }}"{% if not loop.last %},{% endif %}{% endfor %}]}"#,
                r#"{"all": ["big","sum","owner","none","tags","phone","zip","born","at"]}"#,
            ),
            ("{% if lead.sum|float > 100 %}1{% else %}0{% endif %}", "1"),
        ] {
            assert_eq!(render(source, Syntax::Json, &pairs).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn p7_output_and_work_are_bounded() {
        let long = [("a", text(&"x".repeat(60_000)))];
        let repeated = |times: usize| format!("\"{{% for i in range({times}) %}}{{{{ lead.a }}}}{{% endfor %}}\"");
        assert!(render(&repeated(4), Syntax::Json, &long).is_ok());
        assert_eq!(render(&repeated(5), Syntax::Json, &long), Err(RenderError::TooLarge));
        let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}1";
        assert_eq!(render(loops, Syntax::Json, &[]), Err(RenderError::TooLarge));
    }

    #[test]
    fn templates_that_are_none_are_refused_with_their_line() {
        let compile = |source: &str| Template::compile(source, Syntax::Json, TimeZone::UTC).map(|_| ());
        assert_eq!(compile("{\n\n{{ lead.a }").unwrap_err().line, Some(3));
        assert!(compile("{% include 'x' %}").is_err());
        for source in ["{{ lead.a|safe }}", "{{ lead.a|nosuch }}"] {
            let template = Template::compile(source, Syntax::Json, TimeZone::UTC);
            let refused = template.map(|template| template.rehearse(vec![("lead", lead_value(&fields(&[])))]));
            assert!(!matches!(refused, Ok(Ok(()))), "{source}");
        }
        let source = "{{ lead.a }}{{ price }}{% set x = 1 %}{{ x }}{{ range(3) }}{{ secrets.key|upper }}";
        let template = Template::compile(source, Syntax::Json, TimeZone::UTC).unwrap();
        assert_eq!(template.names().into_iter().collect::<Vec<_>>(), ["lead.a", "price", "secrets.key"]);
    }
}
