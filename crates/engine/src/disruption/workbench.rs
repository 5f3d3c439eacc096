//! Many simulations of one cluster. It is compiled once; each simulation notes what it changes and puts it back.
//!
//! What stays compiled: requirements, instance types, templates, daemons, what every node has room for, who keeps whom away, and the
//! lessons about nodes too small for some request. What each simulation makes anew: the groups its own pods count by, since who comes
//! first decides what a group is, and the claims. What is put back: nodes that received pods, counts of inverse groups, limits,
//! reservations.
//!
//! Two things would depend on which simulation came first, and then every simulation starts from the snapshot instead: an
//! inverse group that different pods would make differently, and the credit of a reservation.

use std::sync::Arc;

use super::candidate::{Candidate, Census};
use super::method::DisruptionOptions;
use super::simulate::{Purpose, SimulationError, Solved, has_pools, moving};
use crate::eligibility::is_terminal;
use crate::journal::Journal;
use crate::labels::NODE_POOL;
use crate::plan::Plan;
use crate::pod::Pod;
use crate::roster::Roster;
use crate::setup::Assumptions;
use crate::snapshot::ReservedMode;
use crate::solver::Solver;

/// Simulates one candidate set after the other.
pub(crate) struct Workbench<'s> {
    options: &'s DisruptionOptions,
    roster: Arc<Roster<'s>>,
    compiled: Option<Compiled<'s>>,
}

struct Compiled<'s> {
    solver: Solver<'s>,
    /// Pods that need a place in every simulation, and how many of these wait (the others leave with their nodes).
    standing_pods: usize,
    waiting_pods: usize,
    /// By machine: its number among the solver's nodes and among those the topology counts.
    existing: Vec<Option<usize>>,
    counted: Vec<Option<usize>>,
    inverse_groups: usize,
}

impl<'s> Workbench<'s> {
    pub(crate) fn new(options: &'s DisruptionOptions, roster: Arc<Roster<'s>>) -> Self {
        Workbench { options, roster, compiled: None }
    }

    /// Solves the cluster without the candidates and looks at the result.
    pub(crate) fn simulate<R>(
        &mut self,
        census: &Census<'s>,
        purpose: Purpose<'_>,
        candidates: &[Arc<Candidate>],
        look: impl FnOnce(&mut Solved<'_, '_>) -> R,
    ) -> Result<R, SimulationError> {
        if !has_pools(census.snapshot) {
            return Err(SimulationError::NoNodePools);
        }
        let leaving = moving(census, purpose, candidates);
        if self.compiled.is_none() {
            self.compiled = Compiled::new(census, self.options, self.roster.clone());
        }
        let shared = self.options.solve.caching && !matches!(purpose, Purpose::TerminateFirst { .. });
        if let Some(compiled) = self.compiled.as_mut().filter(|c| shared && c.reusable()) {
            compiled.assume(census, purpose, candidates, &leaving);
            compiled.solver.solve(&|| false);
            let seen = look(&mut Solved::new(&mut compiled.solver));
            compiled.restore();
            return Ok(seen);
        }
        self.simulate_anew(census, purpose, candidates, &leaving, look)
    }

    /// The same from the snapshot, sharing nothing.
    fn simulate_anew<R>(
        &self,
        census: &Census<'s>,
        purpose: Purpose<'_>,
        candidates: &[Arc<Candidate>],
        leaving: &[&Arc<Pod>],
        look: impl FnOnce(&mut Solved<'_, '_>) -> R,
    ) -> Result<R, SimulationError> {
        let mut gone: Vec<usize> = candidates.iter().map(|c| c.machine).collect();
        gone.sort_unstable();
        let (mode, credited) = match purpose {
            Purpose::TerminateFirst { reservation, .. } => (ReservedMode::Strict, Some(reservation)),
            _ => (ReservedMode::Fallback, None),
        };
        let assumptions = Assumptions {
            simulated: true,
            gone,
            moving: leaving.to_vec(),
            spares_restless: purpose == Purpose::Consolidation,
            credited,
            reserved_mode: Some(mode),
            ..Assumptions::default()
        };
        let mut plan = Plan::default();
        let mut solver = Solver::prepare(census.snapshot, &self.options.solve, &assumptions, &mut plan)
            .ok_or(SimulationError::NoNodePools)?;
        solver.solve(&|| false);
        Ok(look(&mut Solved::new(&mut solver)))
    }
}

impl<'s> Compiled<'s> {
    fn new(
        census: &Census<'s>,
        options: &'s DisruptionOptions,
        roster: Arc<Roster<'s>>,
    ) -> Option<Compiled<'s>> {
        let snapshot = census.snapshot;
        let assumptions = Assumptions {
            simulated: true,
            reserved_mode: Some(ReservedMode::Fallback),
            shared: true,
            roster: Some(roster),
            ..Assumptions::default()
        };
        let mut solver = Solver::prepare(snapshot, &options.solve, &assumptions, &mut Plan::default())?;
        let standing_pods = solver.pods.len();
        let waiting_pods = solver.pods.iter().take_while(|p| !p.leaving).count();
        // Whoever is in the batch of every simulation keeps others away in every simulation.
        solver.register_range(0..standing_pods);
        solver.classes.forget_groups();
        solver.topology.forget_groups();
        let mut by_name: Vec<(&str, usize)> =
            solver.existing.iter().enumerate().map(|(i, n)| (n.name.as_ref(), i)).collect();
        by_name.sort_unstable();
        let existing = snapshot
            .nodes
            .iter()
            .map(|machine| {
                let name = machine.name().as_ref();
                by_name.binary_search_by(|(n, _)| (*n).cmp(name)).ok().map(|at| by_name[at].1)
            })
            .collect();
        let mut next = 0;
        let counted = snapshot
            .nodes
            .iter()
            .map(|machine| {
                machine.node.as_ref().map(|_| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        let inverse_groups = solver.topology.inverse.len();
        Some(Compiled { solver, standing_pods, waiting_pods, existing, counted, inverse_groups })
    }

    /// Whether simulations give the same answers in any order.
    fn reusable(&self) -> bool {
        !self.solver.topology.ambiguous && self.solver.topology.inverse.len() == self.inverse_groups
    }

    /// Makes the solver's cluster one without the candidates.
    fn assume(
        &mut self,
        census: &Census<'_>,
        purpose: Purpose<'_>,
        candidates: &[Arc<Candidate>],
        leaving: &[&Arc<Pod>],
    ) {
        let solver = &mut self.solver;
        let mut journal = Journal {
            limits: solver.pools.iter().map(|p| p.remaining.clone()).collect(),
            free: solver.reservations.free.clone(),
            registered: solver.pods.iter().map(|p| p.registered).collect(),
            ..Journal::default()
        };
        solver.spares_restless = purpose == Purpose::Consolidation;
        for candidate in candidates {
            if let Some(number) = self.existing[candidate.machine] {
                solver.absent.insert_growing(number);
            }
            if let Some(number) = self.counted[candidate.machine] {
                solver.topology.gone.insert_growing(number);
            }
            let machine = &census.snapshot.nodes[candidate.machine];
            let pool = candidate.labels.get(NODE_POOL);
            let pool = solver.pools.iter_mut().find(|p| Some(&p.source.name) == pool);
            if let Some(pool) = pool.filter(|p| !p.remaining.is_empty()) {
                let capacity = solver.columns.need(&machine.capacity());
                pool.take(|column| {
                    capacity.iter().find(|(c, _)| *c == column).map_or(0, |(_, cell)| cell.saturating_neg())
                });
            }
        }
        solver.reset_limits();
        solver.add_pods(leaving, |_| false, |_| false);
        for (at, pod) in leaving.iter().enumerate() {
            if solver.pods[self.standing_pods + at].registered {
                solver.uncount(pod, &mut journal);
            }
        }
        solver.journal = Some(journal);
        let all = solver.pods.len();
        solver.register_range(0..self.waiting_pods);
        solver.register_range(self.standing_pods..all);
        solver.register_range(self.waiting_pods..self.standing_pods);
        solver.errors.clear();
        solver.errors.resize_with(all, || None);
    }

    /// Puts everything back.
    fn restore(&mut self) {
        let solver = &mut self.solver;
        let journal = solver.journal.take().unwrap_or_default();
        solver.lessons.forget(journal.nodes.iter().map(|(number, _)| *number));
        for (number, node) in journal.nodes {
            solver.existing[number] = node;
        }
        for (number, counts) in journal.inverse {
            let group = &mut solver.topology.inverse[number as usize];
            group.counts = counts;
            group.hosts = Default::default();
        }
        for (at, node) in journal.uncounted {
            solver.topology.placed[at].2.push(node);
        }
        for (pool, remaining) in solver.pools.iter_mut().zip(journal.limits) {
            pool.remaining = remaining;
        }
        solver.reset_limits();
        solver.reservations.free = journal.free;
        solver.absent.clear();
        solver.topology.gone.clear();
        solver.claims.clear();
        solver.order = Default::default();
        solver.next_host = solver.algebra.vocabulary.placeholder_host(1);
        solver.pods.truncate(self.standing_pods);
        for (pod, registered) in solver.pods.iter_mut().zip(journal.registered) {
            pod.registered = registered;
        }
        solver.classes.forget_groups();
        solver.topology.forget_groups();
    }
}

impl Solver<'_> {
    /// Registers the constraints of these pods, in order.
    fn register_range(&mut self, pods: std::ops::Range<usize>) {
        for pod in pods {
            if self.pods[pod].registered {
                self.register(self.pods[pod].class);
            }
        }
    }

    /// Works out anew which instance types the pools' limits allow.
    fn reset_limits(&mut self) {
        for template in &mut self.templates {
            template.min_values_relaxed = false;
            let pool = &self.pools[template.pool];
            if !pool.remaining.is_empty() {
                template.within_limits = template.types.clone();
                template.apply_limits(pool, &self.tables[template.table]);
            }
        }
    }

    /// Takes a pod that is about to move out of what is counted.
    fn uncount(&mut self, pod: &Pod, journal: &mut Journal) {
        let Some(name) = pod.node_name.as_ref().filter(|_| !is_terminal(pod)) else { return };
        let address = (pod.namespace.as_ptr() as usize, pod.labels.address());
        if !pod.status.terminating
            && let Some(at) = self.topology.placed_at.get(&address).copied()
        {
            let nodes = &self.topology.nodes;
            let counted = &mut self.topology.placed[at].2;
            if let Some(found) = counted.iter().position(|n| nodes[*n as usize].name == *name) {
                journal.uncounted.push((at, counted.swap_remove(found)));
            }
        }
        let groups = self.inverse_groups_of(pod);
        if groups.is_empty() {
            return;
        }
        let machine = self.snapshot.nodes.iter().filter_map(|m| m.node.as_ref()).find(|n| n.name == *name);
        for number in groups {
            let group = &mut self.topology.inverse[number as usize];
            let key = self.algebra.vocabulary.key_name(group.key).clone();
            if let Some(domain) = machine.and_then(|node| node.labels.get(&key)) {
                let value = self.algebra.vocabulary.value(group.key, domain);
                journal.before_inverse(number, group);
                group.counts.forget(value);
            }
        }
    }
}
