//! The little that may change in a pod that exists, and what its status must satisfy.

use serde_json::{Map, Value, json};

use super::checks::{self, Errors, forbidden, invalid};
use super::fields::{at, child, int, items, items_mut, keep, remove, set, text};
use super::path::At;
use super::pod_spec::{self, Owner};
use super::scheduling_rules::tolerations;

pub(super) fn validate_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    match subresource {
        Some("status") => validate_status(new, old, errors),
        // Resizing and debugging change what a plain update may not.
        Some("resize" | "ephemeralcontainers") => {
            pod_spec::validate(errors, At::Top("spec"), at(new, &["spec"]), Owner::Pod);
        }
        _ => validate_spec_update(at(new, &["spec"]), at(old, &["spec"]), errors),
    }
}

fn validate_status(pod: &Value, old: &Value, errors: &mut Errors) {
    let status = at(pod, &["status"]);
    let status_at = At::Top("status");
    let (class, before) = (text(status, "qosClass"), text(at(old, &["status"]), "qosClass"));
    if class != before && !before.is_empty() {
        invalid(errors, status_at.field("qosClass"), class, checks::IMMUTABLE);
    }
    let list_at = status_at.field("conditions");
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        checks::qualified_name(errors, list_at.index(index).field("Type"), text(condition, "type"));
    }
    for list in ["podIPs", "hostIPs"] {
        let list_at = status_at.field(list);
        for (index, address) in items(status, list).iter().enumerate() {
            if !checks::is_ip(text(address, "ip")) {
                invalid(errors, list_at.index(index), text(address, "ip"), checks::NOT_AN_IP);
            }
        }
    }
}

const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn validate_spec_update(new: &Value, old: &Value, errors: &mut Errors) {
    let spec_at = At::Top("spec");
    pod_spec::validate(errors, spec_at, new, Owner::Pod);
    for list in ["containers", "initContainers"] {
        if items(new, list).len() != items(old, list).len() {
            forbidden(errors, spec_at.field(list), "pod updates may not add or remove containers");
            return;
        }
    }
    let deadline_at = spec_at.field("activeDeadlineSeconds");
    match (int(new, "activeDeadlineSeconds"), int(old, "activeDeadlineSeconds")) {
        (Some(new), Some(old)) if new > old => {
            invalid(errors, deadline_at, new, "must be less than or equal to previous value");
            return;
        }
        (None, Some(_)) => {
            invalid(errors, deadline_at, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
    only_added_tolerations(new, old, errors);
    for (index, gate) in items(new, "schedulingGates").iter().enumerate() {
        if !items(old, "schedulingGates").contains(gate) {
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "name"));
            forbidden(errors, spec_at.field("schedulingGates").index(index).field("name"), &detail);
        }
    }
    if new == old {
        return;
    }
    let mut munged = new.clone();
    for list in ["containers", "initContainers"] {
        for (container, before) in items_mut(&mut munged, list).iter_mut().zip(items(old, list)) {
            keep(container, before, "image");
        }
    }
    for key in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        keep(&mut munged, old, key);
    }
    let grace = |spec: &Value| int(spec, "terminationGracePeriodSeconds");
    if grace(old).is_some_and(|s| s < 0) && grace(new) == Some(1) {
        keep(&mut munged, old, "terminationGracePeriodSeconds");
    }
    if !items(old, "schedulingGates").is_empty() {
        narrowed_scheduling(new, old, &mut munged, errors);
    }
    if &munged != old {
        forbidden(errors, spec_at, UPDATABLE);
    }
}

fn only_added_tolerations(new: &Value, old: &Value, errors: &mut Errors) {
    let at = At::Top("spec.tolerations");
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        remove(&mut toleration, "tolerationSeconds");
        toleration
    };
    if items(new, "tolerations") == items(old, "tolerations") {
        return;
    }
    let kept = |before: &Value| {
        items(new, "tolerations").iter().any(|t| without_seconds(t) == without_seconds(before))
    };
    if items(old, "tolerations").iter().all(kept) {
        tolerations(errors, at, items(new, "tolerations"));
    } else {
        forbidden(errors, at, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// While a pod is gated its placement may be narrowed, never widened.
fn narrowed_scheduling(new: &Value, old: &Value, munged: &mut Value, errors: &mut Errors) {
    let (after, before) = (at(new, &["nodeSelector"]), at(old, &["nodeSelector"]));
    let kept = before.as_object().into_iter().flatten().all(|(key, value)| after.get(key) == Some(value));
    if !kept {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        invalid(errors, At::Top("spec.nodeSelector"), after.clone(), detail);
    }
    keep(munged, old, "nodeSelector");
    let (mine, theirs) = (at(new, &["affinity", "nodeAffinity"]), at(old, &["affinity", "nodeAffinity"]));
    if mine == theirs {
        return;
    }
    let terms = |affinity: &Value| {
        at(affinity, &["requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"]).clone()
    };
    let (new_terms, old_terms) = (terms(mine), terms(theirs));
    let narrowed = old_terms.as_array().is_none_or(|old_terms| {
        let new_terms = new_terms.as_array().map(Vec::as_slice).unwrap_or_default();
        new_terms.len() == old_terms.len()
            && old_terms.iter().zip(new_terms).all(|(old, new)| {
                ["matchExpressions", "matchFields"]
                    .iter()
                    .all(|list| items(new, list).starts_with(items(old, list)))
            })
    });
    if !narrowed {
        let field =
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        invalid(errors, At::Top(field), new_terms, "only additions are allowed (no mutations or deletions)");
    }
    match (at(new, &["affinity"]).is_null(), theirs.is_null()) {
        (true, false) => set(munged, "affinity", json!({"nodeAffinity": theirs})),
        (false, true) => {
            let affinity = child(munged, "affinity");
            remove(affinity, "nodeAffinity");
            if at(old, &["affinity"]).is_null() && affinity.as_object().is_some_and(Map::is_empty) {
                remove(munged, "affinity");
            }
        }
        (false, false) => set(child(munged, "affinity"), "nodeAffinity", theirs.clone()),
        (true, true) => {}
    }
}
