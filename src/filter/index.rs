//! Attribute value -> offers that take it. A lookup costs what the values of one lead cost, however many buyers there are.

use std::collections::HashMap;

use super::set::{Bits, OfferSet};
use crate::domain::place::Zip;
use crate::domain::routing::{Offer, ZipPattern};

type Sets = HashMap<Box<str>, OfferSet>;

/// Collects which offers name a value.
#[derive(Default)]
struct Builder(HashMap<Box<str>, Vec<usize>>);

impl Builder {
    fn add(&mut self, value: &str, offer: usize) {
        if let Some(offers) = self.0.get_mut(value) {
            offers.push(offer);
        } else {
            self.0.insert(value.into(), vec![offer]);
        }
    }

    fn build(self, count: usize) -> Sets {
        self.0.into_iter().map(|(value, offers)| (value, OfferSet::new(offers, count))).collect()
    }
}

/// Offers by one attribute. An offer without a rule takes every value, and a lead without one.
#[derive(Debug, Default)]
pub(super) struct ValueIndex {
    without_rule: Bits,
    by_value: Sets,
    /// No offer has a rule: nothing to look up.
    is_idle: bool,
}

impl ValueIndex {
    /// `rule` tells the canonical values that an offer takes; `None` where it has no rule.
    pub(super) fn new(offers: &[Offer], rule: impl Fn(&Offer) -> Option<Vec<String>>) -> Self {
        let mut builder = Builder::default();
        let mut without_rule = Bits::none(offers.len());
        let mut is_idle = true;
        for (index, offer) in offers.iter().enumerate() {
            match rule(offer) {
                None => without_rule.insert(index),
                Some(values) => {
                    is_idle = false;
                    values.iter().filter(|value| !value.is_empty()).for_each(|value| builder.add(value, index));
                }
            }
        }
        Self { without_rule, by_value: builder.build(offers.len()), is_idle }
    }

    /// Keeps the offers that take `value`.
    pub(super) fn keep(&self, value: Option<&str>, eligible: &mut Bits, scratch: &mut Bits) {
        if self.is_idle {
            return;
        }
        scratch.copy_from(&self.without_rule);
        if let Some(set) = value.and_then(|value| self.by_value.get(value)) {
            scratch.add_all(set);
        }
        eligible.keep(scratch);
    }
}

/// Offers by publisher: those that take it, less those that deny it.
#[derive(Debug, Default)]
pub(super) struct PublisherIndex {
    allowed: ValueIndex,
    denied: Sets,
}

impl PublisherIndex {
    pub(super) fn new(offers: &[Offer]) -> Self {
        let allowed = ValueIndex::new(offers, |offer| {
            let allowed = offer.buyer.filter.publishers_allowed.as_ref()?;
            Some(allowed.iter().map(|publisher| publisher.as_str().to_owned()).collect())
        });
        let mut denied = Builder::default();
        for (index, offer) in offers.iter().enumerate() {
            offer.buyer.filter.publishers_denied.iter().for_each(|publisher| denied.add(publisher.as_str(), index));
        }
        Self { allowed, denied: denied.build(offers.len()) }
    }

    pub(super) fn keep(&self, publisher: &str, eligible: &mut Bits, scratch: &mut Bits) {
        self.allowed.keep(Some(publisher), eligible, scratch);
        if let Some(set) = self.denied.get(publisher) {
            eligible.remove_all(set);
        }
    }
}

/// Offers by zip: exact codes and prefixes.
#[derive(Debug, Default)]
pub(super) struct ZipIndex {
    without_rule: Bits,
    exact: Sets,
    prefixes: Sets,
    /// Lengths of the prefixes, each once: a lead's zip is cut to each of them.
    prefix_lengths: Vec<usize>,
    is_idle: bool,
}

impl ZipIndex {
    pub(super) fn new(offers: &[Offer]) -> Self {
        let (mut exact, mut prefixes) = (Builder::default(), Builder::default());
        let mut without_rule = Bits::none(offers.len());
        let mut prefix_lengths = Vec::new();
        let mut is_idle = true;
        for (index, offer) in offers.iter().enumerate() {
            let Some(patterns) = &offer.buyer.filter.zips else {
                without_rule.insert(index);
                continue;
            };
            is_idle = false;
            for pattern in patterns {
                match pattern {
                    ZipPattern::Exact(code) => exact.add(Zip::new(code).as_str(), index),
                    ZipPattern::Prefix(prefix) => {
                        let prefix = Zip::new(prefix);
                        prefix_lengths.push(prefix.as_str().len());
                        prefixes.add(prefix.as_str(), index);
                    }
                }
            }
        }
        prefix_lengths.sort_unstable();
        prefix_lengths.dedup();
        let count = offers.len();
        Self { without_rule, exact: exact.build(count), prefixes: prefixes.build(count), prefix_lengths, is_idle }
    }

    pub(super) fn keep(&self, zip: Option<&Zip<'_>>, eligible: &mut Bits, scratch: &mut Bits) {
        if self.is_idle {
            return;
        }
        scratch.copy_from(&self.without_rule);
        if let Some(zip) = zip {
            let whole = std::iter::once(zip.as_str()).chain(zip.five()).filter_map(|code| self.exact.get(code));
            let cut = self.prefix_lengths.iter().filter_map(|&length| zip.as_str().get(..length));
            for set in whole.chain(cut.filter_map(|prefix| self.prefixes.get(prefix))) {
                scratch.add_all(set);
            }
        }
        eligible.keep(scratch);
    }
}
