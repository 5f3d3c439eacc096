//! Rollouts, health checks and hooks: what Cluster API does with Machines while they are in use.

use futures_util::FutureExt as _;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::Kind;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::objects::is_ready;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::core;
use crate::features::node_pool;
use crate::refusals::{Forbidden, answering, forbid};
use crate::rig::{MAX, MINUTE, Rig, SECOND, initialized, scenario};

const SET: &str = "cluster.x-k8s.io/set-name";
const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";

/// Machines with their MachineSet, NodeClaim and whether they are on their way out.
fn machines(objects: &Objects) -> Vec<(String, String, String, bool)> {
    let text = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key).cloned()).unwrap_or_default()
    };
    let read = objects.machines.values().map(|machine| {
        let meta = &machine.metadata;
        let name = meta.name.clone().unwrap_or_default();
        (name, text(&meta.labels, SET), text(&meta.annotations, CLAIM), meta.deletion_timestamp.is_some())
    });
    read.collect()
}

fn in_set(objects: &Objects, set: &str) -> usize {
    machines(objects).iter().filter(|(_, theirs, _, _)| theirs == set).count()
}

#[test]
fn a8_deletions_during_a_rollout_take_the_right_machines_old_and_new() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.create(karpenter_sim::cluster_api::template("fleet", "slow", json!({"provisionSeconds": 120})))
            .await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(8);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 8).await;
        let slow = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": "slow"}}}}});
        rig.patch(Kind::MachineDeployment, "m", slow).await;
        // Machines in use of a revision.
        let used = |objects: &Objects, of: &str| -> Vec<(String, String)> {
            let all = machines(objects).into_iter();
            let used = all.filter(|(_, set, claim, out)| set == of && !claim.is_empty() && !out);
            used.map(|(name, _, claim, _)| (name, claim)).collect()
        };
        rig.until("five are old and three are new", 30 * MINUTE, |objects| {
            let (old, new) = (used(objects, "m-00001"), used(objects, "m-00002"));
            let has_node = |name: &str| objects.nodes.keys().any(|key| *key.name == *name);
            old.len() == 5 && new.iter().filter(|(name, _)| has_node(name)).count() == 3
        })
        .await;
        let (mut old, mut new) = rig.read(|objects| (used(objects, "m-00001"), used(objects, "m-00002")));
        // Not the oldest, which the rollout takes next, nor one that is on its way.
        let victims = [old.remove(2), new.remove(1)];
        rig.want(6);
        for (_, claim) in &victims {
            rig.delete_claim(claim).await;
        }
        rig.pass(15 * SECOND).await;
        let there = rig.read(machines);
        for (machine, _) in &victims {
            assert!(
                !there.iter().any(|(name, _, _, out)| name == machine && !out),
                "{machine} goes: {there:?}"
            );
        }
        let stays =
            |(machine, _): &&(String, String)| there.iter().any(|(name, _, _, out)| name == machine && !out);
        let kept = (old.iter().filter(stays).count(), new.iter().filter(stays).count());
        assert!(kept.0 + 1 >= old.len() && kept.1 == new.len(), "but for the next of the rollout: {kept:?}");
        rig.until("the rollout is over", 60 * MINUTE, |objects| in_set(objects, "m-00001") == 0).await;
        rig.pass(20 * MINUTE).await;
        let there = rig.read(machines);
        assert!(
            new.iter().all(|(machine, _)| there.iter().any(|(name, ..)| name == machine)),
            "no other new one went: {there:?}"
        );
        assert_eq!(rig.read(|objects| (objects.machines.len(), objects.node_claims.len())), (6, 6));
        rig.at_rest();
    });
}

#[test]
fn a9_machines_that_cluster_api_replaced_get_node_claims() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        let before = rig.read(|objects| objects.node_claims.keys().cloned().collect::<Vec<_>>());
        let scales = rig.writes("/scale");
        rig.patch(
            Kind::MachineDeployment,
            "m",
            json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}}),
        )
        .await;
        rig.until("all are replaced", 30 * MINUTE, |objects| {
            in_set(objects, "m-00001") == 0 && initialized(objects) == 4 && objects.node_claims.len() == 4
        })
        .await;
        rig.pass(15 * MINUTE).await;
        let after = rig.read(|objects| objects.node_claims.keys().cloned().collect::<Vec<_>>());
        assert!(after.iter().all(|key| !before.contains(key)), "{after:?}");
        assert_eq!(
            (rig.replicas("m"), rig.writes("/scale") - scales),
            (4, 0),
            "the number was Cluster API's affair"
        );
        rig.at_rest();
    });
}

#[test]
fn a9_what_was_replaced_while_nobody_looked_is_adopted() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
            "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": {
                "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
            }}}},
        }))
        .await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.karpenter.kill();
        let change = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.until("all are replaced", 30 * MINUTE, |objects| {
            in_set(objects, "m-00001") == 0 && objects.machines.len() == 4 && objects.nodes.len() == 4
        })
        .await;
        rig.pass(MINUTE).await;
        let machines = |rig: &Rig| rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
        let before = machines(&rig);
        // Nobody asks for others meanwhile: what they are for runs already.
        rig.want(0);
        rig.karpenter.start();
        rig.until("each has a NodeClaim", 10 * MINUTE, |objects| {
            initialized(objects) == 4
                && objects
                    .machines
                    .keys()
                    .all(|m| objects.node_claims.keys().any(|claim| claim.name == m.name))
        })
        .await;
        rig.pass(30 * MINUTE).await;
        assert_eq!((machines(&rig), rig.replicas("m")), (before, 4), "none of them is replaced once more");
        rig.at_rest();
    });
}

#[test]
fn what_was_replaced_while_nobody_looked_is_no_surplus_before_it_can_be_adopted() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.create(node_pool()).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.karpenter.kill();
        let change = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.until("all are replaced", 30 * MINUTE, |objects| {
            in_set(objects, "m-00001") == 0 && objects.machines.len() == 3 && objects.nodes.len() == 3
        })
        .await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": true}})).await;
        rig.pass(MINUTE).await;
        let nodes = |rig: &Rig| rig.read(|objects| objects.nodes.keys().cloned().collect::<Vec<_>>());
        let before = nodes(&rig);
        rig.want(0);
        rig.karpenter.start();
        rig.pass(20 * MINUTE).await;
        assert_eq!((nodes(&rig), rig.replicas("m")), (before.clone(), 3), "pods may run there");
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": false}})).await;
        rig.until("each has a NodeClaim", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((nodes(&rig), rig.replicas("m")), (before, 3));
        rig.at_rest();
    });
}

#[test]
fn what_was_made_while_nobody_looked_and_does_not_become_a_node_is_surplus() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.create(node_pool()).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.karpenter.kill();
        let change = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.until("all are replaced", 30 * MINUTE, |objects| {
            in_set(objects, "m-00001") == 0 && objects.machines.len() == 2 && objects.nodes.len() == 2
        })
        .await;
        let never = json!({"spec": {"template": {"spec": {"provisionSeconds": 360_000}}}});
        rig.patch(Kind::SimMachineTemplate, "t", never).await;
        let one = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let one = one.expect("a Machine");
        rig.api(Kind::Machine).delete(&one, &DeleteParams::default()).await.expect("a deletion");
        rig.until("another is made, and its node is not", 10 * MINUTE, |objects| {
            objects.machines.len() == 2
                && objects.nodes.len() == 1
                && objects.machines.keys().all(|key| *key.name != *one)
        })
        .await;
        rig.pass(MINUTE).await;
        rig.want(0);
        rig.karpenter.start();
        rig.pass(4 * MINUTE).await;
        assert_eq!(rig.replicas("m"), 2, "it may yet join");
        rig.until("it goes", 20 * MINUTE, |objects| objects.machines.len() == 1).await;
        rig.pass(MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(initialized)), (1, 1), "the other has a NodeClaim");
        rig.at_rest();
    });
}

#[test]
fn what_was_replaced_while_nobody_looked_is_adopted_though_node_pools_could_not_be_listed_at_first() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.create(node_pool()).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.karpenter.kill();
        let change = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.until("all are replaced", 30 * MINUTE, |objects| {
            in_set(objects, "m-00001") == 0 && objects.machines.len() == 2 && objects.nodes.len() == 2
        })
        .await;
        rig.want(0);
        let broken = Forbidden::default();
        forbid(&broken, "/nodepools");
        let (hub, what) = (rig.hub.clone(), broken.clone());
        let karpenter = rig.world.process("karpenter-2", FaultPlan::none(), move |mut life| {
            let error = (500, "etcdserver: request timed out");
            life.client = answering(life.client.clone(), what.clone(), None, error);
            let management = life.client_behind(&hub);
            core::live_through(life, management, core::settings()).boxed()
        });
        karpenter.start();
        rig.pass(20 * MINUTE).await;
        assert_eq!((rig.read(initialized), rig.replicas("m")), (0, 2));
        forbid(&broken, "");
        rig.until("each has a NodeClaim", 2 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn a10_nodes_of_an_on_delete_deployment_are_replaced_one_at_a_time() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "Karpenter"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        let strategy = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}});
        rig.patch(Kind::MachineDeployment, "m", strategy).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.patch(
            Kind::MachineDeployment,
            "m",
            json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}}),
        )
        .await;
        rig.pass(10 * SECOND).await;
        for _ in 0..4 {
            // What the core does about drift: the replacement first.
            rig.want(5);
            rig.until("the replacement is ready", 10 * MINUTE, |objects| initialized(objects) == 5).await;
            let (_, _, old, _) = rig.read(|objects| {
                let all = machines(objects);
                all.into_iter()
                    .find(|(_, set, claim, out)| set == "m-00001" && !claim.is_empty() && !out)
                    .expect("an old one")
            });
            rig.want(4);
            rig.delete_claim(&old).await;
            rig.until("the old one is gone", 10 * MINUTE, |objects| objects.node_claims.len() == 4).await;
            let there = rig.read(|objects| objects.machines.len());
            assert!(there <= 5, "{there} Machines");
        }
        rig.pass(15 * MINUTE).await;
        assert_eq!(rig.read(|objects| (in_set(objects, "m-00001"), in_set(objects, "m-00002"))), (0, 4));
        rig.at_rest();
    });
}

#[test]
fn a_successor_that_ends_is_not_made_again() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let (old, _, claim, _) = rig.read(machines).remove(0);
        let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
        rig.patch(Kind::Machine, &old, json!({"metadata": {"annotations": {hook: ""}}})).await;
        let version = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", version).await;
        rig.until("the old one waits for the hook, and has a successor", 10 * MINUTE, |objects| {
            machines(objects).iter().any(|(name, _, _, out)| *name == old && *out)
                && objects.node_claims.len() == 2
        })
        .await;
        rig.want(0);
        let successor = rig.read(|objects| {
            objects
                .node_claims
                .keys()
                .map(|key| key.name.to_string())
                .find(|name| *name != claim)
                .expect("a successor")
        });
        rig.delete_claim(&successor).await;
        rig.until("it is gone", 5 * MINUTE, |objects| objects.node_claims.len() == 1).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.read(|objects| objects.node_claims.len()), 1, "none is made in its place");
        rig.patch(Kind::Machine, &old, json!({"metadata": {"annotations": {hook: null}}})).await;
        rig.until("all is gone", 20 * MINUTE, |objects| objects.machines.is_empty()).await;
    });
}

#[test]
fn surplus_of_a_rollout_that_cannot_end_goes() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"surplus": "3m"}})).await;
        rig.create(karpenter_sim::cluster_api::template("fleet", "never", json!({"never": true}))).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let never = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": "never"}}}}});
        rig.patch(Kind::MachineDeployment, "m", never).await;
        rig.until("the rollout is under way", 5 * MINUTE, |objects| in_set(objects, "m-00002") >= 1).await;
        let claims = rig
            .read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>());
        rig.want(1);
        for claim in &claims[1..] {
            rig.delete_claim(claim).await;
        }
        rig.until("only what is in use is there, and what is to take its place", 15 * MINUTE, |objects| {
            crate::rig::replicas(objects, "m") == 1
                && in_set(objects, "m-00001") == 1
                && in_set(objects, "m-00002") == 1
        })
        .await;
        let kept = rig.read(machines);
        assert!(kept.iter().any(|(_, _, claim, out)| *claim == claims[0] && !out), "{kept:?}");
    });
}

#[test]
fn what_is_removed_of_an_on_delete_deployment_is_not_made_again() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "Off"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        let strategy = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}});
        rig.patch(Kind::MachineDeployment, "m", strategy).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let version = json!({"spec": {"template": {"spec": {"version": "v1.37.0"}}}});
        rig.patch(Kind::MachineDeployment, "m", version).await;
        rig.pass(10 * SECOND).await;
        let victim = rig.read(machines).remove(0);
        rig.want(2);
        rig.delete_claim(&victim.2).await;
        rig.until("it is gone", 10 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!((rig.read(|objects| objects.machines.len()), rig.replicas("m")), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn a_deletion_that_nobody_heeds_is_told() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let (machine, _, claim, _) = rig.read(machines).remove(0);
        rig.capi.run_machine_sets(false);
        rig.want(1);
        rig.delete_claim(&claim).await;
        rig.pass(30 * SECOND).await;
        assert!(rig.events("DeletionStalled").await.is_empty(), "it may take a while");
        rig.pass(2 * MINUTE).await;
        let told = rig.events("DeletionStalled").await;
        assert!(
            told.iter().any(|message| message.contains(&machine) && message.contains("MachineSet")),
            "{told:?}"
        );
        rig.capi.run_machine_sets(true);
        rig.until("it is gone", 5 * MINUTE, |objects| objects.machines.len() == 1).await;
        rig.pass(2 * MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn a_node_claim_does_not_end_before_the_infrastructure_of_its_machine_does() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": mode})).await;
            rig.deployment("m", &[(MAX, "20")]).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
            let (machine, _, claim, _) = rig.read(machines).remove(0);
            let stuck =
                |value: Value| json!({"metadata": {"annotations": {"sim.karpenter.sh/stuck": value}}});
            rig.patch(Kind::SimMachine, &machine, stuck("".into())).await;
            rig.want(0);
            rig.delete_claim(&claim).await;
            rig.until("its Machine is going", 10 * MINUTE, |objects| machines(objects)[0].3).await;
            rig.pass(MINUTE).await;
            rig.patch(Kind::Machine, &machine, json!({"metadata": {"finalizers": null}})).await;
            rig.until("somebody lets it go", MINUTE, |objects| objects.machines.is_empty()).await;
            rig.pass(3 * MINUTE).await;
            let left = |objects: &Objects| (objects.node_claims.len(), objects.sim_machines.len());
            assert_eq!(rig.read(left), (1, 1), "{mode}");
            let told = rig.events("DeletionStalled").await;
            let expected = format!("its infrastructure is not: SimMachine {machine}");
            assert!(told.iter().any(|said| said.contains(&expected)), "{mode}: {told:?}");
            rig.karpenter.kill();
            rig.karpenter.start();
            rig.pass(3 * MINUTE).await;
            assert_eq!(rig.read(left), (1, 1), "{mode}: whoever has not seen the Machine knows its name");
            rig.hub.cut_off(5 * MINUTE);
            rig.patch(Kind::SimMachine, &machine, stuck(Value::Null)).await;
            rig.pass(3 * MINUTE).await;
            assert_eq!(rig.read(left), (1, 0), "{mode}: nobody says that it is gone");
            rig.until("it ends", 10 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        });
    }
}

#[test]
fn cluster_api_waits_for_a_drain_no_longer_than_the_node_class_says() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"hook": "3m"}})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let (machine, _, claim, _) = rig.read(machines).remove(0);
        rig.annotate_claim(&claim, crate::core::UNDRAINED, "").await;
        rig.api(Kind::Machine).delete(&machine, &Default::default()).await.expect("a deletion");
        rig.pass(2 * MINUTE).await;
        let there = |objects: &Objects| machines(objects).iter().any(|(name, ..)| *name == machine);
        assert!(rig.read(there), "its node is being drained");
        let ends = |objects: &Objects| {
            let mut claims = objects.node_claims.iter();
            claims.any(|(key, found)| *key.name == *claim && found.metadata.deletion_timestamp.is_some())
        };
        assert!(rig.read(ends), "by Karpenter's rules");
        let took = rig.until("the Machine goes all the same", 5 * MINUTE, |objects| !there(objects)).await;
        assert!(took <= 2 * MINUTE, "{took:?}");
    });
}

pub(crate) async fn condemn(rig: &Rig, machine: &str) {
    let object = rig.api(Kind::Machine).get(machine).await.expect("the Machine");
    let mut conditions =
        object.data.pointer("/status/conditions").and_then(|c| c.as_array()).cloned().unwrap_or_default();
    for kind in ["HealthCheckSucceeded", "OwnerRemediated"] {
        conditions.push(
            json!({"type": kind, "status": "False", "reason": "NodeConditionUnhealthy", "message": ""}),
        );
    }
    rig.patch_status(Kind::Machine, machine, json!({"status": {"conditions": conditions}})).await;
}

#[test]
fn a_machine_that_is_about_to_be_taken_away_is_replaced_in_time() {
    scenario(async {
        let rig = Rig::new(json!({"interruptionConditions": ["SpotTermination"]})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let (machine, _, claim, _) = rig.read(machines).remove(0);
        let object = rig.api(Kind::Machine).get(&machine).await.expect("the Machine");
        let mut conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.push(json!({"type": "SpotTermination", "status": "True", "reason": "Notice", "message": "in two minutes"}));
        rig.patch_status(Kind::Machine, &machine, json!({"status": {"conditions": conditions}})).await;
        let took = rig
            .until("its NodeClaim is gone", 5 * MINUTE, |objects| {
                objects.node_claims.keys().all(|key| *key.name != *claim)
            })
            .await;
        assert!(took <= 2 * MINUTE, "{took:?}");
        rig.until("another is ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        let told = rig.events("Interruption").await;
        assert!(told.iter().any(|message| message.contains("SpotTermination: in two minutes")), "{told:?}");
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (2, 2));
        rig.at_rest();
    });
}

#[test]
fn a_strategy_that_does_not_go_with_drift_by_karpenter_is_told() {
    scenario(async {
        let rig = Rig::new(json!({"drift": "Karpenter"})).await;
        rig.deployment("m", &[]).await;
        rig.deployment("n", &[]).await;
        let strategy = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}});
        rig.patch(Kind::MachineDeployment, "n", strategy).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        let told = rig.events("RolloutStrategy").await;
        assert!(told.len() == 1 && told[0].starts_with("MachineDeployment fleet/m: "), "{told:?}");
    });
}

#[test]
fn a18_a_condemned_machine_is_replaced_by_cluster_api_where_the_node_class_says_so() {
    scenario(async {
        let rig = Rig::new(json!({"remediation": "ClusterAPI"})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let (machine, _, claim, _) = rig.read(machines).remove(0);
        let scales = rig.writes("/scale");
        condemn(&rig, &machine).await;
        rig.until("its NodeClaim ends", 10 * MINUTE, |objects| is_over(objects, &claim)).await;
        rig.until("its replacement is adopted", 10 * MINUTE, |objects| {
            initialized(objects) == 3 && objects.machines.len() == 3
        })
        .await;
        rig.pass(10 * MINUTE).await;
        assert_eq!(
            (rig.replicas("m"), rig.writes("/scale") - scales),
            (3, 0),
            "the number was Cluster API's affair"
        );
        rig.at_rest();
    });
}

#[test]
fn a18_a_condemned_machine_is_replaced_as_karpenter_chooses_where_the_node_class_says_so() {
    scenario(async {
        let rig = Rig::new(json!({"remediation": "Karpenter"})).await;
        // A machine takes a moment to go, and only then would there be another in its place.
        let template = json!({"provisionSeconds": 3, "joinSeconds": 2, "deleteSeconds": 20});
        rig.create(karpenter_sim::cluster_api::template("fleet", "real", template)).await;
        let dear = [(MAX, "20"), ("karpenter.cluster.x-k8s.io/price", "0.2")];
        rig.create(karpenter_sim::cluster_api::machine_deployment("fleet", "c", "m", "real", &dear)).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        // By now there is something cheaper.
        rig.deployment("m2", &[(MAX, "20"), ("karpenter.cluster.x-k8s.io/price", "0.1")]).await;
        rig.pass(MINUTE).await;
        let before: Vec<String> = rig.read(machines).into_iter().map(|(name, ..)| name).collect();
        rig.world.cluster().watch_over([Box::new(NoneBut { deployment: "m", machines: before })
            as Box<dyn karpenter_sim::invariants::Invariant>]);
        let (machine, _, claim, _) = rig.read(machines).remove(0);
        condemn(&rig, &machine).await;
        let took = rig.until("its NodeClaim ends", 10 * MINUTE, |objects| is_over(objects, &claim)).await;
        assert!(took <= 10 * SECOND, "{took:?}");
        rig.until("another serves", 10 * MINUTE, |objects| {
            initialized(objects) == 3 && objects.machines.len() == 3
        })
        .await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (2, 1), "where Karpenter chose");
        rig.at_rest();
    });
}

/// Whether a NodeClaim is gone, or on its way out.
fn is_over(objects: &Objects, name: &str) -> bool {
    let found = objects.node_claims.iter().find(|(key, _)| *key.name == *name);
    found.is_none_or(|(_, claim)| claim.metadata.deletion_timestamp.is_some())
}

/// No Machine comes to a MachineDeployment beyond those it had.
struct NoneBut {
    deployment: &'static str,
    machines: Vec<String>,
}

impl karpenter_sim::invariants::Invariant for NoneBut {
    fn name(&self) -> &'static str {
        "no replacement by Cluster API"
    }

    fn check(&mut self, step: &karpenter_sim::invariants::Step<'_>) -> Result<(), String> {
        let of = |machine: &kube::api::DynamicObject| {
            let labels = machine.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get("cluster.x-k8s.io/deployment-name").cloned())
        };
        let theirs = step.objects.machines.iter().filter(|(_, m)| of(m).as_deref() == Some(self.deployment));
        match theirs.into_iter().find(|(key, _)| !self.machines.contains(&key.name.to_string())) {
            Some((key, _)) => Err(format!("Machine {key} was made")),
            None => Ok(()),
        }
    }
}

/// A Deployment's pods on the nodes of a rig, and a budget that allows no eviction.
async fn guarded_pods(rig: &Rig, replicas: u64) {
    let labels = json!({"app": "guarded"});
    rig.create(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "guarded", "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{
                "name": "main", "image": "registry.k8s.io/pause", "resources": {"requests": {"cpu": "3"}},
            }]}},
        },
    }))
    .await;
    rig.create(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guarded", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": labels}},
    }))
    .await;
}

#[test]
fn a19_a_machine_that_somebody_deletes_goes_when_its_budget_lets_its_pods_go_and_no_sooner() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("both nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        guarded_pods(&rig, 2).await;
        let running = |objects: &Objects| objects.pods.values().filter(|pod| is_ready(pod)).count();
        rig.until("each has a pod", 5 * MINUTE, |objects| running(objects) == 2).await;
        let name = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let name = name.expect("a Machine");
        rig.api(Kind::Machine).delete(&name, &DeleteParams::background()).await.expect("a deletion");
        rig.pass(15 * MINUTE).await;
        let (nodes, pods) = rig.read(|objects| (objects.nodes.len(), running(objects)));
        assert_eq!((nodes >= 2, pods), (true, 2), "nothing is forced");
        let budgets: Api<PodDisruptionBudget> =
            Api::namespaced(rig.world.cluster().client("user"), "default");
        budgets.delete("guarded", &DeleteParams::default()).await.expect("a deletion");
        rig.until("it is gone", 10 * MINUTE, |objects| objects.machines.keys().all(|key| *key.name != *name))
            .await;
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(10 * MINUTE).await;
        rig.at_rest();
    });
}
