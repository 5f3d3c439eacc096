//! What is in doubt is not disrupted, and it can be seen why: input that makes no sense, halves of machines, clocks that jump.

use std::time::Duration;

use karpenter_cloudprovider::fake;
use serde_json::{Value, json};

use crate::disruption::{
    add_node, blocked_by, come_up, drifted, going, has_reason, is_tainted, pool_with, replacements,
    replacing, rig_with,
};
use crate::objects::{With, claim, condition, node, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3600;

/// Neither marked nor going.
fn is_left_alone(rig: &Rig, claim: &str) -> bool {
    going(rig, &[claim]) == 0 && !rig.see(|objects| is_tainted(objects, claim) || has_reason(objects, claim))
}

#[tokio::test(start_paused = true)]
async fn budgets_that_no_calendar_knows_allow_nothing_for_any_reason_and_the_pool_says_so() {
    // What does not fit the pattern the server refuses; these fit it.
    for schedule in ["61 * * * *", "0 0 32 * *", "* * * * 9", "5-1 * * * *"] {
        let budgets = json!([
            {"nodes": "100%"},
            {"nodes": "100%", "schedule": schedule, "duration": "1h", "reasons": ["Underutilized"]},
        ]);
        let rig = rig_with(pool_with(budgets), &[("a", 1)]).await;
        rig.provider.drift(Some("Test"));
        add_node(&rig, "b", 1, drifted()).await;
        rig.pass(2 * MINUTE).await;
        assert!(is_left_alone(&rig, "a") && is_left_alone(&rig, "b"), "{schedule}");
        let told = rig.events("NodePool", "default").await;
        let said =
            "DisruptionBlocked: No allowed disruptions for disruption reason Empty due to blocking budget";
        assert!(told.contains(&said.to_owned()), "{schedule}: {told:?}");
        let named: Vec<&String> =
            told.iter().filter(|said| said.starts_with("InvalidDisruptionBudget: ")).collect();
        assert_eq!(named.len(), 1, "{schedule}: {told:?}");
        assert!(
            named[0].contains("spec.disruption.budgets[1].schedule: ")
                && named[0].ends_with("; nothing of this NodePool is disrupted until it is corrected"),
            "{named:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn percentages_beyond_reason_never_reach_karpenter() {
    let rig = Rig::quiet(&[]).await;
    for nodes in ["101%", "-1", "-5%", "1.5%", "half", ""] {
        let refused = rig.try_create(pool_with(json!([{"nodes": nodes}]))).await.expect_err(nodes);
        assert!(refused.contains("spec.disruption.budgets[0].nodes"), "{nodes}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_price_is_no_number_is_not_replaced_and_nothing_of_such_a_price_is_bought() {
    let rig = rig_with(node_pool("default"), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    let mut types = fake::instance_types(5);
    for offering in types.iter_mut().flat_map(|it| &mut it.offerings) {
        offering.price = f64::NAN;
    }
    rig.provider.offer(types);
    rig.pass(5 * MINUTE).await;
    assert!(is_left_alone(&rig, "a"));
    assert_eq!(replacements(&rig, &["a"]), Vec::<String>::new());
    let told = rig.events("NodeClaim", "a").await;
    assert!(
        told.iter().any(|said| said.starts_with("Unconsolidatable: Can't replace with a cheaper node")),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_claim_and_a_claim_without_a_node_are_left_alone() {
    let rig = rig_with(node_pool("default"), &[]).await;
    rig.create(node("lonely", "default", 1)).await;
    rig.create(claim("bodiless", "default", 1)).await;
    rig.pass(5 * MINUTE).await;
    let stays = "Nodeclaim does not have an associated node";
    assert!(blocked_by(&rig, "bodiless").await.contains(&stays.to_owned()));
    assert!(
        is_left_alone(&rig, "bodiless") || going(&rig, &["bodiless"]) == 1,
        "only its own end may take it"
    );
    let stored = rig.get(&claim("bodiless", "default", 1)).await;
    assert!(stored.is_none_or(|stored| crate::objects::condition_of(&stored, "DisruptionReason").is_none()));
    let stored = rig.get(&node("lonely", "default", 1)).await.expect("the node");
    assert!(stored["metadata"]["deletionTimestamp"].is_null());
    assert!(!rig.see(|objects| is_tainted(objects, "lonely")));
}

fn pod_budget(name: &str, selector: Option<Value>) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"maxUnavailable": 0},
    });
    if let Some(selector) = selector {
        budget["spec"]["selector"] = selector;
    }
    budget
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_pods_that_selects_nothing_holds_nothing_and_one_that_selects_all_holds_all() {
    for (selector, moves) in [(None, true), (Some(json!({})), false)] {
        let rig = rig_with(node_pool("default"), &[("a", 4)]).await;
        rig.create(pod_budget("odd", selector)).await;
        rig.create(pod_on("a", "p", "500m")).await;
        if moves {
            rig.eventually("a cheaper node is launched", |rig| replacements(rig, &["a"]).len() == 1).await;
            continue;
        }
        rig.pass(5 * MINUTE).await;
        assert!(is_left_alone(&rig, "a"));
        let said = "Pdb prevents pod evictions (PodDisruptionBudget=[default/odd])";
        assert!(blocked_by(&rig, "a").await.contains(&said.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn two_budgets_for_one_pod_hold_it_since_no_eviction_can_meet_both() {
    let rig = rig_with(node_pool("default"), &[("a", 4)]).await;
    for name in ["one", "two"] {
        rig.create(pod_budget(name, Some(json!({}))).with(json!({"spec": {"maxUnavailable": 1}}))).await;
    }
    rig.create(pod_on("a", "p", "500m")).await;
    rig.pass(2 * MINUTE).await;
    assert!(is_left_alone(&rig, "a"));
    let told = blocked_by(&rig, "a").await;
    assert!(told.iter().any(|said| said.starts_with("Eviction does not support multiple PDBs")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_back_neither_ends_a_command_nor_holds_it_up() {
    let (rig, replacement) = replacing().await;
    rig.jump(-2 * HOUR);
    rig.pass(MINUTE).await;
    assert!(rig.see(|objects| is_tainted(objects, "a")), "it waits as before");
    assert_eq!(going(&rig, &["a"]), 0);
    rig.provider.drift(None);
    come_up(&rig, &replacement).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_ahead_does_not_make_a_command_too_late() {
    let (rig, replacement) = replacing().await;
    // Beyond what a command may take, and not what a node may take to register.
    rig.jump(12 * 60);
    rig.pass(MINUTE).await;
    assert!(rig.see(|objects| is_tainted(objects, "a")), "it has waited for a minute only");
    rig.provider.drift(None);
    come_up(&rig, &replacement).await;
    rig.pass(5 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_command_ends_in_time_whatever_the_clock_says() {
    let (rig, _) = replacing().await;
    rig.provider.drift(None);
    rig.patch_status(&claim("a", "default", 2), json!({"status": claim("a", "default", 2)["status"]})).await;
    rig.jump(-24 * HOUR);
    rig.pass(11 * MINUTE).await;
    assert!(is_left_alone(&rig, "a"));
}

#[tokio::test(start_paused = true)]
async fn an_empty_node_whose_clock_is_set_back_after_its_taint_does_not_stay_tainted() {
    let rig = rig_with(node_pool("default"), &[("a", 1)]).await;
    rig.eventually("the node is tainted", |rig| rig.see(|objects| is_tainted(objects, "a"))).await;
    rig.jump(-HOUR);
    rig.pass(5 * SECOND).await;
    assert_eq!(going(&rig, &["a"]), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_last_pod_event_lies_in_the_future_is_not_quiet_yet() {
    let pool = node_pool("default").with(json!({"spec": {"disruption": {"consolidateAfter": "1m"}}}));
    let rig = rig_with(pool, &[]).await;
    let ahead = rig.context.now() + jiff::SignedDuration::from_mins(30);
    let ahead = ahead.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    add_node(&rig, "a", 1, json!({"status": {"lastPodEventTime": ahead}})).await;
    rig.pass(25 * MINUTE).await;
    assert!(is_left_alone(&rig, "a"));
    rig.eventually("it has been quiet", |rig| going(rig, &["a"]) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_says_it_is_up_for_a_node_that_is_not_is_left_alone() {
    let rig = rig_with(node_pool("default"), &[]).await;
    let young =
        node("a", "default", 1).with(json!({"metadata": {"labels": {"karpenter.sh/initialized": null}}}));
    rig.create(young).await;
    let since = "2024-01-01T00:00:00Z";
    let conditions = [condition("Launched", "True", since), condition("Registered", "True", since)];
    rig.create(claim("a", "default", 1).with(json!({"status": {"conditions": conditions}, "spec": {"startupTaints": [{"key": "wait", "effect": "NoSchedule"}]}}))).await;
    rig.patch(
        &node("a", "default", 1),
        json!({"spec": {"taints": [{"key": "wait", "effect": "NoSchedule"}]}}),
    )
    .await;
    rig.pass(2 * MINUTE).await;
    assert!(is_left_alone(&rig, "a"));
}
