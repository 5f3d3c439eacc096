//! Drifted nodes of static pools are replaced one for one, within budgets and the pool's limit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::objects::{With, claim, condition_of, node, node_class, node_name, node_pool};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
const NAMES: [&str; 2] = ["a", "b"];

fn pool(limit: i64, budget: &str) -> Value {
    node_pool("default").with(json!({"spec": {
        "replicas": 2, "limits": {"nodes": limit.to_string()},
        "disruption": {"budgets": [{"nodes": budget}], "consolidateAfter": null, "consolidationPolicy": null},
    }}))
}

async fn rig_with(pool: Value) -> Rig {
    let rig = Rig::quiet(&["--feature-gates=StaticCapacity=true"]).await;
    rig.create(node_class()).await;
    rig.provider.drift(Some("Test"));
    for name in NAMES {
        rig.create(node(name, "default", 1)).await;
        rig.patch(&node(name, "default", 1), json!({"spec": {"taints": null}})).await;
        rig.create(claim(name, "default", 1)).await;
    }
    // Last, or it would be filled with nodes of its own.
    rig.create(pool).await;
    rig
}

fn replacements(rig: &Rig) -> usize {
    rig.see(|objects| objects.node_claims.keys().filter(|key| !NAMES.contains(&&*key.name)).count())
}

async fn marked(rig: &Rig) -> usize {
    let mut marked = 0;
    for name in NAMES {
        let stored = rig.get(&claim(name, "default", 1)).await;
        marked += usize::from(stored.is_some_and(|claim| condition_of(&claim, "DisruptionReason").is_some()));
    }
    marked
}

#[tokio::test(start_paused = true)]
async fn as_many_are_replaced_at_once_as_the_budget_allows() {
    let rig = rig_with(pool(10, "1")).await;
    rig.eventually("a replacement is there", |rig| replacements(rig) == 1).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((replacements(&rig), marked(&rig).await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_pool_at_its_limit_cannot_stage_a_replacement_and_says_so() {
    let rig = rig_with(pool(2, "100%")).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((replacements(&rig), marked(&rig).await), (0, 0));
    let told = rig.events("Node", &node_name("a")).await;
    let said = "DisruptionBlocked: static NodePool is at its node limit and cannot stage a replacement";
    assert!(told.contains(&said.to_owned()), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_node_in_the_limit_is_room_for_one() {
    let rig = rig_with(pool(2, "100%").with(json!({"spec": {"limits": {"nodes": "2500m"}}}))).await;
    rig.eventually("a replacement is there", |rig| replacements(rig) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn with_room_for_one_more_one_is_replaced() {
    let rig = rig_with(pool(3, "100%")).await;
    rig.eventually("a replacement is there", |rig| replacements(rig) == 1).await;
    rig.pass(120 * SECOND).await;
    assert_eq!((replacements(&rig), marked(&rig).await), (1, 1));
}
