//! The windows of an attempt as its row in the books keeps them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::domain::event::{Attempt, WindowAmount};
use crate::domain::id::CapId;

/// One window of an attempt as `attempts.windows` keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredWindow {
    pub cap: CapId,
    #[serde(with = "rfc3339")]
    pub window_start: Timestamp,
    pub amount: i64,
}

/// Times in JSON.
mod rfc3339 {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(at)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(|_| D::Error::custom("not a time"))
    }
}

/// The windows of an event as the books keep them; the planner's check has made sure that everything is in range.
pub(super) fn windows_of(attempt: &Attempt) -> Result<Vec<StoredWindow>, &'static str> {
    let stored = |window: &WindowAmount| {
        Some(StoredWindow {
            cap: window.cap.clone(),
            window_start: Timestamp::from_millisecond(window.start_ms).ok()?,
            amount: i64::try_from(window.amount).ok()?,
        })
    };
    attempt.windows.iter().map(stored).collect::<Option<_>>().ok_or("a window is out of range")
}

/// A cap and the start of its window.
pub(super) type StoredPlace = (String, Timestamp);

/// What an attempt row's `windows` hold, by cap and window.
pub(super) fn stored_windows(json: &str) -> Result<Vec<(StoredPlace, u64)>, &'static str> {
    let windows: Vec<StoredWindow> =
        serde_json::from_str(json).map_err(|_| "the windows of an attempt row cannot be read")?;
    let place = |window: StoredWindow| {
        let amount = u64::try_from(window.amount).unwrap_or(0);
        ((window.cap.as_str().to_owned(), window.window_start), amount)
    };
    Ok(windows.into_iter().map(place).collect())
}
