//! Cap windows: the buyer's calendar turned into half-open pairs of UTC instants (design: time).
//!
//! A window's id is its start. 23-hour days, 25-hour days, days without midnight and the hour that happens twice come out
//! right by construction, because both ends are computed in the zone and compared as instants.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The span that a cap counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowKind {
    /// A minute of the buyer's clock.
    Minute,
    /// An hour of the buyer's clock.
    Hour,
    /// Local midnight (or the first instant after it) to the next.
    Day,
    /// Monday to Monday.
    Week,
    /// First of the month to first of the next.
    Month,
    /// All time: starts at the Unix epoch and has no end.
    Total,
}

impl WindowKind {
    /// All kinds, shortest first.
    pub const ALL: [Self; 6] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Total];

    /// The word used in configuration and default cap ids.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `[start, end)` in UTC, at whole milliseconds; `end` is absent for [`WindowKind::Total`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// First instant inside; the window's id.
    pub start: Timestamp,
    /// First instant after it.
    pub end: Option<Timestamp>,
}

impl Window {
    /// Is the instant inside?
    #[must_use]
    pub fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && self.end.is_none_or(|end| at < end)
    }
}
