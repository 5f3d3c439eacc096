//! Forgets NodeClaims that were created here but gone before any watch showed them. One that stayed in the state would never be
//! launched, and everything would wait for it.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::work_queue::WorkQueue;
use kube::Api;

use crate::context::Context;

/// When a NodeClaim that was created should long have been seen.
pub(super) const AFTER: Duration = Duration::from_secs(15);

/// A NodeClaim that was created here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Created(pub(crate) ObjectKey);

struct Leftovers(Context);

pub(super) fn register(context: &Context, program: &mut Program) -> WorkQueue<Created> {
    let controller = Controller::builder("state.nodeclaimgc", Leftovers(context.clone()))
        .about("", "", |Created(claim)| claim.clone())
        .build(&context.environment);
    let queue = controller.queue();
    context.run(program, controller);
    queue
}

impl Reconciler for Leftovers {
    type Key = Created;

    async fn reconcile(&self, Created(key): Created) -> ReconcileResult {
        let Self(context) = self;
        let name = &*key.name;
        let doubtful = context.stores.node_claims.get(&key).is_none()
            && context.cluster.read(|cluster| cluster.is_unlaunched(name));
        // The watch may merely be late: only the server knows.
        if doubtful && Api::<NodeClaim>::all(context.client.clone()).get_opt(name).await?.is_none() {
            let object = logging::object(&key);
            tracing::debug!(NodeClaim = %object, "garbage collecting stale unlaunched nodeclaim from cluster state");
            context.cluster.update(|cluster| cluster.delete_node_claim(name));
        } else if doubtful {
            return Ok(Outcome::After(AFTER));
        }
        Ok(Outcome::Done)
    }
}
