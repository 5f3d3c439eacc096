//! What a NodeClass says by its status and by events: what is offered, what is not, and which key is to blame.

use karpenter_sim::cluster_api::{self, Kind};
use serde_json::{Value, json};

use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, initialized, scenario};

const PRICE: &str = "karpenter.cluster.x-k8s.io/price";

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data})
}

#[test]
fn what_a_node_class_says_wrong_is_told_of_what_it_leaves_out() {
    scenario(async {
        let prices = json!({"configMapRef": {"namespace": "default", "name": "prices"}});
        let rig = Rig::new(json!({"pricing": prices})).await;
        rig.create(config_map("prices", json!({"m": "a lot"}))).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.deployment("n", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        let told = rig.resource("m").await;
        let why = told.unavailable.unwrap_or_default();
        assert!(why.contains("spec.pricing.configMapRef, its data[m]: \"a lot\" is not a price"), "{why}");
        assert_eq!(told.instance_type, None);
        let other = rig.resource("n").await;
        assert_eq!((other.unavailable, other.instance_type.as_deref()), (None, Some("n")));
        let told = rig.events("ResourceLeftOut").await;
        assert!(told.iter().any(|message| message.contains("\"a lot\"")), "{told:?}");
    });
}

#[test]
fn a_selector_that_means_nothing_is_named() {
    scenario(async {
        let rig = Rig::new(json!({"scalableResourceSelector": {"matchLabels": {"tier": "a b"}}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        let told = rig.node_class_message("ScalableResourcesResolved").await;
        assert!(told.contains("spec.scalableResourceSelector: "), "{told}");
        let told = rig.events("ResourceLeftOut").await;
        assert!(told.iter().any(|message| message.contains("spec.scalableResourceSelector: ")), "{told:?}");
        rig.patch_node_class(json!({"spec": {"scalableResourceSelector": null}})).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.resource("m").await.unavailable, None, "mended without a restart");
    });
}

#[test]
fn a_resource_with_several_places_shows_all_of_them() {
    scenario(async {
        let table = json!({"m/a": "0.1", "m/b": "0.2"});
        let rig = Rig::new(json!({"launchMode": "Machine", "pricing": {"table": table}})).await;
        let domains = json!({"status": {"failureDomains": [{"name": "a"}, {"name": "b"}]}});
        rig.patch_status(Kind::Cluster, CLUSTER, domains).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.deployment(
            "n",
            &[
                (MAX, "10"),
                (PRICE, "0.3"),
                ("capacity.cluster-autoscaler.kubernetes.io/labels", "topology.kubernetes.io/zone=c"),
            ],
        )
        .await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        let told = rig.resource("m").await;
        assert_eq!((told.zone, told.price, told.price_source), (None, None, None));
        let places: Vec<_> =
            told.offerings.unwrap_or_default().into_iter().map(|place| (place.zone, place.price)).collect();
        let place = |zone: &str, price: &str| (Some(zone.to_owned()), Some(price.to_owned()));
        assert_eq!(places, [place("a", "0.100000"), place("b", "0.200000")]);
        let told = rig.resource("n").await;
        assert_eq!((told.zone, told.price), place("c", "0.300000"));
        assert_eq!((told.offerings, told.capacity_type.as_deref()), (None, Some("on-demand")));
    });
}

fn node_pool(spec: Value) -> Value {
    let mut pool = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": {
            "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default",
        }}}},
    });
    for (key, value) in spec.as_object().expect("a spec") {
        pool["spec"]["template"]["spec"][key] = value.clone();
    }
    pool
}

fn told(events: &[String], text: &str) {
    assert!(events.iter().any(|message| message.contains(text)), "{text}: {events:?}");
}

#[test]
fn what_conditions_say_is_wrong_is_told_by_events_as_well() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        told(
            &rig.events("NoScalableResources").await,
            "carries the label node.cluster.x-k8s.io/karpenter-member",
        );
        rig.create(node_pool(json!({}))).await;
        let taints = ("capacity.cluster-autoscaler.kubernetes.io/taints", "gpu=yes:NoSchedule");
        rig.deployment("m", &[(MAX, "10"), taints]).await;
        rig.create(json!({
            "apiVersion": "karpenter.cluster.x-k8s.io/v1alpha1", "kind": "ClusterAPINodeClass",
            "metadata": {"name": "a-first"}, "spec": {},
        }))
        .await;
        rig.pass(3 * MINUTE).await;
        told(&rig.events("TaintsNotDeclared").await, "NodePool default lacks gpu=yes:NoSchedule");
        let shared = "MachineDeployment fleet/m takes part in ClusterAPINodeClass a-first as well";
        told(&rig.events("SharedResources").await, shared);
        assert!(rig.node_class_message("ScalableResourcesResolved").await.contains(shared));
        assert!(rig.events("Unreachable").await.is_empty());
        rig.hub.cut_off(10 * MINUTE);
        rig.pass(5 * MINUTE).await;
        assert_eq!(
            rig.events("Unreachable").await.len(),
            2,
            "one of each NodeClass: seconds that pass make no other"
        );
        rig.patch_node_class(json!({"spec": {"clusterRef": {"name": "other", "namespace": "fleet"}}})).await;
        rig.pass(10 * MINUTE).await;
        told(&rig.events("AnotherCluster").await, "this cluster is Cluster fleet/c");
    });
}

#[test]
fn rights_are_not_known_before_the_management_cluster_was_reached() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.hub.cut_off(10 * MINUTE);
        rig.karpenter.start();
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("PermissionsReady").await.as_deref(), Some("Unknown"));
        assert_eq!(rig.read_node_class_condition("Ready").await.as_deref(), Some("False"));
        rig.pass(10 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("PermissionsReady").await.as_deref(), Some("True"));
    });
}

#[test]
fn prices_that_cannot_be_had_are_told_by_a_condition() {
    scenario(async {
        let rig = Rig::new(json!({"pricing": {"endpoint": "http://prices/all"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("PricesKnown").await.as_deref(), Some("False"));
        assert!(rig.node_class_message("PricesKnown").await.starts_with("spec.pricing.endpoint: "));
        assert_eq!(rig.read_node_class_condition("Ready").await.as_deref(), Some("True"), "launches go on");
        rig.create(config_map("prices", json!({"body": "{\"m\": 0.3, \"n\": -1}"}))).await;
        rig.pass(3 * MINUTE).await;
        assert_eq!(
            rig.resource("m").await.price.as_deref(),
            Some("0.300000"),
            "one bad number costs no other"
        );
        assert!(rig.node_class_message("PricesKnown").await.contains("its \"n\" is no price per hour"));
        rig.patch_node_class(json!({"spec": {"pricing": null}})).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("PricesKnown").await.as_deref(), Some("True"));
    });
}

#[test]
fn what_nodes_told_is_known_after_a_restart_without_any() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let mut silent = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "t", &[(MAX, "10")]);
        let annotations = silent["metadata"]["annotations"].as_object_mut().expect("annotations");
        annotations.retain(|key, _| !key.starts_with("capacity."));
        rig.create(silent).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        assert_eq!(rig.read_node_class_condition("InstanceTypesResolved").await.as_deref(), Some("False"));
        assert!(rig.resource("m").await.unavailable.is_some(), "nobody says what its nodes have");
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.resource("m").await.unavailable, None, "its node tells");
        rig.karpenter.kill();
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 0}})).await;
        rig.until("no node is left", 10 * MINUTE, |objects| objects.nodes.is_empty()).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("one is launched all the same", 10 * MINUTE, |objects| initialized(objects) == 1).await;
        assert!(rig.resource("m").await.learned.is_some_and(|learned| learned.capacity.is_some()));
    });
}

#[test]
fn an_interruptible_machine_of_a_node_pool_without_spot_is_not_replaced_by_another_of_the_same() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let spot = json!({
            "provisionSeconds": 3, "joinSeconds": 2, "nodeLabels": {"cluster.x-k8s.io/interruptible": ""},
        });
        rig.create(cluster_api::template(NAMESPACE, "spot", spot)).await;
        let deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "spot", &[(MAX, "10")]);
        rig.create(deployment).await;
        let requirements =
            json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
        rig.create(node_pool(json!({"requirements": requirements}))).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(30 * MINUTE).await;
        told(&rig.events("CapacityTypeDoubtful").await, "its NodePool wants no spot nodes");
        assert!(rig.events("CapacityTypeCorrected").await.is_empty());
        assert_eq!(rig.resource("m").await.capacity_type.as_deref(), Some("on-demand"));
        let made = rig.read(|objects| (objects.machines.len(), objects.node_claims.len()));
        assert_eq!((made, rig.drifted("n1")), ((1, 1), None));
    });
}

#[test]
fn what_turned_out_to_be_spot_stays_so_when_its_last_node_is_gone() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let spot = json!({
            "provisionSeconds": 3, "joinSeconds": 2, "nodeLabels": {"cluster.x-k8s.io/interruptible": ""},
        });
        rig.create(cluster_api::template(NAMESPACE, "spot", spot)).await;
        let deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, "m", "spot", &[(MAX, "10")]);
        rig.create(deployment).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("the node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.events("CapacityTypeCorrected").await.len(), 1);
        rig.want(0);
        rig.delete_claim("n1").await;
        rig.until("no node is left", 10 * MINUTE, |objects| objects.nodes.is_empty()).await;
        rig.karpenter.kill();
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        assert_eq!(rig.resource("m").await.capacity_type.as_deref(), Some("spot"));
    });
}

#[test]
fn events_name_what_is_renamed_ignored_or_of_another_kubelet() {
    scenario(async {
        let rig = Rig::new(json!({"kubelet": {"maxPods": 20}})).await;
        let large = ("karpenter.cluster.x-k8s.io/instance-type", "large");
        rig.deployment("m", &[(MAX, "10"), large]).await;
        let more = ("capacity.cluster-autoscaler.kubernetes.io/memory", "32Gi");
        let devices = ("capacity.cluster-autoscaler.kubernetes.io/dra-driver", "gpu.example.com");
        let min = ("cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size", "0");
        rig.deployment("n", &[(MAX, "10"), large, more, devices, min]).await;
        rig.karpenter.start();
        rig.want(1);
        rig.until("a node is ready", 5 * MINUTE, |objects| initialized(objects) == 1).await;
        rig.pass(5 * MINUTE).await;
        told(&rig.events("InstanceTypeRenamed").await, "MachineDeployment fleet/n is offered as large-n");
        told(&rig.events("DevicesIgnored").await, "devices of gpu.example.com are ignored");
        let message = rig.node_class_message("InstanceTypesResolved").await;
        assert!(message.contains("large-n") && message.contains("gpu.example.com"), "{message}");
        assert_eq!(rig.read_node_class_condition("KubeletAsDeclared").await.as_deref(), Some("False"));
        told(&rig.events("KubeletDiffers").await, "pods where 20 are declared");
    });
}
