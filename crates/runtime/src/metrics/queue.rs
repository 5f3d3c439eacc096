//! The metrics of work queues and reconciles, under the names and labels of controller-runtime.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Counter, Gauge, GaugeVec, Histogram, Registry, exponential_buckets};
use crate::work_queue::Priority;

/// Different priorities shown before the label gives up telling them apart.
const MAX_PRIORITIES: usize = 25;

/// What happens in one queue. Nothing is measured without a registry.
pub struct QueueMetrics<K>(Option<Measured<K>>);

struct Measured<K> {
    name: String,
    depth: GaugeVec,
    priorities: BTreeMap<Priority, Gauge>,
    adds: Counter,
    latency: Histogram,
    work_duration: Histogram,
    unfinished: Gauge,
    longest_running: Gauge,
    retries: Counter,
    added_at: BTreeMap<K, Instant>,
    started_at: BTreeMap<K, Instant>,
}

impl<K: Ord + Clone> QueueMetrics<K> {
    /// Measures nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// Measures the queue of a controller.
    pub fn new(registry: &Registry, name: &str) -> Self {
        let both = ["name", "controller"];
        let at = [name, name];
        let buckets = exponential_buckets(1e-8, 10.0, 12);
        Self(Some(Measured {
            name: name.to_owned(),
            depth: registry.gauge(
                "workqueue_depth",
                "Items ready in the work queue, by queue and priority",
                &["name", "controller", "priority"],
            ),
            priorities: BTreeMap::new(),
            adds: registry.counter("workqueue_adds_total", "Items that became ready in the work queue", &both).with(&at),
            latency: registry
                .histogram(
                    "workqueue_queue_duration_seconds",
                    "Seconds from an item becoming ready to it being taken",
                    &both,
                    &buckets,
                )
                .with(&at),
            work_duration: registry
                .histogram("workqueue_work_duration_seconds", "Seconds of work on an item", &both, &buckets)
                .with(&at),
            unfinished: registry
                .gauge(
                    "workqueue_unfinished_work_seconds",
                    "Seconds of work in progress that work_duration has not seen yet; steady growth means stuck workers",
                    &both,
                )
                .with(&at),
            longest_running: registry
                .gauge(
                    "workqueue_longest_running_processor_seconds",
                    "Seconds the oldest work in progress has taken so far",
                    &both,
                )
                .with(&at),
            retries: registry
                .counter("workqueue_retries_total", "Items added to the work queue with a delay", &both)
                .with(&at),
            added_at: BTreeMap::new(),
            started_at: BTreeMap::new(),
        }))
    }

    pub(crate) fn added(&mut self, key: &K, priority: Priority, now: Instant) {
        let Some(m) = &mut self.0 else { return };
        m.adds.inc();
        m.depth_of(priority).add(1.0);
        m.added_at.entry(key.clone()).or_insert(now);
    }

    pub(crate) fn moved(&mut self, from: Priority, to: Priority) {
        let Some(m) = &mut self.0 else { return };
        m.depth_of(from).add(-1.0);
        m.depth_of(to).add(1.0);
    }

    pub(crate) fn taken(&mut self, key: &K, priority: Priority, now: Instant) {
        let Some(m) = &mut self.0 else { return };
        m.depth_of(priority).add(-1.0);
        if let Some(added) = m.added_at.remove(key) {
            m.latency.observe_duration(now.saturating_duration_since(added));
        }
        m.started_at.insert(key.clone(), now);
    }

    pub(crate) fn done(&mut self, key: &K, now: Instant) {
        let Some(m) = &mut self.0 else { return };
        if let Some(started) = m.started_at.remove(key) {
            m.work_duration.observe_duration(now.saturating_duration_since(started));
        }
    }

    pub(crate) fn retried(&mut self) {
        if let Some(m) = &self.0 {
            m.retries.inc();
        }
    }

    pub(crate) fn observe_unfinished(&mut self, now: Instant) {
        let Some(m) = &self.0 else { return };
        let ages = m.started_at.values().map(|started| now.saturating_duration_since(*started).as_secs_f64());
        let (total, oldest) =
            ages.fold((0.0, 0.0_f64), |(total, oldest), age| (total + age, oldest.max(age)));
        m.unfinished.set(total);
        m.longest_running.set(oldest);
    }
}

impl<K> Measured<K> {
    fn depth_of(&mut self, priority: Priority) -> &Gauge {
        let (name, depth) = (&self.name, &self.depth);
        let full = self.priorities.len() >= MAX_PRIORITIES;
        self.priorities.entry(priority).or_insert_with(|| {
            let label = if full { "exceeded_cardinality_limit".to_owned() } else { priority.to_string() };
            depth.with(&[name, name, &label])
        })
    }
}

/// How reconciles of one controller go.
#[derive(Clone)]
pub(crate) struct ReconcileMetrics {
    pub(crate) success: Counter,
    pub(crate) error: Counter,
    /// A bare requeue. A loop has none: there it is a `requeue_after`.
    pub(crate) requeue: Counter,
    pub(crate) requeue_after: Counter,
    pub(crate) errors: Counter,
    pub(crate) terminal_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) time: Histogram,
    pub(crate) active_workers: Gauge,
}

/// Upper bounds of the buckets reconciles are measured with, in seconds.
const RECONCILE_BUCKETS: usize = 40;

impl ReconcileMetrics {
    /// All series of a controller exist from its start, at zero.
    pub(crate) fn new(registry: &Registry, controller: &str, workers: usize) -> Self {
        let total = registry.counter(
            "controller_runtime_reconcile_total",
            "Reconciles per controller and result",
            &["controller", "result"],
        );
        let counter = |name, help| registry.counter(name, help, &["controller"]).with(&[controller]);
        let gauge = |name, help| registry.gauge(name, help, &["controller"]).with(&[controller]);
        counter(
            "controller_runtime_reconcile_timeouts_total",
            "Reconciles stopped by a time limit, per controller",
        );
        gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciles a controller may run at the same time",
        )
        .set(workers as f64);
        Self {
            success: total.with(&[controller, "success"]),
            error: total.with(&[controller, "error"]),
            requeue: total.with(&[controller, "requeue"]),
            requeue_after: total.with(&[controller, "requeue_after"]),
            errors: counter("controller_runtime_reconcile_errors_total", "Reconcile errors per controller"),
            terminal_errors: counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Reconcile errors that are not retried, per controller",
            ),
            panics: counter(
                "controller_runtime_reconcile_panics_total",
                "Reconciles that panicked, per controller",
            ),
            time: registry
                .histogram(
                    "controller_runtime_reconcile_time_seconds",
                    "Seconds a reconcile takes, per controller",
                    &["controller"],
                    &super::DURATION_BUCKETS[..RECONCILE_BUCKETS],
                )
                .with(&[controller]),
            active_workers: gauge(
                "controller_runtime_active_workers",
                "Reconciles running now, per controller",
            ),
        }
    }
}
