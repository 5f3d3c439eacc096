//! Exact resource arithmetic, as Kubernetes quantities have it.
//!
//! An [`Amount`] counts billionths (the finest unit a Kubernetes quantity can express) in 128 bits, so every comparison
//! and sum of real quantities is exact, and anything absurd saturates instead of wrapping.

use crate::labels::Text;

/// CPU cores.
pub const CPU: &str = "cpu";
/// Bytes of memory.
pub const MEMORY: &str = "memory";
/// Number of pods.
pub const PODS: &str = "pods";
/// Synthetic resource counting nodes, used in NodePool limits.
pub const NODES: &str = "nodes";

/// A resource amount in billionths of the resource's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount(0);
    const NANOS: i128 = 1_000_000_000;

    /// Whole units.
    pub const fn units(units: i64) -> Self {
        Amount(units as i128 * Self::NANOS)
    }

    /// Thousandths of a unit.
    pub const fn milli(milli: i64) -> Self {
        Amount(milli as i128 * 1_000_000)
    }

    /// Billionths of a unit.
    pub const fn nanos(nanos: i128) -> Self {
        Amount(nanos)
    }

    /// This amount in billionths.
    pub const fn as_nanos(self) -> i128 {
        self.0
    }

    /// This amount in thousandths, rounded away from zero as Kubernetes does.
    pub fn as_milli_ceil(self) -> i128 {
        div_away(self.0, 1_000_000)
    }

    /// This amount in whole units, rounded away from zero as Kubernetes does.
    pub fn as_units_ceil(self) -> i128 {
        div_away(self.0, Self::NANOS)
    }

    /// Sum; saturates.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }

    /// Difference; saturates.
    #[must_use]
    pub fn minus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }

    /// Whether this is below zero.
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Whether this is exactly zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

fn div_away(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    match value % by {
        0 => quotient,
        rest => quotient + rest.signum(),
    }
}

/// Amounts by resource name. A missing resource is not the same as zero: some rules look at which names are present.
///
/// Kept as a short sorted list: an object has a handful, and a cluster has tens of thousands of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resources(Vec<(Text, Amount)>);

impl Resources {
    /// No resources at all.
    pub fn new() -> Self {
        Resources::default()
    }

    fn slot(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|(n, _)| n.as_ref() == name)
    }

    /// The amount of `name`, if present.
    pub fn get(&self, name: &str) -> Option<Amount> {
        self.slot(name).map(|at| self.0[at].1)
    }

    /// The amount of `name`, absent read as zero.
    pub fn amount(&self, name: &str) -> Amount {
        self.get(name).unwrap_or_default()
    }

    /// Sets one amount.
    pub fn set(&mut self, name: impl Into<Text>, amount: Amount) {
        let name = name.into();
        match self.slot(&name) {
            Some(at) => self.0[at].1 = amount,
            None => {
                let at = self.0.partition_point(|(n, _)| *n < name);
                self.0.insert(at, (name, amount));
            }
        }
    }

    /// Removes one resource.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n.as_ref() != name);
    }

    /// All amounts, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Amount)> {
        self.0.iter().map(|(name, amount)| (name, amount))
    }

    /// Whether no resource is present.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds every amount of `other`.
    pub fn add(&mut self, other: &Resources) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (name, amount) in &other.0 {
            match self.slot(name) {
                Some(at) => self.0[at].1 = self.0[at].1.plus(*amount),
                None => self.set(name.clone(), *amount),
            }
        }
    }

    /// `self − other` over the names of `self` only.
    #[must_use]
    pub fn minus(&self, other: &Resources) -> Resources {
        Resources(self.0.iter().map(|(name, a)| (name.clone(), a.minus(other.amount(name)))).collect())
    }

    /// `self` with every amount of `other` replacing or joining its own.
    #[must_use]
    pub fn overridden_by(&self, other: &Resources) -> Resources {
        let mut merged = self.clone();
        for (name, amount) in &other.0 {
            merged.set(name.clone(), *amount);
        }
        merged
    }

    /// Per name the smaller amount, over names both have.
    #[must_use]
    pub fn min_of_shared(&self, other: &Resources) -> Resources {
        Resources(
            self.0
                .iter()
                .filter_map(|(name, a)| other.get(name).map(|b| (name.clone(), (*a).min(b))))
                .collect(),
        )
    }

    /// Per name the larger amount, over names either has.
    #[must_use]
    pub fn max_of_all(&self, other: &Resources) -> Resources {
        let mut merged = self.clone();
        for (name, b) in &other.0 {
            let larger = merged.get(name).map_or(*b, |a| a.max(*b));
            merged.set(name.clone(), larger);
        }
        merged
    }

    /// Whether `self` fits into `total`. Nothing fits into an overcommitted total, whatever it asks for.
    pub fn fits(&self, total: &Resources) -> bool {
        total.0.iter().all(|(_, a)| !a.is_negative())
            && self.0.iter().all(|(name, a)| *a <= total.amount(name))
    }
}

impl<K: Into<Text>> FromIterator<(K, Amount)> for Resources {
    fn from_iter<I: IntoIterator<Item = (K, Amount)>>(iter: I) -> Self {
        let mut all = Resources::new();
        for (name, amount) in iter {
            all.set(name, amount);
        }
        all
    }
}
