//! What is counted of consolidations: what was weighed and not worth it, what was not good any more, what may still go.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::disruption::{add_node, going, replacements, rig_with};
use crate::objects::{With, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const FAILED: &str = "karpenter_voluntary_disruption_failed_validations_total";
const MOVES: &str = "karpenter_consolidation_moves_total";

/// A pool that buys on demand only, so that nothing is cheaper but what is smaller.
fn pool(disruption: Value) -> Value {
    let only = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let spec = json!({"template": {"spec": {"requirements": only}}, "disruption": disruption});
    node_pool("default").with(json!({"spec": spec}))
}

/// A node four times too large, found and waited for.
async fn considered() -> Rig {
    let rig = rig_with(pool(json!({})), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    eligible(&rig, "underutilized", 1.0).await;
    rig.pass(5 * SECOND).await;
    rig
}

async fn eligible(rig: &Rig, reason: &str, count: f64) {
    rig.eventually("nodes may go", |rig| {
        rig.metric("karpenter_voluntary_disruption_eligible_nodes", &[("reason", reason)]) == Some(count)
    })
    .await;
}

async fn rejected(rig: &Rig) -> Option<String> {
    let told = rig.events("NodeClaim", "a").await;
    let said = told.into_iter().find(|said| said.starts_with("ConsolidationRejected: "))?;
    said.split_once("reason: ").map(|(_, why)| why.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_beyond_a_budget_after_the_wait_is_rejected_and_counted() {
    let rig = considered().await;
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}})).await;
    rig.pass(20 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), replacements(&rig, &["a"]).len()), (0, 0));
    assert_eq!(rejected(&rig).await.as_deref(), Some("budget (savings: $0.30)"));
    assert_eq!(rig.metric(FAILED, &[("consolidation_type", "single")]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_that_would_come_out_differently_after_the_wait_is_rejected_and_not_counted() {
    let rig = considered().await;
    // The pods could go there now: no replacement is needed.
    add_node(&rig, "b", 1, json!({})).await;
    rig.pass(12 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), replacements(&rig, &["a", "b"]).len()), (0, 0));
    assert_eq!(rejected(&rig).await.as_deref(), Some("scheduling (savings: $0.30)"));
    assert_eq!(rig.metric(FAILED, &[("consolidation_type", "single")]), None, "as upstream");
}

#[tokio::test(start_paused = true)]
async fn empty_nodes_left_out_for_a_budget_after_the_wait_are_counted_and_the_others_go() {
    let names = ["a", "b", "c"];
    let rig = rig_with(pool(json!({})), &names.map(|name| (name, 1))).await;
    eligible(&rig, "empty", 3.0).await;
    rig.pass(5 * SECOND).await;
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}})).await;
    rig.pass(12 * SECOND).await;
    assert_eq!(going(&rig, &names), 1);
    assert_eq!(rig.metric(FAILED, &[("consolidation_type", "empty")]), Some(2.0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_could_not_be_worth_it_is_not_counted_as_weighed() {
    let rig = rig_with(pool(json!({"consolidationPolicy": "Balanced"})), &[("a", 1), ("b", 4)]).await;
    // Cheap and busy: even without a replacement its end would save a fifth and disturb five sixths.
    for number in 0..9 {
        rig.create(pod_on("a", &format!("p{number}"), "100m")).await;
    }
    rig.create(pod_on("b", "large", "3500m")).await;
    rig.pass(60 * SECOND).await;
    assert_eq!(going(&rig, &["a", "b"]), 0);
    assert_eq!(rig.metric(MOVES, &[("decision", "rejected")]), None);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_weighed_and_not_worth_it_is_counted_once_for_its_pool() {
    let rig = rig_with(pool(json!({"consolidationPolicy": "Balanced"})), &[("a", 2), ("b", 2)]).await;
    // Together they fit on one of three: a quarter saved, everything disturbed.
    rig.create(pod_on("a", "p", "1400m")).await;
    rig.create(pod_on("b", "q", "1400m")).await;
    rig.pass(60 * SECOND).await;
    assert_eq!(replacements(&rig, &["a", "b"]).len(), 0);
    let moves =
        rig.metric(MOVES, &[("decision", "rejected"), ("nodepool", "default"), ("policy", "Balanced")]);
    assert!(moves.is_some_and(|moves| (1.0..4.0).contains(&moves)), "not with every look: {moves:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_budgets_allow_is_shown_as_it_is_while_there_is_nothing_to_consolidate() {
    let rig = rig_with(pool(json!({})), &[]).await;
    let soon = rig.context.now() + SignedDuration::from_secs(150);
    let budgets = json!([
        {"nodes": "100%"},
        {"nodes": "0", "schedule": soon.strftime("%M %H * * *").to_string(), "duration": "1h"},
    ]);
    rig.patch(&node_pool("default"), json!({"spec": {"disruption": {"budgets": budgets}}})).await;
    add_node(&rig, "a", 1, json!({})).await;
    rig.create(pod_on("a", "p", "500m")).await;
    let labels = [("nodepool", "default"), ("reason", "underutilized")];
    let allowed = |rig: &Rig| rig.metric("karpenter_nodepools_allowed_disruptions", &labels);
    rig.pass(30 * SECOND).await;
    assert_eq!(allowed(&rig), Some(1.0));
    assert_eq!(rig.metric("karpenter_nodepools_nodes_consuming_budgets", &labels), Some(0.0));
    rig.pass(140 * SECOND).await;
    assert_eq!(allowed(&rig), Some(0.0), "nothing changed but the time");
}
