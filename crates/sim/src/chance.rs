//! Chance, as a seed decides it: numbers, durations and choices from a stream of [`Entropy`] by name.

use std::time::Duration;

use karpenter_runtime::entropy::{Entropy, Stream};

/// A sequence of draws. The same entropy and name give the same draws.
#[derive(Clone, Debug)]
pub struct Chance(Stream);

impl Chance {
    /// The stream of this name.
    pub fn new(entropy: &Entropy, name: &str) -> Self {
        Self(entropy.stream(name))
    }

    /// Uniform in `0..bound`; 0 if there is nothing to choose from.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.0.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or_default()
    }

    /// Uniform in `least..=most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    /// Uniform in milliseconds between two durations.
    pub fn duration(&mut self, range: &Span) -> Duration {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.between(millis(range.least), millis(range.most)))
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.0.fraction() < probability
    }

    /// One of several; `None` of none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or_default();
        of.get(at)
    }
}

/// How long something takes: at least, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// At least.
    pub least: Duration,
    /// At most.
    pub most: Duration,
}

impl Span {
    /// Between so many milliseconds.
    pub const fn millis(least: u64, most: u64) -> Self {
        Self { least: Duration::from_millis(least), most: Duration::from_millis(most) }
    }

    /// Between so many seconds.
    pub const fn secs(least: u64, most: u64) -> Self {
        Self { least: Duration::from_secs(least), most: Duration::from_secs(most) }
    }

    /// No time at all.
    pub const NONE: Self = Self { least: Duration::ZERO, most: Duration::ZERO };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_range_and_reach_both_ends() {
        let mut chance = Chance::new(&Entropy::from_seed(1), "test");
        let drawn: std::collections::BTreeSet<u64> = (0..200).map(|_| chance.between(3, 6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(chance.below(0), 0);
        assert_eq!(chance.pick::<u8>(&[]), None);
        assert_eq!(chance.duration(&Span::NONE), Duration::ZERO);
    }

    #[test]
    fn what_never_happens_does_not_and_what_always_happens_does() {
        let mut chance = Chance::new(&Entropy::from_seed(2), "test");
        assert!((0..100).all(|_| !chance.happens(0.0) && chance.happens(1.0)));
        let heads = (0..1000).filter(|_| chance.happens(0.5)).count();
        assert!((400..600).contains(&heads), "{heads}");
    }
}
