//! Single features that no acceptance scenario is about: versions, pace, early ids, adoption, moves, deadlines.

use std::sync::Arc;

use karpenter_api::NodeClaim;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::unrest::Unrest;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::Lens;
use serde_json::{Value, json};

use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, launched, scenario};

#[test]
fn a24_a_management_cluster_may_change_the_version_it_serves() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": mode})).await;
            let mut deployment =
                cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "20")]);
            let unknown = json!({"of a later release": [1, {"two": null}], "text": "as it is"});
            deployment["spec"]["unknownToUs"] = unknown.clone();
            rig.create(deployment).await;
            rig.capi.serve(&["v1beta1"]).await.expect("the old version");
            rig.karpenter.start();
            rig.want(5);
            rig.until("five nodes in the old version", 10 * MINUTE, |objects| initialized(objects) == 5)
                .await;
            rig.capi.serve(&["v1beta1", "v1beta2"]).await.expect("both versions");
            rig.want(8);
            rig.pass(5 * SECOND).await;
            rig.capi.serve(&["v1beta2"]).await.expect("the new version");
            rig.until("launches finish", 15 * MINUTE, |objects| initialized(objects) == 8).await;
            rig.want(10);
            rig.until("and go on", 15 * MINUTE, |objects| initialized(objects) == 10).await;
            rig.pass(60 * MINUTE).await;
            rig.want(11);
            rig.until("an hour later, too", 5 * MINUTE, |objects| initialized(objects) == 11).await;
            rig.pass(MINUTE).await;
            let puts = rig.world.cluster().tape(|tape| {
                let ours = tape.entries().iter().filter(|entry| entry.actor.starts_with("karpenter"));
                ours.filter(|entry| {
                    entry.deed.starts_with("PUT") && entry.deed.contains("/apis/cluster.x-k8s.io")
                })
                .count()
            });
            let level = if mode == "Machine" { 0 } else { 11 };
            assert_eq!((puts, rig.replicas("m")), (0, level), "{mode}: no object was written as a whole");
            assert_eq!(rig.read(|objects| objects.machines.len()), 11, "{mode}");
            let kept = rig.read(|objects| {
                let deployment = objects.machine_deployments.values().next().cloned();
                deployment.and_then(|found| found.data.pointer("/spec/unknownToUs").cloned())
            });
            assert_eq!(kept, Some(unknown), "what we do not know is as it was");
            rig.at_rest();
        });
    }
}

#[test]
fn a_machine_is_not_made_in_another_version_than_its_template_was_seen_in() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "20")]);
        // It has another name and shape in the old version.
        let patience = json!({"nodeDrainTimeoutSeconds": 90});
        deployment["spec"]["template"]["spec"]["deletion"] = patience.clone();
        rig.create(deployment).await;
        rig.capi.serve(&["v1beta1"]).await.expect("the old version");
        rig.karpenter.start();
        rig.want(1);
        rig.until("a node in the old version", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.capi.serve(&["v1beta2"]).await.expect("the new version");
        for nodes in 2..=8 {
            // Whoever launches finds out before those who watch do.
            rig.want(nodes);
            rig.pass(3 * SECOND).await;
        }
        rig.until("all nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 8).await;
        let patient = rig.read(|objects| {
            let machines = objects.machines.values();
            machines.filter(|machine| machine.data.pointer("/spec/deletion") == Some(&patience)).count()
        });
        assert_eq!(patient, 8, "all are as their template says");
        rig.at_rest();
    });
}

#[test]
fn watches_follow_a_version_that_another_request_found_gone_first() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.capi.serve(&["v1beta1"]).await.expect("the old version");
        rig.karpenter.start();
        rig.want(1);
        rig.until("a node in the old version", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.capi.serve(&["v1beta2"]).await.expect("the new version");
        for nodes in 2..=6 {
            // Whoever launches asks for the version before those who watch do.
            rig.want(nodes);
            rig.pass(7 * SECOND).await;
        }
        rig.until("all nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 6).await;
        rig.pass(MINUTE).await;
        let told = rig.resource("m").await;
        assert_eq!((rig.replicas("m"), told.unavailable), (6, None), "what is seen of it is as it is");
        rig.at_rest();
    });
}

#[test]
fn an_id_that_the_infrastructure_knows_early_is_used_early() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let slow = json!({"idSeconds": 5, "provisionSeconds": 200, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(1);
        let known = |objects: &karpenter_sim::Objects| {
            objects.node_claims.values().any(|c| c.status.as_ref().is_some_and(|s| s.provider_id.is_some()))
        };
        let took = rig.until("its id is known", 5 * MINUTE, known).await;
        assert!(took < MINUTE, "{took:?}");
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (1, 1), "one Machine all along");
        rig.at_rest();
    });
}

#[test]
fn an_early_id_is_used_where_a_node_may_take_as_long_to_register_as_a_launch_may() {
    for (timeouts, early) in
        [(json!({"launch": "30m", "registration": "30m"}), true), (json!({"launch": "30m"}), false)]
    {
        scenario(async {
            let rig = Rig::new(json!({"timeouts": timeouts})).await;
            let slow = json!({"idSeconds": 5, "provisionSeconds": 20 * 60, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")]))
                .await;
            rig.karpenter.start();
            rig.want(1);
            rig.pass(2 * MINUTE).await;
            let known = rig.read(|objects| {
                let has_id =
                    |c: &NodeClaim| c.status.as_ref().is_some_and(|status| status.provider_id.is_some());
                objects.node_claims.values().any(|claim| has_id(claim))
            });
            assert_eq!(known, early, "{timeouts}");
            rig.until("the node is ready", 25 * MINUTE, |objects| initialized(objects) == 1).await;
            assert_eq!(rig.read(claimed), 1, "one Machine all along");
            rig.at_rest();
        });
    }
}

#[test]
fn launches_keep_to_their_limits() {
    for limits in [json!({"perMinute": 4}), json!({"perResource": 4})] {
        scenario(async {
            let rig = Rig::new(json!({"launchLimits": limits, "timeouts": {"launch": "30m"}})).await;
            let slow = json!({"provisionSeconds": 50, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "50")]))
                .await;
            rig.karpenter.start();
            rig.want(10);
            rig.pass(30 * SECOND).await;
            let begun = rig.replicas("m");
            assert!((1..=6).contains(&begun), "{limits}: {begun} at once");
            rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 10).await;
            rig.pass(2 * MINUTE).await;
            assert_eq!(rig.replicas("m"), 10, "{limits}");
            rig.at_rest();
        });
    }
}

#[test]
fn machines_that_were_there_before_are_adopted_where_that_is_wanted() {
    scenario(async {
        let rig = Rig::new(json!({"adoption": "Existing"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 3}})).await;
        rig.until("three nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 3).await;
        rig.create(node_pool()).await;
        rig.pass(10 * SECOND).await;
        rig.karpenter.start();
        rig.until("each has a NodeClaim", 5 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.pass(15 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (3, 3), "and no other Machine came or went");
        let pools = rig.read(|objects| {
            let pool = |claim: &std::sync::Arc<karpenter_api::NodeClaim>| {
                claim.metadata.labels.as_ref()?.get("karpenter.sh/nodepool").cloned()
            };
            objects.node_claims.values().filter_map(pool).collect::<Vec<_>>()
        });
        assert_eq!(pools, ["default"; 3]);
        rig.at_rest();
    });
}

#[test]
fn nodes_that_were_there_before_may_be_adopted_later() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "50")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 3}})).await;
        rig.until("three nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 3).await;
        rig.create(node_pool()).await;
        rig.pass(10 * SECOND).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("one node of Karpenter's", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.replicas("m"), 4);
        rig.patch_node_class(json!({"spec": {"adoption": "Existing"}})).await;
        rig.until("each has a NodeClaim", 5 * MINUTE, |objects| initialized(objects) == 4).await;
        rig.pass(30 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (4, 4), "and no other Machine came or went");
        rig.patch_node_class(json!({"spec": {"adoption": "Never"}})).await;
        rig.pass(30 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (4, 4), "nor when it is taken back");
        rig.at_rest();
    });
}

#[test]
fn objects_that_move_to_another_management_cluster_are_not_taken_for_gone() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(4);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 4).await;
        let names = |rig: &Rig| rig.read(|objects| objects.node_claims.keys().cloned().collect::<Vec<_>>());
        let before = names(&rig);
        Unrest::new(&rig.capi, &rig.hub, NAMESPACE, CLUSTER).move_everything().await.expect("a move");
        rig.pass(15 * MINUTE).await;
        assert_eq!(names(&rig), before, "the same NodeClaims");
        assert_eq!((rig.replicas("m"), rig.read(claimed)), (4, 4));
        rig.at_rest();
    });
}

#[test]
fn a_termination_that_is_overdue_makes_cluster_api_wait_no_longer() {
    scenario(async {
        let rig = Rig::with_a_node(json!({})).await;
        let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup";
        let machine = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let machine = machine.expect("a Machine");
        let annotate = |value: Value| json!({"metadata": {"annotations": {hook: value}}});
        rig.patch(Kind::Machine, &machine, annotate("".into())).await;
        let by = rig.world.cluster().now() + jiff::SignedDuration::from_mins(2);
        rig.annotate_claim("n1", "karpenter.sh/nodeclaim-termination-timestamp", &by.to_string()).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        let waits = |rig: &Rig| {
            rig.read(|objects| {
                let annotations =
                    objects.machines.values().next().and_then(|m| m.metadata.annotations.as_ref());
                let excluded = ["exclude-node-draining", "exclude-wait-for-node-volume-detach"];
                !excluded.iter().all(|what| {
                    annotations
                        .is_some_and(|all| all.contains_key(&format!("machine.cluster.x-k8s.io/{what}")))
                })
            })
        };
        rig.pass(MINUTE).await;
        assert!(waits(&rig), "there is time left");
        rig.pass(30 * MINUTE).await;
        assert!(!waits(&rig));
        let writes = rig.writes(&format!("/machines/{machine}"));
        assert!(writes <= 4, "claim, mark, level and this, however long it takes: {writes}");
        rig.patch(Kind::Machine, &machine, annotate(Value::Null)).await;
        rig.until("it goes when the hook does", 5 * MINUTE, |objects| objects.machines.is_empty()).await;
    });
}

#[test]
fn a_condemned_machine_of_its_own_is_replaced_by_its_node_claim() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"launchMode": "Machine"})).await;
        let first = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        rig.capi.check_health(true);
        rig.world.cluster().set_kubelet(first.as_deref().unwrap_or_default(), false);
        rig.until("another takes its place", 30 * MINUTE, |objects| {
            let other = objects.machines.keys().any(|key| Some(key.name.to_string()) != first);
            other && objects.machines.len() == 1 && initialized(objects) == 1
        })
        .await;
        assert!(rig.read(launched).iter().all(|(reason, _)| reason != "LaunchFailed"));
        let first = first.unwrap_or_default();
        assert_eq!(
            rig.writes(&format!("/machines/{first}/status")),
            1,
            "its owner said that it is on its way out"
        );
    });
}

#[test]
fn machines_whose_remediation_is_held_back_are_left_alone() {
    for class in [json!({"launchMode": "Machine"}), json!({"remediation": "Karpenter"})] {
        scenario(async {
            let rig = Rig::new(class.clone()).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(3);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
            let claims =
                |rig: &Rig| rig.read(|objects| objects.node_claims.keys().cloned().collect::<Vec<_>>());
            let before = claims(&rig);
            let nodes =
                rig.read(|objects| objects.nodes.keys().map(|key| key.name.to_string()).collect::<Vec<_>>());
            rig.capi.check_health(true);
            // They need not become unhealthy in the same moment.
            rig.capi.remediate_at_most(Some(0));
            for node in &nodes[..2] {
                rig.world.cluster().set_kubelet(node, false);
            }
            let unhealthy = |objects: &karpenter_sim::Objects| {
                let unhealthy = |machine: &&std::sync::Arc<kube::api::DynamicObject>| {
                    let conditions = machine.data.pointer("/status/conditions").and_then(Value::as_array);
                    conditions.into_iter().flatten().any(|condition| {
                        condition["type"] == "HealthCheckSucceeded" && condition["status"] == "False"
                    })
                };
                objects.machines.values().filter(unhealthy).count()
            };
            rig.until("two are unhealthy", 20 * MINUTE, |objects| unhealthy(objects) == 2).await;
            rig.capi.remediate_at_most(Some(1));
            rig.pass(20 * MINUTE).await;
            assert_eq!(claims(&rig), before, "{class}: too many at once");
            assert_eq!(rig.read(|objects| objects.machines.len()), 3, "{class}");
            rig.world.cluster().set_kubelet(&nodes[0], true);
            rig.until("the one that is left is replaced", 30 * MINUTE, |objects| {
                let kept = objects.node_claims.keys().filter(|key| before.contains(key)).count();
                kept == 2 && initialized(objects) == 3 && objects.machines.len() == 3
            })
            .await;
        });
    }
}

#[test]
fn launches_that_wait_for_their_turn_do_not_fail() {
    for (mode, limits) in [
        ("MachineDeployment", json!({"perMinute": 2})),
        ("Machine", json!({"perMinute": 2})),
        ("MachineDeployment", json!({"perResource": 1})),
        ("Machine", json!({"perResource": 1})),
    ] {
        scenario(async {
            let class = json!({"launchMode": mode, "launchLimits": limits, "timeouts": {"launch": "90s"}});
            let rig = Rig::new(class).await;
            let slow = json!({"provisionSeconds": 40, "joinSeconds": 2});
            rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "50")]))
                .await;
            rig.karpenter.start();
            rig.want(8);
            rig.pass(30 * SECOND).await;
            let waiting = rig.read(launched).iter().filter(|(reason, _)| reason == "LaunchRate").count();
            assert!(waiting >= 4, "{mode} {limits}: {waiting} wait for their turn");
            let begun = rig.read(|objects| objects.machines.len());
            assert!(begun <= 4, "{mode} {limits}: {begun} at once");
            rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 8).await;
            let last = rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).max());
            assert_eq!(last.as_deref(), Some("n8"), "{mode} {limits}: none was given up");
        });
    }
}

#[test]
fn an_adopted_machine_that_cluster_api_replaces_is_followed_by_another() {
    for adoption in ["Existing", "Never"] {
        scenario(replace_adopted(adoption));
    }
}

/// A NodePool for Machines that were there before it.
pub(crate) fn node_pool() -> serde_json::Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {
            "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}],
            "nodeClassRef": {
                "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
            },
        }}},
    })
}

/// Adopts two Machines and has them replaced, with this rule for further ones.
async fn replace_adopted(adoption: &str) {
    let rig = Rig::new(json!({"adoption": "Existing"})).await;
    let plain = json!({"provisionSeconds": 3, "joinSeconds": 2, "deleteSeconds": 5});
    rig.create(cluster_api::template(NAMESPACE, "plain", plain)).await;
    rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "plain", &[(MAX, "10")])).await;
    rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
    rig.until("two nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 2).await;
    rig.create(node_pool()).await;
    rig.pass(10 * SECOND).await;
    rig.karpenter.start();
    rig.until("each has a NodeClaim of its name", 5 * MINUTE, |objects| {
        initialized(objects) == 2
            && objects.machines.keys().all(|m| objects.node_claims.keys().any(|claim| claim.name == m.name))
    })
    .await;
    rig.patch_node_class(json!({"spec": {"adoption": adoption}})).await;
    let before = rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
    let change = json!({"spec": {"template": {"spec": {"version": "v1.36.9"}}}});
    rig.patch(Kind::MachineDeployment, "m", change).await;
    rig.until("both were replaced and have NodeClaims", 30 * MINUTE, |objects| {
        objects.machines.len() == 2
            && objects.machines.keys().all(|machine| !before.contains(machine))
            && initialized(objects) == 2
            && objects.node_claims.len() == 2
    })
    .await;
    rig.pass(15 * MINUTE).await;
    assert_eq!((rig.replicas("m"), rig.read(claimed)), (2, 2), "and none is left alone");
    rig.at_rest();
}

#[test]
fn a_node_whose_machine_turns_out_to_be_interruptible_counts_as_spot() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let spot = json!({
            "provisionSeconds": 3, "joinSeconds": 2, "nodeLabels": {"cluster.x-k8s.io/interruptible": ""},
        });
        rig.create(cluster_api::template(NAMESPACE, "spot", spot)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "spot", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let is_spot = |labels: &Option<std::collections::BTreeMap<String, String>>| {
            let kind = labels.as_ref().and_then(|labels| labels.get("karpenter.sh/capacity-type"));
            kind.is_some_and(|kind| kind == "spot")
        };
        rig.until("NodeClaim and Node say so", 3 * MINUTE, |objects| {
            objects.node_claims.values().all(|claim| is_spot(&claim.metadata.labels))
                && objects.nodes.values().all(|node| is_spot(&node.metadata.labels))
        })
        .await;
        let machines = rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
        rig.pass(150 * MINUTE).await;
        assert_eq!(rig.events("CapacityTypeCorrected").await.len(), 1);
        let now = rig.read(|objects| objects.machines.keys().cloned().collect::<Vec<_>>());
        assert_eq!(now, machines, "what it comes from is offered as spot now: it is no reason to replace it");
        rig.at_rest();
    });
}

const OWN_HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/karpenter";

/// How many Machines wait for Karpenter before they are drained.
fn hooked(objects: &karpenter_sim::Objects) -> usize {
    let annotations = objects.machines.values().filter_map(|machine| machine.metadata.annotations.as_ref());
    annotations.filter(|all| all.contains_key(OWN_HOOK)).count()
}

#[test]
fn a_machine_that_somebody_deletes_waits_for_karpenter_to_drain_its_node() {
    for class in
        [json!({"timeouts": {"hook": "10m"}}), json!({"timeouts": {"hook": "10m"}, "launchMode": "Machine"})]
    {
        scenario(async {
            let rig = Rig::new(class.clone()).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            assert_eq!(rig.read(hooked), 2, "{class}");
            let first = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
            let first = first.expect("a Machine");
            rig.karpenter.kill();
            let delete = kube::api::DeleteParams::default();
            rig.api(Kind::Machine).delete(&first, &delete).await.expect("a deletion");
            rig.pass(MINUTE).await;
            assert_eq!(
                rig.read(|objects| objects.nodes.len()),
                2,
                "{class}: nobody has drained its node yet"
            );
            rig.karpenter.start();
            rig.until("its NodeClaim goes with it, and another comes", 15 * MINUTE, |objects| {
                let gone = objects.machines.keys().all(|key| *key.name != *first);
                gone && initialized(objects) == 2 && objects.machines.len() == 2
            })
            .await;
            assert_eq!(rig.events("MachineDeleted").await.len(), 1, "{class}");
            // What Karpenter removes itself waits for nothing.
            rig.want(0);
            for name in rig.read(|o| o.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>())
            {
                rig.delete_claim(&name).await;
            }
            rig.until("all goes", 5 * MINUTE, |objects| objects.machines.is_empty()).await;
        });
    }
}

#[test]
fn a_machine_whose_node_claim_is_gone_does_not_wait_for_a_drain() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"hook": "10m"}})).await;
        rig.karpenter.kill();
        rig.want(0);
        let claims: kube::Api<karpenter_api::NodeClaim> = kube::Api::all(rig.world.cluster().client("user"));
        let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        claims.patch("n1", &kube::api::PatchParams::default(), &free).await.expect("a NodeClaim");
        rig.delete_claim("n1").await;
        let machine = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let delete = kube::api::DeleteParams::default();
        rig.api(Kind::Machine).delete(&machine.expect("a Machine"), &delete).await.expect("a deletion");
        rig.karpenter.start();
        rig.until("it goes", 5 * MINUTE, |objects| objects.machines.is_empty()).await;
    });
}

#[test]
fn a_node_is_not_drained_for_a_deletion_while_the_management_cluster_is_away() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"timeouts": {"hook": "30m"}})).await;
        let machine = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let delete = kube::api::DeleteParams::default();
        rig.api(Kind::Machine).delete(&machine.expect("a Machine"), &delete).await.expect("a deletion");
        rig.pass(SECOND).await;
        rig.hub.cut_off(10 * MINUTE);
        rig.pass(9 * MINUTE).await;
        assert_eq!(rig.read(initialized), 1, "its NodeClaim is as it was");
        let replaced = |objects: &karpenter_sim::Objects| {
            initialized(objects) == 1 && objects.node_claims.keys().all(|key| *key.name != *"n1")
        };
        rig.until("it goes when that is over", 20 * MINUTE, replaced).await;
    });
}

#[test]
fn a_machine_set_of_its_own_is_scaled_like_a_deployment() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let mut set = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "lone", "t", &[(MAX, "10")]);
        set["kind"] = "MachineSet".into();
        set["spec"]["selector"] = json!({"matchLabels": {"set": "lone"}});
        set["spec"]["template"]["metadata"]["labels"]["set"] = "lone".into();
        rig.create(set).await;
        let level = |objects: &Objects| {
            let set = objects.machine_sets.values().next().expect("the MachineSet");
            set.data.pointer("/spec/replicas").and_then(Value::as_i64)
        };
        rig.karpenter.start();
        rig.want(3);
        rig.until("three nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 3).await;
        assert_eq!((rig.read(level), rig.writes("/scale")), (Some(3), 1));
        let (gone, kept) = rig.read(|objects| {
            let mut names = objects.node_claims.keys().map(|key| key.name.to_string());
            (names.next().expect("a NodeClaim"), names.collect::<Vec<_>>())
        });
        rig.want(2);
        rig.delete_claim(&gone).await;
        rig.until("it is gone", 5 * MINUTE, |objects| objects.machines.len() == 2).await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.read(level), Some(2));
        let left =
            |objects: &Objects| objects.node_claims.keys().map(|k| k.name.to_string()).collect::<Vec<_>>();
        assert_eq!(rig.read(left), kept, "the others are those that were there");
        rig.at_rest();
    });
}

#[test]
fn with_selector_mode_replace_the_selector_alone_decides() {
    scenario(async {
        let selector = json!({"matchLabels": {"team": "x"}});
        let rig = Rig::new(json!({"scalableResourceSelector": selector, "selectorMode": "Replace"})).await;
        let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
        let cheap = [(MAX, "10"), price("0.1")];
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "member", "t", &cheap)).await;
        let dear = [(MAX, "10"), price("0.9")];
        let mut selected = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "selected", "t", &dear);
        selected["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": CLUSTER, "team": "x"});
        rig.create(selected).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!((rig.replicas("member"), rig.replicas("selected")), (0, 1));
        rig.at_rest();
    });
}

#[test]
fn an_adopted_node_is_what_it_says_itself_also_where_its_deployment_is_not_offered() {
    scenario(async {
        let rig = Rig::new(json!({"adoption": "Existing"})).await;
        let label = |zone: &str, region: &str| json!({"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region});
        let behaviour = json!({"provisionSeconds": 3, "joinSeconds": 2, "nodeLabels": label("b", "r")});
        rig.create(cluster_api::template(NAMESPACE, "b", behaviour)).await;
        let said = ("capacity.cluster-autoscaler.kubernetes.io/labels", "topology.kubernetes.io/zone=a");
        let broken = ("capacity.cluster-autoscaler.kubernetes.io/cpu", "sixteen");
        for (name, annotations) in [("m", vec![said]), ("m2", vec![said, broken])] {
            let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, name, "b", &annotations);
            deployment["spec"]["replicas"] = 1.into();
            rig.create(deployment).await;
        }
        rig.until("two nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 2).await;
        rig.create(node_pool()).await;
        rig.pass(10 * SECOND).await;
        rig.karpenter.start();
        rig.until("each has a NodeClaim", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        let labels: Vec<[Option<String>; 3]> = rig.read(|objects| {
            let keys = [
                "topology.kubernetes.io/zone",
                "topology.kubernetes.io/region",
                "node.kubernetes.io/instance-type",
            ];
            let of = |claim: &std::sync::Arc<karpenter_api::NodeClaim>| {
                keys.map(|key| claim.metadata.labels.as_ref()?.get(key).cloned())
            };
            objects.node_claims.values().map(of).collect()
        });
        let told = |name: &str| ["b", "r", name].map(|text| Some(text.to_owned()));
        assert_eq!(labels, [told("m"), told("m2")]);
        rig.at_rest();
    });
}

#[test]
fn what_a_launch_waits_for_is_told_by_events_and_what_every_launch_goes_through_only_if_it_takes_long() {
    scenario(async {
        let rig = Rig::new(json!({"timeouts": {"launch": "60m"}})).await;
        rig.create(cluster_api::template(NAMESPACE, "slow", json!({"provisionSeconds": 300}))).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(1);
        rig.pass(30 * SECOND).await;
        assert!(rig.events("InfraProvisioning").await.is_empty(), "half a minute is not long");
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.events("InfraProvisioning").await.len(), 1);
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        let upgrading = json!({"metadata": {"annotations": {cluster_api::UPGRADING: "the control plane"}}});
        rig.patch(Kind::Cluster, CLUSTER, upgrading).await;
        rig.want(2);
        rig.pass(MINUTE).await;
        let told = rig.events("ControlPlaneUpgrading").await;
        assert!(told.iter().any(|message| message.contains("upgrading")), "{told:?}");
    });
}

#[test]
fn a_node_that_karpenter_drained_is_drained_once_more_only_where_its_deployment_says_so() {
    const EXCLUDED: &str = "machine.cluster.x-k8s.io/exclude-node-draining";
    let option = "karpenter.cluster.x-k8s.io/exclude-node-draining";
    for mode in ["MachineDeployment", "Machine"] {
        for (said, excluded) in [(None, true), (Some("true"), true), (Some("false"), false)] {
            scenario(async {
                let rig = Rig::new(json!({"launchMode": mode})).await;
                let slow = json!({"provisionSeconds": 3, "joinSeconds": 2, "deleteSeconds": 60});
                rig.create(cluster_api::template(NAMESPACE, "slow", slow)).await;
                let said: Vec<(&str, &str)> = said.into_iter().map(|said| (option, said)).collect();
                let m = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &said);
                rig.create(m).await;
                rig.karpenter.start();
                rig.want(1);
                rig.until("a node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
                let node =
                    rig.read(|o| o.nodes.keys().next().map(|key| key.name.to_string())).expect("a Node");
                // In Machine mode nothing is said where nothing is left.
                rig.create(json!({
                    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "left", "namespace": "default"},
                    "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
                }))
                .await;
                rig.want(0);
                rig.delete_claim("n1").await;
                rig.until("its Machine is going", 5 * MINUTE, |objects| {
                    objects.machines.values().any(|m| m.metadata.deletion_timestamp.is_some())
                })
                .await;
                let machines = rig.read(|objects| objects.machines.values().cloned().collect::<Vec<_>>());
                let annotations = machines[0].metadata.annotations.clone().unwrap_or_default();
                assert_eq!(annotations.contains_key(EXCLUDED), excluded, "{mode} {said:?}: {annotations:?}");
            });
        }
    }
}

#[test]
fn a_deployment_may_name_reasons_that_are_failures_of_its_machines() {
    for (named, quick) in [(None, false), (Some("NoFloorSpace, HostsFull"), true)] {
        scenario(async {
            let rig = Rig::new(json!({})).await;
            rig.create(cluster_api::template(NAMESPACE, "stuck", json!({"never": true}))).await;
            let mut annotations = vec![(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.1")];
            annotations.extend(named.map(|named| ("karpenter.cluster.x-k8s.io/failure-reasons", named)));
            let m = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "stuck", &annotations);
            rig.create(m).await;
            rig.deployment("m2", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
            let full = Arc::new(Full);
            rig.hub.plant(full as Arc<dyn Lens>);
            rig.karpenter.start();
            rig.want(1);
            let took = rig.until("another serves", 10 * MINUTE, |objects| initialized(objects) == 1).await;
            assert_eq!(took < 2 * MINUTE, quick, "{named:?}: {took:?}");
            if quick {
                let told = rig.resource("m").await.unavailable.unwrap_or_default();
                assert!(told.contains("HostsFull: no host has room"), "{told}");
            }
        });
    }
}

/// Has the infrastructure of Machines without an id say why, in words of its own.
struct Full;

impl Lens for Full {
    fn shown(&self, kind: &str, object: &mut Value) {
        if kind == "Machine" && object["spec"]["providerID"].as_str().unwrap_or_default().is_empty() {
            let full = json!({
                "type": "InfrastructureReady", "status": "False", "reason": "HostsFull",
                "message": "no host has room", "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let is_stuck = object["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] == "m";
            if let (true, Some(conditions)) = (is_stuck, object["status"]["conditions"].as_array_mut()) {
                conditions.retain(|condition| condition["type"] != "InfrastructureReady");
                conditions.push(full);
            }
        }
    }
}

#[test]
fn what_is_reserved_is_used_first_and_no_more_of_it_than_there_is() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let reserved = [
            (MAX, "10"),
            ("karpenter.cluster.x-k8s.io/capacity-type", "reserved"),
            ("karpenter.cluster.x-k8s.io/reservation-capacity", "2"),
            ("karpenter.cluster.x-k8s.io/price", "0.1"),
        ];
        rig.deployment("booked", &reserved).await;
        rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.2")]).await;
        rig.karpenter.start();
        rig.pass(20 * SECOND).await;
        rig.want(3);
        rig.until("three nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 3).await;
        let kinds = |objects: &Objects| {
            let label = |claim: &NodeClaim, key: &str| {
                claim.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default()
            };
            let mut kinds: Vec<(String, String)> = objects
                .node_claims
                .values()
                .map(|claim| {
                    let id = label(claim, "karpenter.cluster.x-k8s.io/reservation-id");
                    (label(claim, "karpenter.sh/capacity-type"), id)
                })
                .collect();
            kinds.sort();
            kinds
        };
        let of = |kind: &str, id: &str| (kind.to_owned(), id.to_owned());
        let expected = [of("on-demand", ""), of("reserved", "booked"), of("reserved", "booked")];
        assert_eq!(rig.read(kinds), expected);
        assert_eq!((rig.replicas("booked"), rig.replicas("m")), (2, 1));
        // One that ends leaves its place to the next.
        let booked = rig.read(|objects| {
            let target = |claim: &NodeClaim| {
                let annotations = claim.metadata.annotations.clone().unwrap_or_default();
                annotations.get("karpenter.cluster.x-k8s.io/target").cloned().unwrap_or_default()
            };
            let mut all = objects.node_claims.iter();
            all.find(|(_, claim)| target(claim).ends_with("/booked")).map(|(key, _)| key.name.to_string())
        });
        rig.want(2);
        rig.delete_claim(&booked.expect("a reserved one")).await;
        rig.until("it is gone", 5 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.want(4);
        rig.until("four nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 4).await;
        assert_eq!((rig.replicas("booked"), rig.replicas("m")), (2, 2));
        rig.pass(2 * MINUTE).await;
        rig.at_rest();
    });
}
