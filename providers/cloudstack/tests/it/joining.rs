//! What machines are told so that they join the cluster.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use karpenter_api::conditions::HasConditions as _;
use karpenter_provider_cloudstack::voice::Voice;
use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

/// What the last deployment said.
fn deployed(world: &World, parameter: &str) -> String {
    let log = world.cloud.log();
    let last = log.iter().rev().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    last.parameters.get(parameter).cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_talos_worker_gets_its_configuration_plain_and_with_labels_and_taints() {
    let world = World::new().await;
    let mut class = spec();
    class["userData"] = "machine:\n  type: worker\n  token: a.b\ncluster: {}\n".into();
    class["bootstrap"] = json!({"mode": "Talos"});
    class["maxPods"] = 60.into();
    let class = world.class("default", class).await;
    assert_eq!(class.condition("Ready").expect("a condition").status.as_str(), "True");
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let text = STANDARD.decode(deployed(&world, "userdata")).expect("base64");
    let text = String::from_utf8(text).expect("plain: not every release of Talos knows gzip");
    let config: Value = serde_json::from_str(text.trim_start_matches("---\n")).expect("one document");
    let kubelet = &config["machine"]["kubelet"];
    let labels = kubelet["extraArgs"]["node-labels"].as_str().expect("labels");
    assert!(labels.contains("karpenter.sh/nodepool=pool"), "{labels}");
    assert_eq!(kubelet["extraConfig"]["registerWithTaints"][0]["key"], "karpenter.sh/unregistered");
    assert_eq!(kubelet["extraConfig"]["maxPods"], 60);
    assert_eq!(config["machine"]["token"], "a.b");
}

#[tokio::test(start_paused = true)]
async fn user_data_that_is_no_talos_configuration_is_told_of_and_not_quoted() {
    let world = World::new().await;
    let mut class = spec();
    class["userData"] = "#!/bin/bash\njoin --token very-secret\n".into();
    class["bootstrap"] = json!({"mode": "Talos"});
    let class = world.class("default", class).await;
    let condition = class.condition("ValidationSucceeded").expect("a condition");
    assert_eq!(condition.reason(), "UserDataInvalid", "{condition:?}");
    assert!(condition.message().contains("talosctl") && !condition.message().contains("very-secret"));
}

#[tokio::test(start_paused = true)]
async fn registered_user_data_is_given_values_with_names_filled_in() {
    let world = World::new().await;
    let mut class = spec();
    class.as_object_mut().unwrap().remove("userData");
    class["userDataID"] = world.cloud.add_user_data("join").into();
    class["userDataDetails"] = json!({"role": "worker", "claim": "of {{nodeClaim}}"});
    world.class("default", class).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(deployed(&world, "userdatadetails[0].role"), "worker");
    assert_eq!(deployed(&world, "userdatadetails[0].claim"), "of np-a");
}

#[tokio::test(start_paused = true)]
async fn machines_are_not_to_be_scaled_while_they_run_unless_the_class_says_so() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(
        (deployed(&world, "dynamicscalingenabled"), deployed(&world, "hypervisor")),
        ("false".into(), String::new())
    );
    let mut class = spec();
    class["dynamicScaling"] = true.into();
    class["hypervisor"] = "Simulator".into();
    world.class("default", class).await;
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(
        (deployed(&world, "dynamicscalingenabled"), deployed(&world, "hypervisor")),
        ("true".into(), "Simulator".into())
    );
}

#[tokio::test(start_paused = true)]
async fn without_the_token_it_was_to_get_no_machine_is_made() {
    let world = World::new().await;
    let mut class = spec();
    class["bootstrap"] =
        json!({"mode": "Kubeadm", "apiServer": "api:6443", "caCertHash": "sha256:1", "tokenTTL": "5m"});
    let short = world.class("default", class.clone()).await;
    let told = short.condition("ValidationSucceeded").expect("a condition").message().to_owned();
    assert!(told.contains("spec.bootstrap.tokenTTL") && told.contains("10m"), "{told}");
    class["bootstrap"]["tokenTTL"] = "30m".into();
    let class = world.class("default", class).await;
    assert_eq!(class.condition("Ready").expect("a condition").status.as_str(), "True");
    // There is no cluster here to make one in.
    let error = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("no token");
    assert!(error.to_string().contains("spec.bootstrap.tokenTTL"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_of_another_name_whose_id_is_written_otherwise_is_its_machines_all_the_same() {
    let world = World::new().await;
    world.node("np-a").await;
    let id = world.machine_of("np-a").id;
    let carried = format!("cloudstack:///{id}");
    // A cluster whose Nodes are called by their names in the domain.
    let patched: Arc<Mutex<Vec<Value>>> = Arc::default();
    let (patches, named) = (Arc::clone(&patched), carried.clone());
    let answer = move |request: http::Request<kube::client::Body>| {
        let (patches, named) = (Arc::clone(&patches), named.clone());
        async move {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default());
            let node = |name: &str, id: &str| json!({"metadata": {"name": name}, "spec": {"providerID": id}});
            let (status, body) = match request.method().as_str() {
                "GET" if path == "/api/v1/nodes" => {
                    assert!(query.contains("labelSelector=%21karpenter.sh%2Fregistered"), "{query}");
                    let nodes = [node("other", "cloudstack:///elsewhere"), node("np-a.example.com", &named)];
                    (200, json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": nodes}))
                }
                "GET" => (
                    404,
                    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
                ),
                _ => {
                    let body = request.into_body().collect().await.expect("a body").to_bytes();
                    patches.lock().unwrap().push(serde_json::from_slice(&body).expect("JSON"));
                    (
                        200,
                        json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "np-a"},
                        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []}}),
                    )
                }
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(status).body(body).expect("an answer");
            Ok::<_, std::convert::Infallible>(answer)
        }
    };
    let cluster = kube::Client::new(tower::service_fn(answer), "default");
    let (recorder, _writer) = karpenter_runtime::events::recorder("karpenter", &world.environment);
    let provider = CloudStackProvider::speaking(
        world.client.clone(),
        ProviderOptions::new("test"),
        Arc::clone(&world.cluster) as Arc<dyn Objects>,
        Voice::new(recorder, cluster),
        &world.environment,
    );
    for _ in 0..20 {
        seconds(5).await;
        provider.look_at_launches().await.expect("looked");
    }
    let patched = patched.lock().unwrap();
    assert_eq!(patched.first().expect("written")["status"]["providerID"], carried);
}

#[tokio::test(start_paused = true)]
async fn many_machines_that_boot_have_the_nodes_listed_once_for_all_of_them_and_every_thirty_seconds_at_most()
{
    let world = World::new().await;
    for number in 0..10 {
        world.node(&format!("np-{number}")).await;
    }
    // None of their Nodes is there yet.
    let lists: Arc<Mutex<u64>> = Arc::default();
    let counted = Arc::clone(&lists);
    let answer = move |request: http::Request<kube::client::Body>| {
        let is_list = request.uri().path() == "/api/v1/nodes";
        *counted.lock().unwrap() += u64::from(is_list);
        let answer = match is_list {
            true => (200, json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": []})),
            false => (
                404,
                json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "no"}),
            ),
        };
        let body = kube::client::Body::from(answer.1.to_string().into_bytes());
        let answer = http::Response::builder().status(answer.0).body(body).expect("an answer");
        std::future::ready(Ok::<_, std::convert::Infallible>(answer))
    };
    let cluster = kube::Client::new(tower::service_fn(answer), "default");
    let (recorder, _writer) = karpenter_runtime::events::recorder("karpenter", &world.environment);
    let provider = CloudStackProvider::speaking(
        world.client.clone(),
        ProviderOptions::new("test"),
        Arc::clone(&world.cluster) as Arc<dyn Objects>,
        Voice::new(recorder, cluster),
        &world.environment,
    );
    for _ in 0..36 {
        provider.look_at_launches().await.expect("looked");
        seconds(5).await;
    }
    let lists = *lists.lock().unwrap();
    assert!((4..=6).contains(&lists), "{lists} in three minutes");
}
