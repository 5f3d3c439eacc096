//! Which nodes should empty first: the ranks pods are given so that a workload that shrinks gives up those on nodes that are
//! going anyway, and the order in which a static pool that shrinks gives up its nodes.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::budgets::{Purse, standings};
use super::candidate::{Offers, node_hindrance, pod_blocker};
use super::cost;
use super::method::DisruptionReason;
use crate::eligibility::{EvictionLimits, do_not_disrupt_active, is_reschedulable};
use crate::labels::{INSTANCE_TYPE, NODE_POOL, Text};
use crate::node::StateNode;
use crate::pod::Pod;
use crate::roster::Roster;
use crate::snapshot::Snapshot;

/// Nodes by what should become of their pods when a workload shrinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletionOrder {
    /// Nodes that are going away: their pods should go before all others.
    pub going: Vec<RankedNode>,
    /// Nodes that would be disrupted next, the first first: their pods follow in this order.
    pub next: Vec<RankedNode>,
    /// All other nodes of Karpenter's: their pods are as good as any.
    pub rest: Vec<RankedNode>,
}

/// A node and its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedNode {
    /// The machine's name.
    pub node: Text,
    /// Its pool; empty when it has none.
    pub node_pool: Text,
}

impl RankedNode {
    fn of(machine: &StateNode) -> Self {
        let node_pool = machine.labels().get(NODE_POOL).cloned().unwrap_or_else(|| "".into());
        RankedNode { node: machine.name().clone(), node_pool }
    }
}

/// Sorts Karpenter's nodes by what should become of their pods.
pub fn deletion_order(snapshot: &Snapshot, node_overlay: bool, own_cost: bool) -> DeletionOrder {
    let roster = Roster::new(snapshot);
    let offers = Offers::new(snapshot, node_overlay);
    let limits = EvictionLimits::new(&snapshot.budgets);
    let mut nodes: Vec<(&StateNode, f64)> = snapshot
        .nodes
        .iter()
        .filter(|machine| machine.managed())
        .map(|machine| (machine, savings_ratio(machine, &roster, &offers, own_cost)))
        .collect();
    nodes.sort_by(|(a, a_ratio), (b, b_ratio)| {
        b_ratio.total_cmp(a_ratio).then_with(|| a.name().cmp(b.name()))
    });
    let now = snapshot.now.as_second();
    let mut order = DeletionOrder::default();
    let (mut drifted, mut ordinary) = (Vec::new(), Vec::new());
    for (machine, _) in nodes {
        match standing(machine, &roster, &offers, &limits, now) {
            Standing::Going => order.going.push(RankedNode::of(machine)),
            Standing::Drifted => drifted.push(RankedNode::of(machine)),
            Standing::Ordinary => ordinary.push(RankedNode::of(machine)),
            Standing::Stays => order.rest.push(RankedNode::of(machine)),
        }
    }
    for (nodes, reason) in [(drifted, DisruptionReason::Drifted), (ordinary, DisruptionReason::Underutilized)]
    {
        let mut purse = Purse::new(&standings(snapshot, &BTreeSet::new(), reason));
        let (within, beyond): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| purse.take(&node.node_pool));
        order.next.extend(within);
        order.rest.extend(beyond);
    }
    order
}

/// What should become of a node, as far as deletions of its pods are concerned.
enum Standing {
    Going,
    Drifted,
    Ordinary,
    Stays,
}

fn standing(
    machine: &StateNode,
    roster: &Roster<'_>,
    offers: &Offers<'_>,
    limits: &EvictionLimits<'_>,
    now: i64,
) -> Standing {
    let tainted = |taint: &crate::taints::Taint| taint.matches("karpenter.sh/disrupted", "NoSchedule");
    if machine.deleting() || machine.node.as_ref().is_some_and(|node| node.taints.iter().any(tainted)) {
        return Standing::Going;
    }
    let (Some(node), Some(claim)) = (&machine.node, &machine.claim) else { return Standing::Stays };
    if node_hindrance(machine).is_some() || pod_blocker(roster, &node.name, limits, now).is_some() {
        return Standing::Stays;
    }
    if roster.on(&node.name).any(|pod| is_pinned(pod)) {
        return Standing::Stays;
    }
    let (pool, type_) =
        (machine.labels().get_or_empty(NODE_POOL), machine.labels().get_or_empty(INSTANCE_TYPE));
    if !pool.is_empty() && !type_.is_empty() && offers.instance_type(pool, type_).is_none() {
        return Standing::Stays;
    }
    let source = offers.pool(pool);
    let is_static = source.is_some_and(|pool| pool.replicas.is_some());
    if claim.conditions.drifted_since_seconds.is_some() && !is_static {
        return Standing::Drifted;
    }
    if source.is_some_and(|pool| pool.consolidate_after_seconds.is_none()) {
        return Standing::Stays;
    }
    Standing::Ordinary
}

/// Whether nobody would make the pod anew elsewhere. What runs in `kube-system` does not count.
fn is_pinned(pod: &Pod) -> bool {
    let made_anew = pod.owners.controller.as_ref().is_some_and(|owner| {
        matches!(
            (owner.api_version.as_ref(), owner.kind.as_ref()),
            ("apps/v1", "ReplicaSet" | "DaemonSet") | ("batch/v1", "Job")
        )
    });
    pod.namespace.as_ref() != "kube-system" && !made_anew
}

fn savings_ratio(machine: &StateNode, roster: &Roster<'_>, offers: &Offers<'_>, own_cost: bool) -> f64 {
    let labels = machine.labels();
    let instance_type =
        offers.instance_type(labels.get_or_empty(NODE_POOL), labels.get_or_empty(INSTANCE_TYPE));
    let on_node = machine.node.as_ref().into_iter().flat_map(|node| roster.on(&node.name));
    let moving = on_node.filter(|pod| is_reschedulable(pod));
    let disturbance = cost::BASE + moving.map(|pod| cost::eviction(pod, own_cost).max(0.0)).sum::<f64>();
    cost::price(labels, instance_type) / disturbance
}

/// The NodeClaims of a static pool's machines in the order it gives them up: nodes without pods first, then those whose pods
/// are cheapest to move, those with pods that must not be disrupted last.
pub fn scale_down_order(snapshot: &Snapshot, pool: &str, own_cost: bool) -> Vec<Text> {
    let roster = Roster::new(snapshot);
    let now = snapshot.now.as_second();
    let of_pool = |machine: &&StateNode| {
        !machine.deleting() && machine.labels().get(NODE_POOL).is_some_and(|name| name.as_ref() == pool)
    };
    let mut nodes: Vec<Occupied> = Vec::new();
    for machine in snapshot.nodes.iter().filter(of_pool) {
        let Some(claim) = &machine.claim else { continue };
        let pods = || machine.node.as_ref().into_iter().flat_map(|node| roster.on(&node.name));
        let held_fast = pods().any(|pod| do_not_disrupt_active(pod, now));
        let disturbance: f64 = pods().map(|pod| cost::eviction(pod, own_cost)).sum();
        nodes.push(Occupied {
            claim: claim.name.clone(),
            empty: pods().all(|pod| pod.owners.daemon_set) && !held_fast,
            held_fast,
            cost: disturbance * cost::lifetime_remaining(claim, snapshot),
        });
    }
    nodes.sort_by(Occupied::in_order);
    nodes.into_iter().map(|node| node.claim).collect()
}

/// A node with what disturbing it would cost.
struct Occupied {
    claim: Text,
    empty: bool,
    /// Some pod must not be disrupted.
    held_fast: bool,
    cost: f64,
}

impl Occupied {
    fn in_order(&self, other: &Self) -> Ordering {
        // Of empty nodes any will do; the name decides, so that the choice can be repeated.
        let by_cost = || if self.empty { Ordering::Equal } else { self.cost.total_cmp(&other.cost) };
        (other.empty.cmp(&self.empty))
            .then(self.held_fast.cmp(&other.held_fast))
            .then_with(by_cost)
            .then_with(|| self.claim.cmp(&other.claim))
    }
}
