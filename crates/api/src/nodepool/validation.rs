//! The rules about NodePools that the API server cannot check, with upstream's words for what is wrong.
//!
//! Their text ends up in the `ValidationSucceeded` condition. Where Go prints a set in random order, here it is sorted.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Taint;
use karpenter_primitives::names::{label_value_errors, qualified_name_errors};
use karpenter_primitives::quote::quote;

use super::{NodeClaimTemplate, NodePool};
use crate::label_rules::{LabelRules, listed};
use crate::{NodeSelectorRequirement, Operator, labels};

/// What is wrong with one requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequirementProblems(Vec<String>);

impl fmt::Display for RequirementProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl NodePool {
    /// What the API server cannot check; empty if all is well. Joined by `; ` it is upstream's message.
    pub fn runtime_validate(&self, rules: &LabelRules) -> Vec<String> {
        let template = &self.spec.template;
        let mut problems = label_problems(template, rules);
        let mut seen = BTreeSet::new();
        problems.extend(taint_problems(template.spec.taints(), &mut seen, "taints"));
        problems.extend(taint_problems(template.spec.startup_taints(), &mut seen, "startupTaints"));
        for requirement in &template.spec.requirements {
            if let Some(found) = validate_requirement(requirement, rules) {
                problems.push(format!("invalid value: {found} in requirements, restricted"));
            }
        }
        for requirement in &template.spec.requirements {
            if requirement.key == labels::NODEPOOL {
                problems
                    .push(format!("invalid key: {} in requirements, restricted", quote(&requirement.key)));
            }
        }
        problems
    }
}

fn label_problems(template: &NodeClaimTemplate, rules: &LabelRules) -> Vec<String> {
    let mut problems = Vec::new();
    for (key, value) in template.labels() {
        let quoted = quote(key);
        if key == labels::NODEPOOL {
            problems.push(format!("invalid key name {quoted} in labels, restricted"));
        }
        for error in qualified_name_errors(key) {
            problems.push(format!("invalid key name {quoted} in labels, {}", quote(&error)));
        }
        for error in label_value_errors(value) {
            problems.push(format!("invalid value: {value} for label[{key}], {error}"));
        }
        if let Some(restriction) = rules.restriction(key) {
            problems.push(format!("invalid key name {quoted} in labels, {restriction}"));
        }
    }
    problems
}

fn taint_problems(taints: &[Taint], seen: &mut BTreeSet<(String, String)>, field: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for taint in taints {
        if taint.key.is_empty() {
            // Go wraps the problems found so far, and an absent error prints like this.
            let so_far = if problems.is_empty() { "%!w(<nil>)".to_owned() } else { problems.join("; ") };
            problems.push(format!("invalid value: {so_far} in {field}"));
        }
        for error in qualified_name_errors(&taint.key) {
            problems.push(format!("invalid value: {error} in {field}"));
        }
        let value = taint.value.as_deref().unwrap_or_default();
        if !value.is_empty() {
            for error in qualified_name_errors(value) {
                problems.push(format!("invalid value: {error} in {field}"));
            }
        }
        if !["NoSchedule", "PreferNoSchedule", "NoExecute", ""].contains(&taint.effect.as_str()) {
            problems.push(format!("invalid value: {} in {field}", quote(&taint.effect)));
        }
        if !seen.insert((taint.key.clone(), taint.effect.clone())) {
            problems.push(format!("duplicate taint Key/Effect pair {}={}", taint.key, taint.effect));
        }
    }
    problems
}

/// What is wrong with a requirement, if anything. Old spellings of keys are translated first.
pub fn validate_requirement(
    requirement: &NodeSelectorRequirement,
    rules: &LabelRules,
) -> Option<RequirementProblems> {
    let key = rules.normalize(&requirement.key);
    let NodeSelectorRequirement { operator, min_values, .. } = requirement;
    let values = requirement.values();
    let mut problems = Vec::new();
    if let Operator::Unsupported(operator) = operator {
        let mut supported = Operator::SUPPORTED;
        supported.sort_unstable();
        let supported = supported.join(" ");
        problems.push(format!("key {key} has an unsupported operator {operator} not in [{supported}]"));
    }
    problems.extend(rules.restriction(key));
    problems.extend(known_value_problem(key, requirement, rules));
    for error in qualified_name_errors(key) {
        problems.push(format!("key {key} is not a qualified name, {error}"));
    }
    for value in values {
        for error in label_value_errors(value) {
            problems.push(format!("invalid value {value} for key {key}, {error}"));
        }
    }
    if *operator == Operator::In && values.is_empty() {
        problems.push(format!("key {key} with operator {operator} must have a value defined"));
    }
    if *operator == Operator::In && min_values.is_some_and(|least| count(values) < least) {
        problems.push(format!(
            "key {key} with operator {operator} must have at least minimum number of values defined in 'values' field"
        ));
    }
    if operator.is_comparison() {
        let single = <&[String; 1]>::try_from(values).ok().and_then(|[v]| v.parse::<i64>().ok());
        if single.is_none_or(|value| value < 0) {
            problems.push(format!(
                "key {key} with operator {operator} must have a single positive integer value"
            ));
        }
    }
    (!problems.is_empty()).then_some(RequirementProblems(problems))
}

/// For labels whose values are known: at least one of them must be among those asked for, or enough for `minValues`.
fn known_value_problem(
    key: &str,
    requirement: &NodeSelectorRequirement,
    rules: &LabelRules,
) -> Option<String> {
    if requirement.operator != Operator::In || !rules.is_well_known(key) {
        return None;
    }
    let known = rules.known_values(key)?;
    let values = requirement.values();
    let (valid, invalid): (Vec<&String>, Vec<&String>) = values.iter().partition(|v| known.contains(*v));
    if valid.is_empty() {
        let entries: Vec<String> = known.iter().map(|v| format!("{v}:{{}}")).collect();
        return Some(format!(
            "no valid values found in {} for {key}, expected one of: map[{}], got: {}",
            listed(values),
            entries.join(" "),
            listed(invalid),
        ));
    }
    let least = requirement.min_values?;
    let found = i64::try_from(valid.len()).unwrap_or(i64::MAX);
    (found < least).then(|| {
        format!(
            "not enough valid values found in {} for {key}, expected at least {least} valid values from: {}, got: {found}",
            listed(values),
            listed(known),
        )
    })
}

fn count(values: &[String]) -> i64 {
    i64::try_from(values.len()).unwrap_or(i64::MAX)
}
