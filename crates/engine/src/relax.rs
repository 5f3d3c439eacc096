//! What a pod gives up, one step at a time, when it finds no place as it is.

use crate::pod::{PodAffinityTerm, PodSpec, WhenUnsatisfiable};
use crate::reasons::Relaxation;
use crate::taints::{PREFER_NO_SCHEDULE, Toleration};

/// The next weaker form of `spec`, in upstream's order; `None` when nothing is left to give up.
pub(crate) fn relax(spec: &PodSpec, tolerate_preferences: bool) -> Option<(PodSpec, Relaxation)> {
    let mut weaker = spec.clone();
    let relaxation = drop_required_node_term(&mut weaker)
        .or_else(|| drop_heaviest(&mut weaker.pod_affinity.preferred).map(Relaxation::PreferredPodAffinity))
        .or_else(|| {
            drop_heaviest(&mut weaker.pod_anti_affinity.preferred).map(Relaxation::PreferredPodAntiAffinity)
        })
        .or_else(|| drop_preferred_node_term(&mut weaker))
        .or_else(|| drop_soft_spread(&mut weaker))
        .or_else(|| tolerate_preferences.then(|| tolerate_prefer_no_schedule(&mut weaker)).flatten())?;
    Some((weaker, relaxation))
}

/// Alternatives are tried first to last; the last one stays.
fn drop_required_node_term(spec: &mut PodSpec) -> Option<Relaxation> {
    let terms = spec.required_node_affinity.as_mut().filter(|terms| terms.len() > 1)?;
    let dropped = terms.remove(0);
    Some(Relaxation::RequiredNodeTerm(describe(&dropped.expressions)))
}

fn drop_heaviest(terms: &mut Vec<(i32, PodAffinityTerm)>) -> Option<String> {
    if terms.is_empty() {
        return None;
    }
    terms.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    let (weight, term) = terms.remove(0);
    Some(format!("{} (weight {weight})", term.topology_key))
}

fn drop_preferred_node_term(spec: &mut PodSpec) -> Option<Relaxation> {
    let terms = &mut spec.preferred_node_affinity;
    if terms.is_empty() {
        return None;
    }
    terms.sort_by_key(|t| std::cmp::Reverse(t.weight));
    let dropped = terms.remove(0);
    Some(Relaxation::PreferredNodeTerm(describe(&dropped.term.expressions)))
}

/// The last constraint takes the dropped one's place, which decides what is dropped next.
fn drop_soft_spread(spec: &mut PodSpec) -> Option<Relaxation> {
    let soft = spec
        .topology_spread
        .iter()
        .position(|s| s.when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway)?;
    let dropped = spec.topology_spread.swap_remove(soft);
    Some(Relaxation::TopologySpread(format!("{} (maxSkew {})", dropped.topology_key, dropped.max_skew)))
}

fn tolerate_prefer_no_schedule(spec: &mut PodSpec) -> Option<Relaxation> {
    tolerate_preferences(&mut spec.tolerations).then_some(Relaxation::PreferNoScheduleTaints)
}

/// Adds the toleration of every taint that is only a preference; `false` when it is there already.
pub(crate) fn tolerate_preferences(tolerations: &mut Vec<Toleration>) -> bool {
    let already = tolerations.iter().any(|t| {
        t.key.is_empty()
            && t.value.is_empty()
            && t.operator.as_ref() == "Exists"
            && t.effect.as_ref() == PREFER_NO_SCHEDULE
    });
    if !already {
        tolerations.push(Toleration {
            key: "".into(),
            operator: "Exists".into(),
            value: "".into(),
            effect: PREFER_NO_SCHEDULE.into(),
            seconds: None,
        });
    }
    !already
}

fn describe(expressions: &[crate::requirement::SelectorRequirement]) -> String {
    let parts: Vec<String> = expressions
        .iter()
        .map(|e| {
            let values: Vec<&str> = e.values.iter().map(|v| v.as_ref()).collect();
            format!("{} {} [{}]", e.key, e.operator, values.join(" "))
        })
        .collect();
    parts.join(", ")
}
