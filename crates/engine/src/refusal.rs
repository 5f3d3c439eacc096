//! A "no" in the fewest words, and how to spell it out when somebody asks.
//!
//! Most refusals are never read: another node or claim takes the pod. So they are numbers first and become [`Rejection`]s only for
//! pods that found no place.

use crate::algebra::{Demand, SetId, Undefined};
use crate::bits::Bits;
use crate::claim::Claim;
use crate::classes::ClassId;
use crate::columns;
use crate::labels::HOSTNAME;
use crate::ports;
use crate::reasons::{
    InstanceTypeRejection, Rejection, ReservedRejection, Rule, TopologyRejection, VolumeLimit,
};
use crate::requirement::Requirement;
use crate::requirements::Incompatibility;
use crate::resources::Resources;
use crate::solver::Solver;
use crate::templates::unmet_min_values;
use crate::topology::Place;
use crate::vocabulary::HOST;
use crate::volumes::{self, Volumes};

/// The first rule that said no.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    NodeLimit,
    Limits,
    Taints,
    VolumeLimit,
    HostPort,
    Resources,
    Requirements,
    /// What there was, and the alternative it could not meet.
    VolumeRequirements(SetId, Demand),
    Topology {
        group: u32,
        inverse: bool,
        place: Place,
    },
    TopologyConflict(SetId, SetId),
    MinValues(SetId),
    InstanceTypes(SetId),
    Reserved(ReservedRejection),
}

impl Refusal {
    /// The rule by name.
    pub(crate) fn rule(&self) -> Rule {
        match self {
            Refusal::NodeLimit => Rule::NodeLimit,
            Refusal::Limits => Rule::Limits,
            Refusal::Taints => Rule::Taints,
            Refusal::VolumeLimit => Rule::VolumeLimit,
            Refusal::HostPort => Rule::HostPort,
            Refusal::Resources => Rule::Resources,
            Refusal::Requirements => Rule::Requirements,
            Refusal::VolumeRequirements(..) => Rule::VolumeTopology,
            Refusal::Topology { .. } => Rule::Topology,
            Refusal::TopologyConflict(..) => Rule::TopologyConflict,
            Refusal::MinValues(_) | Refusal::InstanceTypes(_) => Rule::InstanceTypes,
            Refusal::Reserved(_) => Rule::ReservedCapacity,
        }
    }

    /// Whether the pod should wait for reserved capacity instead of looking elsewhere.
    pub(crate) fn defers(&self) -> bool {
        matches!(self, Refusal::Reserved(why) if why.defers())
    }
}

impl Solver<'_> {
    /// Spells out why `claim` refused the pod.
    pub(crate) fn explain(
        &mut self,
        claim: &Claim,
        class: ClassId,
        volumes: Option<&Volumes>,
        refusal: Refusal,
    ) -> Rejection {
        let shape = self.classes.classes[class as usize].shape as usize;
        let (demand, tolerations) =
            (self.classes.shapes[shape].demand, self.classes.shapes[shape].tolerations);
        match refusal {
            Refusal::NodeLimit => Rejection::NodeLimitExhausted,
            Refusal::Limits => Rejection::LimitsExceeded,
            Refusal::Taints => {
                let taints = self.templates[claim.template].taints;
                Rejection::Taints(self.tolerance.untolerated(taints, tolerations))
            }
            Refusal::VolumeLimit => Rejection::VolumeLimit(self.claim_volume_limit(claim, volumes)),
            Refusal::HostPort | Refusal::Resources => {
                // Claims report both as instance types that do not fit.
                self.explain_types(claim, class, claim.set)
            }
            Refusal::Requirements => {
                let why = self.incompatibility(claim.set, claim.host, demand, Undefined::AllowedIfWellKnown);
                Rejection::Requirements(why)
            }
            Refusal::VolumeRequirements(base, alternative) => {
                let allowed = Undefined::AllowedIfWellKnown;
                Rejection::VolumeRequirements(self.incompatibility(base, claim.host, alternative, allowed))
            }
            Refusal::Topology { group, inverse, place } => {
                Rejection::Topology(self.topology_rejection(group, inverse, class, place))
            }
            Refusal::TopologyConflict(set, narrowed) => {
                Rejection::TopologyConflict(self.conflict(set, narrowed, Undefined::AllowedIfWellKnown))
            }
            Refusal::MinValues(set) | Refusal::InstanceTypes(set) => self.explain_types(claim, class, set),
            Refusal::Reserved(why) => Rejection::Reserved(why),
        }
    }

    /// Why the domains that constraints chose cannot be had.
    pub(crate) fn conflict(&mut self, set: SetId, narrowed: SetId, undefined: Undefined) -> Incompatibility {
        self.algebra.why_incompatible(set, narrowed, undefined).unwrap_or_else(unknown_conflict)
    }

    /// Why a machine cannot meet `demand`.
    pub(crate) fn incompatibility(
        &mut self,
        set: SetId,
        host: crate::vocabulary::ValueId,
        demand: Demand,
        undefined: Undefined,
    ) -> Incompatibility {
        let why = self.algebra.why_incompatible(set, demand.set, undefined);
        why.unwrap_or_else(|| match demand.host {
            Some(asked) => Incompatibility::NoOverlap {
                incoming: Box::new(self.algebra.render(asked)),
                existing: Box::new(self.host_requirement(host)),
            },
            None => unknown_conflict(),
        })
    }

    fn host_requirement(&self, host: crate::vocabulary::ValueId) -> Requirement {
        Requirement::one_of(HOSTNAME, [self.algebra.vocabulary.value_name(HOST, host).clone()])
    }

    fn claim_volume_limit(&self, claim: &Claim, added: Option<&Volumes>) -> Option<VolumeLimit> {
        let mut all = claim.volumes.clone();
        volumes::union_into(&mut all, added?);
        let table = &self.tables[self.templates[claim.template].table];
        all.iter().find_map(|(driver, claims)| {
            let limits: Option<Vec<i64>> =
                claim.types.iter().map(|t| table.types[t].volume_limits.get(driver).copied()).collect();
            let most = limits?.into_iter().max()?;
            (claims.len() as i64 > most).then(|| VolumeLimit {
                driver: driver.clone(),
                count: claims.len(),
                limit: most,
            })
        })
    }

    pub(crate) fn topology_rejection(
        &mut self,
        group: u32,
        inverse: bool,
        class: ClassId,
        place: Place,
    ) -> TopologyRejection {
        const SHOWN: usize = 25;
        let strict = self.classes.shapes[self.classes.classes[class as usize].shape as usize].strict;
        let groups = if inverse { &self.topology.inverse } else { &self.topology.groups };
        let group = &groups[group as usize];
        let vocabulary = &self.algebra.vocabulary;
        let key = vocabulary.key_name(group.key).clone();
        let mut counts: Vec<_> =
            group.counts.iter().map(|(v, n)| (vocabulary.value_name(group.key, v).clone(), n)).collect();
        counts.sort();
        counts.truncate(SHOWN);
        let render = |req: Option<crate::algebra::ReqId>| {
            req.map_or_else(|| Requirement::exists(key.clone()), |r| self.algebra.render(r))
        };
        let (pod_domains, node_domains) = if group.key == HOST {
            (render(strict.host), self.host_requirement(place.host))
        } else {
            (render(self.algebra.get(strict.set, group.key)), render(self.algebra.get(place.set, group.key)))
        };
        TopologyRejection {
            kind: group.kind,
            domains: group.counts.known(),
            key: key.clone(),
            counts,
            pod_domains,
            node_domains,
        }
    }

    fn explain_types(&mut self, claim: &Claim, class: ClassId, set: SetId) -> Rejection {
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let spec = shape.spec.clone();
        let mut total = claim.requests.clone();
        columns::add(&mut total, &self.classes.needs[shape.need as usize]);
        let template = &self.templates[claim.template];
        let table = &mut self.tables[template.table];
        let mut flags = [false; 5];
        let mut daemon_requests: Option<(Resources, Resources)> = None;
        let mut kept = Bits::none(table.len());
        for group in &template.daemons {
            let held: Vec<_> = group.ports.iter().chain(&claim.ports).cloned().collect();
            if ports::first_clash(&spec.host_ports, &held).is_some() {
                continue;
            }
            if !group.requests.is_empty() {
                daemon_requests = Some(match daemon_requests.take() {
                    None => (group.requests.clone(), group.requests.clone()),
                    Some((least, most)) => {
                        (least.min_of_shared(&group.requests), most.max_of_all(&group.requests))
                    }
                });
            }
            let mut with_daemons = total.clone();
            columns::add(&mut with_daemons, &group.need);
            let mut types = claim.types.clone();
            types.and(&group.types);
            let met = table.criteria(&mut self.algebra, &types, set, &with_daemons);
            for (flag, met) in flags.iter_mut().zip(met) {
                *flag |= met;
            }
            kept.or(&table.keep(&mut self.algebra, &types, set, &with_daemons));
        }
        let unmet = unmet_min_values(&self.algebra, table, &kept, set);
        let mut min_values: Vec<_> =
            unmet.iter().map(|(key, _)| self.algebra.vocabulary.key_name(*key).clone()).collect();
        min_values.sort();
        let of_template = &self.templates[claim.template];
        let room = |column: u32| {
            let taken = claim.requests.get(column as usize).copied().unwrap_or(0);
            claim.most(of_template, &self.tables, column as usize).saturating_sub(taken)
        };
        let nearest = if flags[1] { None } else { self.shortage(class, room) };
        Rejection::InstanceTypes(Box::new(InstanceTypeRejection {
            requirements_met: flags[0],
            fits: flags[1],
            has_offering: flags[2],
            requirements_and_offering: flags[3],
            fits_and_offering: flags[4],
            min_values,
            requirements: self.algebra.render_set(set),
            pod_requests: spec.requests.clone(),
            daemon_requests,
            nearest,
        }))
    }
}

/// Stands in where a second look finds no conflict: the counts have moved since the first.
fn unknown_conflict() -> Incompatibility {
    Incompatibility::UndefinedLabel { key: "".into(), hint: None }
}
