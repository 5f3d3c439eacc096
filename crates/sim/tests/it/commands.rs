//! Rules about disruption are found broken when they are.

use std::collections::BTreeMap;

use karpenter_sim::invariants::Invariant;
use karpenter_sim::invariants::destinations::PodsHaveSomewhereToGo;
use karpenter_sim::invariants::reboots::RebootsAreFew;
use karpenter_sim::invariants::replacements::{
    CommandsAreWhole, ReplacementsAreCheaper, ReplacementsComeFirst,
};
use karpenter_sim::invariants::restraint::{RepairStopsWhereMuchIsBroken, StaticPoolsKeepTheirLimit};
use karpenter_sim::invariants::told::EndsAreToldAfterwards;
use karpenter_sim::inventory::{Launch, NodeTemplate};
use karpenter_sim::{World, WorldOptions, invariants};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
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
async fn disrupting_what_must_stay_is_noticed_unless_its_drain_is_bounded_or_it_is_broken() {
    for (bounded, reason, rule) in [
        (false, "Underutilized", Some("I23,I24")),
        (true, "Empty", Some("I23,I24")),
        (false, "Drifted", Some("I23,I24")),
        (true, "Drifted", None),
        (false, "Unhealthy", None),
    ] {
        for blocked_by in ["pod", "budget"] {
            let world = watched().await;
            pool(&world, "100%").await;
            machine(&world, "a").await;
            if bounded {
                bound_drain(&world, "a").await;
            }
            bound_pod(&world, "p", |pod| {
                if blocked_by == "pod" {
                    pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true".into();
                }
                pod["metadata"]["labels"] = json!({"app": "p"});
            })
            .await;
            if blocked_by == "budget" {
                let spec = json!({"maxUnavailable": 0, "selector": {"matchLabels": {"app": "p"}}});
                let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "p"}, "spec": spec});
                world.create(budget).await.unwrap();
            }
            world.run_for(5 * MINUTE).await.unwrap();
            disrupt(&world, "a", reason).await;
            assert_eq!(broken(&world).as_deref(), rule, "{blocked_by} {bounded} {reason}");
        }
    }
}

/// A NodeClaim cannot be given a deadline later: this one is made again.
async fn bound_drain(world: &World, name: &str) {
    claims(world).delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    world
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "default"}},
            "spec": {"nodeClassRef": class(), "requirements": [], "terminationGracePeriod": "1m"},
        }))
        .await
        .unwrap();
    set_conditions(world, name, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn disrupting_a_node_that_must_stay_is_noticed() {
    let world = watched().await;
    pool(&world, "100%").await;
    machine(&world, "a").await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.cluster().client("user"));
    let wish = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    nodes.patch("a", &PatchParams::default(), &Patch::Merge(wish)).await.unwrap();
    world.run_for(5 * MINUTE).await.unwrap();
    disrupt(&world, "a", "Drifted").await;
    assert_eq!(broken(&world).as_deref(), Some("I23,I24"));
}

#[tokio::test(start_paused = true)]
async fn repairing_a_node_that_asks_not_to_be_is_noticed() {
    for (wish, rule) in [("false", None), ("true", Some("I29"))] {
        let world = watched().await;
        pool(&world, "100%").await;
        machine(&world, "a").await;
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.cluster().client("user"));
        let wish = json!({"metadata": {"annotations": {"karpenter.sh/do-not-repair": wish}}});
        nodes.patch("a", &PatchParams::default(), &Patch::Merge(wish)).await.unwrap();
        world.run_for(5 * MINUTE).await.unwrap();
        disrupt(&world, "a", "Unhealthy").await;
        assert_eq!(broken(&world).as_deref(), rule);
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_where_more_than_a_fifth_is_broken_is_noticed() {
    for (broken_nodes, rule) in [(&["a"][..], None), (&["a", "b"], Some("I29"))] {
        let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
        let rule_itself = RepairStopsWhereMuchIsBroken::new("example.com/Broken");
        world.cluster().watch_over([Box::new(rule_itself) as Box<dyn Invariant>]);
        pool(&world, "100%").await;
        for name in ["a", "b", "c", "d", "e"] {
            machine(&world, name).await;
        }
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.cluster().client("monitor"));
        for name in broken_nodes {
            let condition =
                json!({"type": "example.com/Broken", "status": "True", "reason": "Hung", "message": ""});
            let status = json!({"status": {"conditions": [condition]}});
            nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        }
        world.run_for(4 * MINUTE).await.unwrap();
        disrupt(&world, "a", "Unhealthy").await;
        assert_eq!(broken(&world).as_deref(), rule);
    }
}

/// A world in which one rule holds, and a machine `a`.
async fn ruled_by(rule: impl Invariant + 'static) -> World {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    world.cluster().watch_over([Box::new(rule) as Box<dyn Invariant>]);
    pool(&world, "100%").await;
    machine(&world, "a").await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_node_rebooted_again_and_again_or_anew_is_noticed() {
    let requested = [("Rebooting", "RebootRequested")];
    let issued = [("Rebooting", "RebootIssued")];
    let world = ruled_by(RebootsAreFew::new("karpenter")).await;
    for _ in 0..3 {
        set_conditions(&world, "a", &requested).await;
        set_conditions(&world, "a", &issued).await;
        set_conditions(&world, "a", &[]).await;
        assert_eq!(broken(&world), None);
    }
    set_conditions(&world, "a", &requested).await;
    assert_eq!(broken(&world).as_deref(), Some("I30"));
    let world = ruled_by(RebootsAreFew::new("karpenter")).await;
    set_conditions(&world, "a", &issued).await;
    set_conditions(&world, "a", &requested).await;
    assert_eq!(broken(&world).as_deref(), Some("I30"));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_node_that_is_told_before_its_claim_is_deleted_is_noticed() {
    for (kind, deleted) in [("NodeClaim", false), ("Node", false), ("NodeClaim", true), ("Node", true)] {
        let world = ruled_by(EndsAreToldAfterwards::new("karpenter")).await;
        let held = json!({"metadata": {"finalizers": ["karpenter.sh/termination"]}});
        let claim = claims(&world).patch("a", &PatchParams::default(), &Patch::Merge(held)).await.unwrap();
        if deleted {
            claims(&world).delete("a", &DeleteParams::default()).await.unwrap();
        }
        let client = world.cluster().client("karpenter");
        let node = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone()).get("a").await.unwrap();
        let uid = if kind == "Node" { node.metadata.uid } else { claim.metadata.uid };
        let event = json!({
            "metadata": {"name": "told", "namespace": "default"}, "reason": "DisruptionTerminating", "type": "Normal",
            "involvedObject": {"kind": kind, "name": "a", "uid": uid}, "message": "Disrupting: Empty",
        });
        let event = serde_json::from_value(event).unwrap();
        let events = Api::<k8s_openapi::api::core::v1::Event>::default_namespaced(client);
        events.create(&PostParams::default(), &event).await.unwrap();
        assert_eq!(broken(&world).as_deref(), (!deleted).then_some("I34"), "{kind}");
    }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A NodeClaim with its machine of so many cores, initialized or not; the name of its Node.
async fn machine_with(world: &World, name: &str, cpu: &str, initialized: bool) -> String {
    let initialized = if initialized { "true" } else { "false" };
    let node = NodeTemplate {
        labels: texts(&[("karpenter.sh/nodepool", "default"), ("karpenter.sh/initialized", initialized)]),
        capacity: texts(&[("cpu", cpu), ("memory", "64Gi"), ("pods", "110")]),
        allocatable: texts(&[("cpu", cpu), ("memory", "64Gi"), ("pods", "110")]),
        ..NodeTemplate::default()
    };
    let claim_uid = created(world, name).await;
    let launch = Launch { token: name.to_owned(), claim_uid, node, ..Launch::default() };
    let instance = world.cloud().handle("karpenter").launch(launch).await.unwrap();
    let status = json!({"status": {"providerID": instance.provider_id}});
    claims(world).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
    instance.node_name
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_unreplaced_although_its_pods_fit_nowhere_else_is_noticed() {
    let i27 = Some("I27");
    for (reason, other, replaced, rule) in [
        ("Underutilized", Some(("8", true)), false, None),
        ("Underutilized", Some(("2", true)), false, i27),
        ("Underutilized", Some(("8", false)), false, i27),
        ("Underutilized", None, false, i27),
        ("Underutilized", None, true, None),
        ("Drifted", None, false, i27),
        ("Unhealthy", None, false, None),
    ] {
        let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
        let rule_itself = PodsHaveSomewhereToGo::new("karpenter");
        world.cluster().watch_over([Box::new(rule_itself) as Box<dyn Invariant>]);
        pool(&world, "100%").await;
        let node = machine_with(&world, "old", "8", true).await;
        if let Some((cpu, initialized)) = other {
            machine_with(&world, "other", cpu, initialized).await;
        }
        bound_pod(&world, "p", |pod| {
            pod["spec"]["nodeName"] = node.as_str().into();
            pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "4"}});
        })
        .await;
        world.run_for(5 * MINUTE).await.unwrap();
        mark(&world, "old", &[("DisruptionReason", reason)]).await;
        if replaced {
            created(&world, "new").await;
        }
        claims(&world).delete("old", &DeleteParams::default()).await.unwrap();
        assert_eq!(broken(&world).as_deref(), rule, "{reason} {other:?} {replaced}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pool_beyond_its_limit_is_noticed() {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    let rule = StaticPoolsKeepTheirLimit::new("karpenter");
    world.cluster().watch_over([Box::new(rule) as Box<dyn Invariant>]);
    let spec = json!({
        "replicas": 1, "limits": {"nodes": "2"},
        "template": {"spec": {"nodeClassRef": class(), "requirements": []}},
    });
    world
        .create(json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"}, "spec": spec}))
        .await
        .unwrap();
    created(&world, "a").await;
    created(&world, "b").await;
    assert_eq!(broken(&world), None, "two are allowed while one replaces the other");
    created(&world, "c").await;
    assert_eq!(broken(&world).as_deref(), Some("I28"));
}

#[tokio::test(start_paused = true)]
async fn a_budget_counts_as_karpenter_may_have_seen_it() {
    let world = watched().await;
    pool(&world, "100%").await;
    for name in ["a", "b"] {
        machine(&world, name).await;
    }
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool"));
    let pools: Api<DynamicObject> = Api::all_with(world.cluster().client("user"), &resource);
    let none = json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}});
    pools.patch("default", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    disrupt(&world, "a", "Empty").await;
    assert_eq!(broken(&world), None, "the change may not have arrived yet");
    world.run_for(5 * MINUTE).await.unwrap();
    disrupt(&world, "b", "Empty").await;
    assert_eq!(broken(&world).as_deref(), Some("I17,I18"));
}

#[tokio::test(start_paused = true)]
async fn evicting_a_pod_that_must_not_be_disturbed_is_noticed() {
    let world = watched().await;
    machine(&world, "a").await;
    bound_pod(&world, "stays", |pod| {
        pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] = "true".into();
    })
    .await;
    world.run_for(5 * MINUTE).await.unwrap();
    evict(&world, "stays").await;
    assert_eq!(broken(&world).as_deref(), Some("X34"));
}

const CHEAP: &str = "cheap";
const DEAR: &str = "dear";

/// A world that looks at what replaces what, and at nothing else. Everything costs what its name says.
async fn watched_for_replacements() -> World {
    let world = World::new(WorldOptions { seed: 5, ..WorldOptions::default() }).await.unwrap();
    let offering = |it: &str| (it.to_owned(), "z".to_owned(), "spot".to_owned());
    let prices = [(offering(CHEAP), 1.0), (offering(DEAR), 2.0)].into();
    world.cluster().watch_over([
        Box::new(ReplacementsComeFirst::new("karpenter")) as Box<dyn Invariant>,
        Box::new(CommandsAreWhole::new("karpenter")) as _,
        Box::new(ReplacementsAreCheaper::new("karpenter", prices)) as _,
    ]);
    pool(&world, "100%").await;
    world
}

/// A NodeClaim that Karpenter created; its uid.
async fn created(world: &World, name: &str) -> String {
    let claim: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": name, "labels": {"karpenter.sh/nodepool": "default"},
            "finalizers": ["karpenter.sh/termination"],
        },
        "spec": {"nodeClassRef": class(), "requirements": []},
    }))
    .unwrap();
    let created = claims(world).create(&kube::api::PostParams::default(), &claim).await.unwrap();
    created.metadata.uid.unwrap()
}

/// One with its machine, not initialized yet.
async fn launched(world: &World, name: &str, instance_type: &str) {
    let claim_uid = created(world, name).await;
    let launch = Launch {
        token: name.to_owned(),
        claim_uid,
        instance_type: instance_type.to_owned(),
        zone: "z".to_owned(),
        capacity_type: "spot".to_owned(),
        ..Launch::default()
    };
    let instance = world.cloud().handle("karpenter").launch(launch).await.unwrap();
    let status = json!({"status": {"providerID": instance.provider_id}});
    claims(world).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    world.run_for(2 * MINUTE).await.unwrap();
}

async fn mark(world: &World, name: &str, conditions: &[(&str, &str)]) {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, reason)| json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let status = json!({"status": {"conditions": conditions}});
    claims(world).patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Karpenter tells that this NodeClaim is a replacement.
async fn tell(world: &World, name: &str, reason: &str) {
    let object = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": name});
    world
        .create(json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": object, "reason": "DisruptionLaunching", "type": "Normal",
            "message": format!("Launching NodeClaim: {reason}"),
        }))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_before_its_replacement_is_up_is_noticed() {
    for (up, rule) in [(true, None), (false, Some("I20,I21"))] {
        let world = watched_for_replacements().await;
        launched(&world, "old", DEAR).await;
        mark(&world, "old", &[("DisruptionReason", "Drifted")]).await;
        launched(&world, "new", DEAR).await;
        tell(&world, "new", "Drifted").await;
        if up {
            mark(&world, "new", &[("Launched", "Launched"), ("Initialized", "Initialized")]).await;
        }
        claims(&world).delete("old", &kube::api::DeleteParams::default()).await.unwrap();
        assert_eq!(broken(&world).as_deref(), rule);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_although_its_replacement_never_came_up_is_noticed() {
    let world = watched_for_replacements().await;
    launched(&world, "old", DEAR).await;
    mark(&world, "old", &[("DisruptionReason", "Drifted")]).await;
    launched(&world, "new", DEAR).await;
    tell(&world, "new", "Drifted").await;
    let none = json!({"metadata": {"finalizers": []}});
    claims(&world).patch("new", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    claims(&world).delete("new", &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(broken(&world), None);
    claims(&world).delete("old", &kube::api::DeleteParams::default()).await.unwrap();
    assert_eq!(broken(&world).as_deref(), Some("I20,I21"));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_of_what_was_never_marked_is_noticed() {
    for (marked, rule) in [("Drifted", None), ("Empty", Some("I19,I26"))] {
        let world = watched_for_replacements().await;
        launched(&world, "old", DEAR).await;
        mark(&world, "old", &[("DisruptionReason", marked)]).await;
        launched(&world, "new", DEAR).await;
        tell(&world, "new", "Drifted").await;
        assert_eq!(broken(&world).as_deref(), rule, "{marked}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_consolidated_into_two_is_noticed_and_one_that_drifted_may_become_two() {
    for (reason, rule) in [("Underutilized", Some("I19,I26")), ("Drifted", None)] {
        let world = watched_for_replacements().await;
        launched(&world, "old", DEAR).await;
        mark(&world, "old", &[("DisruptionReason", reason)]).await;
        let names = ["new-1", "new-2"];
        futures_util::future::join_all(names.map(|name| launched(&world, name, CHEAP))).await;
        for name in names {
            assert_eq!(broken(&world), None);
            tell(&world, name, reason).await;
        }
        assert_eq!(broken(&world).as_deref(), rule, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_that_raises_the_cost_is_noticed() {
    for (replacement, reason, rule) in
        [(CHEAP, "Underutilized", None), (DEAR, "Underutilized", Some("I25")), (DEAR, "Drifted", None)]
    {
        let world = watched_for_replacements().await;
        launched(&world, "old", DEAR).await;
        mark(&world, "old", &[("DisruptionReason", reason)]).await;
        launched(&world, "new", replacement).await;
        tell(&world, "new", reason).await;
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
