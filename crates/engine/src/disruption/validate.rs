//! Whether a consolidation found a while ago is still good.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Judge;
use super::budgets::{Purse, standings};
use super::candidate::Candidate;
use super::command::Command;
use super::method::Method;
use super::simulate::{Purpose, SimulationError};
use super::workbench::Workbench;
use crate::labels::Text;

/// Why a command is not good any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Nodes are no candidates any more.
    #[error("{0} candidates are no longer valid")]
    Churn(usize),
    /// It would exceed a budget, by this many of its nodes at most.
    #[error("a candidate can no longer be disrupted without violating budgets")]
    Budget(usize),
    /// Pods would not find a place any more.
    #[error("{0}")]
    Unschedulable(String),
    /// Something else would be needed to replace the nodes.
    #[error("scheduling simulation produced new results")]
    NewResults,
    /// It could not be simulated.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
}

impl Invalid {
    /// The class of failure, as events and metrics write it.
    pub const fn class(&self) -> &'static str {
        match self {
            Invalid::Churn(_) => "churn",
            Invalid::Budget(_) => "budget",
            Invalid::Unschedulable(_) | Invalid::NewResults => "scheduling",
            Invalid::Simulation(_) => "unknown",
        }
    }
}

/// A command that is still good.
#[derive(Clone, Debug)]
pub struct Valid {
    /// As it is good now.
    pub command: Command,
    /// How many empty nodes were left out for a budget.
    pub over_budget: usize,
}

impl<'s> Judge<'s> {
    /// The command as it is good now, after the wait: for empty nodes those that still are, for the others all or nothing.
    /// Commands of methods that do not wait are good as they are.
    pub(super) fn validate(&self, bench: &mut Workbench<'s>, command: &Command) -> Result<Valid, Invalid> {
        if !command.method.is_consolidation() {
            return Ok(Valid { command: command.clone(), over_budget: 0 });
        }
        let (current, over_budget) = self.current(command)?;
        if command.method == Method::Emptiness {
            let savings = current.iter().map(|c| c.price).sum();
            let command = Command { candidates: current, savings, ..command.clone() };
            return Ok(Valid { command, over_budget });
        }
        let simulated = bench.simulate(&self.census, Purpose::Consolidation, &current, |solved| {
            if !solved.all_scheduled() {
                return Err(Invalid::Unschedulable(solved.troubles().to_string()));
            }
            match (&solved.offers[..], &command.replacements[..]) {
                ([], []) => Ok(()),
                ([offer], [replacement]) => {
                    let table = &solved.solver.tables[offer.table];
                    let launchable: BTreeSet<&Text> =
                        offer.types.iter().map(|t| &table.types[*t as usize].name).collect();
                    let covered = replacement.instance_types.iter().all(|name| launchable.contains(name));
                    if covered { Ok(()) } else { Err(Invalid::NewResults) }
                }
                _ => Err(Invalid::NewResults),
            }
        });
        simulated??;
        // The command keeps the order in which its nodes were chosen, with what is known of them now.
        let candidates = command
            .candidates
            .iter()
            .filter_map(|old| current.iter().find(|c| c.node == old.node).cloned())
            .collect();
        Ok(Valid { command: Command { candidates, ..command.clone() }, over_budget })
    }

    /// The command's nodes as they are now, within budgets, and how many are beyond.
    fn current(&self, command: &Command) -> Result<(Vec<Arc<Candidate>>, usize), Invalid> {
        let method = command.method;
        let proposed: BTreeSet<&Text> = command.candidates.iter().map(|c| &c.node).collect();
        let still: Vec<Arc<Candidate>> = self
            .census
            .in_order
            .iter()
            .filter_map(|number| self.census.candidate(*number, method.class()).ok())
            .filter(|c| proposed.contains(&c.node))
            .filter_map(|c| self.chosen_by(method, c).ok())
            .collect();
        let empties = method == Method::Emptiness;
        let lost = command.candidates.len() - still.len().min(command.candidates.len());
        if still.is_empty() || (!empties && lost > 0) {
            return Err(Invalid::Churn(if empties { command.candidates.len() } else { lost }));
        }
        let mut purse = Purse::new(&standings(self.census.snapshot, &self.census.leaving, method.reason()));
        let before = still.len();
        let within: Vec<Arc<Candidate>> = still.into_iter().filter(|c| purse.take(&c.node_pool)).collect();
        if within.is_empty() || (!empties && within.len() != before) {
            return Err(Invalid::Budget(before));
        }
        let over_budget = before - within.len();
        Ok((within, over_budget))
    }
}
