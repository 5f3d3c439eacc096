//! Machines: each Node with the NodeClaim it came from, paired by provider id.
//!
//! The two halves come and go on their own, in any order, and either may change its provider id (a Node gets one only when the
//! cloud controller has seen it). A machine exists while it has at least one half.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_engine::StateNode;
use karpenter_engine::labels::{INITIALIZED, INSTANCE_TYPE, NODE_POOL, Text};
use karpenter_engine::node::{Node, NodeClaim};

use crate::convert::CsiLimits;

/// Every machine by provider id, with what is only in memory.
#[derive(Default)]
pub(crate) struct Machines {
    by_provider: BTreeMap<Text, StateNode>,
    /// Provider id of each Node that has a machine.
    nodes: BTreeMap<Text, Text>,
    /// Nodes of ours that are no machine yet: without provider id, or without instance type before they are initialized.
    others: BTreeMap<Text, Node>,
    /// Provider id of each NodeClaim, empty while it is not launched.
    claims: BTreeMap<Text, Text>,
    /// Until when a pass counts on the machine, by provider id.
    nominated_until: BTreeMap<Text, Timestamp>,
    csi: BTreeMap<Text, CsiLimits>,
}

impl Machines {
    pub(crate) fn apply_node(&mut self, mut node: Node) {
        let managed = !node.labels.get_or_empty(NODE_POOL).is_empty();
        if node.provider_id.is_empty() {
            // One of ours gets its provider id soon; another's never may, so its name stands in.
            if managed {
                return self.set_aside(node);
            }
            node.provider_id = node.name.clone();
        }
        let initialized = !node.labels.get_or_empty(INITIALIZED).is_empty();
        if managed && !initialized && node.labels.get_or_empty(INSTANCE_TYPE).is_empty() {
            return self.set_aside(node);
        }
        self.others.remove(&node.name);
        if self.nodes.get(&node.name).is_some_and(|id| *id != node.provider_id) {
            self.delete_node(&node.name);
        }
        if let Some(limits) = self.csi.get(&node.name) {
            node.csi_limits = limits.clone();
        }
        let id = node.provider_id.clone();
        self.nodes.insert(node.name.clone(), id.clone());
        self.by_provider.entry(id).or_default().node = Some(Arc::new(node));
    }

    /// A Node that is no machine yet. Pods on it still count for topology.
    fn set_aside(&mut self, node: Node) {
        self.delete_node(&node.name);
        self.others.insert(node.name.clone(), node);
    }

    pub(crate) fn delete_node(&mut self, name: &str) {
        self.others.remove(name);
        let Some(id) = self.nodes.remove(name) else { return };
        self.drop_half(&id, |machine| {
            if machine.node.as_ref().is_some_and(|n| n.name.as_ref() == name) {
                machine.node = None;
            }
        });
    }

    pub(crate) fn apply_claim(&mut self, claim: NodeClaim) {
        if self.claims.get(&claim.name).is_some_and(|id| *id != claim.provider_id) {
            self.delete_claim(&claim.name);
        }
        self.claims.insert(claim.name.clone(), claim.provider_id.clone());
        // Without a provider id nothing has been launched: there is no machine to place pods on.
        let id = claim.provider_id.clone();
        if !id.is_empty() {
            self.by_provider.entry(id).or_default().claim = Some(Arc::new(claim));
        }
    }

    pub(crate) fn delete_claim(&mut self, name: &str) {
        let Some(id) = self.claims.remove(name) else { return };
        self.drop_half(&id, |machine| {
            if machine.claim.as_ref().is_some_and(|c| c.name.as_ref() == name) {
                machine.claim = None;
            }
        });
    }

    fn drop_half(&mut self, id: &Text, forget: impl FnOnce(&mut StateNode)) {
        let Some(machine) = self.by_provider.get_mut(id) else { return };
        forget(machine);
        if machine.node.is_none() && machine.claim.is_none() {
            self.by_provider.remove(id);
            self.nominated_until.remove(id);
        }
    }

    pub(crate) fn set_csi_limits(&mut self, node: Text, limits: Option<CsiLimits>) {
        let id = self.nodes.get(&node);
        if let Some(node) = id.and_then(|id| self.by_provider.get_mut(id)).and_then(|m| m.node.as_mut()) {
            Arc::make_mut(node).csi_limits = limits.clone().unwrap_or_default();
        }
        match limits {
            Some(limits) => drop(self.csi.insert(node, limits)),
            None => drop(self.csi.remove(&node)),
        }
    }

    pub(crate) fn by_name_mut(&mut self, name: &str) -> Option<&mut StateNode> {
        self.by_provider.values_mut().find(|m| m.name().as_ref() == name)
    }

    pub(crate) fn nominate(&mut self, name: &str, until: Timestamp) -> bool {
        let Some((id, _)) = self.by_provider.iter().find(|(_, m)| m.name().as_ref() == name) else {
            return false;
        };
        let slot = self.nominated_until.entry(id.clone()).or_insert(until);
        *slot = until.max(*slot);
        true
    }

    pub(crate) fn has_unlaunched_claims(&self) -> bool {
        self.claims.values().any(|id| id.is_empty())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StateNode> {
        self.by_provider.values()
    }

    pub(crate) fn others(&self) -> Vec<Node> {
        self.others.values().cloned().collect()
    }

    pub(crate) fn snapshot(&self, now: Timestamp) -> Vec<StateNode> {
        self.by_provider
            .iter()
            .map(|(id, machine)| StateNode {
                nominated: self.nominated_until.get(id).is_some_and(|until| *until > now),
                ..machine.clone()
            })
            .collect()
    }
}
