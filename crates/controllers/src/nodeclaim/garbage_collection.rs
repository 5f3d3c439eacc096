//! Deletes NodeClaims whose instance has vanished (rules L5.1–L5.4). Instances without a NodeClaim are their provider's to find.
//!
//! A provider that cannot list deletes nothing. Nor does one that leaves something out: every instance missing from the list is
//! asked for by its id, and only a plain "there is none" counts. A node that reports is proof enough of an instance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use karpenter_api::NodeClaim;
use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::REGISTERED;
use karpenter_cloudprovider::CloudProvider;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Singleton};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::{logging, writes};
use kube::Api;

use super::initialization::is_ready;
use crate::context::Context;
use crate::pairing::provider_id;
use crate::planted::{Bug, is_planted};
use crate::pods;
use crate::totals::{Totals, reason};

const PERIOD: Duration = Duration::from_secs(2 * 60);

/// How many claims are looked at side by side.
const PARALLEL: usize = 20;

struct GarbageCollection {
    context: Context,
    claims: Api<NodeClaim>,
    totals: Totals,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, program: &mut Program) {
    let collection = GarbageCollection {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        totals: Totals::new(&context.environment.registry),
    };
    let controller = Controller::singleton("nodeclaim.garbagecollection", collection, &context.environment);
    context.run(program, controller);
}

impl Singleton for GarbageCollection {
    async fn reconcile(&self) -> ReconcileResult {
        // Side by side, and whatever fails is tried again with the rest: a provider that cannot list or a claim that cannot be
        // deleted keeps no other claim waiting.
        join_all(self.context.providers.providers().iter().map(|provider| self.collect(provider))).await;
        Ok(Outcome::After(PERIOD))
    }
}

impl GarbageCollection {
    /// Looks through the claims of one provider.
    async fn collect(&self, provider: &Arc<dyn CloudProvider>) {
        // Claims first: what is launched while the provider lists is in neither.
        let claims = self.context.stores.node_claims.list();
        let instances = match provider.list().await {
            Ok(instances) => instances,
            Err(error) => {
                let provider = provider.name();
                tracing::error!(provider, %error, "listing instances, collecting none of their nodeclaims");
                return;
            }
        };
        let running = instances.iter().filter(|instance| instance.metadata.deletion_timestamp.is_none());
        let running: BTreeSet<&str> = running.map(provider_id).collect();
        let missing = claims.into_iter().filter(|claim| {
            let ours = self.context.providers.for_claim(claim).is_ok_and(|of| Arc::ptr_eq(of, provider));
            ours && claim.metadata.deletion_timestamp.is_none()
                && claim.condition_status(REGISTERED) == ConditionStatus::True
                && !running.contains(provider_id(claim))
        });
        let looks = missing.map(|claim| async move {
            if let Err(error) = self.look_at(provider, &claim).await {
                let claim = logging::object(&ObjectKey::of(&*claim));
                tracing::error!(NodeClaim = %claim, %error, "garbage collecting nodeclaim");
            }
        });
        futures_util::stream::iter(looks).buffered(PARALLEL).for_each(std::future::ready).await;
    }

    /// Whether there is proof that an instance is no more: that it was not listed is none.
    async fn is_gone(&self, provider: &Arc<dyn CloudProvider>, id: &str) -> Result<bool, ReconcileError> {
        if self.context.stores.nodes_of(id).iter().any(|node| is_ready(node)) {
            return Ok(false);
        }
        match provider.get(id).await {
            Err(error) if error.is_not_found() => Ok(true),
            Ok(instance) => Ok(instance.metadata.deletion_timestamp.is_some()),
            Err(error) => Err(error.into()),
        }
    }

    async fn look_at(
        &self,
        provider: &Arc<dyn CloudProvider>,
        claim: &NodeClaim,
    ) -> Result<(), ReconcileError> {
        let id = provider_id(claim);
        if !self.is_gone(provider, id).await? && !is_planted(Bug::TrustsLists) {
            return Ok(());
        }
        if !writes::delete(&self.claims, claim).await? {
            return Ok(());
        }
        let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
        tracing::debug!(
            NodeClaim = %logging::object(&ObjectKey::of(claim)),
            Node = %logging::object(&ObjectKey::cluster(node)),
            "provider-id" = id,
            "garbage collecting nodeclaim with no cloudprovider representation"
        );
        self.totals.claim_disrupted(reason::GARBAGE_COLLECTED, claim, "");
        let moving =
            self.context.stores.pods_on(node).iter().filter(|pod| pods::is_reschedulable(pod)).count();
        self.totals.pods_disrupted(reason::GARBAGE_COLLECTED, claim, "", moving);
        Ok(())
    }
}
