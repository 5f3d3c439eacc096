//! Disruption: takes nodes away that are not needed, not what was asked for, too dear or broken, and puts others in their
//! place first.
//!
//! Every ten seconds the loop ([`controller`]) takes a snapshot and lets the engine decide; what it decides the [`queue`]
//! carries out: taint, launch replacements, wait for them, delete; or take everything back. [`marks`] are what a node under
//! way carries, [`leftovers`] those that nobody answers for. [`reboot`] hands nodes to the reboot controller instead, [`events`]
//! and [`metrics`] tell.
//!
//! All of this lives in memory. A new leader finds marks without a command, takes them off, and starts over.

mod controller;
mod events;
mod leftovers;
mod log;
mod marks;
mod metrics;
mod patience;
mod queue;
mod reboot;

use karpenter_cloudprovider::Registry;
use karpenter_runtime::options::Options;
use karpenter_runtime::program::Program;

use self::controller::Disruption;
pub use self::controller::UnusableRepairPolicies;
use self::queue::Queue;
use crate::cluster_cost::ClusterCost;
use crate::context::Context;
use crate::provisioning::Provisioning;

/// Whether what the providers want repaired makes sense; repair stays off if it does not.
pub fn check_repair_policies(options: &Options, providers: &Registry) -> Result<(), UnusableRepairPolicies> {
    controller::repair_policies(options, providers).map(|_| ())
}

/// Puts loop and queue into the program.
pub(crate) fn register(
    context: &Context,
    provisioning: &Provisioning,
    cost: &ClusterCost,
    program: &mut Program,
) {
    let queue = Queue::new(context, provisioning);
    queue::register(context, &queue, program);
    Disruption::register(context, provisioning, cost, queue, program);
}
