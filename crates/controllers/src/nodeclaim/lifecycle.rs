//! Sees a NodeClaim through: launched, registered, initialized, given up if that takes too long, and at last let go.
//!
//! Every pass runs all stages on a copy of the claim, then writes what changed: metadata, then status, each only over the
//! version that was read, so that a lagging watch or a second leader cannot take back what others wrote.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::INITIALIZED;
use karpenter_api::{NodeClaim, finalizers};
use karpenter_cloudprovider::{CloudProvider, LaunchWaker, LaunchedInstance};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::EventLimiter;
use karpenter_runtime::informer::own_key;
use karpenter_runtime::logging;
use karpenter_runtime::metrics::{HistogramVec, exponential_buckets};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{bucket, exponential_and_bucket, scale};
use karpenter_runtime::ttl_cache::TtlCache;
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::launch::may_have_instance;
use crate::context::Context;
use crate::nodepool::health::RegistrationHealth;
use crate::pairing::{provider_id, provider_id_of_node};
use crate::planted::{Bug, is_planted};
use crate::totals::Totals;
use crate::watches::Watches;

/// How long a launch is remembered that could not be written down.
const LAUNCHES_KEPT: Duration = Duration::from_secs(3600);

/// How long it is remembered that a claim cannot be written: longer than any provider may take to launch.
const REFUSALS_KEPT: Duration = Duration::from_secs(48 * 3600);

/// After a write the watch gets this long to bring it back, so that the next pass does not see the claim as it was.
const OWN_WRITES: Duration = Duration::from_secs(1);

/// After a write that was overtaken the watch gets this long to bring what overtook it. A node that comes up changes several times
/// a second: an attempt at each of its changes would be overtaken by the next.
const OVERTAKEN: Duration = Duration::from_millis(250);

const WORKERS: (u32, u32) = (1000, 5000);

/// The reconciler of `nodeclaim.lifecycle`.
pub(super) struct Lifecycle {
    pub(super) context: Context,
    pub(super) claims: Api<NodeClaim>,
    /// What was launched and may not be in the claim yet, by its UID. Only a help against asking twice: after a restart the
    /// provider recognises a claim it has served.
    launches: Mutex<TtlCache<String, LaunchedInstance>>,
    /// Since when nothing could be written to a claim, by its UID. What such a claim says of itself is never any older than the
    /// pass that looks at it.
    refusals: Mutex<TtlCache<String, Timestamp>>,
    pub(super) health: RegistrationHealth,
    pub(super) totals: Totals,
    pub(super) metrics: Metrics,
    pub(super) pod_events: EventLimiter,
}

/// What only this controller measures.
pub(super) struct Metrics {
    pub(super) instance_termination: HistogramVec,
    pub(super) termination: HistogramVec,
}

/// What a stage comes to.
pub(super) enum Stage {
    /// The next stage may go on, now; and the claim is to be looked at again as said.
    Next(Outcome),
    /// The claim was deleted: there is nothing left to write.
    Deleted,
}

/// What became true in this pass, told and counted once it is written down.
pub(super) enum News {
    Registered { node: ObjectKey },
    Initialized { node: ObjectKey, allocatable: serde_json::Value },
}

/// What a pass over a claim that lives came to, and how long the watch is given before the next.
struct Advanced {
    result: ReconcileResult,
    catch_up: Duration,
}

impl From<ReconcileResult> for Advanced {
    fn from(result: ReconcileResult) -> Self {
        let overtaken = matches!(result, Ok(Outcome::Requeue));
        Self { result, catch_up: if overtaken { OVERTAKEN } else { Duration::ZERO } }
    }
}

/// One pass over a claim.
pub(super) struct Pass {
    pub(super) claim: NodeClaim,
    pub(super) provider: Arc<dyn CloudProvider>,
    pub(super) news: Vec<News>,
}

impl Pass {
    /// The claim's conditions.
    pub(super) fn conditions(&mut self, context: &Context) -> ConditionSet<'_, NodeClaim> {
        ConditionSet::of(&mut self.claim, context.now())
    }
}

/// Makes the controller part of the program. The providers' wakers lead to its queue.
pub(crate) fn register(
    context: &Context,
    watches: &mut Watches,
    program: &mut Program,
    health: &RegistrationHealth,
) {
    let registry = &context.environment.registry;
    let lifecycle = Lifecycle {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        launches: Mutex::new(TtlCache::new(LAUNCHES_KEPT)),
        refusals: Mutex::new(TtlCache::new(REFUSALS_KEPT)),
        health: health.clone(),
        totals: Totals::new(registry),
        metrics: Metrics {
            instance_termination: registry.histogram(
                "karpenter_nodeclaims_instance_termination_duration_seconds",
                "Seconds from asking for an instance's removal to its end, by NodePool",
                &["nodepool"],
                &exponential_buckets(1.0, 2.0, 11),
            ),
            termination: registry.histogram(
                "karpenter_nodeclaims_termination_duration_seconds",
                "Seconds from a NodeClaim's deletion to its end, by NodePool",
                &["nodepool"],
                &exponential_buckets(1.0, 2.0, 12),
            ),
        },
        pod_events: EventLimiter::new(5.0, 10),
    };
    let workers = scale(context.options.cpu_requests_millicores, WORKERS.0, WORKERS.1);
    let bucket = bucket(10, WORKERS.0, workers);
    let limiter = exponential_and_bucket(Duration::from_secs(1), Duration::from_secs(60), bucket);
    let controller =
        Controller::for_objects("nodeclaim.lifecycle", karpenter_api::GROUP, "NodeClaim", lifecycle)
            .workers(workers)
            .limiter(limiter)
            .build(&context.environment);
    let queue = controller.queue();
    watches.node_claims.feed(&queue, own_key);
    let stores = context.stores.clone();
    watches.nodes.feed(&queue, move |delta| {
        let mut claims = stores.claims_of(provider_id_of_node(delta.object()));
        // What a node reports while all is well concerns nobody here, and it reports all the time.
        claims.retain(|claim| {
            claim.metadata.deletion_timestamp.is_some()
                || claim.condition_status(INITIALIZED) != ConditionStatus::True
        });
        claims.iter().map(|claim| ObjectKey::of(&**claim)).collect()
    });
    context.providers.wake_with(&LaunchWaker::new(move |claim| queue.add(claim)));
    context.run(program, controller);
}

impl Reconciler for Lifecycle {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(claim) = self.context.stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        // A NodeClass nobody here serves: another's claim.
        let Ok(provider) = self.context.providers.for_claim(&claim) else { return Ok(Outcome::Done) };
        let pass = Pass { claim: (*claim).clone(), provider: Arc::clone(provider), news: Vec::new() };
        let span = span_of(&claim);
        // A pass takes much room, and hundreds wait for the watch at a time: it is gone by then.
        if claim.metadata.deletion_timestamp.is_some() {
            return Box::pin(self.finalize(pass)).instrument(span).await;
        }
        let Advanced { result, catch_up } = Box::pin(self.advance(pass)).instrument(span).await;
        if !catch_up.is_zero() {
            tokio::time::sleep(catch_up).await;
        }
        result
    }
}

impl Lifecycle {
    pub(super) fn launches(&self) -> MutexGuard<'_, TtlCache<String, LaunchedInstance>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn advance(&self, mut pass: Pass) -> Advanced {
        // Nothing is launched for a claim that could go without anyone asking what became of its instance.
        let held = match self.hold(&pass.claim).await {
            Ok(held) => held,
            Err(error) => return self.unheld(pass, error).await.into(),
        };
        match held {
            Written::Unchanged => {}
            Written::Done(claim) => pass.claim = *claim,
            Written::Gone => return self.abandon(pass).await.into(),
            Written::Conflict => return Ok(Outcome::Requeue).into(),
        }
        let before = pass.claim.clone();
        let (mut outcomes, mut errors) = (Vec::new(), Vec::new());
        let mut settle = |result: Result<Stage, ReconcileError>| match result {
            Ok(Stage::Next(outcome)) => {
                outcomes.push(outcome);
                false
            }
            Ok(Stage::Deleted) => true,
            Err(error) => {
                errors.push(error);
                false
            }
        };
        // A claim that does not get on still has to be given up in time: no stage stops the others.
        let over = settle(self.launch(&mut pass).await)
            || settle(self.registration(&mut pass).await)
            || settle(self.initialization(&mut pass).await)
            || settle(self.liveness(&mut pass).await);
        if over {
            return Ok(Outcome::Done).into();
        }
        let written = self.write(&before, &pass.claim).await;
        self.note_write(&before, written.is_ok());
        let mut wrote = false;
        match written {
            Ok(Written::Unchanged) => {}
            Ok(Written::Done(_)) => {
                wrote = true;
                if let Err(error) = self.tell(&pass).await {
                    errors.push(error);
                }
            }
            Ok(Written::Gone) => return self.abandon(pass).await.into(),
            Ok(Written::Conflict) => outcomes.push(Outcome::Requeue),
            Err(error) => {
                self.expect_launched(&pass);
                errors.push(error.into());
            }
        }
        let result = ReconcileError::combine(errors).map(|()| Outcome::combine(outcomes));
        if wrote { Advanced { result, catch_up: OWN_WRITES } } else { result.into() }
    }

    /// Nothing is launched for a claim that cannot be held, but neither is it waited for without end.
    async fn unheld(&self, mut pass: Pass, error: kube::Error) -> ReconcileResult {
        self.note_write(&pass.claim, false);
        self.expect_after_failure(&pass).await;
        match self.liveness(&mut pass).await? {
            Stage::Deleted => Ok(Outcome::Done),
            Stage::Next(_) => Err(error.into()),
        }
    }

    /// Notes whether a claim can be written.
    fn note_write(&self, claim: &NodeClaim, written: bool) {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if written {
            refusals.remove(&uid);
        } else if refusals.get(&uid).is_none() {
            refusals.insert(uid, self.context.now());
        }
    }

    /// Since when a claim cannot be written, if so.
    pub(super) fn refused_since(&self, claim: &NodeClaim) -> Option<Timestamp> {
        let uid = claim.metadata.uid.as_ref()?;
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).get(uid).copied()
    }

    /// Removes what was launched for a claim that has gone meanwhile, its finalizer taken off by somebody: nothing points to the
    /// instance any more. Should that fail, garbage collection finds what the provider lists.
    async fn abandon(&self, mut pass: Pass) -> ReconcileResult {
        let uid = pass.claim.metadata.uid.clone().unwrap_or_default();
        if let Some(instance) = self.launches().remove(&uid) {
            instance.write_into(&mut pass.claim);
        }
        self.context.cluster.update(|cluster| cluster.expect_nothing(&pass.claim));
        if !may_have_instance(&pass) {
            return Ok(Outcome::Done);
        }
        match pass.provider.delete(&pass.claim).await {
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => {
                Err(ReconcileError::from(error).context("removing the instance of a nodeclaim that is gone"))
            }
            Ok(()) => {
                tracing::warn!(
                    "the nodeclaim went before its launch was written down, its instance was removed"
                );
                Ok(Outcome::Done)
            }
        }
    }

    async fn hold(&self, claim: &NodeClaim) -> Result<Written<NodeClaim>, kube::Error> {
        let mut held = claim.clone();
        let finalizers = held.metadata.finalizers.get_or_insert_default();
        let known = finalizers.iter().any(|finalizer| finalizer == finalizers::TERMINATION);
        if known || is_planted(Bug::LaunchesUnheld) {
            return Ok(Written::Unchanged);
        }
        finalizers.push(finalizers::TERMINATION.to_owned());
        writes::patch(&self.claims, claim, &held, Lock::Optimistic).await
    }

    /// Writes metadata, then status.
    async fn write(&self, before: &NodeClaim, after: &NodeClaim) -> Result<Written<NodeClaim>, kube::Error> {
        // Most passes change nothing: no need to spell the claim out to see that.
        if before == after {
            return Ok(Written::Unchanged);
        }
        let mut base = before.clone();
        let mut written = writes::patch(&self.claims, before, after, Lock::Optimistic).await?;
        match &written {
            Written::Done(claim) => {
                base.metadata.resource_version.clone_from(&claim.metadata.resource_version)
            }
            Written::Unchanged => {}
            Written::Gone | Written::Conflict => return Ok(written),
        }
        match writes::patch_status(&self.claims, &base, after, Lock::Optimistic).await? {
            Written::Unchanged => {}
            status => written = status,
        }
        Ok(written)
    }

    async fn tell(&self, pass: &Pass) -> Result<(), ReconcileError> {
        let id = provider_id(&pass.claim);
        for news in &pass.news {
            match news {
                News::Registered { node } => {
                    tracing::info!("provider-id" = id, Node = %logging::object(node), "registered nodeclaim");
                    self.totals.node_created(&pass.claim);
                    self.record_launch(&pass.claim, true).await?;
                }
                News::Initialized { node, allocatable } => {
                    let (node, allocatable) = (logging::object(node), logging::json(allocatable.clone()));
                    tracing::info!("provider-id" = id, Node = %node, %allocatable, "initialized nodeclaim");
                }
            }
        }
        Ok(())
    }

    /// Notes on its NodePool how a claim's launch ended. The claim is written by now and nobody will come to note it again,
    /// so a NodePool that just changed is tried again here, a few times: losing one of four votes does no harm.
    pub(super) async fn record_launch(&self, claim: &NodeClaim, success: bool) -> Result<(), kube::Error> {
        for pause_ms in [10, 50, 250] {
            if self.health.record(&self.context, claim, success).await? {
                break;
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        Ok(())
    }
}

/// What every log line about a claim carries.
fn span_of(claim: &NodeClaim) -> tracing::Span {
    let span = tracing::error_span!("nodeclaim", "provider-id" = Empty, Node = Empty);
    let id = provider_id(claim);
    if !id.is_empty() {
        span.record("provider-id", id);
    }
    record_node(&span, claim);
    span
}

/// What log lines about a claim carry where its instance is of no concern.
pub(super) fn node_span(claim: &NodeClaim) -> tracing::Span {
    let span = tracing::error_span!("nodeclaim", Node = Empty);
    record_node(&span, claim);
    span
}

fn record_node(span: &tracing::Span, claim: &NodeClaim) {
    let node = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
    if let Some(node) = node.filter(|name| !name.is_empty()) {
        span.record("Node", tracing::field::display(logging::object(&ObjectKey::cluster(node))));
    }
}
