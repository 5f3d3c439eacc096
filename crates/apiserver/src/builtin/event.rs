//! Events: one set of objects under two names. `v1` is what is stored, `events.k8s.io/v1` another view of it.

use serde_json::Value;

use super::Rules;
use super::checks::{Errors, invalid, qualified_name, required};
use super::fields::{at, has, remove, set, text};
use super::path::At;

pub(super) const CORE: Rules = Rules { validate_create: validate_core, ..Rules::NONE };
pub(super) const VIEW: Rules = Rules { validate_create: validate_view, ..Rules::NONE };

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

/// Rules depend on the view the event came through, and on whether it has an `eventTime`.
fn validate_core(event: &Value, errors: &mut Errors) {
    if has(event, "eventTime") {
        same_namespace(event, errors, "involvedObject");
        controller(event, errors, "reportingComponent");
        instance_action_reason(event, errors);
    } else {
        same_namespace(event, errors, "involvedObject");
    }
}

/// An event is in the namespace of what it is about; for cluster-scoped objects that is `default`.
fn same_namespace(event: &Value, errors: &mut Errors, about: &str) {
    let namespace = text(at(event, &["metadata"]), "namespace");
    let involved = text(at(event, &[about]), "namespace");
    let matches = if involved.is_empty() {
        namespace.is_empty() || namespace == "default" || namespace == "kube-system"
    } else {
        involved == namespace
    };
    if !matches {
        invalid(errors, At::Top("involvedObject.namespace"), involved, "does not match event.namespace");
    }
}

fn controller(event: &Value, errors: &mut Errors, key: &str) {
    let name = text(event, key);
    if name.is_empty() {
        required(errors, At::Top(key), "");
    }
    qualified_name(errors, At::Top(key), name);
}

fn instance_action_reason(event: &Value, errors: &mut Errors) {
    for key in ["reportingInstance", "action", "reason"] {
        if text(event, key).is_empty() {
            required(errors, At::Top(key), "");
        }
    }
}

fn validate_new_style(event: &Value, errors: &mut Errors) {
    same_namespace(event, errors, "regarding");
    controller(event, errors, "reportingController");
    instance_action_reason(event, errors);
    let kind = text(event, "type");
    if !matches!(kind, "Normal" | "Warning") {
        invalid(errors, At::Top("type"), "", format!("has invalid value: {kind}"));
    }
}

/// A new event through `events.k8s.io/v1`.
fn validate_view(event: &Value, errors: &mut Errors) {
    if !has(event, "eventTime") {
        required(errors, At::Top("eventTime"), "");
        let kind = text(event, "type");
        if !matches!(kind, "Normal" | "Warning") {
            invalid(errors, At::Top("type"), "", format!("has invalid value: {kind}"));
        }
        return;
    }
    validate_new_style(event, errors);
    for (field, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ] {
        if has(event, field) {
            invalid(errors, At::Top(shown), "", "needs to be unset");
        }
    }
}
