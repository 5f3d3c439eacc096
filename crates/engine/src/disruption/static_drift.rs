//! Drifted nodes of static pools: replaced by their pool's bare template, as many as budget and limit allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::candidate::Candidate;
use super::command::{Command, TerminateFirst};
use super::method::Method;
use super::reasons::Why;
use super::{Judge, Search};
use crate::algebra::Algebra;
use crate::finish::{custom_labels, wire_requirements};
use crate::labels::{NODE_POOL, RESERVED, Text};
use crate::node_pool::NodePool;
use crate::plan::PlannedClaim;
use crate::resources::{NODES, Resources};
use crate::templates::{template_labels, template_requirements};
use crate::vocabulary::Vocabulary;

/// How many NodeClaims a static pool has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeCount {
    active: i64,
    deleting: i64,
    pending: i64,
}

impl NodeCount {
    /// Nodes that stay, or would: while there are more than wanted, scaling down comes first.
    pub(super) fn staying(self) -> i64 {
        self.active + self.pending
    }
}

impl Judge<'_> {
    pub(super) fn node_count(&self, pool: &str) -> NodeCount {
        let mut count = NodeCount::default();
        let snapshot = self.census.snapshot;
        let launched = snapshot.nodes.iter().filter_map(|m| Some((m.claim.as_ref()?, m.deleting())));
        let unlaunched = snapshot.unlaunched.iter().map(|c| (c, c.deleting));
        for (claim, deleting) in launched.chain(unlaunched) {
            if claim.labels.get_or_empty(NODE_POOL) != pool {
                continue;
            }
            if self.memory.pending_disruption.contains(&claim.name) {
                count.pending += 1;
            } else if deleting {
                count.deleting += 1;
            } else {
                count.active += 1;
            }
        }
        count
    }

    /// How many of `wanted` nodes the pool may have on top.
    pub(super) fn grantable(&self, pool: &NodePool, wanted: i64) -> i64 {
        let limit = pool.limits.get(NODES);
        let limit = limit.map_or(i64::MAX, |a| i64::try_from(a.as_units_ceil()).unwrap_or(i64::MAX));
        let count = self.node_count(&pool.name);
        let reserved = self.memory.reserved_nodes.get(&pool.name).copied().unwrap_or(0);
        let left = limit.saturating_sub(count.active + count.deleting + count.pending + reserved);
        wanted.min(left).max(0)
    }

    /// If nothing the pool could launch is to be had but by full reservations: the reservations that still exist.
    pub(super) fn full_reservations(&self, pool: &NodePool) -> Option<BTreeSet<Text>> {
        let requirements = template_requirements(pool, &template_labels(pool));
        let provider = &self.census.snapshot.provider;
        let well_known = |key: &str| {
            crate::labels::WELL_KNOWN.contains(&key)
                || provider.well_known_labels.contains(key)
                || key == provider.reservation_id_label.as_ref()
        };
        let mut offered = BTreeSet::new();
        for instance_type in self.census.offers.types(&pool.name) {
            if requirements.compatible(&instance_type.requirements, well_known).is_err() {
                continue;
            }
            for offering in &instance_type.offerings {
                if requirements.compatible(&offering.requirements, well_known).is_err() {
                    continue;
                }
                let reserved = offering.capacity_type().is_some_and(|c| c.as_ref() == RESERVED);
                if !reserved || offering.launchable() {
                    return None;
                }
                let id = offering.requirements.get(&provider.reservation_id_label);
                if let Some(id) = id.filter(|r| !r.complement).and_then(|r| r.values.first())
                    && offering.available
                {
                    offered.insert(id.clone());
                }
            }
        }
        Some(offered)
    }

    /// Whether terminating the node frees a slot its successor can use.
    pub(super) fn holds_slot(&self, candidate: &Candidate, offered: &BTreeSet<Text>) -> bool {
        self.reservation_of(candidate).is_some_and(|id| offered.contains(id))
    }

    /// Replaces the candidate by its pool's bare template.
    pub(super) fn replaced_by_template(
        &self,
        method: Method,
        candidate: &Arc<Candidate>,
        pool: &NodePool,
    ) -> Command {
        let mut command = Command::new(method, vec![candidate.clone()]);
        command.replacements.push(bare_claim(pool, self.census.snapshot));
        command
    }
}

/// A NodeClaim made from the template alone; its provider chooses the instance type.
fn bare_claim(pool: &NodePool, snapshot: &crate::Snapshot) -> PlannedClaim {
    let labels = template_labels(pool);
    let provider = &snapshot.provider;
    let known = provider.well_known_labels.iter().chain([&provider.reservation_id_label]);
    let mut algebra = Algebra::new(Vocabulary::new(known));
    let set = algebra.demand(&template_requirements(pool, &labels)).set;
    let (labels, open_labels) = custom_labels(&labels, set, &algebra);
    PlannedClaim {
        node_pool: pool.name.clone(),
        node_pool_uid: pool.uid.clone(),
        pods: Vec::new(),
        instance_types: Arc::from([]),
        requirements: wire_requirements(set, &algebra).into(),
        labels,
        open_labels,
        annotations: pool.annotations.clone(),
        taints: pool.taints.clone(),
        startup_taints: pool.startup_taints.clone(),
        requests: Resources::new(),
        min_values_relaxed: false,
        price_overlay: false,
        capacity_overlay: false,
        cheapest_price: None,
    }
}

impl Search<'_, '_> {
    pub(super) fn static_drift(&mut self) {
        let mut by_pool: BTreeMap<Text, Vec<Arc<Candidate>>> = BTreeMap::new();
        for candidate in &self.candidates {
            by_pool.entry(candidate.node_pool.clone()).or_default().push(candidate.clone());
        }
        for (name, candidates) in by_pool {
            if let Some(pool) = self.judge.census.offers.pool(&name) {
                self.static_drift_of(pool, candidates);
            }
        }
    }

    fn static_drift_of(&mut self, pool: &NodePool, mut candidates: Vec<Arc<Candidate>>) {
        let budget = self.purse.left(&pool.name);
        if budget == 0 {
            for candidate in &candidates {
                self.over_budget(candidate);
            }
            return;
        }
        if self.judge.node_count(&pool.name).staying() > pool.replicas.unwrap_or(0) {
            for candidate in &candidates {
                self.stays(candidate, Why::ScaleDownFirst(pool.name.clone()));
            }
            return;
        }
        let at_once = usize::try_from(budget).unwrap_or(usize::MAX).min(candidates.len());
        let gate = self.judge.options.gates.terminate_first_drift;
        // Provisioning refills neither an unready pool nor one that is going away.
        let terminates = gate && pool.ready && !pool.deleting;
        if let Some(offered) = gate.then(|| self.judge.full_reservations(pool)).flatten() {
            // Those whose end frees a slot go first.
            candidates.sort_by_key(|c| !self.judge.holds_slot(c, &offered));
            for (position, candidate) in candidates.iter().enumerate() {
                if position >= at_once {
                    self.stays(candidate, Why::BehindOthers);
                } else if terminates && self.judge.holds_slot(candidate, &offered) {
                    self.terminate_first(candidate, TerminateFirst::NoReservedCapacity);
                } else {
                    self.stays(candidate, Why::StaticReservationsFull);
                }
            }
            return;
        }
        let granted = self.judge.grantable(pool, at_once as i64) as usize;
        for (position, candidate) in candidates.iter().enumerate() {
            if granted == 0 && position < at_once {
                if terminates {
                    self.terminate_first(candidate, TerminateFirst::StaticAtLimit);
                } else {
                    self.stays(candidate, Why::StaticAtLimit);
                }
            } else if position < granted {
                let command = self.judge.replaced_by_template(Method::StaticDrift, candidate, pool);
                self.outcome.commands.push(command);
            } else {
                self.stays(candidate, Why::BehindOthers);
            }
        }
    }

    pub(super) fn terminate_first(&mut self, candidate: &Arc<Candidate>, why: TerminateFirst) {
        let mut command = Command::new(self.method, vec![candidate.clone()]);
        command.terminate_first = Some(why);
        self.outcome.commands.push(command);
    }
}
