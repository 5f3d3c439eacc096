//! Nodes and what happens to pods on them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_sim::World;
use karpenter_sim::objects::{is_ready, node_ready, phase};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::objects::{MINUTE, cpu_pod, deployment, node, node_of_pod, pod, pod_named, quick, ready};

fn readiness(world: &World, name: &str) -> Option<String> {
    world.cluster().read(|objects| objects.node(name).and_then(|node| node_ready(node).map(str::to_owned)))
}

fn taints(world: &World, name: &str) -> Vec<String> {
    world.cluster().read(|objects| {
        let spec = objects.node(name).and_then(|node| node.spec.clone()).unwrap_or_default();
        spec.taints
            .unwrap_or_default()
            .iter()
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect()
    })
}

#[tokio::test(start_paused = true)]
async fn a_node_becomes_ready_and_loses_the_taint_it_was_born_with() {
    let world = quick(1);
    world.create(node("n1", "a", 2)).await.unwrap();
    assert_eq!(taints(&world, "n1"), ["node.kubernetes.io/not-ready:NoSchedule"]);
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(readiness(&world, "n1").as_deref(), Some("True"));
    assert_eq!(taints(&world, "n1"), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_bound_pod_runs_and_a_deleted_one_ends() {
    let world = quick(2);
    world.create(node("n1", "a", 2)).await.unwrap();
    world.create(cpu_pod("p", "1")).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    let running = pod_named(&world, "p").unwrap();
    assert_eq!((phase(&running), is_ready(&running)), ("Running", true));
    let status = running.status.unwrap();
    assert!(status.pod_ip.is_some() && status.start_time.is_some() && status.host_ip.is_some());
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("user"));
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(pod_named(&world, "p"), None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_kubelet_is_found_out_and_its_pods_move() {
    let world = quick(3);
    for name in ["n1", "n2"] {
        world.create(node(name, "a", 4)).await.unwrap();
    }
    world.create(deployment("web", 2, "1")).await.unwrap();
    let both = |objects: &karpenter_sim::Objects| ready(objects) == 2;
    world.wait_until("two pods are ready", MINUTE, both).await.unwrap();
    world.cluster().set_kubelet("n1", false);
    world.run_for(2 * MINUTE).await.unwrap();
    assert_eq!(readiness(&world, "n1").as_deref(), Some("Unknown"));
    let tainted = taints(&world, "n1");
    assert!(tainted.contains(&"node.kubernetes.io/unreachable:NoExecute".to_owned()), "{tainted:?}");
    // Five minutes of patience, then they are made anew on the other node.
    world.wait_until("two pods are ready again", 8 * MINUTE, both).await.unwrap();
    let stuck = world.cluster().read(|objects| objects.pods_on("n1").count());
    assert_eq!(stuck, 1, "nobody is there to end the old pod");
    let nodes: Api<Node> = Api::all(world.cluster().client("user"));
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    assert_eq!(
        world.cluster().read(|objects| objects.pods.len()),
        2,
        "pods of a node that is gone are collected"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_kubelet_never_spoke_is_found_out() {
    let world = quick(7);
    world.cluster().set_kubelet("n1", false);
    world.run_for(2 * MINUTE).await.unwrap();
    world.create(node("n1", "a", 4)).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    assert_eq!(readiness(&world, "n1").as_deref(), Some("Unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_comes_back_has_its_node_and_pods_ready_again() {
    let world = quick(4);
    world.create(node("n1", "a", 4)).await.unwrap();
    world.create(cpu_pod("p", "1")).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    world.cluster().set_kubelet("n1", false);
    world.run_for(2 * MINUTE).await.unwrap();
    assert!(!is_ready(&pod_named(&world, "p").unwrap()));
    world.cluster().set_kubelet("n1", true);
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(readiness(&world, "n1").as_deref(), Some("True"));
    assert!(is_ready(&pod_named(&world, "p").unwrap()));
    assert_eq!(taints(&world, "n1"), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_no_execute_taint_drives_out_whoever_does_not_tolerate_it() {
    let world = quick(5);
    world.create(node("n1", "a", 4)).await.unwrap();
    let patient = json!({"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 120}]});
    let immune = json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
    world.create(pod("plain", &json!({}))).await.unwrap();
    world.create(pod("patient", &patient)).await.unwrap();
    world.create(pod("immune", &immune)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    let nodes: Api<Node> = Api::all(world.cluster().client("user"));
    let since = world.cluster().now();
    let taint =
        json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute", "timeAdded": since.to_string()}]}});
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(pod_named(&world, "plain"), None);
    assert!(node_of_pod(&world, "patient").is_some());
    world.run_for(2 * MINUTE).await.unwrap();
    assert_eq!(pod_named(&world, "patient"), None);
    assert!(node_of_pod(&world, "immune").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_is_waited_for_in_vain_is_named() {
    let world = quick(6);
    let error = world.wait_until("a miracle", Duration::from_secs(5), |_| false).await.unwrap_err();
    assert!(error.to_string().starts_with("a miracle did not happen within 5s"), "{error}");
}
