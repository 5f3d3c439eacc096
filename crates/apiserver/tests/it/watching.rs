//! Watches: what kube's watcher and reflector see, under paused time.

use std::pin::pin;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_apiserver::Options;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::cluster::{bound_pod, client, config_map, create, pod, server, server_with};

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

/// Everything a watch tells until it ends.
async fn told(api: &Api<ConfigMap>, params: &WatchParams, version: &str) -> Vec<String> {
    let events = api.watch(params, version).await.unwrap();
    events
        .map_ok(|event| match event {
            WatchEvent::Added(object) => format!("added {}", object.name_any()),
            WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
            WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
            WatchEvent::Bookmark(bookmark) => match bookmark.metadata.annotations.is_empty() {
                true => "bookmark".to_owned(),
                false => "initial events end".to_owned(),
            },
            WatchEvent::Error(status) => format!("error {}", status.code),
        })
        .try_collect()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reflector_holds_what_the_server_holds() {
    let server = server();
    let client = client(&server);
    let api = config_maps(&client);
    create(&api, &config_map("a")).await;
    let (store, writer) = reflector::store();
    let stream = watcher(api.clone(), watcher::Config::default()).reflect(writer).applied_objects();
    let task = tokio::spawn(stream.for_each(|_| std::future::ready(())));
    store.wait_until_ready().await.unwrap();
    assert_eq!(store.len(), 1);
    create(&api, &config_map("b")).await;
    api.delete("a", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(store.get(&ObjectRef::new("a").within("default")).is_none());
    assert!(store.get(&ObjectRef::new("b").within("default")).is_some());
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_on_time_with_a_bookmark_before() {
    let client = client(&server());
    let api = config_maps(&client);
    let started = tokio::time::Instant::now();
    let params = WatchParams::default().timeout(150);
    assert_eq!(told(&api, &params, "0").await, ["initial events end", "bookmark", "bookmark", "bookmark"]);
    assert_eq!(started.elapsed(), Duration::from_secs(150));
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_its_initial_events_with_a_bookmark() {
    let client = client(&server());
    let api = config_maps(&client);
    create(&api, &config_map("b")).await;
    create(&api, &config_map("a")).await;
    let params = WatchParams { send_initial_events: true, ..WatchParams::default().timeout(1) };
    assert_eq!(told(&api, &params, "0").await, ["added a", "added b", "initial events end"]);
    let config = watcher::Config::default().streaming_lists();
    let mut events = pin!(watcher(api.clone(), config));
    assert!(matches!(events.next().await, Some(Ok(Event::Init))));
    assert!(matches!(events.next().await, Some(Ok(Event::InitApply(object))) if object.name_any() == "a"));
    assert!(matches!(events.next().await, Some(Ok(Event::InitApply(_)))));
    assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
}

#[tokio::test(start_paused = true)]
async fn what_enters_or_leaves_a_selection_is_added_or_deleted() {
    let client = client(&server());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    create(&pods, &pod("p", json!({}))).await;
    let set = |phase: &str| Patch::Merge(json!({"status": {"phase": phase}}));
    pods.patch_status("p", &PatchParams::default(), &set("Running")).await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
    pods.patch("p", &PatchParams::default(), &label).await.unwrap();
    pods.patch_status("p", &PatchParams::default(), &set("Failed")).await.unwrap();
    let params = WatchParams::default().fields("status.phase=Running").timeout(1).disable_bookmarks();
    let events: Vec<_> = pods.watch(&params, &version).await.unwrap().try_collect().await.unwrap();
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap();
    match events.as_slice() {
        [WatchEvent::Added(added), WatchEvent::Modified(modified), WatchEvent::Deleted(deleted)] => {
            assert_eq!((phase(added), phase(modified)), ("Running".into(), "Running".into()));
            // A client is told of the object as it knew it, under the version in which it left.
            assert_eq!(phase(deleted), "Running");
            let last = pods.get("p").await.unwrap();
            assert_eq!(deleted.resource_version(), last.resource_version());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_version_is_served_no_longer() {
    let client = client(&server());
    let version = |name: &str, served: bool, storage: bool| {
        json!({
            "name": name, "served": served, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    };
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [version("v1", true, false), version("v2", true, true)],
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    create(&definitions, &serde_json::from_value(definition).unwrap()).await;
    let widgets = |version: &str| -> Api<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", version, "Widget"));
        Api::all_with(client.clone(), &kind)
    };
    let params = WatchParams::default().timeout(290).disable_bookmarks();
    let mut old = pin!(widgets("v1").watch(&params, "0").await.unwrap());
    let mut new = pin!(widgets("v2").watch(&params, "0").await.unwrap());
    let quiet = tokio::time::timeout(Duration::from_secs(1), old.try_next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    let versions = json!({"spec": {"versions": [version("v1", false, false), version("v2", true, true)]}});
    definitions.patch("widgets.example.com", &PatchParams::default(), &Patch::Merge(versions)).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(1), old.try_next()).await;
    assert!(matches!(ended, Ok(Ok(None))), "{ended:?}");
    let quiet = tokio::time::timeout(Duration::from_secs(1), new.try_next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_the_memory_is_told_so_and_a_watcher_starts_over() {
    let server = server_with(Options { history_events: 3, ..Options::default() });
    let client = client(&server);
    let api = config_maps(&client);
    let mut events = pin!(watcher(api.clone(), watcher::Config::default()));
    assert!(matches!(events.next().await, Some(Ok(Event::Init))));
    assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
    for name in ["a", "b", "c", "d", "e"] {
        create(&api, &config_map(name)).await;
    }
    assert_eq!(told(&api, &WatchParams::default().timeout(1), "1").await, ["error 410"]);
    let error = events.next().await.unwrap().unwrap_err();
    assert!(matches!(error, watcher::Error::WatchError(status) if status.code == 410));
    assert!(matches!(events.next().await, Some(Ok(Event::Init))));
    let mut names = Vec::new();
    while let Some(Ok(Event::InitApply(object))) = events.next().await {
        names.push(object.name_any());
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_other_namespaces_and_resources() {
    let client = client(&server());
    let api = config_maps(&client);
    let version = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    create(&Api::<ConfigMap>::namespaced(client.clone(), "kube-system"), &config_map("a")).await;
    create(&Api::<Pod>::default_namespaced(client.clone()), &bound_pod("a")).await;
    let params = WatchParams::default().timeout(1).disable_bookmarks();
    assert_eq!(told(&api, &params, &version).await, [] as [&str; 0]);
    assert_eq!(told(&Api::all(client.clone()), &params, &version).await, ["added a"]);
}
