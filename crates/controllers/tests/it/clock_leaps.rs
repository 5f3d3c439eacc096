//! A clock that leaps ahead may be wrong: nothing is deleted for its age before it has been believed for a while.

use std::time::Duration;

use serde_json::json;

use crate::disruption::{add_node, furnish, going, rig_with};
use crate::objects::{With, claim, fresh_claim, node_class, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: i64 = 3600;

/// Has Karpenter look at a claim.
async fn touch(rig: &Rig, name: &str, what: &str) {
    rig.patch(
        &claim(name, "default", 1),
        json!({"metadata": {"annotations": {"example.com/touched": what}}}),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_expire_by_a_clock_that_is_set_right_again() {
    let rig = rig_with(node_pool("default"), &[]).await;
    add_node(&rig, "a", 1, json!({"spec": {"expireAfter": "2h"}})).await;
    rig.create(pod_on("a", "p", "900m")).await;
    rig.jump(3 * HOUR);
    touch(&rig, "a", "ahead").await;
    rig.pass(30 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0, "the clock is doubted");
    rig.jump(-3 * HOUR);
    rig.pass(300 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0, "it was wrong");
    rig.jump(3 * HOUR);
    touch(&rig, "a", "ahead again").await;
    rig.pass(65 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1, "it is believed");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_not_given_up_by_a_clock_that_is_set_right_again() {
    let rig = Rig::quiet(&[]).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(5 * SECOND).await;
    rig.jump(HOUR);
    touch(&rig, "c", "ahead").await;
    rig.pass(30 * SECOND).await;
    assert_eq!(going(&rig, &["c"]), 0, "the clock is doubted");
    rig.jump(-HOUR);
    rig.pass(300 * SECOND).await;
    assert_eq!((going(&rig, &["c"]), rig.provider.launches()), (0, 1), "it has fifteen minutes");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_disrupted_until_a_clock_set_ahead_is_believed() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.jump(HOUR);
    rig.pass(58 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 0);
    rig.eventually("the empty node goes", |rig| going(rig, &["a"]) == 1).await;
}

/// A pod that starts now and must not be disrupted for so long.
fn protected(rig: &Rig, time: &str) -> serde_json::Value {
    let now = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": time}}, "status": {"startTime": now}})
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_that_shrinks_after_a_leap_spares_pods_that_are_protected_for_a_time() {
    let replicas = json!({
        "replicas": 2, "disruption": {"consolidateAfter": null, "consolidationPolicy": null},
    });
    let pool = node_pool("default").with(json!({"spec": replicas}));
    let rig = Rig::quiet(&["--feature-gates=StaticCapacity=true"]).await;
    rig.create(node_class()).await;
    for name in ["a", "b"] {
        add_node(&rig, name, 1, json!({})).await;
    }
    rig.create(pod_on("a", "protected", "100m").with(protected(&rig, "2h"))).await;
    for name in ["busy", "busier"] {
        rig.create(pod_on("b", name, "100m")).await;
    }
    rig.create(pool).await;
    rig.pass(5 * SECOND).await;
    rig.jump(3 * HOUR);
    rig.patch(&node_pool("default"), json!({"spec": {"replicas": 1}})).await;
    rig.pass(5 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["b"])), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_protected_for_a_time_are_not_ranked_by_a_clock_that_is_doubted() {
    let rig = Rig::quiet(&["--feature-gates=PodDeletionCostManagement=true"]).await;
    let calm = json!({"spec": {"disruption": {"consolidateAfter": "87600h"}}});
    let rig = furnish(rig, node_pool("default").with(calm), &[("a", 1)]).await;
    let replica_set = rig
        .create(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "namespace": "default"},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_on("a", "x", "1")["spec"]},
            },
        }))
        .await;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": replica_set.metadata.uid, "controller": true,
    });
    let owned = json!({"metadata": {"ownerReferences": [owner]}});
    rig.create(pod_on("a", "p", "100m").with(owned).with(protected(&rig, "2h"))).await;
    rig.pass(90 * SECOND).await;
    rig.jump(3 * HOUR);
    add_node(&rig, "b", 1, json!({})).await;
    rig.pass(59 * SECOND).await;
    let pod = rig.get(&pod_on("a", "p", "100m")).await.expect("the pod");
    assert_eq!(pod["metadata"]["annotations"][karpenter_api::annotations::POD_DELETION_COST], json!(null));
}
