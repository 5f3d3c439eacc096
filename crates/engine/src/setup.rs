//! From a snapshot to a solver: everything compiled once, in the order upstream does it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;
use karpenter_api::annotations;

use crate::algebra::{Algebra, Demand, NO_HOST};
use crate::bits::Bits;
use crate::classes::{Classes, Workshop, with_sorted_preferences};
use crate::columns::{self, Columns, Need, Row};
use crate::daemons::{self, DaemonPod};
use crate::default_spread;
use crate::eligibility::{self, Drain, is_terminal};
use crate::existing::ExistingNode;
use crate::finish::Launches;
use crate::go_sort::ClaimOrder;
use crate::hashing::FixedState;
use crate::instance_type::InstanceType;
use crate::labels::{INSTANCE_TYPE, Labels, NODE_POOL, Text};
use crate::node::{NodeClaim, Standing, StateNode};
use crate::node_pool::InstanceTypes;
use crate::overlay::{self, Overlaid};
use crate::plan::{IgnoredPod, Plan};
use crate::pod::{HostPort, Phase, Pod, PodSpec};
use crate::reasons::{SkipReason, SkippedPool};
use crate::resources::{Amount, NODES};
use crate::roster::Roster;
use crate::scan::Lessons;
use crate::snapshot::{DrainPatience, MinValuesPolicy, ReservedMode, Snapshot, SolveOptions};
use crate::solver::{BatchPod, Solver};
use crate::templates::{
    Kind, Pool, Template, domain_requirements, participating, template_labels, template_requirements,
    unmet_min_values,
};
use crate::tolerance::Tolerance;
use crate::topology::{CountedNode, Place, PoolDomains, Topology, Universe};
use crate::types::{Reservations, TypeTable};
use crate::vocabulary::{HOST, ValueId, Vocabulary};
use crate::volumes::{self, Volumes};

/// A machine with what is asked about it most looked up once.
struct Machine<'s> {
    state: &'s StateNode,
    standing: Standing,
    name: &'s Text,
    labels: &'s Labels,
}

impl<'s> Machine<'s> {
    fn new(state: &'s StateNode, now: Timestamp, patience: DrainPatience) -> Self {
        let standing = state.standing(now, patience);
        Machine {
            state,
            standing,
            name: state.name_at(standing.registered),
            labels: state.labels_at(standing.registered),
        }
    }
}

/// What a simulation assumes beyond the snapshot. Provisioning assumes nothing.
#[derive(Default)]
pub(crate) struct Assumptions<'s> {
    /// Whether it is a simulation: decided even if no pod needs a place.
    pub(crate) simulated: bool,
    /// Positions in the snapshot of machines that are no more, in ascending order.
    pub(crate) gone: Vec<usize>,
    /// Their pods that need another place.
    pub(crate) moving: Vec<&'s Arc<Pod>>,
    /// Whether nodes that have seen pods come or go lately are left alone (`consolidateAfter`).
    pub(crate) spares_restless: bool,
    /// A reservation that gets a slot back.
    pub(crate) credited: Option<&'s Text>,
    /// Overrules the options.
    pub(crate) reserved_mode: Option<ReservedMode>,
    /// Whether simulations follow that each assume something else: what they may need is compiled, and the batch is
    /// left to them to register.
    pub(crate) shared: bool,
    /// The cluster's pods, if they have been put in order already.
    pub(crate) roster: Option<Arc<Roster<'s>>>,
}

impl<'s> Solver<'s> {
    /// Compiles the snapshot; `None` when there is nothing to decide, with what is already known in `plan`.
    pub(crate) fn prepare(
        snapshot: &'s Snapshot,
        options: &'s SolveOptions,
        assumptions: &Assumptions<'s>,
        plan: &mut Plan,
    ) -> Option<Solver<'s>> {
        let mut machines: Vec<Machine<'s>> = snapshot
            .nodes
            .iter()
            .enumerate()
            .filter(|(number, _)| assumptions.gone.binary_search(number).is_err())
            .map(|(_, machine)| machine)
            .filter(|n| n.node.is_some() || n.claim.is_some())
            .map(|state| Machine::new(state, snapshot.now, options.drain_patience))
            .collect();
        if !machines.is_sorted_by_key(|m| m.name) {
            machines.sort_by_key(|m| m.name);
        }
        let (deleting, active): (Vec<Machine<'s>>, Vec<Machine<'s>>) =
            machines.into_iter().partition(|m| m.state.deleting());
        let roster = assumptions.roster.clone();
        let roster = roster.unwrap_or_else(|| Arc::new(Roster::new(snapshot)));
        let batch = batch(snapshot, options, &roster, &deleting, &assumptions.moving, plan);
        if batch.is_empty() && !assumptions.simulated {
            return None;
        }
        let participants = participating(snapshot, &mut plan.skipped_pools, &mut plan.rejected);
        if participants.is_empty() {
            return None;
        }

        let mut algebra = Algebra::new(Vocabulary::new(
            snapshot.provider.well_known_labels.iter().chain([&snapshot.provider.reservation_id_label]),
        ));
        let next_host = ValueId(0);
        let mut solver = Solver {
            snapshot,
            options,
            algebra: {
                algebra.exists(HOST);
                algebra
            },
            tolerance: Tolerance::new(),
            columns: Columns::default(),
            reservations: Reservations::default(),
            tables: Vec::new(),
            pools: Vec::new(),
            templates: Vec::new(),
            topology: Topology::new(options.preference_policy, Universe::default()),
            classes: Classes::default(),
            pods: Vec::with_capacity(batch.len()),
            existing: Vec::new(),
            claims: Vec::new(),
            order: ClaimOrder::default(),
            next_host,
            tolerate_preferences: false,
            lessons: Lessons::default(),
            passed_over: BTreeMap::new(),
            errors: Vec::new(),
            reserved_mode: assumptions.reserved_mode.unwrap_or(options.reserved_mode),
            absent: Bits::default(),
            spares_restless: assumptions.spares_restless,
            journal: None,
            launches: Launches::default(),
            credited: None,
        };
        solver.add_pools(&participants, plan);
        solver.credited = assumptions.credited.and_then(|name| solver.reservations.credit(name));
        solver.add_batch(&batch, &deleting);
        solver.count_cluster(&active, &roster, &batch, assumptions.shared);
        if !assumptions.shared {
            solver.register_batch();
        }
        solver.add_templates(plan);
        let mut daemon_pods = daemons::daemon_pods(
            snapshot,
            options.ignore_dra_requests,
            &mut solver.algebra,
            &mut solver.tolerance,
            &mut solver.columns,
        );
        solver.group_daemons(&mut daemon_pods);
        solver.add_existing(&active, &roster, &daemon_pods);
        if assumptions.spares_restless || assumptions.shared {
            solver.note_restless(&active);
        }
        for template in &mut solver.templates {
            template.apply_limits(&solver.pools[template.pool], &solver.tables[template.table]);
        }
        solver.next_host = solver.algebra.vocabulary.placeholder_host(1);
        solver.errors = (0..solver.pods.len()).map(|_| None).collect();
        Some(solver)
    }

    /// Pools in order, with their instance types; equal lists are compiled once.
    fn add_pools(&mut self, participants: &[&'s crate::node_pool::NodePool], plan: &mut Plan) {
        let overlaid = if self.options.gates.node_overlay {
            overlay::evaluate(self.snapshot)
        } else {
            Overlaid::default()
        };
        let mut compiled = Vec::new();
        for source in participants {
            let skip = match &source.instance_types {
                InstanceTypes::Unresolved { reason } => Some(SkipReason::Unresolved(reason.clone())),
                InstanceTypes::Resolved(types) if types.is_empty() => Some(SkipReason::NoInstanceTypes),
                InstanceTypes::Resolved(_) => None,
            };
            let types = if skip.is_none() { overlaid.types_of(source) } else { None };
            if let Some(reason) = skip {
                plan.skipped_pools.push(SkippedPool { node_pool: source.name.clone(), reason });
            }
            let mut pool = Pool::new(source, types, &mut self.columns);
            self.tolerate_preferences |= pool.has_preference_taint();
            if let Some(types) = &pool.types {
                let own = (types.clone(), source.taints.clone());
                let tainted = source.tainted.iter().map(|kind| {
                    let taints = source.taints.iter().chain(&kind.taints).cloned().collect();
                    (overlaid.of_pool(source, &kind.instance_types), taints)
                });
                let set = self.algebra.demand(&domain_requirements(source)).set;
                for (types, taints) in std::iter::once(own).chain(tainted) {
                    let table = self.table_of(&types, &mut compiled);
                    let taints = self.tolerance.taints(&taints);
                    self.topology.universe.pools.push(PoolDomains { set, taints, table });
                    pool.kinds.push(Kind { taints, table });
                }
            }
            self.pools.push(pool);
        }
    }

    /// The table of these instance types, which is known to `compiled` then.
    fn table_of(
        &mut self,
        types: &Arc<[InstanceType]>,
        compiled: &mut Vec<(Arc<[InstanceType]>, usize)>,
    ) -> usize {
        if let Some((_, table)) = compiled.iter().find(|(known, _)| Arc::ptr_eq(known, types)) {
            return *table;
        }
        self.tables.push(TypeTable::compile(
            types,
            &mut self.algebra,
            &mut self.columns,
            &mut self.reservations,
            &self.snapshot.provider.reservation_id_label,
        ));
        compiled.push((types.clone(), self.tables.len() - 1));
        self.tables.len() - 1
    }

    fn add_batch(&mut self, batch: &[&Arc<Pod>], deleting: &[Machine<'s>]) {
        // Pods know their node by its own name, which a machine goes by only once it has registered. Upstream asks by the Node
        // whether a pod is of one that goes, and by the machine's name whether it may go to nodes that wait for `consolidateAfter`.
        let leaving: BTreeSet<&str> =
            deleting.iter().filter_map(|m| m.state.node.as_ref()).map(|node| node.name.as_ref()).collect();
        let unsettled: BTreeSet<&str> = deleting.iter().map(|machine| &**machine.name).collect();
        self.add_pods(batch, |node| leaving.contains(node), |node| unsettled.contains(node));
    }

    /// Adds pods that need a place; `leaving` says which nodes are going away by themselves, and `unsettled` whose pods may go to
    /// nodes that wait for `consolidateAfter`.
    pub(crate) fn add_pods(
        &mut self,
        batch: &[&Arc<Pod>],
        leaving: impl Fn(&str) -> bool,
        unsettled: impl Fn(&str) -> bool,
    ) {
        let defaults = &self.options.default_spread;
        let nowhere: Rc<[Demand]> = Rc::from([]);
        // Pods of a workload share their spec; what follows from it is worked out once.
        let mut prepared: HashMap<usize, Arc<PodSpec>, FixedState> = HashMap::default();
        for pod in batch {
            let (alternatives, volumes, registered) = if pod.spec.volumes.is_empty() {
                (nowhere.clone(), Ok(None), true)
            } else {
                let attached = volumes::attachments(pod, self.snapshot).map(|v| Some(Rc::new(v)));
                match volumes::alternatives(pod, self.snapshot) {
                    Ok(found) => (found.iter().map(|r| self.algebra.demand(r)).collect(), attached, true),
                    Err(_) => (nowhere.clone(), attached, false),
                }
            };
            let spec = if defaults.is_empty() || !registered {
                prepared
                    .entry(Arc::as_ptr(&pod.spec) as usize)
                    .or_insert_with(|| with_sorted_preferences(&pod.spec))
                    .clone()
            } else {
                with_sorted_preferences(&default_spread::apply(pod, defaults, self.snapshot))
            };
            let class = self.with_workshop(|classes, workshop| classes.of_pod(pod, &spec, workshop));
            let node = pod.node_name.as_deref();
            let leaving = node.is_some_and(&leaving);
            let unsettled = node.is_some_and(&unsettled) || pod.status.phase == Phase::Pending;
            let pod = (*pod).clone();
            self.pods.push(BatchPod { pod, class, alternatives, volumes, registered, leaving, unsettled });
        }
    }

    /// What is already placed, for the topology to count.
    fn count_cluster(
        &mut self,
        active: &[Machine<'s>],
        roster: &Roster<'s>,
        batch: &[&Arc<Pod>],
        shared: bool,
    ) {
        let may_be_needed = shared && (roster.constrained || !self.options.default_spread.is_empty());
        let needed = may_be_needed
            || self.pods.iter().any(|p| {
                let shape = self.classes.classes[p.class as usize].shape;
                self.classes.shapes[shape as usize].spec.looks_at_pods()
            });
        let moving = batch
            .iter()
            .zip(&self.pods)
            .filter(|(pod, entry)| pod.node_name.is_some() && entry.registered)
            .map(|(pod, _)| Arc::as_ptr(pod))
            .collect::<HashSet<_, FixedState>>();
        let counts = |pod: &Arc<Pod>| moving.is_empty() || !moving.contains(&Arc::as_ptr(pod));
        if needed {
            self.add_counted_nodes(active);
            let mut places = std::mem::take(&mut self.topology.placed_at);
            for (number, node) in self.topology.nodes.iter().enumerate() {
                for pod in roster.on(&node.name) {
                    if is_terminal(pod) || pod.status.terminating || !counts(pod) {
                        continue;
                    }
                    let address = (pod.namespace.as_ptr() as usize, pod.labels.address());
                    let placed = &mut self.topology.placed;
                    let at = *places.entry(address).or_insert_with(|| {
                        placed.push((pod.namespace.clone(), pod.labels.clone(), Vec::new()));
                        placed.len() - 1
                    });
                    placed[at].2.push(number as u32);
                }
            }
            self.topology.placed_at = places;
        }
        if roster.keeps_away {
            self.count_inverse(roster, &counts);
        }
    }

    fn add_counted_nodes(&mut self, active: &[Machine<'s>]) {
        let snapshot = self.snapshot;
        let mut numbers: HashMap<*const crate::node::Node, u32, FixedState> =
            HashMap::with_capacity_and_hasher(snapshot.nodes.len(), FixedState::default());
        self.algebra.expect_labels(snapshot.nodes.len());
        let of_state = snapshot.nodes.iter().filter_map(|n| n.node.as_deref());
        for node in of_state.chain(&snapshot.other_nodes) {
            let demand = self.algebra.labels(&node.labels);
            let host = demand.host.map_or(NO_HOST, |r| self.algebra.req(r).values[0]);
            let taints = self.tolerance.taints(&node.taints);
            numbers.insert(std::ptr::from_ref(node), self.topology.nodes.len() as u32);
            self.topology.nodes.push(CountedNode {
                name: node.name.clone(),
                labels: node.labels.clone(),
                place: Place { set: demand.set, host, taints },
            });
        }
        for machine in active {
            if let Some(node) = &machine.state.node {
                let number = numbers[&Arc::as_ptr(node)];
                self.topology.active.push((number, machine.labels.clone()));
            }
        }
    }

    /// Placed pods keep others away by their required anti-affinity, wherever they are.
    fn count_inverse(&mut self, roster: &Roster<'s>, counts: &impl Fn(&Arc<Pod>) -> bool) {
        let snapshot = self.snapshot;
        for node in snapshot.nodes.iter().filter_map(|n| n.node.as_ref()) {
            for pod in roster.on(&node.name) {
                if pod.spec.pod_anti_affinity.required.is_empty() || is_terminal(pod) || !counts(pod) {
                    continue;
                }
                for number in self.inverse_groups_of(pod) {
                    let group = &mut self.topology.inverse[number as usize];
                    let key = self.algebra.vocabulary.key_name(group.key).clone();
                    if let Some(domain) = node.labels.get(&key) {
                        let value = self.algebra.vocabulary.value(group.key, domain);
                        group.counts.record(group.key, value, &self.algebra.vocabulary);
                    }
                }
            }
        }
    }

    fn register_batch(&mut self) {
        for pod in 0..self.pods.len() {
            if self.pods[pod].registered {
                self.register(self.pods[pod].class);
            }
        }
    }

    /// Templates of pools that have a suitable instance type: one for each kind of nodes that has.
    fn add_templates(&mut self, plan: &mut Plan) {
        for pool in 0..self.pools.len() {
            // A pool without instance types never becomes a template; its reason has been given.
            let kinds = std::mem::take(&mut self.pools[pool].kinds);
            let refusals: Vec<_> =
                kinds.iter().filter_map(|kind| self.add_template(pool, *kind).err()).collect();
            // Where other kinds will do, nothing keeps the pool out.
            if refusals.len() == kinds.len()
                && let Some(reason) = refusals.into_iter().next()
            {
                let node_pool = self.pools[pool].source.name.clone();
                plan.skipped_pools.push(SkippedPool { node_pool, reason });
            }
            self.pools[pool].kinds = kinds;
        }
    }

    fn add_template(&mut self, pool: usize, kind: Kind) -> Result<(), SkipReason> {
        let source = self.pools[pool].source;
        let Kind { taints, table } = kind;
        let labels = template_labels(source);
        let set = self.algebra.demand(&template_requirements(source, &labels)).set;
        let all = Bits::all(self.tables[table].len());
        let mut types = self.tables[table].keep(&mut self.algebra, &all, set, &[]);
        let mut unmet = unmet_min_values(&self.algebra, &self.tables[table], &types, set);
        if self.options.min_values_policy == MinValuesPolicy::BestEffort {
            unmet.clear();
        }
        if !unmet.is_empty() {
            types = Bits::none(self.tables[table].len());
        }
        if types.is_empty() {
            let named = |(key, reached)| (self.algebra.vocabulary.key_name(key).clone(), reached);
            return Err(SkipReason::FilteredOut { min_values: unmet.into_iter().map(named).collect() });
        }
        self.templates.push(Template {
            pool,
            table,
            name: source.name.clone(),
            labels,
            set,
            taints,
            within_limits: types.clone(),
            largest: largest(&self.tables[table], &types),
            types,
            daemons: Vec::new(),
            min_values_relaxed: false,
        });
        Ok(())
    }

    fn group_daemons(&mut self, daemon_pods: &mut [DaemonPod]) {
        let mut workshop = Workshop {
            algebra: &mut self.algebra,
            tolerance: &mut self.tolerance,
            columns: &mut self.columns,
            policy: self.options.preference_policy,
        };
        for template in &mut self.templates {
            let table = &mut self.tables[template.table];
            template.daemons = daemons::group_types(template, daemon_pods, table, &mut workshop);
        }
    }

    /// Nodes pods can go to: those that are up first, then by name. Their capacity counts against their pool's limits.
    fn add_existing(&mut self, active: &[Machine<'s>], roster: &Roster<'s>, daemon_pods: &[DaemonPod]) {
        let pool_numbers: BTreeMap<Text, usize> =
            self.pools.iter().enumerate().map(|(i, p)| (p.source.name.clone(), i)).collect();
        let type_limits = self.type_limits();
        let node_count = self.columns.find(NODES);
        let mut needs = Needs::default();
        self.existing.reserve(active.len());
        for machine in active {
            let node = self.existing_node(machine, roster, daemon_pods, &type_limits, &mut needs);
            self.existing.push(node);
            let pool = machine.labels.get(NODE_POOL).and_then(|name| pool_numbers.get(name).copied());
            if let Some(pool) = pool
                && !self.pools[pool].remaining.is_empty()
            {
                let capacity = self.columns.need(&machine.state.capacity_at(machine.standing.initialized));
                self.pools[pool].take(|column| match capacity.iter().find(|(c, _)| *c == column) {
                    _ if Some(column) == node_count => Amount::units(1).as_nanos(),
                    Some((_, cell)) => *cell,
                    None => 0,
                });
            }
        }
        let in_order = |a: &ExistingNode, b: &ExistingNode| {
            let up = |node: &ExistingNode| node.initialized && !node.rebooting;
            up(b).cmp(&up(a)).then_with(|| a.name.cmp(&b.name))
        };
        if !self.existing.is_sorted_by(|a, b| in_order(a, b).is_le()) {
            self.existing.sort_by(in_order);
        }
    }

    /// Notes which nodes have seen pods come or go within their pool's `consolidateAfter`.
    fn note_restless(&mut self, active: &[Machine<'s>]) {
        let now = self.snapshot.now.as_nanosecond();
        let restless: BTreeSet<&str> = active
            .iter()
            .filter(|machine| {
                let pool = machine.labels.get_or_empty(NODE_POOL);
                let pool = self.pools.iter().find(|p| p.source.name.as_ref() == pool);
                let after = pool.and_then(|p| p.source.consolidate_after_seconds).filter(|s| *s != 0);
                let conditions = machine.state.claim.as_ref().map(|c| &c.conditions);
                let since = conditions.and_then(|c| {
                    c.initialized_since_seconds.map(|up| c.last_pod_event_seconds.unwrap_or(up))
                });
                after.zip(since).is_some_and(|(after, since)| {
                    now - i128::from(since) * 1_000_000_000 < i128::from(after) * 1_000_000_000
                })
            })
            .map(|machine| machine.name.as_ref())
            .collect();
        for node in &mut self.existing {
            node.restless = restless.contains(node.name.as_ref());
        }
    }

    /// Volume limits of instance types that have any, by pool and name.
    fn type_limits(&self) -> TypeLimits {
        let mut limits = TypeLimits::new();
        for pool in &self.pools {
            for instance_type in pool.types.iter().flat_map(|t| t.iter()).rev() {
                if !instance_type.volume_limits.is_empty() {
                    let at = (pool.source.name.clone(), instance_type.name.clone());
                    limits.insert(at, instance_type.volume_limits.clone());
                }
            }
        }
        limits
    }

    fn existing_node(
        &mut self,
        machine: &Machine<'s>,
        roster: &Roster<'s>,
        daemon_pods: &[DaemonPod],
        type_limits: &TypeLimits,
        needs: &mut Needs,
    ) -> ExistingNode {
        let taints = self.tolerance.taints(&machine.state.taints_at(machine.standing));
        let labels = self.algebra.labels(machine.labels);
        let label_host = labels.host.map_or(NO_HOST, |r| self.algebra.req(r).values[0]);
        let running = daemon_pods.iter().filter(|d| {
            d.runs_on_node(labels.set, label_host, taints, &mut self.algebra, &mut self.tolerance)
        });
        let expected: Vec<&Need> = running.map(|d| &d.need).collect();
        let usage = self.usage(machine.state, roster, needs);
        // Daemons still to come: those expected less those there, never less than nothing.
        let width = self.columns.len();
        let mut pending = vec![0; width];
        for need in expected {
            columns::add(&mut pending, need);
        }
        let allocatable = self.columns.need(&machine.state.allocatable_at(machine.standing.initialized));
        let mut remaining = vec![0; width.max(self.columns.len())];
        let mut overcommitted = false;
        for (column, cell) in &allocatable {
            let at = *column as usize;
            let used = usage.requests.get(at).copied().unwrap_or(0);
            let there = usage.daemons.get(at).copied().unwrap_or(0);
            let coming = pending.get(at).copied().unwrap_or(0).saturating_sub(there).max(0);
            remaining[at] = cell.saturating_sub(used).saturating_sub(coming);
            overcommitted |= remaining[at] < 0;
        }
        let mut node = ExistingNode {
            name: machine.name.clone(),
            initialized: machine.standing.initialized,
            rebooting: machine.state.claim.as_ref().is_some_and(|c| c.conditions.rebooting),
            // The hostname is the label, or the name while the label is missing or empty.
            host: match label_host {
                host if host != NO_HOST && !self.algebra.vocabulary.value_name(HOST, host).is_empty() => host,
                _ => self.algebra.vocabulary.value(HOST, machine.name),
            },
            set: labels.set,
            taints,
            remaining,
            overcommitted,
            ports: usage.ports,
            volumes: usage.volumes,
            volume_limits: volume_limits(machine, type_limits),
            volumes_exceeded: false,
            restless: false,
            pods: Vec::new(),
        };
        node.check_volumes();
        node
    }

    /// What the pods on a node use.
    fn usage(&mut self, state: &StateNode, roster: &Roster<'s>, needs: &mut Needs) -> Usage {
        let mut usage = Usage::default();
        let Some(node) = &state.node else { return usage };
        for pod in roster.on(&node.name).filter(|p| !is_terminal(p)) {
            let need = needs
                .of_pods
                .entry(Arc::as_ptr(&pod.spec) as usize)
                .or_insert_with(|| self.columns.need(&pod.spec.requests));
            columns::add(&mut usage.requests, need);
            if pod.owners.daemon_set {
                columns::add(&mut usage.daemons, need);
            }
            usage.ports.extend(pod.spec.host_ports.iter().cloned());
            if !pod.spec.volumes.is_empty()
                && let Ok(volumes) = volumes::attachments(pod, self.snapshot)
            {
                volumes::union_into(&mut usage.volumes, &volumes);
            }
        }
        usage
    }
}

/// Volume limits by pool and instance type.
type TypeLimits = BTreeMap<(Text, Text), BTreeMap<Text, i64>>;

/// What a CSINode publishes counts; the instance type fills in drivers it does not mention.
fn volume_limits(machine: &Machine<'_>, type_limits: &TypeLimits) -> BTreeMap<Text, i64> {
    let published = machine.state.node.as_ref().map(|n| &n.csi_limits);
    let mut limits: BTreeMap<Text, i64> = published
        .into_iter()
        .flatten()
        .filter_map(|(driver, limit)| limit.map(|l| (driver.clone(), l)))
        .collect();
    if type_limits.is_empty() {
        return limits;
    }
    let label = |key: &str| machine.labels.get(key).cloned().unwrap_or_else(|| "".into());
    let own = type_limits.get(&(label(NODE_POOL), label(INSTANCE_TYPE)));
    for (driver, limit) in own.into_iter().flatten() {
        if !published.is_some_and(|p| p.contains_key(driver)) {
            limits.insert(driver.clone(), *limit);
        }
    }
    limits
}

/// The most of each column any of `types` has.
fn largest(table: &TypeTable, types: &Bits) -> Row {
    let mut largest = Row::new();
    for number in types.iter() {
        for (column, cell) in table.types[number].capacity.iter().enumerate() {
            if column >= largest.len() {
                largest.push(*cell);
            } else {
                largest[column] = largest[column].max(*cell);
            }
        }
    }
    largest
}

/// Requests of pods, by the address of their spec.
#[derive(Default)]
struct Needs {
    of_pods: HashMap<usize, Need, FixedState>,
}

#[derive(Default)]
struct Usage {
    requests: Row,
    daemons: Row,
    ports: Vec<HostPort>,
    volumes: Volumes,
}

/// Pods that need a place: waiting ones, virtual ones of capacity buffers, those a simulation moves, then those of nodes going away.
fn batch<'s>(
    snapshot: &'s Snapshot,
    options: &SolveOptions,
    roster: &Roster<'s>,
    deleting: &[Machine<'s>],
    moving: &[&'s Arc<Pod>],
    plan: &mut Plan,
) -> Vec<&'s Arc<Pod>> {
    let mut batch = Vec::new();
    let mut sound: HashMap<usize, bool, FixedState> = HashMap::default();
    for pod in roster.waiting.iter().copied() {
        // Pods of a workload share their spec, so most are as good as the one before.
        let address = Arc::as_ptr(&pod.spec) as usize;
        if pod.spec.volumes.is_empty() && sound.get(&address) == Some(&true) {
            batch.push(pod);
            continue;
        }
        let reasons = eligibility::rejections(pod, snapshot);
        sound.insert(address, reasons.is_empty());
        if reasons.is_empty() {
            batch.push(pod);
        } else {
            plan.ignored_pods.push(IgnoredPod { pod: pod.clone(), reasons });
        }
    }
    if options.gates.capacity_buffer {
        batch.extend(&snapshot.buffer_pods);
    }
    batch.extend(moving);
    let drains = deleting.iter().filter_map(|machine| {
        let claim = machine.state.claim.as_ref();
        // With a time at which it ends by force, it ends.
        let endless = |claim: &NodeClaim| {
            claim.termination_grace_period_seconds.is_none()
                && claim.annotations.get_or_empty(annotations::NODECLAIM_TERMINATION_TIMESTAMP).is_empty()
        };
        let since = claim.filter(|claim| endless(claim)).and_then(|claim| claim.deleting_since_seconds);
        let overdue = since.is_some_and(|since| options.drain_patience.is_over(since, snapshot.now));
        let drain = if overdue { Drain::Overdue } else { Drain::InTime };
        Some((machine.state.node.as_ref()?.name.as_ref(), drain))
    });
    let on_node = |name: &str| roster.on(name).collect();
    let leaving = eligibility::reschedulable_from_deleting(snapshot, on_node, drains, &roster.waiting);
    batch.extend(leaving);
    batch
}
