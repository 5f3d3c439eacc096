//! Nodes that their platform is at work on: left alone while pods run on them, counted against budgets while it takes them away, and
//! left alone whatever befalls them while it can do nothing with them.

use std::time::Duration;

use karpenter_cloudprovider::{DisruptionHold, RepairAction, RepairPolicy};
use serde_json::json;

use crate::disruption::{add_node, blocked_by, drifted, going, pool_with, replacements, rig_with};
use crate::objects::{With, claim, condition, node, node_class, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn hold(leaving: bool) -> Option<DisruptionHold> {
    Some(DisruptionHold {
        reason: "MachineDeployment fleet/m is rolling out".to_owned(),
        leaving,
        stuck: false,
    })
}

fn stuck() -> Option<DisruptionHold> {
    let reason = "the management cluster is out of reach".to_owned();
    Some(DisruptionHold { reason, leaving: false, stuck: true })
}

#[tokio::test(start_paused = true)]
async fn a_node_that_its_platform_is_at_work_on_is_disrupted_when_that_is_over() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.provider.drift(Some("Test"));
    rig.provider.hold("a", hold(false));
    add_node(&rig, "a", 2, drifted()).await;
    rig.create(pod_on("a", "p", "1500m")).await;
    rig.pass(5 * MINUTE).await;
    assert_eq!(replacements(&rig, &["a"]), Vec::<String>::new());
    let told = blocked_by(&rig, "a").await;
    assert_eq!(told, ["MachineDeployment fleet/m is rolling out"], "and why is told");
    rig.provider.hold("a", None);
    rig.eventually("it is replaced", |rig| replacements(rig, &["a"]).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_nothing_runs_on_goes_whatever_its_platform_does() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.provider.hold("a", hold(false));
    rig.eventually("it goes", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn while_its_platform_can_do_nothing_with_it_not_even_an_empty_node_goes() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.provider.hold("a", stuck());
    rig.pass(10 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    assert_eq!(blocked_by(&rig, "a").await, ["The management cluster is out of reach"], "and why is told");
    rig.provider.hold("a", None);
    rig.eventually("it goes", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_whose_platform_is_lost_while_its_end_is_thought_over_stays() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.provider.hold("a", stuck());
    rig.pass(10 * MINUTE).await;
    for _ in 0..10 {
        // What is decided is looked at again 15 seconds later.
        rig.provider.hold("a", None);
        rig.pass(12 * SECOND).await;
        rig.provider.hold("a", stuck());
        rig.pass(MINUTE).await;
    }
    assert_eq!(going(&rig, &["a"]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_platform_can_do_nothing_with_it_expires_when_that_is_over() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.hold("a", stuck());
    for name in ["a", "b"] {
        rig.create(claim(name, "default", 1).with(json!({"spec": {"expireAfter": "60s"}}))).await;
        rig.create(node(name, "default", 1)).await;
    }
    rig.pass(10 * MINUTE).await;
    let there = async |name: &str| rig.get(&claim(name, "default", 1)).await.is_some();
    assert!(there("a").await && !there("b").await);
    rig.provider.hold("a", hold(false));
    rig.pass(30 * SECOND).await;
    assert!(!there("a").await, "what the platform is at work on expires");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_late_to_register_is_not_given_up_while_nothing_can_take_its_place() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.hold("a", stuck());
    let launched = json!([condition("Launched", "True", "2026-01-01T00:00:00Z")]);
    rig.create(claim("a", "default", 1).with(json!({"status": {"conditions": launched}}))).await;
    rig.pass(40 * MINUTE).await;
    assert!(rig.get(&claim("a", "default", 1)).await.is_some());
    rig.provider.hold("a", None);
    rig.pass(2 * MINUTE).await;
    assert!(rig.get(&claim("a", "default", 1)).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_broken_node_is_repaired_once_its_platform_can_take_it_away() {
    for legacy in ["false", "true"] {
        let flags = ["--feature-gates=NodeRepair=true", &format!("--legacy-node-repair={legacy}")];
        let rig = Rig::quiet_with(&flags, |provider| {
            provider.repair(vec![RepairPolicy {
                condition_type: "DiskBroken".to_owned(),
                condition_status: "True".to_owned(),
                reason_regex: String::new(),
                toleration: MINUTE,
                termination_grace_period: None,
                priority: 0,
                action: RepairAction::ReplaceNode,
            }]);
        })
        .await;
        rig.create(node_class()).await;
        let never = json!({"spec": {"disruption": {"consolidateAfter": "Never"}}});
        rig.create(node_pool("default").with(never)).await;
        rig.provider.hold("a", stuck());
        // Where most are broken nothing is repaired.
        let nodes = ["a", "b", "c", "d", "e"];
        for name in nodes {
            add_node(&rig, name, 2, json!({})).await;
            rig.create(pod_on(name, &format!("p-{name}"), "1500m")).await;
        }
        let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let conditions = json!([
            {"type": "Ready", "status": "True"},
            {"type": "DiskBroken", "status": "True", "reason": "", "lastTransitionTime": now},
        ]);
        rig.patch_status(&node("a", "default", 2), json!({"status": {"conditions": conditions}})).await;
        // The new way makes a replacement first.
        let begun = |rig: &Rig| going(rig, &["a"]) == 1 || replacements(rig, &nodes).len() == 1;
        rig.pass(10 * MINUTE).await;
        assert!(!begun(&rig), "legacy {legacy}");
        rig.provider.hold("a", hold(false));
        rig.eventually("it goes though the platform is at work on it", begun).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_platform_takes_away_leaves_the_less_of_a_budget() {
    let rig = rig_with(pool_with(json!([{"nodes": "1"}])), &[]).await;
    rig.provider.hold("a", hold(true));
    rig.provider.drift(Some("Test"));
    for name in ["a", "b"] {
        add_node(&rig, name, 2, drifted()).await;
        rig.create(pod_on(name, &format!("p-{name}"), "1500m")).await;
    }
    rig.pass(5 * MINUTE).await;
    assert_eq!(replacements(&rig, &["a", "b"]), Vec::<String>::new(), "one is gone as it is");
    rig.provider.hold("a", None);
    rig.pass(30 * SECOND).await;
    assert_eq!(replacements(&rig, &["a", "b"]).len(), 1, "one at a time");
}
