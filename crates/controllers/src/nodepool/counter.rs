//! Writes on each NodePool what its nodes have together, every few seconds (rule N5).

use std::time::Duration;

use karpenter_api::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, NODES, PODS};
use karpenter_api::{NodePool, Quantity, ResourceList};
use karpenter_cloudprovider::conversion;
use karpenter_primitives::Format;
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::{Delta, own_key};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;

use super::controller;
use crate::context::Context;
use crate::sync::Sync;
use crate::watches::Watches;

const PERIOD: Duration = Duration::from_secs(5);
/// Until the state is complete; what is counted before would be too little.
const UNSYNCED_PERIOD: Duration = Duration::from_secs(1);

struct Counter {
    context: Context,
    pools: Api<NodePool>,
    sync: Sync,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program, sync: &Sync) {
    let counter =
        Counter { context: context.clone(), pools: Api::all(context.client.clone()), sync: sync.clone() };
    let controller = controller(context, "nodepool.counter", counter);
    // From its first sight on a pool comes round by itself.
    watches.node_pools.feed(&controller.queue(), |delta| match delta {
        Delta::Added { .. } => own_key(delta),
        Delta::Updated { .. } | Delta::Deleted { .. } => Vec::new(),
    });
    context.run(program, controller);
}

impl Reconciler for Counter {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        if self.context.providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        if !self.sync.is_synced() {
            return Ok(Outcome::After(UNSYNCED_PERIOD));
        }
        let used = self.context.cluster.read(|cluster| cluster.launched_node_pool_usage(&key.name));
        let mut resources: ResourceList = [CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES]
            .into_iter()
            .map(|name| (name.to_owned(), Quantity::new(0, Format::DecimalSi)))
            .collect();
        resources.extend(conversion::resource_list(&used));
        let nodes = resources.get(NODES).map(Quantity::value);
        let mut counted = (*pool).clone();
        let status = counted.status.get_or_insert_default();
        if status.resources.as_ref() == Some(&resources) && status.nodes == nodes {
            return Ok(Outcome::After(PERIOD));
        }
        (status.resources, status.nodes) = (Some(resources), nodes);
        match writes::patch_status(&self.pools, &pool, &counted, Lock::None).await? {
            Written::Gone => Ok(Outcome::Done),
            Written::Done(_) | Written::Unchanged | Written::Conflict => Ok(Outcome::After(PERIOD)),
        }
    }
}
