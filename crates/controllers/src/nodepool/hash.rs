//! Keeps the hash of each NodePool's template beside it, and that of claims from before the hash was made as now (rule N1).

use karpenter_api::conditions::HasConditions as _;
use karpenter_api::nodeclaim::DRIFTED;
use karpenter_api::nodepool::HASH_VERSION;
use karpenter_api::{NodeClaim, NodePool, annotations};
use karpenter_runtime::controller::{Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::own_key;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::writes::{self, Lock};
use kube::{Api, Resource};

use super::controller;
use crate::context::{BY_NODE_POOL, Context};
use crate::watches::Watches;

struct Hash {
    context: Context,
    pools: Api<NodePool>,
    claims: Api<NodeClaim>,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let hash = Hash {
        context: context.clone(),
        pools: Api::all(context.client.clone()),
        claims: Api::all(context.client.clone()),
    };
    let controller = controller(context, "nodepool.hash", hash);
    watches.node_pools.feed(&controller.queue(), own_key);
    context.run(program, controller);
}

impl Reconciler for Hash {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else { return Ok(Outcome::Done) };
        if self.context.providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        let hash = pool.hash();
        // Claims first: a pool with the new version and claims with the old hash would all drift.
        if !is_current(&*pool) {
            self.carry_over(&pool, &hash).await?;
        }
        let mut hashed = (*pool).clone();
        write(&mut hashed, Some(&hash));
        if hashed != *pool {
            writes::patch(&self.pools, &pool, &hashed, Lock::None).await?;
        }
        Ok(Outcome::Done)
    }
}

impl Hash {
    /// Gives the pool's claims a hash that can be compared with the pool's. A claim that has drifted keeps its old one: it
    /// cannot be told whether it still would have.
    async fn carry_over(&self, pool: &NodePool, hash: &str) -> Result<(), ReconcileError> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let mut errors = Vec::new();
        for claim in self.context.stores.node_claims.by_index(BY_NODE_POOL, name) {
            if self.context.providers.for_claim(&claim).is_err() || is_current(&*claim) {
                continue;
            }
            let mut hashed = (*claim).clone();
            let drifted = claim.condition(DRIFTED).is_some();
            write(&mut hashed, (!drifted).then_some(hash));
            if let Err(error) = writes::patch(&self.claims, &claim, &hashed, Lock::None).await {
                errors.push(error.into());
            }
        }
        ReconcileError::combine(errors)
    }
}

fn is_current<K: Resource>(object: &K) -> bool {
    let annotations = object.meta().annotations.as_ref();
    let version = annotations.and_then(|annotations| annotations.get(annotations::NODEPOOL_HASH_VERSION));
    version.is_some_and(|version| version == HASH_VERSION)
}

fn write<K: Resource>(object: &mut K, hash: Option<&str>) {
    let annotations = object.meta_mut().annotations.get_or_insert_default();
    annotations.insert(annotations::NODEPOOL_HASH_VERSION.to_owned(), HASH_VERSION.to_owned());
    if let Some(hash) = hash {
        annotations.insert(annotations::NODEPOOL_HASH.to_owned(), hash.to_owned());
    }
}
