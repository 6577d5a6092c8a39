//! How a lead is written for a buyer.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use minijinja::Value;
use reqwest::{Method, Url};

use crate::domain::lead::{FieldValue, Lead, write_json_string};
use crate::domain::money::{Currency, Micros};
use crate::domain::phone;
use crate::domain::routing::{BodyFormat, Buyer, Content, FieldPart, FieldSource, RequestShape, Secret};
use crate::domain::template::{RenderError, lead_value};
use crate::domain::xml;

/// The buyer can tell a repeat from a new lead by it (P4).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The same id under our own name.
pub const LEAD_ID: HeaderName = HeaderName::from_static("capgate-lead-id");

/// Standard Webhooks: which message, when it was signed, and the signature.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// See [`WEBHOOK_ID`].
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// See [`WEBHOOK_ID`].
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Longest URL. Servers in common use refuse longer ones, and some cut them.
pub const URL_BYTES_MAX: usize = 8_000;
/// Stands where a secret is not shown.
pub const MASK: &str = "***";

/// Why a lead cannot be written for a buyer. Values are never part of it (P9).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// A configured header that HTTP cannot carry. The configuration refuses these, so this is a bug.
    #[error("the configured header {0} cannot be sent")]
    IllegalHeader(HeaderName),
    /// The template makes nothing that the buyer could read of this lead.
    #[error("the template does not fit this lead")]
    IllegalBody,
    /// The template makes too much of this lead.
    #[error("the template makes too much of this lead")]
    BodyTooLarge,
    /// Too many or too long fields for a GET.
    #[error("the lead is too long for a URL")]
    UrlTooLong,
}

impl BadMessage {
    /// The fixed word in attempts.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::IllegalHeader(_) => "illegal_header",
            Self::IllegalBody => "illegal_body",
            Self::BodyTooLarge => "body_too_large",
            Self::UrlTooLong => "url_too_long",
        }
    }
}

impl From<RenderError> for BadMessage {
    fn from(error: RenderError) -> Self {
        match error {
            RenderError::TooLarge => Self::BodyTooLarge,
            RenderError::Malformed => Self::IllegalBody,
        }
    }
}

/// What is written: a lead, and what the offer asks for it.
#[derive(Debug, Clone, Copy)]
pub struct Offered<'a> {
    /// The lead.
    pub lead: &'a Lead,
    /// The campaign's, for phones.
    pub country: &'a str,
    /// The offer's price.
    pub price: Micros,
    /// Of the price.
    pub currency: Currency,
}

/// Are secrets written, or a [`MASK`] in their place? The mask is for people who look at a request, never for a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// Written.
    Sent,
    /// Masked.
    Masked,
}

impl Secrets {
    fn text(self, secret: &Secret) -> &str {
        match self {
            Self::Sent => secret.expose(),
            Self::Masked => MASK,
        }
    }
}

/// POST, or GET where the buyer wants the lead in its URL.
#[must_use]
pub fn method(shape: &RequestShape) -> Method {
    if shape.format == BodyFormat::Query { Method::GET } else { Method::POST }
}

/// Where the lead goes: the buyer's URL, the configured query, and for a GET the lead itself.
///
/// # Errors
/// [`BadMessage`]
pub fn url(buyer: &Buyer, offered: &Offered<'_>, secrets: Secrets) -> Result<Url, BadMessage> {
    let shape = &buyer.request;
    let mut url = buyer.url.clone();
    if secrets == Secrets::Masked && url.query().is_some() {
        // Some buyers put their key there.
        let names: Vec<String> = url.query_pairs().map(|(name, _)| name.into_owned()).collect();
        url.query_pairs_mut().clear().extend_pairs(names.iter().map(|name| (name, MASK)));
    }
    if !shape.query.is_empty() {
        let pairs = shape.query.iter().map(|(name, secret)| (name, secrets.text(secret)));
        url.query_pairs_mut().extend_pairs(pairs);
    }
    if shape.format == BodyFormat::Query {
        let lead = write(shape, offered, secrets)?;
        let before = url.query().filter(|query| !query.is_empty()).map(|query| format!("{query}&"));
        if !lead.is_empty() {
            url.set_query(Some(&format!("{}{lead}", before.unwrap_or_default())));
        }
    }
    if url.as_str().len() > URL_BYTES_MAX { Err(BadMessage::UrlTooLong) } else { Ok(url) }
}

/// The body: the mapped fields, all fields and the lead's id, or what the template makes. A field that the lead does not
/// have is left out; numbers keep their digits (F55). Empty for a GET.
///
/// # Errors
/// [`BadMessage`]; only templates fail.
pub fn body(shape: &RequestShape, offered: &Offered<'_>, secrets: Secrets) -> Result<Bytes, BadMessage> {
    if shape.format == BodyFormat::Query {
        return Ok(Bytes::new());
    }
    write(shape, offered, secrets).map(Bytes::from)
}

fn write(shape: &RequestShape, offered: &Offered<'_>, secrets: Secrets) -> Result<String, BadMessage> {
    let written = match &shape.content {
        Content::AllFields => {
            let fields = offered.lead.fields.iter();
            // A publisher's own field of that name would make two ids of one.
            let fields = fields.filter(|(name, _)| !name.eq_ignore_ascii_case("lead_id"));
            let parts = fields.map(|(name, value)| Part::Value(name, Cow::Borrowed(value)));
            parts.chain([Part::Value("lead_id", Cow::Owned(text(&offered.lead.id)))]).collect()
        }
        Content::Fields(parts) => resolve(parts, offered, secrets),
        Content::Template(template) => return Ok(template.render(values(shape, offered, secrets))?),
    };
    Ok(match shape.format {
        BodyFormat::Json => {
            let mut out = Vec::with_capacity(64 * written.len() + 2);
            write_json(&written, &mut out);
            // Cannot fail because every part written is UTF-8.
            String::from_utf8(out).unwrap_or_default()
        }
        BodyFormat::Xml => {
            let root = shape.xml_root.as_deref().unwrap_or("lead");
            let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
            write_element(root, |out| write_xml(&written, out), &mut out);
            out
        }
        BodyFormat::Form | BodyFormat::Query => {
            let mut form = form_urlencoded::Serializer::new(String::new());
            for part in &written {
                if let Part::Value(name, value) = part {
                    form.append_pair(name, plain(value));
                }
            }
            form.finish()
        }
    })
}

/// What a template may name, beside the fields of the lead.
fn values(shape: &RequestShape, offered: &Offered<'_>, secrets: Secrets) -> Vec<(&'static str, Value)> {
    let Offered { lead, price, currency, .. } = offered;
    let known = shape.secrets.iter().map(|(name, secret)| (name.as_str(), secrets.text(secret)));
    vec![
        ("lead", lead_value(&lead.fields)),
        ("secrets", Value::from_pairs(known)),
        ("lead_id", Value::from(lead.id.to_string())),
        ("campaign_id", Value::from(lead.campaign.as_str())),
        ("publisher_id", Value::from(lead.publisher.as_str())),
        ("phone_e164", Value::from(phone_e164(offered).unwrap_or_default())),
        ("price", Value::from(price.to_string())),
        ("currency", Value::from(currency.as_str())),
        ("received_at", Value::from(lead.received_at.to_string())),
        ("test", Value::from(lead.is_test)),
    ]
}

/// A name and what stands there for this lead.
enum Part<'a> {
    Value(&'a str, Cow<'a, FieldValue>),
    Group(&'a str, Vec<Part<'a>>),
}

fn resolve<'a>(parts: &'a [FieldPart], offered: &'a Offered<'_>, secrets: Secrets) -> Vec<Part<'a>> {
    let part = |part: &'a FieldPart| match part {
        FieldPart::Value(name, source) => Some(Part::Value(name, value(source, offered, secrets)?)),
        FieldPart::Group(name, parts) => Some(Part::Group(name, resolve(parts, offered, secrets))),
    };
    parts.iter().filter_map(part).collect()
}

fn value<'a>(source: &'a FieldSource, offered: &'a Offered<'_>, secrets: Secrets) -> Option<Cow<'a, FieldValue>> {
    let lead = offered.lead;
    Some(Cow::Owned(match source {
        FieldSource::Field(field) => return lead.fields.get(field).map(Cow::Borrowed),
        FieldSource::Constant(value) => return Some(Cow::Borrowed(value)),
        FieldSource::Secret(secret) => FieldValue::Text(secrets.text(secret).into()),
        FieldSource::LeadId => text(&lead.id),
        FieldSource::CampaignId => text(&lead.campaign),
        FieldSource::PublisherId => text(&lead.publisher),
        FieldSource::PhoneE164 => FieldValue::Text(phone_e164(offered)?.into()),
        FieldSource::Price => FieldValue::Number(offered.price.to_string().into()),
        FieldSource::Currency => text(&offered.currency),
        FieldSource::ReceivedAt => text(&lead.received_at),
        FieldSource::Test if lead.is_test => FieldValue::Number("1".into()),
        FieldSource::Test => return None,
    }))
}

fn phone_e164(offered: &Offered<'_>) -> Option<String> {
    phone::e164(offered.lead.text(phone::PHONE)?, offered.country)
}

fn text(value: &impl ToString) -> FieldValue {
    FieldValue::Text(value.to_string().into())
}

/// A value outside JSON. There is no word for null; empty is what comes nearest.
fn plain(value: &FieldValue) -> &str {
    match value {
        FieldValue::Nested(json) => json,
        other => other.as_text().unwrap_or(""),
    }
}

fn write_json(parts: &[Part<'_>], out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let (Part::Value(name, _) | Part::Group(name, _)) = part;
        write_json_string(name, out);
        out.push(b':');
        match part {
            Part::Value(_, value) => value.write_json(out),
            Part::Group(_, parts) => write_json(parts, out),
        }
    }
    out.push(b'}');
}

fn write_xml(parts: &[Part<'_>], out: &mut String) {
    for part in parts {
        match part {
            Part::Value(name, value) => write_element(name, |out| xml::write_text(plain(value), out), out),
            Part::Group(name, parts) => write_element(name, |out| write_xml(parts, out), out),
        }
    }
}

fn write_element(name: &str, content: impl FnOnce(&mut String), out: &mut String) {
    // The names of all fields of a lead are the publisher's.
    let name = xml::as_name(name);
    out.extend(["<", &name, ">"]);
    content(out);
    out.extend(["</", &name, ">"]);
}

/// The headers: configured ones, then ours, which win; with a signature over `body` where the buyer wants one. Those that
/// frame the message are left to the client, which alone knows what it writes. No value of a lead but its id is ever in
/// one (F55).
///
/// # Errors
/// [`BadMessage::IllegalHeader`] names the header, never its value.
pub fn headers(shape: &RequestShape, lead: &Lead, body: &[u8], now: Timestamp) -> Result<HeaderMap, BadMessage> {
    let mut headers = HeaderMap::with_capacity(shape.headers.len() + 6);
    for (name, secret) in &shape.headers {
        if [CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE].contains(name) {
            continue;
        }
        let mut value = HeaderValue::from_str(secret.expose()).map_err(|_| BadMessage::IllegalHeader(name.clone()))?;
        value.set_sensitive(true);
        headers.append(name.clone(), value);
    }
    // Cannot fail because an id is hexadecimal digits and hyphens.
    let id = HeaderValue::from_str(&lead.id.to_string()).map_err(|_| BadMessage::IllegalHeader(LEAD_ID))?;
    headers.insert(IDEMPOTENCY_KEY, id.clone());
    if let Some(key) = &shape.signing {
        let unix_s = now.as_second();
        let signature = key.sign(&lead.id.to_string(), unix_s, body);
        headers.insert(WEBHOOK_ID, id.clone());
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_s));
        // Cannot fail because a signature is base64.
        let signature = HeaderValue::from_str(&signature).map_err(|_| BadMessage::IllegalHeader(WEBHOOK_SIGNATURE))?;
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(LEAD_ID, id);
    let own = match shape.format {
        BodyFormat::Json => Some("application/json"),
        BodyFormat::Form => Some("application/x-www-form-urlencoded"),
        BodyFormat::Xml => Some("application/xml"),
        BodyFormat::Query => None,
    };
    match (&shape.content_type, own) {
        (Some(value), _) => drop(headers.insert(CONTENT_TYPE, value.clone())),
        (None, Some(own)) => drop(headers.insert(CONTENT_TYPE, HeaderValue::from_static(own))),
        (None, None) => drop(headers.remove(CONTENT_TYPE)),
    }
    Ok(headers)
}
