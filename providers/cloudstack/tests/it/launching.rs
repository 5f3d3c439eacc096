//! Launches: the cheapest machine that fits, known by its name, tags and labels, and many at once. Scenarios 1, 3 and 19.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use karpenter_api::NodeClaim;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests;
use karpenter_provider_cloudstack::{ProviderOptions, labels};
use karpenter_sim::cloudstack::faults::{Fault, Trouble};
use karpenter_sim::cloudstack::settings::Throttle;
use serde_json::json;
use tokio::time::Instant;

use crate::cloud::{World, label, seconds, spec};

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
    let (network, template) = ("Küche & Flur (2)", "Ubuntu 24.04 für Größeres");
    world.cloud.edit("network", "k8s-net", |entry| entry["name"] = network.into());
    world.cloud.add("template", json!({"name": template}));
    let mut odd = spec();
    odd["zone"] = "Zürich [1]".into();
    odd["networkSelectorTerms"] = json!([{"name": network}]);
    odd["templateSelectorTerms"] = json!([{"name": template}]);
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
    assert!(label(&instance, labels::NETWORK_NAME).starts_with("K_che"), "{:?}", instance.labels);
    assert!(label(&instance, labels::TEMPLATE_NAME).starts_with("Ubuntu_24.04"), "{:?}", instance.labels);
    seconds(30).await;
    let current = world.current("np-a");
    assert_eq!(world.provider.is_drifted(&current).await.expect("known"), None);
    assert_eq!(world.another(2).is_drifted(&current).await.expect("known"), None, "stable across restarts");
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
async fn where_zones_have_templates_of_different_architectures_each_sells_its_own() {
    let world = World::new().await;
    let zone = world.cloud.add("zone", json!({"name": "zone-2"}));
    world.cloud.add("network", json!({"name": "k8s-net", "zoneid": zone, "zonename": "zone-2"}));
    world.cloud.edit("template", "CentOS 5.6 (64-bit) no GUI (Simulator)", |template| {
        template["crossZones"] = false.into();
    });
    let arm = json!({"name": "CentOS arm", "arch": "aarch64", "zoneid": zone, "zonename": "zone-2"});
    world.cloud.add("template", arm);
    world.cloud.add("host", json!({"name": "arm", "arch": "aarch64", "zoneid": zone, "memorytotal": 64i64 << 30, "cpuwithoverprovisioning": "64000", "memoryallocatedbytes": 0, "cpuallocatedvalue": 0}));
    seconds(3601).await;
    let mut class = spec();
    class["zones"] = json!(["zone-2"]);
    world.class("default", class).await;
    let sold = async || {
        let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
        let offerings = types.iter().flat_map(|it| &it.offerings);
        let sold = offerings.map(|offering| {
            let archs = offering.requirements.get("kubernetes.io/arch");
            let has = |arch: &str| archs.is_none_or(|archs| archs.has(arch));
            let zone = offering.requirements.get("topology.kubernetes.io/zone").expect("a zone");
            (zone.has("zone-2"), has("arm64"), has("amd64"))
        });
        sold.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(sold().await, [(false, false, true), (true, true, false)]);
    let mut claim = (*world.claim("np-arm", json!({"cpu": "1"}))).clone();
    let requirement = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    claim.spec.requirements.push(serde_json::from_value(requirement).unwrap());
    let instance = world.launch(&claim).await.expect("a machine");
    assert_eq!(label(&instance, "kubernetes.io/arch"), "arm64");
    assert_eq!(label(&instance, "topology.kubernetes.io/zone"), "zone-2");
    // What runs is still sold when its architecture is not any more: that it has drifted is for its template to say.
    world.cloud.edit("template", "CentOS arm", |template| template["arch"] = "x86_64".into());
    seconds(301).await;
    let types = world.provider.get_instance_types(&world.pool("default")).await.expect("types");
    let labels = world.current("np-arm").metadata.labels.clone().expect("labels");
    let is_of = |it: &&karpenter_engine::instance_type::InstanceType| {
        *it.name == *labels["node.kubernetes.io/instance-type"]
    };
    let sold = types.iter().find(is_of).expect("its type").offerings.iter().any(|offering| {
        offering.requirements.iter().all(|said| labels.get(&*said.key).is_none_or(|value| said.has(value)))
    });
    assert!(sold, "{types:?}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_there_is_taken_whatever_a_new_one_would_have_to_be_told() {
    let world = World::new().await;
    let first = world.node("np-a").await;
    // Short enough until it is known for whom.
    let told = ProviderOptions { max_user_data: 64, ..ProviderOptions::new("test") };
    let provider = world.with_options(told);
    let mut class = spec();
    class["userData"] = "#!/bin/bash\necho {{nodeClaim}} {{labels}} {{zone}}\n".into();
    world.class_by(&provider, "default", class).await;
    let again = world.claim("np-a", json!({"cpu": "1"}));
    let found = world.launch_by(&provider, &again).await.expect("the same machine");
    assert_eq!(found.provider_id, first.provider_id);
    let other = world.claim("np-b", json!({"cpu": "1"}));
    let error = world.launch_by(&provider, &other).await.expect_err("too long");
    assert!(error.to_string().contains("spec.userData has"), "{error}");
    assert_eq!(world.calls("deployVirtualMachine"), 1);
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
async fn a_name_that_is_taken_in_the_zone_leads_to_the_next() {
    // As servers say it where machines are called as VMware calls them.
    for text in [
        "There already exists a VM by the name: x.",
        "There already exists a VM by the display name supplied",
    ] {
        let world = World::new().await;
        let taken = Trouble::Fail(431, 4350, text.to_owned());
        world.cloud.inject(Fault::once("deployVirtualMachine", taken));
        let claim = world.claim("np-a", json!({"cpu": "1"}));
        world.launch(&claim).await.expect("under the next name");
        let log = world.cloud.log();
        let orders = log.iter().filter(|entry| entry.command == "deployVirtualMachine");
        let names: Vec<&str> = orders.map(|entry| entry.parameters["name"].as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names[0] != names[1] && names[1].starts_with(names[0]), "{names:?}");
        assert!(world.provider.delete(&world.current("np-a")).await.is_ok(), "it is known as this claim's");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_is_to_wait_for_nothing_is_over_when_its_machine_is_accepted() {
    let world = World::new().await;
    let at_once = ProviderOptions { launch_wait: Duration::ZERO, ..ProviderOptions::new("test") };
    let hasty = world.with_options(at_once);
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    let instance = world.launch_by(&hasty, &claim).await.expect("a machine");
    let log = world.cloud.log();
    let ordered = log.iter().rposition(|entry| entry.command == "deployVirtualMachine").expect("an order");
    let after: Vec<&str> = log[ordered + 1..].iter().map(|entry| entry.command.as_str()).collect();
    assert!(!after.contains(&"listVirtualMachines"), "nobody looks whether it is placed: {after:?}");
    // All the same everything is known of it that was ordered.
    assert_eq!(instance.labels["node.kubernetes.io/instance-type"], "k8s.small");
    assert!(!instance.capacity.is_empty() && instance.provider_id.ends_with(&world.live()[0].id));
}

#[tokio::test(start_paused = true)]
async fn launches_at_once_ask_only_once_whose_the_keys_are() {
    let world = World::new().await;
    let fresh = world.another(7);
    world.cloud.inject(Fault::times("listAccounts", 20, Trouble::Delay(Duration::from_secs(1))));
    let before = world.calls("listAccounts");
    let claims: Vec<_> = (0..6).map(|i| world.claim(&format!("np-{i}"), json!({"cpu": "1"}))).collect();
    let launches = claims.iter().map(|claim| world.launch_by(&fresh, claim));
    for launched in futures_util::future::join_all(launches).await {
        launched.expect("a machine");
    }
    let asked = world.calls("listAccounts") - before;
    assert!(asked <= 3, "for the owner and for what is left of the limits, and not for each launch: {asked}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_found_when_its_name_turns_out_to_be_taken_gets_its_tags() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    // Made by another leader after the list was begun by which this one looks first; its tags never came.
    world.cloud.inject(Fault::once("listVirtualMachines", Trouble::Delay(Duration::from_secs(3))));
    let taken = Trouble::Fail(431, 4350, "There already exists a VM by the name: x.".to_owned());
    world.cloud.inject(Fault::once("deployVirtualMachine", taken));
    let other = async {
        seconds(1).await;
        world.stray("np-a")
    };
    let (launched, id) = futures_util::future::join(world.launch(&claim), other).await;
    assert!(launched.expect("found").provider_id.ends_with(&id));
    assert_eq!((world.live().len(), world.calls("deployVirtualMachine")), (1, 1));
    seconds(5).await;
    assert_eq!(world.live()[0].tags["karpenter.sh/nodepool"], "pool");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_found_after_its_class_was_edited_has_drifted() {
    let world = World::new().await;
    let claim = world.claim("np-a", json!({"cpu": "1"}));
    world.launch(&claim).await.expect("a machine");
    // The process ended before it wrote down what it had launched.
    world.cluster.claims.lock().unwrap().insert("np-a".into(), claim.clone());
    let mut edited = spec();
    edited["userData"] = "#!/bin/bash\ntrue\n".into();
    world.class("default", edited).await;
    world.launch_by(&world.another(2), &claim).await.expect("the same machine");
    assert_eq!(world.live().len(), 1);
    let drift = world.provider.is_drifted(&world.current("np-a")).await.expect("known");
    assert_eq!(drift.as_deref(), Some("NodeClassDrift"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_machine_vanishes_before_its_node_registers_is_given_up_within_two_minutes() {
    let world = World::new().await;
    for name in ["np-a", "np-b"] {
        world.node(name).await;
    }
    let look = async |looks: u32| {
        for _ in 0..looks {
            seconds(5).await;
            world.provider.look_at_launches().await.expect("looked");
        }
    };
    look(12).await;
    assert!(world.told("LaunchFailed").is_empty());
    let (gone, destroyed) = (world.machine_of("np-a"), world.machine_of("np-b"));
    world.cloud.expunge_machine(&gone.id);
    look(24).await;
    let told = world.told("LaunchFailed");
    assert!(!told.is_empty() && told.iter().all(|text| text.contains(&gone.id)), "{told:?}");
    // The core takes the one from the cluster. The other is destroyed, which somebody may take back for a minute.
    world.cluster.claims.lock().unwrap().remove("np-a");
    world.told.lock().unwrap().clear();
    world.client.call(&requests::destroy(&destroyed.id, false, &[])).await.expect("ordered");
    look(12).await;
    assert!(world.told("LaunchFailed").is_empty(), "a list may be late");
    look(12).await;
    let told = world.told("LaunchFailed");
    assert!(!told.is_empty() && told.iter().all(|text| text.contains(&destroyed.id)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_machine_only_left_our_sight_is_not_given_up() {
    let world = World::new().await;
    world.node("np-a").await;
    seconds(60).await;
    world.cloud.add_account("other", "k8s-net");
    world.cloud.assign_machine(&world.machine_of("np-a").id, Some("other"), None);
    for _ in 0..60 {
        seconds(5).await;
        world.provider.look_at_launches().await.expect("looked");
    }
    assert!(world.told("LaunchFailed").is_empty());
}
