//! Nodes are taken away when, and only when, they may be, and what was begun is finished or taken back.

use std::time::Duration;

use karpenter_api::conditions::{ConditionStatus, HasConditions};
use karpenter_api::taints::DISRUPTED;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_sim::Objects;
use serde_json::{Value, json};

use crate::objects::{With, claim, condition, condition_of, node, node_class, node_name, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn drifted() -> Value {
    let conditions = claim("x", "default", 1)["status"]["conditions"].clone();
    let mut conditions = conditions.as_array().expect("conditions").clone();
    conditions.push(json!({
        "type": "Drifted", "status": "True", "reason": "Test", "message": "Test", "lastTransitionTime": "2024-01-01T00:00:00Z",
    }));
    json!({"status": {"conditions": conditions}})
}

/// A pool `default` with these nodes, each `fake-it-<size>`, up and empty.
pub(crate) async fn rig_with(pool: Value, nodes: &[(&str, u32)]) -> Rig {
    furnish(Rig::quiet(&[]).await, pool, nodes).await
}

pub(crate) async fn furnish(rig: Rig, pool: Value, nodes: &[(&str, u32)]) -> Rig {
    rig.create(node_class()).await;
    rig.create(pool).await;
    for (name, size) in nodes {
        add_node(&rig, name, *size, json!({})).await;
    }
    rig
}

pub(crate) async fn add_node(rig: &Rig, name: &str, size: u32, with: Value) {
    rig.create(node(name, "default", size)).await;
    // The server taints every new node until someone says it is ready.
    rig.patch(&node(name, "default", size), json!({"spec": {"taints": null}})).await;
    rig.create(claim(name, "default", size).with(with)).await;
}

pub(crate) fn pool_with(budgets: Value) -> Value {
    node_pool("default").with(json!({"spec": {"disruption": {"budgets": budgets}}}))
}

fn is_going(objects: &Objects, claim: &str) -> bool {
    let claim = objects.node_claims.get(&ObjectKey::cluster(claim));
    claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
}

pub(crate) fn is_tainted(objects: &Objects, claim: &str) -> bool {
    let node = objects.nodes.get(&ObjectKey::cluster(node_name(claim)));
    let taints = node.iter().flat_map(|node| &node.spec).flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| DISRUPTED.matches(taint))
}

pub(crate) fn has_reason(objects: &Objects, claim: &str) -> bool {
    let claim = objects.node_claims.get(&ObjectKey::cluster(claim));
    claim.is_some_and(|claim| claim.condition_status("DisruptionReason") == ConditionStatus::True)
}

pub(crate) fn going(rig: &Rig, claims: &[&str]) -> usize {
    rig.see(|objects| claims.iter().filter(|claim| is_going(objects, claim)).count())
}

/// NodeClaims that are none of these.
pub(crate) fn replacements(rig: &Rig, known: &[&str]) -> Vec<String> {
    rig.see(|objects| {
        let names = objects.node_claims.keys().map(|key| key.name.to_string());
        names.filter(|name| !known.contains(&name.as_str())).collect()
    })
}

/// Says that this claim's node is up.
pub(crate) async fn come_up(rig: &Rig, name: &str) {
    let conditions = claim(name, "default", 1)["status"]["conditions"].clone();
    rig.patch_status(&claim(name, "default", 1), json!({"status": {"conditions": conditions}})).await;
}

pub(crate) async fn blocked_by(rig: &Rig, claim: &str) -> Vec<String> {
    let told = rig.events("NodeClaim", claim).await;
    told.into_iter().filter_map(|text| text.strip_prefix("DisruptionBlocked: ").map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_is_deleted_once_it_has_been_empty_for_the_wait() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.pass(14 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0);
    rig.eventually("the node is going", |rig| going(rig, &["a"]) == 1).await;
    let told = rig.events("NodeClaim", "a").await;
    assert!(told.contains(&"DisruptionTerminating: Disrupting NodeClaim: Empty".to_owned()), "{told:?}");
    let page = rig.context.environment.registry.encode();
    for series in [
        r#"karpenter_voluntary_disruption_decisions_total{consolidation_type="empty",decision="delete",reason="empty"} 1"#,
        r#"karpenter_nodeclaims_disrupted_total{capacity_type="on-demand",consolidation_policy="when_empty_or_underutilized",nodepool="default",reason="empty",termination_mode="graceful"} 1"#,
        r#"karpenter_voluntary_disruption_consolidation_timeouts_total{consolidation_type="multi"} 0"#,
    ] {
        let (name, rest) = series.split_once('{').expect("labels");
        let (labels, value) = rest.split_once("} ").expect("a value");
        let found = page.lines().any(|line| {
            line.starts_with(&format!("{name}{{"))
                && labels.split(',').all(|label| line.contains(label))
                && line.ends_with(&format!(" {value}"))
        });
        assert!(found, "{series}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_gets_a_pod_while_it_is_waited_stays() {
    let pool =
        node_pool("default").with(json!({"spec": {"disruption": {"consolidationPolicy": "WhenEmpty"}}}));
    let rig = rig_with(pool, &[("a", 1)]).await;
    rig.pass(12 * SECOND).await;
    rig.create(pod_on("a", "p", "900m")).await;
    rig.pass(30 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0);
    assert!(!rig.see(|objects| is_tainted(objects, "a")));
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_that_gets_a_pod_before_schedulers_see_its_taint_stays() {
    let rig = rig_with(node_pool("default"), &[("a", 1), ("b", 1)]).await;
    rig.eventually("the node is tainted", |rig| rig.see(|objects| is_tainted(objects, "a"))).await;
    rig.create(pod_on("a", "p", "900m")).await;
    rig.eventually("the other node is going", |rig| going(rig, &["b"]) == 1).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0);
    assert!(!rig.see(|objects| is_tainted(objects, "a") || has_reason(objects, "a")));
}

#[tokio::test(start_paused = true)]
async fn daemons_and_finished_pods_do_not_keep_a_node() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    let daemon = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}]);
    rig.create(pod_on("a", "d", "100m").with(json!({"metadata": {"ownerReferences": daemon}}))).await;
    rig.create(pod_on("a", "done", "100m").with(json!({"status": {"phase": "Succeeded"}}))).await;
    rig.eventually("the node is going", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_nodes_go_at_once_than_the_budget_allows() {
    let names = ["a", "b", "c", "d"];
    let nodes: Vec<(&str, u32)> = names.iter().map(|name| (*name, 1)).collect();
    let rig = rig_with(pool_with(json!([{"nodes": "2"}])), &nodes).await;
    // The nodes that go stay for a while: something holds them.
    for name in names {
        rig.patch(&node(name, "default", 1), json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    }
    rig.eventually("two nodes are going", |rig| going(rig, &names) == 2).await;
    rig.pass(5 * MINUTE).await;
    assert_eq!(going(&rig, &names), 2);
}

#[tokio::test(start_paused = true)]
async fn a_budget_for_one_reason_leaves_the_others_alone() {
    let rig = rig_with(pool_with(json!([{"nodes": "0", "reasons": ["Empty"]}])), &[("a", 1)]).await;
    rig.pass(2 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    let told = rig.events("NodePool", "default").await;
    let said = "DisruptionBlocked: No allowed disruptions for disruption reason Empty due to blocking budget";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    rig.patch_status(&claim("a", "default", 1), drifted()).await;
    rig.provider.drift(Some("Test"));
    rig.eventually("the drifted node is going", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_is_kept_while_it_has_not_been_quiet_for_long_enough_or_consolidation_is_off() {
    let pool = node_pool("default").with(json!({"spec": {"disruption": {"consolidateAfter": "1h"}}}));
    let rig = rig_with(pool, &[]).await;
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    add_node(&rig, "a", 1, json!({"status": {"lastPodEventTime": now}})).await;
    rig.pass(50 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"consolidateAfter": "Never"}}})).await;
    rig.pass(50 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    let told = rig.events("NodeClaim", "a").await;
    let said = "Unconsolidatable: NodePool \"default\" has consolidation disabled";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"consolidateAfter": "1m"}}})).await;
    rig.eventually("the node is going", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_asks_not_to_be_disrupted_is_not_and_it_is_said_why() {
    let rig = rig_with(node_pool("default"), &[("a", 4), ("b", 4)]).await;
    rig.patch(
        &node("a", "default", 4),
        json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}),
    )
    .await;
    rig.create(
        pod_on("b", "p", "100m")
            .with(json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})),
    )
    .await;
    rig.pass(2 * MINUTE).await;
    assert_eq!(going(&rig, &["a", "b"]), 0);
    let of_node = "Disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation";
    let of_pod = "Pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/p)";
    assert!(blocked_by(&rig, "a").await.contains(&of_node.to_owned()));
    assert!(blocked_by(&rig, "b").await.contains(&of_pod.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_disruption_budget_of_pods_that_allows_nothing_keeps_the_node() {
    let rig = rig_with(node_pool("default"), &[("a", 4), ("b", 4)]).await;
    rig.create(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "pdb", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "p"}}},
    }))
    .await;
    rig.create(pod_on("a", "p", "100m")).await;
    rig.create(pod_on("b", "q", "100m")).await;
    rig.eventually("the other node is going", |rig| going(rig, &["b"]) == 1).await;
    rig.pass(2 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    let said = "Pdb prevents pod evictions (PodDisruptionBudget=[default/pdb])";
    assert!(blocked_by(&rig, "a").await.contains(&said.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn marks_that_a_process_left_behind_are_taken_off() {
    let rig = rig_with(pool_with(json!([{"nodes": "0"}])), &[]).await;
    let since = "2024-01-01T00:00:00Z";
    let mut conditions =
        claim("a", "default", 1)["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.push(condition("DisruptionReason", "True", since));
    add_node(&rig, "a", 1, json!({"status": {"conditions": conditions}})).await;
    let taints = json!([
        {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, {"key": "other", "effect": "NoSchedule"},
    ]);
    rig.patch(&node("a", "default", 1), json!({"spec": {"taints": taints}})).await;
    rig.pass(15 * SECOND).await;
    assert!(!rig.see(|objects| is_tainted(objects, "a") || has_reason(objects, "a")));
    let stored = rig.get(&node("a", "default", 1)).await.expect("the node");
    assert_eq!(stored["spec"]["taints"], json!([{"key": "other", "effect": "NoSchedule"}]));
}

/// Once it has come up it would count as being disrupted, though nobody disrupts it.
#[tokio::test(start_paused = true)]
async fn the_reason_that_a_process_left_on_a_node_which_has_not_come_up_is_taken_off() {
    let rig = rig_with(pool_with(json!([{"nodes": "0"}])), &[]).await;
    let mut conditions =
        claim("a", "default", 1)["status"]["conditions"].as_array().expect("conditions").clone();
    conditions.retain(|condition| condition["type"] != "Initialized");
    conditions.push(condition("DisruptionReason", "True", "2024-01-01T00:00:00Z"));
    add_node(&rig, "a", 1, json!({"status": {"conditions": conditions}})).await;
    let away = json!({"metadata": {"labels": {"karpenter.sh/initialized": null}}});
    rig.patch(&node("a", "default", 1), away).await;
    rig.pass(15 * SECOND).await;
    assert!(!rig.see(|objects| has_reason(objects, "a")));
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_pods_fit_elsewhere_are_deleted() {
    // Spot nodes would be cheaper than any that is there.
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let pool =
        node_pool("default").with(json!({"spec": {"template": {"spec": {"requirements": on_demand}}}}));
    let rig = rig_with(pool, &[("a", 4), ("b", 4)]).await;
    rig.create(pod_on("a", "p", "3")).await;
    rig.create(pod_on("b", "q", "500m")).await;
    rig.eventually("one node is going", |rig| going(rig, &["a", "b"]) == 1).await;
    assert_eq!(replacements(&rig, &["a", "b"]), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_that_needs_fewer_evictions_by_the_time_it_is_validated_is_decided_again() {
    let rig = rig_with(node_pool("default"), &[("a", 4), ("b", 4)]).await;
    let stays = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    rig.create(pod_on("a", "p", "1").with(stays)).await;
    let at_once = json!({"spec": {"terminationGracePeriodSeconds": 0}});
    for pod in ["q", "r", "s", "t"] {
        rig.create(pod_on("b", pod, "100m").with(at_once.clone())).await;
    }
    rig.pass(10 * SECOND).await;
    for pod in ["q", "r", "s"] {
        rig.delete(&pod_on("b", pod, "100m")).await;
    }
    rig.pass(17 * SECOND).await;
    assert_eq!(going(&rig, &["b"]), 0, "one pod moves now, it were four when it was decided");
    rig.pass(15 * SECOND).await;
    assert_eq!(going(&rig, &["b"]), 1);
}

/// A drifted node `a` whose pod fits nowhere else; the command that replaces it is under way.
pub(crate) async fn replacing() -> (Rig, String) {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.provider.drift(Some("Test"));
    add_node(&rig, "a", 2, drifted()).await;
    rig.create(pod_on("a", "p", "1500m")).await;
    rig.eventually("a replacement is there", |rig| replacements(rig, &["a"]).len() == 1).await;
    let replacement = replacements(&rig, &["a"]).remove(0);
    (rig, replacement)
}

#[tokio::test(start_paused = true)]
async fn a_drifted_node_goes_only_after_its_replacement_is_up() {
    let (rig, replacement) = replacing().await;
    assert!(rig.see(|objects| is_tainted(objects, "a") && has_reason(objects, "a")));
    rig.pass(5 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    assert!(rig.see(|objects| is_tainted(objects, "a")), "no pods come back while it waits");
    assert_eq!(replacements(&rig, &["a"]).len(), 1, "nothing is launched twice");
    let told = rig.events("NodeClaim", &replacement).await;
    for said in [
        "DisruptionLaunching: Launching NodeClaim: Drifted",
        "DisruptionWaitingReadiness: Waiting on readiness to continue disruption",
    ] {
        assert!(told.contains(&said.to_owned()), "{told:?}");
    }
    rig.provider.drift(None);
    come_up(&rig, &replacement).await;
    rig.pass(3 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1);
    assert_eq!(going(&rig, &[&replacement]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_replacement_is_gone_is_taken_back() {
    let (rig, replacement) = replacing().await;
    rig.provider.drift(None);
    rig.patch_status(&claim("a", "default", 2), json!({"status": claim("a", "default", 2)["status"]})).await;
    rig.pass(2 * SECOND).await;
    rig.delete(&claim(&replacement, "default", 2)).await;
    rig.eventually("the marks are off", |rig| {
        rig.see(|objects| !is_tainted(objects, "a") && !has_reason(objects, "a"))
    })
    .await;
    assert_eq!(going(&rig, &["a"]), 0);
    let page = rig.context.environment.registry.encode();
    let failed =
        page.lines().find(|line| line.starts_with("karpenter_voluntary_disruption_queue_failures_total{"));
    assert!(
        failed.is_some_and(|line| {
            let labels = r#"{consolidation_type="",decision="replace",reason="drifted"}"#;
            line.contains(labels) && line.ends_with(" 1")
        }),
        "{failed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_command_that_takes_too_long_is_taken_back() {
    let (rig, _) = replacing().await;
    rig.provider.drift(None);
    rig.patch_status(&claim("a", "default", 2), json!({"status": claim("a", "default", 2)["status"]})).await;
    rig.pass(9 * MINUTE).await;
    assert!(rig.see(|objects| is_tainted(objects, "a")));
    rig.pass(62 * SECOND).await;
    assert!(!rig.see(|objects| is_tainted(objects, "a") || has_reason(objects, "a")));
    assert_eq!(going(&rig, &["a"]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_succeeds_late_has_succeeded() {
    let (rig, replacement) = replacing().await;
    rig.pass(10 * MINUTE - Duration::from_millis(500)).await;
    come_up(&rig, &replacement).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1);
    assert!(rig.see(|objects| !objects.nodes.contains_key(&ObjectKey::cluster(node_name("a")))
        || is_tainted(objects, "a")));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_cannot_launch_leaves_no_marks() {
    let rig = rig_with(node_pool("default").with(json!({"spec": {"limits": {"cpu": "1"}}})), &[]).await;
    rig.provider.drift(Some("Test"));
    add_node(&rig, "a", 2, drifted()).await;
    rig.create(pod_on("a", "p", "1500m")).await;
    rig.pass(2 * MINUTE).await;
    assert!(!rig.see(|objects| is_tainted(objects, "a") || has_reason(objects, "a")));
    assert_eq!((going(&rig, &["a"]), replacements(&rig, &["a"]).len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn several_nodes_become_one_and_a_vanished_one_does_not_hold_the_others_up() {
    let rig = rig_with(node_pool("default"), &[("a", 3), ("b", 3)]).await;
    rig.create(pod_on("a", "p", "1700m")).await;
    rig.create(pod_on("b", "q", "1700m")).await;
    rig.eventually("a replacement is there", |rig| replacements(rig, &["a", "b"]).len() == 1).await;
    let replacement = replacements(&rig, &["a", "b"]).remove(0);
    assert!(rig.see(|objects| is_tainted(objects, "a") && is_tainted(objects, "b")));
    // Someone takes the first node away while the command waits.
    rig.delete(&claim("a", "default", 3)).await;
    rig.eventually("it is gone", |rig| {
        rig.see(|objects| !objects.node_claims.contains_key(&ObjectKey::cluster("a")))
    })
    .await;
    come_up(&rig, &replacement).await;
    rig.eventually("the other is going", |rig| going(rig, &["b"]) == 1).await;
    assert_eq!(going(&rig, &[&replacement]), 0);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_others_and_nodes_that_are_not_up_are_left_alone() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign"}, "spec": {"providerID": "x://1"}})).await;
    rig.create(node("a", "default", 1).with(json!({"metadata": {"labels": {"karpenter.sh/initialized": null}}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}))).await;
    let starting = [
        condition("Launched", "True", "2024-01-01T00:00:00Z"),
        condition("Registered", "True", "2024-01-01T00:00:00Z"),
    ];
    rig.create(claim("a", "default", 1).with(json!({"status": {"conditions": starting}}))).await;
    rig.pass(MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
    assert!(blocked_by(&rig, "a").await.contains(&"Node isn't initialized".to_owned()));
    assert!(rig.events("Node", "foreign").await.iter().all(|told| !told.starts_with("Disruption")));
    let stored = rig.get(&claim("a", "default", 1)).await.expect("the claim");
    assert!(condition_of(&stored, "DisruptionReason").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_cannot_be_understood_allows_nothing() {
    // The API server lets a schedule through that its pattern fits and that no calendar knows.
    let budget = json!([{"nodes": "100%", "schedule": "61 * * * *", "duration": "1h"}]);
    let rig = rig_with(pool_with(budget), &[("a", 1)]).await;
    rig.pass(2 * MINUTE).await;
    assert_eq!(going(&rig, &["a"]), 0);
}
