//! Overlays are judged, and change what is bought.

use std::time::Duration;

use karpenter_cloudprovider::fake::{Behaviour, Method};
use serde_json::{Value, json};

use crate::lines::Lines;
use crate::objects::{With, claim, condition_of, node, node_class, node_pool, pending_pod};
use crate::rig::Rig;

async fn rig() -> Rig {
    let rig = Rig::quiet(&["--feature-gates=NodeOverlay=true"]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig
}

fn overlay(name: &str, weight: u32, spec: Value) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name},
        "spec": {"weight": weight, "requirements": []},
    })
    .with(json!({"spec": spec}))
}

/// Status, reason and message of the condition that says whether an overlay applies.
async fn verdict(rig: &Rig, name: &str) -> (String, String, String) {
    rig.pass(Duration::from_secs(5)).await;
    let found = rig.get(&overlay(name, 1, json!({}))).await.expect("an overlay");
    let condition = condition_of(&found, "ValidationSucceeded").unwrap_or_else(|| panic!("{found}"));
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn of_overlays_that_clash_at_one_weight_the_later_in_the_alphabet_applies() {
    let rig = rig().await;
    rig.create(overlay("a", 10, json!({"price": "1.0"}))).await;
    rig.create(overlay("b", 10, json!({"price": "2.0"}))).await;
    rig.create(overlay("c", 11, json!({"price": "3.0"}))).await;
    assert_eq!(verdict(&rig, "b").await.0, "True");
    assert_eq!(verdict(&rig, "c").await.0, "True");
    let conflict = ("False".to_owned(), "Conflict".to_owned(), "conflict with another overlay".to_owned());
    assert_eq!(verdict(&rig, "a").await, conflict);
    rig.delete(&overlay("b", 10, json!({}))).await;
    assert_eq!(verdict(&rig, "a").await.0, "True", "nothing is in its way any more");
    let ready = rig.get(&overlay("a", 10, json!({}))).await.expect("an overlay");
    assert_eq!(condition_of(&ready, "Ready").expect("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_comes_while_another_is_asked_about_is_no_error() {
    let lines = Lines::capture();
    let rig = rig().await;
    rig.provider.always(Method::GetInstanceTypes, Some(Behaviour::Slow(Duration::from_secs(3))));
    rig.create(overlay("a", 10, json!({"price": "1.0"}))).await;
    for pool in ["second", "third", "fourth"] {
        rig.create(node_pool(pool)).await;
        rig.pass(Duration::from_secs(1)).await;
    }
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(verdict(&rig, "a").await.0, "True");
    assert_eq!(lines.saying("Reconciler error"), [] as [Value; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_overlay_that_makes_no_sense_says_why() {
    let rig = rig().await;
    let requirements = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["free"]}]);
    rig.create(overlay("odd", 1, json!({"price": "1.0", "requirements": requirements}))).await;
    let (status, reason, message) = verdict(&rig, "odd").await;
    assert_eq!((status.as_str(), reason.as_str()), ("False", "RuntimeValidation"));
    assert!(message.contains("karpenter.sh/capacity-type"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_says_that_an_overlay_had_a_hand_in_it() {
    let rig = rig().await;
    let only =
        json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["fake-it-5"]}]);
    let extended = json!({"price": "0.001", "capacity": {"example.com/widget": "4"}, "requirements": only});
    rig.create(overlay("widgets", 1, extended)).await;
    rig.pass(Duration::from_secs(5)).await;
    rig.create(pending_pod("p", "1")).await;
    rig.eventually("a NodeClaim", |rig| !rig.context.stores.node_claims.is_empty()).await;
    let claim = serde_json::to_value(&*rig.context.stores.node_claims.list()[0]).expect("JSON");
    let annotations = &claim["metadata"]["annotations"];
    assert_eq!(annotations["karpenter.sh/price-overlay-applied"], "true");
    assert_eq!(annotations["karpenter.sh/capacity-overlay-applied"], "true");
}

#[tokio::test(start_paused = true)]
async fn what_a_pool_costs_follows_the_prices_of_overlays() {
    let rig = rig().await;
    rig.create(node("a", "default", 2)).await;
    rig.create(claim("a", "default", 2)).await;
    rig.pass(Duration::from_secs(5)).await;
    let cost = |rig: &Rig| rig.metric("karpenter_nodepools_cost_total", &[("nodepool", "default")]);
    let costs = |rig: &Rig, wanted: f64| cost(rig).is_some_and(|cost| (cost - wanted).abs() < 1e-9);
    rig.eventually("the provider's price", |rig| costs(rig, 0.2)).await;
    rig.create(overlay("dear", 1, json!({"price": "3.5"}))).await;
    rig.eventually("the overlay's price", |rig| costs(rig, 3.5)).await;
    rig.delete(&overlay("dear", 1, json!({}))).await;
    rig.eventually("the provider's price again", |rig| costs(rig, 0.2)).await;
}

#[tokio::test(start_paused = true)]
async fn an_overlay_that_clashes_in_a_pool_that_buys_nothing_for_pods_applies_in_none() {
    let rig = Rig::quiet(&["--feature-gates=NodeOverlay=true,StaticCapacity=true"]).await;
    rig.create(node_class()).await;
    let stays = json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}});
    rig.create(node_pool("default").with(stays)).await;
    let fixed = node_pool("fixed").with(json!({"spec": {
        "replicas": 0,
        "disruption": {"consolidateAfter": null, "consolidationPolicy": null},
        "template": {"metadata": {"labels": {"team": "a"}}},
    }}));
    rig.create(fixed).await;
    rig.create(node("a", "default", 2)).await;
    rig.create(claim("a", "default", 2)).await;
    let of_team = json!([{"key": "team", "operator": "In", "values": ["a"]}]);
    rig.create(overlay("a", 10, json!({"price": "3.5"}))).await;
    rig.create(overlay("b", 10, json!({"price": "4.5", "requirements": of_team}))).await;
    assert_eq!(verdict(&rig, "a").await.1, "Conflict");
    assert_eq!(verdict(&rig, "b").await.0, "True");
    let cost = |rig: &Rig| rig.metric("karpenter_nodepools_cost_total", &[("nodepool", "default")]);
    let is_the_providers = |rig: &Rig| cost(rig).is_some_and(|cost| (cost - 0.2).abs() < 1e-9);
    rig.eventually("the provider's price", is_the_providers).await;
    rig.create(pending_pod("p", "4")).await;
    rig.eventually("a second NodeClaim", |rig| rig.context.stores.node_claims.list().len() == 2).await;
    let claims = rig.context.stores.node_claims.list();
    let bought = claims.iter().find(|claim| claim.metadata.name.as_deref() != Some("a")).expect("the second");
    let annotations = bought.metadata.annotations.clone().unwrap_or_default();
    assert!(!annotations.contains_key("karpenter.sh/price-overlay-applied"), "{annotations:?}");
}
