//! One node at a time: the first that can go for a cheaper one, or for none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::candidate::Candidate;
use super::command::Command;
use super::method::{Method, SINGLE_NODE_TIMEOUT};
use super::reasons::Why;
use super::simulate::SimulationError;
use super::{Pass, Search};
use crate::labels::Text;

impl Pass<'_> {
    /// What becomes of the candidate alone.
    pub(super) fn try_single(
        &self,
        candidate: &Arc<Candidate>,
    ) -> Result<Result<Command, Why>, SimulationError> {
        if let Some(score) = self.scales.hopeless(&self.census, candidate) {
            return Ok(Err(Why::NotWorthIt { pool: candidate.node_pool.clone(), score }));
        }
        let answer = self.consolidation(Method::SingleNodeConsolidation, std::slice::from_ref(candidate))?;
        Ok(answer.and_then(|command| self.approve(command)))
    }
}

impl Search<'_, '_> {
    pub(super) fn single(&mut self) {
        let started = self.pass.elapsed();
        let order = self.interleaved();
        let mut unseen: BTreeSet<Text> = order.iter().map(|c| c.node_pool.clone()).collect();
        let mut held_back = false;
        for candidate in &order {
            if self.pass.elapsed().saturating_sub(started) > SINGLE_NODE_TIMEOUT {
                self.outcome.timed_out = true;
                self.outcome.unseen_pools = Some(unseen);
                return;
            }
            unseen.remove(&candidate.node_pool);
            if self.purse.left(&candidate.node_pool) == 0 {
                self.over_budget(candidate);
                held_back = true;
                continue;
            }
            match self.pass.try_single(candidate) {
                // Upstream logs it and goes on; nothing can be simulated for the next one either.
                Err(_) => self.stays(candidate, Why::NoPools),
                Ok(Err(why)) => self.stays(candidate, why),
                Ok(Ok(command)) => {
                    self.outcome.commands.push(command);
                    return;
                }
            }
        }
        self.outcome.consolidated = !held_back;
        self.outcome.unseen_pools = Some(unseen);
    }

    /// The pools take turns, those an earlier pass did not come to first; within a pool by savings.
    fn interleaved(&self) -> Vec<Arc<Candidate>> {
        let mut by_pool: BTreeMap<Text, Vec<Arc<Candidate>>> = BTreeMap::new();
        for candidate in self.by_savings() {
            by_pool.entry(candidate.node_pool.clone()).or_default().push(candidate);
        }
        let unseen = &self.pass.memory.unseen_pools;
        let turns: Vec<&Text> =
            unseen.iter().chain(by_pool.keys().filter(|pool| !unseen.contains(*pool))).collect();
        let longest = by_pool.values().map(Vec::len).max().unwrap_or(0);
        let mut order = Vec::with_capacity(self.candidates.len());
        for round in 0..longest {
            for pool in &turns {
                order.extend(by_pool.get(*pool).and_then(|candidates| candidates.get(round)).cloned());
            }
        }
        order
    }
}
