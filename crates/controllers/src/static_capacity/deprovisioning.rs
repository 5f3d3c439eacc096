//! Deletes NodeClaims of a static NodePool that has more than it should: first those that are nothing yet, then nodes without
//! pods, then those whose pods are cheapest to move.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use karpenter_api::annotations::{DISRUPTION_COST, POD_DELETION_COST};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_engine::labels::NODE_POOL;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::Delta;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use super::{resized, static_pool_of};
use crate::context::{BY_NODE_POOL, Context};
use crate::pods;
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
    program.while_leading(NAME, controller);
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
        let deletions = self.candidates(&pool, name, excess).into_iter();
        let deletions = deletions.map(|claim| async move { self.delete(name, &claim).await });
        let failures = join_all(deletions).await.into_iter().filter_map(Result::err);
        ReconcileError::combine(failures.map(ReconcileError::from))
            .map_err(|error| error.context("failed to deprovision nodeclaims"))?;
        Ok(Outcome::After(AGAIN))
    }
}

impl ScaleDown {
    async fn delete(&self, pool: &str, claim: &NodeClaim) -> Result<(), kube::Error> {
        let key = ObjectKey::of(claim);
        let api: Api<NodeClaim> = Api::all(self.0.client.clone());
        let preconditions = Preconditions { uid: claim.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(&key.name, &params).await {
            Ok(_) => {}
            // Gone, or another of the same name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => return Err(error),
        }
        tracing::debug!(NodeClaim = %logging::object(&key), "deleting nodeclaim");
        self.0.cluster.update(|cluster| cluster.pool_nodes_mut().mark(pool, &key.name, true));
        Ok(())
    }

    fn candidates(&self, pool: &NodePool, name: &str, count: usize) -> Vec<Arc<NodeClaim>> {
        let Context { stores, providers, .. } = &self.0;
        let claims = stores.node_claims.by_index(BY_NODE_POOL, name);
        let ours = claims.into_iter().filter(|claim| {
            providers.for_claim(claim).is_ok() && claim.metadata.deletion_timestamp.is_none()
        });
        let launched = |claim: &Arc<NodeClaim>| {
            claim
                .status
                .as_ref()
                .and_then(|status| status.provider_id.as_deref())
                .is_some_and(|id| !id.is_empty())
        };
        let (launched, mut chosen): (Vec<_>, Vec<_>) = ours.partition(launched);
        chosen.truncate(count);
        let mut nodes: Vec<Occupied> =
            launched.into_iter().filter_map(|claim| self.occupied(pool, claim)).collect();
        nodes.sort_by(Occupied::by_cost);
        chosen.extend(nodes.into_iter().map(|node| node.claim).take(count - chosen.len()));
        chosen
    }

    /// What runs on a NodeClaim's node; nothing if it is going away already.
    fn occupied(&self, pool: &NodePool, claim: Arc<NodeClaim>) -> Option<Occupied> {
        let id = claim.status.as_ref()?.provider_id.clone()?;
        let now = self.0.now();
        let node = self.0.cluster.read(|cluster| {
            let machine = cluster.machine(&id).filter(|machine| !machine.deleting())?;
            let of_pool = Some(machine.labels().get_or_empty(NODE_POOL)) == pool.metadata.name.as_deref();
            of_pool.then(|| machine.node.as_ref().map(|node| node.name.clone()))
        })?;
        let bound = node.map(|node| self.0.stores.pods_on(&node)).unwrap_or_default();
        let running: Vec<Arc<Pod>> = bound.into_iter().filter(|pod| !pods::is_terminal(pod)).collect();
        let held_fast = running.iter().any(|pod| pods::is_protected(pod, now, Some(&self.0.recorder)));
        let empty = running.iter().all(|pod| pods::is_daemon(pod)) && !held_fast;
        let managed = self.0.options.feature_gates.pod_deletion_cost_management;
        let cost: f64 = running.iter().map(|pod| eviction_cost(pod, managed)).sum();
        let cost = cost * lifetime_remaining(&claim, now.as_second());
        Some(Occupied { claim, empty, held_fast, cost })
    }
}

/// A node with what disturbing it would cost.
struct Occupied {
    claim: Arc<NodeClaim>,
    empty: bool,
    /// Some pod must not be disrupted.
    held_fast: bool,
    cost: f64,
}

impl Occupied {
    fn by_cost(&self, other: &Self) -> Ordering {
        let order = other.empty.cmp(&self.empty).then(self.held_fast.cmp(&other.held_fast));
        let by_cost = || if self.empty { Ordering::Equal } else { self.cost.total_cmp(&other.cost) };
        order.then_with(by_cost).then_with(|| self.claim.metadata.name.cmp(&other.claim.metadata.name))
    }
}

/// How much of its life a node has left, between 0 and 1.
fn lifetime_remaining(claim: &NodeClaim, now_seconds: i64) -> f64 {
    let Some(lifetime) = claim.spec.expire_after() else { return 1.0 };
    let created = claim.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let total = lifetime.to_std().as_secs_f64();
    let left = total - now_seconds.saturating_sub(created) as f64;
    if total > 0.0 { (left / total).clamp(0.0, 1.0) } else { 0.0 }
}

/// What evicting a pod costs: about one, more or less as its owner says.
fn eviction_cost(pod: &Pod, karpenter_writes_deletion_cost: bool) -> f64 {
    let annotation =
        |key: &str| pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    let deletion_cost = || annotation(POD_DELETION_COST).filter(|_| !karpenter_writes_deletion_cost);
    let hint = annotation(DISRUPTION_COST).or_else(deletion_cost);
    let hint: i32 = hint.and_then(|text| text.parse().ok()).unwrap_or_default();
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
    let cost = 1.0 + f64::from(hint) / f64::from(1_u32 << 27) + f64::from(priority) / f64::from(1_u32 << 25);
    cost.clamp(-10.0, 10.0)
}
