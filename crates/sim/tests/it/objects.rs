//! Objects and questions the tests share.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use karpenter_sim::kubelet::Timing;
use karpenter_sim::objects::{is_active, is_ready, node_of};
use karpenter_sim::{Objects, World, WorldOptions};
use serde_json::{Value, json};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A world in which things on nodes happen nearly at once.
pub(crate) fn quick(seed: u64) -> World {
    World::bare(WorldOptions { seed, timing: Timing::quick(), ..WorldOptions::default() })
}

pub(crate) fn node(name: &str, zone: &str, cpu: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone,
        }},
        "status": {"capacity": {"cpu": cpu.to_string(), "memory": "64Gi", "pods": "110"}},
    })
}

pub(crate) fn pod(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

pub(crate) fn cpu_pod(name: &str, cpu: &str) -> Value {
    pod(name, &json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}))
}

pub(crate) fn template(cpu: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        },
    })
}

pub(crate) fn workload(kind: &str, name: &str, replicas: u32, cpu: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name,
            "selector": {"matchLabels": {"app": "web"}}, "template": template(cpu),
        },
    })
}

pub(crate) fn deployment(name: &str, replicas: u32, cpu: &str) -> Value {
    let mut object = workload("Deployment", name, replicas, cpu);
    object["spec"].as_object_mut().unwrap().remove("serviceName");
    object
}

/// Ready pods that are there to stay.
pub(crate) fn ready(objects: &Objects) -> usize {
    objects.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count()
}

pub(crate) fn pod_named(world: &World, name: &str) -> Option<Pod> {
    let named = |pod: &&std::sync::Arc<Pod>| pod.metadata.name.as_deref() == Some(name);
    world.cluster().read(|objects| objects.pods.values().find(named).map(|pod| Pod::clone(pod)))
}

pub(crate) fn node_of_pod(world: &World, name: &str) -> Option<String> {
    pod_named(world, name).and_then(|pod| node_of(&pod).map(str::to_owned))
}

/// How many pods each node has.
pub(crate) fn spread(objects: &Objects) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for pod in objects.pods.values().filter(|pod| is_active(pod)) {
        *counts.entry(node_of(pod).unwrap_or("none").to_owned()).or_default() += 1;
    }
    counts
}

/// What the scheduler says about a pod that found no place.
pub(crate) fn verdict(world: &World, name: &str) -> Option<String> {
    let conditions = pod_named(world, name)?.status?.conditions?;
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable"))
        .then_some(scheduled.message?)
}
