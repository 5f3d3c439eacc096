//! Controllers of NodePools: their hash, their books, whether they are fit for use.
//!
//! | Module | What it is |
//! |---|---|
//! | `hash` | what must change in a template for its nodes to drift |
//! | `counter` | what a pool's nodes have together |
//! | `readiness`, `validation` | whether its NodeClass and its spec are fit for use |
//! | `registration_health`, `health` | whether its launches have become nodes of late |

pub(crate) mod counter;
pub(crate) mod hash;
pub(crate) mod health;
pub(crate) mod readiness;
pub(crate) mod registration_health;
pub(crate) mod validation;

use karpenter_api::NodePool;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::rate_limit::scale;
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;

use crate::context::Context;
use crate::watches::Watches;

/// A controller of NodePools with upstream's number of workers.
fn controller<R: Reconciler<Key = ObjectKey>>(context: &Context, name: &str, reconciler: R) -> Controller<R> {
    Controller::for_objects(name, karpenter_api::GROUP, "NodePool", reconciler)
        .workers(scale(context.options.cpu_requests_millicores, 10, 1000))
        .build(&context.environment)
}

/// Queues NodePools when they change, and when their NodeClass does.
fn follow_with_class(context: &Context, watches: &mut Watches, queue: &WorkQueue<ObjectKey>) {
    watches.node_pools.feed(queue, own_key);
    for ((group, kind), informer) in &mut watches.node_classes {
        let (pools, group, kind) = (context.stores.node_pools.clone(), group.clone(), kind.clone());
        informer.feed(queue, move |delta| {
            let name = delta.object().metadata.name.as_deref().unwrap_or_default();
            let mut referring = pools.list();
            referring.retain(|pool| {
                let class = &pool.spec.template.spec.node_class_ref;
                class.group == group && class.kind == kind && class.name == name
            });
            referring.iter().map(|pool| ObjectKey::of(&**pool)).collect()
        });
    }
}

/// Writes a status whose conditions changed, over the version that was read.
async fn write_status(context: &Context, before: &NodePool, after: &NodePool) -> ReconcileResult {
    if before == after {
        return Ok(Outcome::Done);
    }
    let api: Api<NodePool> = Api::all(context.client.clone());
    match writes::patch_status(&api, before, after, Lock::Optimistic).await? {
        Written::Conflict => Ok(Outcome::After(writes::OVERTAKEN)),
        Written::Done(_) | Written::Gone | Written::Unchanged => Ok(Outcome::Done),
    }
}
