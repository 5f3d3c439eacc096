//! Karpenter's controllers. Each brings one concern from what is to what should be; together they are the operator.
//!
//! They hold no policy: what to launch, disrupt or keep is decided by `karpenter_engine` from a snapshot of
//! `karpenter_state`. Here plans are carried out, and every step may be repeated or killed after any write.
//!
//! | Module | What it is |
//! |---|---|
//! | [`operator`] | everything together: watches, controllers, providers |
//! | [`context`] | what every controller is given |
//! | [`cluster_cost`] | what each NodePool costs |
//! | `disruption` | takes nodes away that are not needed or not what was asked for |
//! | `metrics` | nodes, NodePools and conditions on the metrics page |
//! | `provisioning` | nodes for pods that have no place |
//! | `static_capacity`, `capacity_buffer`, `node_overlay`, `pod_deletion_cost` | nodes of a fixed number, room kept free, other prices, which pods should go first (each behind its gate) |
//! | `sync` | whether decisions can be made now |
//! | `nodeclaim`, `node`, `nodepool` | controllers of these kinds |
//! | `pods`, `pairing`, `times`, `totals` | what they share: predicates, who belongs to whom, texts of times, counters |
//! | [`planted`] | bugs made on purpose, for tests only |
//! | `watches`, `mirror` | one watch per kind; what is seen goes into the state |

mod capacity_buffer;
pub mod cluster_cost;
pub mod context;
mod disruption;
mod metrics;
mod mirror;
mod node;
mod node_overlay;
mod nodeclaim;
mod nodepool;
pub mod operator;
mod pairing;
pub mod planted;
mod pod_deletion_cost;
mod pods;
mod provisioning;
pub mod seen_pod;
mod static_capacity;
mod sync;
mod times;
mod totals;
mod watches;

pub use context::{Context, SharedCluster, Stores};
pub use disruption::{UnusableRepairPolicies, check_repair_policies};
pub use operator::{Given, assemble};
