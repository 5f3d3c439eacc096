//! Whose Machines, and how they are made: several clusters in one hub, ClusterClass, Machine mode, migration.

use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::{Fault, FaultPlan};
use serde_json::{Value, json};

use crate::rig::{MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, replicas, scenario};

const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";

#[test]
fn a_node_class_for_another_cluster_or_namespace_offers_nothing_and_says_so() {
    for (other, ours) in [
        (
            json!({"clusterRef": {"name": "d", "namespace": NAMESPACE}}),
            json!({"clusterRef": {"name": "c", "namespace": NAMESPACE}}),
        ),
        (json!({"namespaces": ["other", "another"]}), json!({"namespaces": ["other", NAMESPACE]})),
    ] {
        scenario(async {
            let rig = Rig::new(other).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(1);
            rig.pass(3 * MINUTE).await;
            assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (0, 0));
            let told = rig.node_class_message("ScalableResourcesResolved").await;
            assert!(told.starts_with("this cluster is Cluster fleet/c, and spec.clusterRef"), "{told}");
            rig.patch_node_class(json!({"spec": ours})).await;
            rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
            rig.pass(2 * MINUTE).await;
            let resolved = rig.read_node_class_condition("ScalableResourcesResolved").await;
            assert_eq!(resolved.as_deref(), Some("True"));
        });
    }
}

fn owned_by_topology() -> Value {
    let mut owned = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[(MAX, "10")]);
    owned["metadata"]["labels"]["topology.cluster.x-k8s.io/owned"] = "".into();
    owned["metadata"]["labels"]["topology.cluster.x-k8s.io/deployment-name"] = "workers".into();
    // The topology controller copies labels to the template: Machines are born with the member label.
    owned["spec"]["template"]["metadata"]["labels"]["node.cluster.x-k8s.io/karpenter-member"] = "".into();
    owned
}

fn topology_of_two() -> Value {
    let workers = json!([{"name": "workers", "replicas": 2}]);
    json!({"spec": {"topology": {"workers": {"machineDeployments": workers}}}})
}

#[test]
fn a21_replicas_that_a_topology_has_taken_are_left_to_it_before_any_watch_tells() {
    scenario(async {
        let late = FaultPlan::none().with(Fault::StaleWatch, 1.0);
        let rig = Rig::seeded(1, json!({}), FaultPlan::none(), late).await;
        rig.create(owned_by_topology()).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.pass(MINUTE).await;
        let scales = rig.writes("/scale");
        rig.patch(Kind::Cluster, "c", topology_of_two()).await;
        rig.want(3);
        rig.pass(2 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.writes("/scale")), (2, scales));
    });
}

#[test]
fn a21_a_topology_works_as_long_as_it_sets_no_replicas() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.create(owned_by_topology()).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        rig.patch(Kind::Cluster, "c", topology_of_two()).await;
        rig.pass(5 * SECOND).await;
        let scales = rig.writes("/scale");
        rig.want(3);
        rig.pass(5 * MINUTE).await;
        assert_eq!((rig.replicas("m"), rig.writes("/scale")), (2, scales), "no fight over replicas");
        let told = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(told.starts_with("ReplicasOwnedByTopology: "), "{told}");
    });
}

#[test]
fn machines_of_a_deployment_that_was_taken_out_are_its_owners() {
    for opt_out in [
        json!({"metadata": {"labels": {"node.cluster.x-k8s.io/karpenter-member": "false"}}}),
        json!({"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "external-autoscaler"}}}),
    ] {
        scenario(async move {
            let rig = Rig::new(json!({})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.karpenter.start();
            rig.want(3);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
            rig.patch(Kind::MachineDeployment, "m", opt_out).await;
            rig.pass(5 * SECOND).await;
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 6}})).await;
            rig.pass(30 * MINUTE).await;
            let marked = || {
                rig.read(|objects| {
                    let annotations =
                        objects.machines.values().filter_map(|m| m.metadata.annotations.as_ref());
                    annotations.filter(|all| all.contains_key("cluster.x-k8s.io/delete-machine")).count()
                })
            };
            let machines = || rig.read(|objects| objects.machines.len());
            assert_eq!((machines(), marked(), rig.replicas("m")), (6, 0, 6));
            // And so they are when it takes part again.
            let back = json!({"metadata": {
                "labels": {"node.cluster.x-k8s.io/karpenter-member": ""},
                "annotations": {"cluster.x-k8s.io/replicas-managed-by": null},
            }});
            rig.patch(Kind::MachineDeployment, "m", back).await;
            rig.pass(30 * MINUTE).await;
            assert_eq!((machines(), marked(), rig.replicas("m")), (6, 0, 6));
            let protected = rig.read(|objects| {
                let deployment = objects.machine_deployments.values().next()?;
                let annotations = deployment.metadata.annotations.as_ref()?;
                annotations.get("karpenter.cluster.x-k8s.io/protected-replicas").cloned()
            });
            assert_eq!(protected.as_deref(), Some("3"));
            rig.want(4);
            rig.until("another one is launched", 10 * MINUTE, |objects| initialized(objects) == 4).await;
            assert_eq!(rig.replicas("m"), 7);
            rig.at_rest();
        });
    }
}

#[test]
fn a_node_claim_ends_also_where_its_replicas_are_somebody_elses() {
    let topology = json!({"spec": {"topology": {"workers": {"machineDeployments": [{"name": "workers", "replicas": 2}]}}}});
    let managed =
        json!({"metadata": {"annotations": {"cluster.x-k8s.io/replicas-managed-by": "external-autoscaler"}}});
    for (kind, name, hand_over) in [(Kind::Cluster, "c", topology), (Kind::MachineDeployment, "m", managed)] {
        scenario(async move {
            let rig = Rig::new(json!({})).await;
            let mut owned = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[(MAX, "10")]);
            owned["metadata"]["labels"]["topology.cluster.x-k8s.io/owned"] = "".into();
            owned["metadata"]["labels"]["topology.cluster.x-k8s.io/deployment-name"] = "workers".into();
            rig.create(owned).await;
            rig.karpenter.start();
            rig.want(2);
            rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
            rig.patch(kind, name, hand_over).await;
            rig.pass(MINUTE).await;
            let scales = rig.writes("/scale");
            let machine = rig.read(|objects| {
                let mut machines = objects.machines.iter();
                let claim =
                    |m: &kube::api::DynamicObject| m.metadata.annotations.as_ref()?.get(CLAIM).cloned();
                machines.find(|(_, m)| claim(m).as_deref() == Some("n1")).map(|(key, _)| key.clone())
            });
            let machine = machine.expect("the Machine of n1");
            rig.want(1);
            rig.delete_claim("n1").await;
            rig.until("it ends, with its Machine", 10 * MINUTE, |objects| {
                objects.node_claims.len() == 1 && !objects.machines.contains_key(&machine)
            })
            .await;
            rig.pass(10 * MINUTE).await;
            assert_eq!((rig.replicas("m"), rig.writes("/scale")), (2, scales), "replicas are its owner's");
            let machines = rig.read(|objects| (objects.machines.len(), claimed(objects)));
            assert_eq!(machines, (2, 1), "who has another in its place");
        });
    }
}

#[test]
fn a22_machines_of_their_own_are_made_once() {
    scenario(async {
        let hub = FaultPlan::none().with(Fault::LostReply, 0.5);
        let rig = Rig::seeded(3, json!({"launchMode": "Machine"}), FaultPlan::none(), hub).await;
        let domains = json!({"status": {"failureDomains": [{"name": "a"}, {"name": "b"}]}});
        rig.patch_status(Kind::Cluster, "c", domains).await;
        let mut blueprint = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[]);
        blueprint["metadata"]["annotations"] = json!({});
        blueprint["spec"]["template"]["spec"]["bootstrap"] = json!({"configRef": {
            "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "SimConfigTemplate", "name": "join",
        }});
        rig.create(cluster_api::config_template(NAMESPACE, "join", 10)).await;
        rig.create(blueprint).await;
        let capacity = json!({"status": {"capacity": {"cpu": "4", "memory": "16Gi"}, "nodeInfo": {"architecture": "amd64"}}});
        rig.patch_status(Kind::SimMachineTemplate, "t", capacity).await;
        rig.karpenter.start();
        // As they are scheduled.
        let wanted = [("n-1", "a"), ("n-2", "b"), ("n-3", "a")];
        for (name, zone) in wanted {
            rig.claim_in(name, zone).await;
        }
        rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 3).await;
        rig.pass(10 * MINUTE).await;
        let made = |objects: &karpenter_sim::Objects| {
            (objects.machines.len(), objects.sim_machines.len(), objects.sim_configs.len())
        };
        assert_eq!((rig.read(made), rig.replicas("m")), ((3, 3, 3), 0));
        rig.read(|objects| {
            for (name, zone) in wanted {
                let (_, machine) = objects
                    .machines
                    .iter()
                    .find(|(key, _)| &*key.name == name)
                    .expect("named after its NodeClaim");
                assert_eq!(machine.data.pointer("/spec/failureDomain"), Some(&zone.into()), "{name}");
                let owners = machine.metadata.owner_references.clone().unwrap_or_default();
                assert!(owners.iter().all(|owner| owner.kind != "MachineSet"), "{name}: {owners:?}");
            }
        });
        for name in
            rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect::<Vec<_>>())
        {
            rig.delete_claim(&name).await;
        }
        rig.until("everything is gone", 10 * MINUTE, |objects| {
            made(objects) == (0, 0, 0) && objects.node_claims.is_empty()
        })
        .await;
        rig.pass(10 * MINUTE).await;
        assert_eq!(rig.read(made), (0, 0, 0), "and nothing comes back");
    });
}

#[test]
fn a25_what_the_go_provider_bound_keeps_its_machine() {
    // Whichever way nodes are launched from now on.
    for mode in ["MachineDeployment", "Machine"] {
        scenario(async {
            let rig = Rig::without_rules(json!({"launchMode": mode})).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
            rig.until("two nodes", 5 * MINUTE, |objects| {
                objects.machines.values().filter(|m| m.data.pointer("/status/nodeRef/name").is_some()).count()
                    == 2
            })
            .await;
            let bound: Vec<(String, String)> = rig.read(|objects| {
                let id = |machine: &kube::api::DynamicObject| {
                    machine.data["spec"]["providerID"].as_str().unwrap_or_default().to_owned()
                };
                objects.machines.iter().map(|(key, machine)| (key.to_string(), id(machine))).collect()
            });
            // Two NodeClaims on the first Machine, the second one younger.
            for (name, (machine, id)) in [("g1", &bound[0]), ("g2", &bound[1]), ("g3", &bound[0])] {
                rig.bound_claim(name, machine, id).await;
                rig.pass(2 * SECOND).await;
            }
            rig.karpenter.start();
            rig.until("they are claimed", 5 * MINUTE, |objects| claimed(objects) == 2).await;
            rig.pass(2 * MINUTE).await;
            assert_eq!(rig.replicas("m"), 2);
            let owners = rig.read(|objects| {
                let owner = |machine: &std::sync::Arc<kube::api::DynamicObject>| {
                    machine
                        .metadata
                        .annotations
                        .as_ref()?
                        .get("karpenter.cluster.x-k8s.io/nodeclaim")
                        .cloned()
                };
                objects.machines.values().filter_map(owner).collect::<std::collections::BTreeSet<_>>()
            });
            assert_eq!(owners.into_iter().collect::<Vec<_>>(), ["g1", "g2"], "the older keeps it");
            rig.until("the younger ends", 5 * MINUTE, |objects| objects.node_claims.len() == 2).await;
            rig.pass(MINUTE).await;
            let told = rig.events("DuplicateMachine").await;
            assert!(told.iter().any(|message| message.contains(&bound[0].0)), "{told:?}");
            assert_eq!(rig.read(|objects| objects.nodes.len()), 2, "and leaves the Node to the other");
            let old = rig.read(|objects| {
                let annotations =
                    objects.node_claims.values().filter_map(|claim| claim.metadata.annotations.clone());
                annotations.filter(|all| all.contains_key("cluster.x-k8s.io/machine")).count()
            });
            assert_eq!(old, 0, "on Nodes that key is Cluster API's");
            let named = rig.read(|objects| {
                let named = objects.nodes.iter().map(|(key, node)| {
                    let annotations = node.metadata.annotations.as_ref();
                    (
                        key.name.to_string(),
                        annotations.and_then(|all| all.get("cluster.x-k8s.io/machine").cloned()),
                    )
                });
                named.collect::<Vec<_>>()
            });
            // Nodes are called as their Machines are here.
            assert!(
                named.iter().all(|(node, machine)| machine.as_deref() == Some(node)),
                "bare names: {named:?}"
            );
            assert_eq!(
                rig.read(|objects| (objects.machines.len(), replicas(objects, "m"))),
                (2, 2),
                "without taking the Machine along"
            );
            // Its pods are there still: it is made anew, with a Machine of its own.
            rig.want(3);
            rig.until("the younger is launched anew", 5 * MINUTE, |objects| {
                claimed(objects) == 3 && objects.node_claims.len() == 3
            })
            .await;
            rig.pass(5 * MINUTE).await;
            let level = if mode == "Machine" { 2 } else { 3 };
            assert_eq!(
                rig.read(|objects| (objects.machines.len(), replicas(objects, "m"))),
                (3, level),
                "{mode}"
            );
        });
    }
}
