//! Events: one set of objects under two names. `v1` is what is stored, `events.k8s.io/v1` another view of it.

use serde_json::Value;

use super::fields::{remove, set};

/// Each field's name in `v1` and in `events.k8s.io/v1`, where they differ.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// `events.k8s.io/v1` to `v1`.
pub(super) fn to_core(event: &mut Value) {
    set(event, "apiVersion", "v1");
    for (core, view) in NAMES {
        rename(event, view, core);
    }
}

/// `v1` to `events.k8s.io/v1`.
pub(super) fn from_core(event: &mut Value) {
    set(event, "apiVersion", "events.k8s.io/v1");
    for (core, view) in NAMES {
        rename(event, core, view);
    }
}

fn rename(event: &mut Value, from: &str, to: &str) {
    if let Some(value) = remove(event, from) {
        set(event, to, value);
    }
}
