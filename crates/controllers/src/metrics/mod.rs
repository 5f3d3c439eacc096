//! What operators see of nodes, pods, NodePools and conditions on the metrics page. Nothing here is decided or written to the
//! cluster, but for the events that tell of conditions.
//!
//! Figures that change with every second (ages, utilization) are worked out when the page is asked for, not all the time:
//! a cluster that nobody looks at costs nothing.

pub(crate) mod node;
pub(crate) mod nodepool;
pub(crate) mod pod;
pub(crate) mod status;

use karpenter_runtime::metrics::{CounterVec, Registry};
use karpenter_runtime::program::Program;

use crate::cluster_cost::ClusterCost;
use crate::context::Context;
use crate::watches::Watches;

/// Puts the controllers of this module into the program, unless they are switched off.
pub(crate) fn register(context: &Context, cost: &ClusterCost, watches: &mut Watches, program: &mut Program) {
    if context.options.disable_cluster_state_observability {
        return;
    }
    node::register(context, program);
    nodepool::register(context, cost, watches, program);
    pod::register(context, watches, program);
    status::register(context, watches, program);
}

/// Counters of what is done to NodeClaims and their pods, shared by all who do it.
pub(crate) struct Disruptions {
    /// `karpenter_nodeclaims_disrupted_total`.
    pub(crate) node_claims: CounterVec,
    /// `karpenter_pods_disruption_initiated_total`.
    pub(crate) pods: CounterVec,
}

impl Disruptions {
    pub(crate) fn new(registry: &Registry) -> Self {
        let labels = ["reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode"];
        Self {
            node_claims: registry.counter(
                "karpenter_nodeclaims_disrupted_total",
                "NodeClaims disrupted, by reason, NodePool, capacity type, consolidation policy and termination mode.",
                &labels,
            ),
            pods: registry.counter(
                "karpenter_pods_disruption_initiated_total",
                "Pods on NodeClaims that were disrupted, by the same labels.",
                &labels,
            ),
        }
    }
}

/// `some-resource` as the label `resource_type` has it.
fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}
