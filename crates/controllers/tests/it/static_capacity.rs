//! Static NodePools are kept at their size.

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use karpenter_engine::taints::Taint;
use serde_json::{Value, json};

use crate::objects::{With, claim, fresh_claim, node, node_class, node_pool, pending_pod, pod_on};
use crate::rig::Rig;

const GATE: &str = "--feature-gates=StaticCapacity=true";

async fn rig(flags: &[&str]) -> Rig {
    let rig = Rig::quiet(flags).await;
    rig.create(node_class()).await;
    rig
}

fn pool(replicas: u32) -> Value {
    let spec =
        json!({"replicas": replicas, "disruption": {"consolidateAfter": null, "consolidationPolicy": null}});
    node_pool("fixed").with(json!({"spec": spec}))
}

fn live(rig: &Rig) -> Vec<Arc<NodeClaim>> {
    let all = rig.context.stores.node_claims.list().into_iter();
    all.filter(|claim| claim.metadata.deletion_timestamp.is_none()).collect()
}

fn names(rig: &Rig) -> Vec<String> {
    live(rig).iter().map(|claim| claim.metadata.name.clone().unwrap_or_default()).collect()
}

async fn expect(rig: &Rig, count: usize) {
    rig.eventually(&format!("{count} NodeClaims"), |rig| live(rig).len() == count).await;
    rig.pass(Duration::from_secs(120)).await;
    assert_eq!(live(rig).len(), count, "and it stays at that");
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_is_filled_follows_its_size_and_gets_back_what_it_loses() {
    let rig = rig(&[GATE]).await;
    rig.create(pool(3)).await;
    expect(&rig, 3).await;
    let claim = serde_json::to_value(&*live(&rig)[0]).expect("JSON");
    assert_eq!(claim["metadata"]["labels"]["karpenter.sh/nodepool"], "fixed");
    assert_eq!(claim["metadata"]["annotations"]["karpenter.sh/nodeclaim-min-values-relaxed"], Value::Null);
    assert_eq!(
        claim["spec"]["resources"]["requests"],
        Value::Null,
        "what it becomes is the provider's choice"
    );
    let requirements = claim["spec"]["requirements"].as_array().expect("requirements");
    assert!(requirements.iter().all(|r| r["key"] != "node.kubernetes.io/instance-type"), "{requirements:?}");
    rig.patch(&pool(3), json!({"spec": {"replicas": 5}})).await;
    expect(&rig, 5).await;
    let lost =
        json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": names(&rig)[0]}});
    rig.delete(&lost).await;
    rig.eventually("it is gone or going", |rig| names(rig).len() == 5).await;
    expect(&rig, 5).await;
    rig.patch(&pool(3), json!({"spec": {"replicas": 2}})).await;
    expect(&rig, 2).await;
    rig.patch(&pool(3), json!({"spec": {"replicas": 0}})).await;
    expect(&rig, 0).await;
}

#[tokio::test(start_paused = true)]
async fn node_claims_of_a_static_pool_have_the_taints_that_it_inherits() {
    let rig = rig(&[GATE]).await;
    let taint = |key: &str| Taint { key: key.into(), value: "yes".into(), effect: "NoSchedule".into() };
    rig.provider.taint(vec![taint("gpu"), taint("known")]);
    let declared = json!([{"key": "known", "effect": "NoSchedule"}]);
    rig.create(pool(1).with(json!({"spec": {"template": {"spec": {"taints": declared}}}}))).await;
    expect(&rig, 1).await;
    let claim = serde_json::to_value(&*live(&rig)[0]).expect("JSON");
    let inherited = json!({"key": "gpu", "value": "yes", "effect": "NoSchedule"});
    assert_eq!(claim["spec"]["taints"], json!([declared[0], inherited]));
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_stays_within_its_node_limit() {
    let rig = rig(&[GATE]).await;
    rig.create(pool(5).with(json!({"spec": {"limits": {"nodes": "2"}}}))).await;
    expect(&rig, 2).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_gate_a_static_pool_is_left_alone() {
    let rig = rig(&[]).await;
    rig.create(pool(2)).await;
    rig.create(pending_pod("p", "1")).await;
    expect(&rig, 0).await;
}

#[tokio::test(start_paused = true)]
async fn pods_get_no_nodes_of_a_static_pool() {
    let rig = rig(&[GATE]).await;
    rig.create(pool(1)).await;
    rig.create(pending_pod("too-large", "1000")).await;
    expect(&rig, 1).await;
}

/// A node of the pool with this much running on it; `protected` must not be disrupted.
async fn occupied(rig: &Rig, name: &str, pods: &[Value]) {
    rig.create(claim(name, "fixed", 4)).await;
    rig.create(node(name, "fixed", 4)).await;
    for pod in pods {
        rig.create(pod.clone()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn empty_nodes_go_first_then_the_cheapest_and_protected_ones_last() {
    let rig = rig(&[GATE]).await;
    let pod = |on: &str, name: &str| pod_on(on, name, "100m");
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    occupied(&rig, "a-protected", &[pod("a-protected", "a").with(protected)]).await;
    occupied(&rig, "b-busy", &[pod("b-busy", "b1"), pod("b-busy", "b2")]).await;
    let dear = json!({"metadata": {"annotations": {"karpenter.sh/disruption-cost": "2147483647"}}});
    occupied(&rig, "c-dear", &[pod("c-dear", "c").with(dear)]).await;
    occupied(&rig, "d-calm", &[pod("d-calm", "d")]).await;
    occupied(&rig, "e-empty", &[]).await;
    rig.create(pool(4)).await;
    for (replicas, left) in [
        (4, &["a-protected", "b-busy", "c-dear", "d-calm"][..]),
        (3, &["a-protected", "b-busy", "c-dear"]),
        (2, &["a-protected", "c-dear"]),
        (1, &["a-protected"]),
    ] {
        rig.patch(&pool(4), json!({"spec": {"replicas": replicas}})).await;
        expect(&rig, left.len()).await;
        assert_eq!(names(&rig), left);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_shrinks_gives_up_as_many_as_it_has_too_many_also_while_launches_are_under_way() {
    let rig = rig(&[GATE]).await;
    let busy = ["a", "b", "c", "d"];
    for name in busy {
        occupied(&rig, name, &[pod_on(name, name, "100m")]).await;
    }
    rig.provider.always(Method::Create, Some(Behaviour::Pending));
    rig.create(pool(7)).await;
    expect(&rig, 7).await;
    rig.patch(&pool(7), json!({"spec": {"replicas": 2}})).await;
    rig.pass(Duration::from_secs(5)).await;
    assert_eq!(live(&rig).len(), 2, "five at once: what is under launch counts once");
    assert!(names(&rig).iter().all(|name| busy.contains(&name.as_str())), "and went first");
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_of_any_size_is_filled_in_steps() {
    let rig = rig(&[GATE]).await;
    rig.create(pool(1_000_000_000)).await;
    rig.eventually("more than one step", |rig| live(rig).len() > 100).await;
    rig.patch(&pool(3), json!({"spec": {"replicas": 3}})).await;
    expect(&rig, 3).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_for_a_static_pool_before_everything_was_seen_once() {
    let rig = Rig::quiet_without(&[GATE], "nodeclaims").await;
    rig.provider.keep_secrets();
    rig.provider.always(Method::Create, Some(Behaviour::Pending));
    rig.create(node_class()).await;
    rig.create(fresh_claim("slow")).await;
    rig.create(pool(2)).await;
    rig.pass(Duration::from_secs(60)).await;
    let created = |rig: &Rig| rig.see(|objects| objects.node_claims.len()) - 1;
    assert_eq!(created(&rig), 0, "NodeClaims could not be listed");
    rig.answer_all();
    rig.pass(Duration::from_secs(120)).await;
    assert_eq!(created(&rig), 0, "nobody knows yet what becomes of one of them");
    rig.provider.always(Method::Create, None);
    rig.provider.finish("slow");
    rig.eventually("the pool is filled", |rig| created(rig) == 2).await;
}
