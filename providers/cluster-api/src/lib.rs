//! The Cluster API provider: its NodeClass and the labels its instance types carry.

pub mod labels;
pub mod nodeclass;

pub use nodeclass::ClusterAPINodeClass;

/// The provider's API group.
pub const GROUP: &str = "karpenter.cluster.x-k8s.io";
