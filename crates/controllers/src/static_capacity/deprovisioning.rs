//! Deletes NodeClaims of a static NodePool that has more than it should: first those that are nothing yet, then nodes without
//! pods, then those whose pods are cheapest to move.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use karpenter_api::NodeClaim;
use karpenter_engine::disruption::scale_down_order;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::Delta;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::writes;
use kube::Api;

use super::{resized, static_pool_of};
use crate::context::{BY_NODE_POOL, Context};
use crate::pairing;
use crate::watches::Watches;

const NAME: &str = "static.deprovisioning";
const AGAIN: Duration = Duration::from_secs(60);

pub(super) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let controller =
        Controller::for_objects(NAME, karpenter_api::GROUP, "NodePool", ScaleDown(context.clone()))
            .workers(10)
            .build(&context.environment);
    let queue = controller.queue();
    let of_pool = context.clone();
    watches.node_pools.feed(&queue, move |delta| resized(&of_pool, delta, |_, _| false));
    let pools = context.stores.node_pools.clone();
    watches.node_claims.feed(&queue, move |delta| match delta {
        Delta::Added { object, .. } => static_pool_of(&pools, object),
        _ => Vec::new(),
    });
    context.run(program, controller);
}

struct ScaleDown(Context);

impl Reconciler for ScaleDown {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Context { stores, providers, cluster, .. } = &self.0;
        let Some(pool) = stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        let Some(desired) = pool.spec.replicas else { return Ok(Outcome::Done) };
        if pool.metadata.deletion_timestamp.is_some() || providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        let name = &*key.name;
        // Only those in use: those being replaced are more than the number for a while, and that is as it should be.
        let current = cluster.read(|cluster| cluster.pool_nodes().counts(name)).active;
        let excess = usize::try_from(current.saturating_sub(desired)).unwrap_or_default();
        if excess == 0 {
            return Ok(Outcome::After(AGAIN));
        }
        tracing::info!(
            current,
            desired,
            "deprovision-count" = excess,
            "deprovisioning nodeclaims to satisfy replica count"
        );
        let deletions = self.candidates(name, excess).await.into_iter();
        let deletions = deletions.map(|claim| async move { self.delete(&claim).await });
        let failures = join_all(deletions).await.into_iter().filter_map(Result::err);
        ReconcileError::combine(failures.map(ReconcileError::from))
            .map_err(|error| error.context("failed to deprovision nodeclaims"))?;
        Ok(Outcome::After(AGAIN))
    }
}

impl ScaleDown {
    async fn delete(&self, claim: &NodeClaim) -> Result<(), kube::Error> {
        let key = ObjectKey::of(claim);
        let api: Api<NodeClaim> = Api::all(self.0.client.clone());
        if writes::delete(&api, claim).await? {
            tracing::debug!(NodeClaim = %logging::object(&key), "deleting nodeclaim");
            self.0.cluster.update(|cluster| cluster.pool_nodes_mut().mark_deleting(&key.name));
        }
        Ok(())
    }

    /// NodeClaims that are nothing yet, then nodes in the engine's order.
    async fn candidates(&self, name: &str, count: usize) -> Vec<Arc<NodeClaim>> {
        let Context { stores, providers, cluster, .. } = &self.0;
        let claims = stores.node_claims.by_index(BY_NODE_POOL, name).into_iter();
        let ours = claims.filter(|claim| {
            providers.for_claim(claim).is_ok() && claim.metadata.deletion_timestamp.is_none()
        });
        let mut chosen: Vec<Arc<NodeClaim>> = ours.filter(|claim| !is_launched(claim)).take(count).collect();
        if chosen.len() == count {
            return chosen;
        }
        // A node that seems to be protected no longer because the clock leapt cannot be had back.
        let (now, rules) = (self.0.undoubted_now(), providers.scheduling_rules());
        let own_cost = self.0.options.feature_gates.pod_deletion_cost_management;
        let snapshot =
            cluster.read(|cluster| cluster.snapshot(now, rules, |pool| pool.instance_types.clone()));
        let pool = name.to_owned();
        let order = self.0.compute.run(move || scale_down_order(&snapshot, &pool, own_cost)).await;
        let ordered =
            order.iter().filter_map(|claim| stores.node_claims.get(&ObjectKey::cluster(claim.clone())));
        // What is under launch stands for a machine, too, and was chosen above.
        let launched = ordered.filter(|claim| is_launched(claim));
        chosen.extend(launched.take(count - chosen.len()));
        chosen
    }
}

fn is_launched(claim: &NodeClaim) -> bool {
    !pairing::provider_id(claim).is_empty()
}
