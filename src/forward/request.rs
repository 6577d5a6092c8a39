//! How a lead is written for a buyer.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use crate::domain::lead::{FieldValue, Lead, write_json_string};
use crate::domain::routing::{BodyFormat, FieldSource, RequestShape};

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

/// A configured header that HTTP cannot carry. The configuration refuses these, so this is a bug.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configured header {0} cannot be sent")]
pub struct IllegalHeader(pub HeaderName);

/// The body: the mapped fields, or all fields and the lead's id. A field that the lead does not have is left out; numbers
/// keep their digits (F55).
#[must_use]
pub fn body(shape: &RequestShape, lead: &Lead) -> Bytes {
    let id = FieldValue::Text(lead.id.to_string().into());
    let campaign = FieldValue::Text(lead.campaign.as_str().into());
    let publisher = FieldValue::Text(lead.publisher.as_str().into());
    let parts: Vec<(&str, &FieldValue)> = match &shape.fields {
        Some(mapping) => mapping
            .iter()
            .filter_map(|(name, source)| {
                let value = match source {
                    FieldSource::Field(field) => lead.fields.get(field)?,
                    FieldSource::LeadId => &id,
                    FieldSource::CampaignId => &campaign,
                    FieldSource::PublisherId => &publisher,
                };
                Some((name.as_str(), value))
            })
            .collect(),
        // A publisher's own field of that name would make two ids of one.
        None => lead
            .fields
            .iter()
            .filter(|(name, _)| !name.eq_ignore_ascii_case("lead_id"))
            .chain([("lead_id", &id)])
            .collect(),
    };
    match shape.format {
        BodyFormat::Json => json(&parts),
        BodyFormat::Form => form(&parts),
    }
}

fn json(parts: &[(&str, &FieldValue)]) -> Bytes {
    let mut out = Vec::with_capacity(64 * parts.len() + 2);
    out.push(b'{');
    for (index, (name, value)) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json_string(name, &mut out);
        out.push(b':');
        value.write_json(&mut out);
    }
    out.push(b'}');
    out.into()
}

fn form(parts: &[(&str, &FieldValue)]) -> Bytes {
    let mut form = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parts {
        let text = match value {
            FieldValue::Nested(json) => json,
            // A form has no word for null; empty is what comes nearest.
            other => other.as_text().unwrap_or(""),
        };
        form.append_pair(name, text);
    }
    form.finish().into()
}

/// The headers: configured ones, then ours, which win; with a signature over `body` where the buyer wants one. Those that frame the message are left to the client, which alone
/// knows what it writes.
///
/// # Errors
/// [`IllegalHeader`] names the header, never its value.
pub fn headers(shape: &RequestShape, lead: &Lead, body: &[u8], now: Timestamp) -> Result<HeaderMap, IllegalHeader> {
    let mut headers = HeaderMap::with_capacity(shape.headers.len() + 6);
    for (name, secret) in &shape.headers {
        if [CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE].contains(name) {
            continue;
        }
        let mut value = HeaderValue::from_str(secret.expose()).map_err(|_| IllegalHeader(name.clone()))?;
        value.set_sensitive(true);
        headers.append(name.clone(), value);
    }
    // Cannot fail because an id is hexadecimal digits and hyphens.
    let id = HeaderValue::from_str(&lead.id.to_string()).map_err(|_| IllegalHeader(LEAD_ID))?;
    headers.insert(IDEMPOTENCY_KEY, id.clone());
    if let Some(key) = &shape.signing {
        let unix_s = now.as_second();
        let signature = key.sign(&lead.id.to_string(), unix_s, body);
        headers.insert(WEBHOOK_ID, id.clone());
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_s));
        // Cannot fail because a signature is base64.
        let signature = HeaderValue::from_str(&signature).map_err(|_| IllegalHeader(WEBHOOK_SIGNATURE))?;
        headers.insert(WEBHOOK_SIGNATURE, signature);
    }
    headers.insert(LEAD_ID, id);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static(match shape.format {
            BodyFormat::Json => "application/json",
            BodyFormat::Form => "application/x-www-form-urlencoded",
        }),
    );
    Ok(headers)
}
