//! The order in which candidates are tried.

use std::cmp::Reverse;

use crate::domain::id::{BuyerId, LeadId};
use crate::domain::routing::{CandidateOrder, Offer};

/// Sorts offers, given by index, as the campaign's order says. Among equals chance decides by weight, so that a buyer with
/// twice the weight stands first twice as often; weight 0 stands last.
///
/// Chance is drawn from the ids of lead and buyer alone: fair over many leads and over all gateways, the same again for one
/// lead (P10), and a buyer that comes or goes leaves the others in the order they had.
pub(super) fn sort(ranked: &mut [usize], order: CandidateOrder, offers: &[Offer], salts: &[u64], lead: LeadId) {
    let seed = seed_of(lead);
    ranked.sort_by_cached_key(|&index| {
        let Some(offer) = offers.get(index) else { return (Reverse(0), u32::MAX, true, 0, index) };
        let draw = unit(mix(seed ^ salts.get(index).copied().unwrap_or_default()));
        let (price, priority) = match order {
            CandidateOrder::Priority => (0, offer.priority),
            CandidateOrder::Weighted => (0, 0),
            CandidateOrder::Price => (offer.price.0, offer.priority),
        };
        (Reverse(price), priority, offer.weight == 0, waiting_time(draw, offer.weight), index)
    });
}

/// A number per buyer, for [`sort`].
pub(super) fn salt(buyer: &BuyerId) -> u64 {
    buyer.as_str().bytes().fold(0x6361_7067_6174_6521, |hash, byte| mix(hash ^ u64::from(byte)))
}

fn seed_of(lead: LeadId) -> u64 {
    lead.as_bytes().chunks(8).fold(0, |hash, half| half.iter().fold(hash, |hash, byte| mix(hash ^ u64::from(*byte))))
}

/// Time until a buyer's turn when turns come at random and `weight` times as often: who waits least is first with a chance
/// of its weight in all weights. Positive floats sort like their bits.
fn waiting_time(draw: f64, weight: u32) -> u64 {
    (-draw.ln() / f64::from(weight.max(1))).to_bits()
}

/// A number in `(0, 1)` from the upper 52 bits.
fn unit(bits: u64) -> f64 {
    const STEPS: f64 = 4_503_599_627_370_496.0;
    #[allow(clippy::cast_precision_loss, reason = "52 bits fit into a float exactly")]
    let step = (bits >> 12) as f64;
    (step + 0.5) / STEPS
}

/// Spreads each bit over all others (the finishing step of a SplitMix64 generator).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
