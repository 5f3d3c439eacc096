//! Machines that stand still, or of which the server does not know what they do: said on their Nodes, so that node repair and
//! people see it, and replaced within the budgets of their NodePool.
//!
//! With the feature gate NodeRepair the core does the replacing, by [`policies`]. Without it nobody else would, so it is done
//! here, by the same budgets. What has no Node yet runs nothing a budget could protect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodepool::DisruptionReason;
use karpenter_api::{ConditionStatus, NodeClaim, labels as well_known, nodeclaim};
use karpenter_cloudprovider::repair::{RepairAction, RepairPolicy};
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::client::model::VirtualMachine;
use crate::garbage::Round;
use crate::naming::machine_id;
use crate::provider::CloudStackProvider;
use crate::voice::{NodeCondition, machine_of};

/// Condition of a Node: whether CloudStack says that its machine runs.
pub const MACHINE_RUNNING: &str = "CloudStackMachineRunning";

/// How long a machine may stand still after Karpenter has given up starting it.
const STANDS_STILL: Duration = Duration::from_secs(60);
/// How long it may take until a list of NodeClaims shows that one was given up.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// How long the drain of a machine that stands still may take: nothing runs there that could be asked to leave.
const NOTHING_RUNS: Duration = Duration::from_secs(60);

/// What of a node is repaired when it has been so for that long. Exactly one policy is the fallback: the one without a reason.
pub(crate) fn policies(repair_after: Duration) -> Vec<RepairPolicy> {
    let policy = |condition: &str, status: &str, reasons: &str| RepairPolicy {
        condition_type: condition.to_owned(),
        condition_status: status.to_owned(),
        reason_regex: reasons.to_owned(),
        toleration: repair_after,
        termination_grace_period: None,
        priority: 0,
        action: RepairAction::ReplaceNode,
    };
    let stands_still = RepairPolicy {
        toleration: STANDS_STILL,
        termination_grace_period: Some(NOTHING_RUNS),
        ..policy(MACHINE_RUNNING, "False", ".*")
    };
    vec![
        policy("Ready", "False", ""),
        policy("Ready", "Unknown", ".*"),
        stands_still,
        policy(MACHINE_RUNNING, "Unknown", ".*"),
    ]
}

/// Machines whose Nodes say that they do not run. Unknown until the Nodes were looked at once: who wrote it may be gone.
#[derive(Debug, Default)]
pub(crate) struct Troubled(Mutex<Option<BTreeSet<String>>>);

impl Troubled {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, in_trouble: bool) {
        if let Some(ids) = &mut *self.lock() {
            if in_trouble {
                ids.insert(id.to_owned());
            } else {
                ids.remove(id);
            }
        }
    }

    fn may_be(&self, id: &str) -> bool {
        self.lock().as_ref().is_some_and(|ids| ids.contains(id))
    }

    /// Forgets all machines but these.
    pub(crate) fn keep(&self, seen: &BTreeSet<String>) {
        if let Some(ids) = &mut *self.lock() {
            ids.retain(|id| seen.contains(id));
        }
    }
}

/// NodeClaims that were given up lately, by uid: lists of NodeClaims may not show that yet, and rounds may follow each other closely.
#[derive(Debug, Default)]
pub(crate) struct GivenUp(Mutex<BTreeMap<String, Instant>>);

impl GivenUp {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        let mut given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.retain(|_, at| at.elapsed() < SHOWN_WITHIN);
        given_up
    }

    fn note(&self, claim: &NodeClaim) {
        self.lock().insert(claim.uid().unwrap_or_default(), Instant::now());
    }

    fn has(&self, claim: &NodeClaim) -> bool {
        claim.uid().is_some_and(|uid| self.lock().contains_key(&uid))
    }
}

impl CloudStackProvider {
    /// Finds out once what the Nodes tell: which say that their machines do not run, and how much memory they have.
    pub(crate) async fn recall_nodes(&self, claims: &[Arc<NodeClaim>]) {
        let shared = &self.shared;
        if shared.troubled.lock().is_some() {
            return;
        }
        let Some(nodes) = shared.voice.nodes().await else { return };
        let mut troubled = BTreeSet::new();
        for (machine, node) in nodes.iter().filter_map(|node| Some((machine_of(node)?, node))) {
            let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let marked = conditions.any(|known| known.type_ == MACHINE_RUNNING && known.status != "True");
            let claim = claims.iter().find(|claim| {
                let provider_id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
                provider_id.and_then(machine_id) == Some(machine.as_str())
            });
            if let Some(claim) = claim {
                shared.learnt_memory.learn(claim, node);
            }
            if marked {
                troubled.insert(machine);
            }
        }
        *shared.troubled.lock() = Some(troubled);
    }

    /// The machine runs: a Node that says otherwise does so no more.
    pub(crate) async fn runs(&self, machine: &VirtualMachine, claim: &NodeClaim) {
        if !self.shared.troubled.may_be(&machine.id) {
            return;
        }
        let condition = NodeCondition {
            kind: MACHINE_RUNNING,
            status: "True",
            reason: "Running",
            message: format!("virtual machine {} runs", machine.name),
        };
        if self.shared.voice.mark_node(claim, machine, &condition, self.shared.clock.now()).await.is_ok() {
            self.shared.troubled.note(&machine.id, false);
        }
    }

    /// The server does not know what the machine does. That may pass; if it does not, node repair replaces it.
    pub(crate) async fn is_unknown(&self, machine: &VirtualMachine, claim: &NodeClaim) {
        let condition = NodeCondition {
            kind: MACHINE_RUNNING,
            status: "Unknown",
            reason: "Unknown",
            message: format!("CloudStack does not know whether virtual machine {} runs", machine.name),
        };
        if self.shared.voice.mark_node(claim, machine, &condition, self.shared.clock.now()).await.is_ok() {
            self.shared.troubled.note(&machine.id, true);
        }
    }

    /// The machine stands still and is not to be started: it is replaced, by the core or here, within its NodePool's budgets.
    pub(crate) async fn stands_still(
        &self,
        machine: &VirtualMachine,
        claim: &NodeClaim,
        claims: &[Arc<NodeClaim>],
        round: &mut Round,
    ) {
        let shared = &self.shared;
        let why = format!("virtual machine {} stands still; it is replaced", machine.name);
        let condition = NodeCondition {
            kind: MACHINE_RUNNING,
            status: "False",
            reason: "Stopped",
            message: format!("virtual machine {} is in state {}", machine.name, machine.state),
        };
        // Looked at again by the next round.
        let Ok(is_marked) = shared.voice.mark_node(claim, machine, &condition, shared.clock.now()).await
        else {
            return;
        };
        if is_marked {
            shared.troubled.note(&machine.id, true);
            if shared.options.node_repair {
                return;
            }
        }
        // Without a Node nothing runs on it, unless it has one that is not found.
        let may_have_pods =
            is_marked || claim.condition_status(nodeclaim::REGISTERED) == ConditionStatus::True;
        if may_have_pods && !self.budgets_allow(claim, claims).await {
            let text = format!(
                "virtual machine {} stands still; it is replaced when the budgets of its NodePool allow it",
                machine.name
            );
            shared.voice.warn(claim, "VirtualMachineStopped", text);
            return;
        }
        shared.given_up.note(claim);
        round.given_up.push(claim.name_any());
        shared.voice.give_up(claim, "VirtualMachineStopped", &why).await;
    }

    /// Whether the budgets of the claim's NodePool let it go now. What cannot be found out allows nothing.
    async fn budgets_allow(&self, claim: &NodeClaim, claims: &[Arc<NodeClaim>]) -> bool {
        if claim.condition_status(nodeclaim::INITIALIZED) != ConditionStatus::True {
            return true;
        }
        // One that somebody made by hand has no budget.
        let Some(pool) = claim.labels().get(well_known::NODEPOOL).filter(|pool| !pool.is_empty()) else {
            return true;
        };
        let pool = match self.shared.voice.node_pool(pool).await {
            Ok(Some(pool)) => pool,
            // Its claims go with it.
            Ok(None) => return true,
            Err(error) => {
                tracing::warn!(%error, NodePool = pool, "its budgets are not known");
                return false;
            }
        };
        let name = pool.name_any();
        let of_pool = claims.iter().filter(|other| other.labels().get(well_known::NODEPOOL) == Some(&name));
        let (mut nodes, mut disrupting) = (0, 0);
        for other in of_pool {
            let is = |condition| other.condition_status(condition) == ConditionStatus::True;
            if !is(nodeclaim::INITIALIZED) || is(nodeclaim::INSTANCE_TERMINATING) {
                continue;
            }
            nodes += 1;
            // Standing still does not use up the budget for replacing what stands still.
            if other.metadata.deletion_timestamp.is_some()
                || is(nodeclaim::DISRUPTION_REASON)
                || self.shared.given_up.has(other)
            {
                disrupting += 1;
            }
        }
        let now = self.shared.clock.now();
        pool.allowed_disruptions(now, nodes, DisruptionReason::Unhealthy)
            .is_ok_and(|allowed| disrupting < allowed)
    }
}

#[cfg(test)]
mod tests {
    use karpenter_engine::disruption::RepairPolicies;

    use super::*;

    #[test]
    fn the_policies_make_sense_to_the_core() {
        RepairPolicies::new(policies(Duration::from_secs(1800))).expect("usable");
    }
}
