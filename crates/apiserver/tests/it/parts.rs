//! Subresources that act: binding, eviction, scale.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Binding, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, EvictParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::cluster::{bound_pod, client, code, create, pod, server, status};

fn pods(client: &Client) -> Api<Pod> {
    Api::default_namespaced(client.clone())
}

async fn running_pod(api: &Api<Pod>, name: &str) {
    create(api, &bound_pod(name)).await;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.unwrap();
}

async fn budget(client: &Client, name: &str, status: Value) -> Api<PodDisruptionBudget> {
    let api: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    let object = json!({
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    create(&api, &serde_json::from_value(object).unwrap()).await;
    let status = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    api
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once() {
    let client = client(&server());
    let api = pods(&client);
    create(&api, &pod("p", json!({}))).await;
    let binding: Binding =
        serde_json::from_value(json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}))
            .unwrap();
    let bound: Value =
        api.create_subresource("binding", "p", &PostParams::default(), &binding).await.unwrap();
    assert_eq!(bound["status"], "Success");
    assert_eq!(api.get("p").await.unwrap().spec.unwrap().node_name.unwrap(), "n");
    let again = api.create_subresource::<_, Value>("binding", "p", &PostParams::default(), &binding).await;
    assert_eq!(code(again), 409);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_charges_the_budget_until_nothing_is_left() {
    let client = client(&server());
    let api = pods(&client);
    running_pod(&api, "a").await;
    running_pod(&api, "b").await;
    let allowed =
        json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1});
    let budgets = budget(&client, "web", allowed).await;
    api.evict("a", &EvictParams::default()).await.unwrap();
    assert!(api.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    let charged = budgets.get("web").await.unwrap().status.unwrap();
    assert_eq!(charged.disruptions_allowed, Some(0));
    assert!(charged.disrupted_pods.unwrap().contains_key("a"));
    let refused = status(api.evict("b", &EvictParams::default()).await);
    assert_eq!((refused.code, refused.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(refused.details.unwrap().causes[0].reason, "DisruptionBudget");
    assert!(api.get("b").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_budgets_cannot_be_evicted_and_one_that_is_not_up_needs_none() {
    let client = client(&server());
    let api = pods(&client);
    running_pod(&api, "a").await;
    create(&api, &pod("pending", json!({}))).await;
    budget(&client, "one", json!({})).await;
    budget(&client, "two", json!({})).await;
    assert_eq!(code(api.evict("a", &EvictParams::default()).await), 500);
    api.evict("pending", &EvictParams::default()).await.unwrap();
    assert_eq!(code(api.get("pending").await), 404);
    assert_eq!(code(api.evict("nobody", &EvictParams::default()).await), 404);
}

fn deployment(name: &str) -> Deployment {
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    serde_json::from_value(object).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_scaled_by_its_scale() {
    let client = client(&server());
    let api: Api<Deployment> = Api::default_namespaced(client.clone());
    create(&api, &deployment("d")).await;
    let scale = api.get_scale("d").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(1));
    assert_eq!(scale.status.unwrap().selector.unwrap(), "app=d");
    let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
    api.patch_scale("d", &PatchParams::default(), &three).await.unwrap();
    let scaled = api.get("d").await.unwrap();
    assert_eq!((scaled.spec.as_ref().unwrap().replicas, scaled.metadata.generation), (Some(3), Some(2)));
    assert_eq!(scaled.name_any(), "d");
}

#[tokio::test(start_paused = true)]
async fn a_scale_patched_into_another_kind_is_refused_and_the_next_request_is_served() {
    let client = client(&server());
    let api: Api<Deployment> = Api::default_namespaced(client);
    create(&api, &deployment("d")).await;
    let other = Patch::Merge(json!({"kind": "Deployment"}));
    let refused = api.patch_scale("d", &PatchParams::default(), &other).await;
    assert_eq!(code(refused), 422);
    assert_eq!(api.get_scale("d").await.unwrap().spec.unwrap().replicas, Some(1));
}
