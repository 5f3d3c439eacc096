//! What the nodes of each NodePool cost: prices as providers last told them and overlays changed them, and the NodeClaims there
//! are.
//!
//! Upstream counts NodeClaims in and out; here the sum is made when it is asked for, from what is there. A price that is not
//! known counts as nothing and is asked for once, then again with the hourly refresh (`state.pricing`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use karpenter_api::{NodeClaim, labels};
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::{CAPACITY_TYPE, ZONE};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Singleton};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::Delta;
use karpenter_runtime::metrics::CounterVec;
use karpenter_runtime::program::Program;
use karpenter_runtime::store::Store;
use karpenter_runtime::work_queue::WorkQueue;

use crate::context::{BY_NODE_POOL, Context};
use crate::node_overlay;
use crate::watches::Watches;

const NAME: &str = "state.pricing";
const PERIOD: Duration = Duration::from_secs(3600);

/// Instance type, zone and capacity type.
type Offering = (String, String, String);

/// What NodePools cost; clones share what is known.
#[derive(Clone)]
pub struct ClusterCost {
    prices: Arc<Mutex<BTreeMap<String, BTreeMap<Offering, f64>>>>,
    claims: Store<NodeClaim>,
    asked: Arc<OnceLock<WorkQueue<()>>>,
}

/// Puts the refresh of prices into the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) -> ClusterCost {
    let cost = ClusterCost {
        prices: Arc::default(),
        claims: context.stores.node_claims.clone(),
        asked: Arc::default(),
    };
    let errors = context.environment.registry.counter(
        "karpenter_nodepools_cost_tracker_errors_total",
        "Times the price of a NodeClaim could not be had.",
        &["nodepool"],
    );
    let pricing = Pricing { context: context.clone(), cost: cost.clone(), errors };
    let controller = Controller::singleton(NAME, pricing, &context.environment);
    let queue = controller.queue();
    // Set once, here.
    let _ = cost.asked.set(queue.clone());
    watches.node_claims.subscribe({
        let (cost, queue) = (cost.clone(), queue.clone());
        move |delta| {
            if !matches!(delta, Delta::Deleted { .. }) && !cost.is_known(delta.object()) {
                queue.add(());
            }
        }
    });
    watches.node_pools.subscribe({
        let cost = cost.clone();
        move |delta| {
            if let Delta::Deleted { object } = delta {
                cost.lock().remove(object.metadata.name.as_deref().unwrap_or_default());
            }
        }
    });
    context.run(program, controller);
    cost
}

impl ClusterCost {
    /// What the nodes of this NodePool cost per hour, in the provider's currency.
    pub fn of_pool(&self, pool: &str) -> f64 {
        let claims = self.claims.by_index(BY_NODE_POOL, pool);
        let prices = self.lock();
        let Some(prices) = prices.get(pool) else { return 0.0 };
        claims.iter().filter_map(|claim| prices.get(&offering(claim)?.1)).sum()
    }

    /// Has prices looked up again: something has changed them.
    pub(crate) fn refresh(&self) {
        if let Some(queue) = self.asked.get() {
            queue.add(());
        }
    }

    /// Takes what a provider offers a NodePool; prices of what it offers no more are kept, as nodes of it may be.
    pub(crate) fn update_offerings(&self, pool: &str, types: &[InstanceType]) {
        let mut prices = self.lock();
        let prices = prices.entry(pool.to_owned()).or_default();
        for instance_type in types {
            // Of several alike the first counts.
            for offered in instance_type.offerings.iter().rev() {
                let value = |key: &str| {
                    let requirement = offered.requirements.get(key).filter(|r| !r.complement);
                    requirement.and_then(|r| r.values.first()).map(ToString::to_string).unwrap_or_default()
                };
                let price = if offered.price.is_nan() { 0.0 } else { offered.price };
                prices.insert((instance_type.name.to_string(), value(ZONE), value(CAPACITY_TYPE)), price);
            }
        }
    }

    /// Whether the price of a claim is known, or has been asked for, or the claim does not say yet what it is.
    fn is_known(&self, claim: &NodeClaim) -> bool {
        let Some((pool, offering)) = offering(claim) else { return true };
        self.lock().get(&pool).is_some_and(|prices| prices.contains_key(&offering))
    }

    /// Whether a claim of this NodePool has a price that nobody was asked for yet.
    fn lacks_prices(&self, pool: &str) -> bool {
        self.claims.by_index(BY_NODE_POOL, pool).iter().any(|claim| !self.is_known(claim))
    }

    /// Says of claims whose price is not known so, once; they count for nothing from then on.
    fn settle_unknown(&self, pool: &str) {
        for claim in self.claims.by_index(BY_NODE_POOL, pool) {
            let Some((_, offering)) = offering(&claim) else { continue };
            let mut prices = self.lock();
            let prices = prices.entry(pool.to_owned()).or_default();
            if let Entry::Vacant(unknown) = prices.entry(offering) {
                let (instance_type, zone, capacity_type) = unknown.key();
                tracing::error!(
                    nodepool = pool,
                    "instance-type" = instance_type,
                    zone,
                    "capacity-type" = capacity_type,
                    "offering price unknown — cost tracking will undercount for this nodeclaim until next update"
                );
                unknown.insert(0.0);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeMap<Offering, f64>>> {
        self.prices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// NodePool and offering of a claim that says all of it.
fn offering(claim: &NodeClaim) -> Option<(String, Offering)> {
    let labels = claim.metadata.labels.as_ref()?;
    let label = |key: &str| labels.get(key).cloned();
    let offering =
        (label(labels::INSTANCE_TYPE)?, label(labels::TOPOLOGY_ZONE)?, label(labels::CAPACITY_TYPE)?);
    Some((label(labels::NODEPOOL)?, offering))
}

struct Pricing {
    context: Context,
    cost: ClusterCost,
    errors: CounterVec,
}

impl Singleton for Pricing {
    async fn reconcile(&self) -> ReconcileResult {
        let Context { stores, providers, options, .. } = &self.context;
        let mut errors = Vec::new();
        let mut offered = BTreeMap::new();
        for pool in stores.node_pools.list() {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let Ok(provider) = providers.for_pool(&pool) else { continue };
            match provider.get_instance_types(&pool).await {
                Ok(types) if options.feature_gates.node_overlay => drop(offered.insert(name, types)),
                Ok(types) => self.take(&name, &types),
                Err(error) => {
                    // Prices nobody needs yet are not missed.
                    if self.cost.lacks_prices(&name) {
                        self.errors.inc(&[&name]);
                    }
                    errors.push(ReconcileError::from(error));
                }
            }
        }
        for (name, types) in node_overlay::apply(&self.context, offered) {
            self.take(&name, &types);
        }
        ReconcileError::combine(errors).map_err(|error| error.context("refreshing pricing info"))?;
        Ok(Outcome::After(PERIOD))
    }
}

impl Pricing {
    fn take(&self, pool: &str, types: &[InstanceType]) {
        self.cost.update_offerings(pool, types);
        self.cost.settle_unknown(pool);
    }
}
