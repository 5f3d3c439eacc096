//! The queue of pods on their way out: each is evicted with patience, and deleted by force only at its node's deadline
//! (rules T3.1–T3.7).
//!
//! A pod is known by its UID: another that took its name is never touched on its behalf.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::NodeClaim;
use karpenter_api::conditions::{ConditionStatus, HasConditions as _};
use karpenter_api::nodeclaim::DISRUPTION_REASON;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::error::{Field, ReconcileError, Structured};
use karpenter_runtime::events::{Event, EventType, reference};
use karpenter_runtime::logging;
use karpenter_runtime::metrics::CounterVec;
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::rate_limit::{bucket, exponential_and_bucket, scale};
use karpenter_runtime::work_queue::WorkQueue;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Status;
use serde_json::{Value, json};

use super::drain::is_force_due;
use crate::context::Context;
use crate::planted::{Bug, is_planted};
use crate::pods;
use crate::seen_pod::SeenPod;
use crate::times::go_default;

const WORKERS: (u32, u32) = (100, 5000);

/// The server's words for a pod with several budgets, which it answers with another code than a budget that is used up.
const SEVERAL_BUDGETS: &str =
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

/// The cause the server names when a budget has nothing left, or has not been looked at yet.
const BUDGET: &str = "DisruptionBudget";

/// Until when a pod is asked to leave, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// Deleted by force in time to be gone then; without a time it is asked for ever.
    ForceAt(Option<Timestamp>),
    /// Left alone from then on.
    Until(Timestamp),
}

impl Deadline {
    /// What two wishes come to: force goes before patience, the earlier time before the later.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::ForceAt(Some(a)), Self::ForceAt(Some(b))) => Self::ForceAt(Some(a.min(b))),
            (Self::ForceAt(a), Self::ForceAt(b)) => Self::ForceAt(a.or(b)),
            (Self::Until(a), Self::Until(b)) => Self::Until(a.min(b)),
            (force @ Self::ForceAt(_), Self::Until(_)) | (Self::Until(_), force @ Self::ForceAt(_)) => force,
        }
    }
}

/// A pod, and which of its name.
type PodId = (ObjectKey, String);
type Items = Arc<Mutex<BTreeMap<PodId, Deadline>>>;

/// Where drains put pods; clones are handles to the same queue.
#[derive(Clone)]
pub(crate) struct EvictionQueue {
    items: Items,
    work: WorkQueue<ObjectKey>,
}

impl EvictionQueue {
    /// Asks these pods to leave. One that is asked already keeps the stricter deadline.
    pub(crate) fn add(&self, deadline: Deadline, pods: &[Arc<SeenPod>]) {
        let mut items = lock(&self.items);
        for pod in pods {
            let id = id_of(pod);
            let key = id.0.clone();
            match items.get_mut(&id) {
                Some(known) => *known = known.and(deadline),
                None => {
                    items.insert(id, deadline);
                    self.work.add(key);
                }
            }
        }
    }
}

fn lock(items: &Items) -> MutexGuard<'_, BTreeMap<PodId, Deadline>> {
    items.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(pod: &SeenPod) -> PodId {
    (pod.key.clone(), pod.uid.to_string())
}

/// The reconciler of `eviction-queue`.
struct Evictor {
    context: Context,
    items: Items,
    requests: CounterVec,
    drained: CounterVec,
}

/// Makes the controller part of the program.
pub(crate) fn register(context: &Context, program: &mut Program) -> EvictionQueue {
    let registry = &context.environment.registry;
    let items = Items::default();
    let evictor = Evictor {
        context: context.clone(),
        items: Arc::clone(&items),
        requests: registry.counter(
            "karpenter_pods_eviction_requests_total",
            "Requests for the eviction of a pod, by the answer's code",
            &["code"],
        ),
        drained: registry.counter(
            "karpenter_pods_drained_total",
            "Pods sent off during the termination of their node, by its reason",
            &["reason"],
        ),
    };
    let workers = scale(context.options.cpu_requests_millicores, WORKERS.0, WORKERS.1);
    let bucket = bucket(100, WORKERS.0, workers);
    let limiter = exponential_and_bucket(Duration::from_millis(100), Duration::from_secs(10), bucket);
    let controller = Controller::for_objects("eviction-queue", "", "Pod", evictor)
        .workers(workers)
        .limiter(limiter)
        .build(&context.environment);
    let queue = EvictionQueue { items, work: controller.queue() };
    context.run(program, controller);
    queue
}

impl Reconciler for Evictor {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        let Some(pod) = self.context.stores.pods.get(&key) else {
            self.forget(&key, None);
            return Ok(Outcome::Done);
        };
        let id = id_of(&pod);
        // Others of this name are gone.
        self.forget(&key, Some(&id.1));
        let deadline = lock(&self.items).get(&id).copied();
        // A leap of the clock ends nobody's time.
        let now = self.context.undoubted_now();
        match deadline {
            None => Ok(Outcome::Done),
            Some(Deadline::Until(until)) if now > until => self.complete(&id),
            Some(Deadline::ForceAt(Some(time))) if is_force_due(&pod, Some(time), now) => {
                self.force_delete(&pod, time, now).await
            }
            Some(_) if !pods::is_active(&pod) => self.complete(&id),
            // It asked not to be disrupted: until it no longer does, or the deadline.
            Some(_) if !pods::is_evictable(&pod, now, &self.context.recorder) => Ok(Outcome::Requeue),
            Some(_) if is_planted(Bug::DeletesPods) => self.force_delete(&pod, now, now).await,
            Some(_) => self.evict(&pod).await,
        }
    }
}

impl Evictor {
    fn complete(&self, id: &PodId) -> ReconcileResult {
        lock(&self.items).remove(id);
        Ok(Outcome::Done)
    }

    /// Forgets the pods of this name but for the one of this UID.
    fn forget(&self, key: &ObjectKey, but: Option<&str>) {
        let mut items = lock(&self.items);
        let from = (key.clone(), String::new());
        let named = items.range(from..).map(|(id, _)| id).take_while(|(name, _)| name == key);
        let gone: Vec<PodId> = named.filter(|(_, uid)| Some(uid.as_str()) != but).cloned().collect();
        for id in gone {
            items.remove(&id);
        }
    }

    fn pods(&self, pod: &SeenPod) -> (Api<Pod>, String) {
        (Api::namespaced(self.context.client.clone(), &pod.key.namespace), pod.key.name.to_string())
    }

    async fn evict(&self, pod: &SeenPod) -> ReconcileResult {
        let (api, name) = self.pods(pod);
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": *pod.key.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        });
        let answer = api.create_subresource("eviction", &name, &PostParams::default(), &eviction).await;
        let refusal = match answer {
            Ok::<Value, _>(_) => {
                self.requests.inc(&["200"]);
                let reason = self.reason(pod);
                let event = Event::new(
                    pod.reference(),
                    EventType::Normal,
                    "Evicted",
                    format!("Evicted pod: {reason}"),
                );
                self.context.recorder.publish(event.dedupe_by([pod.key.name.to_string()]));
                self.drained.inc(&[&reason]);
                return self.complete(&id_of(pod));
            }
            Err(kube::Error::Api(status)) => status,
            Err(error) => return Err(error.into()),
        };
        self.requests.inc(&[&refusal.code.to_string()]);
        let problem = match refusal.code {
            // It is gone, or another by now.
            404 | 409 => return self.complete(&id_of(pod)),
            _ if refusal.message == SEVERAL_BUDGETS => "eviction does not support multiple PDBs",
            429 if names_a_budget(&refusal) => "evicting pod violates a PDB",
            // The server has too much to do, which no budget can help.
            429 => {
                tracing::debug!(Pod = %logging::object(&pod.key), error = refusal.message, "evicting pod");
                return Ok(Outcome::Requeue);
            }
            _ => return Err(kube::Error::Api(refusal).into()),
        };
        let Some(node) = self.node_of(pod) else {
            // There is nothing left to drain it from; whoever still wants it gone asks again.
            return self.complete(&id_of(pod));
        };
        let error = Structured::new(problem).with("Pod", Field::object(&pod.key)).to_string();
        self.context.recorder.publish(failed_draining(&node, &error));
        if let Some(claim) = self.context.stores.claim_of(&node).one() {
            let told = match budget(&refusal) {
                Some(which) => format!("{error}: {which}"),
                None => error,
            };
            let event = failed_draining_of(&claim, &told);
            let values = [claim.metadata.name.clone().unwrap_or_default(), pod.key.to_string()];
            self.context.recorder.publish(event.dedupe_by(values));
        }
        Ok(Outcome::Requeue)
    }

    /// Deletes a pod in what time its node has left. Never at once: the kubelet must have said that it is gone.
    async fn force_delete(&self, pod: &SeenPod, deadline: Timestamp, now: Timestamp) -> ReconcileResult {
        let grace = u32::try_from(deadline.duration_since(now).as_secs()).unwrap_or_default().max(1);
        let own = pod.grace.unwrap_or_default();
        let message = format!(
            "Deleting the pod to accommodate the terminationTime {} of the node. The pod was granted {grace} seconds of \
             grace-period of its {own} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the \
             do-not-disrupt annotation.",
            go_default(deadline)
        );
        let event = Event::new(pod.reference(), EventType::Normal, "Disrupted", message);
        self.context.recorder.publish(event.dedupe_by([pod.key.name.to_string()]));
        let (api, name) = self.pods(pod);
        let params = DeleteParams {
            grace_period_seconds: Some(grace),
            preconditions: Some(Preconditions { uid: Some(pod.uid.to_string()), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return self.complete(&id_of(pod)),
            Err(error) => return Err(ReconcileError::from(error).context("force-deleting pod")),
        }
        tracing::debug!(
            "pod.terminationGracePeriodSeconds" = own,
            "delete.gracePeriodSeconds" = grace,
            "nodeclaim.terminationTime" = %deadline,
            "deleting pod"
        );
        self.drained.inc(&[&self.reason(pod)]);
        self.complete(&id_of(pod))
    }

    fn node_of(&self, pod: &SeenPod) -> Option<Arc<Node>> {
        self.context.stores.nodes.get(&ObjectKey::cluster(pod.node.as_deref()?))
    }

    /// Why the pod's node goes; empty if that cannot be found out.
    fn reason(&self, pod: &SeenPod) -> String {
        let claim = self.node_of(pod).and_then(|node| self.context.stores.claim_of(&node).one());
        let Some(claim) = claim else {
            tracing::debug!(error = "no node with a nodeclaim", "failed looking up pod eviction reason");
            return String::new();
        };
        let disrupted = claim.condition(DISRUPTION_REASON).filter(|c| c.status == ConditionStatus::True);
        disrupted.map_or("Forceful Termination", |condition| condition.reason()).to_owned()
    }
}

/// Whether it is a disruption budget that an eviction was refused for: the server says so with the same code as when it is asked
/// too often.
fn names_a_budget(refusal: &Status) -> bool {
    budget(refusal).is_some()
}

/// What the server says of the budget that it refused an eviction for: its name is in it.
fn budget(refusal: &Status) -> Option<&str> {
    let mut causes = refusal.details.iter().flat_map(|details| &details.causes);
    causes.find(|cause| cause.reason == BUDGET).map(|cause| cause.message.as_str())
}

/// A drain does not get on.
pub(super) fn failed_draining(node: &Node, problem: &str) -> Event {
    let message = format!("Failed to drain node, {problem}");
    Event::new(reference(node), EventType::Warning, "FailedDraining", message)
        .dedupe_by(node.metadata.name.clone())
}

/// The same of the NodeClaim whose node it is: nobody need know its Node to learn what holds it up.
pub(super) fn failed_draining_of(claim: &NodeClaim, problem: &str) -> Event {
    let message = format!("Failed to drain node, {problem}");
    Event::new(reference(claim), EventType::Warning, "FailedDraining", message)
        .dedupe_by(claim.metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_goes_before_patience_and_the_earlier_time_before_the_later() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let (force, until) = (|t| Deadline::ForceAt(Some(at(t))), |t| Deadline::Until(at(t)));
        let never = Deadline::ForceAt(None);
        for (one, other, both) in [
            (force(1), force(2), force(1)),
            (never, force(2), force(2)),
            (never, never, never),
            (until(1), until(2), until(1)),
            (until(1), never, never),
            (until(1), force(9), force(9)),
        ] {
            assert_eq!(one.and(other), both);
            assert_eq!(other.and(one), both);
        }
    }
}
