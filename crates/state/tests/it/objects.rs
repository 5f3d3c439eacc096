//! Objects as short as a test needs them, and the snapshot to look at.

use jiff::Timestamp;
use karpenter_engine::node_pool::InstanceTypes;
use karpenter_engine::{Provider, Snapshot, StateNode};
use karpenter_state::Cluster;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0);

pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

pub(crate) fn snapshot(cluster: &Cluster) -> Snapshot {
    snapshot_at(cluster, NOW)
}

pub(crate) fn snapshot_at(cluster: &Cluster, now: Timestamp) -> Snapshot {
    cluster.snapshot(now, Provider::default(), |_| InstanceTypes::Resolved([].into()))
}

pub(crate) fn apply_node(cluster: &mut Cluster, name: &str, provider_id: &str, labels: Value) {
    let node = json!({
        "metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider_id},
        "status": {"capacity": {"cpu": "4", "memory": "0"}, "allocatable": {"cpu": "3900m"}},
    });
    cluster.apply_node(&object(node)).expect("a valid Node");
}

pub(crate) fn apply_claim(cluster: &mut Cluster, name: &str, provider_id: &str) {
    let claim = json!({
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        "status": {"providerID": provider_id, "capacity": {"cpu": "8", "memory": "16Gi"}},
    });
    cluster.apply_node_claim(&object(claim)).expect("a valid NodeClaim");
}

/// Labels of a node of ours that has come up to `stage`: registered, initialized.
pub(crate) fn managed(registered: bool, initialized: bool) -> Value {
    let mut labels = json!({"karpenter.sh/nodepool": "default", "node.kubernetes.io/instance-type": "small"});
    if registered {
        labels["karpenter.sh/registered"] = "true".into();
    }
    if initialized {
        labels["karpenter.sh/initialized"] = "true".into();
    }
    labels
}

pub(crate) fn only_machine(cluster: &Cluster) -> StateNode {
    let mut nodes = snapshot(cluster).nodes;
    assert_eq!(nodes.len(), 1, "one machine");
    nodes.remove(0)
}
