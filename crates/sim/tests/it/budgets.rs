//! PodDisruptionBudgets: their status, and evictions under them.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use karpenter_sim::World;
use kube::Api;
use kube::api::EvictParams;
use serde_json::{Value, json};

use crate::objects::{MINUTE, deployment, node, quick, ready};

async fn with_budget(seed: u64, replicas: u32, rule: &Value) -> World {
    let world = quick(seed);
    world.create(node("n1", "a", 32)).await.unwrap();
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}});
    for (key, value) in rule.as_object().unwrap() {
        spec[key] = value.clone();
    }
    world
        .create(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": spec}))
        .await
        .unwrap();
    world.create(deployment("web", replicas, "1")).await.unwrap();
    let wanted = usize::try_from(replicas).unwrap();
    world.wait_until("all are ready", MINUTE, |objects| ready(objects) == wanted).await.unwrap();
    world.settle().await;
    world
}

async fn status(world: &World) -> PodDisruptionBudgetStatus {
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.cluster().client("user"));
    budgets.get("web").await.unwrap().status.unwrap()
}

fn numbers(status: &PodDisruptionBudgetStatus) -> [i32; 4] {
    [status.expected_pods, status.current_healthy, status.desired_healthy, status.disruptions_allowed]
        .map(Option::unwrap_or_default)
}

#[tokio::test(start_paused = true)]
async fn percentages_round_as_upstream_does() {
    let at_least = with_budget(1, 5, &json!({"minAvailable": "50%"})).await;
    assert_eq!(numbers(&status(&at_least).await), [5, 5, 3, 2]);
    let at_most = with_budget(2, 5, &json!({"maxUnavailable": "30%"})).await;
    assert_eq!(numbers(&status(&at_most).await), [5, 5, 3, 2]);
    let number = with_budget(3, 5, &json!({"minAvailable": 4})).await;
    let status = status(&number).await;
    assert_eq!(numbers(&status), [5, 5, 4, 1]);
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.conditions.unwrap()[0].reason, "SufficientPods");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_uses_the_budget_up_until_the_replacement_is_ready() {
    let world = with_budget(4, 3, &json!({"maxUnavailable": 1})).await;
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("user"));
    let names: Vec<String> =
        world.cluster().read(|objects| objects.pods.keys().map(|key| key.name.to_string()).collect());
    pods.evict(&names[0], &EvictParams::default()).await.unwrap();
    let refused = pods.evict(&names[1], &EvictParams::default()).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 429));
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(numbers(&status(&world).await), [3, 3, 2, 1]);
    pods.evict(&names[1], &EvictParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_budget_over_pods_without_a_scale_allows_nothing() {
    let world = quick(5);
    world.create(node("n1", "a", 32)).await.unwrap();
    world
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }))
        .await
        .unwrap();
    world
        .create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": crate::objects::template("1")},
        }))
        .await
        .unwrap();
    world.run_for(MINUTE).await.unwrap();
    let status = status(&world).await;
    assert_eq!(status.disruptions_allowed, Some(0));
    assert_eq!(status.conditions.unwrap()[0].reason, "SyncFailed");
}
