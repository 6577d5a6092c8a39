//! Why a request was refused. Meanings only; `reply` turns them into HTTP.

/// One field at fault. Names a field as the publisher sent it or as the campaign calls it, never its value (P9).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FieldProblem {
    /// Which.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FieldProblem {
    /// One problem of one field.
    #[must_use]
    pub fn new(field: &str, problem: &str) -> Self {
        // Names come from the outside and may be as long as the body.
        Self { field: field.chars().take(64).collect(), problem: problem.to_owned() }
    }
}

/// Why a request was refused. Nothing was stored and nothing was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Cannot be read without guessing; says what is wrong without quoting it (P9).
    Malformed(String),
    /// No key, an unknown key, or two different ones.
    Unauthorized,
    /// The publisher may not use this campaign.
    CampaignNotAllowed,
    /// The publisher may not send from this address.
    AddressNotAllowed,
    /// No such campaign.
    UnknownCampaign,
    /// No such path, or no such lead of this caller.
    NotFound,
    /// The path is known, the method is not; lists those that are.
    MethodNotAllowed(&'static str),
    /// The head did not come in time.
    HeadTimeout,
    /// The head is larger than any that is read.
    HeadTooLarge,
    /// The body did not come in time.
    BodyTimeout,
    /// The body is larger than allowed.
    TooLarge {
        /// What is allowed.
        bytes_max: usize,
    },
    /// A type or an encoding of the body that is not read here.
    UnsupportedMediaType(&'static str),
    /// Readable, but not a lead that this campaign takes.
    InvalidLead(Vec<FieldProblem>),
    /// The idempotency key was used with another body.
    IdempotencyKeyReused,
    /// The buyer was offered the lead and did not get it, so there is nothing to give back.
    NotSold,
    /// The lead does not wait for this buyer.
    NotPending,
    /// The buyer has decided otherwise before.
    AlreadyDecided,
    /// The time for it is over; says which.
    TooLate(String),
    /// It is not known yet whether the buyer has the lead, or the sale is not booked.
    Undecided {
        /// When to ask again.
        retry_after_s: u64,
    },
    /// Above the caller's throttle.
    Throttled {
        /// When to come again.
        retry_after_s: u64,
    },
    /// Not confirmed: send it again with the same key.
    Unavailable(&'static str),
}

impl Refusal {
    /// Every code, for metric series that start at 0.
    pub const CODES: [&'static str; 19] = [
        "malformed",
        "unauthorized",
        "campaign_not_allowed",
        "address_not_allowed",
        "unknown_campaign",
        "not_found",
        "method_not_allowed",
        "request_timeout",
        "too_large",
        "unsupported_media_type",
        "invalid_lead",
        "idempotency_key_reused",
        "not_sold",
        "not_pending",
        "already_decided",
        "too_late",
        "undecided",
        "throttled",
        "unavailable",
    ];

    /// The word in answers and metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Unauthorized => "unauthorized",
            Self::CampaignNotAllowed => "campaign_not_allowed",
            Self::AddressNotAllowed => "address_not_allowed",
            Self::UnknownCampaign => "unknown_campaign",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::HeadTimeout | Self::BodyTimeout => "request_timeout",
            Self::HeadTooLarge | Self::TooLarge { .. } => "too_large",
            Self::UnsupportedMediaType(_) => "unsupported_media_type",
            Self::InvalidLead(_) => "invalid_lead",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::NotSold => "not_sold",
            Self::NotPending => "not_pending",
            Self::AlreadyDecided => "already_decided",
            Self::TooLate(_) => "too_late",
            Self::Undecided { .. } => "undecided",
            Self::Throttled { .. } => "throttled",
            Self::Unavailable(_) => "unavailable",
        }
    }
}
