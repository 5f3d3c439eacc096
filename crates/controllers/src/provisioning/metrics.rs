//! What is measured of scheduling, whoever schedules.

use karpenter_runtime::metrics::{DURATION_BUCKETS, GaugeVec, HistogramVec, Registry};

/// Measures of scheduling simulations, by the controller that runs them.
#[derive(Clone)]
pub(crate) struct SchedulerMetrics {
    pub(crate) duration: HistogramVec,
    pub(crate) queue_depth: GaugeVec,
    pub(crate) unfinished_work: GaugeVec,
    pub(crate) ignored_pods: GaugeVec,
    pub(crate) unschedulable_pods: GaugeVec,
    pub(crate) pending_pods_by_zone: GaugeVec,
    pub(crate) decision: HistogramVec,
}

impl SchedulerMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            duration: registry.histogram(
                "karpenter_scheduler_scheduling_duration_seconds",
                "Seconds a scheduling simulation for provisioning or disruption takes.",
                &["controller"],
                DURATION_BUCKETS,
            ),
            queue_depth: registry.gauge(
                "karpenter_scheduler_queue_depth",
                "Pods waiting to be scheduled.",
                &["controller", "scheduling_id"],
            ),
            unfinished_work: registry.gauge(
                "karpenter_scheduler_unfinished_work_seconds",
                "Seconds of work in progress that scheduling_duration_seconds has not seen yet.",
                &["controller", "scheduling_id"],
            ),
            ignored_pods: registry.gauge(
                "karpenter_scheduler_ignored_pods_count",
                "Pods that scheduling leaves alone.",
                &[],
            ),
            unschedulable_pods: registry.gauge(
                "karpenter_scheduler_unschedulable_pods_count",
                "Pods without a place.",
                &["controller"],
            ),
            pending_pods_by_zone: registry.gauge(
                "karpenter_scheduler_pending_pods_by_effective_zone_count",
                "Pending pods by the zone their own constraints, volumes and topology leave them: its name, 'flexible' for several, 'none' for no zone at all.",
                &["controller", "zone"],
            ),
            decision: registry.histogram(
                "karpenter_pods_scheduling_decision_duration_seconds",
                "Seconds from when a pod was first seen waiting until it was first tried.",
                &[],
                DURATION_BUCKETS,
            ),
        }
    }
}
