//! Default topology spread constraints, for pods that have none of their own.
//!
//! The constraints come without a selector; it is deduced from the Services that select the pod and from its controller, as
//! kube-scheduler does.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::labels::{Labels, Text};
use crate::pod::{Pod, PodSpec, TopologySpread};
use crate::selector::{Expression, LabelSelector};
use crate::snapshot::Snapshot;

/// The pod's spec, with the defaults if it has no constraint of its own and a selector can be deduced.
pub(crate) fn apply(pod: &Pod, defaults: &[TopologySpread], snapshot: &Snapshot) -> Arc<PodSpec> {
    if defaults.is_empty() || !pod.spec.topology_spread.is_empty() {
        return pod.spec.clone();
    }
    let Some(selector) = deduced_selector(pod, snapshot) else { return pod.spec.clone() };
    let mut spec = (*pod.spec).clone();
    spec.topology_spread =
        defaults.iter().map(|d| TopologySpread { selector: Some(selector.clone()), ..d.clone() }).collect();
    Arc::new(spec)
}

fn deduced_selector(pod: &Pod, snapshot: &Snapshot) -> Option<LabelSelector> {
    let workloads = &snapshot.workloads;
    let mut match_labels: BTreeMap<Text, Text> = BTreeMap::new();
    for service in workloads.services.get(&pod.namespace).into_iter().flatten() {
        if service.iter().all(|(k, v)| pod.labels.get(k) == Some(v)) {
            match_labels.extend(service.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    let mut expressions = Vec::new();
    if let Some(owner) = &pod.owners.controller {
        let key = (pod.namespace.clone(), owner.name.clone());
        match (owner.api_version.as_ref(), owner.kind.as_ref()) {
            ("v1", "ReplicationController") => {
                let selector = workloads.replication_controllers.get(&key);
                match_labels
                    .extend(selector.iter().flat_map(|s| s.iter()).map(|(k, v)| (k.clone(), v.clone())));
            }
            ("apps/v1", "ReplicaSet") => expressions = flattened(workloads.replica_sets.get(&key)),
            ("apps/v1", "StatefulSet") => expressions = flattened(workloads.stateful_sets.get(&key)),
            _ => {}
        }
    }
    if match_labels.is_empty() && expressions.is_empty() {
        return None;
    }
    Some(LabelSelector { match_labels: Labels::new(match_labels), expressions })
}

fn flattened(selector: Option<&Option<LabelSelector>>) -> Vec<Expression> {
    let Some(selector) = selector.and_then(Option::as_ref) else { return Vec::new() };
    let equal = selector.match_labels.iter().map(|(key, value)| Expression {
        key: key.clone(),
        operator: "In".into(),
        values: vec![value.clone()],
    });
    equal.chain(selector.expressions.iter().cloned()).collect()
}
