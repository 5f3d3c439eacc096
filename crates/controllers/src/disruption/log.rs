//! Log lines of disruption, as upstream words them: commands, scores, repairs, and time that ran out.

use jiff::Timestamp;
use karpenter_engine::PlannedClaim;
use karpenter_engine::disruption::{Candidate, Command, Invalid, Method, Outcome, RepairDecision, Score};
use karpenter_engine::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, RESERVED, SPOT, Text};
use karpenter_engine::requirements::Requirements;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use serde_json::{Value, json};

use super::queue::Pools;
use crate::provisioning::claims::some_of;

/// What every line about a command says of it.
pub(super) struct Fields {
    command: String,
    decision: &'static str,
    disrupted: usize,
    replaced_by: usize,
    pods: usize,
    nodes: logging::Json,
    replacements: logging::Json,
}

/// Writes a line about a command, with its fields and whatever else is given.
macro_rules! about {
    ($level:ident, $fields:expr, $($more:tt)+) => {{
        let fields: &$crate::disruption::log::Fields = $fields;
        tracing::$level!(
            command = fields.command,
            decision = fields.decision,
            "disrupted-node-count" = fields.disrupted,
            "replacement-node-count" = fields.replaced_by,
            "pod-count" = fields.pods,
            "disrupted-nodes" = %fields.nodes,
            "replacement-nodes" = %fields.replacements,
            $($more)+
        )
    }};
}

impl Fields {
    /// Of a command that is, or is not yet, known by an id.
    pub(super) fn of(command: &Command, id: Option<&str>, pools: &Pools) -> Self {
        Self {
            command: id.map_or_else(|| command.text(), |id| command.text_with_id(id)),
            decision: command.decision().as_str(),
            disrupted: command.candidates.len(),
            replaced_by: command.replacements.len(),
            pods: command.pod_count(),
            nodes: logging::json(command.candidates.iter().map(|node| node_json(node)).collect::<Vec<_>>()),
            replacements: logging::json(replacements_json(command, pools)),
        }
    }

    /// Says what is being done.
    pub(super) fn begun(&self) {
        about!(info, self, "disrupting node(s)");
    }

    /// Says that it is done.
    pub(super) fn succeeded(&self) {
        about!(debug, self, "command succeeded");
    }

    /// Says that it came to nothing.
    pub(super) fn failed(&self, error: &ReconcileError) {
        about!(error, self, %error, "failed terminating nodes while executing a disruption command");
    }

    /// Says that it is not good any more.
    pub(super) fn abandoned(&self, reason: &Invalid, of_empty_nodes: bool) {
        if of_empty_nodes {
            about!(
                debug,
                self,
                %reason,
                "abandoning empty node consolidation attempt due to pod churn, command is no longer valid"
            );
        } else {
            about!(debug, self, %reason, "abandoning disruption attempt");
        }
    }
}

fn node_json(candidate: &Candidate) -> Value {
    let mut node = json!({
        "Node": {"name": &*candidate.node},
        "NodeClaim": {"name": &*candidate.claim},
        "instance-type": candidate.labels.get_or_empty(INSTANCE_TYPE),
        "capacity-type": candidate.labels.get_or_empty(CAPACITY_TYPE),
    });
    if candidate.repair.as_ref().is_some_and(|repair| repair.escalated) {
        node["reboot-escalated"] = true.into();
    }
    node
}

fn replacements_json(command: &Command, pools: &Pools) -> Vec<Value> {
    let one = command.replacements.len() == 1;
    let replacement = |replacement: &PlannedClaim| {
        let is_static = pools.get(&*replacement.node_pool).is_some_and(|pool| pool.is_static());
        let mut node = json!({"capacity-type": launch_capacity_type(replacement)});
        if one && !is_static {
            node["instance-types"] = some_of(&replacement.instance_types, 5).into();
        }
        node
    };
    command.replacements.iter().map(replacement).collect()
}

/// Says that a search was given up, which no cluster of ordinary size should see.
pub(super) fn timed_out(found: &Outcome, pools: &Pools) {
    let evaluated = found.evaluated;
    match found.method {
        Method::MultiNodeConsolidation => match found.commands.first() {
            None => tracing::debug!(
                last_batch_size = evaluated,
                "failed to find a multi-node consolidation after timeout"
            ),
            Some(command) => about!(
                debug,
                &Fields::of(command, None, pools),
                last_batch_size = evaluated,
                "stopping multi-node consolidation after timeout, returning last valid command"
            ),
        },
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
        "termination-grace-period-condition" = repair.termination_grace_period_condition.as_deref(),
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
