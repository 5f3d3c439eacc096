//! `Consolidatable` and `Drifted` on NodeClaims.

use std::time::Duration;

use karpenter_cloudprovider::ProviderError;
use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{With, claim, condition, condition_of, node, node_class, node_pool};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

/// A pool `default` and its claim `c`.
async fn rig_with(pool: Value, claim: Value) -> Rig {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_class()).await;
    // Only the conditions are of interest: nothing may follow from them.
    rig.create(pool.with(json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}}))).await;
    rig.create(node("c", "default", 1)).await;
    rig.create(claim).await;
    rig.pass(SECOND).await;
    rig
}

async fn condition_on(rig: &Rig, type_: &str) -> Option<Value> {
    let stored = rig.get(&claim("c", "default", 1)).await.expect("the claim");
    condition_of(&stored, type_).cloned()
}

async fn drift_of(rig: &Rig) -> Option<String> {
    let drifted = condition_on(rig, "Drifted").await?;
    assert_eq!((&drifted["status"], &drifted["reason"]), (&json!("True"), &drifted["message"]));
    drifted["reason"].as_str().map(str::to_owned)
}

fn consolidating_after(after: &str) -> Value {
    node_pool("default").with(json!({"spec": {"disruption": {"consolidateAfter": after}}}))
}

fn now(rig: &Rig) -> String {
    rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_consolidatable_once_it_has_been_quiet_for_long_enough() {
    let rig = rig_with(consolidating_after("60s"), claim("c", "default", 1)).await;
    assert!(condition_on(&rig, "Consolidatable").await.is_some(), "initialized long ago, never a pod");
    rig.patch_status(&claim("c", "default", 1), json!({"status": {"lastPodEventTime": now(&rig)}})).await;
    rig.pass(SECOND).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
    rig.pass(50 * SECOND).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
    rig.pass(15 * SECOND).await;
    let condition = condition_on(&rig, "Consolidatable").await.expect("a condition");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Consolidatable")));
}

#[tokio::test(start_paused = true)]
async fn a_line_about_a_claim_that_waits_again_says_for_which_pod_event_and_on_which_node() {
    let lines = Lines::capture();
    let rig = rig_with(consolidating_after("60s"), claim("c", "default", 1)).await;
    let event = now(&rig);
    rig.patch_status(&claim("c", "default", 1), json!({"status": {"lastPodEventTime": event}})).await;
    rig.pass(SECOND).await;
    let told = lines.saying("removing consolidatable status condition");
    let line = told.first().expect("a line");
    assert_eq!(line["reason"], "consolidateAfter window not yet elapsed");
    assert_eq!(line["Node"], json!({"name": "node-c"}));
    assert_eq!(line["lastPodEventTime"], event.replace('Z', ".000Z"));
    assert_eq!(line["consolidateAfter"], "1m0s");
    assert!(line["timeSincePodEvent"].is_string(), "{line}");
    assert_eq!(lines.saying("marking consolidatable")[0]["Node"], json!({"name": "node-c"}));
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_pod_events_waits_from_its_initialization() {
    let rig = Rig::quiet(&[]).await;
    rig.create(consolidating_after("60s")).await;
    let fresh = claim("c", "default", 1).with(json!({"status": {"conditions": [
        condition("Launched", "True", &now(&rig)), condition("Registered", "True", &now(&rig)),
        condition("Initialized", "True", &now(&rig)),
    ]}}));
    rig.create(fresh).await;
    rig.pass(58 * SECOND).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
    rig.pass(3 * SECOND).await;
    assert!(condition_on(&rig, "Consolidatable").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_not_consolidatable_where_consolidation_is_off_or_it_is_not_initialized() {
    let rig = rig_with(node_pool("default"), claim("c", "default", 1)).await;
    assert!(condition_on(&rig, "Consolidatable").await.is_some());
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"consolidateAfter": "Never"}}})).await;
    rig.pass(SECOND).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);

    let uninitialized = claim("c", "default", 1).with(json!({"status": {"conditions": [
        condition("Launched", "True", "2024-01-01T00:00:00Z"),
        condition("Consolidatable", "True", "2024-01-01T00:00:00Z"),
    ]}}));
    let rig = rig_with(node_pool("default"), uninitialized).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
}

#[tokio::test(start_paused = true)]
async fn claims_of_static_pools_drift_but_are_never_consolidatable() {
    let rig = Rig::quiet(&["--feature-gates=StaticCapacity=true"]).await;
    rig.create(node_pool("default").with(json!({"spec": {"replicas": 1, "disruption": {"consolidateAfter": null, "consolidationPolicy": null}}}))).await;
    rig.provider.drift(Some("ImageDrifted"));
    rig.create(claim("c", "default", 1)).await;
    rig.pass(SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("ImageDrifted"));
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_claim_drifts_by_its_providers_word_and_back_again_within_five_minutes() {
    let rig = rig_with(node_pool("default"), claim("c", "default", 1)).await;
    assert_eq!(drift_of(&rig).await, None);
    rig.provider.drift(Some("ImageDrifted"));
    rig.pass(301 * SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("ImageDrifted"));
    rig.provider.drift(None);
    rig.pass(301 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_node_class_is_looked_at_at_once() {
    let rig = rig_with(node_pool("default"), claim("c", "default", 1)).await;
    rig.provider.drift(Some("ImageDrifted"));
    rig.patch(&node_class(), json!({"spec": {"image": "new"}})).await;
    rig.pass(SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("ImageDrifted"));
}

#[tokio::test(start_paused = true)]
async fn another_hash_of_the_pool_comes_before_requirements_and_those_before_the_provider() {
    let annotations = |hash: &str, version: &str| {
        json!({"metadata": {"annotations": {
            "karpenter.sh/nodepool-hash": hash, "karpenter.sh/nodepool-hash-version": version,
        }}})
    };
    let rig = Rig::quiet(&[]).await;
    rig.provider.drift(Some("ImageDrifted"));
    rig.create(node_pool("default").with(annotations("1", "v3"))).await;
    rig.create(claim("c", "default", 1).with(annotations("2", "v3"))).await;
    let zones = json!([{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["elsewhere"]}]);
    rig.patch(&node_pool("default"), json!({"spec": {"template": {"spec": {"requirements": zones}}}})).await;
    rig.pass(SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("NodePoolDrifted"));
    // Hashes of different versions say nothing of each other; nor does a missing one.
    for annotations in
        [annotations("2", "v2"), json!({"metadata": {"annotations": {"karpenter.sh/nodepool-hash": null}}})]
    {
        rig.patch(&claim("c", "default", 1), annotations).await;
        rig.pass(SECOND).await;
        assert_eq!(drift_of(&rig).await.as_deref(), Some("RequirementsDrifted"));
    }
    rig.patch(&node_pool("default"), json!({"spec": {"template": {"spec": {"requirements": []}}}})).await;
    rig.pass(SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("ImageDrifted"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_type_that_is_offered_no_more_is_drift_after_an_hour() {
    let rig = rig_with(node_pool("default"), claim("c", "default", 1)).await;
    let others = || karpenter_cloudprovider::fake::instance_types(3).split_off(1);
    rig.provider.offer(others());
    rig.pass(3500 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None);
    rig.pass(500 * SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("InstanceTypeNotFound"));
    rig.provider.offer(karpenter_cloudprovider::fake::instance_types(1));
    rig.pass(301 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None);
    rig.provider.offer(others());
    rig.pass(1400 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None, "what was found is not looked for again for half an hour");
    rig.pass(900 * SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("InstanceTypeNotFound"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_lists_no_instance_type_at_all_changes_nothing_of_drift() {
    let rig = rig_with(node_pool("default"), claim("c", "default", 1)).await;
    rig.provider.offer(vec![]);
    rig.pass(4500 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None, "an empty answer is no reason to replace a node");
    rig.provider.offer(karpenter_cloudprovider::fake::instance_types(3).split_off(1));
    rig.pass(301 * SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("InstanceTypeNotFound"));
    rig.provider.offer(vec![]);
    rig.pass(301 * SECOND).await;
    assert_eq!(drift_of(&rig).await.as_deref(), Some("InstanceTypeNotFound"), "nor to forget that it is one");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_launched_is_not_drifted() {
    let unlaunched = claim("c", "default", 1).with(json!({"status": {"conditions": [
        condition("Launched", "Unknown", "2024-01-01T00:00:00Z"),
        condition("Drifted", "True", "2024-01-01T00:00:00Z"),
    ]}}));
    let rig = Rig::quiet(&[]).await;
    rig.provider.always(Method::Create, Some(Behaviour::Hang));
    rig.create(node_pool("default")).await;
    rig.create(unlaunched).await;
    rig.pass(SECOND).await;
    assert_eq!((drift_of(&rig).await, rig.provider.count(Method::IsDrifted)), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_errs_changes_nothing_of_drift_and_keeps_nothing_else_from_being_written() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_pool("default")).await;
    rig.provider.always(Method::IsDrifted, Some(Behaviour::Fail(ProviderError::other("no answer"))));
    rig.create(claim("c", "default", 1)).await;
    rig.pass(10 * SECOND).await;
    assert_eq!(drift_of(&rig).await, None);
    assert!(condition_on(&rig, "Consolidatable").await.is_some());
    assert!(rig.provider.count(Method::IsDrifted) > 3, "it is asked again");
}

#[tokio::test(start_paused = true)]
async fn claims_of_others_are_left_alone() {
    let rig = Rig::quiet(&[]).await;
    rig.create(node_pool("default")).await;
    let foreign = json!({"spec": {"nodeClassRef": {"kind": "OtherNodeClass"}}});
    rig.create(claim("c", "default", 1).with(foreign)).await;
    rig.create(
        claim("unlabelled", "default", 1)
            .with(json!({"metadata": {"labels": {"karpenter.sh/nodepool": null}}})),
    )
    .await;
    rig.pass(10 * SECOND).await;
    assert_eq!(condition_on(&rig, "Consolidatable").await, None);
    let unlabelled = rig.get(&claim("unlabelled", "default", 1)).await.expect("the claim");
    assert_eq!(condition_of(&unlabelled, "Consolidatable"), None);
}
