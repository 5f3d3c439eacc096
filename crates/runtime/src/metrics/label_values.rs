//! The label values of series, each kept once however many series have it: a node has dozens of series with the same twenty values.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use foldhash::fast::FixedState;
use hashbrown::HashSet;

use crate::sync::lock;

/// How many values there are before those that nobody uses any more are looked for.
const MANY: usize = 1024;

/// The values of one series, in the order its family's labels were declared in. Those of one registry are the same values where they
/// are in the same places.
#[derive(Clone, Debug)]
pub(super) struct Values(Arc<[Arc<str>]>);

impl Values {
    pub(super) fn at(&self, place: usize) -> &str {
        self.0.get(place).map_or("", |value| value)
    }

    fn places(&self) -> impl Iterator<Item = *const u8> {
        self.0.iter().map(|value| value.as_ptr())
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.places().eq(other.places())
    }
}

impl Eq for Values {}

impl Hash for Values {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.places().for_each(|place| place.hash(state));
    }
}

/// All label values of one registry.
#[derive(Debug, Default)]
pub(super) struct LabelValues(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    values: HashSet<Arc<str>, FixedState>,
    /// How many were in use when that was last looked at.
    used: usize,
}

impl LabelValues {
    /// These values, as other series have them.
    pub(super) fn share(&self, values: &[&str]) -> Values {
        let mut known = lock(&self.0);
        if known.values.len() > 2 * known.used.max(MANY) {
            known.values.retain(|value| Arc::strong_count(value) > 1);
            known.used = known.values.len();
        }
        let share = |value: &&str| {
            if let Some(value) = known.values.get(*value) {
                return Arc::clone(value);
            }
            let value: Arc<str> = (*value).into();
            known.values.insert(Arc::clone(&value));
            value
        };
        Values(values.iter().map(share).collect())
    }

    /// These values, unless no series can have them.
    pub(super) fn find(&self, values: &[&str]) -> Option<Values> {
        let known = lock(&self.0);
        values.iter().map(|value| known.values.get(*value).cloned()).collect::<Option<Arc<[_]>>>().map(Values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shared_and_forgotten_when_no_series_has_them() {
        let all = LabelValues::default();
        let (a, b) = (all.share(&["x", "y"]), all.share(&["x", "z"]));
        assert_eq!(all.find(&["x", "y"]), Some(a.clone()));
        assert_ne!(a, b);
        assert!(std::ptr::eq(a.at(0), b.at(0)), "one x");
        assert_eq!(all.find(&["w", "y"]), None);
        for i in 0..4 * MANY {
            all.share(&[&i.to_string()]);
        }
        assert!(lock(&all.0).values.len() <= 2 * MANY + 2, "those that nobody has are gone");
        assert_eq!(all.share(&["x", "y"]), a, "those that somebody has are not");
    }
}
