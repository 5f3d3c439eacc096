//! What would happen to the pods if nodes went away: what a simulation is for, and how to read its result.

use std::sync::Arc;

use super::candidate::{Candidate, Census};
use super::reasons::{PodTrouble, PodTroubleReason, Why};
use crate::algebra::SetId;
use crate::eligibility::is_provisionable;
use crate::labels::Text;
use crate::plan::{NodePlacement, PlannedClaim};
use crate::pod::Pod;
use crate::reasons::Unplaceable;
use crate::snapshot::Snapshot;
use crate::solver::Solver;

/// How many pods without a place are named.
const SHOWN: usize = 5;

/// What a simulation is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    /// To save money: pods do not move to nodes that are not at rest themselves.
    Consolidation,
    /// To replace a drifted node.
    Drift,
    /// To replace a broken node, with the pods that do not want to leave.
    Repair,
    /// As `Drift` or `Repair` (`blocked` pods included), once the node has given its slot of a reservation back.
    TerminateFirst {
        /// The reservation.
        reservation: &'a Text,
        /// Whether pods that do not want to leave are moved.
        blocked: bool,
    },
}

/// Why nothing could be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// There is no NodePool to launch anything for the pods.
    #[error("creating scheduler, no nodepools found")]
    NoNodePools,
}

/// Whether some pool can take part: without one nothing is simulated, not even for nodes without pods.
pub(crate) fn has_pools(snapshot: &Snapshot) -> bool {
    snapshot.node_pools.iter().any(|p| p.replicas.is_none() && p.ready && !p.deleting)
}

/// The candidates' pods that have to move.
pub(crate) fn moving<'c>(
    census: &Census<'_>,
    purpose: Purpose<'_>,
    candidates: &'c [Arc<Candidate>],
) -> Vec<&'c Arc<Pod>> {
    let all = matches!(purpose, Purpose::Repair | Purpose::TerminateFirst { blocked: true, .. });
    let now = census.snapshot.now.as_second();
    candidates.iter().flat_map(|c| &c.pods).filter(|p| all || census.limits.lets_move(p, now)).collect()
}

/// A claim that would be launched.
pub(crate) struct Offer {
    /// Its number.
    pub(crate) claim: usize,
    /// Its instance type table.
    pub(crate) table: usize,
    pub(crate) set: SetId,
    /// Instance types, cheapest first.
    pub(crate) types: Vec<u32>,
}

enum Trouble {
    Failed,
    Truncated(Unplaceable),
    /// It would go to a node that is coming up, or coming back.
    NotUp(usize),
}

/// A simulation's result, as numbers until somebody wants more.
pub(crate) struct Solved<'a, 's> {
    pub(crate) solver: &'a mut Solver<'s>,
    pub(crate) offers: Vec<Offer>,
    /// Pods that would find no place, those that have none now left out.
    troubles: Vec<(u32, Trouble)>,
}

impl<'a, 's> Solved<'a, 's> {
    pub(crate) fn new(solver: &'a mut Solver<'s>) -> Self {
        let mut solved = Solved { solver, offers: Vec::new(), troubles: Vec::new() };
        for pod in 0..solved.solver.pods.len() {
            if solved.solver.errors[pod].is_some() {
                solved.note(pod as u32, || Trouble::Failed);
            }
        }
        for position in 0..solved.solver.order.len() {
            solved.offer(position);
        }
        for node in 0..solved.solver.existing.len() {
            let there = &solved.solver.existing[node];
            if !there.initialized || there.rebooting {
                for (pod, _) in solved.solver.existing[node].pods.clone() {
                    if !solved.solver.pods[pod as usize].leaving {
                        solved.note(pod, || Trouble::NotUp(node));
                    }
                }
            }
        }
        solved
    }

    fn note(&mut self, pod: u32, trouble: impl FnOnce() -> Trouble) {
        if !is_provisionable(&self.solver.pods[pod as usize].pod) {
            self.troubles.push((pod, trouble()));
        }
    }

    fn offer(&mut self, position: usize) {
        let claim = self.solver.order.claims()[position] as usize;
        let table = self.solver.templates[self.solver.claims[claim].template].table;
        let set = self.solver.launch_set(claim);
        let types = std::mem::take(&mut self.solver.claims[claim].types);
        let (cheapest, unmet) = self.solver.truncate(table, set, &types);
        self.solver.claims[claim].types = types;
        if unmet.is_empty() {
            self.offers.push(Offer { claim, table, set, types: cheapest });
            return;
        }
        let error = self.solver.truncation_error(claim, unmet);
        for (pod, _) in self.solver.claims[claim].pods.clone() {
            self.note(pod, || Trouble::Truncated(error.clone()));
        }
    }

    /// Whether every pod that has a place now would have one.
    pub(crate) fn all_scheduled(&self) -> bool {
        self.troubles.is_empty()
    }

    /// Which pods would not, and why.
    pub(crate) fn troubles(&mut self) -> Why {
        let mut troubles = std::mem::take(&mut self.troubles);
        let pods = &self.solver.pods;
        troubles.sort_by(|(a, _), (b, _)| {
            let (a, b) = (&pods[*a as usize].pod, &pods[*b as usize].pod);
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        let count = troubles.len();
        let shown = troubles.into_iter().take(SHOWN).map(|(pod, t)| self.explain(pod, t)).collect();
        Why::PodsWouldNotSchedule { shown, count }
    }

    fn explain(&mut self, pod: u32, trouble: Trouble) -> PodTrouble {
        let reason = match trouble {
            Trouble::Truncated(error) => PodTroubleReason::Unplaceable(error),
            Trouble::Failed => {
                PodTroubleReason::Unplaceable(match self.solver.errors[pod as usize].clone() {
                    Some(failure) => self.solver.explain_failure(pod, failure),
                    None => Unplaceable::NoPools,
                })
            }
            Trouble::NotUp(node) => {
                let name = &self.solver.existing[node].name;
                let machine = self.solver.snapshot.nodes.iter().find(|m| m.name() == name);
                PodTroubleReason::NotUp {
                    claim: machine
                        .and_then(|m| m.claim.as_ref())
                        .map_or_else(|| name.clone(), |c| c.name.clone()),
                    node: machine.and_then(|m| m.node.as_ref()).map(|n| n.name.clone()),
                    rebooting: self.solver.existing[node].rebooting,
                }
            }
        };
        PodTrouble { pod: self.solver.pods[pod as usize].pod.key(), reason }
    }

    /// The pods the new nodes would be for, if none of them is on the candidates: they wait for a node of their own, whatever
    /// becomes of these.
    pub(crate) fn pods_of_others(&self, candidates: &[Arc<Candidate>]) -> Vec<String> {
        let mut waiting = Vec::new();
        for offer in &self.offers {
            for (pod, _) in &self.solver.claims[offer.claim].pods {
                let pod = &self.solver.pods[*pod as usize].pod;
                if candidates.iter().any(|candidate| pod.node_name.as_ref() == Some(&candidate.node)) {
                    return Vec::new();
                }
                waiting.push(pod.key());
            }
        }
        waiting.sort();
        waiting
    }

    /// Every claim as it would be created.
    pub(crate) fn planned(&mut self) -> Vec<PlannedClaim> {
        let offers = std::mem::take(&mut self.offers);
        offers.into_iter().map(|offer| self.plan(offer)).collect()
    }

    /// One claim as it would be created with the offer's requirements and types.
    pub(crate) fn plan(&mut self, offer: Offer) -> PlannedClaim {
        let mut types = crate::bits::Bits::none(self.solver.tables[offer.table].len());
        for number in &offer.types {
            types.insert(*number as usize);
        }
        self.solver.plan_claim(offer.claim, offer.set, types)
    }

    /// What goes to nodes that exist.
    pub(crate) fn placements(&mut self) -> Vec<NodePlacement> {
        self.solver.placements()
    }
}
