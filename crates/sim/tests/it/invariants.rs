//! Rules are found broken when they are, and only then.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_sim::inventory::Launch;
use karpenter_sim::{World, WorldOptions, invariants};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, EvictParams, Patch, PatchParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

use crate::cloud::launch;
use crate::objects::{MINUTE, cpu_pod};

async fn watched() -> World {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    world.cluster().watch_over(invariants::all("karpenter"));
    world
}

fn claims(world: &World, actor: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
    Api::all_with(world.cluster().client(actor), &resource)
}

/// A NodeClaim and the uid it was given.
async fn claim(world: &World, finalizers: &[&str]) -> String {
    let made = world
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "claim", "finalizers": finalizers},
            "spec": {
                "nodeClassRef": {"group": "example.com", "kind": "ExampleNodeClass", "name": "default"},
                "requirements": [],
            },
        }))
        .await
        .unwrap();
    made.metadata.uid.unwrap()
}

fn broken(world: &World) -> Option<String> {
    world.cluster().violation().map(|violation| violation.rules.join(","))
}

async fn set_status(world: &World, provider_id: &str, conditions: &[&str]) {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|kind| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let patch = Patch::Merge(json!({"status": {"providerID": provider_id, "conditions": conditions}}));
    claims(world, "karpenter").patch_status("claim", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_instances_for_one_claim_are_noticed() {
    let world = watched().await;
    let uid = claim(&world, &["karpenter.sh/termination"]).await;
    let cloud = world.cloud().handle("karpenter");
    for token in ["a", "b"] {
        assert_eq!(broken(&world), None);
        cloud.launch(Launch { claim_uid: uid.clone(), ..launch(token) }).await.unwrap();
    }
    assert_eq!(broken(&world).as_deref(), Some("I2"));
}

#[tokio::test(start_paused = true)]
async fn a_launch_for_a_claim_without_finalizer_is_noticed() {
    let world = watched().await;
    let uid = claim(&world, &[]).await;
    world.cloud().handle("karpenter").launch(Launch { claim_uid: uid, ..launch("a") }).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I1,I4"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_id_that_changes_is_noticed() {
    let world = watched().await;
    claim(&world, &["karpenter.sh/termination"]).await;
    set_status(&world, "sim:///a/1", &["Launched"]).await;
    assert_eq!(broken(&world), None);
    set_status(&world, "sim:///a/2", &["Launched"]).await;
    assert_eq!(broken(&world).as_deref(), Some("I3"));
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_removed_early_is_noticed_and_one_removed_in_time_is_not() {
    for early in [true, false] {
        let world = watched().await;
        let uid = claim(&world, &["karpenter.sh/termination"]).await;
        let cloud = world.cloud().handle("karpenter");
        let instance = cloud.launch(Launch { claim_uid: uid, ..launch("a") }).await.unwrap();
        set_status(&world, &instance.provider_id, &["Launched"]).await;
        let api = claims(&world, "karpenter");
        api.delete("claim", &DeleteParams::default()).await.unwrap();
        if !early {
            cloud.terminate(&instance.id).await.unwrap();
            world.run_for(5 * MINUTE).await.unwrap();
        }
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch("claim", &PatchParams::default(), &release).await.unwrap();
        assert_eq!(broken(&world).as_deref(), early.then_some("I8"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_noticed_once_everything_should_have_come_right() {
    let world = watched().await;
    let uid = claim(&world, &["karpenter.sh/termination"]).await;
    world.cloud().handle("karpenter").launch(Launch { claim_uid: uid, ..launch("a") }).await.unwrap();
    let api = claims(&world, "karpenter");
    api.delete("claim", &DeleteParams::default()).await.unwrap();
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("claim", &PatchParams::default(), &release).await.unwrap();
    assert_eq!(broken(&world), None, "its provider id was never written");
    world.run_for(20 * MINUTE).await.unwrap();
    world.cluster().check_at_rest(Duration::from_secs(60)).unwrap();
    let violation = world.cluster().check_at_rest(20 * MINUTE).unwrap_err();
    assert_eq!(violation.rules, ["I5"]);
}

/// A world with a registered claim, its ready node and a pod on it.
async fn running() -> (World, karpenter_sim::inventory::Instance) {
    let world = watched().await;
    let uid = claim(&world, &["karpenter.sh/termination"]).await;
    let cloud = world.cloud().handle("karpenter");
    let instance = cloud.launch(Launch { claim_uid: uid, ..launch("a") }).await.unwrap();
    set_status(&world, &instance.provider_id, &["Launched"]).await;
    world.run_for(3 * MINUTE).await.unwrap();
    set_status(&world, &instance.provider_id, &["Launched", "Registered"]).await;
    world.create(cpu_pod("p", "1")).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(broken(&world), None);
    (world, instance)
}

#[tokio::test(start_paused = true)]
async fn an_instance_removed_under_its_pods_is_noticed() {
    let (world, instance) = running().await;
    world.cloud().handle("karpenter").terminate(&instance.id).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I9,I10"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_instead_of_evicted_is_noticed() {
    let (world, _) = running().await;
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("karpenter"));
    let uid = pods.get("p").await.unwrap().metadata.uid;
    let preconditions = Some(Preconditions { uid, ..Preconditions::default() });
    let params = DeleteParams { preconditions, grace_period_seconds: Some(10), ..DeleteParams::default() };
    pods.delete("p", &params).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I11,I12,I16"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_be_deleted_when_its_nodes_time_is_up_but_only_as_itself() {
    for by_uid in [true, false] {
        let (world, _) = running().await;
        let time = world.cluster().now();
        let patch = json!({"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": time.to_string()}}});
        claims(&world, "karpenter")
            .patch("claim", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("karpenter"));
        let uid = pods.get("p").await.unwrap().metadata.uid.filter(|_| by_uid);
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid), ..Preconditions::default() });
        let params = DeleteParams { preconditions, grace_period_seconds: Some(1), ..DeleteParams::default() };
        pods.delete("p", &params).await.unwrap();
        assert_eq!(broken(&world).is_none(), by_uid);
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_without_the_pods_uid_is_noticed() {
    let (world, _) = running().await;
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("karpenter"));
    pods.evict("p", &EvictParams::default()).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I11,I12,I16"));
}

#[tokio::test(start_paused = true)]
async fn a_node_registered_in_two_steps_is_noticed() {
    let world = watched().await;
    let mut object = crate::objects::node("n1", "a", 2);
    object["spec"] = json!({"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]});
    world.create(object).await.unwrap();
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(broken(&world), None);
    let nodes: Api<Node> = Api::all(world.cluster().client("karpenter"));
    let label = Patch::Merge(json!({"metadata": {"labels": {"karpenter.sh/registered": "true"}}}));
    nodes.patch("n1", &PatchParams::default(), &label).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I6"));
}

#[tokio::test(start_paused = true)]
async fn a_violation_names_the_rule_and_the_write() {
    let (world, _) = running().await;
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("karpenter"));
    pods.evict("p", &EvictParams::default()).await.unwrap();
    let text = world.run_for(MINUTE).await.unwrap_err().to_string();
    assert!(
        text.starts_with("Karpenter evicts pods, and forces only what is overdue (I11, I12, I16): "),
        "{text}"
    );
    assert!(text.contains("karpenter: POST /api/v1/namespaces/default/pods/p/eviction"), "{text}");
}

/// Evicts a pod as Karpenter does.
async fn evict(world: &World, name: &str) {
    let pods: Api<Pod> = Api::default_namespaced(world.cluster().client("karpenter"));
    let uid = pods.get(name).await.unwrap().metadata.uid;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    });
    let _: serde_json::Value =
        pods.create_subresource("eviction", name, &Default::default(), &eviction).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_evicted_before_those_of_an_earlier_tier_is_noticed_unless_their_time_is_up() {
    for overdue in [false, true] {
        let (world, _) = running().await;
        let mut critical = cpu_pod("critical", "1");
        critical["spec"]["priorityClassName"] = "system-cluster-critical".into();
        world.create(critical).await.unwrap();
        world.run_for(10 * MINUTE).await.unwrap();
        if overdue {
            let time = world.cluster().now().to_string();
            let patch =
                json!({"metadata": {"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": time}}});
            claims(&world, "karpenter")
                .patch("claim", &PatchParams::default(), &Patch::Merge(patch))
                .await
                .unwrap();
        }
        evict(&world, "critical").await;
        assert_eq!(broken(&world).as_deref(), (!overdue).then_some("I14,I15"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_working_node_given_up_without_a_reason_is_noticed() {
    let disrupted = ["Launched", "Registered", "DisruptionReason"];
    for (actor, why, noticed) in
        [("karpenter", None, true), ("karpenter", Some(disrupted), false), ("user", None, false)]
    {
        let (world, instance) = running().await;
        if let Some(conditions) = why {
            set_status(&world, &instance.provider_id, &conditions).await;
        }
        claims(&world, actor).delete("claim", &DeleteParams::default()).await.unwrap();
        let named = world.cluster().violation().map(|violation| violation.invariant);
        assert_eq!(named, noticed.then_some("a node that works is given up only for a reason"));
    }
}
