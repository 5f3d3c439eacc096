//! Places pods: on nodes that exist, then on claims in flight, then on new claims; relaxing what may be relaxed.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algebra::{Algebra, Demand, SetId, Undefined};
use crate::bits::Bits;
use crate::claim::Claim;
use crate::classes::{ClassId, Classes, Workshop};
use crate::columns::{Cell, Columns};
use crate::existing::ExistingNode;
use crate::finish::Launches;
use crate::go_sort::ClaimOrder;
use crate::journal::Journal;
use crate::pod::Pod;
use crate::ports;
use crate::reasons::{PoolRejection, Rejection, Unplaceable};
use crate::refusal::Refusal;
use crate::resources::{CPU, MEMORY};
use crate::scan::Lessons;
use crate::snapshot::{MinValuesPolicy, ReservedMode, Snapshot, SolveOptions};
use crate::templates::{Pool, Template};
use crate::tolerance::Tolerance;
use crate::topology::{Choice, Group, Place, Spot, Subject, Surroundings, Topology};
use crate::types::{ReservationId, Reservations, TypeTable};
use crate::vocabulary::{HOST, ValueId};
use crate::volumes::{self, Volumes};

/// A pod that needs a place.
pub(crate) struct BatchPod {
    pub(crate) pod: Arc<Pod>,
    /// As it is, unrelaxed.
    pub(crate) class: ClassId,
    /// Where its volumes can be reached; empty means anywhere.
    pub(crate) alternatives: Rc<[Demand]>,
    /// What its volumes attach, or why that cannot be told.
    pub(crate) volumes: Result<Option<Rc<Volumes>>, String>,
    /// Whether its constraints take part in the topology yet.
    pub(crate) registered: bool,
    /// Whether its node is going away by itself.
    pub(crate) leaving: bool,
    /// Whether it is on its way anyway (leaving, or not running yet), so that it may go to restless nodes.
    pub(crate) unsettled: bool,
}

/// Everything a pass works on.
pub(crate) struct Solver<'s> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) options: &'s SolveOptions,
    pub(crate) algebra: Algebra,
    pub(crate) tolerance: Tolerance,
    pub(crate) columns: Columns,
    pub(crate) reservations: Reservations,
    pub(crate) tables: Vec<TypeTable>,
    pub(crate) pools: Vec<Pool<'s>>,
    pub(crate) templates: Vec<Template>,
    pub(crate) topology: Topology,
    pub(crate) classes: Classes,
    pub(crate) pods: Vec<BatchPod>,
    pub(crate) existing: Vec<ExistingNode>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) order: ClaimOrder,
    /// Hostname of the next new claim.
    pub(crate) next_host: ValueId,
    pub(crate) tolerate_preferences: bool,
    /// What earlier pods taught about later ones.
    pub(crate) lessons: Lessons,
    /// NodePools that could not take a pod for which a lesser one then made a claim; kept only for readers.
    pub(crate) passed_over: BTreeMap<u32, Box<[PoolRejection]>>,
    /// Why each pod that was tried last found no place.
    pub(crate) errors: Vec<Option<Failure>>,
    /// Whether pods wait for reserved capacity.
    pub(crate) reserved_mode: ReservedMode,
    /// Nodes a simulation assumes away.
    pub(crate) absent: Bits,
    /// Whether settled pods do not move to restless nodes.
    pub(crate) spares_restless: bool,
    /// What is put back after a simulation; `None` when nothing is.
    pub(crate) journal: Option<Journal>,
    /// What earlier claims were launched with.
    pub(crate) launches: Launches,
    /// The reservation a simulation has given a slot back.
    pub(crate) credited: Option<ReservationId>,
}

/// Why a pod found no place, in the fewest words.
#[derive(Clone)]
pub(crate) enum Failure {
    /// It was not even tried on anything.
    Before(Unplaceable),
    /// What each template in turn said to the pod in the form of this class.
    Refused(ClassId, SmallVec<[Refusal; 2]>),
}

impl Failure {
    /// Whether weakening the pod's wishes is out of the question.
    fn is_final(&self) -> bool {
        match self {
            Failure::Before(reason) => matches!(reason, Unplaceable::ResourceClaims),
            // Waiting for reserved capacity, the pod keeps its preferences for next time.
            Failure::Refused(_, refusals) => refusals.iter().any(Refusal::defers),
        }
    }
}

/// Whom to place: a pod in the form its class has at the moment.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) pod: u32,
    pub(crate) class: ClassId,
}

impl Solver<'_> {
    /// Places every pod that can be placed; says how many it was not done with when it was out of time.
    pub(crate) fn solve(&mut self, out_of_time: &dyn Fn() -> bool) -> usize {
        let mut queue: VecDeque<u32> = self.queue().into();
        let mut last_len: Vec<usize> = vec![0; self.pods.len()];
        let mut tried_any = false;
        while let Some(pod) = queue.pop_front() {
            // A full round without progress: what is left cannot be placed.
            if last_len[pod as usize] == queue.len() + 1 {
                break;
            }
            // However late it is, a pass gets somewhere.
            if tried_any && out_of_time() {
                queue.push_front(pod);
                // Who would have been tried again has not been refused for good.
                for pod in &queue {
                    self.errors[*pod as usize] = None;
                }
                return queue.len();
            }
            tried_any = true;
            match self.attempt(pod) {
                Ok(()) => self.errors[pod as usize] = None,
                Err(reason) => {
                    self.errors[pod as usize] = Some(reason);
                    // Upstream registers the pod's constraints again; for a pod left out so far it is the first time.
                    self.pods[pod as usize].registered = true;
                    let class = self.pods[pod as usize].class;
                    self.register(class);
                    queue.push_back(pod);
                    last_len[pod as usize] = queue.len();
                }
            }
        }
        0
    }

    /// Largest first: by CPU, memory, age, UID.
    fn queue(&self) -> Vec<u32> {
        let (cpu, memory) = (self.columns.find(CPU), self.columns.find(MEMORY));
        let amount = |pod: &BatchPod, column: Option<u32>| -> Cell {
            let shape = self.classes.classes[pod.class as usize].shape;
            let need = &self.classes.needs[self.classes.shapes[shape as usize].need as usize];
            need.iter().find(|(c, _)| Some(*c) == column).map_or(0, |(_, cell)| *cell)
        };
        let mut keyed: Vec<(Cell, Cell, Option<i64>, u32)> = self
            .pods
            .iter()
            .enumerate()
            .map(|(i, p)| (amount(p, cpu), amount(p, memory), p.pod.created_seconds, i as u32))
            .collect();
        keyed.sort_unstable_by(|a, b| {
            (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2)).then_with(|| {
                let uid = |i: u32| &self.pods[i as usize].pod.uid;
                uid(a.3).cmp(uid(b.3)).then(a.3.cmp(&b.3))
            })
        });
        keyed.into_iter().map(|(_, _, _, i)| i).collect()
    }

    /// Tries the pod as it is, then ever more relaxed.
    fn attempt(&mut self, pod: u32) -> Result<(), Failure> {
        let mut candidate = Candidate { pod, class: self.pods[pod as usize].class };
        loop {
            let refused = match self.place(candidate) {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if refused.is_final() {
                return Err(refused);
            }
            let tolerate = self.tolerate_preferences;
            let Some((weaker, _)) =
                self.with_workshop(|classes, w| classes.relax(candidate.class, tolerate, w))
            else {
                return Err(refused);
            };
            self.pods[pod as usize].registered = true;
            self.register(weaker);
            candidate.class = weaker;
        }
    }

    pub(crate) fn with_workshop<R>(&mut self, f: impl FnOnce(&mut Classes, &mut Workshop<'_>) -> R) -> R {
        let mut workshop = Workshop {
            algebra: &mut self.algebra,
            tolerance: &mut self.tolerance,
            columns: &mut self.columns,
            policy: self.options.preference_policy,
        };
        f(&mut self.classes, &mut workshop)
    }

    pub(crate) fn register(&mut self, class: ClassId) {
        let mut around = Surroundings {
            algebra: &mut self.algebra,
            tolerance: &mut self.tolerance,
            tables: &self.tables,
            namespaces: &self.snapshot.namespaces,
        };
        self.classes.register(class, &mut self.topology, &mut around);
    }

    fn place(&mut self, candidate: Candidate) -> Result<(), Failure> {
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        if shape.spec.has_resource_claims && self.options.ignore_dra_requests {
            return Err(Failure::Before(Unplaceable::ResourceClaims));
        }
        if let Some(problem) = &shape.invalid {
            return Err(Failure::Before(Unplaceable::Invalid(problem.clone())));
        }
        let volumes = self.pods[candidate.pod as usize]
            .volumes
            .clone()
            .map_err(|problem| Failure::Before(Unplaceable::Volumes(problem)))?;
        let audience = self.classes.classes[candidate.class as usize].audience;
        self.classes.refresh_audience(audience, &self.topology);
        if self.place_on_existing(candidate, volumes.as_deref()) {
            return Ok(());
        }
        self.order.settle();
        if self.place_on_claim(candidate, volumes.as_deref()) {
            return Ok(());
        }
        if self.templates.is_empty() {
            return Err(Failure::Before(Unplaceable::NoPools));
        }
        self.place_on_new_claim(candidate, volumes.as_deref())
    }

    fn place_on_existing(&mut self, candidate: Candidate, volumes: Option<&Volumes>) -> bool {
        let found = if self.options.caching {
            self.first_node(candidate, volumes)
        } else {
            (0..self.existing.len()).find_map(|n| {
                let asked = self.may_ask(n, candidate.pod).then(|| self.can_join_node(n, candidate, volumes));
                asked?.ok().map(|set| (n, set))
            })
        };
        let Some((node, set)) = found else { return false };
        self.join_node(node, candidate, volumes, set);
        true
    }

    /// Whether the pod may go to the node as far as a simulation's assumptions are concerned.
    pub(crate) fn may_ask(&self, node: usize, pod: u32) -> bool {
        let spared = self.spares_restless && self.existing[node].restless;
        !self.absent.contains(node) && (!spared || self.pods[pod as usize].unsettled)
    }

    /// Whether the node takes the pod, and what it then is.
    pub(crate) fn can_join_node(
        &mut self,
        node: usize,
        candidate: impl Into<(u32, ClassId)>,
        volumes: Option<&Volumes>,
    ) -> Result<SetId, Refusal> {
        let (pod, class) = candidate.into();
        let shape = &self.classes.shapes[self.classes.classes[class as usize].shape as usize];
        let (demand, tolerations) = (shape.demand, shape.tolerations);
        let existing = &self.existing[node];
        if !self.tolerance.tolerates(existing.taints, tolerations) {
            return Err(Refusal::Taints);
        }
        if existing.exceeded_volume_limit(volumes.unwrap_or(&Volumes::new())).is_some() {
            return Err(Refusal::VolumeLimit);
        }
        if !shape.spec.host_ports.is_empty()
            && ports::first_clash(&shape.spec.host_ports, &existing.ports).is_some()
        {
            return Err(Refusal::HostPort);
        }
        if !existing.fits(&self.classes.needs[shape.need as usize]) {
            return Err(Refusal::Resources);
        }
        let (set, host, taints) = (existing.set, existing.host, existing.taints);
        if !self.algebra.compatible(set, demand.set, Undefined::Denied)
            || !self.algebra.host_ok(host, demand.host)
        {
            return Err(Refusal::Requirements);
        }
        let base = self.algebra.merge(set, demand.set);
        let alternatives = self.pods[pod as usize].alternatives.clone();
        if alternatives.is_empty() {
            return self.choose_domains(pod, class, Place { set: base, host, taints }, Undefined::Denied);
        }
        let mut last = Refusal::Requirements;
        for alternative in alternatives.iter() {
            if !self.algebra.compatible(base, alternative.set, Undefined::Denied)
                || !self.algebra.host_ok(host, alternative.host)
            {
                last = Refusal::VolumeRequirements(base, *alternative);
                continue;
            }
            let narrowed = self.algebra.merge(base, alternative.set);
            match self.choose_domains(pod, class, Place { set: narrowed, host, taints }, Undefined::Denied) {
                Ok(set) => return Ok(set),
                Err(refusal) => last = refusal,
            }
        }
        Err(last)
    }

    fn join_node(&mut self, node: usize, candidate: Candidate, volumes: Option<&Volumes>, set: SetId) {
        let shape = &self.classes.shapes[self.classes.classes[candidate.class as usize].shape as usize];
        let existing = &mut self.existing[node];
        if let Some(journal) = &mut self.journal {
            journal.before_node(node, existing);
        }
        for (column, cell) in &self.classes.needs[shape.need as usize] {
            let at = *column as usize;
            if at >= existing.remaining.len() {
                existing.remaining.resize(at + 1, 0);
            }
            existing.remaining[at] = existing.remaining[at].saturating_sub(*cell);
        }
        existing.pods.push((candidate.pod, candidate.class));
        existing.set = set;
        existing.ports.extend(shape.spec.host_ports.iter().cloned());
        if let Some(volumes) = volumes {
            volumes::union_into(&mut existing.volumes, volumes);
            existing.check_volumes();
        }
        let place = Place { set, host: existing.host, taints: existing.taints };
        self.record(candidate, place, Spot::Node(node));
    }

    fn place_on_claim(&mut self, candidate: Candidate, volumes: Option<&Volumes>) -> bool {
        let found = if self.options.caching {
            self.first_claim(candidate, volumes)
        } else {
            (0..self.order.len()).find_map(|position| {
                let number = self.order.claims()[position] as usize;
                self.can_join_claim(number, candidate, volumes).ok().map(|joined| (position, joined))
            })
        };
        let Some((position, joined)) = found else { return false };
        self.join_claim(self.order.claims()[position] as usize, candidate, volumes, joined);
        self.order.bump(position);
        true
    }

    /// Narrows the place to the domains every constraint on the pod allows.
    pub(crate) fn choose_domains(
        &mut self,
        pod: u32,
        class: ClassId,
        place: Place,
        undefined: Undefined,
    ) -> Result<SetId, Refusal> {
        self.check_host(pod, class, place)?;
        self.narrow_domains(pod, class, place, undefined)
    }

    /// The constraints that bind the pod: its own, then the anti-affinity of others. With group number, whether the group counts
    /// the pod, and whether it is inverse.
    pub(crate) fn constraints(
        &self,
        pod: u32,
        class: ClassId,
    ) -> impl Iterator<Item = (&Group, u32, bool, bool)> {
        let of_class = &self.classes.classes[class as usize];
        let audience = &self.classes.audiences[of_class.audience as usize];
        let owned: &[(u32, bool)] = if self.pods[pod as usize].registered { &of_class.owned } else { &[] };
        let groups = &self.topology.groups;
        let inverse = &self.topology.inverse;
        let own = owned.iter().map(move |(g, selects)| (&groups[*g as usize], *g, *selects, false));
        own.chain(audience.kept_away_by.iter().map(move |g| (&inverse[*g as usize], *g, true, true)))
    }

    /// Whether the constraints that look at hosts allow this one.
    pub(crate) fn check_host(&self, pod: u32, class: ClassId, place: Place) -> Result<(), Refusal> {
        let strict = self.classes.shapes[self.classes.classes[class as usize].shape as usize].strict;
        for (group, number, selects, inverse) in self.constraints(pod, class) {
            if group.key == HOST
                && group.choose_host(selects, strict.host, place.host, &self.algebra) == Choice::Nothing
            {
                return Err(Refusal::Topology { group: number, inverse, place });
            }
        }
        Ok(())
    }

    /// What is left of the place's requirements after the constraints that look at other domains than hosts.
    pub(crate) fn narrow_domains(
        &mut self,
        pod: u32,
        class: ClassId,
        place: Place,
        undefined: Undefined,
    ) -> Result<SetId, Refusal> {
        let of_class = &self.classes.classes[class as usize];
        let strict = self.classes.shapes[of_class.shape as usize].strict;
        let audience = &self.classes.audiences[of_class.audience as usize];
        let owned: &[(u32, bool)] = if self.pods[pod as usize].registered { &of_class.owned } else { &[] };
        let own = owned.iter().map(|(g, selects)| (&self.topology.groups[*g as usize], *g, *selects, false));
        let inverse =
            audience.kept_away_by.iter().map(|g| (&self.topology.inverse[*g as usize], *g, true, true));
        let mut narrowed = place.set;
        for (group, number, selects, inverse) in own.chain(inverse).filter(|(group, ..)| group.key != HOST) {
            let pod_domains = self.algebra.get(strict.set, group.key);
            match group.choose(selects, pod_domains, place.set, &mut self.algebra) {
                Choice::Here => {}
                Choice::Domains(req) => narrowed = self.algebra.narrow(narrowed, req),
                Choice::Nothing => return Err(Refusal::Topology { group: number, inverse, place }),
            }
        }
        if narrowed == place.set {
            return Ok(narrowed);
        }
        if !self.algebra.compatible(place.set, narrowed, undefined) {
            return Err(Refusal::TopologyConflict(place.set, narrowed));
        }
        Ok(self.algebra.merge(place.set, narrowed))
    }

    /// Counts the pod in every group that cares, now that its place is settled.
    pub(crate) fn record(&mut self, candidate: Candidate, place: Place, spot: Spot) {
        let registered = self.pods[candidate.pod as usize].registered;
        let kept_away_before = (!registered).then(|| self.kept_away_before(candidate.pod));
        let class = &self.classes.classes[candidate.class as usize];
        let audience = &self.classes.audiences[class.audience as usize];
        for number in &audience.counted_by {
            let group = &mut self.topology.groups[*number as usize];
            let counts = group
                .filter
                .as_ref()
                .is_none_or(|f| f.matches(place, &mut self.algebra, &mut self.tolerance));
            if !counts {
                continue;
            }
            if group.key == HOST {
                group.record_host(place.host, spot, &self.algebra.vocabulary);
                continue;
            }
            let Some(req) = self.algebra.get(place.set, group.key) else { continue };
            let req = self.algebra.req(req);
            // An anti-affinity blocks every domain the pod could land in (even those it excludes, as upstream has it); the
            // others count only where the domain is certain.
            let certain = !req.complement && req.values.len() == 1;
            if certain || group.kind == crate::reasons::TopologyKind::AntiAffinity {
                for value in &req.values {
                    group.counts.record(group.key, *value, &self.algebra.vocabulary);
                }
            }
        }
        for number in kept_away_before.as_ref().unwrap_or(&class.owned_inverse) {
            let group = &mut self.topology.inverse[*number as usize];
            if let Some(journal) = &mut self.journal {
                journal.before_inverse(*number, group);
            }
            if group.key == HOST {
                group.record_host(place.host, spot, &self.algebra.vocabulary);
            } else if let Some(req) = self.algebra.get(place.set, group.key) {
                for value in &self.algebra.req(req).values {
                    group.counts.record(group.key, *value, &self.algebra.vocabulary);
                }
            }
        }
    }

    /// The inverse groups of a pod whose constraints do not take part: where it has been so far, it keeps others away all the same.
    fn kept_away_before(&mut self, pod: u32) -> Vec<u32> {
        let pod = Arc::clone(&self.pods[pod as usize].pod);
        if pod.node_name.is_none() {
            return Vec::new();
        }
        let mut groups = self.inverse_groups_of(&pod);
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The inverse groups of a pod's required anti-affinity, one entry per term: two terms of one group count twice.
    pub(crate) fn inverse_groups_of(&mut self, pod: &Pod) -> Vec<u32> {
        if pod.spec.pod_anti_affinity.required.is_empty() {
            return Vec::new();
        }
        let tolerations = self.tolerance.tolerations(&pod.spec.tolerations);
        let subject =
            Subject { spec: &pod.spec, namespace: &pod.namespace, labels: &pod.labels, tolerations };
        let mut around = Surroundings {
            algebra: &mut self.algebra,
            tolerance: &mut self.tolerance,
            tables: &self.tables,
            namespaces: &self.snapshot.namespaces,
        };
        self.topology.own_inverse_groups_listed(subject, &mut around).unwrap_or_default()
    }

    fn place_on_new_claim(&mut self, candidate: Candidate, volumes: Option<&Volumes>) -> Result<(), Failure> {
        let relax = self.options.min_values_policy == MinValuesPolicy::BestEffort;
        let mut refusals: SmallVec<[Refusal; 2]> = SmallVec::new();
        for number in 0..self.templates.len() {
            let template = &self.templates[number];
            if self.pools[template.pool].nodes_exhausted(&self.columns) {
                refusals.push(Refusal::NodeLimit);
                continue;
            }
            if template.within_limits.is_empty() {
                refusals.push(Refusal::Limits);
                continue;
            }
            let claim = Claim::new(
                number,
                self.next_host,
                template.set,
                template.within_limits.clone(),
                self.columns.len(),
            );
            match self.can_join(&claim, candidate, volumes, relax) {
                Ok(joined) => {
                    if self.options.explain && !refusals.is_empty() {
                        let passed_over = self.explain_pools(candidate, refusals);
                        self.passed_over.insert(candidate.pod, passed_over.into());
                    }
                    self.create(claim, candidate, volumes, joined);
                    return Ok(());
                }
                Err(refusal) => {
                    refusals.push(refusal);
                    // Reserved capacity is worth waiting for; lesser pools are not asked.
                    if refusal.defers() {
                        break;
                    }
                }
            }
        }
        Err(Failure::Refused(candidate.class, refusals))
    }

    /// Spells out why a pod found no place.
    pub(crate) fn explain_failure(&mut self, pod: u32, failure: Failure) -> Unplaceable {
        let (class, refusals) = match failure {
            Failure::Before(reason) => return reason,
            Failure::Refused(class, refusals) => (class, refusals),
        };
        Unplaceable::AllPools(self.explain_pools(Candidate { pod, class }, refusals))
    }

    /// Spells out what the first templates said.
    fn explain_pools(
        &mut self,
        candidate: Candidate,
        refusals: SmallVec<[Refusal; 2]>,
    ) -> Vec<PoolRejection> {
        let volumes = self.pods[candidate.pod as usize].volumes.clone().unwrap_or_default();
        refusals
            .into_iter()
            .enumerate()
            .map(|(number, refusal)| PoolRejection {
                node_pool: self.templates[number].name.clone(),
                reason: self.explain_new_claim(number, candidate.class, volumes.as_deref(), refusal),
            })
            .collect()
    }

    fn explain_new_claim(
        &mut self,
        template: usize,
        class: ClassId,
        volumes: Option<&Volumes>,
        refusal: Refusal,
    ) -> Rejection {
        let of_template = &self.templates[template];
        let claim = Claim::new(
            template,
            self.next_host,
            of_template.set,
            of_template.within_limits.clone(),
            self.columns.len(),
        );
        self.explain(&claim, class, volumes, refusal)
    }
}

impl From<Candidate> for (u32, ClassId) {
    fn from(candidate: Candidate) -> Self {
        (candidate.pod, candidate.class)
    }
}
