//! Machines with more than a root disk and an interface: GPUs, networks, disks, groups, projects. Scenario 25.

use karpenter_api::conditions::HasConditions as _;
use karpenter_cloudprovider::provider::CloudProvider;
use karpenter_provider_cloudstack::client::requests;
use serde_json::json;

use crate::cloud::{World, label, seconds, spec};

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
async fn scenario_25_machines_of_a_project_are_made_listed_and_looked_after_there() {
    let world = World::new().await;
    let (project, mut class) = world.project();
    class["dataDisks"] = json!([{"offering": "k8s.data20"}]);
    class["affinity"] = json!({"type": "softHostAntiAffinity"});
    let class = world.class("default", class).await;
    assert_eq!(class.condition_status("Ready"), karpenter_api::ConditionStatus::True, "{:?}", class.status);
    let instance = world.node("np-a").await;
    let scope = format!("project/{project}");
    assert_eq!(instance.annotations["karpenter.k8s.cloudstack/scope"], scope);
    let log = world.cloud.log();
    let deploy = log.iter().find(|entry| entry.command == "deployVirtualMachine").expect("a deployment");
    assert_eq!(deploy.parameters["projectid"], project);
    seconds(400).await;
    let listed = world.provider.list().await.expect("a list");
    assert_eq!(listed.len(), 1, "nothing that is invisible without the project is lost");
    assert!(world.provider.get(&instance.provider_id).await.is_ok());
    assert!(world.round().await.destroyed.is_empty(), "it is wanted");
    assert_eq!(world.provider.is_drifted(&world.current("np-a")).await.expect("known"), None);
    // The NodeClaim says where it was launched, whatever becomes of the NodeClass.
    let in_project = world.cluster.classes.lock().unwrap().remove("default").expect("the NodeClass");
    assert_eq!(world.provider.list().await.expect("a list").len(), 1);
    world.cluster.classes.lock().unwrap().insert("default".into(), in_project);
    world.delete(&world.current("np-a")).await.expect("gone");
    assert!(world.live().is_empty() && world.cloud.data_disks().is_empty());
    world.round().await;
    assert_eq!(world.cloud.affinity_groups().len(), 1, "its NodeClaim may be about to want its group");
    // What nobody wants is found there too.
    world.node("np-b").await;
    world.cluster.claims.lock().unwrap().clear();
    seconds(400).await;
    assert_eq!(world.round().await.destroyed.len(), 1);
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
    world.node("np-a").await;
    assert_eq!(world.cloud.affinity_groups(), ["dedicated"], "no group of our own beside it");
    // A group of all machines of the class, which goes when nobody uses it, even if no class wants any group any more.
    class["affinity"] = json!({"type": "softHostAntiAffinity", "scope": "NodeClass"});
    world.class("default", class).await;
    world.node("np-b").await;
    let ours = world.cloud.affinity_groups().into_iter().find(|name| name != "dedicated").expect("ours");
    assert!(ours.ends_with("-soft-class-default"), "{ours}");
    world.class("default", spec()).await;
    for name in ["np-a", "np-b"] {
        seconds(30).await;
        world.delete(&world.current(name)).await.expect("gone");
        world.cluster.claims.lock().unwrap().remove(name);
    }
    world.cloud.expunge_all_destroyed();
    world.round().await;
    seconds(5).await;
    assert_eq!(world.cloud.affinity_groups(), ["dedicated"]);
    world.round().await;
    let asked = world.calls("listAffinityGroups");
    world.round().await;
    assert_eq!(world.calls("listAffinityGroups"), asked, "nobody asks again");
}

#[tokio::test(start_paused = true)]
async fn a_dedicated_host_takes_the_machines_of_its_group_and_no_others() {
    let world = World::new().await;
    let group = world.cloud.dedicate_host("big-0");
    let host = |name: &str| world.machine_of(name).host;
    world.node("np-a").await;
    seconds(30).await;
    let dedicated = world.cloud.id_of("host", "big-0");
    assert_ne!(host("np-a"), dedicated, "it is not for everybody");
    let mut class = spec();
    class["affinity"] = json!({"groupIDs": [group]});
    seconds(61).await;
    world.class("default", class).await;
    for name in ["np-b", "np-c"] {
        world.node(name).await;
        seconds(30).await;
        assert_eq!(host(name), dedicated, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn machines_that_like_to_be_together_share_a_host_while_it_has_room() {
    let world = World::new().await;
    let mut class = spec();
    class["affinity"] = json!({"type": "softHostAffinity"});
    world.class("default", class).await;
    for name in ["np-a", "np-b", "np-c"] {
        world.node(name).await;
        seconds(30).await;
    }
    let hosts: Vec<Option<String>> = world.live().into_iter().map(|machine| machine.host).collect();
    assert!(hosts.len() == 3 && hosts.iter().all(|host| host.is_some() && *host == hosts[0]), "{hosts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_pair_whose_name_has_a_comma_is_given_alone_and_refused_beside_others() {
    let world = World::new().await;
    for pair in ["ops, Berlin", "builders"] {
        world.cloud.add_key_pair(pair, None);
    }
    let mut class = spec();
    class["sshKeyPairs"] = json!(["ops, Berlin"]);
    world.class("default", class.clone()).await;
    world.node("np-a").await;
    seconds(60).await;
    let drift = world.provider.is_drifted(&world.current("np-a")).await.expect("known");
    assert_eq!(drift, None, "it has the key pair");
    class["sshKeyPair"] = "builders".into();
    let class = world.class("default", class).await;
    let condition = class.condition("ValidationSucceeded").expect("a condition");
    assert_eq!(condition.status.as_str(), "False");
    for part in ["spec.sshKeyPairs", "\"ops, Berlin\"", "another name"] {
        assert!(condition.message().contains(part), "{}", condition.message());
    }
}
