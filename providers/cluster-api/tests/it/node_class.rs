//! What a NodeClass says by its status and by events: what is offered, what is not, and which key is to blame.

use karpenter_sim::cluster_api::Kind;
use serde_json::{Value, json};

use crate::rig::{CLUSTER, MAX, MINUTE, Rig, scenario};

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
