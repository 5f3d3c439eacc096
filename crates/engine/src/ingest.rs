//! Kubernetes objects to the engine's types, sharing whatever is equal.
//!
//! Meant to be kept for as long as objects are read: pods of one workload then share one spec and one set of labels, which is
//! both small and how the solver recognises them quickly. Nothing here decides anything.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use karpenter_primitives::Quantity;
use std::collections::{BTreeMap, BTreeSet};

use crate::hashing::FixedState;
use crate::labels::{DISRUPTION_COST, DO_NOT_DISRUPT, Labels, POD_DELETION_COST, Text};
use crate::node::NodeCondition;
use crate::plan::RejectedObject;
use crate::pod::{
    Controller, CostHint, EvictionHints, HostPort, NodeSelectorTerm, Owners, Phase, Pod, PodAffinity,
    PodAffinityTerm, PodSpec, PodStatus, PodVolume, PreferredNodeTerm, TopologySpread, WhenUnsatisfiable,
};
use crate::requirement::SelectorRequirement;
use crate::requirements::Requirements;
use crate::resources::{Amount, PODS, Resources};
use crate::selector::{Expression, LabelSelector};
use crate::taints::{Taint, Toleration};

/// A field that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field within its object.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl FieldError {
    /// The error as one of an object, e.g. `Pod default/web`.
    pub fn of(self, object: impl Into<String>) -> RejectedObject {
        RejectedObject { object: object.into(), field: self.field, problem: self.problem }
    }
}

type OpenMap = BTreeMap<String, String>;
/// Quantities by the name of their resource.
pub type OpenResources = BTreeMap<String, ApiQuantity>;

/// Converts objects and remembers what it has seen, so that equal parts are shared.
#[derive(Default)]
pub struct Ingest {
    hasher: FixedState,
    texts: HashTable<Text>,
    labels: HashTable<Labels>,
    nothing: Labels,
    specs: HashTable<Arc<PodSpec>>,
    requirements: BTreeSet<Requirements>,
    amounts: HashMap<String, Amount, FixedState>,
    /// How much there was to remember when what nobody uses any more was last forgotten.
    remembered: usize,
}

/// Less than this is not worth looking through.
const WORTH_FORGETTING: usize = 10_000;

impl Ingest {
    /// Remembers nothing yet.
    pub fn new() -> Self {
        Ingest::default()
    }

    /// Forgets what nobody uses any more, once there is twice as much as after the last time: every Job brings names and labels
    /// that never come again.
    fn forget_unused(&mut self) {
        let size = |all: &Self| all.texts.len() + all.labels.len() + all.specs.len() + all.amounts.len();
        if size(self) < (2 * self.remembered).max(WORTH_FORGETTING) {
            return;
        }
        // What refers to others first.
        self.specs.retain(|spec| Arc::strong_count(spec) > 1);
        self.labels.retain(|labels| labels.is_shared());
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.amounts.clear();
        self.remembered = size(self);
    }

    /// The shared copy of `text`.
    pub fn text(&mut self, text: &str) -> Text {
        let hash = self.hasher.hash_one(text);
        let hasher = &self.hasher;
        self.texts
            .entry(hash, |t| t.as_ref() == text, |t| hasher.hash_one(t.as_ref()))
            .or_insert_with(|| text.into())
            .get()
            .clone()
    }

    /// The shared copy of requirements: instance types mostly offer the same zones in the same ways.
    pub fn requirements(&mut self, requirements: Requirements) -> Requirements {
        if let Some(known) = self.requirements.get(&requirements) {
            return known.clone();
        }
        self.requirements.insert(requirements.clone());
        requirements
    }

    fn optional(&mut self, text: Option<&String>) -> Text {
        self.text(text.map_or("", String::as_str))
    }

    /// The shared copy of a label or annotation map.
    pub fn map(&mut self, map: Option<&OpenMap>) -> Labels {
        self.forget_unused();
        let Some(map) = map.filter(|m| !m.is_empty()) else { return self.nothing.clone() };
        let hash = hash_pairs(&self.hasher, map.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let same = |labels: &Labels| {
            labels.iter().len() == map.len()
                && labels.iter().zip(map).all(|((k, v), (key, value))| **k == **key && **v == **value)
        };
        if let Some(known) = self.labels.find(hash, same) {
            return known.clone();
        }
        let pairs: Vec<(Text, Text)> = map.iter().map(|(k, v)| (self.text(k), self.text(v))).collect();
        let labels = Labels::new(pairs);
        let hasher = &self.hasher;
        let rehash = |l: &Labels| hash_pairs(hasher, l.iter().map(|(k, v)| (k.as_ref(), v.as_ref())));
        self.labels.insert_unique(hash, labels.clone(), rehash);
        labels
    }

    /// The exact amount a quantity stands for.
    pub fn amount(&mut self, quantity: &str) -> Result<Amount, String> {
        if let Some(amount) = self.amounts.get(quantity) {
            return Ok(*amount);
        }
        let parsed = Quantity::parse(quantity).map_err(|e| e.to_string())?;
        let amount = exact_nanos(&parsed.to_plain_decimal())
            .ok_or_else(|| format!("quantity {quantity:?} is too large to reckon with"))?;
        self.amounts.insert(quantity.to_owned(), amount);
        Ok(amount)
    }

    /// A resource list.
    pub fn resources(&mut self, list: Option<&OpenResources>, field: &str) -> Result<Resources, FieldError> {
        self.resources_at(list, || field.to_owned())
    }

    fn resources_at(
        &mut self,
        list: Option<&OpenResources>,
        field: impl Fn() -> String,
    ) -> Result<Resources, FieldError> {
        let mut resources = Resources::new();
        for (name, quantity) in list.into_iter().flatten() {
            let amount = self
                .amount(&quantity.0)
                .map_err(|problem| FieldError { field: format!("{}[{name}]", field()), problem })?;
            resources.set(self.text(name), amount);
        }
        Ok(resources)
    }

    /// Taints.
    pub fn taints(&mut self, taints: Option<&Vec<core::Taint>>) -> Vec<Taint> {
        taints
            .into_iter()
            .flatten()
            .map(|t| Taint {
                key: self.text(&t.key),
                value: self.optional(t.value.as_ref()),
                effect: self.text(&t.effect),
            })
            .collect()
    }

    /// Terms of a node selector.
    pub fn node_terms(&mut self, terms: &[core::NodeSelectorTerm]) -> Vec<NodeSelectorTerm> {
        terms.iter().map(|t| self.node_term(t)).collect()
    }

    fn node_term(&mut self, term: &core::NodeSelectorTerm) -> NodeSelectorTerm {
        NodeSelectorTerm {
            expressions: term
                .match_expressions
                .iter()
                .flatten()
                .map(|e| SelectorRequirement {
                    key: self.text(&e.key),
                    operator: self.text(&e.operator),
                    values: e.values.iter().flatten().map(|v| self.text(v)).collect(),
                    min_values: None,
                })
                .collect(),
            has_match_fields: term.match_fields.is_some(),
        }
    }

    /// A label selector; absent stays absent.
    pub fn selector(&mut self, selector: Option<&meta::LabelSelector>) -> Option<LabelSelector> {
        let selector = selector?;
        Some(LabelSelector {
            match_labels: self.map(selector.match_labels.as_ref()),
            expressions: selector
                .match_expressions
                .iter()
                .flatten()
                .map(|e| Expression {
                    key: self.text(&e.key),
                    operator: self.text(&e.operator),
                    values: e.values.iter().flatten().map(|v| self.text(v)).collect(),
                })
                .collect(),
        })
    }

    /// A pod.
    pub fn pod(&mut self, pod: &core::Pod) -> Result<Arc<Pod>, FieldError> {
        let default_spec = core::PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&default_spec);
        let status = pod.status.as_ref();
        let shared = self.pod_spec(spec, status)?;
        let some_condition = |type_: &str, is: fn(&core::PodCondition) -> bool| {
            let conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.filter(|c| c.type_ == type_).any(is)
        };
        let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key));
        let owners = self.owners(pod.metadata.owner_references.as_deref().unwrap_or_default());
        Ok(Arc::new(Pod {
            namespace: self.optional(pod.metadata.namespace.as_ref()),
            name: pod.metadata.name.as_deref().unwrap_or_default().into(),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            labels: self.map(pod.metadata.labels.as_ref()),
            spec: shared,
            created_seconds: pod.metadata.creation_timestamp.as_ref().map(|t| t.0.as_second()),
            node_name: spec.node_name.as_ref().filter(|n| !n.is_empty()).map(|n| self.text(n)),
            status: PodStatus {
                phase: status.and_then(|s| s.phase.as_deref()).map_or(Phase::Unset, phase),
                unschedulable: some_condition("PodScheduled", |c| {
                    c.reason.as_deref() == Some("Unschedulable")
                }),
                nominated: status
                    .and_then(|s| s.nominated_node_name.as_deref())
                    .is_some_and(|n| !n.is_empty()),
                terminating: pod.metadata.deletion_timestamp.is_some(),
                unready: some_condition("Ready", |c| c.status == "False"),
                started_seconds: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0.as_second()),
            },
            owners,
            do_not_disrupt: annotation(DO_NOT_DISRUPT).map(|v| self.text(v)),
            eviction: EvictionHints {
                priority: spec.priority,
                disruption_cost: CostHint::read(annotation(DISRUPTION_COST).map(String::as_str)),
                deletion_cost: CostHint::read(annotation(POD_DELETION_COST).map(String::as_str)),
            },
            buffer: None,
        }))
    }

    /// A Node's conditions without their heartbeats.
    pub fn node_conditions(&mut self, status: Option<&core::NodeStatus>) -> Vec<NodeCondition> {
        let conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
        conditions
            .map(|c| NodeCondition {
                type_: self.text(&c.type_),
                status: self.text(&c.status),
                reason: self.optional(c.reason.as_ref()),
                since_seconds: c.last_transition_time.as_ref().map(|t| t.0.as_second()),
            })
            .collect()
    }

    fn owners(&mut self, references: &[meta::OwnerReference]) -> Owners {
        let any = |api_version: &str, kind: &str| {
            references.iter().any(|r| r.api_version == api_version && r.kind == kind)
        };
        let controller = references.iter().find(|r| r.controller == Some(true));
        Owners {
            daemon_set: any("apps/v1", "DaemonSet"),
            node: any("v1", "Node"),
            stateful_set: any("apps/v1", "StatefulSet"),
            controller: controller.map(|c| Controller {
                api_version: self.text(&c.api_version),
                kind: self.text(&c.kind),
                name: self.text(&c.name),
                uid: self.text(&c.uid),
            }),
        }
    }

    /// A pod spec, with the effective requests worked out. `status` may raise them while a pod is being resized.
    pub fn pod_spec(
        &mut self,
        spec: &core::PodSpec,
        status: Option<&core::PodStatus>,
    ) -> Result<Arc<PodSpec>, FieldError> {
        let converted = PodSpec {
            requests: self.pod_requests(spec, status)?,
            node_selector: self.map(spec.node_selector.as_ref()),
            tolerations: spec
                .tolerations
                .iter()
                .flatten()
                .map(|t| Toleration {
                    key: self.optional(t.key.as_ref()),
                    operator: self.optional(t.operator.as_ref()),
                    value: self.optional(t.value.as_ref()),
                    effect: self.optional(t.effect.as_ref()),
                    seconds: t.toleration_seconds,
                })
                .collect(),
            topology_spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|c| self.spread(c))
                .collect(),
            host_ports: self.host_ports(&spec.containers),
            volumes: spec
                .volumes
                .iter()
                .flatten()
                .filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
                    (Some(claim), _) => Some(PodVolume::Claim(self.text(&claim.claim_name))),
                    (None, Some(_)) => Some(PodVolume::Ephemeral(self.text(&v.name))),
                    (None, None) => None,
                })
                .collect(),
            has_resource_claims: has_resource_claims(spec),
            ..self.affinity(spec.affinity.as_ref())
        };
        let hash = self.hasher.hash_one(&converted);
        let hasher = &self.hasher;
        Ok(self
            .specs
            .entry(hash, |s| **s == converted, |s| hasher.hash_one(&**s))
            .or_insert_with(|| Arc::new(converted))
            .get()
            .clone())
    }

    fn affinity(&mut self, affinity: Option<&core::Affinity>) -> PodSpec {
        let Some(affinity) = affinity else { return PodSpec::default() };
        let node = affinity.node_affinity.as_ref();
        PodSpec {
            required_node_affinity: node
                .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref())
                .map(|r| self.node_terms(&r.node_selector_terms)),
            preferred_node_affinity: node
                .into_iter()
                .flat_map(|n| n.preferred_during_scheduling_ignored_during_execution.iter().flatten())
                .map(|p| PreferredNodeTerm { weight: p.weight, term: self.node_term(&p.preference) })
                .collect(),
            pod_affinity: affinity
                .pod_affinity
                .as_ref()
                .map(|a| {
                    self.pod_affinity(
                        a.required_during_scheduling_ignored_during_execution.as_deref(),
                        a.preferred_during_scheduling_ignored_during_execution.as_deref(),
                    )
                })
                .unwrap_or_default(),
            pod_anti_affinity: affinity
                .pod_anti_affinity
                .as_ref()
                .map(|a| {
                    self.pod_affinity(
                        a.required_during_scheduling_ignored_during_execution.as_deref(),
                        a.preferred_during_scheduling_ignored_during_execution.as_deref(),
                    )
                })
                .unwrap_or_default(),
            ..PodSpec::default()
        }
    }

    fn pod_affinity(
        &mut self,
        required: Option<&[core::PodAffinityTerm]>,
        preferred: Option<&[core::WeightedPodAffinityTerm]>,
    ) -> PodAffinity {
        PodAffinity {
            required: required.unwrap_or_default().iter().map(|t| self.pod_affinity_term(t)).collect(),
            preferred: preferred
                .unwrap_or_default()
                .iter()
                .map(|t| (t.weight, self.pod_affinity_term(&t.pod_affinity_term)))
                .collect(),
        }
    }

    fn pod_affinity_term(&mut self, term: &core::PodAffinityTerm) -> PodAffinityTerm {
        PodAffinityTerm {
            selector: self.selector(term.label_selector.as_ref()),
            namespaces: term.namespaces.iter().flatten().map(|n| self.text(n)).collect(),
            namespace_selector: self.selector(term.namespace_selector.as_ref()),
            topology_key: self.text(&term.topology_key),
        }
    }

    /// A topology spread constraint.
    pub fn spread(&mut self, spread: &core::TopologySpreadConstraint) -> TopologySpread {
        TopologySpread {
            topology_key: self.text(&spread.topology_key),
            max_skew: spread.max_skew,
            min_domains: spread.min_domains,
            when_unsatisfiable: match spread.when_unsatisfiable.as_str() {
                "DoNotSchedule" => WhenUnsatisfiable::DoNotSchedule,
                "ScheduleAnyway" => WhenUnsatisfiable::ScheduleAnyway,
                _ => WhenUnsatisfiable::Other,
            },
            selector: self.selector(spread.label_selector.as_ref()),
            match_label_keys: spread.match_label_keys.iter().flatten().map(|k| self.text(k)).collect(),
            node_affinity_policy: spread.node_affinity_policy.as_ref().map(|p| self.text(p)),
            node_taints_policy: spread.node_taints_policy.as_ref().map(|p| self.text(p)),
        }
    }

    fn host_ports(&mut self, containers: &[core::Container]) -> Vec<HostPort> {
        let mut ports = Vec::new();
        for port in containers.iter().flat_map(|c| c.ports.iter().flatten()) {
            let Some(number) = port.host_port.filter(|p| *p != 0) else { continue };
            let ip = port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or("0.0.0.0");
            ports.push(HostPort {
                ip: ip.parse().ok(),
                port: number,
                protocol: self.optional(port.protocol.as_ref()),
            });
        }
        ports
    }

    /// Effective requests: KEP-753 over containers, then pod-level resources, then overhead, then one pod.
    fn pod_requests(
        &mut self,
        spec: &core::PodSpec,
        status: Option<&core::PodStatus>,
    ) -> Result<Resources, FieldError> {
        let mut total = Resources::new();
        for (i, container) in spec.containers.iter().enumerate() {
            let field = || format!("spec.containers[{i}].resources.requests");
            total.add(&self.container_requests(container, status, true, field)?);
        }
        let mut sidecars = Resources::new();
        let mut peak = Resources::new();
        for (i, container) in spec.init_containers.iter().flatten().enumerate() {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            let field = || format!("spec.initContainers[{i}].resources.requests");
            let requests = self.container_requests(container, status, sidecar, field)?;
            if sidecar {
                total.add(&requests);
                sidecars.add(&requests);
                peak = peak.max_of_all(&sidecars);
            } else {
                let mut with_sidecars = requests;
                with_sidecars.add(&sidecars);
                peak = peak.max_of_all(&with_sidecars);
            }
        }
        if !peak.is_empty() {
            total = total.max_of_all(&peak);
        }
        if let Some(pod_level) = &spec.resources {
            let requests = self.resources(pod_level.requests.as_ref(), "spec.resources.requests")?;
            for (name, amount) in requests.iter() {
                if matches!(name.as_ref(), "cpu" | "memory") || name.starts_with("hugepages-") {
                    total.set(name.clone(), *amount);
                }
            }
        }
        total.add(&self.resources(spec.overhead.as_ref(), "spec.overhead")?);
        total.set(self.text(PODS), Amount::units(1));
        Ok(total)
    }

    fn container_requests(
        &mut self,
        container: &core::Container,
        status: Option<&core::PodStatus>,
        use_status: bool,
        field: impl Fn() -> String,
    ) -> Result<Resources, FieldError> {
        let of_spec = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let spec = self.resources_at(of_spec, field)?;
        let Some(held) = status.filter(|_| use_status).and_then(|status| Held::by(container, status)) else {
            return Ok(spec);
        };
        let actuated = self.resources(held.actuated, "status.containerStatuses.resources.requests")?;
        let allocated = self.resources(held.allocated, "status.containerStatuses.allocatedResources")?;
        let most = actuated.max_of_all(&allocated);
        Ok(if held.is_all { most } else { most.max_of_all(&spec) })
    }
}

/// What a running container has of its node, which differs from what its spec asks for while it is resized in place. It needs
/// the most of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// What it runs with.
    pub actuated: Option<&'a OpenResources>,
    /// What its node has put aside for it.
    pub allocated: Option<&'a OpenResources>,
    /// Whether its spec asks for what it will never get: then that does not count.
    pub is_all: bool,
}

impl<'a> Held<'a> {
    /// Of a container and the status of its pod; none if that says nothing about it.
    pub fn by(container: &core::Container, status: &'a core::PodStatus) -> Option<Self> {
        let mut statuses =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let reported = statuses.find(|s| s.name == container.name)?;
        let resources = reported.resources.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        let pending = conditions.find(|c| c.type_ == "PodResizePending");
        Some(Self {
            actuated: resources.requests.as_ref(),
            allocated: reported.allocated_resources.as_ref(),
            is_all: pending.is_some_and(|c| c.reason.as_deref() == Some("Infeasible")),
        })
    }
}

fn phase(name: &str) -> Phase {
    match name {
        "" => Phase::Unset,
        "Pending" => Phase::Pending,
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => Phase::Other,
    }
}

fn has_resource_claims(spec: &core::PodSpec) -> bool {
    let of_containers = |containers: &[core::Container]| {
        containers.iter().any(|c| {
            c.resources.as_ref().and_then(|r| r.claims.as_ref()).is_some_and(|claims| !claims.is_empty())
        })
    };
    spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty())
        || of_containers(spec.init_containers.as_deref().unwrap_or_default())
        || of_containers(&spec.containers)
}

/// Whether a Node's `Ready` condition is `True`.
pub fn is_ready(status: Option<&core::NodeStatus>) -> bool {
    let mut conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.find(|c| c.type_ == "Ready").is_some_and(|c| c.status == "True")
}

fn hash_pairs<'a>(hasher: &FixedState, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let mut state = hasher.build_hasher();
    pairs.for_each(|pair| pair.hash(&mut state));
    state.finish()
}

/// Reads a plain decimal as billionths. A quantity never has more than nine decimals.
fn exact_nanos(decimal: &str) -> Option<Amount> {
    let (negative, digits) = match decimal.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, decimal),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.len() > 9 {
        return None;
    }
    let units: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    for _ in fraction.len()..9 {
        nanos *= 10;
    }
    let total = units.checked_mul(1_000_000_000)?.checked_add(nanos)?;
    Some(Amount::nanos(if negative { -total } else { total }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_uses_any_more_is_forgotten_and_the_rest_stays_shared() {
        let mut ingest = Ingest::new();
        let named = |number: usize| OpenMap::from([("job".to_owned(), format!("job-{number}"))]);
        let kept = ingest.map(Some(&named(0)));
        for number in 1..10 * WORTH_FORGETTING {
            ingest.map(Some(&named(number)));
        }
        assert!(ingest.labels.len() < WORTH_FORGETTING, "{} maps", ingest.labels.len());
        assert!(ingest.texts.len() < WORTH_FORGETTING, "{} texts", ingest.texts.len());
        let again = ingest.map(Some(&named(0)));
        let pointers = [&kept, &again].map(|labels| Arc::as_ptr(labels.get("job").expect("a label")));
        assert!(std::ptr::addr_eq(pointers[0], pointers[1]), "still one copy");
    }
}
