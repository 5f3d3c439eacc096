//! NodePools, NodeClaims and NodeOverlays as the engine sees them.

use karpenter_engine::resources::{Amount, CPU, NODES};
use karpenter_state::Cluster;
use serde_json::{Value, json};

use crate::objects::{object, only_machine, snapshot};

fn pool(conditions: Value) -> Value {
    json!({
        "metadata": {"name": "default", "uid": "u"},
        "spec": {
            "weight": 7, "limits": {"cpu": "100", "nodes": 3},
            "disruption": {"consolidateAfter": "1m30s"},
            "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                    "requirements": [{"key": "size", "operator": "In", "values": ["s", "m"], "minValues": 2}],
                    "taints": [{"key": "t", "effect": "NoSchedule"}],
                }
            }
        },
        "status": {"conditions": conditions},
    })
}

fn condition(type_: &str, status: &str) -> Value {
    json!({"type": type_, "status": status, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn a_pool_keeps_what_decisions_read() {
    let mut cluster = Cluster::new();
    cluster.apply_node_pool(&object(pool(json!([])))).expect("a valid NodePool");
    let pools = snapshot(&cluster).node_pools;
    let [pool] = &pools[..] else { panic!("one pool") };
    assert_eq!((pool.name.as_ref(), pool.weight, pool.consolidate_after_seconds), ("default", 7, Some(90)));
    assert_eq!((pool.limits.amount(CPU), pool.limits.amount(NODES)), (Amount::units(100), Amount::units(3)));
    assert_eq!(pool.requirements[0].min_values, Some(2));
    assert_eq!(pool.labels.get_or_empty("team"), "a");
    assert_eq!(pool.taints[0].to_string(), "t:NoSchedule");
    assert_eq!(pool.node_class.label_key().as_ref(), "karpenter.kwok.sh/kwoknodeclass");
    assert!(!pool.ready && !pool.deleting);
}

#[test]
fn a_pool_is_ready_only_once_all_it_depends_on_has_been_judged() {
    let judged = [condition("ValidationSucceeded", "True"), condition("NodeClassReady", "True")];
    for (conditions, want) in [
        (json!([condition("Ready", "True"), judged[0], judged[1]]), true),
        (json!([condition("Ready", "True"), judged[0]]), false),
        (json!([condition("Ready", "False"), judged[0], judged[1]]), false),
        (json!([judged[0], judged[1]]), false),
    ] {
        let mut cluster = Cluster::new();
        cluster.apply_node_pool(&object(pool(conditions.clone()))).expect("a valid NodePool");
        assert_eq!(snapshot(&cluster).node_pools[0].ready, want, "{conditions}");
    }
}

#[test]
fn a_deleted_pool_is_gone_and_a_deleting_one_says_so() {
    let mut cluster = Cluster::new();
    let mut going = pool(json!([]));
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    cluster.apply_node_pool(&object(going)).expect("a valid NodePool");
    assert!(snapshot(&cluster).node_pools[0].deleting);
    cluster.delete_node_pool("default");
    assert!(snapshot(&cluster).node_pools.is_empty());
}

#[test]
fn a_claims_conditions_say_whether_its_machine_goes_away() {
    for (type_, deleting) in [("InstanceTerminating", true), ("Drifted", false)] {
        let mut cluster = Cluster::new();
        let claim = json!({
            "metadata": {"name": "c"},
            "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                     "startupTaints": [{"key": "s", "effect": "NoSchedule"}]},
            "status": {"providerID": "id", "conditions": [condition(type_, "True"), condition("Initialized", "True")],
                       "lastPodEventTime": "2026-01-01T00:00:10Z"},
        });
        cluster.apply_node_claim(&object(claim)).expect("a valid NodeClaim");
        let machine = only_machine(&cluster);
        assert_eq!(machine.deleting(), deleting, "{type_}");
        let claim = machine.claim.expect("a NodeClaim");
        assert_eq!(claim.conditions.initialized_since_seconds, Some(1_767_225_600));
        assert_eq!(claim.conditions.last_pod_event_seconds, Some(1_767_225_610));
        assert_eq!(claim.startup_taints.len(), 1);
    }
}

#[test]
fn an_overlay_has_a_price_or_a_change_to_it() {
    let mut cluster = Cluster::new();
    for (name, field, value) in [("a", "price", "0.5"), ("b", "priceAdjustment", "-10%")] {
        let mut overlay = json!({"metadata": {"name": name}, "spec": {"requirements": [], "weight": 2}});
        overlay["spec"][field] = value.into();
        cluster.apply_node_overlay(&object(overlay)).expect("a valid NodeOverlay");
    }
    let overlays = snapshot(&cluster).overlays;
    let prices: Vec<_> = overlays.iter().map(|o| o.price.as_deref().unwrap_or_default()).collect();
    assert_eq!(prices, ["0.5", "-10%"]);
    cluster.delete_node_overlay("a");
    assert_eq!(snapshot(&cluster).overlays.len(), 1);
}
