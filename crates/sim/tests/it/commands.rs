//! Rules about disruption are found broken when they are.

use karpenter_sim::{World, WorldOptions, invariants};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::objects::MINUTE;

async fn watched() -> World {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    world.cluster().watch_over(invariants::all("karpenter"));
    world
}

fn claims(world: &World) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
    Api::all_with(world.cluster().client("karpenter"), &resource)
}

fn class() -> Value {
    json!({"group": "example.com", "kind": "ExampleNodeClass", "name": "default"})
}

async fn pool(world: &World, nodes: &str) {
    let spec = json!({
        "template": {"spec": {"nodeClassRef": class(), "requirements": []}},
        "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": nodes}]},
    });
    world
        .create(json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"}, "spec": spec}))
        .await
        .unwrap();
}

/// An initialized NodeClaim with its node.
async fn machine(world: &World, name: &str) {
    let id = format!("example:///{name}");
    world
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "default"}},
            "spec": {"nodeClassRef": class(), "requirements": []},
        }))
        .await
        .unwrap();
    let labels = json!({"karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"});
    world
        .create(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": id}, "status": {"capacity": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
        }))
        .await
        .unwrap();
    set_conditions(world, name, &[]).await;
}

/// Launched, registered and initialized, and whatever else is given.
async fn set_conditions(world: &World, name: &str, more: &[(&str, &str)]) {
    let base = [("Launched", "Launched"), ("Registered", "Registered"), ("Initialized", "Initialized")];
    let conditions: Vec<Value> = base
        .iter()
        .chain(more)
        .map(|(kind, reason)| json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let status = json!({"status": {"providerID": format!("example:///{name}"), "conditions": conditions}});
    claims(world).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn disrupt(world: &World, name: &str, reason: &str) {
    set_conditions(world, name, &[("DisruptionReason", reason)]).await;
}

fn broken(world: &World) -> Option<String> {
    world.cluster().violation().map(|violation| violation.rules.join(","))
}

async fn bound_pod(world: &World, name: &str, edit: impl FnOnce(&mut Value)) {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {}},
        "spec": {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]},
    });
    edit(&mut pod);
    world.create(pod).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_node_more_than_the_budget_allows_is_noticed() {
    let world = watched().await;
    pool(&world, "50%").await;
    for name in ["a", "b", "c"] {
        machine(&world, name).await;
    }
    disrupt(&world, "a", "Empty").await;
    disrupt(&world, "b", "Underutilized").await;
    assert_eq!(broken(&world), None, "half of three is two");
    disrupt(&world, "c", "Empty").await;
    assert_eq!(broken(&world).as_deref(), Some("I17,I18"));
}

#[tokio::test(start_paused = true)]
async fn consolidating_a_node_with_a_pod_that_must_stay_is_noticed_and_drifting_it_is_not() {
    for (reason, rule) in [("Underutilized", Some("I23")), ("Drifted", None)] {
        let world = watched().await;
        pool(&world, "100%").await;
        machine(&world, "a").await;
        bound_pod(&world, "p", |pod| {
            pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true".into()
        })
        .await;
        world.run_for(5 * MINUTE).await.unwrap();
        disrupt(&world, "a", reason).await;
        assert_eq!(broken(&world).as_deref(), rule);
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_is_never_taken_back_is_noticed_at_rest() {
    for taken_back in [true, false] {
        let world = watched().await;
        pool(&world, "100%").await;
        machine(&world, "a").await;
        disrupt(&world, "a", "Empty").await;
        world.run_for(10 * MINUTE).await.unwrap();
        world.cluster().check_at_rest(10 * MINUTE).unwrap();
        if taken_back {
            set_conditions(&world, "a", &[]).await;
        }
        world.run_for(20 * MINUTE).await.unwrap();
        let rules =
            world.cluster().check_at_rest(30 * MINUTE).err().map(|violation| violation.rules.join(","));
        assert_eq!(rules.is_none(), taken_back, "{rules:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_lost_to_an_overwriting_update_is_noticed() {
    let world = watched().await;
    machine(&world, "a").await;
    let status = json!({"status": {"conditions": [
        {"type": "Launched", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]}});
    claims(&world).patch_status("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I33"));
}

async fn evict(world: &World, name: &str) {
    let pods: Api<k8s_openapi::api::core::v1::Pod> =
        Api::default_namespaced(world.cluster().client("karpenter"));
    let uid = pods.get(name).await.unwrap().metadata.uid;
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    });
    let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/eviction"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .unwrap();
    let _: Value = world.cluster().client("karpenter").request(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_evicted_before_a_dispensable_one_is_noticed() {
    for (first, rule) in [("critical", Some("I14,I15")), ("dispensable", None)] {
        let world = watched().await;
        machine(&world, "a").await;
        bound_pod(&world, "dispensable", |_| {}).await;
        let critical = |pod: &mut Value| pod["spec"]["priorityClassName"] = "system-node-critical".into();
        bound_pod(&world, "critical", critical).await;
        world.run_for(5 * MINUTE).await.unwrap();
        evict(&world, first).await;
        assert_eq!(broken(&world).as_deref(), rule);
    }
}

#[tokio::test(start_paused = true)]
async fn evicting_a_pod_that_tolerates_the_disruption_is_noticed() {
    let world = watched().await;
    machine(&world, "a").await;
    bound_pod(&world, "stays", |pod| pod["spec"]["tolerations"] = json!([{"operator": "Exists"}])).await;
    world.run_for(MINUTE).await.unwrap();
    evict(&world, "stays").await;
    assert_eq!(broken(&world).as_deref(), Some("I14,I15"));
}
