//! Nodes that are no longer what their pool wants: one at a time, the longest drifted first, empty ones before all others.

use std::sync::Arc;

use super::candidate::Candidate;
use super::command::{Command, TerminateFirst};
use super::method::Method;
use super::reasons::Why;
use super::simulate::{Purpose, SimulationError};
use super::workbench::Workbench;
use super::{Judge, Search};
use crate::labels::{RESERVED, Text};
use crate::node::ClaimConditions;
use crate::node_pool::NodePool;

impl<'s> Judge<'s> {
    /// Whether the method would take the node, budgets aside.
    pub(super) fn chosen_by(
        &self,
        method: Method,
        candidate: &Arc<Candidate>,
    ) -> Result<Arc<Candidate>, Why> {
        let chosen = match method {
            Method::Repair => return self.chosen_by_repair(candidate),
            Method::Emptiness => self.chosen_by_emptiness(candidate),
            Method::StaticDrift => self.chosen_by_drift(candidate, true),
            Method::Drift => self.chosen_by_drift(candidate, false),
            Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                self.chosen_by_consolidation(candidate)
            }
        };
        chosen.map(|()| candidate.clone())
    }

    /// The candidate's pool and its NodeClaim's conditions; candidates always have both.
    pub(super) fn pool_and_conditions(
        &self,
        candidate: &Candidate,
    ) -> Result<(&'s NodePool, &'s ClaimConditions), Why> {
        let snapshot = self.census.snapshot;
        let pool = self.census.offers.pool(&candidate.node_pool);
        let pool = pool.ok_or_else(|| Why::PoolNotFound(candidate.node_pool.clone()))?;
        let claim = snapshot.nodes[candidate.machine].claim.as_ref().ok_or(Why::NotManaged)?;
        Ok((pool, &claim.conditions))
    }

    fn chosen_by_drift(&self, candidate: &Candidate, of_static_pools: bool) -> Result<(), Why> {
        let (pool, conditions) = self.pool_and_conditions(candidate)?;
        if conditions.drifted_since_seconds.is_none() {
            return Err(Why::NotDrifted);
        }
        if pool.replicas.is_some() != of_static_pools {
            return Err(if of_static_pools { Why::NotDrifted } else { Why::StaticPool });
        }
        Ok(())
    }

    fn drifted_since(&self, candidate: &Candidate) -> Option<i64> {
        let claim = self.census.snapshot.nodes[candidate.machine].claim.as_ref()?;
        claim.conditions.drifted_since_seconds
    }

    /// The command that moves the candidate's pods elsewhere first; where only the reservation the node holds stands in the way, the one
    /// that terminates it first.
    pub(super) fn replacing(
        &self,
        bench: &mut Workbench<'s>,
        method: Method,
        candidate: &Arc<Candidate>,
        terminate_first: bool,
    ) -> Result<Result<Command, Why>, SimulationError> {
        let repairs = method == Method::Repair;
        let purpose = if repairs { Purpose::Repair } else { Purpose::Drift };
        let candidates = std::slice::from_ref(candidate);
        let first = bench.simulate(&self.census, purpose, candidates, |solved| {
            if !solved.all_scheduled() {
                return Err(solved.troubles());
            }
            let mut command = Command::new(method, candidates.to_vec());
            command.replacements = solved.planned();
            let costs: f64 = command.replacements.iter().filter_map(|r| r.cheapest_price).sum();
            command.savings -= costs;
            command.existing_nodes = solved.placements();
            Ok(command)
        })?;
        let reservation = self.reservation_of(candidate);
        let (Err(why), Some(reservation), true) = (&first, reservation, terminate_first) else {
            return Ok(first);
        };
        let purpose = Purpose::TerminateFirst { reservation, blocked: repairs };
        bench.simulate(&self.census, purpose, candidates, |solved| {
            if !solved.all_scheduled() {
                return Err(why.clone());
            }
            let mut command = Command::new(method, candidates.to_vec());
            command.terminate_first = Some(TerminateFirst::NoReservedCapacity);
            command.existing_nodes = solved.placements();
            Ok(command)
        })
    }

    /// The reservation the node runs in.
    pub(super) fn reservation_of<'c>(&self, candidate: &'c Candidate) -> Option<&'c Text> {
        let label = &self.census.snapshot.provider.reservation_id_label;
        let id = candidate.labels.get(label).filter(|id| !id.is_empty());
        id.filter(|_| candidate.capacity_type() == RESERVED)
    }
}

impl Search<'_, '_> {
    /// Replaces a candidate if that is possible; whether the search is over, by a command or by an error.
    pub(super) fn replace(
        &mut self,
        method: Method,
        candidate: &Arc<Candidate>,
        terminate_first: bool,
    ) -> bool {
        match self.judge.replacing(self.bench, method, candidate, terminate_first) {
            Err(error) => self.outcome.error = Some(error),
            Ok(Ok(command)) => self.outcome.commands.push(command),
            Ok(Err(why)) => {
                self.stays(candidate, why);
                return false;
            }
        }
        true
    }

    pub(super) fn drift(&mut self) {
        let mut sorted = self.candidates.clone();
        sorted.sort_by_key(|c| (!c.pods.is_empty(), self.judge.drifted_since(c)));
        let terminate_first = self.judge.options.gates.terminate_first_drift;
        for candidate in sorted {
            if self.purse.left(&candidate.node_pool) == 0 {
                self.over_budget(&candidate);
                continue;
            }
            if self.replace(Method::Drift, &candidate, terminate_first) {
                return;
            }
        }
    }
}
