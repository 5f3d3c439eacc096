//! Reasons as JSON: why each pod went where it did or nowhere, why pools took no part, what was left out.
//!
//! Each reason names the rule that decided and the nearest miss; `text` is what Go Karpenter would say.

use karpenter_engine::reasons::{PoolRejection, Rejection, Shortage, Unplaceable, amount_text};
use karpenter_engine::{PlacedPod, Plan};
use serde_json::{Map, Value, json};

use super::rejected::Rejected;

/// The value of the extra key `reasons`.
pub(crate) fn to_json(plan: &Plan, rejected: &[Rejected]) -> Value {
    let mut pods = Map::new();
    for claim in &plan.new_claims {
        let place = json!({"newNodeClaim": {"nodePool": claim.node_pool.as_ref(), "cheapestType": claim.instance_types.first().map(|t| t.as_ref())}});
        pods.extend(claim.pods.iter().map(|p| placed(p, place.clone())));
    }
    for node in &plan.existing_nodes {
        pods.extend(node.pods.iter().map(|p| placed(p, json!({"existingNode": node.node.as_ref()}))));
    }
    for error in &plan.pod_errors {
        pods.insert(error.pod.key(), unplaceable(&error.reason));
    }
    for pod in &plan.ignored_pods {
        let why: Vec<String> = pod.reasons.iter().map(ToString::to_string).collect();
        pods.insert(pod.pod.key(), json!({"ignored": why}));
    }
    json!({
        "pods": pods,
        "skippedNodePools": plan
            .skipped_pools
            .iter()
            .map(|p| (p.node_pool.to_string(), p.reason.to_string().into()))
            .collect::<Map<_, _>>(),
        "rejected": rejected
            .iter()
            .map(|r| json!({"file": r.origin, "object": r.object, "field": r.field, "problem": r.problem}))
            .collect::<Vec<_>>(),
    })
}

fn placed(pod: &PlacedPod, place: Value) -> (String, Value) {
    let mut out = json!({"placed": place});
    if !pod.relaxed.is_empty() {
        let given_up: Vec<String> = pod.relaxed.iter().map(|r| format!("{r:?}")).collect();
        out["relaxed"] = json!(given_up);
    }
    (pod.pod.key(), out)
}

fn unplaceable(reason: &Unplaceable) -> Value {
    let mut out = json!({"text": reason.to_string(), "waitsForReservation": reason.waits_for_reservation()});
    if let Unplaceable::AllPools(pools) = reason {
        out["nodePools"] = pools.iter().map(pool).collect();
    }
    out
}

fn pool(rejection: &PoolRejection) -> Value {
    let mut out = json!({
        "nodePool": rejection.node_pool.as_ref(),
        "rule": rule(&rejection.reason),
        "text": rejection.to_string(),
    });
    if let Some(short) = shortage(&rejection.reason) {
        out["nearest"] = json!({
            "resource": short.resource.as_ref(),
            "need": amount_text(&short.resource, short.need),
            "left": amount_text(&short.resource, short.left),
        });
    }
    out
}

/// The amount that came nearest, where size was the reason.
fn shortage(rejection: &Rejection) -> Option<&Shortage> {
    match rejection {
        Rejection::NodeResources(shortage) => Some(shortage),
        Rejection::InstanceTypes(types) => types.nearest.as_ref(),
        _ => None,
    }
}

/// A stable name for the rule.
fn rule(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::NodeLimitExhausted => "nodeLimit",
        Rejection::LimitsExceeded => "limits",
        Rejection::Taints(_) => "taints",
        Rejection::VolumeLimit(_) => "volumeLimit",
        Rejection::HostPort { .. } => "hostPort",
        Rejection::NodeResources(_) => "resources",
        Rejection::Requirements(_) => "requirements",
        Rejection::VolumeRequirements(_) => "volumeTopology",
        Rejection::Topology(_) => "topology",
        Rejection::TopologyConflict(_) => "topologyConflict",
        Rejection::InstanceTypes(_) => "instanceTypes",
        Rejection::Reserved(_) => "reservedCapacity",
    }
}
