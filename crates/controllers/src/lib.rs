//! Karpenter's controllers. Each brings one concern from what is to what should be; together they are the operator.
//!
//! They hold no policy: what to launch, disrupt or keep is decided by `karpenter_engine` from a snapshot of
//! `karpenter_state`. Here plans are carried out, and every step may be repeated or killed after any write.
//!
//! | Module | What it is |
//! |---|---|
//! | [`operator`] | everything together: watches, controllers, providers |
//! | [`context`] | what every controller is given |
//! | `nodeclaim` | a NodeClaim's life, and what may be done with it |
//! | [`cluster_cost`] | what each NodePool costs |
//! | `metrics` | nodes, NodePools and conditions on the metrics page |
//! | `provisioning` | nodes for pods that have no place |
//! | `sync` | whether decisions can be made now |
//! | `watches`, `mirror` | one watch per kind; what is seen goes into the state |

pub mod cluster_cost;
pub mod context;
mod metrics;
mod mirror;
mod nodeclaim;
pub mod operator;
mod provisioning;
mod sync;
mod watches;

pub use context::{Context, SharedCluster, Stores};
pub use operator::{Given, assemble};
