//! Everything one decision is made from, and how it should be made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::cluster::{DaemonSet, DisruptionBudget, Storage, Workloads};
use crate::labels::{Labels, Text};
use crate::node::{Node, NodeClaim, StateNode};
use crate::node_pool::{NodeOverlay, NodePool};
use crate::pod::{Pod, TopologySpread};

/// The cluster at one moment. Order within the lists does not matter: the engine puts pods in (namespace, name) order
/// and nodes in name order itself, because order decides.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The moment.
    pub now: Timestamp,
    /// NodePools, all of them; the engine leaves out static, unready and deleting ones.
    pub node_pools: Vec<NodePool>,
    /// Price and capacity overlays (used with [`FeatureGates::node_overlay`]).
    pub overlays: Vec<NodeOverlay>,
    /// Machines.
    pub nodes: Vec<StateNode>,
    /// Node objects that are no machine of the state (yet): managed by Karpenter but without provider id or instance type.
    /// Pods on them still count for topology.
    pub other_nodes: Vec<Node>,
    /// NodeClaims that have not been launched: no machine yet, but counted where nodes are counted.
    pub unlaunched: Vec<Arc<NodeClaim>>,
    /// Every pod of the cluster: waiting, bound, done. The engine decides which need a place.
    pub pods: Vec<Arc<Pod>>,
    /// Virtual pods of capacity buffers, ready to be scheduled (used with [`FeatureGates::capacity_buffer`]).
    pub buffer_pods: Vec<Arc<Pod>>,
    /// DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// Labels of every namespace, for affinity terms that select namespaces.
    pub namespaces: BTreeMap<Text, Labels>,
    /// Claims, volumes, classes.
    pub storage: Storage,
    /// Services and owners, for default spread constraints.
    pub workloads: Workloads,
    /// PodDisruptionBudgets, which keep pods of deleting nodes where they are.
    pub budgets: Vec<DisruptionBudget>,
    /// What the provider told about its labels and storage.
    pub provider: Provider,
}

/// What a provider contributes to the rules.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Labels besides the common ones that its instance types describe.
    pub well_known_labels: BTreeSet<Text>,
    /// Domains besides Karpenter's own whose labels pods and pools may not invent.
    pub restricted_label_domains: BTreeSet<Text>,
    /// The label that holds a reservation's id.
    pub reservation_id_label: Text,
    /// Storage provisioners it cannot serve.
    pub unsupported_provisioners: BTreeSet<Text>,
    /// Topology keys its nodes never carry.
    pub unsupported_topology_keys: BTreeSet<Text>,
    /// Whether nearly everything is sold as spot, too. Where it is not, a cheaper replacement that may be either asks for what is sold.
    pub sells_spot: bool,
}

impl Default for Provider {
    fn default() -> Self {
        Provider {
            well_known_labels: BTreeSet::new(),
            restricted_label_domains: BTreeSet::new(),
            reservation_id_label: "karpenter.kwok.sh/reservation-id".into(),
            unsupported_provisioners: BTreeSet::new(),
            unsupported_topology_keys: BTreeSet::new(),
            sells_spot: true,
        }
    }
}

/// How to decide.
#[derive(Clone, Debug)]
pub struct SolveOptions {
    /// Whether preferences count.
    pub preference_policy: PreferencePolicy,
    /// Whether `minValues` may be lowered.
    pub min_values_policy: MinValuesPolicy,
    /// What happens when reserved capacity cannot be had.
    pub reserved_mode: ReservedMode,
    /// Feature gates.
    pub gates: FeatureGates,
    /// Whether pods with dynamic resource claims are refused, as upstream's default is. The other way is not built.
    pub ignore_dra_requests: bool,
    /// Spread constraints for pods that have none of their own.
    pub default_spread: Vec<TopologySpread>,
    /// Most instance types a claim may list.
    pub max_instance_types: usize,
    /// How long a drain may be counted on to end.
    pub drain_patience: DrainPatience,
    /// Whether what was learned about one pod may be used for the next. Off, every question is asked anew: slow, and
    /// only good for checking that both ways give the same answer.
    pub caching: bool,
    /// Whether pods without a place are told what each node and claim lacked, and pods with one which NodePools were passed
    /// over. For readers: it costs another question per pod and node.
    pub explain: bool,
}

impl Default for SolveOptions {
    fn default() -> Self {
        SolveOptions {
            preference_policy: PreferencePolicy::Respect,
            min_values_policy: MinValuesPolicy::Strict,
            reserved_mode: ReservedMode::Strict,
            gates: FeatureGates::default(),
            ignore_dra_requests: true,
            default_spread: Vec::new(),
            max_instance_types: 600,
            drain_patience: DrainPatience::Endless,
            caching: true,
            explain: false,
        }
    }
}

/// How long a drain may be counted on to end: that the pods of a node being deleted will be wherever they are planned to
/// be, and that a node drained for its reboot will be back.
///
/// A drain without a deadline can be held up by the budget of pods that have no place themselves. A plan that counts on its
/// end leaves these pods waiting for it, and it for them. Only provisioning runs out of patience: nothing is taken away for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPatience {
    /// For ever, as upstream does.
    Endless,
    /// So many seconds; then pods held by a budget of pods without a place are planned for where they are.
    Seconds(i64),
}

impl DrainPatience {
    /// Whether a drain that began at these seconds since the epoch has lasted too long.
    pub(crate) fn is_over(self, since: i64, now: Timestamp) -> bool {
        match self {
            DrainPatience::Endless => false,
            DrainPatience::Seconds(patience) => now.as_second().saturating_sub(since) >= patience,
        }
    }
}

/// Whether preferred affinities and soft spreads count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferencePolicy {
    /// They do, until they cannot be met.
    Respect,
    /// They do not.
    Ignore,
}

/// Whether `minValues` may be lowered to launch at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinValuesPolicy {
    /// No.
    Strict,
    /// Yes.
    BestEffort,
}

/// What happens to a pod that could use reserved capacity but cannot get it in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedMode {
    /// It waits for the next pass (provisioning).
    Strict,
    /// It takes other capacity (disruption).
    Fallback,
}

/// Upstream's feature gates that touch scheduling, with upstream's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    /// Reservations are tracked.
    pub reserved_capacity: bool,
    /// NodeOverlays apply.
    pub node_overlay: bool,
    /// Capacity buffers' virtual pods take part.
    pub capacity_buffer: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        FeatureGates { reserved_capacity: true, node_overlay: false, capacity_buffer: false }
    }
}
