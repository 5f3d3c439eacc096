//! Karpenter's API kinds, labels, conditions and hashes, and the CRDs generated from them.
//!
//! What users write and read: serde types that give back every legal object as they got it, the schema of each kind next to
//! its type, and the rules the API machinery cannot check. No I/O, no clock: time comes in as an argument.
//!
//! | module | what it holds |
//! |---|---|
//! | [`nodepool`], [`nodeclaim`], [`nodeoverlay`], [`capacitybuffer`] | the kinds, each with its schema |
//! | [`requirement`], [`duration`], [`resources`], [`node_class_ref`] | the pieces kinds are made of |
//! | [`conditions`] | `status.conditions` and the rules by which they change |
//! | [`labels`], [`annotations`], [`taints`], [`finalizers`] | names on the wire |
//! | [`label_rules`] | which labels users may set, and what providers add to that |
//! | [`cron`] | the schedules of disruption budgets |
//! | [`schema`], [`crd`] | how a CRD is put together |
//! | [`resource`] | what makes a type usable with `kube::Api` |

pub mod annotations;
pub mod capacitybuffer;
pub mod conditions;
pub mod crd;
pub mod cron;
pub mod duration;
pub mod finalizers;
pub mod label_rules;
pub mod labels;
pub mod node_class_ref;
pub mod nodeclaim;
pub mod nodeoverlay;
pub mod nodepool;
pub mod requirement;
pub mod resource;
pub mod resources;
pub mod schema;
pub mod structure_hash;
pub mod taints;

pub use capacitybuffer::CapacityBuffer;
pub use conditions::{Condition, ConditionStatus};
pub use duration::{Duration, NillableDuration};
pub use karpenter_primitives::Quantity;
pub use node_class_ref::NodeClassReference;
pub use nodeclaim::NodeClaim;
pub use nodeoverlay::NodeOverlay;
pub use nodepool::NodePool;
pub use requirement::{NodeSelectorRequirement, Operator};
pub use resources::ResourceList;

/// Karpenter's API group.
pub const GROUP: &str = "karpenter.sh";

/// The CRDs of the kinds in this crate. Providers bring their NodeClasses.
pub fn crds() -> Vec<crd::Crd> {
    vec![NodePool::crd(), NodeClaim::crd(), NodeOverlay::crd(), CapacityBuffer::crd()]
}
