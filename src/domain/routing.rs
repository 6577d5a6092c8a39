//! The checked routing: who may send, who may buy, at what price. Built by `config`, read by every step; immutable once
//! built, so that a lead keeps the version it started with.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::address::AddressRange;
use super::cap::Cap;
use super::id::{BuyerId, CampaignId, PublisherId};
use super::lead::FieldValue;
use super::money::{Currency, Micros, Payout};
use super::person::DuplicateRule;
use super::signature::SigningKey;
use super::template::Template;

/// One whole routing file, checked.
#[derive(Debug)]
pub struct Routing {
    /// Rises with each change; goes with every take, so that an older gateway is refused as stale.
    pub version: u64,
    /// By id.
    pub publishers: HashMap<PublisherId, Arc<Publisher>>,
    /// By id.
    pub buyers: HashMap<BuyerId, Arc<Buyer>>,
    /// By id.
    pub campaigns: HashMap<CampaignId, Arc<Campaign>>,
}

/// SHA-256 of an API key. The key itself is never kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// A secret value from the configuration; its text is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps a secret.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The text itself, for the one place that sends or compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Request rate that a publisher may use at this gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Steady rate.
    pub per_second: u32,
    /// Most at once.
    pub burst: u32,
}

/// Who sends leads.
#[derive(Debug)]
pub struct Publisher {
    /// Its name.
    pub id: PublisherId,
    /// Keys in force.
    pub keys: Vec<KeyHash>,
    /// Absent: it may send from anywhere. Otherwise its connections come from one of these.
    pub addresses: Option<Vec<AddressRange>>,
    /// Absent: not throttled.
    pub throttle: Option<Throttle>,
    /// Its part of a sale.
    pub payout: Payout,
    /// Absent: all.
    pub campaigns: Option<Vec<CampaignId>>,
    /// Longest wait it may ask for with `Prefer: wait=N`.
    pub wait_max: Option<Duration>,
    /// Present: each POST must carry a Standard Webhooks signature.
    pub signing: Option<SigningKey>,
    /// Canonical field names and the pointers that find them in a JSON body; empty for flat bodies.
    pub mapping: Vec<(Arc<str>, String)>,
    /// Present: it is told the verdict on each of its leads.
    pub postback: Option<Postback>,
}

/// Where a publisher is told verdicts.
#[derive(Debug, Clone)]
pub struct Postback {
    /// Where they are posted.
    pub url: reqwest::Url,
    /// Signs each post.
    pub signing: SigningKey,
}

/// What happens to unit and lead when a forward times out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    /// Unit back at once, next buyer; a late yes charges again.
    Refund,
    /// Next buyer at once; unit held until the late answer or `late_answer_ms`.
    Reserve,
    /// Nobody else is asked; unit stays counted, in doubt.
    Hold,
}

/// What happens to units of forwards whose gateway died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCrash {
    /// Counted, in doubt, until resolved.
    Keep,
    /// Given back.
    Refund,
}

/// How a 5xx is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On5xx {
    /// A full "no".
    Declined,
    /// The buyer may have stored the lead before it failed.
    InDoubt,
}

/// What was agreed with a buyer about giving leads back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReturnTerms {
    /// Days after the sale, of 24 hours; 0: never.
    pub within_days: u32,
    /// Does a returned lead no longer count in the cap windows of its sale?
    pub frees_cap: bool,
}

/// Who takes leads.
#[derive(Debug)]
pub struct Buyer {
    /// Its name.
    pub id: BuyerId,
    /// Where leads are posted.
    pub url: reqwest::Url,
    /// Its calendar.
    pub timezone: TimeZone,
    /// IANA name of the calendar.
    pub timezone_name: String,
    /// From start to last byte of the answer.
    pub timeout: Duration,
    /// See [`OnTimeout`].
    pub on_timeout: OnTimeout,
    /// See [`OnCrash`].
    pub on_crash: OnCrash,
    /// Forwards under way at once, in this gateway.
    pub in_flight_max: usize,
    /// By the file; a pause by the admin API comes on top.
    pub is_paused: bool,
    /// All must have room.
    pub caps: Vec<Cap>,
    /// All must hold.
    pub filter: BuyerFilter,
    /// None: always open. Otherwise at least one must hold.
    pub hours: Vec<Hours>,
    /// How the lead is written.
    pub request: RequestShape,
    /// How the answer is read.
    pub answer: AnswerRules,
    /// Keys in force of the buyer's own calls; none: it makes none.
    pub keys: Vec<KeyHash>,
    /// See [`ReturnTerms`].
    pub returns: ReturnTerms,
    /// See [`BreakerRule`].
    pub breaker: BreakerRule,
    /// See [`DuplicateRule`]; none: it takes a person any number of times.
    pub duplicates: Option<DuplicateRule>,
}

/// When a buyer that fails is left alone for a while; per gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerRule {
    /// So many forwards in a row without an answer, or with a 5xx; 0: never.
    pub failures: u32,
    /// How long it is left alone, before one lead tries again.
    pub rest: Duration,
}

impl Default for BreakerRule {
    fn default() -> Self {
        Self { failures: 20, rest: Duration::from_secs(10) }
    }
}

/// Static rules of a buyer. An absent rule always holds.
#[derive(Debug, Clone, Default)]
pub struct BuyerFilter {
    /// Canonical upper-case codes (`NY`), or the text as written where it is no known US state.
    pub states: Option<Vec<String>>,
    /// Canonical upper-case ISO 3166 alpha-2 codes where known.
    pub countries: Option<Vec<String>>,
    /// Exact zips, or prefixes.
    pub zips: Option<Vec<ZipPattern>>,
    /// Only these.
    pub publishers_allowed: Option<Vec<PublisherId>>,
    /// Not these.
    pub publishers_denied: Vec<PublisherId>,
    /// All must hold.
    pub rules: Vec<FieldRule>,
}

/// `07030` or `100*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZipPattern {
    /// The whole zip.
    Exact(String),
    /// Its first characters.
    Prefix(String),
}

/// A rule about one field; all parts that are given must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldRule {
    /// Canonical name.
    pub field: Arc<str>,
    /// Smallest number taken.
    pub min: Option<f64>,
    /// Largest number taken.
    pub max: Option<f64>,
    /// Values taken, compared without case.
    pub one_of: Option<Vec<String>>,
    /// Must be there (and not empty), or must not.
    pub is_present: Option<bool>,
}

/// Opening hours in the buyer's zone: `[from, to)`; `to <= from` runs past midnight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hours {
    /// Days on which the span starts.
    pub days: Vec<jiff::civil::Weekday>,
    /// First minute.
    pub from: jiff::civil::Time,
    /// First minute after; `00:00` means the end of the day.
    pub to: jiff::civil::Time,
}

/// How the fields of a forward are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyFormat {
    /// POST of `application/json`
    #[default]
    Json,
    /// POST of `application/x-www-form-urlencoded`
    Form,
    /// POST of `application/xml`
    Xml,
    /// GET with the fields in the URL and no body. It hands a lead over like any POST: it is never sent twice.
    Query,
}

/// Where the value of a mapped field comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldSource {
    /// A lead field by canonical name.
    Field(Arc<str>),
    /// `$lead_id`
    LeadId,
    /// `$campaign_id`
    CampaignId,
    /// `$publisher_id`
    PublisherId,
    /// `$phone_e164`: the phone in E.164; left out where it is no number in use.
    PhoneE164,
    /// `$price`: what the offer asks.
    Price,
    /// `$currency`
    Currency,
    /// `$received_at`: RFC 3339, UTC.
    ReceivedAt,
    /// `$test`: 1 for a test lead, left out for a real one.
    Test,
    /// `=text`, a number, true or false: the same for each lead.
    Constant(FieldValue),
    /// `env:NAME` or `file:PATH`: the same for each lead, and never shown.
    Secret(Secret),
}

/// One name at the buyer and what stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldPart {
    /// A value.
    Value(String, FieldSource),
    /// Names below a name, in JSON and XML.
    Group(String, Vec<FieldPart>),
}

/// What a forward says.
#[derive(Debug, Clone, Default)]
pub enum Content {
    /// All fields of the lead, and `lead_id`.
    #[default]
    AllFields,
    /// These, in file order.
    Fields(Vec<FieldPart>),
    /// What this makes of the lead.
    Template(Arc<Template>),
}

/// How a lead is written for a buyer.
#[derive(Debug, Clone, Default)]
pub struct RequestShape {
    /// See [`BodyFormat`].
    pub format: BodyFormat,
    /// Instead of the format's own.
    pub content_type: Option<http::HeaderValue>,
    /// Extra headers; values may be secrets. Names and values were checked to be legal.
    pub headers: Vec<(http::HeaderName, Secret)>,
    /// Added to the URL's query; values may be secrets.
    pub query: Vec<(String, Secret)>,
    /// Present: each forward carries a Standard Webhooks signature.
    pub signing: Option<SigningKey>,
    /// See [`Content`].
    pub content: Content,
    /// Secrets that a template may name.
    pub secrets: Vec<(String, Secret)>,
    /// Name of the outermost element of XML that is made of fields.
    pub xml_root: Option<String>,
}

/// One way to recognise an answer.
#[derive(Debug, Clone)]
pub enum AnswerRule {
    /// A path whose value (as text, without case) is one of these.
    Path {
        /// RFC 6901 in JSON, names of elements in XML.
        pointer: String,
        /// Values that match.
        values: Vec<String>,
    },
    /// A path whose value matches.
    PathMatches {
        /// As above.
        pointer: String,
        /// Anywhere in the value.
        regex: regex::Regex,
    },
    /// One of these HTTP statuses.
    Status(Vec<u16>),
    /// The body as text matches.
    BodyMatches(regex::Regex),
    /// The first of these that matches.
    AnyOf(Vec<AnswerRule>),
}

impl AnswerRule {
    /// The rules that this one is made of: itself, or those of a list.
    #[must_use]
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::AnyOf(rules) => rules,
            rule => std::slice::from_ref(rule),
        }
    }
}

/// Where an answer says a thing.
#[derive(Debug, Clone)]
pub enum AnswerText {
    /// A JSON pointer, or names of elements in XML.
    Path(String),
    /// The first group of a regular expression on the body as text.
    Capture(regex::Regex),
}

/// How a buyer's answer is read.
#[derive(Debug, Clone)]
pub struct AnswerRules {
    /// Only what this matches is a sale. A `path` or `body_matches` rule needs a 2xx as well.
    pub accepted: AnswerRule,
    /// A refusal because the buyer has this person.
    pub duplicate: Option<AnswerRule>,
    /// How a 5xx is read.
    pub on_5xx: On5xx,
    /// How long the buyer may decide after a 202 that says `pending`; without it such an answer is a "no" like any other.
    pub pending_within: Option<Duration>,
    /// Where the price is.
    pub price: Option<AnswerText>,
    /// Where the reason of a refusal is.
    pub reason: Option<AnswerText>,
    /// Where the redirect URL is.
    pub redirect_url: Option<AnswerText>,
    /// Where the buyer's own name for the lead is.
    pub reference: Option<AnswerText>,
    /// Whether the file had an `answer` table; `check` warns when not.
    pub is_explicit: bool,
}

/// In which order candidates are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateOrder {
    /// Lower priority number first; equals share by weight.
    Priority,
    /// Every candidate stands first as often as its weight says, whatever its priority.
    Weighted,
    /// The highest offered price first; equals by priority, then by weight.
    Price,
}

/// The product that leads belong to.
#[derive(Debug)]
pub struct Campaign {
    /// Its name.
    pub id: CampaignId,
    /// Of all its prices.
    pub currency: Currency,
    /// ISO 3166 alpha-2; for phones only.
    pub country: String,
    /// See [`CandidateOrder`].
    pub order: CandidateOrder,
    /// Canonical names that a lead must have, not empty.
    pub required: Vec<Arc<str>>,
    /// Canonical names that make a key for a POST without one.
    pub idempotency_fields: Vec<Arc<str>>,
    /// In file order.
    pub offers: Vec<Offer>,
}

/// A buyer's place and price in a campaign.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Who.
    pub buyer: Arc<Buyer>,
    /// What a lead costs it, unless its answer names a price.
    pub price: Micros,
    /// The most that an answer's own price may be.
    pub price_max: Micros,
    /// Lower first.
    pub priority: u32,
    /// Share among equal priorities.
    pub weight: u32,
}
