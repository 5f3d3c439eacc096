//! Pods: their own defaults, what admission adds, and what an update may not touch.

use serde_json::{Map, Value, json};

use super::fields::{at, child, default_to, has, inner, int, items, items_mut, keep, remove, set, text};
use super::pod_defaults::{default_pod_only, default_spec};
use super::pod_spec::validate_pod;
use super::pod_update::validate_update;
use super::quantity;
use super::{Lookup, Rules, StatusOnCreate};
use crate::status::ApiError;

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    prepare_update,
    validate_create: |pod, errors| validate_pod(errors, at(pod, &["spec"])),
    validate_update,
    status_on_create: StatusOnCreate::Kept,
};

fn default(pod: &mut Value) {
    let spec = child(pod, "spec");
    default_pod_only(spec);
    default_spec(spec);
}

fn prepare_create(pod: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    resolve_priority(pod, cluster)?;
    tolerate_node_loss(pod);
    overhead_from_runtime_class(pod, cluster)?;
    at_least_one_second_of_grace(pod);
    merge_label_keys(pod);
    let mut status = Map::new();
    status.insert("phase".into(), "Pending".into());
    status.insert("qosClass".into(), qos_class(child(pod, "spec")).into());
    if !items(at(pod, &["spec"]), "schedulingGates").is_empty() {
        status.insert(
            "conditions".into(),
            json!([{
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": null,
                "lastTransitionTime": at(pod, &["metadata", "creationTimestamp"]),
            }]),
        );
    }
    set(pod, "status", Value::Object(status));
    Ok(())
}

/// The admission plugin `Priority`: the class gives the number and the preemption policy.
fn resolve_priority(pod: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    const GROUP: &str = "scheduling.k8s.io";
    let name = text(at(pod, &["metadata"]), "name").to_owned();
    let spec = child(pod, "spec");
    let wanted = text(spec, "priorityClassName").to_owned();
    let class = if wanted.is_empty() {
        // Of several global defaults the one with the lowest value counts.
        cluster
            .list(GROUP, "priorityclasses", "")
            .into_iter()
            .filter(|class| class.get("globalDefault").and_then(Value::as_bool).unwrap_or(false))
            .min_by_key(|class| int(class, "value").unwrap_or(0))
    } else {
        let class = cluster.get(GROUP, "priorityclasses", "", &wanted);
        if class.is_none() {
            let why = format!("no PriorityClass with name {wanted} was found");
            return Err(ApiError::forbidden("", "pods", &name, &why));
        }
        class
    };
    let (value, policy) = match &class {
        Some(class) => {
            if wanted.is_empty() {
                set(spec, "priorityClassName", text(at(class, &["metadata"]), "name"));
            }
            (int(class, "value").unwrap_or(0), text(class, "preemptionPolicy"))
        }
        None => (0, ""),
    };
    if int(spec, "priority").is_some_and(|given| given != value) {
        let why = format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name",
            int(spec, "priority").unwrap_or(0)
        );
        return Err(ApiError::forbidden("", "pods", &name, &why));
    }
    set(spec, "priority", value);
    let policy = if policy.is_empty() { "PreemptLowerPriority" } else { policy };
    let given = text(spec, "preemptionPolicy");
    if !given.is_empty() && given != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(ApiError::forbidden("", "pods", &name, &why));
    }
    set(spec, "preemptionPolicy", policy);
    Ok(())
}

/// The admission plugin `RuntimeClass`: overhead and scheduling constraints come from the class.
fn overhead_from_runtime_class(pod: &mut Value, cluster: &dyn Lookup) -> Result<(), ApiError> {
    let name = text(at(pod, &["metadata"]), "name").to_owned();
    let spec = child(pod, "spec");
    let wanted = text(spec, "runtimeClassName").to_owned();
    if wanted.is_empty() {
        if has(spec, "overhead") {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            return Err(ApiError::forbidden("", "pods", &name, why));
        }
        return Ok(());
    }
    let Some(class) = cluster.get("node.k8s.io", "runtimeclasses", "", &wanted) else {
        let why = format!("pod rejected: RuntimeClass {wanted:?} not found");
        return Err(ApiError::forbidden("", "pods", &name, &why));
    };
    let overhead = at(&class, &["overhead", "podFixed"]);
    if overhead.is_object() {
        if has(spec, "overhead") && spec.get("overhead") != Some(overhead) {
            let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
            return Err(ApiError::forbidden("", "pods", &name, why));
        }
        set(spec, "overhead", overhead.clone());
    }
    let scheduling = at(&class, &["scheduling"]);
    for (key, value) in super::fields::entries(scheduling, "nodeSelector") {
        default_to(child(spec, "nodeSelector"), key, value.clone());
    }
    let extra = items(scheduling, "tolerations").to_vec();
    for toleration in extra {
        push_toleration(spec, toleration);
    }
    Ok(())
}

/// The admission plugin `DefaultTolerationSeconds`: five minutes on a node that is not ready or not reachable.
fn tolerate_node_loss(pod: &mut Value) {
    let spec = child(pod, "spec");
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = items(spec, "tolerations").iter().any(|t| {
            matches!(text(t, "key"), k if k == key || k.is_empty())
                && matches!(text(t, "effect"), "" | "NoExecute")
        });
        if !tolerated {
            push_toleration(
                spec,
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

fn push_toleration(spec: &mut Value, toleration: Value) {
    match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        Some(list) => {
            if !list.contains(&toleration) {
                list.push(toleration);
            }
        }
        None => set(spec, "tolerations", json!([toleration])),
    }
}

/// `matchLabelKeys` and `mismatchLabelKeys` become part of the selector they stand beside.
fn merge_label_keys(pod: &mut Value) {
    let spec = at(pod, &["spec"]);
    if !has(spec, "topologySpreadConstraints") && !has(spec, "affinity") {
        return;
    }
    let labels = at(pod, &["metadata", "labels"]).clone();
    let spec = child(pod, "spec");
    for constraint in items_mut(spec, "topologySpreadConstraints") {
        merge_into_selector(constraint, &labels);
    }
    let Some(affinity) = inner(spec, "affinity") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(terms) = inner(affinity, kind) else { continue };
        for term in items_mut(terms, "requiredDuringSchedulingIgnoredDuringExecution") {
            merge_into_selector(term, &labels);
        }
        for weighted in items_mut(terms, "preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = inner(weighted, "podAffinityTerm") {
                merge_into_selector(term, &labels);
            }
        }
    }
}

fn merge_into_selector(term: &mut Value, labels: &Value) {
    let mut wanted = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in items(term, list).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                wanted.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = inner(term, "labelSelector").filter(|_| !wanted.is_empty()) else { return };
    match selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        Some(list) => list.extend(wanted),
        None => set(selector, "matchExpressions", Value::Array(wanted)),
    }
}

/// Guaranteed, Burstable or BestEffort, from cpu and memory of all containers.
fn qos_class(spec: &Value) -> &'static str {
    let given = |resources: &Value, list: &str, name: &str| {
        quantity::parse(at(resources, &[list, name]).as_str()).filter(|q| !q.is_zero())
    };
    let pod_level = at(spec, &["resources"]);
    let all: Vec<&Value> = if pod_level.is_object() {
        vec![pod_level]
    } else {
        items(spec, "containers")
            .iter()
            .chain(items(spec, "initContainers"))
            .map(|c| at(c, &["resources"]))
            .collect()
    };
    let (mut any, mut guaranteed) = (false, true);
    for resources in all {
        for name in ["cpu", "memory"] {
            let (request, limit) = (given(resources, "requests", name), given(resources, "limits", name));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// A negative grace period means the shortest.
fn at_least_one_second_of_grace(pod: &mut Value) {
    let spec = child(pod, "spec");
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|s| s < 0) {
        set(spec, "terminationGracePeriodSeconds", 1);
    }
}

fn prepare_update(new: &mut Value, old: &Value, subresource: Option<&str>) {
    if subresource.is_none() {
        tolerate_node_loss(new);
    }
    if subresource == Some("status") {
        let metadata = child(new, "metadata");
        remove(metadata, "deletionTimestamp");
        keep(metadata, at(old, &["metadata"]), "ownerReferences");
        let quality = text(at(old, &["status"]), "qosClass").to_owned();
        if !quality.is_empty() {
            default_to(child(new, "status"), "qosClass", quality);
        }
    }
}
