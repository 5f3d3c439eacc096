//! Nodes.

use karpenter_primitives::names;
use serde_json::{Value, json};

use super::checks::{self, Errors, NOT_A_CIDR, forbidden, invalid, qualified_name, required, unsupported};
use super::fields::{at, child, entries, has, items, set, text};
use super::path::At;
use super::pod_defaults::default_resource_list;
use super::scheduling_rules::EFFECTS;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    validate_create: validate,
    validate_update,
    status_on_create: StatusOnCreate::Kept,
    ..Rules::NONE
};

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

fn validate(node: &Value, errors: &mut Errors) {
    let (spec, status) = (at(node, &["spec"]), at(node, &["status"]));
    taints(items(spec, "taints"), errors);
    let status_at = At::Top("status");
    for list in ["capacity", "allocatable"] {
        let list_at = status_at.field(list);
        for (name, amount) in entries(status, list) {
            checks::non_negative_quantity(errors, list_at.field(name), amount);
        }
    }
    for (index, cidr) in items(spec, "podCIDRs").iter().filter_map(Value::as_str).enumerate() {
        if !checks::is_cidr(cidr) {
            invalid(errors, At::Top("spec.podCIDRs").index(index), cidr, NOT_A_CIDR);
        }
    }
}

/// Taints are reported under `metadata`, where they once were.
fn taints(list: &[Value], errors: &mut Errors) {
    let list_at = At::Top("metadata.taints");
    let mut seen = Vec::new();
    for (index, taint) in list.iter().enumerate() {
        let taint_at = list_at.index(index);
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        qualified_name(errors, taint_at.field("key"), key);
        let complaints = names::label_value_errors(value);
        if !complaints.is_empty() {
            invalid(errors, taint_at.field("value"), value, complaints.join(";"));
        }
        if effect.is_empty() {
            required(errors, taint_at.field("effect"), "");
        } else if !EFFECTS.contains(&effect) {
            unsupported(errors, taint_at.field("effect"), effect, EFFECTS);
        } else if seen.contains(&(key, effect)) {
            checks::duplicate(errors, taint_at, Value::Null);
            if let Some(error) = errors.last_mut() {
                "taints must be unique by key and effect pair".clone_into(&mut error.detail);
            }
            let (key, value, added) = (json!(key), json!(value), at(taint, &["timeAdded"]));
            checks::last_shown_as(
                errors,
                format!(r#"{{"Key":{key},"Value":{value},"Effect":"{effect}","TimeAdded":{added}}}"#),
            );
        } else {
            seen.push((key, effect));
        }
    }
}

fn validate_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    validate(new, errors);
    if subresource == Some("status") {
        return;
    }
    let (spec, before) = (at(new, &["spec"]), at(old, &["spec"]));
    // The update checks the taints once more, so that a bad one is told twice.
    if items(spec, "taints") != items(before, "taints") {
        taints(items(spec, "taints"), errors);
    }
    if !items(before, "podCIDRs").is_empty() && items(spec, "podCIDRs") != items(before, "podCIDRs") {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        forbidden(errors, At::Top("spec.podCIDRs"), detail);
    }
    if has(before, "providerID") && text(spec, "providerID") != text(before, "providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        forbidden(errors, At::Top("spec.providerID"), detail);
    }
}
