//! Between a decision and its first write: what changed meanwhile is seen, and nothing is begun that nobody would finish.

use std::time::Duration;

use serde_json::json;

use crate::disruption::{furnish, going, has_reason, is_tainted, replacements, rig_with};
use crate::objects::{node, node_name, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const THOUGHT: Duration = Duration::from_secs(4);
const ELIGIBLE: &str = "karpenter_voluntary_disruption_eligible_nodes";

async fn eligible(rig: &Rig, reason: &str) {
    rig.eventually("a node may go", |rig| {
        rig.metric(ELIGIBLE, &[("reason", reason)]).is_some_and(|count| count > 0.0)
    })
    .await;
}

fn untouched(rig: &Rig, claim: &str) -> bool {
    rig.see(|objects| !is_tainted(objects, claim) && !has_reason(objects, claim)) && going(rig, &[claim]) == 0
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_to_stop_begins_nothing_it_waited_for_and_stops_at_once() {
    for (reason, pods) in [("empty", None), ("underutilized", Some("500m"))] {
        let rig = rig_with(node_pool("default"), &[("a", 4)]).await;
        if let Some(cpu) = pods {
            rig.create(pod_on("a", "p", cpu)).await;
        }
        eligible(&rig, reason).await;
        rig.pass(5 * SECOND).await;
        assert!(rig.stop().await < 3 * SECOND, "{reason}: it waits for the end of a wait nobody needs");
        rig.pass(60 * SECOND).await;
        assert!(untouched(&rig, "a"), "{reason}");
        assert_eq!(replacements(&rig, &["a"]).len(), 0, "{reason}");
    }
}

/// A Karpenter that thinks for [`THOUGHT`] about everything, and the node `a`, which it is about to take away: the decision
/// has been validated and is nearly written.
async fn about_to_go(pods: Option<&str>) -> Rig {
    // Where pods have to move it is first thought about whether something better has come up, and looked again.
    after_the_wait(pods, if pods.is_some() { THOUGHT + THOUGHT / 2 } else { THOUGHT / 2 }).await
}

/// The same so long after the wait before a decision is validated.
async fn after_the_wait(pods: Option<&str>, time: Duration) -> Rig {
    let rig = furnish(Rig::slow_witted(THOUGHT).await, node_pool("default"), &[("a", 4)]).await;
    if let Some(cpu) = pods {
        rig.create(pod_on("a", "p", cpu)).await;
    }
    eligible(&rig, if pods.is_some() { "underutilized" } else { "empty" }).await;
    rig.pass(15 * SECOND + time).await;
    assert!(untouched(&rig, "a"), "it has not begun");
    rig
}

#[tokio::test(start_paused = true)]
async fn a_node_that_gets_a_pod_while_its_end_is_thought_about_stays() {
    for pods in [None, Some("500m")] {
        let rig = about_to_go(pods).await;
        rig.create(pod_on("a", "newcomer", "100m")).await;
        rig.pass(3 * THOUGHT).await;
        assert!(untouched(&rig, "a"), "{pods:?}");
        let kind = if pods.is_some() { "single" } else { "empty" };
        let failed = "karpenter_voluntary_disruption_failed_validations_total";
        assert_eq!(rig.metric(failed, &[("consolidation_type", kind)]), Some(1.0), "{pods:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_promised_to_a_pod_while_its_end_is_thought_about_stays() {
    let rig = about_to_go(Some("500m")).await;
    assert!(rig.context.cluster.update(|cluster| cluster.nominate(&node_name("a"), 20 * SECOND)));
    rig.pass(3 * THOUGHT).await;
    assert!(untouched(&rig, "a"));
    let told = rig.events("NodeClaim", "a").await;
    assert!(told.iter().any(|said| said.starts_with("ConsolidationRejected: ")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_pod_asks_to_be_left_alone_while_it_is_thought_about_waiting_longer_stays() {
    let rig = after_the_wait(Some("500m"), THOUGHT / 2).await;
    let wish = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    rig.patch(&pod_on("a", "p", "500m"), wish).await;
    rig.pass(4 * THOUGHT).await;
    assert!(untouched(&rig, "a"));
    assert_eq!(replacements(&rig, &["a"]).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_that_took_long_to_taint_is_watched_for_as_long_after_its_taint() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    eligible(&rig, "empty").await;
    rig.pass(14 * SECOND).await;
    let held = rig.hold_requests().await;
    rig.pass(5 * SECOND).await;
    drop(held);
    rig.eventually("the node is tainted", |rig| rig.see(|objects| is_tainted(objects, "a"))).await;
    rig.pass(SECOND / 2).await;
    // By a scheduler that has not seen the taint.
    rig.create(pod_on("a", "newcomer", "100m")).await;
    rig.pass(5 * SECOND).await;
    assert!(untouched(&rig, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_nobody_touched_while_its_end_was_thought_about_goes() {
    let rig = about_to_go(None).await;
    rig.patch(&node("a", "default", 4), json!({"metadata": {"labels": {"example.com/any": "label"}}})).await;
    rig.eventually("it goes", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn empty_nodes_of_which_one_vanishes_while_they_are_marked_go_without_it() {
    let rig = rig_with(node_pool("default"), &[("a", 1), ("b", 1)]).await;
    eligible(&rig, "empty").await;
    rig.pass(14 * SECOND).await;
    let held = rig.hold_requests().await;
    rig.pass(3 * SECOND).await;
    rig.delete(&node("b", "default", 1)).await;
    drop(held);
    rig.eventually("the other goes", |rig| going(rig, &["a"]) == 1).await;
    let decided = rig.metric("karpenter_voluntary_disruption_decisions_total", &[("reason", "empty")]);
    assert_eq!(decided, Some(1.0), "one command, and not another for what was left of it");
}
