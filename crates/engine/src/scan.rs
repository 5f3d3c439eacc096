//! Finding the first node or claim that takes a pod without asking those whose answer is known.
//!
//! Two kinds of knowledge save the asking. *Lessons* hold for good: a node or claim only ever gets fuller, so once it is too small for
//! some requests it stays too small for them. The *outlook* holds for one pod: claims with the same requirements give
//! the same answer about node selection and zones, so it is worked out once for all of them. Which claim is found
//! is not affected; `SolveOptions::caching` turns all of this off to prove it.
//!
//! Only pods without host ports and volumes come this way; the others are asked about one by one.

use smallvec::SmallVec;

use crate::algebra::{SetId, Undefined};
use crate::bits::Bits;
use crate::claim::{Held, Joined};
use crate::columns::{self, Row};
use crate::solver::{Candidate, Solver};
use crate::templates::unmet_min_values;
use crate::tolerance::TaintsId;
use crate::topology::Place;

/// What earlier pods taught, and storage that is used again and again.
#[derive(Default)]
pub(crate) struct Lessons {
    /// By requests: nodes without enough room for them.
    full_nodes: Vec<Bits>,
    /// By requests: claims without enough room for them.
    full_claims: Vec<Bits>,
    total: Row,
    kept: Bits,
    of_group: Bits,
}

/// By requirements of a node or claim: what they become with the pod, or that they cannot.
type Outlook = SmallVec<[(SetId, Option<SetId>); 16]>;

impl Solver<'_> {
    /// The first node that takes the pod, and its requirements then.
    pub(crate) fn first_plain_node(&mut self, candidate: Candidate) -> Option<(usize, SetId)> {
        let Candidate { pod, class } = candidate;
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let (demand, tolerations, need) = (shape.demand, shape.tolerations, shape.need as usize);
        let mut full = take(&mut self.lessons.full_nodes, need);
        let mut outlook = Outlook::new();
        let mut tolerated: SmallVec<[(TaintsId, bool); 8]> = SmallVec::new();
        let mut found = None;
        for number in 0..self.existing.len() {
            if full.contains(number) {
                continue;
            }
            let node = &self.existing[number];
            if node.volumes_exceeded || !node.fits(&self.classes.needs[need]) {
                full.insert_growing(number);
                continue;
            }
            let (taints, host, set) = (node.taints, node.host, node.set);
            let tolerates = match tolerated.iter().find(|(t, _)| *t == taints) {
                Some((_, known)) => *known,
                None => {
                    let answer = self.tolerance.tolerates(taints, tolerations);
                    tolerated.push((taints, answer));
                    answer
                }
            };
            if !tolerates || !self.algebra.host_ok(host, demand.host) {
                continue;
            }
            if self.check_host(pod, class, Place { set, host, taints }).is_err() {
                continue;
            }
            let answer = match outlook.iter().find(|(s, _)| *s == set) {
                Some((_, known)) => *known,
                None => {
                    let answer = self.outlook_of(candidate, set, Undefined::Denied);
                    outlook.push((set, answer));
                    answer
                }
            };
            if let Some(set) = answer {
                found = Some((number, set));
                break;
            }
        }
        self.lessons.full_nodes[need] = full;
        found
    }

    /// What a node or claim with requirements `set` becomes with the pod, as far as node selection and domains other than
    /// hosts go.
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
    pub(crate) fn first_plain_claim(&mut self, candidate: Candidate) -> Option<(usize, Joined)> {
        let Candidate { pod, class } = candidate;
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let (demand, tolerations, need) = (shape.demand, shape.tolerations, shape.need as usize);
        let tolerates: SmallVec<[bool; 8]> =
            self.templates.iter().map(|t| self.tolerance.tolerates(t.taints, tolerations)).collect();
        let mut full = take(&mut self.lessons.full_claims, need);
        let mut outlook = Outlook::new();
        let mut found = None;
        for position in 0..self.order.len() {
            let number = self.order.claims()[position] as usize;
            if full.contains(number) {
                continue;
            }
            let claim = &self.claims[number];
            let too_small =
                self.classes.needs[need].iter().any(|(column, cell)| *cell > room(&claim.room, *column));
            if too_small {
                full.insert_growing(number);
                continue;
            }
            let (template, host, set) = (claim.template, claim.host, claim.set);
            if !tolerates[template] || !self.algebra.host_ok(host, demand.host) {
                continue;
            }
            let taints = self.templates[template].taints;
            if self.check_host(pod, class, Place { set, host, taints }).is_err() {
                continue;
            }
            let answer = match outlook.iter().find(|(s, _)| *s == set) {
                Some((_, known)) => *known,
                None => {
                    let answer = self.outlook_of(candidate, set, Undefined::AllowedIfWellKnown);
                    outlook.push((set, answer));
                    answer
                }
            };
            let Some(narrowed) = answer else { continue };
            if !self.keep_types(number, need, narrowed) {
                // Its own requirements unchanged, only size can have ruled the instance types out.
                if narrowed == set {
                    full.insert_growing(number);
                }
                continue;
            }
            if let Some(held) = self.may_narrow(number, narrowed) {
                let types = self.lessons.kept.clone();
                found = Some((position, Joined { set: narrowed, types, held }));
                break;
            }
        }
        self.lessons.full_claims[need] = full;
        found
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
