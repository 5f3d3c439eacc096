//! Deletes NodeClaims that have lived as long as they may (rules L4.1, L4.2): whatever budgets and annotations say, and about
//! one per second. Only those of a platform that can neither end nor replace anything for now wait for it.

use std::time::Duration;

use karpenter_api::NodeClaim;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::writes;
use kube::Api;

use super::lifecycle::node_span;
use crate::context::{Context, STUCK_RETRY};
use crate::pods;
use crate::times::{after, until};
use crate::totals::{Totals, reason};
use crate::watches::Watches;

/// The pause after each: the watch brings back the deletion before the claim is looked at again, and a pool whose nodes
/// were all made at once is not gone at once.
const PAUSE: Duration = Duration::from_secs(1);

struct Expiration {
    context: Context,
    claims: Api<NodeClaim>,
    totals: Totals,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let expiration = Expiration {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        totals: Totals::new(&context.environment.registry),
    };
    let controller =
        Controller::for_objects("nodeclaim.expiration", karpenter_api::GROUP, "NodeClaim", expiration)
            .build(&context.environment);
    watches.node_claims.feed(&controller.queue(), own_key);
    context.run(program, controller);
}

impl Reconciler for Expiration {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(claim) = self.context.stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        if claim.metadata.deletion_timestamp.is_some() || self.context.providers.for_claim(&claim).is_err() {
            return Ok(Outcome::Done);
        }
        let (Some(lifetime), Some(created)) = (claim.spec.expire_after(), &claim.metadata.creation_timestamp)
        else {
            return Ok(Outcome::Done);
        };
        let clock = &self.context.environment.clock;
        let left = until(clock.now(), after(created.0, lifetime.to_std())).max(clock.doubted_for());
        if !left.is_zero() {
            return Ok(Outcome::After(left));
        }
        if self.context.is_stuck(&claim) {
            return Ok(Outcome::After(STUCK_RETRY));
        }
        if !writes::delete(&self.claims, &claim).await? {
            return Ok(Outcome::Done);
        }
        node_span(&claim).in_scope(|| tracing::debug!("deleting expired nodeclaim"));
        self.totals.claim_disrupted(reason::EXPIRED, &claim, "");
        let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
        let moving =
            self.context.stores.pods_on(node).iter().filter(|pod| pods::is_reschedulable(pod)).count();
        self.totals.pods_disrupted(reason::EXPIRED, &claim, "", moving);
        tokio::time::sleep(PAUSE).await;
        Ok(Outcome::Done)
    }
}
