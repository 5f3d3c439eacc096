//! Finding the first node or claim that takes a pod without asking those whose answer is known.
//!
//! Three kinds of knowledge save the asking. *Lessons* hold for good: a node or claim only ever gets fuller, so once it is too small for
//! some requests it stays too small for them. *Hosts* are counted where pods are placed, so the machines a hostname constraint
//! rules out are a set of bits at any time ([`crate::topology::Hosts`]). The *outlook* holds for one pod: claims with the same requirements
//! give the same answer about node selection and zones, so it is worked out once for all of them.
//!
//! The first two give, a machine word of them at a time, those that are still worth asking; when these are few, only they are put
//! in order. So a pod that fits nowhere costs a glance at each 64 claims instead of a question to each. Which claim is found
//! is not affected; `SolveOptions::caching` turns all of this off to prove it.

use smallvec::SmallVec;

use crate::algebra::{SetId, Undefined};
use crate::bits::Bits;
use crate::claim::{Held, Joined};
use crate::columns::{self, Row};
use crate::solver::{Candidate, Solver};
use crate::templates::unmet_min_values;
use crate::tolerance::{TaintsId, TolerationsId};
use crate::topology::{Occupied, Place};
use crate::vocabulary::HOST;
use crate::volumes::Volumes;

/// What earlier pods taught, and storage that is used again and again.
#[derive(Default)]
pub(crate) struct Lessons {
    /// By requests: nodes without enough room for them.
    full_nodes: Vec<Bits>,
    /// By requests: claims without enough room for them.
    full_claims: Vec<Bits>,
    /// By template: its claims.
    claims_of: Vec<Bits>,
    /// Whether two nodes have one hostname; unknown until asked.
    shared_hosts: Option<bool>,
    outlook: Outlook,
    open: Bits,
    ranked: Vec<((u32, i64), u32)>,
    total: Row,
    kept: Bits,
    of_group: Bits,
}

impl Lessons {
    /// Forgets what does not hold any more once there are no claims and these nodes are as they were.
    pub(crate) fn forget(&mut self, nodes: impl Iterator<Item = usize>) {
        for node in nodes {
            for full in self.full_nodes.iter_mut().filter(|f| f.contains(node)) {
                full.remove(node);
            }
        }
        self.full_claims.clear();
        self.claims_of.clear();
    }

    /// A claim of `template` has come into being.
    pub(crate) fn add_claim(&mut self, number: usize, template: usize) {
        if template >= self.claims_of.len() {
            self.claims_of.resize_with(template + 1, Bits::default);
        }
        self.claims_of[template].insert_growing(number);
    }
}

/// By requirements of a node or claim: what they become with the pod at hand, or that they cannot.
#[derive(Default)]
struct Outlook {
    /// By number of the requirements, with the question the answer belongs to.
    answers: Vec<(u32, Option<SetId>)>,
    question: u32,
}

impl Outlook {
    /// Forgets every answer.
    fn start(&mut self) {
        self.question += 1;
    }

    fn get(&self, set: SetId) -> Option<Option<SetId>> {
        self.answers.get(set.index()).filter(|(q, _)| *q == self.question).map(|(_, answer)| *answer)
    }

    fn put(&mut self, set: SetId, answer: Option<SetId>) {
        if set.index() >= self.answers.len() {
            self.answers.resize(set.index() + 1, (0, None));
        }
        self.answers[set.index()] = (self.question, answer);
    }
}

impl Solver<'_> {
    /// Whether nothing about the pod is particular to it alone: neither volumes nor ports.
    pub(crate) fn is_plain(&self, candidate: Candidate, volumes: Option<&Volumes>) -> bool {
        let shape = self.classes.classes[candidate.class as usize].shape;
        volumes.is_none()
            && self.pods[candidate.pod as usize].alternatives.is_empty()
            && self.classes.shapes[shape as usize].spec.host_ports.is_empty()
    }

    /// The first node that takes the pod, and its requirements then.
    pub(crate) fn first_node(
        &mut self,
        candidate: Candidate,
        volumes: Option<&Volumes>,
    ) -> Option<(usize, SetId)> {
        if self.existing.is_empty() {
            return None;
        }
        let plain = self.is_plain(candidate, volumes);
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let (tolerations, need) = (shape.tolerations, shape.need as usize);
        let mut full = take(&mut self.lessons.full_nodes, need);
        let mut open = std::mem::take(&mut self.lessons.open);
        open.fill(self.existing.len());
        open.subtract(&full);
        open.subtract(&self.absent);
        self.rule_out_nodes(candidate, &mut open);
        self.lessons.outlook.start();
        let mut tolerated: SmallVec<[(TaintsId, bool); 8]> = SmallVec::new();
        let found = open.iter().find_map(|number| {
            if !self.may_ask(number, candidate.pod) {
                return None;
            }
            let node = &self.existing[number];
            if node.volumes_exceeded || !node.fits(&self.classes.needs[need]) {
                full.insert_growing(number);
                return None;
            }
            if !plain {
                return self.can_join_node(number, candidate, volumes).ok().map(|set| (number, set));
            }
            if !self.tolerates_known(node.taints, tolerations, &mut tolerated) {
                return None;
            }
            self.node_outlook(number, candidate).map(|set| (number, set))
        });
        self.lessons.open = open;
        self.lessons.full_nodes[need] = full;
        found
    }

    fn tolerates_known(
        &mut self,
        taints: TaintsId,
        tolerations: TolerationsId,
        known: &mut SmallVec<[(TaintsId, bool); 8]>,
    ) -> bool {
        if let Some((_, answer)) = known.iter().find(|(t, _)| *t == taints) {
            return *answer;
        }
        let answer = self.tolerance.tolerates(taints, tolerations);
        known.push((taints, answer));
        answer
    }

    /// What the node, known to be large enough and tolerated, becomes with the pod.
    fn node_outlook(&mut self, number: usize, candidate: Candidate) -> Option<SetId> {
        let Candidate { pod, class } = candidate;
        let demand = self.classes.shapes[self.classes.classes[class as usize].shape as usize].demand;
        let node = &self.existing[number];
        let place = Place { set: node.set, host: node.host, taints: node.taints };
        if !self.algebra.host_ok(place.host, demand.host) || self.check_host(pod, class, place).is_err() {
            return None;
        }
        self.outlook(candidate, place.set, Undefined::Denied)
    }

    /// Takes out of `open` the nodes whose hosts are ruled out.
    fn rule_out_nodes(&mut self, candidate: Candidate, open: &mut Bits) {
        let looks_at_hosts: SmallVec<[(u32, bool, bool); 4]> = self
            .constraints(candidate.pod, candidate.class)
            .filter(|(group, ..)| group.key == HOST)
            .map(|(_, number, selects, inverse)| (number, selects, inverse))
            .collect();
        if looks_at_hosts.is_empty() {
            return;
        }
        // Where two nodes share a hostname, a pod on one is a pod on the other: these are asked one by one.
        let existing = &self.existing;
        let shared = *self.lessons.shared_hosts.get_or_insert_with(|| {
            let mut hosts: Vec<_> = existing.iter().map(|n| n.host).collect();
            hosts.sort_unstable();
            hosts.windows(2).any(|pair| pair[0] == pair[1])
        });
        if shared {
            return;
        }
        let asked =
            self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize].strict.host;
        for (number, selects, inverse) in looks_at_hosts {
            let groups = if inverse { &mut self.topology.inverse } else { &mut self.topology.groups };
            let group = &mut groups[number as usize];
            let nodes = group.hosts.nodes.take().unwrap_or_else(|| {
                let mut occupied = Occupied::default();
                for (at, node) in self.existing.iter().enumerate() {
                    occupied.note(at, group.counts.or_zero(node.host), group.max_skew);
                }
                occupied
            });
            group.rule_out(open, &nodes, selects, asked);
            group.hosts.nodes = Some(nodes);
        }
    }

    /// What a node or claim with requirements `set` becomes with the pod, as far as node selection and domains other than
    /// hosts go.
    fn outlook(&mut self, candidate: Candidate, set: SetId, undefined: Undefined) -> Option<SetId> {
        if let Some(known) = self.lessons.outlook.get(set) {
            return known;
        }
        let answer = self.outlook_of(candidate, set, undefined);
        self.lessons.outlook.put(set, answer);
        answer
    }

    fn outlook_of(&mut self, candidate: Candidate, set: SetId, undefined: Undefined) -> Option<SetId> {
        let Candidate { pod, class } = candidate;
        let demand = self.classes.shapes[self.classes.classes[class as usize].shape as usize].demand;
        if !self.algebra.compatible(set, demand.set, undefined) {
            return None;
        }
        let base = self.algebra.merge(set, demand.set);
        // Neither host nor taints matter for the domains considered here.
        let place = Place { set: base, host: crate::algebra::NO_HOST, taints: TaintsId::NONE };
        self.narrow_domains(pod, class, place, undefined).ok()
    }

    /// Position of the first claim that takes the pod, and what it becomes.
    pub(crate) fn first_claim(
        &mut self,
        candidate: Candidate,
        volumes: Option<&Volumes>,
    ) -> Option<(usize, Joined)> {
        /// Below one open claim in so many, the open ones are put in order by themselves.
        const SPARSE: usize = 16;
        let claims = self.order.len();
        if claims == 0 {
            return None;
        }
        let plain = self.is_plain(candidate, volumes);
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let need = shape.need as usize;
        let mut full = take(&mut self.lessons.full_claims, need);
        let mut open = std::mem::take(&mut self.lessons.open);
        open.fill(claims);
        open.subtract(&full);
        self.rule_out_claims(candidate, &mut open);
        self.lessons.outlook.start();
        let count = open.count();
        let mut ask = |solver: &mut Self, number: usize| {
            if plain {
                solver.joins_plainly(number, candidate, need, &mut full)
            } else {
                solver.can_join_claim(number, candidate, volumes).ok()
            }
        };
        let found = if count * SPARSE < claims {
            let mut ranked = std::mem::take(&mut self.lessons.ranked);
            ranked.clear();
            ranked.extend(open.iter().map(|number| (self.order.rank(number as u32), number as u32)));
            ranked.sort_unstable();
            let found = ranked.iter().find_map(|(_, number)| {
                let joined = ask(self, *number as usize)?;
                Some((self.order.position(*number), joined))
            });
            self.lessons.ranked = ranked;
            found
        } else {
            (0..claims).find_map(|position| {
                let number = self.order.claims()[position] as usize;
                if !open.contains(number) {
                    return None;
                }
                Some((position, ask(self, number)?))
            })
        };
        self.lessons.open = open;
        self.lessons.full_claims[need] = full;
        found
    }

    /// Takes out of `open` the claims whose taints the pod does not tolerate or whose hosts are ruled out.
    fn rule_out_claims(&mut self, candidate: Candidate, open: &mut Bits) {
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let asked = shape.strict.host;
        for (template, claims) in self.templates.iter().zip(&self.lessons.claims_of) {
            if !self.tolerance.tolerates(template.taints, shape.tolerations) {
                open.subtract(claims);
            }
        }
        for (group, _, selects, _) in self.constraints(candidate.pod, candidate.class) {
            if group.key == HOST {
                group.rule_out(open, &group.hosts.claims, selects, asked);
            }
        }
    }

    /// What the claim, known to be tolerated, becomes with a pod without volumes and ports.
    fn joins_plainly(
        &mut self,
        number: usize,
        candidate: Candidate,
        need: usize,
        full: &mut Bits,
    ) -> Option<Joined> {
        let Candidate { pod, class } = candidate;
        let claim = &self.claims[number];
        if self.classes.needs[need].iter().any(|(column, cell)| *cell > room(&claim.room, *column)) {
            full.insert_growing(number);
            return None;
        }
        let demand = self.classes.shapes[self.classes.classes[class as usize].shape as usize].demand;
        let (host, set) = (claim.host, claim.set);
        if !self.algebra.host_ok(host, demand.host) {
            return None;
        }
        let taints = self.templates[claim.template].taints;
        if self.check_host(pod, class, Place { set, host, taints }).is_err() {
            return None;
        }
        let narrowed = self.outlook(candidate, set, Undefined::AllowedIfWellKnown)?;
        if !self.keep_types(number, need, narrowed) {
            // Its own requirements unchanged, only size can have ruled the instance types out.
            if narrowed == set {
                full.insert_growing(number);
            }
            return None;
        }
        let held = self.may_narrow(number, narrowed)?;
        Some(Joined { set: narrowed, types: self.lessons.kept.clone(), held })
    }

    /// Leaves in `lessons.kept` the claim's instance types that meet `set` and have room for the pod; whether there are any.
    fn keep_types(&mut self, number: usize, need: usize, set: SetId) -> bool {
        let claim = &self.claims[number];
        let template = &self.templates[claim.template];
        let table = &mut self.tables[template.table];
        let Lessons { total, kept, of_group, .. } = &mut self.lessons;
        total.clear();
        total.extend_from_slice(&claim.requests);
        columns::add(total, &self.classes.needs[need]);
        if let [group] = &template.daemons[..] {
            columns::add(total, &group.need);
            table.keep_into(kept, &mut self.algebra, &claim.types, set, total);
            return !kept.is_empty();
        }
        kept.assign(&claim.types);
        kept.clear();
        for group in &template.daemons {
            if !group.types.intersects(&claim.types) {
                continue;
            }
            columns::add(total, &group.need);
            table.keep_into(of_group, &mut self.algebra, &claim.types, set, total);
            of_group.and(&group.types);
            kept.or(of_group);
            columns::subtract(total, &group.need);
        }
        !kept.is_empty()
    }

    /// Whether `minValues` and reservations let the claim go on with the types in `lessons.kept`; the reservations it then holds.
    fn may_narrow(&mut self, number: usize, set: SetId) -> Option<Held> {
        let table = self.templates[self.claims[number].template].table;
        if self.algebra.has_min_values(set)
            && !unmet_min_values(&self.algebra, &self.tables[table], &self.lessons.kept, set).is_empty()
        {
            return None;
        }
        if !self.tables[table].has_reserved {
            return Some(Held::new());
        }
        let kept = std::mem::take(&mut self.lessons.kept);
        let held = std::mem::take(&mut self.claims[number].held);
        let reserved = self.reserve_for(table, &held, &kept, set);
        self.claims[number].held = held;
        self.lessons.kept = kept;
        reserved.ok()
    }
}

fn room(row: &Row, column: u32) -> columns::Cell {
    row.get(column as usize).copied().unwrap_or(0)
}

/// Takes the entry out, so that it can be written while everything else is read.
fn take(lessons: &mut Vec<Bits>, at: usize) -> Bits {
    if at >= lessons.len() {
        lessons.resize_with(at + 1, Bits::default);
    }
    std::mem::take(&mut lessons[at])
}
