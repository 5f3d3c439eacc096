//! Holds the API types to what Go Karpenter answers: rows recorded under `conformance/api`, cases under `conformance/crds`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod budgets;
mod durations;
mod hashes;
mod kube_client;
mod runtime_validation;

use serde_json::Value;

/// The rows of one recorded subject.
fn rows(recorded: &str) -> Vec<Value> {
    serde_json::from_str(recorded).expect("a recorded file is a JSON list")
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}

/// A NodePool with a recorded spec.
fn pool(spec: &Value) -> karpenter_api::NodePool {
    serde_json::from_value(serde_json::json!({ "metadata": {}, "spec": spec }))
        .expect("a recorded spec is a NodePool's")
}
