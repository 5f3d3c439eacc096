//! Reasons as JSON: why each pod went where it did or nowhere, why pools took no part, what was left out.
//!
//! Each reason names the rule that decided and, as data, what was nearest to being enough; `text` is what Go Karpenter would say.

use karpenter_engine::misses::{MissedPlace, RefusedBy};
use karpenter_engine::reasons::{PoolRejection, Rejection, Shortage, Unplaceable, amount_text};
use karpenter_engine::requirements::Incompatibility;
use karpenter_engine::{PlacedPod, Plan, PodError, Why};
use serde_json::{Map, Value, json};

use super::outcome::listed_claims;
use super::rejected::Rejected;

/// The value of the extra key `reasons`.
pub(crate) fn to_json(plan: &Plan, rejected: &[Rejected]) -> Value {
    let mut pods = Map::new();
    // A claim is known by where it stands in `newNodeClaims`.
    let mut numbers = vec![0; plan.new_claims.len()];
    for (number, (index, claim)) in listed_claims(plan).into_iter().enumerate() {
        numbers[index] = number;
        let cheapest = claim.instance_types.first().map(|t| t.as_ref());
        let place = json!({"newNodeClaim": {
            "index": number, "nodePool": claim.node_pool.as_ref(), "cheapestType": cheapest,
        }});
        pods.extend(claim.pods.iter().map(|p| placed(p, place.clone())));
    }
    for node in &plan.existing_nodes {
        pods.extend(node.pods.iter().map(|p| placed(p, json!({"existingNode": node.node.as_ref()}))));
    }
    for error in &plan.pod_errors {
        pods.insert(error.pod.key(), unplaceable(error, &numbers));
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
    out["because"] = match &pod.why {
        Why::FirstNode => "it is the first node that takes the pod".into(),
        Why::SharedClaim => {
            "no node takes the pod, and of the new ones that do this had the fewest pods".into()
        }
        Why::NewClaim { .. } => "no node takes the pod, nor does any new one so far".into(),
    };
    if let Why::NewClaim { passed_over } = &pod.why
        && !passed_over.is_empty()
    {
        out["passedOver"] = passed_over.iter().map(pool).collect();
    }
    if !pod.relaxed.is_empty() {
        out["relaxed"] = pod.relaxed.iter().map(|r| Value::from(r.to_string())).collect();
    }
    (pod.pod.key(), out)
}

fn unplaceable(error: &PodError, numbers: &[usize]) -> Value {
    let reason = &error.reason;
    let mut out = json!({"text": reason.to_string(), "waitsForReservation": reason.waits_for_reservation()});
    if let Unplaceable::AllPools(pools) = reason {
        out["nodePools"] = pools.iter().map(pool).collect();
    }
    if let Some(misses) = &error.misses {
        out["nodes"] = misses.nodes.iter().map(|by| refused(by, numbers)).collect();
        out["newNodeClaims"] = misses.claims.iter().map(|by| refused(by, numbers)).collect();
    }
    out
}

fn refused(by: &RefusedBy, numbers: &[usize]) -> Value {
    let nearest = by.nearest.iter().map(|miss| {
        let mut out = reason(&miss.reason);
        match &miss.place {
            MissedPlace::Node(name) => out["node"] = name.as_ref().into(),
            MissedPlace::Claim { index, node_pool } => {
                out["newNodeClaim"] = json!({"index": numbers.get(*index), "nodePool": node_pool.as_ref()});
            }
        }
        out
    });
    json!({"rule": by.rule.as_str(), "count": by.count, "nearest": nearest.collect::<Vec<_>>()})
}

fn pool(rejection: &PoolRejection) -> Value {
    let mut out = reason(&rejection.reason);
    out["nodePool"] = rejection.node_pool.as_ref().into();
    out["text"] = rejection.to_string().into();
    out
}

/// The rule, its text and what it was about.
fn reason(rejection: &Rejection) -> Value {
    let mut out = json!({"rule": rejection.rule().as_str(), "text": rejection.to_string()});
    let (name, detail) = match rejection {
        Rejection::NodeLimitExhausted | Rejection::LimitsExceeded | Rejection::VolumeLimit(None) => {
            return out;
        }
        Rejection::Taints(taints) => {
            ("taints", taints.iter().map(|t| Value::from(t.to_string())).collect::<Value>())
        }
        Rejection::VolumeLimit(Some(limit)) => {
            ("volumes", json!({"driver": limit.driver.as_ref(), "count": limit.count, "limit": limit.limit}))
        }
        Rejection::HostPort { port, protocol } => {
            ("hostPort", json!({"port": port, "protocol": protocol.as_ref()}))
        }
        Rejection::NodeResources(short) => ("nearest", shortage(short)),
        Rejection::Requirements(why)
        | Rejection::VolumeRequirements(why)
        | Rejection::TopologyConflict(why) => ("requirement", incompatibility(why)),
        Rejection::Topology(why) => (
            "topology",
            json!({
                "kind": why.kind.to_string(),
                "key": why.key.as_ref(),
                "podsByDomain": why.counts.iter().map(|(d, n)| (d.to_string(), (*n).into())).collect::<Map<_, _>>(),
                "podDomains": why.pod_domains.to_string(),
                "nodeDomains": why.node_domains.to_string(),
            }),
        ),
        Rejection::InstanceTypes(types) => match &types.nearest {
            Some(short) => ("nearest", shortage(short)),
            None if !types.min_values.is_empty() => {
                ("minValues", types.min_values.iter().map(|k| Value::from(k.as_ref())).collect())
            }
            None => return out,
        },
        Rejection::Reserved(why) => ("waits", why.defers().into()),
    };
    out[name] = detail;
    out
}

fn shortage(short: &Shortage) -> Value {
    json!({
        "resource": short.resource.as_ref(),
        "need": amount_text(&short.resource, short.need),
        "left": amount_text(&short.resource, short.left),
    })
}

fn incompatibility(why: &Incompatibility) -> Value {
    match why {
        Incompatibility::UndefinedLabel { key, hint } => {
            json!({"missingLabel": key.as_ref(), "perhapsMeant": hint.as_deref()})
        }
        Incompatibility::NoOverlap { incoming, existing } => {
            json!({"wanted": incoming.to_string(), "there": existing.to_string()})
        }
    }
}
