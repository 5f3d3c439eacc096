//! What becomes of CloudStack machines that stand still, or of which nobody knows what they do.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter::cloudstack::stage::{Stage, apply_credentials, furnish, node_class};
use karpenter_api::NodePool;
use karpenter_provider_cloudstack::ProviderOptions;
use karpenter_provider_cloudstack::repair::MACHINE_RUNNING;
use karpenter_provider_cloudstack::shared::OnStopped;
use karpenter_sim::cloudstack::guests::GuestOptions;
use karpenter_sim::faults::FaultPlan;
use karpenter_sim::{Objects, Process, Trouble, WorldOptions, in_virtual_time};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cloudstack::{all_run, deployment, small_nodes};

const NODES: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// Five nodes with a pod each, which may be replaced so many at a time; machines that stand still are not started.
async fn five_nodes(
    seed: u64,
    budget: &str,
    flags: &'static [&'static str],
) -> Result<(Stage, Arc<Process>), Trouble> {
    let stage = Stage::new(WorldOptions { seed, ..WorldOptions::default() }, GuestOptions::default()).await?;
    furnish(&stage.cloud, 4);
    apply_credentials(&stage.world).await?;
    let disruption = json!({"consolidateAfter": "Never", "budgets": [{"nodes": budget}]});
    for object in [node_class(), small_nodes(disruption), deployment("web", NODES as u64, "1500m")] {
        stage.world.create(object).await?;
    }
    let options = ProviderOptions { on_stopped: OnStopped::Replace, ..ProviderOptions::new("repair") };
    let karpenter = stage.karpenter_with(FaultPlan::none(), options, flags);
    karpenter.start();
    stage.world.wait_until("the pods run", 5 * MINUTE, |objects| all_run(objects, NODES)).await?;
    stage.world.run_for(3 * MINUTE).await?;
    Ok((stage, karpenter))
}

async fn allow(stage: &Stage, budget: &str) {
    let pools: Api<NodePool> = Api::all(stage.world.cluster().client("user"));
    let patch: Value = json!({"spec": {"disruption": {"budgets": [{"nodes": budget}]}}});
    pools.patch("default", &PatchParams::default(), &Patch::Merge(patch)).await.expect("written");
}

/// What the Node of a machine says of it.
fn said(node: &Node) -> Option<(String, String)> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let condition = conditions.find(|condition| condition.type_ == MACHINE_RUNNING)?;
    Some((condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}

fn said_of(objects: &Objects, machine: &str) -> Option<(String, String)> {
    objects.nodes.values().find(|node| node.metadata.name.as_deref() == Some(machine)).and_then(|n| said(n))
}

fn leaving(objects: &Objects) -> usize {
    objects.node_claims.values().filter(|claim| claim.metadata.deletion_timestamp.is_some()).count()
}

fn standing_still(stage: &Stage) -> usize {
    stage.cloud.live_machines().iter().filter(|machine| machine.state == "Stopped").count()
}

#[test]
fn machines_that_stand_still_are_replaced_within_the_budgets_of_their_pool() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = five_nodes(30, "0", &[]).await?;
        let world = &stage.world;
        let stopped: Vec<_> = stage.cloud.live_machines().into_iter().take(3).collect();
        for machine in &stopped {
            stage.cloud.stop_machine(&machine.id);
        }
        world.run_for(10 * MINUTE).await?;
        assert_eq!(standing_still(&stage), 3, "no budget lets anything go");
        world.cluster().read(|objects| {
            assert_eq!(leaving(objects), 0);
            for machine in &stopped {
                assert_eq!(said_of(objects, &machine.name), Some(("False".into(), "Stopped".into())));
            }
        });
        allow(&stage, "1").await;
        let mut most = 0;
        // More often than a NodeClaim takes to go.
        for _ in 0..900 {
            world.run_for(Duration::from_secs(2)).await?;
            most = most.max(world.cluster().read(leaving));
            if standing_still(&stage) == 0 && world.cluster().read(|objects| all_run(objects, NODES)) {
                break;
            }
        }
        assert_eq!(standing_still(&stage), 0);
        assert_eq!(most, 1, "one at a time");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn budgets_hold_for_a_machine_whose_node_has_another_name() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = five_nodes(33, "0", &[]).await?;
        let world = &stage.world;
        let stopped: Vec<_> = stage.cloud.live_machines().into_iter().take(3).collect();
        for (place, machine) in stopped.iter().enumerate() {
            stage.cloud.rename_machine(&machine.id, &format!("billing-{place}"));
            stage.cloud.stop_machine(&machine.id);
        }
        world.run_for(10 * MINUTE).await?;
        assert_eq!(standing_still(&stage), 3, "no budget lets anything go");
        world.cluster().read(|objects| {
            assert_eq!(leaving(objects), 0);
            for machine in &stopped {
                assert_eq!(said_of(objects, &machine.name), Some(("False".into(), "Stopped".into())));
            }
        });
        allow(&stage, "1").await;
        let mut most = 0;
        // More often than a NodeClaim takes to go.
        for _ in 0..900 {
            world.run_for(Duration::from_secs(2)).await?;
            most = most.max(world.cluster().read(leaving));
            if standing_still(&stage) == 0 && world.cluster().read(|objects| all_run(objects, NODES)) {
                break;
            }
        }
        assert_eq!((standing_still(&stage), most), (0, 1), "one at a time");
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn with_node_repair_the_core_replaces_machines_that_stand_still() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = five_nodes(31, "0", &["--feature-gates=NodeRepair=true"]).await?;
        let world = &stage.world;
        let stopped = stage.cloud.live_machines().remove(0);
        stage.cloud.stop_machine(&stopped.id);
        world.run_for(10 * MINUTE).await?;
        assert_eq!(standing_still(&stage), 1, "no budget lets it go");
        allow(&stage, "1").await;
        let replaced = |objects: &Objects| {
            let there = |node: &Arc<Node>| node.metadata.name.as_ref() == Some(&stopped.name);
            all_run(objects, NODES) && !objects.nodes.values().any(there)
        };
        world.wait_until("it is replaced, long before half an hour", 8 * MINUTE, replaced).await?;
        assert_eq!(standing_still(&stage), 0);
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn a_machine_in_state_unknown_is_told_of_and_stays_and_its_node_says_when_it_runs_again() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = five_nodes(32, "100%", &[]).await?;
        let world = &stage.world;
        let lost = stage.cloud.live_machines().remove(0);
        stage.cloud.lose_sight_of_machine(&lost.id);
        world.run_for(5 * MINUTE).await?;
        let unknown = Some(("Unknown".to_owned(), "Unknown".to_owned()));
        assert_eq!(world.cluster().read(|objects| said_of(objects, &lost.name)), unknown);
        // Whoever looks next has not written it, and takes it back all the same.
        karpenter.kill();
        karpenter.start();
        stage.cloud.find_machine_again(&lost.id);
        world.run_for(6 * MINUTE).await?;
        let runs = Some(("True".to_owned(), "Running".to_owned()));
        assert_eq!(world.cluster().read(|objects| said_of(objects, &lost.name)), runs);
        assert!(stage.cloud.live_machines().iter().any(|machine| machine.id == lost.id));
        assert_eq!(stage.cloud.live_machines().len(), NODES);
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}

#[test]
fn machines_that_stay_in_state_unknown_are_repaired_after_their_time_and_within_the_budgets_of_their_pool() {
    let done = in_virtual_time(async {
        let (stage, karpenter) = five_nodes(34, "0", &["--feature-gates=NodeRepair=true"]).await?;
        let world = &stage.world;
        // One of five is few enough to be repaired at all.
        let lost = stage.cloud.live_machines().remove(0);
        stage.cloud.lose_sight_of_machine(&lost.id);
        let there = |id: &str| stage.cloud.live_machines().iter().any(|machine| machine.id == id);
        world.run_for(45 * MINUTE).await?;
        assert!(there(&lost.id), "no budget lets it go");
        assert_eq!(world.cluster().read(leaving), 0);
        allow(&stage, "1").await;
        world.run_for(15 * MINUTE).await?;
        assert!(!there(&lost.id), "its time was over long ago");
        // The next one has its time, whatever the budget.
        let lost = stage.cloud.live_machines().remove(0);
        stage.cloud.lose_sight_of_machine(&lost.id);
        world.run_for(25 * MINUTE).await?;
        assert!(there(&lost.id));
        world.run_for(20 * MINUTE).await?;
        assert!(!there(&lost.id));
        assert!(world.cluster().read(|objects| all_run(objects, NODES)));
        karpenter.stop(MINUTE).await;
        Ok::<(), Trouble>(())
    });
    done.expect("a runtime").unwrap_or_else(|trouble| panic!("{trouble}"));
}
