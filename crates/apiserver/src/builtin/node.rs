//! Nodes.

use serde_json::{Value, json};

use super::fields::{at, child, has, items, set, text};
use super::pod_defaults::default_resource_list;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const RULES: Rules =
    Rules { default, prepare_create, status_on_create: StatusOnCreate::Kept, ..Rules::NONE };

fn default(node: &mut Value) {
    let status = child(node, "status");
    for list in ["capacity", "allocatable"] {
        if let Some(amounts) = status.get_mut(list) {
            default_resource_list(amounts);
        }
    }
    if !has(status, "allocatable") && has(status, "capacity") {
        let capacity = at(status, &["capacity"]).clone();
        set(status, "allocatable", capacity);
    }
}

/// The admission plugin `TaintNodesByCondition`: a new node takes no pods until its controller says it is ready.
fn prepare_create(node: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    const NOT_READY: &str = "node.kubernetes.io/not-ready";
    let spec = child(node, "spec");
    let present = items(spec, "taints")
        .iter()
        .any(|t| text(t, "key") == NOT_READY && text(t, "effect") == "NoSchedule");
    if !present {
        let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
        match spec.get_mut("taints").and_then(Value::as_array_mut) {
            Some(taints) => taints.push(taint),
            None => set(spec, "taints", json!([taint])),
        }
    }
    Ok(())
}
