//! What the provider counts.

use karpenter_runtime::metrics::{CounterVec, GaugeVec, HistogramVec, Registry, exponential_buckets};

/// Every metric of the provider.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Writes to the management cluster, by what was written.
    pub writes: CounterVec,
    /// Claims that another writer got first.
    pub claims_lost: CounterVec,
    /// Launches that failed, by resource and reason.
    pub launch_failures: CounterVec,
    /// Machines of a resource, by what they are to us.
    pub machines: GaugeVec,
    /// Seconds from a NodeClaim's creation to its instance's id.
    pub launch_seconds: HistogramVec,
    /// Seconds that each phase of a launch took.
    pub phase_seconds: HistogramVec,
    /// Seconds since the management cluster last answered.
    pub silence: GaugeVec,
    /// How many NodeClaims a change of replicas was for.
    pub batch_size: HistogramVec,
    /// What a node of a resource costs an hour, and who says so.
    pub price: GaugeVec,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let name = |name: &str| format!("karpenter_cluster_api_{name}");
        Self {
            writes: registry.counter(
                &name("management_writes_total"),
                "Writes to the management cluster, by what was written.",
                &["write"],
            ),
            claims_lost: registry.counter(
                &name("claims_lost_total"),
                "Machines that were changed by someone else while they were being claimed.",
                &["resource"],
            ),
            launch_failures: registry.counter(
                &name("launch_failures_total"),
                "Launches that failed, by resource and reason.",
                &["resource", "reason"],
            ),
            machines: registry.gauge(
                &name("machines"),
                "Machines of a scalable resource: claimed, foreign, free or leaving.",
                &["resource", "state"],
            ),
            launch_seconds: registry.histogram(
                &name("launch_duration_seconds"),
                "Time from a NodeClaim's creation to its instance's id.",
                &["resource"],
                &exponential_buckets(1.0, 2.0, 12),
            ),
            phase_seconds: registry.histogram(
                &name("launch_phase_duration_seconds"),
                "Time that a phase of a launch took: scale, until replicas are asked for; machine, until there is one; bootstrap, until its data is there; infrastructure, until that has an id; node, until that has registered.",
                &["resource", "phase"],
                &exponential_buckets(1.0, 2.0, 12),
            ),
            silence: registry.gauge(
                &name("management_silence_seconds"),
                "Time since the management cluster last answered.",
                &[],
            ),
            batch_size: registry.histogram(
                &name("batch_size"),
                "How many waiting NodeClaims a change of replicas was for.",
                &["resource"],
                &exponential_buckets(1.0, 2.0, 10),
            ),
            price: registry.gauge(
                &name("price_per_hour"),
                "What a node of a scalable resource costs an hour, by where the price comes from.",
                &["node_class", "resource", "zone", "source"],
            ),
        }
    }
}
