//! One object that cannot be launched, written or created is its own trouble: everything else goes on.

use std::sync::Arc;
use std::time::Duration;

use http::Method as Verb;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::disruption::{add_node, drifted, going, is_tainted, pool_with, replacements, rig_with};
use crate::objects::{With, claim, fresh_claim, node, node_class, node_pool, pending_pod, pod_on};
use crate::rig::{Refusal, Rig};

const SECOND: Duration = Duration::from_secs(1);

fn no_answer() -> Option<Behaviour> {
    Some(Behaviour::Fail(ProviderError::other("no answer")))
}

fn claims(rig: &Rig) -> Vec<Arc<NodeClaim>> {
    rig.context.stores.node_claims.list()
}

/// A provider that launches nothing, with a pool to buy from. Whether it says what launches will come to is up to the test.
async fn unable(secretive: bool) -> Rig {
    let rig = Rig::quiet(&[]).await;
    if secretive {
        rig.provider.keep_secrets();
    }
    rig.provider.always(Method::Create, no_answer());
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig
}

/// A pod that says where it may run: what is expected of its claim has to say it too.
fn choosy_pod(name: &str, cpu: &str) -> Value {
    let zones = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-2", "test-zone-3"]});
    let terms = json!([{"matchExpressions": [zones]}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    pending_pod(name, cpu).with(json!({"spec": {"affinity": affinity}}))
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_launched_holds_up_no_other_and_its_pods_are_provided_for_once() {
    for secretive in [false, true] {
        let rig = unable(secretive).await;
        rig.create(choosy_pod("first", "1500m")).await;
        rig.eventually("a claim", |rig| claims(rig).len() == 1).await;
        rig.pass(60 * SECOND).await;
        assert_eq!(claims(&rig).len(), 1, "the pod has a place on what will be launched ({secretive})");
        rig.create(pending_pod("second", "4")).await;
        rig.pass(20 * SECOND).await;
        assert_eq!(claims(&rig).len(), 2, "nobody waits for the first ({secretive})");
        rig.pass(120 * SECOND).await;
        assert_eq!(claims(&rig).len(), 2, "and nothing is bought twice ({secretive})");
        rig.provider.always(Method::Create, None);
        rig.pass(70 * SECOND).await;
        let now = claims(&rig);
        let launched = now.iter().filter_map(|claim| claim.status.as_ref()?.provider_id.as_ref());
        assert_eq!((now.len(), launched.count()), (2, 2), "{secretive}");
        assert_eq!(rig.provider.launches(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_claim_that_is_given_up_are_planned_for_anew() {
    let rig = unable(true).await;
    rig.create(choosy_pod("p", "1500m")).await;
    rig.eventually("a claim", |rig| claims(rig).len() == 1).await;
    let first = claims(&rig)[0].metadata.name.clone();
    rig.pass(400 * SECOND).await;
    let now = claims(&rig);
    assert_eq!(now.len(), 1);
    assert_ne!(now[0].metadata.name, first);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_launched_holds_up_no_disruption() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.provider.keep_secrets();
    rig.provider.always(Method::Create, no_answer());
    rig.create(fresh_claim("c")).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["c"])), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_consolidated_onto_a_claim_that_cannot_be_launched() {
    // Spot nodes would be cheaper than the one that is there.
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let pool =
        node_pool("default").with(json!({"spec": {"template": {"spec": {"requirements": on_demand}}}}));
    let rig = rig_with(pool, &[("a", 1)]).await;
    rig.provider.keep_secrets();
    rig.provider.always(Method::Create, no_answer());
    rig.create(pod_on("a", "p", "500m")).await;
    rig.create(fresh_claim("c")).await;
    rig.pass(240 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["c"])), (0, 0));
    assert_eq!(replacements(&rig, &["a", "c"]), Vec::<String>::new());
}

/// The status of `c` cannot be written.
const STATUS_OF_C: Refusal =
    |verb, path| (verb == Verb::PATCH && path.ends_with("/nodeclaims/c/status")).then_some(403);

#[tokio::test(start_paused = true)]
async fn a_claim_whose_status_cannot_be_written_is_given_up_in_time() {
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Create, no_answer());
    rig.refuse(Some(STATUS_OF_C));
    rig.create(fresh_claim("c")).await;
    rig.pass(290 * SECOND).await;
    assert!(rig.get(&fresh_claim("c")).await.is_some());
    rig.pass(110 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_cannot_be_written_down_holds_up_nobody_and_is_taken_back_in_time() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.refuse(Some(STATUS_OF_C));
    rig.create(fresh_claim("c")).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["c"])), (1, 0));
    assert_eq!(rig.provider.launches(), 1);
    rig.pass(900 * SECOND).await;
    assert_eq!(going(&rig, &["c"]), 1);
    let instances = rig.provider.instances();
    let mut names = instances.iter().filter_map(|claim| claim.metadata.name.as_deref());
    assert!(names.all(|name| name != "c"), "its instance goes with it");
    rig.refuse(None);
    rig.pass(120 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(rig.provider.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_held_is_not_launched_holds_up_nobody_and_is_given_up_in_time() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    let hold: Refusal = |verb, path| (verb == Verb::PATCH && path.ends_with("/nodeclaims/c")).then_some(422);
    rig.refuse(Some(hold));
    rig.create(fresh_claim("c")).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["c"])), (1, 0));
    rig.pass(280 * SECOND).await;
    assert_eq!(rig.get(&fresh_claim("c")).await, None);
    assert_eq!(rig.provider.count(Method::Create), 0);
}

/// Nothing can be written to the node of `a`.
const NODE_OF_A: Refusal =
    |verb, path| (verb == Verb::PATCH && path.ends_with("/nodes/node-a")).then_some(422);

#[tokio::test(start_paused = true)]
async fn a_node_whose_marks_cannot_be_taken_off_is_left_out_and_the_others_go_on() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.refuse(Some(NODE_OF_A));
    add_node(&rig, "a", 1, json!({})).await;
    let taints = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    rig.patch(&node("a", "default", 1), json!({"spec": {"taints": taints}})).await;
    add_node(&rig, "b", 1, json!({})).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), going(&rig, &["b"])), (0, 1));
    rig.refuse(None);
    rig.pass(180 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1, "once it can be written to it has its turn");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_marked_lets_the_others_have_their_turn() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.refuse(Some(NODE_OF_A));
    rig.provider.drift(Some("Test"));
    for (name, pod) in [("a", "p"), ("b", "q")] {
        add_node(&rig, name, 2, drifted()).await;
        rig.create(pod_on(name, pod, "1500m")).await;
    }
    rig.pass(60 * SECOND).await;
    let tainted = |name: &str| rig.see(|objects| is_tainted(objects, name));
    assert_eq!((tainted("a"), tainted("b")), (false, true));
}

/// Whether a node is being taken away.
fn is_taken(rig: &Rig, claim: &str) -> bool {
    rig.see(|objects| is_tainted(objects, claim)) || going(rig, &[claim]) == 1
}

/// How long it takes until `b`, which has drifted and is there from now on, is taken away.
async fn turn_of_b(rig: &Rig) -> Duration {
    let since = Instant::now();
    add_node(rig, "b", 2, drifted()).await;
    rig.create(pod_on("b", "q", "1500m")).await;
    rig.eventually("the other has its turn", |rig| is_taken(rig, "b")).await;
    since.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_be_disrupted_although_it_seemed_to_fail_uses_up_the_budget_for_half_a_minute() {
    // Neither what was written is confirmed, nor can it be read.
    let taint: Refusal = |_, path| path.ends_with("/nodes/node-a").then_some(500);
    let reason: Refusal = |_, path| path.contains("/nodeclaims/a").then_some(500);
    for (what, lost) in [("taint", taint), ("reason", reason)] {
        let rig = rig_with(pool_with(json!([{"nodes": "1"}])), &[]).await;
        rig.provider.drift(Some("Test"));
        rig.lose_answers(Some(lost));
        add_node(&rig, "a", 2, drifted()).await;
        rig.create(pod_on("a", "p", "1500m")).await;
        rig.eventually("the first is tainted", |rig| is_taken(rig, "a")).await;
        let waited = turn_of_b(&rig).await;
        assert!((30 * SECOND..45 * SECOND).contains(&waited), "{what}: {waited:?}");
        assert!(!is_taken(&rig, "a"), "{what}: it is passed over, and nothing is left of the attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_marks_cannot_be_taken_off_uses_up_the_budget() {
    let rig = rig_with(pool_with(json!([{"nodes": "1"}])), &[]).await;
    rig.provider.drift(Some("Test"));
    rig.refuse(Some(NODE_OF_A));
    // The mark of an earlier process.
    rig.create(node("a", "default", 2)).await;
    let taints = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    rig.patch(&node("a", "default", 2), json!({"spec": {"taints": taints}})).await;
    rig.create(claim("a", "default", 2).with(drifted())).await;
    rig.create(pod_on("a", "p", "1500m")).await;
    add_node(&rig, "b", 2, drifted()).await;
    rig.create(pod_on("b", "q", "1500m")).await;
    rig.pass(120 * SECOND).await;
    assert!(!is_taken(&rig, "b"), "nothing is scheduled to the other");
    rig.refuse(None);
    rig.eventually("one of them has its turn", |rig| is_taken(rig, "b")).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_creation_is_refused_for_long_is_made_soon_after_it_is_not() {
    let rig = Rig::quiet(&[]).await;
    let creation: Refusal = |verb, path| (verb == Verb::POST && path.ends_with("/nodeclaims")).then_some(422);
    rig.refuse(Some(creation));
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig.create(pending_pod("p", "1")).await;
    rig.pass(900 * SECOND).await;
    assert_eq!(claims(&rig).len(), 0);
    rig.refuse(None);
    rig.pass(30 * SECOND).await;
    assert_eq!(claims(&rig).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_replacement_the_server_would_refuse_is_not_touched() {
    for (least, is_replaced) in [(None, true), (Some(2), false)] {
        let kinds = json!({
            "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"], "minValues": least,
        });
        let pool =
            node_pool("default").with(json!({"spec": {"template": {"spec": {"requirements": [kinds]}}}}));
        let rig = rig_with(pool, &[("a", 4)]).await;
        rig.create(pod_on("a", "p", "1500m")).await;
        rig.pass(5 * SECOND).await;
        let version =
            |rig: &Rig| rig.see(|objects| objects.nodes.values().next()?.metadata.resource_version.clone());
        let before = version(&rig);
        // Pinned to spot, one capacity type is left of two.
        rig.pass(120 * SECOND).await;
        assert_eq!(version(&rig) == before, !is_replaced, "{least:?}");
        let tainted = rig.see(|objects| is_tainted(objects, "a"));
        assert_eq!(
            (tainted, replacements(&rig, &["a"]).len()),
            (is_replaced, usize::from(is_replaced)),
            "{least:?}"
        );
    }
}
