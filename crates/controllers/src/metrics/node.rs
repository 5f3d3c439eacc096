//! `metrics.node`: what nodes have, what pods on them ask for, how old they are.
//!
//! Upstream recomputes all series every five seconds. Here that is done when someone asks for the page, at most every five
//! seconds: on a large cluster most of the cost of idling would go into figures nobody reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_engine::labels::{Text, WELL_KNOWN};
use karpenter_engine::resources::{Amount, CPU, Resources};
use karpenter_runtime::controller::{Controller, Outcome, ReconcileResult, Singleton};
use karpenter_runtime::metrics::{GaugeStore, GaugeVec, Registry, StoredGauge};
use karpenter_runtime::object_key::ObjectKey;
use karpenter_runtime::program::Program;

use super::resource_type;
use crate::context::Context;
use crate::pods;
use crate::seen_pod::{Amounts, Needs, SeenPod, add_one, amounts};

const NAME: &str = "metrics.node";
const PERIOD: Duration = Duration::from_secs(5);

/// Puts the controller into the program.
pub(crate) fn register(context: &Context, program: &mut Program) {
    let rules = context.providers.scheduling_rules();
    let labels = label_names(WELL_KNOWN.into_iter().chain(rules.well_known_labels.iter().map(|key| &**key)));
    let metrics = Arc::new(NodeMetrics {
        families: Families::new(&context.environment.registry, &labels),
        labels,
        context: context.clone(),
        series: GaugeStore::new(),
        due: AtomicBool::new(true),
    });
    // The registry outlives the program; it must not keep it.
    let weak: Weak<NodeMetrics> = Arc::downgrade(&metrics);
    context.environment.registry.before_encode(move || {
        if let Some(metrics) = weak.upgrade() {
            metrics.refresh_if_due();
        }
    });
    let controller = Controller::singleton(NAME, Tick(metrics), &context.environment);
    context.run(program, controller);
}

/// Labels that every node has, besides those that are well known.
const NODE_LABELS: [&str; 3] = ["node_name", "phase", "managed"];
const RESOURCE_LABEL: &str = "resource_type";

/// Well-known labels as labels of metrics: what stands behind the slash, in snake case. Of equal names the first counts. Keys may
/// come from a file: one that makes no label is left out, since a page with it would be refused as a whole.
fn label_names<'a>(keys: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let mut names: Vec<(String, String)> = Vec::new();
    for key in keys {
        // What has several is no key of a label, and none in Go either.
        let Some((_, suffix)) = key.split_once('/').filter(|(_, suffix)| !suffix.contains('/')) else {
            continue;
        };
        let name = label_name(suffix);
        let taken = NODE_LABELS.contains(&name.as_str()) || name == RESOURCE_LABEL;
        if taken || name.is_empty() || name.starts_with("__") {
            tracing::warn!(
                key,
                label = name.as_str(),
                "node metrics do not have this label: its name is taken or reserved; use another key to see it there"
            );
        } else if !names.iter().any(|(_, known)| *known == name) {
            names.push((key.to_owned(), name));
        }
    }
    names
}

/// Only letters, digits and underscores, and no digit in front: what Go's client library shows to whoever takes no other names.
fn label_name(suffix: &str) -> String {
    let fits = |at: usize, c: char| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
    let lower = suffix.to_lowercase();
    lower.chars().enumerate().map(|(at, c)| if fits(at, c) { c } else { '_' }).collect()
}

struct Tick(Arc<NodeMetrics>);

impl Singleton for Tick {
    async fn reconcile(&self) -> ReconcileResult {
        self.0.due.store(true, Ordering::Relaxed);
        Ok(Outcome::After(PERIOD))
    }
}

struct Families {
    allocatable: GaugeVec,
    pod_requests: GaugeVec,
    pod_limits: GaugeVec,
    daemon_requests: GaugeVec,
    daemon_limits: GaugeVec,
    overhead: GaugeVec,
    lifetime: GaugeVec,
    utilization: GaugeVec,
}

impl Families {
    fn new(registry: &Registry, labels: &[(String, String)]) -> Self {
        let mut node: Vec<&str> = labels.iter().map(|(_, name)| name.as_str()).collect();
        node.extend(NODE_LABELS);
        let mut resource = node.clone();
        resource.push(RESOURCE_LABEL);
        let gauge =
            |name: &str, help: &str| registry.gauge(&format!("karpenter_nodes_{name}"), help, &resource);
        Self {
            allocatable: gauge("allocatable", "What pods may use of a node."),
            pod_requests: gauge("total_pod_requests", "What pods bound to a node ask for, daemons included."),
            pod_limits: gauge(
                "total_pod_limits",
                "What pods bound to a node may use at most, daemons included.",
            ),
            daemon_requests: gauge("total_daemon_requests", "What daemons bound to a node ask for."),
            daemon_limits: gauge("total_daemon_limits", "What daemons bound to a node may use at most."),
            overhead: gauge("system_overhead", "What of a node is not for pods: capacity less allocatable."),
            lifetime: registry.gauge("karpenter_nodes_current_lifetime_seconds", "How old a node is.", &node),
            utilization: registry.gauge(
                "karpenter_cluster_utilization_percent",
                "How much of what pods may use they ask for, in the whole cluster.",
                &["resource_type"],
            ),
        }
    }
}

struct NodeMetrics {
    context: Context,
    /// Keys of node labels and the names they have here.
    labels: Vec<(String, String)>,
    families: Families,
    series: GaugeStore,
    due: AtomicBool,
}

impl NodeMetrics {
    fn refresh_if_due(&self) {
        if !self.due.swap(false, Ordering::Relaxed) {
            return;
        }
        // Machines with a Node, and whether a NodeClaim stands behind them. Until a Node is initialized its NodeClaim says what
        // it will have.
        let (nodes, allocatable) = self.context.cluster.read(|cluster| {
            let mut allocatable = Resources::new();
            let mut nodes: Vec<(String, bool)> = Vec::new();
            for machine in cluster.machines() {
                let Some(node) = &machine.node else { continue };
                allocatable.add(&machine.allocatable());
                nodes.push((node.name.to_string(), machine.managed()));
            }
            (nodes, allocatable)
        });
        let mut series = BTreeMap::new();
        let mut requested = Amounts::new();
        for (name, managed) in nodes {
            let Some(node) = self.context.stores.nodes.get(&ObjectKey::cluster(name.as_str())) else {
                continue;
            };
            let usage = Usage::of(&self.context.stores.pods_on(&name));
            for (name, amount) in &usage.requests {
                add_one(&mut requested, name, *amount);
            }
            series.insert(name, self.series_of(&node, managed, &usage));
        }
        series.insert(String::new(), self.utilization(&allocatable, &requested));
        self.series.replace_all(series);
    }

    fn series_of(&self, node: &Node, managed: bool, usage: &Usage) -> Vec<StoredGauge> {
        let status = node.status.as_ref();
        let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key).cloned());
        let mut labels: Vec<String> =
            self.labels.iter().map(|(key, _)| label(key).unwrap_or_default()).collect();
        labels.push(node.metadata.name.clone().unwrap_or_default());
        labels.push(status.and_then(|status| status.phase.clone()).unwrap_or_default());
        labels.push(managed.to_string());
        let capacity = amounts(status.and_then(|status| status.capacity.as_ref()));
        let allocatable = amounts(status.and_then(|status| status.allocatable.as_ref()));
        let overhead = capacity
            .iter()
            .map(|(name, amount)| (name.clone(), amount - allocatable.get(name).unwrap_or(&0)));
        let overhead: Amounts = overhead.collect();
        let mut series = Vec::new();
        for (family, amounts) in [
            (&self.families.overhead, &overhead),
            (&self.families.pod_requests, &usage.requests),
            (&self.families.pod_limits, &usage.limits),
            (&self.families.daemon_requests, &usage.daemon_requests),
            (&self.families.daemon_limits, &usage.daemon_limits),
            (&self.families.allocatable, &allocatable),
        ] {
            for (name, amount) in amounts {
                let mut labels = labels.clone();
                labels.push(resource_type(name));
                series.push(StoredGauge { family: family.clone(), labels, value: shown(name, *amount) });
            }
        }
        let created = node.metadata.creation_timestamp.as_ref();
        let age = created.map(|created| self.context.now().duration_since(created.0).as_secs_f64());
        let value = age.unwrap_or_default();
        series.push(StoredGauge { family: self.families.lifetime.clone(), labels, value });
        series
    }

    fn utilization(&self, allocatable: &Resources, requested: &Amounts) -> Vec<StoredGauge> {
        let share = |(name, amount): (&Text, &Amount)| {
            let used = requested.get(&**name).copied().unwrap_or_default();
            let whole = if **name == *CPU { amount.as_milli_ceil() } else { amount.as_units_ceil() };
            StoredGauge {
                family: self.families.utilization.clone(),
                labels: vec![resource_type(name)],
                value: 100.0 * used as f64 / whole as f64,
            }
        };
        allocatable.iter().filter(|(_, amount)| !amount.is_zero()).map(share).collect()
    }
}

/// What the pods of a node ask for.
#[derive(Default)]
struct Usage {
    requests: Amounts,
    limits: Amounts,
    daemon_requests: Amounts,
    daemon_limits: Amounts,
}

impl Usage {
    fn of(pods: &[Arc<SeenPod>]) -> Self {
        let mut usage = Self::default();
        for pod in pods.iter().filter(|pod| !pods::is_terminal(pod)) {
            if pod.owned_by.daemon_set {
                add(&mut usage.daemon_requests, &pod.requests);
                add(&mut usage.daemon_limits, &pod.limits);
            }
            add(&mut usage.requests, &pod.requests);
            add(&mut usage.limits, &pod.limits);
        }
        usage
    }
}

fn add(total: &mut Amounts, needs: &Needs) {
    for (name, amount) in needs.iter() {
        add_one(total, name, amount);
    }
}

fn shown(name: &str, amount: i64) -> f64 {
    if name == "cpu" { amount as f64 / 1000.0 } else { amount as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_named_by_what_stands_behind_the_slash_once_each() {
        let keys = ["karpenter.sh/capacity-type", "a.example/Zone", "b.example/zone", "bare"];
        let names: Vec<String> = label_names(keys.into_iter()).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["capacity_type", "zone"]);
    }

    #[test]
    fn labels_that_prometheus_would_not_take_are_renamed_or_left_out() {
        let keys = [
            "x/gpu.model",
            "x/9lives",
            "x/Managed",
            "x/phase",
            "x/node-name",
            "x/resource-type",
            "x/",
            "x/__name__",
            "x/a\"b\n",
            "x/a/b",
        ];
        let names: Vec<String> = label_names(keys.into_iter()).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["gpu_model", "_lives", "a_b_"]);
    }
}
