//! Labels of the Cluster API provider's instance types.

use karpenter_api::label_rules::LabelRules;

use crate::GROUP;

/// The size of the instance type.
pub(crate) const INSTANCE_SIZE: &str = "karpenter.cluster.x-k8s.io/instance-size";
/// The family of the instance type.
pub(crate) const INSTANCE_FAMILY: &str = "karpenter.cluster.x-k8s.io/instance-family";
/// The memory of the instance type.
pub(crate) const INSTANCE_MEMORY: &str = "karpenter.cluster.x-k8s.io/instance-memory";
/// The cores of the instance type.
pub(crate) const INSTANCE_CPU: &str = "karpenter.cluster.x-k8s.io/instance-cpu";
/// The reservation that a node was paid for with in advance: the resource it comes from.
pub(crate) const RESERVATION_ID: &str = "karpenter.cluster.x-k8s.io/reservation-id";
/// Declared for the memory capacity.
pub(crate) const CAPACITY_MEMORY: &str = "capacity.karpenter.cluster.x-k8s.io/memory";
/// Declared for the processor capacity.
pub(crate) const CAPACITY_CPU: &str = "capacity.karpenter.cluster.x-k8s.io/cpu";

/// What NodePools may ask for besides the labels that the core knows.
pub(crate) const WELL_KNOWN: [&str; 7] = [
    INSTANCE_SIZE,
    INSTANCE_FAMILY,
    INSTANCE_CPU,
    INSTANCE_MEMORY,
    RESERVATION_ID,
    CAPACITY_MEMORY,
    CAPACITY_CPU,
];

/// The label rules of a cluster that uses this provider.
pub(crate) fn label_rules(core: LabelRules) -> LabelRules {
    core.with_restricted_domain(GROUP).with_well_known(WELL_KNOWN)
}
