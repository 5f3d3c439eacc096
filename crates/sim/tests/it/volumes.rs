//! Volumes: made where the pod goes, or the pod goes where they are.

use karpenter_sim::World;
use serde_json::{Value, json};

use crate::objects::{MINUTE, node, node_of_pod, pod, quick, verdict};

fn class(mode: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "csi.example.com", "volumeBindingMode": mode,
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": [zone]}]}],
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

fn user(claim: &str) -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
}

async fn two_zones(seed: u64) -> World {
    let world = quick(seed);
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        world.create(node(name, zone, 8)).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_waits_is_made_where_its_pod_goes() {
    let world = two_zones(1).await;
    world.create(class("WaitForFirstConsumer", "b")).await.unwrap();
    world.create(claim("data")).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert!(world.cluster().read(|objects| objects.volumes.is_empty()), "nobody wants it yet");
    world.create(pod("p", &user("data"))).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "p").as_deref(), Some("n2"), "the class allows zone b only");
    let (phase, attached) = world.cluster().read(|objects| {
        let claim = objects.volume_claims.values().next().unwrap();
        (claim.status.as_ref().unwrap().phase.clone(), objects.volume_attachments.len())
    });
    assert_eq!((phase.as_deref(), attached), (Some("Bound"), 1));
}

#[tokio::test(start_paused = true)]
async fn an_immediate_volume_draws_its_pod_to_its_zone() {
    let world = two_zones(2).await;
    world.create(class("Immediate", "b")).await.unwrap();
    world.create(claim("data")).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    world.create(pod("p", &user("data"))).await.unwrap();
    let elsewhere = json!({
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeSelector": {"topology.kubernetes.io/zone": "a"},
    });
    world.create(pod("elsewhere", &elsewhere)).await.unwrap();
    world.create(pod("claimless", &user("missing"))).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "p").as_deref(), Some("n2"));
    let message = verdict(&world, "elsewhere").unwrap();
    assert!(message.contains("1 node(s) didn't match PersistentVolume's node affinity"), "{message}");
    let message = verdict(&world, "claimless").unwrap();
    assert!(
        message.starts_with("0/2 nodes are available: persistentvolumeclaim \"missing\" not found."),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_attaches_no_more_volumes_than_its_driver_can_and_lets_go_of_unused_ones() {
    let world = two_zones(3).await;
    world.create(class("WaitForFirstConsumer", "a")).await.unwrap();
    world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1"},
            "spec": {"drivers": [{"name": "csi.example.com", "nodeID": "n1", "allocatable": {"count": 1}}]},
        }))
        .await
        .unwrap();
    for name in ["one", "two"] {
        world.create(claim(name)).await.unwrap();
        world.create(pod(name, &user(name))).await.unwrap();
        world.run_for(MINUTE).await.unwrap();
    }
    assert_eq!(node_of_pod(&world, "one").as_deref(), Some("n1"));
    let message = verdict(&world, "two").unwrap();
    assert!(message.contains("1 node(s) exceed max volume count"), "{message}");
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::default_namespaced(world.cluster().client("user"));
    pods.delete("one", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "two").as_deref(), Some("n1"));
    let attached = world.cluster().read(|objects| objects.volume_attachments.len());
    assert_eq!(attached, 1, "the first was detached");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_node_goes_before_its_volume_comes_finds_another() {
    let world = two_zones(4).await;
    world.create(class("WaitForFirstConsumer", "a")).await.unwrap();
    world.create(claim("data")).await.unwrap();
    world.create(pod("p", &user("data"))).await.unwrap();
    let chosen = |objects: &karpenter_sim::Objects| {
        let claims = objects.volume_claims.values();
        claims
            .filter_map(|claim| claim.metadata.annotations.as_ref())
            .any(|all| all.contains_key("volume.kubernetes.io/selected-node"))
    };
    world.wait_until("a node is chosen", MINUTE, chosen).await.unwrap();
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(world.cluster().client("user"));
    nodes.delete("n1", &kube::api::DeleteParams::default()).await.unwrap();
    world.create(node("n3", "a", 8)).await.unwrap();
    world.run_for(3 * MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "p").as_deref(), Some("n3"));
}
