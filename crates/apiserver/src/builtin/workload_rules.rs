//! What workloads must satisfy: selectors, templates, strategies, and what an update may not touch.

use std::borrow::Cow;

use karpenter_primitives::names;
use serde_json::{Map, Value, json};

use super::checks::{
    self, Errors, forbidden, immutable, int_or_percent, invalid, is_empty_selector, is_zero, label_selector,
    non_negative, not_above_100_percent, required, selector_matches, unsupported,
};
use super::fields::{at, child, entries, has, int, items, remove, set, text};
use super::path::At;
use super::pod_spec::{self, Owner};
use super::storage_rules::claim_spec;

const SPEC: At<'static> = At::Top("spec");

/// A pod template at `at`: its labels and its spec.
pub(super) fn template(errors: &mut Errors, template_at: At<'_>, template: &Value) {
    // Go embeds the metadata, and these two paths show it.
    checks::labels(errors, template_at.field("labels"), at(template, &["metadata"]), "labels");
    for (key, _) in entries(at(template, &["metadata"]), "annotations") {
        for complaint in names::qualified_name_errors(&key.to_lowercase()) {
            invalid(errors, template_at.field("annotations"), key.as_str(), complaint);
        }
    }
    pod_spec::validate(errors, template_at.field("spec"), at(template, &["spec"]), Owner::Template);
}

/// Selector and template of a controller that keeps its pods running; `what` is its name in messages.
fn selector_and_template(errors: &mut Errors, spec: &Value, empty: &str, what: &str) {
    let selector = at(spec, &["selector"]);
    let before = errors.len();
    if selector.is_null() {
        required(errors, SPEC.field("selector"), "");
    } else {
        label_selector(errors, SPEC.field("selector"), selector);
        if is_empty_selector(selector) {
            invalid(
                errors,
                SPEC.field("selector"),
                selector.clone(),
                format!("empty selector is invalid for {empty}"),
            );
        } else if errors.len() > before {
            invalid(errors, SPEC.field("selector"), selector.clone(), "invalid label selector");
            return;
        }
    }
    running_template(errors, spec, selector, what);
}

/// The template of a controller that keeps its pods running.
fn running_template(errors: &mut Errors, spec: &Value, selector: &Value, what: &str) {
    let template_at = SPEC.field("template");
    let body = at(spec, &["template"]);
    let labels = at(body, &["metadata", "labels"]);
    if selector.is_null() || !selector_matches(selector, labels) {
        let metadata_at = template_at.field("metadata");
        invalid(
            errors,
            metadata_at.field("labels"),
            labels.clone(),
            "`selector` does not match template `labels`",
        );
    }
    template(errors, template_at, body);
    let spec_at = template_at.field("spec");
    let policy = text(at(body, &["spec"]), "restartPolicy");
    if matches!(policy, "OnFailure" | "Never") {
        unsupported(errors, spec_at.field("restartPolicy"), policy, &["Always"]);
    }
    if has(at(body, &["spec"]), "activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {what} is not Supported");
        forbidden(errors, spec_at.field("activeDeadlineSeconds"), &detail);
    }
}

fn counts(errors: &mut Errors, spec: &Value, keys: &[&str]) {
    for key in keys {
        non_negative(errors, SPEC.field(key), int(spec, key));
    }
}

fn status_counts(errors: &mut Errors, object: &Value, keys: &[&str], within: &[&str]) {
    let status = at(object, &["status"]);
    let status_at = At::Top("status");
    let count = |key: &str| int(status, key).unwrap_or(0);
    for key in keys {
        non_negative(errors, status_at.field(key), Some(count(key)));
    }
    for key in within {
        if count(key) > count("replicas") {
            invalid(errors, status_at.field(key), count(key), "cannot be greater than status.replicas");
        }
    }
    if within.contains(&"readyReplicas") && count("availableReplicas") > count("readyReplicas") {
        let detail = "cannot be greater than readyReplicas";
        invalid(errors, status_at.field("availableReplicas"), count("availableReplicas"), detail);
    }
}

pub(super) fn deployment(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    counts(errors, spec, &["replicas"]);
    selector_and_template(errors, spec, "deployment", "ReplicaSet");
    let strategy = at(spec, &["strategy"]);
    let strategy_at = SPEC.field("strategy");
    match text(strategy, "type") {
        "Recreate" => {
            if has(strategy, "rollingUpdate") {
                let detail = "may not be specified when strategy `type` is 'Recreate'";
                forbidden(errors, strategy_at.field("rollingUpdate"), detail);
            }
        }
        "RollingUpdate" => {
            let rolling_at = strategy_at.field("rollingUpdate");
            rolling_update(errors, rolling_at, at(strategy, &["rollingUpdate"]));
        }
        other => {
            let shown = json!({"Type": other, "RollingUpdate": at(strategy, &["rollingUpdate"])});
            unsupported(errors, strategy_at, shown, &["Recreate", "RollingUpdate"]);
        }
    }
    counts(errors, spec, &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]);
    if let Some(deadline) = int(spec, "progressDeadlineSeconds")
        && deadline <= int(spec, "minReadySeconds").unwrap_or(0)
    {
        invalid(
            errors,
            SPEC.field("progressDeadlineSeconds"),
            deadline,
            "must be greater than minReadySeconds",
        );
    }
}

fn rolling_update(errors: &mut Errors, rolling_at: At<'_>, rolling: &Value) {
    let (unavailable, surge) = (at(rolling, &["maxUnavailable"]), at(rolling, &["maxSurge"]));
    let unavailable_valid = int_or_percent(errors, rolling_at.field("maxUnavailable"), unavailable);
    let surge_valid = int_or_percent(errors, rolling_at.field("maxSurge"), surge);
    if unavailable_valid && surge_valid && is_zero(unavailable) && is_zero(surge) {
        let detail = "may not be 0 when `maxSurge` is 0";
        invalid(errors, rolling_at.field("maxUnavailable"), unavailable.clone(), detail);
    }
    not_above_100_percent(errors, rolling_at.field("maxUnavailable"), unavailable);
}

pub(super) fn deployment_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        let all =
            ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"];
        status_counts(errors, new, &all, &["updatedReplicas", "readyReplicas", "availableReplicas"]);
        return;
    }
    deployment(new, errors);
    selector_unchanged(new, old, errors);
}

fn selector_unchanged(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(errors, SPEC.field("selector"), at(new, &["spec", "selector"]), at(old, &["spec", "selector"]));
}

pub(super) fn replica_set(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    counts(errors, spec, &["replicas", "minReadySeconds"]);
    // The message speaks of a deployment here too.
    selector_and_template(errors, spec, "deployment", "ReplicaSet");
}

pub(super) fn replica_set_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        let all = ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        status_counts(errors, new, &all, &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"]);
        return;
    }
    replica_set(new, errors);
    selector_unchanged(new, old, errors);
}

pub(super) fn stateful_set(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        invalid(errors, SPEC.field("podManagementPolicy"), policy, "must be 'OrderedReady' or 'Parallel'");
    }
    let strategy = at(spec, &["updateStrategy"]);
    let strategy_at = SPEC.field("updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {
            if has(strategy, "rollingUpdate") {
                invalid(
                    errors,
                    strategy_at.field("rollingUpdate"),
                    at(strategy, &["rollingUpdate"]).clone(),
                    "only allowed for updateStrategy 'RollingUpdate'",
                );
            }
        }
        "RollingUpdate" => {
            let rolling_at = strategy_at.field("rollingUpdate");
            non_negative(
                errors,
                rolling_at.field("partition"),
                int(at(strategy, &["rollingUpdate"]), "partition"),
            );
        }
        other => {
            let shown = json!({"Type": other, "RollingUpdate": at(strategy, &["rollingUpdate"])});
            invalid(errors, strategy_at, shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
    let retention = at(spec, &["persistentVolumeClaimRetentionPolicy"]);
    let retention_at = SPEC.field("persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        let policy = text(retention, key);
        if !retention.is_null() && !matches!(policy, "Retain" | "Delete") {
            unsupported(errors, retention_at.field(key), policy, &["Retain", "Delete"]);
        }
    }
    counts(errors, spec, &["replicas", "minReadySeconds"]);
    let ordinals_at = SPEC.field("ordinals");
    non_negative(errors, ordinals_at.field("start"), int(at(spec, &["ordinals"]), "start"));
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        checks::dns_label(errors, SPEC.field("serviceName"), service);
    }
    counts(errors, spec, &["revisionHistoryLimit"]);
    for (index, claim) in items(spec, "volumeClaimTemplates").iter().enumerate() {
        let list_at = SPEC.field("volumeClaimTemplates");
        let claim_at = list_at.index(index);
        claim_spec(errors, claim_at.field("spec"), at(claim, &["spec"]));
    }
    selector_and_template(errors, &with_claimed_volumes(spec), "statefulset", "StatefulSet");
}

/// The spec as the pods will have it: each claim template is a volume of the pod and hides one of its name.
fn with_claimed_volumes(spec: &Value) -> Cow<'_, Value> {
    let claims = items(spec, "volumeClaimTemplates");
    if claims.is_empty() {
        return Cow::Borrowed(spec);
    }
    let name = |claim: &Value| text(at(claim, &["metadata"]), "name").to_owned();
    let mut volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": name(claim), "persistentVolumeClaim": {"claimName": name(claim)}}))
        .collect();
    let own = items(at(spec, &["template", "spec"]), "volumes");
    volumes.extend(own.iter().filter(|v| !claims.iter().any(|c| name(c) == text(v, "name"))).cloned());
    let mut spec = spec.clone();
    set(child(child(&mut spec, "template"), "spec"), "volumes", volumes);
    Cow::Owned(spec)
}

pub(super) fn stateful_set_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        let all = ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
        status_counts(
            errors,
            new,
            &all,
            &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        );
        return;
    }
    stateful_set(new, errors);
    let fixed = |object: &Value| {
        let mut spec = at(object, &["spec"]).clone();
        for key in [
            "replicas",
            "ordinals",
            "template",
            "updateStrategy",
            "revisionHistoryLimit",
            "persistentVolumeClaimRetentionPolicy",
            "minReadySeconds",
        ] {
            remove(&mut spec, key);
        }
        spec
    };
    if fixed(new) != fixed(old) {
        forbidden(
            errors,
            SPEC,
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

pub(super) fn daemon_set(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    selector_and_template(errors, spec, "daemonset", "DaemonSet");
    counts(errors, spec, &["minReadySeconds", "revisionHistoryLimit"]);
    let strategy = at(spec, &["updateStrategy"]);
    let strategy_at = SPEC.field("updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let rolling = at(strategy, &["rollingUpdate"]);
            let rolling_at = strategy_at.field("rollingUpdate");
            let (unavailable, surge) = (at(rolling, &["maxUnavailable"]), at(rolling, &["maxSurge"]));
            int_or_percent(errors, rolling_at.field("maxUnavailable"), unavailable);
            not_above_100_percent(errors, rolling_at.field("maxUnavailable"), unavailable);
            int_or_percent(errors, rolling_at.field("maxSurge"), surge);
            not_above_100_percent(errors, rolling_at.field("maxSurge"), surge);
            match (is_zero(unavailable), is_zero(surge)) {
                (false, false) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    invalid(errors, rolling_at.field("maxSurge"), surge.clone(), detail);
                }
                (true, true) => {
                    required(errors, rolling_at.field("maxUnavailable"), "cannot be 0 when maxSurge is 0");
                }
                _ => {}
            }
        }
        other => {
            let shown = json!({"Type": other, "RollingUpdate": at(strategy, &["rollingUpdate"])});
            unsupported(errors, strategy_at, shown, &["RollingUpdate", "OnDelete"]);
        }
    }
}

pub(super) fn daemon_set_update(new: &Value, old: &Value, subresource: Option<&str>, errors: &mut Errors) {
    if subresource == Some("status") {
        let all = [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
        ];
        status_counts(errors, new, &all, &[]);
        return;
    }
    daemon_set(new, errors);
    selector_unchanged(new, old, errors);
}

pub(super) fn replication_controller(object: &Value, errors: &mut Errors) {
    let spec = at(object, &["spec"]);
    counts(errors, spec, &["minReadySeconds", "replicas"]);
    let labels = at(spec, &["selector"]);
    if labels.as_object().is_none_or(Map::is_empty) {
        required(errors, SPEC.field("selector"), "");
    }
    if has(spec, "template") {
        running_template(errors, spec, &json!({"matchLabels": labels}), "ReplicationController");
    } else {
        required(errors, SPEC.field("template"), "");
    }
}

pub(super) fn pod_template(object: &Value, errors: &mut Errors) {
    template(errors, At::Top("template"), at(object, &["template"]));
}

pub(super) fn controller_revision(object: &Value, errors: &mut Errors) {
    non_negative(errors, At::Top("revision"), int(object, "revision"));
    if at(object, &["data"]).is_null() {
        required(errors, At::Top("data"), "data is mandatory");
    }
}

pub(super) fn controller_revision_update(new: &Value, old: &Value, _: Option<&str>, errors: &mut Errors) {
    immutable(errors, At::Top("data"), at(new, &["data"]), at(old, &["data"]));
    controller_revision(new, errors);
}
