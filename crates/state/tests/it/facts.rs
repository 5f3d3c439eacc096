//! Reading a cluster together ends where applying its objects one by one does.

use karpenter_state::{Cluster, Facts};
use serde_json::{Value, json};

use crate::objects::{managed, object, snapshot};

struct Objects {
    nodes: Vec<Value>,
    claims: Vec<Value>,
    pods: Vec<Value>,
}

fn node(name: &str, id: &str, labels: Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": labels}, "spec": {"providerID": id},
        "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3900m"}},
    })
}

fn claim(name: &str, id: &str, pool: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": pool}},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        "status": {"providerID": id, "capacity": {"cpu": "8", "memory": "16Gi"}},
    })
}

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"nodeName": node, "containers": []}})
}

/// Machines in every state, in no order.
fn objects() -> Objects {
    let mut going = claim("c-5", "id-5", "other");
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut unlaunched_and_going = claim("c-6", "", "other");
    unlaunched_and_going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    Objects {
        nodes: vec![
            node("n-3", "id-3", managed(true, true)),
            node("n-1", "id-1", managed(true, false)),
            node("foreign", "", json!({})),
            node("early", "", managed(false, false)),
            node("untyped", "id-9", json!({"karpenter.sh/nodepool": "default"})),
        ],
        claims: vec![
            claim("c-3", "id-3", "default"),
            claim("c-2", "id-2", "default"),
            claim("c-1", "id-1", "other"),
            claim("waiting", "", "default"),
            claim("c-9", "id-9", ""),
            going,
            unlaunched_and_going,
        ],
        pods: vec![pod("b", "q", "n-1"), pod("a", "z", ""), pod("b", "p", "n-3"), pod("a", "a", "gone")],
    }
}

fn one_by_one(objects: &Objects) -> Cluster {
    let mut cluster = Cluster::new();
    for claim in &objects.claims {
        cluster.apply_node_claim(&object(claim.clone())).expect("a valid NodeClaim");
    }
    for node in &objects.nodes {
        cluster.apply_node(&object(node.clone())).expect("a valid Node");
    }
    for pod in &objects.pods {
        cluster.apply_pod(&object(pod.clone())).expect("a valid Pod");
    }
    cluster
}

fn together(mut cluster: Cluster, objects: &Objects) -> Cluster {
    let mut facts = Facts::default();
    for pod in &objects.pods {
        cluster.read_pod(&object(pod.clone()), &mut facts).expect("a valid Pod");
    }
    for node in &objects.nodes {
        cluster.read_node(&object(node.clone()), &mut facts).expect("a valid Node");
    }
    for claim in &objects.claims {
        cluster.read_node_claim(&object(claim.clone()), &mut facts).expect("a valid NodeClaim");
    }
    cluster.take_in(facts);
    cluster
}

fn assert_same(one: &Cluster, other: &Cluster) {
    assert_eq!(format!("{:#?}", snapshot(one)), format!("{:#?}", snapshot(other)));
    for pool in ["default", "other", "none"] {
        assert_eq!(one.node_pool_usage(pool), other.node_pool_usage(pool), "{pool}");
        assert_eq!(one.pool_nodes().counts(pool), other.pool_nodes().counts(pool), "{pool}");
    }
    for name in ["n-1", "n-3", "c-2", "foreign", "waiting", "untyped"] {
        assert_eq!(one.machine_named(name).is_some(), other.machine_named(name).is_some(), "{name}");
    }
}

#[test]
fn read_together_or_applied_one_by_one_the_cluster_is_the_same() {
    let objects = objects();
    assert_same(&one_by_one(&objects), &together(Cluster::new(), &objects));
}

#[test]
fn what_is_there_already_or_shares_an_id_is_no_obstacle() {
    let mut twins = objects();
    twins.nodes.push(node("twin", "id-3", managed(true, true)));
    twins.claims.push(claim("c-twin", "id-1", "default"));
    assert_same(&one_by_one(&twins), &together(Cluster::new(), &twins));
    let objects = objects();
    assert_same(&one_by_one(&objects), &together(one_by_one(&objects), &objects));
}

#[test]
fn what_was_taken_in_together_is_deleted_like_anything_else() {
    let objects = objects();
    let (mut one, mut other) = (one_by_one(&objects), together(Cluster::new(), &objects));
    for cluster in [&mut one, &mut other] {
        cluster.delete_node("n-3");
        cluster.delete_node_claim("c-3");
        cluster.delete_node_claim("c-5");
        cluster.delete_pod("b", "p");
    }
    assert_same(&one, &other);
}
