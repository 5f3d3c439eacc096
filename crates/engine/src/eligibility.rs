//! Which pods want a place, and which of them may be given one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_primitives::GoDuration;

use crate::cluster::DisruptionBudget;
use crate::go_sort;
use crate::labels::{self, CAPACITY_TYPE, HOSTNAME, NODE_POOL, ON_DEMAND, RESERVED, SPOT};
use crate::pod::{Phase, Pod, PodSpec, PreferredNodeTerm};
use crate::reasons::PodRejection;
use crate::requirement::{Operator, Requirement, SelectorRequirement, parse_integer};
use crate::requirements::Requirements;
use crate::selector::{Selector, is_label_key, is_label_value};
use crate::snapshot::Snapshot;
use crate::taints::Taint;
use crate::volumes;

/// Whether kube-scheduler gave up on the pod and Karpenter should find it a place.
pub fn is_provisionable(pod: &Pod) -> bool {
    pod.status.unschedulable
        && pod.node_name.is_none()
        && !pod.status.nominated
        && !pod.owners.daemon_set
        && !pod.owners.node
}

pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.phase, Phase::Failed | Phase::Succeeded)
}

pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !pod.status.terminating
}

/// Whether the pod will need another place when its node goes away.
pub fn is_reschedulable(pod: &Pod) -> bool {
    // A StatefulSet's pod comes back only after its predecessor is gone, so a terminating one already needs a place.
    (is_active(pod) || (pod.owners.stateful_set && pod.status.terminating))
        && !pod.owners.daemon_set
        && !pod.owners.node
}

/// Whether the pod's `karpenter.sh/do-not-disrupt` annotation still protects it: `true`, or a duration since it started.
pub fn do_not_disrupt_active(pod: &Pod, now_seconds: i64) -> bool {
    let Some(value) = &pod.do_not_disrupt else { return false };
    if value.as_ref() == "true" {
        return true;
    }
    let Some(nanos) = value.parse::<GoDuration>().ok().map(GoDuration::as_nanos).filter(|d| *d > 0) else {
        return false;
    };
    let Some(started) = pod.status.started_seconds else { return true };
    i128::from(now_seconds.saturating_sub(started)) * 1_000_000_000 < i128::from(nanos)
}

/// What a PodDisruptionBudget must say to stand in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// That nothing may be evicted at the moment.
    Now,
    /// That nothing may ever be evicted.
    Forever,
}

/// PodDisruptionBudgets by namespace, ready to be asked about many pods.
pub(crate) struct EvictionLimits<'s> {
    by_namespace: BTreeMap<&'s str, Vec<(&'s DisruptionBudget, Selector)>>,
    disrupted: Taint,
}

impl<'s> EvictionLimits<'s> {
    pub(crate) fn new(budgets: &'s [DisruptionBudget]) -> Self {
        let mut by_namespace: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for budget in budgets {
            let selector = Selector::parse(budget.selector.as_ref());
            by_namespace.entry(budget.namespace.as_ref()).or_default().push((budget, selector));
        }
        let disrupted =
            Taint { key: "karpenter.sh/disrupted".into(), value: "".into(), effect: "NoSchedule".into() };
        EvictionLimits { by_namespace, disrupted }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    /// The budgets that select the pod.
    fn of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'s DisruptionBudget> + 'a {
        let budgets = self.by_namespace.get(pod.namespace.as_ref()).into_iter().flatten();
        budgets.filter(|(_, selector)| selector.matches(&pod.labels)).map(|(budget, _)| *budget)
    }

    /// The budgets that keep the pod from being evicted; none for pods nobody would evict. Several on one pod always do,
    /// because eviction does not support that.
    pub(crate) fn hindering(&self, pod: &Pod, now_seconds: i64, by: Hindrance) -> Vec<&'s DisruptionBudget> {
        let matching: Vec<&DisruptionBudget> = self.of(pod).collect();
        let hinders = match &matching[..] {
            [] => false,
            [budget] => {
                let blocks = match by {
                    Hindrance::Now => budget.disruptions_allowed == 0,
                    Hindrance::Forever => budget.fully_blocking,
                };
                blocks && !(budget.always_allows_unhealthy && pod.status.unready)
            }
            _ => true,
        };
        if hinders && self.is_evictable(pod, now_seconds) { matching } else { Vec::new() }
    }

    fn is_evictable(&self, pod: &Pod, now_seconds: i64) -> bool {
        is_active(pod)
            && !pod.spec.tolerations.iter().any(|t| t.tolerates(&self.disrupted))
            && !pod.owners.node
            && !do_not_disrupt_active(pod, now_seconds)
    }

    /// Whether the pod will move when its node goes: it needs a place then, and nothing lasting keeps it where it is.
    pub(crate) fn lets_move(&self, pod: &Pod, now_seconds: i64) -> bool {
        is_reschedulable(pod)
            && !(is_active(pod) && do_not_disrupt_active(pod, now_seconds))
            && self.hindering(pod, now_seconds, Hindrance::Forever).is_empty()
    }
}

/// Whether a drain can still be counted on to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    InTime,
    /// Pods stay where they are that are held by a budget of pods without a place: these, and the drain, would wait for each
    /// other.
    Overdue,
}

type BudgetKey<'s> = (&'s str, &'s str);

fn key(budget: &DisruptionBudget) -> BudgetKey<'_> {
    (budget.namespace.as_ref(), budget.name.as_ref())
}

/// Pods of nodes that are going away and that can move: in node order, then (namespace, name) order.
pub(crate) fn reschedulable_from_deleting<'s>(
    snapshot: &'s Snapshot,
    pods_by_node: impl Fn(&str) -> Vec<&'s Arc<Pod>>,
    deleting_nodes: impl Iterator<Item = (&'s str, Drain)>,
    waiting: &[&'s Arc<Pod>],
) -> Vec<&'s Arc<Pod>> {
    let now = snapshot.now.as_second();
    let mut limits: Option<EvictionLimits<'_>> = None;
    let mut moving = Vec::new();
    let mut starved: Option<BTreeSet<BudgetKey<'_>>> = None;
    for (node, drain) in deleting_nodes {
        let limits = limits.get_or_insert_with(|| EvictionLimits::new(&snapshot.budgets));
        let mut going: Vec<&Arc<Pod>> = pods_by_node(node);
        going.retain(|pod| limits.lets_move(pod, now));
        if drain == Drain::Overdue {
            let starved = starved
                .get_or_insert_with(|| waiting.iter().flat_map(|pod| limits.of(pod)).map(key).collect());
            going.retain(|pod| {
                let held_by = limits.hindering(pod, now, Hindrance::Now);
                !held_by.into_iter().any(|budget| starved.contains(&key(budget)))
            });
        }
        moving.extend(going);
    }
    moving
}

/// Every reason not to try the pod; none means it may be tried.
pub(crate) fn rejections(pod: &Pod, snapshot: &Snapshot) -> Vec<PodRejection> {
    let mut reasons = spec_rejections(&pod.spec, snapshot);
    if !pod.spec.volumes.is_empty()
        && let Err(rejection) = volumes::validate(pod, snapshot)
    {
        reasons.push(rejection);
    }
    reasons
}

/// The reasons that lie in the spec alone, the same for every pod that shares it.
fn spec_rejections(spec: &PodSpec, snapshot: &Snapshot) -> Vec<PodRejection> {
    let mut reasons = Vec::new();
    if refuses_karpenter(spec) {
        reasons.push(PodRejection::RefusesKarpenter);
    }
    let mut invalid = |field: &'static str, problems: Vec<String>| {
        reasons.extend(problems.into_iter().map(|problem| PodRejection::NodeSelection { field, problem }));
    };
    for (key, value) in spec.node_selector.iter() {
        let requirement = SelectorRequirement::new(key.clone(), Operator::In, [value.clone()]);
        invalid("spec.nodeSelector", requirement_problems(&requirement, snapshot));
    }
    for term in spec.required_node_affinity.iter().flatten() {
        const FIELD: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
        if term.has_match_fields {
            invalid(FIELD, vec!["node selector term with matchFields is not supported".into()]);
        }
        for requirement in &term.expressions {
            invalid(FIELD, requirement_problems(requirement, snapshot));
        }
    }
    reasons
}

fn refuses_karpenter(spec: &PodSpec) -> bool {
    pod_requirements(spec, true)
        .ok()
        .and_then(|r| r.get(NODE_POOL).map(Requirement::operator))
        .is_some_and(|operator| operator == Operator::DoesNotExist)
}

/// The heaviest preference, as Go's sort leaves it first.
pub(crate) fn sorted_preferences(terms: &[PreferredNodeTerm]) -> Vec<PreferredNodeTerm> {
    let mut order: Vec<u32> = (0..terms.len() as u32).collect();
    go_sort::sort(&mut order, |a, b| terms[a as usize].weight > terms[b as usize].weight);
    order.into_iter().map(|i| terms[i as usize].clone()).collect()
}

/// Node selector, first required alternative and, if asked, the heaviest preference.
pub(crate) fn pod_requirements(
    spec: &PodSpec,
    with_preference: bool,
) -> Result<Requirements, crate::requirement::RequirementError> {
    let mut requirements = Requirements::from_labels(&spec.node_selector);
    if with_preference && let Some(heaviest) = sorted_preferences(&spec.preferred_node_affinity).first() {
        requirements.add_all(&Requirements::from_selectors(&heaviest.term.expressions)?);
    }
    if let Some(first) = spec.required_node_affinity.iter().flatten().next() {
        requirements.add_all(&Requirements::from_selectors(&first.expressions)?);
    }
    Ok(requirements)
}

/// Whether labels under Karpenter's own domain, or the hostname, are asked for.
fn is_restricted(key: &str, snapshot: &Snapshot) -> bool {
    if labels::WELL_KNOWN.contains(&key) || snapshot.provider.well_known_labels.contains(key) {
        return false;
    }
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |restricted: &str| {
        domain
            .strip_suffix(restricted)
            .is_some_and(|subdomain| subdomain.is_empty() || subdomain.ends_with('.'))
    };
    within("karpenter.sh")
        || snapshot.provider.restricted_label_domains.iter().any(|d| within(d))
        || key == HOSTNAME
}

/// Everything wrong with a requirement of a pod, pool or overlay.
pub(crate) fn requirement_problems(requirement: &SelectorRequirement, snapshot: &Snapshot) -> Vec<String> {
    let mut problems = Vec::new();
    let key = labels::normalized(&requirement.key);
    let operator = Operator::parse(&requirement.operator);
    if operator.is_none() {
        problems.push(format!("key {key} has an unsupported operator {}", requirement.operator));
    }
    if is_restricted(key, snapshot) {
        problems.push(format!(
            "using label {key} is not allowed as it might interfere with the internal provisioning logic; \
             specify a well known label or a custom label that does not use a restricted domain"
        ));
    }
    let min_values = requirement.min_values;
    if operator == Some(Operator::In) && key == CAPACITY_TYPE {
        let known =
            requirement.values.iter().filter(|v| [ON_DEMAND, SPOT, RESERVED].contains(&v.as_ref())).count();
        if known == 0 {
            problems.push(format!("no valid values found in {:?} for {key}", requirement.values));
        } else if min_values.is_some_and(|min| (known as i64) < min) {
            problems.push(format!("not enough valid values found in {:?} for {key}", requirement.values));
        }
    }
    if !is_label_key(key) {
        problems.push(format!("key {key} is not a qualified name"));
    }
    for value in requirement.values.iter().filter(|v| !is_label_value(v)) {
        problems.push(format!("invalid value {value} for key {key}"));
    }
    match operator {
        Some(Operator::In) if requirement.values.is_empty() => {
            problems.push(format!("key {key} with operator In must have a value defined"));
        }
        Some(Operator::In) if min_values.is_some_and(|min| (requirement.values.len() as i64) < min) => problems
            .push(format!(
                "key {key} with operator In must have at least minimum number of values defined in 'values' field"
            )),
        Some(op @ (Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte))
            if requirement.values.len() != 1
                || parse_integer(&requirement.values[0]).is_none_or(|v| v < 0) =>
        {
            problems.push(format!("key {key} with operator {} must have a single positive integer value", op.as_str()));
        }
        _ => {}
    }
    problems
}
