//! When two topology constraints are one and the same group.
//!
//! Upstream tells groups apart by a hash with blind spots, and which pods share a group is visible in decisions. The blind spots
//! are reproduced here: `minDomains` is not looked at; of the node filter's requirements only the keys are; and lists
//! hashed as sets by XOR lose whatever occurs an even number of times.

use std::collections::BTreeSet;

use crate::labels::{self, Labels, Text};
use crate::pod::PodSpec;
use crate::reasons::TopologyKind;
use crate::selector::LabelSelector;
use crate::taints::Toleration;

/// What makes a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) key: Text,
    pub(crate) kind: TopologyKind,
    pub(crate) namespaces: BTreeSet<Text>,
    pub(crate) max_skew: i32,
    pub(crate) filter: Option<FilterIdentity>,
    pub(crate) selector: Option<SelectorIdentity>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FilterIdentity {
    taint_policy: Text,
    affinity_policy: Text,
    tolerations: BTreeSet<Toleration>,
    terms: BTreeSet<BTreeSet<Text>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SelectorIdentity {
    match_labels: Labels,
    expressions: BTreeSet<(Text, Text, BTreeSet<Text>)>,
}

/// Elements that occur an odd number of times.
fn xor_set<T: Ord>(elements: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    for element in elements {
        if !set.remove(&element) {
            set.insert(element);
        }
    }
    set
}

impl FilterIdentity {
    pub(crate) fn of(spec: &PodSpec, taint_policy: &Text, affinity_policy: &Text) -> Self {
        let normalized = |key: &Text| -> Text { labels::normalized(key).into() };
        let selected: BTreeSet<Text> = spec.node_selector.iter().map(|(k, _)| normalized(k)).collect();
        let terms = match &spec.required_node_affinity {
            None => xor_set([selected]),
            Some(terms) => xor_set(terms.iter().map(|term| {
                let mut keys = selected.clone();
                keys.extend(term.expressions.iter().map(|e| normalized(&e.key)));
                keys
            })),
        };
        // An absent duration hashes as zero does.
        let seconds_set = |t: &Toleration| Toleration { seconds: Some(t.seconds.unwrap_or(0)), ..t.clone() };
        FilterIdentity {
            taint_policy: taint_policy.clone(),
            affinity_policy: affinity_policy.clone(),
            tolerations: xor_set(spec.tolerations.iter().map(seconds_set)),
            terms,
        }
    }
}

impl SelectorIdentity {
    pub(crate) fn of(selector: &LabelSelector) -> Self {
        SelectorIdentity {
            match_labels: selector.match_labels.clone(),
            expressions: selector
                .expressions
                .iter()
                .map(|e| (e.key.clone(), e.operator.clone(), xor_set(e.values.iter().cloned())))
                .collect(),
        }
    }
}
