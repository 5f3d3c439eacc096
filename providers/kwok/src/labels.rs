//! Labels of the KWOK provider's instance types and nodes.

use karpenter_api::label_rules::LabelRules;

use crate::GROUP;

/// The size of the instance type.
pub const INSTANCE_SIZE: &str = "karpenter.kwok.sh/instance-size";
/// The family of the instance type.
pub const INSTANCE_FAMILY: &str = "karpenter.kwok.sh/instance-family";
/// The memory of the instance type.
pub const INSTANCE_MEMORY: &str = "karpenter.kwok.sh/instance-memory";
/// The cores of the instance type.
pub const INSTANCE_CPU: &str = "karpenter.kwok.sh/instance-cpu";
/// Marks a node as simulated, as a label and as an annotation, with the value [`NODE_VALUE`].
pub const NODE: &str = "kwok.x-k8s.io/node";
/// What [`NODE`] is set to.
pub const NODE_VALUE: &str = "fake";
/// The price of the node, for eks-node-viewer.
pub const NODE_PRICE: &str = "eks-node-viewer/instance-price";
/// Which kwok controller looks after the node.
pub const PARTITION: &str = "kwok-partition";
/// The only partition there is.
pub const PARTITION_VALUE: &str = "a";

/// Labels every instance type describes.
pub const WELL_KNOWN: [&str; 4] = [INSTANCE_SIZE, INSTANCE_FAMILY, INSTANCE_CPU, INSTANCE_MEMORY];

/// The label rules of a cluster that uses this provider.
pub fn label_rules(core: LabelRules) -> LabelRules {
    core.with_restricted_domain(GROUP).with_well_known(WELL_KNOWN)
}
