//! The orchestration queue: carries commands out, one step at a time, or takes them back.
//!
//! ```text
//! start: taint + reason ──▶ create replacements ──▶ mark for deletion, nominate ──▶ queued
//! queued, every second: all replacements initialized? ──▶ delete the candidates ──▶ done
//!                       one is gone, or it takes too long ──▶ untaint, unmark, forget
//! ```
//!
//! Where upstream leaves nodes in a bad place, this does not (see `docs/compatibility.md`): a command that succeeds late has
//! succeeded; a command is known by its own id, so that it ends even when its first NodeClaim is gone; a start that fails
//! takes its marks back at once; an empty node that got a pod before its taint stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use karpenter_api::conditions::{ConditionStatus, HasConditions};
use karpenter_api::{NodeClaim, NodePool, nodeclaim};
use karpenter_engine::PlannedClaim;
use karpenter_engine::disruption::{Candidate, Command, Decision, Method};
use karpenter_engine::labels::Text;
use karpenter_runtime::context::stopping;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::entropy::Stream;
use karpenter_runtime::error::{Field, ReconcileError, Structured};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{Bucket, exponential_and_bucket, scale};
use karpenter_runtime::work_queue::WorkQueue;
use karpenter_runtime::writes;
use kube::Api;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::marks::{self, MarkError, Marked};
use super::metrics::{self, Metrics};
use super::{events, log, reboot};
use crate::context::Context;
use crate::pods;
use crate::provisioning::claims::ClaimFactory;
use crate::provisioning::{Nominations, Provisioning};
use crate::seen_pod::SeenPod;
use crate::totals::{Totals, label, snake_case, termination_mode};

const NAME: &str = "disruption.queue";
/// How soon a command is looked at again.
const PERIOD: Duration = Duration::from_secs(1);
/// What a command may take for every node under way, and within which bounds.
const PER_NODE: Duration = Duration::from_millis(80);
const LEAST: Duration = Duration::from_secs(10 * 60);
const MOST: Duration = Duration::from_secs(60 * 60);
/// How long a node is passed over that could not be marked, or whose replacement could not be created.
const PASSED_OVER: Duration = Duration::from_secs(60);
/// How long such a node counts as disrupted, or one that is found rebooting: what looked like a failure may have been written, and
/// the watch may be late to say so.
const IN_DOUBT: Duration = Duration::from_secs(30);

/// Commands under way; clones are handles to the same.
#[derive(Clone)]
pub(super) struct Queue(Arc<Inner>);

struct Inner {
    context: Context,
    claims: ClaimFactory,
    nominations: Nominations,
    metrics: Metrics,
    totals: Totals,
    reboots: reboot::RebootHistory,
    state: Mutex<State>,
    ids: Mutex<Stream>,
}

#[derive(Default)]
struct State {
    /// By id.
    commands: BTreeMap<String, Arc<AsyncMutex<UnderWay>>>,
    /// The command of each node, by provider id.
    by_provider: BTreeMap<Text, String>,
    /// Until when a node is passed over that could not be disrupted, by provider id.
    passed_over: BTreeMap<Text, Instant>,
    /// Until when a node counts as disrupted although nothing may say so, by provider id.
    in_doubt: BTreeMap<Text, Instant>,
    work: Option<WorkQueue<String>>,
}

/// A command being carried out.
struct UnderWay {
    command: Command,
    /// What is said of it.
    fields: log::Fields,
    /// By a clock that nobody sets: the wall clock may jump.
    created: Instant,
    /// Since when all its nodes are tainted.
    tainted: Instant,
    candidates: Vec<Taken>,
    replacements: Vec<Replacement>,
}

/// A node being taken away.
#[derive(Clone)]
struct Taken {
    candidate: Arc<Candidate>,
    claim: Arc<NodeClaim>,
    /// By when its drain must be over, once that is being written down.
    drained_by: Option<Timestamp>,
    deleted: bool,
}

struct Replacement {
    name: String,
    initialized: bool,
}

/// NodePools as they were when a command was decided on, by name.
pub(super) type Pools = BTreeMap<String, Arc<NodePool>>;

/// What became of starting a command.
pub(super) enum Started {
    /// It is under way.
    Yes,
    /// Its nodes are not what they were: this is what was to be done.
    Stale(Command),
    /// These cannot be rebooted: they are rebooting or going, or have just changed.
    NoReboot(Vec<Arc<Candidate>>),
    /// The program is to stop, and nothing new is begun.
    Stopping,
}

/// What stands between a command and its end.
enum Hold {
    /// It will pass.
    Wait,
    /// It will not.
    Over(ReconcileError),
}

/// Why the API server would refuse the replacement: narrowed to spot, it may be left with fewer values than `minValues` wants.
/// Upstream finds out after it has tainted the node, at every pass.
fn refusal(planned: &PlannedClaim) -> Option<ReconcileError> {
    let short = planned.requirements.iter().find(|requirement| {
        let listed = i64::try_from(requirement.values.len()).unwrap_or(i64::MAX);
        &*requirement.operator == "In" && requirement.min_values > Some(listed)
    })?;
    Some(ReconcileError::message(format!(
        "NodePool {:?} wants at least {} values of {}, and of its cheaper replacement {} can be had; lower minValues, or allow one of them only",
        &*planned.node_pool,
        short.min_values.unwrap_or_default(),
        &*short.key,
        short.values.len(),
    )))
}

/// Puts the controller that drives the queue into the program.
pub(super) fn register(context: &Context, queue: &Queue, program: &mut Program) {
    let bucket = Bucket { per_second: 100, burst: 1000 };
    let limiter = exponential_and_bucket(PERIOD, Duration::from_secs(10), bucket);
    let controller = Controller::builder(NAME, queue.clone())
        .workers(scale(context.options.cpu_requests_millicores, 100, 1000))
        .limiter(limiter)
        .build(&context.environment);
    queue.state().work = Some(controller.queue());
    context.run(program, controller);
}

impl Queue {
    pub(super) fn new(context: &Context, provisioning: &Provisioning) -> Self {
        Self(Arc::new(Inner {
            context: context.clone(),
            claims: provisioning.claims.clone(),
            nominations: provisioning.nominations.clone(),
            metrics: Metrics::new(&context.environment.registry),
            totals: Totals::new(&context.environment.registry),
            reboots: reboot::RebootHistory::default(),
            state: Mutex::default(),
            ids: Mutex::new(context.environment.entropy.stream("disruption commands")),
        }))
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(super) fn recent_reboots(&self) -> BTreeMap<Text, usize> {
        self.0.reboots.recent()
    }

    /// Provider ids of the nodes under way.
    pub(super) fn nodes(&self) -> BTreeSet<Text> {
        self.state().by_provider.keys().cloned().collect()
    }

    /// A node cannot be disrupted now, for a reason that no decision knows: others get their turn.
    pub(super) fn pass_over(&self, provider_id: &Text) {
        self.state().passed_over.insert(provider_id.clone(), Instant::now() + PASSED_OVER);
    }

    /// The same, where it was tried: an answer that was lost may have been a yes.
    pub(super) fn pass_over_in_doubt(&self, provider_id: &Text) {
        self.pass_over(provider_id);
        self.doubt(provider_id);
    }

    /// A node may be disrupted where a late watch does not say so yet: it uses up budgets all the same.
    fn doubt(&self, provider_id: &Text) {
        self.state().in_doubt.insert(provider_id.clone(), Instant::now() + IN_DOUBT);
    }

    /// Provider ids of nodes that may be disrupted although nothing says so.
    pub(super) fn in_doubt(&self) -> BTreeSet<Text> {
        let mut state = self.state();
        let now = Instant::now();
        state.in_doubt.retain(|_, until| *until > now);
        state.in_doubt.keys().cloned().collect()
    }

    /// Provider ids of nodes that could not be disrupted a moment ago.
    pub(super) fn passed_over(&self) -> BTreeSet<Text> {
        let mut state = self.state();
        let now = Instant::now();
        state.passed_over.retain(|_, until| *until > now);
        state.passed_over.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a command cannot be carried out, which no decision knows: others get their turn.
    pub(super) fn refuses(&self, command: &Command) -> Option<ReconcileError> {
        let refusal = command.replacements.iter().find_map(refusal)?;
        command.candidates.iter().for_each(|candidate| self.pass_over(&candidate.provider_id));
        Some(refusal.context("launching replacement nodeclaim"))
    }

    /// Starts a command. Whatever fails leaves no marks behind; replacements that were created stay as ordinary nodes.
    pub(super) async fn start(&self, mut command: Command, pools: &Pools) -> Result<Started, ReconcileError> {
        let Inner { ids, metrics, .. } = &*self.0;
        if stopping().is_cancelled() {
            return Ok(Started::Stopping);
        }
        if let Some(stale) = self.keep_fresh(&mut command) {
            return Ok(Started::Stale(stale));
        }
        let id = ids.lock().unwrap_or_else(PoisonError::into_inner).uuid().to_string();
        let Some(mut reserved) = self.reserve(&command, &id) else {
            return Err(ReconcileError::message("candidate is being disrupted"));
        };
        let created = Instant::now();
        if command.decision() == Decision::Reboot {
            drop(reserved);
            return self.reboot(&command, &id, pools).await;
        }
        let fields = log::Fields::of(&command, Some(&id), pools);
        fields.begun();
        let marked = self.mark(&command).await;
        let mut candidates = marked.map_err(|error| with_id(error.context("marking disrupted"), &id))?;
        let tainted = Instant::now();
        if stopping().is_cancelled() {
            // Nobody would see to the rest of it.
            self.take_back(&mut candidates).await;
            return Ok(Started::Stopping);
        }
        let replacements = match self.launch(&command, pools).await {
            Ok(replacements) => replacements,
            Err(error) => {
                // Without a way to launch, nothing is disrupted.
                self.take_back(&mut candidates).await;
                return Err(with_id(error.context("launching replacement nodeclaim"), &id));
            }
        };
        self.promise(&command, &candidates);
        metrics.started(&command);
        let kept: BTreeSet<&Text> = candidates.iter().map(|taken| &taken.candidate.provider_id).collect();
        reserved.candidates.retain(|candidate| !kept.contains(&candidate.provider_id));
        drop(reserved);
        let under_way = UnderWay { command, fields, created, tainted, candidates, replacements };
        let mut state = self.state();
        state.commands.insert(id.clone(), Arc::new(AsyncMutex::new(under_way)));
        if let Some(work) = &state.work {
            work.add(id);
        }
        Ok(Started::Yes)
    }

    /// Looks at the nodes once more before the first write (rule D8.2, kubernetes-sigs/karpenter#1167): thinking took its time,
    /// and meanwhile pods may have been promised a node or bound to it, its platform may have begun to work on it, or somebody
    /// to take it away. Empty nodes that are not are left out; any other command is all or nothing, and comes back if it is stale.
    fn keep_fresh(&self, command: &mut Command) -> Option<Command> {
        let context = &self.0.context;
        let moves_counted = command.method.is_consolidation();
        let is_fresh = |candidate: &Arc<Candidate>| {
            let untouched = context.cluster.read(|cluster| {
                let machine = cluster.machine(&candidate.provider_id)?;
                // One that never came up is promised to waiting pods again and again, and broken all the same. No budget was
                // asked for it, so it must still be down.
                let wanted = match candidate.initialized {
                    true => cluster.is_nominated(&candidate.provider_id),
                    false => machine.initialized(),
                };
                Some(!machine.deleting() && !wanted)
            });
            untouched == Some(true)
                && !(moves_counted && self.newcomer(candidate).is_some())
                && !self.is_held(candidate, command.method)
        };
        let fresh: Vec<Arc<Candidate>> = command.candidates.iter().filter(|c| is_fresh(c)).cloned().collect();
        if fresh.len() == command.candidates.len() {
            return None;
        }
        let stale = command.clone();
        command.candidates = fresh;
        (command.method != Method::Emptiness || command.candidates.is_empty()).then_some(stale)
    }

    /// Whether the platform is at work on a node that something runs on, which repair does not wait for, or can do nothing with any.
    fn is_held(&self, candidate: &Candidate, method: Method) -> bool {
        let Context { stores, providers, .. } = &self.0.context;
        let claim = stores.node_claims.get(&ObjectKey::cluster(candidate.claim.clone()));
        let hold = claim.and_then(|claim| providers.for_claim(&claim).ok()?.disruption_hold(&claim));
        let waits = method != Method::Repair && !candidate.pods.is_empty();
        hold.is_some_and(|hold| hold.stuck || waits)
    }

    /// A pod that will need another place and was not on the node when it was chosen.
    fn newcomer(&self, candidate: &Candidate) -> Option<Arc<SeenPod>> {
        let known = |uid: &str| candidate.pods.iter().any(|pod| &*pod.uid == uid);
        let here = self.0.context.stores.pods_on(&candidate.node);
        here.into_iter().find(|pod| pods::is_reschedulable(pod) && !known(&pod.uid))
    }

    /// Takes the nodes for this command, unless one of them is taken.
    fn reserve(&self, command: &Command, id: &str) -> Option<Reserved<'_>> {
        let mut state = self.state();
        if command.candidates.iter().any(|c| state.by_provider.contains_key(&c.provider_id)) {
            return None;
        }
        for candidate in &command.candidates {
            state.by_provider.insert(candidate.provider_id.clone(), id.to_owned());
        }
        Some(Reserved { queue: self, candidates: command.candidates.clone() })
    }

    fn release(&self, candidates: &[Arc<Candidate>]) {
        let mut state = self.state();
        for candidate in candidates {
            state.by_provider.remove(&candidate.provider_id);
        }
        drop(state);
        self.0.context.cluster.update(|cluster| {
            for Candidate { node_pool, claim, .. } in candidates.iter().map(|candidate| &**candidate) {
                cluster.pool_nodes_mut().keep(node_pool, claim);
            }
        });
    }

    async fn reboot(&self, command: &Command, id: &str, pools: &Pools) -> Result<Started, ReconcileError> {
        let Inner { context, reboots, metrics, .. } = &*self.0;
        let mut refused = Vec::new();
        for candidate in &command.candidates {
            let committed = reboot::commit(context, reboots, candidate).await;
            if committed.is_err() {
                self.pass_over_in_doubt(&candidate.provider_id);
            }
            if !committed? {
                self.doubt(&candidate.provider_id);
                refused.push(Arc::clone(candidate));
                continue;
            }
            log::Fields::of(command, Some(id), pools).begun();
            if let Some(claim) = context.stores.node_claims.get(&ObjectKey::cluster(candidate.claim.clone()))
            {
                self.count(command, candidate, &claim);
            }
            metrics.started(command);
        }
        Ok(if refused.is_empty() { Started::Yes } else { Started::NoReboot(refused) })
    }

    /// Taints the nodes and writes down why. Without replacements those that could be marked are enough; with them it is all
    /// or nothing.
    async fn mark(&self, command: &Command) -> Result<Vec<Taken>, ReconcileError> {
        let results = join_all(command.candidates.iter().map(|c| self.mark_one(command, c))).await;
        let (mut marked, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(taken) => marked.push(taken),
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() && (!command.replacements.is_empty() || marked.is_empty()) {
            self.take_back(&mut marked).await;
            ReconcileError::combine(errors)?;
        }
        self.0.context.cluster.update(|cluster| {
            for taken in &marked {
                let pool = cluster.node_pools().find(|pool| pool.name == taken.candidate.node_pool);
                if pool.is_some_and(|pool| pool.replicas.is_some()) {
                    let Candidate { node_pool, claim, .. } = &*taken.candidate;
                    cluster.pool_nodes_mut().mark_pending_disruption(node_pool, claim);
                }
            }
        });
        Ok(marked)
    }

    async fn mark_one(&self, command: &Command, candidate: &Arc<Candidate>) -> Result<Taken, ReconcileError> {
        let context = &self.0.context;
        let gone = || {
            let node = Field::object(&ObjectKey::cluster(candidate.node.clone()));
            ReconcileError::from(Structured::new("node is gone").with("Node", node))
        };
        let claim = context.stores.node_claims.get(&ObjectKey::cluster(candidate.claim.clone()));
        let same = |claim: &Arc<NodeClaim>| claim.metadata.uid.as_deref() == Some(&*candidate.claim_uid);
        let claim = claim.filter(same).ok_or_else(gone)?;
        let tainted = marks::taint(context, &candidate.node).await;
        let tainted = tainted.map_err(|error| {
            self.pass_over_in_doubt(&candidate.provider_id);
            ReconcileError::from(error).context("tainting nodes")
        })?;
        if tainted == Marked::Gone {
            return Err(gone());
        }
        match marks::give_reason(context, &candidate.claim, command.method.reason()).await {
            Ok(Marked::Yes) => {
                Ok(Taken { candidate: Arc::clone(candidate), claim, drained_by: None, deleted: false })
            }
            failed => {
                log_failure(&candidate.node, marks::untaint(context, &candidate.node).await);
                Err(failed.err().map_or_else(gone, |error| {
                    self.pass_over_in_doubt(&candidate.provider_id);
                    ReconcileError::from(error)
                }))
            }
        }
    }

    /// Creates the replacements. Those of static NodePools need room under the NodePool's limit first.
    async fn launch(&self, command: &Command, pools: &Pools) -> Result<Vec<Replacement>, ReconcileError> {
        let context = &self.0.context;
        let mut rooms: Vec<Room> = Vec::new();
        for planned in &command.replacements {
            if let Some(pool) = pools.get(&*planned.node_pool).filter(|pool| pool.is_static()) {
                rooms.push(Room::take(context, pool)?);
            }
        }
        let reason = metrics::reason(command.method);
        let launches = command.replacements.iter().map(|planned| self.launch_one(planned, pools, &reason));
        let results = join_all(launches).await;
        drop(rooms);
        let (mut replacements, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(name) => replacements.push(Replacement { name, initialized: false }),
                Err(error) => errors.push(error),
            }
        }
        // What takes their place is refused: others may do without, or get something else.
        if !errors.is_empty() {
            command.candidates.iter().for_each(|candidate| self.pass_over_in_doubt(&candidate.provider_id));
        }
        ReconcileError::combine(errors)?;
        Ok(replacements)
    }

    async fn launch_one(
        &self,
        planned: &PlannedClaim,
        pools: &Pools,
        reason: &str,
    ) -> Result<String, ReconcileError> {
        let claims = &self.0.claims;
        let pool = pools
            .get(&*planned.node_pool)
            .ok_or_else(|| ReconcileError::message(format!("NodePool {:?} is gone", &*planned.node_pool)))?;
        let claim =
            if pool.is_static() { claims.of_static_pool(pool) } else { claims.planned(pool, planned) };
        let created = claims.create(claim, &planned.node_pool, reason).await?;
        Ok(created.metadata.name.clone().unwrap_or_default())
    }

    /// Counts the nodes as gone from now on, and promises the others to the pods. Not before the replacements are there, or
    /// provisioning would launch room for the same pods once more.
    fn promise(&self, command: &Command, candidates: &[Taken]) {
        let Inner { context, nominations, .. } = &*self.0;
        context.cluster.update(|cluster| {
            for taken in candidates {
                cluster.mark_for_deletion(&taken.candidate.provider_id);
            }
        });
        nominations.promise(&command.existing_nodes);
    }

    /// Takes the marks off nodes that stay after all. What cannot be written now the loop cleans up later.
    async fn take_back(&self, candidates: &mut Vec<Taken>) {
        let context = &self.0.context;
        let staying: Vec<Taken> = candidates.extract_if(.., |taken| !taken.deleted).collect();
        let unmarked = staying.iter().map(|taken| async move {
            log_failure(&taken.candidate.node, marks::untaint(context, &taken.candidate.node).await);
            // As long as the bound is there the reason stays too: it says whose the bound is.
            let claim = &taken.candidate.claim;
            if let Some(deadline) = taken.drained_by
                && let Err(error) = marks::unbound_drain(context, claim, Some(deadline)).await
            {
                return log_failure(claim, Err(error));
            }
            log_failure(claim, marks::clear_reason(context, claim).await);
        });
        join_all(unmarked).await;
        context.cluster.update(|cluster| {
            for taken in &staying {
                cluster.unmark_for_deletion(&taken.candidate.provider_id);
            }
        });
        let staying: Vec<Arc<Candidate>> = staying.into_iter().map(|taken| taken.candidate).collect();
        self.release(&staying);
    }

    /// How long a command may take: the more is under way, the busier everyone is.
    fn time_limit(&self) -> Duration {
        let nodes = u32::try_from(self.state().by_provider.len()).unwrap_or(u32::MAX);
        PER_NODE.saturating_mul(nodes).clamp(LEAST, MOST)
    }

    /// One step of a command.
    async fn step(&self, under_way: &mut UnderWay) -> Result<(), Hold> {
        self.await_replacements(under_way)?;
        if under_way.command.method == Method::Emptiness {
            // Schedulers that have not seen the taint yet get a moment to say what they have done.
            if under_way.tainted.elapsed() < PERIOD {
                return Err(Hold::Wait);
            }
            self.keep_occupied(under_way).await;
        }
        let UnderWay { command, candidates, .. } = under_way;
        let deletions = candidates.iter_mut().filter(|taken| !taken.deleted).map(|taken| async {
            self.delete(command, taken).await.inspect_err(|error| {
                let node = logging::object(&ObjectKey::cluster(taken.candidate.node.clone()));
                tracing::debug!(Node = %node, %error, "could not delete nodeclaim, will retry");
            })
        });
        match join_all(deletions).await.into_iter().all(|deleted| deleted.is_ok()) {
            true => Ok(()),
            false => Err(Hold::Wait),
        }
    }

    fn await_replacements(&self, under_way: &mut UnderWay) -> Result<(), Hold> {
        let context = &self.0.context;
        let reason = under_way.command.method.reason();
        let mut ready = true;
        for replacement in under_way.replacements.iter_mut().filter(|replacement| !replacement.initialized) {
            let Some(claim) = context.stores.node_claims.get(&ObjectKey::cluster(replacement.name.as_str()))
            else {
                // The watch may be late for one that was just created; the state knew it at once.
                if context.cluster.read(|cluster| cluster.is_unlaunched(&replacement.name)) {
                    ready = false;
                    continue;
                }
                let error = format!(
                    "replacement was deleted, NodeClaim.karpenter.sh {:?} not found",
                    replacement.name
                );
                return Err(Hold::Over(ReconcileError::message(error)));
            };
            events::launching(context, &claim, reason);
            if claim.condition_status(nodeclaim::INITIALIZED) == ConditionStatus::True {
                replacement.initialized = true;
            } else {
                events::waiting(context, &claim);
                ready = false;
            }
        }
        if ready { Ok(()) } else { Err(Hold::Wait) }
    }

    /// Lets go of nodes that were empty when they were chosen and got a pod before they were tainted
    /// (kubernetes-sigs/karpenter#3185).
    async fn keep_occupied(&self, under_way: &mut UnderWay) {
        let mut occupied: Vec<Taken> = under_way
            .candidates
            .extract_if(.., |taken| {
                let Some(pod) = (if taken.deleted { None } else { self.newcomer(&taken.candidate) }) else { return false };
                let node = logging::object(&ObjectKey::cluster(taken.candidate.node.clone()));
                let pod = logging::object(&pod.key);
                tracing::info!(Node = %node, Pod = %pod, "keeping node, a pod was bound to it before it was tainted");
                true
            })
            .collect();
        self.take_back(&mut occupied).await;
    }

    async fn delete(&self, command: &Command, taken: &mut Taken) -> Result<(), ReconcileError> {
        let context = &self.0.context;
        let candidate = Arc::clone(&taken.candidate);
        if let Some(seconds) = candidate.drain_bound_seconds {
            // Counted from here: waiting for the replacement was not the pods' time.
            let bound = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            let deadline = *taken.drained_by.get_or_insert_with(|| crate::times::after(context.now(), bound));
            marks::bound_drain(context, &candidate.claim, deadline).await?;
        }
        let api = Api::<NodeClaim>::all(context.client.clone());
        let existed = writes::delete(&api, &taken.claim).await?;
        taken.deleted = true;
        if existed {
            events::terminating(context, &candidate.node, &taken.claim, command.method.reason());
            self.count(command, &candidate, &taken.claim);
        }
        Ok(())
    }

    fn count(&self, command: &Command, candidate: &Candidate, claim: &NodeClaim) {
        let Inner { context, totals, metrics, .. } = &*self.0;
        let reason = metrics::reason(command.method);
        let pool = context.stores.node_pools.get(&ObjectKey::cluster(candidate.node_pool.clone()));
        let policy = pool.filter(|_| command.method.is_consolidation()).map(|pool| policy_name(&pool));
        let policy = policy.map(|policy| snake_case(&policy)).unwrap_or_default();
        totals.claim_disrupted(&reason, claim, &policy);
        totals.pods_disrupted(&reason, claim, &policy, candidate.pods.len());
        if let Some(repair) = candidate.repair.as_ref().filter(|_| command.method == Method::Repair) {
            let mode = match candidate.drain_bound_seconds {
                None => termination_mode(claim),
                Some(..=0) => "forceful",
                Some(_) => "eventual",
            };
            let image =
                claim.status.as_ref().and_then(|status| status.image_id.as_deref()).unwrap_or_default();
            metrics.unhealthy_disrupted.inc(&[
                &snake_case(&repair.condition),
                label(claim, karpenter_api::labels::NODEPOOL),
                label(claim, karpenter_api::labels::CAPACITY_TYPE),
                image,
                mode,
            ]);
        }
    }

    /// Forgets a command that has ended.
    fn forget(&self, id: &str) {
        let mut state = self.state();
        state.commands.remove(id);
        state.by_provider.retain(|_, command| command != id);
    }
}

impl Reconciler for Queue {
    type Key = String;

    async fn reconcile(&self, id: String) -> ReconcileResult {
        let Some(under_way) = self.state().commands.get(&id).cloned() else { return Ok(Outcome::Done) };
        let mut under_way = under_way.lock().await;
        let age = under_way.created.elapsed();
        let error = match self.step(&mut under_way).await {
            Ok(()) => {
                under_way.fields.succeeded();
                // Its nodes are going: the marks stay until they are gone.
                self.forget(&id);
                return Ok(Outcome::Done);
            }
            Err(Hold::Wait) if age <= self.time_limit() => return Ok(Outcome::After(PERIOD)),
            Err(Hold::Wait) => Structured::new("command reached timeout")
                .with("duration", Field::text(logging::duration(age)))
                .into(),
            Err(Hold::Over(error)) => error,
        };
        let missing = under_way.replacements.iter().filter(|replacement| !replacement.initialized).count();
        self.0.metrics.failed(&under_way.command, missing);
        self.take_back(&mut under_way.candidates).await;
        self.forget(&id);
        under_way.fields.failed(&error);
        Ok(Outcome::Done)
    }
}

/// Nodes taken for a command that is not under way yet: free again when dropped, whatever ended it.
struct Reserved<'a> {
    queue: &'a Queue,
    candidates: Vec<Arc<Candidate>>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.queue.release(&self.candidates);
    }
}

/// Room for one more NodeClaim of a static NodePool; given back when dropped.
struct Room {
    context: Context,
    pool: String,
}

impl Room {
    fn take(context: &Context, pool: &NodePool) -> Result<Self, ReconcileError> {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let limit = pool.spec.limits.as_ref().and_then(|limits| limits.get("nodes"));
        let limit = limit.map_or(i64::MAX, karpenter_api::Quantity::value);
        let granted = context.cluster.update(|cluster| cluster.pool_nodes_mut().reserve(&name, limit, 1));
        if granted == 1 {
            return Ok(Self { context: context.clone(), pool: name });
        }
        let pool = Field::object(&ObjectKey::cluster(name));
        Err(Structured::new("static nodepool is at its node limit").with("NodePool", pool).into())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.context.cluster.update(|cluster| cluster.pool_nodes_mut().release(&self.pool, 1));
    }
}

fn with_id(error: ReconcileError, id: &str) -> ReconcileError {
    Structured::new(error.to_string()).with("command-id", Field::text(id)).into()
}

fn log_failure(object: &str, result: Result<Marked, MarkError>) {
    if let Err(error) = result {
        tracing::warn!(object, %error, "could not take back a mark of disruption, the next pass will");
    }
}

/// The consolidation policy of a NodePool as users write it.
pub(super) fn policy_name(pool: &NodePool) -> String {
    use karpenter_api::nodepool::ConsolidationPolicy as Policy;
    let name = match pool.consolidation_policy() {
        Policy::WhenEmpty => "WhenEmpty",
        Policy::WhenEmptyOrUnderutilized => "WhenEmptyOrUnderutilized",
        Policy::Balanced => "Balanced",
    };
    name.to_owned()
}
