//! Where pods go, and what is said when they go nowhere.

use serde_json::{Value, json};

use crate::objects::{MINUTE, cpu_pod, node, node_of_pod, pod, quick, spread, verdict};

#[tokio::test(start_paused = true)]
async fn pods_fill_nodes_and_the_rest_is_told_why_not() {
    let world = quick(1);
    world.create(node("n1", "a", 2)).await.unwrap();
    world.create(node("n2", "b", 2)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    for name in ["p1", "p2", "p3"] {
        world.create(cpu_pod(name, "1500m")).await.unwrap();
    }
    world.settle().await;
    assert_eq!(world.cluster().read(spread), [("n1".into(), 1), ("n2".into(), 1), ("none".into(), 1)].into());
    assert_eq!(
        verdict(&world, "p3").unwrap(),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_found_no_place_is_tried_again_when_a_node_comes() {
    let world = quick(2);
    world.create(cpu_pod("p", "1")).await.unwrap();
    world.settle().await;
    assert_eq!(verdict(&world, "p").unwrap(), "no nodes available to schedule pods");
    world.create(node("n1", "a", 2)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "p").as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_not_wanted_or_do_not_want_the_pod_are_left_out() {
    let world = quick(3);
    let mut tainted = node("tainted", "a", 4);
    tainted["spec"] = json!({"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]});
    let mut cordoned = node("cordoned", "a", 4);
    cordoned["spec"] = json!({"unschedulable": true});
    for object in [tainted, cordoned, node("far", "b", 4), node("here", "a", 4)] {
        world.create(object).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    let selector = json!({"nodeSelector": {"topology.kubernetes.io/zone": "a"}});
    world.create(pod("p", &selector)).await.unwrap();
    let tolerant = json!({
        "nodeSelector": {"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "tainted"},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
    });
    world.create(pod("tolerant", &tolerant)).await.unwrap();
    world.create(pod("lost", &json!({"nodeSelector": {"topology.kubernetes.io/zone": "c"}}))).await.unwrap();
    world.settle().await;
    assert_eq!(node_of_pod(&world, "p").as_deref(), Some("here"));
    assert_eq!(node_of_pod(&world, "tolerant").as_deref(), Some("tainted"));
    let message = verdict(&world, "lost").unwrap();
    assert!(message.contains("2 node(s) didn't match Pod's node affinity/selector"), "{message}");
    assert!(message.contains("1 node(s) had untolerated taint(s)"), "{message}");
    assert!(message.ends_with("4 Preemption is not helpful for scheduling."), "{message}");
}

#[tokio::test(start_paused = true)]
async fn spread_pods_keep_their_skew() {
    let world = quick(4);
    for (name, zone) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        world.create(node(name, zone, 8)).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    let spec = json!({"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }]});
    for number in 0..6 {
        world.create(pod(&format!("p{number}"), &spec)).await.unwrap();
    }
    world.settle().await;
    let counts = world.cluster().read(spread);
    let on = |name: &str| counts.get(name).copied().unwrap_or_default();
    assert_eq!((on("n1") + on("n2"), on("n3")), (3, 3));
}

fn together(kind: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}},
    }]}}})
}

#[tokio::test(start_paused = true)]
async fn friends_share_a_node_and_enemies_do_not() {
    let world = quick(5);
    for name in ["n1", "n2"] {
        world.create(node(name, "a", 8)).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    for name in ["a1", "a2"] {
        world.create(pod(name, &together("podAffinity"))).await.unwrap();
    }
    world.settle().await;
    assert_eq!(node_of_pod(&world, "a1"), node_of_pod(&world, "a2"));
    for name in ["e1", "e2"] {
        world.create(pod(name, &together("podAntiAffinity"))).await.unwrap();
    }
    world.settle().await;
    assert!(node_of_pod(&world, "e1").is_some() && node_of_pod(&world, "e1") != node_of_pod(&world, "a1"));
    let message = verdict(&world, "e2").unwrap();
    assert!(message.contains("2 node(s) didn't match pod anti-affinity rules"), "{message}");
    // Symmetry: the pod on the other node keeps everyone of its kind away.
    world.create(pod("plain", &json!({"nodeName": null}))).await.unwrap();
    world.settle().await;
    assert_eq!(node_of_pod(&world, "plain"), node_of_pod(&world, "a1"));
}

#[tokio::test(start_paused = true)]
async fn a_host_port_is_given_out_once_per_node() {
    let world = quick(6);
    world.create(node("n1", "a", 8)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    let spec = json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    world.create(pod("first", &spec)).await.unwrap();
    world.create(pod("second", &spec)).await.unwrap();
    world.settle().await;
    assert_eq!(node_of_pod(&world, "first").as_deref(), Some("n1"));
    let message = verdict(&world, "second").unwrap();
    assert!(message.contains("1 node(s) didn't have free ports for the requested pod ports"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn gated_pods_and_pods_of_other_schedulers_are_left_alone() {
    let world = quick(7);
    world.create(node("n1", "a", 8)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    world.create(pod("gated", &json!({"schedulingGates": [{"name": "example.com/wait"}]}))).await.unwrap();
    world.create(pod("other", &json!({"schedulerName": "mine"}))).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!((node_of_pod(&world, "gated"), node_of_pod(&world, "other")), (None, None));
    assert_eq!(verdict(&world, "other"), None);
}

#[tokio::test(start_paused = true)]
async fn the_most_important_pod_goes_first() {
    let world = quick(8);
    world
        .create(json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000,
        }))
        .await
        .unwrap();
    let mut important = cpu_pod("z-important", "800m");
    important["spec"]["priorityClassName"] = "high".into();
    world.create(cpu_pod("a-ordinary", "800m")).await.unwrap();
    world.create(important).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    world.create(node("n1", "a", 1)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(node_of_pod(&world, "z-important").as_deref(), Some("n1"));
    assert_eq!(node_of_pod(&world, "a-ordinary"), None);
}
