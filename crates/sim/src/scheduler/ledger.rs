//! What is taken on each node, kept from pod changes so that no attempt has to add it up.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_runtime::object_key::ObjectKey;

use super::Objection;
use super::requests::{self, Amounts, HostPort};
use crate::objects::{Edit, is_finished, node_of};
use crate::placement;

/// See the module.
#[derive(Default)]
pub(super) struct Ledger {
    nodes: BTreeMap<String, Load>,
    bookings: BTreeMap<ObjectKey, Booking>,
}

#[derive(Default)]
struct Load {
    taken: Amounts,
    pods: BTreeSet<ObjectKey>,
}

struct Booking {
    node: String,
    amounts: Amounts,
    ports: BTreeSet<HostPort>,
}

impl Ledger {
    /// Takes over a change of a pod. A booking made ahead of the binding gives way to what the pod says.
    pub(super) fn follow(&mut self, edit: &Edit<Pod>) {
        match edit.new.as_deref().filter(|pod| !is_finished(pod)) {
            Some(pod) => match node_of(pod) {
                Some(node) if self.bookings.get(&edit.key).is_some_and(|booking| booking.node == node) => {}
                Some(node) => self.reserve(&edit.key, pod, node),
                None => {}
            },
            None => self.release(&edit.key),
        }
    }

    pub(super) fn reserve(&mut self, key: &ObjectKey, pod: &Pod, node: &str) {
        self.release(key);
        let Some(spec) = &pod.spec else { return };
        let booking = Booking {
            node: node.to_owned(),
            amounts: requests::of_pod(spec),
            ports: requests::host_ports(spec),
        };
        let load = self.nodes.entry(node.to_owned()).or_default();
        requests::add(&mut load.taken, &booking.amounts);
        load.pods.insert(key.clone());
        self.bookings.insert(key.clone(), booking);
    }

    pub(super) fn release(&mut self, key: &ObjectKey) {
        let Some(booking) = self.bookings.remove(key) else { return };
        if let Some(load) = self.nodes.get_mut(&booking.node) {
            requests::subtract(&mut load.taken, &booking.amounts);
            load.pods.remove(key);
            if load.pods.is_empty() {
                self.nodes.remove(&booking.node);
            }
        }
    }

    /// Whether another pod on the node has one of these ports.
    pub(super) fn ports_taken(&self, node: &str, ports: &BTreeSet<HostPort>) -> bool {
        if ports.is_empty() {
            return false;
        }
        let pods = self.nodes.get(node).into_iter().flat_map(|load| &load.pods);
        let mut theirs = pods.filter_map(|key| self.bookings.get(key)).flat_map(|booking| &booking.ports);
        theirs.any(|theirs| ports.iter().any(|mine| mine.conflicts(theirs)))
    }

    /// What the node has too little of, if anything.
    pub(super) fn lacking(&self, node: &Node, wanted: &Amounts) -> Option<Objection> {
        let allocatable = allocatable(node);
        let load = self.nodes.get(placement::name(node));
        let mut reasons = Vec::new();
        let pods = i64::try_from(load.map_or(0, |load| load.pods.len())).unwrap_or(i64::MAX);
        if pods + 1 > allocatable.get("pods").copied().unwrap_or_default() {
            reasons.push("Too many pods".to_owned());
        }
        for (name, amount) in wanted.iter().filter(|(_, amount)| **amount > 0) {
            let taken = load.and_then(|load| load.taken.get(name)).copied().unwrap_or_default();
            if taken.saturating_add(*amount) > allocatable.get(name).copied().unwrap_or_default() {
                reasons.push(format!("Insufficient {name}"));
            }
        }
        // More than the node has in all: removing pods would not help.
        let hopeless =
            wanted.iter().any(|(name, amount)| *amount > allocatable.get(name).copied().unwrap_or_default());
        (!reasons.is_empty()).then_some(Objection { reasons, open: !hopeless })
    }

    /// How much of cpu and memory would be left on the node, averaged.
    pub(super) fn free_percent(&self, node: &Node, wanted: &Amounts) -> i64 {
        let allocatable = allocatable(node);
        let load = self.nodes.get(placement::name(node));
        let free = |name: &str| {
            let all = allocatable.get(name).copied().unwrap_or_default();
            let taken = load.and_then(|load| load.taken.get(name)).copied().unwrap_or_default();
            let left =
                all.saturating_sub(taken).saturating_sub(wanted.get(name).copied().unwrap_or_default());
            if all > 0 { i128::from(left) * 100 / i128::from(all) } else { 0 }
        };
        i64::try_from((free("cpu") + free("memory")) / 2).unwrap_or_default()
    }
}

pub(super) fn allocatable(node: &Node) -> Amounts {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
    requests::amounts(allocatable.into_iter().flatten())
}
