//! What affinity, spread constraints and tolerations must satisfy.

use karpenter_primitives::names;
use serde_json::Value;

use super::checks::{
    self, Errors, dns_label, duplicate, forbidden, invalid, label_selector, qualified_name, required,
    unsupported,
};
use super::fields::{at as value_at, has, int, items, text};
use super::path::At;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(errors: &mut Errors, at: At<'_>, affinity: &Value) {
    if let Some(node) = affinity.get("nodeAffinity") {
        let at = at.field("nodeAffinity");
        if let Some(selector) = node.get(REQUIRED) {
            node_selector(errors, at.field(REQUIRED), selector);
        }
        for (index, term) in items(node, PREFERRED).iter().enumerate() {
            let list = at.field(PREFERRED);
            let at = list.index(index);
            weight(errors, at, term);
            node_selector_term(errors, at.field("preference"), value_at(term, &["preference"]));
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = affinity.get(kind) else { continue };
        let at = at.field(kind);
        for (index, term) in items(terms, REQUIRED).iter().enumerate() {
            pod_affinity_term(errors, at.field(REQUIRED).index(index), term);
        }
        for (index, weighted) in items(terms, PREFERRED).iter().enumerate() {
            let list = at.field(PREFERRED);
            let at = list.index(index);
            weight(errors, at, weighted);
            pod_affinity_term(errors, at.field("podAffinityTerm"), value_at(weighted, &["podAffinityTerm"]));
        }
    }
}

fn weight(errors: &mut Errors, at: At<'_>, term: &Value) {
    let weight = int(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        invalid(errors, at.field("weight"), weight, "must be in the range 1-100");
    }
}

/// A node selector: at least one term.
pub(super) fn node_selector(errors: &mut Errors, at: At<'_>, selector: &Value) {
    let at = at.field("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        required(errors, at, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_selector_term(errors, at.index(index), term);
    }
}

fn node_selector_term(errors: &mut Errors, at: At<'_>, term: &Value) {
    for (index, requirement) in items(term, "matchExpressions").iter().enumerate() {
        let list = at.field("matchExpressions");
        let at = list.index(index);
        let values = items(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                required(errors, at.field("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => forbidden(
                errors,
                at.field("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "Gt" | "Lt" if values.len() != 1 => required(
                errors,
                at.field("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => invalid(errors, at.field("operator"), other, "not a valid selector operator"),
        }
        qualified_name(errors, at.field("key"), text(requirement, "key"));
        for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
            checks::name(errors, at.field("values").index(index), value, names::label_value_errors);
        }
    }
    for (index, requirement) in items(term, "matchFields").iter().enumerate() {
        let list = at.field("matchFields");
        let at = list.index(index);
        let values = items(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" => {
                if values.len() != 1 {
                    required(
                        errors,
                        at.field("values"),
                        "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                    );
                }
            }
            other => invalid(errors, at.field("operator"), other, "not a valid selector operator"),
        }
        if text(requirement, "key") != "metadata.name" {
            invalid(errors, at.field("key"), text(requirement, "key"), "not a valid field selector key");
        }
    }
}

fn pod_affinity_term(errors: &mut Errors, at: At<'_>, term: &Value) {
    for key in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = term.get(key) {
            label_selector(errors, at.field(key), selector);
        }
    }
    for namespace in items(term, "namespaces").iter().filter_map(Value::as_str) {
        dns_label(errors, at.field("namespace"), namespace);
    }
    label_keys(errors, at, term);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        required(errors, at.field("topologyKey"), "can not be empty");
    }
    qualified_name(errors, at.field("topologyKey"), key);
}

fn label_keys(errors: &mut Errors, at: At<'_>, term: &Value) {
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        for (index, key) in items(term, list).iter().filter_map(Value::as_str).enumerate() {
            if !has(term, "labelSelector") {
                forbidden(errors, at.field(list), "must not be specified when labelSelector is not set");
                break;
            }
            qualified_name(errors, at.field(list).index(index), key);
        }
    }
}

pub(super) fn spread_constraints(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    for (index, constraint) in list.iter().enumerate() {
        let at = at.index(index);
        let skew = int(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            invalid(errors, at.field("maxSkew"), skew, "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            required(errors, at.field("topologyKey"), "can not be empty");
        }
        let action = text(constraint, "whenUnsatisfiable");
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            unsupported(errors, at.field("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let repeated = list[index + 1..]
            .iter()
            .any(|other| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action);
        if repeated {
            duplicate(errors, at.field("{topologyKey, whenUnsatisfiable}"), format!("{{{key}, {action}}}"));
        }
        if let Some(domains) = int(constraint, "minDomains") {
            if domains <= 0 {
                invalid(errors, at.field("minDomains"), domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                invalid(errors, at.field("minDomains"), domains, detail);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if has(constraint, policy) && !matches!(text(constraint, policy), "Honor" | "Ignore") {
                unsupported(errors, at.field(policy), text(constraint, policy), &["Honor", "Ignore"]);
            }
        }
        label_keys(errors, at, constraint);
        if let Some(selector) = constraint.get("labelSelector") {
            label_selector(errors, at.field("labelSelector"), selector);
        }
    }
}

pub(super) const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn tolerations(errors: &mut Errors, at: At<'_>, list: &[Value]) {
    for (index, toleration) in list.iter().enumerate() {
        let at = at.index(index);
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        if key.is_empty() {
            if operator != "Exists" {
                invalid(
                    errors,
                    at.field("operator"),
                    operator,
                    "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
                );
            }
        } else {
            qualified_name(errors, at.field("key"), key);
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            invalid(
                errors,
                at.field("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "" | "Equal" => {
                let complaints = names::label_value_errors(value);
                if !complaints.is_empty() {
                    invalid(errors, at.field("operator"), value, complaints.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                invalid(
                    errors,
                    at.field("operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            other => unsupported(errors, at.field("operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            unsupported(errors, at.field("effect"), effect, EFFECTS);
        }
    }
}
