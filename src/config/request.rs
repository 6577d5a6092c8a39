//! `[buyer.request]`: how a lead is written for a buyer.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jiff::tz::TimeZone;
use minijinja::Value;

use super::item::{Item, Reader, nearest, warn_of_misspelling};
use super::publisher::signing_key;
use super::secret::is_reference;
use super::tree;
use crate::domain::lead::{FieldValue, Fields};
use crate::domain::routing::{BodyFormat, Content, FieldPart, FieldSource, RequestShape, Secret};
use crate::domain::template::{BadTemplate, Syntax, Template, lead_value};
use crate::domain::{field, xml};

/// Headers that the HTTP client or the gateway itself decides about; a second opinion would smuggle or confuse (F55, F63).
const OURS: [&str; 17] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-connection",
    "content-type",
    "accept-encoding",
    "idempotency-key",
    "capgate-lead-id",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

/// Names that a template may ask for, beside `lead.NAME` and `secrets.NAME`.
const TEMPLATE_NAMES: [&str; 10] = [
    "lead",
    "secrets",
    "lead_id",
    "campaign_id",
    "publisher_id",
    "phone_e164",
    "price",
    "currency",
    "received_at",
    "test",
];
/// Longest template.
const TEMPLATE_BYTES_MAX: usize = 64 * 1024;
/// Deepest groups of fields.
const GROUPS_MAX: usize = 8;

/// `None` when something is wrong with it. `timezone` is the one that a template writes dates in.
pub(super) fn read(table: Option<Reader<'_>>, timezone: Option<&TimeZone>) -> Option<RequestShape> {
    let Some(reader) = table else { return Some(RequestShape::default()) };
    let format = reader.item("format").map_or(Some(BodyFormat::Json), |item| format(&item));
    if let Some(item) = reader.item("method") {
        item.fail(
            "the format decides: a query is sent by GET, everything else by POST",
            "format = \"query\" for a GET",
        );
    }
    let headers = reader.table("headers").map_or(Some(Vec::new()), |table| headers(&table));
    let basic = reader.table("basic").map(basic);
    let query = reader.table("query").map_or(Some(Vec::new()), |table| query(&table));
    let content_type = reader.item("content_type").map(|item| content_type(&item));
    let xml_root = reader.item("root").map(|item| xml_root(&item, format));
    let secrets = reader.table("secrets").map_or(Some(Vec::new()), |table| secrets(&table));
    let syntax = format.unwrap_or(BodyFormat::Json);
    let fields = reader.table("fields").map(|table| Content::Fields(fields(&table, syntax, 1)));
    let names = secrets.as_deref().unwrap_or_default();
    let template = template(&reader, syntax, names, timezone.unwrap_or(&TimeZone::UTC));
    if fields.is_some() && template.is_some() {
        reader.fail("template", "stands beside fields", "either fields or a template");
    }
    if secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()) && template.is_none() {
        reader.fail(
            "secrets",
            "are for a template, and there is none",
            "fields = { key = \"env:NAME\" }, or a template",
        );
    }
    let signing = reader.item("signing_secret").map(signing_key);
    if signing.is_some() && format == Some(BodyFormat::Query) {
        reader.fail("signing_secret", "signs a body, and a query has none", "another format, or no signature");
    }
    let has_authorization = headers.iter().flatten().any(|(name, _)| name == AUTHORIZATION);
    if basic.is_some() && has_authorization {
        reader.fail("basic", "stands beside an Authorization header", "one of the two");
    }
    reader.finish();

    let mut headers = headers?;
    if let Some(basic) = basic {
        headers.push((AUTHORIZATION, basic?));
    }
    Some(RequestShape {
        format: format?,
        content_type: content_type.map_or(Some(None), |value| value.map(Some))?,
        headers,
        query: query?,
        // A secret that is wrong must never mean an unsigned forward.
        signing: signing.map_or(Some(None), |key| key.map(Some))?,
        content: match template {
            Some(template) => Content::Template(template.ok()?),
            None => fields.unwrap_or_default(),
        },
        secrets: secrets?,
        xml_root: xml_root.map_or(Some(None), |name| name.map(Some))?,
    })
}

fn format(item: &Item<'_>) -> Option<BodyFormat> {
    item.choice(&[
        ("json", BodyFormat::Json),
        ("form", BodyFormat::Form),
        ("xml", BodyFormat::Xml),
        ("query", BodyFormat::Query),
    ])
}

fn content_type(item: &Item<'_>) -> Option<HeaderValue> {
    let value = item.word()?;
    let is_type = value
        .split(';')
        .next()
        .is_some_and(|essence| essence.trim().split('/').filter(|part| !part.is_empty()).count() == 2);
    match HeaderValue::from_str(value) {
        Ok(value) if is_type => Some(value),
        _ => {
            item.fail("is not a content type", "for example \"text/xml; charset=utf-8\"");
            None
        }
    }
}

fn xml_root(item: &Item<'_>, format: Option<BodyFormat>) -> Option<String> {
    let name = item.word()?;
    if format.is_some_and(|format| format != BodyFormat::Xml) {
        item.fail("is for XML only", "format = \"xml\", or leave it out");
    }
    if !xml::is_name(name) {
        item.fail("is not the name of an XML element", "letters, digits and _ - . with a letter first");
        return None;
    }
    Some(name.to_owned())
}

/// `{ user = "...", password = "env:..." }` becomes one header.
fn basic(reader: Reader<'_>) -> Option<Secret> {
    let user = reader.required("user", "the user's name").and_then(|item| item.secret().secret_text());
    if user.as_ref().is_some_and(|user| user.expose().contains(':')) {
        reader.fail("user", "holds a colon, which would end the name", "a name without one");
    }
    let password = reader.required("password", "\"env:NAME\" or \"file:PATH\"");
    let password = password.and_then(|item| item.secret().secret_text());
    reader.finish();
    let pair = format!("{}:{}", user?.expose(), password?.expose());
    Some(Secret::new(&format!("Basic {}", STANDARD.encode(pair))))
}

fn query(reader: &Reader<'_>) -> Option<Vec<(String, Secret)>> {
    let pair = |(name, item): (&str, Item<'_>)| Some((name.to_owned(), item.secret().secret_text()?));
    reader.all().into_iter().map(pair).collect::<Vec<_>>().into_iter().collect()
}

fn secrets(reader: &Reader<'_>) -> Option<Vec<(String, Secret)>> {
    let pair = |(name, item): (&str, Item<'_>)| {
        let item = item.secret();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            item.fail("is not a name that a template can use", "letters, digits and _");
            return None;
        }
        Some((name.to_owned(), item.secret_text()?))
    };
    reader.all().into_iter().map(pair).collect::<Vec<_>>().into_iter().collect()
}

/// It is wrong, and that was said.
struct Refused;

/// `template` or `template_file`, if there is one.
fn template(
    reader: &Reader<'_>,
    format: BodyFormat,
    secrets: &[(String, Secret)],
    timezone: &TimeZone,
) -> Option<Result<Arc<Template>, Refused>> {
    let (inline, file) = (reader.item("template"), reader.item("template_file"));
    if let (Some(_), Some(item)) = (&inline, &file) {
        item.fail("stands beside template", "one of the two");
    }
    let (item, source) = match (inline, file) {
        (None, None) => return None,
        (Some(item), _) => {
            let source = item.word().map(str::to_owned);
            (item, source)
        }
        (None, Some(item)) => {
            let source = item.word().and_then(|path| match tree::read_file(&item.path(path)) {
                Ok(text) => Some(text),
                Err(problem) => {
                    item.fail(problem.wrong, "a file beside this one");
                    None
                }
            });
            (item, source)
        }
    };
    let Some(source) = source else { return Some(Err(Refused)) };
    if source.len() > TEMPLATE_BYTES_MAX {
        item.fail("is longer than 64 KiB", "a shorter template");
        return Some(Err(Refused));
    }
    let syntax = match format {
        BodyFormat::Json => Syntax::Json,
        BodyFormat::Xml => Syntax::Xml,
        BodyFormat::Form | BodyFormat::Query => Syntax::Form,
    };
    let fail = |error: BadTemplate| {
        let line = error.line.map(|line| format!(" in its line {line}")).unwrap_or_default();
        item.fail(
            format!("is not a good template{line}: {}", error.wrong),
            "for example {\"zip\": \"{{ lead.zip }}\"}",
        );
    };
    let compiled = match Template::compile(&source, syntax, timezone.clone()) {
        Ok(compiled) => compiled,
        Err(error) => {
            fail(error);
            return Some(Err(Refused));
        }
    };
    let names = compiled.names();
    let mut is_good = true;
    for name in &names {
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        if !TEMPLATE_NAMES.contains(&first) {
            let near = nearest(first, TEMPLATE_NAMES.into_iter());
            let right = near.map_or_else(
                || format!("lead.{first}, if it is a field of the lead; else one of {}", TEMPLATE_NAMES.join(", ")),
                str::to_owned,
            );
            item.fail(format!("asks for {name:?}, which there is not"), right);
            is_good = false;
        } else if first == "secrets" && !rest.is_empty() && secrets.iter().all(|(known, _)| known != rest) {
            item.fail(
                format!("asks for {name:?}, which there is not"),
                format!("secrets = {{ {rest} = \"env:NAME\" }}"),
            );
            is_good = false;
        }
    }
    if let Some(error) = is_good.then(|| rehearse(&compiled, &names)).and_then(Result::err) {
        fail(error);
        is_good = false;
    }
    Some(if is_good { Ok(Arc::new(compiled)) } else { Err(Refused) })
}

/// Writes a lead that has every field it is asked for.
fn rehearse(template: &Template, names: &BTreeSet<String>) -> Result<(), BadTemplate> {
    let known = |prefix: &'static str| {
        names
            .iter()
            .filter_map(move |name| name.strip_prefix(prefix))
            .map(|rest| rest.split('.').next().unwrap_or(rest))
    };
    let one = |name: &str| (Arc::from(name), FieldValue::Number("1".into()));
    let fields = Fields::new(known("lead.").map(one).collect());
    let secrets = Value::from_pairs(known("secrets.").map(|name| (name, "1")));
    let mut values = vec![("lead", lead_value(&fields)), ("secrets", secrets), ("test", Value::from(true))];
    let texts = TEMPLATE_NAMES.into_iter().filter(|name| !["lead", "secrets", "test"].contains(name));
    values.extend(texts.map(|name| (name, Value::from("1"))));
    template.rehearse(values)
}

fn headers(reader: &Reader<'_>) -> Option<Vec<(HeaderName, Secret)>> {
    let mut seen = HashSet::new();
    let header = |(name, item): (&str, Item<'_>)| {
        let item = item.secret();
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            item.fail("is not a header name", "letters, digits and hyphens");
            return None;
        };
        if OURS.contains(&name.as_str()) {
            item.fail("is set by the gateway", "another header");
            return None;
        }
        if !seen.insert(name.clone()) {
            item.fail("stands twice", "each header once, whatever its case");
            return None;
        }
        let value = item.secret_text()?;
        if HeaderValue::from_str(value.expose()).is_err() {
            item.fail("holds characters that a header cannot carry", "visible ASCII and spaces, no line breaks");
            return None;
        }
        Some((name, value))
    };
    reader.all().into_iter().map(header).collect::<Vec<_>>().into_iter().collect()
}

/// In file order: some buyers read forms by position.
fn fields(reader: &Reader<'_>, format: BodyFormat, depth: usize) -> Vec<FieldPart> {
    let fields = reader.all();
    if fields.is_empty() {
        reader.fail("", "names no field, so the buyer would get an empty body", "at least one field, or leave it out");
    }
    let has_groups = matches!(format, BodyFormat::Json | BodyFormat::Xml);
    let part = |(name, item): (&str, Item<'_>)| {
        if name.trim().is_empty() {
            item.fail("the name at the buyer is empty", "a name");
        } else if format == BodyFormat::Xml && !xml::is_name(name) {
            item.fail("is not the name of an XML element", "letters, digits and _ - . with a letter first");
        }
        if !item.is_table() {
            return Some(FieldPart::Value(name.to_owned(), source(item)?));
        }
        if !has_groups || depth >= GROUPS_MAX {
            let wrong = if has_groups { "is nested too deep" } else { "is a group, and a form is flat" };
            item.fail(wrong, "\"the name of a field\"");
            return None;
        }
        Some(FieldPart::Group(name.to_owned(), self::fields(&item.table()?, format, depth + 1)))
    };
    fields.into_iter().filter_map(part).collect()
}

/// `"name of a field"`, `"$what the gateway knows"`, `"=text"`, a number, true or false, `"env:NAME"`, `"file:PATH"`.
fn source(item: Item<'_>) -> Option<FieldSource> {
    if let Some(constant) = item.constant() {
        return Some(FieldSource::Constant(constant));
    }
    let text = item.word()?;
    if let Some(constant) = text.strip_prefix('=') {
        return Some(FieldSource::Constant(FieldValue::Text(constant.into())));
    }
    if is_reference(text) {
        return item.secret().secret_text().map(FieldSource::Secret);
    }
    let known = [
        ("$lead_id", FieldSource::LeadId),
        ("$campaign_id", FieldSource::CampaignId),
        ("$publisher_id", FieldSource::PublisherId),
        ("$phone_e164", FieldSource::PhoneE164),
        ("$price", FieldSource::Price),
        ("$currency", FieldSource::Currency),
        ("$received_at", FieldSource::ReceivedAt),
        ("$test", FieldSource::Test),
    ];
    let text = text.trim();
    if !text.starts_with('$') {
        warn_of_misspelling(&item, text);
        return Some(FieldSource::Field(field::canonical(text)));
    }
    let words = known.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" | ");
    let found = known.into_iter().find(|(word, _)| *word == text).map(|(_, source)| source);
    if found.is_none() {
        item.fail("is not a known source", format!("{words} | the name of a field | =text"));
    }
    found
}
