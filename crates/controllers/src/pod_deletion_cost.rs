//! `pod.deletioncost`: writes on pods how gladly their workload should part with them (`controller.kubernetes.io/pod-deletion-cost`),
//! so that a ReplicaSet that shrinks empties the nodes that would be disrupted next. Which those are the engine says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::NodePool;
use karpenter_api::annotations::POD_DELETION_COST;
use karpenter_engine::disruption::{DeletionOrder, RankedNode, deletion_order};
use karpenter_engine::labels::Text;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler, Singleton};
use karpenter_runtime::informer::Kept as _;
use karpenter_runtime::logging;
use karpenter_runtime::metrics::{CounterVec, GaugeVec};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{self, exponential_and_bucket};
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::writes::{Lock, Written, patch};
use karpenter_state::ConsolidationState;
use kube::Api;

use crate::context::Context;
use crate::provisioning::Provisioning;
use crate::seen_pod::SeenPod;

const NAME: &str = "pod.deletioncost";
const QUEUE_NAME: &str = "pod.deletioncost.queue";
const PERIOD: Duration = Duration::from_secs(60);
const UNTIL_SYNCED: Duration = Duration::from_secs(1);
/// Nodes whose pods are written to in one turn, those going away not counted.
const NODES_A_TURN: usize = 50;

/// Does nothing unless the gate `PodDeletionCostManagement` is open.
pub(crate) fn register(context: &Context, provisioning: &Provisioning, program: &mut Program) {
    if !context.options.feature_gates.pod_deletion_cost_management {
        return;
    }
    let registry = &context.environment.registry;
    let wanted: Arc<Wanted> = Arc::default();
    let writer = Writer {
        context: context.clone(),
        wanted: Arc::clone(&wanted),
        writes: registry.counter(
            "karpenter_pod_deletion_cost_pod_annotation_writes_total",
            "Attempts to write a pod's deletion cost, by what became of them.",
            &["result"],
        ),
    };
    let workers = rate_limit::scale(context.options.cpu_requests_millicores, 100, 5000);
    let limiter = exponential_and_bucket(
        Duration::from_millis(100),
        Duration::from_secs(10),
        rate_limit::bucket(100, 100, workers),
    );
    let writer = Controller::builder(QUEUE_NAME, writer)
        .about("", "", |pod| pod.key.clone())
        .workers(workers)
        .limiter(limiter)
        .build(&context.environment);
    let ranking = Ranking {
        context: context.clone(),
        provisioning: provisioning.clone(),
        wanted,
        queue: writer.queue(),
        pending: registry.gauge(
            "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
            "Nodes with at least one pod whose deletion cost is to be written in this turn.",
            &["nodepool"],
        ),
        seen: Mutex::new(None),
    };
    context.run(program, writer);
    context.run(program, Controller::singleton(NAME, ranking, &context.environment));
}

/// A pod, and not another of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodKey {
    key: ObjectKey,
    uid: String,
}

/// What each pod's cost should be; none is no annotation.
#[derive(Default)]
struct Wanted(Mutex<BTreeMap<PodKey, Option<i32>>>);

impl Wanted {
    fn all(&self) -> MutexGuard<'_, BTreeMap<PodKey, Option<i32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Ranking {
    context: Context,
    provisioning: Provisioning,
    wanted: Arc<Wanted>,
    queue: WorkQueue<PodKey>,
    pending: GaugeVec,
    /// The state of the cluster that was last dealt with.
    seen: Mutex<Option<ConsolidationState>>,
}

impl Singleton for Ranking {
    async fn reconcile(&self) -> ReconcileResult {
        let Context { cluster, stores, providers, options, .. } = &self.context;
        if !self.provisioning.sync.is_synced() {
            return Ok(Outcome::After(UNTIL_SYNCED));
        }
        let now = self.context.undoubted_now();
        let state = cluster.update(|cluster| cluster.consolidation_state());
        if *self.seen() == Some(state) {
            tracing::debug!("no changes detected, skipping pod deletion cost update");
            return Ok(Outcome::After(PERIOD));
        }
        if cluster.read(|cluster| cluster.machine_count()) == 0 {
            return Ok(Outcome::After(PERIOD));
        }
        let pools: Vec<Arc<NodePool>> =
            stores.node_pools.list().into_iter().filter(|pool| providers.for_pool(pool).is_ok()).collect();
        let offers = self.provisioning.catalogue.offers(&pools).await;
        if offers.are_awaited() {
            // Nodes of unknown types would be ranked as if they were to stay, and their pods lose what they were given.
            return Ok(Outcome::After(UNTIL_SYNCED));
        }
        let rules = providers.scheduling_rules();
        let snapshot = cluster.read(|cluster| cluster.snapshot(now, rules, |pool| offers.of(&pool.name)));
        let node_overlay = options.feature_gates.node_overlay;
        let order = self.context.compute.run(move || deletion_order(&snapshot, node_overlay, true)).await;
        tracing::debug!(
            totalNodes = order.going.len() + order.next.len() + order.rest.len(),
            disruptedNodes = order.going.len(),
            rankedNodes = order.next.len(),
            cleanupOnlyNodes = order.rest.len(),
            "completed node ranking"
        );
        let by_pool = self.enqueue(&order);
        self.pending.reset();
        for (pool, count) in &by_pool {
            self.pending.set(&[pool], f64::from(*count));
        }
        *self.seen() = Some(state);
        let total: u32 = by_pool.values().sum();
        if total > 0 {
            tracing::debug!(nodeCount = total, "enqueued pod deletion cost annotation writes");
        }
        Ok(Outcome::After(PERIOD))
    }
}

impl Ranking {
    fn seen(&self) -> MutexGuard<'_, Option<ConsolidationState>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what is to be written; nodes with something to write, by NodePool.
    fn enqueue(&self, order: &DeletionOrder) -> BTreeMap<Text, u32> {
        let mut by_pool: BTreeMap<Text, u32> = BTreeMap::new();
        let mut ask = |node: &RankedNode, cost: Option<i32>| {
            let asked = self.ask(&node.node, cost);
            if asked {
                *by_pool.entry(node.node_pool.clone()).or_default() += 1;
            }
            asked
        };
        for node in &order.going {
            ask(node, Some(i32::MIN));
        }
        let mut left = NODES_A_TURN;
        let count = i32::try_from(order.next.len()).unwrap_or(i32::MAX);
        let ranked = order.next.iter().zip(-count..);
        for (node, rank) in
            ranked.map(|(node, rank)| (node, Some(rank))).chain(order.rest.iter().map(|n| (n, None)))
        {
            if left == 0 {
                break;
            }
            left -= usize::from(ask(node, rank));
        }
        by_pool
    }

    /// Whether some pod of the node is to be written to. Only ReplicaSets read the annotation.
    fn ask(&self, node: &str, cost: Option<i32>) -> bool {
        let bound = self.context.stores.pods_on(node);
        let pods: Vec<&Arc<SeenPod>> = bound.iter().filter(|pod| pod.owned_by.replica_set).collect();
        if pods.iter().all(|pod| has_cost(pod, cost)) {
            return false;
        }
        for pod in pods {
            let key = PodKey { key: pod.key.clone(), uid: pod.uid.to_string() };
            self.wanted.all().insert(key.clone(), cost);
            self.queue.add(key);
        }
        true
    }
}

fn has_cost(pod: &SeenPod, cost: Option<i32>) -> bool {
    pod.deletion_cost.as_deref() == cost.map(|cost| cost.to_string()).as_deref()
}

struct Writer {
    context: Context,
    wanted: Arc<Wanted>,
    writes: CounterVec,
}

impl Reconciler for Writer {
    type Key = PodKey;

    async fn reconcile(&self, key: PodKey) -> ReconcileResult {
        let Some(cost) = self.wanted.all().get(&key).copied() else { return Ok(Outcome::Done) };
        let pod = self.context.stores.pods.get(&key.key);
        let result = match pod.filter(|pod| *pod.uid == *key.uid) {
            None => "skipped_notfound",
            Some(pod) if has_cost(&pod, cost) => "skipped_unchanged",
            Some(pod) => match self.write(&pod, cost).await {
                Ok(Written::Gone) => "skipped_notfound",
                Ok(Written::Conflict) => "skipped_conflict",
                Ok(Written::Done(_) | Written::Unchanged) => "updated",
                Err(error) => {
                    self.writes.inc(&["error"]);
                    return Err(error.into());
                }
            },
        };
        if matches!(result, "skipped_notfound" | "skipped_conflict") {
            tracing::debug!(pod = %logging::object(&key.key), result, "skipping pod annotation update");
        }
        self.writes.inc(&[result]);
        self.wanted.all().remove(&key);
        Ok(Outcome::Done)
    }
}

impl Writer {
    async fn write(&self, pod: &SeenPod, cost: Option<i32>) -> Result<Written<Pod>, kube::Error> {
        let with = |cost: Option<&str>| {
            let annotation = cost.map(|cost| (POD_DELETION_COST.to_owned(), cost.to_owned()));
            let metadata = ObjectMeta {
                name: Some(pod.key.name.to_string()),
                resource_version: pod.version().map(str::to_owned),
                annotations: Some(annotation.into_iter().collect()),
                ..ObjectMeta::default()
            };
            Pod { metadata, ..Pod::default() }
        };
        let (before, after) =
            (with(pod.deletion_cost.as_deref()), with(cost.map(|cost| cost.to_string()).as_deref()));
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &pod.key.namespace);
        patch(&api, &before, &after, Lock::Optimistic).await
    }
}
