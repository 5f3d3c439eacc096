//! What Karpenter learns by looking, and forgets when its source is no more: capacity from Nodes, prices from ConfigMaps and endpoints.

use k8s_openapi::api::core::v1::ConfigMap;
use karpenter_sim::cluster_api::{self, Kind};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::rig::{CLUSTER, MAX, MINUTE, NAMESPACE, Rig, initialized, scenario};

const CPU: &str = "capacity.cluster-autoscaler.kubernetes.io/cpu";
const MEMORY: &str = "capacity.cluster-autoscaler.kubernetes.io/memory";

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": data})
}

fn config_maps(rig: &Rig) -> Api<ConfigMap> {
    Api::namespaced(rig.world.cluster().client("user"), "default")
}

async fn rewrite(rig: &Rig, name: &str, data: Value) {
    let change = Patch::Merge(json!({"data": data}));
    config_maps(rig).patch(name, &PatchParams::default(), &change).await.expect("a ConfigMap");
}

async fn remove(rig: &Rig, name: &str) {
    config_maps(rig).delete(name, &DeleteParams::default()).await.expect("a deletion");
}

/// A price and who says so.
async fn price(rig: &Rig, name: &str) -> (String, String) {
    let resource = rig.resource(name).await;
    (resource.price.unwrap_or_default(), resource.price_source.unwrap_or_default())
}

fn is(price: &str, source: &str) -> (String, String) {
    (price.to_owned(), source.to_owned())
}

/// A MachineDeployment that says nothing about what its nodes have.
fn silent(name: &str, template: &str) -> Value {
    let mut deployment = cluster_api::machine_deployment(NAMESPACE, CLUSTER, name, template, &[(MAX, "10")]);
    let annotations = deployment["metadata"]["annotations"].as_object_mut().expect("annotations");
    annotations.retain(|key, _| key != CPU && key != MEMORY);
    deployment
}

#[test]
fn what_a_node_has_is_learnt_from_its_sibling_and_forgotten_with_its_template() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        let plain = json!({"provisionSeconds": 3, "joinSeconds": 2});
        rig.create(cluster_api::template(NAMESPACE, "other", plain)).await;
        rig.create(silent("m", "t")).await;
        rig.karpenter.start();
        rig.want(1);
        rig.pass(2 * MINUTE).await;
        let told = rig.resource("m").await;
        assert!(told.unavailable.unwrap_or_default().contains(CPU), "nobody says what its nodes have");
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"replicas": 1}})).await;
        rig.until("a node is learnt from, and another one launched", 10 * MINUTE, |objects| {
            initialized(objects) == 1 && objects.nodes.len() == 2
        })
        .await;
        let change = json!({"spec": {"template": {"spec": {"infrastructureRef": {"name": "other"}}}}});
        rig.want(0);
        rig.patch(Kind::MachineDeployment, "m", json!({"spec": {"paused": true}})).await;
        rig.patch(Kind::MachineDeployment, "m", change).await;
        rig.pass(2 * MINUTE).await;
        let told = rig.resource("m").await;
        assert!(told.unavailable.unwrap_or_default().contains(CPU), "its nodes may have anything now");
    });
}

#[test]
fn what_a_node_has_is_forgotten_when_its_template_says_something_else_and_learnt_from_the_next_one() {
    scenario(async {
        let rig = Rig::new(json!({})).await;
        rig.create(silent("m", "t")).await;
        rig.karpenter.start();
        let scale = |replicas: u64| json!({"spec": {"replicas": replicas}});
        rig.patch(Kind::MachineDeployment, "m", scale(1)).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.resource("m").await.unavailable, None, "its node tells");
        let larger = json!({"spec": {"template": {"spec": {"capacity": {"cpu": "8", "memory": "16Gi"}}}}});
        rig.patch(Kind::SimMachineTemplate, "t", larger).await;
        rig.pass(5 * MINUTE).await;
        let told = rig.resource("m").await;
        assert!(told.unavailable.unwrap_or_default().contains(CPU), "its node is of what was there before");
        rig.patch(Kind::MachineDeployment, "m", scale(2)).await;
        rig.pass(5 * MINUTE).await;
        assert_eq!(rig.resource("m").await.unavailable, None, "the new one tells");
    });
}

#[test]
fn a_config_map_tells_prices_for_as_long_as_it_is_there_and_named() {
    scenario(async {
        let reference =
            |name: &str| json!({"pricing": {"configMapRef": {"namespace": "default", "name": name}}});
        let rig = Rig::new(reference("prices")).await;
        rig.create(config_map("prices", json!({"m": "0.25"}))).await;
        rig.create(config_map("others", json!({"m": "0.75"}))).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(2 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.250000", "table"));
        rewrite(&rig, "prices", json!({"m": "0.5"})).await;
        rig.pass(7 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.500000", "table"), "it is read again now and then");
        rig.patch_node_class(json!({"spec": reference("others")})).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.750000", "table"), "another one is read at once");
        remove(&rig, "others").await;
        rig.pass(7 * MINUTE).await;
        assert_eq!(price(&rig, "m").await.1, "model", "one that is gone tells nothing");
        rig.create(config_map("others", json!({"m": "a lot"}))).await;
        rig.pass(7 * MINUTE).await;
        let told = rig
            .resource("m")
            .await
            .unavailable
            .or(Some(rig.node_class_message("InstanceTypesResolved").await));
        assert!(told.unwrap_or_default().contains("\"a lot\" is not a price"), "nonsense is named");
        rig.patch_node_class(json!({"spec": {"pricing": null}})).await;
        rig.pass(2 * MINUTE).await;
        assert_eq!(price(&rig, "m").await.1, "model", "none is named any more");
    });
}

#[test]
fn an_endpoint_tells_prices_and_its_last_word_stays() {
    scenario(async {
        let rig =
            Rig::new(json!({"pricing": {"table": {"n": "0.1"}, "endpoint": "http://prices/all"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.deployment("n", &[(MAX, "10")]).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        assert_eq!(price(&rig, "m").await.1, "model", "it does not answer yet");
        rig.create(config_map("prices", json!({"body": "{\"m\": 0.3, \"n\": 0.9}"}))).await;
        rig.pass(3 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.300000", "endpoint"));
        assert_eq!(price(&rig, "n").await, is("0.100000", "table"), "the NodeClass knows better");
        rewrite(&rig, "prices", json!({"body": "node_total_hourly_cost{instance_type=\"m\"} 0.4\n"})).await;
        rig.pass(20 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.400000", "endpoint"));
        remove(&rig, "prices").await;
        rig.pass(60 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.400000", "endpoint"), "that it is away means nothing");
        rig.patch_node_class(json!({"spec": {"pricing": {"endpoint": "http://elsewhere/"}}})).await;
        rig.pass(3 * MINUTE).await;
        assert_eq!(price(&rig, "m").await.1, "model", "what another one told is not its word");
    });
}

#[test]
fn a_price_of_nan_is_told_and_the_last_good_one_stays() {
    scenario(async {
        let rig = Rig::new(json!({"pricing": {"endpoint": "http://prices/all"}})).await;
        rig.deployment("m", &[(MAX, "10")]).await;
        rig.deployment("n", &[(MAX, "10")]).await;
        let said = |m: &str, n: &str| {
            let line = |name: &str, price: &str| {
                format!("node_total_hourly_cost{{instance_type=\"{name}\"}} {price}\n")
            };
            json!({"body": line("m", m) + &line("n", n)})
        };
        rig.create(config_map("prices", said("0.3", "0.6"))).await;
        rig.karpenter.start();
        rig.pass(3 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.300000", "endpoint"));
        rewrite(&rig, "prices", said("NaN", "0.7")).await;
        rig.pass(20 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.300000", "endpoint"), "the last one that was a price");
        assert_eq!(price(&rig, "n").await, is("0.700000", "endpoint"), "the others are believed");
        let told = rig.events("PricesUnknown").await;
        assert!(told.iter().any(|message| message.contains("\"m\" is no price")), "{told:?}");
        rewrite(&rig, "prices", said("0.4", "0.7")).await;
        rig.pass(20 * MINUTE).await;
        assert_eq!(price(&rig, "m").await, is("0.400000", "endpoint"));
    });
}

#[test]
fn what_pods_may_use_of_a_node_is_learnt_from_its_sibling() {
    for mode in ["MachineDeployment", "Machine"] {
        scenario(learn_what_pods_may_use(mode));
    }
}

async fn learn_what_pods_may_use(mode: &str) {
    let rig = Rig::new(json!({"launchMode": mode})).await;
    let all = json!({"cpu": "4", "memory": "16Gi", "pods": "110"});
    let some = json!({"cpu": "2", "memory": "14Gi", "pods": "110"});
    let meagre = json!({"provisionSeconds": 3, "joinSeconds": 2, "capacity": all, "allocatable": some});
    rig.create(cluster_api::template(NAMESPACE, "meagre", meagre)).await;
    let price = |text: &'static str| ("karpenter.cluster.x-k8s.io/price", text);
    let deployment = |name: &str, template: &str, price| {
        cluster_api::machine_deployment(NAMESPACE, CLUSTER, name, template, &[(MAX, "10"), price])
    };
    rig.create(deployment("m", "meagre", price("0.1"))).await;
    rig.create(deployment("m2", "t", price("0.2"))).await;
    rig.karpenter.start();
    rig.want(1);
    rig.until("the cheap one", 5 * MINUTE, |objects| initialized(objects) == 1).await;
    let types = || {
        rig.read(|objects| {
            let label = |claim: &std::sync::Arc<karpenter_api::NodeClaim>| {
                claim.metadata.labels.as_ref()?.get("node.kubernetes.io/instance-type").cloned()
            };
            objects.node_claims.values().filter_map(label).collect::<Vec<_>>()
        })
    };
    assert_eq!(types(), ["m"], "{mode}: it is said to have room for three cores");
    rig.pass(MINUTE).await;
    rig.want(3);
    rig.until("all nodes are ready", 5 * MINUTE, |objects| initialized(objects) == 3).await;
    assert_eq!(types(), ["m", "m2", "m2"], "{mode}: two cores are not three");
    rig.at_rest();
}
