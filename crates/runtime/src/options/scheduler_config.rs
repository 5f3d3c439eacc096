//! The part of kube-scheduler's configuration that simulations must mirror: default topology spread constraints.
//!
//! The document is read strictly and held to kube-scheduler's own rules: what is accepted here is accepted there.

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use karpenter_primitives::names::qualified_name_errors;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(default)]
    pod_topology_spread: Option<PodTopologySpread>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodTopologySpread {
    #[serde(default)]
    default_constraints: Option<Vec<Constraint>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Constraint {
    #[serde(default)]
    max_skew: i32,
    #[serde(default)]
    topology_key: String,
    #[serde(default)]
    when_unsatisfiable: String,
    #[serde(default)]
    label_selector: Option<Value>,
    #[serde(default)]
    min_domains: Option<i32>,
    #[serde(default)]
    node_affinity_policy: Option<String>,
    #[serde(default)]
    node_taints_policy: Option<String>,
    #[serde(default)]
    match_label_keys: Option<Vec<String>>,
}

/// The default constraints of a document, none of an empty one. The error says which field is wrong and why.
pub(super) fn parse(text: &str) -> Result<Vec<TopologySpreadConstraint>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let document: Document =
        serde_saphyr::from_str(text).map_err(|error| format!("is not a scheduler configuration: {error}"))?;
    let constraints =
        document.pod_topology_spread.and_then(|spread| spread.default_constraints).unwrap_or_default();
    let mut accepted: Vec<TopologySpreadConstraint> = Vec::new();
    for (i, constraint) in constraints.into_iter().enumerate() {
        let at = format!("podTopologySpread.defaultConstraints[{i}]");
        let constraint = constraint.checked().map_err(|problem| format!("{at}{problem}"))?;
        let same = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key
                && other.when_unsatisfiable == constraint.when_unsatisfiable
        };
        if let Some(j) = accepted.iter().position(same) {
            return Err(format!(
                "{at} repeats [{j}]: topologyKey {} with {} may be given once",
                constraint.topology_key, constraint.when_unsatisfiable
            ));
        }
        accepted.push(constraint);
    }
    Ok(accepted)
}

impl Constraint {
    fn checked(self) -> Result<TopologySpreadConstraint, String> {
        if self.max_skew <= 0 {
            return Err(".maxSkew must be greater than 0".to_owned());
        }
        if self.topology_key.is_empty() {
            return Err(".topologyKey must be set".to_owned());
        }
        let errors = qualified_name_errors(&self.topology_key);
        if !errors.is_empty() {
            return Err(format!(
                ".topologyKey {:?} is not a label name: {}",
                self.topology_key,
                errors.join(", ")
            ));
        }
        if !matches!(self.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway") {
            return Err(format!(
                ".whenUnsatisfiable {:?} must be DoNotSchedule or ScheduleAnyway",
                self.when_unsatisfiable
            ));
        }
        if self.label_selector.is_some() {
            return Err(".labelSelector must be left out: the selector is deduced for each pod".to_owned());
        }
        if self.match_label_keys.is_some_and(|keys| !keys.is_empty()) {
            return Err(
                ".matchLabelKeys must be left out: it has no effect on default constraints".to_owned()
            );
        }
        Ok(TopologySpreadConstraint {
            max_skew: self.max_skew,
            topology_key: self.topology_key,
            when_unsatisfiable: self.when_unsatisfiable,
            min_domains: self.min_domains,
            node_affinity_policy: self.node_affinity_policy,
            node_taints_policy: self.node_taints_policy,
            label_selector: None,
            match_label_keys: None,
        })
    }
}
