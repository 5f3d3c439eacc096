//! Objects come, change and go: creation, updates, patches, deletion, as kube clients see them.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::cluster::{bound_pod, client, code, config_map, create, pod, server, status};

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

#[tokio::test(start_paused = true)]
async fn what_is_created_is_found_and_listed() {
    let client = client(&server());
    let api = config_maps(&client);
    let created = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    assert!(created.uid().is_some() && created.resource_version().is_some());
    assert_eq!(created.creation_timestamp().unwrap().0.to_string(), "2026-01-01T00:00:00Z");
    assert_eq!(api.get("a").await.unwrap(), created);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(code(api.create(&PostParams::default(), &config_map("a")).await), 409);
    assert_eq!(code(api.get("b").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_generated_name_ends_in_five_letters_without_vowels() {
    let client = client(&server());
    let mut object = config_map("x");
    object.metadata.name = None;
    object.metadata.generate_name = Some("web-".into());
    let name = config_maps(&client).create(&PostParams::default(), &object).await.unwrap().name_any();
    let suffix = name.strip_prefix("web-").unwrap();
    assert_eq!(suffix.len(), 5);
    assert!(!suffix.contains(['a', 'e', 'i', 'o', 'u', '0', '1', '3']), "{suffix}");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let client = client(&server());
    let api = config_maps(&client);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &config_map("a")).await.unwrap();
    assert_eq!(code(api.get("a").await), 404);
}

#[tokio::test(start_paused = true)]
async fn an_update_with_a_stale_version_is_a_conflict() {
    let client = client(&server());
    let api = config_maps(&client);
    let first = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let mut second = first.clone();
    second.data = Some([("a".to_owned(), "2".to_owned())].into());
    let second = api.replace("a", &PostParams::default(), &second).await.unwrap();
    assert_ne!(first.resource_version(), second.resource_version());
    assert_eq!(code(api.replace("a", &PostParams::default(), &first).await), 409);
}

#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_keeps_the_version() {
    let client = client(&server());
    let api = config_maps(&client);
    let created = api.create(&PostParams::default(), &config_map("a")).await.unwrap();
    let again = api.replace("a", &PostParams::default(), &created).await.unwrap();
    assert_eq!(created.resource_version(), again.resource_version());
}

#[tokio::test(start_paused = true)]
async fn merge_and_json_patches_apply_and_failed_tests_are_unprocessable() {
    let client = client(&server());
    let api = config_maps(&client);
    create(&api, &config_map("a")).await;
    let params = PatchParams::default();
    let merged =
        api.patch("a", &params, &Patch::Merge(json!({"data": {"a": null, "b": "2"}}))).await.unwrap();
    assert_eq!(merged.data.unwrap(), [("b".to_owned(), "2".to_owned())].into());
    let json_patch = |value: serde_json::Value| Patch::Json::<()>(serde_json::from_value(value).unwrap());
    let patch = json_patch(json!([
        {"op": "test", "path": "/data/b", "value": "2"},
        {"op": "replace", "path": "/data/b", "value": "3"},
    ]));
    assert_eq!(api.patch("a", &params, &patch).await.unwrap().data.unwrap()["b"], "3");
    assert_eq!(code(api.patch("a", &params, &patch).await), 422);
    let stale = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}}));
    assert_eq!(code(api.patch("a", &params, &stale).await), 409);
}

#[tokio::test(start_paused = true)]
async fn an_object_with_finalizers_goes_when_the_last_one_does() {
    let client = client(&server());
    let api = config_maps(&client);
    let mut object = config_map("a");
    object.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    create(&api, &object).await;
    let held = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    let params = PatchParams::default();
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    assert_eq!(code(api.patch("a", &params, &more).await), 422);
    let undelete = Patch::Merge(json!({"metadata": {"deletionTimestamp": null}}));
    let still = api.patch("a", &params, &undelete).await.unwrap();
    assert_eq!(still.metadata.deletion_timestamp, held.metadata.deletion_timestamp);
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("a", &params, &release).await.unwrap();
    assert_eq!(code(api.get("a").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_takes_its_grace_period_and_any_other_goes_at_once() {
    let client = client(&server());
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    create(&api, &bound_pod("bound")).await;
    let going = api.delete("bound", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(going.metadata.deletion_timestamp.unwrap().0.to_string(), "2026-01-01T00:00:30Z");
    let sooner = DeleteParams { grace_period_seconds: Some(5), ..DeleteParams::default() };
    let going = api.delete("bound", &sooner).await.unwrap().left().unwrap();
    assert_eq!(going.metadata.deletion_timestamp.unwrap().0.to_string(), "2026-01-01T00:00:05Z");
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    api.delete("bound", &now).await.unwrap();
    assert_eq!(code(api.get("bound").await), 404);

    create(&api, &pod("unbound", json!({}))).await;
    api.delete("unbound", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(api.get("unbound").await), 404);
}

#[tokio::test(start_paused = true)]
async fn spec_and_status_are_written_apart() {
    let client = client(&server());
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let created = api.create(&PostParams::default(), &bound_pod("p")).await.unwrap();
    let params = PatchParams::default();
    let both = json!({"status": {"phase": "Running"}, "metadata": {"labels": {"x": "y"}}});
    let main = api.patch("p", &params, &Patch::Merge(both)).await.unwrap();
    assert_eq!(main.status.unwrap().phase.unwrap(), "Pending");
    assert_eq!(main.metadata.labels.unwrap()["x"], "y");
    let both = json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}});
    let part = api.patch_status("p", &params, &Patch::Merge(both)).await.unwrap();
    assert_eq!(part.status.unwrap().phase.unwrap(), "Running");
    assert_eq!(part.spec.unwrap().active_deadline_seconds, None);
    assert_eq!(created.metadata.generation, part.metadata.generation);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let client = client(&server());
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    create(&api, &pod("a", json!({}))).await;
    let mut other = pod("b", json!({}));
    other.metadata.labels = None;
    create(&api, &other).await;
    api.delete_collection(&DeleteParams::default(), &ListParams::default().labels("app=web")).await.unwrap();
    let left = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.iter().map(|p| p.name_any()).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn refusals_name_what_is_wrong() {
    let client = client(&server());
    let api = config_maps(&client);
    let mut object = config_map("Not_A_Name");
    object.metadata.labels = Some([("a b".to_owned(), "x".to_owned())].into());
    let refused = status(api.create(&PostParams::default(), &object).await);
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
    let fields: Vec<String> = refused.details.unwrap().causes.into_iter().map(|c| c.field).collect();
    assert_eq!(fields, ["metadata.name", "metadata.labels"]);
    let nowhere: Api<ConfigMap> = Api::namespaced(client.clone(), "nowhere");
    assert_eq!(code(nowhere.create(&PostParams::default(), &config_map("a")).await), 404);
}
