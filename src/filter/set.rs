//! Sets of a campaign's offers, by index.

use smallvec::SmallVec;

const BITS: usize = u64::BITS as usize;

/// One bit per offer. Up to 1,024 offers need no heap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bits(SmallVec<[u64; 16]>);

impl Bits {
    /// Room for `count` offers, none of them inside.
    pub(super) fn none(count: usize) -> Self {
        Self(SmallVec::from_elem(0, count.div_ceil(BITS)))
    }

    pub(super) fn insert(&mut self, offer: usize) {
        if let Some(word) = self.0.get_mut(offer / BITS) {
            *word |= 1 << (offer % BITS);
        }
    }

    pub(super) fn contains(&self, offer: usize) -> bool {
        self.0.get(offer / BITS).is_some_and(|word| word >> (offer % BITS) & 1 == 1)
    }

    fn remove(&mut self, offer: usize) {
        if let Some(word) = self.0.get_mut(offer / BITS) {
            *word &= !(1 << (offer % BITS));
        }
    }

    /// Takes the place of `other` without asking for new memory where that fits.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    pub(super) fn keep(&mut self, others: &Self) {
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word &= other;
        }
    }

    pub(super) fn add_all(&mut self, set: &OfferSet) {
        match set {
            OfferSet::Few(offers) => offers.iter().for_each(|&offer| self.insert(offer)),
            OfferSet::Many(bits) => {
                for (word, other) in self.0.iter_mut().zip(&bits.0) {
                    *word |= other;
                }
            }
        }
    }

    pub(super) fn remove_all(&mut self, set: &OfferSet) {
        match set {
            OfferSet::Few(offers) => offers.iter().for_each(|&offer| self.remove(offer)),
            OfferSet::Many(bits) => {
                for (word, other) in self.0.iter_mut().zip(&bits.0) {
                    *word &= !other;
                }
            }
        }
    }

    /// The offers inside, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(index * BITS + bit)
            })
        })
    }
}

/// The offers that share a value. Kept as a list while that is smaller, so that forty thousand zips with a few buyers each
/// do not cost forty thousand bit sets.
#[derive(Debug, Clone)]
pub(super) enum OfferSet {
    Few(Box<[usize]>),
    Many(Bits),
}

impl OfferSet {
    /// The set of these offers among `count`.
    pub(super) fn new(offers: Vec<usize>, count: usize) -> Self {
        if offers.len() < count.div_ceil(BITS) {
            return Self::Few(offers.into_boxed_slice());
        }
        let mut bits = Bits::none(count);
        for offer in offers {
            bits.insert(offer);
        }
        Self::Many(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_bits_mean_the_same() {
        let count = 1_500;
        let members: Vec<usize> = (0..count).filter(|offer| offer % 7 == 0 || *offer == count - 1).collect();
        let few = OfferSet::Few(members.clone().into_boxed_slice());
        let many = OfferSet::new(members.clone(), count);
        assert!(matches!(many, OfferSet::Many(_)));
        assert!(matches!(OfferSet::new(vec![3, 900], count), OfferSet::Few(_)));
        for set in [&few, &many] {
            let mut bits = Bits::none(count);
            bits.add_all(set);
            assert_eq!(bits.iter().collect::<Vec<_>>(), members);
            bits.insert(1);
            bits.insert(64);
            bits.remove_all(set);
            assert_eq!(bits.iter().collect::<Vec<_>>(), [1, 64]);
        }
        assert_eq!(Bits::none(0).iter().count(), 0);
    }
}
