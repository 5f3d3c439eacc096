//! `metrics.pod`: what state pods are in, and how long they wait for a place and for their start.
//!
//! How long something took is noted when it is over; what is still going on is worked out when someone asks for the page.
//! Pods that were running when they were first seen are only counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Reconciler};
use karpenter_runtime::informer::own_key;
use karpenter_runtime::metrics::{
    DURATION_BUCKETS, GaugeStore, GaugeVec, HistogramVec, Registry, SUMMARY_QUANTILES, StoredGauge,
    SummaryVec,
};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;
use karpenter_state::PodTiming;

use crate::context::Context;
use crate::pods;
use crate::seen_pod::{Phase, SeenPod, Since};
use crate::watches::Watches;

const NAME: &str = "metrics.pod";

/// Puts the controller into the program.
pub(crate) fn register(context: &Context, watches: &mut Watches, program: &mut Program) {
    let metrics = Arc::new(PodMetrics {
        families: Families::new(&context.environment.registry),
        context: context.clone(),
        waiting: Mutex::default(),
        series: GaugeStore::new(),
    });
    // The registry outlives the program; it must not keep it.
    let weak: Weak<PodMetrics> = Arc::downgrade(&metrics);
    context.environment.registry.before_encode(move || {
        if let Some(metrics) = weak.upgrade() {
            metrics.refresh();
        }
    });
    let controller =
        Controller::for_objects(NAME, "", "Pod", Observer(Arc::clone(&metrics))).build(&context.environment);
    watches.pods.feed(&controller.queue(), move |delta| {
        if is_pending(delta.object()) || metrics.is_waiting(&delta.object().key) {
            own_key(delta)
        } else {
            Vec::new()
        }
    });
    context.run(program, controller);
}

struct Families {
    state: GaugeVec,
    startup: SummaryVec,
    unstarted: GaugeVec,
    bound: HistogramVec,
    unbound: GaugeVec,
    provisioning_bound: HistogramVec,
    provisioning_unbound: GaugeVec,
    provisioning_startup: HistogramVec,
    provisioning_unstarted: GaugeVec,
    undecided: GaugeVec,
}

impl Families {
    fn new(registry: &Registry) -> Self {
        let pod = &["name", "namespace"];
        let pod_and_claims = &["name", "namespace", "dynamic_resources"];
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            registry.gauge(&format!("karpenter_pods_{name}"), help, labels)
        };
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            registry.histogram(&format!("karpenter_pods_{name}"), help, labels, DURATION_BUCKETS)
        };
        Self {
            state: gauge(
                "state",
                "1 for every pod, with its owner, its node and how far it is as labels.",
                &[
                    "name",
                    "namespace",
                    "owner",
                    "node",
                    "scheduled",
                    "nodepool",
                    "zone",
                    "arch",
                    "capacity_type",
                    "instance_type",
                    "phase",
                    "ready",
                    "managed",
                ],
            ),
            startup: registry.summary(
                "karpenter_pods_startup_duration_seconds",
                "Seconds from a pod's creation until it runs.",
                &[],
                SUMMARY_QUANTILES,
            ),
            unstarted: gauge(
                "unstarted_time_seconds",
                "Seconds since the creation of a pod that does not run yet.",
                pod,
            ),
            bound: histogram(
                "bound_duration_seconds",
                "Seconds from a pod's creation until it is bound to a node.",
                &["dynamic_resources"],
            ),
            unbound: gauge(
                "unbound_time_seconds",
                "Seconds since the creation of a pod that is not bound to a node yet.",
                pod_and_claims,
            ),
            provisioning_bound: histogram(
                "provisioning_bound_duration_seconds",
                "Seconds from when Karpenter first found a pod a place until it is bound, as this process remembers it.",
                &["dynamic_resources"],
            ),
            provisioning_unbound: gauge(
                "provisioning_unbound_time_seconds",
                "Seconds since Karpenter first found a place for a pod that is not bound yet, as this process remembers it.",
                pod_and_claims,
            ),
            provisioning_startup: histogram(
                "provisioning_startup_duration_seconds",
                "Seconds from when Karpenter first found a pod a place until it runs, as this process remembers it.",
                &[],
            ),
            provisioning_unstarted: gauge(
                "provisioning_unstarted_time_seconds",
                "Seconds since Karpenter first found a place for a pod that does not run yet, as this process remembers it.",
                pod,
            ),
            undecided: gauge(
                "provisioning_scheduling_undecided_time_seconds",
                "Seconds since Karpenter saw a waiting pod it has not tried to place yet, as this process remembers it.",
                pod,
            ),
        }
    }
}

struct PodMetrics {
    context: Context,
    families: Families,
    /// Pods that were seen before they ran.
    waiting: Mutex<BTreeMap<ObjectKey, Waiting>>,
    series: GaugeStore,
}

/// What a pod still waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    start: bool,
    place: bool,
}

struct Observer(Arc<PodMetrics>);

impl Reconciler for Observer {
    type Key = ObjectKey;

    async fn reconcile(&self, key: ObjectKey) -> ReconcileResult {
        match self.0.context.stores.pods.get(&key) {
            Some(pod) => self.0.observe(&key, &pod),
            None => drop(self.0.waiting().remove(&key)),
        }
        Ok(Outcome::Done)
    }
}

impl PodMetrics {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_waiting(&self, key: &ObjectKey) -> bool {
        self.waiting().contains_key(key)
    }

    /// Notes what has come to its end.
    fn observe(&self, key: &ObjectKey, pod: &SeenPod) {
        let mut all = self.waiting();
        if is_pending(pod) {
            all.insert(key.clone(), Waiting { start: true, place: true });
            return;
        }
        let Some(waiting) = all.get_mut(key) else { return };
        let timing = self.timing(key);
        if waiting.start {
            if let Some(Since(Some(since))) = pod.ready {
                self.families.startup.observe(&[], seconds(created(pod), since));
                if let Some(schedulable) = timing.schedulable {
                    self.families.provisioning_startup.observe(&[], seconds(schedulable, since));
                }
            }
            // One that is over never was ready, or is no more: how long it took to start cannot be told.
            waiting.start = pod.ready.is_none() && !pods::is_terminal(pod);
        }
        if waiting.place
            && let Some(Since(Some(since))) = pod.scheduled
        {
            let claims = yes_or_no(pod.has_resource_claims);
            self.families.bound.observe(&[claims], seconds(created(pod), since));
            if let Some(schedulable) = timing.schedulable {
                self.families.provisioning_bound.observe(&[claims], seconds(schedulable, since));
            }
            waiting.place = false;
        }
        if !waiting.start {
            all.remove(key);
            let (namespace, name) = (&*key.namespace, &*key.name);
            self.context.cluster.update(|cluster| cluster.timings_mut().forget(namespace, name));
        }
    }

    fn timing(&self, key: &ObjectKey) -> PodTiming {
        self.context.cluster.read(|cluster| cluster.timings().of(&key.namespace, &key.name))
    }

    fn refresh(&self) {
        let waiting = self.waiting().clone();
        let now = self.context.now();
        let series = self.context.stores.pods.list().into_iter().map(|pod| {
            let key = pod.key.clone();
            let mut gauges = vec![self.state_of(&pod)];
            self.add_waits(&mut gauges, &key, &pod, waiting.get(&key).copied().unwrap_or_default(), now);
            (key.to_string(), gauges)
        });
        self.series.replace_all(series.collect());
    }

    fn add_waits(
        &self,
        gauges: &mut Vec<StoredGauge>,
        key: &ObjectKey,
        pod: &SeenPod,
        waiting: Waiting,
        now: Timestamp,
    ) {
        let scheduled = pod.scheduled.is_some();
        let unbound = waiting.place && is_pending(pod) && !scheduled;
        let placed = scheduled || pod.node.is_some() || pods::is_terminal(pod);
        if !waiting.start && !unbound && placed {
            return;
        }
        let timing = self.timing(key);
        let names = || vec![key.name.to_string(), key.namespace.to_string()];
        let mut add = |family: &GaugeVec, labels: Vec<String>, since: Timestamp| {
            gauges.push(StoredGauge { family: family.clone(), labels, value: seconds(since, now) });
        };
        let families = &self.families;
        if waiting.start {
            add(&families.unstarted, names(), created(pod));
            if let Some(since) = timing.schedulable {
                add(&families.provisioning_unstarted, names(), since);
            }
        }
        if unbound {
            let labels = || [names(), vec![yes_or_no(pod.has_resource_claims).to_owned()]].concat();
            add(&families.unbound, labels(), created(pod));
            if let Some(since) = timing.schedulable {
                add(&families.provisioning_unbound, labels(), since);
            }
        }
        if let Some(since) = timing.acknowledged.filter(|_| timing.decided.is_none() && !placed) {
            add(&families.undecided, names(), since);
        }
    }

    fn state_of(&self, pod: &SeenPod) -> StoredGauge {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let bound_to = pod.node.as_deref();
        let node = bound_to.and_then(|name| self.context.stores.nodes.get(&ObjectKey::cluster(name)));
        let label = |key: &str| text(node.as_ref().and_then(|node| node_label(node, key)));
        let pool = label(labels::NODEPOOL);
        let values = vec![
            pod.key.name.to_string(),
            pod.key.namespace.to_string(),
            pod.owner.to_string(),
            text(bound_to),
            yes_or_no(bound_to.is_some()).to_owned(),
            pool.clone(),
            label(labels::TOPOLOGY_ZONE),
            label(labels::ARCH),
            label(labels::CAPACITY_TYPE),
            label(labels::INSTANCE_TYPE),
            pod.phase.as_str().to_owned(),
            yes_or_no(pod.ready.is_some()).to_owned(),
            yes_or_no(!pool.is_empty()).to_owned(),
        ];
        StoredGauge { family: self.families.state.clone(), labels: values, value: 1.0 }
    }
}

fn node_label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn is_pending(pod: &SeenPod) -> bool {
    pod.phase == Phase::Pending
}

fn created(pod: &SeenPod) -> Timestamp {
    pod.created.unwrap_or(Timestamp::UNIX_EPOCH)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "true" } else { "false" }
}
