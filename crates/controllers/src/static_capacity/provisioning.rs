//! Creates NodeClaims until a static NodePool has as many as it should, or as it may.

use std::time::Duration;

use futures_util::future::join_all;
use karpenter_api::NodePool;
use karpenter_api::conditions::{ConditionStatus, HasConditions, READY};
use karpenter_engine::resources::NODES;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::Delta;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;

use super::{resized, static_pool_of};
use crate::context::Context;
use crate::provisioning::Provisioning;
use crate::watches::Watches;

const NAME: &str = "static.provisioning";
const AGAIN: Duration = Duration::from_secs(60);
const UNTIL_SYNCED: Duration = Duration::from_secs(1);
const AT_THE_LIMIT: Duration = Duration::from_secs(30);
/// NodeClaims created at once. A typing error in `spec.replicas` must not take all memory, nor keep others from the API server
/// until it is mended.
const MOST_A_STEP: i64 = 100;
const NEXT_STEP: Duration = Duration::from_secs(1);

pub(super) fn register(
    context: &Context,
    provisioning: &Provisioning,
    watches: &mut Watches,
    program: &mut Program,
) {
    let reconciler = ScaleUp { context: context.clone(), provisioning: provisioning.clone() };
    let controller = Controller::for_objects(NAME, karpenter_api::GROUP, "NodePool", reconciler)
        .workers(10)
        .build(&context.environment);
    let queue = controller.queue();
    let of_pool = context.clone();
    watches
        .node_pools
        .feed(&queue, move |delta| resized(&of_pool, delta, |old, new| !is_ready(old) && is_ready(new)));
    let pools = context.stores.node_pools.clone();
    watches.node_claims.feed(&queue, move |delta| {
        let going = match delta {
            Delta::Added { .. } => false,
            Delta::Updated { old, new } => {
                old.metadata.deletion_timestamp.is_none() && new.metadata.deletion_timestamp.is_some()
            }
            Delta::Deleted { .. } => true,
        };
        if going { static_pool_of(&pools, delta.object()) } else { Vec::new() }
    });
    context.run(program, controller);
}

fn is_ready(pool: &NodePool) -> bool {
    pool.condition_status(READY) == ConditionStatus::True
}

struct ScaleUp {
    context: Context,
    provisioning: Provisioning,
}

impl Reconciler for ScaleUp {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Context { stores, providers, cluster, .. } = &self.context;
        let Some(pool) = stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        let Some(desired) = pool.spec.replicas else { return Ok(Outcome::Done) };
        let live = pool.metadata.deletion_timestamp.is_none() && is_ready(&pool);
        if !live || providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        // Before everything was seen once, what exists would be created again.
        if !self.provisioning.sync.has_synced() {
            return Ok(Outcome::After(UNTIL_SYNCED));
        }
        let name = &*key.name;
        let counts = cluster.read(|cluster| cluster.pool_nodes().counts(name));
        // Those being replaced count: their replacements are on the way.
        if counts.active.saturating_add(counts.pending_disruption) >= desired {
            return Ok(Outcome::After(AGAIN));
        }
        let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get(NODES));
        let limit = limit.map_or(i64::MAX, |limit| limit.value());
        let missing = desired - counts.active;
        let wanted = missing.min(MOST_A_STEP);
        let granted = cluster.update(|cluster| cluster.pool_nodes_mut().reserve(name, limit, wanted));
        if granted <= 0 {
            tracing::info!("nodepool node limit reached");
            return Ok(Outcome::After(AT_THE_LIMIT));
        }
        tracing::info!(
            current = counts.active,
            desired,
            "provision-count" = granted,
            "provisioning nodeclaims to satisfy replica count"
        );
        self.create(&pool, name, granted).await?;
        Ok(Outcome::After(if granted < missing && granted == wanted { NEXT_STEP } else { AGAIN }))
    }
}

/// Room that was reserved, given back when it is used or not, even if whoever reserved it is dropped.
struct Reservation<'a> {
    context: &'a Context,
    pool: &'a str,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.context.cluster.update(|cluster| cluster.pool_nodes_mut().release(self.pool, 1));
    }
}

impl ScaleUp {
    async fn create(&self, pool: &NodePool, name: &str, count: i64) -> Result<(), ReconcileError> {
        let reservations = (0..count).map(|_| Reservation { context: &self.context, pool: name });
        let creations: Vec<_> = reservations
            .map(|reservation| async move {
                let claim = self.provisioning.claims.of_static_pool(pool);
                let created = self.provisioning.claims.create(claim, name, "provisioned").await;
                drop(reservation);
                created
            })
            .collect();
        let failures = join_all(creations).await.into_iter().filter_map(Result::err);
        ReconcileError::combine(failures.map(|error| error.context("creating node claim")))
            .map_err(|error| error.context("creating nodeclaims"))
    }
}
