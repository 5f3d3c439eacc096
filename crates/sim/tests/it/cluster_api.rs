//! The simulated Cluster API, where nobody but people and their tools is at work.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_sim::Objects;
use karpenter_sim::cluster_api::unrest::Unrest;
use karpenter_sim::cluster_api::{self, ClusterApi, Kind};
use karpenter_sim::faults::{FaultPlan, Faults};
use karpenter_sim::objects::node_ready;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{MINUTE, quick};

const ZONE: &str = "topology.kubernetes.io/zone";

#[tokio::test(start_paused = true)]
async fn what_moves_to_another_management_cluster_lives_on_and_what_is_on_its_way_comes() {
    let world = quick(1);
    let capi = ClusterApi::install(&world).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let mut objects = vec![namespace, cluster_api::cluster("fleet", "c")];
    for (name, seconds) in [("there", 1), ("coming", 60)] {
        objects.push(cluster_api::template("fleet", name, json!({"provisionSeconds": seconds})));
        let mut deployment = cluster_api::machine_deployment("fleet", "c", name, name, &[]);
        deployment["spec"]["replicas"] = 1.into();
        objects.push(deployment);
    }
    for object in objects {
        world.create(object).await.unwrap();
    }
    world.run_for(Duration::from_secs(20)).await.unwrap();
    assert_eq!(world.cluster().read(|objects| (objects.machines.len(), objects.nodes.len())), (2, 1));
    let hub = Faults::new(FaultPlan::none(), world.cluster().entropy(), "hub");
    Unrest::new(&capi, &hub, "fleet", "c").move_everything().await.unwrap();
    world.run_for(10 * MINUTE).await.unwrap();
    let ready: Vec<Option<String>> = world
        .cluster()
        .read(|objects| objects.nodes.values().map(|node| node_ready(node).map(str::to_owned)).collect());
    assert_eq!(ready, vec![Some("True".to_owned()); 2]);
}

#[tokio::test(start_paused = true)]
async fn in_the_end_nodes_that_said_they_were_elsewhere_are_where_their_template_says() {
    let world = quick(1);
    let capi = ClusterApi::install(&world).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let behaviour = json!({"nodeLabels": {ZONE: "a"}});
    let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "m", &[]);
    deployment["spec"]["replicas"] = 2.into();
    let template = cluster_api::template("fleet", "m", behaviour);
    for object in [namespace, cluster_api::cluster("fleet", "c"), template, deployment] {
        world.create(object).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    let names: Vec<String> =
        world.cluster().read(|objects| objects.machines.keys().map(|key| key.name.to_string()).collect());
    let client = world.cluster().client("user");
    let set = async |kind: Kind, name: &str, change: Value| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1beta2", kind.as_str()));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "fleet", &resource);
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    };
    let nodes: Api<Node> = Api::all(client.clone());
    for name in &names {
        set(Kind::SimMachine, name, json!({"spec": {"nodeLabels": {ZONE: "elsewhere"}}})).await;
        let astray = Patch::Merge(json!({"metadata": {"labels": {ZONE: "elsewhere"}}}));
        nodes.patch(name, &PatchParams::default(), &astray).await.unwrap();
    }
    let claim = json!({"metadata": {"annotations": {"karpenter.cluster.x-k8s.io/nodeclaim-uid": "uid"}}});
    set(Kind::Machine, &names[0], claim).await;
    capi.end_misfortune().await.unwrap();
    // One that was adopted with where it said it was stays a domain that nothing can be launched in, too.
    for name in &names {
        let node = nodes.get(name).await.unwrap();
        assert_eq!(node.metadata.labels.unwrap_or_default()[ZONE], "a", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_the_end_somebody_takes_away_the_second_node_of_a_machine_that_is_nobodys() {
    let world = quick(1);
    let capi = ClusterApi::install(&world).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "m", &[]);
    deployment["spec"]["replicas"] = 1.into();
    let template = cluster_api::template("fleet", "m", json!({"joinsTwice": true}));
    for object in [namespace, cluster_api::cluster("fleet", "c"), template, deployment] {
        world.create(object).await.unwrap();
    }
    world.run_for(MINUTE).await.unwrap();
    assert_eq!(world.cluster().read(|objects| objects.nodes.len()), 2);
    capi.end_misfortune().await.unwrap();
    let healthy = |objects: &Objects| {
        let conditions =
            objects.machines.values().filter_map(|m| m.data.pointer("/status/conditions")?.as_array());
        conditions.flatten().any(|c| c["type"] == "Available" && c["status"] == "True")
    };
    world.wait_until("it is available", 2 * MINUTE, healthy).await.unwrap();
    assert_eq!(world.cluster().read(|objects| objects.nodes.len()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_twice_or_under_another_id_is_not_healthy_and_goes_with_its_machine() {
    for (behaviour, joined) in [(json!({"joinsTwice": true}), 2), (json!({"joinsAsAnother": true}), 1)] {
        let world = quick(1);
        let _capi = ClusterApi::install(&world).await.unwrap();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
        let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "m", &[]);
        deployment["spec"]["replicas"] = 1.into();
        let template = cluster_api::template("fleet", "m", behaviour.clone());
        for object in [namespace, cluster_api::cluster("fleet", "c"), template, deployment] {
            world.create(object).await.unwrap();
        }
        world.run_for(5 * MINUTE).await.unwrap();
        world.cluster().read(|objects| {
            // One that was known before the second joined is no longer healthy, for which of them it is cannot be told.
            let known = objects.machines.values().filter(|machine| {
                let conditions = machine.data.pointer("/status/conditions").and_then(Value::as_array);
                let mut all = conditions.into_iter().flatten();
                all.any(|c| c["type"] == "NodeHealthy" && c["status"] == "True")
            });
            assert_eq!(
                (objects.machines.len(), objects.nodes.len(), known.count()),
                (1, joined, 0),
                "{behaviour}"
            );
        });
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            Kind::MachineDeployment.group(),
            "v1beta2",
            Kind::MachineDeployment.as_str(),
        ));
        let api: Api<DynamicObject> =
            Api::namespaced_with(world.cluster().client("user"), "fleet", &resource);
        let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
        api.patch("m", &PatchParams::default(), &none).await.unwrap();
        world.run_for(5 * MINUTE).await.unwrap();
        assert_eq!(world.cluster().read(|objects| (objects.machines.len(), objects.nodes.len())), (0, 0));
    }
}

/// A Cluster with a MachineDeployment `m` of two replicas.
async fn fleet_of_two(world: &karpenter_sim::World) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let mut deployment = cluster_api::machine_deployment("fleet", "c", "m", "m", &[]);
    deployment["spec"]["replicas"] = 2.into();
    let template = cluster_api::template("fleet", "m", json!({}));
    for object in [namespace, cluster_api::cluster("fleet", "c"), template, deployment] {
        world.create(object).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_set_that_is_refused_something_says_so_leaves_nothing_behind_and_tries_again() {
    for (kind, reason) in
        [(Kind::Machine, "MachineCreationFailed"), (Kind::SimMachine, "InfrastructureTemplateCloningFailed")]
    {
        let world = quick(1);
        let capi = ClusterApi::install(&world).await.unwrap();
        capi.refuse_creation_of(Some(kind));
        fleet_of_two(&world).await;
        world.run_for(MINUTE).await.unwrap();
        let told = || {
            world.cluster().read(|objects| {
                let set = objects.machine_sets.values().next().expect("a MachineSet");
                let told = set.data.pointer("/status/deprecated/v1beta1/conditions/0").cloned();
                (told.unwrap_or_default(), objects.machines.len(), objects.sim_machines.len())
            })
        };
        let (condition, machines, clones) = told();
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!(reason)));
        assert!(condition["message"].as_str().unwrap().contains("is forbidden: exceeded quota"));
        assert_eq!((machines, clones), (0, 0), "{reason}");
        capi.refuse_creation_of(None);
        world.run_for(MINUTE).await.unwrap();
        let (condition, machines, clones) = told();
        assert_eq!((machines, clones), (2, 2));
        assert_eq!(condition["status"], "True");
    }
}

#[tokio::test(start_paused = true)]
async fn a_topology_sets_back_what_it_names_and_brings_its_version_to_one_deployment_after_the_other() {
    let world = quick(1);
    let _capi = ClusterApi::install(&world).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet"}});
    let mut cluster = cluster_api::cluster("fleet", "c");
    let [mut a, mut b] = ["a", "b"].map(|name| {
        let mut deployment = cluster_api::machine_deployment("fleet", "c", name, "m", &[]);
        deployment["spec"]["replicas"] = 1.into();
        deployment
    });
    cluster_api::own(&mut cluster, &mut [&mut a, &mut b]);
    let workers = json!([{"name": "a", "replicas": 2, "metadata": {"labels": {"team": "x"}}}, {"name": "b"}]);
    cluster["spec"]["topology"]["workers"]["machineDeployments"] = workers;
    let template = cluster_api::template("fleet", "m", json!({"provisionSeconds": 20}));
    for object in [namespace, cluster, template, a, b] {
        world.create(object).await.unwrap();
    }
    world.run_for(2 * MINUTE).await.unwrap();
    let seen = |pointer: &str| -> Vec<Value> {
        world.cluster().read(|objects| {
            let deployments = objects.machine_deployments.values();
            deployments.map(|found| found.data.pointer(pointer).cloned().unwrap_or_default()).collect()
        })
    };
    assert_eq!(seen("/spec/replicas"), [2, 1], "it says nothing of the second's");
    assert_eq!(seen("/spec/template/metadata/labels/team"), [json!("x"), Value::Null]);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
    let clusters: Api<DynamicObject> =
        Api::namespaced_with(world.cluster().client("user"), "fleet", &resource);
    let newer = Patch::Merge(json!({"spec": {"topology": {"version": "v1.37.0"}}}));
    clusters.patch("c", &PatchParams::default(), &newer).await.unwrap();
    world.run_for(Duration::from_secs(15)).await.unwrap();
    let version = "/spec/template/spec/version";
    assert_eq!(seen(version), ["v1.37.0", "v1.36.0"], "the second waits for the first");
    world.run_for(5 * MINUTE).await.unwrap();
    assert_eq!(seen(version), ["v1.37.0", "v1.37.0"]);
}
