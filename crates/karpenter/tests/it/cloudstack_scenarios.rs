//! Acceptance scenarios on the simulated CloudStack that are only over when a pod runs: orders that come twice, a server that dies in
//! the middle of one, groups that keep machines apart, GPUs in a project, a project that is taken away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class};
use karpenter_api::NodeClaim;
use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::checks;
use karpenter_sim::cloudstack::faults::{Fault, Trouble as Mishap};
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::traffic::{Act, Script};
use karpenter_sim::{Objects, Process, Trouble, WorldOptions, in_virtual_time};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cloudstack::{all_run, deployment, small_nodes};

const MINUTE: Duration = Duration::from_secs(60);

/// A cloud with four hosts in each zone and the rules watched, a cluster with its keys, and Karpenter at work.
async fn stage(seed: u64) -> Result<(Stage, Arc<Process>), Trouble> {
    let stage = Stage::new(WorldOptions { seed, ..WorldOptions::default() }, GuestOptions::default()).await?;
    furnish(&stage.cloud, 4);
    stage.world.cluster().watch_over(checks::all(&stage.cloud));
    apply_credentials(&stage.world).await?;
    let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("scenarios"));
    karpenter.start();
    Ok((stage, karpenter))
}

/// What comes of a play, in virtual time.
fn played<T>(play: impl Future<Output = Result<T, Trouble>>) -> T {
    in_virtual_time(play).expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"))
}

/// The NodeClass, in the second zone only, whose four hosts are all there is.
fn class_of_four_hosts() -> Value {
    let mut class = node_class();
    class["spec"]["zone"] = "zone-02".into();
    class["spec"]["zones"] = json!([]);
    class
}

/// The NodeClass in a project that has a network of its own in the second zone.
fn class_in_project(stage: &Stage) -> (String, Value) {
    let project = stage.cloud.add_project("team");
    let network = json!({"name": "team-net", "projectid": project, "account": null, "cidr": "10.64.0.0/20"});
    stage.cloud.add("network", network);
    let mut class = class_of_four_hosts();
    class["spec"]["projectID"] = project.clone().into();
    class["spec"]["networkSelectorTerms"] = json!([{"name": "team-net"}]);
    (project, class)
}

async fn create(stage: &Stage, objects: impl IntoIterator<Item = Value>) -> Result<(), Trouble> {
    for object in objects {
        stage.world.create(object).await?;
    }
    Ok(())
}

async fn until_pods_run(stage: &Stage, count: usize, within: Duration) -> Result<(), Trouble> {
    stage.world.wait_until("the pods run", within, |objects| all_run(objects, count)).await.map(drop)
}

/// Ids of the machines that are there.
fn machines(stage: &Stage) -> BTreeSet<String> {
    stage.cloud.live_machines().into_iter().map(|machine| machine.id).collect()
}

#[test]
fn scenario_12_of_two_machines_of_one_order_the_older_stays_and_the_pod_runs() {
    played(async {
        let (stage, karpenter) = stage(52).await?;
        stage.cloud.inject(Fault::once("deployVirtualMachine", Mishap::Twice));
        create(&stage, [node_class(), small_nodes(json!({})), deployment("web", 1, "1500m")]).await?;
        until_pods_run(&stage, 1, 10 * MINUTE).await?;
        stage.world.run_for(10 * MINUTE).await?;
        let all = stage.cloud.machines();
        assert_eq!(stage.cloud.calls()["deployVirtualMachine"], 2, "both were taken");
        let older = all.iter().min_by_key(|machine| machine.created).map(|machine| machine.id.clone());
        assert_eq!(machines(&stage), older.into_iter().collect(), "{all:?}");
        assert!(stage.world.cluster().read(|objects| all_run(objects, 1)));
        stage.world.cluster().check_at_rest(10 * MINUTE)?;
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn scenario_13_a_server_that_dies_while_a_machine_starts_costs_no_machine_and_the_pod_runs() {
    played(async {
        let (stage, karpenter) = stage(53).await?;
        create(&stage, [node_class(), small_nodes(json!({})), deployment("web", 1, "1500m")]).await?;
        while stage.cloud.machines().iter().all(|machine| machine.state != "Starting") {
            stage.world.run_for(Duration::from_millis(200)).await?;
        }
        stage.cloud.restart();
        assert_eq!(stage.cloud.machines()[0].state, "Stopped", "as a real one leaves it");
        until_pods_run(&stage, 1, 10 * MINUTE).await?;
        stage.world.run_for(10 * MINUTE).await?;
        assert_eq!(machines(&stage).len(), 1, "{:?}", stage.cloud.machines());
        assert_eq!(
            stage.world.cluster().read(|objects| (objects.nodes.len(), objects.node_claims.len())),
            (1, 1)
        );
        stage.world.cluster().check_at_rest(10 * MINUTE)?;
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn scenario_24_machines_that_must_be_apart_run_on_as_many_hosts_as_there_are_and_those_that_should_be_run_all()
 {
    for (seed, kind, run) in [(54, "hostAntiAffinity", 4), (55, "softHostAntiAffinity", 6)] {
        played(async {
            let (stage, karpenter) = stage(seed).await?;
            let mut class = class_of_four_hosts();
            class["spec"]["affinity"] = json!({"type": kind});
            create(&stage, [class, small_nodes(json!({})), deployment("web", 6, "1500m")]).await?;
            until_pods_run(&stage, run, 10 * MINUTE).await?;
            stage.world.run_for(15 * MINUTE).await?;
            assert!(stage.world.cluster().read(|objects| all_run(objects, run)), "{kind}");
            let running = stage.cloud.live_machines();
            let hosts: BTreeSet<_> = running.iter().filter_map(|machine| machine.host.clone()).collect();
            assert_eq!((running.len(), hosts.len()), (run, 4), "{kind}");
            karpenter.stop(MINUTE).await;
            Ok(())
        });
    }
}

#[test]
fn scenario_25_a_pod_runs_on_a_gpu_of_a_project_and_the_disks_go_with_its_node() {
    played(async {
        let (stage, karpenter) = stage(56).await?;
        let (project, mut class) = class_in_project(&stage);
        let cloud = &stage.cloud;
        let network =
            json!({"name": "team-storage", "projectid": project, "account": null, "cidr": "10.80.0.0/20"});
        cloud.add("network", network);
        cloud.add(
            "serviceoffering",
            json!({
                "name": "gpu", "iscustomized": true, "cpunumber": null, "memory": null, "cpuspeed": 1000,
                "gpucount": 1, "gpucardname": "NVIDIA A10",
            }),
        );
        cloud.edit("host", "zone-02-host-1", |host| host["gpus"] = 2.into());
        class["spec"]["serviceOfferingSelectorTerms"] = json!([{"name": "gpu"}]);
        class["spec"]["customSizes"] = json!({"cpus": [4], "memoryPerCPU": [2]});
        class["spec"]["additionalNetworkSelectorTerms"] = json!([{"name": "team-storage"}]);
        class["spec"]["dataDisks"] =
            json!([{"offering": "k8s.data20"}, {"offering": "k8s.datacustom", "size": 5}]);
        let mut pool = small_nodes(json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"}));
        pool["spec"]["template"]["spec"]["requirements"] = json!([]);
        let mut pods = deployment("learn", 1, "1500m");
        let resources = &mut pods["spec"]["template"]["spec"]["containers"][0]["resources"];
        resources["requests"]["nvidia.com/gpu"] = "1".into();
        resources["limits"] = json!({"nvidia.com/gpu": "1"});
        create(&stage, [class, pool, pods]).await?;
        until_pods_run(&stage, 1, 10 * MINUTE).await?;
        let machine = &cloud.live_machines()[0];
        let network = |name: &str| cloud.id_of("network", name).unwrap_or_default();
        assert_eq!(machine.networks, [network("team-net"), network("team-storage")], "in this order");
        assert_eq!((machine.project.as_ref(), cloud.data_disks().len()), (Some(&project), 2));
        stage.world.cluster().read(|objects| {
            let node = objects.nodes.values().next().expect("a Node");
            let allocatable = node.status.clone().unwrap_or_default().allocatable.unwrap_or_default();
            assert_eq!(allocatable["nvidia.com/gpu"].0, "1");
        });
        stage.world.run_for(20 * MINUTE).await?;
        assert_eq!(machines(&stage).len(), 1, "invisible without the project, and not lost");
        let delete = Act::Delete { kind: "Deployment", name: "learn".to_owned() };
        Script { acts: vec![(Duration::ZERO, delete)] }.play(&stage.world).await?;
        let none = |objects: &Objects| objects.nodes.is_empty() && objects.node_claims.is_empty();
        stage.world.wait_until("the node is gone", 20 * MINUTE, none).await?;
        assert!(machines(&stage).is_empty() && cloud.data_disks().is_empty(), "{:?}", cloud.data_disks());
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn while_its_project_is_closed_to_the_keys_nothing_is_taken_for_gone_and_what_goes_waits() {
    played(async {
        let (stage, karpenter) = stage(57).await?;
        let (project, class) = class_in_project(&stage);
        create(&stage, [class, small_nodes(json!({})), deployment("web", 2, "1500m")]).await?;
        until_pods_run(&stage, 2, 10 * MINUTE).await?;
        let (cloud, world) = (&stage.cloud, &stage.world);
        let before = machines(&stage);
        let tenant = cloud.account(Role::User).expect("a tenant").name;
        cloud.add_account("other", "k8s-network");
        cloud.give_project(&project, "other");
        let claims: Api<NodeClaim> = Api::all(world.cluster().client("user"));
        let names = async || -> BTreeSet<String> {
            let listed = claims.list(&ListParams::default()).await.expect("NodeClaims").items;
            listed.iter().map(ResourceExt::name_any).collect()
        };
        let there = names().await;
        world.run_for(10 * MINUTE).await?;
        let goes = there.first().expect("a NodeClaim").clone();
        claims.delete(&goes, &DeleteParams::default()).await.expect("taken");
        world.run_for(20 * MINUTE).await?;
        assert_eq!(machines(&stage), before);
        assert!(names().await.is_superset(&there), "whose machine cannot be seen may have one");
        let refused = cloud.log().iter().filter(|entry| entry.status == 432).count();
        assert!(refused > 0, "as somebody else's project is refused");
        let events: Api<Event> = Api::all(world.cluster().client("user"));
        let told = events.list(&ListParams::default()).await.expect("events").items;
        let told = told.iter().filter(|event| event.reason.as_deref() == Some("ScopeClosed"));
        let told: BTreeSet<_> = told.filter_map(|event| event.involved_object.name.clone()).collect();
        assert!(told.is_superset(&there), "{told:?}");

        cloud.give_project(&project, &tenant);
        world.run_for(30 * MINUTE).await?;
        assert!(!names().await.contains(&goes), "it went");
        assert!(world.cluster().read(|objects| all_run(objects, 2)), "and both run");
        assert_eq!(machines(&stage).len(), 2);
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}
