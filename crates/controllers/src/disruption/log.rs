//! The log line of a command: which nodes go, what comes in their place.

use karpenter_engine::PlannedClaim;
use karpenter_engine::disruption::Command;
use karpenter_engine::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, RESERVED, SPOT, Text};
use karpenter_engine::requirements::Requirements;
use karpenter_runtime::logging;
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

/// What a replacement will be, as far as it says: reserved before spot before on demand.
fn launch_capacity_type(replacement: &PlannedClaim) -> &'static str {
    let wanted = replacement.requirements.iter().filter(|r| &*r.key == CAPACITY_TYPE);
    let requirements = Requirements::from_selectors(wanted).unwrap_or_default();
    let allows =
        |value: &str| requirements.get(CAPACITY_TYPE).is_none_or(|requirement| requirement.has(value));
    [RESERVED, SPOT].into_iter().find(|value| allows(value)).unwrap_or(ON_DEMAND)
}
