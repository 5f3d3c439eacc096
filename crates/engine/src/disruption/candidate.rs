//! Which nodes may be disrupted at all, and what is known about each that may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cost;
use super::method::{Class, DisruptionOptions, Memory};
use super::policy::RepairDecision;
use super::reasons::Why;
use crate::eligibility::{EvictionLimits, Hindrance, do_not_disrupt_active, is_active, is_reschedulable};
use crate::instance_type::InstanceType;
use crate::labels::{CAPACITY_TYPE, DO_NOT_DISRUPT, INSTANCE_TYPE, Labels, NODE_POOL, Text, ZONE};
use crate::node::StateNode;
use crate::node_pool::{InstanceTypes, NodePool};
use crate::overlay::Overlaid;
use crate::pod::Pod;
use crate::roster::Roster;
use crate::snapshot::Snapshot;

/// A node that may be disrupted.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The Node's name.
    pub node: Text,
    /// The NodeClaim's name.
    pub claim: Text,
    /// The NodeClaim's UID.
    pub claim_uid: Text,
    /// The machine's provider id.
    pub provider_id: Text,
    /// Its pool.
    pub node_pool: Text,
    /// Its labels.
    pub labels: Labels,
    /// Its instance type, if the pool still offers it.
    pub instance_type: Option<Text>,
    /// Whether it is fully up; only repair takes others.
    pub initialized: bool,
    /// Pods that will need another place.
    pub pods: Vec<Arc<Pod>>,
    /// Whether some pod forbids its eviction; only repair and drift take such nodes.
    pub has_pod_blockers: bool,
    /// What disturbing all its pods costs, the less the older the node.
    pub disruption_cost: f64,
    /// What moving its pods costs, at least one.
    pub reschedule_disruption_cost: f64,
    /// What it costs per hour; zero when that is not known.
    pub price: f64,
    /// How long its drain may take in seconds, where repair says so.
    pub drain_bound_seconds: Option<i64>,
    /// What repair wants to do with it.
    pub repair: Option<RepairDecision>,
    /// Its position in the snapshot it comes from.
    pub(crate) machine: usize,
}

impl Candidate {
    /// `on-demand`, `spot`, `reserved`; empty when not known.
    pub fn capacity_type(&self) -> &str {
        self.labels.get_or_empty(CAPACITY_TYPE)
    }

    /// Its zone; empty when not known.
    pub fn zone(&self) -> &str {
        self.labels.get_or_empty(ZONE)
    }

    /// Whether moving its pods costs nothing.
    pub fn is_empty(&self) -> bool {
        self.reschedule_disruption_cost <= cost::BASE
    }

    /// Price per unit of disturbance: the higher, the sooner it is disrupted.
    pub fn savings_ratio(&self) -> f64 {
        self.price / self.reschedule_disruption_cost
    }
}

/// Pools with what they offer.
pub(crate) struct Offers<'s> {
    pools: BTreeMap<&'s str, Pool<'s>>,
}

struct Pool<'s> {
    source: &'s NodePool,
    types: Option<Types>,
}

#[derive(Clone)]
struct Types {
    list: Arc<[InstanceType]>,
    by_name: Arc<BTreeMap<Text, usize>>,
}

impl<'s> Offers<'s> {
    pub(crate) fn new(snapshot: &'s Snapshot, node_overlay: bool) -> Self {
        let overlaid = if node_overlay { crate::overlay::evaluate(snapshot) } else { Overlaid::default() };
        let mut known: Vec<Types> = Vec::new();
        let mut pools = BTreeMap::new();
        for source in &snapshot.node_pools {
            let list = (!source.instance_types.list().is_empty())
                .then(|| overlaid.types_of(source))
                .flatten()
                .filter(|list| !list.is_empty());
            let types = list.map(|list| {
                let same = known.iter().find(|t| Arc::ptr_eq(&t.list, &list)).cloned();
                same.unwrap_or_else(|| {
                    let by_name = list.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
                    let types = Types { list: list.clone(), by_name: Arc::new(by_name) };
                    known.push(types.clone());
                    types
                })
            });
            pools.insert(source.name.as_ref(), Pool { source, types });
        }
        Offers { pools }
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&'s NodePool> {
        self.pools.get(name).map(|p| p.source)
    }

    pub(crate) fn types(&self, pool: &str) -> &[InstanceType] {
        self.pools.get(pool).and_then(|p| p.types.as_ref()).map_or(&[], |t| &t.list)
    }

    pub(crate) fn instance_type(&self, pool: &str, name: &str) -> Option<&InstanceType> {
        let types = self.pools.get(pool)?.types.as_ref()?;
        types.by_name.get(name).map(|i| &types.list[*i])
    }

    fn offers_something(&self, pool: &str) -> bool {
        self.pools.get(pool).is_some_and(|p| p.types.is_some())
    }
}

/// What the census knows about a node, before any method looks at it.
pub(crate) struct Surveyed {
    /// Why it may not be disrupted; hindrances repair passes over are kept apart.
    pub(crate) hindrance: Option<Why>,
    /// What repair says instead of `hindrance`.
    pub(crate) repair_hindrance: Option<Why>,
    /// What its platform does with it, which repair does not wait for.
    pub(crate) held: Option<Why>,
    /// A pod that forbids its eviction.
    pub(crate) blocker: Option<Why>,
    /// What is known about it; only for nodes without a hindrance.
    pub(crate) candidate: Option<Arc<Candidate>>,
}

/// Every machine of the snapshot in order of name, looked at once for all methods.
pub(crate) struct Census<'s> {
    pub(crate) snapshot: &'s Snapshot,
    pub(crate) offers: Offers<'s>,
    pub(crate) limits: EvictionLimits<'s>,
    /// By position in the snapshot.
    pub(crate) surveyed: Vec<Surveyed>,
    /// Positions in order of name.
    pub(crate) in_order: Vec<usize>,
    /// Nodes that count as disrupted, by provider id, though no object says so.
    pub(crate) leaving: BTreeSet<Text>,
    /// Whether repair takes part.
    repairs: bool,
}

impl<'s> Census<'s> {
    pub(crate) fn new(
        snapshot: &'s Snapshot,
        roster: &Roster<'s>,
        options: &DisruptionOptions,
        memory: &Memory,
    ) -> Self {
        let mut in_order: Vec<usize> = (0..snapshot.nodes.len()).collect();
        if !snapshot.nodes.is_sorted_by_key(|n| n.name()) {
            in_order.sort_by_key(|i| snapshot.nodes[*i].name());
        }
        let mut census = Census {
            snapshot,
            offers: Offers::new(snapshot, options.solve.gates.node_overlay),
            limits: EvictionLimits::new(&snapshot.budgets),
            surveyed: Vec::with_capacity(snapshot.nodes.len()),
            in_order,
            leaving: memory.leaving.clone(),
            repairs: options.repairs(),
        };
        for number in 0..snapshot.nodes.len() {
            let surveyed = census.survey(number, roster, options, memory);
            census.surveyed.push(surveyed);
        }
        census
    }

    fn survey(
        &self,
        number: usize,
        roster: &Roster<'s>,
        options: &DisruptionOptions,
        memory: &Memory,
    ) -> Surveyed {
        let machine = &self.snapshot.nodes[number];
        let stays = |why: Why| Surveyed {
            hindrance: Some(why.clone()),
            repair_hindrance: Some(why),
            held: None,
            blocker: None,
            candidate: None,
        };
        if memory.queued.contains(machine.provider_id()) {
            return stays(Why::UnderWay);
        }
        if memory.passed_over.contains(machine.provider_id()) {
            return stays(Why::PassedOver);
        }
        let held = memory.held.get(machine.provider_id()).cloned().map(Why::HeldByProvider);
        let (Some(node), Some(claim)) = (&machine.node, &machine.claim) else {
            let pool = machine.labels().get(NODE_POOL).filter(|pool| !pool.is_empty());
            return stays(match (&machine.claim, pool) {
                (Some(_), _) => Why::NoNode,
                (None, Some(pool)) => Why::NoClaim(pool.clone()),
                (None, None) => Why::NotManaged,
            });
        };
        if let Some(reason) = memory.kept.get(machine.provider_id()) {
            return stays(Why::HeldByProvider(reason.clone()));
        }
        let labels = machine.labels();
        let no_pool = self.repairs && labels.get_or_empty(NODE_POOL).is_empty();
        let hindrance = node_hindrance(machine);
        let repair_hindrance = match &hindrance {
            _ if no_pool => Some(Why::RepairNeedsPool),
            Some(Why::NodeDoNotDisrupt | Why::NotInitialized) => None,
            other => other.clone(),
        };
        let skip = hindrance.is_some() && !(self.repairs && repair_hindrance.is_none());
        let pool = labels.get_or_empty(NODE_POOL);
        if !skip && !self.offers.offers_something(pool) {
            let why = match self.offers.pool(pool).map(|pool| &pool.instance_types) {
                Some(InstanceTypes::Unresolved { reason }) => {
                    Why::OffersUnknown { pool: pool.into(), reason: reason.clone() }
                }
                _ => Why::PoolNotFound(pool.into()),
            };
            return Surveyed {
                hindrance: hindrance.or(Some(why.clone())),
                repair_hindrance: repair_hindrance.or(Some(why)),
                held,
                blocker: None,
                candidate: None,
            };
        }
        if skip {
            return Surveyed { hindrance, repair_hindrance, held, blocker: None, candidate: None };
        }
        let now = self.snapshot.now.as_second();
        let blocker = pod_blocker(roster, &node.name, &self.limits, now);
        let own_cost = options.gates.pod_deletion_cost_management;
        let pods: Vec<Arc<Pod>> = roster.on(&node.name).filter(|p| is_reschedulable(p)).cloned().collect();
        let of_all: f64 = roster.on(&node.name).map(|p| cost::eviction(p, own_cost)).sum();
        let mut of_moving = cost::BASE;
        for pod in &pods {
            of_moving += cost::eviction(pod, own_cost).max(0.0);
        }
        let instance_type = self.offers.instance_type(pool, labels.get_or_empty(INSTANCE_TYPE));
        let candidate = Candidate {
            node: machine.name().clone(),
            claim: claim.name.clone(),
            claim_uid: claim.uid.clone(),
            provider_id: machine.provider_id().into(),
            node_pool: labels.get(NODE_POOL).cloned().unwrap_or_else(|| "".into()),
            labels: labels.clone(),
            instance_type: instance_type.map(|t| t.name.clone()),
            initialized: machine.initialized(),
            has_pod_blockers: blocker.is_some(),
            disruption_cost: of_all * cost::lifetime_remaining(claim, self.snapshot),
            reschedule_disruption_cost: of_moving,
            price: cost::price(labels, instance_type),
            pods,
            drain_bound_seconds: None,
            repair: None,
            machine: number,
        };
        Surveyed { hindrance, repair_hindrance, held, blocker, candidate: Some(Arc::new(candidate)) }
    }

    /// The candidate a method of this class would get, or why not.
    pub(crate) fn candidate(&self, number: usize, class: Class) -> Result<&Arc<Candidate>, Why> {
        let surveyed = &self.surveyed[number];
        let hindrance = if class == Class::Repair { &surveyed.repair_hindrance } else { &surveyed.hindrance };
        if let Some(why) = hindrance {
            return Err(why.clone());
        }
        let bounded = || {
            let claim = self.snapshot.nodes[number].claim.as_ref();
            claim.is_some_and(|c| c.termination_grace_period_seconds.is_some())
        };
        if let Some(why) = &surveyed.blocker {
            let passes = match class {
                Class::Graceful => false,
                Class::Eventual => bounded(),
                Class::Repair => true,
            };
            if !passes {
                return Err(why.clone());
            }
        }
        let candidate = surveyed.candidate.as_ref().ok_or(Why::NoNode)?;
        match &surveyed.held {
            // What nothing runs on can go at any time.
            Some(why) if class != Class::Repair && !candidate.pods.is_empty() => Err(why.clone()),
            _ => Ok(candidate),
        }
    }
}

/// Whether nothing about the node itself forbids its disruption.
pub fn may_be_disrupted(machine: &StateNode) -> bool {
    node_hindrance(machine).is_none()
}

/// The first rule about the node itself that forbids disruption.
pub(super) fn node_hindrance(machine: &StateNode) -> Option<Why> {
    if machine.claim.as_ref().is_some_and(|c| c.conditions.rebooting) {
        return Some(Why::Rebooting);
    }
    if machine.deleting() {
        return Some(Why::Deleting);
    }
    if !machine.initialized() {
        return Some(if machine.registered() { Why::NotInitialized } else { Why::NotRegistered });
    }
    if machine.nominated {
        return Some(Why::Nominated);
    }
    if machine.annotations().get_or_empty(DO_NOT_DISRUPT) == "true" {
        return Some(Why::NodeDoNotDisrupt);
    }
    machine.labels().get(NODE_POOL).is_none().then_some(Why::NoPoolLabel)
}

/// The first pod, in order, that forbids the eviction: first by its annotation, then by its budgets.
pub(super) fn pod_blocker(
    roster: &Roster<'_>,
    node: &str,
    limits: &EvictionLimits<'_>,
    now: i64,
) -> Option<Why> {
    let annotated = roster.on(node).find(|p| is_active(p) && do_not_disrupt_active(p, now));
    if let Some(pod) = annotated {
        let value = pod.do_not_disrupt.clone().unwrap_or_else(|| "".into());
        return Some(Why::PodDoNotDisrupt { pod: pod.key(), value });
    }
    if limits.is_empty() {
        return None;
    }
    roster.on(node).find_map(|pod| {
        let budgets = limits.hindering(pod, now, Hindrance::Now);
        (!budgets.is_empty()).then(|| Why::PodBudgets {
            pod: pod.key(),
            budgets: budgets.iter().map(|b| format!("{}/{}", b.namespace, b.name)).collect(),
        })
    })
}
