//! A cap: how many leads, or how much money, a buyer takes in a window.

use std::sync::Arc;

use super::id::{CapId, PublisherId};
use super::lead::Fields;
use super::matching::is_value;
use super::money::Micros;
use super::window::WindowKind;

/// The number in a cap. Zero closes the buyer; no cap at all means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Whole leads.
    Leads(u64),
    /// Money in the campaign's currency; a sale that would pass it by a fraction is refused.
    Spend(Micros),
}

/// One cap of a buyer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cap {
    /// Unique within the buyer; counters belong to it, whatever the file says next.
    pub id: CapId,
    /// The span it counts in.
    pub window: WindowKind,
    /// The number.
    pub limit: Limit,
    /// Counts only this publisher's leads.
    pub publisher: Option<PublisherId>,
    /// Counts only leads whose field has one of the values (compared as by [`is_value`]); all conditions must hold.
    pub conditions: Vec<(Arc<str>, Vec<String>)>,
}

impl Cap {
    /// Does this cap count a lead of this publisher with these fields?
    #[must_use]
    pub fn counts(&self, publisher: &PublisherId, fields: &Fields) -> bool {
        self.publisher.as_ref().is_none_or(|only| only == publisher)
            && self.conditions.iter().all(|(field, values)| {
                fields.text(field).is_some_and(|given| values.iter().any(|wanted| is_value(field, wanted, given)))
            })
    }

    /// What one lead that may cost up to `price_max` reserves: 1 lead, or the money.
    #[must_use]
    pub fn amount(&self, price_max: Micros) -> u64 {
        match self.limit {
            Limit::Leads(_) => 1,
            // Prices are never negative: the configuration refuses them.
            Limit::Spend(_) => u64::try_from(price_max.0).unwrap_or(0),
        }
    }

    /// The limit as the store counts it: leads or micros.
    #[must_use]
    pub fn limit_units(&self) -> u64 {
        match self.limit {
            Limit::Leads(leads) => leads,
            Limit::Spend(micros) => u64::try_from(micros.0).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lead::FieldValue;

    /// A buyer's filter takes `Texas` as `TX`; a cap for Texas that did not would let such leads pass uncounted.
    #[test]
    fn p1_a_cap_counts_every_spelling_that_a_filter_takes() {
        let cap = Cap {
            id: CapId::new("day:state=TX"),
            window: WindowKind::Day,
            limit: Limit::Leads(1),
            publisher: None,
            conditions: vec![("state".into(), vec!["TX".into()])],
        };
        let publisher = PublisherId::new("acme").unwrap();
        for (state, is_counted) in [("TX", true), (" tx", true), ("Texas", true), ("NY", false), ("", false)] {
            let fields = Fields::new(vec![("state".into(), FieldValue::Text(state.into()))]);
            assert_eq!(cap.counts(&publisher, &fields), is_counted, "{state:?}");
        }
    }
}
