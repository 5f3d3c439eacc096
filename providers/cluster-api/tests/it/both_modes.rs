//! Scenarios that come out alike whether nodes are replicas of a MachineDeployment or Machines of their own.

use std::collections::BTreeMap;

use karpenter_api::NodePool;
use karpenter_cloudprovider::CloudProvider as _;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::{Fault, FaultPlan};
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::rig::{MAX, MINUTE, NAMESPACE, Rig, SECOND, claimed, initialized, launched, made_from, scenario};

const CLAIM: &str = "karpenter.cluster.x-k8s.io/nodeclaim";
const PRICE: &str = "karpenter.cluster.x-k8s.io/price";
const CPU: &str = "capacity.cluster-autoscaler.kubernetes.io/cpu";

/// Plays a scenario in both modes: with a NodeClass that says this, and whether a level is scaled.
fn in_both_modes(class: Value, play: impl AsyncFn(Value, bool)) {
    for mode in ["MachineDeployment", "Machine"] {
        eprintln!("launchMode {mode}");
        let mut class = class.clone();
        class["launchMode"] = mode.into();
        scenario(play(class, mode == "MachineDeployment"));
    }
}

/// The replicas there are to be where Machines are asked for by level; otherwise there is none.
fn level(scaled: bool, nodes: i64) -> i64 {
    if scaled { nodes } else { 0 }
}

fn node_pool() -> NodePool {
    let pool = json!({"metadata": {"name": "default"}, "spec": {"template": {"spec": {
        "requirements": [], "nodeClassRef": {
            "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
        },
    }}}});
    serde_json::from_value(pool).expect("a NodePool")
}

fn names(objects: &Objects) -> Vec<String> {
    objects.node_claims.keys().map(|key| key.name.to_string()).collect()
}

/// NodeClaims that are to stay.
fn living(objects: &Objects) -> Vec<String> {
    let all = objects.node_claims.iter().filter(|(_, claim)| claim.metadata.deletion_timestamp.is_none());
    all.map(|(key, _)| key.name.to_string()).collect()
}

#[test]
fn a11_slow_machines_are_waited_for() {
    in_both_modes(json!({"timeouts": {"launch": "60m"}}), async |class, scaled| {
        let rig = Rig::new(class).await;
        let slow = json!({"provisionSeconds": 25 * 60, "joinSeconds": 120});
        rig.create(cluster_api::template(NAMESPACE, "metal", slow)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "m", "metal", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(1);
        rig.pass(20 * MINUTE).await;
        let told = rig.read(launched);
        assert!(told.iter().all(|(reason, _)| reason == "InfraProvisioning"), "{told:?}");
        let took = rig.until("the node is ready", 20 * MINUTE, |objects| initialized(objects) == 1).await;
        assert!(took < 8 * MINUTE, "{took:?} after the first twenty minutes");
        assert_eq!((rig.read(names), rig.resource("m").await.unavailable), (vec!["n1".to_owned()], None));
        assert_eq!(rig.replicas("m"), level(scaled, 1));
        assert_eq!(rig.read(|objects| objects.machines.len()), 1);
        rig.at_rest();
    });
}

#[test]
fn a12_a_machine_that_never_comes_is_given_up_with_its_node_claim() {
    in_both_modes(json!({"timeouts": {"launch": "10m"}}), async |class, scaled| {
        let rig = Rig::new(class).await;
        rig.create(cluster_api::template(NAMESPACE, "stuck", json!({"never": true}))).await;
        let cheap = [(MAX, "10"), (PRICE, "0.1")];
        rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "m", "stuck", &cheap)).await;
        rig.deployment("m2", &[(MAX, "10"), (PRICE, "0.2")]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("it is given up", 11 * MINUTE, |objects| {
            names(objects) != ["n1"] && !names(objects).is_empty()
        })
        .await;
        rig.pass(20 * SECOND).await;
        let types = rig.provider().get_instance_types(&node_pool()).await.expect("types");
        let offered = |name: &str| {
            let found = types.iter().find(|found| &*found.name == name).expect("a type");
            found.offerings.iter().any(|offering| offering.available)
        };
        assert_eq!((offered("m"), offered("m2")), (false, true), "nobody tries it again for a while");
        rig.until("another serves", MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(5 * MINUTE).await;
        let made = rig.read(|objects| (made_from(objects, "stuck"), made_from(objects, "t")));
        assert_eq!(
            (made, rig.read(|objects| objects.machines.len())),
            ((0, 1), 1),
            "nothing is left of the first"
        );
        assert_eq!((rig.replicas("m"), rig.replicas("m2")), (0, level(scaled, 1)));
        let scales = rig.writes("machinedeployments/m/scale");
        assert_eq!(scales, if scaled { 2 } else { 0 }, "raised once and lowered once");
        rig.at_rest();
    });
}

#[test]
fn a13_a_terminal_failure_is_answered_at_once() {
    for failure_domain in [None, Some("rack-1")] {
        in_both_modes(json!({}), async |class, scaled| {
            let rig = Rig::new(class).await;
            let fails = json!({"fails": {"seconds": 20, "reason": "InsufficientResources", "message": "no host has room"}});
            rig.create(cluster_api::template(NAMESPACE, "full", fails)).await;
            let cheap = [(MAX, "10"), (PRICE, "0.1")];
            let mut deployment = cluster_api::machine_deployment(NAMESPACE, "c", "m", "full", &cheap);
            deployment["spec"]["template"]["spec"]["failureDomain"] = failure_domain.into();
            rig.create(deployment).await;
            rig.deployment("m2", &[(MAX, "10"), (PRICE, "0.2")]).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the infrastructure says so", MINUTE, |objects| {
                objects
                    .sim_machines
                    .values()
                    .any(|found| found.data.pointer("/status/failureReason").is_some())
            })
            .await;
            let given_up = |objects: &Objects| {
                let first = objects.node_claims.iter().find(|(key, _)| &*key.name == "n1");
                first.is_none_or(|(_, claim)| claim.metadata.deletion_timestamp.is_some())
            };
            let took = rig.until("the NodeClaim fails", MINUTE, given_up).await;
            assert!(took <= 5 * SECOND, "{failure_domain:?}: {took:?}");
            let told = rig.read(launched);
            let is_told = |(reason, message): &(String, String)| {
                reason == "insufficient_capacity" && message.contains("no host has room")
            };
            assert!(told.iter().any(is_told), "{failure_domain:?}: {told:?}");
            let took = rig.until("another serves", 5 * MINUTE, |objects| initialized(objects) == 1).await;
            assert!(took < MINUTE, "{failure_domain:?}: {took:?}");
            rig.pass(5 * MINUTE).await;
            let made = rig.read(|objects| (made_from(objects, "full"), made_from(objects, "t")));
            assert_eq!(made, (0, 1), "{failure_domain:?}: what failed is gone");
            assert_eq!((rig.replicas("m"), rig.replicas("m2")), (0, level(scaled, 1)), "{failure_domain:?}");
            rig.at_rest();
        });
    }
}

#[test]
fn a15_other_clusters_of_the_hub_are_neither_read_nor_written() {
    in_both_modes(json!({}), async |class, _| {
        let rig = Rig::new(class).await;
        rig.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        rig.create(cluster_api::cluster("other", "c")).await;
        rig.create(cluster_api::template("other", "t", json!({}))).await;
        rig.create(cluster_api::cluster(NAMESPACE, "d")).await;
        let cheap = [(PRICE, "0.001")];
        rig.create(cluster_api::machine_deployment("other", "c", "m", "t", &cheap)).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, "d", "x", "t", &cheap)).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 3).await;
        let foreign = |objects: &Objects| {
            let theirs =
                objects.machines.keys().filter(|key| &*key.namespace == "other" || key.name.starts_with('x'));
            theirs.count()
        };
        assert_eq!((rig.read(foreign), rig.writes("/namespaces/other/"), rig.replicas("x")), (0, 0, 0));
        // One of the same name, id and claim, in a Cluster of the same name; and one of another id that nobody launched.
        let (name, claim, twin) = rig.read(|objects| {
            let (key, machine) = objects.machines.iter().next().expect("a Machine");
            let claim = machine.metadata.annotations.as_ref().and_then(|a| a.get(CLAIM)).cloned();
            (key.name.to_string(), claim.expect("claimed"), serde_json::to_value(&**machine).expect("JSON"))
        });
        for (name, id) in [(name.as_str(), None), ("stranger", Some("sim://other/stranger"))] {
            let mut twin = twin.clone();
            for given in [
                "uid",
                "resourceVersion",
                "ownerReferences",
                "finalizers",
                "creationTimestamp",
                "managedFields",
            ] {
                twin["metadata"].as_object_mut().expect("metadata").remove(given);
            }
            twin["metadata"]["name"] = name.into();
            twin["metadata"]["namespace"] = "other".into();
            // No MachineSet there takes it for its own.
            twin["metadata"]["labels"] =
                json!({"cluster.x-k8s.io/cluster-name": "c", "node.cluster.x-k8s.io/karpenter-member": ""});
            if let Some(id) = id {
                twin["spec"]["providerID"] = id.into();
            }
            rig.create(twin).await;
        }
        rig.pass(MINUTE).await;
        let listed = rig.provider().list().await.expect("a list");
        let ids = listed.iter().filter_map(|claim| claim.status.as_ref()?.provider_id.clone());
        let ours = rig.read(|objects| {
            let ours = objects.machines.iter().filter(|(key, _)| &*key.namespace == NAMESPACE);
            ours.map(|(_, machine)| {
                machine.data["spec"]["providerID"].as_str().unwrap_or_default().to_owned()
            })
            .collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(
            (ids.collect::<std::collections::BTreeSet<_>>(), listed.len()),
            (ours, 3),
            "those of ours alone"
        );
        rig.want(2);
        rig.delete_claim(&claim).await;
        rig.until("one is gone", 10 * MINUTE, |objects| objects.node_claims.len() == 2).await;
        rig.pass(5 * MINUTE).await;
        let left: Vec<String> = rig.read(|objects| {
            let alike = objects.machines.keys().filter(|key| *key.name == *name);
            alike.map(|key| key.namespace.to_string()).collect()
        });
        assert_eq!((left, rig.writes("/namespaces/other/")), (vec!["other".to_owned()], 0));
    });
}

#[test]
fn a16_a_management_cluster_that_is_away_costs_no_node() {
    in_both_modes(json!({}), async |class, scaled| {
        // Some of what is asked for just before and after is done, and nobody hears of it.
        let hub = FaultPlan::none().with(Fault::LostReply, 0.2);
        let rig = Rig::seeded(1, class, FaultPlan::none(), hub).await;
        rig.deployment("m", &[(MAX, "30")]).await;
        rig.karpenter.start();
        rig.want(20);
        rig.until("all nodes are ready", 20 * MINUTE, |objects| initialized(objects) == 20).await;
        let served = rig.read(names);
        rig.want(21);
        rig.pass(SECOND).await;
        rig.hub.cut_off(40 * MINUTE);
        rig.want(23);
        let before = rig.read(names);
        let silent = rig.read(|objects| objects.nodes.keys().next().map(|key| key.name.to_string()));
        let silent = silent.expect("a Node");
        rig.world.cluster().set_kubelet(&silent, false);
        for _ in 0..39 {
            rig.pass(MINUTE).await;
            assert!(rig.read(|objects| objects.nodes.len()) >= 20);
            let now = rig.read(living);
            assert!(
                before.iter().all(|name| now.contains(name)),
                "no NodeClaim is gone, or is to go: {now:?}"
            );
        }
        let ready = rig.read(|objects| {
            let node =
                objects.nodes.iter().find(|(key, _)| *key.name == *silent).map(|(_, node)| node.clone());
            node.and_then(|node| karpenter_sim::objects::node_ready(&node).map(str::to_owned))
        });
        assert_ne!(ready.as_deref(), Some("True"), "its kubelet has been silent");
        assert_eq!(rig.read_node_class_condition("ManagementClusterReady").await.as_deref(), Some("False"));
        rig.until("the new pods are served", 30 * MINUTE, |objects| initialized(objects) == 23).await;
        rig.pass(12 * MINUTE).await;
        let now = rig.read(living);
        assert!(served.iter().all(|name| now.contains(name)), "nor afterwards: {now:?}");
        let machines = rig.read(|objects| objects.machines.len());
        assert_eq!((machines, rig.read(claimed), rig.replicas("m")), (23, 23, level(scaled, 23)));
        rig.at_rest();
    });
}

#[test]
fn a17_a_cluster_that_is_paused_while_nodes_are_launched_is_not_written_to_and_goes_on() {
    let limited = json!({"timeouts": {"launch": "60m"}, "launchLimits": {"perMinute": 2}});
    in_both_modes(limited, async |class, scaled| {
        let rig = Rig::new(class).await;
        rig.create(cluster_api::template(NAMESPACE, "slow", json!({"provisionSeconds": 60}))).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, "c", "m", "slow", &[(MAX, "10")])).await;
        rig.karpenter.start();
        rig.want(3);
        rig.until("two of three Machines", MINUTE, |objects| claimed(objects) == 2).await;
        rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": true}})).await;
        let written =
            || rig.writes("/apis/cluster.x-k8s.io") + rig.writes("/apis/infrastructure.cluster.x-k8s.io");
        rig.pass(5 * SECOND).await;
        let before = written();
        rig.pass(5 * MINUTE).await;
        let told = rig.resource("m").await.unavailable.unwrap_or_default();
        assert!(told.starts_with("Paused"), "{told}");
        // One that is to go waits, too.
        rig.delete_claim("n1").await;
        rig.pass(5 * MINUTE).await;
        assert_eq!((written(), rig.read(claimed)), (before, 2), "nothing is written");
        assert!(rig.read(names).contains(&"n1".to_owned()), "what is to go waits");
        rig.patch(Kind::Cluster, "c", json!({"spec": {"paused": false}})).await;
        rig.until("all nodes are ready", 20 * MINUTE, |objects| {
            initialized(objects) == 3 && objects.node_claims.len() == 3
        })
        .await;
        rig.pass(10 * MINUTE).await;
        assert_eq!((rig.read(|objects| objects.machines.len()), rig.replicas("m")), (3, level(scaled, 3)));
        rig.at_rest();
    });
}

#[test]
fn a19_hooks_of_others_are_waited_for() {
    in_both_modes(json!({}), async |class, _| {
        let rig = Rig::new(class).await;
        rig.deployment("m", &[(MAX, "20")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("all nodes are ready", 10 * MINUTE, |objects| initialized(objects) == 2).await;
        let (machine, claim) = rig.read(|objects| {
            let (key, machine) = objects.machines.iter().next().expect("a Machine");
            let claim = machine.metadata.annotations.as_ref().and_then(|a| a.get(CLAIM)).cloned();
            (key.name.to_string(), claim.expect("claimed"))
        });
        let hook = "pre-drain.delete.hook.machine.cluster.x-k8s.io/backup";
        rig.patch(Kind::Machine, &machine, json!({"metadata": {"annotations": {hook: ""}}})).await;
        rig.want(1);
        rig.delete_claim(&claim).await;
        rig.pass(15 * MINUTE).await;
        assert!(rig.read(|objects| objects.node_claims.len()) == 2, "nothing is forced");
        let leaving = |objects: &Objects| {
            let found = objects.machines.iter().find(|(key, _)| *key.name == *machine);
            found.is_some_and(|(_, machine)| machine.metadata.deletion_timestamp.is_some())
        };
        assert!(rig.read(leaving));
        let told = rig.events("DeletionStalled").await;
        assert!(told.iter().any(|said| said.contains(&machine) && said.contains(hook)), "{told:?}");
        rig.patch(Kind::Machine, &machine, json!({"metadata": {"annotations": {hook: null}}})).await;
        rig.until("it is gone", 5 * MINUTE, |objects| {
            objects.node_claims.len() == 1 && objects.machines.len() == 1
        })
        .await;
        rig.pass(5 * MINUTE).await;
        rig.at_rest();
    });
}

#[test]
fn a20_bad_annotations_are_named_and_the_others_work() {
    in_both_modes(json!({}), async |class, _| {
        let rig = Rig::new(class).await;
        for name in ["t1", "t2", "t3"] {
            rig.create(cluster_api::template(
                NAMESPACE,
                name,
                json!({"provisionSeconds": 3, "joinSeconds": 2}),
            ))
            .await;
        }
        let deployment = |name: &str, template: &str, annotations: &[(&str, &str)]| {
            cluster_api::machine_deployment(NAMESPACE, "c", name, template, annotations)
        };
        rig.create(deployment("m", "t1", &[(CPU, "sixteen")])).await;
        let mut no_memory = deployment("m2", "t2", &[]);
        let annotations = no_memory["metadata"]["annotations"].as_object_mut().expect("annotations");
        annotations.remove("capacity.cluster-autoscaler.kubernetes.io/memory");
        rig.create(no_memory).await;
        rig.create(deployment("m3", "t3", &[(PRICE, "9")])).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the good one serves", 5 * MINUTE, |objects| made_from(objects, "t3") == 1).await;
        rig.pass(2 * MINUTE).await;
        let message = rig.node_class_message("InstanceTypesResolved").await;
        let told = rig.events("ResourceLeftOut").await;
        for texts in [["fleet/m", "cpu: \"sixteen\""], ["fleet/m2", "memory: is missing"]] {
            assert!(texts.iter().all(|text| message.contains(text)), "{texts:?} in {message}");
            let is_told = |said: &String| texts.iter().all(|text| said.contains(text));
            assert!(told.iter().any(is_told), "{texts:?} in {told:?}");
        }
        let good = json!({"metadata": {"annotations": {CPU: "4"}}});
        rig.patch(Kind::MachineDeployment, "m", good).await;
        rig.want(2);
        rig.until("the mended one serves", 5 * MINUTE, |objects| made_from(objects, "t1") == 1).await;
        rig.until("all nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        assert_eq!(rig.karpenter.lives(), 1, "without a restart");
        rig.at_rest();
    });
}

#[test]
fn a24_what_we_do_not_know_of_machines_is_as_it_was_when_versions_change() {
    in_both_modes(json!({}), async |class, scaled| {
        let rig = Rig::new(class).await;
        let unknown = json!({"of a later release": [1, {"two": null}], "text": "as it is"});
        let mut deployment = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[(MAX, "20")]);
        deployment["spec"]["unknownToUs"] = unknown.clone();
        deployment["spec"]["template"]["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 90});
        rig.create(deployment).await;
        rig.capi.serve(&["v1beta1"]).await.expect("the old version");
        rig.karpenter.start();
        rig.want(8);
        rig.until("eight nodes", 10 * MINUTE, |objects| initialized(objects) == 8).await;
        rig.capi.serve(&["v1beta1", "v1beta2"]).await.expect("both versions");
        let machines: Vec<String> =
            rig.read(|objects| objects.machines.keys().map(|key| key.name.to_string()).collect());
        for name in &machines {
            let change =
                json!({"spec": {"unknownToUs": unknown}, "metadata": {"annotations": {"theirs": "x"}}});
            rig.patch(Kind::Machine, name, change).await;
        }
        let specs = |objects: &Objects| -> BTreeMap<String, String> {
            let spec = |machine: &DynamicObject| machine.data["spec"].to_string();
            let first = objects.machines.iter().filter(|(key, _)| machines.contains(&key.name.to_string()));
            first.map(|(key, machine)| (key.name.to_string(), spec(machine))).collect()
        };
        let before = rig.read(specs);
        rig.want(10);
        rig.pass(5 * SECOND).await;
        rig.capi.serve(&["v1beta2"]).await.expect("the new version");
        rig.until("launches finish", 15 * MINUTE, |objects| initialized(objects) == 10).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read(specs), before, "byte by byte");
        let patient = |machine: &&std::sync::Arc<DynamicObject>| {
            machine.data.pointer("/spec/deletion") == Some(&json!({"nodeDrainTimeoutSeconds": 90}))
        };
        let patient = rig.read(|objects| objects.machines.values().filter(patient).count());
        assert_eq!(patient, 10, "whichever version their template was read in");
        let kept = rig.read(|objects| {
            let deployment = objects.machine_deployments.values().next().cloned();
            deployment.and_then(|found| found.data.pointer("/spec/unknownToUs").cloned())
        });
        assert_eq!((kept, rig.replicas("m")), (Some(unknown.clone()), level(scaled, 10)));
        let puts = rig.world.cluster().tape(|tape| {
            let ours = tape.entries().iter().filter(|entry| entry.actor.starts_with("karpenter"));
            ours.filter(|entry| {
                entry.deed.starts_with("PUT") && entry.deed.contains("/apis/cluster.x-k8s.io")
            })
            .count()
        });
        assert_eq!(puts, 0, "no object was written as a whole");
        rig.at_rest();
    });
}

/// What is stored of the only Machine, at a pointer.
fn stored(rig: &Rig, pointer: &str) -> Value {
    rig.read(|objects| {
        let machine = objects.machines.values().next().expect("a Machine");
        machine.data.pointer(pointer).cloned().unwrap_or_default()
    })
}

#[test]
fn a24_a_management_cluster_of_the_old_version_is_read_and_written_as_that_has_it() {
    in_both_modes(json!({"drift": "Karpenter"}), async |class, scaled| {
        let rig = Rig::new(class).await;
        rig.create(cluster_api::config_template(NAMESPACE, "join", 60)).await;
        let mut deployment = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[(MAX, "20")]);
        deployment["spec"]["rollout"] = json!({"strategy": {"type": "OnDelete"}});
        let made_of = &mut deployment["spec"]["template"]["spec"];
        made_of["deletion"] = json!({"nodeDrainTimeoutSeconds": 90});
        made_of["bootstrap"] = json!({"configRef": {
            "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "SimConfigTemplate", "name": "join",
        }});
        rig.create(deployment).await;
        let domains = json!({"status": {"failureDomains": [{"name": "a"}, {"name": "b"}]}});
        rig.patch_status(Kind::Cluster, "c", domains).await;
        rig.capi.serve(&["v1beta1"]).await.expect("the old version");
        rig.karpenter.start();
        if scaled {
            rig.want(1);
        } else {
            rig.claim_in("n1", "b").await;
        }
        rig.pass(30 * SECOND).await;
        let told = rig.read(launched);
        assert!(
            told.len() == 1 && told[0].0 == "BootstrapPending",
            "by a condition of the newer kind: {told:?}"
        );
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(MINUTE).await;
        let told = rig.events("RolloutStrategy").await;
        assert!(told.is_empty(), "its strategy is known: {told:?}");
        let machine = rig.read(|objects| objects.machines.keys().next().map(|key| key.name.to_string()));
        let machine = machine.expect("a Machine");
        for (pointer, kind) in
            [("/spec/infrastructureRef", "SimMachine"), ("/spec/bootstrap/configRef", "SimConfig")]
        {
            let reference = stored(&rig, pointer);
            assert_eq!((&reference["kind"], &reference["name"]), (&json!(kind), &json!(machine)));
            let group = reference["apiGroup"].as_str().unwrap_or_default();
            assert!(group.ends_with(".cluster.x-k8s.io"), "what it refers to has a group: {reference}");
        }
        assert_eq!(
            stored(&rig, "/spec/deletion"),
            json!({"nodeDrainTimeoutSeconds": 90}),
            "as its template says"
        );
        if !scaled {
            assert_eq!(stored(&rig, "/spec/failureDomain"), json!("b"), "one of the Cluster's");
        }
        // People may ask in the new version from now on; Karpenter goes by the one it found.
        rig.capi.serve(&["v1beta1", "v1beta2"]).await.expect("both versions");
        let change = json!({"spec": {"template": {"spec": {"version": "v1.36.9"}}}});
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.pass(MINUTE).await;
        assert_eq!(rig.drifted("n1").as_deref(), Some("KubernetesVersionDrift"));
        if !scaled {
            let conditions = stored(&rig, "/status/conditions");
            let up_to_date = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "UpToDate");
            let up_to_date = up_to_date.expect("a condition of the newer kind");
            assert_eq!(
                (&up_to_date["status"], &up_to_date["reason"]),
                (&json!("False"), &json!("NotUpToDate"))
            );
        }
        let hook = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/backup";
        let annotate = |value: Value| json!({"metadata": {"annotations": {hook: value}}});
        rig.patch(Kind::Machine, &machine, annotate("".into())).await;
        let by = rig.world.cluster().now() + jiff::SignedDuration::from_mins(2);
        rig.annotate_claim("n1", "karpenter.sh/nodeclaim-termination-timestamp", &by.to_string()).await;
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.pass(5 * MINUTE).await;
        if !scaled {
            let given = json!({
                "nodeDrainTimeoutSeconds": 1, "nodeVolumeDetachTimeoutSeconds": 1, "nodeDeletionTimeoutSeconds": 1,
            });
            assert_eq!(stored(&rig, "/spec/deletion"), given, "it is overdue");
        }
        let writes = rig.writes(&format!("/machines/{machine}"));
        assert!(writes <= 6, "once each: {writes}");
        rig.patch(Kind::Machine, &machine, annotate(Value::Null)).await;
        rig.until("it is gone", 5 * MINUTE, |objects| objects.machines.is_empty()).await;
        rig.until("and its NodeClaim", 5 * MINUTE, |objects| objects.node_claims.is_empty()).await;
        assert_eq!(rig.writes("/apis/cluster.x-k8s.io/v1beta2/"), 0, "all of that in the old version");
        rig.at_rest();
    });
}

#[test]
fn a10_a_machine_that_would_be_made_otherwise_now_has_drifted_and_says_why() {
    let changes = [
        ("KubernetesVersionDrift", json!({"version": "v1.37.0"})),
        ("FailureDomainDrift", json!({"failureDomain": "rack-2"})),
        ("MachineTemplateDrift", json!({"infrastructureRef": {"name": "other"}})),
    ];
    for (reason, change) in changes {
        in_both_modes(json!({"drift": "Karpenter"}), async |class, _| {
            let rig = Rig::new(class).await;
            rig.create(cluster_api::template(NAMESPACE, "other", json!({"provisionSeconds": 3}))).await;
            let mut deployment = cluster_api::machine_deployment(NAMESPACE, "c", "m", "t", &[(MAX, "10")]);
            deployment["spec"]["rollout"] = json!({"strategy": {"type": "OnDelete"}});
            deployment["spec"]["template"]["spec"]["failureDomain"] = "rack-1".into();
            rig.create(deployment).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.drifted("n1"), None);
            rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"template": {"spec": change}}})).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.drifted("n1").as_deref(), Some(reason));
        });
    }
}
