//! A scenario's options as the engine's: the controller settings that reach a decision.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use karpenter_engine::disruption::{DisruptionGates, DisruptionOptions};
use karpenter_engine::ingest::Ingest;
use karpenter_engine::pod::TopologySpread;
use karpenter_engine::{FeatureGates, MinValuesPolicy, PreferencePolicy, SolveOptions};
use karpenter_primitives::names::qualified_name_errors;
use serde::Deserialize;

use super::scenario::ScenarioOptions;

/// A setting that is none, with what it may be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("options.{field}: {problem}")]
pub(crate) struct SettingError {
    field: String,
    problem: String,
}

fn error(field: impl Into<String>, problem: impl Into<String>) -> SettingError {
    SettingError { field: field.into(), problem: problem.into() }
}

/// Gates of upstream that touch no decision; naming them is no mistake.
const GATES_ELSEWHERE: [&str; 1] = ["StaticCapacity"];

pub(crate) fn decision_options(
    options: &ScenarioOptions,
    ingest: &mut Ingest,
) -> Result<DisruptionOptions, SettingError> {
    let mut gates = DisruptionGates::default();
    let mut out = SolveOptions::default();
    match options.preference_policy.as_deref() {
        None | Some("" | "Respect") => {}
        Some("Ignore") => out.preference_policy = PreferencePolicy::Ignore,
        Some(other) => {
            return Err(error("preferencePolicy", format!("{other:?} is neither Respect nor Ignore")));
        }
    }
    match options.min_values_policy.as_deref() {
        None | Some("" | "Strict") => {}
        Some("BestEffort") => out.min_values_policy = MinValuesPolicy::BestEffort,
        Some(other) => {
            return Err(error("minValuesPolicy", format!("{other:?} is neither Strict nor BestEffort")));
        }
    }
    if options.ignore_dra_requests == Some(false) {
        return Err(error(
            "ignoreDRARequests",
            "false is not supported in this version; leave it out or set it to true",
        ));
    }
    for (name, on) in &options.feature_gates {
        if !set_gate(name, *on, &mut out.gates, &mut gates) {
            return Err(error(format!("featureGates.{name}"), "no such feature gate"));
        }
    }
    if let Some(config) = options.scheduler_config.as_ref().filter(|c| !c.is_null()) {
        out.default_spread = default_spread(config, ingest)?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(DisruptionOptions { solve: out, gates, threads, ..DisruptionOptions::default() })
}

/// Opens or shuts a gate by its name; whether there is one.
pub(super) fn set_gate(name: &str, on: bool, solve: &mut FeatureGates, gates: &mut DisruptionGates) -> bool {
    let FeatureGates { reserved_capacity, node_overlay, capacity_buffer } = solve;
    let gate = match name {
        "ReservedCapacity" => reserved_capacity,
        "NodeOverlay" => node_overlay,
        "CapacityBuffer" => capacity_buffer,
        "NodeRepair" => &mut gates.node_repair,
        "SpotToSpotConsolidation" => &mut gates.spot_to_spot_consolidation,
        "TerminateFirstDrift" => &mut gates.terminate_first_drift,
        "TerminateFirstRepair" => &mut gates.terminate_first_repair,
        "PodDeletionCostManagement" => &mut gates.pod_deletion_cost_management,
        other => return GATES_ELSEWHERE.contains(&other),
    };
    *gate = on;
    true
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SchedulerConfig {
    pod_topology_spread: Option<PodTopologySpread>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodTopologySpread {
    #[serde(default)]
    default_constraints: Vec<TopologySpreadConstraint>,
}

/// The `--scheduler-config` document. What kube-scheduler would refuse is refused.
fn default_spread(
    config: &serde_json::Value,
    ingest: &mut Ingest,
) -> Result<Vec<TopologySpread>, SettingError> {
    // The document may also stand there as text, as it does on the command line.
    let parsed = match config.as_str() {
        Some("") => return Ok(Vec::new()),
        Some(text) => serde_saphyr::from_str(text).map_err(|e| e.without_snippet().to_string()),
        None => SchedulerConfig::deserialize(config).map_err(|e| e.to_string()),
    };
    let config: SchedulerConfig = parsed.map_err(|e| error("schedulerConfig", e))?;
    let constraints = config.pod_topology_spread.map(|p| p.default_constraints).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (i, c) in constraints.iter().enumerate() {
        let at = |field: &str| format!("schedulerConfig.podTopologySpread.defaultConstraints[{i}]{field}");
        let refuse = |field: &str, problem: &str| Err(error(at(field), problem));
        if c.max_skew <= 0 {
            return refuse(".maxSkew", "must be greater than 0");
        }
        if c.topology_key.is_empty() {
            return refuse(".topologyKey", "must be set");
        }
        if !qualified_name_errors(&c.topology_key).is_empty() {
            return refuse(".topologyKey", "is not a valid label name");
        }
        if !matches!(c.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway") {
            return refuse(".whenUnsatisfiable", "must be DoNotSchedule or ScheduleAnyway");
        }
        if c.label_selector.is_some() {
            return refuse(".labelSelector", "must not be set: selectors are deduced for each pod");
        }
        if c.match_label_keys.as_ref().is_some_and(|k| !k.is_empty()) {
            return refuse(".matchLabelKeys", "must not be set: it has no effect on default constraints");
        }
        if !seen.insert((c.topology_key.as_str(), c.when_unsatisfiable.as_str())) {
            return refuse("", "repeats the topologyKey and whenUnsatisfiable of another one");
        }
    }
    Ok(constraints.iter().map(|c| ingest.spread(c)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(value: serde_json::Value) -> Result<SolveOptions, SettingError> {
        let options = serde_json::from_value(value).expect("options");
        decision_options(&options, &mut Ingest::new()).map(|o| o.solve)
    }

    #[test]
    fn upstreams_defaults_hold_where_nothing_is_said() {
        let options = options(json!({})).unwrap();
        assert_eq!(options.preference_policy, PreferencePolicy::Respect);
        assert_eq!(options.min_values_policy, MinValuesPolicy::Strict);
        assert!(options.gates.reserved_capacity && !options.gates.node_overlay);
    }

    #[test]
    fn settings_that_are_none_are_named_with_what_they_may_be() {
        for (given, want) in [
            (
                json!({"preferencePolicy": "Maybe"}),
                "options.preferencePolicy: \"Maybe\" is neither Respect nor Ignore",
            ),
            (
                json!({"minValuesPolicy": "Lax"}),
                "options.minValuesPolicy: \"Lax\" is neither Strict nor BestEffort",
            ),
            (json!({"featureGates": {"Warp": true}}), "options.featureGates.Warp: no such feature gate"),
            (
                json!({"schedulerConfig": {"podTopologySpread": {"defaultConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]}}}),
                "options.schedulerConfig.podTopologySpread.defaultConstraints[0].maxSkew: must be greater than 0",
            ),
        ] {
            assert_eq!(options(given).expect_err(want).to_string(), want);
        }
        assert!(options(json!({"schedulerConfig": {"podTopologySpraed": {}}})).is_err());
    }

    #[test]
    fn the_scheduler_config_may_be_text_as_on_the_command_line() {
        let text = "podTopologySpread: {defaultConstraints: [{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}";
        for config in [
            json!(text),
            json!({"podTopologySpread": {"defaultConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}}),
        ] {
            let spread = options(json!({"schedulerConfig": config})).unwrap().default_spread;
            assert_eq!((spread.len(), spread[0].max_skew), (1, 2));
        }
    }
}
