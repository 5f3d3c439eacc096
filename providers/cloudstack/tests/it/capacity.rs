//! Where there is no room: no host, no address, a limit, a zone that is closed. Scenarios 4 to 8.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::error::ProviderError;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::signature::Credentials;
use karpenter_provider_cloudstack::client::throttle::Rate;
use karpenter_provider_cloudstack::client::transport::{Transport, TransportError};
use karpenter_provider_cloudstack::client::{Client, Session};
use karpenter_provider_cloudstack::{CloudStackProvider, Objects, ProviderOptions};
use karpenter_runtime::environment::Environment;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cloud::{Wire, World, label, seconds, spec};

/// Makes the cheaper offering impossible to place.
fn small_has_no_host(world: &World) {
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["hosttags"] = "nowhere".into());
}

/// A cloud in which no host has room for the only type of the NodeClass, though all of them together have.
async fn no_host_has_room() -> World {
    let world = World::new().await;
    for host in ["big-0", "big-1"] {
        world.cloud.edit("host", host, |host| host["memoryallocatedbytes"] = (60i64 << 30).into());
    }
    let mut large = spec();
    large["serviceOfferingSelectorTerms"] = json!([{"name": "k8s large*"}]);
    world.class("default", large).await;
    world
}

/// A NodeClass with two networks.
fn on_two_networks() -> Value {
    let mut two = spec();
    two["networkSelectorTerms"] = json!([{"name": "k8s-net"}, {"name": "k8s-storage"}]);
    two
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
    world.node("np-b").await;
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
    world.node("np-b").await;
    assert_eq!(world.calls("deployVirtualMachine"), 3, "not asked for again within three minutes");
    seconds(181).await;
    world.node("np-c").await;
    assert_eq!(world.calls("deployVirtualMachine"), 5, "and asked for again after them");
}

/// A road on which lists of machines lose what is at work on them, as they are on a server that has written a machine down and its job
/// not yet.
struct Jobless(Wire, Arc<AtomicBool>);

impl Transport for Jobless {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, TransportError>> {
        async move {
            let response = self.0.send(request).await?;
            if !self.1.load(Ordering::Relaxed) {
                return Ok(response);
            }
            Ok(response.map(|body| {
                let text = String::from_utf8_lossy(&body).replace("\"jobid\"", "\"no-job\"");
                Bytes::from(if text.contains("\"virtualmachine\"") {
                    text.into_bytes()
                } else {
                    body.to_vec()
                })
            }))
        }
        .boxed()
    }
}

/// Waits until the server has written down a machine of this claim.
async fn is_written_down(world: &World, claim: &str) {
    while !world.live().iter().any(|machine| machine.name.ends_with(claim)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_from_before_a_machine_was_ordered_does_not_say_that_it_has_its_place() {
    let world = World::new().await;
    small_has_no_host(&world);
    let jobless = Arc::new(AtomicBool::new(true));
    let account = world.cloud.account(Role::User).unwrap();
    let session = Session {
        endpoint: "http://cloud/client/api".into(),
        credentials: Credentials::new(account.api_key, account.secret_key),
        transport: Arc::new(Jobless(Wire(world.cloud.clone()), Arc::clone(&jobless))),
        project: None,
    };
    let environment =
        Environment { registry: karpenter_runtime::metrics::Registry::new(), ..world.environment.clone() };
    let client = Client::new(session, Rate::default(), &environment);
    let objects = Arc::clone(&world.cluster) as Arc<dyn Objects>;
    let provider = CloudStackProvider::new(client, ProviderOptions::new("test"), objects, &environment);
    world.cloud.inject(Fault::once("deployVirtualMachine", Trouble::Delay(Duration::from_millis(300))));
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let look = async {
        is_written_down(&world, "np-a").await;
        provider.list().await.expect("a list");
        jobless.store(false, Ordering::Relaxed);
    };
    let (instance, ()) = futures_util::future::join(world.launch_by(&provider, &claim), look).await;
    let instance = instance.expect("the other type");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.medium");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_lost_its_place_with_the_server_does_not_show_that_there_is_room_again() {
    let world = World::new().await;
    small_has_no_host(&world);
    world.node("np-a").await;
    world.cloud.edit("serviceoffering", "k8s.small", |offering| offering["hosttags"] = "".into());
    seconds(181).await;
    let claim = world.claim("np-b", json!({"cpu": "1"}));
    let crash = async {
        is_written_down(&world, "np-b").await;
        world.cloud.restart();
    };
    let (instance, ()) = futures_util::future::join(world.launch(&claim), crash).await;
    let instance = instance.expect("accepted");
    assert_eq!(label(&instance, "node.kubernetes.io/instance-type"), "k8s.small", "it is tried out again");
    assert_eq!(world.machine_of("np-b").state, "Stopped");
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let small = types.iter().find(|it| &*it.name == "k8s.small").expect("listed");
    assert!(!small.offerings[0].available, "what comes of it is still to be seen");
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
    let world = no_host_has_room().await;
    let claim = world.claim("np-a", json!({"cpu": "7"}));
    let error = world.launch(&claim).await.expect_err("no host has room, though the zone has");
    assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{error}");
    seconds(60).await;
    assert!(world.live().is_empty());
    assert!(world.provider.delete(&claim).await.expect_err("nothing").is_not_found());
}

#[tokio::test(start_paused = true)]
async fn scenario_6_root_keys_see_that_no_host_has_room_and_never_ask() {
    let world = no_host_has_room().await;
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
async fn scenario_6_no_host_takes_a_machine_with_more_or_faster_cores_or_of_another_architecture() {
    for (field, value) in [("cpunumber", json!(7)), ("cpuspeed", json!(999)), ("arch", json!("aarch64"))] {
        let world = World::new().await;
        for host in ["big-0", "big-1"] {
            world.cloud.edit("host", host, |host| host[field] = value.clone());
        }
        let mut large = spec();
        large["serviceOfferingSelectorTerms"] = json!([{"name": "k8s large*"}]);
        world.class("default", large).await;
        let root = world.as_root();
        let types = root.get_instance_types(&world.pool("default")).await.expect("types");
        assert!(!types[0].offerings[0].available, "{field}");
        let error = world.launch(&world.claim("np-a", json!({"cpu": "7"}))).await.expect_err("no host");
        assert!(matches!(error, ProviderError::InsufficientCapacity(_)), "{field}: {error}");
        assert_eq!(world.calls("deployVirtualMachine"), 1, "{field}: who does not see hosts asks");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_goes_on_past_twenty_five_types_that_are_refused_in_their_jobs() {
    let world = World::new().await;
    for resource in ["user_vm", "cpu", "memory", "volume", "primary_storage"] {
        world.cloud.limit(resource, -1);
    }
    for number in 0..25 {
        // No host has cores as fast as that, and the last of them is still cheaper than what fits.
        let fast =
            json!({"name": format!("fast-{number:02}"), "cpunumber": 2, "cpuspeed": 9000, "memory": 4096});
        world.cloud.add("serviceoffering", fast);
    }
    seconds(3700).await;
    let mut class = spec();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "fast-*"}, {"name": "k8s large*"}]);
    world.class("default", class).await;
    let instance = world.launch(&world.claim("np-a", json!({"cpu": "1"}))).await.expect("the one that fits");
    assert!(label(&instance, "node.kubernetes.io/instance-type").starts_with("k8s_large"), "{instance:?}");
    assert_eq!(world.calls("deployVirtualMachine"), 26);
}

#[tokio::test(start_paused = true)]
async fn where_the_storage_of_a_zone_is_full_machines_are_made_in_another() {
    for version in ["4.20.1.0", "4.23.0.0"] {
        let world = World::new().await;
        world.cloud.set_version(version);
        let first = world.cloud.id_of("zone", "sim-zone-1").expect("the zone");
        let second = world.cloud.add("zone", json!({"name": "sim-zone-2"}));
        let there = json!({"zoneid": second, "zonename": "sim-zone-2"});
        for (kind, fields) in [
            ("network", json!({"name": "k8s-net", "state": "Allocated"})),
            ("template", json!({"name": "CentOS there"})),
            (
                "host",
                json!({"name": "there", "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}),
            ),
        ] {
            let mut fields = fields;
            fields.as_object_mut().unwrap().extend(there.as_object().unwrap().clone());
            world.cloud.add(kind, fields);
        }
        // Room for one root disk.
        world.cloud.add_storage_pool(&first, 20, "");
        seconds(3700).await;
        let mut class = spec();
        class["zones"] = json!(["sim-zone-1", "sim-zone-2"]);
        class.as_object_mut().unwrap().remove("zone");
        class["rootDiskSize"] = 15.into();
        world.class("default", class).await;
        let mut zones = Vec::new();
        for number in 0..6 {
            let name = format!("np-{number}");
            let instance = world.launch(&world.claim(&name, json!({"cpu": "1"}))).await.expect("a place");
            zones.push(label(&instance, "topology.kubernetes.io/zone").to_owned());
            seconds(30).await;
            world.provider.look_at_launches().await.expect("a look");
        }
        let running = world.live().into_iter().filter(|machine| machine.state == "Running");
        let far = world.cloud.id_of("host", "there");
        let in_first = running.filter(|machine| machine.host != far).count();
        assert_eq!(in_first, 1, "{version}: {zones:?}");
        assert_eq!(zones.last().map(String::as_str), Some("sim-zone-2"), "{version}: {zones:?}");
    }
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
    // Who comes after that is not even asked for, and is told why.
    let asked = world.calls("deployVirtualMachine");
    let error = world.launch(&world.claim("np-b", json!({"cpu": "3"}))).await.expect_err("over the limit");
    assert!(matches!(&error, ProviderError::InsufficientCapacity(_)), "{error}");
    assert!(error.to_string().contains("the limit of cpu is 3"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), asked);
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
async fn a_zone_that_was_disabled_is_left_alone_and_what_runs_in_it_has_not_drifted() {
    let world = World::new().await;
    world.node("np-a").await;
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
    world.class("default", on_two_networks()).await;
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
    world.class("default", on_two_networks()).await;
    let told = world.told("NetworkExhausted");
    assert!(told.len() == 1 && told[0].contains("\"k8s-net\""), "an event says which: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_that_a_network_is_full_it_is_left_after_three_failures() {
    let world = World::new().await;
    world.class("default", on_two_networks()).await;
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
async fn sizes_that_are_passed_over_in_one_network_leave_room_for_the_next_network() {
    let world = World::new().await;
    let mut class = on_two_networks();
    class["serviceOfferingSelectorTerms"] = json!([{"name": "k8s.custom"}]);
    let (cpus, memory): (Vec<u8>, Vec<u8>) = ((1..=9).collect(), (1..=8).collect());
    class["customOfferings"] = json!([{"offering": "k8s.custom", "cpus": cpus, "memoryPerCPU": memory}]);
    world.class("default", class).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    assert!(types.len() > 60, "{}", types.len());
    let text = "Unable to start a VM [4bf9895c] due to [Unable to prepare the template].";
    world.cloud.inject(Fault::times("deployVirtualMachine", 3, Trouble::Fail(530, 4250, text.into())));
    world.node("np-a").await;
    assert_eq!(world.machine_of("np-a").networks, [world.cloud.id_of("network", "k8s-storage").unwrap()]);
    assert_eq!(world.calls("deployVirtualMachine"), 4);
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
