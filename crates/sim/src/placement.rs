//! Whether a node is one a pod may be on: node selectors, node affinity, taints. The pod scheduler, the DaemonSet controller
//! and taint eviction ask; none of it knows of other pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// A node's name.
pub(crate) fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// A node's labels.
pub(crate) fn labels(node: &Node) -> &BTreeMap<String, String> {
    node.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
}

/// A node's taints.
pub(crate) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

/// Whether a node is cordoned.
pub(crate) fn is_unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

/// Whether the pod's node selector and required node affinity accept the node.
pub(crate) fn accepts(spec: &PodSpec, node: &Node) -> bool {
    let labels = labels(node);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|selector| selector_matches(selector, node))
}

/// The sum of the weights of the node affinities a pod would like.
pub(crate) fn preference(spec: &PodSpec, node: &Node) -> i64 {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let preferred = affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let liked = preferred.into_iter().flatten().filter(|term| term_matches(&term.preference, node));
    liked.map(|term| i64::from(term.weight)).sum()
}

/// Whether a node selector (of a pod or a volume) matches: one of its terms does.
pub(crate) fn selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // A term that says nothing matches nothing.
    (!expressions.is_empty() || !fields.is_empty())
        && expressions
            .iter()
            .all(|requirement| admits(requirement, labels(node).get(&requirement.key).map(String::as_str)))
        && fields
            .iter()
            .all(|requirement| requirement.key == "metadata.name" && admits(requirement, Some(name(node))))
}

fn admits(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|listed| listed == value);
    let compare = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare().is_some_and(|(theirs, mine)| theirs > mine),
        "Lt" => compare().is_some_and(|(theirs, mine)| theirs < mine),
        _ => false,
    }
}

/// Whether a toleration covers a taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
    let key = toleration.key.as_deref().filter(|key| !key.is_empty());
    let exists = toleration.operator.as_deref() == Some("Exists");
    effect.is_none_or(|effect| effect == taint.effect)
        && key.map_or(exists, |key| key == taint.key)
        && (exists
            || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
}

/// The first taint of these effects that no toleration covers.
pub(crate) fn untolerated<'a>(
    tolerations: &[Toleration],
    taints: &'a [Taint],
    effects: &[&str],
) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"zone": "a", "size": "8"}}}))
            .unwrap()
    }

    fn spec(affinity: serde_json::Value) -> PodSpec {
        serde_json::from_value(json!({"containers": [], "affinity": {"nodeAffinity": affinity}})).unwrap()
    }

    #[test]
    fn one_term_of_several_and_all_its_requirements_must_match() {
        let required = |terms| {
            spec(json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}))
        };
        let gt = json!({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]});
        let lt = json!({"matchExpressions": [{"key": "size", "operator": "Lt", "values": ["4"]}]});
        assert!(accepts(&required(json!([lt, gt])), &node()));
        assert!(!accepts(&required(json!([lt])), &node()));
        assert!(!accepts(&required(json!([{}])), &node()), "an empty term matches nothing");
        let named = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
        assert!(accepts(&required(json!([named])), &node()));
    }

    #[test]
    fn tolerations_cover_taints_by_key_value_and_effect() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        let covers = |toleration| tolerates(&serde_json::from_value(toleration).unwrap(), &taint);
        assert!(covers(json!({"operator": "Exists"})));
        assert!(covers(json!({"key": "k", "operator": "Exists"})));
        assert!(covers(json!({"key": "k", "value": "v", "effect": "NoSchedule"})));
        assert!(!covers(json!({"key": "k", "value": "w"})));
        assert!(!covers(json!({"key": "k", "value": "v", "effect": "NoExecute"})));
        assert!(!covers(json!({"value": "v"})), "no key needs Exists");
    }
}
