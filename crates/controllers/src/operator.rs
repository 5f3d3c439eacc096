//! Puts everything together: watches, the state they feed, controllers, providers' own parts.

use std::sync::Arc;

use futures_util::FutureExt;
use karpenter_cloudprovider::Registry;
use karpenter_runtime::compute::Compute;
use karpenter_runtime::environment::Environment;
use karpenter_runtime::events::{EventWriter, Recorder};
use karpenter_runtime::options::Options;
use karpenter_runtime::program::Program;
use kube::Client;

use crate::capacity_buffer;
use crate::cluster_cost;
use crate::context::{Context, SharedCluster};
use crate::disruption;
use crate::metrics;
use crate::mirror;
use crate::node;
use crate::node_overlay;
use crate::nodeclaim;
use crate::nodepool;
use crate::nodepool::health::RegistrationHealth;
use crate::pod_deletion_cost;
use crate::provisioning;
use crate::static_capacity;
use crate::watches::Watches;

/// The component that events say they come from.
pub const COMPONENT: &str = "karpenter";

/// What the program around the controllers brings.
pub struct Given {
    /// Requests to the cluster, throttled and measured.
    pub client: Client,
    /// Clock, randomness, metrics.
    pub environment: Environment,
    /// What the program was told.
    pub options: Arc<Options>,
    /// Who launches machines.
    pub providers: Registry,
    /// Whom to tell what happened, and who writes it down.
    pub events: (Recorder, EventWriter),
    /// Where the engine thinks.
    pub compute: Compute,
}

/// Karpenter, ready to run. The context shows what it sees.
pub fn assemble(given: Given) -> (Program, Context) {
    let Given { client, environment, options, providers, events, compute } = given;
    let mut program = Program::new();
    let (recorder, writer) = events;
    let events_client = client.clone();
    program.always("event writer", move |stop| writer.run(events_client, stop).boxed());
    let mut watches = Watches::new(&client, &environment.entropy, &providers, &options);
    let context = Context {
        client,
        environment,
        options,
        providers,
        recorder,
        cluster: SharedCluster::default(),
        stores: watches.stores(),
        compute,
    };
    mirror::feed(&context, &mut watches);
    let cost = cluster_cost::register(&context, &mut watches, &mut program);
    let provisioning = provisioning::register(&context, &mut watches, &mut program);
    capacity_buffer::register(&context, &provisioning, &mut watches, &mut program);
    node_overlay::register(&context, &provisioning, &cost, &mut watches, &mut program);
    static_capacity::register(&context, &provisioning, &mut watches, &mut program);
    disruption::register(&context, &provisioning, &cost, &mut program);
    pod_deletion_cost::register(&context, &provisioning, &mut program);
    nodeclaim::disruption::register(&context, &mut watches, &mut program);
    metrics::register(&context, &cost, &mut watches, &mut program);
    let health = RegistrationHealth::default();
    let evictions = node::eviction::register(&context, &mut program);
    node::termination::register(&context, &mut watches, &mut program, &evictions);
    nodeclaim::lifecycle::register(&context, &mut watches, &mut program, &health);
    nodeclaim::garbage_collection::register(&context, &mut program);
    nodeclaim::expiration::register(&context, &mut watches, &mut program);
    nodeclaim::consistency::register(&context, &mut watches, &mut program);
    nodeclaim::pod_events::register(&context, &mut watches, &mut program);
    nodeclaim::hydration::register(&context, &mut watches, &mut program);
    nodeclaim::reboot::register(&context, &mut watches, &mut program, &evictions);
    node::health::register(&context, &mut watches, &mut program);
    nodepool::hash::register(&context, &mut watches, &mut program);
    nodepool::counter::register(&context, &mut watches, &mut program, &provisioning.sync);
    nodepool::readiness::register(&context, &mut watches, &mut program);
    nodepool::validation::register(&context, &mut watches, &mut program);
    nodepool::registration_health::register(&context, &mut watches, &mut program, &health);
    watches.run_in(&mut program);
    (program, context)
}
