//! What is told of disruption: to pods where to go, on nodes what was found, weighed, rejected.

use std::time::Duration;

use serde_json::{Value, json};

use crate::disruption::{add_node, drifted, going, replacements, rig_with};
use crate::objects::{With, node, node_name, node_pool, pod_on};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn on_demand(pool: Value) -> Value {
    let only = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    pool.with(json!({"spec": {"template": {"spec": {"requirements": only}}}}))
}

fn policy(name: &str) -> Value {
    node_pool("default").with(json!({"spec": {"disruption": {"consolidationPolicy": name}}}))
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_command_are_told_which_node_awaits_them_and_that_node_is_not_disrupted_meanwhile() {
    let rig = rig_with(on_demand(node_pool("default")), &[("a", 4), ("b", 4)]).await;
    rig.create(pod_on("a", "stays", "3")).await;
    rig.provider.drift(Some("Test"));
    add_node(&rig, "c", 1, drifted()).await;
    rig.provider.drift(None);
    rig.create(pod_on("c", "moves", "500m")).await;
    rig.eventually("a node of the pods is going", |rig| going(rig, &["b", "c"]) > 0).await;
    rig.eventually("the drifted node is going", |rig| going(rig, &["c"]) == 1).await;
    let told = rig.events("Pod", "moves").await;
    let said = |claim: &str| {
        format!("Nominated: Pod should schedule on: nodeclaim/{claim}, node/{}", node_name(claim))
    };
    assert!(told.contains(&said("a")) || told.contains(&said("b")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_is_told_before_it_is_carried_out_with_what_it_saves() {
    let rig = rig_with(on_demand(node_pool("default")), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    rig.eventually("a replacement is launched", |rig| replacements(rig, &["a"]).len() == 1).await;
    for (kind, name) in [("NodeClaim", "a".to_owned()), ("Node", node_name("a"))] {
        let told = rig.events(kind, &name).await;
        let said = format!(
            "ConsolidationCandidate: Consolidation candidate: replace: [{}] -> [1 replacement] (savings: $0.30)",
            node_name("a")
        );
        assert!(told.contains(&said), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_consolidation_that_is_not_good_any_more_after_the_wait_is_told_and_counted() {
    let rig = rig_with(on_demand(node_pool("default")), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    rig.eventually("it is considered", |rig| {
        rig.metric("karpenter_voluntary_disruption_eligible_nodes", &[("reason", "underutilized")])
            == Some(1.0)
    })
    .await;
    rig.pass(5 * SECOND).await;
    // Somebody asks for peace while it is waited.
    let wish = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    rig.patch(&pod_on("a", "p", "500m"), wish).await;
    rig.pass(20 * SECOND).await;
    assert_eq!((going(&rig, &["a"]), replacements(&rig, &["a"]).len()), (0, 0));
    let told = rig.events("NodeClaim", "a").await;
    let rejected = told.iter().find(|said| said.starts_with("ConsolidationRejected: "));
    assert!(rejected.is_some_and(|said| said.ends_with("reason: churn (savings: $0.30)")), "{told:?}");
    let failed = rig.metric(
        "karpenter_voluntary_disruption_failed_validations_total",
        &[("consolidation_type", "single")],
    );
    assert_eq!(failed, Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_balanced_pool_says_how_it_scored_what_it_approved_and_counts_what_it_did_not() {
    let rig = rig_with(on_demand(policy("Balanced")), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    rig.eventually("a replacement is launched", |rig| replacements(rig, &["a"]).len() == 1).await;
    let told = rig.events("NodeClaim", "a").await;
    let approved = told.iter().find(|said| said.starts_with("ConsolidationApproved: score "));
    assert!(
        approved.is_some_and(|said| said.contains(" >= threshold 0.50 (k: 2, savings 75.0%")),
        "{told:?}"
    );
    let moves = rig
        .metric("karpenter_consolidation_moves_total", &[("decision", "approved"), ("nodepool", "default")]);
    assert!(moves.is_some_and(|moves| moves >= 1.0), "{moves:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_ask_for_peace_for_a_while_are_told_until_when_and_others_what_is_wrong_with_that() {
    let rig = rig_with(on_demand(node_pool("default")), &[("a", 4)]).await;
    let started = rig.context.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let asks = |name: &str, wish: &str| {
        pod_on("a", name, "100m").with(json!({
            "metadata": {"annotations": {"karpenter.sh/do-not-disrupt": wish}},
            "status": {"startTime": started},
        }))
    };
    rig.create(asks("careful", "5m")).await;
    rig.create(asks("confused", "soon")).await;
    let of_another = node("strange", "default", 4).with(
        json!({"metadata": {"labels": {"karpenter.sh/nodepool": null}}, "spec": {"providerID": "strange"}}),
    );
    rig.create(of_another).await;
    rig.create(asks("elsewhere", "5m").with(json!({"spec": {"nodeName": node_name("strange")}}))).await;
    rig.pass(MINUTE).await;
    assert_eq!(rig.events("Pod", "elsewhere").await, Vec::<String>::new(), "its node is not Karpenter's");
    assert_eq!(going(&rig, &["a"]), 0, "five minutes are not over");
    let told = rig.events("Pod", "careful").await;
    assert!(told.iter().any(|said| said.starts_with("DoNotDisruptUntil: ")), "{told:?}");
    let told = rig.events("Pod", "confused").await;
    assert!(told.iter().any(|said| said.starts_with("InvalidDoNotDisruptAnnotation: ")), "{told:?}");
    rig.eventually("a replacement is launched", |rig| replacements(rig, &["a"]).len() == 1).await;
    let told = rig.events("Pod", "careful").await;
    assert!(told.iter().any(|said| said.starts_with("DoNotDisruptGracePeriodElapsed: ")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn why_a_node_is_not_consolidated_is_told_in_upstreams_words_and_with_the_prices() {
    let rig = rig_with(on_demand(policy("WhenEmpty")), &[("a", 4)]).await;
    rig.create(pod_on("a", "p", "500m")).await;
    rig.pass(30 * SECOND).await;
    let told = rig.events("NodeClaim", "a").await;
    let said =
        "Unconsolidatable: NodePool \"default\" has consolidation policy WhenEmpty, but node is not empty";
    assert!(told.contains(&said.to_owned()), "{told:?}");
    let rig = rig_with(on_demand(node_pool("default")), &[("b", 1)]).await;
    rig.create(pod_on("b", "p", "500m")).await;
    rig.pass(30 * SECOND).await;
    let told = rig.events("NodeClaim", "b").await;
    let said = "Unconsolidatable: Can't replace with a cheaper node: it costs $0.1000 an hour, the cheapest replacement $0.1000";
    assert!(told.contains(&said.to_owned()), "{told:?}");
}
