//! The KWOK provider: its NodeClass and the labels its instance types carry.

pub mod labels;
pub mod nodeclass;

pub use nodeclass::KWOKNodeClass;

/// The provider's API group.
pub const GROUP: &str = "karpenter.kwok.sh";
