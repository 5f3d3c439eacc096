//! What follows from a change: garbage collection, the end of namespaces, definitions and their objects.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::cluster::{bound_pod, client, code, config_map, create, server};

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

fn owned(name: &str, owner: &str, uid: &str, blocks: bool) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": blocks,
    }]}}))
    .unwrap()
}

async fn left(api: &Api<ConfigMap>) -> Vec<String> {
    api.list(&ListParams::default()).await.unwrap().items.iter().map(|item| item.name_any()).collect()
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner_and_so_do_theirs() {
    let client = client(&server());
    let api = config_maps(&client);
    let root = create(&api, &config_map("root")).await;
    let middle = create(&api, &owned("middle", "root", &root, false)).await;
    create(&api, &owned("leaf", "middle", &middle, false)).await;
    create(&api, &config_map("other")).await;
    api.delete("root", &DeleteParams::background()).await.unwrap();
    assert_eq!(left(&api).await, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_dependent_of_an_owner_that_never_was_is_garbage() {
    let client = client(&server());
    let api = config_maps(&client);
    create(&api, &owned("stray", "nobody", "00000000-0000-4000-8000-000000000000", false)).await;
    assert_eq!(left(&api).await, [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_deleted_in_the_foreground_goes_last() {
    let client = client(&server());
    let api = config_maps(&client);
    let root = create(&api, &config_map("root")).await;
    let mut dependent = owned("dependent", "root", &root, true);
    dependent.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    create(&api, &dependent).await;
    api.delete("root", &DeleteParams::foreground()).await.unwrap();
    assert_eq!(left(&api).await, ["dependent", "root"]);
    assert!(api.get("dependent").await.unwrap().metadata.deletion_timestamp.is_some());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("dependent", &PatchParams::default(), &release).await.unwrap();
    assert_eq!(left(&api).await, [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_forget_their_owner() {
    let client = client(&server());
    let api = config_maps(&client);
    let root = create(&api, &config_map("root")).await;
    create(&api, &owned("orphan", "root", &root, true)).await;
    api.delete("root", &DeleteParams::orphan()).await.unwrap();
    assert_eq!(left(&api).await, ["orphan"]);
    assert_eq!(api.get("orphan").await.unwrap().metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_when_its_content_has_gone() {
    let client = client(&server());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "short"}})).unwrap();
    create(&namespaces, &namespace).await;
    let pods = Api::namespaced(client.clone(), "short");
    create(&pods, &bound_pod("slow")).await;
    create(&Api::namespaced(client.clone(), "short"), &config_map("quick")).await;
    namespaces.delete("short", &DeleteParams::default()).await.unwrap();
    let ending = namespaces.get("short").await.unwrap();
    assert_eq!(ending.status.unwrap().phase.unwrap(), "Terminating");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "short");
    assert_eq!(code(maps.get("quick").await), 404);
    assert_eq!(code(maps.create(&PostParams::default(), &config_map("late")).await), 403);
    pods.delete("slow", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(code(namespaces.get("short").await), 404);
    assert_eq!(code(namespaces.delete("default", &DeleteParams::default()).await), 403);
}

fn definition() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Cluster",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                }},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer", "minimum": 0},
                        "size": {"type": "integer", "default": 3},
                    }},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                }}},
            }],
        },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_definition_has_its_objects_served_at_once_and_takes_them_along() {
    let client = client(&server());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let widgets: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    assert_eq!(code(widgets.list(&ListParams::default()).await), 404);
    create(&definitions, &definition()).await;
    let mut widget = DynamicObject::new("w", &kind).data(json!({"spec": {"replicas": 1, "unknown": true}}));
    widget.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    let created = widgets.create(&PostParams::default(), &widget).await.unwrap();
    assert_eq!(created.data, json!({"spec": {"replicas": 1, "size": 3}}));
    assert_eq!(created.metadata.generation, Some(1));
    let params = PatchParams::default();
    let scale = json!({"spec": {"replicas": 5}});
    assert_eq!(
        widgets.patch_scale("w", &params, &Patch::Merge(scale)).await.unwrap().spec.unwrap().replicas,
        Some(5)
    );
    assert_eq!(widgets.get("w").await.unwrap().metadata.generation, Some(2));
    let invalid = json!({"spec": {"replicas": -1}});
    assert_eq!(code(widgets.patch("w", &params, &Patch::Merge(invalid)).await), 422);
    let strategic = Patch::Strategic(json!({"spec": {"replicas": 2}}));
    assert_eq!(code(widgets.patch("w", &params, &strategic).await), 415);

    definitions.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
    assert!(widgets.get("w").await.unwrap().metadata.deletion_timestamp.is_some());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    widgets.patch("w", &params, &release).await.unwrap();
    assert_eq!(code(definitions.get("widgets.example.com").await), 404);
    assert_eq!(code(widgets.list(&ListParams::default()).await), 404);
}
