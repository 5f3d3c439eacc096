//! Log lines of disruption, as upstream words them: commands, scores, repairs, and time that ran out.

use jiff::Timestamp;
use karpenter_engine::PlannedClaim;
use karpenter_engine::disruption::{Command, Method, Outcome, RepairDecision, Score};
use karpenter_engine::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, RESERVED, SPOT, Text};
use karpenter_engine::requirements::Requirements;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use serde_json::json;

use super::queue::Pools;
use crate::provisioning::claims::some_of;

/// Says what is being done.
pub(super) fn command(command: &Command, id: &str, pools: &Pools) {
    let reference = |name: &Text| json!({"name": &**name});
    let nodes: Vec<serde_json::Value> = command
        .candidates
        .iter()
        .map(|candidate| {
            let mut node = json!({
                "Node": reference(&candidate.node),
                "NodeClaim": reference(&candidate.claim),
                "instance-type": candidate.labels.get_or_empty(INSTANCE_TYPE),
                "capacity-type": candidate.labels.get_or_empty(CAPACITY_TYPE),
            });
            if candidate.repair.as_ref().is_some_and(|repair| repair.escalated) {
                node["reboot-escalated"] = true.into();
            }
            node
        })
        .collect();
    let one = command.replacements.len() == 1;
    let replacements: Vec<serde_json::Value> = command
        .replacements
        .iter()
        .map(|replacement| {
            let is_static = pools.get(&*replacement.node_pool).is_some_and(|pool| pool.is_static());
            let mut node = json!({"capacity-type": launch_capacity_type(replacement)});
            if one && !is_static {
                node["instance-types"] = some_of(&replacement.instance_types, 5).into();
            }
            node
        })
        .collect();
    tracing::info!(
        command = command.text_with_id(id),
        decision = command.decision().as_str(),
        "disrupted-node-count" = command.candidates.len(),
        "replacement-node-count" = command.replacements.len(),
        "pod-count" = command.pod_count(),
        "disrupted-nodes" = %logging::json(nodes),
        "replacement-nodes" = %logging::json(replacements),
        "disrupting node(s)"
    );
}

/// Says that a search was given up, which no cluster of ordinary size should see.
pub(super) fn timed_out(found: &Outcome) {
    let evaluated = found.evaluated;
    match found.method {
        Method::MultiNodeConsolidation if found.commands.is_empty() => {
            tracing::debug!(
                last_batch_size = evaluated,
                "failed to find a multi-node consolidation after timeout"
            );
        }
        Method::MultiNodeConsolidation => {
            tracing::debug!(
                last_batch_size = evaluated,
                "stopping multi-node consolidation after timeout, returning last valid command"
            );
        }
        _ => {
            tracing::debug!(
                candidates_evaluated = evaluated,
                "abandoning single-node consolidation due to timeout"
            );
        }
    }
}

/// Says how a Balanced NodePool scored a consolidation of these nodes.
pub(super) fn score(pool: &str, score: Score, nodes: &[Text]) {
    tracing::debug!(
        nodepool = pool,
        score = score.value(),
        savings_fraction = score.savings_fraction,
        disruption_fraction = score.disruption_fraction,
        threshold = Score::THRESHOLD,
        k = karpenter_api::nodepool::BALANCED_K,
        approved = score.approved(),
        candidates = nodes.join(", "),
        "consolidation score"
    );
}

/// Says which policy has a node repaired.
pub(super) fn repair(node: &Text, repair: &RepairDecision) {
    let eligible_at = Timestamp::from_second(repair.eligible_at_seconds).unwrap_or(Timestamp::MIN);
    let grace = repair.termination_grace_period.map(|grace| logging::duration(grace).to_string());
    tracing::info!(
        Node = %logging::object(&ObjectKey::cluster(node.clone())),
        condition = &*repair.condition,
        status = &*repair.status,
        reason = &*repair.reason,
        "reason-regex" = repair.reason_regex,
        fallback = repair.reason_regex.is_empty(),
        action = repair.action.as_str(),
        "eligible-at" = %eligible_at,
        "termination-grace-period" = grace.as_deref(),
        "selected repair policy"
    );
}

/// What a replacement will be, as far as it says: reserved before spot before on demand.
fn launch_capacity_type(replacement: &PlannedClaim) -> &'static str {
    let wanted = replacement.requirements.iter().filter(|r| &*r.key == CAPACITY_TYPE);
    let requirements = Requirements::from_selectors(wanted).unwrap_or_default();
    let allows =
        |value: &str| requirements.get(CAPACITY_TYPE).is_none_or(|requirement| requirement.has(value));
    [RESERVED, SPOT].into_iter().find(|value| allows(value)).unwrap_or(ON_DEMAND)
}
