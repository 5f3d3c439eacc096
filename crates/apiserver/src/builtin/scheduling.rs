//! PriorityClasses, and the two every server starts with.

use serde_json::{Value, json};

use super::checks::{self, Errors, forbidden, one_of};
use super::fields::{at, default_to, flag, int, text};
use super::path::At;
use super::{Lookup, Rules};
use crate::status::ApiError;

pub(super) const PRIORITY_CLASS: Rules = Rules {
    default: |class| default_to(class, "preemptionPolicy", "PreemptLowerPriority"),
    prepare_create: one_global_default,
    validate_create: validate,
    validate_update,
    ..Rules::NONE
};

/// The classes a server creates for itself.
pub(super) fn initial_classes() -> Vec<Value> {
    [
        ("system-node-critical", 2_000_001_000_i64, "Used for system critical pods that must not be moved from their current node."),
        ("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
    ]
    .into_iter()
    .map(|(name, value, description)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "generation": 1},
            "value": value,
            "description": description,
            "preemptionPolicy": "PreemptLowerPriority",
        })
    })
    .collect()
}

/// The highest value a user may give.
const HIGHEST: i64 = 1_000_000_000;

fn one_global_default(class: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    if !flag(class, "globalDefault") {
        return Ok(());
    }
    let others = cluster.list("scheduling.k8s.io", "priorityclasses", "");
    match others.iter().find(|other| flag(other, "globalDefault")) {
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                text(at(other, &["metadata"]), "name")
            );
            let name = text(at(class, &["metadata"]), "name");
            Err(ApiError::forbidden("scheduling.k8s.io", "priorityclasses", name, &why))
        }
        None => Ok(()),
    }
}

fn validate(class: &Value, errors: &mut Errors) {
    let name = text(at(class, &["metadata"]), "name");
    let value = int(class, "value").unwrap_or(0);
    if name.starts_with("system-") {
        if !initial_classes().iter().any(|known| text(at(known, &["metadata"]), "name") == name) {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
            );
            forbidden(errors, At::Top("metadata.name"), &detail);
        }
    } else if value > HIGHEST {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        forbidden(errors, At::Top("value"), &detail);
    }
    one_of(
        errors,
        At::Top("preemptionPolicy"),
        text(class, "preemptionPolicy"),
        &["PreemptLowerPriority", "Never"],
    );
}

fn validate_update(new: &Value, old: &Value, _subresource: Option<&str>, errors: &mut Errors) {
    if int(new, "value") != int(old, "value") {
        forbidden(errors, At::Top("value"), "may not be changed in an update.");
    }
    checks::immutable(
        errors,
        At::Top("preemptionPolicy"),
        at(new, &["preemptionPolicy"]),
        at(old, &["preemptionPolicy"]),
    );
}
