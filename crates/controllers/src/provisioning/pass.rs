//! One pass: what waits, what there is and what could be bought go to the engine; what it decides is told and carried out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use karpenter_api::NodePool;
use karpenter_api::conditions::{ConditionStatus, HasConditions, READY};
use karpenter_engine::ingest::Ingest;
use karpenter_engine::{
    FeatureGates, MinValuesPolicy, Plan, PlannedClaim, PreferencePolicy, Snapshot, SolveOptions,
};
use karpenter_runtime::controller::{IMMEDIATELY, Outcome, ReconcileResult, Singleton};
use karpenter_runtime::entropy::Stream;
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::options::{self, Options};
use tokio::time::Instant;

use super::batcher::Batcher;
use super::buffers;
use super::claims::ClaimFactory;
use super::metrics::SchedulerMetrics;
use super::offerings::Catalogue;
use super::records::Records;
use crate::context::Context;
use crate::sync::Sync;

/// The controller's name.
pub(super) const NAME: &str = "provisioner";
/// Why its NodeClaims are created.
const PROVISIONED: &str = "provisioned";
/// How long the engine may think. What is placed by then is carried out; the next pass is for who is left.
const SOLVE_LIMIT: Duration = Duration::from_secs(60);
/// How soon to look again whether the state is complete. Launches are all it usually waits for.
const UNTIL_SYNCED: Duration = Duration::from_secs(1);

pub(super) struct Provisioner {
    pub(super) context: Context,
    pub(super) batcher: Arc<Batcher>,
    pub(super) sync: Sync,
    pub(super) catalogue: Catalogue,
    pub(super) claims: ClaimFactory,
    pub(super) records: Records,
    pub(super) metrics: SchedulerMetrics,
    pub(super) options: Arc<SolveOptions>,
    pub(super) ids: Mutex<Stream>,
}

/// A decision, with what it was made from.
pub(super) struct Decision {
    pub(super) plan: Plan,
    pub(super) snapshot: Arc<Snapshot>,
    /// NodePools as they were, by name.
    pub(super) pools: BTreeMap<String, Arc<NodePool>>,
}

/// What a pass comes to.
enum Verdict {
    NothingToDo,
    /// What there is to decide from is not complete or not of one piece: what was decided last holds until the next pass.
    TooEarly,
    Decided(Box<Decision>),
}

impl Singleton for Provisioner {
    async fn reconcile(&self) -> ReconcileResult {
        if !self.batcher.wait().await {
            return Ok(Outcome::After(IMMEDIATELY));
        }
        if !self.sync.is_synced() {
            // Whoever asked still wants a pass, and should not have to ask again.
            self.batcher.trigger_now();
            return Ok(Outcome::After(UNTIL_SYNCED));
        }
        let decision = match self.decide().await {
            Verdict::Decided(decision) => Some(*decision),
            Verdict::NothingToDo => None,
            Verdict::TooEarly => {
                self.batcher.trigger_now();
                return Ok(Outcome::After(IMMEDIATELY));
            }
        };
        if let Some(decision) = &decision {
            self.records.write(decision);
        }
        buffers::update(&self.context, decision.as_ref()).await;
        if let Some(decision) = &decision {
            self.carry_out(decision).await;
        }
        Ok(Outcome::After(IMMEDIATELY))
    }
}

impl Provisioner {
    async fn decide(&self) -> Verdict {
        let started = Instant::now();
        let Context { cluster, stores, providers, .. } = &self.context;
        if !cluster.read(|cluster| cluster.has_scheduling_work()) {
            self.metrics.ignored_pods.set(&[], 0.0);
            self.metrics.duration.observe(&[NAME], started.elapsed().as_secs_f64());
            return Verdict::NothingToDo;
        }
        let pools: Vec<Arc<NodePool>> =
            stores.node_pools.list().into_iter().filter(|pool| providers.for_pool(pool).is_ok()).collect();
        // Overlays are judged by what every NodePool offers: one that clashes with another anywhere applies nowhere.
        let overlays = self.options.gates.node_overlay;
        let asked: Vec<Arc<NodePool>> =
            pools.iter().filter(|pool| overlays || may_buy(pool)).cloned().collect();
        let offers = self.catalogue.offers(&asked).await;
        if offers.are_awaited() {
            return Verdict::TooEarly;
        }
        // A leap of the clock is no reason to give up on drains and buy nodes.
        let (now, rules) = (self.context.undoubted_now(), providers.scheduling_rules());
        let (snapshot, consistent) = cluster.read(|cluster| {
            // A NodePool changed while its instance types were asked for: what is decided must be of one piece, since the
            // NodeClaim carries the hash of the template it was made from.
            let same = |pool: &Arc<NodePool>| {
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                cluster.node_pool_generation(name) == Some(pool.metadata.generation.unwrap_or_default())
            };
            let mut snapshot = cluster.snapshot(now, rules, |pool| offers.of(&pool.name));
            offers.taint(&mut snapshot);
            (Arc::new(snapshot), asked.iter().all(same))
        });
        if !consistent {
            return Verdict::TooEarly;
        }
        let id = self.new_id();
        self.metrics.queue_depth.delete_matching(&[("controller", NAME)]);
        self.metrics.unschedulable_pods.delete_matching(&[("controller", NAME)]);
        let unfinished = self.metrics.unfinished_work.with(&[NAME, &id]);
        unfinished.set(started.elapsed().as_secs_f64());
        let ((plan, left), thought) = {
            let (snapshot, options) = (Arc::clone(&snapshot), Arc::clone(&self.options));
            let solve = move || {
                // Waiting for its turn is not thinking.
                let begun = Instant::now();
                let solved =
                    karpenter_engine::solve_within(&snapshot, &options, &|| begun.elapsed() > SOLVE_LIMIT);
                (solved, begun.elapsed())
            };
            self.context.compute.run(solve).await
        };
        if left > 0 {
            let duration = logging::duration(Duration::from_secs(started.elapsed().as_secs()));
            tracing::info!(%duration, "scheduling-id" = id, "pods-left" = left, "scheduling simulation timed out");
            self.batcher.trigger_now();
        }
        self.metrics.unfinished_work.delete(&[NAME, &id]);
        self.metrics.queue_depth.set(&[NAME, &id], plan.pod_errors.len() as f64);
        // The simulation and the whole pass, as upstream.
        self.metrics.duration.observe(&[NAME], thought.as_secs_f64());
        self.metrics.duration.observe(&[NAME], started.elapsed().as_secs_f64());
        let named = |pool: Arc<NodePool>| (pool.metadata.name.clone().unwrap_or_default(), pool);
        let decision = Decision { plan, snapshot, pools: pools.into_iter().map(named).collect() };
        self.records.log(&decision, started.elapsed());
        Verdict::Decided(Box::new(decision))
    }

    fn new_id(&self) -> String {
        self.ids.lock().unwrap_or_else(std::sync::PoisonError::into_inner).uuid().to_string()
    }

    /// Creates the NodeClaims, all at once. One that fails keeps neither the others nor the next pass: its pods ask again by
    /// themselves.
    async fn carry_out(&self, decision: &Decision) {
        let creations = decision.plan.new_claims.iter().map(|planned| async move {
            if let Err(error) = self.create(decision, planned).await {
                tracing::error!(nodepool = &*planned.node_pool, %error, "creating node claim");
            }
        });
        join_all(creations).await;
    }

    async fn create(&self, decision: &Decision, planned: &PlannedClaim) -> Result<(), ReconcileError> {
        let pool = &*planned.node_pool;
        let Some(source) = decision.pools.get(pool) else {
            return Err(ReconcileError::message(format!("NodePool {pool:?} is gone")));
        };
        let claim = self.claims.planned(source, planned);
        let created = self.claims.create(claim, pool, PROVISIONED).await?;
        self.records.assigned(planned, &created);
        Ok(())
    }
}

/// Whether pods can be given nodes of this NodePool; the engine says why not.
fn may_buy(pool: &NodePool) -> bool {
    !pool.is_static()
        && pool.metadata.deletion_timestamp.is_none()
        && pool.condition_status(READY) == ConditionStatus::True
}

/// The settings that reach a decision.
pub(crate) fn solve_options(options: &Options) -> SolveOptions {
    let mut ingest = Ingest::new();
    SolveOptions {
        preference_policy: match options.preference_policy {
            options::PreferencePolicy::Respect => PreferencePolicy::Respect,
            options::PreferencePolicy::Ignore => PreferencePolicy::Ignore,
        },
        min_values_policy: match options.min_values_policy {
            options::MinValuesPolicy::Strict => MinValuesPolicy::Strict,
            options::MinValuesPolicy::BestEffort => MinValuesPolicy::BestEffort,
        },
        gates: FeatureGates {
            reserved_capacity: options.feature_gates.reserved_capacity,
            node_overlay: options.feature_gates.node_overlay,
            capacity_buffer: options.feature_gates.capacity_buffer,
        },
        default_spread: options.default_topology_spread.iter().map(|c| ingest.spread(c)).collect(),
        ..SolveOptions::default()
    }
}
