//! The CloudStack provider: its NodeClass and the labels its nodes carry.

pub mod client;
pub mod labels;
pub mod nodeclass;

pub use nodeclass::CloudStackNodeClass;

/// The provider's API group.
pub const GROUP: &str = "karpenter.k8s.cloudstack";
