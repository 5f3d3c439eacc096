//! Broken nodes: rebooted or replaced, the most urgent first, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::candidate::Candidate;
use super::command::{Command, TerminateFirst};
use super::method::Method;
use super::policy::{RepairAction, RepairDecision, policies_for};
use super::reasons::Why;
use super::{Judge, Search};
use crate::labels::{DO_NOT_REPAIR, NODE_POOL, Text};
use crate::node_pool::NodePool;

/// The share of a pool that may be unhealthy before repair stops there.
const BREAKER_PERCENT: usize = 20;

impl Judge<'_> {
    pub(super) fn chosen_by_repair(&self, candidate: &Arc<Candidate>) -> Result<Arc<Candidate>, Why> {
        if !self.options.repairs() {
            return Err(Why::Healthy);
        }
        let machine = &self.census.snapshot.nodes[candidate.machine];
        let (Some(node), Some(claim)) = (&machine.node, &machine.claim) else { return Err(Why::NoNode) };
        let policies = policies_for(&self.options.repair, &node.labels).ok_or(Why::Healthy)?;
        let reboots = self.memory.recent_reboots.get(&claim.uid).copied().unwrap_or(0);
        let now = self.census.snapshot.now.as_second();
        let decision =
            policies.decide(node, claim.conditions.reboot_ended_seconds, reboots, now).ok_or(Why::Healthy)?;
        if machine.annotations().get_or_empty(DO_NOT_REPAIR) == "true" {
            return Err(Why::DoNotRepair);
        }
        let of_claim = claim.termination_grace_period_seconds;
        if candidate.has_pod_blockers && decision.termination_grace_period.is_none() && of_claim.is_none() {
            return Err(Why::RepairUnbounded);
        }
        let mut chosen = (**candidate).clone();
        chosen.drain_bound_seconds = drain_bound(&decision, of_claim);
        chosen.repair = Some(decision);
        Ok(Arc::new(chosen))
    }

    /// Pools in which so much is unhealthy that something else must be wrong. Every Node counts, and every condition some policy
    /// speaks of, however short it has lasted.
    fn tripped_pools(&self) -> BTreeSet<Text> {
        let snapshot = self.census.snapshot;
        let mut counts: BTreeMap<&Text, (usize, usize)> = BTreeMap::new();
        let of_machines = snapshot.nodes.iter().filter_map(|m| m.node.as_deref());
        for node in of_machines.chain(&snapshot.other_nodes) {
            let Some(pool) = node.labels.get(NODE_POOL).filter(|p| !p.is_empty()) else { continue };
            let (all, unhealthy) = counts.entry(pool).or_default();
            *all += 1;
            let policies = policies_for(&self.options.repair, &node.labels);
            let sick = policies.is_some_and(|policies| node.conditions.iter().any(|c| policies.covers(c)));
            *unhealthy += usize::from(sick);
        }
        let too_many = |all: usize, unhealthy: usize| unhealthy > (all * BREAKER_PERCENT).div_ceil(100);
        counts.into_iter().filter(|(_, (all, u))| too_many(*all, *u)).map(|(pool, _)| pool.clone()).collect()
    }
}

/// How long the drain may take: the policy's bound or the NodeClaim's, whichever is shorter; without a policy's, the NodeClaim's own.
fn drain_bound(decision: &RepairDecision, of_claim: Option<i64>) -> Option<i64> {
    let of_policy = i64::try_from(decision.termination_grace_period?.as_secs()).unwrap_or(i64::MAX);
    Some(of_claim.map_or(of_policy, |of_claim| of_policy.min(of_claim)))
}

impl Search<'_, '_> {
    pub(super) fn repair(&mut self) {
        let tripped = self.judge.tripped_pools();
        let score = |c: &Candidate| c.repair.as_ref().map_or(0.0, |r| r.score);
        let mut sorted = self.candidates.clone();
        sorted.sort_by(|a, b| {
            (score(b).total_cmp(&score(a)))
                .then_with(|| a.disruption_cost.total_cmp(&b.disruption_cost))
                .then_with(|| a.node.cmp(&b.node))
        });
        for candidate in sorted {
            if tripped.contains(&candidate.node_pool) {
                self.stays(&candidate, Why::TooManyUnhealthy(candidate.node_pool.clone()));
                continue;
            }
            if self.judge.memory.unrepaired.contains(&candidate.claim_uid) {
                self.stays(&candidate, Why::RepairNotBegun);
                continue;
            }
            // A node that never came up runs nothing a budget could protect.
            if candidate.initialized && self.purse.left(&candidate.node_pool) == 0 {
                self.over_budget(&candidate);
                continue;
            }
            if candidate.repair.as_ref().is_some_and(|r| r.action == RepairAction::RebootNode) {
                let mut command = Command::new(Method::Repair, vec![candidate]);
                command.reboot = true;
                command.savings = 0.0;
                self.outcome.commands.push(command);
                return;
            }
            let pool = self.judge.census.offers.pool(&candidate.node_pool);
            if let Some(pool) = pool.filter(|p| p.replicas.is_some()) {
                if self.repair_static(&candidate, pool) {
                    return;
                }
                continue;
            }
            let terminate_first = self.judge.options.gates.terminate_first_repair;
            if self.replace(Method::Repair, &candidate, terminate_first) {
                return;
            }
        }
    }

    /// Replaces a broken node of a static pool; whether a command was found.
    fn repair_static(&mut self, candidate: &Arc<Candidate>, pool: &NodePool) -> bool {
        if self.judge.node_count(&pool.name).staying() > pool.replicas.unwrap_or(0) {
            self.stays(candidate, Why::ScaleDownFirst(pool.name.clone()));
            return false;
        }
        let gate = self.judge.options.gates.terminate_first_repair;
        let full = gate.then(|| self.judge.full_reservations(pool)).flatten();
        if let Some(offered) = &full
            && !self.judge.holds_slot(candidate, offered)
        {
            self.stays(candidate, Why::StaticReservationsFull);
            return false;
        }
        let why = match full {
            Some(_) => TerminateFirst::NoReservedCapacity,
            None if self.judge.grantable(pool, 1) == 0 => TerminateFirst::StaticAtLimit,
            None => {
                let command = self.judge.replaced_by_template(Method::Repair, candidate, pool);
                self.outcome.commands.push(command);
                return true;
            }
        };
        if gate && pool.ready && !pool.deleting {
            self.terminate_first(candidate, why);
            return true;
        }
        let reason = match why {
            TerminateFirst::NoReservedCapacity => Why::StaticReservationsFull,
            TerminateFirst::StaticAtLimit => Why::StaticAtLimit,
        };
        self.stays(candidate, reason);
        false
    }
}
