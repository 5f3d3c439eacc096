//! What kept a pod without a place from every node there is and every claim of the plan.
//!
//! Asking them all again is worth it only for a reader, so it is done on request ([`crate::SolveOptions::explain`]) and once for pods that are
//! alike. A cluster may have thousands of nodes: what comes out is how many each rule turned down, with the few that came nearest.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::algebra::Undefined;
use crate::classes::ClassId;
use crate::columns::Cell;
use crate::hashing::FixedState;
use crate::labels::Text;
use crate::ports;
use crate::reasons::{Rejection, Rule, Shortage};
use crate::refusal::Refusal;
use crate::resources::Amount;
use crate::solver::{Candidate, Solver};
use crate::volumes::Volumes;

/// How many of those that came nearest are told, per rule.
const NEAREST: usize = 3;

/// What kept a pod from everything there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Misses {
    /// Nodes that exist or are on their way; the rule that turned down most comes first.
    pub nodes: Vec<RefusedBy>,
    /// Claims of the plan.
    pub claims: Vec<RefusedBy>,
}

/// Nodes or claims one rule turned down.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedBy {
    /// The first rule that said no.
    pub rule: Rule,
    /// How many it turned down.
    pub count: usize,
    /// Those that came nearest: with the least missing, else the first ones asked.
    pub nearest: Vec<Miss>,
}

/// A node or claim that could not take the pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Miss {
    /// Which.
    pub place: MissedPlace,
    /// What it said.
    pub reason: Rejection,
}

/// A node or claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissedPlace {
    /// A node by name.
    Node(Text),
    /// A claim by its index in [`crate::Plan::new_claims`], with its NodePool.
    Claim {
        /// The index.
        index: usize,
        /// The NodePool.
        node_pool: Text,
    },
}

/// Refusals of one rule, nearest first.
struct Tally {
    rule: Rule,
    count: usize,
    nearest: Vec<(f64, usize, Refusal)>,
}

#[derive(Default)]
struct Tallies(Vec<Tally>);

impl Tallies {
    fn add(&mut self, number: usize, refusal: Refusal, distance: f64) {
        let rule = refusal.rule();
        let at = self.0.iter().position(|t| t.rule == rule).unwrap_or_else(|| {
            self.0.push(Tally { rule, count: 0, nearest: Vec::new() });
            self.0.len() - 1
        });
        let tally = &mut self.0[at];
        tally.count += 1;
        // Equals stay in the order they are asked in.
        let to = tally.nearest.partition_point(|(d, ..)| *d <= distance);
        if to < NEAREST {
            tally.nearest.insert(to, (distance, number, refusal));
            tally.nearest.truncate(NEAREST);
        }
    }

    fn finish(mut self, mut explain: impl FnMut(usize, Refusal) -> Miss) -> Vec<RefusedBy> {
        self.0.sort_by_key(|t| (std::cmp::Reverse(t.count), t.rule));
        self.0
            .into_iter()
            .map(|t| RefusedBy {
                rule: t.rule,
                count: t.count,
                nearest: t.nearest.into_iter().map(|(_, number, refusal)| explain(number, refusal)).collect(),
            })
            .collect()
    }
}

/// What was found out for pods that are alike.
#[derive(Default)]
pub(crate) struct KnownMisses {
    by_class: HashMap<ClassId, Arc<Misses>, FixedState>,
}

impl Solver<'_> {
    /// What kept the pod, in the form of `class`, from every node and from every claim with an index in `planned`.
    pub(crate) fn misses(
        &mut self,
        candidate: Candidate,
        planned: &[Option<usize>],
        known: &mut KnownMisses,
    ) -> Arc<Misses> {
        let volumes = self.pods[candidate.pod as usize].volumes.clone().ok().flatten();
        let alike =
            self.is_plain(candidate, volumes.as_deref()) && self.pods[candidate.pod as usize].registered;
        if let Some(found) = known.by_class.get(&candidate.class).filter(|_| alike) {
            return found.clone();
        }
        let found = Arc::new(Misses {
            nodes: self.missed_nodes(candidate, volumes.as_deref()),
            claims: self.missed_claims(candidate, volumes.as_deref(), planned),
        });
        if alike {
            known.by_class.insert(candidate.class, found.clone());
        }
        found
    }

    fn missed_nodes(&mut self, candidate: Candidate, volumes: Option<&Volumes>) -> Vec<RefusedBy> {
        let mut tallies = Tallies::default();
        for number in 0..self.existing.len() {
            if let Err(refusal) = self.can_join_node(number, candidate, volumes) {
                let distance = match refusal {
                    Refusal::Resources => self.distance(candidate.class, &self.existing[number].remaining),
                    _ => 0.0,
                };
                tallies.add(number, refusal, distance);
            }
        }
        tallies.finish(|number, refusal| Miss {
            place: MissedPlace::Node(self.existing[number].name.clone()),
            reason: self.explain_node(number, candidate.class, volumes, refusal),
        })
    }

    fn missed_claims(
        &mut self,
        candidate: Candidate,
        volumes: Option<&Volumes>,
        planned: &[Option<usize>],
    ) -> Vec<RefusedBy> {
        let mut tallies = Tallies::default();
        for number in (0..self.claims.len()).filter(|n| planned[*n].is_some()) {
            if let Err(refusal) = self.can_join_claim(number, candidate, volumes) {
                let distance = match refusal {
                    Refusal::InstanceTypes(_) => self.distance(candidate.class, &self.claims[number].room),
                    _ => 0.0,
                };
                tallies.add(number, refusal, distance);
            }
        }
        tallies.finish(|number, refusal| Miss {
            place: MissedPlace::Claim {
                index: planned[number].unwrap_or_default(),
                node_pool: self.templates[self.claims[number].template].name.clone(),
            },
            reason: self.explain_claim(number, candidate.class, volumes, refusal),
        })
    }

    /// How far `room` is from enough: the missing shares of what the pod needs, summed.
    fn distance(&self, class: ClassId, room: &[Cell]) -> f64 {
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let missing = |(column, need): &(u32, Cell)| {
            let left = room.get(*column as usize).copied().unwrap_or(0).max(0);
            if *need > left { (*need - left) as f64 / *need as f64 } else { 0.0 }
        };
        self.classes.needs[shape.need as usize].iter().map(missing).sum()
    }

    /// The resource of which the greatest share is missing.
    pub(crate) fn shortage(&self, class: ClassId, room: impl Fn(u32) -> Cell) -> Option<Shortage> {
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let mut worst: Option<(f64, Shortage)> = None;
        for (column, need) in &self.classes.needs[shape.need as usize] {
            let left = room(*column);
            if *need <= left {
                continue;
            }
            let share = need.saturating_sub(left) as f64 / *need as f64;
            if worst.as_ref().is_none_or(|(most, _)| share > *most) {
                let resource = self.columns.name(*column).clone();
                worst = Some((
                    share,
                    Shortage { resource, need: Amount::nanos(*need), left: Amount::nanos(left) },
                ));
            }
        }
        worst.map(|(_, shortage)| shortage)
    }

    fn explain_claim(
        &mut self,
        number: usize,
        class: ClassId,
        volumes: Option<&Volumes>,
        refusal: Refusal,
    ) -> Rejection {
        let claim = self.take_claim(number);
        let reason = self.explain(&claim, class, volumes, refusal);
        self.claims[number] = claim;
        reason
    }

    /// Spells out why a node refused the pod.
    fn explain_node(
        &mut self,
        number: usize,
        class: ClassId,
        volumes: Option<&Volumes>,
        refusal: Refusal,
    ) -> Rejection {
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let (demand, tolerations, spec) = (shape.demand, shape.tolerations, shape.spec.clone());
        let node = &self.existing[number];
        let (set, host) = (node.set, node.host);
        match refusal {
            Refusal::Taints => Rejection::Taints(self.tolerance.untolerated(node.taints, tolerations)),
            Refusal::VolumeLimit => {
                Rejection::VolumeLimit(node.exceeded_volume_limit(volumes.unwrap_or(&Volumes::new())))
            }
            Refusal::HostPort => {
                let (port, protocol) = ports::first_clash(&spec.host_ports, &node.ports)
                    .map_or((0, "".into()), |p| (p.port, p.protocol.clone()));
                Rejection::HostPort { port, protocol }
            }
            Refusal::Resources => Rejection::NodeResources(self.node_shortage(number, class)),
            Refusal::Requirements => {
                Rejection::Requirements(self.incompatibility(set, host, demand, Undefined::Denied))
            }
            Refusal::VolumeRequirements(base, alternative) => Rejection::VolumeRequirements(
                self.incompatibility(base, host, alternative, Undefined::Denied),
            ),
            Refusal::Topology { group, inverse, place } => {
                Rejection::Topology(self.topology_rejection(group, inverse, class, place))
            }
            Refusal::TopologyConflict(set, narrowed) => {
                Rejection::TopologyConflict(self.conflict(set, narrowed, Undefined::Denied))
            }
            // Only what is still to be bought has limits, types and reservations.
            Refusal::NodeLimit => Rejection::NodeLimitExhausted,
            Refusal::Limits => Rejection::LimitsExceeded,
            Refusal::MinValues(_) | Refusal::InstanceTypes(_) => {
                Rejection::NodeResources(self.node_shortage(number, class))
            }
            Refusal::Reserved(why) => Rejection::Reserved(why),
        }
    }

    /// What the node lacks for the pod; on an overcommitted node perhaps something the pod does not even ask for.
    fn node_shortage(&self, number: usize, class: ClassId) -> Shortage {
        let remaining = &self.existing[number].remaining;
        let left = |column: u32| remaining.get(column as usize).copied().unwrap_or(0);
        self.shortage(class, left).unwrap_or_else(|| {
            let column = remaining.iter().position(|cell| *cell < 0).unwrap_or_default() as u32;
            Shortage {
                resource: self.columns.name(column).clone(),
                need: Amount::default(),
                left: Amount::nanos(left(column)),
            }
        })
    }
}
