//! What is in use is kept, and what has ended goes, whatever others do meanwhile: to levels, to NodeClaims, to what Machines belong to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Method, Request};
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::CloudProvider as _;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::Lens;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::rig::{
    CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, launched, replicas, scenario,
};
use crate::rollouts::condemn;

fn machine_names(objects: &Objects) -> Vec<String> {
    objects.machines.keys().map(|key| key.name.to_string()).collect()
}

#[test]
fn of_a_burst_that_is_cancelled_halfway_none_that_is_wanted_goes() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"launch": "60m"}})).await;
        let slow = json!({"provisionSeconds": 900, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "20")])).await;
        rig.capi.make_a_machine_every(8 * SECOND);
        rig.karpenter.start();
        rig.want(6);
        rig.until("three are there", 5 * MINUTE, |objects| claimed(objects) == 3).await;
        rig.want(0);
        for name in ["n3", "n4", "n5", "n6"] {
            rig.delete_claim(name).await;
        }
        // Two that boot, whom their MachineSet would take as soon as any other.
        rig.until("the others are ready", 30 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(15 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (2, 2));
        let names: Vec<String> =
            rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect());
        assert_eq!(names, ["n1", "n2"]);
        rig.at_rest();
    });
}

#[test]
fn a_successor_waits_as_long_as_the_machine_it_replaces_takes_to_go() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        let slow = json!({"provisionSeconds": 3, "joinSeconds": 2, "deleteSeconds": 900});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "20")]);
        deployment["spec"]["rollout"] =
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}});
        rig.create(deployment).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.want(0);
        let version = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", version).await;
        let successors = |objects: &Objects| {
            let adopted = |claim: &&Arc<NodeClaim>| {
                let annotations = claim.metadata.annotations.as_ref();
                annotations.is_some_and(|all| all.contains_key("karpenter.cluster.x-k8s.io/adopted"))
            };
            objects.node_claims.values().filter(adopted).count()
        };
        rig.until("one is being replaced", 5 * MINUTE, |objects| successors(objects) == 1).await;
        let first = rig.read(|objects| {
            let succeeds =
                |claim: &&Arc<NodeClaim>| claim.status.as_ref().is_none_or(|s| s.provider_id.is_none());
            objects.node_claims.values().find(succeeds).and_then(|claim| claim.metadata.uid.clone())
        });
        rig.pass(12 * MINUTE).await;
        let told = rig.read(launched);
        assert!(told.iter().any(|(reason, _)| reason == "ReplacementPending"), "{told:?}");
        assert_eq!(rig.resource("m").await.unavailable, None, "nothing has failed");
        rig.until("all are replaced", 60 * MINUTE, |objects| {
            successors(objects) == 2 && objects.node_claims.len() == 2 && initialized(objects) == 2
        })
        .await;
        let kept = rig.read(|objects| objects.node_claims.values().any(|claim| claim.metadata.uid == first));
        assert!(kept, "the first successor was given up");
        rig.pass(15 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn replicas_of_machines_in_use_are_set_again_whatever_the_pace() {
    scenario(async {
        let rig = Rig::new(json!({"launchLimits": {"perMinute": 1}, "timeouts": {"launch": "30m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.capi.run_machine_sets(false);
        // Its turn takes what there is of this minute.
        rig.want(5);
        rig.pass(2 * SECOND).await;
        let scales = rig.writes("machinedeployments/m/scale");
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("they are set again", 10 * SECOND, |objects| replicas(objects, "m") >= 4).await;
        assert_eq!(rig.writes("machinedeployments/m/scale"), scales + 1, "at once");
        rig.pass(10 * SECOND).await;
        rig.capi.run_machine_sets(true);
        rig.until("the fifth comes in its time", 10 * MINUTE, |objects| initialized(objects) == 5).await;
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn machines_in_use_are_defended_while_rollouts_are_paused() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": true}})).await;
        rig.want(4);
        rig.pass(MINUTE).await;
        assert_eq!(rig.replicas("m"), 3, "nothing new is launched");
        rig.capi.run_machine_sets(false);
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("they are set again", 10 * SECOND, |objects| replicas(objects, "m") == 3).await;
        rig.pass(10 * SECOND).await;
        rig.capi.run_machine_sets(true);
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (3, 3));
    });
}

/// Has a NodeClaim deleted and made again as it was, with its status or without, as backups restore it.
async fn restore(rig: &Rig, name: &str, with_status: bool) {
    let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
    let mut claim = api.get(name).await.expect("a NodeClaim");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch(name, &PatchParams::default(), &free).await.expect("a patch");
    api.delete(name, &DeleteParams::default()).await.expect("a deletion");
    let status = json!({"status": claim.status.take()});
    let meta = &mut claim.metadata;
    (meta.uid, meta.resource_version, meta.creation_timestamp, meta.managed_fields) =
        (None, None, None, None);
    api.create(&PostParams::default(), &claim).await.expect("a NodeClaim");
    if with_status {
        let status = Patch::Merge(status);
        api.patch_status(name, &PatchParams::default(), &status).await.expect("a status");
    }
}

#[test]
fn a_restored_node_claim_keeps_its_machine() {
    for (mode, with_status) in
        [("MachineDeployment", true), ("MachineDeployment", false), ("Machine", true), ("Machine", false)]
    {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": mode})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            rig.want(0);
            let before = (rig.read(machine_names), rig.replicas("m"));
            restore(&rig, "n1", with_status).await;
            rig.pass(20 * MINUTE).await;
            assert_eq!((rig.read(machine_names), rig.replicas("m")), before, "{mode} {with_status}");
            assert_eq!(rig.read(initialized), 2, "{mode} {with_status}");
            // It is its Machine again, and goes with it.
            rig.delete_claim("n1").await;
            rig.until("it goes", 10 * MINUTE, |objects| objects.node_claims.len() == 1).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.read(claimed), 1, "{mode} {with_status}");
            rig.at_rest();
        });
    }
}

#[test]
fn a_machine_whose_deployment_is_gone_goes_with_its_node_claim() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.want(0);
        let orphan =
            DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        rig.capi.run_controllers(false);
        let sets: Vec<String> =
            rig.read(|objects| objects.machine_sets.keys().map(|key| key.name.to_string()).collect());
        let free = json!({"metadata": {"finalizers": null}});
        rig.patch(Kind::MachineDeployment, "m", free.clone()).await;
        rig.api(Kind::MachineDeployment).delete("m", &orphan).await.expect("a deletion");
        for set in sets {
            rig.patch(Kind::MachineSet, &set, free.clone()).await;
            rig.api(Kind::MachineSet).delete(&set, &orphan).await.expect("a deletion");
        }
        rig.capi.run_controllers(true);
        rig.pass(MINUTE).await;
        assert_eq!(rig.read(claimed), 3, "their Machines are not gone");
        rig.delete_claim("n1").await;
        rig.until("it goes", 10 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(MINUTE).await;
        assert_eq!((rig.read(claimed), rig.read(initialized)), (2, 2), "and no other");
        // One that is gone without a word.
        let api: Api<NodeClaim> = Api::all(rig.world.cluster().client("user"));
        api.patch("n2", &PatchParams::default(), &Patch::Merge(free)).await.expect("a patch");
        rig.delete_claim("n2").await;
        rig.until("its Machine goes too", 10 * MINUTE, |objects| objects.machines.len() == 1).await;
    });
}

#[test]
fn a_condemned_machine_of_a_paused_cluster_keeps_its_node_claim() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"remediation": "Karpenter"})).await;
        let paused = |paused: bool| json!({"spec": {"paused": paused}});
        rig.patch(Kind::Cluster, CLUSTER, paused(true)).await;
        rig.pass(10 * SECOND).await;
        let name = rig.read(machine_names).remove(0);
        condemn(&rig, &name).await;
        rig.pass(10 * MINUTE).await;
        let alive = |objects: &Objects| {
            let n1 = objects.node_claims.iter().find(|(key, _)| &*key.name == "n1");
            n1.is_some_and(|(_, claim)| claim.metadata.deletion_timestamp.is_none())
        };
        assert!(rig.read(alive), "its node could not go");
        rig.patch(Kind::Cluster, CLUSTER, paused(false)).await;
        rig.until("another takes its place", 10 * MINUTE, |objects| {
            !alive(objects) && initialized(objects) == 1
        })
        .await;
    });
}

/// Counts lists of NodePools.
#[derive(Default)]
struct Lists(AtomicUsize);

impl Lens for Lists {
    fn sent(&self, request: &mut Request<Bytes>) {
        if request.method() == Method::GET && request.uri().path().ends_with("/nodepools") {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_machine_whose_node_is_gone_is_not_asked_after_for_a_minute() {
    scenario(async {
        let rig = Rig::new(json!({"adoption": "Existing"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("a node by hand", 5 * MINUTE, |objects| objects.nodes.len() == 1).await;
        rig.pass(10 * SECOND).await;
        let node = rig.read(|objects| objects.nodes.keys().next().map(|key| key.name.to_string()));
        let node = node.expect("a Node");
        rig.world.cluster().set_kubelet(&node, false);
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(rig.world.cluster().client("user"));
        nodes.delete(&node, &DeleteParams::default()).await.expect("a deletion");
        let lists = Arc::new(Lists::default());
        rig.karpenter.faults().plant(Arc::clone(&lists) as Arc<dyn Lens>);
        rig.karpenter.start();
        for turn in 0..60 {
            let change = json!({"metadata": {"annotations": {"turn": turn.to_string()}}});
            rig.patch(Kind::MachineDeployment, "m", change).await;
            rig.pass(3 * SECOND).await;
        }
        let lists = lists.0.load(Ordering::Relaxed);
        assert!((1..=4).contains(&lists), "{lists} lists of NodePools in three minutes");
    });
}

/// Keeps the pause of a Cluster from watches; counts how often it is asked for.
#[derive(Default)]
struct Unseen {
    asked: AtomicBool,
    times: AtomicUsize,
}

impl Lens for Unseen {
    fn sent(&self, request: &mut Request<Bytes>) {
        if request.method() == Method::GET && request.uri().path().ends_with("/clusters/c") {
            self.asked.store(true, Ordering::Relaxed);
            self.times.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shown(&self, kind: &str, object: &mut Value) {
        if kind == "Cluster" && !self.asked.swap(false, Ordering::Relaxed) {
            object["spec"]["paused"] = false.into();
        }
    }
}

#[test]
fn a_look_that_finds_a_pause_is_not_repeated_within_a_second() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"launch": "30m"}})).await;
        let unseen = Arc::new(Unseen::default());
        rig.hub.plant(Arc::clone(&unseen) as Arc<dyn Lens>);
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"paused": true}})).await;
        rig.want(2);
        rig.pass(5 * SECOND).await;
        let before = unseen.times.load(Ordering::Relaxed);
        for turn in 0..200 {
            let change = json!({"metadata": {"annotations": {"turn": turn.to_string()}}});
            rig.patch(Kind::MachineDeployment, "m", change).await;
            rig.pass(SECOND / 10).await;
        }
        assert_eq!(rig.replicas("m"), 1, "it is paused");
        let asked = unseen.times.load(Ordering::Relaxed) - before;
        assert!((2..=30).contains(&asked), "asked {asked} times in twenty seconds");
    });
}

#[test]
fn a_node_with_a_hook_takes_three_writes() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"hook": "10m"}})).await;
        let name = rig.read(machine_names).remove(0);
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.until("it goes", 10 * MINUTE, |objects| objects.machines.is_empty()).await;
        rig.until("its NodeClaim, too", MINUTE, |objects| objects.node_claims.is_empty()).await;
        // Its share of a level that rises and falls for many is less than one.
        assert_eq!(rig.writes(&format!("/machines/{name}")), 2, "a claim and a mark");
        rig.at_rest();
    });
}

#[test]
fn a_node_claim_that_no_longer_says_what_it_waits_for_takes_the_machine_along_that_says_it_is_its_own() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"launch": "60m"}})).await;
        let slow = json!({"provisionSeconds": 1800, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("its Machine is claimed", 5 * MINUTE, |objects| claimed(objects) == 1).await;
        let keys = ["target", "machine"].map(|key| format!("karpenter.cluster.x-k8s.io/{key}"));
        rig.strip_claim("n1", &[&keys[0], &keys[1]]).await;
        // What was written a moment ago is forgotten by then.
        rig.pass(2 * MINUTE).await;
        let claim = rig.read(|objects| objects.node_claims.values().next().cloned()).expect("a NodeClaim");
        let machine = rig.read(|objects| objects.machines.keys().next().map(ToString::to_string));
        assert_eq!(rig.provider().launch_handle(&claim).map(|handle| handle.0), machine);
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.until("both are gone", 5 * MINUTE, |objects| {
            objects.node_claims.is_empty() && objects.machines.is_empty()
        })
        .await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.replicas("m"), 0);
        rig.at_rest();
    });
}

/// What Karpenter says on a Machine of whose it is.
const CLAIM: [&str; 3] = [
    "karpenter.cluster.x-k8s.io/nodeclaim-uid",
    "karpenter.cluster.x-k8s.io/nodeclaim",
    "karpenter.cluster.x-k8s.io/owner",
];

/// Takes the claim off a Machine, as a management cluster that is restored from an older backup does.
async fn strip_machine(rig: &Rig, name: &str, labels: Value) {
    let gone: serde_json::Map<String, Value> =
        CLAIM.iter().map(|key| ((*key).to_owned(), Value::Null)).collect();
    rig.patch(Kind::Machine, name, json!({"metadata": {"annotations": gone, "labels": labels}})).await;
}

#[test]
fn a_machine_whose_claim_somebody_took_off_stays_its_node_claims() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"surplus": "2m"}, "adoption": "Existing"})).await;
        let name = rig.read(machine_names).remove(0);
        rig.karpenter.kill();
        rig.want(2);
        strip_machine(&rig, &name, json!({})).await;
        rig.karpenter.start();
        rig.until("another node comes", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(machine_names).len()), (2, 2));
        let whose = rig.read(|objects| {
            let machine =
                objects.machines.iter().find(|(key, _)| *key.name == *name).map(|(_, machine)| machine);
            machine.and_then(|machine| machine.metadata.annotations.clone()?.remove(CLAIM[1]))
        });
        assert_eq!(whose.as_deref(), Some("n1"), "whoever waits gets another");
        assert_eq!(rig.read(|objects| objects.node_claims.len()), 2, "and it is not adopted");
        rig.at_rest();
    });
}

#[test]
fn a_machine_that_a_restored_management_cluster_does_not_know_for_karpenters_goes_with_its_node_claim() {
    scenario(async {
        let rig = Rig::with_a_node(json!({})).await;
        let name = rig.read(machine_names).remove(0);
        rig.karpenter.kill();
        strip_machine(&rig, &name, json!({"node.cluster.x-k8s.io/karpenter-member": null})).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.karpenter.start();
        // Sooner than what is taken for surplus.
        rig.until("both go", 3 * MINUTE, |objects| {
            objects.node_claims.is_empty() && objects.machines.is_empty()
        })
        .await;
        assert_eq!(rig.replicas("m"), 0);
        rig.at_rest();
    });
}
