//! What operators see of nodes, pods, NodePools and conditions on the metrics page. Nothing here is decided or written to the
//! cluster, but for the events that tell of conditions.
//!
//! Figures that change with every second (ages, utilization) are worked out when the page is asked for, not all the time:
//! a cluster that nobody looks at costs nothing.

pub(crate) mod node;
pub(crate) mod nodepool;
pub(crate) mod pod;
pub(crate) mod status;

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

/// `some-resource` as the label `resource_type` has it.
fn resource_type(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}
