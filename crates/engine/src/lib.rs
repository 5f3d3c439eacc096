//! Karpenter's decisions: which pods go where, which NodeClaims to create, and why. Pure: no clock, no network, no async.
//!
//! ```text
//! Snapshot ──▶ solve ──▶ Plan
//! ```
//!
//! # What goes in
//!
//! A [`Snapshot`] is the cluster at one moment in compact form: NodePools with the instance types their provider offers,
//! machines ([`StateNode`]: a Node, a NodeClaim or both), *every* pod, DaemonSets, storage, budgets, namespaces. It holds facts only.
//! Which pods need a place, which pools may serve them, what a node still has room for, where a volume can be reached:
//! all of that the engine works out itself, so whoever builds a snapshot makes no decisions.
//!
//! [`ingest`] turns Kubernetes objects into these types, one at a time, sharing what is equal; the crate `karpenter-state` mirrors a
//! whole cluster with it. Convert objects as they are read (or watched), not when a decision is due, and drop the originals:
//! what remains of a pod is a few hundred bytes.
//! Instance types and NodePools are plain structs to fill in. Whatever does not make sense is rejected with object and field
//! while the rest goes on.
//!
//! # What comes out
//!
//! A [`Plan`]: NodeClaims to create ([`PlannedClaim`]), pods for nodes that exist ([`NodePlacement`]), pods without a place
//! ([`PodError`]) and pods not tried ([`IgnoredPod`]), each with typed [`reasons`] that render to upstream's texts.
//!
//! The same snapshot and options always give the same plan.
//!
//! # Where to look
//!
//! | what | where |
//! |---|---|
//! | facts in | `snapshot`, `pod`, `node`, `node_pool`, `instance_type`, `cluster`; made by `ingest` |
//! | decision out | `plan`, `reasons` |
//! | a pass | `setup` (compile) → `solver`, `joining` (place) → `finish` (launch options) |
//! | one rule each | `eligibility`, `volumes`, `ports`, `daemons`, `templates`, `overlay`, `default_spread`, `relax`, `topology` |
//! | many simulations | `journal` (what is put back), `disruption::workbench` |
//! | speed | `vocabulary`, `algebra` (requirements as numbers), `types` (instance types as bits), `columns` (resources), `classes` (equal pods), `scan` (what need not be asked), `go_sort` (Go's order of claims, incrementally), `roster` |
//! | why not | `refusal` (in numbers) → `reasons` (in words); `misses` (every node and claim, on request) |

mod algebra;
#[cfg(test)]
mod algebra_tests;
mod bits;
mod claim;
mod classes;
pub mod cluster;
mod columns;
mod daemons;
mod default_spread;
pub mod disruption;
mod effective_zone;
pub mod eligibility;
mod existing;
mod finish;
mod go_sort;
mod hashing;
#[cfg(test)]
mod hashing_tests;
pub mod ingest;
pub mod instance_type;
mod joining;
mod journal;
pub mod labels;
pub mod misses;
pub mod node;
pub mod node_pool;
pub mod overlay;
pub mod plan;
pub mod pod;
mod ports;
pub mod reasons;
mod refusal;
mod relax;
pub mod requirement;
pub mod requirements;
pub mod resources;
mod roster;
mod scan;
pub mod selector;
mod setup;
mod snapshot;
mod solver;
pub mod taints;
mod templates;
mod tolerance;
mod topology;
mod types;
mod vocabulary;
mod volumes;

pub use effective_zone::effective_zone;
pub use node::StateNode;
pub use plan::{IgnoredPod, NodePlacement, PlacedPod, Plan, PlannedClaim, PodError, RejectedObject, Why};
pub use snapshot::{
    DrainPatience, FeatureGates, MinValuesPolicy, PreferencePolicy, Provider, ReservedMode, Snapshot,
    SolveOptions,
};

use setup::Assumptions;
use solver::Solver;

// The clusters of the integration tests serve the tests inside the crate as well.
#[cfg(test)]
extern crate self as karpenter_engine;

/// Decides where every pod of the snapshot that needs a place goes.
pub fn solve(snapshot: &Snapshot, options: &SolveOptions) -> Plan {
    solve_within(snapshot, options, &|| false).0
}

/// As [`solve`], but stops when it is out of time: a safety net. At least one pod is tried, and what has a place by then keeps
/// it. Also says how many pods it was not done with, of which the plan says nothing.
pub fn solve_within(
    snapshot: &Snapshot,
    options: &SolveOptions,
    out_of_time: &dyn Fn() -> bool,
) -> (Plan, usize) {
    let mut plan = Plan::default();
    let mut left = 0;
    if let Some(mut solver) = Solver::prepare(snapshot, options, &Assumptions::default(), &mut plan) {
        left = solver.solve(out_of_time);
        solver.finish(&mut plan);
    }
    (plan, left)
}
