//! Nodes that their platform is at work on: left alone while pods run on them, counted against budgets while it takes them away.

use std::time::Duration;

use karpenter_cloudprovider::DisruptionHold;
use serde_json::json;

use crate::disruption::{add_node, blocked_by, drifted, going, pool_with, replacements, rig_with};
use crate::objects::{node_pool, pod_on};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn hold(leaving: bool) -> Option<DisruptionHold> {
    Some(DisruptionHold { reason: "MachineDeployment fleet/m is rolling out".to_owned(), leaving })
}

#[tokio::test(start_paused = true)]
async fn a_node_that_its_platform_is_at_work_on_is_disrupted_when_that_is_over() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.provider.drift(Some("Test"));
    rig.provider.hold("a", hold(false));
    add_node(&rig, "a", 2, drifted()).await;
    rig.create(pod_on("a", "p", "1500m")).await;
    rig.pass(5 * MINUTE).await;
    assert_eq!(replacements(&rig, &["a"]), Vec::<String>::new());
    let told = blocked_by(&rig, "a").await;
    assert_eq!(told, ["MachineDeployment fleet/m is rolling out"], "and why is told");
    rig.provider.hold("a", None);
    rig.eventually("it is replaced", |rig| replacements(rig, &["a"]).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_nothing_runs_on_goes_whatever_its_platform_does() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.provider.hold("a", hold(false));
    rig.eventually("it goes", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_platform_takes_away_leaves_the_less_of_a_budget() {
    let rig = rig_with(pool_with(json!([{"nodes": "1"}])), &[]).await;
    rig.provider.hold("a", hold(true));
    rig.provider.drift(Some("Test"));
    for name in ["a", "b"] {
        add_node(&rig, name, 2, drifted()).await;
        rig.create(pod_on(name, &format!("p-{name}"), "1500m")).await;
    }
    rig.pass(5 * MINUTE).await;
    assert_eq!(replacements(&rig, &["a", "b"]), Vec::<String>::new(), "one is gone as it is");
    rig.provider.hold("a", None);
    rig.pass(30 * SECOND).await;
    assert_eq!(replacements(&rig, &["a", "b"]).len(), 1, "one at a time");
}
