//! Nodes nobody needs: all that the budgets allow, at once, without a simulation.

use std::sync::Arc;

use super::candidate::Candidate;
use super::command::Command;
use super::method::Method;
use super::reasons::Why;
use super::{Judge, Search};

impl Judge<'_> {
    pub(super) fn chosen_by_emptiness(&self, candidate: &Candidate) -> Result<(), Why> {
        let (pool, conditions) = self.pool_and_conditions(candidate)?;
        if pool.replicas.is_some() {
            return Err(Why::StaticPool);
        }
        let Some(after_seconds) = pool.consolidate_after_seconds else {
            return Err(Why::ConsolidationDisabled(pool.name.clone()));
        };
        if self.memory.buffer_nodes.contains(&candidate.provider_id) {
            return Err(Why::BufferPods(candidate.node.clone()));
        }
        if !candidate.is_empty() {
            return Err(Why::NotEmpty);
        }
        if !conditions.consolidatable {
            return Err(Why::NotConsolidatable { after_seconds });
        }
        Ok(())
    }
}

impl Search<'_, '_> {
    pub(super) fn emptiness(&mut self) {
        let mut empty: Vec<Arc<Candidate>> = Vec::new();
        let mut held_back = false;
        for candidate in self.by_savings() {
            if self.purse.take(&candidate.node_pool) {
                empty.push(candidate);
            } else {
                self.over_budget(&candidate);
                held_back = true;
            }
        }
        if empty.is_empty() {
            self.outcome.consolidated = !held_back;
        } else {
            self.outcome.commands.push(Command::new(Method::Emptiness, empty));
        }
    }
}
