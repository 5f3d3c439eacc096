//! What can be bought besides plain machines on demand: spot, reservations, prices of several sources.

use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_engine::instance_type::{InstanceType, Offering};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};

use crate::cloud::{World, seconds, spec};

fn value(offering: &Offering, key: &str) -> String {
    let requirement = offering.requirements.get(key).and_then(|requirement| requirement.values.first());
    requirement.map(ToString::to_string).unwrap_or_default()
}

fn offerings<'a>(types: &'a [InstanceType], capacity_type: &str) -> Vec<(&'a str, &'a Offering)> {
    let all = types.iter().flat_map(|it| it.offerings.iter().map(|offering| (&*it.name, offering)));
    all.filter(|(_, offering)| value(offering, "karpenter.sh/capacity-type") == capacity_type).collect()
}

#[tokio::test(start_paused = true)]
async fn offerings_the_class_calls_spot_are_launched_as_spot_at_their_own_price() {
    let world = World::new().await;
    let mut class = spec();
    class["capacityTypes"] = json!({"k8s.sm*": "spot"});
    class["pricing"] = json!({"overrides": {"k8s.small": "0.01"}});
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let spot = offerings(&types, "spot");
    assert_eq!(spot.iter().map(|(name, o)| (*name, o.price)).collect::<Vec<_>>(), [("k8s.small", 0.01)]);
    assert_eq!(offerings(&types, "on-demand").len(), 1);
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(instance.labels["karpenter.sh/capacity-type"], "spot");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_is_taken_first_and_for_no_more_machines_than_it_has() {
    let world = World::new().await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
    class["reservations"] = json!([{"name": "rack-7", "offering": "k8s.small", "count": 2}]);
    let status = world.class("default", class).await.status.clone().unwrap_or_default();
    let price = status.service_offerings.unwrap_or_default()[0].price.clone();
    assert_eq!(price.as_deref(), Some("0.1000"), "what one costs that is not reserved");
    let metrics = world.environment.registry.encode();
    let prices = metrics.lines().filter(|line| line.starts_with("karpenter_cloudstack_instance_type_price{"));
    let of_small: Vec<&str> = prices.filter(|line| line.contains("k8s.small")).collect();
    assert_eq!(of_small.len(), 2, "on demand and reserved: {of_small:?}");
    let slots = async |world: &World| {
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        offerings(&types, "reserved")[0].1.reservation_capacity
    };
    assert_eq!(slots(&world).await, 2);
    let claims: Vec<_> = (0..4).map(|i| world.claim(&format!("np-{i}"), json!({"cpu": "1"}))).collect();
    // All at once: nobody counts on the slot of another.
    let launches = claims.iter().map(|claim| world.launch(claim));
    let instances = futures_util::future::join_all(launches).await;
    let mut kinds: Vec<String> = instances
        .into_iter()
        .map(|instance| instance.expect("a machine").labels["karpenter.sh/capacity-type"].clone())
        .collect();
    kinds.sort();
    assert_eq!(kinds, ["on-demand", "on-demand", "reserved", "reserved"]);
    assert_eq!(slots(&world).await, 0);
    let reserved = (0..4)
        .map(|i| world.current(&format!("np-{i}")))
        .find(|claim| {
            let labels = claim.metadata.labels.clone().unwrap_or_default();
            labels.get("karpenter.k8s.cloudstack/reservation-id").is_some_and(|id| id == "rack-7")
        })
        .expect("one that says which");
    world.delete(&reserved).await.expect("gone");
    assert_eq!(slots(&world).await, 1, "free again");
}

#[tokio::test(start_paused = true)]
async fn tariffs_of_the_quota_plug_in_count_where_the_class_wants_them_and_only_if_it_is_there() {
    let world = World::new().await;
    let mut class = spec();
    class["rootDiskSize"] = 100.into();
    class["pricing"] = json!({"quotaTariff": "Use"});
    let ready = world.class("default", class.clone()).await;
    let price = async |world: &World| {
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        offerings(&types, "on-demand")[0].1.price
    };
    // No plug-in: the server answers as to wrong keys. That is believed of the command, not of the keys.
    assert!((price(&world).await - (4.0 * 0.04 + 8.0 * 0.005)).abs() < 1e-9, "{}", price(&world).await);
    assert_eq!(ready.condition("CredentialsReady").expect("a condition").status.as_str(), "True");
    world.cloud.set_tariffs(144.0, 0.72);
    seconds(3601).await;
    assert!((price(&world).await - (0.2 + 0.1)).abs() < 1e-9, "{}", price(&world).await);
    // Those that are taken for some machines only, or not for long, say nothing of every machine.
    let more = |fields: Value| {
        let mut tariff = json!({"usageType": 1, "tariffValue": 720.0, "name": "more"});
        for (key, value) in fields.as_object().into_iter().flatten() {
            tariff[key] = value.clone();
        }
        world.cloud.add_tariff(tariff);
    };
    more(json!({"activationRule": "if (resourceType == 'x') { 1 }"}));
    more(json!({"endDate": "2026-12-31T00:00:00+0000"}));
    more(json!({"removed": "2026-11-01T00:00:00+0000"}));
    seconds(3601).await;
    assert!((price(&world).await - (0.2 + 0.1)).abs() < 1e-9, "{}", price(&world).await);
    more(json!({"activationRule": ""}));
    seconds(3601).await;
    assert!((price(&world).await - (0.2 + 0.1 + 1.0)).abs() < 1e-9, "{}", price(&world).await);
}

#[tokio::test(start_paused = true)]
async fn a_server_before_4_21_is_told_of_an_extra_disk_as_it_understands_it() {
    let world = World::new().await;
    world.cloud.set_version("4.20.2.0");
    seconds(601).await;
    let mut class = spec();
    class["dataDisks"] = json!([{"offering": "k8s.datacustom", "size": 5}]);
    world.class("default", class).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let log = world.cloud.log();
    let deploy = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    assert!(!deploy.parameters.keys().any(|key| key.starts_with("datadisksdetails")), "{deploy:?}");
    assert_eq!(deploy.parameters["size"], "5");
    assert_eq!(world.cloud.data_disks().len(), 1);
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.cloud.data_disks().is_empty(), "and goes with it");
}

#[tokio::test(start_paused = true)]
async fn the_group_of_a_reservation_that_is_not_there_is_told_of() {
    let world = World::new().await;
    let mut class = spec();
    class["reservations"] = json!([{"name": "gone", "offering": "k8s.small", "count": 2,
        "groupID": "11111111-0000-4000-8000-000000000000"}]);
    let class = world.class("default", class).await;
    let condition = class.condition("AffinityReady").expect("a condition");
    assert_eq!((condition.status.as_str(), condition.reason()), ("False", "AffinityGroupNotFound"));
    assert!(condition.message().contains("spec.reservations.groupID"), "{}", condition.message());
}

#[tokio::test(start_paused = true)]
async fn what_was_launched_as_another_capacity_type_stays_on_offer() {
    let world = World::new().await;
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(instance.labels["karpenter.sh/capacity-type"], "on-demand");
    let mut class = spec();
    class["capacityTypes"] = json!({"*": "spot"});
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let kept = offerings(&types, "on-demand");
    let name = instance.labels["node.kubernetes.io/instance-type"].as_str();
    assert_eq!(kept.iter().map(|(name, o)| (*name, o.available)).collect::<Vec<_>>(), [(name, false)]);
    assert_eq!(offerings(&types, "spot").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_whose_hosts_are_full_says_nothing_of_the_others_of_the_pool() {
    let world = World::new().await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}]);
    class["affinity"] = json!({"type": "hostAntiAffinity"});
    class["reservations"] = json!([{"name": "rack-7", "offering": "k8s.small", "count": 2}]);
    world.class("default", class).await;
    let text = "No suitable host found, please check the affinity groups";
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Fail(533, 4350, text.into())));
    let instance =
        world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine outside it");
    assert_eq!(instance.labels["karpenter.sh/capacity-type"], "on-demand");
}

#[tokio::test(start_paused = true)]
async fn what_reservations_have_left_is_not_counted_anew_for_everybody_who_asks() {
    let world = World::new().await;
    let mut class = spec();
    class["reservations"] = json!([{"name": "rack-7", "offering": "k8s.small", "count": 2}]);
    world.class("default", class).await;
    let before = world.calls("listVirtualMachines");
    for _ in 0..5 {
        world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    }
    assert!(world.calls("listVirtualMachines") <= before + 1);
}

/// Names of instance types, and whether any of their offerings can be had.
async fn to_be_had(world: &World) -> Vec<(String, bool)> {
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    types
        .iter()
        .map(|it| (it.name.to_string(), it.offerings.iter().any(|offering| offering.available)))
        .collect()
}

/// A class that may buy machines with a GPU, and ones without.
async fn with_gpus() -> World {
    let world = World::new().await;
    world.cloud.add("serviceoffering", json!({"name": "gpu", "cpunumber": 4, "cpuspeed": 1000, "memory": 8192, "gpucount": 1, "gpucardname": "NVIDIA A10"}));
    // Which offerings there are is remembered for five minutes.
    seconds(301).await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "gpu"}, {"name": "k8s.small"}]);
    world.class("default", class).await;
    world
}

#[tokio::test(start_paused = true)]
async fn what_has_gpus_cannot_be_had_in_a_zone_whose_gpus_are_all_taken() {
    let world = with_gpus().await;
    world.cloud.edit("host", "big-0", |host| host["gpus"] = 1.into());
    seconds(61).await;
    let (gpu, small) = (|has| ("gpu".to_owned(), has), ("k8s.small".to_owned(), true));
    assert_eq!(to_be_had(&world).await, [gpu(true), small.clone()]);
    world.launch(&world.claim("np-a", json!({"nvidia.com/gpu": "1"}))).await.expect("a GPU");
    seconds(61).await;
    assert_eq!(to_be_had(&world).await, [gpu(false), small.clone()], "what has none can be had all the same");
    world.delete(&world.current("np-a")).await.expect("gone");
    seconds(61).await;
    assert_eq!(to_be_had(&world).await, [gpu(true), small]);
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_does_not_count_gpus_may_have_some() {
    let world = with_gpus().await;
    // It counts none at all: perhaps it does not know of those there are.
    assert!(to_be_had(&world).await.contains(&("gpu".to_owned(), true)));
    world.cloud.edit("host", "big-0", |host| host["gpus"] = 1.into());
    world.launch(&world.claim("np-a", json!({"nvidia.com/gpu": "1"}))).await.expect("a GPU");
    // As a server before 4.21, which says nothing.
    world.cloud.edit("zone", "sim-zone-1", |zone| {
        let fields = zone.as_object_mut().expect("a zone");
        fields.retain(|field, _| !field.starts_with("gpu"));
    });
    seconds(61).await;
    assert!(to_be_had(&world).await.contains(&("gpu".to_owned(), true)));
}

#[tokio::test(start_paused = true)]
async fn zones_are_not_asked_for_gpus_where_none_are_on_offer() {
    let world = World::new().await;
    world.class("default", spec()).await;
    let asked = |world: &World| world.cloud.log().iter().filter(|entry| entry.command == "listZones").count();
    let before = asked(&world);
    for _ in 0..5 {
        seconds(61).await;
        to_be_had(&world).await;
    }
    assert_eq!(asked(&world), before);
}

#[tokio::test(start_paused = true)]
async fn events_are_asked_for_again_after_a_proxy_refused_and_not_after_the_role_may_not() {
    let world = World::new().await;
    let mut class = spec();
    class["capacityTypes"] = json!({"*": "spot"});
    world.class("default", class).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    seconds(60).await;
    world.cloud.inject(Fault::once("listEvents", Trouble::Proxy(403)));
    for _ in 0..2 {
        world.provider.round().await.expect("a round");
    }
    assert_eq!(world.calls("listEvents"), 4, "two kinds in every round");
    let text = "The API [listEvents] does not exist or is not available for the account karp.";
    world.cloud.inject(Fault::once("listEvents", Trouble::Fail(432, 9999, text.into())));
    for _ in 0..2 {
        world.provider.round().await.expect("a round");
    }
    assert_eq!(world.calls("listEvents"), 5, "it will not be allowed the next time either");
}

#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_ask_for_events_is_believed_however_many_projects_there_are() {
    let world = World::new().await;
    let (_, inside) = world.project();
    world.class("team", inside).await;
    let mut class = spec();
    class["capacityTypes"] = json!({"*": "spot"});
    world.class("default", class).await;
    world.node("np-a").await;
    seconds(60).await;
    let text = "The API [listEvents] does not exist or is not available for the account karp.";
    world.cloud.inject(Fault::times("listEvents", 1000, Trouble::Fail(432, 9999, text.into())));
    for _ in 0..3 {
        world.round().await;
        seconds(120).await;
    }
    assert_eq!(world.calls("listEvents"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_closed_keeps_no_spot_machine_elsewhere_from_being_replaced_in_time() {
    let world = World::new().await;
    let (_, inside) = world.project();
    world.class("team", inside).await;
    let mut class = spec();
    class["capacityTypes"] = json!({"*": "spot"});
    world.class("default", class).await;
    world.node("np-a").await;
    seconds(60).await;
    // Two questions outside the project, and then one inside, of which we were no member at that moment.
    let text = "The API [listEvents] does not exist or is not available for the account karp.";
    world.cloud.inject(Fault::once("listEvents", Trouble::Fail(432, 9999, text.into())).after(2));
    world.round().await;
    assert_eq!(world.calls("listEvents"), 3, "nothing else is asked for in that project");
    world.cloud.stop_machine(&world.live()[0].id);
    seconds(60).await;
    world.round().await;
    assert_eq!((world.calls("listEvents"), world.told("SpotStopped").len()), (7, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_limit_is_no_longer_told_once_there_is_none() {
    let world = World::new().await;
    let told = |resource: &str| {
        let metrics = world.environment.registry.encode();
        let mut left =
            metrics.lines().filter(|line| line.starts_with("karpenter_cloudstack_quota_available{"));
        left.any(|line| line.contains(&format!("resource=\"{resource}\"")))
    };
    assert!(told("cpu") && told("primary_storage"));
    world.cloud.limit("cpu", -1);
    seconds(120).await;
    world.class("default", spec()).await;
    assert!(!told("cpu") && told("primary_storage"));
}
