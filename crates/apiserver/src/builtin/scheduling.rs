//! PriorityClasses, and the two every server starts with.

use serde_json::{Value, json};

use super::Rules;
use super::fields::default_to;

pub(super) const PRIORITY_CLASS: Rules =
    Rules { default: |class| default_to(class, "preemptionPolicy", "PreemptLowerPriority"), ..Rules::NONE };

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
