//! Several nodes at once: the largest batch, by binary search, that can go for one node or none.

use std::sync::Arc;

use karpenter_api::nodepool::ConsolidationPolicy;

use super::candidate::Candidate;
use super::command::Command;
use super::method::{MULTI_NODE_TIMEOUT, Method};
use super::reasons::Why;
use super::{Judge, Search};
use crate::labels::{CAPACITY_TYPE, INSTANCE_TYPE, ZONE};

/// Largest index of a batch's last node. Upstream means a batch of 100 and gets 101.
const MAX_INDEX: usize = 100;

impl Judge<'_> {
    /// Whether multi- and single-node consolidation would look at the node.
    pub(super) fn chosen_by_consolidation(&self, candidate: &Candidate) -> Result<(), Why> {
        let (pool, conditions) = self.pool_and_conditions(candidate)?;
        if pool.replicas.is_some() {
            return Err(Why::StaticPool);
        }
        if candidate.instance_type.is_none() {
            return Err(Why::TypeUnknown(candidate.labels.get_or_empty(INSTANCE_TYPE).into()));
        }
        for label in [CAPACITY_TYPE, ZONE] {
            if candidate.labels.get(label).is_none() {
                return Err(Why::LabelMissing(label));
            }
        }
        let Some(after_seconds) = pool.consolidate_after_seconds else {
            return Err(Why::ConsolidationDisabled(pool.name.clone()));
        };
        if candidate.is_empty() {
            return Err(Why::Empty);
        }
        if pool.consolidation_policy == ConsolidationPolicy::WhenEmpty {
            return Err(Why::OnlyWhenEmpty(pool.name.clone()));
        }
        if !conditions.consolidatable {
            return Err(Why::NotConsolidatable { after_seconds });
        }
        Ok(())
    }

    /// Scores the command where a Balanced pool is concerned; the first pool that finds it not worth it says no.
    pub(super) fn approve(&self, mut command: Command) -> Result<Command, (Box<Command>, Why)> {
        command.scores = self.scales.scores(&self.census, &command);
        match command.scores.iter().find(|(_, score)| !score.approved()) {
            Some((pool, score)) => {
                let why = Why::NotWorthIt { pool: pool.clone(), score: *score, at_best: false };
                Err((Box::new(command), why))
            }
            None => Ok(command),
        }
    }
}

impl Search<'_, '_> {
    pub(super) fn multi(&mut self) {
        let started = self.elapsed();
        let mut batch: Vec<Arc<Candidate>> = Vec::new();
        let mut held_back = false;
        for candidate in self.by_savings() {
            if self.purse.take(&candidate.node_pool) {
                batch.push(candidate);
            } else {
                self.over_budget(&candidate);
                held_back = true;
            }
        }
        let (mut found, mut rejected) = (None, None);
        // One node alone is single-node consolidation's.
        let (mut low, mut high) = (1, MAX_INDEX.min(batch.len().saturating_sub(1)));
        while low <= high {
            if self.elapsed().saturating_sub(started) > MULTI_NODE_TIMEOUT {
                self.outcome.timed_out = true;
                break;
            }
            let middle = (low + high) / 2;
            self.outcome.evaluated = middle + 1;
            let answer =
                match self.judge.consolidation(self.bench, Method::MultiNodeConsolidation, &batch[..=middle])
                {
                    Ok(answer) => answer.ok().and_then(|command| match self.judge.approve(command) {
                        Ok(command) => Some(command),
                        Err((command, _)) => {
                            rejected = Some(command);
                            None
                        }
                    }),
                    Err(error) => {
                        self.outcome.error = Some(error);
                        return;
                    }
                };
            match answer {
                Some(command) => {
                    found = Some(command);
                    low = middle + 1;
                }
                None => high = middle - 1,
            }
        }
        self.outcome.consolidated = found.is_none() && !held_back && !self.outcome.timed_out;
        self.outcome.rejected = rejected.filter(|_| found.is_none());
        self.outcome.commands.extend(found);
    }
}
