//! What a decision leaves behind: events for people, log lines for operators, nominations and timings for the next decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use karpenter_api::conditions::{ConditionStatus, HasConditions};
use karpenter_api::nodepool::{NODE_CLASS_READY, NODE_REGISTRATION_HEALTHY, VALIDATION_SUCCEEDED};
use karpenter_api::{NodeClaim, NodePool};
use karpenter_cloudprovider::error::truncated;
use karpenter_engine::eligibility::is_provisionable;
use karpenter_engine::labels::{NODE_POOL, Text};
use karpenter_engine::pod::{Phase, Pod, WhenUnsatisfiable};
use karpenter_engine::reasons::{PodRejection, SkipReason, Unplaceable};
use karpenter_engine::{PlannedClaim, RejectedObject, StateNode, effective_zone};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::logging;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::options::PreferencePolicy;
use karpenter_runtime::ttl_cache::TtlCache;
use karpenter_state::Cluster;
use tracing::field::display;

use super::claims::some_of;
use super::metrics::SchedulerMetrics;
use super::nominations::{Nominations, about};
use super::pass::{Decision, NAME};
use super::unmet::{REQUIREMENTS, nothing_left};
use crate::context::Context;

/// How long a pod that may get in consolidation's way is not mentioned again.
const MENTIONED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How many NodePools a pod without any that can be used is told of.
const BLAMED: usize = 3;

pub(super) struct Records {
    context: Context,
    metrics: SchedulerMetrics,
    nominations: Nominations,
    /// Pods mentioned for a preference that may get in consolidation's way.
    mentioned: Mutex<TtlCache<(Text, &'static str), ()>>,
}

impl Records {
    pub(super) fn new(context: &Context, metrics: &SchedulerMetrics, nominations: &Nominations) -> Self {
        Self {
            context: context.clone(),
            metrics: metrics.clone(),
            nominations: nominations.clone(),
            mentioned: Mutex::new(TtlCache::new(MENTIONED_FOR)),
        }
    }

    /// Says what was decided.
    pub(super) fn log(&self, decision: &Decision, took: Duration) {
        let plan = &decision.plan;
        self.log_pools(decision);
        let deferred: Vec<String> = plan
            .pod_errors
            .iter()
            .filter(|e| e.reason.waits_for_reservation())
            .map(|e| e.pod.key())
            .collect();
        if !deferred.is_empty() {
            tracing::debug!(
                Pods = some_of(&deferred, 5),
                "deferring scheduling decision for provisionable pod(s) to future simulation due to limited reserved offering capacity"
            );
        }
        let unschedulable = plan.pod_errors.len() - deferred.len();
        self.metrics.unschedulable_pods.set(&[NAME], unschedulable as f64);
        self.metrics.ignored_pods.set(&[], plan.ignored_pods.len() as f64);
        if !plan.new_claims.is_empty() {
            let waiting: Vec<String> = batch(decision).map(|pod| pod.key()).collect();
            let took = logging::duration(took);
            tracing::info!(Pods = some_of(&waiting, 5), duration = %took, "found provisionable pod(s)");
        }
        self.count_zones(decision);
        self.mention_preferences(decision);
    }

    /// Pending pods by the zone they have to be in, also those that have not started on a node that goes.
    fn count_zones(&self, decision: &Decision) {
        self.metrics.pending_pods_by_zone.delete_matching(&[("controller", NAME)]);
        let mut counts: BTreeMap<Text, u32> = BTreeMap::new();
        for pod in batch(decision).filter(|pod| pod.status.phase == Phase::Pending) {
            *counts.entry(effective_zone(pod, &decision.snapshot)).or_default() += 1;
        }
        for (zone, count) in counts {
            self.metrics.pending_pods_by_zone.set(&[NAME, &zone], f64::from(count));
        }
    }

    fn log_pools(&self, decision: &Decision) {
        for skipped in &decision.plan.skipped_pools {
            let pool = decision.pools.get(&*skipped.node_pool);
            let object = logging::object(&ObjectKey::cluster(skipped.node_pool.clone()));
            match &skipped.reason {
                SkipReason::NotReady => {
                    let error = pool.map(|pool| why_not_ready(pool)).unwrap_or_default();
                    tracing::error!(NodePool = %object, error, "ignoring nodepool, not ready");
                }
                SkipReason::Unresolved(error) => {
                    tracing::error!(NodePool = %object, %error, "skipping, unable to resolve instance types");
                }
                SkipReason::NoInstanceTypes => {
                    tracing::info!(NodePool = %object, "skipping, no resolved instance types found");
                }
                SkipReason::Invalid(error) => {
                    tracing::error!(NodePool = %object, %error, "ignoring nodepool, its requirements make no sense");
                    if let Some(pool) = pool {
                        let problem = format!("{REQUIREMENTS}: {error}");
                        self.context.recorder.publish(unusable_requirements(pool, problem));
                    }
                }
                SkipReason::FilteredOut { min_values } => {
                    let source = decision.snapshot.node_pools.iter().find(|p| p.name == skipped.node_pool);
                    let problem = source.and_then(|source| nothing_left(source, min_values));
                    tracing::info!(
                        NodePool = %object,
                        minValuesIncompatibleErr = min_values_error(min_values),
                        problem,
                        "skipping, nodepool requirements filtered out all instance types"
                    );
                    if let Some(pool) = pool {
                        let by_min_values = !min_values.is_empty();
                        self.context.recorder.publish(no_compatible_instance_types(pool, by_min_values));
                        if let Some(problem) = problem {
                            self.context.recorder.publish(unusable_requirements(pool, problem));
                        }
                    }
                }
                SkipReason::Static | SkipReason::Deleting => {}
            }
        }
        let told = |rejected: &&RejectedObject| {
            decision.plan.skipped_pools.iter().any(|skipped| {
                matches!(skipped.reason, SkipReason::Invalid(_))
                    && rejected.field == REQUIREMENTS
                    && rejected.object.strip_prefix("NodePool ") == Some(&*skipped.node_pool)
            })
        };
        for rejected in decision.plan.rejected.iter().filter(|rejected| !told(rejected)) {
            tracing::error!(
                object = rejected.object,
                field = rejected.field,
                problem = rejected.problem,
                "left out of scheduling"
            );
        }
    }

    /// Preferences can keep nodes from being consolidated in ways people do not expect.
    fn mention_preferences(&self, decision: &Decision) {
        if self.context.options.preference_policy == PreferencePolicy::Ignore {
            return;
        }
        let mut mentioned = self.mentioned.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first_time = |what: &'static str, has: fn(&Pod) -> bool| -> Vec<String> {
            let waiting = waiting(decision).filter(|pod| has(pod));
            waiting.filter(|pod| mentioned.first_time((pod.uid.clone(), what))).map(|pod| pod.key()).collect()
        };
        let apart = first_time("anti-affinity", |pod| !pod.spec.pod_anti_affinity.preferred.is_empty());
        let spread = first_time("topology-spread", |pod| {
            pod.spec.topology_spread.iter().any(|s| s.when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway)
        });
        if !apart.is_empty() {
            tracing::info!(
                pods = some_of(&apart, 10),
                "pod(s) have a preferred Anti-Affinity which can prevent consolidation"
            );
        }
        if !spread.is_empty() {
            tracing::info!(
                pods = some_of(&spread, 10),
                "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation"
            );
        }
    }

    /// Tells pods what became of them and remembers it.
    pub(super) fn write(&self, decision: &Decision) {
        self.ignored(decision);
        if !has_pools(decision) {
            if batch(decision).next().is_some() {
                tracing::info!("no dynamic nodepools found");
                self.blame_pools(decision);
                self.remember_failures(batch(decision));
            }
            return;
        }
        self.failed(decision);
        let machines: BTreeMap<&Text, &StateNode> =
            decision.snapshot.nodes.iter().map(|machine| (machine.name(), machine)).collect();
        self.remember_places(decision, &machines);
        self.nominations.promise(&decision.plan.existing_nodes);
        let new: usize = decision.plan.new_claims.iter().map(|claim| claim.pods.len()).sum();
        if new == 0 {
            return;
        }
        let claims = decision.plan.new_claims.len();
        tracing::info!(nodeclaims = claims, pods = new, "computed new nodeclaim(s) to fit pod(s)");
        let nodes = decision.plan.existing_nodes.len();
        if nodes > 0 {
            let pods: usize = decision.plan.existing_nodes.iter().map(|node| node.pods.len()).sum();
            tracing::info!(nodes, pods, "computed unready node(s) will fit pod(s)");
        }
    }

    /// Tells pods which NodePools would have to be mended for them. One that was not judged yet is not blamed, nor is one that may
    /// be another Karpenter's.
    fn blame_pools(&self, decision: &Decision) {
        let troubles: Vec<String> = decision
            .plan
            .skipped_pools
            .iter()
            .filter_map(|skipped| {
                let pool = decision.pools.get(&*skipped.node_pool)?;
                let why = match &skipped.reason {
                    SkipReason::NotReady if is_refused(pool) => {
                        format!("is not ready, {}", why_not_ready(pool))
                    }
                    SkipReason::Invalid(error) => format!("makes no sense, {REQUIREMENTS}: {error}"),
                    _ => return None,
                };
                Some(format!("nodepool {} {why}", skipped.node_pool))
            })
            .take(BLAMED)
            .collect();
        if troubles.is_empty() {
            return;
        }
        let error = truncated(format!("no nodepool can be used: {}", troubles.join("; ")));
        for pod in waiting(decision).filter(|pod| pod.buffer.is_none()) {
            // Beside what a NodePool says of the pod once one can be used: that is not to be taken for a repetition.
            let values = [pod.uid.to_string(), "no nodepool".to_owned()];
            self.context.recorder.publish(self.failed_to_schedule(pod, &error).dedupe_by(values));
        }
    }

    fn ignored(&self, decision: &Decision) {
        for ignored in &decision.plan.ignored_pods {
            let reasons: Vec<String> = ignored.reasons.iter().map(ToString::to_string).collect();
            let error = reasons.join("; ");
            tracing::debug!(Pod = %logging::object(&key(&ignored.pod)), error, "ignoring pod");
            // One that refuses our nodes is where it wants to be.
            if !ignored.reasons.contains(&PodRejection::RefusesKarpenter) {
                self.context.recorder.publish(self.failed_to_schedule(&ignored.pod, &error));
            }
        }
        self.remember_failures(decision.plan.ignored_pods.iter().map(|ignored| &ignored.pod));
    }

    fn failed(&self, decision: &Decision) {
        for error in &decision.plan.pod_errors {
            if error.reason.waits_for_reservation() {
                continue;
            }
            let (pod, text) = (&error.pod, error.reason.to_string());
            let object = logging::object(&key(pod));
            if error.reason == Unplaceable::ResourceClaims {
                tracing::info!(Pod = %object, "skipping pod with Dynamic Resource Allocation requirements, not yet supported by Karpenter");
            } else {
                let pools = exhausted_pools(&error.reason);
                let (one, several) = match pools.as_slice() {
                    [] => (None, None),
                    [pool] => (Some(display(logging::object(pool))), None),
                    pools => (None, Some(display(logging::objects(pools)))),
                };
                tracing::error!(
                    Pod = %object,
                    NodePool = one,
                    NodePools = several,
                    error = text,
                    "could not schedule pod"
                );
            }
            self.context.recorder.publish(self.failed_to_schedule(pod, &text));
        }
        self.remember_failures(decision.plan.pod_errors.iter().map(|error| &error.pod));
    }

    fn remember_failures<'a>(&self, pods: impl Iterator<Item = &'a Arc<Pod>>) {
        let now = self.context.now();
        self.context.cluster.update(|cluster| {
            for pod in pods.filter(|pod| pod.buffer.is_none()) {
                if has_gone(cluster, pod) {
                    continue;
                }
                let waited = cluster.timings_mut().failed((pod.namespace.clone(), pod.name.clone()), now);
                self.observe(waited);
            }
        });
    }

    /// Only pods that wait: those of nodes going away have their first place still.
    fn remember_places(&self, decision: &Decision, machines: &BTreeMap<&Text, &StateNode>) {
        let now = self.context.now();
        let healthy = |pool: &str| {
            decision
                .pools
                .get(pool)
                .is_some_and(|pool| pool.condition_status(NODE_REGISTRATION_HEALTHY) == ConditionStatus::True)
        };
        let placed = |pod: &Arc<Pod>| pod.buffer.is_none();
        self.context.cluster.update(|cluster| {
            for claim in &decision.plan.new_claims {
                let healthy = healthy(&claim.node_pool);
                for pod in claim
                    .pods
                    .iter()
                    .map(|placed| &placed.pod)
                    .filter(|pod| placed(pod) && pod.node_name.is_none())
                {
                    if has_gone(cluster, pod) {
                        continue;
                    }
                    let key = (pod.namespace.clone(), pod.name.clone());
                    self.observe(cluster.timings_mut().placed(key, healthy, now));
                }
            }
            for node in &decision.plan.existing_nodes {
                let Some(machine) = machines.get(&node.node) else { continue };
                let healthy = healthy(machine.labels().get_or_empty(NODE_POOL));
                for pod in node.pods.iter().map(|placed| &placed.pod).filter(|pod| placed(pod)) {
                    if has_gone(cluster, pod) {
                        continue;
                    }
                    let key = (pod.namespace.clone(), pod.name.clone());
                    if pod.node_name.is_none() {
                        self.observe(cluster.timings_mut().placed(key.clone(), healthy, now));
                    }
                    if let Some(claim) = &machine.claim {
                        cluster.timings_mut().assign(key, &claim.name);
                    }
                }
            }
        });
    }

    fn observe(&self, waited: Option<f64>) {
        if let Some(seconds) = waited {
            self.metrics.decision.observe(&[], seconds);
        }
    }

    /// A NodeClaim was created for these pods.
    pub(super) fn assigned(&self, planned: &PlannedClaim, created: &NodeClaim) {
        let name: Text = created.metadata.name.as_deref().unwrap_or_default().into();
        let pods: Vec<&Arc<Pod>> =
            planned.pods.iter().map(|placed| &placed.pod).filter(|pod| pod.buffer.is_none()).collect();
        self.context.cluster.update(|cluster| {
            for pod in &pods {
                if has_gone(cluster, pod) {
                    continue;
                }
                cluster.timings_mut().assign((pod.namespace.clone(), pod.name.clone()), &name);
            }
        });
        for pod in pods {
            self.nominations.tell(pod, &format!("nodeclaim/{name}"));
        }
    }

    fn failed_to_schedule(&self, pod: &Pod, error: &str) -> Event {
        let message = format!("Failed to schedule pod, {error}");
        Event::new(about(&self.context, pod), EventType::Warning, "FailedScheduling", message)
            .dedupe_by([pod.uid.to_string()])
            .dedupe_for(Duration::from_secs(5 * 60))
    }
}

/// Whether a NodePool was found wanting, which is more than not judged yet.
fn is_refused(pool: &NodePool) -> bool {
    let is_false = |type_: &&str| pool.condition_status(type_) == ConditionStatus::False;
    [VALIDATION_SUCCEEDED, NODE_CLASS_READY].iter().any(is_false)
}

/// Which of its conditions keep a NodePool from being ready, and which NodeClass it names.
fn why_not_ready(pool: &NodePool) -> String {
    let named = &pool.spec.template.spec.node_class_ref;
    let unmet = [VALIDATION_SUCCEEDED, NODE_CLASS_READY].into_iter().filter_map(|type_| {
        let condition = pool.condition(type_)?;
        (condition.status != ConditionStatus::True)
            .then(|| format!("{type_} is {}: {}; ", condition.status.as_str(), condition.message()))
    });
    format!("{}spec.template.spec.nodeClassRef is {} {:?}", unmet.collect::<String>(), named.kind, named.name)
}

fn no_compatible_instance_types(pool: &NodePool, min_values: bool) -> Event {
    let why = if min_values { " due to minValues incompatibility" } else { "" };
    let message = format!("NodePool requirements filtered out all compatible available instance types{why}");
    Event::new(reference(pool), EventType::Warning, "NoCompatibleInstanceTypes", message)
        .dedupe_by(pool.metadata.uid.clone())
        .dedupe_for(Duration::from_secs(60))
}

/// The NodePools that the reason names in its text, which are fields of the line as well.
fn exhausted_pools(reason: &Unplaceable) -> Vec<ObjectKey> {
    match reason {
        Unplaceable::AllPools(pools) => {
            let named = pools.iter().filter(|pool| pool.reason.is_of_limits());
            named.map(|pool| ObjectKey::cluster(pool.node_pool.clone())).collect()
        }
        Unplaceable::Truncated { node_pool, .. } => vec![ObjectKey::cluster(node_pool.clone())],
        _ => Vec::new(),
    }
}

/// Names what [`no_compatible_instance_types`] does not, and what the CRD lets through although nothing can meet it.
fn unusable_requirements(pool: &NodePool, problem: String) -> Event {
    let uid = pool.metadata.uid.clone().unwrap_or_default();
    let message = truncated(problem);
    Event::new(reference(pool), EventType::Warning, "UnusableRequirements", message.clone())
        .dedupe_by([uid, message])
        .dedupe_for(Duration::from_secs(15 * 60))
}

/// As Go words it.
fn min_values_error(unmet: &[(Text, i64)]) -> Option<String> {
    let labels: Vec<&str> = unmet.iter().map(|(label, _)| &**label).collect();
    let text = || format!("minValues requirement is not met for label(s) (label(s)=[{}])", labels.join(" "));
    (!unmet.is_empty()).then(text)
}

fn key(pod: &Pod) -> ObjectKey {
    ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone())
}

/// Whether any NodePool took part.
fn has_pools(decision: &Decision) -> bool {
    let out: BTreeSet<&Text> = decision
        .plan
        .skipped_pools
        .iter()
        .filter(|skipped| {
            matches!(
                skipped.reason,
                SkipReason::Static | SkipReason::NotReady | SkipReason::Deleting | SkipReason::Invalid(_)
            )
        })
        .map(|skipped| &skipped.node_pool)
        .collect();
    decision.snapshot.node_pools.iter().any(|pool| !out.contains(&pool.name))
}

/// Pods that wait and were tried.
fn waiting(decision: &Decision) -> impl Iterator<Item = &Arc<Pod>> {
    let ignored: BTreeSet<&Text> =
        decision.plan.ignored_pods.iter().map(|ignored| &ignored.pod.uid).collect();
    decision.snapshot.pods.iter().filter(move |pod| is_provisionable(pod) && !ignored.contains(&pod.uid))
}

/// Everything that was given or refused a place, or would have been.
fn batch(decision: &Decision) -> impl Iterator<Item = &Arc<Pod>> {
    let plan = &decision.plan;
    let placed = plan.new_claims.iter().flat_map(|claim| &claim.pods);
    let placed =
        placed.chain(plan.existing_nodes.iter().flat_map(|node| &node.pods)).map(|placed| &placed.pod);
    let tried = placed.chain(plan.pod_errors.iter().map(|error| &error.pod));
    let moving = tried.filter(|pod| !is_provisionable(pod) && pod.buffer.is_none());
    waiting(decision).chain(moving)
}

/// Whether the pod went while it was decided on: it has been forgotten for good.
fn has_gone(cluster: &Cluster, pod: &Pod) -> bool {
    cluster.pod(&pod.namespace, &pod.name).is_none()
}
