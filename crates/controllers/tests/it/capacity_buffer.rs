//! Room is kept free for pods to come.

use std::time::Duration;

use serde_json::{Value, json};

use crate::objects::{claim, condition_of, node, node_class, node_pool, pod};
use crate::rig::Rig;

async fn rig() -> Rig {
    let rig = Rig::quiet(&["--feature-gates=CapacityBuffer=true"]).await;
    rig.create(node_class()).await;
    rig.create(node_pool("default")).await;
    rig
}

fn buffer(spec: Value) -> Value {
    json!({
        "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer",
        "metadata": {"name": "spare", "namespace": "default"}, "spec": spec,
    })
}

fn template() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "chunk", "namespace": "default"},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", "1")["spec"]},
    })
}

fn deployment(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod("x", "1")["spec"]},
        },
    })
}

async fn status(rig: &Rig) -> Value {
    rig.pass(Duration::from_secs(5)).await;
    rig.get(&buffer(json!({}))).await.expect("the buffer")
}

fn said(buffer: &Value, type_: &str) -> String {
    let condition = condition_of(buffer, type_).unwrap_or_else(|| panic!("no {type_}: {buffer}"));
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn a_buffer_gets_nodes_of_its_own_and_says_so() {
    let rig = rig().await;
    rig.create(template()).await;
    rig.create(buffer(json!({"podTemplateRef": {"name": "chunk"}, "replicas": 2}))).await;
    rig.eventually("a NodeClaim", |rig| !rig.context.stores.node_claims.is_empty()).await;
    let found = status(&rig).await;
    assert_eq!(found["status"]["replicas"], 2);
    assert_eq!(found["status"]["podTemplateRef"]["name"], "chunk");
    assert_eq!(said(&found, "ReadyForProvisioning"), "True Resolved: Pod template resolved successfully");
    let claim = &rig.context.stores.node_claims.list()[0];
    let requests = serde_json::to_value(&claim.spec.resources).expect("JSON");
    assert_eq!(requests["requests"]["cpu"], "2");
}

#[tokio::test(start_paused = true)]
async fn a_buffer_that_fits_nodes_that_exist_holds_them_without_a_promise() {
    let rig = rig().await;
    rig.create(claim("c", "default", 4)).await;
    rig.create(node("c", "default", 4)).await;
    rig.patch(&node("c", "default", 4), json!({"spec": {"taints": null}})).await;
    rig.create(template()).await;
    rig.create(buffer(json!({"podTemplateRef": {"name": "chunk"}, "replicas": 3}))).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(
        said(&status(&rig).await, "Provisioning"),
        "True FitsExistingCapacity: All 3 virtual pods fit on existing capacity"
    );
    let held = |rig: &Rig| rig.context.cluster.read(|cluster| cluster.buffer_pods("fake:///c"));
    assert_eq!(held(&rig), 3);
    rig.delete(&buffer(json!({}))).await;
    rig.pass(Duration::from_secs(30)).await;
    assert_eq!(held(&rig), 0, "what a deleted buffer held is free");
}

#[tokio::test(start_paused = true)]
async fn a_buffer_follows_its_workload() {
    let rig = rig().await;
    let reference = json!({"apiGroup": "apps", "kind": "Deployment", "name": "web"});
    rig.create(buffer(json!({"scalableRef": reference, "percentage": 50}))).await;
    let found = status(&rig).await;
    assert_eq!(
        said(&found, "ReadyForProvisioning"),
        r#"False ScalableRefNotFound: Deployment.apps "web" not found"#
    );
    assert_eq!(
        said(&found, "Provisioning"),
        "False NotReadyForProvisioning: Buffer is not ReadyForProvisioning"
    );
    rig.create(deployment(4)).await;
    assert_eq!(status(&rig).await["status"]["replicas"], 2);
    rig.patch(&deployment(4), json!({"spec": {"replicas": 9}})).await;
    assert_eq!(status(&rig).await["status"]["replicas"], 5);
    rig.delete(&deployment(4)).await;
    let found = status(&rig).await;
    assert!(said(&found, "ReadyForProvisioning").starts_with("False ScalableRefNotFound"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_buffer_that_can_never_be_filled_says_what_is_wrong() {
    let rig = rig().await;
    rig.create(template()).await;
    rig.create(buffer(json!({"podTemplateRef": {"name": "chunk"}, "limits": {"cpu": "500m"}}))).await;
    rig.pass(Duration::from_secs(60)).await;
    let found = status(&rig).await;
    assert_eq!(found["status"]["replicas"], 0);
    assert_eq!(said(&found, "Provisioning"), "False BufferEmpty: Buffer has zero desired replicas");
}

#[tokio::test(start_paused = true)]
async fn a_buffer_of_more_pods_than_anyone_can_mean_is_refused_and_becomes_none() {
    let rig = rig().await;
    rig.create(template()).await;
    rig.create(buffer(json!({"podTemplateRef": {"name": "chunk"}, "replicas": 10_001}))).await;
    assert_eq!(
        said(&status(&rig).await, "ReadyForProvisioning"),
        "False TooManyReplicas: 10001 pods are more than the 10000 a buffer may stand for; lower spec.replicas, spec.percentage or spec.limits"
    );
    rig.pass(Duration::from_secs(30)).await;
    assert!(rig.context.stores.node_claims.is_empty());
    rig.patch(&buffer(json!({})), json!({"spec": {"replicas": 1}})).await;
    rig.eventually("a NodeClaim", |rig| !rig.context.stores.node_claims.is_empty()).await;
}
