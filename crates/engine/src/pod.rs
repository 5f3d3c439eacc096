//! A pod as scheduling sees it: who it is, what it asks for, where it is. Nothing about what it runs.

use std::net::IpAddr;
use std::sync::Arc;

use crate::labels::{Labels, Text};
use crate::requirement::SelectorRequirement;
use crate::resources::Resources;
use crate::selector::LabelSelector;
use crate::taints::Toleration;

/// A pod of the cluster, waiting or placed.
///
/// What many pods have in common sits behind shared pointers: pods of one workload share `labels` and `spec`.
/// The engine recognises pods of the same shape by these pointers first and by value second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// UID: the last key of the queue order.
    pub uid: Text,
    /// Labels.
    pub labels: Labels,
    /// What the pod asks for.
    pub spec: Arc<PodSpec>,
    /// Creation time in seconds since the epoch; `None` sorts first, as a zero time does.
    pub created_seconds: Option<i64>,
    /// The node the pod is bound to.
    pub node_name: Option<Text>,
    /// Where the pod stands.
    pub status: PodStatus,
    /// Who owns it.
    pub owners: Owners,
    /// Value of the `karpenter.sh/do-not-disrupt` annotation.
    pub do_not_disrupt: Option<Text>,
    /// What evicting it costs.
    pub eviction: EvictionHints,
    /// For a virtual pod of a CapacityBuffer: the buffer's name.
    pub buffer: Option<Text>,
}

impl Pod {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What a pod says about the cost of evicting it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionHints {
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// The annotation `karpenter.sh/disruption-cost`.
    pub disruption_cost: CostHint,
    /// The annotation `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: CostHint,
}

/// An annotation that should hold a 32-bit number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostHint {
    /// It is not there.
    #[default]
    Absent,
    /// It is there but no such number.
    Unreadable,
    /// Its value.
    Is(i32),
}

impl CostHint {
    /// Reads the annotation's value.
    pub fn read(value: Option<&str>) -> Self {
        value.map_or(CostHint::Absent, |v| v.parse().map_or(CostHint::Unreadable, CostHint::Is))
    }
}

/// Where a pod stands in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodStatus {
    /// Phase.
    pub phase: Phase,
    /// Whether it has a `PodScheduled` condition with reason `Unschedulable`.
    pub unschedulable: bool,
    /// Whether preemption has named a node for it.
    pub nominated: bool,
    /// Whether it has a deletion timestamp.
    pub terminating: bool,
    /// Whether its `Ready` condition is `False`.
    pub unready: bool,
    /// When it started, in seconds since the epoch.
    pub started_seconds: Option<i64>,
}

/// A pod's phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not said.
    #[default]
    Unset,
    /// Waiting.
    Pending,
    /// Running.
    Running,
    /// Done.
    Succeeded,
    /// Done, badly.
    Failed,
    /// Anything else.
    Other,
}

/// Who owns a pod, as far as scheduling cares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owners {
    /// Some owner is a DaemonSet.
    pub daemon_set: bool,
    /// Some owner is a Node: a mirror pod.
    pub node: bool,
    /// Some owner is a StatefulSet.
    pub stateful_set: bool,
    /// The controlling owner.
    pub controller: Option<Controller>,
}

/// The controlling owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    /// API group and version.
    pub api_version: Text,
    /// Kind.
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// UID.
    pub uid: Text,
}

/// What a pod asks of the node it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    /// Effective requests: containers, init containers, pod-level resources and overhead, plus one of `pods`.
    pub requests: Resources,
    /// Labels the node must have.
    pub node_selector: Labels,
    /// Required node affinity: alternatives. `None` when absent, which differs from an empty list.
    pub required_node_affinity: Option<Vec<NodeSelectorTerm>>,
    /// Preferred node affinity.
    pub preferred_node_affinity: Vec<PreferredNodeTerm>,
    /// Pods to be near.
    pub pod_affinity: PodAffinity,
    /// Pods to stay away from.
    pub pod_anti_affinity: PodAffinity,
    /// How to spread.
    pub topology_spread: Vec<TopologySpread>,
    /// Taints it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Ports it takes on the host.
    pub host_ports: Vec<HostPort>,
    /// Volumes backed by claims.
    pub volumes: Vec<PodVolume>,
    /// Whether it uses dynamic resource claims.
    pub has_resource_claims: bool,
}

impl PodSpec {
    /// Whether it matters to the pod where other pods are.
    pub(crate) fn looks_at_pods(&self) -> bool {
        !self.topology_spread.is_empty()
            || [&self.pod_affinity, &self.pod_anti_affinity]
                .iter()
                .any(|affinity| !affinity.required.is_empty() || !affinity.preferred.is_empty())
    }
}

/// One alternative of a node selector: all expressions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    /// Conditions on labels.
    pub expressions: Vec<SelectorRequirement>,
    /// Whether it has conditions on fields, which are not supported.
    pub has_match_fields: bool,
}

/// A node the pod would rather have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PreferredNodeTerm {
    /// 1 to 100; heavier counts more.
    pub weight: i32,
    /// The preference.
    pub term: NodeSelectorTerm,
}

/// Affinity (or anti-affinity) to other pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodAffinity {
    /// Terms that must hold.
    pub required: Vec<PodAffinityTerm>,
    /// Terms that should hold, with their weights.
    pub preferred: Vec<(i32, PodAffinityTerm)>,
}

/// Pods selected by labels and namespaces, and the topology in which to be near or away from them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodAffinityTerm {
    /// The pods meant; absent means none.
    pub selector: Option<LabelSelector>,
    /// Namespaces by name.
    pub namespaces: Vec<Text>,
    /// Namespaces by label; absent and empty differ.
    pub namespace_selector: Option<LabelSelector>,
    /// Label key whose values are the domains.
    pub topology_key: Text,
}

/// How evenly pods spread over a topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopologySpread {
    /// Label key whose values are the domains.
    pub topology_key: Text,
    /// Greatest difference to the least filled domain.
    pub max_skew: i32,
    /// Fewer domains than this count the minimum as zero.
    pub min_domains: Option<i32>,
    /// Whether it is only a preference (`ScheduleAnyway`) or anything else than `DoNotSchedule`.
    pub when_unsatisfiable: WhenUnsatisfiable,
    /// The pods counted.
    pub selector: Option<LabelSelector>,
    /// Pod labels whose values narrow the selector.
    pub match_label_keys: Vec<Text>,
    /// Whether node affinity decides which nodes count; by its API name.
    pub node_affinity_policy: Option<Text>,
    /// Whether taints decide which nodes count; by its API name.
    pub node_taints_policy: Option<Text>,
}

/// What to do when a spread cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WhenUnsatisfiable {
    /// Do not place the pod.
    DoNotSchedule,
    /// Place it anyway.
    ScheduleAnyway,
    /// Something else; neither enforced under `Ignore` nor relaxed.
    Other,
}

/// A port on the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// Address; `None` when it does not parse (then it equals only itself).
    pub ip: Option<IpAddr>,
    /// Port number.
    pub port: i32,
    /// Protocol, verbatim.
    pub protocol: Text,
}

/// A volume backed by a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodVolume {
    /// By the claim's name.
    Claim(Text),
    /// By the volume's name: the claim is called `<pod>-<volume>`.
    Ephemeral(Text),
}
