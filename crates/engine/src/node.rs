//! A node as the cluster state knows it: the Node object, the NodeClaim behind it, or both.
//!
//! The rules for which half to believe while a node comes up live here, so that every reader of the state agrees.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::labels::HOSTNAME;
use crate::labels::{INITIALIZED, Labels, REGISTERED, Text};
use crate::resources::{Amount, NODES, Resources};
use crate::snapshot::DrainPatience;
use crate::taints::{self, Taint};

/// A machine: its Node, its NodeClaim, or both. One of the two is always present.
#[derive(Clone, Debug, Default)]
pub struct StateNode {
    /// The Node, once it exists. Shared, so that a snapshot of many machines is cheap.
    pub node: Option<Arc<Node>>,
    /// The NodeClaim, if Karpenter manages the machine.
    pub claim: Option<Arc<NodeClaim>>,
    /// Whether disruption has marked it (in memory only).
    pub marked_for_deletion: bool,
    /// Whether a recent pass counts on it for pending pods (in memory only).
    pub nominated: bool,
}

/// A Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: Text,
    /// Provider id; empty when not yet known.
    pub provider_id: Text,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `status.capacity`.
    pub capacity: Resources,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Creation time in seconds since the epoch.
    pub created_seconds: Option<i64>,
    /// Whether its `Ready` condition is `True`.
    pub ready: bool,
    /// Its conditions, for repair; heartbeats left out.
    pub conditions: Vec<NodeCondition>,
    /// Volume limits its CSINode publishes: driver to count, or to no limit.
    pub csi_limits: BTreeMap<Text, Option<i64>>,
}

/// A condition of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type.
    pub type_: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// Reason; empty when it gives none.
    pub reason: Text,
    /// Since when, in seconds since the epoch.
    pub since_seconds: Option<i64>,
}

/// A NodeClaim object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClaim {
    /// Name.
    pub name: Text,
    /// UID.
    pub uid: Text,
    /// Creation time in seconds since the epoch.
    pub created_seconds: Option<i64>,
    /// `spec.expireAfter` in seconds; `None` for `Never` or absent.
    pub expire_after_seconds: Option<i64>,
    /// `spec.terminationGracePeriod` in seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// `status.providerID`; empty while not launched.
    pub provider_id: Text,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Startup taints.
    pub startup_taints: Vec<Taint>,
    /// `status.capacity`.
    pub capacity: Resources,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Since when it is being deleted, in seconds since the epoch.
    pub deleting_since_seconds: Option<i64>,
    /// Conditions that matter.
    pub conditions: ClaimConditions,
}

/// The conditions of a NodeClaim decisions look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimConditions {
    /// `Initialized` is True, since these seconds since the epoch.
    pub initialized_since_seconds: Option<i64>,
    /// `InstanceTerminating` is True.
    pub instance_terminating: bool,
    /// `Rebooting` is True.
    pub rebooting: bool,
    /// A reboot is wanted since these seconds since the epoch, and the provider has not taken the order yet.
    pub reboot_waits_since_seconds: Option<i64>,
    /// `Rebooting` is False, since these seconds since the epoch: the last reboot has ended.
    pub reboot_ended_seconds: Option<i64>,
    /// `Consolidatable` is True.
    pub consolidatable: bool,
    /// `Drifted` is True, since these seconds since the epoch (the epoch itself when it does not say).
    pub drifted_since_seconds: Option<i64>,
    /// `status.lastPodEventTime` in seconds since the epoch.
    pub last_pod_event_seconds: Option<i64>,
}

/// How far a node has come, looked up once where many questions about it follow.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) registered: bool,
    pub(crate) initialized: bool,
    /// It is rebooting, and its capacity counts as coming back.
    pub(crate) returning: bool,
}

impl StateNode {
    pub(crate) fn standing(&self, now: Timestamp, patience: DrainPatience) -> Standing {
        let returning = self.claim.as_ref().is_some_and(|claim| {
            let waits = claim.conditions.reboot_waits_since_seconds;
            claim.conditions.rebooting && !waits.is_some_and(|since| patience.is_over(since, now))
        });
        Standing { registered: self.registered(), initialized: self.initialized(), returning }
    }

    /// The Node's name, or the NodeClaim's until the node has registered.
    pub fn name(&self) -> &Text {
        self.name_at(self.registered())
    }

    pub(crate) fn name_at(&self, registered: bool) -> &Text {
        static EMPTY: std::sync::OnceLock<Text> = std::sync::OnceLock::new();
        match (&self.node, &self.claim) {
            (Some(node), None) => &node.name,
            (Some(node), Some(_)) if registered => &node.name,
            (_, Some(claim)) => &claim.name,
            (None, None) => EMPTY.get_or_init(|| "".into()),
        }
    }

    /// Whether Karpenter manages it.
    pub fn managed(&self) -> bool {
        self.claim.is_some()
    }

    fn node_label_is_true(&self, key: &str) -> bool {
        self.node.as_ref().is_some_and(|n| n.labels.get_or_empty(key) == "true")
    }

    /// Whether the node has registered; always so when Karpenter does not manage it.
    pub fn registered(&self) -> bool {
        !self.managed() || self.node_label_is_true(REGISTERED)
    }

    /// Whether the node is fully up; always so when Karpenter does not manage it.
    pub fn initialized(&self) -> bool {
        !self.managed() || self.node_label_is_true(INITIALIZED)
    }

    /// The annotations to believe.
    pub fn annotations(&self) -> &Labels {
        static EMPTY: std::sync::OnceLock<Labels> = std::sync::OnceLock::new();
        match (&self.node, &self.claim) {
            (Some(node), None) => &node.annotations,
            (Some(node), Some(_)) if self.registered() => &node.annotations,
            (_, Some(claim)) => &claim.annotations,
            (None, None) => EMPTY.get_or_init(Labels::default),
        }
    }

    /// The provider id: the Node's, or the NodeClaim's.
    pub fn provider_id(&self) -> &str {
        let of_node = self.node.as_ref().map(|n| n.provider_id.as_ref());
        of_node.or(self.claim.as_ref().map(|c| c.provider_id.as_ref())).unwrap_or_default()
    }

    /// The labels to believe.
    pub fn labels(&self) -> &Labels {
        self.labels_at(self.registered())
    }

    pub(crate) fn labels_at(&self, registered: bool) -> &Labels {
        static EMPTY: std::sync::OnceLock<Labels> = std::sync::OnceLock::new();
        match (&self.node, &self.claim) {
            (Some(node), None) => &node.labels,
            (Some(node), Some(_)) if registered => &node.labels,
            (_, Some(claim)) => &claim.labels,
            (None, None) => EMPTY.get_or_init(Labels::default),
        }
    }

    /// The hostname: its label, or its name while the label is missing.
    pub fn hostname(&self) -> &Text {
        self.labels().get(HOSTNAME).filter(|h| !h.is_empty()).unwrap_or_else(|| self.name())
    }

    /// The taints pods will have to tolerate once the node is up.
    pub(crate) fn taints_at(&self, standing: Standing) -> Cow<'_, [Taint]> {
        let raw: &[Taint] = match (&self.node, &self.claim) {
            (Some(node), None) => &node.taints,
            (Some(node), Some(_)) if standing.registered => &node.taints,
            (_, Some(claim)) => &claim.taints,
            (None, None) => &[],
        };
        let Some(claim) = self.claim.as_ref().filter(|_| !standing.initialized || standing.returning) else {
            if raw.iter().any(taints::is_advice) {
                return Cow::Owned(raw.iter().filter(|t| !taints::is_advice(t)).cloned().collect());
            }
            return Cow::Borrowed(raw);
        };
        let passing = |taint: &&Taint| {
            taints::is_advice(taint)
                || taints::is_ephemeral(taint)
                || taint.matches("karpenter.sh/rebooting", "NoSchedule")
                || claim.startup_taints.iter().any(|s| s.matches(&taint.key, &taint.effect))
        };
        Cow::Owned(raw.iter().filter(|t| !passing(t)).cloned().collect())
    }

    /// Node values with gaps filled from the NodeClaim while the node comes up.
    fn status(
        &self,
        initialized: bool,
        of_node: impl Fn(&Node) -> &Resources,
        of_claim: impl Fn(&NodeClaim) -> &Resources,
    ) -> Cow<'_, Resources> {
        match (&self.node, &self.claim) {
            (Some(node), Some(claim)) if !initialized => {
                let mut filled = of_node(node).clone();
                for (name, amount) in of_claim(claim).iter() {
                    if filled.amount(name).is_zero() {
                        filled.set(name.clone(), *amount);
                    }
                }
                Cow::Owned(filled)
            }
            (Some(node), _) => Cow::Borrowed(of_node(node)),
            (None, Some(claim)) => Cow::Borrowed(of_claim(claim)),
            (None, None) => Cow::Owned(Resources::new()),
        }
    }

    /// What the machine has, counting itself as one node.
    pub fn capacity(&self) -> Resources {
        static NODE: std::sync::OnceLock<Text> = std::sync::OnceLock::new();
        let mut capacity = self.capacity_at(self.initialized()).into_owned();
        capacity.set(NODE.get_or_init(|| NODES.into()).clone(), Amount::units(1));
        capacity
    }

    /// What the machine has, itself not counted.
    pub(crate) fn capacity_at(&self, initialized: bool) -> Cow<'_, Resources> {
        self.status(initialized, |n| &n.capacity, |c| &c.capacity)
    }

    /// What pods may use in all.
    pub fn allocatable(&self) -> Cow<'_, Resources> {
        self.allocatable_at(self.initialized())
    }

    pub(crate) fn allocatable_at(&self, initialized: bool) -> Cow<'_, Resources> {
        self.status(initialized, |n| &n.allocatable, |c| &c.allocatable)
    }

    /// Whether it is going away: nothing new is placed on it and its pods move.
    pub fn deleting(&self) -> bool {
        self.marked_for_deletion
            || match &self.claim {
                Some(claim) => claim.deleting || claim.conditions.instance_terminating,
                None => self.node.as_ref().is_some_and(|n| n.deleting),
            }
    }
}
