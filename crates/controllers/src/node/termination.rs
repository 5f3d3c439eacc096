//! The end of a Node (rules T1.1–T1.10): it is tainted and drained, its volumes are detached, its instance goes, then it may.
//!
//! Whoever deletes a Node gets this, and its NodeClaim with it. A node whose instance is known to be gone is let go at once.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::{DRAINED, INSTANCE_TERMINATING, VOLUMES_DETACHED};
use karpenter_api::{NodeClaim, annotations, finalizers, labels, taints};
use karpenter_cloudprovider::CloudProvider;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::{Field, ReconcileError, Structured};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::logging;
use karpenter_runtime::metrics::{CounterVec, HistogramVec, SUMMARY_QUANTILES, SummaryVec};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{bucket, exponential_and_bucket, scale};
use karpenter_runtime::writes::{self, Lock, Written};
use kube::Api;
use tracing::Instrument as _;
use tracing::field::Empty;

use super::drain::{Mode, drain};
use super::eviction::{EvictionQueue, failed_draining, failed_draining_of};
use super::last_look::LastLook;
use super::volumes;
use crate::context::Context;
use crate::nodeclaim::initialization::is_ready;
use crate::pairing::provider_id_of_node;
use crate::planted::{Bug, is_planted};
use crate::times::after;
use crate::totals::{Totals, label};
use crate::watches::Watches;

/// So long after its taint a node is watched for pods that a scheduler sent without knowing of it.
const MIN_DRAIN_TIME: Duration = Duration::from_secs(5);
/// How often a drain, and the volumes after it, are looked at.
const DRAIN_POLL: Duration = Duration::from_secs(1);
/// How often a provider is asked whether an instance has gone.
const INSTANCE_POLL: Duration = Duration::from_secs(5);

const WORKERS: (u32, u32) = (100, 5000);

/// Ages of nodes, in seconds, from a quarter of an hour to a month.
const LIFETIME_BUCKETS: &[f64] = &[
    900.0,
    1800.0,
    2700.0,
    3600.0,
    7200.0,
    14_400.0,
    21_600.0,
    28_800.0,
    36_000.0,
    43_200.0,
    57_600.0,
    72_000.0,
    86_400.0,
    172_800.0,
    259_200.0,
    432_000.0,
    864_000.0,
    1_296_000.0,
    1_728_000.0,
    2_160_000.0,
    2_592_000.0,
];

/// The reconciler of `node.termination`.
struct Termination {
    context: Context,
    nodes: Api<Node>,
    claims: Api<NodeClaim>,
    evictions: EvictionQueue,
    last_look: LastLook,
    totals: Totals,
    duration: SummaryVec,
    drained: CounterVec,
    lifetime: HistogramVec,
}

/// One pass over a node that ends.
struct Pass {
    node: Arc<Node>,
    provider: Arc<dyn CloudProvider>,
    /// Its claim with what changed in this pass, if there is one; of several, the oldest.
    claim: Option<NodeClaim>,
    /// The other claims that name this machine: they end with it.
    twins: Vec<NodeClaim>,
    /// When its pods must be gone.
    deadline: Option<Timestamp>,
}

impl Pass {
    fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    fn claims(&self) -> impl Iterator<Item = &NodeClaim> {
        self.claim.iter().chain(&self.twins)
    }
}

/// Makes the controller part of the program.
pub(crate) fn register(
    context: &Context,
    watches: &mut Watches,
    program: &mut Program,
    evictions: &EvictionQueue,
) {
    let registry = &context.environment.registry;
    let termination = Termination {
        context: context.clone(),
        nodes: Api::all(context.client.clone()),
        claims: Api::all(context.client.clone()),
        evictions: evictions.clone(),
        last_look: LastLook::new(
            context.client.clone(),
            context.stores.pods.clone(),
            Arc::clone(&context.environment.clock),
        ),
        totals: Totals::new(registry),
        duration: registry.summary(
            "karpenter_nodes_termination_duration_seconds",
            "Seconds from a node's deletion to its end, by NodePool",
            &["nodepool"],
            SUMMARY_QUANTILES,
        ),
        drained: registry.counter(
            "karpenter_nodes_drained_total",
            "Nodes drained, by NodePool",
            &["nodepool"],
        ),
        lifetime: registry.histogram(
            "karpenter_nodes_lifetime_duration_seconds",
            "Age of nodes at their end in seconds, by NodePool",
            &["nodepool"],
            LIFETIME_BUCKETS,
        ),
    };
    let workers = scale(context.options.cpu_requests_millicores, WORKERS.0, WORKERS.1);
    let bucket = bucket(10, WORKERS.0, workers);
    let limiter = exponential_and_bucket(Duration::from_millis(100), Duration::from_secs(10), bucket);
    let controller = Controller::for_objects("node.termination", "", "Node", termination)
        .workers(workers)
        .limiter(limiter)
        .build(&context.environment);
    // A node that lives concerns nobody here, however often it reports.
    watches.nodes.feed(&controller.queue(), |delta| {
        if delta.object().metadata.deletion_timestamp.is_some() { own_key(delta) } else { Vec::new() }
    });
    context.run(program, controller);
}

impl Reconciler for Termination {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(node) = self.context.stores.nodes.get(&key) else { return Ok(Outcome::Done) };
        if node.metadata.deletion_timestamp.is_none() || !is_held(&node) {
            return Ok(Outcome::Done);
        }
        let Some(provider) = self.context.providers.provider_of_node(node.metadata.labels.as_ref()) else {
            return Ok(Outcome::Done);
        };
        let mut claims = self.claims_ending_with(&node, provider).into_iter();
        let (claim, twins) = (claims.next(), claims.collect());
        let span = tracing::error_span!("node", NodeClaim = Empty);
        if let Some(claim) = &claim {
            span.record("NodeClaim", tracing::field::display(logging::object(&ObjectKey::of(claim))));
        }
        let pass = Pass { node, provider: Arc::clone(provider), claim, twins, deadline: None };
        self.finalize(pass).instrument(span).await
    }
}

fn is_held(node: &Node) -> bool {
    node.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == finalizers::TERMINATION)
}

impl Termination {
    /// The NodeClaims whose machine this Node is, oldest first. Should several name it, it is the end of all of them: none may
    /// be left without a Node, nor the machine without anyone to remove it. But a provider id alone does not prove that: the
    /// claim may be another Karpenter's, may have got the id of a machine that is gone, or may have come to another Node.
    fn claims_ending_with(&self, node: &Node, provider: &Arc<dyn CloudProvider>) -> Vec<NodeClaim> {
        let ended = node.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let is_its = |claim: &Arc<NodeClaim>| {
            let served = self.context.providers.for_claim(claim);
            let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
            let came_to = claim.status.as_ref().and_then(|status| status.node_name.as_deref());
            served.is_ok_and(|served| Arc::ptr_eq(served, provider))
                && created.zip(ended).is_none_or(|(created, ended)| created <= ended)
                && came_to.is_none_or(|name| name.is_empty() || Some(name) == node.metadata.name.as_deref())
        };
        let mut claims = self.context.stores.claims_of(provider_id_of_node(node));
        claims.retain(is_its);
        let age_and_name = |claim: &NodeClaim| {
            let created = claim.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, claim.metadata.name.clone())
        };
        claims.sort_by_cached_key(|claim| age_and_name(claim));
        claims.into_iter().map(|claim| (*claim).clone()).collect()
    }

    async fn finalize(&self, mut pass: Pass) -> ReconcileResult {
        for claim in pass.claims().filter(|claim| claim.metadata.deletion_timestamp.is_none()) {
            let deleted = writes::delete(&self.claims, claim).await;
            deleted.map_err(|error| ReconcileError::from(error).context("deleting nodeclaim"))?;
        }
        if self.is_instance_gone(&pass).await? {
            return self.let_go(&pass.node).await;
        }
        pass.deadline = self.deadline(&pass)?;
        match self.taint(&pass.node).await? {
            Written::Done(node) => pass.node = Arc::new(*node),
            Written::Unchanged => {}
            Written::Gone => return Ok(Outcome::Done),
            Written::Conflict => return Ok(Outcome::Requeue),
        }
        let before = pass.claim.clone();
        let result = self.stages(&mut pass).await;
        // What was reached is written down even if the next stage failed.
        if let (Some(before), Some(after)) = (&before, &pass.claim) {
            let written = writes::patch_status(&self.claims, before, after, Lock::Optimistic).await;
            match written.map_err(|error| ReconcileError::from(error).context("updating nodeclaim"))? {
                Written::Conflict => return Ok(Outcome::Requeue),
                Written::Done(_) if !is_true(before, DRAINED) && is_true(after, DRAINED) => {
                    self.drained.inc(&[label(&*pass.node, labels::NODEPOOL)]);
                }
                Written::Done(_) | Written::Gone | Written::Unchanged => {}
            }
        }
        match result? {
            Outcome::Done => self.let_go(&pass.node).await,
            wait => Ok(wait),
        }
    }

    /// One stage after the other, as far as they go.
    async fn stages(&self, pass: &mut Pass) -> ReconcileResult {
        let drained = self.await_drain(pass).await?;
        if drained != Outcome::Done {
            return Ok(drained);
        }
        let detached = self.await_volumes(pass);
        if detached != Outcome::Done {
            return Ok(detached);
        }
        self.await_instance(pass).await
    }

    /// Whether there is nothing left to drain. A kubelet that reports is proof of an instance, whatever the provider says, and
    /// a node without provider id cannot be asked for.
    async fn is_instance_gone(&self, pass: &Pass) -> Result<bool, ReconcileError> {
        let id = provider_id_of_node(&pass.node);
        if is_ready(&pass.node) || id.is_empty() {
            return Ok(false);
        }
        match pass.provider.get(id).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(ReconcileError::from(error).context("getting nodeclaim")),
        }
    }

    /// The earliest its claims know of.
    fn deadline(&self, pass: &Pass) -> Result<Option<Timestamp>, ReconcileError> {
        let key = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
        let mut earliest: Option<(Timestamp, &str)> = None;
        for text in pass.claims().filter_map(|claim| claim.metadata.annotations.as_ref()?.get(key)) {
            let parsed = text.parse::<Timestamp>().map_err(|error| {
                // Whoever wrote it sees on the node what keeps it.
                self.tell_deadline(pass, text);
                let error = Structured::new(error).with("annotation", Field::text(key));
                ReconcileError::from(error).context("parsing annotation")
            })?;
            if earliest.is_none_or(|(known, _)| parsed < known) {
                earliest = Some((parsed, text));
            }
        }
        let Some((deadline, text)) = earliest else { return Ok(None) };
        self.tell_deadline(pass, text);
        Ok(Some(deadline))
    }

    fn tell_deadline(&self, pass: &Pass, text: &str) {
        let message = format!("All pods will be deleted by {text}");
        let event =
            Event::new(reference(&*pass.node), EventType::Warning, "TerminationGracePeriodExpiring", message);
        self.context.recorder.publish(event.dedupe_by(pass.node.metadata.name.clone()));
    }

    /// Keeps new pods and new connections away.
    async fn taint(&self, node: &Node) -> Result<Written<Node>, ReconcileError> {
        let taint = taints::DISRUPTED;
        let mut tainted = node.clone();
        let taints = tainted.spec.get_or_insert_default().taints.get_or_insert_default();
        if !taints.iter().any(|known| taint.matches(known)) {
            taints.retain(|known| known.key != taint.key);
            taints.push(taint.to_taint());
        }
        tainted.metadata.labels.get_or_insert_default().insert(
            labels::EXCLUDE_FROM_LOAD_BALANCERS.to_owned(),
            labels::EXCLUDE_FROM_LOAD_BALANCERS_VALUE.to_owned(),
        );
        let written =
            writes::patch(&self.nodes, node, &tainted, Lock::Optimistic).await.map_err(|error| {
                let text = format!("{}:{}", taint.key, taint.effect.as_str());
                let error = Structured::new(error).with("taint", Field::text(text));
                ReconcileError::from(error).context("tainting node")
            })?;
        if let Written::Done(_) = written {
            tracing::info!(
                "taint.Key" = taint.key,
                "taint.Value" = "",
                "taint.Effect" = taint.effect.as_str(),
                "tainted node"
            );
        }
        Ok(written)
    }

    async fn await_drain(&self, pass: &mut Pass) -> ReconcileResult {
        if is_planted(Bug::DoesNotDrain) {
            return Ok(Outcome::Done);
        }
        let now = self.context.now();
        if let Some(claim) = pass.claim.as_mut().filter(|claim| claim.condition(DRAINED).is_none()) {
            ConditionSet::of(claim, now).set_unknown_with_reason(DRAINED, "Draining", "Draining");
        }
        let name = pass.name();
        if let Err(draining) = drain(&self.context, &self.evictions, name, pass.deadline, Mode::ForceDelete) {
            let problem = draining.to_string();
            self.context.recorder.publish(failed_draining(&pass.node, &problem));
            if let Some(claim) = &pass.claim {
                self.context.recorder.publish(failed_draining_of(claim, &problem));
            }
            return Ok(Outcome::After(DRAIN_POLL));
        }
        let condition = pass.claim.as_ref().and_then(|claim| claim.condition(DRAINED));
        let known = condition.map(|condition| condition.status);
        let young = |since| !self.context.is_past(after(since, MIN_DRAIN_TIME));
        if known == Some(ConditionStatus::Unknown) && condition.is_some_and(|c| young(c.since())) {
            return Ok(Outcome::After(DRAIN_POLL));
        }
        // The instance goes next. That must not be because a watch lags behind: the server is asked, once.
        if known != Some(ConditionStatus::True) && self.last_look.finds_pods_on(name).await? {
            return Ok(Outcome::After(DRAIN_POLL));
        }
        if let Some(claim) = &mut pass.claim {
            ConditionSet::of(claim, now).set_true(DRAINED);
        }
        Ok(Outcome::Done)
    }

    fn await_volumes(&self, pass: &mut Pass) -> Outcome {
        let now = self.context.now();
        let certain = self.context.undoubted_now();
        let pending = volumes::pending(&self.context.stores, pass.name(), certain);
        let elapsed = pass.deadline.is_some_and(|deadline| certain > deadline);
        let conditions = pass.claim.as_mut().map(|claim| ConditionSet::of(claim, now));
        if pending.is_empty() {
            conditions.map(|mut conditions| conditions.set_true(VOLUMES_DETACHED));
            return Outcome::Done;
        }
        if elapsed {
            let why = "TerminationGracePeriodElapsed";
            conditions.map(|mut conditions| conditions.set_false(VOLUMES_DETACHED, why, why));
            return Outcome::Done;
        }
        let why = "AwaitingVolumeDetachment";
        conditions.map(|mut conditions| conditions.set_unknown_with_reason(VOLUMES_DETACHED, why, why));
        let names = pending.iter().filter_map(|attachment| attachment.metadata.name.as_deref());
        let message = format!("Awaiting deletion of bound volumeattachments ({})", at_most_five(names));
        let event = Event::new(reference(&*pass.node), EventType::Normal, why, message);
        self.context.recorder.publish(event.dedupe_by(pass.node.metadata.name.clone()));
        Outcome::After(DRAIN_POLL)
    }

    async fn await_instance(&self, pass: &mut Pass) -> ReconcileResult {
        let mut gone = true;
        for claim in pass.claims() {
            match pass.provider.delete(claim).await {
                Ok(()) => gone = false,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(claim) = &mut pass.claim else { return Ok(Outcome::Done) };
        ConditionSet::of(claim, self.context.now()).set_true(INSTANCE_TERMINATING);
        Ok(if gone { Outcome::Done } else { Outcome::After(INSTANCE_POLL) })
    }

    async fn let_go(&self, node: &Node) -> ReconcileResult {
        let mut freed = node.clone();
        freed.metadata.finalizers.get_or_insert_default().retain(|name| name != finalizers::TERMINATION);
        let written = writes::patch(&self.nodes, node, &freed, Lock::Optimistic).await;
        match written.map_err(|error| ReconcileError::from(error).context("removing finalizer"))? {
            Written::Done(_) => {}
            Written::Gone | Written::Unchanged => return Ok(Outcome::Done),
            Written::Conflict => return Ok(Outcome::Requeue),
        }
        let pool = label(node, labels::NODEPOOL);
        let since = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.map(|time| self.context.environment.clock.since(time.0).as_secs_f64()).unwrap_or_default()
        };
        self.totals.node_terminated(node);
        self.duration.observe(&[pool], since(node.metadata.deletion_timestamp.as_ref()));
        self.lifetime.observe(&[pool], since(node.metadata.creation_timestamp.as_ref()));
        tracing::info!("deleted node");
        Ok(Outcome::Done)
    }
}

fn is_true(claim: &NodeClaim, condition: &str) -> bool {
    claim.condition_status(condition) == ConditionStatus::True
}

fn at_most_five<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(5)].join(", ");
    match names.len().saturating_sub(5) {
        0 => shown,
        more => format!("{shown} and {more} other(s)"),
    }
}
