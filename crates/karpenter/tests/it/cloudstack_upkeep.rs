//! What happens to running CloudStack nodes when something around them changes: a release that hashes otherwise, a host that goes
//! into maintenance.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Secret};
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class};
use karpenter_api::NodeClaim;
use karpenter_provider_cloudstack::naming::Naming;
use karpenter_provider_cloudstack::nodeclass::HASH_VERSION;
use karpenter_provider_cloudstack::shared::OnStopped;
use karpenter_provider_cloudstack::{CloudStackNodeClass, ProviderOptions};
use karpenter_sim::chance::Span;
use karpenter_sim::cloudstack::account::Role;
use karpenter_sim::cloudstack::faults::{Fault, Trouble as CloudTrouble};
use karpenter_sim::cloudstack::guests::{GuestOptions, NamedBy};
use karpenter_sim::cloudstack::{CloudStack, MachineView};
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::{Process, Trouble, WorldOptions, in_virtual_time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::cloudstack::{all_run, deployment, small_nodes};

const MINUTE: Duration = Duration::from_secs(60);
const HASH: &str = "karpenter.k8s.cloudstack/nodeclass-hash";
const VERSION: &str = "karpenter.k8s.cloudstack/nodeclass-hash-version";

/// A cloud with room and a cluster with its keys; nothing runs yet.
async fn furnished(seed: u64, guests: GuestOptions) -> Result<Stage, Trouble> {
    let stage = Stage::new(WorldOptions { seed, ..WorldOptions::default() }, guests).await?;
    furnish(&stage.cloud, 4);
    apply_credentials(&stage.world).await?;
    Ok(stage)
}

/// Karpenter on a stage with these objects, once so many pods run.
async fn running(stage: &Stage, name: &str, objects: &[Value], pods: usize) -> Result<Arc<Process>, Trouble> {
    for object in objects {
        stage.world.create(object.clone()).await?;
    }
    let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new(name));
    karpenter.start();
    stage.world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, pods)).await?;
    Ok(karpenter)
}

/// What comes of a play, in virtual time.
fn played<T>(play: impl Future<Output = Result<T, Trouble>>) -> T {
    in_virtual_time(play).expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"))
}

async fn annotate<K>(api: &Api<K>, name: &str, hash: &str, version: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch: Value = json!({"metadata": {"annotations": {HASH: hash, VERSION: version}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("written");
}

#[test]
fn a_release_that_hashes_otherwise_stamps_claims_anew_and_replaces_nothing() {
    played(async {
        let stage = furnished(40, GuestOptions::default()).await?;
        let world = &stage.world;
        let objects = [node_class(), small_nodes(json!({})), deployment("web", 2, "1500m")];
        let karpenter = running(&stage, "hashes", &objects, 2).await?;
        world.run_for(2 * MINUTE).await?;
        let before = stage.cloud.live_machines();
        karpenter.stop(MINUTE).await;
        // As the release before left them; one NodeClaim had drifted already.
        let client = world.cluster().client("user");
        let (classes, claims) =
            (Api::<CloudStackNodeClass>::all(client.clone()), Api::<NodeClaim>::all(client));
        annotate(&classes, "default", "as-before", "v0").await;
        let names: Vec<String> =
            claims.list(&ListParams::default()).await.expect("claims").iter().map(|c| c.name_any()).collect();
        for name in &names {
            annotate(&claims, name, "as-before", "v0").await;
        }
        karpenter.start();
        world.run_for(20 * MINUTE).await?;
        let current = classes.get("default").await.expect("the class").hash();
        let class = classes.get("default").await.expect("the class");
        assert_eq!(
            (&class.annotations()[HASH], class.annotations()[VERSION].as_str()),
            (&current, HASH_VERSION)
        );
        for name in &names {
            let claim = claims.get(name).await.expect("still there");
            assert_eq!(
                (&claim.annotations()[HASH], claim.annotations()[VERSION].as_str()),
                (&current, HASH_VERSION)
            );
        }
        let ids = |machines: &[karpenter_sim::cloudstack::MachineView]| {
            machines.iter().map(|machine| machine.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&stage.cloud.live_machines()), ids(&before), "no machine was replaced");
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn spot_machines_leave_a_host_that_goes_into_maintenance_and_others_stay() {
    played(async {
        let stage = furnished(41, GuestOptions::default()).await?;
        let world = &stage.world;
        // Only a root administrator sees hosts; machines are the tenant's all the same.
        let root = stage.cloud.account(Role::Root).expect("an administrator");
        let tenant = stage.cloud.account(Role::User).expect("a tenant");
        let secrets: Api<Secret> = Api::namespaced(world.cluster().client("user"), "karpenter");
        let keys = json!({"stringData": {"api-key": root.api_key, "secret-key": root.secret_key}});
        let how = PatchParams::default();
        secrets.patch("cloudstack-credentials", &how, &Patch::Merge(keys)).await.expect("written");
        let mut class = node_class();
        class["spec"]["account"] = tenant.name.into();
        class["spec"]["domainID"] = tenant.domain_id.into();
        class["spec"]["capacityTypes"] = json!({"k8s.small": "spot"});
        let mut on_demand = small_nodes(json!({}));
        on_demand["metadata"]["name"] = "lasting".into();
        on_demand["spec"]["template"]["metadata"]["labels"] = json!({"lasting": "true"});
        on_demand["spec"]["template"]["spec"]["requirements"] =
            json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
        let mut lasting = deployment("lasting", 1, "1500m");
        lasting["spec"]["template"]["spec"]["nodeSelector"] = json!({"lasting": "true"});
        let mut web = deployment("web", 1, "1500m");
        web["spec"]["template"]["spec"]["nodeSelector"] = json!({"karpenter.sh/capacity-type": "spot"});
        let objects = [class, small_nodes(json!({})), on_demand, web, lasting];
        let karpenter = running(&stage, "hosts", &objects, 2).await?;
        world.run_for(3 * MINUTE).await?;
        let before = stage.cloud.live_machines();
        assert_eq!(before.len(), 2);
        for machine in &before {
            let host = machine.host.clone().expect("it runs somewhere");
            stage.cloud.set_host_state(&host, "PrepareForMaintenance");
        }
        world.run_for(10 * MINUTE).await?;
        let after = stage.cloud.live_machines();
        let stayed: Vec<&str> = after
            .iter()
            .filter(|machine| before.iter().any(|other| other.id == machine.id))
            .map(|machine| machine.tags["karpenter.sh/nodepool"].as_str())
            .collect();
        assert_eq!(stayed, ["lasting"], "CloudStack moves the others itself");
        assert!(world.cluster().read(|objects| all_run(objects, 2)));
        let events: Api<Event> = Api::all(world.cluster().client("user"));
        let events = events.list(&ListParams::default()).await.expect("events").items;
        let told = events.iter().filter(|event| event.reason.as_deref() == Some("HostMaintenance")).count();
        assert!(told >= 1, "an event says why");
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn later_nodes_are_expected_to_have_the_memory_the_first_one_showed() {
    played(async {
        let stage = furnished(42, GuestOptions::default()).await?;
        let world = &stage.world;
        let objects = [node_class(), small_nodes(json!({})), deployment("web", 1, "1500m")];
        let karpenter = running(&stage, "memory", &objects, 1).await?;
        world.run_for(MINUTE).await?;
        let shown = world.cluster().read(|objects| {
            let node = objects.nodes.values().next().expect("a node");
            node.status.as_ref().and_then(|status| status.capacity.clone()).unwrap_or_default()["memory"]
                .clone()
        });
        let expected = |name: &str| {
            let name = name.to_owned();
            let claims: Api<NodeClaim> = Api::all(world.cluster().client("user"));
            async move {
                let listed = claims.list(&ListParams::default()).await.expect("claims").items;
                let claim = listed.into_iter().find(|claim| name.is_empty() || claim.name_any() != name);
                let claim = claim.expect("a claim");
                let memory =
                    claim.status.clone().and_then(|status| status.capacity).unwrap_or_default()["memory"]
                        .clone();
                (claim.name_any(), memory)
            }
        };
        let bytes = |quantity: &str| {
            let mib =
                quantity.strip_suffix("Mi").map(|mib| mib.parse::<f64>().expect("a number") * 1_048_576.0);
            mib.unwrap_or_else(|| quantity.parse().expect("bytes"))
        };
        let (first, guessed) = expected("").await;
        assert!(bytes(&guessed.to_string()) < bytes(&shown.0), "the first was guessed, and carefully");
        world.create(deployment("more", 1, "1500m")).await?;
        world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, 2)).await?;
        let (_, learnt) = expected(&first).await;
        assert_eq!(bytes(&learnt.to_string()), bytes(&shown.0), "the second was known");
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn a_node_whose_machine_went_before_it_was_named_is_removed_and_one_that_waits_stays() {
    played(async {
        // A cloud controller manager that is late.
        let late = NamedBy::CloudControllerManager(Span::secs(3600, 3600));
        let guests = GuestOptions { named_by: late, ..GuestOptions::default() };
        let stage = furnished(45, guests).await?;
        let world = &stage.world;
        for object in [node_class(), small_nodes(json!({})), deployment("web", 3, "1500m")] {
            world.create(object).await?;
        }
        let options = ProviderOptions { on_stopped: OnStopped::Ignore, ..ProviderOptions::new("late") };
        let karpenter = stage.karpenter(FaultPlan::none(), options);
        karpenter.start();
        let joined = |objects: &karpenter_sim::Objects| objects.nodes.len() == 3;
        world.wait_until("all have joined", 5 * MINUTE, joined).await?;
        let machines = stage.cloud.live_machines();
        stage.cloud.expunge_machine(&machines[0].id);
        // This one stands still, but it is there.
        stage.cloud.stop_machine(&machines[2].id);
        // Somebody else's Node is none of our business.
        world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}})).await?;
        world.run_for(8 * MINUTE).await?;
        let names: Vec<String> =
            world.cluster().read(|objects| objects.nodes.values().map(|node| node.name_any()).collect());
        let there = |name: &str| names.iter().any(|other| other == name);
        assert!(!there(&machines[0].name), "{names:?}");
        for name in [machines[1].name.as_str(), &machines[2].name, "theirs"] {
            assert!(there(name), "{name}: {names:?}");
        }
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

#[test]
fn scenario_20_no_node_claim_is_collected_while_some_page_of_the_list_cannot_be_had() {
    played(async {
        let stage = furnished(49, GuestOptions::default()).await?;
        let world = &stage.world;
        for object in [node_class(), small_nodes(json!({})), deployment("web", 5, "1500m")] {
            world.create(object).await?;
        }
        // What stands still is left to people, so that nothing but a list that lacks it could make it go.
        let options = ProviderOptions { on_stopped: OnStopped::Ignore, ..ProviderOptions::new("pages") };
        let karpenter = stage.karpenter(FaultPlan::none(), options);
        karpenter.start();
        world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, 5)).await?;
        // Those nobody is about to remove.
        let stayed = || {
            world.cluster().read(|objects| {
                let stays = |claim: &&Arc<NodeClaim>| claim.metadata.deletion_timestamp.is_none();
                objects.node_claims.values().filter(stays).map(|claim| claim.name_any()).collect::<Vec<_>>()
            })
        };
        let claimed = stayed();
        assert_eq!(claimed.len(), 5);
        let machines = stage.cloud.live_machines();
        // Of a Node that is ready nobody thinks that its machine is gone.
        for machine in &machines {
            stage.cloud.stop_machine(&machine.id);
        }
        // Three pages, told only after the size of pages is known: some of it is read, and never all.
        stage.cloud.configure(|settings| settings.page_size = 2);
        let refused = CloudTrouble::Fail(431, 4350, "this page cannot be had".to_owned());
        for number in 0..5000 {
            let fault = Fault::once("listVirtualMachines", refused.clone());
            stage.cloud.inject(fault.after(3 * number + 2));
        }
        world.run_for(20 * MINUTE).await?;
        let left = stayed();
        // For the pods that left the Nodes that are not ready there are others by now, which have to wait.
        assert!(claimed.iter().all(|name| left.contains(name)), "{claimed:?} {left:?}");
        let ids = |machines: Vec<MachineView>| machines.into_iter().map(|machine| machine.id);
        let there = ids(stage.cloud.live_machines()).collect::<Vec<_>>();
        assert!(ids(machines).all(|id| there.contains(&id)), "{there:?}");
        assert!(stage.cloud.log().iter().any(|entry| entry.status == 431), "pages were refused");
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}

/// Two pods on nodes sold as spot or on demand, as a tenant; then something happens to every machine. The NodePools of the
/// machines that are still there.
fn after_something_happens(seed: u64, happens: fn(&CloudStack, &str)) -> Vec<String> {
    played(async {
        let stage = furnished(seed, GuestOptions::default()).await?;
        let world = &stage.world;
        let mut class = node_class();
        class["spec"]["capacityTypes"] = json!({"k8s.small": "spot"});
        let mut objects = vec![class];
        for (name, kind) in [("spot", "spot"), ("lasting", "on-demand")] {
            let mut pool = small_nodes(json!({}));
            pool["metadata"]["name"] = name.into();
            pool["spec"]["template"]["spec"]["requirements"] =
                json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": [kind]}]);
            let mut pods = deployment(name, 1, "1500m");
            pods["spec"]["template"]["spec"]["nodeSelector"] = json!({"karpenter.sh/nodepool": name});
            objects.extend([pool, pods]);
        }
        let karpenter = running(&stage, "taken", &objects, 2).await?;
        world.run_for(3 * MINUTE).await?;
        let before = stage.cloud.live_machines();
        for machine in &before {
            happens(&stage.cloud, &machine.id);
        }
        world.run_for(15 * MINUTE).await?;
        assert!(world.cluster().read(|objects| all_run(objects, 2)), "the pods run, wherever");
        let after = stage.cloud.live_machines();
        assert_eq!(after.len(), 2, "{after:?}");
        let stayed = after.iter().filter(|machine| before.iter().any(|other| other.id == machine.id));
        let stayed = stayed.map(|machine| machine.tags["karpenter.sh/nodepool"].clone()).collect();
        karpenter.stop(MINUTE).await;
        Ok(stayed)
    })
}

#[test]
fn a_spot_machine_that_somebody_stops_is_replaced_and_any_other_is_started_again() {
    assert_eq!(after_something_happens(43, CloudStack::stop_machine), ["lasting"]);
}

#[test]
fn a_spot_machine_that_is_about_to_be_moved_is_replaced_and_any_other_stays() {
    assert_eq!(after_something_happens(44, CloudStack::begin_moving_machine), ["lasting"]);
}

#[test]
fn a_spot_machine_that_was_moved_between_two_looks_is_replaced_and_any_other_stays() {
    let moved = |cloud: &CloudStack, id: &str| {
        cloud.begin_moving_machine(id);
        cloud.finish_moving_machine(id);
    };
    assert_eq!(after_something_happens(46, moved), ["lasting"]);
}

#[test]
fn a_spot_machine_that_was_started_again_soon_after_it_was_stopped_stays() {
    let restarted = |cloud: &CloudStack, id: &str| {
        cloud.stop_machine(id);
        cloud.find_machine_again(id);
    };
    let mut stayed = after_something_happens(47, restarted);
    stayed.sort();
    assert_eq!(stayed, ["lasting", "spot"]);
}

#[test]
fn a_class_that_alone_leads_to_a_project_stays_until_nothing_is_left_there() {
    played(async {
        let stage = furnished(48, GuestOptions::default()).await?;
        let world = &stage.world;
        let project = stage.cloud.add_project("team");
        let mut class = node_class();
        class["spec"]["projectID"] = project.clone().into();
        world.create(class).await?;
        let karpenter = stage.karpenter(FaultPlan::none(), ProviderOptions::new("upkeep"));
        karpenter.start();
        // Of a launch whose answer never came.
        let name = format!("{}np-a", Naming::new("karpenter", "upkeep").prefix());
        let lost = stage.cloud.add_machine(&name, &[]);
        stage.cloud.assign_machine(&lost, None, Some(&project));
        world.run_for(MINUTE).await?;
        let classes: Api<CloudStackNodeClass> = Api::all(world.cluster().client("user"));
        classes.delete("default", &DeleteParams::default()).await.expect("taken");
        world.run_for(2 * MINUTE).await?;
        assert!(classes.get_opt("default").await.expect("an answer").is_some(), "a machine is left");
        world.run_for(15 * MINUTE).await?;
        assert!(stage.cloud.live_machines().iter().all(|machine| machine.id != lost), "nobody wants it");
        assert!(classes.get_opt("default").await.expect("an answer").is_none());
        karpenter.stop(MINUTE).await;
        Ok(())
    });
}
