//! The verbs that end leases, and which states each of them changes: one table for every store.

use crate::domain::lease::EndMark;

/// A verb that ends leases. Each of them ends an open one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// [`super::Store::commit`].
    Commit,
    /// [`super::Store::confirm`].
    Confirm,
    /// [`super::Store::refund`].
    Refund,
    /// [`super::Store::expire`].
    Expire,
    /// [`super::Store::doubt`].
    Doubt,
}

impl End {
    /// How a lease stands after it.
    pub(super) fn mark(self) -> EndMark {
        match self {
            Self::Commit | Self::Confirm => EndMark::Committed,
            Self::Refund | Self::Expire => EndMark::Refunded,
            Self::Doubt => EndMark::Doubt,
        }
    }

    /// The ends that it changes; the others stay as they are.
    pub(super) fn changes_from(self) -> &'static [EndMark] {
        match self {
            // A yes of the buyer counts whenever it comes.
            Self::Commit => &[EndMark::Refunded, EndMark::Doubt],
            // What has gone back may be another's by now (P1).
            Self::Confirm | Self::Refund => &[EndMark::Doubt],
            Self::Expire | Self::Doubt => &[],
        }
    }
}
