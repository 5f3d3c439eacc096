//! Pods say how gladly their workload should part with them.

use std::time::Duration;

use karpenter_api::annotations::POD_DELETION_COST;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{With, claim, node, node_class, node_pool, pod, pod_on, provider_id};
use crate::rig::Rig;

/// A pod of a ReplicaSet on a node of its own.
async fn occupied(rig: &Rig, owner: &Value, name: &str, size: u32) {
    rig.create(claim(name, "default", size)).await;
    rig.create(node(name, "default", size)).await;
    rig.create(pod_on(name, name, "100m").with(json!({"metadata": {"ownerReferences": [owner]}}))).await;
}

fn cost(rig: &Rig, pod: &str) -> Option<String> {
    let all = rig.context.stores.pods.list();
    let pod = all.iter().find(|known| *known.key.name == *pod).expect("a pod");
    pod.deletion_cost.as_deref().map(str::to_owned)
}

/// A cluster with the gate open and a ReplicaSet in it, and the reference pods have to that. Nothing is consolidated.
async fn with_replica_set(disruption: Value) -> (Rig, Value) {
    let rig = Rig::quiet(&["--feature-gates=PodDeletionCostManagement=true"]).await;
    rig.create(node_class()).await;
    let spec = json!({"spec": {"disruption": {"consolidateAfter": "87600h"}}});
    rig.create(node_pool("default").with(spec).with(json!({"spec": {"disruption": disruption}}))).await;
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
    (rig, owner)
}

fn writes(rig: &Rig, result: &str) -> Option<f64> {
    rig.metric("karpenter_pod_deletion_cost_pod_annotation_writes_total", &[("result", result)])
}

fn written(rig: &Rig) -> Option<f64> {
    writes(rig, "updated")
}

#[tokio::test(start_paused = true)]
async fn pods_on_nodes_that_go_first_cost_least() {
    let (rig, owner) = with_replica_set(json!({"budgets": [{"nodes": "2"}]})).await;
    for (name, size) in [("small", 1), ("middle", 3), ("large", 5), ("going", 2)] {
        occupied(&rig, &owner, name, size).await;
    }
    rig.context.cluster.update(|cluster| assert!(cluster.mark_for_deletion(&provider_id("going"))));
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(cost(&rig, "going").as_deref(), Some("-2147483648"));
    assert_eq!(cost(&rig, "large").as_deref(), Some("-1"), "of two that may be disrupted one is under way");
    assert_eq!(cost(&rig, "middle"), None, "beyond the budget");
    assert_eq!(cost(&rig, "small"), None);
    rig.context.cluster.update(|cluster| assert!(cluster.unmark_for_deletion(&provider_id("going"))));
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

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_back_while_the_provider_has_not_said_what_it_offers() {
    let (rig, owner) = with_replica_set(json!({"budgets": [{"nodes": "2"}]})).await;
    occupied(&rig, &owner, "large", 5).await;
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(cost(&rig, "large").as_deref(), Some("-1"));
    // A new pool, of which nothing is known yet, and a change that has everything ranked again.
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Slow(Duration::from_secs(120))));
    rig.create(node_pool("another").with(json!({"spec": {"disruption": {"consolidateAfter": "87600h"}}})))
        .await;
    occupied(&rig, &owner, "small", 1).await;
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(cost(&rig, "large").as_deref(), Some("-1"));
    rig.provider.always(Method::GetInstanceTypes, None);
    rig.eventually("all are ranked", |rig| cost(rig, "small").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn what_users_wrote_gives_way_and_other_annotations_stay() {
    let (rig, owner) = with_replica_set(json!({})).await;
    occupied(&rig, &owner, "a", 1).await;
    let theirs = json!({"metadata": {"annotations": {POD_DELETION_COST: "100", "example.com/note": "keep"}}});
    rig.patch(&pod_on("a", "a", "100m"), theirs).await;
    rig.pass(Duration::from_secs(90)).await;
    let stored = rig.get(&pod_on("a", "a", "100m")).await.expect("the pod");
    assert_eq!(
        stored["metadata"]["annotations"],
        json!({POD_DELETION_COST: "-1", "example.com/note": "keep"})
    );
}

#[tokio::test(start_paused = true)]
async fn only_pods_of_replica_sets_are_written_to_and_pods_nobody_makes_anew_pin_their_node() {
    let (rig, owner) = with_replica_set(json!({})).await;
    occupied(&rig, &owner, "a", 1).await;
    occupied(&rig, &owner, "b", 1).await;
    // Not its controller: nobody would make it anew.
    let mut other = owner.clone();
    other["controller"] = json!(false);
    rig.create(pod_on("b", "lonely", "100m").with(json!({"metadata": {"ownerReferences": [other]}}))).await;
    rig.create(pod_on("a", "system", "100m").with(json!({"metadata": {"namespace": "kube-system"}}))).await;
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(cost(&rig, "a").as_deref(), Some("-1"), "what runs in kube-system pins nothing");
    assert_eq!((cost(&rig, "b"), cost(&rig, "lonely"), cost(&rig, "system")), (None, None, None));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_must_stay_lose_their_rank_and_those_going_come_before_all() {
    let (rig, owner) = with_replica_set(json!({})).await;
    for name in ["a", "b", "c"] {
        occupied(&rig, &owner, name, 1).await;
    }
    rig.pass(Duration::from_secs(90)).await;
    let ranks = ["a", "b", "c"].map(|name| cost(&rig, name));
    assert_eq!(ranks.each_ref().map(Option::as_deref), [Some("-3"), Some("-2"), Some("-1")], "ties by name");
    let stay = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    for name in ["a", "b"] {
        rig.patch(&node(name, "default", 1), stay.clone()).await;
    }
    // Tainted as disrupted, whatever it asks for.
    let taint = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    rig.context.cluster.update(|cluster| assert!(cluster.mark_for_deletion(&provider_id("b"))));
    rig.patch(&node("b", "default", 1), json!({"spec": {"taints": taint}})).await;
    rig.pass(Duration::from_secs(400)).await;
    let ranks = ["a", "b", "c"].map(|name| cost(&rig, name));
    assert_eq!(ranks.each_ref().map(Option::as_deref), [None, Some("-2147483648"), Some("-1")]);
}

#[tokio::test(start_paused = true)]
async fn neither_pools_that_are_never_consolidated_nor_drifted_nodes_beyond_their_budget_are_ranked() {
    let (rig, owner) = with_replica_set(json!({"consolidateAfter": "Never"})).await;
    rig.provider.drift(Some("Test"));
    occupied(&rig, &owner, "drifted", 1).await;
    rig.pass(Duration::from_secs(5)).await;
    rig.provider.drift(None);
    rig.patch(
        &node_pool("default"),
        json!({"spec": {"disruption": {"budgets": [{"nodes": "0", "reasons": ["Drifted"]}]}}}),
    )
    .await;
    occupied(&rig, &owner, "usual", 1).await;
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!((cost(&rig, "drifted"), cost(&rig, "usual")), (None, None), "beyond the budget, and never");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_again_while_nothing_changes() {
    let (rig, owner) = with_replica_set(json!({})).await;
    occupied(&rig, &owner, "a", 1).await;
    rig.pass(Duration::from_secs(90)).await;
    assert_eq!(written(&rig), Some(1.0));
    rig.pass(Duration::from_secs(1200)).await;
    assert_eq!(written(&rig), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn fifty_nodes_are_written_to_in_a_turn_and_those_going_besides() {
    let (rig, owner) = with_replica_set(json!({})).await;
    let name = |number: usize| format!("n{number:02}");
    for number in 0..53 {
        occupied(&rig, &owner, &name(number), 1).await;
    }
    let stays = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    let stale = json!({"metadata": {"annotations": {POD_DELETION_COST: "7"}}});
    for number in 49..52 {
        rig.patch(&node(&name(number), "default", 1), stays.clone()).await;
        rig.patch(&pod_on(&name(number), &name(number), "100m"), stale.clone()).await;
    }
    rig.context.cluster.update(|cluster| assert!(cluster.mark_for_deletion(&provider_id("n52"))));
    rig.eventually("a turn", |rig| cost(rig, "n52").is_some()).await;
    rig.pass(Duration::from_secs(5)).await;
    let ranked = (0..49).filter(|number| cost(&rig, &name(*number)).is_some()).count();
    let stale = |rig: &Rig| (49..52).filter(|number| cost(rig, &name(*number)).is_some()).count();
    assert_eq!((ranked, stale(&rig)), (49, 2), "what is left of fifty goes to those that lose theirs");
    assert_eq!(cost(&rig, "n52").as_deref(), Some("-2147483648"));
    let pending = "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes";
    assert_eq!(rig.metric(pending, &[("nodepool", "default")]), Some(51.0));
    rig.eventually("the others have their turn", |rig| stale(rig) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn what_became_of_each_write_is_counted_and_a_refused_one_names_its_pod() {
    let lines = Lines::capture();
    let (rig, owner) = with_replica_set(json!({})).await;
    for name in ["broken", "fine", "gone", "raced"] {
        occupied(&rig, &owner, name, 1).await;
    }
    // The node with two pods goes last.
    let same = json!({"metadata": {"ownerReferences": [owner], "annotations": {POD_DELETION_COST: "-1"}}});
    rig.create(pod_on("fine", "same", "100m").with(same)).await;
    rig.refuse(Some(|method, path| match (method.as_str(), path.rsplit('/').next()) {
        ("PATCH", Some("broken")) => Some(500),
        ("PATCH", Some("gone")) => Some(404),
        ("PATCH", Some("raced")) => Some(409),
        _ => None,
    }));
    rig.eventually("a turn", |rig| cost(rig, "fine").is_some()).await;
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(cost(&rig, "fine").as_deref(), Some("-1"));
    for result in ["updated", "skipped_unchanged", "skipped_notfound", "skipped_conflict"] {
        assert_eq!(writes(&rig, result), Some(1.0), "{result}");
    }
    assert!(writes(&rig, "error") > Some(1.0), "it is tried again");
    let errors = lines.saying("Reconciler error");
    let line = errors.iter().find(|line| line["controller"] == "pod.deletioncost.queue").expect("an error");
    assert_eq!((&line["namespace"], &line["name"]), (&json!("default"), &json!("broken")), "{line}");
}

#[tokio::test(start_paused = true)]
async fn of_two_costs_a_pod_should_have_the_later_is_written() {
    let (rig, owner) = with_replica_set(json!({})).await;
    occupied(&rig, &owner, "a", 1).await;
    rig.refuse(Some(|method, path| (method == "PATCH" && path.ends_with("/pods/a")).then_some(500)));
    rig.eventually("a turn", |rig| writes(rig, "error").is_some()).await;
    rig.context.cluster.update(|cluster| assert!(cluster.mark_for_deletion(&provider_id("a"))));
    rig.pass(Duration::from_secs(70)).await;
    rig.refuse(None);
    rig.pass(Duration::from_secs(15)).await;
    assert_eq!((cost(&rig, "a").as_deref(), written(&rig)), (Some("-2147483648"), Some(1.0)));
}
