//! Machine mode: what Machines are made from, when they are not made, what is left of those that never were, what they cost in writes,
//! and where they turn out to be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_cloudprovider::{CloudProvider as _, Launch};
use karpenter_provider_cluster_api::client::settings::Settings;
use karpenter_provider_cluster_api::client::sync_labels::SyncLabels;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::{self, Kind};
use karpenter_sim::faults::{FaultPlan, Lens};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::core;
use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, SECOND, initialized, launched, scenario};

const OWNER: &str = "karpenter.cluster.x-k8s.io/owner";
const TARGET: &str = "karpenter.cluster.x-k8s.io/target";
const ZONE: &str = "topology.kubernetes.io/zone";

/// A NodeClass that names its templates itself, one of which does not exist.
fn templates() -> Value {
    let reference = |name: &str| json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate", "name": name});
    let config =
        json!({"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "SimConfigTemplate", "name": "join"});
    json!({"launchMode": "Machine", "machineTemplates": [
        {"name": "small", "infrastructureRef": reference("small"), "bootstrapRef": config, "version": "v1.36.0",
            "failureDomains": ["a"]},
        {"name": "big", "infrastructureRef": reference("big"), "bootstrapDataSecretName": "join"},
        {"name": "lost", "infrastructureRef": reference("lost"), "bootstrapDataSecretName": "join"},
    ]})
}

/// Templates that say what their machines have, and no MachineDeployment.
async fn with_templates(rig: &Rig) {
    for (name, cpu) in [("small", "4"), ("big", "16")] {
        let behaviour = json!({"provisionSeconds": 3, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, name, behaviour)).await;
        let status = json!({"status": {"capacity": {"cpu": cpu, "memory": "16Gi"}}});
        rig.patch_status(Kind::SimMachineTemplate, name, status).await;
    }
    rig.create(json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "SimConfigTemplate",
        "metadata": {"name": "join", "namespace": NAMESPACE}, "spec": {"template": {"spec": {"files": []}}},
    }))
    .await;
}

#[test]
fn a_node_class_may_name_templates_in_place_of_machine_deployments() {
    scenario(async {
        let rig = Rig::new(templates()).await;
        with_templates(&rig).await;
        // One that takes part, if anybody asked for it.
        rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.0001")]).await;
        rig.karpenter.start();
        rig.want(2);
        rig.until("both nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        let made = rig.read(|objects| {
            let text = |machine: &kube::api::DynamicObject, path: &str| {
                machine.data.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
            };
            let facts = |machine: &Arc<kube::api::DynamicObject>| {
                ["/spec/infrastructureRef/kind", "/spec/version", "/spec/failureDomain"]
                    .map(|path| text(machine, path))
            };
            objects.machines.values().map(facts).collect::<Vec<_>>()
        });
        assert_eq!(made, [["SimMachine", "v1.36.0", "a"]; 2], "of the cheaper one, where its NodeClass says");
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.sim_configs.len())), (0, 2));
        let target = rig.read(|objects| {
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            let labels = claim.metadata.labels.clone().unwrap_or_default();
            let annotations = claim.metadata.annotations.clone().unwrap_or_default();
            (
                annotations[TARGET].clone(),
                labels["node.kubernetes.io/instance-type"].clone(),
                labels[ZONE].clone(),
            )
        });
        let wanted =
            ("Machine:MachineTemplate:fleet/default.small@a".to_owned(), "small".to_owned(), "a".to_owned());
        assert_eq!(target, wanted);
        rig.pass(MINUTE).await;
        let told = rig.resource("default.small").await;
        assert_eq!((told.instance_type.as_deref(), told.replicas), (Some("small"), None));
        let lost = rig.resource("default.lost").await.unavailable.unwrap_or_default();
        assert!(lost.contains("SimMachineTemplate fleet/lost does not exist"), "{lost}");
        rig.want(0);
        for name in names(&rig) {
            rig.delete_claim(&name).await;
        }
        rig.until("nothing is left", 5 * MINUTE, |objects| {
            objects.machines.is_empty() && objects.sim_machines.is_empty() && objects.sim_configs.is_empty()
        })
        .await;
    });
}

#[test]
fn templates_that_labels_select_are_instance_types_as_they_come_and_go() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine", "machineTemplateSelector": {
            "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate",
            "selector": {"matchLabels": {"pool": "workers"}}, "bootstrapDataSecretName": "join",
        }}))
        .await;
        // One that takes part, if anybody asked for it.
        rig.deployment("m", &[(MAX, "10"), ("karpenter.cluster.x-k8s.io/price", "0.0001")]).await;
        rig.karpenter.start();
        rig.pass(MINUTE).await;
        let told = rig.node_class_message("ScalableResourcesResolved").await;
        assert_eq!(told, "no SimMachineTemplate of namespace fleet matches spec.machineTemplateSelector");
        with_templates(&rig).await;
        let select = |pool: Value| json!({"metadata": {"labels": {"pool": pool}}});
        rig.patch(Kind::SimMachineTemplate, "small", select("workers".into())).await;
        rig.want(1);
        rig.until("a node of it is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let target = rig.read(|objects| {
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            claim.metadata.annotations.clone().unwrap_or_default()[TARGET].clone()
        });
        assert_eq!(target, "Machine:MachineTemplate:fleet/default.small");
        assert_eq!((rig.replicas("m"), rig.read(|objects| objects.machines.len())), (0, 1));
        rig.patch(Kind::SimMachineTemplate, "big", select("workers".into())).await;
        rig.patch(Kind::SimMachineTemplate, "small", select(Value::Null)).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.resource("default.big").await.instance_type.as_deref(), Some("big"));
        assert_eq!(rig.read(initialized), 1, "what was made stays");
        for name in names(&rig) {
            rig.delete_claim(&name).await;
        }
        rig.until("it is made from the other one", 10 * MINUTE, |objects| {
            let of_big = |claim: &Arc<karpenter_api::NodeClaim>| {
                let annotations = claim.metadata.annotations.clone().unwrap_or_default();
                annotations.get(TARGET).is_some_and(|target| target.ends_with("default.big"))
            };
            initialized(objects) == 1 && objects.node_claims.values().all(of_big)
        })
        .await;
    });
}

/// Has lists of templates come to nothing, for as long as it is said to.
struct Unlisted(AtomicBool);

impl Lens for Unlisted {
    fn sent(&self, request: &mut Request<Bytes>) {
        let asked = request.uri().to_string();
        if self.0.load(Ordering::Relaxed) && request.uri().path().ends_with("/simmachinetemplates") {
            // Of a version that is not served nobody says that there is nothing.
            let elsewhere = asked.replace("/v1beta2/", "/v9/");
            *request.uri_mut() = elsewhere.parse().expect("an address");
        }
    }
}

#[test]
fn nobody_gives_up_while_the_templates_that_labels_select_cannot_be_listed() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine", "machineTemplateSelector": {
            "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate",
            "selector": {"matchLabels": {"pool": "workers"}}, "bootstrapDataSecretName": "join",
        }}))
        .await;
        with_templates(&rig).await;
        rig.patch(Kind::SimMachineTemplate, "small", json!({"metadata": {"labels": {"pool": "workers"}}}))
            .await;
        let unlisted = Arc::new(Unlisted(AtomicBool::new(true)));
        rig.hub.plant(Arc::clone(&unlisted) as Arc<dyn Lens>);
        rig.karpenter.start();
        rig.want(1);
        rig.pass(3 * MINUTE).await;
        let told = rig.read(launched);
        assert_eq!(names(&rig), ["n1"], "{told:?}");
        assert!(told.iter().all(|(reason, _)| reason == "ManagementUnavailable"), "{told:?}");
        unlisted.0.store(false, Ordering::Relaxed);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(names(&rig), ["n1"]);
        rig.pass(2 * MINUTE).await;
        // Who starts anew knows of no template, and of a node of one.
        rig.karpenter.kill();
        unlisted.0.store(true, Ordering::Relaxed);
        rig.karpenter.start();
        rig.want(2);
        rig.pass(3 * MINUTE).await;
        let told = rig.read_node_class_condition("InstanceTypesResolved").await;
        assert_eq!(told.as_deref(), Some("True"), "what was told holds");
        unlisted.0.store(false, Ordering::Relaxed);
        rig.until("both are ready", 5 * MINUTE, |objects| initialized(objects) == 2).await;
        assert_eq!(names(&rig), ["n1", "n2"], "nobody was given up");
    });
}

fn names(rig: &Rig) -> Vec<String> {
    rig.read(|objects| objects.node_claims.keys().map(|key| key.name.to_string()).collect())
}

#[test]
fn templates_that_mean_nothing_are_refused() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let class = |spec: Value| {
            json!({
                "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
                "metadata": {"name": "other"}, "spec": spec,
            })
        };
        let mut scaled = templates();
        scaled["launchMode"] = "MachineDeployment".into();
        let mut without_data = templates();
        without_data["machineTemplates"][1]["bootstrapDataSecretName"] = Value::Null;
        let mut both = templates();
        both["machineTemplates"][0]["bootstrapDataSecretName"] = "join".into();
        let mut twice = templates();
        twice["machineTemplates"][1]["name"] = "small".into();
        let mut no_template = templates();
        no_template["machineTemplates"][0]["infrastructureRef"]["kind"] = "SimMachine".into();
        let selector = |launch_mode: &str| {
            json!({"launchMode": launch_mode, "machineTemplateSelector": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "SimMachineTemplate",
                "selector": {"matchLabels": {"a": "b"}}, "bootstrapDataSecretName": "join",
            }})
        };
        let mut selected_without_data = selector("Machine");
        selected_without_data["machineTemplateSelector"]["bootstrapDataSecretName"] = Value::Null;
        for (spec, why) in [
            (scaled, "machineTemplates is for launchMode Machine"),
            (without_data, "either bootstrapRef or bootstrapDataSecretName has to be set"),
            (both, "either bootstrapRef or bootstrapDataSecretName has to be set"),
            (twice, "Duplicate value"),
            (no_template, "kind"),
            (selector("MachineDeployment"), "machineTemplateSelector is for launchMode Machine"),
            (selected_without_data, "either bootstrapRef or bootstrapDataSecretName has to be set"),
        ] {
            let refused = rig.world.create(class(spec)).await.expect_err(why);
            let told = format!("{refused:?}");
            assert!(told.contains(why), "{why}: {told}");
        }
        rig.create(class(templates())).await;
    });
}

#[test]
fn a_template_of_the_node_class_that_changes_is_drift() {
    scenario(async {
        let mut class = templates();
        class["drift"] = "Karpenter".into();
        let rig = Rig::new(class.clone()).await;
        with_templates(&rig).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        assert_eq!(rig.drifted("n1"), None);
        class["machineTemplates"][0]["version"] = "v1.36.7".into();
        rig.patch_node_class(json!({"spec": class})).await;
        rig.pass(15 * SECOND).await;
        assert_eq!(rig.drifted("n1").as_deref(), Some("KubernetesVersionDrift"));
    });
}

#[test]
fn machines_of_their_own_drift_where_a_node_class_does_not_say_otherwise_and_those_of_machine_sets_do_not() {
    let drifts = Some("KubernetesVersionDrift");
    for (mode, said, drifted) in [
        ("Machine", None, drifts),
        ("Machine", Some("Karpenter"), drifts),
        ("Machine", Some("ClusterAPI"), None),
        ("Machine", Some("Off"), None),
        ("MachineDeployment", None, None),
        ("MachineDeployment", Some("Karpenter"), drifts),
    ] {
        scenario(async {
            let mut class = json!({"launchMode": mode});
            if let Some(said) = said {
                class["drift"] = said.into();
            }
            let rig = Rig::new(class).await;
            rig.deployment("m", &[(MAX, "10")]).await;
            let on_delete = json!({"spec": {"rollout": {"strategy": {"type": "OnDelete"}}}});
            rig.patch(Kind::MachineDeployment, "m", on_delete).await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
            let change = json!({"spec": {"template": {"spec": {"version": "v1.36.9"}}}});
            rig.patch(Kind::MachineDeployment, "m", change).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.drifted("n1").as_deref(), drifted, "{mode}, {said:?}");
        });
    }
}

/// The status and reason of a Machine's condition.
fn told(objects: &Objects, kind: &str) -> Vec<(String, String)> {
    let conditions = objects.machines.values().filter_map(|machine| {
        let all = machine.data.pointer("/status/conditions")?.as_array()?;
        let found = all.iter().find(|condition| condition["type"] == kind)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason")))
    });
    conditions.collect()
}

#[test]
fn whether_machines_of_their_own_are_up_to_date_is_told_by_who_sees_to_that() {
    let is = |status: &str, reason: &str| vec![(status.to_owned(), reason.to_owned())];
    for (drift, at_first, later) in [
        ("Karpenter", is("True", "UpToDate"), is("False", "NotUpToDate")),
        ("ClusterAPI", Vec::new(), Vec::new()),
    ] {
        scenario(async {
            let rig = Rig::with_a_node(json!({"launchMode": "Machine", "drift": drift})).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.read(|objects| told(objects, "UpToDate")), at_first, "{drift}");
            let change = json!({"spec": {"template": {"spec": {"version": "v1.36.9"}}}});
            rig.patch(Kind::MachineDeployment, "m", change).await;
            rig.pass(MINUTE).await;
            assert_eq!(rig.read(|objects| told(objects, "UpToDate")), later, "{drift}");
            let ready = rig.read(|objects| told(objects, "InfrastructureReady"));
            assert_eq!(ready, is("True", "Ready"), "{drift}: what others say stays");
            rig.pass(30 * MINUTE).await;
            assert_eq!(
                rig.writes("/machines/n1/status"),
                later.len() * 2,
                "{drift}: it is not said again and again"
            );
        });
    }
}

#[test]
fn no_machine_is_made_while_the_control_plane_is_upgraded_and_nobody_stays_away_for_it() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine", "timeouts": {"launch": "30m"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.create(json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "SimControlPlane",
            "metadata": {"name": "cp", "namespace": NAMESPACE}, "spec": {"version": "v1.36.0"},
        }))
        .await;
        let at = |version: &str| json!({"status": {"version": version}});
        rig.patch_status(Kind::SimControlPlane, "cp", at("v1.35.9")).await;
        let reference =
            json!({"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "SimControlPlane", "name": "cp"});
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"controlPlaneRef": reference}})).await;
        rig.karpenter.start();
        rig.want(2);
        rig.pass(10 * MINUTE).await;
        let made = rig.read(|objects| (objects.machines.len(), objects.sim_machines.len()));
        assert_eq!(made, (0, 0), "nothing is made");
        let told = rig.read(launched);
        let waits = |(reason, message): &(String, String)| {
            reason == "ControlPlaneUpgrading" && message.contains("upgraded from v1.35.9 to v1.36.0")
        };
        assert!(told.len() == 2 && told.iter().all(waits), "{told:?}");
        let held = rig.resource("m").await.waiting.unwrap_or_default();
        assert!(held.starts_with("ControlPlaneUpgrading: "), "{held}");
        rig.patch_status(Kind::SimControlPlane, "cp", at("v1.36.0")).await;
        rig.until("all goes on", 3 * MINUTE, |objects| initialized(objects) == 2).await;
        assert_eq!(names(&rig), ["n1", "n2"], "none was given up");
        rig.at_rest();
    });
}

#[test]
fn clones_whose_machine_was_never_made_go_when_their_node_claim_is_gone_and_nothing_else_does() {
    scenario(async {
        let rig = Rig::with_a_node(json!({"launchMode": "Machine"})).await;
        let owner = rig.read(|objects| {
            let machine = objects.machines.values().next()?;
            machine.metadata.annotations.as_ref()?.get(OWNER).cloned()
        });
        let owner = owner.expect("an owner");
        let clone = |name: &str, owner: &str, uid: &str, made_for: &str| {
            json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "SimMachine",
                "metadata": {
                    "name": name, "namespace": NAMESPACE,
                    "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER, "node.cluster.x-k8s.io/karpenter-member": ""},
                    "annotations": {
                        "karpenter.cluster.x-k8s.io/nodeclaim": made_for,
                        "karpenter.cluster.x-k8s.io/nodeclaim-uid": uid, OWNER: owner,
                        "cluster.x-k8s.io/cloned-from-name": "t",
                        "cluster.x-k8s.io/cloned-from-groupkind": "SimMachineTemplate.infrastructure.cluster.x-k8s.io",
                    },
                },
                "spec": {"never": true},
            })
        };
        let mut unmarked = clone("unmarked", &owner, "gone", "unmarked");
        unmarked["metadata"]["annotations"]["cluster.x-k8s.io/cloned-from-name"] = "".into();
        for object in [
            clone("gone", &owner, "gone", "gone"),
            clone("theirs", "another-cluster", "gone", "theirs"),
            clone("misnamed", &owner, "gone", "another"),
            unmarked,
        ] {
            rig.create(object).await;
        }
        rig.hub.cut_off(20 * MINUTE);
        rig.pass(20 * MINUTE).await;
        let there = |objects: &Objects| {
            objects.sim_machines.keys().map(|key| key.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(rig.read(there), ["gone", "misnamed", "n1", "theirs", "unmarked"], "nobody can say");
        // On the move, perhaps.
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"paused": true}})).await;
        rig.pass(20 * MINUTE).await;
        assert_eq!(rig.read(there).len(), 5, "paused");
        rig.patch(Kind::Cluster, CLUSTER, json!({"spec": {"paused": false}})).await;
        rig.until("it goes", 15 * MINUTE, |objects| there(objects).len() == 4).await;
        rig.pass(30 * MINUTE).await;
        assert_eq!(rig.read(there), ["misnamed", "n1", "theirs", "unmarked"]);
    });
}

/// How often Karpenter wrote to the management cluster: POST, PATCH, DELETE, PUT.
fn writes(rig: &Rig) -> [usize; 4] {
    rig.world.cluster().tape(|tape| {
        ["POST", "PATCH", "DELETE", "PUT"].map(|verb| {
            let ours = tape.entries().iter().filter(|entry| {
                entry.actor.starts_with("karpenter")
                    && entry.deed.starts_with(verb)
                    && entry.deed.contains("cluster.x-k8s.io/v1beta")
                    && entry.outcome.starts_with('2')
            });
            ours.count()
        })
    })
}

#[test]
fn a_node_of_its_own_costs_three_writes_and_is_not_drained_twice_where_pods_are_left() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.want(6);
        rig.until("all nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 6).await;
        let all = names(&rig);
        let (with_pod, empty) = all.split_first().expect("six");
        // Karpenter leaves pods that tolerate its taint; Cluster API would not.
        rig.create(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays", "namespace": "default"},
            "spec": {
                "nodeName": with_pod, "containers": [{"name": "c", "image": "i"}],
                "tolerations": [{"operator": "Exists"}],
            },
        }))
        .await;
        rig.want(0);
        for name in empty {
            rig.delete_claim(name).await;
        }
        rig.until("five are gone", 5 * MINUTE, |objects| objects.machines.len() == 1).await;
        assert_eq!(writes(&rig), [12, 0, 5, 0], "a clone, a Machine and its end for each node");
        rig.delete_claim(with_pod).await;
        rig.until("it goes, and Cluster API does not wait for the pod", 2 * MINUTE, |objects| {
            objects.machines.is_empty()
        })
        .await;
        assert_eq!(writes(&rig), [12, 1, 6, 0], "Cluster API was told not to drain it");
    });
}

#[test]
fn labels_that_cluster_api_was_told_to_copy_are_put_on_machines_of_their_own() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "10")]);
        deployment["spec"]["template"]["metadata"]["labels"]["team.example/name"] = "core".into();
        deployment["spec"]["template"]["metadata"]["labels"]["app"] = "not-copied".into();
        rig.create(deployment).await;
        let hub = rig.hub.clone();
        let karpenter = rig.world.process("karpenter-2", FaultPlan::none(), move |life| {
            let settings = Settings {
                cluster_name: Some(CLUSTER.to_owned()),
                cluster_namespace: Some(NAMESPACE.to_owned()),
                sync_labels: SyncLabels::read(r"^team\.example/,^cluster\.x-k8s\.io/").expect("patterns"),
                ..Settings::default()
            };
            core::live_with(life, hub.clone(), settings).boxed()
        });
        karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let labels = |metadata: &ObjectMeta| metadata.labels.clone().unwrap_or_default();
        let (machine, claim) = rig.read(|objects| {
            let machine = objects.machines.values().next().expect("a Machine");
            let claim = objects.node_claims.values().next().expect("a NodeClaim");
            (labels(&machine.metadata), labels(&claim.metadata))
        });
        assert_eq!(machine.get("team.example/name").map(String::as_str), Some("core"));
        assert!(!claim.contains_key("app") && !machine.contains_key("cluster.x-k8s.io/deployment-name"));
        assert_eq!(claim.get("team.example/name").map(String::as_str), Some("core"));
        assert!(!claim.keys().any(|key| key.starts_with("cluster.x-k8s.io/")), "{claim:?}");
        rig.at_rest();
    });
}

/// A client whose watches of Machines tell nothing for a while.
fn late(inner: Client, by: Duration) -> Client {
    let answer = move |request: Request<Body>| {
        let inner = inner.clone();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_late = request.uri().path().ends_with("/machines") && query.contains("watch=");
        async move {
            if is_late {
                tokio::time::sleep(by).await;
            }
            inner.send(request).await
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

#[test]
fn a_machine_of_its_own_is_made_once_though_the_watch_is_late_to_show_it() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        rig.create(cluster_api::template(NAMESPACE, "slow", json!({"provisionSeconds": 60}))).await;
        rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "slow", &[])).await;
        let handle = core::Handle::default();
        let (hub, left) = (rig.hub.clone(), handle.clone());
        let karpenter = rig.world.process("karpenter", FaultPlan::none(), move |life| {
            let management = late(life.client_behind(&hub), 5 * MINUTE);
            let left = left.clone();
            async move { core::live_as(life, management, core::settings(), &left).await }.boxed()
        });
        karpenter.start();
        rig.want(1);
        rig.pass(30 * SECOND).await;
        let provider = handle.lock().expect("a provider").clone().expect("a process that runs");
        let claim = rig.read(|objects| objects.node_claims.values().next().cloned()).expect("a NodeClaim");
        for _ in 0..3 {
            let launch = provider.create(&claim).await.expect("a launch");
            assert!(matches!(launch, Launch::Pending { .. }), "{launch:?}");
            rig.pass(5 * SECOND).await;
        }
        let asked = rig.world.cluster().tape(|tape| {
            let ours = tape.entries().iter().filter(|entry| entry.actor.starts_with("karpenter"));
            let made = ours.filter(|entry| entry.deed.starts_with("POST") && entry.deed.contains(NAMESPACE));
            made.map(|entry| entry.deed.clone()).collect::<Vec<_>>()
        });
        assert_eq!(asked.len(), 2, "its infrastructure and itself: {asked:?}");
        rig.until("the node is ready", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.at_rest();
    });
}

#[test]
fn a_machine_that_is_put_elsewhere_is_where_it_is() {
    for (domains, zone, event) in [(["a", "b"], "b", "ZoneCorrected"), (["a", "c"], "a", "ZoneDoubtful")] {
        scenario(async {
            let rig = Rig::new(json!({"launchMode": "Machine"})).await;
            let listed: Vec<Value> = domains.iter().map(|name| json!({"name": name})).collect();
            rig.patch_status(Kind::Cluster, CLUSTER, json!({"status": {"failureDomains": listed}})).await;
            let behaviour =
                json!({"idSeconds": 2, "provisionSeconds": 20, "joinSeconds": 30, "placedIn": "b"});
            rig.create(cluster_api::template(NAMESPACE, "astray", behaviour)).await;
            rig.create(cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "astray", &[(MAX, "10")]))
                .await;
            rig.karpenter.start();
            rig.want(1);
            rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
            rig.pass(MINUTE).await;
            let label = rig.read(|objects| {
                let claim = objects.node_claims.values().next().expect("a NodeClaim");
                claim.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE)).cloned()
            });
            assert_eq!(label.as_deref(), Some(zone), "{domains:?}");
            assert_eq!(rig.events(event).await.len(), 1, "{domains:?}");
            rig.at_rest();
        });
    }
}

#[test]
fn machines_that_are_not_karpenters_are_told() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 2}})).await;
        rig.until("two nodes by hand", 5 * MINUTE, |objects| objects.nodes.len() == 2).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("a third one is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("UnmanagedMachines").await.as_deref(), Some("True"));
        let told = rig.node_class_message("UnmanagedMachines").await;
        assert!(told.contains("2 of MachineDeployment fleet/m;"), "{told}");
        assert_eq!(
            rig.read_node_class_condition("Ready").await.as_deref(),
            Some("True"),
            "nothing depends on it"
        );
    });
}

#[test]
fn a_machine_of_its_own_is_what_its_blueprint_says() {
    scenario(async {
        let rig = Rig::new(json!({"launchMode": "Machine"})).await;
        rig.patch(
            Kind::SimMachineTemplate,
            "t",
            json!({"spec": {"template": {"metadata": {"annotations": {"infra.example.com/tier": "gold"}}}}}),
        )
        .await;
        let mut blueprint = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "10")]);
        let template = &mut blueprint["spec"]["template"];
        template["metadata"]["labels"]["nodepool"] = "x".into();
        template["metadata"]["labels"]["machine-template-hash"] = "1".into();
        template["metadata"]["annotations"] =
            json!({"pre-drain.delete.hook.machine.cluster.x-k8s.io/mine": "me"});
        template["spec"]["deletion"] = json!({"nodeDrainTimeoutSeconds": 600});
        template["spec"]["readinessGates"] = json!([{"conditionType": "Checked"}]);
        rig.create(blueprint).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        let (machine, clone) = rig.read(|objects| {
            let machine = objects.machines.values().next().map(|m| serde_json::to_value(&**m).expect("JSON"));
            let clone =
                objects.sim_machines.values().next().map(|m| serde_json::to_value(&**m).expect("JSON"));
            (machine.expect("a Machine"), clone.expect("a clone"))
        });
        assert_eq!(machine["spec"]["deletion"]["nodeDrainTimeoutSeconds"], 600);
        assert_eq!(machine["spec"]["readinessGates"][0]["conditionType"], "Checked");
        let (labels, annotations) = (&machine["metadata"]["labels"], &machine["metadata"]["annotations"]);
        assert_eq!(labels["nodepool"], "x", "by which a health check may select");
        assert_eq!(labels.get("machine-template-hash"), None, "a MachineSet selects by it");
        assert_eq!(labels.get("cluster.x-k8s.io/deployment-name"), None);
        assert_eq!(annotations["pre-drain.delete.hook.machine.cluster.x-k8s.io/mine"], "me");
        assert_eq!(clone["metadata"]["annotations"]["infra.example.com/tier"], "gold");
        assert_eq!(clone["metadata"]["labels"]["nodepool"], "x");
    });
}
