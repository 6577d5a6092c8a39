//! `[buyer.request]`: how a lead is written for a buyer.

use std::collections::HashSet;

use http::{HeaderName, HeaderValue};

use super::item::{Item, Reader};
use super::publisher::signing_key;
use crate::domain::field;
use crate::domain::routing::{BodyFormat, FieldSource, RequestShape, Secret};

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

/// `None` when something is wrong with it.
pub(super) fn read(table: Option<Reader<'_>>) -> Option<RequestShape> {
    let Some(reader) = table else {
        return Some(RequestShape { format: BodyFormat::Json, headers: Vec::new(), signing: None, fields: None });
    };
    let format = reader.item("format").map_or(Some(BodyFormat::Json), |item| format(&item));
    let headers = reader.table("headers").map_or(Some(Vec::new()), |table| headers(&table));
    let fields = reader.table("fields").map(|table| fields(&table));
    let signing = reader.item("signing_secret").map(signing_key);
    reader.finish();
    // A secret that is wrong must never mean an unsigned forward.
    let signing = signing.map_or(Some(None), |key| key.map(Some))?;
    Some(RequestShape { format: format?, headers: headers?, signing, fields })
}

fn format(item: &Item<'_>) -> Option<BodyFormat> {
    let text = item.text()?;
    if matches!(text.to_ascii_lowercase().as_str(), "xml" | "get" | "query") {
        item.fail("not available yet", "json | form");
        return None;
    }
    item.choice(&[("json", BodyFormat::Json), ("form", BodyFormat::Form)])
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
fn fields(reader: &Reader<'_>) -> Vec<(String, FieldSource)> {
    let fields = reader.all();
    if fields.is_empty() {
        reader.fail("", "names no field, so the buyer would get an empty body", "at least one field, or leave it out");
    }
    let field = |(name, item): (&str, Item<'_>)| {
        if name.trim().is_empty() {
            item.fail("the name at the buyer is empty", "a name");
        }
        let source = match item.word()?.trim() {
            "$lead_id" => FieldSource::LeadId,
            "$campaign_id" => FieldSource::CampaignId,
            "$publisher_id" => FieldSource::PublisherId,
            other if other.starts_with('$') => {
                item.fail("is not a known source", "$lead_id | $campaign_id | $publisher_id | the name of a field");
                return None;
            }
            other => FieldSource::Field(field::canonical(other)),
        };
        Some((name.to_owned(), source))
    };
    fields.into_iter().filter_map(field).collect()
}
