//! What labels say of machines holds whoever asks for it: nothing is bought that lacks what was asked for.

use karpenter_api::NodeClaim;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_cloudprovider::selection;
use karpenter_provider_cloudstack::{ProviderOptions, labels};
use serde_json::{Value, json};

use crate::cloud::{World, label, seconds, spec};

const REGION: &str = "topology.kubernetes.io/region";

/// A claim that asks for this of labels.
fn asking(world: &World, name: &str, asked: &[(&str, &str, &str)]) -> NodeClaim {
    let mut claim = (*world.claim(name, json!({"cpu": "1"}))).clone();
    for (key, operator, value) in asked {
        let requirement = json!({"key": key, "operator": operator, "values": [value]});
        claim.spec.requirements.push(serde_json::from_value(requirement).expect("a requirement"));
    }
    claim
}

/// A class of two zones.
async fn two_zones() -> World {
    let world = World::new().await;
    let zone = world.cloud.add("zone", json!({"name": "zone-02"}));
    let there = |fields: Value| {
        let mut fields = fields;
        fields["zoneid"] = zone.clone().into();
        fields["zonename"] = "zone-02".into();
        fields
    };
    world.cloud.add("network", there(json!({"name": "k8s-net", "state": "Allocated"})));
    world.cloud.add("template", there(json!({"name": "CentOS there"})));
    world.cloud.add("host", there(json!({"name": "far", "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0})));
    seconds(3601).await;
    let mut class = spec();
    class["zones"] = json!(["zone-02"]);
    world.class("default", class).await;
    world
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_zone_by_its_name_gets_a_machine_in_it() {
    let world = two_zones().await;
    let claim = asking(&world, "np-a", &[(labels::ZONE_NAME, "In", "zone-02")]);
    let instance = world.launch(&claim).await.expect("a machine");
    assert_eq!(label(&instance, labels::ZONE_NAME), "zone-02");
    let nowhere = asking(&world, "np-b", &[(labels::ZONE_NAME, "In", "zone-03")]);
    let refusal = world.launch(&nowhere).await.expect_err("there is no such zone");
    assert!(matches!(refusal, ProviderError::InsufficientCapacity { .. }), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn the_region_of_the_settings_is_asked_for_and_carried() {
    let world = two_zones().await;
    let in_eu = ProviderOptions { region: Some("eu".into()), ..ProviderOptions::new("test") };
    let in_eu = world.with_options(in_eu);
    let claim = asking(&world, "np-a", &[(REGION, "In", "eu")]);
    let instance = world.launch_by(&in_eu, &claim).await.expect("a machine");
    assert_eq!(label(&instance, REGION), "eu");
    let elsewhere = asking(&world, "np-b", &[(REGION, "In", "us")]);
    assert!(world.launch_by(&in_eu, &elsewhere).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn without_a_setting_each_zone_is_its_own_region() {
    let world = two_zones().await;
    let claim = asking(&world, "np-a", &[(REGION, "In", "zone-02")]);
    let instance = world.launch(&claim).await.expect("a machine");
    assert_eq!((label(&instance, REGION), label(&instance, labels::ZONE_NAME)), ("zone-02", "zone-02"));
}

#[tokio::test(start_paused = true)]
async fn what_an_offering_does_not_have_is_not_bought_for_who_asks_for_it() {
    let world = World::new().await;
    let types = async |world: &World| {
        world.provider.get_instance_types(&world.pool("default")).await.expect("types").to_vec()
    };
    let plain = types(&world).await;
    let asks = [
        (labels::HOST_TAGS, "In", "raid"),
        (labels::STORAGE_TYPE, "In", "local"),
        (labels::INSTANCE_GPU_NAME, "In", "A10"),
        (labels::INSTANCE_GPU_COUNT, "Gte", "1"),
        (labels::INSTANCE_GPU_MANUFACTURER, "In", "nvidia"),
        (labels::INSTANCE_GPU_MEMORY, "Gte", "1024"),
        (labels::INSTANCE_NETWORK_BANDWIDTH, "Gte", "2000"),
        (labels::RESERVATION_ID, "In", "rack-7"),
        ("node.kubernetes.io/windows-build", "In", "10.0.17763"),
    ];
    for ask in asks {
        let claim = asking(&world, "np-a", &[ask]);
        let choices = selection::by_price(&plain, &claim, &labels::WELL_KNOWN).expect("choices");
        assert!(choices.is_empty(), "{ask:?}: {:?}", choices[0]);
    }
    world.cloud.add(
        "serviceoffering",
        json!({"name": "several", "cpunumber": 4, "cpuspeed": 1000, "memory": 8192, "hosttags": "raid,fast"}),
    );
    world.cloud.add("serviceoffering", json!({"name": "rich", "cpunumber": 4, "cpuspeed": 1000, "memory": 8192,
        "gpucount": 1, "gpucardname": "A10", "videoram": 24576, "hosttags": "raid", "storagetype": "local", "networkrate": 2000}));
    seconds(301).await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "*"}]);
    class["reservations"] = json!([{"name": "rack-7", "offering": "rich", "count": 1}]);
    world.class("default", class).await;
    let all = types(&world).await;
    for ask in &asks[..8] {
        let claim = asking(&world, "np-a", &[*ask]);
        let choices = selection::by_price(&all, &claim, &labels::WELL_KNOWN).expect("choices");
        let bought: Vec<&str> = choices.iter().map(|(it, _)| &*it.name).collect();
        assert!(!bought.is_empty() && bought.iter().all(|name| *name == "rich"), "{ask:?}: {bought:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_well_known_label_is_spoken_of_by_each_type_or_by_its_offerings() {
    let world = two_zones().await;
    world.cloud.add("serviceoffering", json!({"name": "gpu", "cpunumber": 4, "cpuspeed": 1000, "memory": 8192, "gpucount": 1, "gpucardname": "A10"}));
    world.cloud.add(
        "serviceoffering",
        json!({"name": "open", "iscustomized": true, "cpunumber": null, "cpuspeed": null, "memory": null}),
    );
    seconds(301).await;
    let mut class = spec();
    class["zones"] = json!(["zone-02"]);
    class["serviceOfferingSelectorTerms"] = json!([{"name": "*"}]);
    class["reservations"] = json!([{"name": "rack-7", "offering": "k8s.small", "count": 1}]);
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert!(types.len() > 5, "{}", types.len());
    for it in &*types {
        for key in labels::WELL_KNOWN.iter().chain(&[REGION]) {
            let of_type = it.requirements.get(key).is_some();
            let of_all = it.offerings.iter().all(|offering| offering.requirements.get(key).is_some());
            assert!(of_type || of_all, "{} says nothing of {key}", it.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_differs_from_zone_to_zone_is_said_of_each() {
    let world = two_zones().await;
    let (near, far) =
        (world.cloud.id_of("zone", "sim-zone-1").unwrap(), world.cloud.id_of("zone", "zone-02").unwrap());
    for (zone, tag) in [(&near, "hdd"), (&far, "ssd")] {
        world.cloud.add("serviceoffering", json!({"name": "here", "zoneid": zone, "cpunumber": 2, "cpuspeed": 1000, "memory": 4096, "hosttags": tag}));
    }
    world.cloud.edit("host", "far", |host| host["hosttags"] = "ssd".into());
    seconds(301).await;
    let mut class = spec();
    class["zones"] = json!(["zone-02"]);
    class["serviceOfferingSelectorTerms"] = json!([{"name": "here"}]);
    world.class("default", class).await;
    let instance =
        world.launch(&asking(&world, "np-a", &[(labels::HOST_TAGS, "In", "ssd")])).await.expect("a machine");
    assert_eq!(
        (label(&instance, labels::HOST_TAGS), label(&instance, labels::ZONE_NAME)),
        ("ssd", "zone-02")
    );
}

#[tokio::test(start_paused = true)]
async fn a_region_that_gets_another_name_is_no_reason_to_replace_machines() {
    let world = two_zones().await;
    world.node("np-a").await;
    let renamed = ProviderOptions { region: Some("eu".into()), ..ProviderOptions::new("test") };
    let types = world.with_options(renamed).get_instance_types(&world.pool("default")).await.expect("types");
    let claim = world.current("np-a");
    let labels = claim.metadata.labels.clone().unwrap_or_default();
    let it = types
        .iter()
        .find(|it| &*it.name == labels["node.kubernetes.io/instance-type"].as_str())
        .expect("sold");
    let is_it = |offering: &karpenter_engine::instance_type::Offering| {
        offering.requirements.iter().all(|requirement| {
            labels
                .get(&*requirement.key)
                .map_or(requirement.values.is_empty(), |value| requirement.has(value))
        })
    };
    assert!(it.offerings.iter().any(is_it), "{:?}", it.offerings);
}
