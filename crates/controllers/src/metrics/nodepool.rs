//! `metrics.nodepool`: what NodePools may use, do use, and cost.

use karpenter_api::ResourceList;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::metrics::{GaugeStore, GaugeVec, Registry, StoredGauge};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use std::time::Duration;

use super::resource_type;
use crate::cluster_cost::ClusterCost;
use crate::context::Context;
use crate::watches::Watches;

const NAME: &str = "metrics.nodepool";
const PERIOD: Duration = Duration::from_secs(10);

/// Puts the controller into the program.
pub(crate) fn register(context: &Context, cost: &ClusterCost, watches: &mut Watches, program: &mut Program) {
    let metrics = NodePoolMetrics {
        context: context.clone(),
        cost: cost.clone(),
        families: Families::new(&context.environment.registry),
        series: GaugeStore::new(),
    };
    let controller =
        Controller::for_objects(NAME, karpenter_api::GROUP, "NodePool", metrics).build(&context.environment);
    watches.node_pools.feed(&controller.queue(), own_key);
    context.run(program, controller);
}

struct Families {
    limit: GaugeVec,
    usage: GaugeVec,
    cost: GaugeVec,
}

impl Families {
    fn new(registry: &Registry) -> Self {
        let labels = ["resource_type", "nodepool"];
        Self {
            limit: registry.gauge(
                "karpenter_nodepools_limit",
                "What a NodePool may use, by resource.",
                &labels,
            ),
            usage: registry.gauge("karpenter_nodepools_usage", "What a NodePool uses, by resource.", &labels),
            cost: registry.gauge(
                "karpenter_nodepools_cost_total",
                "What the nodes of a NodePool cost per hour, as far as Karpenter knows; no bill.",
                &["nodepool"],
            ),
        }
    }
}

struct NodePoolMetrics {
    context: Context,
    cost: ClusterCost,
    families: Families,
    series: GaugeStore,
}

impl Reconciler for NodePoolMetrics {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pool) = self.context.stores.node_pools.get(&key) else {
            self.series.delete(&key.name);
            return Ok(Outcome::Done);
        };
        if self.context.providers.for_pool(&pool).is_err() {
            return Ok(Outcome::Done);
        }
        let gauges = |family: &GaugeVec, list: Option<&ResourceList>| -> Vec<StoredGauge> {
            let gauge = |(name, quantity): (&String, &karpenter_api::Quantity)| StoredGauge {
                family: family.clone(),
                labels: vec![resource_type(name), key.name.to_string()],
                value: if name == "cpu" {
                    quantity.milli_value() as f64 / 1000.0
                } else {
                    quantity.value() as f64
                },
            };
            list.into_iter().flatten().map(gauge).collect()
        };
        let mut series = gauges(&self.families.limit, pool.spec.limits.as_ref());
        let used = pool.status.as_ref().and_then(|status| status.resources.as_ref());
        series.extend(gauges(&self.families.usage, used));
        series.push(StoredGauge {
            family: self.families.cost.clone(),
            labels: vec![key.name.to_string()],
            value: self.cost.of_pool(&key.name),
        });
        self.series.update(&key.name, series);
        Ok(Outcome::After(PERIOD))
    }
}
