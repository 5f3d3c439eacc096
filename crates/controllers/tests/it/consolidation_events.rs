//! What is said on nodes that are considered for consolidation.

use std::time::Duration;

use serde_json::{Value, json};

use crate::disruption::rig_with;
use crate::objects::{With, node_name, node_pool, pod_on};
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);

/// Two nodes of which one could hold the pods of both; there is nothing cheaper to be bought.
async fn two_half_empty_nodes(disruption: Value) -> Rig {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    let spec = json!({"template": {"spec": {"requirements": on_demand}}, "disruption": disruption});
    let rig = rig_with(node_pool("default").with(json!({"spec": spec})), &[("a", 4), ("b", 4)]).await;
    rig.create(pod_on("a", "p", "3")).await;
    rig.create(pod_on("b", "q", "500m")).await;
    rig
}

/// What is said on the nodes once something of this reason is.
async fn said(rig: &Rig, reason: &str) -> String {
    for _ in 0..300 {
        for node in ["a", "b"] {
            let told = rig.events("Node", &node_name(node)).await;
            if let Some(said) = told.into_iter().find(|said| said.starts_with(&format!("{reason}: "))) {
                return said;
            }
        }
        rig.pass(SECOND).await;
    }
    panic!("nobody says {reason}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_could_go_is_told_with_what_that_saves() {
    let rig = two_half_empty_nodes(json!({})).await;
    let said = said(&rig, "ConsolidationCandidate").await;
    assert!(said.starts_with("ConsolidationCandidate: Consolidation candidate: "), "{said}");
    assert!(said.contains("(savings: $"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_balanced_pool_says_what_a_consolidation_scored() {
    let rig = two_half_empty_nodes(json!({"consolidationPolicy": "Balanced"})).await;
    let said = said(&rig, "ConsolidationApproved").await;
    assert!(said.contains(" >= threshold 0.50 (k: 2, savings "), "{said}");
}
