//! What is refused for want of room, in whatever words, and where else machines go then: scenarios 5 and 24, several networks.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_engine::instance_type::InstanceType;
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::Router;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
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
async fn launches_that_are_refused_together_do_not_take_each_other_for_members_of_a_strict_group() {
    let world = World::new().await;
    for i in 2..4 {
        world.cloud.add("host", json!({"name": format!("big-{i}"), "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}));
    }
    // The cheapest type fits on no host, which the server says as if the group were in the way.
    world.cloud.edit("serviceoffering", "k8s.small", |it| it["cpuspeed"] = 100_000.into());
    world.cloud.configure(|settings| {
        settings.latencies.accept = Span::millis(1000, 1000);
        settings.latencies.refuse = Span::millis(1500, 1500);
        settings.latencies.place = Span::millis(5000, 5000);
    });
    seconds(310).await;
    let mut apart = spec();
    apart["affinity"] = json!({"type": "hostAntiAffinity"});
    world.class("default", apart).await;
    let claims = ["np-a", "np-b", "np-c"].map(|name| world.claim(name, json!({"cpu": "1"})));
    let launches = futures_util::future::join_all(claims.iter().map(|claim| world.launch(claim))).await;
    for launched in launches {
        let instance = launched.expect("of the next type");
        assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.medium");
    }
    let told = world.told("InsufficientCapacity");
    assert!(!told.is_empty() && !told.iter().any(|text| text.contains("in its groups")), "{told:?}");
    assert!(has_any_available(&world).await, "the NodePool has room");
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

/// A NodeClass with two networks, of which the first has a router that fails; the other's id.
async fn with_a_broken_router(version: &str, how: Router) -> (World, String) {
    let world = World::new().await;
    world.cloud.set_version(version);
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", two).await;
    world.cloud.break_router(&world.cloud.id_of("network", "k8s-net").unwrap(), Some(how));
    let works = world.cloud.id_of("network", "k8s-storage").unwrap();
    (world, works)
}

/// The networks of a claim's machine, whatever was tried before it.
fn networks_of(world: &World, claim: &str) -> Vec<String> {
    let mut live = world.live().into_iter();
    live.find(|machine| machine.name.contains(claim)).expect("a machine").networks
}

const ROUTERS: [(&str, Router, usize); 3] = [
    ("4.20.1.0", Router::Unreachable, 1),
    ("4.23.0.0", Router::Unreachable, 1),
    // Nobody says that it is the router: each size is tried there once.
    ("4.20.1.0", Router::Disobedient, 2),
];

#[tokio::test(start_paused = true)]
async fn a_network_whose_router_does_not_answer_is_left_for_another() {
    for (version, how, failures) in ROUTERS {
        let (world, works) = with_a_broken_router(version, how).await;
        // So quickly that it shows while the launch waits.
        world.cloud.configure(|settings| {
            settings.latencies.start = Span::millis(0, 0);
            settings.latencies.first_start = Span::millis(0, 0);
        });
        world.node("np-a").await;
        assert_eq!(networks_of(&world, "np-a"), std::slice::from_ref(&works), "{version}");
        assert_eq!(world.calls("deployVirtualMachine"), failures + 1, "{version}");
        assert_eq!(world.told("NetworkUnavailable").len(), usize::from(how == Router::Unreachable));
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        assert!(types.iter().all(|it| it.offerings.iter().any(|o| o.available)), "no size is at fault");
        world.node("np-b").await;
        assert_eq!(networks_of(&world, "np-b"), [works], "{version}");
        assert_eq!(world.calls("deployVirtualMachine"), failures + 2, "{version}: it is known by now");
    }
}

#[tokio::test(start_paused = true)]
async fn a_network_whose_router_fails_after_machines_were_placed_is_left_for_another() {
    for (version, how, failures) in ROUTERS {
        let (world, works) = with_a_broken_router(version, how).await;
        for number in 0..failures {
            let name = format!("np-{number}");
            world.node(&name).await;
            seconds(30).await;
            world.provider.look_at_launches().await.expect("a look");
            world.cluster.claims.lock().unwrap().remove(&name);
        }
        world.node("np-a").await;
        assert_eq!(networks_of(&world, "np-a"), [works], "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disabled_account_is_told_of_after_one_order_and_bars_no_size() {
    let world = World::new().await;
    world.cloud.disable_tenant(true);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let error = world.launch(&claim).await.expect_err("disabled");
    assert!(matches!(error, ProviderError::Create { .. }), "{error:?}");
    assert!(error.to_string().contains("owner of vm to deploy is disabled"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 1);
    assert!(has_any_available(&world).await);
    world.cloud.disable_tenant(false);
    world.launch(&claim).await.expect("a machine");
    assert_eq!(world.calls("deployVirtualMachine"), 2, "the first size was had");
}

#[tokio::test(start_paused = true)]
async fn a_network_whose_addresses_are_all_taken_drifts_no_node_and_is_told_of() {
    let world = World::new().await;
    world.cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.1.1.0/30".into());
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", two.clone()).await;
    world.node("np-a").await;
    // Networks are remembered for a minute.
    seconds(61).await;
    let class = world.class("default", two).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True, "{:?}", class.status);
    let condition = class.condition("NetworksReady").expect("a condition");
    assert!(condition.message().contains("\"k8s-net\""), "{condition:?}");
    assert_eq!(class.status.as_ref().unwrap().networks.as_ref().unwrap().len(), 2, "{:?}", class.status);
    let told = world.told("NetworkExhausted");
    assert!(told.len() == 1 && told[0].contains("\"k8s-net\""), "{told:?}");
    world.node("np-b").await;
    assert_eq!(world.calls("deployVirtualMachine"), 2, "nobody tries the full one");
    let storage = world.cloud.id_of("network", "k8s-storage").unwrap();
    assert_eq!(world.machine_of("np-b").networks, [storage]);
    seconds(61).await;
    for name in ["np-a", "np-b"] {
        let drift = world.provider.is_drifted(&world.current(name)).await.expect("known");
        assert_eq!(drift, None, "{name} runs, whoever else finds no address");
    }
    // The only one there is: the NodeClass is as it should be, and nothing can be had.
    let class = world.class("default", spec()).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True, "{:?}", class.status);
    assert!(!has_any_available(&world).await);
    let error = world.launch(&world.claim("np-c", json!({"cpu": "1"}))).await.expect_err("no address");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_second_network_closes_no_first_one() {
    let world = World::new().await;
    world.cloud.edit("network", "k8s-storage", |network| network["cidr"] = "10.1.1.0/30".into());
    let mut two = spec();
    two["additionalNetworkSelectorTerms"] = json!([{"name": "k8s-storage"}]);
    world.class("default", two).await;
    world.node("np-a").await;
    for _ in 0..4 {
        world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect_err("no second address");
        seconds(10).await;
    }
    assert_eq!(world.calls("deployVirtualMachine"), 2, "what is full is looked up when a launch fails");
    let told = world.told("NetworkExhausted");
    assert!(!told.is_empty() && told.iter().all(|text| text.contains("\"k8s-storage\"")), "{told:?}");
    assert!(!told.iter().any(|text| text.contains("\"k8s-net\"")), "{told:?}");
    world.class("default", spec()).await;
    world.node("np-c").await;
}

#[tokio::test(start_paused = true)]
async fn a_further_interface_is_in_the_oldest_network_of_its_term_that_has_room_and_drifts_in_none_of_them() {
    let world = World::new().await;
    let mut class = spec();
    class["additionalNetworkSelectorTerms"] = json!([{"name": "k8s-storage*"}]);
    world.class("default", class.clone()).await;
    world.node("np-a").await;
    // Listed later, and older: which is first in the list says nothing.
    let older = json!({"name": "k8s-storage-older", "created": "2026-11-01T00:00:00+0000",
        "cidr": "10.1.1.0/30"});
    let older = world.cloud.add("network", older);
    let newer = world.cloud.id_of("network", "k8s-storage").unwrap();
    // Networks are remembered for a minute.
    seconds(61).await;
    world.node("np-b").await;
    assert_eq!(networks_of(&world, "np-a")[1..], *std::slice::from_ref(&newer));
    assert_eq!(networks_of(&world, "np-b")[1..], [older]);
    seconds(61).await;
    assert!(has_any_available(&world).await, "the other has room");
    world.node("np-c").await;
    assert_eq!(networks_of(&world, "np-c")[1..], [newer]);
    assert_eq!(world.calls("deployVirtualMachine"), 3, "nobody tries the full one");
    for name in ["np-a", "np-b", "np-c"] {
        let drift = world.provider.is_drifted(&world.current(name)).await.expect("known");
        assert_eq!(drift, None, "{name}");
    }
    let mut drifts_under = async |terms: serde_json::Value| {
        class["additionalNetworkSelectorTerms"] = terms;
        world.class("default", class.clone()).await;
        let mut claim = (*world.current("np-b")).clone();
        // Without the hash, which another NodeClass has too.
        claim.metadata.annotations = None;
        world.provider.is_drifted(&claim).await.expect("known")
    };
    assert_eq!(drifts_under(json!([{"name": "k8s-storage"}])).await.as_deref(), Some("NetworkDrift"));
    assert_eq!(drifts_under(json!([])).await.as_deref(), Some("NetworkDrift"), "one too many");
    let two = json!([{"name": "k8s-storage*"}, {"name": "k8s-storage*"}]);
    assert_eq!(drifts_under(two).await.as_deref(), Some("NetworkDrift"), "one too few");
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_a_moment_ago_is_looked_up_anew_and_the_launch_goes_on() {
    let world = World::new().await;
    let newest =
        world.cloud.add("template", json!({"name": "CentOS new", "created": "2026-11-16T00:00:00+0000"}));
    seconds(301).await;
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", two).await;
    assert_eq!(world.node("np-a").await.image_id, newest);
    world.cloud.remove("template", "CentOS new");
    assert_ne!(world.node("np-b").await.image_id, newest, "there is an older one");
    world.cloud.remove("network", "k8s-net");
    world.node("np-c").await;
    let storage = world.cloud.id_of("network", "k8s-storage").unwrap();
    assert_eq!(world.machine_of("np-c").networks, [storage]);
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["state"] = "Inactive".into());
    let instance = world.node("np-d").await;
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.medium");
    assert_eq!(world.calls("deployVirtualMachine"), 7, "each was refused once");
}

#[tokio::test(start_paused = true)]
async fn a_type_whose_offering_keeps_its_root_disk_is_refused_and_the_next_one_taken() {
    let world = World::new().await;
    world.cloud.add("diskoffering", json!({"name": "fast"}));
    seconds(301).await;
    let mut class = spec();
    class["rootDiskOffering"] = "fast".into();
    world.class("default", class).await;
    let strict = "Cannot override disk offering id 17 since provided service offering is strictly mapped to its disk offering";
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Fail(431, 4350, strict.to_owned())));
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("of another type");
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.medium");
    let next = world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(
        next.labels["node.kubernetes.io/instance-type"], "k8s.medium",
        "it is not asked for again soon"
    );
}

#[tokio::test(start_paused = true)]
async fn a_launch_gets_past_the_names_of_any_number_of_machines_that_it_does_not_see() {
    for by_another in [false, true] {
        let world = World::new().await;
        world.cloud.configure(|settings| settings.user_may_expunge = false);
        for i in 0..6 {
            let nowhere = json!({"name": format!("nowhere-{i}"), "cpunumber": 1, "cpuspeed": 500, "memory": 1024, "hosttags": "nowhere"});
            world.cloud.add("serviceoffering", nowhere);
        }
        // Which offerings there are is remembered for five minutes.
        seconds(301).await;
        let mut class = spec();
        class["serviceOfferingSelectorTerms"] = json!([{"name": "nowhere-*"}, {"name": "k8s.small"}]);
        world.class("default", class).await;
        let text = "Internal error executing command, please contact your system administrator";
        let opaque = Fault::once("deployVirtualMachine", Trouble::Fail(530, 9999, text.into()));
        world.cloud.inject(opaque.after(6));
        let claim = world.claim("np-a", json!({"cpu": "500m"}));
        world.launch(&claim).await.expect_err("nobody knows why");
        assert_eq!(world.calls("deployVirtualMachine"), 7, "none of the six is placed");
        seconds(60).await;
        let before = world.calls("deployVirtualMachine");
        let another = world.another(2);
        let next = if by_another { &another } else { &world.provider };
        world.launch_by(next, &claim).await.expect("a machine of the seventh");
        assert_eq!(world.live().len(), 1);
        let orders = world.calls("deployVirtualMachine") - before;
        assert!(by_another || orders == 1, "whoever ordered those knows which names they have: {orders}");
    }
}

/// What a server says that tells.
fn no_address_left() -> Trouble {
    Trouble::Fail(
        533,
        4320,
        "Insufficient address capacityScope=interface com.cloud.dc.DataCenter; id=1".into(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_network_that_is_told_to_have_no_address_left_is_left_for_the_next_by_the_same_launch() {
    let world = World::new().await;
    let mut class = spec();
    class["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", class).await;
    world.cloud.inject(Fault::once("deployVirtualMachine", no_address_left()));
    world.node("np-a").await;
    assert_eq!(networks_of(&world, "np-a"), [world.cloud.id_of("network", "k8s-storage").unwrap()]);
    assert_eq!(
        world.calls("deployVirtualMachine"),
        2,
        "no other size is asked for where the first found none"
    );
    let told = world.told("NetworkExhausted");
    assert!(told.len() == 1 && told[0].contains("\"k8s-net\" has no address left"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_finds_no_address_once_its_launch_has_returned_speaks_against_its_network_only() {
    for several in [false, true] {
        let world = World::new().await;
        let mut class = spec();
        if several {
            class["additionalNetworkSelectorTerms"] = json!([{"name": "k8s-storage"}]);
        }
        world.class("default", class.clone()).await;
        world.node("np-a").await;
        world.cloud.fail_machine(&world.machine_of("np-a").id);
        world.cloud.inject(Fault::once("queryAsyncJobResult", no_address_left()));
        seconds(10).await;
        world.provider.look_at_launches().await.expect("a look");
        let told = world.told("NetworkExhausted");
        assert!(told.len() == 1 && told[0].contains("\"k8s-net\""), "{told:?}");
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        let is_there = |it: &&InstanceType| it.offerings.iter().any(|offering| offering.available);
        let left = types.iter().filter(is_there).count();
        // Which of several networks it was nobody knows, so the other type may try.
        assert_eq!(left, usize::from(several), "several networks: {several}");
        class["networkSelectorTerms"] = json!([{"name": "k8s-storage"}]);
        class["additionalNetworkSelectorTerms"] = json!([]);
        world.class("default", class).await;
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        assert_eq!(types.iter().filter(is_there).count(), 2, "no type is to blame");
    }
}
