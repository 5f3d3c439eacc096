//! Nodes and NodeClaims become machines, whatever the order in which they come and go.

use std::time::Duration;

use jiff::ToSpan;
use karpenter_api::NodeClaim;
use karpenter_engine::resources::{Amount, CPU, MEMORY, NODES};
use karpenter_state::Cluster;
use serde_json::json;

use crate::objects::{NOW, apply_claim, apply_node, managed, object, only_machine, snapshot, snapshot_at};

#[test]
fn a_claim_and_a_node_with_one_provider_id_are_one_machine_in_either_order() {
    let mut claim_first = Cluster::new();
    apply_claim(&mut claim_first, "default-1", "id-1");
    apply_node(&mut claim_first, "node-1", "id-1", managed(true, true));
    let mut node_first = Cluster::new();
    apply_node(&mut node_first, "node-1", "id-1", managed(true, true));
    apply_claim(&mut node_first, "default-1", "id-1");
    for cluster in [claim_first, node_first] {
        let machine = only_machine(&cluster);
        assert_eq!(machine.name().as_ref(), "node-1");
        assert!(machine.managed() && machine.initialized());
    }
}

#[test]
fn a_machine_is_known_by_its_claim_until_the_node_registers() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "id-1");
    apply_node(&mut cluster, "node-1", "id-1", managed(false, false));
    assert_eq!(only_machine(&cluster).name().as_ref(), "default-1");
}

#[test]
fn a_claim_that_is_not_launched_is_no_machine_and_decisions_wait_for_it() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "");
    assert!(snapshot(&cluster).nodes.is_empty());
    assert!(cluster.has_unlaunched_claims());
    apply_claim(&mut cluster, "default-1", "id-1");
    assert_eq!(only_machine(&cluster).name().as_ref(), "default-1");
    assert!(!cluster.has_unlaunched_claims());
}

#[test]
fn decisions_do_not_wait_for_a_claim_that_ends_before_it_was_launched() {
    let mut cluster = Cluster::new();
    cluster.apply_node_claim(&told(false, "1", "")).expect("a claim");
    assert!(cluster.has_unlaunched_claims());
    cluster.apply_node_claim(&told(true, "1", "")).expect("a claim");
    assert!(!cluster.has_unlaunched_claims(), "its instance may take hours to go");
}

#[test]
fn decisions_wait_for_nodes_not_seen_yet_but_not_for_one_that_never_gets_a_provider_id() {
    let mut cluster = Cluster::new();
    let nodes = ["stray", "node-1"];
    apply_node(&mut cluster, "stray", "", managed(true, false));
    assert!(!cluster.synced([], nodes), "node-1 was not seen");
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    assert!(cluster.synced([], nodes));
}

/// A NodeClaim with what its launch will come to.
fn expected(name: &str) -> NodeClaim {
    object(json!({
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "default", "topology.kubernetes.io/zone": "a"}},
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}},
    }))
}

/// `default-1` as the watch tells it: being deleted or not, of this UID and provider id, without capacity.
fn told(deleting: bool, uid: &str, provider_id: &str) -> NodeClaim {
    let deleted = deleting.then_some("2026-01-01T00:00:00Z");
    object(json!({
        "metadata": {
            "name": "default-1", "uid": uid, "deletionTimestamp": deleted, "finalizers": ["f"],
            "labels": {"karpenter.sh/nodepool": "default"},
        },
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []},
        "status": {"providerID": provider_id},
    }))
}

#[test]
fn a_claim_whose_launch_is_under_way_counts_for_what_is_expected_of_it() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert!(!cluster.has_unlaunched_claims() && cluster.is_unlaunched("default-1"));
    // What the watch says of it meanwhile changes nothing about that.
    apply_claim(&mut cluster, "default-1", "");
    let machine = only_machine(&cluster);
    assert_eq!(machine.labels().get("topology.kubernetes.io/zone").map(AsRef::as_ref), Some("a"));
    assert!(!machine.capacity().is_empty());
    apply_claim(&mut cluster, "default-1", "id-1");
    assert!(!cluster.is_unlaunched("default-1"));
    assert_eq!(only_machine(&cluster).labels().get("topology.kubernetes.io/zone"), None);
    // It is too late to expect anything of one that is launched or gone.
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert_eq!(only_machine(&cluster).labels().get("topology.kubernetes.io/zone"), None);
    cluster.delete_node_claim("default-1");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert!(snapshot(&cluster).nodes.is_empty());
}

#[test]
fn a_claim_that_ends_is_not_brought_back_by_what_is_expected_of_an_old_copy_of_it() {
    let mut cluster = Cluster::new();
    cluster.apply_node_claim(&told(true, "", "")).expect("a valid claim");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert!(only_machine(&cluster).deleting());
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert!(only_machine(&cluster).deleting());
}

#[test]
fn a_claim_that_goes_before_it_is_launched_is_not_one_of_those_in_use() {
    let mut cluster = Cluster::new();
    let active = |cluster: &Cluster| cluster.pool_nodes().counts("default").active;
    cluster.apply_node_claim(&told(false, "u", "")).expect("a valid claim");
    assert_eq!(active(&cluster), 1);
    // More than once: whoever holds it up changes it.
    for _ in 0..2 {
        cluster.apply_node_claim(&told(true, "u", "")).expect("a valid claim");
        assert_eq!(active(&cluster), 0);
    }
}

#[test]
fn what_was_expected_of_a_launch_can_be_taken_back() {
    let mut cluster = Cluster::new();
    let pending = told(false, "", "");
    cluster.apply_node_claim(&pending).expect("a valid claim");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    cluster.expect_nothing(&told(false, "another", ""));
    assert!(!cluster.has_unlaunched_claims(), "nothing was said of this one");
    cluster.expect_nothing(&pending);
    assert!(cluster.has_unlaunched_claims() && snapshot(&cluster).nodes.is_empty());
    // Nor is a machine counted on that pods cannot use.
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    cluster.expect_launch(&pending).expect("a valid claim");
    assert!(cluster.has_unlaunched_claims() && snapshot(&cluster).nodes.is_empty());
}

#[test]
fn what_is_expected_of_a_claim_is_not_expected_of_another_of_its_name() {
    let mut cluster = Cluster::new();
    cluster.apply_node_claim(&told(false, "", "")).expect("a valid claim");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    cluster.apply_node_claim(&told(false, "another", "")).expect("a valid claim");
    assert!(cluster.has_unlaunched_claims() && snapshot(&cluster).nodes.is_empty());
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert!(cluster.has_unlaunched_claims() && snapshot(&cluster).nodes.is_empty());
}

#[test]
fn a_machine_whose_id_is_known_first_has_what_was_expected_until_it_says_what_it_has() {
    let mut cluster = Cluster::new();
    cluster.apply_node_claim(&told(false, "", "")).expect("a valid claim");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    cluster.apply_node_claim(&told(false, "", "id-1")).expect("a valid claim");
    assert!(!cluster.is_unlaunched("default-1"));
    assert_eq!(only_machine(&cluster).capacity().get(CPU), Some(Amount::units(4)));
    apply_claim(&mut cluster, "default-1", "id-1");
    assert_eq!(only_machine(&cluster).capacity().get(CPU), Some(Amount::units(8)));
}

#[test]
fn the_machine_stays_while_one_half_is_left() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "id-1");
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    cluster.delete_node_claim("default-1");
    assert!(!only_machine(&cluster).managed());
    cluster.delete_node("node-1");
    assert!(snapshot(&cluster).nodes.is_empty());
    // Deleting what is gone changes nothing.
    cluster.delete_node("node-1");
    cluster.delete_node_claim("default-1");
}

#[test]
fn a_node_that_gets_its_provider_id_moves_to_the_claims_machine() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "id-1");
    apply_node(&mut cluster, "node-1", "", json!({}));
    assert_eq!(snapshot(&cluster).nodes.len(), 2);
    apply_node(&mut cluster, "node-1", "id-1", managed(true, false));
    assert_eq!(only_machine(&cluster).name().as_ref(), "node-1");
}

#[test]
fn a_node_of_anothers_without_provider_id_goes_by_its_name() {
    let mut cluster = Cluster::new();
    apply_node(&mut cluster, "node-1", "", json!({}));
    let machine = only_machine(&cluster);
    assert_eq!(machine.node.as_ref().map(|n| n.provider_id.as_ref()), Some("node-1"));
}

#[test]
fn a_node_of_ours_without_provider_id_or_type_is_set_aside_until_it_has_them() {
    let mut cluster = Cluster::new();
    apply_node(&mut cluster, "node-1", "", managed(true, false));
    apply_node(&mut cluster, "node-2", "id-2", json!({"karpenter.sh/nodepool": "default"}));
    let first = snapshot(&cluster);
    assert!(first.nodes.is_empty());
    let aside: Vec<&str> = first.other_nodes.iter().map(|n| n.name.as_ref()).collect();
    assert_eq!(aside, ["node-1", "node-2"]);
    apply_node(&mut cluster, "node-1", "id-1", managed(true, false));
    cluster.delete_node("node-2");
    let second = snapshot(&cluster);
    assert_eq!((second.nodes.len(), second.other_nodes.len()), (1, 0));
}

#[test]
fn an_initialized_node_of_ours_needs_no_type() {
    let mut cluster = Cluster::new();
    let labels = json!({"karpenter.sh/nodepool": "default", "karpenter.sh/initialized": "true"});
    apply_node(&mut cluster, "node-1", "id-1", labels);
    assert_eq!(only_machine(&cluster).name().as_ref(), "node-1");
}

#[test]
fn what_a_starting_node_does_not_know_yet_comes_from_the_claim() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "id-1");
    apply_node(&mut cluster, "node-1", "id-1", managed(true, false));
    let capacity = only_machine(&cluster).capacity();
    assert_eq!(capacity.amount(CPU), Amount::units(4));
    assert_eq!(capacity.amount(MEMORY), Amount::units(16 << 30));
    assert_eq!(capacity.amount(NODES), Amount::units(1));
}

#[test]
fn marks_and_promises_survive_updates_of_the_node() {
    let mut cluster = Cluster::new();
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    assert!(cluster.mark_for_deletion("id-1"));
    assert!(cluster.nominate("node-1", Duration::from_secs(20)));
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    let machine = only_machine(&cluster);
    assert!(machine.marked_for_deletion && machine.nominated && machine.deleting());
    assert!(cluster.unmark_for_deletion("id-1"));
    assert!(!only_machine(&cluster).deleting());
    assert!(!cluster.mark_for_deletion("id-2"), "there is no such machine");
    // Made anew by its kubelet, it is called after its NodeClaim until it has registered: the mark is found all the same.
    apply_claim(&mut cluster, "default-1", "id-1");
    assert!(cluster.mark_for_deletion("id-1"));
    apply_node(&mut cluster, "node-1", "id-1", managed(false, false));
    assert!(cluster.unmark_for_deletion("id-1"));
    assert!(!cluster.machine("id-1").expect("the machine").deleting());
}

#[tokio::test(start_paused = true)]
async fn a_promise_ends_with_its_time_and_a_later_one_extends_it() {
    let mut cluster = Cluster::new();
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    cluster.nominate("node-1", Duration::from_secs(20));
    cluster.nominate("node-1", Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(19)).await;
    assert!(only_machine(&cluster).nominated);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!only_machine(&cluster).nominated);
}

#[test]
fn a_promise_lasts_whatever_the_wall_clock_says() {
    let mut cluster = Cluster::new();
    apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
    cluster.nominate("node-1", Duration::from_secs(20));
    for leap in [24.hours(), -24.hours()] {
        assert!(snapshot_at(&cluster, NOW + leap).nodes[0].nominated, "{leap}");
    }
}

#[tokio::test(start_paused = true)]
async fn consolidation_looks_again_after_five_minutes_without_a_change() {
    let mut cluster = Cluster::new();
    let first = cluster.consolidation_state();
    tokio::time::advance(Duration::from_secs(299)).await;
    assert_eq!(cluster.consolidation_state(), first);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_ne!(cluster.consolidation_state(), first);
}

#[test]
fn volume_limits_reach_the_node_whichever_comes_first() {
    let csi = json!({"metadata": {"name": "node-1"}, "spec": {"drivers": [
        {"name": "ebs.csi.aws.com", "nodeID": "n", "allocatable": {"count": 3}}, {"name": "other", "nodeID": "n"}]}});
    for csi_first in [true, false] {
        let mut cluster = Cluster::new();
        if csi_first {
            cluster.apply_csi_node(&object(csi.clone()));
        }
        apply_node(&mut cluster, "node-1", "id-1", managed(true, true));
        if !csi_first {
            cluster.apply_csi_node(&object(csi.clone()));
        }
        let limits = only_machine(&cluster).node.expect("a Node").csi_limits.clone();
        assert_eq!(limits.get("ebs.csi.aws.com"), Some(&Some(3)));
        assert_eq!(limits.get("other"), Some(&None));
        cluster.delete_csi_node("node-1");
        assert!(only_machine(&cluster).node.expect("a Node").csi_limits.is_empty());
    }
}

#[test]
fn usage_of_a_pool_counts_its_machines_that_stay() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "id-1");
    apply_claim(&mut cluster, "default-2", "id-2");
    apply_node(&mut cluster, "other", "id-3", json!({}));
    assert_eq!(cluster.node_pool_usage("default").amount(CPU), Amount::units(16));
    assert_eq!(cluster.node_pool_usage("default").amount(NODES), Amount::units(2));
    cluster.mark_for_deletion("id-2");
    assert_eq!(cluster.node_pool_usage("default").amount(CPU), Amount::units(8));
}

#[test]
fn a_launch_under_way_counts_for_limits_and_is_no_machine_yet() {
    let mut cluster = Cluster::new();
    apply_claim(&mut cluster, "default-1", "");
    apply_claim(&mut cluster, "default-2", "id-2");
    cluster.expect_launch(&expected("default-1")).expect("a valid claim");
    assert_eq!(cluster.node_pool_usage("default").amount(CPU), Amount::units(12));
    assert_eq!(cluster.launched_node_pool_usage("default").amount(CPU), Amount::units(8));
    assert_eq!(cluster.launched_node_pool_usage("default").amount(NODES), Amount::units(1));
    assert_eq!(cluster.machine_count(), 1);
    apply_claim(&mut cluster, "default-1", "id-1");
    assert_eq!(cluster.launched_node_pool_usage("default"), cluster.node_pool_usage("default"));
    assert_eq!(cluster.machine_count(), 2);
}

#[test]
fn what_is_reserved_in_a_pool_stays_when_its_first_claim_is_launched() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.pool_nodes_mut().reserve("default", 4, 4), 4);
    cluster.apply_node_claim(&told(false, "1", "")).expect("a claim");
    cluster.pool_nodes_mut().release("default", 1);
    cluster.apply_node_claim(&told(false, "1", "id-1")).expect("a claim");
    assert_eq!(cluster.pool_nodes().counts("default").active, 1);
    assert_eq!(cluster.pool_nodes_mut().reserve("default", 4, 1), 0, "three are still being created");
    cluster.delete_node_claim("default-1");
    assert_eq!(cluster.pool_nodes().counts("default").active, 0);
}
