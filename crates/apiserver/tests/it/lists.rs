//! Lists: selectors, pages, and states of the past.

use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_apiserver::Options;
use kube::api::{Api, DeleteParams, ListParams, VersionMatch};
use kube::{Client, ResourceExt as _};

use crate::cluster::{client, code, config_map, create, server, server_with, status};

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

async fn names(api: &Api<ConfigMap>, params: &ListParams) -> Vec<String> {
    api.list(params).await.unwrap().items.iter().map(|item| item.name_any()).collect()
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_state_even_if_it_changes_meanwhile() {
    let client = client(&server());
    let api = config_maps(&client);
    for name in ["a", "b", "c", "d"] {
        create(&api, &config_map(name)).await;
    }
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(2));
    api.delete("c", &DeleteParams::default()).await.unwrap();
    create(&api, &config_map("e")).await;
    let token = first.metadata.continue_.unwrap();
    let rest = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(rest.items.iter().map(|i| i.name_any()).collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(names(&api, &ListParams::default()).await, ["a", "b", "d", "e"]);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_state_is_gone_with_a_token_to_go_on() {
    let server = server_with(Options { history_events: 2, ..Options::default() });
    let client = client(&server);
    let api = config_maps(&client);
    for name in ["a", "b", "c"] {
        create(&api, &config_map(name)).await;
    }
    let first = api.list(&ListParams::default().limit(1)).await.unwrap();
    for name in ["d", "e", "f"] {
        create(&api, &config_map(name)).await;
    }
    let token = first.metadata.continue_.unwrap();
    let refused = status(api.list(&ListParams::default().limit(1).continue_token(&token)).await);
    assert_eq!((refused.code, refused.reason.as_str()), (410, "Expired"));
    let fresh = refused.metadata.unwrap().continue_.unwrap();
    let rest = api.list(&ListParams::default().continue_token(&fresh)).await.unwrap();
    assert_eq!(rest.items.iter().map(|i| i.name_any()).collect::<Vec<_>>(), ["b", "c", "d", "e", "f"]);
}

#[tokio::test(start_paused = true)]
async fn an_exact_version_shows_the_past_and_one_to_come_times_out() {
    let client = client(&server());
    let api = config_maps(&client);
    let before = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    create(&api, &config_map("a")).await;
    let exactly = |version: &str| ListParams::default().at(version).matching(VersionMatch::Exact);
    assert_eq!(names(&api, &exactly(&before)).await, [] as [&str; 0]);
    let refused = status(api.list(&exactly("999999")).await);
    assert_eq!((refused.code, refused.reason.as_str()), (504, "Timeout"));
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_and_malformed_selectors_are_bad_requests() {
    let client = client(&server());
    let api = config_maps(&client);
    for params in [
        ListParams::default().continue_token("foo"),
        ListParams::default().labels("a b"),
        ListParams::default().fields("spec.nodeName=x"),
    ] {
        assert_eq!(code(api.list(&params).await), 400, "{params:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_is_given_to_those_who_ask_for_it() {
    let client = client(&server());
    let api = config_maps(&client);
    let uid = create(&api, &config_map("a")).await;
    let partial = api.get_metadata("a").await.unwrap();
    assert_eq!(partial.metadata.uid, Some(uid));
    assert_eq!(partial.types.unwrap().kind, "PartialObjectMetadata");
    let list = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
}
