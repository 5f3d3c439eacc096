//! A16 with the whole of Karpenter: a management cluster that is away for long costs no node, whatever becomes of nodes meanwhile.

use std::sync::Arc;
use std::time::Duration;

use karpenter_provider_cluster_api::ClusterAPINodeClass;
use karpenter_sim::cluster_api::{self, ClusterApi};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::objects::{is_active, is_deleting, is_ready};
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, Process, World, WorldOptions, in_virtual_time};
use serde_json::{Value, json};

use super::cluster_api::{karpenter, rules};
use super::operator::Leads;

const MINUTE: Duration = Duration::from_secs(60);

/// A Deployment of pods that fill a node each.
fn deployment(name: &str, replicas: u64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": "3"}},
                }],
            }},
        },
    })
}

fn objects(expire_after: &str) -> Vec<Value> {
    let template = json!({"provisionSeconds": 3, "joinSeconds": 2, "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"}});
    vec![
        ClusterAPINodeClass::crd().to_json(),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}}),
        cluster_api::cluster("fleet", "c"),
        json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "default"}, "spec": {},
        }),
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {
                "disruption": {
                    "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s",
                    "budgets": [{"nodes": "100%"}],
                },
                "template": {"spec": {"expireAfter": expire_after, "requirements": [], "nodeClassRef": {
                    "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
                }}},
            },
        }),
        cluster_api::template("fleet", "t", template),
        cluster_api::machine_deployment("fleet", "c", "m", "t", &[]),
        deployment("stays", 3),
        deployment("goes", 1),
    ]
}

fn all_run(pods: usize) -> impl Fn(&Objects) -> bool {
    move |objects| {
        let active: Vec<_> = objects.pods.values().filter(|pod| is_active(pod)).collect();
        active.len() == pods && active.iter().all(|pod| is_ready(pod))
    }
}

fn names(objects: &Objects) -> Vec<String> {
    let live = objects.node_claims.iter().filter(|(_, claim)| !is_deleting(&***claim));
    live.map(|(key, _)| key.name.to_string()).collect()
}

/// A world in which Cluster API and Karpenter go on for as long as this is kept.
struct Stage {
    world: World,
    _controllers: ClusterApi,
    _karpenter: Arc<Process>,
    /// The NodeClaims there were before the management cluster went away.
    before: Vec<String>,
}

/// Four nodes, one of which is emptied two minutes after the management cluster went away for 40 minutes.
async fn outage(expire_after: &str) -> Stage {
    let world = World::new(WorldOptions::default()).await.expect("a world");
    let controllers = ClusterApi::install(&world).await.expect("Cluster API");
    let hub = Faults::new(FaultPlan::none(), world.cluster().entropy(), "hub");
    world.cluster().watch_over(rules(&hub));
    for object in objects(expire_after) {
        world.create(object).await.expect("an object");
    }
    let behind = hub.clone();
    let process = world.process("karpenter", FaultPlan::none(), move |life| {
        karpenter(life, behind.clone(), Leads::Always, false)
    });
    process.start();
    world.wait_until("all pods run", 20 * MINUTE, all_run(4)).await.expect("four nodes");
    world.run_for(2 * MINUTE).await.expect("time passes");
    let before = world.cluster().read(names);
    assert_eq!(before.len(), 4);
    hub.cut_off(40 * MINUTE);
    world.run_for(2 * MINUTE).await.expect("time passes");
    let act = Act::Delete { kind: "Deployment", name: "goes".to_owned() };
    Script { acts: vec![(Duration::ZERO, act)] }.play(&world).await.expect("it goes");
    for _ in 0..37 {
        world.run_for(MINUTE).await.expect("no rule is broken");
        assert_eq!(world.cluster().read(names), before, "none is given up");
    }
    Stage { world, _controllers: controllers, _karpenter: process, before }
}

#[test]
fn a16_a_node_that_becomes_empty_while_the_management_cluster_is_away_goes_when_it_is_back() {
    in_virtual_time(async {
        let stage = outage("Never").await;
        let (world, before) = (&stage.world, &stage.before);
        let served = |objects: &Objects| all_run(3)(objects) && objects.node_claims.len() == 3;
        world.wait_until("the empty one goes", 10 * MINUTE, served).await.expect("three nodes");
        assert!(world.cluster().read(names).iter().all(|name| before.contains(name)), "and no other");
    })
    .expect("a runtime");
}

#[test]
fn a16_nodes_that_expire_while_the_management_cluster_is_away_are_replaced_when_it_is_back() {
    in_virtual_time(async {
        let stage = outage("30m").await;
        let before = stage.before.clone();
        let replaced = move |objects: &Objects| {
            all_run(3)(objects)
                && !names(objects).is_empty()
                && names(objects).iter().all(|name| !before.contains(name))
        };
        stage.world.wait_until("all are new", 20 * MINUTE, replaced).await.expect("new nodes");
    })
    .expect("a runtime");
}
