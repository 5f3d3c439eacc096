//! A set of small numbers: instance types, nodes, claims.

use smallvec::SmallVec;

/// Bits of a fixed universe. Sets of one universe have the same number of words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Bits(SmallVec<[u64; 16]>);

impl Bits {
    pub(crate) fn none(universe: usize) -> Self {
        Bits(SmallVec::from_elem(0, universe.div_ceil(64)))
    }

    pub(crate) fn all(universe: usize) -> Self {
        let mut bits = Bits(SmallVec::from_elem(u64::MAX, universe.div_ceil(64)));
        if !universe.is_multiple_of(64)
            && let Some(last) = bits.0.last_mut()
        {
            *last = (1 << (universe % 64)) - 1;
        }
        bits
    }

    #[inline]
    pub(crate) fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.0[index / 64] &= !(1 << (index % 64));
    }

    /// Inserts beyond the current universe, growing it.
    pub(crate) fn insert_growing(&mut self, index: usize) {
        if index / 64 >= self.0.len() {
            self.0.resize(index / 64 + 1, 0);
        }
        self.insert(index);
    }

    /// Becomes every number below `universe`, keeping its storage.
    pub(crate) fn fill(&mut self, universe: usize) {
        self.0.clear();
        self.0.resize(universe.div_ceil(64), u64::MAX);
        if !universe.is_multiple_of(64)
            && let Some(last) = self.0.last_mut()
        {
            *last = (1 << (universe % 64)) - 1;
        }
    }

    /// Takes out whatever is in `other`, which may be of a smaller universe.
    #[inline]
    pub(crate) fn subtract(&mut self, other: &Bits) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a &= !b;
        }
    }

    /// Keeps only what is in `other`, which may be of a smaller universe.
    pub(crate) fn keep_only(&mut self, other: &Bits) {
        let shared = self.0.len().min(other.0.len());
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a &= b;
        }
        self.0[shared..].fill(0);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Becomes a copy of `other`, keeping its storage.
    pub(crate) fn assign(&mut self, other: &Bits) {
        self.0.clear();
        self.0.extend_from_slice(&other.0);
    }

    pub(crate) fn intersects_both(&self, a: &Bits, b: &Bits) -> bool {
        self.0.iter().zip(&a.0).zip(&b.0).any(|((x, y), z)| x & y & z != 0)
    }

    #[inline]
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|w| w >> (index % 64) & 1 == 1)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    #[inline]
    pub(crate) fn and(&mut self, other: &Bits) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a &= b;
        }
    }

    pub(crate) fn or(&mut self, other: &Bits) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    pub(crate) fn intersects(&self, other: &Bits) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    at * 64 + bit
                })
            })
        })
    }
}
