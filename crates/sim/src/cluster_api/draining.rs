//! How Cluster API empties a Node before its machine goes: the Node is cordoned, pods are evicted but for those of DaemonSets, again
//! and again where a budget says no, and volumes are waited for. Both have deadlines, where the Machine gives any.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DynamicObject, EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::kinds::{annotation, number, text};
use crate::actor::{code, unless_gone};
use crate::objects::{Objects, is_deleting, node_of, node_ready};

/// How often a Node that is not empty yet is looked at.
pub(super) const AGAIN: Duration = Duration::from_secs(20);

const EXCLUDED: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
const NO_DETACHING: &str = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach";

/// How far a Machine that goes is with its Node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Pods have to go: those that have not been asked to yet.
    Drain(Vec<Pod>),
    /// Volumes have to be detached.
    Detach,
    /// Nothing is waited for.
    Empty,
}

/// What is to be done about a Node now.
pub(super) fn stage(objects: &Objects, machine: &DynamicObject, node: &Node, now: Timestamp) -> Stage {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    // A kubelet that is silent ends no pod: those that are told to end are not waited for.
    let silent = node_ready(node) != Some("True");
    let staying = |pod: &&std::sync::Arc<Pod>| {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let is_daemon = owners.iter().any(|owner| owner.kind == "DaemonSet");
        let ends = silent && is_deleting(&***pod);
        !is_daemon && !ends
    };
    let pods: Vec<Pod> = objects
        .pods
        .values()
        .filter(|pod| node_of(pod) == Some(name))
        .filter(staying)
        .map(|pod| Pod::clone(pod))
        .collect();
    let overdue = |what: &str, since: &str| is_overdue(machine, what, since, now);
    if !pods.is_empty()
        && annotation(machine, EXCLUDED).is_none()
        && !overdue("nodeDrainTimeoutSeconds", "nodeDrainStartTime")
    {
        return Stage::Drain(pods.into_iter().filter(|pod| !is_deleting(pod)).collect());
    }
    let attached = objects.volume_attachments.values().any(|attachment| attachment.spec.node_name == name);
    if attached
        && annotation(machine, NO_DETACHING).is_none()
        && !overdue("nodeVolumeDetachTimeoutSeconds", "waitForNodeVolumeDetachStartTime")
    {
        return Stage::Detach;
    }
    Stage::Empty
}

fn is_overdue(machine: &DynamicObject, timeout: &str, since: &str, now: Timestamp) -> bool {
    let limit = number(machine, &format!("/spec/deletion/{timeout}"));
    let since = text(machine, &format!("/status/deletion/{since}")).parse::<Timestamp>();
    limit > 0 && since.is_ok_and(|since| now.duration_since(since) >= SignedDuration::from_secs(limit))
}

/// When a Machine began to wait, for its status: as it was, or now.
pub(super) fn begun(machine: &DynamicObject, stage: &Stage, now: Timestamp) -> Value {
    let mut deletion = machine.data.pointer("/status/deletion").cloned().unwrap_or_else(|| json!({}));
    let since = match stage {
        Stage::Drain(_) => "nodeDrainStartTime",
        Stage::Detach => "waitForNodeVolumeDetachStartTime",
        Stage::Empty => return deletion,
    };
    if deletion.get(since).is_none() {
        deletion[since] = now.to_string().into();
    }
    deletion
}

/// Cordons a Node, and asks its pods to go. What a budget forbids is asked again at the next look.
pub(super) async fn drain(client: &kube::Client, node: &Node, pods: &[Pod]) -> Result<(), kube::Error> {
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true) {
        let nodes: Api<Node> = Api::all(client.clone());
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        let name = node.metadata.name.as_deref().unwrap_or_default();
        unless_gone(nodes.patch(name, &PatchParams::default(), &cordon).await)?;
    }
    for pod in pods {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match api.evict(name, &EvictParams::default()).await {
            Err(error) if matches!(code(&error), 429 | 500) => {}
            other => unless_gone(other).map(drop)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use karpenter_runtime::object_key::ObjectKey;

    use super::*;

    fn read<K: serde::de::DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).expect("an object")
    }

    fn machine(change: Value) -> DynamicObject {
        let mut machine = json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": {"name": "m"},
            "spec": {"deletion": {"nodeDrainTimeoutSeconds": 60}},
            "status": {"deletion": {"nodeDrainStartTime": "2026-01-01T00:00:00Z"}},
        });
        super::super::deployments::merge(&mut machine, &change);
        read(machine)
    }

    fn node(ready: &str) -> Node {
        let ready = json!([{"type": "Ready", "status": ready}]);
        read(json!({"metadata": {"name": "n"}, "status": {"conditions": ready}}))
    }

    fn objects(pod: Value) -> Objects {
        let mut objects = Objects::default();
        let mut whole = json!({
            "metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "n", "containers": []},
        });
        super::super::deployments::merge(&mut whole["metadata"], &pod);
        objects.pods.insert(ObjectKey::namespaced("default", "p"), Arc::new(read(whole)));
        objects
    }

    fn at(seconds: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().expect("a time") + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn pods_are_waited_for_until_they_are_gone_or_time_is_up() {
        let plain = machine(json!({}));
        let with_pod = objects(json!({}));
        assert!(
            matches!(stage(&with_pod, &plain, &node("True"), at(10)), Stage::Drain(pods) if pods.len() == 1)
        );
        assert_eq!(stage(&with_pod, &plain, &node("True"), at(60)), Stage::Empty);
        assert_eq!(stage(&Objects::default(), &plain, &node("True"), at(10)), Stage::Empty);
        let ends = objects(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(stage(&ends, &plain, &node("True"), at(10)), Stage::Drain(Vec::new()));
        assert_eq!(stage(&ends, &plain, &node("Unknown"), at(10)), Stage::Empty, "its kubelet is silent");
    }

    #[test]
    fn pods_of_daemons_stay_and_so_do_all_where_draining_is_excluded() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}]);
        let daemon = objects(json!({"ownerReferences": owner}));
        assert_eq!(stage(&daemon, &machine(json!({})), &node("True"), at(10)), Stage::Empty);
        let excluded = machine(json!({"metadata": {"name": "m", "annotations": {EXCLUDED: ""}}}));
        assert_eq!(stage(&objects(json!({})), &excluded, &node("True"), at(10)), Stage::Empty);
    }
}
