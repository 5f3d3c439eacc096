//! Sick nodes, replaced the old way.

use std::time::Duration;

use karpenter_cloudprovider::{RepairAction, RepairPolicy};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{NODE_CLASS_LABEL, With, claim, node, node_name, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const FLAGS: &[&str] = &["--feature-gates=NodeRepair=true", "--legacy-node-repair=true"];

fn policy(condition: &str, regex: &str, action: RepairAction) -> RepairPolicy {
    RepairPolicy {
        condition_type: condition.to_owned(),
        condition_status: "False".to_owned(),
        reason_regex: regex.to_owned(),
        toleration: 600 * SECOND,
        termination_grace_period: None,
        priority: 0,
        action,
    }
}

async fn rig_of(nodes: usize) -> Rig {
    let rig = Rig::quiet_with(FLAGS, |provider| {
        provider.repair(vec![
            policy("Network", "", RepairAction::ReplaceNode),
            policy("Disk", "^Worn", RepairAction::ReplaceNode),
            policy("Clock", "", RepairAction::RebootNode),
        ]);
    })
    .await;
    for at in 0..nodes {
        rig.create(claim(&format!("c{at}"), "default", 1)).await;
        rig.create(node(&format!("c{at}"), "default", 1)).await;
    }
    rig.pass(SECOND).await;
    rig
}

/// Gives a node a condition that is false since now.
async fn sicken(rig: &Rig, claim: &str, condition: &str, reason: &str) {
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions = json!([
        {"type": "Ready", "status": "True"},
        {"type": condition, "status": "False", "reason": reason, "lastTransitionTime": now},
    ]);
    rig.patch_status(&node(claim, "default", 1), json!({"status": {"conditions": conditions}})).await;
}

async fn is_deleted(rig: &Rig, name: &str) -> bool {
    let found: Option<Value> = rig.get(&claim(name, "default", 1)).await;
    found.is_none_or(|claim| claim["metadata"]["deletionTimestamp"].is_string())
}

#[tokio::test(start_paused = true)]
async fn a_sick_node_is_replaced_after_it_was_borne_for_long_enough() {
    let rig = rig_of(5).await;
    let annotated = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    rig.patch(&node("c0", "default", 1), annotated).await;
    sicken(&rig, "c0", "Network", "Cut").await;
    rig.pass(595 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await);
    rig.pass(10 * SECOND).await;
    assert!(is_deleted(&rig, "c0").await, "whatever its annotations say");
    assert_eq!(rig.metric("karpenter_nodeclaims_disrupted_total", &[("reason", "unhealthy")]), Some(1.0));
    assert_eq!(
        rig.metric(
            "karpenter_nodeclaims_unhealthy_disrupted_total",
            &[("condition", "network"), ("nodepool", "default")]
        ),
        Some(1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn only_conditions_and_reasons_of_replacing_policies_count() {
    let rig = rig_of(15).await;
    sicken(&rig, "c0", "Disk", "Full").await;
    sicken(&rig, "c1", "Disk", "WornOut").await;
    sicken(&rig, "c2", "Clock", "Off").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await && is_deleted(&rig, "c1").await && !is_deleted(&rig, "c2").await);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repaired_while_more_than_a_fifth_of_a_pool_is_sick() {
    let rig = rig_of(5).await;
    let calm = json!({"spec": {"disruption": {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}}});
    rig.create(node_pool("default").with(calm)).await;
    sicken(&rig, "c0", "Network", "Cut").await;
    sicken(&rig, "c1", "Network", "Cut").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await && !is_deleted(&rig, "c1").await);
    let told = rig.events("Node", &node_name("c0")).await;
    let said = "NodeRepairBlocked: more than 20% nodes are unhealthy in the nodepool";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    rig.patch_status(
        &node("c1", "default", 1),
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
    )
    .await;
    rig.pass(310 * SECOND).await;
    assert!(is_deleted(&rig, "c0").await, "one of five is a fifth");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_of_sick_nodes_whose_pool_is_gone() {
    let rig = rig_of(5).await;
    sicken(&rig, "c0", "Network", "Cut").await;
    sicken(&rig, "c1", "Network", "Cut").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await && !is_deleted(&rig, "c1").await);
    let told = rig.events("Node", &node_name("c0")).await;
    assert!(!told.iter().any(|said| said.starts_with("NodeRepairBlocked")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repair_is_counted_by_the_labels_of_the_node_and_names_its_claim() {
    let lines = Lines::capture();
    let rig = rig_of(5).await;
    let spot = json!({"metadata": {"labels": {"karpenter.sh/capacity-type": "spot"}}});
    rig.patch(&node("c0", "default", 1), spot).await;
    rig.create(pod_on("c0", "p", "1m")).await;
    sicken(&rig, "c0", "Network", "Cut").await;
    rig.pass(610 * SECOND).await;
    let unhealthy = [("reason", "unhealthy"), ("nodepool", "default"), ("capacity_type", "spot")];
    assert_eq!(rig.metric("karpenter_nodeclaims_disrupted_total", &unhealthy), Some(1.0));
    assert_eq!(rig.metric("karpenter_pods_disruption_initiated_total", &unhealthy), Some(1.0));
    for message in ["annotated nodeclaim", "deleting unhealthy node"] {
        assert_eq!(lines.saying(message)[0]["NodeClaim"], json!({"name": "c0"}), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_a_repair_that_came_to_nothing_goes_when_the_node_recovers() {
    const MARK: &str = "karpenter.sh/nodeclaim-termination-timestamp";
    let rig = rig_of(5).await;
    rig.refuse_deletions(true);
    sicken(&rig, "c0", "Network", "Cut").await;
    rig.pass(610 * SECOND).await;
    let mark = async || {
        let claim = rig.get(&claim("c0", "default", 1)).await.expect("the claim");
        claim["metadata"]["annotations"][MARK].clone()
    };
    assert!(mark().await.is_string(), "it could not be deleted");
    let well = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    rig.patch_status(&node("c0", "default", 1), well).await;
    rig.pass(60 * SECOND).await;
    rig.refuse_deletions(false);
    rig.pass(700 * SECOND).await;
    assert!(mark().await.is_null(), "its next drain has all its time");
    assert!(!is_deleted(&rig, "c0").await);
}

#[tokio::test(start_paused = true)]
async fn without_the_gate_nothing_is_repaired() {
    let rig = Rig::quiet_with(&["--legacy-node-repair=true"], |provider| {
        provider.repair(vec![policy("Network", "", RepairAction::ReplaceNode)]);
    })
    .await;
    rig.create(claim("c0", "default", 1)).await;
    rig.create(node("c0", "default", 1)).await;
    rig.pass(SECOND).await;
    sicken(&rig, "c0", "Network", "Cut").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await);
}

#[tokio::test(start_paused = true)]
async fn a_standalone_claim_is_not_repaired_while_a_fifth_of_all_nodes_is_sick_whoever_they_belong_to() {
    let rig = rig_of(0).await;
    let standalone = json!({"metadata": {"labels": {"karpenter.sh/nodepool": null}}});
    rig.create(claim("c0", "default", 1).with(standalone.clone())).await;
    rig.create(node("c0", "default", 1).with(standalone.clone())).await;
    let foreign = json!({"metadata": {"labels": {NODE_CLASS_LABEL: null}}});
    for name in ["f1", "f2", "f3", "f4"] {
        rig.create(node(name, "default", 1).with(standalone.clone()).with(foreign.clone())).await;
    }
    sicken(&rig, "c0", "Network", "Cut").await;
    sicken(&rig, "f1", "Network", "Cut").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await, "two of five are sick");
    let told = rig.events("Node", &node_name("c0")).await;
    let said = "NodeRepairBlocked: more then 20% nodes are unhealthy in the cluster";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    let well = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    rig.patch_status(&node("f1", "default", 1), well).await;
    rig.pass(310 * SECOND).await;
    assert!(is_deleted(&rig, "c0").await, "one of five is a fifth");
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_pool_count_as_sick_before_they_carry_the_label_of_their_node_class() {
    let rig = rig_of(4).await;
    let young = json!({"metadata": {"labels": {NODE_CLASS_LABEL: null}}});
    rig.create(node("young", "default", 1).with(young)).await;
    sicken(&rig, "young", "Network", "Cut").await;
    sicken(&rig, "c0", "Network", "Cut").await;
    rig.pass(700 * SECOND).await;
    assert!(!is_deleted(&rig, "c0").await, "two of five are sick");
}
