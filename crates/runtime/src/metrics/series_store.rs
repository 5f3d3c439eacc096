//! Gauges that describe objects: all series of an object are replaced together, so that none outlives a changed label.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::GaugeVec;
use super::label_values::Values;
use crate::sync::lock;

/// The gauges of many objects, by a key of the caller's.
#[derive(Debug, Default)]
pub struct GaugeStore {
    objects: Mutex<BTreeMap<String, Vec<Series>>>,
}

/// A series that an object has.
#[derive(Clone, Debug)]
struct Series {
    family: GaugeVec,
    values: Values,
}

impl Series {
    fn of(gauge: &StoredGauge) -> Self {
        let labels: Vec<&str> = gauge.labels.iter().map(String::as_str).collect();
        Self { family: gauge.family.clone(), values: gauge.family.0.share(&labels) }
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.family.0, &other.family.0) && self.values == other.values
    }
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

    fn replace(known: &mut BTreeMap<String, Vec<Series>>, key: &str, gauges: Vec<StoredGauge>) {
        let mut series = Vec::with_capacity(gauges.len());
        for gauge in &gauges {
            let one = Series::of(gauge);
            one.family.0.child_of(one.values.clone()).set(gauge.value);
            series.push(one);
        }
        for old in known.get(key).into_iter().flatten() {
            if !series.iter().any(|new| new.is(old)) {
                old.family.0.remove(&old.values);
            }
        }
        known.insert(key.to_owned(), series);
    }
}
