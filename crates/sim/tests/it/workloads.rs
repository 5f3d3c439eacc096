//! Workload controllers: how many pods, where, and what replaces them.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use karpenter_sim::Objects;
use karpenter_sim::objects::{is_active, is_ready, node_of};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::objects::{
    MINUTE, deployment, node, node_of_pod, pod_named, quick, ready, spread, template, workload,
};

#[tokio::test(start_paused = true)]
async fn a_deployment_makes_its_pods_replaces_lost_ones_and_scales() {
    let world = quick(1);
    world.create(node("n1", "a", 16)).await.unwrap();
    world.create(deployment("web", 3, "1")).await.unwrap();
    world.wait_until("three are ready", MINUTE, |objects| ready(objects) == 3).await.unwrap();
    let client = world.cluster().client("user");
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let name = world.cluster().read(|objects| objects.pods.keys().next().unwrap().name.to_string());
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
    world.wait_until("it is replaced", MINUTE, |objects| ready(objects) == 3).await.unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    for (replicas, expected) in [(5, 5), (1, 1), (0, 0)] {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
        let scaled = |objects: &Objects| ready(objects) == expected && objects.pods.len() == expected;
        world.wait_until("it is scaled", MINUTE, scaled).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    let status = deployments.get("web").await.unwrap().status.unwrap();
    assert_eq!((status.replicas.unwrap_or(0), status.ready_replicas.unwrap_or(0)), (0, 0));
    assert_eq!(status.observed_generation, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_never_has_too_few_and_ends_with_the_new_template() {
    let world = quick(2);
    world.create(node("n1", "a", 32)).await.unwrap();
    world.create(deployment("web", 4, "1")).await.unwrap();
    world.wait_until("four are ready", MINUTE, |objects| ready(objects) == 4).await.unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(world.cluster().client("user"));
    let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}}));
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    let fewest = std::cell::Cell::new(usize::MAX);
    let updated = |objects: &Objects| {
        fewest.set(fewest.get().min(ready(objects)));
        let new = |pod: &&std::sync::Arc<Pod>| {
            pod.metadata.labels.iter().flatten().any(|(key, _)| key == "version")
        };
        objects.pods.len() == 4 && objects.pods.values().filter(new).filter(|pod| is_ready(pod)).count() == 4
    };
    world.wait_until("all are new", 3 * MINUTE, updated).await.unwrap();
    assert!(fewest.get() >= 3, "a quarter may be missing, not more: {}", fewest.get());
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_goes_up_in_order_and_down_in_reverse() {
    let world = quick(3);
    world.create(node("n1", "a", 16)).await.unwrap();
    world.create(workload("StatefulSet", "db", 3, "1")).await.unwrap();
    world.wait_until("three are ready", MINUTE, |objects| ready(objects) == 3).await.unwrap();
    let started = |name: &str| pod_named(&world, name).unwrap().status.unwrap().start_time.unwrap().0;
    assert!(started("db-0") <= started("db-1") && started("db-1") <= started("db-2"));
    let sets: Api<StatefulSet> = Api::default_namespaced(world.cluster().client("user"));
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch("db", &PatchParams::default(), &patch).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert!(pod_named(&world, "db-0").is_some() && pod_named(&world, "db-1").is_none());
    assert_eq!(sets.get("db").await.unwrap().status.unwrap().ready_replicas, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_covers_the_nodes_that_will_have_it_now_and_later() {
    let world = quick(4);
    let mut tainted = node("tainted", "a", 2);
    tainted["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    let mut cordoned = node("cordoned", "a", 2);
    cordoned["spec"] = json!({"unschedulable": true});
    for object in [node("n1", "a", 2), tainted, cordoned] {
        world.create(object).await.unwrap();
    }
    world
        .create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template("100m")},
        }))
        .await
        .unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(world.cluster().read(spread), [("cordoned".into(), 1), ("n1".into(), 1)].into());
    world.create(node("n2", "b", 2)).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(world.cluster().read(spread).len(), 3);
    let pinned = world.cluster().read(|objects| {
        let pod = objects.pods_on("n2").next().unwrap();
        serde_json::to_value(&pod.spec.as_ref().unwrap().affinity).unwrap()
    });
    assert_eq!(
        pinned.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0"),
        Some(&json!("n2"))
    );
    let client = world.cluster().client("user");
    let sets: Api<DaemonSet> = Api::default_namespaced(client.clone());
    let status = sets.get("agent").await.unwrap().status.unwrap();
    assert_eq!((status.desired_number_scheduled, status.number_ready), (3, 3));
    // A taint that keeps new pods away drives none out, and none is made anew.
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    let taint = Patch::Merge(json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}));
    nodes.patch("n2", &PatchParams::default(), &taint).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(world.cluster().read(spread).len(), 3);
    let name =
        world.cluster().read(|objects| objects.pods_on("n2").next().unwrap().metadata.name.clone().unwrap());
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(world.cluster().read(spread).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_its_pods_to_the_end() {
    let world = quick(5);
    world.create(node("n1", "a", 16)).await.unwrap();
    let mut template = template("1");
    template["spec"]["restartPolicy"] = "Never".into();
    world
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
            "spec": {"completions": 5, "parallelism": 2, "template": template},
        }))
        .await
        .unwrap();
    let running = |objects: &Objects| objects.pods.values().filter(|pod| is_active(pod)).count();
    world.wait_until("two run", MINUTE, |objects| running(objects) == 2).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    let jobs: Api<Job> = Api::default_namespaced(world.cluster().client("user"));
    let status = jobs.get("work").await.unwrap().status.unwrap();
    assert_eq!((status.succeeded, status.active), (Some(5), None));
    assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "Complete" && c.status == "True"));
    assert_eq!(world.cluster().read(running), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_gives_up() {
    let world = quick(6);
    world.create(node("n1", "a", 16)).await.unwrap();
    let mut template = template("1");
    template["spec"]["restartPolicy"] = "Never".into();
    template["metadata"]["annotations"] = json!({"sim.karpenter.sh/fails": "true"});
    world
        .create(json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"},
            "spec": {"backoffLimit": 2, "template": template},
        }))
        .await
        .unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    let jobs: Api<Job> = Api::default_namespaced(world.cluster().client("user"));
    let status = jobs.get("work").await.unwrap().status.unwrap();
    assert_eq!(status.failed, Some(3));
    assert!(status.conditions.unwrap().iter().any(|c| c.type_ == "Failed" && c.status == "True"));
}

#[tokio::test(start_paused = true)]
async fn deletion_cost_decides_who_leaves_first() {
    let world = quick(7);
    world.create(node("n1", "a", 16)).await.unwrap();
    world.create(deployment("web", 3, "1")).await.unwrap();
    world.wait_until("three are ready", MINUTE, |objects| ready(objects) == 3).await.unwrap();
    let client = world.cluster().client("user");
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let names: Vec<String> =
        world.cluster().read(|objects| objects.pods.keys().map(|key| key.name.to_string()).collect());
    for (name, cost) in names.iter().zip(["10", "-5", "0"]) {
        let patch =
            json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}}});
        pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    let deployments: Api<Deployment> = Api::default_namespaced(client);
    let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert!(node_of_pod(&world, &names[0]).is_some(), "the dearest stays");
    assert_eq!(
        world.cluster().read(|objects| objects.pods.values().filter(|pod| node_of(pod).is_some()).count()),
        1
    );
}
