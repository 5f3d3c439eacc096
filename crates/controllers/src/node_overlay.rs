//! Node overlays: says of each whether it applies, and if not, why. What they change the engine works out anew for every
//! decision, by the same rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::ConditionSet;
use karpenter_api::nodeoverlay::VALIDATION_SUCCEEDED;
use karpenter_api::{NodeOverlay, NodePool};
use karpenter_engine::instance_type::InstanceType;
use karpenter_engine::labels::Text;
use karpenter_engine::node_pool::InstanceTypes;
use karpenter_engine::overlay::{self, OverlayVerdict};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::informer::{Delta, Informer};
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit;
use karpenter_runtime::store::Store;
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::writes::{Lock, Written, patch_status};
use kube::{Api, Resource};

use crate::cluster_cost::ClusterCost;
use crate::context::Context;
use crate::provisioning::Provisioning;
use crate::watches::Watches;

const NAME: &str = "nodeoverlay.controller";
const AGAIN: Duration = Duration::from_secs(6 * 60 * 60);

/// Does nothing unless overlays are watched.
pub(crate) fn register(
    context: &Context,
    provisioning: &Provisioning,
    cost: &ClusterCost,
    watches: &mut Watches,
    program: &mut Program,
) {
    let Some(overlays) = &mut watches.node_overlays else { return };
    let reconciler = Overlays {
        context: context.clone(),
        store: overlays.store(),
        provisioning: provisioning.clone(),
        cost: cost.clone(),
    };
    let controller =
        Controller::builder(NAME, reconciler).limiter(rate_limit::reasonable()).build(&context.environment);
    let queue = controller.queue();
    // One look judges all overlays, whatever changed.
    feed(overlays, &queue);
    feed(&mut watches.node_pools, &queue);
    for informer in watches.node_classes.values_mut() {
        feed(informer, &queue);
    }
    context.run(program, controller);
}

fn feed<K>(informer: &mut Informer<K>, queue: &WorkQueue<()>)
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    informer.feed(queue, |delta| match delta {
        Delta::Updated { old, new } if old.meta().generation == new.meta().generation => Vec::new(),
        _ => vec![()],
    });
}

struct Overlays {
    context: Context,
    store: Store<NodeOverlay>,
    provisioning: Provisioning,
    cost: ClusterCost,
}

/// What NodePools can buy, as overlays leave it. All are looked at together: an overlay that clashes with another in one of them
/// applies in none.
pub(crate) fn apply(
    context: &Context,
    offered: BTreeMap<String, Arc<[InstanceType]>>,
) -> BTreeMap<String, Arc<[InstanceType]>> {
    if offered.is_empty() || !context.options.feature_gates.node_overlay {
        return offered;
    }
    let (now, rules) = (context.now(), context.providers.scheduling_rules());
    let snapshot = context.cluster.read(|cluster| {
        cluster.snapshot(now, rules, |pool| {
            InstanceTypes::Resolved(offered.get(&*pool.name).cloned().unwrap_or_default())
        })
    });
    let overlaid = overlay::evaluate(&snapshot);
    let changed = |name: &str| {
        let pool = snapshot.node_pools.iter().find(|pool| *pool.name == *name)?;
        overlaid.types_of(pool)
    };
    offered
        .into_iter()
        .map(|(name, types)| {
            let types = changed(&name).unwrap_or(types);
            (name, types)
        })
        .collect()
}

impl Reconciler for Overlays {
    type Key = ();

    async fn reconcile(&self, (): ()) -> ReconcileResult {
        let Context { stores, providers, cluster, .. } = &self.context;
        let pools: Vec<Arc<NodePool>> =
            stores.node_pools.list().into_iter().filter(|pool| providers.for_pool(pool).is_ok()).collect();
        let offers = self.provisioning.catalogue.offers(&pools).await;
        let (now, rules) = (self.context.now(), providers.scheduling_rules());
        // Before the snapshot: one that comes or changes after it gets no verdict of what it was not part of.
        let overlays = self.store.list();
        let snapshot = cluster.read(|cluster| cluster.snapshot(now, rules, |pool| offers.of(&pool.name)));
        let unresolved: Vec<ReconcileError> = snapshot
            .node_pools
            .iter()
            // One that has come since has a look of its own coming.
            .filter(|pool| offers.are_about(&pool.name))
            .filter_map(|pool| match &pool.instance_types {
                InstanceTypes::Unresolved { reason } => Some(ReconcileError::message(format!(
                    "listing instance types for nodepool {:?}, {reason}",
                    pool.name
                ))),
                InstanceTypes::Resolved(_) => None,
            })
            .collect();
        let verdicts = self.context.compute.run(move || overlay::evaluate(&snapshot).verdicts).await;
        let mut failures = Vec::new();
        for stored in overlays {
            match self.write(&stored, &verdicts).await {
                // Someone changed or removed an overlay: what was found may be true no longer.
                Ok(true) => return Ok(Outcome::Requeue),
                Ok(false) => {}
                Err(error) => failures.push(ReconcileError::from(error)),
            }
        }
        ReconcileError::combine(failures).map_err(|error| error.context("updating nodeoverlay statuses"))?;
        cluster.update(|cluster| cluster.mark_unconsolidated());
        self.cost.refresh();
        // A NodePool whose instance types are not known yet is looked at again soon.
        ReconcileError::combine(unresolved)?;
        Ok(Outcome::After(AGAIN))
    }
}

impl Overlays {
    /// Writes what became of an overlay; whether it was overtaken by a change.
    async fn write(
        &self,
        stored: &NodeOverlay,
        verdicts: &BTreeMap<Text, OverlayVerdict>,
    ) -> Result<bool, kube::Error> {
        let mut overlay = stored.clone();
        let problems = stored.runtime_validate(&self.context.providers.label_rules());
        let verdict = verdicts.get(stored.metadata.name.as_deref().unwrap_or_default());
        let now = self.context.now();
        let mut conditions = ConditionSet::of(&mut overlay, now);
        let invalid = |conditions: &mut ConditionSet<'_, NodeOverlay>, why: &str| {
            conditions.set_false(VALIDATION_SUCCEEDED, "RuntimeValidation", why)
        };
        match verdict {
            _ if !problems.is_empty() => invalid(&mut conditions, &problems.join("; ")),
            Some(OverlayVerdict::Applied) => conditions.set_true(VALIDATION_SUCCEEDED),
            Some(OverlayVerdict::Conflict) => {
                conditions.set_false(VALIDATION_SUCCEEDED, "Conflict", "conflict with another overlay")
            }
            Some(OverlayVerdict::Invalid(why)) => invalid(&mut conditions, why),
            None => invalid(&mut conditions, "its capacity is not a list of quantities"),
        };
        let api: Api<NodeOverlay> = Api::all(self.context.client.clone());
        let written = patch_status(&api, stored, &overlay, Lock::Optimistic).await?;
        Ok(matches!(written, Written::Conflict | Written::Gone))
    }
}
