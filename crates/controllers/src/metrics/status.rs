//! `operatorpkg.*.status`: conditions of NodeClaims, NodePools, Nodes and CapacityBuffers as metrics, and an event for each
//! that changes. What changes between two looks goes unnoticed, as upstream.
//!
//! How long a condition has stood is worked out when the page is asked for; upstream looks at every object every ten seconds
//! for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use karpenter_api::conditions::{Condition, ConditionSet, ConditionStatus, HasConditions};
use karpenter_api::{CapacityBuffer, NodeClaim, NodePool, labels};
use karpenter_runtime::clock::SharedClock;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::events::{Event, EventType, Recorder, reference};
use karpenter_runtime::informer::{Informer, own_key};
use karpenter_runtime::metrics::{
    CounterVec, DEFAULT_BUCKETS, GaugeVec, HistogramVec, Registry, exponential_buckets,
};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_runtime::store::Store;
use kube::Resource;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::watches::Watches;

const WORKERS: u32 = 10;

/// Puts the controllers into the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let classes: Vec<String> = context.providers.node_classes().map(|kind| kind.label_key()).collect();
    let with = |more: &[&str]| -> Vec<String> {
        classes.iter().cloned().chain(more.iter().map(|label| (*label).to_owned())).collect()
    };
    let claims = Kind { also_general: true, labels: with(&[labels::NODEPOOL]), conditions: complete };
    watch::<NodeClaim>(context, &mut watches.node_claims, claims, program);
    let pools = Kind { also_general: true, labels: Vec::new(), conditions: complete };
    watch::<NodePool>(context, &mut watches.node_pools, pools, program);
    let nodes = Kind {
        also_general: false,
        labels: with(&[labels::NODEPOOL, labels::INITIALIZED]),
        conditions: node_conditions,
    };
    watch::<Node>(context, &mut watches.nodes, nodes, program);
    if let Some(buffers) = &mut watches.buffers {
        let kind = Kind { also_general: true, labels: Vec::new(), conditions: buffer_conditions };
        watch::<CapacityBuffer>(context, &mut buffers.capacity_buffers, kind, program);
    }
}

/// What is told of a kind.
struct Kind<K> {
    /// Whether its conditions are in the families of all kinds too, which upstream keeps for old dashboards.
    also_general: bool,
    /// Labels of the object that become labels of the metrics.
    labels: Vec<String>,
    conditions: fn(&K, Timestamp) -> Vec<Condition>,
}

/// Conditions with what readiness depends on filled in, as whoever reads them would find them.
fn complete<K: HasConditions + Clone>(object: &K, now: Timestamp) -> Vec<Condition> {
    let mut object = object.clone();
    ConditionSet::of(&mut object, now);
    object.conditions().to_vec()
}

fn buffer_conditions(buffer: &CapacityBuffer, _now: Timestamp) -> Vec<Condition> {
    buffer.status.iter().flat_map(|status| status.conditions.iter().flatten()).cloned().collect()
}

fn node_conditions(node: &Node, _now: Timestamp) -> Vec<Condition> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .map(|condition| Condition {
            type_: condition.type_.clone(),
            status: match condition.status.as_str() {
                "True" => ConditionStatus::True,
                "False" => ConditionStatus::False,
                _ => ConditionStatus::Unknown,
            },
            observed_generation: None,
            last_transition_time: condition.last_transition_time.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        })
        .collect()
}

fn watch<K>(context: &Context, informer: &mut Informer<K>, kind: Kind<K>, program: &mut Program)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (group, name) = (K::group(&()).into_owned(), K::kind(&()).into_owned());
    let registry = &context.environment.registry;
    let seconds = exponential_buckets(0.5, 2.0, 15);
    let extra: Vec<String> = kind.labels.iter().map(|key| key.replace(['/', '.', '-'], "_")).collect();
    let prefix = format!("operator_{}_", name.to_lowercase());
    let own = Families::new(registry, &prefix, &extra, &seconds);
    let general = kind.also_general.then(|| {
        let extra = ["group".to_owned(), "kind".to_owned()];
        Families::new(registry, "operator_", &extra, DEFAULT_BUCKETS)
    });
    let observed = Observed { objects: Mutex::default(), clock: Arc::clone(&context.environment.clock) };
    let status = Arc::new(StatusMetrics {
        store: informer.store(),
        recorder: context.recorder.clone(),
        own,
        general: general.map(|families| (families, vec![group.clone(), name.clone()])),
        kind,
        observed,
    });
    // The registry outlives the program; it must not keep it.
    let weak = Arc::downgrade(&status);
    registry.before_encode(move || {
        if let Some(status) = weak.upgrade() {
            status.tell_ages();
        }
    });
    let controller_name = format!("operatorpkg.{}.status", name.to_lowercase());
    let controller = Controller::for_objects(&controller_name, &group, &name, Shared(status))
        .workers(WORKERS)
        .build(&context.environment);
    informer.feed(&controller.queue(), own_key);
    context.run(program, controller);
}

/// The six families of a kind, or of all kinds together.
struct Families {
    transition_seconds: HistogramVec,
    count: GaugeVec,
    current_status_seconds: GaugeVec,
    transitions: CounterVec,
    termination_current_seconds: GaugeVec,
    termination_seconds: HistogramVec,
}

impl Families {
    fn new(registry: &Registry, prefix: &str, extra: &[String], buckets: &[f64]) -> Self {
        let labels = |own: &[&'static str]| -> Vec<String> {
            own.iter().map(|label| (*label).to_owned()).chain(extra.iter().cloned()).collect()
        };
        let condition = labels(&["namespace", "name", "type", "status", "reason"]);
        let gauge = |name: &str, help: &str, labels: &[String]| {
            registry.gauge(&format!("{prefix}{name}"), help, &borrowed(labels))
        };
        let histogram = |name: &str, help: &str, labels: &[String]| {
            registry.histogram(&format!("{prefix}{name}"), help, &borrowed(labels), buckets)
        };
        Self {
            transition_seconds: histogram(
                "status_condition_transition_seconds",
                "How long a condition had a status before it changed to another.",
                &labels(&["type", "status", "to_status"]),
            ),
            count: gauge("status_condition_count", "The conditions of each object.", &condition),
            current_status_seconds: gauge(
                "status_condition_current_status_seconds",
                "How long a condition has had its status.",
                &condition,
            ),
            transitions: registry.counter(
                &format!("{prefix}status_condition_transitions_total"),
                "Changes of conditions.",
                &borrowed(&labels(&["type", "status", "reason"])),
            ),
            termination_current_seconds: gauge(
                "termination_current_time_seconds",
                "How long an object has been terminating.",
                &labels(&["namespace", "name"]),
            ),
            termination_seconds: histogram(
                "termination_duration_seconds",
                "How long objects took to terminate.",
                &labels(&[]),
            ),
        }
    }
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// An object as it was last looked at.
#[derive(Clone)]
struct Seen {
    reference: ObjectReference,
    conditions: Vec<Condition>,
    labels: Vec<String>,
    finalizers: Vec<String>,
    deleted_at: Option<Timestamp>,
}

struct Observed {
    objects: Mutex<BTreeMap<ObjectKey, Seen>>,
    clock: SharedClock,
}

impl Observed {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Seen>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StatusMetrics<K> {
    store: Store<K>,
    recorder: Recorder,
    kind: Kind<K>,
    own: Families,
    /// The families of all kinds, and what this kind is called there.
    general: Option<(Families, Vec<String>)>,
    observed: Observed,
}

struct Shared<K>(Arc<StatusMetrics<K>>);

impl<K> Reconciler for Shared<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        match self.0.store.get(&key) {
            Some(object) => self.0.look(&key, &object),
            None => self.0.forget(&key),
        }
        Ok(Outcome::Done)
    }
}

impl<K> StatusMetrics<K> {
    /// Own families and those of all kinds, each with the labels it adds for this object.
    fn families<'a>(&'a self, labels: &'a [String]) -> impl Iterator<Item = (&'a Families, &'a [String])> {
        let general = self.general.iter().map(|(families, names)| (families, names.as_slice()));
        std::iter::once((&self.own, labels)).chain(general)
    }

    fn tell_ages(&self) {
        let now = self.observed.clock.now();
        let age = |since: Timestamp| now.duration_since(since).as_secs_f64();
        for (key, seen) in self.observed.lock().iter() {
            for (families, extra) in self.families(&seen.labels) {
                for condition in &seen.conditions {
                    let labels = condition_labels(key, condition, extra);
                    families.current_status_seconds.set(&borrowed(&labels), age(condition.since()));
                }
                if let Some(deleted_at) = seen.deleted_at {
                    let labels = object_labels(key, extra);
                    families.termination_current_seconds.set(&borrowed(&labels), age(deleted_at));
                }
            }
        }
    }

    fn forget(&self, key: &ObjectKey) {
        let Some(seen) = self.observed.lock().remove(key) else { return };
        let now = self.observed.clock.now();
        for (families, extra) in self.families(&seen.labels) {
            for condition in &seen.conditions {
                drop_series(families, &condition_labels(key, condition, extra));
            }
            if let Some(deleted_at) = seen.deleted_at {
                families.termination_current_seconds.delete(&borrowed(&object_labels(key, extra)));
                let took = now.duration_since(deleted_at).as_secs_f64();
                families.termination_seconds.observe(&borrowed(extra), took);
            }
        }
        for finalizer in &seen.finalizers {
            self.tell_finalized(&seen.reference, finalizer);
        }
    }

    fn tell_finalized(&self, object: &ObjectReference, finalizer: &str) {
        let message = format!("Finalized {finalizer}");
        self.recorder.publish(Event::new(object.clone(), EventType::Normal, "Finalized", message));
    }

    fn tell_transition(&self, object: &ObjectReference, old: &Condition, new: &Condition) {
        let mut message = format!(
            "Status condition transitioned, Type: {}, Status: {} -> {}, Reason: {}",
            new.type_,
            old.status.as_str(),
            new.status.as_str(),
            new.reason()
        );
        if !new.message().is_empty() {
            message.push_str(", Message: ");
            message.push_str(new.message());
        }
        self.recorder.publish(Event::new(object.clone(), EventType::Normal, new.type_.clone(), message));
    }
}

impl<K: Resource<DynamicType = ()>> StatusMetrics<K> {
    fn look(&self, key: &ObjectKey, object: &K) {
        let meta = object.meta();
        let label = |key: &String| meta.labels.as_ref().and_then(|labels| labels.get(key).cloned());
        let seen = Seen {
            reference: reference(object),
            conditions: (self.kind.conditions)(object, self.observed.clock.now()),
            labels: self.kind.labels.iter().map(|key| label(key).unwrap_or_default()).collect(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            deleted_at: meta.deletion_timestamp.as_ref().map(|time| time.0),
        };
        let before = self.observed.lock().insert(key.clone(), seen.clone());
        if let Some(before) = &before {
            for finalizer in before.finalizers.iter().filter(|name| !seen.finalizers.contains(name)) {
                self.tell_finalized(&seen.reference, finalizer);
            }
            self.drop_outdated(key, before, &seen);
        }
        for (families, extra) in self.families(&seen.labels) {
            for condition in &seen.conditions {
                families.count.set(&borrowed(&condition_labels(key, condition, extra)), 1.0);
            }
        }
        for condition in &seen.conditions {
            let known = before.iter().flat_map(|before| &before.conditions);
            let known = known.into_iter().find(|known| known.type_ == condition.type_);
            // One that was never seen was not known.
            if known.map_or(ConditionStatus::Unknown, |known| known.status) == condition.status {
                continue;
            }
            self.count_transition(known, condition, &seen);
            if let Some(known) = known {
                self.tell_transition(&seen.reference, known, condition);
            }
        }
    }

    fn count_transition(&self, known: Option<&Condition>, condition: &Condition, seen: &Seen) {
        for (families, extra) in self.families(&seen.labels) {
            let mut labels = vec![condition.type_.as_str(), condition.status.as_str(), condition.reason()];
            labels.extend(borrowed(extra));
            families.transitions.inc(&labels);
            if let Some(known) = known {
                let mut labels = vec![known.type_.as_str(), known.status.as_str(), condition.status.as_str()];
                labels.extend(borrowed(extra));
                let stood = condition.since().duration_since(known.since()).as_secs_f64();
                families.transition_seconds.observe(&labels, stood);
            }
        }
    }

    /// Series of conditions that are gone, have changed, or whose object's labels have.
    fn drop_outdated(&self, key: &ObjectKey, before: &Seen, after: &Seen) {
        for ((families, old), (_, new)) in self.families(&before.labels).zip(self.families(&after.labels)) {
            let current: BTreeSet<Vec<String>> =
                after.conditions.iter().map(|condition| condition_labels(key, condition, new)).collect();
            for condition in &before.conditions {
                let labels = condition_labels(key, condition, old);
                if !current.contains(&labels) {
                    drop_series(families, &labels);
                }
            }
            if before.deleted_at.is_some() && old != new {
                families.termination_current_seconds.delete(&borrowed(&object_labels(key, old)));
            }
        }
    }
}

fn drop_series(families: &Families, labels: &[String]) {
    families.count.delete(&borrowed(labels));
    families.current_status_seconds.delete(&borrowed(labels));
}

fn condition_labels(key: &ObjectKey, condition: &Condition, extra: &[String]) -> Vec<String> {
    let own = [&*key.namespace, &*key.name, &condition.type_, condition.status.as_str(), condition.reason()];
    own.into_iter().map(str::to_owned).chain(extra.iter().cloned()).collect()
}

fn object_labels(key: &ObjectKey, extra: &[String]) -> Vec<String> {
    [key.namespace.to_string(), key.name.to_string()].into_iter().chain(extra.iter().cloned()).collect()
}
