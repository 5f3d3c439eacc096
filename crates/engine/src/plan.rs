//! What the engine decided.

use std::sync::Arc;

use crate::labels::{Labels, Text};
use crate::misses::Misses;
use crate::pod::Pod;
use crate::reasons::{PodRejection, PoolRejection, Relaxation, SkippedPool, Unplaceable};
use crate::requirement::SelectorRequirement;
use crate::resources::Resources;
use crate::taints::Taint;

/// The decision: what to create, what goes where, what has no place, each with its reason.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// NodeClaims to create, in the order the solver holds them at the end.
    pub new_claims: Vec<PlannedClaim>,
    /// Nodes that exist (or are on their way) and receive pods, in the order they are tried.
    pub existing_nodes: Vec<NodePlacement>,
    /// Pods that were tried and found no place, in (namespace, name) order.
    pub pod_errors: Vec<PodError>,
    /// Pods that want a place but were not tried, in (namespace, name) order.
    pub ignored_pods: Vec<IgnoredPod>,
    /// Pools that took no part, and why.
    pub skipped_pools: Vec<SkippedPool>,
    /// Objects (or parts of them) that make no sense and were left out.
    pub rejected: Vec<RejectedObject>,
    /// Set when nothing could be decided at all.
    pub error: Option<String>,
}

/// A NodeClaim to create.
#[derive(Clone, Debug)]
pub struct PlannedClaim {
    /// Its NodePool.
    pub node_pool: Text,
    /// The NodePool's UID, for the owner reference.
    pub node_pool_uid: Text,
    /// The pods it is for, in the order they were added.
    pub pods: Vec<PlacedPod>,
    /// Names of the instance types it may become, cheapest first, at most [`crate::SolveOptions::max_instance_types`].
    pub instance_types: Arc<[Text]>,
    /// `spec.requirements`, sorted by key and operator. Claims that are alike share the list.
    pub requirements: Arc<[SelectorRequirement]>,
    /// Labels with one certain value.
    pub labels: Labels,
    /// Keys of custom labels for which any value the requirement allows will do; upstream picks one at random.
    pub open_labels: Vec<Text>,
    /// Annotations.
    pub annotations: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Startup taints.
    pub startup_taints: Vec<Taint>,
    /// `spec.resources.requests`: pods and the daemons to expect.
    pub requests: Resources,
    /// Whether `minValues` were lowered (upstream's annotation, which the last claim of a pool decides for all of them).
    pub min_values_relaxed: bool,
    /// Whether some instance type's price comes from an overlay.
    pub price_overlay: bool,
    /// Whether some instance type's capacity comes from an overlay.
    pub capacity_overlay: bool,
    /// The cheapest launchable offering.
    pub cheapest_price: Option<f64>,
}

/// A pod with a place.
#[derive(Clone, Debug)]
pub struct PlacedPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What had to be given up to place it.
    pub relaxed: Vec<Relaxation>,
    /// Why there.
    pub why: Why,
}

/// Why a pod went where it went.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// It is the first node that takes the pod; nodes that are up are tried first, then by name.
    FirstNode,
    /// No node takes the pod; of the plan's claims that do, this had fewest pods.
    SharedClaim,
    /// Neither node nor claim takes the pod, so one is made for it.
    NewClaim {
        /// NodePools that would have come first, and why they could not (with [`crate::SolveOptions::explain`]).
        passed_over: Box<[PoolRejection]>,
    },
}

/// Pods going to a node that exists.
#[derive(Clone, Debug)]
pub struct NodePlacement {
    /// The node's name (the NodeClaim's until it registers).
    pub node: Text,
    /// The pods, in the order they were added.
    pub pods: Vec<PlacedPod>,
}

/// A pod without a place.
#[derive(Clone, Debug)]
pub struct PodError {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Why no NodePool helps.
    pub reason: Unplaceable,
    /// What kept it from the nodes and claims there are (with [`crate::SolveOptions::explain`]). Pods that are alike share it.
    pub misses: Option<Arc<Misses>>,
}

/// A pod that was not tried.
#[derive(Clone, Debug)]
pub struct IgnoredPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Why; all that apply.
    pub reasons: Vec<PodRejection>,
}

/// An object, or a part of one, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedObject {
    /// Kind and name, e.g. `NodePool/default`.
    pub object: String,
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}
