//! Launches, and everything that may go wrong with them: scenarios 1, 3 to 14 and 25.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use karpenter_api::NodeClaim;
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests;
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use karpenter_sim::cloudstack::settings::Throttle;
use serde_json::json;
use tokio::time::Instant;

use crate::cloud::{World, seconds, spec};

fn label<'a>(instance: &'a karpenter_cloudprovider::LaunchedInstance, key: &str) -> &'a str {
    instance.labels.get(key).map(String::as_str).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn scenario_1_the_cheapest_fitting_offering_runs_in_a_fresh_network_tagged_and_described() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1", "memory": "1Gi"}));
    let start = Instant::now();
    let instance = world.launch(&claim).await.expect("a machine");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let machine = &world.live()[0];
    let since_accepted = world.environment.clock.since(machine.created);
    assert!(since_accepted < Duration::from_secs(2), "{since_accepted:?} after it was accepted");
    assert_eq!(machine.state, "Starting", "its job is not done yet");
    assert_eq!(instance.provider_id, format!("external-cloudstack://{}", machine.id));
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.small");
    assert_eq!(label(&instance, "topology.kubernetes.io/zone"), "sim-zone-1");
    assert_eq!(label(&instance, "kubernetes.io/arch"), "amd64");
    assert_eq!(instance.capacity["cpu"].to_string(), "2");
    assert!(instance.allocatable.contains_key("memory") && instance.allocatable.contains_key("pods"));
    assert!(machine.name.starts_with("karpenter-") && machine.name.ends_with("-np-a"), "{}", machine.name);
    for (key, value) in [
        ("karpenter.sh/managed-by", "karpenter"),
        ("kubernetes.io/cluster/test", "owned"),
        ("karpenter.sh/nodeclaim", "np-a"),
        ("karpenter.sh/nodepool", "pool"),
        ("karpenter.k8s.cloudstack/nodeclass", "default"),
        ("karpenter.k8s.cloudstack/nodeclaim-uid", "uid-np-a"),
    ] {
        assert_eq!(machine.tags.get(key).map(String::as_str), Some(value), "tagged before it runs");
    }
    let data = base64::engine::general_purpose::STANDARD.decode(machine.user_data.clone().unwrap()).unwrap();
    assert_eq!(data, b"#!/bin/bash\necho np-a\n");
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
    // Asked again, it is the same machine.
    let again = world.launch(&claim).await.expect("the machine");
    assert_eq!((again.provider_id, world.live().len()), (instance.provider_id, 1));
}

#[tokio::test(start_paused = true)]
async fn scenario_3_names_with_spaces_brackets_and_umlauts_make_valid_labels_that_select() {
    let world = World::new().await;
    let name = "k8s large (8 vCPU / 16 GiB)";
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["name"] = "Zürich [1]".into());
    let mut odd = spec();
    odd["zone"] = "Zürich [1]".into();
    odd["serviceOfferingSelectorTerms"] = json!([{"name": name}]);
    // What was looked up before the zone was renamed is remembered for an hour.
    seconds(3700).await;
    let class = world.class("default", odd).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert_eq!(types.len(), 1, "{:?}", class.status);
    let claim = world.claim("np-a", json!({"cpu": "7"}));
    let mut selecting = (*claim).clone();
    selecting.spec.requirements.push(
        serde_json::from_value(json!({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [types[0].name.to_string()]})).unwrap(),
    );
    let instance = world.launch(&selecting).await.expect("a machine");
    for value in instance.labels.values() {
        assert!(
            value.len() <= 63 && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)),
            "{value}"
        );
    }
    seconds(30).await;
    let current = world.current("np-a");
    assert_eq!(world.provider.is_drifted(&current).await.expect("known"), None);
    assert_eq!(world.another(2).is_drifted(&current).await.expect("known"), None, "stable across restarts");
}

/// Makes the cheaper offering impossible to place.
fn small_has_no_host(world: &World) {
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["hosttags"] = "nowhere".into());
}

#[tokio::test(start_paused = true)]
async fn scenarios_4_and_5_a_refused_type_falls_through_to_the_next_and_is_not_asked_again() {
    let world = World::new().await;
    small_has_no_host(&world);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("the other type");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.medium");
    assert_eq!(world.calls("deployVirtualMachine"), 2);
    seconds(60).await;
    assert_eq!(world.live().len(), 1);
    assert!(
        world.cloud.machines().iter().all(|machine| machine.state != "Error"),
        "what failed was destroyed"
    );
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(world.calls("deployVirtualMachine"), 3, "the refused type was left alone");
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let small = types.iter().find(|it| &*it.name == "k8s.small").expect("listed");
    assert!(!small.offerings[0].available);
}

/// A dearer type with room is bought when no host has the memory for the cheaper one, which the job says with 533.
#[tokio::test(start_paused = true)]
async fn scenario_4_a_type_whose_job_finds_no_host_falls_through_to_the_next() {
    let world = World::new().await;
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["memory"] = (256i64 << 10).into());
    world.cloud.limit("memory", -1);
    // What was looked up before is remembered for five minutes.
    seconds(301).await;
    let mut class = spec();
    class["pricing"] = json!({"overrides": {"k8s.small": "0.01", "k8s.medium": "1"}});
    world.class("default", class).await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("the other type");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.medium");
    assert_eq!(world.calls("deployVirtualMachine"), 2);
    let told = world.told("InsufficientCapacity");
    assert!(told.len() == 1 && told[0].contains("k8s.small in zone sim-zone-1"), "{told:?}");
    seconds(60).await;
    assert_eq!(world.live().len(), 1, "what failed was destroyed");
    assert!(world.cloud.machines().iter().all(|machine| machine.state != "Error"));
    seconds(100).await;
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(world.calls("deployVirtualMachine"), 3, "not asked for again within three minutes");
    seconds(181).await;
    world.launch(&world.claim("np-c", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(world.calls("deployVirtualMachine"), 5, "and asked for again after them");
}

#[tokio::test(start_paused = true)]
async fn a_type_that_lacks_capacity_at_its_start_is_left_alone_and_its_zone_only_with_a_second_type() {
    for version in ["4.20.1.0", "4.23.0.0"] {
        let world = World::new().await;
        world.cloud.set_version(version);
        let mut class = spec();
        class["serviceOfferingSelectorTerms"] =
            json!([{"name": "k8s.small"}, {"name": "k8s.medium"}, {"name": "k8s large*"}]);
        world.class("default", class).await;
        world.cloud.configure(|settings| settings.volumes_fail = true);
        let available = || async {
            let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
            let available = types.iter().filter(|it| it.offerings.iter().any(|offering| offering.available));
            available.count()
        };
        // The older server says what it lacked, which is no zone's storage.
        let second = if version == "4.20.1.0" { 1 } else { 0 };
        for (name, expected) in [("np-a", 2), ("np-b", second)] {
            world
                .launch(&world.claim(name, json!({"cpu": "1"})))
                .await
                .expect("placed, and then not started");
            seconds(30).await;
            world.provider.look_at_launches().await.expect("a look");
            world.cluster.claims.lock().unwrap().remove(name);
            assert_eq!(available().await, expected, "{version}");
        }
        world.cloud.configure(|settings| settings.volumes_fail = false);
        seconds(6 * 60).await;
        world.launch(&world.claim("np-c", json!({"cpu": "1"}))).await.expect("room again");
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_6_a_full_cloud_is_insufficient_capacity_and_leaves_nothing_behind() {
    let world = World::new().await;
    world.cloud.edit("host", "big-0", |host| host["memoryallocatedbytes"] = (60i64 << 30).into());
    world.cloud.edit("host", "big-1", |host| host["memoryallocatedbytes"] = (60i64 << 30).into());
    let mut large = spec();
    large["serviceOfferingSelectorTerms"] = json!([{"name": "k8s large*"}]);
    world.class("default", large).await;
    let claim = world.claim("np-a", json!({"cpu": "7"}));
    let error = world.launch(&claim).await.expect_err("no host has room, though the zone has");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    seconds(60).await;
    assert!(world.live().is_empty());
    assert!(world.provider.delete(&claim).await.expect_err("nothing").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn scenario_7_a_limit_hides_bigger_types_at_once_and_recovers_within_a_minute() {
    let world = World::new().await;
    world.cloud.limit("cpu", 3);
    seconds(61).await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("the small one");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.small");
    seconds(61).await;
    let big = world.claim("np-b", json!({"cpu": "3"}));
    let error = world.launch(&big).await.expect_err("over the limit");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 1, "not even asked");
    world.cloud.limit("cpu", 100);
    seconds(61).await;
    world.launch(&big).await.expect("the limit was raised");
}

#[tokio::test(start_paused = true)]
async fn scenario_7_a_535_in_between_is_insufficient_capacity() {
    let world = World::new().await;
    // Known to be enough, and then used up by somebody else.
    world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    world.cloud.limit("cpu", 3);
    let claim = world.claim("np-a", json!({"cpu": "3"}));
    let error = world.launch(&claim).await.expect_err("over the limit");
    assert!(matches!(&error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert!(error.to_string().contains("Resource Limit = 3"), "{error}");
    let told = world.told("QuotaExceeded");
    assert!(told.len() == 1 && told[0].contains("cpu") && told[0].contains('3'), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn scenario_7_a_limit_that_was_hit_is_forgotten_within_a_minute_and_not_asked_for_by_others() {
    let world = World::new().await;
    world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    world.cloud.limit("cpu", 3);
    let claim = world.claim("np-a", json!({"cpu": "3"}));
    world.launch(&claim).await.expect_err("over the limit");
    world.launch(&world.claim("np-b", json!({"cpu": "3"}))).await.expect_err("as much is not asked for");
    assert_eq!(world.calls("deployVirtualMachine"), 1);
    world.launch(&world.claim("np-c", json!({"cpu": "1"}))).await.expect("less is");
    world.cloud.limit("cpu", 100);
    seconds(61).await;
    world.launch(&claim).await.expect("the limit was raised");
}

#[tokio::test(start_paused = true)]
async fn what_was_ordered_meanwhile_is_taken_off_what_the_server_said_is_left() {
    let world = World::new().await;
    world.cloud.limit("user_vm", 2);
    seconds(61).await;
    for name in ["np-a", "np-b"] {
        world.launch(&world.claim(name, json!({"cpu": "1"}))).await.expect("within the limit");
    }
    world.launch(&world.claim("np-c", json!({"cpu": "1"}))).await.expect_err("the limit is reached");
    assert_eq!(world.calls("deployVirtualMachine"), 2, "and everybody knows it");
}

#[tokio::test(start_paused = true)]
async fn scenario_6_root_keys_see_that_no_host_has_room_and_never_ask() {
    let world = World::new().await;
    for host in ["big-0", "big-1"] {
        world.cloud.edit("host", host, |host| host["memoryallocatedbytes"] = (60i64 << 30).into());
    }
    let mut large = spec();
    large["serviceOfferingSelectorTerms"] = json!([{"name": "k8s large*"}]);
    world.class("default", large).await;
    let root = world.as_root();
    let types = root.get_instance_types(&world.pool("default")).await.expect("types");
    assert_eq!(types.len(), 1, "{:?}", world.cloud.calls());
    assert!(!types[0].offerings[0].available, "{:?}", world.cloud.calls());
    let error = world.launch_by(&root, &world.claim("np-a", json!({"cpu": "7"}))).await.expect_err("full");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 0);
    world.cloud.edit("host", "big-0", |host| host["memoryallocatedbytes"] = 0.into());
    seconds(16).await;
    world.launch_by(&root, &world.claim("np-b", json!({"cpu": "7"}))).await.expect("room again");
    assert_eq!(world.calls("listHosts"), 2);
    world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert_eq!(world.calls("listHosts"), 2, "a tenant does not ask for what it may not see");
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_was_disabled_is_left_alone_and_what_runs_in_it_has_not_drifted() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    world.cloud.edit("zone", "sim-zone-1", |zone| zone["allocationstate"] = "Disabled".into());
    let error = world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect_err("disabled");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 2, "one refusal is enough for the zone");
    let mut elsewhere = spec();
    elsewhere["zones"] = json!(["zone-2"]);
    world.cloud.add("zone", json!({"name": "zone-2", "allocationstate": "Enabled"}));
    world.class("default", elsewhere).await;
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let claim = world.current("np-a");
    let labels = claim.metadata.labels.as_ref().expect("labels");
    let it =
        types.iter().find(|it| *it.name == *labels["node.kubernetes.io/instance-type"]).expect("its type");
    let zone = &labels["topology.kubernetes.io/zone"];
    let there = |o: &&karpenter_engine::instance_type::Offering| {
        o.requirements.get("topology.kubernetes.io/zone").is_some_and(|r| r.has(zone))
    };
    assert!(
        it.offerings.iter().find(there).is_some_and(|o| !o.available),
        "what runs there is still offered"
    );
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_lacks_a_disk_or_an_interface_gets_no_half_machines() {
    let world = World::new().await;
    let second = world.cloud.add("zone", json!({"name": "zone-2", "allocationstate": "Enabled"}));
    for (kind, name) in [("network", "k8s-net"), ("template", "CentOS 5.6 (64-bit) no GUI (Simulator)")] {
        world.cloud.add(kind, json!({"name": name, "zoneid": second, "zonename": "zone-2"}));
    }
    seconds(3601).await;
    let mut class = spec();
    class["zones"] = json!(["zone-2"]);
    class["additionalNetworkSelectorTerms"] = json!([{"name": "k8s-storage"}]);
    let class = world.class("default", class).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True);
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let zones: std::collections::BTreeSet<String> = types
        .iter()
        .flat_map(|it| &it.offerings)
        .filter(|offering| offering.available)
        .filter_map(|o| {
            o.requirements.get("topology.kubernetes.io/zone")?.values.first().map(ToString::to_string)
        })
        .collect();
    assert_eq!(zones.into_iter().collect::<Vec<_>>(), ["sim-zone-1"]);
}

#[tokio::test(start_paused = true)]
async fn scenario_8_a_network_without_addresses_is_left_for_the_next_without_a_tight_loop() {
    let world = World::new().await;
    world.cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.1.1.0/30".into());
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", two.clone()).await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("the one address there is");
    let claim = world.claim("np-b", json!({"cpu": "1"}));
    let before = world.calls("deployVirtualMachine");
    let start = Instant::now();
    let mut tries = 0;
    while let Err(error) = world.launch(&claim).await {
        tries += 1;
        assert!(tries < 10, "{error}");
        seconds(60).await;
    }
    assert_eq!(tries, 1, "the next launch knows which network is full");
    assert!(start.elapsed() <= Duration::from_secs(300));
    assert!(
        world.calls("deployVirtualMachine") - before <= 4,
        "{}",
        world.calls("deployVirtualMachine") - before
    );
    let second = world.live().into_iter().find(|machine| machine.name.ends_with("np-b")).expect("a machine");
    assert_eq!(second.networks, [world.cloud.id_of("network", "k8s-storage").unwrap()]);
    world.class("default", two).await;
    let told = world.told("NetworkExhausted");
    assert!(told.len() == 1 && told[0].contains("\"k8s-net\""), "an event says which: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_that_a_network_is_full_it_is_left_after_three_failures() {
    let world = World::new().await;
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    world.class("default", two).await;
    let text = "Internal error executing command, please contact your system administrator".to_owned();
    world.cloud.inject(Fault::times("deployVirtualMachine", 3, Trouble::Fail(530, 9999, text)));
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    for _ in 0..2 {
        world.launch(&claim).await.expect_err("nobody knows why");
    }
    world.launch(&claim).await.expect("the launch that finds out goes on in the next network");
    assert_eq!(world.live()[0].networks, [world.cloud.id_of("network", "k8s-storage").unwrap()]);
    let told = world.told("NetworkExhausted");
    assert!(told.len() == 1 && told[0].contains("\"k8s-net\""), "an event says which: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn scenario_9_a_lost_answer_still_makes_one_machine() {
    for trouble in [Trouble::DropResponse, Trouble::Truncate] {
        let world = World::new().await;
        world.cloud.inject(Fault::once("deployVirtualMachine", trouble));
        let claim = world.claim("np-a", json!({"cpu": "1"}));
        let instance = world.launch(&claim).await.expect("found again");
        assert_eq!(world.live().len(), 1);
        assert_eq!(instance.provider_id, format!("external-cloudstack://{}", world.live()[0].id));
        assert!(world.live()[0].tags.contains_key("karpenter.sh/nodeclaim"));
        assert_eq!(world.calls("deployVirtualMachine"), 1, "never sent again blindly");
    }
}

#[tokio::test(start_paused = true)]
async fn scenario_10_a_request_that_never_arrived_is_made_again_under_another_job() {
    let world = World::new().await;
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::DropRequest));
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let error = world.launch(&claim).await.expect_err("nobody knows");
    assert!(matches!(error, ProviderError::Other(_)), "retried, not given up: {error}");
    seconds(10).await;
    world.launch(&claim).await.expect("a machine");
    assert_eq!(world.live().len(), 1);
    let jobs: Vec<String> = world
        .cloud
        .log()
        .iter()
        .filter(|entry| entry.command == "deployVirtualMachine")
        .map(|entry| entry.parameters["customjobid"].clone())
        .collect();
    assert_eq!(jobs.len(), 2);
    assert_ne!(jobs[0], jobs[1], "an id used twice leaves a machine behind");
}

#[tokio::test(start_paused = true)]
async fn scenario_11_a_new_leader_adopts_what_the_old_one_had_accepted_and_not_tagged() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.cloud.inject(Fault::times("createTags", 100, Trouble::DropRequest));
    {
        let launch = world.launch(&claim);
        tokio::pin!(launch);
        // Killed as soon as the machine is there.
        while world.cloud.machines().is_empty() {
            tokio::select! {
                biased;
                _ = &mut launch => panic!("launched"),
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
    }
    assert!(world.live()[0].tags.is_empty());
    world.cloud.heal();
    let successor = world.another(2);
    world.launch_by(&successor, &claim).await.expect("adopted");
    assert_eq!((world.live().len(), world.calls("deployVirtualMachine")), (1, 1));
    seconds(5).await;
    assert_eq!(world.live()[0].tags["karpenter.k8s.cloudstack/nodeclaim-uid"], "uid-np-a");
    seconds(600).await;
    assert_eq!(successor.round().await.expect("a round").destroyed, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn scenario_12_of_two_machines_by_two_leaders_the_older_is_kept() {
    let world = World::new().await;
    let other = world.another(2);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let (a, b) = tokio::join!(world.launch(&claim), world.launch_by(&other, &claim));
    let made = world.live().len();
    assert!(made >= 1 && (a.is_ok() || b.is_ok()));
    seconds(30).await;
    let kept = world.launch(&claim).await.expect("one of them");
    seconds(400).await;
    world.provider.round().await.expect("a round");
    seconds(60).await;
    let live = world.live();
    assert_eq!(live.len(), 1, "{made} were made");
    assert_eq!(kept.provider_id, format!("external-cloudstack://{}", live[0].id));
    assert!(world.provider.get(&kept.provider_id).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn scenario_13_a_machine_stopped_by_a_crash_of_the_server_is_started_once() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).await.expect("accepted");
    assert_eq!(world.live()[0].state, "Starting");
    world.cloud.restart();
    assert_eq!(world.live()[0].state, "Stopped");
    seconds(180).await;
    assert_eq!(started_within_two_minutes(&world).await, 1);
    seconds(60).await;
    assert_eq!(world.live()[0].state, "Running");
    world.cloud.stop_machine(&world.live()[0].id);
    assert_eq!(started_within_two_minutes(&world).await, 0, "once");
}

/// How many machines are started by a round and the next one.
async fn started_within_two_minutes(world: &World) -> usize {
    let first = world.provider.round().await.expect("a round").started.len();
    seconds(120).await;
    first + world.provider.round().await.expect("a round").started.len()
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_started_two_minutes_after_it_was_first_seen_standing_still_however_old_it_is() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let id = world.live()[0].id.clone();
    let started = async || world.provider.round().await.expect("a round").started.len();
    seconds(3600).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "whoever stopped it may start it");
    seconds(90).await;
    assert_eq!(started().await, 0, "not yet");
    // Somebody did; and the next stop is another one.
    world.cloud.find_machine_again(&id);
    assert_eq!(started().await, 0);
    world.cloud.stop_machine(&id);
    seconds(60).await;
    assert_eq!(started().await, 0);
    seconds(120).await;
    assert_eq!(started().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_process_counts_anew_how_long_a_machine_stands_still() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    seconds(3600).await;
    world.cloud.stop_machine(&world.live()[0].id);
    world.provider.round().await.expect("a round");
    seconds(120).await;
    let next = world.another(2);
    assert!(next.round().await.expect("a round").started.is_empty(), "it has just come");
    seconds(120).await;
    assert_eq!(next.round().await.expect("a round").started.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn scenario_14_a_machine_that_cannot_be_tagged_is_not_lost() {
    let world = World::new().await;
    let failing = |times, code, text: &str| {
        world.cloud.inject(Fault::times("createTags", times, Trouble::Fail(code, 4545, text.to_owned())));
    };
    failing(3, 530, "Internal error executing command, please contact your system administrator");
    failing(2, 429, "The given user has reached his/her account api limit, please retry after [900] ms.");
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch(&claim).await.expect("a machine");
    let id = world.live()[0].id.clone();
    // By its name it is wanted even before its NodeClaim says which it is.
    world.cluster.claims.lock().unwrap().insert("np-a".to_owned(), claim);
    let written = Arc::new({
        let mut written = (*world.current("np-a")).clone();
        instance.write_into(&mut written);
        written
    });
    for failed in 2..=3 {
        assert!(world.live()[0].tags.is_empty());
        let listed = world.provider.list().await.expect("a list");
        assert_eq!(listed.len(), 1, "listed by its name");
        world.provider.get(&instance.provider_id).await.expect("there");
        seconds(600).await;
        assert!(world.provider.round().await.expect("a round").destroyed.is_empty(), "its NodeClaim lives");
        assert_eq!(world.calls("createTags"), failed, "tried again by every round");
        world.cluster.claims.lock().unwrap().insert("np-a".to_owned(), Arc::clone(&written));
    }
    // Too many calls are no failure: it is asked again after the pause the server names.
    world.provider.round().await.expect("a round");
    seconds(10).await;
    assert_eq!(world.calls("createTags"), 6);
    let machine = &world.live()[0];
    assert_eq!((machine.id.as_str(), machine.tags["karpenter.sh/nodeclaim"].as_str()), (id.as_str(), "np-a"));
    assert_eq!(machine.tags["kubernetes.io/cluster/test"], "owned");
    world.provider.round().await.expect("a round");
    assert_eq!(world.calls("createTags"), 6, "nothing is missing any more");
    assert_eq!(world.calls("destroyVirtualMachine"), 0);
}

#[tokio::test(start_paused = true)]
async fn scenario_19_three_hundred_nodes_on_a_throttled_account_cause_no_storm_and_starve_no_deletion() {
    let nodes: usize =
        std::env::var("SCENARIO_19_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let (there, more) = (nodes - nodes / 3, nodes / 3);
    let world = World::new().await;
    let throttle = Throttle { max: 25, interval: Duration::from_secs(1), counts_twice: true };
    world.cloud.configure(|settings| settings.throttle = Some(throttle));
    for resource in ["cpu", "memory", "user_vm", "volume", "primary_storage"] {
        world.cloud.limit(resource, -1);
    }
    world.cloud.edit("network", "k8s-net", |network| network["cidr"] = "10.16.0.0/20".into());
    for i in 0..nodes.div_ceil(50) {
        let host = json!({"name": format!("huge-{i}"), "memorytotal": 512i64 << 30, "cpuwithoverprovisioning": "512000"});
        world.cloud.add("host", host);
    }
    // As at every start: the server says what it allows.
    world.client.capabilities().await.expect("let in");
    seconds(61).await;
    let before = world.cloud.log().len();
    let claims: Vec<_> = (0..nodes).map(|i| world.claim(&format!("np-{i}"), json!({"cpu": "1"}))).collect();
    let launch = async |claims: &[Arc<NodeClaim>]| {
        let launched = futures_util::future::join_all(claims.iter().map(|claim| world.launch(claim))).await;
        assert!(launched.iter().all(Result::is_ok), "{:?}", launched.iter().find(|l| l.is_err()));
    };
    launch(&claims[..there]).await;
    assert_eq!(world.live().len(), there);
    let start = Instant::now();
    // A third more comes while a tenth goes.
    let going: Vec<Arc<NodeClaim>> = (0..nodes / 10).map(|i| world.current(&format!("np-{i}"))).collect();
    let deletions = async {
        let gone = futures_util::future::join_all(going.iter().map(|claim| world.delete(claim))).await;
        assert!(gone.iter().all(Result::is_ok), "{:?}", gone.iter().find(|g| g.is_err()));
        start.elapsed()
    };
    let launches = async {
        launch(&claims[there..]).await;
        start.elapsed()
    };
    let (deleted, launched) = futures_util::future::join(deletions, launches).await;
    assert_eq!(world.live().len(), nodes - going.len());
    let log = world.cloud.log();
    let calls = log.len() - before;
    let throttled = log.iter().filter(|entry| entry.status == 429).count();
    assert!(throttled * 100 < calls, "{throttled} of {calls} were throttled");
    assert!(calls <= 6 * (nodes + going.len()), "{calls} calls for {nodes} machines");
    // Accepting takes 0.7 to 1.5 s each, one after the other: 1.1 s for each is what the server needs.
    let needed = Duration::from_millis(1100) * u32::try_from(more).unwrap();
    assert!(launched < needed.mul_f64(1.4), "{launched:?} for {more} more, at best {needed:?}");
    // Long before the launches are through.
    assert!(
        deleted < needed.mul_f64(0.7).max(Duration::from_secs(60)),
        "{deleted:?} for {} less",
        going.len()
    );
}

#[tokio::test(start_paused = true)]
async fn scenario_25_gpu_two_interfaces_data_disks_and_a_customised_offering_in_one_class() {
    let world = World::new().await;
    world.cloud.add("serviceoffering", json!({"name": "gpu", "cpunumber": 4, "cpuspeed": 1000, "memory": 8192, "gpucount": 1, "gpucardname": "NVIDIA A10"}));
    world.cloud.edit("host", "big-0", |host| host["gpus"] = 2.into());
    // Which offerings there are is remembered for five minutes.
    seconds(301).await;
    let mut rich = spec();
    rich["serviceOfferingSelectorTerms"] = json!([{"name": "gpu"}, {"name": "k8s.custom"}]);
    rich["additionalNetworkSelectorTerms"] = json!([{"name": "k8s-storage"}]);
    rich["dataDisks"] = json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}]);
    rich["rootDiskSize"] = 30.into();
    let class = world.class("default", rich).await;
    assert_eq!(class.status.as_ref().unwrap().networks.as_ref().unwrap().len(), 2, "{:?}", class.status);
    let claim = world.claim("np-a", json!({"nvidia.com/gpu": "1"}));
    let instance = world.launch(&claim).await.expect("a GPU");
    assert_eq!(instance.capacity["nvidia.com/gpu"].to_string(), "1");
    let id = |name: &str| world.cloud.id_of("network", name).unwrap();
    assert_eq!(world.live()[0].networks, [id("k8s-net"), id("k8s-storage")], "in this order");
    assert_eq!(world.cloud.data_disks().len(), 2);
    let custom =
        world.launch(&world.claim("np-b", json!({"cpu": "3", "memory": "9Gi"}))).await.expect("customised");
    assert_eq!(label(&custom, "node.kubernetes.io/instance-type"), "k8s.custom.4c-16g");
    seconds(60).await;
    world.delete(&world.current("np-a")).await.expect("gone");
    world.delete(&world.current("np-b")).await.expect("gone");
    assert!(
        world.cloud.data_disks().is_empty(),
        "disks go with their machine: {:?}",
        world.cloud.data_disks()
    );
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_affinity_has_a_group_of_its_type() {
    use karpenter_provider_cloudstack::client::model::AffinityGroup;
    use karpenter_provider_cloudstack::client::requests::list_affinity_groups_by_keyword;
    use karpenter_provider_cloudstack::client::throttle::Lane;

    let world = World::new().await;
    let kinds = ["hostAntiAffinity", "hostAffinity", "softHostAntiAffinity", "softHostAffinity"];
    for (i, kind) in kinds.into_iter().enumerate() {
        let mut class = spec();
        class["affinity"] = json!({"type": kind});
        world.class("default", class).await;
        world.launch(&world.claim(&format!("np-{i}"), json!({"cpu": "1"}))).await.expect(kind);
        seconds(30).await;
    }
    let request = list_affinity_groups_by_keyword("karpenter", &Default::default());
    let groups: Vec<AffinityGroup> = world.client.list(&request, Lane::Action).await.expect("groups");
    let types: std::collections::BTreeSet<&str> = groups.iter().map(|group| group.type_.as_str()).collect();
    assert_eq!((groups.len(), types.len()), (4, 4), "{groups:?}");
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_there_already_are_used_and_those_that_are_not_are_told_of() {
    let world = World::new().await;
    let mut class = spec();
    class["affinity"] = json!({"groupNames": ["dedicated"]});
    let unready = world.class("default", class.clone()).await;
    let condition = unready.condition("AffinityReady").expect("a condition");
    assert_eq!((condition.status.as_str(), condition.reason()), ("False", "AffinityGroupNotFound"));
    assert!(condition.message().contains("spec.affinity.groupNames"), "{}", condition.message());
    let request = requests::create_affinity_group("dedicated", "host anti-affinity", &Default::default());
    world.client.call(&request).await.expect("a group");
    seconds(61).await;
    let ready = world.class("default", class.clone()).await;
    assert_eq!(ready.condition_status("Ready"), karpenter_api::ConditionStatus::True);
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    assert_eq!(world.cloud.affinity_groups(), ["dedicated"], "no group of our own beside it");
    // A group of all machines of the class, which goes when nobody uses it, even if no class wants any group any more.
    class["affinity"] = json!({"type": "softHostAntiAffinity", "scope": "NodeClass"});
    world.class("default", class).await;
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    let ours = world.cloud.affinity_groups().into_iter().find(|name| name != "dedicated").expect("ours");
    assert!(ours.ends_with("-soft-class-default"), "{ours}");
    world.class("default", spec()).await;
    for name in ["np-a", "np-b"] {
        seconds(30).await;
        world.delete(&world.current(name)).await.expect("gone");
        world.cluster.claims.lock().unwrap().remove(name);
    }
    world.cloud.expunge_all_destroyed();
    world.provider.round().await.expect("a round");
    seconds(5).await;
    assert_eq!(world.cloud.affinity_groups(), ["dedicated"]);
    world.provider.round().await.expect("a round");
    let asked = world.calls("listAffinityGroups");
    world.provider.round().await.expect("a round");
    assert_eq!(world.calls("listAffinityGroups"), asked, "nobody asks again");
}

#[tokio::test(start_paused = true)]
async fn scenario_25_machines_of_a_project_are_made_listed_and_looked_after_there() {
    let world = World::new().await;
    let project = world.cloud.add_project("team");
    world.cloud.add(
        "network",
        json!({"name": "team-net", "projectid": project, "account": null, "state": "Allocated"}),
    );
    let mut class = spec();
    class["projectID"] = project.clone().into();
    class["networkSelectorTerms"] = json!([{"name": "team-net"}]);
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    class["affinity"] = json!({"type": "softHostAntiAffinity"});
    let class = world.class("default", class).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True, "{:?}", class.status);
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let scope = format!("project/{project}");
    assert_eq!(instance.annotations["karpenter.k8s.cloudstack/scope"], scope);
    let log = world.cloud.log();
    let deploy = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    assert_eq!(deploy.parameters["projectid"], project);
    seconds(400).await;
    let listed = world.provider.list().await.expect("a list");
    assert_eq!(listed.len(), 1, "nothing that is invisible without the project is lost");
    assert!(world.provider.get(&instance.provider_id).await.is_ok());
    assert!(world.provider.round().await.expect("a round").destroyed.is_empty(), "it is wanted");
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    // The NodeClaim says where it was launched, whatever becomes of the NodeClass.
    let in_project = world.cluster.classes.lock().unwrap().remove("default").expect("the NodeClass");
    assert_eq!(world.provider.list().await.expect("a list").len(), 1);
    world.cluster.classes.lock().unwrap().insert("default".into(), in_project);
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.live().is_empty() && world.cloud.data_disks().is_empty());
    world.provider.round().await.expect("a round");
    assert_eq!(world.cloud.affinity_groups().len(), 1, "its NodeClaim may be about to want its group");
    // What nobody wants is found there too.
    world.launch(&world.claim("np-b", json!({"cpu": "1"}))).await.expect("a machine");
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    assert_eq!(world.provider.round().await.expect("a round").destroyed.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn scenario_25_gpus_two_interfaces_disks_and_key_pairs_in_one_class_of_a_project() {
    let world = World::new().await;
    let (project, mut class) = world.project();
    world.cloud.add("network", json!({"name": "team-storage", "projectid": project, "account": null}));
    world.cloud.add_key_pair("team-key", Some(&project));
    world.cloud.add(
        "serviceoffering",
        json!({"name": "gpu", "iscustomized": true, "cpunumber": null, "memory": null,
        "cpuspeed": 1000, "gpucount": 1, "gpucardname": "NVIDIA A10"}),
    );
    world.cloud.edit("host", "big-0", |host| host["gpus"] = 2.into());
    seconds(301).await;
    class["serviceOfferingSelectorTerms"] = json!([{"name": "gpu"}]);
    class["customSizes"] = json!({"cpus": [4], "memoryPerCPU": [2]});
    class["additionalNetworkSelectorTerms"] = json!([{"name": "team-storage"}]);
    class["dataDisks"] = json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}]);
    class["sshKeyPair"] = "team-key".into();
    let class = world.class("default", class).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True, "{:?}", class.status);
    let instance = world.launch(&world.claim("np-a", json!({"nvidia.com/gpu": "1"}))).await.expect("a GPU");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "gpu.4c-8g");
    assert_eq!(instance.capacity["nvidia.com/gpu"].to_string(), "1");
    let id = |name: &str| world.cloud.id_of("network", name).unwrap();
    assert_eq!(world.live()[0].networks, [id("team-net"), id("team-storage")], "in this order");
    assert_eq!((world.live()[0].project.clone(), world.cloud.data_disks().len()), (Some(project.clone()), 2));
    seconds(400).await;
    assert_eq!(
        world.provider.list().await.expect("a list").len(),
        1,
        "invisible without the project, and not lost"
    );
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    assert!(world.round().await.destroyed.is_empty());
    // What is looked up for it is looked up there.
    let log = world.cloud.log();
    let of_class =
        ["listServiceOfferings", "listDiskOfferings", "listNetworks", "listTemplates", "listSSHKeyPairs"];
    for command in of_class {
        let inside = |entry: &&karpenter_sim::cloudstack::Entry| {
            entry.command == command && entry.parameters.get("projectid") == Some(&project)
        };
        assert!(log.iter().any(|entry| inside(&entry)), "{command}");
    }
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.live().is_empty() && world.cloud.data_disks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_two_architectures_each_claim_gets_the_one_it_asks_for() {
    let world = World::new().await;
    let arm = world.cloud.add(
        "template",
        json!({"name": "CentOS arm", "arch": "aarch64", "created": "2026-11-01T00:00:00+0000"}),
    );
    world.cloud.add("host", json!({"name": "arm", "arch": "aarch64", "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}));
    seconds(301).await;
    world.class("default", spec()).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    for it in types.iter() {
        let archs = it.requirements.get("kubernetes.io/arch").expect("architectures");
        assert!(archs.has("amd64") && archs.has("arm64"), "{:?}", it.name);
    }
    for (name, arch) in [("np-arm", "arm64"), ("np-amd", "amd64")] {
        let mut claim = (*world.claim(name, json!({"cpu": "1"}))).clone();
        let requirement = json!({"key": "kubernetes.io/arch", "operator": "In", "values": [arch]});
        claim.spec.requirements.push(serde_json::from_value(requirement).unwrap());
        let instance = world.launch(&claim).await.expect("a machine");
        assert_eq!(instance.labels["kubernetes.io/arch"], arch);
        assert_eq!(instance.image_id == arm, arch == "arm64");
        seconds(30).await;
        let drift = world.provider.is_drifted(&world.current(name)).await.expect("known");
        assert_eq!(drift, None, "the newest template of another architecture is no reason to replace it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_that_only_a_vanished_zone_sold_is_known_for_as_long_as_its_machines_run() {
    let world = World::new().await;
    let zone = world.cloud.add("zone", json!({"name": "sim-zone-2"}));
    world.cloud.add(
        "network",
        json!({"name": "k8s-net", "zoneid": zone, "zonename": "sim-zone-2", "state": "Allocated"}),
    );
    world.cloud.add("template", json!({"name": "CentOS there", "zoneid": zone, "zonename": "sim-zone-2"}));
    world.cloud.add("host", json!({"name": "there", "zoneid": zone, "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}));
    world.cloud.add(
        "serviceoffering",
        json!({"name": "k8s.there", "cpunumber": 4, "memory": 8192, "cpuspeed": 500, "zoneid": zone}),
    );
    seconds(3700).await;
    let mut class = spec();
    class["zones"] = json!(["sim-zone-2"]);
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.small"}, {"name": "k8s.there"}]);
    world.class("default", class.clone()).await;
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "3"}))).await.expect("a machine");
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.there");
    let sold = async |world: &World| {
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        let found = types.iter().find(|it| &*it.name == "k8s.there").cloned();
        found.map(|it| (it.offerings.iter().filter(|offering| offering.available).count(), it))
    };
    let (available, before) = sold(&world).await.expect("sold");
    assert_eq!(available, 1);
    world.cloud.edit("zone", "sim-zone-2", |zone| zone["allocationstate"] = "Disabled".into());
    seconds(3700).await;
    world.class("default", class.clone()).await;
    let (available, kept) = sold(&world).await.expect("its machine runs");
    assert_eq!(available, 0, "it cannot be had");
    assert_eq!((&kept.capacity, kept.offerings.len()), (&before.capacity, 1));
    world.cluster.claims.lock().unwrap().clear();
    assert!(sold(&world).await.is_none(), "nobody needs it any more");
}

#[tokio::test(start_paused = true)]
async fn the_machine_of_another_claim_is_not_taken_for_one_of_ours() {
    let world = World::new().await;
    let prefix = Naming::new("karpenter", "test").prefix().to_owned();
    world.claim("web-1", json!({"cpu": "1"}));
    // Made for `web-1` and not tagged yet: earlier releases would have called the second machine of `web` so.
    let theirs = world.cloud.add_machine(&format!("{prefix}web-1"), &[]);
    let claim = world.claim("web", json!({"cpu": "1"}));
    assert!(world.provider.delete(&claim).await.expect_err("it has none").is_not_found());
    let instance = world.launch(&claim).await.expect("a machine of its own");
    assert!(!instance.provider_id.ends_with(&theirs), "{}", instance.provider_id);
    seconds(400).await;
    assert!(world.provider.round().await.expect("a round").destroyed.is_empty());
    seconds(10).await;
    let machine = world.live().into_iter().find(|machine| machine.id == theirs).expect("still there");
    assert_eq!(machine.tags["karpenter.k8s.cloudstack/nodeclaim-uid"], "uid-web-1");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_an_earlier_release_named_is_still_found() {
    for (claim, name) in [("web", "web-1"), ("team.a-web", "team-a-web"), ("team.a-web", "team-a-web-2")] {
        let world = World::new().await;
        let prefix = Naming::new("karpenter", "test").prefix().to_owned();
        let made = world.cloud.add_machine(&format!("{prefix}{name}"), &[]);
        let instance = world.launch(&world.claim(claim, json!({"cpu": "1"}))).await.expect("that one");
        assert!(instance.provider_id.ends_with(&made), "{name}");
        assert_eq!(world.calls("deployVirtualMachine"), 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_makes_no_more_than_three_machines_that_fail_for_reasons_nobody_reads() {
    let world = World::new().await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.custom"}]);
    class["customOfferings"] =
        json!([{"offering": "k8s.custom", "cpus": [1, 2, 3, 4, 5, 6], "memoryPerCPU": [2]}]);
    world.class("default", class).await;
    let text = "Unable to start a VM [4bf9895c] due to [Unable to prepare the template].";
    world.cloud.inject(Fault::times("deployVirtualMachine", 9, Trouble::Fail(530, 4250, text.into())));
    let error = world.launch(&world.claim("np-a", json!({"cpu": "500m"}))).await.expect_err("refused");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert!(error.to_string().contains("prepare the template"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_ran_well_for_an_hour_is_started_again() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    let id = world.live()[0].id.clone();
    let started = async || started_within_two_minutes(&world).await;
    seconds(180).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1);
    seconds(3700).await;
    assert_eq!(started().await, 0, "it runs");
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 1, "what stopped it then says nothing of now");
    seconds(60).await;
    world.cloud.stop_machine(&id);
    assert_eq!(started().await, 0, "it does not stay up");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_restored_is_replaced() {
    let world = World::new().await;
    world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("a machine");
    seconds(180).await;
    world.cloud.fail_to_restore_machine(&world.live()[0].id);
    assert!(world.provider.round().await.expect("a round").started.is_empty());
    assert_eq!(world.told("VirtualMachineStopped").len(), 1);
}
