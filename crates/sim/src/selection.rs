//! Label selectors of Kubernetes objects, by the matcher everyone shares.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use karpenter_primitives::selector::Selector;

/// Whether labels are selected. No selector selects nothing, an empty one everything; what cannot be read selects nothing.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector.is_some_and(|selector| compile(selector).matches(labels))
}

/// The selector an object means.
pub(crate) fn compile(selector: &LabelSelector) -> Selector {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        (expression.key.as_str(), expression.operator.as_str(), values)
    });
    Selector::from_parts(labels, expressions).unwrap_or_else(|_| Selector::nothing())
}
