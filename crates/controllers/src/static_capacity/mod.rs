//! Static NodePools: kept at a fixed number of nodes, whatever pods there are.

mod deprovisioning;
mod provisioning;

use std::sync::Arc;

use karpenter_api::{NodeClaim, NodePool};
use karpenter_runtime::informer::Delta;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::store::Store;

use crate::context::Context;
use crate::provisioning::Provisioning;
use crate::provisioning::claims::pool_of;
use crate::watches::Watches;

/// Does nothing unless the gate `StaticCapacity` is open.
pub(crate) fn register(
    context: &Context,
    provisioning: &Provisioning,
    watches: &mut Watches,
    program: &mut Program,
) {
    if context.options.feature_gates.static_capacity {
        provisioning::register(context, provisioning, watches, program);
        deprovisioning::register(context, watches, program);
    }
}

/// The static NodePool of ours that this change is about, if it is about the number of its nodes.
fn resized(
    context: &Context,
    delta: &Delta<NodePool>,
    also: fn(&NodePool, &NodePool) -> bool,
) -> Vec<ObjectKey> {
    let pool = delta.object();
    let concerned = match delta {
        Delta::Added { .. } => true,
        Delta::Updated { old, new } => old.spec.replicas != new.spec.replicas || also(old, new),
        Delta::Deleted { .. } => false,
    };
    let ours = pool.is_static() && context.providers.for_pool(pool).is_ok();
    if concerned && ours { vec![ObjectKey::of(&**pool)] } else { Vec::new() }
}

/// The static NodePool of a NodeClaim.
fn static_pool_of(pools: &Store<NodePool>, claim: &Arc<NodeClaim>) -> Vec<ObjectKey> {
    let key = pool_of(claim).map(ObjectKey::cluster);
    key.into_iter().filter(|key| pools.get(key).is_some_and(|pool| pool.is_static())).collect()
}
