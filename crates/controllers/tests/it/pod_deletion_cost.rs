//! Pods say how gladly their workload should part with them.

use std::time::Duration;

use karpenter_api::annotations::POD_DELETION_COST;
use serde_json::{Value, json};

use crate::objects::{With, claim, node, node_class, node_name, node_pool, pod, pod_on};
use crate::rig::Rig;

/// A pod of a ReplicaSet on a node of its own.
async fn occupied(rig: &Rig, owner: &Value, name: &str, size: u32) {
    rig.create(claim(name, "default", size)).await;
    rig.create(node(name, "default", size)).await;
    rig.create(pod_on(name, name, "100m").with(json!({"metadata": {"ownerReferences": [owner]}}))).await;
}

fn cost(rig: &Rig, pod: &str) -> Option<String> {
    let all = rig.context.stores.pods.list();
    let pod = all.iter().find(|known| known.metadata.name.as_deref() == Some(pod)).expect("a pod");
    pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(POD_DELETION_COST).cloned())
}

#[tokio::test(start_paused = true)]
async fn pods_on_nodes_that_go_first_cost_least() {
    let rig = Rig::quiet(&["--feature-gates=PodDeletionCostManagement=true"]).await;
    rig.create(node_class()).await;
    let budgets =
        json!({"spec": {"disruption": {"consolidateAfter": "87600h", "budgets": [{"nodes": "2"}]}}});
    rig.create(node_pool("default").with(budgets)).await;
    let replica_set = rig
        .create(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "namespace": "default"},
            "spec": {
                "replicas": 4, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", "1")["spec"]},
            },
        }))
        .await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": replica_set.metadata.uid, "controller": true,
    });
    for (name, size) in [("small", 1), ("middle", 3), ("large", 5), ("going", 2)] {
        occupied(&rig, &owner, name, size).await;
    }
    rig.context.cluster.update(|cluster| assert!(cluster.mark_for_deletion(&node_name("going"))));
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(cost(&rig, "going").as_deref(), Some("-2147483648"));
    assert_eq!(cost(&rig, "large").as_deref(), Some("-1"), "of two that may be disrupted one is under way");
    assert_eq!(cost(&rig, "middle"), None, "beyond the budget");
    assert_eq!(cost(&rig, "small"), None);
    rig.context.cluster.update(|cluster| assert!(cluster.unmark_for_deletion(&node_name("going"))));
    rig.pass(Duration::from_secs(120)).await;
    assert_eq!(cost(&rig, "large").as_deref(), Some("-2"));
    assert_eq!(cost(&rig, "middle").as_deref(), Some("-1"));
    assert_eq!(cost(&rig, "going"), None, "it stays after all");
    let metrics = rig.context.environment.registry.encode();
    assert!(
        metrics.contains(r#"karpenter_pod_deletion_cost_pod_annotation_writes_total{result="updated"} 5"#),
        "{metrics}"
    );
}
