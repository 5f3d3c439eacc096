//! Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers and PodTemplates.

use serde_json::{Value, json};

use super::fields::{at, child, default_to, has, inner, items_mut, keep, set, text};
use super::pod_defaults::{default_claim_spec, default_spec};
use super::workload_rules;
use super::{Lookup, Rules};
use crate::status::ApiError;

pub(super) const DEPLOYMENT: Rules = Rules {
    default: default_deployment,
    prepare_update: prepare_deployment_update,
    validate_create: workload_rules::deployment,
    validate_update: workload_rules::deployment_update,
    ..Rules::NONE
};
pub(super) const REPLICA_SET: Rules = Rules {
    default: default_replica_set,
    validate_create: workload_rules::replica_set,
    validate_update: workload_rules::replica_set_update,
    ..Rules::NONE
};
pub(super) const STATEFUL_SET: Rules = Rules {
    default: default_stateful_set,
    validate_create: workload_rules::stateful_set,
    validate_update: workload_rules::stateful_set_update,
    ..Rules::NONE
};
pub(super) const DAEMON_SET: Rules = Rules {
    default: default_daemon_set,
    prepare_create: prepare_daemon_set,
    prepare_update: prepare_daemon_set_update,
    validate_create: workload_rules::daemon_set,
    validate_update: workload_rules::daemon_set_update,
    ..Rules::NONE
};
pub(super) const REPLICATION_CONTROLLER: Rules = Rules {
    default: default_replication_controller,
    validate_create: workload_rules::replication_controller,
    validate_update: |new, _, subresource, errors| {
        if subresource.is_none() {
            workload_rules::replication_controller(new, errors);
        }
    },
    ..Rules::NONE
};
pub(super) const POD_TEMPLATE: Rules = Rules {
    default: default_pod_template,
    validate_create: workload_rules::pod_template,
    validate_update: |new, _, _, errors| workload_rules::pod_template(new, errors),
    ..Rules::NONE
};
pub(super) const CONTROLLER_REVISION: Rules = Rules {
    validate_create: workload_rules::controller_revision,
    validate_update: workload_rules::controller_revision_update,
    ..Rules::NONE
};

/// Defaults of the template within `owner`.
pub(super) fn default_template(owner: &mut Value) {
    default_spec(child(child(owner, "template"), "spec"));
}

fn default_deployment(deployment: &mut Value) {
    let spec = child(deployment, "spec");
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    default_to(spec, "progressDeadlineSeconds", 600);
    let strategy = child(spec, "strategy");
    default_to(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", "25%");
        default_to(rolling, "maxSurge", "25%");
    }
    default_template(spec);
}

fn default_replica_set(set: &mut Value) {
    let spec = child(set, "spec");
    default_to(spec, "replicas", 1);
    default_template(spec);
}

fn default_stateful_set(stateful: &mut Value) {
    let spec = child(stateful, "spec");
    default_to(spec, "podManagementPolicy", "OrderedReady");
    let strategy = child(spec, "updateStrategy");
    if !has(strategy, "type") {
        set(strategy, "type", "RollingUpdate");
        default_to(strategy, "rollingUpdate", json!({}));
    }
    if text(strategy, "type") == "RollingUpdate"
        && let Some(rolling) = inner(strategy, "rollingUpdate")
    {
        default_to(rolling, "partition", 0);
    }
    let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
    default_to(retention, "whenDeleted", "Retain");
    default_to(retention, "whenScaled", "Retain");
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    default_template(spec);
    for claim in items_mut(spec, "volumeClaimTemplates") {
        default_to(claim, "apiVersion", "v1");
        default_to(claim, "kind", "PersistentVolumeClaim");
        default_claim_spec(child(claim, "spec"));
        default_to(child(claim, "status"), "phase", "Pending");
    }
}

fn default_daemon_set(daemon: &mut Value) {
    let spec = child(daemon, "spec");
    let strategy = child(spec, "updateStrategy");
    default_to(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = child(strategy, "rollingUpdate");
        default_to(rolling, "maxUnavailable", 1);
        default_to(rolling, "maxSurge", 0);
    }
    default_to(spec, "revisionHistoryLimit", 10);
    default_template(spec);
}

fn default_replication_controller(controller: &mut Value) {
    let labels = at(controller, &["spec", "template", "metadata", "labels"]).clone();
    if labels.is_object() {
        default_to(child(controller, "spec"), "selector", labels.clone());
        default_to(child(controller, "metadata"), "labels", labels);
    }
    let spec = child(controller, "spec");
    default_to(spec, "replicas", 1);
    if has(spec, "template") {
        default_template(spec);
    }
}

fn default_pod_template(template: &mut Value) {
    default_template(template);
}

/// A status write leaves a Deployment's labels alone.
fn prepare_deployment_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    if subresource == Some("status") {
        keep(child(new, "metadata"), at(old, &["metadata"]), "labels");
    }
}

/// The generation of a DaemonSet's template, kept in an annotation since the field has left the API.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn prepare_daemon_set(daemon: &mut Value, _cluster: &dyn Lookup) -> Result<(), ApiError> {
    let annotations = child(child(daemon, "metadata"), "annotations");
    let given = text(annotations, TEMPLATE_GENERATION).parse::<i64>().unwrap_or(0);
    set(annotations, TEMPLATE_GENERATION, given.max(1).to_string());
    Ok(())
}

fn prepare_daemon_set_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    let before = text(at(old, &["metadata", "annotations"]), TEMPLATE_GENERATION).parse::<i64>().unwrap_or(0);
    let changed = subresource.is_none() && at(new, &["spec", "template"]) != at(old, &["spec", "template"]);
    let annotations = child(child(new, "metadata"), "annotations");
    set(annotations, TEMPLATE_GENERATION, (before + i64::from(changed)).to_string());
}
