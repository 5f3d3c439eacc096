//! Broken nodes are rebooted or replaced, as the provider's policies say.

use std::time::Duration;

use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_cloudprovider::{RepairAction, RepairPolicy};
use karpenter_runtime::compute::Compute;
use karpenter_runtime::object_key::ObjectKey;
use serde_json::{Value, json};

use crate::disruption::{add_node, going, has_reason};
use crate::objects::{
    With, claim, condition_of, node, node_class, node_name, node_pool, pod_on, provider_id,
};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

fn policy(condition: &str, action: RepairAction, reason_regex: &str) -> RepairPolicy {
    RepairPolicy {
        condition_type: condition.to_owned(),
        condition_status: "True".to_owned(),
        reason_regex: reason_regex.to_owned(),
        toleration: Duration::from_secs(60),
        termination_grace_period: Some(Duration::from_secs(300)),
        priority: 50,
        action,
    }
}

/// Four nodes with a pod each. A broken disk calls for a replacement, a hung kernel for a reboot.
async fn rig() -> Rig {
    rig_of(&["a", "b", "c", "d"]).await
}

async fn rig_of(nodes: &[&str]) -> Rig {
    rig_thinking(nodes, Compute::Inline).await
}

async fn rig_thinking(nodes: &[&str], compute: Compute) -> Rig {
    let rig = Rig::thinking(compute, &["--feature-gates=NodeRepair=true"], |provider| {
        provider.repair(vec![
            policy("KernelHung", RepairAction::RebootNode, "^Hung$"),
            policy("DiskBroken", RepairAction::ReplaceNode, ""),
        ]);
    })
    .await;
    rig.create(node_class()).await;
    let policy = json!({"spec": {"disruption": {"consolidateAfter": "Never"}}});
    rig.create(node_pool("default").with(policy)).await;
    for name in nodes {
        rig.create(node(name, "default", 2)).await;
        rig.patch(&node(name, "default", 2), json!({"spec": {"taints": null}})).await;
        rig.create(claim(name, "default", 2)).await;
        rig.create(pod_on(name, &format!("p-{name}"), "1500m")).await;
    }
    rig
}

async fn break_node(rig: &Rig, name: &str, condition: &str, reason: &str) {
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conditions = json!([
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""},
        {"type": condition, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now},
    ]);
    rig.patch_status(&node(name, "default", 2), json!({"status": {"conditions": conditions}})).await;
}

async fn stored(rig: &Rig, name: &str) -> Value {
    rig.get(&claim(name, "default", 2)).await.expect("the claim")
}

#[tokio::test(start_paused = true)]
async fn a_hung_node_is_handed_over_for_a_reboot_after_its_toleration() {
    let rig = rig().await;
    break_node(&rig, "a", "KernelHung", "Hung").await;
    rig.pass(50 * SECOND).await;
    assert_eq!(condition_of(&stored(&rig, "a").await, "Rebooting"), None);
    rig.pass(30 * SECOND).await;
    let claim = stored(&rig, "a").await;
    let rebooting = condition_of(&claim, "Rebooting").expect("a reboot");
    assert_eq!(
        (&rebooting["status"], &rebooting["message"]),
        (&json!("True"), &json!("rebooting for KernelHung/Hung"))
    );
    assert_eq!(condition_of(&claim, "DisruptionReason").expect("a reason")["reason"], "Unhealthy");
    assert_eq!(claim["metadata"]["annotations"]["karpenter.sh/reboot-termination-grace-period"], "5m0s");
    let page = rig.context.environment.registry.encode();
    let decided = page.lines().find(|line| {
        line.starts_with("karpenter_voluntary_disruption_decisions_total{") && line.contains("reboot")
    });
    assert!(decided.is_some_and(|line| line.ends_with(" 1")), "{decided:?}");
}

/// Six nodes of which one reboots and another breaks, while the state keeps hearing of the first as it was before: for a
/// while, or until a replacement is there.
async fn a_reboot_unheard_of(rig: &Rig, budget: &str) {
    let budget = json!({"spec": {"disruption": {"budgets": [{"nodes": budget}]}}});
    rig.patch(&node_pool("default"), budget).await;
    let nodes = rig.see(|objects| objects.node_claims.len());
    break_node(rig, "a", "KernelHung", "Hung").await;
    rig.pass(80 * SECOND).await;
    let rebooting = stored(rig, "a").await;
    assert!(condition_of(&rebooting, "Rebooting").is_some());
    break_node(rig, "b", "DiskBroken", "Worn").await;
    let mut late: karpenter_api::NodeClaim = serde_json::from_value(rebooting).expect("a claim");
    let conditions = late.status.as_mut().and_then(|status| status.conditions.as_mut()).expect("conditions");
    conditions.retain(|condition| !["Rebooting", "DisruptionReason"].contains(&condition.type_.as_str()));
    let started = tokio::time::Instant::now();
    while started.elapsed() < 120 * SECOND && rig.see(|objects| objects.node_claims.len()) == nodes {
        rig.context
            .cluster
            .update(|cluster| cluster.apply_node_claim(&late))
            .expect("a claim that makes sense");
        rig.pass(SECOND / 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_rebooted_now_does_not_keep_the_next_from_repair() {
    let rig = rig_of(&["a", "b", "c", "d", "e", "f"]).await;
    a_reboot_unheard_of(&rig, "2").await;
    assert_eq!(
        condition_of(&stored(&rig, "b").await, "DisruptionReason").expect("a reason")["reason"],
        "Unhealthy"
    );
    let decided = rig.metric("karpenter_voluntary_disruption_decisions_total", &[("decision", "reboot")]);
    assert_eq!(decided, Some(1.0), "what could not be done is not counted");
    let looks = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count";
    let looks = rig.metric(looks, &[("reason", "unhealthy")]).expect("a count");
    assert!(looks < 60.0, "it looks every ten seconds, and twice where a reboot was refused: {looks}");
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_a_late_watch_has_not_told_of_uses_up_the_budget() {
    let rig = rig_of(&["a", "b", "c", "d", "e", "f"]).await;
    a_reboot_unheard_of(&rig, "1").await;
    assert_eq!(condition_of(&stored(&rig, "b").await, "DisruptionReason"), None, "one is allowed");
}

/// Breaks node `b`, lets its replacement come up, and gives the time by which `b` must have been drained.
async fn replaced_until(rig: &Rig) -> jiff::Timestamp {
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    rig.patch(&claim("b", "default", 2), held).await;
    break_node(rig, "b", "DiskBroken", "Worn").await;
    let known = ["a", "b", "c", "d"];
    let replacements = |rig: &Rig| {
        rig.see(|objects| {
            let names = objects.node_claims.keys().map(|key| key.name.to_string());
            names.filter(|name| !known.contains(&name.as_str())).collect::<Vec<_>>()
        })
    };
    rig.eventually("a replacement is there", |rig| replacements(rig).len() == 1).await;
    let replacement = replacements(rig).remove(0);
    let up = claim(&replacement, "default", 2)["status"]["conditions"].clone();
    rig.patch_status(&claim(&replacement, "default", 2), json!({"status": {"conditions": up}})).await;
    rig.eventually("the broken node is going", |rig| {
        rig.see(|objects| {
            let claim = objects.node_claims.get(&ObjectKey::cluster("b"));
            claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
        })
    })
    .await;
    let until = stored(rig, "b").await["metadata"]["annotations"][TERMINATION_TIME].clone();
    until.as_str().expect("a bound").parse().expect("a time")
}

const TERMINATION_TIME: &str = "karpenter.sh/nodeclaim-termination-timestamp";

#[tokio::test(start_paused = true)]
async fn a_broken_node_is_replaced_first_and_its_drain_is_bounded() {
    let rig = rig().await;
    let until = replaced_until(&rig).await;
    let left = until.duration_since(rig.context.now()).as_secs();
    assert!((240..=300).contains(&left), "{left}");
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_repair_never_puts_off_the_end_of_a_node() {
    let rig = rig().await;
    let soon = rig.context.now().checked_add(jiff::SignedDuration::from_secs(200)).expect("a time");
    let soon = soon.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let annotation = json!({"metadata": {"annotations": {TERMINATION_TIME: soon}}});
    rig.patch(&claim("b", "default", 2), annotation).await;
    assert_eq!(replaced_until(&rig).await.to_string(), soon);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_asks_not_to_be_repaired_is_not() {
    let rig = rig().await;
    let annotation = json!({"metadata": {"annotations": {"karpenter.sh/do-not-repair": "true"}}});
    rig.patch(&node("c", "default", 2), annotation).await;
    break_node(&rig, "c", "DiskBroken", "Worn").await;
    rig.pass(300 * SECOND).await;
    assert_eq!(condition_of(&stored(&rig, "c").await, "DisruptionReason"), None);
    let told = rig.events("Node", &node_name("c")).await;
    let said = "DisruptionBlocked: repair is blocked through the \"karpenter.sh/do-not-repair\" annotation";
    assert!(told.contains(&said.to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn when_many_nodes_are_broken_at_once_none_is_repaired() {
    let rig = rig().await;
    for name in ["a", "b"] {
        break_node(&rig, name, "DiskBroken", "Worn").await;
    }
    rig.pass(300 * SECOND).await;
    for name in ["a", "b"] {
        assert_eq!(condition_of(&stored(&rig, name).await, "DisruptionReason"), None);
    }
    let told = rig.events("Node", &node_name("a")).await;
    let said = "NodeRepairBlocked: more than 20% of nodes in nodepool \"default\" are unhealthy";
    assert!(told.contains(&said.to_owned()), "{told:?}");
}

/// As the reboot controller writes it once the node is back.
async fn reboot_ends(rig: &Rig, name: &str) {
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut conditions =
        stored(rig, name).await["status"]["conditions"].as_array().expect("conditions").clone();
    for condition in &mut conditions {
        match condition["type"].as_str() {
            Some("Rebooting") => {
                *condition = json!({
                    "type": "Rebooting", "status": "False", "reason": "RebootSucceeded", "message": "", "lastTransitionTime": now,
                });
            }
            Some("Initialized" | "Ready") => condition["status"] = json!("True"),
            _ => {}
        }
    }
    rig.patch_status(&claim(name, "default", 2), json!({"status": {"conditions": conditions}})).await;
    rig.patch(&node(name, "default", 2), json!({"spec": {"taints": null}})).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_two_reboots_did_not_help_is_replaced() {
    let rig = rig().await;
    break_node(&rig, "a", "KernelHung", "Hung").await;
    for reboot in 1..=2 {
        let is_asked = |rig: &Rig| {
            rig.see(|objects| {
                let claim = objects.node_claims.get(&ObjectKey::cluster("a")).expect("the claim");
                claim.condition_status("Rebooting") == ConditionStatus::True
            })
        };
        rig.eventually(&format!("reboot {reboot} is asked for"), is_asked).await;
        reboot_ends(&rig, "a").await;
    }
    // The drains before the reboots have emptied it: nothing need come in its place.
    rig.eventually("it is taken away", |rig| going(rig, &["a"]) == 1).await;
    let decided = |decision| {
        rig.metric(
            "karpenter_voluntary_disruption_decisions_total",
            &[("decision", decision), ("reason", "unhealthy")],
        )
    };
    assert_eq!((decided("reboot"), decided("delete")), (Some(2.0), Some(1.0)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_came_up_is_repaired_whatever_the_budgets_say() {
    let rig = rig().await;
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}})).await;
    break_node(&rig, "a", "DiskBroken", "Worn").await;
    rig.pass(200 * SECOND).await;
    assert_eq!(
        condition_of(&stored(&rig, "a").await, "DisruptionReason"),
        None,
        "a budget protects what runs"
    );
    break_node(&rig, "a", "Fine", "Again").await;
    // What keeps it from coming up.
    let wait = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
    rig.patch(&node("b", "default", 2), json!({"spec": {"taints": wait}})).await;
    let unready = json!({"metadata": {"labels": {"karpenter.sh/initialized": null}}});
    rig.patch(&node("b", "default", 2), unready).await;
    let mut conditions =
        stored(&rig, "b").await["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.retain(|condition| condition["type"] != "Initialized" && condition["type"] != "Ready");
    rig.patch_status(&claim("b", "default", 2), json!({"status": {"conditions": conditions}})).await;
    // Pods that go on waiting for it have it promised to them again and again.
    assert!(rig.context.cluster.update(|cluster| cluster.nominate(&node_name("b"), 3600 * SECOND)));
    break_node(&rig, "b", "DiskBroken", "Worn").await;
    rig.eventually("it is repaired", |rig| rig.see(|objects| has_reason(objects, "b"))).await;
    assert!(rig.context.cluster.read(|cluster| cluster.is_nominated(&provider_id("b"))), "as before");
}

#[tokio::test(start_paused = true)]
async fn a_broken_node_that_is_promised_to_a_pod_meanwhile_does_not_keep_the_next_from_repair() {
    let thought = 9 * SECOND;
    let rig = rig_thinking(&["a", "b", "c", "d", "e", "f"], Compute::Taking(thought)).await;
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}})).await;
    for name in ["a", "b"] {
        break_node(&rig, name, "DiskBroken", "Worn").await;
    }
    let looks = || {
        let name = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count";
        rig.metric(name, &[("reason", "unhealthy")]).unwrap_or_default()
    };
    // The last look before they have been broken for long enough has been thought about.
    rig.pass(51 * SECOND).await;
    let before = looks();
    rig.eventually("a pass ends", |_| looks() > before).await;
    rig.pass(10 * SECOND + thought / 2).await;
    assert!(rig.context.cluster.update(|cluster| cluster.nominate(&node_name("a"), thought)));
    rig.pass(thought + thought / 2 + SECOND).await;
    let repaired = |name: &str| rig.see(|objects| has_reason(objects, name));
    assert!(!repaired("a") && repaired("b"), "in the same pass");
}

/// What a repair that ended between its two last writes leaves: marks, a bound for the drain, and no deletion.
async fn half_repaired(rig: &Rig, name: &str, reason: &str) {
    let long_ago = json!({"metadata": {"annotations": {TERMINATION_TIME: "2024-01-01T00:00:00Z"}}});
    rig.patch(&claim(name, "default", 2), long_ago).await;
    let mut conditions =
        stored(rig, name).await["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.push(json!({
        "type": "DisruptionReason", "status": "True", "reason": reason, "message": reason,
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }));
    rig.patch_status(&claim(name, "default", 2), json!({"status": {"conditions": conditions}})).await;
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_repair_that_a_crash_ended_does_not_outlive_it() {
    let rig = rig().await;
    half_repaired(&rig, "b", "Unhealthy").await;
    half_repaired(&rig, "c", "Drifted").await;
    rig.pass(30 * SECOND).await;
    for (name, kept) in [("b", false), ("c", true)] {
        let claim = stored(&rig, name).await;
        assert_eq!(condition_of(&claim, "DisruptionReason"), None, "{name}");
        assert_eq!(claim["metadata"]["annotations"][TERMINATION_TIME].is_string(), kept, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_bound_of_a_repair_that_is_given_up_goes_with_it() {
    let rig = rig().await;
    add_node(&rig, "e", 2, json!({})).await;
    rig.refuse_deletions(true);
    break_node(&rig, "e", "DiskBroken", "Worn").await;
    let is_bounded = |rig: &Rig| {
        rig.see(|objects| {
            let claim = objects.node_claims.get(&ObjectKey::cluster("e")).expect("the claim");
            claim.metadata.annotations.iter().flatten().any(|(key, _)| key == TERMINATION_TIME)
        })
    };
    rig.eventually("its drain is bounded", is_bounded).await;
    break_node(&rig, "e", "Fine", "Again").await;
    rig.eventually("the command is given up", |rig| !rig.see(|objects| has_reason(objects, "e"))).await;
    assert!(!is_bounded(&rig), "its next drain has all its time");
    assert_eq!(going(&rig, &["e"]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_broken_node_of_a_full_static_pool_goes_before_its_replacement_comes() {
    let gates = "--feature-gates=NodeRepair=true,StaticCapacity=true,TerminateFirstRepair=true";
    let rig = Rig::quiet_with(&[gates], |provider| {
        provider.repair(vec![policy("DiskBroken", RepairAction::ReplaceNode, "")]);
    })
    .await;
    rig.create(node_class()).await;
    for name in ["a", "b"] {
        rig.create(node(name, "default", 2)).await;
        rig.patch(&node(name, "default", 2), json!({"spec": {"taints": null}})).await;
        rig.create(claim(name, "default", 2)).await;
    }
    let spec = json!({
        "replicas": 2, "limits": {"nodes": "2"},
        "disruption": {"consolidateAfter": null, "consolidationPolicy": null},
    });
    rig.create(node_pool("default").with(json!({"spec": spec}))).await;
    break_node(&rig, "a", "DiskBroken", "Worn").await;
    rig.eventually("the broken node goes", |rig| going(rig, &["a"]) == 1).await;
    let page = rig.context.environment.registry.encode();
    let counted = page.lines().find(|line| line.contains("terminate_first") && line.contains("unhealthy"));
    assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{counted:?}");
}
