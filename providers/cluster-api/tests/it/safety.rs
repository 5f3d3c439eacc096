//! Crashes, outages, pauses and bad input.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request};
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::{Fault, FaultPlan, Lens};
use karpenter_sim::invariants::{Invariant, Step};
use karpenter_sim::objects::Change;
use karpenter_sim::process::CrashPoint;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::features::node_pool;
use crate::rig::{MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, launched, replicas, scenario};
use crate::rollouts::condemn;

/// How nodes are launched: as replicas, or each as a Machine of its own.
const SCALED: &str = "MachineDeployment";
const ALONE: &str = "Machine";

/// The replicas there are to be: where each Machine is made by itself, none is asked for.
fn level(mode: &str, nodes: i64) -> i64 {
    if mode == SCALED { nodes } else { 0 }
}

#[test]
fn a5_a_crash_at_any_write_loses_and_leaks_nothing() {
    for writes in 0..14 {
        for after_commit in [false, true] {
            scenario(async {
                let rig = Rig::new(json!({})).await;
                rig.deployment("m", &[(MAX, "10")]).await;
                rig.karpenter.start();
                rig.pass(20 * SECOND).await;
                rig.karpenter.crash_at(CrashPoint { writes, after_commit });
                rig.want(3);
                rig.pass(20 * SECOND).await;
                rig.karpenter.kill();
                rig.karpenter.start();
                rig.until("all nodes are ready", 15 * MINUTE, |objects| initialized(objects) == 3).await;
                rig.pass(12 * MINUTE).await;
                assert_eq!(
                    (rig.replicas("m"), rig.read(claimed)),
                    (3, 3),
                    "crash at {writes} {after_commit}"
                );
                rig.at_rest();
            });
        }
    }
}

#[test]
fn a25_two_leaders_for_a_while_launch_no_node_twice() {
    for (seed, mode) in (0..4).map(|seed| (seed, SCALED)).chain((0..2).map(|seed| (seed, ALONE))) {
        scenario(async {
            let plan = || FaultPlan::none().with(Fault::Latency, 0.5).with(Fault::StaleWatch, 0.5);
            let class = json!({"timeouts": {"surplus": "2m"}, "launchMode": mode});
            let rig = Rig::seeded(seed, class, plan(), plan()).await;
            rig.deployment("m", &[(MAX, "20")]).await;
            let second = rig.second_leader();
            rig.karpenter.start();
            second.start();
            rig.pass(20 * SECOND).await;
            rig.want(6);
            rig.pass(15 * SECOND).await;
            second.kill();
            rig.until("all nodes are ready", 15 * MINUTE, |objects| initialized(objects) == 6).await;
            rig.pass(10 * MINUTE).await;
            let made = rig.read(|objects| (objects.machines.len(), objects.sim_machines.len()));
            assert_eq!((rig.replicas("m"), rig.read(claimed), made), (level(mode, 6), 6, (6, 6)), "{mode}");
            rig.at_rest();
        });
    }
}

#[test]
fn leaders_who_see_different_things_do_not_write_against_each_other_without_pause() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.pass(MINUTE).await;
        let second = rig.leader_behind(&rig.cut_off_hub());
        second.start();
        let writes = || rig.writes("clusterapinodeclasses/default/status");
        let before = writes();
        rig.pass(5 * MINUTE).await;
        second.kill();
        assert!(writes() - before <= 2 * 5 * 60, "{} writes", writes() - before);
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("True"));
    });
}

/// The embedded server does not say who manages which field; real ones do, and here it was a tool if there are two replicas.
struct Signed;

impl Lens for Signed {
    fn shown(&self, kind: &str, object: &mut Value) {
        if kind == "MachineDeployment" && object["spec"]["replicas"] == 2 {
            object["metadata"]["managedFields"] = json!([{
                "manager": "argocd-controller", "operation": "Update", "apiVersion": "cluster.x-k8s.io/v1beta2",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
            }]);
        }
    }
}

#[test]
fn a25_replicas_that_somebody_keeps_resetting_are_set_again_once_and_that_is_told() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.capi.run_machine_sets(false);
        rig.hub.plant(Arc::new(Signed));
        let scales = || rig.writes("machinedeployments/m/scale");
        for _ in 0..3 {
            let before = scales();
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
            rig.until("it is put right", MINUTE, |objects| replicas(objects, "m") == 4).await;
            rig.pass(3 * MINUTE).await;
            assert_eq!((rig.replicas("m"), scales()), (4, before + 1), "by one write");
            let status = rig.node_class_message("ScalableResourcesResolved").await;
            assert!(status.contains("set 2 replicas where Karpenter had set 4"), "{status}");
        }
        rig.capi.run_machine_sets(true);
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.read(claimed), rig.read(initialized)), (4, 4), "no node was lost");
        rig.pass(6 * MINUTE).await;
        let status = rig.node_class_message("ScalableResourcesResolved").await;
        assert!(!status.contains("replicas"), "it is told no longer than it goes on: {status}");
        let told = rig.events("ReplicasChangedByAnother").await;
        assert!(
            told.iter()
                .any(|text| text.contains("argocd-controller set 2 replicas where Karpenter had set 4")),
            "{told:?}"
        );
        rig.at_rest();
    });
}

/// That nobody loses more by replicas that are set lower than what Cluster API takes before they are set right again.
#[derive(Default)]
struct TakenWhileLow {
    /// Since when the MachineSet, which follows what is set a moment later, has what Karpenter set, not what somebody else did.
    right_since: Option<jiff::Timestamp>,
    /// Claimed Machines that went since somebody set less.
    taken: usize,
}

impl Invariant for TakenWhileLow {
    fn name(&self) -> &'static str {
        "taken while low"
    }

    fn check(&mut self, step: &Step<'_>) -> Result<(), String> {
        let replicas = |object: &Option<Arc<DynamicObject>>| {
            object.as_ref().and_then(|object| object.data.pointer("/spec/replicas")?.as_i64())
        };
        for change in step.changes {
            match &**change {
                Change::MachineDeployment(_) if &*step.entry.actor == "user" => {
                    (self.right_since, self.taken) = (None, 0);
                }
                Change::MachineSet(edit) if replicas(&edit.new) > replicas(&edit.old) => {
                    self.right_since = Some(step.now);
                }
                Change::Machine(edit) => {
                    let (Some(old), Some(new)) = (&edit.old, &edit.new) else { continue };
                    let goes = |machine: &DynamicObject| machine.metadata.deletion_timestamp.is_some();
                    if goes(old) || !goes(new) || !is_claimed(new) {
                        continue;
                    }
                    self.taken += 1;
                    // What is deleted in one turn was counted at its beginning.
                    if self.right_since.is_some_and(|since| step.now.duration_since(since).as_secs() > 0) {
                        return Err(format!("{} goes, though the replicas are right again", edit.key));
                    }
                    if self.taken > 2 {
                        return Err(format!("{} goes, and {} before it", edit.key, self.taken - 1));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn is_claimed(machine: &DynamicObject) -> bool {
    let annotations = machine.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key("karpenter.cluster.x-k8s.io/nodeclaim-uid"))
}

#[test]
fn a25_replicas_that_somebody_resets_cost_what_cluster_api_had_taken_by_then_and_no_more() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        let rule = TakenWhileLow::default();
        rig.world.cluster().watch_over([Box::new(rule) as Box<dyn Invariant>]);
        for reset in 1..=3 {
            let before = rig.read(names);
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
            rig.pass(20 * SECOND).await;
            let served = |objects: &Objects| initialized(objects) == 4 && objects.node_claims.len() == 4;
            rig.until("four are served again", 5 * MINUTE, served).await;
            rig.pass(3 * MINUTE).await;
            let left = rig.read(names);
            let lost = before.iter().filter(|name| !left.contains(name)).count();
            assert!(lost <= 2, "reset {reset}: of {before:?} there are {left:?}");
            assert_eq!((rig.replicas("m"), rig.read(claimed), left.len()), (4, 4, 4), "reset {reset}");
        }
        rig.pass(10 * MINUTE).await;
        rig.at_rest();
    });
}

fn names(objects: &Objects) -> Vec<String> {
    objects.node_claims.keys().map(|key| key.name.to_string()).collect()
}

/// A tool that sets the replicas of `m` every minute, whatever they are, for so many minutes.
async fn keep_setting(rig: &Rig, replicas: i64, minutes: u32) {
    for _ in 0..minutes {
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": replicas}})).await;
        rig.pass(MINUTE).await;
    }
}

#[test]
fn replicas_that_somebody_keeps_lowering_are_raised_ever_more_rarely_and_nobody_in_use_is_lost() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        // Nothing is made or taken meanwhile, whoever wins.
        rig.capi.run_machine_sets(false);
        rig.want(4);
        let scales = || rig.writes("machinedeployments/m/scale");
        let before = scales();
        keep_setting(&rig, 2, 30).await;
        let answers = scales() - before;
        assert!((3..=7).contains(&answers), "{answers} answers to 30 changes");
        let told = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(told.contains("ReplicasChangedByAnother") && told.contains("it keeps happening"), "{told}");
        // What is in use is defended even then.
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("it is put right", MINUTE, |objects| replicas(objects, "m") >= 2).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (2, 2), "and no more than that is asked for");
        rig.capi.run_machine_sets(true);
        rig.until("it ends when they stop", 40 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (4, 4));
        rig.at_rest();
    });
}

#[test]
fn replicas_that_somebody_keeps_raising_are_lowered_ever_more_rarely_and_nodes_come_and_go_meanwhile() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"surplus": "2m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let scales = || rig.writes("machinedeployments/m/scale");
        let before = scales();
        keep_setting(&rig, 5, 90).await;
        let answers = scales() - before;
        assert!((4..=12).contains(&answers), "{answers} answers to 90 changes");
        let status = rig.node_class_message("ScalableResourcesResolved").await;
        assert!(status.contains("surplus stays there"), "{status}");
        rig.want(3);
        rig.until("what is there serves", MINUTE, |objects| initialized(objects) == 3).await;
        rig.want(2);
        rig.delete_claim("n1").await;
        rig.until("what ends goes", 5 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(40 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed), rig.read(initialized)), (2, 2, 2));
        rig.at_rest();
    });
}

#[test]
fn a_launch_whose_time_runs_out_while_the_management_cluster_cannot_be_asked_is_not_given_up() {
    for class in [
        json!({"timeouts": {"launch": "5m"}}),
        json!({"timeouts": {"launch": "5m"}, "launchMode": "Machine"}),
    ] {
        scenario(async move {
            let rig = Rig::new(class).await;
            rig.create(cluster_api::template(NAMESPACE, "slow", json!({"provisionSeconds": 290}))).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "m", "slow", &[(MAX, "10")])).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("it has a Machine", MINUTE, |objects| claimed(objects) == 1).await;
            rig.pass(4 * MINUTE).await;
            // Its time runs out before the silence has lasted long, and its Machine is provisioned meanwhile.
            rig.hub.cut_off(3 * MINUTE);
            rig.until("its node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
            assert_eq!(
                rig.read(|objects| objects
                    .node_claims
                    .keys()
                    .map(|key| key.name.to_string())
                    .collect::<Vec<_>>()),
                ["n1"]
            );
        });
    }
}

#[test]
fn a17_what_is_to_go_from_a_paused_cluster_goes_when_it_is_let_go_on() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": true}})).await;
        rig.want(2);
        let name = rig.read(|objects| objects.node_claims.keys().next().map(|key| key.name.to_string()));
        rig.delete_claim(&name.expect("a NodeClaim")).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.node_claims.len())), (3, 3));
        let told = rig.events("DeletionStalled").await;
        assert!(told.iter().any(|said| said.contains("paused")), "{told:?}");
        rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": false}})).await;
        rig.until("it goes", 5 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn a17_a_pause_that_no_watch_has_told_of_yet_keeps_machines_from_being_written_to() {
    for class in [json!({}), json!({"launchMode": "Machine"})] {
        scenario(async {
            let late = FaultPlan::none().with(Fault::StaleWatch, 1.0);
            let rig = Rig::seeded(1, class.clone(), FaultPlan::none(), late).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            rig.pass(MINUTE).await;
            let written = rig.writes("namespaces/fleet/machines");
            rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": true}})).await;
            rig.want(1);
            let name = rig.read(|objects| objects.node_claims.keys().next().map(|key| key.name.to_string()));
            rig.delete_claim(&name.expect("a NodeClaim")).await;
            rig.pass(2 * MINUTE).await;
            assert_eq!(rig.writes("namespaces/fleet/machines"), written, "{class}");
            rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": false}})).await;
            rig.until("it goes", 5 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        });
    }
}

#[test]
fn a17_of_a_deployment_whose_rollout_is_paused_nothing_is_launched_and_what_is_to_go_goes() {
    for mode in [SCALED, ALONE] {
        scenario(async {
            let rig = Rig::new(json!({"timeouts": {"launch": "60m"}, "launchMode": mode})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": true}})).await;
            rig.pass(10 * SECOND).await;
            let name = rig.read(|objects| objects.node_claims.keys().next().map(|key| key.name.to_string()));
            rig.want(1);
            rig.delete_claim(&name.expect("a NodeClaim")).await;
            rig.until("it goes", 5 * MINUTE, |objects| objects.machines.len() == 1).await;
            rig.want(3);
            rig.pass(10 * MINUTE).await;
            let now = (rig.replicas("m"), rig.read(initialized), rig.read(|objects| objects.machines.len()));
            assert_eq!(now, (level(mode, 1), 1, 1), "{mode}: nothing is launched");
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": false}})).await;
            rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 3).await;
            rig.pass(10 * MINUTE).await;
            rig.at_rest();
        });
    }
}

#[test]
fn a17_what_is_paused_by_annotation_is_neither_launched_from_nor_written_to() {
    let paused =
        |value: serde_json::Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": value}}});
    let scaled = [Kind::MachineDeployment, Kind::MachineSet, Kind::Machine].map(|kind| (SCALED, kind));
    for (mode, kind) in scaled.into_iter().chain([(ALONE, Kind::Machine)]) {
        scenario(async move {
            let rig = Rig::new(json!({"launchMode": mode})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
            rig.pass(MINUTE).await;
            let name = rig.read(|objects| {
                let all = match kind {
                    Kind::MachineSet => &objects.machine_sets,
                    Kind::Machine => &objects.machines,
                    _ => &objects.machine_deployments,
                };
                all.keys().next().map(|key| key.name.to_string()).expect("an object")
            });
            rig.patch(kind, &name, paused("".into())).await;
            rig.pass(30 * SECOND).await;
            let unavailable = rig.resource("m").await.unavailable.unwrap_or_default();
            let is_offered = kind == Kind::Machine;
            assert_eq!(unavailable.starts_with("Paused: "), !is_offered, "{mode} {kind:?}: {unavailable}");
            let written = |rig: &Rig| {
                (rig.writes("fleet/machines/"), rig.writes("/scale"), rig.writes("/apis/infrastructure."))
            };
            let before = written(&rig);
            rig.want(0);
            rig.delete_claim("n1").await;
            rig.pass(10 * MINUTE).await;
            assert_eq!(written(&rig), before, "{mode} {kind:?}");
            let told = rig.events("Paused").await;
            let what = format!("{} fleet/{name} is paused; it will be deleted when that ends", kind.as_str());
            assert!(told.iter().any(|said| said.contains(&what)), "{mode} {kind:?}: {told:?}");
            rig.patch(kind, &name, paused(serde_json::Value::Null)).await;
            rig.until("it goes", 5 * MINUTE, |objects| {
                objects.node_claims.is_empty() && objects.machines.is_empty()
            })
            .await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.replicas("m"), 0, "{mode} {kind:?}");
            rig.at_rest();
        });
    }
}

#[test]
fn a17_nothing_is_made_from_a_blueprint_that_is_paused_by_annotation_and_what_was_made_of_it_goes() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": ALONE, "timeouts": {"launch": "60m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let paused = |value: Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": value}}});
        rig.patch(Kind::MachineDeployment, "m", paused("".into())).await;
        rig.pass(30 * SECOND).await;
        let told = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(told.starts_with("Paused: MachineDeployment fleet/m is paused"), "{told}");
        rig.want(3);
        rig.pass(10 * MINUTE).await;
        let made = |objects: &Objects| (objects.machines.len(), objects.sim_machines.len());
        assert_eq!(rig.read(made), (1, 1), "nothing is made");
        rig.want(2);
        rig.delete_claim("n1").await;
        rig.until("its Machine is no part of it, and goes", 5 * MINUTE, |objects| made(objects) == (0, 0))
            .await;
        rig.patch(Kind::MachineDeployment, "m", paused(Value::Null)).await;
        rig.until("it goes on", 10 * MINUTE, |objects| initialized(objects) >= 2).await;
        rig.at_rest();
    });
}

#[test]
fn a17_launches_go_on_while_a_rollout_is_paused_where_the_node_class_wants_that() {
    scenario(async {
        let rig = Rig::new(json!({"launchWhileRolloutPaused": true})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": true}})).await;
        rig.pass(10 * SECOND).await;
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        assert_eq!(rig.resource("m").await.unavailable, None);
        rig.want(2);
        rig.delete_claim("n1").await;
        rig.until("one goes", 5 * MINUTE, |objects| objects.machines.len() == 2).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn a_node_class_that_contradicts_itself_is_refused() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let patch = |patch: serde_json::Value| json!({"launchMode": "Machine", "bootstrapPatches": [patch]});
        for (spec, why) in [
            (json!({"selectorMode": "Replace"}), "selectorMode Replace takes a scalableResourceSelector"),
            (json!({"infrastructurePatches": []}), "infrastructurePatches is for launchMode Machine"),
            (json!({"bootstrapPatches": []}), "bootstrapPatches is for launchMode Machine"),
            (
                patch(json!({"path": "/a", "value": "1", "valueFrom": "Name"})),
                "value and valueFrom do not go together",
            ),
            (patch(json!({"path": "/a"})), "Add and Replace take value or valueFrom, Remove takes neither"),
            (patch(json!({"path": "/a", "op": "Remove", "value": "1"})), "Remove takes neither"),
            (json!({"clusterRef": {"name": "c"}}), "namespace"),
            (json!({"repairConditions": [{"type": "Broken", "status": "Yes"}]}), "status"),
        ] {
            let class = json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "other"}, "spec": spec,
            });
            let refused = rig.world.create(class).await.err().map(|error| format!("{error:?}"));
            assert!(refused.as_ref().is_some_and(|text| text.contains(why)), "{spec}: {refused:?}");
        }
        rig.create(json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "other"}, "spec": patch(json!({"path": "/a", "op": "Remove"})),
        }))
        .await;
    });
}

#[test]
fn labels_that_only_cluster_api_gives_are_ignored_and_named() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let labels = "team=x,cluster.x-k8s.io/cluster-name=other";
        rig.deployment("m", &[(MAX, "10"), ("capacity.cluster-autoscaler.kubernetes.io/labels", labels)])
            .await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("it works all the same", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        let told = "MachineDeployment fleet/m: capacity.cluster-autoscaler.kubernetes.io/labels: cluster.x-k8s.io/cluster-name";
        let message = rig.node_class_message("InstanceTypesResolved").await;
        assert!(message.starts_with(told), "{message}");
        assert!(rig.events("LabelsIgnored").await.iter().any(|said| said.starts_with(told)));
    });
}

#[test]
fn what_somebody_else_marks_stays_and_a_node_claim_that_ends_takes_it() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("a node by hand", 5 * MINUTE, |objects| objects.nodes.len() == 1).await;
        let theirs = rig.read(|objects| objects.machines.keys().next().cloned()).expect("a Machine");
        rig.pass(10 * SECOND).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let mark = |by: serde_json::Value| json!({"metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": by}}});
        rig.patch(Kind::Machine, &theirs.name, mark("cluster-autoscaler".into())).await;
        let machine_of = |claim: &str| {
            rig.read(|objects| {
                let of = |m: &kube::api::DynamicObject| {
                    m.metadata.annotations.as_ref()?.get("karpenter.cluster.x-k8s.io/nodeclaim").cloned()
                };
                let mut machines = objects.machines.iter();
                machines.find(|(_, m)| of(m).as_deref() == Some(claim)).map(|(key, _)| key.clone())
            })
        };
        let (one, two) = (machine_of("n1").expect("a Machine"), machine_of("n2").expect("a Machine"));
        rig.patch(Kind::Machine, &one.name, mark("by hand".into())).await;
        rig.pass(20 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (4, 4), "all stay");
        assert!(!rig.events("MarkedByAnother").await.is_empty());
        rig.want(1);
        for claim in ["n1", "n2"] {
            rig.delete_claim(claim).await;
        }
        rig.until("both end, with their Machines", 10 * MINUTE, |objects| {
            objects.node_claims.len() == 1
                && ![&one, &two].iter().any(|key| objects.machines.contains_key(*key))
        })
        .await;
        rig.pass(10 * MINUTE).await;
        assert!(
            rig.read(|objects| objects.machines.contains_key(&theirs)),
            "what is not ours is still there"
        );
        assert_eq!(rig.replicas("m"), 4, "lowered, it would have gone");
        rig.patch(Kind::Machine, &theirs.name, mark(serde_json::Value::Null)).await;
        rig.until("the rest goes", 15 * MINUTE, |objects| objects.machines.len() == 2).await;
        rig.pass(5 * MINUTE).await;
        assert!(rig.read(|objects| objects.machines.contains_key(&theirs)));
        rig.at_rest();
    });
}

/// Says of MachineDeployments that somebody else set their replicas last, or that Karpenter did, as API servers do.
struct SetBy(Mutex<&'static str>);

impl Lens for SetBy {
    fn shown(&self, kind: &str, object: &mut Value) {
        if kind == "MachineDeployment" {
            object["metadata"]["managedFields"] = json!([{
                "manager": *self.0.lock().expect("a name"), "operation": "Update", "subresource": "scale",
                "apiVersion": "cluster.x-k8s.io/v1beta2", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            }]);
        }
    }
}

#[test]
fn replicas_that_somebody_added_while_karpenter_was_not_running_stay() {
    for (manager, added, waits) in
        [("kubectl", 3, false), ("kubectl", 3, true), ("kubectl", 1, true), ("karpenter", 3, false)]
    {
        let left = if manager == "kubectl" { added } else { 0 };
        scenario(async {
            let rig = Rig::new(json!({})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            let set_by = Arc::new(SetBy(Mutex::new("karpenter")));
            rig.hub.plant(Arc::clone(&set_by) as Arc<dyn Lens>);
            rig.karpenter.start();
            rig.want(2);
            rig.until("two nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            rig.karpenter.kill();
            let ours = if waits { 3 } else { 2 };
            rig.want(ours);
            rig.pass(MINUTE).await;
            if waits {
                // As if it had died with that written down, and nothing else.
                rig.annotate_claim("n3", "karpenter.cluster.x-k8s.io/target", "fleet/m").await;
            }
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2 + added}})).await;
            *set_by.0.lock().expect("a name") = manager;
            rig.until("they come", 5 * MINUTE, |objects| objects.nodes.len() == 2 + added).await;
            rig.pass(60 * MINUTE).await;
            rig.karpenter.start();
            rig.pass(20 * MINUTE).await;
            let machines = || rig.read(|objects| objects.machines.len());
            let all = ours + left;
            assert_eq!((rig.replicas("m"), machines()), (all as i64, all), "{manager} {waits}");
            // They are nobody's to launch on, and stay when all others go.
            *set_by.0.lock().expect("a name") = "karpenter";
            rig.want(3);
            rig.until("a third is ready", 5 * MINUTE, |objects| initialized(objects) == 3).await;
            assert_eq!(rig.replicas("m"), 3 + left as i64, "{manager} {waits}");
            rig.want(0);
            for name in ["n1", "n2", "n3"] {
                rig.delete_claim(name).await;
            }
            rig.until("they go", 10 * MINUTE, |objects| objects.node_claims.is_empty()).await;
            rig.pass(20 * MINUTE).await;
            assert_eq!((rig.replicas("m"), machines()), (left as i64, left), "{manager} {waits}");
            rig.at_rest();
        });
    }
}

const PAUSED: &str = "cluster.x-k8s.io/paused";

fn pause(how: Value) -> Value {
    json!({"metadata": {"annotations": {PAUSED: how}}})
}

/// Keeps the pause of a MachineDeployment from watches, and shows it to who asks.
#[derive(Default)]
struct ToldToWhoAsks(AtomicBool);

impl Lens for ToldToWhoAsks {
    fn sent(&self, request: &mut Request<Bytes>) {
        if request.method() == Method::GET && request.uri().path().ends_with("/machinedeployments/m") {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn shown(&self, kind: &str, object: &mut Value) {
        let annotations = object["metadata"]["annotations"].as_object_mut();
        if let Some(all) =
            annotations.filter(|_| kind == "MachineDeployment" && !self.0.swap(false, Ordering::Relaxed))
        {
            all.remove(PAUSED);
        }
    }
}

#[test]
fn a17_a_machine_of_a_deployment_that_was_paused_unseen_is_not_marked_when_its_node_claim_ends() {
    scenario(async {
        let rig = Rig::with_a_node(json!({})).await;
        rig.hub.plant(Arc::new(ToldToWhoAsks::default()));
        rig.patch(Kind::MachineDeployment, "m", pause("".into())).await;
        rig.pass(MINUTE).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.pass(5 * MINUTE).await;
        let marked = |objects: &karpenter_sim::Objects| {
            objects.machines.values().any(|machine| {
                machine
                    .metadata
                    .annotations
                    .iter()
                    .flatten()
                    .any(|(key, _)| key == "cluster.x-k8s.io/delete-machine")
            })
        };
        assert!(!rig.read(marked));
        rig.patch(Kind::MachineDeployment, "m", pause(Value::Null)).await;
        rig.until("it goes", 5 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        rig.at_rest();
    });
}

/// A Machine by hand that may be adopted, paused, and its name.
async fn adoptable_and_paused() -> (Rig, String) {
    let rig = Rig::new(json!({"adoption": "Existing"})).await;
    rig.deployment("m", &[(MAX, "10")]).await;
    rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
    rig.until("a node by hand", 5 * MINUTE, |objects| objects.nodes.len() == 1).await;
    rig.create(node_pool()).await;
    rig.pass(10 * SECOND).await;
    let name = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
    let name = name.expect("a Machine");
    rig.patch(Kind::Machine, &name, pause("".into())).await;
    (rig, name)
}

#[test]
fn a_paused_machine_is_adopted_when_it_is_let_go_on_and_not_before() {
    scenario(async {
        let (rig, name) = adoptable_and_paused().await;
        rig.karpenter.start();
        rig.pass(20 * MINUTE).await;
        assert_eq!(rig.writes("POST /apis/karpenter.sh/v1/nodeclaims"), 0);
        rig.patch(Kind::Machine, &name, pause(Value::Null)).await;
        rig.until("it is adopted", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (1, 1));
        rig.at_rest();
    });
}

#[test]
fn a_node_claim_made_for_a_machine_that_was_paused_since_waits_for_it_and_shuts_nothing() {
    scenario(async {
        let (rig, name) = adoptable_and_paused().await;
        let target = [
            ("karpenter.cluster.x-k8s.io/adopted", "existing".to_owned()),
            ("karpenter.cluster.x-k8s.io/machine", format!("{NAMESPACE}/{name}")),
            ("karpenter.cluster.x-k8s.io/target", format!("{NAMESPACE}/m")),
        ];
        rig.want(1);
        rig.until("a NodeClaim", MINUTE, |objects| objects.node_claims.len() == 1).await;
        for (key, value) in target {
            rig.annotate_claim("n1", key, &value).await;
        }
        rig.karpenter.start();
        rig.pass(10 * MINUTE).await;
        let told = rig.read(launched);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].0.as_str(), told[0].1.contains(&name)), ("Paused", true), "{told:?}");
        assert_eq!(rig.resource("m").await.unavailable, None, "nothing has failed");
        rig.patch(Kind::Machine, &name, pause(Value::Null)).await;
        rig.until("it is claimed", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (1, 1));
        rig.at_rest();
    });
}

#[test]
fn a_node_claim_made_for_a_machine_that_is_gone_goes_at_once_however_launches_are_limited() {
    for class in [json!({}), json!({"launchLimits": {"perMinute": 5}})] {
        scenario(async {
            let rig = Rig::new(class).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.want(1);
            rig.until("a NodeClaim", MINUTE, |objects| objects.node_claims.len() == 1).await;
            rig.want(0);
            for (key, value) in [
                ("karpenter.cluster.x-k8s.io/adopted", "existing"),
                ("karpenter.cluster.x-k8s.io/machine", "fleet/m-gone"),
                ("karpenter.cluster.x-k8s.io/target", "fleet/m"),
            ] {
                rig.annotate_claim("n1", key, value).await;
            }
            rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": true}})).await;
            rig.karpenter.start();
            rig.pass(2 * MINUTE).await;
            assert_eq!(rig.read(|objects| objects.node_claims.len()), 1, "it may be on the move");
            rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": false}})).await;
            rig.until("it goes", MINUTE, |objects| objects.node_claims.is_empty()).await;
            assert_eq!(rig.replicas("m"), 0, "no other Machine will do");
        });
    }
}

#[test]
fn a_launch_whose_turn_nobody_can_look_for_in_a_pause_is_given_up_in_its_time() {
    scenario(async {
        let class = json!({"launchLimits": {"perMinute": 5}, "timeouts": {"launch": "2m"}});
        let rig = Rig::new(class).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", pause("".into())).await;
        rig.want(1);
        rig.until("a NodeClaim", MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.want(0);
        rig.annotate_claim("n1", "karpenter.cluster.x-k8s.io/target", &format!("{NAMESPACE}/m")).await;
        rig.karpenter.start();
        rig.until("it is given up", 4 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        assert_eq!(rig.replicas("m"), 0);
    });
}

#[test]
fn a_condemned_machine_of_its_own_that_is_paused_keeps_its_node_claim() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"launchMode": "Machine"})).await;
        rig.patch(Kind::Machine, "n1", pause("".into())).await;
        rig.pass(10 * SECOND).await;
        condemn(&rig, "n1").await;
        rig.pass(10 * MINUTE).await;
        let alive = |objects: &karpenter_sim::Objects| {
            let n1 = objects.node_claims.iter().find(|(key, _)| &*key.name == "n1");
            n1.is_some_and(|(_, claim)| claim.metadata.deletion_timestamp.is_none())
        };
        assert!(rig.read(alive), "its node could not go");
        rig.patch(Kind::Machine, "n1", pause(Value::Null)).await;
        rig.until("another takes its place", 10 * MINUTE, |objects| {
            !alive(objects) && initialized(objects) == 1
        })
        .await;
    });
}
