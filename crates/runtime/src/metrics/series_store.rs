//! Gauges that describe objects: all series of an object are replaced together, so that none outlives a changed label.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::GaugeVec;
use crate::sync::lock;

/// The gauges of many objects, by a key of the caller's.
#[derive(Debug, Default)]
pub struct GaugeStore {
    objects: Mutex<BTreeMap<String, Vec<StoredGauge>>>,
}

/// One series of an object.
#[derive(Clone, Debug)]
pub struct StoredGauge {
    /// The family.
    pub family: GaugeVec,
    /// The label values, in the family's order.
    pub labels: Vec<String>,
    /// The value.
    pub value: f64,
}

impl StoredGauge {
    fn values(&self) -> Vec<&str> {
        self.labels.iter().map(String::as_str).collect()
    }

    fn is_same_series(&self, other: &Self) -> bool {
        self.family.name() == other.family.name() && self.labels == other.labels
    }
}

impl GaugeStore {
    /// A store without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the series of an object and removes those it had before and has no more.
    pub fn update(&self, key: &str, gauges: Vec<StoredGauge>) {
        Self::replace(&mut lock(&self.objects), key, gauges);
    }

    /// Sets the series of all objects; objects that are not named are removed.
    pub fn replace_all(&self, objects: BTreeMap<String, Vec<StoredGauge>>) {
        let mut known = lock(&self.objects);
        let gone: Vec<String> = known.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();
        for (key, gauges) in objects {
            Self::replace(&mut known, &key, gauges);
        }
        for key in gone {
            Self::replace(&mut known, &key, Vec::new());
            known.remove(&key);
        }
    }

    /// Removes the series of an object.
    pub fn delete(&self, key: &str) {
        let mut known = lock(&self.objects);
        Self::replace(&mut known, key, Vec::new());
        known.remove(key);
    }

    fn replace(known: &mut BTreeMap<String, Vec<StoredGauge>>, key: &str, gauges: Vec<StoredGauge>) {
        for gauge in &gauges {
            gauge.family.set(&gauge.values(), gauge.value);
        }
        for old in known.get(key).into_iter().flatten() {
            if !gauges.iter().any(|new| new.is_same_series(old)) {
                old.family.delete(&old.values());
            }
        }
        known.insert(key.to_owned(), gauges);
    }
}
