//! What other pods have to do with it: topology spread, affinity and anti-affinity between pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm, TopologySpreadConstraint};
use karpenter_primitives::selector::{Operator, Requirement, Selector};

use crate::objects::{Objects, is_deleting, is_finished, node_of};
use crate::placement;
use crate::selection::{compile, selects};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn labels(pod: &Pod) -> &BTreeMap<String, String> {
    pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// A pod with what its own constraints amount to in the cluster as it is: worked out once, asked of every node.
pub(super) struct Neighbours {
    spreads: Vec<Spread>,
    /// Required affinity: for each term the domains where it is met.
    attractions: Vec<Domains>,
    /// Whether the pod may found a group: nobody matches yet, and it matches itself.
    founder: bool,
    repulsions: Vec<Domains>,
    /// Domains that running pods' anti-affinity keeps it out of.
    repelled: Vec<(String, String)>,
}

struct Domains {
    key: String,
    values: Vec<String>,
}

impl Domains {
    fn holds(&self, node: &Node) -> bool {
        placement::labels(node).get(&self.key).is_some_and(|value| self.values.contains(value))
    }
}

struct Spread {
    key: String,
    max_skew: i64,
    /// One more in the pod's own domain if it counts itself.
    own: i64,
    counts: BTreeMap<String, i64>,
    least: i64,
}

/// Why a node does not do.
pub(super) const SPREAD: &str = "node(s) didn't match pod topology spread constraints";
pub(super) const SPREAD_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";
pub(super) const AFFINITY: &str = "node(s) didn't match pod affinity rules";
pub(super) const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
pub(super) const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

impl Neighbours {
    pub(super) fn of(pod: &Pod, objects: &Objects) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
        let hard: Vec<_> = constraints.iter().filter(|c| c.when_unsatisfiable == "DoNotSchedule").collect();
        let spreads = hard.iter().map(|constraint| Spread::of(constraint, &hard, pod, objects)).collect();
        let affinity = spec.affinity.as_ref();
        let attracting = affinity
            .and_then(|a| a.pod_affinity.as_ref())
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default();
        let repelling = affinity
            .and_then(|a| a.pod_anti_affinity.as_ref())
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref())
            .unwrap_or_default();
        let attractions: Vec<Domains> = attracting.iter().map(|term| occupied(term, pod, objects)).collect();
        let nobody = attractions.iter().all(|domains| domains.values.is_empty());
        let itself = attracting.iter().all(|term| Term::of(term, pod, objects).matches(pod));
        Self {
            spreads,
            founder: nobody && itself,
            attractions,
            repulsions: repelling.iter().map(|term| occupied(term, pod, objects)).collect(),
            repelled: repelled(pod, objects),
        }
    }

    /// Why the pod cannot join the pods that are there already, if it cannot.
    pub(super) fn objection(&self, node: &Node) -> Option<&'static str> {
        for spread in &self.spreads {
            let Some(domain) = placement::labels(node).get(&spread.key) else { return Some(SPREAD_LABEL) };
            let count = spread.counts.get(domain).copied().unwrap_or_default();
            if count + spread.own - spread.least > spread.max_skew {
                return Some(SPREAD);
            }
        }
        let has_key = |domains: &Domains| placement::labels(node).contains_key(&domains.key);
        let together = self.attractions.iter().all(|domains| domains.holds(node));
        let founds = self.founder && self.attractions.iter().all(has_key);
        if !(together || founds) {
            return Some(AFFINITY);
        }
        if self.repulsions.iter().any(|domains| domains.holds(node)) {
            return Some(ANTI_AFFINITY);
        }
        let kept_out =
            |(key, value): &(String, String)| placement::labels(node).get(key).is_some_and(|v| v == value);
        self.repelled.iter().any(kept_out).then_some(EXISTING_ANTI_AFFINITY)
    }
}

impl Spread {
    fn of(
        constraint: &TopologySpreadConstraint,
        all: &[&TopologySpreadConstraint],
        pod: &Pod,
        objects: &Objects,
    ) -> Self {
        let selector = with_keys(
            constraint.label_selector.as_ref().map_or_else(Selector::nothing, compile),
            constraint.match_label_keys.as_deref().unwrap_or_default(),
            pod,
        );
        let spec = pod.spec.clone().unwrap_or_default();
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        let mut counts = BTreeMap::new();
        for node in objects.nodes.values() {
            let Some(domain) = placement::labels(node).get(&constraint.topology_key) else { continue };
            // Only nodes that have every key take part.
            let complete = all.iter().all(|c| placement::labels(node).contains_key(&c.topology_key));
            let affine = constraint.node_affinity_policy.as_deref() == Some("Ignore")
                || placement::accepts(&spec, node);
            let tolerated = constraint.node_taints_policy.as_deref() != Some("Honor")
                || placement::untolerated(tolerations, placement::taints(node), &["NoSchedule", "NoExecute"])
                    .is_none();
            if !complete || !affine || !tolerated {
                continue;
            }
            let here = objects.pods_on(placement::name(node)).filter(|other| {
                namespace(other) == namespace(pod)
                    && !is_deleting(&***other)
                    && !is_finished(other)
                    && selector.matches(labels(other))
            });
            *counts.entry(domain.clone()).or_insert(0) += i64::try_from(here.count()).unwrap_or(i64::MAX);
        }
        let wanted = usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1);
        let least = if counts.len() < wanted { 0 } else { counts.values().copied().min().unwrap_or(0) };
        Self {
            key: constraint.topology_key.clone(),
            max_skew: i64::from(constraint.max_skew),
            own: i64::from(selector.matches(labels(pod))),
            counts,
            least,
        }
    }
}

/// A selector narrowed to pods that share the pod's values of these labels.
fn with_keys(selector: Selector, keys: &[String], pod: &Pod) -> Selector {
    if keys.is_empty() || selector.is_nothing() {
        return selector;
    }
    let more = keys.iter().filter_map(|key| {
        let value = labels(pod).get(key)?;
        Requirement::new(key.as_str(), Operator::In, vec![value.clone()]).ok()
    });
    Selector::all_of(selector.requirements().iter().cloned().chain(more))
}

/// A term of (anti-)affinity, with the namespaces it looks at.
struct Term {
    selector: Selector,
    namespaces: Vec<String>,
}

impl Term {
    fn of(term: &PodAffinityTerm, owner: &Pod, objects: &Objects) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if let Some(wanted) = &term.namespace_selector {
            let found = objects.namespaces.iter().filter(|(_, namespace)| {
                selects(Some(wanted), namespace.metadata.labels.as_ref().unwrap_or(&NO_LABELS))
            });
            namespaces.extend(found.map(|(key, _)| key.name.to_string()));
        } else if namespaces.is_empty() {
            namespaces.push(namespace(owner).to_owned());
        }
        let selector = with_keys(
            term.label_selector.as_ref().map_or_else(Selector::nothing, compile),
            term.match_label_keys.as_deref().unwrap_or_default(),
            owner,
        );
        Self { selector, namespaces }
    }

    fn matches(&self, pod: &Pod) -> bool {
        self.namespaces.iter().any(|name| name == namespace(pod)) && self.selector.matches(labels(pod))
    }
}

/// The domains in which a pod matching the term runs.
fn occupied(term: &PodAffinityTerm, pod: &Pod, objects: &Objects) -> Domains {
    let compiled = Term::of(term, pod, objects);
    let mut values = Vec::new();
    for other in objects.pods.values().filter(|other| !is_finished(other) && compiled.matches(other)) {
        let node = node_of(other).and_then(|name| objects.node(name));
        if let Some(value) = node.and_then(|node| placement::labels(node).get(&term.topology_key))
            && !values.contains(value)
        {
            values.push(value.clone());
        }
    }
    Domains { key: term.topology_key.clone(), values }
}

/// The domains that the required anti-affinity of running pods closes to this one.
fn repelled(pod: &Pod, objects: &Objects) -> Vec<(String, String)> {
    let mut closed = Vec::new();
    for other in objects.pods.values().filter(|other| !is_finished(other)) {
        let terms = other
            .spec
            .as_ref()
            .and_then(|spec| spec.affinity.as_ref())
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|anti| anti.required_during_scheduling_ignored_during_execution.as_deref());
        let Some(terms) = terms else { continue };
        let Some(node) = node_of(other).and_then(|name| objects.node(name)) else { continue };
        for term in terms.iter().filter(|term| Term::of(term, other, objects).matches(pod)) {
            if let Some(value) = placement::labels(node).get(&term.topology_key) {
                closed.push((term.topology_key.clone(), value.clone()));
            }
        }
    }
    closed
}
