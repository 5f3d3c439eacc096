//! Restarts a node in place (rules L8.1–L8.12): repair asks for it with the condition `Rebooting`, whose reason is how far it
//! has come.
//!
//! ```text
//! RebootRequested ─ fence, drain, note the boot id, tell the provider ─▶ RebootIssued ─ new boot id, ready ─▶ RebootSucceeded
//!        └──────────── refused, or takes too long: the claim is deleted, its node replaced ────────────┘
//! ```
//!
//! Everything that matters is on the claim and the node, so any step may be another process's. Only how long the provider has
//! been asked in vain is in memory; a restart asks for as long again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{Condition, ConditionSet, ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::{INITIALIZED, REBOOTING, reboot};
use karpenter_api::{NodeClaim, annotations, labels, taints};
use karpenter_cloudprovider::{CloudProvider, ProviderError};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::ReconcileError;
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::go_duration::GoDuration;
use karpenter_runtime::informer::own_key;
use karpenter_runtime::metrics::{CounterVec, HistogramVec, exponential_buckets};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::reasonable;
use karpenter_runtime::writes::{self, Deleted, Lock, Written};
use kube::Api;

use super::initialization::is_ready;
use super::registration::taints_of;
use crate::context::Context;
use crate::node::drain::{Mode, drain};
use crate::node::eviction::EvictionQueue;
use crate::pairing::Paired;
use crate::times::{after, rfc3339, until};
use crate::watches::Watches;

/// How long a node may take from the provider's order to being back.
const OBSERVATION_WINDOW: Duration = Duration::from_secs(20 * 60);
/// How long the provider is asked.
const ISSUANCE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const POLL: Duration = Duration::from_secs(15);
/// So long a node is watched for pods that were sent without knowing of the fence.
const MIN_DRAIN_TIME: Duration = Duration::from_secs(5);
/// Longer than any reboot: each step is told once.
const EVENT_DEDUPE: Duration = Duration::from_secs(30 * 60);
const WORKERS: u32 = 10;

/// How a reboot ended, as metrics have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Succeeded,
    ProviderError,
    RecoveryTimeout,
    InvalidRequest,
}

impl Ending {
    fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::ProviderError => "provider_error",
            Self::RecoveryTimeout => "recovery_timeout",
            Self::InvalidRequest => "invalid_request",
        }
    }
}

/// How long the drain before a reboot may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    /// For ever.
    Unbounded,
    /// There is none.
    None,
    /// So long; pods that are left then go through the reboot.
    Bounded(Duration),
}

/// The reconciler of `nodeclaim.reboot`.
struct Reboot {
    context: Context,
    claims: Api<NodeClaim>,
    nodes: Api<Node>,
    evictions: EvictionQueue,
    /// Since when the provider has been asked, by the claim's UID.
    asking_since: Mutex<BTreeMap<String, Timestamp>>,
    reboots: CounterVec,
    duration: HistogramVec,
    recovery: HistogramVec,
}

/// One pass over a reboot.
struct Pass {
    claim: NodeClaim,
    provider: Arc<dyn CloudProvider>,
    rebooting: Condition,
}

impl Pass {
    fn uid(&self) -> String {
        self.claim.metadata.uid.clone().unwrap_or_default()
    }

    /// Since when this reboot is wanted: stays the same through its phases.
    fn requested_at(&self) -> Timestamp {
        self.rebooting.since()
    }

    fn is_issued(&self) -> bool {
        self.rebooting.reason() == reboot::ISSUED
    }

    /// When the provider took the order, as far as it has.
    fn issued_at(&self) -> Option<Timestamp> {
        let initialized = self.claim.condition(INITIALIZED)?;
        (initialized.status == ConditionStatus::Unknown).then(|| initialized.since())
    }

    fn annotation(&self, key: &str) -> Option<&String> {
        self.claim.metadata.annotations.as_ref()?.get(key)
    }

    fn grace(&self) -> Result<Grace, String> {
        let Some(text) = self.annotation(annotations::REBOOT_TERMINATION_GRACE_PERIOD) else {
            return Ok(Grace::Unbounded);
        };
        let period: GoDuration = text
            .parse()
            .map_err(|error| format!("parsing reboot termination grace period {text:?}: {error}"))?;
        match period.to_std() {
            None => Err(format!("reboot termination grace period must be non-negative, got {text:?}")),
            Some(Duration::ZERO) => Ok(Grace::None),
            Some(period) => Ok(Grace::Bounded(period)),
        }
    }

    /// What makes the same reboot the same to the provider, whoever asks.
    fn operation_id(&self) -> String {
        let boot = self.annotation(annotations::REBOOT_PRE_BOOT_ID).map(String::as_str).unwrap_or_default();
        format!("{}-{}-{boot}", self.uid(), self.requested_at().as_nanosecond())
    }

    fn event(&self, event_type: EventType, reason: &'static str, message: &str) -> Event {
        Event::new(reference(&self.claim), event_type, reason, message)
            .dedupe_by([self.uid(), self.requested_at().to_string()])
            .dedupe_for(EVENT_DEDUPE)
    }
}

/// Makes the controller part of the program, whether repair is on or not: a reboot that was begun is finished.
pub(crate) fn register(
    context: &Context,
    watches: &mut Watches,
    program: &mut Program,
    evictions: &EvictionQueue,
) {
    let registry = &context.environment.registry;
    let buckets = exponential_buckets(10.0, 2.0, 8);
    let reboot = Reboot {
        context: context.clone(),
        claims: Api::all(context.client.clone()),
        nodes: Api::all(context.client.clone()),
        evictions: evictions.clone(),
        asking_since: Mutex::default(),
        reboots: registry.counter(
            "karpenter_nodes_reboots_total",
            "Reboots of nodes that have ended, by result",
            &["result"],
        ),
        duration: registry.histogram(
            "karpenter_nodes_reboot_duration_seconds",
            "Seconds from the wish for a reboot to its end, by result",
            &["result"],
            &buckets,
        ),
        recovery: registry.histogram(
            "karpenter_nodes_reboot_recovery_duration_seconds",
            "Seconds from the order for a reboot to the node's return",
            &[],
            &buckets,
        ),
    };
    let controller = Controller::for_objects("nodeclaim.reboot", karpenter_api::GROUP, "NodeClaim", reboot)
        .workers(WORKERS)
        .limiter(reasonable())
        .build(&context.environment);
    watches.node_claims.feed(&controller.queue(), |delta| {
        if delta.object().condition(REBOOTING).is_some() { own_key(delta) } else { Vec::new() }
    });
    context.run(program, controller);
}

impl Reconciler for Reboot {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(claim) = self.context.stores.node_claims.get(&key) else { return Ok(Outcome::Done) };
        let rebooting = claim.condition(REBOOTING).filter(|c| c.status == ConditionStatus::True).cloned();
        let (Some(rebooting), Ok(provider)) = (rebooting, self.context.providers.for_claim(&claim)) else {
            return Ok(Outcome::Done);
        };
        let pass = Pass { claim: (*claim).clone(), provider: Arc::clone(provider), rebooting };
        if claim.metadata.deletion_timestamp.is_some() {
            self.asking_since().remove(&pass.uid());
            return Ok(Outcome::Done);
        }
        let node = match self.context.stores.node_of(&claim) {
            Paired::One(node) => Some((*node).clone()),
            Paired::None => None,
            Paired::Several => {
                return Err(ReconcileError::message(format!(
                    "multiple found for provider id '{}'",
                    crate::pairing::provider_id(&claim)
                )));
            }
        };
        let deadline = self.deadline(&pass);
        let Some(mut node) = node else {
            // It may come back. Without it nothing can be drained, so the time counts from the wish.
            let deadline = deadline.unwrap_or_else(|| after(pass.requested_at(), ISSUANCE_TIMEOUT));
            return if self.context.is_past(deadline) {
                self.overdue(pass, None).await
            } else {
                Ok(Outcome::After(POLL))
            };
        };
        if deadline.is_some_and(|deadline| self.context.is_past(deadline)) {
            return self.overdue(pass, Some(&mut node)).await;
        }
        match pass.rebooting.reason() {
            reboot::REQUESTED => self.requested(pass, &mut node).await,
            reboot::ISSUED => self.issued(pass, &mut node).await,
            _ => Ok(Outcome::Done),
        }
    }
}

impl Reboot {
    fn asking_since(&self) -> MutexGuard<'_, BTreeMap<String, Timestamp>> {
        self.asking_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the phase it is in must be over.
    fn deadline(&self, pass: &Pass) -> Option<Timestamp> {
        if pass.is_issued() {
            pass.issued_at().map(|issued| after(issued, OBSERVATION_WINDOW))
        } else {
            let since = self.asking_since().get(&pass.uid()).copied();
            since.map(|since| after(since, ISSUANCE_TIMEOUT))
        }
    }

    async fn overdue(&self, pass: Pass, node: Option<&mut Node>) -> ReconcileResult {
        let (ending, message) = if pass.is_issued() {
            (Ending::RecoveryTimeout, "node did not recover within the observation window")
        } else {
            (Ending::ProviderError, "reboot was not issued within the issuance timeout")
        };
        self.failed(pass, node, ending, message).await
    }

    /// Fences the node off, drains it, and tells the provider.
    async fn requested(&self, mut pass: Pass, node: &mut Node) -> ReconcileResult {
        let grace = match pass.grace() {
            Ok(grace) => grace,
            Err(problem) => {
                let message = format!("invalid reboot request: {problem}");
                return self.failed(pass, Some(node), Ending::InvalidRequest, &message).await;
            }
        };
        let fence = taints::REBOOTING;
        if !taints_of(node).iter().any(|taint| fence.matches(taint)) {
            let mut fenced = node.clone();
            let taints = fenced.spec.get_or_insert_default().taints.get_or_insert_default();
            taints.push(fence.to_taint());
            if !self.write_node(node, fenced).await? {
                return Ok(Outcome::Requeue);
            }
        }
        match pass.annotation(annotations::REBOOT_PRE_BOOT_ID).cloned() {
            // The order was taken though the answer was lost.
            Some(before) if boot_id(node) != before => return self.now_issued(pass, node).await,
            Some(_) => self.start_asking(&pass),
            None => {
                if let Some(wait) = self.still_draining(&pass, node, grace) {
                    return Ok(Outcome::After(wait));
                }
                self.start_asking(&pass);
                let mut noted = pass.claim.clone();
                let boot = boot_id(node).to_owned();
                let known = noted.metadata.annotations.get_or_insert_default();
                known.insert(annotations::REBOOT_PRE_BOOT_ID.to_owned(), boot);
                match writes::patch(&self.claims, &pass.claim, &noted, Lock::None).await? {
                    Written::Done(claim) => pass.claim = *claim,
                    Written::Unchanged => {}
                    Written::Gone | Written::Conflict => return Ok(Outcome::Requeue),
                }
            }
        }
        match pass.provider.reboot(&pass.claim, &pass.operation_id()).await {
            Ok(()) => self.now_issued(pass, node).await,
            Err(ProviderError::RebootNotImplemented) => {
                let message = "reboot not implemented by the cloud provider";
                self.failed(pass, Some(node), Ending::ProviderError, message).await
            }
            Err(error) if error.is_reboot_over() => {
                let message = format!("reboot rejected by the cloud provider: {error}");
                self.failed(pass, Some(node), Ending::ProviderError, &message).await
            }
            Err(error) => Err(ReconcileError::from(error).context("issuing reboot")),
        }
    }

    fn start_asking(&self, pass: &Pass) {
        self.asking_since().entry(pass.uid()).or_insert_with(|| self.context.undoubted_now());
    }

    /// How long to wait before the drain is looked at again; none when it is over.
    fn still_draining(&self, pass: &Pass, node: &Node, grace: Grace) -> Option<Duration> {
        let deadline = match grace {
            Grace::None => return None,
            Grace::Unbounded => None,
            Grace::Bounded(period) => Some(after(pass.requested_at(), period.max(MIN_DRAIN_TIME))),
        };
        let now = self.context.undoubted_now();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let wait = match drain(&self.context, &self.evictions, name, deadline, Mode::Timeout) {
            Ok(()) => until(now, after(pass.requested_at(), MIN_DRAIN_TIME)),
            Err(_) => deadline.map_or(POLL, |deadline| until(now, deadline)),
        };
        // Not longer: the clock may be set.
        (!wait.is_zero()).then_some(wait.min(POLL))
    }

    async fn now_issued(&self, mut pass: Pass, node: &mut Node) -> ReconcileResult {
        let mut issued = pass.claim.clone();
        let mut conditions = ConditionSet::of(&mut issued, self.context.now());
        conditions.set_true_with_reason(REBOOTING, reboot::ISSUED, pass.rebooting.message());
        // A node is initialized for one boot.
        conditions.set_unknown_with_reason(INITIALIZED, reboot::REBOOTING, "node is rebooting");
        match writes::patch_status(&self.claims, &pass.claim, &issued, Lock::Optimistic).await? {
            Written::Conflict => return Ok(Outcome::Requeue),
            Written::Gone => return Ok(Outcome::Done),
            Written::Done(claim) => pass.claim = *claim,
            Written::Unchanged => {}
        }
        self.take_off_label(node).await?;
        Ok(Outcome::After(POLL))
    }

    /// Waits for the node to come back.
    async fn issued(&self, pass: Pass, node: &mut Node) -> ReconcileResult {
        self.take_off_label(node).await?;
        let before = pass.annotation(annotations::REBOOT_PRE_BOOT_ID).map(String::as_str);
        if boot_id(node) == before.unwrap_or_default() {
            return Ok(Outcome::After(POLL));
        }
        if !self.take_off_fence(node).await? {
            return Ok(Outcome::Requeue);
        }
        let message = "New boot observed (bootID changed); awaiting node readiness";
        self.context.recorder.publish(pass.event(EventType::Normal, "RebootObserved", message));
        if !is_ready(node) {
            return Ok(Outcome::After(POLL));
        }
        let clock = &self.context.environment.clock;
        let took = clock.since(pass.requested_at());
        let recovered = pass.issued_at().map(|issued| clock.since(issued));
        let message = "node rebooted and rejoined the cluster";
        if !self.end(&pass, reboot::SUCCEEDED, message).await? {
            return Ok(Outcome::Requeue);
        }
        self.count(Ending::Succeeded, took);
        if let Some(recovered) = recovered {
            self.recovery.observe(&[], recovered.as_secs_f64());
        }
        Ok(Outcome::Done)
    }

    /// Gives the reboot up. What could not be asked for leaves the node as it is; anything else has it replaced.
    async fn failed(
        &self,
        mut pass: Pass,
        node: Option<&mut Node>,
        ending: Ending,
        message: &str,
    ) -> ReconcileResult {
        if let Some(node) = node
            && !self.take_off_fence(node).await?
        {
            return Ok(Outcome::Requeue);
        }
        let took = self.context.environment.clock.since(pass.requested_at());
        if ending == Ending::InvalidRequest {
            if !self.end(&pass, reboot::FAILED, message).await? {
                return Ok(Outcome::Requeue);
            }
        } else {
            let replaced = self.replace(&mut pass).await?;
            if replaced == Deleted::Conflict {
                return Ok(Outcome::Requeue);
            }
            self.asking_since().remove(&pass.uid());
            if replaced == Deleted::Gone {
                // Somebody else has ended it: nothing is replaced.
                return Ok(Outcome::Done);
            }
            tracing::info!(result = ending.as_str(), "reboot failed, replacing node");
        }
        self.context.recorder.publish(pass.event(EventType::Warning, "RebootFailed", message));
        self.count(ending, took);
        Ok(Outcome::Done)
    }

    /// Deletes the claim as it was read, with no more time to drain than the reboot had.
    async fn replace(&self, pass: &mut Pass) -> Result<Deleted, ReconcileError> {
        let bound = match pass.grace() {
            Ok(Grace::None) => Some(Duration::ZERO),
            Ok(Grace::Bounded(period)) => Some(period),
            Ok(Grace::Unbounded) | Err(_) => None,
        };
        if let Some(bound) = bound
            && let Some(tightened) = tightened(&pass.claim, after(self.context.now(), bound))
        {
            match writes::patch(&self.claims, &pass.claim, &tightened, Lock::Optimistic).await? {
                Written::Done(claim) => pass.claim = *claim,
                Written::Unchanged => {}
                Written::Gone => return Ok(Deleted::Gone),
                Written::Conflict => return Ok(Deleted::Conflict),
            }
        }
        Ok(writes::delete_unchanged(&self.claims, &pass.claim).await?)
    }

    /// Writes the end of the reboot, over the version that was read so that it is counted once. False: look again.
    async fn end(&self, pass: &Pass, reason: &str, message: &str) -> Result<bool, ReconcileError> {
        self.asking_since().remove(&pass.uid());
        let mut ended = pass.claim.clone();
        if let Some(annotations) = &mut ended.metadata.annotations {
            annotations.remove(annotations::REBOOT_PRE_BOOT_ID);
        }
        let mut base = pass.claim.clone();
        match writes::patch(&self.claims, &pass.claim, &ended, Lock::Optimistic).await? {
            Written::Done(claim) => {
                base.metadata.resource_version.clone_from(&claim.metadata.resource_version)
            }
            Written::Unchanged => {}
            Written::Gone | Written::Conflict => return Ok(false),
        }
        ConditionSet::of(&mut ended, self.context.now()).set_false(REBOOTING, reason, message);
        match writes::patch_status(&self.claims, &base, &ended, Lock::Optimistic).await? {
            Written::Done(_) | Written::Unchanged => {}
            Written::Gone | Written::Conflict => return Ok(false),
        }
        tracing::info!(reason, "reboot reached terminal outcome");
        Ok(true)
    }

    async fn take_off_fence(&self, node: &mut Node) -> Result<bool, ReconcileError> {
        if !taints_of(node).iter().any(|taint| taints::REBOOTING.matches(taint)) {
            return Ok(true);
        }
        let mut open = node.clone();
        if let Some(taints) = open.spec.as_mut().and_then(|spec| spec.taints.as_mut()) {
            taints.retain(|taint| !taints::REBOOTING.matches(taint));
        }
        self.write_node(node, open).await
    }

    /// Writes a node whose taints changed, over the version that was read: the list is written whole. False: look again.
    async fn write_node(&self, node: &mut Node, changed: Node) -> Result<bool, ReconcileError> {
        match writes::patch(&self.nodes, node, &changed, Lock::Optimistic).await? {
            Written::Done(written) => *node = *written,
            Written::Unchanged | Written::Gone => {}
            Written::Conflict => return Ok(false),
        }
        Ok(true)
    }

    async fn take_off_label(&self, node: &mut Node) -> Result<(), ReconcileError> {
        let mut unlabelled = node.clone();
        if let Some(node_labels) = &mut unlabelled.metadata.labels {
            node_labels.remove(labels::INITIALIZED);
        }
        if let Written::Done(written) = writes::patch(&self.nodes, node, &unlabelled, Lock::None).await? {
            *node = *written;
        }
        Ok(())
    }

    fn count(&self, ending: Ending, took: Duration) {
        self.reboots.inc(&[ending.as_str()]);
        self.duration.observe(&[ending.as_str()], took.as_secs_f64());
    }
}

fn boot_id(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.as_str()).unwrap_or_default()
}

/// The claim with its drain over by `deadline`, unless it must be over before that already (rule U5).
pub(crate) fn tightened(claim: &NodeClaim, deadline: Timestamp) -> Option<NodeClaim> {
    let key = annotations::NODECLAIM_TERMINATION_TIMESTAMP;
    let known = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    let known: Option<Timestamp> = known.and_then(|known| known.parse().ok());
    if known.is_some_and(|known| known <= deadline) {
        return None;
    }
    let mut tightened = claim.clone();
    tightened.metadata.annotations.get_or_insert_default().insert(key.to_owned(), rfc3339(deadline));
    Some(tightened)
}
