//! What is refused for want of room, in whatever words, and where else machines go then: scenarios 5 and 24, several networks.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_engine::instance_type::InstanceType;
use karpenter_sim::chance::Span;
use serde_json::json;

use crate::cloud::{World, seconds, spec};

async fn has_any_available(world: &World) -> bool {
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let available = |types: &[InstanceType]| types.iter().flat_map(|it| &it.offerings).any(|o| o.available);
    available(&types)
}

fn no_host(world: &World) {
    for offering in ["k8s.small", "k8s.medium"] {
        world.cloud.edit("serviceoffering", offering, |it| it["hosttags"] = "nowhere".into());
    }
}

fn no_storage(world: &World) {
    world.cloud.configure(|settings| settings.volumes_fail = true);
}

#[tokio::test(start_paused = true)]
async fn scenario_5_no_suitable_host_and_insufficient_capacity_are_want_of_room_and_asked_for_once_each() {
    for (words, want) in
        [("No suitable host found", no_host as fn(&World)), ("due to insufficient capacity", no_storage)]
    {
        let world = World::new().await;
        // So quickly that it shows while the launch waits.
        world.cloud.configure(|settings| {
            settings.latencies.start = Span::millis(0, 0);
            settings.latencies.first_start = Span::millis(0, 0);
        });
        want(&world);
        let error = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect_err("no room");
        // An internal error would be tried again for minutes with the same type.
        assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
        let text = error.to_string();
        assert_eq!(text.matches(words).count(), 2, "what was said of either type: {text}");
        assert_eq!(world.calls("deployVirtualMachine"), 2, "each type once: {words}");
        assert_eq!(world.told("InsufficientCapacity").len(), 2);
        assert!(world.told("NetworkExhausted").is_empty());
        seconds(30).await;
        assert!(world.live().is_empty());
        assert!(world.cloud.machines().iter().all(|machine| machine.state != "Error"), "nothing is left");
        assert!(!has_any_available(&world).await, "{words}");
        for name in ["np-b", "np-c", "np-d"] {
            world.launch(&world.claim(name, json!({"cpu": "1"}))).await.expect_err("no room");
        }
        assert_eq!(world.calls("deployVirtualMachine"), 2, "and nobody asks again soon: {words}");
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_24_strict_anti_affinity_is_full_when_hosts_are_and_the_soft_kind_is_not() {
    let world = World::new().await;
    // Of the measured cloud: four.
    for host in ["big-0", "big-1"] {
        world.cloud.edit("host", host, |host| host["memoryallocatedbytes"] = (64i64 << 30).into());
    }
    let mut apart = spec();
    apart["serviceOfferingSelectorTerms"] = json!([{"name": "Small Instance"}]);
    apart["affinity"] = json!({"type": "hostAntiAffinity"});
    world.class("default", apart.clone()).await;
    let mut refused = Vec::new();
    for i in 0..6 {
        let name = format!("np-{i}");
        if let Err(error) = world.launch(&world.claim(&name, json!({"cpu": "500m"}))).await {
            assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
            refused.push(error.to_string());
            world.cluster.claims.lock().unwrap().remove(&name);
        }
        seconds(30).await;
    }
    let hosts: BTreeSet<_> = world.live().into_iter().filter_map(|machine| machine.host).collect();
    assert_eq!((world.live().len(), hosts.len(), refused.len()), (4, 4, 2), "one per host: {refused:?}");
    assert!(refused[0].contains("check the affinity groups"), "{refused:?}");
    assert_eq!(world.calls("deployVirtualMachine"), 5, "the last was not even asked for");
    let told = world.told("InsufficientCapacity");
    assert!(told[0].contains("4 are in its groups") && told[0].contains("spec.limits.nodes"), "{told:?}");
    assert!(!has_any_available(&world).await, "nothing is offered to the pool whose hosts are all taken");

    apart["affinity"] = json!({"type": "softHostAntiAffinity"});
    world.class("default", apart).await;
    assert!(has_any_available(&world).await, "what gives way is another matter");
    for i in 10..16 {
        world.launch(&world.claim(&format!("np-{i}"), json!({"cpu": "500m"}))).await.expect("soft");
        seconds(30).await;
    }
    assert_eq!(world.live().len(), 10);
    assert_eq!(world.cloud.affinity_groups().len(), 2);

    // With the pool go its machines, and with them the groups: none before.
    let names: Vec<String> = world.cluster.claims.lock().unwrap().keys().cloned().collect();
    for name in names {
        assert_eq!(world.cloud.affinity_groups().is_empty(), world.cluster.claims.lock().unwrap().is_empty());
        world.delete(&world.current(&name)).await.expect("gone");
        world.cluster.claims.lock().unwrap().remove(&name);
        world.provider.round().await.expect("a round");
    }
    seconds(10).await;
    assert!(world.cloud.affinity_groups().is_empty());
}

#[tokio::test(start_paused = true)]
async fn machines_are_spread_over_networks_by_the_name_of_their_claim_where_the_class_wants_it() {
    let world = World::new().await;
    let id = |name: &str| world.cloud.id_of("network", name).unwrap();
    let both = [id("k8s-net"), id("k8s-storage")];
    let mut class = spec();
    class["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    class["networkSelection"] = "Spread".into();
    world.class("default", class.clone()).await;
    let mut at: BTreeMap<String, String> = BTreeMap::new();
    for i in 0..6 {
        let name = format!("np-{i}");
        world.launch(&world.claim(&name, json!({"cpu": "500m"}))).await.expect("a machine");
        let machine = world.live().pop().expect("it");
        at.insert(name, machine.networks[0].clone());
    }
    let used: BTreeSet<&String> = at.values().collect();
    assert_eq!(used, both.iter().collect(), "{at:?}");
    // Whoever asks again for the same claim gets the same network.
    for (name, network) in &at {
        world.delete(&world.current(name)).await.expect("gone");
        world.launch(&world.claim(name, json!({"cpu": "500m"}))).await.expect("a machine");
        assert_eq!(world.live().pop().expect("it").networks[0], *network, "{name}");
    }
    class["networkSelection"] = "First".into();
    world.class("default", class).await;
    for i in 10..14 {
        world.launch(&world.claim(&format!("np-{i}"), json!({"cpu": "500m"}))).await.expect("a machine");
        assert_eq!(world.live().pop().expect("it").networks[0], both[0]);
    }
}
