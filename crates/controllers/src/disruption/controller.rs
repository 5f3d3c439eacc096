//! The disruption loop: every ten seconds, and at once after something was started, a snapshot goes through the methods in
//! order. The first that finds something to do does it and ends the pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use karpenter_api::nodepool::ConsolidationPolicy;
use karpenter_api::{NodePool, annotations};
use karpenter_cloudprovider::{CloudProvider, Registry};
use karpenter_engine::Snapshot;
use karpenter_engine::disruption::{
    Candidate, Command, DisruptionGates, DisruptionOptions, Invalid, Memory, Method, Outcome as Found, Pass,
    ProviderRepair, RepairPolicies, RepairPolicyError, VALIDATION_DELAY, Valid, Why, may_be_disrupted,
};
use karpenter_engine::labels::Text;
use karpenter_engine::node_pool::InstanceTypes;
use karpenter_engine::pod::CostHint;
use karpenter_runtime::compute::Compute;
use karpenter_runtime::context::stopping;
use karpenter_runtime::controller::{Controller, IMMEDIATELY, Outcome, ReconcileResult, Singleton};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::options::Options;
use karpenter_runtime::program::Program;
use karpenter_state::ConsolidationState;
use tokio::time::Instant;

use super::patience::Patience;
use super::queue::{Pools, Queue, Started, policy_name};
use super::{events, leftovers, log, metrics};
use crate::cluster_cost::ClusterCost;
use crate::context::Context;
use crate::pods;
use crate::provisioning::{Provisioning, solve_options};

const NAME: &str = "disruption";
/// How often nothing is found.
const PERIOD: Duration = Duration::from_secs(10);
/// How soon to look again whether the state is complete.
const UNTIL_SYNCED: Duration = Duration::from_secs(1);
/// A pass that starts so long after the last one is worth a word.
const ABNORMAL: Duration = Duration::from_secs(15 * 60);

pub(super) struct Disruption {
    context: Context,
    provisioning: Provisioning,
    cost: ClusterCost,
    queue: Queue,
    options: Arc<DisruptionOptions>,
    remembered: Mutex<Remembered>,
}

/// What one pass leaves for the next.
#[derive(Default)]
struct Remembered {
    /// The cluster in which a method found nothing: while it is the same, there is no use in looking again.
    consolidated: BTreeMap<Method, ConsolidationState>,
    /// What platforms were at work on then, which no object of the cluster says.
    held: BTreeMap<Text, Text>,
    /// What platforms could do nothing with.
    kept: BTreeMap<Text, Text>,
    /// What could not be disrupted then.
    passed_over: BTreeSet<Text>,
    unseen_pools: BTreeSet<Text>,
    last_run: Option<Timestamp>,
    patience: Patience,
}

/// What platforms say about their nodes, by provider id.
#[derive(Default)]
struct Holds {
    /// What they are at work on, and what they do.
    held: BTreeMap<Text, Text>,
    /// What they can neither end nor replace, and why.
    kept: BTreeMap<Text, Text>,
    /// What they take away.
    leaving: BTreeSet<Text>,
}

/// What became of a method's commands.
enum Carried {
    /// At least one is under way.
    Started,
    /// None is good any more.
    Nothing,
    /// These were to be repaired, and cannot be now or have changed since.
    Unrepaired(Vec<Arc<Candidate>>),
    /// The clock leapt meanwhile.
    Doubted,
    /// The program is to stop.
    Stopped,
}

/// A method's answer.
struct Asked {
    found: Found,
    /// Whether it found nothing in the same cluster before, and only said what it would choose from.
    vain: bool,
    took: Duration,
}

/// One look at the cluster, and what goes with it.
#[derive(Clone)]
struct Look {
    snapshot: Arc<Snapshot>,
    memory: Arc<Memory>,
    pools: Arc<Pools>,
    state: ConsolidationState,
}

impl Disruption {
    pub(super) fn register(
        context: &Context,
        provisioning: &Provisioning,
        cost: &ClusterCost,
        queue: Queue,
        program: &mut Program,
    ) {
        let disruption = Self {
            options: Arc::new(disruption_options(context)),
            context: context.clone(),
            provisioning: provisioning.clone(),
            cost: cost.clone(),
            queue,
            remembered: Mutex::default(),
        };
        context.run(program, Controller::singleton(NAME, disruption, &context.environment));
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What each provider wants repaired and how; nothing when repair is off or left to the legacy controller.
pub(super) fn repair_policies(
    options: &Options,
    providers: &Registry,
) -> Result<Vec<ProviderRepair>, UnusableRepairPolicies> {
    if !options.feature_gates.node_repair || options.legacy_node_repair {
        return Ok(Vec::new());
    }
    let of_provider = |provider: &Arc<dyn CloudProvider>| {
        let policies = RepairPolicies::new(provider.repair_policies()).map_err(|error| {
            UnusableRepairPolicies { provider: provider.name().to_owned(), source: error }
        })?;
        let classes = provider.supported_node_classes();
        let node_class_labels = classes.iter().map(|class| class.label_key().into()).collect();
        Ok(ProviderRepair { node_class_labels, policies })
    };
    providers.providers().iter().map(of_provider).collect()
}

/// A provider's repair policies make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider {provider}: {source}; turn the feature gate NodeRepair off, or set --legacy-node-repair")]
pub struct UnusableRepairPolicies {
    provider: String,
    source: RepairPolicyError,
}

/// The settings that reach a decision.
fn disruption_options(context: &Context) -> DisruptionOptions {
    let gates = &context.options.feature_gates;
    let repair = repair_policies(&context.options, &context.providers).unwrap_or_else(|error| {
        tracing::error!(%error, "node repair is off, the provider's repair policies make no sense");
        Vec::new()
    });
    DisruptionOptions {
        solve: solve_options(&context.options),
        gates: DisruptionGates {
            node_repair: gates.node_repair,
            spot_to_spot_consolidation: gates.spot_to_spot_consolidation,
            terminate_first_drift: gates.terminate_first_drift,
            terminate_first_repair: gates.terminate_first_repair,
            pod_deletion_cost_management: gates.pod_deletion_cost_management,
        },
        repair,
        threads: match context.compute {
            Compute::Inline | Compute::Taking(_) => 1,
            Compute::Beside => std::thread::available_parallelism().map_or(1, usize::from),
        },
    }
}

impl Singleton for Disruption {
    async fn reconcile(&self) -> ReconcileResult {
        self.mention_long_pause();
        self.log_invalid_budgets();
        let doubt = self.context.environment.clock.doubted_for();
        if !doubt.is_zero() {
            return Ok(Outcome::After(doubt));
        }
        if !self.provisioning.sync.is_synced() {
            return Ok(Outcome::After(UNTIL_SYNCED));
        }
        leftovers::clean_up(&self.context, &self.queue).await;
        let mut methods: Vec<Method> = self.options.methods().collect();
        let Some(mut look) = self.look().await else { return Ok(Outcome::After(PERIOD)) };
        self.tell_wishes(&look);
        self.log_unreadable_costs(&look);
        while !methods.is_empty() {
            let found = self.search(&look, &methods).await;
            for asked in &found {
                self.tell(&look, asked);
            }
            let Some(Asked { found: last, .. }) = found.into_iter().next_back() else { break };
            if let Some(error) = &last.error {
                let failed = ReconcileError::message(format!("computing disruption decision, {error}"));
                if last.method != Method::SingleNodeConsolidation {
                    return Err(failed.context("disrupting"));
                }
                tracing::error!(error = %failed, "failed computing consolidation");
            }
            let method = last.method;
            match self.carry_out(&mut look, last.commands).await? {
                Carried::Started | Carried::Doubted => return Ok(Outcome::After(IMMEDIATELY)),
                Carried::Stopped => return Ok(Outcome::Done),
                Carried::Nothing => methods.retain(|other| *other > method),
                // Another node may need its method as much.
                Carried::Unrepaired(nodes) => {
                    let mut unrepaired = look.memory.unrepaired.clone();
                    unrepaired.extend(nodes.iter().map(|node| node.claim_uid.clone()));
                    let Some(fresh) = self.look().await else { return Ok(Outcome::After(PERIOD)) };
                    look = fresh;
                    Arc::make_mut(&mut look.memory).unrepaired = unrepaired;
                    methods.retain(|other| *other >= method);
                }
            }
        }
        Ok(Outcome::After(PERIOD))
    }
}

impl Disruption {
    fn mention_long_pause(&self) {
        let now = self.context.now();
        if let Some(last) = self.remembered().last_run.replace(now) {
            let since = Duration::try_from(now.duration_since(last)).unwrap_or_default();
            if since > ABNORMAL {
                let since = logging::duration(since);
                tracing::debug!(name = "disruption-loop", time_since = %since, "abnormal time between runs");
            }
        }
    }

    /// Says which budgets cannot be understood; they allow nothing until they are mended.
    fn log_invalid_budgets(&self) {
        let now = self.context.now();
        let mut problems = String::new();
        for pool in self.context.stores.node_pools.list() {
            if self.context.providers.for_pool(&pool).is_err() {
                continue;
            }
            for (index, budget) in pool.budgets().iter().enumerate() {
                if let Err(error) = budget.allowed_disruptions(now, 100) {
                    events::invalid_budget(&self.context, &pool, index, &error);
                }
            }
            // How many nodes there are does not matter for whether it can be understood, nor does the reason.
            if let Err(errors) = pool.allowed_disruptions(now, 100, Method::Emptiness.reason()) {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                problems += &format!("invalid disruption budgets in nodepool {name}, {}", errors.join("; "));
            }
        }
        if !problems.is_empty() {
            tracing::error!(error = problems, "detected disruption budget errors");
        }
    }

    /// The cluster as it is, with what can be bought. None while that cannot be told: a NodePool whose provider is merely slow
    /// would have its nodes replaced by others'.
    async fn look(&self) -> Option<Look> {
        let Context { stores, cluster, providers, .. } = &self.context;
        let pools: Vec<Arc<NodePool>> =
            stores.node_pools.list().into_iter().filter(|pool| providers.for_pool(pool).is_ok()).collect();
        let offers = self.provisioning.catalogue.offers(&pools).await;
        if offers.are_awaited() {
            return None;
        }
        let (now, rules) = (self.context.now(), providers.scheduling_rules());
        let (queued, passed_over) = (self.queue.nodes(), self.queue.passed_over());
        let (snapshot, state, buffer_nodes, pending_disruption, reserved_nodes) = cluster.update(|cluster| {
            let state = cluster.consolidation_state();
            let mut snapshot = cluster.snapshot(now, rules, |pool| offers.of(&pool.name));
            offers.taint(&mut snapshot);
            let holding =
                |machine: &&karpenter_engine::StateNode| cluster.buffer_pods(machine.provider_id()) > 0;
            let buffers: BTreeSet<Text> =
                cluster.machines().filter(holding).map(|machine| machine.provider_id().into()).collect();
            let pools = cluster.pool_nodes();
            (snapshot, state, buffers, pools.pending_disruption(), pools.reserved())
        });
        for pool in &snapshot.node_pools {
            if let InstanceTypes::Unresolved { reason } = &pool.instance_types {
                tracing::error!(nodepool = &*pool.name, error = &**reason, "failed listing instance types");
            }
        }
        let pool_costs = snapshot
            .node_pools
            .iter()
            .filter(|pool| pool.consolidation_policy == ConsolidationPolicy::Balanced)
            .map(|pool| (pool.name.clone(), self.cost.of_pool(&pool.name)))
            .collect();
        let Holds { held, kept, mut leaving } = self.holds();
        leaving.extend(self.queue.in_doubt());
        let mut remembered = self.remembered();
        if remembered.held != held || remembered.kept != kept || remembered.passed_over != passed_over {
            remembered.held.clone_from(&held);
            remembered.kept.clone_from(&kept);
            remembered.passed_over.clone_from(&passed_over);
            remembered.consolidated.clear();
        }
        let unseen_pools = remembered.unseen_pools.clone();
        drop(remembered);
        let memory = Memory {
            queued,
            held,
            kept,
            passed_over,
            leaving,
            buffer_nodes,
            pending_disruption,
            reserved_nodes,
            recent_reboots: self.queue.recent_reboots(),
            unrepaired: BTreeSet::new(),
            pool_costs,
            unseen_pools,
        };
        let named = |pool: Arc<NodePool>| (pool.metadata.name.clone().unwrap_or_default(), pool);
        Some(Look {
            snapshot: Arc::new(snapshot),
            memory: Arc::new(memory),
            pools: Arc::new(pools.into_iter().map(named).collect()),
            state,
        })
    }

    /// What platforms say about their nodes.
    fn holds(&self) -> Holds {
        let Context { stores, providers, .. } = &self.context;
        let mut holds = Holds::default();
        for claim in stores.node_claims.list() {
            let id = claim.status.as_ref().and_then(|status| status.provider_id.as_deref());
            let id = id.filter(|id| !id.is_empty());
            let (Some(id), Ok(provider)) = (id, providers.for_claim(&claim)) else { continue };
            let Some(hold) = provider.disruption_hold(&claim) else { continue };
            if hold.leaving {
                holds.leaving.insert(id.into());
            }
            let of_its_kind = if hold.stuck { &mut holds.kept } else { &mut holds.held };
            of_its_kind.insert(id.into(), hold.reason.as_str().into());
        }
        holds
    }

    /// Tells pods that ask to be left alone for a while how long that holds, or why it does not. A plain "true" needs no word, nor
    /// does a pod on a node that is not ours, not up or not to be disrupted.
    fn tell_wishes(&self, look: &Look) {
        let Context { stores, recorder, .. } = &self.context;
        let now = self.context.now();
        let asks = |pod: &&Arc<karpenter_engine::pod::Pod>| {
            pod.do_not_disrupt.as_ref().is_some_and(|wish| &**wish != "true")
        };
        if !look.snapshot.pods.iter().any(|pod| asks(&pod)) {
            return;
        }
        let disruptable: BTreeSet<&Text> = look
            .snapshot
            .nodes
            .iter()
            .filter(|machine| machine.claim.is_some() && may_be_disrupted(machine))
            .filter_map(|machine| machine.node.as_ref().map(|node| &node.name))
            .collect();
        for pod in look.snapshot.pods.iter().filter(asks) {
            if !pod.node_name.as_ref().is_some_and(|node| disruptable.contains(node)) {
                continue;
            }
            let key = ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone());
            if let Some(pod) = stores.pods.get(&key).filter(|pod| pods::is_active(pod)) {
                pods::is_protected(&pod, now, Some(recorder));
            }
        }
    }

    /// Says which pods' costs cannot be read; they count as if they were not given.
    fn log_unreadable_costs(&self, look: &Look) {
        let managed = self.options.gates.pod_deletion_cost_management;
        for pod in look.snapshot.pods.iter().filter(|pod| pod.node_name.is_some()) {
            let (key, message) = match (pod.eviction.disruption_cost, pod.eviction.deletion_cost) {
                (CostHint::Unreadable, _) => (annotations::DISRUPTION_COST, "failed parsing disruption cost"),
                (CostHint::Absent, CostHint::Unreadable) if !managed => {
                    (annotations::POD_DELETION_COST, "failed parsing pod deletion cost")
                }
                _ => continue,
            };
            let pod = logging::object(&ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone()));
            tracing::error!(annotation = key, %pod, error = "is no number of 32 bits", "{message}");
        }
    }

    /// Asks the methods in order, up to the first that finds something or fails.
    async fn search(&self, look: &Look, methods: &[Method]) -> Vec<Asked> {
        let consolidated = {
            let remembered = self.remembered();
            if !remembered.unseen_pools.is_empty() && methods.contains(&Method::SingleNodeConsolidation) {
                let pools: Vec<&str> = remembered.unseen_pools.iter().map(|pool| &**pool).collect();
                tracing::debug!(
                    nodepools = pools.join(", "),
                    "prioritizing nodepools that have not yet been considered due to timeouts in previous runs"
                );
            }
            remembered.consolidated.clone()
        };
        let vain = |method: &Method| consolidated.get(method) == Some(&look.state);
        let methods: Vec<(Method, bool)> = methods.iter().map(|method| (*method, vain(method))).collect();
        let (look, options) = (look.clone(), Arc::clone(&self.options));
        self.context
            .compute
            .run(move || {
                let started = Instant::now();
                let stopwatch = || started.elapsed();
                let mut pass = Pass::new(&look.snapshot, &options, &look.memory).with_stopwatch(&stopwatch);
                let mut all = Vec::new();
                for (method, vain) in methods {
                    let started = Instant::now();
                    let found = if vain { pass.survey(method) } else { pass.run(method) };
                    let ends = !found.commands.is_empty()
                        || (found.error.is_some() && method != Method::SingleNodeConsolidation);
                    all.push(Asked { found, vain, took: started.elapsed() });
                    if ends {
                        break;
                    }
                }
                all
            })
            .await
    }

    /// Tells what a method found and why nodes stay, and remembers what is worth remembering.
    fn tell(&self, look: &Look, Asked { found, vain, took }: &Asked) {
        let (context, metrics, method) = (&self.context, self.queue.metrics(), found.method);
        let labels = [&*metrics::reason(method), method.consolidation_type()];
        metrics.evaluation_seconds.observe(&labels, took.as_secs_f64());
        let simulates = !matches!(method, Method::Emptiness | Method::StaticDrift);
        if !vain && simulates && !found.candidates.is_empty() {
            self.provisioning.metrics.duration.observe(&[NAME], took.as_secs_f64());
        }
        metrics.eligible(method, found.candidates.len());
        for (pool, standing) in &found.budgets {
            metrics.budget(pool, method, standing);
            if standing.disrupting > standing.allowed {
                tracing::debug!(
                    nodePool = &**pool,
                    reason = method.reason().as_str(),
                    allowed = standing.allowed,
                    disrupting = standing.disrupting,
                    "disruption budget already exhausted; clamping to 0"
                );
            }
            if standing.blocks_all()
                && let Some(pool) = look.pools.get(&**pool)
            {
                events::pool_blocked(context, pool, method.reason());
            }
        }
        let policy = |pool: &str| look.pools.get(pool).map(|pool| policy_name(pool)).unwrap_or_default();
        for stays in &found.stays {
            events::stays(context, stays);
            if let Why::NotWorthIt { pool, score, at_best: false } = &stays.why {
                metrics.weighed(pool, &policy(pool), Some(*score));
                log::score(pool, *score, std::slice::from_ref(&stays.node));
            }
        }
        if matches!(method, Method::MultiNodeConsolidation | Method::SingleNodeConsolidation) {
            for command in &found.commands {
                if !command.replacements.is_empty() {
                    events::considered(context, command, None);
                }
                for pool in metrics::pools(command) {
                    let score =
                        command.scores.iter().find(|(name, _)| &**name == pool).map(|(_, score)| *score);
                    metrics.weighed(pool, &policy(pool), score);
                    if let Some(score) = score {
                        let nodes: Vec<Text> = command.candidates.iter().map(|c| c.node.clone()).collect();
                        log::score(pool, score, &nodes);
                    }
                    if let (Some(score), Some(pool)) = (score, look.pools.get(pool)) {
                        events::approved(context, command, pool, score);
                    }
                }
            }
        }
        if let Some(command) = &found.rejected {
            for pool in metrics::pools(command) {
                let score = command.scores.iter().find(|(name, _)| &**name == pool).map(|(_, score)| *score);
                metrics.rejected(pool, &policy(pool), score);
            }
        }
        for candidate in found.commands.iter().flat_map(|command| &command.candidates) {
            if let Some(repair) = &candidate.repair {
                log::repair(&candidate.node, repair);
            }
        }
        if found.timed_out {
            metrics.timed_out(method);
            log::timed_out(found, &look.pools);
        }
        let mut remembered = self.remembered();
        if found.consolidated {
            remembered.consolidated.insert(method, look.state);
        }
        if let Some(unseen) = &found.unseen_pools {
            remembered.unseen_pools = unseen.clone();
        }
    }

    /// Validates what needs it and starts it. Afterwards `look` is as new as the decision.
    async fn carry_out(&self, look: &mut Look, commands: Vec<Command>) -> Result<Carried, ReconcileError> {
        let stopping = stopping();
        let mut good = Vec::new();
        let mut put_off = false;
        for command in commands {
            if !command.method.is_consolidation() {
                good.push(command);
                continue;
            }
            if let Some(refusal) = self.queue.refuses(&command) {
                tracing::error!(error = %refusal, command = command.text(), "disrupting candidates");
                put_off = true;
                continue;
            }
            tokio::select! {
                biased;
                () = stopping.cancelled() => return Ok(Carried::Stopped),
                () = tokio::time::sleep(VALIDATION_DELAY) => {}
            }
            if !self.context.environment.clock.doubted_for().is_zero() {
                return Ok(Carried::Doubted);
            }
            let Some(fresh) = self.look().await else { return Ok(Carried::Doubted) };
            *look = fresh;
            if command.method != Method::Emptiness {
                if self.puts_off(look, &command).await {
                    put_off = true;
                    continue;
                }
                // That took a whole search, and what was seen before it is as old.
                let Some(fresh) = self.look().await else { return Ok(Carried::Doubted) };
                *look = fresh;
                if !self.context.environment.clock.doubted_for().is_zero() {
                    return Ok(Carried::Doubted);
                }
            }
            good.extend(self.validated(look, command).await?);
        }
        let results = join_all(good.into_iter().map(|command| self.queue.start(command, &look.pools))).await;
        // What is put off is decided on anew at once.
        let (mut errors, mut started) = (Vec::new(), put_off);
        let mut unrepaired = Vec::new();
        for result in results {
            match result {
                Ok(Started::Yes) => started = true,
                Ok(Started::Stopping) => return Ok(Carried::Stopped),
                Ok(Started::Stale(command)) => {
                    self.tell_invalid(&command, &Invalid::Churn(command.candidates.len()), &look.pools);
                    if command.method == Method::Repair {
                        unrepaired.extend(command.candidates);
                    }
                }
                Ok(Started::NoReboot(nodes)) => unrepaired.extend(nodes),
                Err(error) => errors.push(error.context("disrupting candidates")),
            }
        }
        ReconcileError::combine(errors).map_err(|error| error.context("disrupting"))?;
        Ok(match started {
            true => Carried::Started,
            false if !unrepaired.is_empty() => Carried::Unrepaired(unrepaired),
            false => Carried::Nothing,
        })
    }

    /// Whether the command has become so much better meanwhile that it is to be decided again.
    async fn puts_off(&self, look: &Look, command: &Command) -> bool {
        let method = command.method;
        let (now, options) = (look.clone(), Arc::clone(&self.options));
        let search = move || {
            let started = Instant::now();
            let stopwatch = || started.elapsed();
            Pass::new(&now.snapshot, &options, &now.memory).with_stopwatch(&stopwatch).run(method)
        };
        let found = self.context.compute.run(search).await;
        let put_off = self.remembered().patience.puts_off(command, found.commands.first());
        if put_off {
            tracing::debug!(command = command.text(), "looking again, fewer pods need to move by now");
        }
        put_off
    }

    /// The command as it is good now; none if it is not any more.
    async fn validated(&self, look: &Look, command: Command) -> Result<Option<Command>, ReconcileError> {
        let (now, options) = (look.clone(), Arc::clone(&self.options));
        let proposed = command.clone();
        let validated = self
            .context
            .compute
            .run(move || Pass::new(&now.snapshot, &options, &now.memory).validate(&proposed));
        match validated.await {
            Ok(Valid { command, over_budget }) => {
                self.queue.metrics().invalid(command.method, over_budget);
                Ok(Some(command))
            }
            Err(Invalid::Simulation(error)) => {
                Err(ReconcileError::message(format!("validating consolidation, {error}"))
                    .context("disrupting"))
            }
            Err(invalid) => {
                self.tell_invalid(&command, &invalid, &look.pools);
                Ok(None)
            }
        }
    }

    /// Tells that a command is not good any more.
    fn tell_invalid(&self, command: &Command, invalid: &Invalid, pools: &Pools) {
        let method = command.method;
        // As upstream: a simulation that comes out differently is not counted.
        let nodes = match invalid {
            Invalid::Churn(_) if method.is_consolidation() => command.candidates.len(),
            Invalid::Budget(nodes) => *nodes,
            _ => 0,
        };
        self.queue.metrics().invalid(method, nodes);
        match method {
            Method::MultiNodeConsolidation | Method::SingleNodeConsolidation => {
                events::considered(&self.context, command, Some(invalid.class()));
            }
            Method::Emptiness | Method::Repair | Method::StaticDrift | Method::Drift => {
                let fields = log::Fields::of(command, None, pools);
                fields.abandoned(invalid, method == Method::Emptiness);
            }
        }
    }
}
